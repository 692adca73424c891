"""Scores of weights by hand, deleting them, what that costs, and the figures of both."""

from functools import partial

import jax
import matplotlib
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import xarray as xr
from flax import nnx
from scipy.special import softmax

import bnn_ppl as bnn
from bnn_ppl import plots
from bnn_ppl.analysis.weight_space.pruning import (
    divergence_from_prior,
    moments,
    pruned,
    pruning_curve,
    signal_to_noise,
)
from bnn_ppl.storage.arviz_versions import draws_of_arrays, draws_of_groups, groups_of

matplotlib.use("Agg")

ROWS, STD = 40, 0.7
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 6)).astype(np.float32)
LABELS = np.arange(ROWS) % 3
KERNEL, BIAS = "net.layers.0.kernel", "net.layers.0.bias"


def linear(num_outputs):
    return partial(bnn.nets.MLP, 6, (), num_outputs)


def condition(**options):
    model = bnn.models.classifier(linear(3), bnn.priors.normal(STD))
    return bnn.condition(model, (X, LABELS), **options)


def random_draws(num_chains=2, num_draws=5, num_outputs=3, **others):
    """Make up draws of a linear network of six inputs."""
    shapes = {KERNEL: (6, num_outputs), BIAS: (num_outputs,)}
    values = {
        site: RNG.normal(1, 1, size=(num_chains, num_draws, *shape)).astype(np.float32)
        for site, shape in shapes.items()
    }
    return draws_of_arrays({"posterior": values | others}, {"method": "made up"})


@pytest.fixture(scope="module")
def posterior():
    return condition()


@pytest.fixture
def draws():
    return random_draws()


def with_fitted(draws, **arrays):
    variables = {name: (["chain", *"ij"[: a.ndim - 1]], a) for name, a in arrays.items()}
    return with_group(draws, fitted=xr.Dataset(variables))


def with_group(draws, **groups):
    return draws_of_groups({**groups_of(draws), **groups}, draws.attrs)


# --- mean and standard deviation


def test_moments_are_those_over_the_draws_of_each_chain():
    """To double precision, though the draws are single and far from 0."""
    scales = [1e-2, 0.1, 1.0, 10.0]
    w = (1000 + scales * RNG.normal(size=(3, 50, 4))).astype(np.float32)
    means, sds = moments(draws_of_arrays({"posterior": {"w": w, "s": w[..., 0]}}))
    exact = w.astype(float)
    np.testing.assert_allclose(means["w"], exact.mean(1), rtol=1e-14)
    np.testing.assert_allclose(sds["w"], exact.std(1), rtol=1e-9)
    np.testing.assert_allclose(sds["s"], exact[..., 0].std(1), rtol=1e-9)


def test_draws_that_weigh_more_count_more():
    w = RNG.normal(size=(1, 6, 2))
    copies = [1, 3, 2, 1, 1, 4]
    weighted = draws_of_arrays(
        {"posterior": {"w": w}, "sample_stats": {"log_weight": np.log([copies])}}
    )
    repeated = np.repeat(w[0], copies, axis=0)
    means, sds = moments(weighted)
    np.testing.assert_allclose(means["w"][0], repeated.mean(0))
    np.testing.assert_allclose(sds["w"][0], repeated.std(0))


def test_the_fitted_distribution_is_taken_for_the_draws():
    loc, scale = RNG.normal(size=(2, 3)), RNG.uniform(1, 2, size=(2, 3))
    arrays = {f"{BIAS}.loc": loc, f"{BIAS}.scale": scale, "num_collected": np.array([7, 7])}
    means, sds = moments(with_fitted(random_draws(2), **arrays))
    np.testing.assert_array_equal(means[BIAS], loc)
    np.testing.assert_array_equal(sds[BIAS], scale)
    assert list(means) == [KERNEL, BIAS]  # the kernel from its draws, for nothing was fitted to it


