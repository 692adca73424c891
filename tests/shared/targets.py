"""Posteriors with known answers: what the samplers are tested against.

Every target is a NumPyro model with one observed site, whose log-density has one entry per row of
the data, together with the exact (`linear_regression`) or reference (`posteriordb`) moments.
Moments are in constrained space, under the names of the sites.
"""

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

Sites = dict[str, Any]


class Data(NamedTuple):
    """Rows of inputs and outcomes: arrays, or trees of arrays, with equal leading axes."""

    x: Any
    y: Any


class Target(NamedTuple):
    """A model, its data and the moments of its posterior.

    `covariance` has one matrix per site, over the site's flattened entries. `report` turns the
    sampled sites, with any leading axes such as (chain, draw), into those of `means`.
    `predictive`, where the answer is exact, maps new inputs to the mean, the variance of the
    outcome and the variance of its mean over the posterior, each of shape (rows,).
    """

    name: str
    model: Callable[..., None]
    data: Data
    means: Sites
    sds: Sites
    covariance: Sites
    report: Callable[[Sites], Sites] = lambda draws: draws
    predictive: Callable[[Any], tuple[Any, Any, Any]] | None = None


# Conjugate linear regression -------------------------------------------------------------------

PRIOR_MEANS = np.array([0.5, -0.5, 0.0, 1.0])
PRIOR_SDS = np.array([0.3, 0.4, 0.5, 0.25])
NOISE = 1.5


def weights_model(x, y=None):
    """Sample a weight vector from independent Gaussians; the outcome has known noise."""
    # Lists, for JAX 0.10 remembers by its identity what a NumPy array was in the other precision.
    means, sds = jnp.array(PRIOR_MEANS.tolist()), jnp.array(PRIOR_SDS.tolist())
    weights = numpyro.sample("weights", dist.Normal(means, sds).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(x @ weights, NOISE), obs=y)


def linear_regression(temperature: float = 1.0, tempered: str = "posterior") -> Target:
    """Bayesian linear regression with known noise, at a temperature.

    Parameters
    ----------
    temperature
        T > 0.
    tempered
        "posterior" for (p(D|w) p(w))^(1/T), "likelihood" for p(D|w)^(1/T) p(w).

    Returns
    -------
    Target
        40 rows, correlated columns, one site "weights" of shape (4,). The temperature acts on the
        weights alone: `predictive` adds the model's own noise.
    """
    if tempered not in ("posterior", "likelihood"):
        raise ValueError(f"got tempered={tempered!r}, expected 'posterior' or 'likelihood'")
    data = _linear_data(num_rows=40)
    prior_precision = np.diag(PRIOR_SDS**-2.0) / (temperature if tempered == "posterior" else 1.0)
    likelihood_precision = data.x.T @ data.x / (NOISE**2 * temperature)
    covariance = np.linalg.inv(prior_precision + likelihood_precision)
    mean = covariance @ (
        prior_precision @ PRIOR_MEANS + data.x.T @ data.y / (NOISE**2 * temperature)
    )

    def predictive(x):
        epistemic = np.einsum("ni,ij,nj->n", x, covariance, x)
        return x @ mean, epistemic + NOISE**2, epistemic

    return Target(
        name=f"linear_regression-{tempered}-{temperature:g}",
        model=weights_model,
        data=data,
        means={"weights": mean},
        sds={"weights": np.sqrt(np.diag(covariance))},
        covariance={"weights": covariance},
        predictive=predictive,
    )


def _linear_data(num_rows: int) -> Data:
    rng = np.random.default_rng(0)
    independent = rng.standard_normal((num_rows, 4))
    x = np.stack([np.ones(num_rows), *np.cumsum(independent[:, :3], axis=1).T], axis=1)
    # Outcomes from weights far off the prior mean, so that tempering one factor moves the mean.
    return Data(x, x @ np.array([-0.5, 0.5, 1.0, 0.0]) + NOISE * independent[:, 3])


# posteriordb -----------------------------------------------------------------------------------


class OrderedNormal(dist.Distribution):
    """Independent normals conditioned on being in increasing order.

    A class because NumPyro has no proper distribution on ordered vectors whose density is that of
    independent components.
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.ordered_vector

    def __init__(self, loc, scale, size, *, validate_args=None):
        self.loc, self.scale = jnp.asarray(loc), jnp.asarray(scale)
        super().__init__(event_shape=(size,), validate_args=validate_args)

    def sample(self, key, sample_shape=()):
        """Sort independent draws: the order statistics have exactly this density."""
        draws = dist.Normal(self.loc, self.scale).sample(key, sample_shape + self.event_shape)
        return jnp.sort(draws, axis=-1)

    def log_prob(self, value):
        """Sum the components' densities; n! orders share the whole mass."""
        constant = jax.scipy.special.gammaln(self.event_shape[0] + 1.0)
        return dist.Normal(self.loc, self.scale).log_prob(value).sum(-1) + constant


