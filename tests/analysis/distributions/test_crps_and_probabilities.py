"""Scores and probabilities of mixtures over draws, against SciPy and integrals by brute force."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats as st
import xarray
from marks import quick_first
from scipy.integrate import quad

import bnn_ppl as bnn
from bnn_ppl.analysis.distributions import crps
from bnn_ppl.storage.arviz_versions import draws_of_arrays, draws_of_groups, groups_of

RNG = np.random.default_rng(0)
ROWS, DRAWS = 6, (2, 5)
X, REAL = RNG.normal(size=(ROWS, 2)), RNG.normal(size=ROWS)
COUNTS = RNG.poisson(3.0, ROWS).astype(float)
W, SD = RNG.normal(size=(*DRAWS, 2)), RNG.uniform(0.3, 1.5, DRAWS)
LOCS = np.einsum("ni,cdi->cdn", X, W)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def conditioned(law, y, x=X):
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(np.zeros(2), 1).to_event(1))
        sd = numpyro.sample("sd", dist.HalfNormal())
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", law(x[:, :2] @ w, sd, x), obs=y)

    return bnn.condition(model, (x, y))


def drawn(weighted=False):
    draws = draws_of_arrays({"posterior": {"w": W, "sd": SD}})
    if not weighted:
        return draws, np.full(DRAWS, 0.1)
    logs = RNG.normal(size=DRAWS)
    stats = xarray.Dataset({"log_weight": (("chain", "draw"), logs)})
    share = np.exp(logs) / np.exp(logs).sum(1, keepdims=True) / 2
    return draws_of_groups({**groups_of(draws), "sample_stats": stats}, {}), share


def by_integral(cdf, y):
    below = quad(lambda z: cdf(z) ** 2, y - 30, y, limit=300)[0]
    return below + quad(lambda z: (1 - cdf(z)) ** 2, y, y + 30, limit=300)[0]


@quick_first("weighted", [False, True])
def test_the_score_of_gaussians_is_exact(weighted):
    draws, share = drawn(weighted)
    posterior = conditioned(lambda f, sd, x: dist.Normal(f, sd), REAL)
    found = bnn.predict(posterior, draws, (X, REAL), crps=True)
    for row in range(ROWS):
        law = st.norm(LOCS[..., row], SD)
        expected = by_integral(lambda z: np.sum(share * law.cdf(z)), REAL[row])  # noqa: B023
        assert found.crps[row] == pytest.approx(expected, abs=1e-6)
    assert (found.crps_mcse == 0).all()
    summary = bnn.metrics.summary(found, REAL, scale=2.0, digits=None)
    assert summary["crps"] == pytest.approx(2 * float(found.crps.mean()))
    assert "crps_mcse" not in summary
    assert "crps" not in bnn.predict(posterior, draws, (X, REAL))
    parts = bnn.predict(posterior, draws, (X, REAL), batch_size=4, crps=True)
    np.testing.assert_allclose(parts.crps, found.crps, rtol=1e-9)


@pytest.mark.parametrize("num_outputs", [1, 2])
def test_beside_other_scores_it_is_given_where_it_is_quick(num_outputs, monkeypatch):
    y = REAL if num_outputs == 1 else np.stack([REAL, COUNTS], axis=1)

    def law(f, sd, x):
        means = f if num_outputs == 1 else jnp.stack([f, 2 * f], axis=1)
        return dist.Normal(means, sd).to_event(num_outputs - 1)

    posterior, (draws, _) = conditioned(law, y), drawn()
    expected = bnn.predict(posterior, draws, (X, y), crps=True)["crps"]
    np.testing.assert_allclose(crps.crps_if_quick(posterior, draws, (X, y))["crps"], expected)
    if num_outputs == 2:  # each is scored as it would be alone
        alone = conditioned(lambda f, sd, x: dist.Normal(f, sd), REAL)
        scores = bnn.predict(alone, draws, (X, REAL), crps=True)["crps"]
        np.testing.assert_allclose(expected[:, 0], scores, rtol=1e-9)
    enough = 4100 * y.size, 3 * 10 * ROWS  # 410 draws of y for each of 10, and weights
    for most in (np.array(enough), enough - np.array([1, 0]), enough - np.array([0, 1])):
        monkeypatch.setattr(crps, "_MOST_QUICK", tuple(most))
        found = crps.crps_if_quick(posterior, draws, (X, y))
        assert ("crps" in found) == (tuple(most) == enough)


def test_whether_the_score_is_exact_depends_on_the_number_of_draws_alone(monkeypatch):
    monkeypatch.setattr(crps, "_of_gaussians", lambda each, shares, y: (np.zeros(len(y)),) * 2)
    x, y = np.ones((9_000, 2), np.float32), np.zeros(9_000, np.float32)
    posterior = conditioned(lambda f, sd, x: dist.Normal(f, sd), y, x)
    for num_draws, num_rows, exact in ((500, 9_000, True), (501, 2, False)):
        values = {"w": np.zeros((1, num_draws, 2), np.float32), "sd": np.ones((1, num_draws))}
        draws = draws_of_arrays({"posterior": values})
        found = bnn.predict(posterior, draws, (x[:num_rows], y[:num_rows]), crps=True)
        assert (found.crps_mcse == 0).all() == exact


@pytest.mark.thorough
@pytest.mark.parametrize("weighted", [False, True])
def test_the_score_of_others_is_within_its_error(weighted):
    draws, share = drawn(weighted)
    posterior = conditioned(lambda f, sd, x: dist.StudentT(4.0, f, sd), REAL)
    found = bnn.predict(posterior, draws, (X, REAL), crps=True)
    expected = [
        by_integral(lambda z: np.sum(share * st.t(4, LOCS[..., row], SD).cdf(z)), REAL[row])  # noqa: B023
        for row in range(ROWS)
    ]
    z = (found.crps - np.array(expected)) / found.crps_mcse
    assert np.abs(z).max() < 4 and 0.3 < np.sqrt(np.mean(z**2)) < 2
    assert (found.crps_mcse < 0.05).all() and (found.crps_mcse > 0).all()


def test_the_error_of_the_score_holds_when_drawn_again():
    from bnn_ppl.analysis.distributions.crps import _of_drawn

    y, scores = np.array([0.7]), []
    for _ in range(400):
        values = RNG.normal(size=(200, 1))
        scores.append(np.concatenate(_of_drawn(values, np.zeros(1, bool), np.ones(1), y)))
    score, error = np.array(scores).T
    exact = bnn.metrics.crps({"mean": np.zeros(1), "variance": np.ones(1)}, y)
    assert score.mean() == pytest.approx(exact, abs=4 * score.std() / 20)
    assert error.mean() == pytest.approx(score.std(), rel=0.15)


@pytest.mark.thorough
def test_counts_are_scored_by_their_steps():
    draws, share = drawn()
    posterior = conditioned(lambda f, sd, x: dist.Poisson(jnp.exp(f)), COUNTS)
    found = bnn.predict(posterior, draws, (X, COUNTS), crps=True)
    steps = np.arange(2_000)
    for row in range(ROWS):
        below = np.sum(
            share[..., None] * st.poisson(np.exp(LOCS[..., row, None])).cdf(steps), (0, 1)
        )
        expected = np.sum((below - (steps >= COUNTS[row])) ** 2)
        assert abs(found.crps[row] - expected) < 4 * found.crps_mcse[row]


def test_censored_targets_have_no_score():
    times, hidden = np.abs(REAL), np.arange(ROWS) % 2
    x = np.column_stack([X, hidden])

    def law(f, sd, x):
        return dist.RightCensoredDistribution(dist.Weibull(jnp.exp(f), 1 + sd), x[:, 2])

    found = bnn.predict(conditioned(law, times, x), drawn()[0], (x, times), crps=True)
    assert np.isnan(found.crps[1::2]).all() and np.isfinite(found.crps[::2]).all()
    assert np.isfinite(bnn.metrics.summary(found, times)["crps"])
    hidden = found.isel(row=slice(1, None, 2))
    with warnings.catch_warnings(action="error"):
        assert "crps" not in bnn.metrics.summary(hidden, times[1::2])


def test_classes_have_no_such_score():
    labels = (REAL > 0).astype(int)
    posterior = conditioned(lambda f, sd, x: dist.Bernoulli(logits=f), labels)
    assert "crps" not in bnn.predict(posterior, drawn()[0], (X, labels), crps=True)


@pytest.mark.parametrize("weighted", [False, True])
def test_probabilities_of_counts_are_scipys(weighted):
    draws, share = drawn(weighted)
    posterior = conditioned(lambda f, sd, x: dist.Poisson(jnp.exp(f)), COUNTS)
    values = [0, 1, 4, 2.5, -1]
    law = st.poisson(np.exp(LOCS[..., None]))
    for which, of_scipy in {"equal": law.pmf, "at_most": law.cdf, "more": law.sf}.items():
        found = bnn.predict_probabilities(posterior, draws, X, values, which)
        expected = np.einsum("cd,cdnv->nv", share, of_scipy(values))
        np.testing.assert_allclose(found, expected, atol=1e-7)


def test_survival_and_masses_of_classes():
    times, draws = np.abs(REAL), drawn()[0]
    posterior = conditioned(lambda f, sd, x: dist.Weibull(jnp.exp(f), 1 + sd), times)
    found = bnn.predict_probabilities(posterior, draws, X, 0.8, "more")
    shape = (1 + SD)[..., None]
    expected = st.weibull_min(shape, scale=np.exp(LOCS)).sf(0.8).mean((0, 1))
    np.testing.assert_allclose(found[:, 0], expected, atol=1e-7)
    labels = (REAL > 0).astype(int)
    posterior = conditioned(lambda f, sd, x: dist.Bernoulli(logits=f), labels)
    masses = bnn.predict_probabilities(posterior, draws, X, [0, 1, 2], "equal")
    probs = bnn.predict(posterior, draws, X)["probs"]
    np.testing.assert_allclose(masses, np.column_stack([probs, np.zeros(ROWS)]), atol=1e-6)


@pytest.mark.thorough
def test_several_outputs_are_each_by_itself():
    y = np.column_stack([REAL, -REAL])
    posterior = conditioned(
        lambda f, sd, x: dist.Normal(jnp.stack([f, 2 * f], 1), sd).to_event(1), y
    )
    draws, share = drawn()
    found = bnn.predict_probabilities(posterior, draws, X, [0.0, 1.0])
    expected = np.einsum(
        "cd,cdnv->nv", share, st.norm(2 * LOCS[..., None], SD[..., None, None]).cdf([0, 1])
    )
    np.testing.assert_allclose(found[:, 1], expected, atol=1e-7)
    scores = bnn.predict(posterior, draws, (X, y), crps=True).crps
    one = bnn.predict(
        conditioned(lambda f, sd, x: dist.Normal(f, sd), REAL), draws, (X, REAL), crps=True
    )
    np.testing.assert_allclose(scores[:, 0], one.crps, rtol=1e-9)
    both = bnn.predict(posterior, draws, (X, y), crps=True)
    summary = bnn.metrics.summary(both, y, scale=[1.0, 3.0], digits=None)
    assert summary["crps[0]"] == pytest.approx(float(one.crps.mean()))
    assert summary["crps"] == pytest.approx((summary["crps[0]"] + summary["crps[1]"]) / 2)


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("equal", "got which='equal' for a likelihood Normal of real numbers, expected counts"),
        ("below", "got which='below', expected"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(which, message):
    posterior = conditioned(lambda f, sd, x: dist.Normal(f, sd), REAL)
    with pytest.raises(ValueError, match=message) as error:
        bnn.predict_probabilities(posterior, drawn()[0], X, [0.0], which)
    assert "\n" not in str(error.value)


def test_a_gaussian_prediction_has_the_known_score():
    prediction = {"mean": np.zeros(ROWS), "variance": np.full(ROWS, 4.0)}
    expected = np.mean([by_integral(st.norm(0, 2).cdf, y) for y in REAL])
    assert bnn.metrics.crps(prediction, REAL) == pytest.approx(expected, abs=1e-7)


class Bare(dist.Normal):
    """A law of which only draws and the density are known."""

    def cdf(self, value=None):
        raise NotImplementedError

    mean = variance = property(cdf)


def test_equal_draws_of_the_weights_have_draws_of_y_of_their_own():
    times = 300
    copies = {"w": np.tile(W[:1, :1], (1, times, 1)), "sd": np.ones((1, times))}
    draws, loc = draws_of_arrays({"posterior": copies}), LOCS[0, 0]
    posterior = conditioned(lambda f, sd, x: Bare(f, sd), REAL)
    found = bnn.predict(posterior, draws, (X, REAL), crps=True)
    np.testing.assert_allclose(found["mean"], loc, atol=0.02)
    np.testing.assert_allclose(found["variance"], 1, atol=0.03)
    exact = [by_integral(st.norm(loc[row]).cdf, REAL[row]) for row in range(ROWS)]
    assert (np.abs(found.crps - exact) < 4 * found.crps_mcse).all()
    median = bnn.predict_quantiles(posterior, draws, X, [0.5])[0]
    np.testing.assert_allclose(median, loc, atol=0.08)
    np.testing.assert_allclose(bnn.predict_cdf(posterior, draws, X, loc), 0.5, atol=0.03)