@pytest.mark.thorough
def test_draws_in_a_folder_have_the_same_moments(posterior, tmp_path):
    options = {"num_draws": 6, "thin": 2, "num_chains": 2, "progress": False}
    for_both = jax.random.key(0), posterior, bnn.sgld(posterior, 0.01)
    inside, outside = (bnn.run(*for_both, folder=f, **options) for f in (None, tmp_path))
    for found, expected in zip(moments(outside), moments(inside), strict=True):
        np.testing.assert_array_equal(found[KERNEL], expected[KERNEL])


# --- scores


def test_signal_to_noise_by_hand():
    w = np.array([[[1.0, 4.0, -2.0, 0.0], [3.0, 4.0, -4.0, 0.0]]])
    ratio = signal_to_noise(draws_of_arrays({"posterior": {"w": w}}))["w"]
    np.testing.assert_array_equal(ratio, [[2.0, np.inf, 3.0, 0.0]])


def test_divergence_from_the_prior_is_that_of_two_normals(posterior, draws):
    found = divergence_from_prior(posterior, draws)
    means, sds = moments(draws)
    for site in (KERNEL, BIAS):
        exact = dist.kl_divergence(dist.Normal(means[site], sds[site]), dist.Normal(0, STD))
        np.testing.assert_allclose(found[site], exact, rtol=1e-5)


def test_divergence_is_zero_at_the_prior_and_counts_its_temperature():
    prior = np.array([1.0, -1.0]) * STD
    values = np.broadcast_to(prior[:, None], (1, 2, 2))
    draws = random_draws(1, 2)
    draws.posterior[BIAS] = (draws.posterior[BIAS].dims, np.repeat(values[..., :1], 3, -1))
    np.testing.assert_allclose(divergence_from_prior(condition(), draws)[BIAS], 0, atol=1e-7)
    cold = divergence_from_prior(condition(temperature=0.25), draws)[BIAS]
    np.testing.assert_allclose(cold, np.log(0.5) + 1 / (2 * 0.25) - 0.5, rtol=1e-6)


def test_divergence_is_from_the_prior_at_the_scale_that_the_run_found():
    model = bnn.models.classifier(linear(3), bnn.priors.normal(None))
    posterior, draws = bnn.condition(model, (X, LABELS)), random_draws()
    draws.attrs["prior_scale"] = STD
    found, held = (divergence_from_prior(each, draws) for each in (posterior, condition()))
    np.testing.assert_allclose(found[KERNEL], held[KERNEL], rtol=1e-6)


def learnt_scales(x, y=None):
    """A regression whose constrained sites are no weights."""
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    prior = bnn.priors.horseshoe(1.0)
    mean = bnn.random_network("net", linear(1), prior)(x)[:, 0]
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(mean, noise), obs=y)


@pytest.mark.thorough
def test_only_real_weights_are_scored_and_deleted():
    posterior = bnn.condition(learnt_scales, (X, X[:, 0]))
    shapes = {"noise": (), KERNEL: (6, 1), BIAS: (1,)}
    shapes |= {f"{site}.global_scale": () for site in (KERNEL, BIAS)}
    shapes |= {f"{site}.local_scale": shapes[site] for site in (KERNEL, BIAS)}
    values = {site: RNG.uniform(0.1, 1, size=(1, 4, *shape)) for site, shape in shapes.items()}
    draws = draws_of_arrays({"posterior": values})
    assert set(divergence_from_prior(posterior, draws)) == {KERNEL, BIAS}
    left = pruned(posterior, draws, 0.5)
    assert (left.posterior[KERNEL].values == 0).sum() == 4 * 3
    for site in values.keys() - {KERNEL}:  # the bias is one weight alone
        np.testing.assert_array_equal(left.posterior[site], values[site])


# --- deleting


@pytest.mark.parametrize("by", ["signal_to_noise", "kl"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.95])
def test_the_share_with_the_lowest_scores_is_zero_in_every_draw(posterior, draws, share, by):
    left = pruned(posterior, draws, share, by)
    scores = divergence_from_prior(posterior, draws) if by == "kl" else signal_to_noise(draws)
    for chain in range(2):
        own = np.concatenate([scores[site][chain].ravel() for site in (KERNEL, BIAS)])
        flat, before = (
            np.concatenate(
                [d.posterior[site].values[chain].reshape(5, -1) for site in (KERNEL, BIAS)], 1
            )
            for d in (left, draws)
        )
        gone = (flat == 0).all(0)
        assert gone.sum() == round(share * 21)
        assert not gone.any() or own[gone].max() < own[~gone].min()
        np.testing.assert_array_equal(flat[:, ~gone], before[:, ~gone])
        assert flat.dtype == np.float32


