"""The likelihoods by name over a linear network, each beside a NumPyro program that says the same.

The plain programs are written from the definitions in the docstrings, with the moments of y in
NumPy.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from flax import nnx
from scipy.stats import norm

import bnn_ppl as bnn

RNG = np.random.default_rng(1)
ROWS = 40
X = RNG.normal(size=(ROWS, 2)).astype(np.float32)
MEAN = np.sin(X[:, 0]) + 0.5 * X[:, 1]
EXPOSURE = RNG.uniform(0.5, 3.0, ROWS).astype(np.float32)
TRIALS = RNG.integers(5, 15, ROWS).astype(np.float32)
CENSORING = (np.arange(ROWS) % 4 == 0).astype(np.float32)
COUNTS = RNG.poisson(EXPOSURE * np.exp(1 + MEAN)).astype(np.float32)
SUCCESSES = RNG.binomial(TRIALS.astype(int), 1 / (1 + np.exp(-MEAN))).astype(np.float32)
TIMES = np.exp(MEAN + 0.5 * RNG.normal(size=ROWS)).astype(np.float32)
SHARES = (1 / (1 + np.exp(-MEAN - 0.3 * RNG.normal(size=ROWS)))).astype(np.float32)
REAL = ((TIMES - TIMES.mean()) / TIMES.std()).astype(np.float32)
RATINGS = np.digitize(MEAN, [-0.7, 0.2, 0.9]).astype(np.int32)
LEVELS = 0.1, 0.5, 0.8

LOGS = float(np.log(TIMES).mean()), float(np.log(TIMES).std())
RATE = COUNTS.sum() / EXPOSURE.sum(), np.log((COUNTS + 0.5) / EXPOSURE).std()


class Named(NamedTuple):
    """A likelihood, what it is of, and a program that says the same."""

    y: Any
    plain: Callable  # outputs, known -> distribution, which samples its own sites
    columns: dict[str, Any]  # of the rows
    options: dict[str, Any]
    num_outputs: int


NAMED: dict[str, Named] = {}


def named(y: Any, num_outputs: int = 1, columns: Any = None, **options: Any) -> Callable:
    def add(plain: Callable) -> Callable:
        NAMED[plain.__name__] = Named(y, plain, columns or {}, options, num_outputs)
        return plain

    return add


def rows_of(name):
    columns = NAMED[name].columns
    return ((X, columns) if columns else X), NAMED[name].y


def likelihood_of(name):
    own, described = NAMED[name], bnn.likelihoods.LIKELIHOODS[name]
    with_y = {each: own.columns[each] for each in described.columns_of_y if each in own.columns}
    return described.build(own.y, **with_y, **own.options)


def model_of(name):
    net = nnx.Linear(2, NAMED[name].num_outputs, rngs=nnx.Rngs(0))
    return bnn.models.with_likelihood(net, bnn.priors.normal(1.0), likelihood_of(name))


def plain_of(name):
    def model(x, y=None):
        num = NAMED[name].num_outputs
        kernel = numpyro.sample("net.kernel", dist.Normal(0, 1).expand([2, num]).to_event(2))
        bias = numpyro.sample("net.bias", dist.Normal(0, 1).expand([num]).to_event(1))
        law = NAMED[name].plain(X @ kernel + bias)
        with numpyro.plate("data", ROWS):
            numpyro.sample("y", law, obs=y)

    return model


def around(value):
    return dist.LogNormal(np.log(value), 1.5)


def rate(out):
    return EXPOSURE * jnp.exp(np.log(RATE[0]) + RATE[1] * out[:, 0])


@named(COUNTS, columns={"exposure": EXPOSURE})
def poisson(out):
    return dist.Poisson(rate(out))


@named(COUNTS, columns={"exposure": EXPOSURE})
def negative_binomial(out):
    usual = COUNTS.mean() ** 2 / (COUNTS.var() - COUNTS.mean())
    return dist.NegativeBinomial2(rate(out), numpyro.sample("concentration", around(usual)))


@named(COUNTS, columns={"exposure": EXPOSURE})
def zero_inflated_poisson(out):
    gate = numpyro.sample("gate", dist.Beta(1, 1))
    return dist.ZeroInflatedDistribution(dist.Poisson(rate(out)), gate=gate)


@named(SUCCESSES, columns={"trials": TRIALS})
def binomial(out):
    share = (SUCCESSES + 0.5) / (TRIALS + 1)
    logits = np.log(share / (1 - share))
    return dist.Binomial(TRIALS, probs=jax.nn.sigmoid(logits.mean() + logits.std() * out[:, 0]))


@named(TIMES, columns={"censoring": CENSORING})
def log_normal(out):
    noise = numpyro.sample("noise", dist.TruncatedNormal(0.0, 1.0, low=0.02))
    law = dist.LogNormal(LOGS[0] + LOGS[1] * out[:, 0], LOGS[1] * noise)
    return dist.RightCensoredDistribution(law, CENSORING)


@named(TIMES, columns={"censoring": CENSORING})
def gamma(out):
    usual = TIMES.mean() ** 2 / TIMES.var()
    shape = numpyro.sample("concentration", around(usual))
    mean = jnp.exp(np.log(TIMES.mean()) + LOGS[1] * out[:, 0])
    return dist.RightCensoredDistribution(dist.Gamma(shape, shape / mean), CENSORING)


@named(TIMES, columns={"censoring": CENSORING})
def weibull(out):
    shape = numpyro.sample("concentration", around(np.pi / (LOGS[1] * np.sqrt(6))))
    law = dist.Weibull(jnp.exp(LOGS[0] + LOGS[1] * out[:, 0]), shape)
    return dist.RightCensoredDistribution(law, CENSORING)


@named(SHARES)
def beta(out):
    logits = np.log(SHARES / (1 - SHARES))
    mean = jax.nn.sigmoid(logits.mean() + logits.std() * out[:, 0])
    usual = SHARES.mean() * (1 - SHARES.mean()) / SHARES.var() - 1
    concentration = numpyro.sample("concentration", around(usual))
    return dist.Beta(mean * concentration, (1 - mean) * concentration)


@named((RATINGS > 1).astype(np.int32))
def bernoulli(out):
    share = ((RATINGS > 1).sum() + 0.5) / (ROWS + 1)
    return dist.Bernoulli(logits=np.log(share / (1 - share)) + out[:, 0])


@named(RATINGS)
def ordinal(out):
    below = np.array([(k >= RATINGS).mean() for k in range(3)])
    cut = np.log(below / (1 - below))
    start = np.array([cut[0], *np.log(np.diff(cut))])
    free = dist.Normal(start, 1.0).to_event(1)
    ordered = dist.transforms.OrderedTransform()
    cutpoints = numpyro.sample("cutpoints", dist.TransformedDistribution(free, ordered))
    upto = jax.nn.sigmoid(cutpoints - out)
    probs = jnp.diff(upto, axis=1, prepend=0.0, append=1.0)
    return dist.Categorical(probs=probs)


@named(REAL)
def student_t(out):
    noise = numpyro.sample("noise", dist.TruncatedNormal(0.0, 1.0, low=0.02))
    df = 2.0 + numpyro.sample("excess_df", dist.Gamma(2.0, 0.1))
    return dist.StudentT(df, out[:, 0], noise)


def sd_at(shapes):
    level = numpyro.sample("noise", dist.HalfNormal(1.0))
    return 0.02 + level * jnp.exp(numpyro.sample("noise_amplitude", dist.HalfNormal(1.0)) * shapes)


@named(REAL, num_outputs=6, num_parts=2)
def mixture(out):
    centers = np.quantile(REAL.astype(float), [0.25, 0.75])
    parts = dist.Normal(centers + out[:, 2:4], sd_at(out[:, 4:]))
    return dist.MixtureSameFamily(dist.Categorical(logits=out[:, :2]), parts)


@named(REAL, num_outputs=4, levels=LEVELS)
def quantile(out):
    """A transformed normal: z at a value, and the slope there, on either side of the center."""
    z, slopes = norm.ppf(LEVELS), sd_at(out[:, 1:])

    def side(distance, length, outer):
        """Go up from the middle knot by a distance, to z and the slope."""
        middle, end = slopes[:, 1], length * (slopes[:, 1] + outer) / 2
        slope = jnp.sqrt(middle**2 + 2 * (outer - middle) / length * jnp.clip(distance, 0, end))
        inside = 2 * jnp.clip(distance, 0, end) / (middle + slope)
        beyond = jnp.maximum(distance - end, 0) / outer
        return inside + beyond, jnp.where(distance > end, outer, slope)

    class Pieces(dist.Distribution):
        support = dist.constraints.real

        def log_prob(self, value):
            up, slope_up = side(value - out[:, 0], z[2] - z[1], slopes[:, 2])
            down, slope_down = side(out[:, 0] - value, z[1] - z[0], slopes[:, 0])
            slope = jnp.where(value < out[:, 0], slope_down, slope_up)
            return dist.Normal(0, 1).log_prob(z[1] + up - down) - jnp.log(slope)

        def sample(self, key, sample_shape=()):
            return jnp.zeros((*sample_shape, ROWS))

    return Pieces(batch_shape=(ROWS,))
