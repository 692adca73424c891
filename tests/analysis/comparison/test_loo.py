"""Leave-one-out estimates against exact refits of conjugate linear models, and what is refused."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from marks import quick_first
from scipy.stats import norm

import bnn_ppl as bnn
from bnn_ppl.analysis.comparison import loo as comparison
from bnn_ppl.analysis.comparison import moment_matching
from bnn_ppl.analysis.comparison.loo import Loo, averaged
from bnn_ppl.analysis.comparison.moment_matching import Affine, Kind, cannot_move
from bnn_ppl.analysis.convergence.pareto import log_likelihoods, pareto_smoothed
from bnn_ppl.storage.arviz_versions import draws_of_arrays

RNG = np.random.default_rng(0)
NUM_ROWS, NOISE = 30, 0.5
X = np.stack([np.ones(NUM_ROWS), RNG.normal(size=NUM_ROWS)], 1).astype(np.float32)
Y = (X @ [0.5, 1.0] + NOISE * RNG.normal(size=NUM_ROWS)).astype(np.float32)


def linear(num_columns, scale=1.0):
    def model(x, y=None):
        normal = dist.Normal(0.0, 1.0).expand([num_columns]).to_event(1)
        slopes = numpyro.sample("slopes", normal)
        with numpyro.plate("rows", len(x)), numpyro.handlers.scale(scale=scale):
            numpyro.sample("y", dist.Normal(x[:, :num_columns] @ slopes, NOISE), obs=y)

    return model


def posterior_of(x, y, temperature=1.0, scale=1.0):
    """Mean and covariance of the slopes; all of it at a temperature."""
    precision = np.eye(x.shape[1]) + scale * x.T @ x / NOISE**2
    covariance = np.linalg.inv(precision)
    return covariance @ x.T @ y * scale / NOISE**2, temperature * covariance


def exact(x, y, temperature=1.0, scale=1.0):
    """Fit again without each row."""
    found = []
    for row in range(len(y)):
        others = np.arange(len(y)) != row
        mean, covariance = posterior_of(x[others], y[others], temperature, scale)
        sd = np.sqrt(NOISE**2 + x[row] @ covariance @ x[row])
        found.append(norm.logpdf(y[row], x[row] @ mean, sd))
    return np.array(found)


def run(num_columns, x=X, y=Y, num_draws=4_000, temperature=1.0, scale=1.0, **attrs):
    mean, covariance = posterior_of(x[:, :num_columns], y, temperature, scale)
    slopes = RNG.multivariate_normal(mean, covariance, (4, num_draws)).astype(np.float32)
    draws = draws_of_arrays({"posterior": {"slopes": slopes}}, attrs)
    model = linear(num_columns, scale)
    return bnn.condition(model, (x, y), temperature=temperature), draws


@pytest.mark.parametrize(("temperature", "scale"), [(1.0, 1.0), (0.5, 1.0), (1.0, 2.0)])
def test_rows_left_out_by_weights_are_those_of_refits(temperature, scale):
    found = bnn.loo(*run(2, temperature=temperature, scale=scale))
    expected = exact(X, Y, temperature, scale)
    np.testing.assert_allclose(found.elpd, expected, atol=0.02)
    assert found.total == pytest.approx(expected.sum(), abs=0.1)
    assert found.standard_error == pytest.approx(np.sqrt(NUM_ROWS) * expected.std(), rel=0.02)
    assert found.num_bad == 0 and found.num_draws == 16_000
    if temperature == scale == 1:
        assert 1.0 < found.num_effective < 3.0


def test_models_are_compared_with_errors_and_stacked():
    found = {name: bnn.loo(*run(k)) for name, k in {"constant": 1, "slope": 2}.items()}
    table = bnn.compare_loo(found)
    assert table.index.tolist() == ["slope", "constant"]
    less = exact(X, Y) - exact(X[:, :1], Y)
    other = table.loc["constant"]
    assert other["difference"] == pytest.approx(less.sum(), abs=0.2)
    assert other["difference_se"] == pytest.approx(np.sqrt(NUM_ROWS) * less.std(), rel=0.03)
    assert table.loc["slope", "difference"] == 0
    assert table["weight"].sum() == pytest.approx(1) and table.loc["slope", "weight"] > 0.8
    mixed = np.logaddexp(exact(X, Y) + np.log(0.5), exact(X[:, :1], Y) + np.log(0.5))
    weights = np.log(table.loc[["slope", "constant"], "weight"].clip(1e-12).to_numpy())
    stacked = np.logaddexp(exact(X, Y) + weights[0], exact(X[:, :1], Y) + weights[1])
    assert stacked.sum() > mixed.sum()
    assert bnn.compare_loo({"slope": found["slope"]}).loc["slope", "weight"] == 1


def test_a_row_that_decides_the_fit_has_a_bad_k():
    x, y = X.copy(), Y.copy()
    x[3], y[3] = [1.0, 40.0], 0.0
    found = bnn.loo(*run(2, x, y), match_moments=False)
    assert found.k[3] > 0.7 and found.num_bad == 1 and found.bad_rows().tolist() == [3]
    assert found.count("weights") == NUM_ROWS


@quick_first(("temperature", "scale"), [(1.0, 1.0), (0.5, 1.0), (1.0, 2.0)])
def test_moved_draws_leave_out_a_row_that_weights_cannot(temperature, scale):
    x, y = X.copy(), Y.copy()
    x[3], y[3] = [1.0, 6.0], 0.0
    given = run(2, x, y, temperature=temperature, scale=scale)
    by_weights, found = bnn.loo(*given, match_moments=False), bnn.loo(*given)
    expected = exact(x, y, temperature, scale)[3]
    assert by_weights.k[3] > 0.7 and abs(by_weights.elpd[3] - expected) > 2.0
    assert found.k[3] < by_weights.k[3] and found.how[3] == "moments"
    assert abs(found.elpd[3] - expected) < max(4 * found.error[3], 0.15)
    others = np.arange(NUM_ROWS) != 3
    np.testing.assert_array_equal(found.elpd[others], by_weights.elpd[others])


@pytest.mark.parametrize("by_chain", [False, True])
def test_a_map_has_the_weighted_moments_and_is_undone(by_chain):
    positions = {"a": RNG.normal(size=(2, 500, 3)) * [1, 2, 3], "b": RNG.normal(size=(2, 500))}
    log_weights = -0.5 * positions["a"].sum(2)
    kind = Kind(scaled=True, by_chain=by_chain)
    before = Affine.identity(positions).towards(positions, RNG.normal(size=(2, 500)), kind)
    found = before.towards(positions, log_weights, kind)
    moved, given = found.of(positions), before.of(positions)
    parts = [slice(0, 1), slice(1, 2)] if by_chain else [slice(None)]
    for site, each in positions.items():
        np.testing.assert_allclose(found.inverse(moved)[site], each, atol=1e-12)
        for part in parts:
            shape = given[site][part].reshape(-1, *each.shape[2:])
            weights = np.exp(log_weights[part]).reshape(-1)
            mean = np.average(shape, axis=0, weights=weights)
            variance = np.average((shape - mean) ** 2, axis=0, weights=weights)
            own = moved[site][part].reshape(shape.shape)
            np.testing.assert_allclose(own.mean(0), mean, atol=1e-12)
            np.testing.assert_allclose(own.var(0), variance, rtol=1e-9)
    slopes = [
        np.log((moved[site][:, 0] - moved[site][:, 1]) / (each[:, 0] - each[:, 1]))
        for site, each in positions.items()
    ]
    expected = sum(each.reshape(2, -1).sum(1) for each in slopes)
    np.testing.assert_allclose(found.log_volume[:, 0], expected)


def test_draws_moved_by_chain_leave_a_row_out_as_well(monkeypatch):
    monkeypatch.setattr(moment_matching, "_KINDS", [Kind(False, True), Kind(True, True)] * 2)
    x, y = X.copy(), Y.copy()
    x[3], y[3] = [1.0, 6.0], 2.5
    found, expected = bnn.loo(*run(2, x, y)), exact(x, y)[3]
    assert found.how[3] == "moments" and abs(found.elpd[3] - expected) < 0.15
    assert bnn.loo(*run(2, x, y), match_moments=False).elpd[3] > expected + 0.5


def test_the_errors_of_estimates_are_those_over_repetitions():
    values = -0.5 * RNG.normal(size=(2_000, 300)) ** 2
    log_weights = -0.3 * values
    log_weights -= np.logaddexp.reduce(log_weights, axis=1, keepdims=True)
    found, told = averaged(log_weights, values, 1.0)
    np.testing.assert_allclose(told.mean(), found.std(), rtol=0.08)
    np.testing.assert_allclose(averaged(log_weights, values, 0.25)[1], 2 * told)


def test_the_errors_of_rows_of_small_density_count_what_draws_are_worth(monkeypatch):
    posterior, draws = run(2, num_draws=100)
    slopes = np.sort(draws["posterior"]["slopes"].values, 1)  # draws that depend on each other
    draws = draws_of_arrays({"posterior": {"slopes": slopes}})
    expected = bnn.loo(posterior, draws, match_moments=False).error

    def lower(*given, **options):
        return log_likelihoods(*given, **options) - 1_000

    monkeypatch.setattr(comparison, "log_likelihoods", lower)
    found = bnn.loo(posterior, draws, match_moments=False).error
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_draws_of_a_fitted_distribution_are_not_moved():
    x, y = X.copy(), Y.copy()
    x[3], y[3] = [1.0, 6.0], 0.0
    posterior, draws = run(2, x, y, num_draws=500, draws_from="gaussian", method="mfvi")
    found = bnn.loo(posterior, draws)
    assert found.num_bad == 1 and found.count("moments") == 0
    assert cannot_move(posterior, draws) == "draws of mfvi, whose density is not the posterior's"


def test_units_change_densities_and_rows_that_do_not_count_are_left_out():
    data = bnn.data.load("yacht")._replace(y_mean=3.0, y_scale=2.0, num_classes=None)
    posterior, draws = run(2, num_draws=100)
    found, scaled = bnn.loo(posterior, draws), bnn.loo(posterior, draws, data_set=data)
    np.testing.assert_allclose(scaled.elpd, found.elpd - np.log(2.0))
    np.testing.assert_allclose(scaled.y, 2 * Y + 3, rtol=1e-5)

    def masked(x, y=None):
        slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        seen = np.arange(NUM_ROWS) > 4
        with numpyro.plate("rows", len(x)), numpyro.handlers.mask(mask=seen[: len(x)]):
            numpyro.sample("y", dist.Normal(x @ slopes, NOISE), obs=y)

    part = bnn.loo(bnn.condition(masked, (X, Y)), draws)
    assert part.rows.tolist() == list(range(5, NUM_ROWS)) and len(part.elpd) == NUM_ROWS - 5


def test_what_cannot_be_left_out_is_refused_in_one_line():
    posterior, draws = run(2, num_draws=100)
    one = draws.isel(chain=[0], draw=[0])
    with pytest.raises(ValueError, match="got 1 draw in all, expected 100 or more"):
        bnn.loo(posterior, one)
    with pytest.raises(ValueError, match="got fits of descent, which are optima"):
        bnn.loo(*run(2, num_draws=100, draws_from="point", method="descent"))
    stats = {"log_weight": np.zeros((4, 100), np.float32)}
    slopes = draws["posterior"]["slopes"].values
    weighted = draws_of_arrays(
        {"posterior": {"slopes": slopes}, "sample_stats": stats}, {"method": "csgld"}
    )
    with pytest.raises(ValueError, match="got weighted draws of csgld"):
        bnn.loo(posterior, weighted)
    lost = draws_of_arrays({"posterior": {"slopes": np.full((1, 100, 2), np.nan, np.float32)}})
    with pytest.raises(ValueError, match="got NaN as a log-likelihood in 100 draws"):
        bnn.loo(posterior, lost)
    found = bnn.loo(posterior, draws)
    other = bnn.loo(*run(2, X[1:], Y[1:], num_draws=100))
    with pytest.raises(ValueError, match="got 29 training rows in 'b' that are not the 30 of 'a'"):
        bnn.compare_loo({"a": found, "b": other})
    with pytest.raises(ValueError, match="expected the same y"):
        bnn.compare_loo({"a": found, "b": found._replace(y=found.y + 1)})
    with pytest.raises(ValueError, match="got no models"):
        bnn.compare_loo({})


def test_classes_have_the_probabilities_of_their_labels():
    labels = (X[:, 1] > 0).astype(np.int32)

    def logistic(x, y=None):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Bernoulli(logits=slope * x[:, 1]), obs=y)

    # Of draws that are alike, leaving out changes nothing.
    draws = draws_of_arrays({"posterior": {"slope": np.full((2, 60), 2.0, np.float32)}})
    found = bnn.loo(bnn.condition(logistic, (X, labels)), draws)
    expected = -np.log1p(np.exp(-2 * np.abs(X[:, 1])))
    np.testing.assert_allclose(found.elpd, expected, rtol=1e-4)
    assert (found.k == 0).all()


def test_equal_weights_stay_equal_and_few_large_ones_are_smoothed():
    smoothed, k = pareto_smoothed(np.stack([np.zeros(500), RNG.exponential(2.0, 500)]))
    np.testing.assert_allclose(np.exp(smoothed).sum(1), 1, rtol=1e-6)
    np.testing.assert_allclose(smoothed[0], -np.log(500))
    assert k[0] == 0 and k[1] > 0.7


def test_progress_ends_at_the_number_of_rows(capsys):
    assert jax.process_index() == 0
    bnn.loo(*run(2, num_draws=100), progress=True)
    assert "leaving one out" in capsys.readouterr().err


def test_the_figure_shows_models_and_rows_that_cannot_be_left_out(tmp_path):
    x, y = X.copy(), Y.copy()
    x[3], y[3] = [1.0, 40.0], 0.0
    found = {"constant": bnn.loo(*run(1, x, y)), "slope": bnn.loo(*run(2, x, y))}
    figure = bnn.plots.loo(found)
    left, right = figure.axes
    best, other = (text.get_text().split("\n")[0] for text in left.get_yticklabels())
    assert [best, other] == bnn.compare_loo(found).index.tolist()
    assert "3" in [text.get_text() for text in right.texts]
    figure.savefig(tmp_path / "loo.png")


def test_numbers_of_rows_that_cannot_be_left_out_stay_apart():
    k = np.where(np.arange(50) < 3, np.inf, 0.1)
    rows, ones = np.arange(50), np.ones(50)
    one = Loo(ones, k, ones, ones, rows, 100, ones, np.full(50, "weights"))
    figure = bnn.plots.loo({"a": one, "b": one._replace(k=k[::-1])})
    figure.draw_without_rendering()
    extents = [text.get_window_extent() for text in figure.axes[1].texts]
    assert len(extents) == 6
    for number, extent in enumerate(extents):
        assert not any(extent.overlaps(other) for other in extents[:number])


def test_rows_of_which_a_part_is_missing_count_for_the_rest():
    def two(x, y=None):
        slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        known = True if y is None else ~jax.numpy.isnan(y["size"])
        with numpyro.plate("rows", len(x)):
            with numpyro.handlers.mask(mask=known):
                numpyro.sample("size", dist.Normal(x @ slopes, NOISE), obs=y and y["size"])
            logits = x @ slopes
            numpyro.sample("kind", dist.Bernoulli(logits=logits), obs=y and y["kind"])

    size = np.where(np.arange(NUM_ROWS) % 3, Y, np.nan)
    posterior = bnn.condition(two, (X, {"size": size, "kind": (Y > 0.5).astype(int)}))
    slopes = 0.1 * RNG.normal(size=(2, 200, 2)) + [0.5, 1.0]
    draws = draws_of_arrays({"posterior": {"slopes": slopes.astype(np.float32)}})
    found = bnn.loo(posterior, draws)
    assert found.rows.tolist() == [*range(NUM_ROWS)]
    alone = found.elpd[np.arange(NUM_ROWS) % 3 == 0]
    assert ((alone < -0.01) & (alone > -5)).all()