def flat(support=constraints.real, shape=()):
    """Improper uniform distribution on a support."""
    return dist.ImproperUniform(support, (), shape)


def _normal(scale, size):
    return dist.Normal(0.0, scale).expand([size]).to_event(1)


def _noise_around(mean, sigma, y):
    with numpyro.plate("data", len(mean)):
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y)


def _linear_model(beta_prior, sigma_prior):
    def model(x, y=None):
        beta = numpyro.sample("beta", beta_prior)
        sigma = numpyro.sample("sigma", sigma_prior)
        _noise_around(x @ beta, sigma, y)

    return model


def _flat_regression(columns, y, sigma_prior):
    x = np.stack([np.ones(len(y)), *columns], axis=1)
    return _linear_model(flat(shape=(x.shape[1],)), sigma_prior), Data(x, y)


def _kidscore(file, *columns):
    return _flat_regression(columns, file["kid_score"], dist.HalfCauchy(2.5))


def _kidscore_momiq(file):
    return _kidscore(file, file["mom_iq"])


def _kidscore_momhsiq(file):
    return _kidscore(file, file["mom_hs"], file["mom_iq"])


def _kidscore_interaction(file):
    return _kidscore(file, file["mom_hs"], file["mom_iq"], file["mom_hs"] * file["mom_iq"])


def _earn_height(file):
    return _flat_regression([file["height"]], file["earn"], flat(constraints.positive))


def _logearn_height(file):
    return _flat_regression([file["height"]], np.log(file["earn"]), flat(constraints.positive))


def _nes(file):
    ages = [file["age_discrete"] == age for age in (2, 3, 4)]
    columns = [file["real_ideo"], file["race_adj"], *ages]
    columns += [file["educ1"], file["gender"], file["income"]]
    return _flat_regression(columns, file["partyid7"], flat(constraints.positive))


def _blr(file):
    return _linear_model(_normal(10.0, 5), dist.HalfNormal(10.0)), Data(file["X"], file["y"])


def _eight_schools(file):
    def model(x, y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
        z = numpyro.sample("z", _normal(1.0, 8))
        theta = numpyro.deterministic("theta", mu + tau * z)
        _noise_around(theta[x["school"]], x["sigma"], y)

    return model, Data({"school": np.arange(8), "sigma": file["sigma"]}, file["y"])


def _report_theta(draws):
    theta = draws["mu"][..., None] + draws["tau"][..., None] * draws["z"]
    return {**draws, "theta": theta}


def _kilpisjarvi(file):
    def model(x, y=None):
        alpha = numpyro.sample("alpha", dist.Normal(file["pmualpha"], file["psalpha"]))
        beta = numpyro.sample("beta", dist.Normal(file["pmubeta"], file["psbeta"]))
        sigma = numpyro.sample("sigma", flat(constraints.positive))
        _noise_around(alpha + beta * x, sigma, y)

    return model, Data(file["x"], file["y"])


def _gauss_mix(file):
    def model(x, y=None):
        mu = numpyro.sample("mu", OrderedNormal(0.0, 2.0, 2))
        sigma = numpyro.sample("sigma", dist.HalfNormal(2.0).expand([2]).to_event(1))
        theta = numpyro.sample("theta", dist.Beta(5.0, 5.0))
        weights = dist.Categorical(probs=jnp.stack([theta, 1.0 - theta]))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.MixtureSameFamily(weights, dist.Normal(mu, sigma)), obs=y)

    # There is no input; the row numbers carry the number of rows.
    return model, Data(np.arange(len(file["y"])), file["y"])


def _gp_regr(file):
    def model(x, y=None):
        rho = numpyro.sample("rho", dist.Gamma(25.0, 4.0))
        alpha = numpyro.sample("alpha", dist.HalfNormal(2.0))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
        distance = (x[:, :, None] - x[:, None, :]) / rho
        kernel = alpha**2 * jnp.exp(-0.5 * distance**2) + sigma * jnp.eye(x.shape[1])
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.MultivariateNormal(0.0, kernel), obs=y)

    return model, Data(file["x"][None], file["y"][None])


# A series is one row. Its input is the series shifted by one, so that the distribution of the
# outcome depends on x alone and the model also runs without y; x[:, 0] is never read.


def _lagged(series):
    return np.concatenate([[0.0], series[:-1]])[None]


def _arma(file):
    def model(x, y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
        phi = numpyro.sample("phi", dist.Normal(0.0, 2.0))
        theta = numpyro.sample("theta", dist.Normal(0.0, 2.0))
        sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))

        def step(mean, previous):
            mean = mu + phi * previous + theta * (previous - mean)
            return mean, mean

        first = jnp.full(x.shape[0], mu + phi * mu)
        _, rest = jax.lax.scan(step, first, jnp.asarray(x).T[1:])
        means = jnp.concatenate([first[None], rest]).T
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(means, sigma).to_event(1), obs=y)

    return model, Data(_lagged(file["y"]), file["y"][None])