def test_the_rest_of_the_draws_stays_and_says_what_was_done(posterior):
    draws = random_draws(1, 5, extra=np.ones((1, 5)))
    lp = xr.Dataset({"lp": (("chain", "draw"), np.ones((1, 5)))})
    draws = with_group(draws, sample_stats=lp)
    scale = np.array([[1.0, 2.0, 3.0]])
    draws = with_fitted(draws, **{f"{BIAS}.loc": scale, f"{BIAS}.scale": scale})
    kernel = draws.posterior[KERNEL].values.copy()
    left = pruned(posterior, draws, 0.9)
    np.testing.assert_array_equal(draws.posterior[KERNEL], kernel)
    assert set(left) == {"posterior", "sample_stats"}
    np.testing.assert_array_equal(left.posterior["extra"], draws.posterior["extra"])
    assert left.attrs == {**draws.attrs, "pruned": 0.9, "pruned_by": "signal_to_noise"}


@pytest.mark.thorough
def test_the_curve_is_that_of_the_average_without_those_weights(posterior, draws):
    shares = (0.0, 0.5, 0.9)
    curve = pruning_curve(posterior, draws, (X, LABELS), shares, batch_size=16)
    assert list(curve.columns) == ["share", "num_weights", "error", "nll"]
    assert list(curve["num_weights"]) == [21, 11, 2]
    for share, row in zip(shares, curve.itertuples(), strict=True):
        values = pruned(posterior, draws, share).posterior
        outputs = np.einsum("ni,cdik->cdnk", X, values[KERNEL]) + values[BIAS].values[:, :, None]
        probs = softmax(outputs, -1).mean((0, 1))
        assert row.error == pytest.approx(np.mean(probs.argmax(1) != LABELS))
        assert row.nll == pytest.approx(-np.mean(np.log(probs[np.arange(ROWS), LABELS])), rel=1e-5)


def test_the_curve_of_a_regression_is_of_its_rmse():
    y = X @ np.arange(6)
    model = bnn.models.regressor(linear(1), bnn.priors.normal(STD), 1.0)
    posterior, draws = bnn.condition(model, (X, y)), random_draws(num_outputs=1)
    curve = pruning_curve(posterior, draws, (X, y), [0.0], by="kl")
    mean = np.einsum("ni,cdik->cdn", X, draws.posterior[KERNEL]) + draws.posterior[BIAS].values
    expected = np.sqrt(np.mean((mean.mean((0, 1)) - y) ** 2))
    assert curve["rmse"][0] == pytest.approx(expected, rel=1e-5)
    assert np.isfinite(curve["nll"][0])
    original = pruning_curve(posterior, draws, (X, y), [0.0], by="kl", scale=5.0)
    assert original["rmse"][0] == pytest.approx(5 * expected, rel=1e-5)
    assert original["nll"][0] == pytest.approx(curve["nll"][0] + np.log(5), rel=1e-5)


class Normalised(nnx.Module):
    """A network whose batch normalisation is in train mode."""

    def __init__(self, rngs):
        self.out, self.norm = nnx.Linear(6, 1, rngs=rngs), nnx.BatchNorm(1, rngs=rngs)

    def __call__(self, x):
        return self.norm(self.out(x))


def test_statistics_of_a_pruned_network_are_its_own():
    model = bnn.models.regressor(Normalised, bnn.priors.normal(1.0), 0.5)
    posterior = bnn.condition(model, (X, X[:, 0]))
    shapes = posterior.sites.value_shapes().items()
    values = {site: RNG.normal(size=(1, 3, *shape)) for site, shape in shapes}
    draws = draws_of_arrays({"posterior": values})
    stored = {f"net.norm.{name}": (("chain", "draw", name), np.ones((1, 3, 1))) for name in "mv"}
    left = pruned(posterior, with_group(draws, batch_statistics=xr.Dataset(stored)), 0.5)
    assert set(left) == {"posterior"}
    assert (left.posterior["net.out.kernel"].values == 0).any()
    assert set(divergence_from_prior(posterior, draws)) == set(values)