def _garch(file):
    def model(x, y=None):
        mu = numpyro.sample("mu", flat())
        alpha0 = numpyro.sample("alpha0", flat(constraints.positive))
        alpha1 = numpyro.sample("alpha1", flat(constraints.unit_interval))
        beta1 = numpyro.sample("beta1", flat(constraints.interval(0.0, 1.0 - alpha1)))

        def step(variance, previous):
            variance = alpha0 + alpha1 * (previous - mu) ** 2 + beta1 * variance
            return variance, variance

        first = jnp.square(x["sigma1"])
        _, rest = jax.lax.scan(step, first, jnp.asarray(x["previous"]).T[1:])
        sds = jnp.sqrt(jnp.concatenate([first[None], rest])).T
        with numpyro.plate("data", len(sds)):
            numpyro.sample("y", dist.Normal(mu, sds).to_event(1), obs=y)

    x = {"previous": _lagged(file["y"]), "sigma1": file["sigma1"][None]}
    return model, Data(x, file["y"][None])


def _ark(file):
    def model(x, y=None):
        alpha = numpyro.sample("alpha", dist.Normal(0.0, 10.0))
        beta = numpyro.sample("beta", _normal(10.0, 5))
        sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
        _noise_around(alpha + x @ beta, sigma, y)

    y, order = file["y"], int(file["K"])
    lags = [y[order - k : len(y) - k] for k in range(1, order + 1)]
    return model, Data(np.stack(lags, axis=1), y[order:])


POSTERIORDB = {
    "arK-arK": _ark,
    "arma-arma11": _arma,
    "earnings-earn_height": _earn_height,
    "earnings-logearn_height": _logearn_height,
    "eight_schools-eight_schools_noncentered": _eight_schools,
    "garch-garch11": _garch,
    "gp_pois_regr-gp_regr": _gp_regr,
    "kidiq-kidscore_interaction": _kidscore_interaction,
    "kidiq-kidscore_momhsiq": _kidscore_momhsiq,
    "kidiq-kidscore_momiq": _kidscore_momiq,
    "kilpisjarvi_mod-kilpisjarvi": _kilpisjarvi,
    "low_dim_gauss_mix-low_dim_gauss_mix": _gauss_mix,
    "nes1996-nes": _nes,
    "sblrc-blr": _blr,
    "sblri-blr": _blr,
}


def posteriordb(name: str, folder: str | Path) -> Target:
    """Build a posterior of the posteriordb collection, with the moments of its reference draws.

    Parameters
    ----------
    name
        A key of `POSTERIORDB`.
    folder
        The data folder, which holds ``posteriordb/<name>.npz``.
    """
    file = _read(name, folder)
    data = {k[5:]: _as_float(v) for k, v in file.items() if k.startswith("data_")}
    model, rows = POSTERIORDB[name](data)
    draws = reference(name, folder)
    return Target(
        name=name,
        model=model,
        data=rows,
        means={site: v.mean(0) for site, v in draws.items()},
        sds={site: v.std(0, ddof=1) for site, v in draws.items()},
        covariance={
            site: np.atleast_2d(np.cov(v.reshape(len(v), -1), rowvar=False))
            for site, v in draws.items()
        },
        report=_report_theta if "theta" in draws and "z" in draws else lambda draws: draws,
    )


def reference(name: str, folder: str | Path) -> Sites:
    """Return reference draws by site, (10000, ...) each: 10 chains of 1000, one after the other.

    For the eight schools the site z = (theta - mu) / tau, which is not in the file, is added.
    """
    file = _read(name, folder)
    columns: dict[str, list] = {}
    for label, draws in zip(file["names"], np.moveaxis(file["draws"], -1, 0), strict=True):
        columns.setdefault(str(label).split("[")[0], []).append((label, draws.reshape(-1)))
    sites = {
        site: np.stack([d for _, d in group], axis=-1) if "[" in str(group[0][0]) else group[0][1]
        for site, group in columns.items()
    }
    if name.startswith("eight_schools"):
        sites["z"] = (sites["theta"] - sites["mu"][:, None]) / sites["tau"][:, None]
    return sites


def _read(name: str, folder: str | Path) -> dict[str, np.ndarray]:
    if name not in POSTERIORDB:
        near = difflib.get_close_matches(name, POSTERIORDB, n=1) or sorted(POSTERIORDB)
        raise ValueError(f"got posterior {name!r}, expected a key of POSTERIORDB; {near[0]!r}?")
    with np.load(Path(folder) / "posteriordb" / f"{name}.npz") as file:
        return dict(file)


def _as_float(value: np.ndarray) -> np.ndarray:
    return np.asarray(value, dtype=np.float64)