# --- figures


def test_a_figure_of_the_weights_has_a_row_a_site(draws, tmp_path):
    figure = plots.weights(draws)
    left, right = figure.axes[::2], figure.axes[1::2]
    assert [ax.get_title("left") for ax in left] == [f"{KERNEL} (18)", f"{BIAS} (3)"]
    for (mean, sd), site in zip(zip(left, right, strict=True), (KERNEL, BIAS), strict=True):
        for ax, values in ((mean, moments(draws)[0]), (sd, moments(draws)[1])):
            share, edges, _ = ax.patches[0].get_data()
            assert share.sum() == pytest.approx(1)
            inside = np.clip(values[site], edges[0], edges[-1])
            np.testing.assert_allclose(share * values[site].size, np.histogram(inside, edges)[0])
        assert sd.get_title("left") == f"median {np.median(moments(draws)[1][site]):.3g}"
    figure.savefig(tmp_path / "weights.png")


def curve_of(shares, measure="error"):
    return pd.DataFrame({"share": shares, measure: np.square(shares), "nll": np.sqrt(shares)})


def test_a_figure_of_pruning_is_logarithmic_in_the_share_left(tmp_path):
    shares = [0.0, 0.5, 0.75, 0.98]
    error, nll = plots.pruning(curve_of(shares)).axes
    left = [1.0, 0.5, 0.25, 0.02]
    np.testing.assert_allclose(error.lines[0].get_xydata().T, [left, np.square(shares)])
    np.testing.assert_allclose(nll.lines[0].get_xydata().T, [left, np.sqrt(shares)])
    assert error.get_xscale() == "log" and error.get_xlim()[0] > error.get_xlim()[1]
    labels = [label.get_text() for label in error.get_xticklabels()]
    assert labels == ["0 %", "50 %", "75 %", "90 %", "95 %", "98 %"]
    assert error.get_legend() is None


def test_a_figure_of_several_curves_names_them(tmp_path):
    curves = {f"curve {i}": curve_of([0.0, 0.1 * i], "rmse") for i in range(1, 10)}
    figure = plots.pruning(curves)
    for ax in figure.axes:
        assert [text.get_text() for text in ax.get_legend().get_texts()] == list(curves)
        assert len({(line.get_color(), line.get_marker()) for line in ax.lines}) == 9
    assert figure.axes[0].get_title("left") == "Root mean squared error"
    figure.savefig(tmp_path / "pruning.png")


# --- bad input


def test_errors_say_what_was_got_expected_and_what_to_do(posterior, draws):
    for share in (-0.1, 1.0, np.nan):
        with pytest.raises(ValueError, match=r"got share=.*expected from 0 to below 1; 95 %"):
            pruned(posterior, draws, share)
    with pytest.raises(ValueError, match=r"got share=2, expected"):
        pruning_curve(posterior, draws, (X, LABELS), [0, 2])
    with pytest.raises(ValueError, match="got by='sd', expected 'signal_to_noise' or 'kl'"):
        pruned(posterior, draws, 0.5, "sd")
    with pytest.raises(ValueError, match="got draws .1. that are all equal, expected a spread"):
        signal_to_noise(random_draws(1, 1))
    dropped = random_draws(1, 4)
    dropped.attrs["draws_from"] = "dropout"
    with pytest.raises(
        ValueError, match="got draws of dropout masks, whose signal-to-noise is one"
    ):
        pruned(posterior, dropped, 0.5)
    with pytest.raises(ValueError, match=f"expected {KERNEL} too"):
        pruned(posterior, draws_of_arrays({"posterior": {BIAS: RNG.normal(size=(1, 4, 3))}}), 0.5)
    with pytest.raises(ValueError, match="got curves without error and nll .*pruning_curve"):
        plots.pruning({"a": curve_of([0.5]), "b": curve_of([0.5], "rmse")})
