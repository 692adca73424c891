"""Partly Bayesian networks: weights that are random, fixed as given, or fitted as points."""

import itertools
import sys
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx
from interrupts import press_ctrl_c

import bnn_ppl as bnn
from bnn_ppl.methods.layers.per_example_gradients import row_gradients
from bnn_ppl.model.prior.site_priors import POINT, flat_prior
from bnn_ppl.sampling import point_estimates as points_module
from bnn_ppl.storage.checkpoint import OtherRunError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 3)).astype(np.float32)
Y = (np.sin(X.sum(1)) + 0.1 * RNG.normal(size=24)).astype(np.float32)
STD = 0.3  # of the noise
PRIOR = bnn.priors.normal(0.7)
MLP = partial(bnn.nets.MLP, 3, (5,), 1)
PARTS = ("kernel", "bias")
READY = MLP(rngs=nnx.Rngs(0))


def conditioned(net, prior, **options):
    return bnn.condition(bnn.models.regressor(net, prior, STD), (X, Y), **options)


def thorough(name):
    return pytest.param(name, marks=pytest.mark.thorough)


def run(posterior, method, **options):
    options = {"num_chains": 2, "num_warmup": 4, "num_draws": 6, "progress": False} | options
    return bnn.run(jax.random.key(3), posterior, method, verdict=False, **options)


def assert_same(draws, expected):
    assert set(draws.posterior) == set(expected.posterior)
    for site in expected.posterior:
        np.testing.assert_array_equal(draws.posterior[site], expected.posterior[site])


# --- which weights are random


def test_a_name_comes_before_patterns_of_which_the_first_counts():
    # JAX sorts dicts, which would put "*" first.
    prior = {
        "net.layers.*.kernel": bnn.priors.normal(2.0),
        "*": bnn.priors.normal(3.0),
        "layers.1.kernel": bnn.priors.normal(4.0),
    }
    stds = conditioned(MLP, prior).prior_std
    expected = {"0.bias": 3.0, "0.kernel": 2.0, "1.bias": 3.0, "1.kernel": 4.0}
    assert {site: float(std) for site, std in stds.items()} == pytest.approx(
        {f"net.layers.{name}": std for name, std in expected.items()}
    )


def test_a_function_chooses():
    posterior = conditioned(READY, lambda site, shape: PRIOR if len(shape) > 1 else "fixed")
    assert set(posterior.prior_std) == {"net.layers.0.kernel", "net.layers.1.kernel"}


REFUSED = {
    "pattern that fits nothing": (
        READY,
        {"net.head.*": PRIOR, "*": "fixed"},
        "got a prior for 'net.head.\\*'; expected one of",
    ),
    "misspelt name": (READY, {"net.layers.1.kernle": PRIOR, "*": "fixed"}, "did you mean"),
    "layer without its weights": (
        READY,
        {"net.layers.1": PRIOR, "*": "fixed"},
        "expected a parameter of the net: for all below it use 'net.layers.1.\\*'",
    ),
    "parameter without a prior": (
        READY,
        {"layers.1.*": PRIOR},
        "got a prior that misses net.layers.0.bias, net.layers.0.kernel, expected one for every",
    ),
    "unknown word": (
        READY,
        {"layers.1.*": PRIOR, "*": "frozen"},
        "got 'frozen' as prior of 'net.layers.0.bias', expected 'fixed', 'point' or a distribution",
    ),
    "unknown word alone": (READY, "points", "got 'points' as prior of"),
    "new weights to be fixed": (
        MLP,
        {"layers.1.*": PRIOR, "*": "fixed"},
        "got 'fixed' for 'net.layers.0.bias' of a factory, .* pass a ready module",
    ),
    "all fixed": (READY, "fixed", "got a model without latent sites"),
    "all points": (MLP, "point", "got a model whose only latent sites are points"),
    "fixed and points": (
        READY,
        {"*.kernel": "point", "*": "fixed"},
        "only latent sites are points",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    net, prior, message = REFUSED[case]
    with pytest.raises(ValueError, match=message) as error:
        conditioned(net, prior)
    assert "\n" not in str(error.value)


# --- fixed weights


@pytest.mark.thorough
def test_fixed_weights_are_no_sites_and_stay_as_they_are():
    before = jax.tree.map(np.array, nnx.to_pure_dict(nnx.state(READY)))
    posterior = conditioned(READY, {"layers.1.*": PRIOR, "*": "fixed"})
    draws = run(posterior, bnn.sgld(posterior, step_size=1e-4))
    assert set(draws.posterior) == {"net.layers.1.bias", "net.layers.1.kernel"}
    assert "constant_data" not in draws
    after = jax.tree.map(np.array, nnx.to_pure_dict(nnx.state(READY)))
    jax.tree.map(np.testing.assert_array_equal, after, before)

    first = before["layers"][0]
    features = np.maximum(X @ first["kernel"] + first["bias"], 0)
    kernel = draws.posterior["net.layers.1.kernel"].values[..., 0]
    means = kernel @ features.T + draws.posterior["net.layers.1.bias"].values
    found = bnn.predict(posterior, draws, (X, None))["mean"]
    np.testing.assert_allclose(found, means.mean((0, 1)), rtol=2e-4, atol=1e-5)


def linear(*, use_bias=True):
    """Two layers without anything between them: linear in the weights of either."""
    rngs = nnx.Rngs(1)
    return nnx.Sequential(
        nnx.Linear(3, 4, rngs=rngs), nnx.Linear(4, 1, use_bias=use_bias, rngs=rngs)
    )


def exact(design, y, prior_std):
    """Mean and covariance of a linear regression's weights."""
    covariance = np.linalg.inv(design.T @ design / STD**2 + np.eye(design.shape[1]) / prior_std**2)
    return covariance @ design.T @ y / STD**2, covariance


def design_of_last(net):
    return np.asarray(net.layers[0](X))


@pytest.mark.thorough
def test_laplace_of_the_last_layer_is_the_exact_conditional_posterior():
    net = linear()
    posterior = conditioned(net, {"layers.1.*": PRIOR, "*": "fixed"})
    design = np.concatenate([np.ones((len(X), 1)), design_of_last(net)], 1)  # the bias first
    mean, covariance = exact(design, Y, 0.7)
    position = {"net.layers.1.bias": mean[:1], "net.layers.1.kernel": mean[1:, None]}
    draws = run(
        posterior, bnn.laplace(posterior, structure="full"), init=position, num_chains=1, thin=0
    )
    root = draws["fitted"]["root"].values[0]
    np.testing.assert_allclose(root @ root.T, covariance, rtol=1e-3, atol=1e-6)
    gradient = jax.grad(posterior.logdensity)(jax.tree.map(jnp.float32, position), posterior.data)
    assert max(np.abs(g).max() for g in jax.tree.leaves(gradient)) < 1e-2  # the mode is the mean


@pytest.mark.thorough
@pytest.mark.parametrize(
    "structure", ["kronecker", *(thorough(name) for name in ("diagonal", "last_layer", "full"))]
)
def test_laplace_of_a_kernel_beside_a_fixed_bias(structure):
    net = linear()
    posterior = conditioned(net, {"layers.1.kernel": PRIOR, "*": "fixed"})
    design, bias = design_of_last(net), float(net.layers[1].bias[0])
    mean, covariance = exact(design, Y - bias, 0.7)
    draws = run(
        posterior,
        bnn.laplace(posterior, structure=structure),
        init={"net.layers.1.kernel": mean[:, None]},
        num_chains=1,
        thin=0,
    )
    scale = draws["fitted"]["net.layers.1.kernel.scale"].values[0, :, 0]
    expected = np.sqrt(np.diag(covariance))
    if structure == "diagonal":
        expected = np.diag(np.linalg.inv(covariance)) ** -0.5
    np.testing.assert_allclose(scale, expected, rtol=2e-3)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "structure", ["kronecker", *(thorough(name) for name in ("diagonal", "last_layer", "full"))]
)
def test_laplace_of_a_bias_beside_a_fixed_kernel(structure):
    net = linear()
    posterior = conditioned(net, {"layers.1.bias": PRIOR, "*": "fixed"})
    draws = run(
        posterior,
        bnn.laplace(posterior, structure=structure),
        init=posterior.init(jax.random.key(0)),
        num_chains=1,
        thin=0,
    )
    scale = draws["fitted"]["net.layers.1.bias.scale"].values
    np.testing.assert_allclose(scale, (len(X) / STD**2 + 1 / 0.7**2) ** -0.5, rtol=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "prior",
    [
        pytest.param({"layers.0.*": "fixed", "*": PRIOR}, marks=pytest.mark.thorough),
        {"*.bias": "fixed", "*": PRIOR},
        pytest.param({"layers.0.kernel": "fixed", "*": PRIOR}, marks=pytest.mark.thorough),
        pytest.param({"layers.1.*": "fixed", "*": PRIOR}, marks=pytest.mark.thorough),
    ],
    ids=["layer", "biases", "kernel", "last layer"],
)
def test_squared_gradients_of_rows_beside_fixed_weights(prior):
    posterior = conditioned(READY, prior)
    position = posterior.init(jax.random.key(0))

    def one(x, y):
        row = x[None], y[None]
        return jax.grad(lambda w: posterior.log_likelihood(w, row)[0])(position)

    each = jax.vmap(one)(*posterior.data)
    found = row_gradients(posterior)(position, posterior.data).squares
    assert set(found) == set(each)
    for site in each:
        np.testing.assert_allclose(found[site], np.mean(each[site] ** 2, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.statistical
def test_nuts_on_the_last_layer_finds_the_exact_conditional_posterior():
    net = linear()
    posterior = conditioned(net, {"layers.1.*": PRIOR, "*": "fixed"})
    design = np.concatenate([design_of_last(net), np.ones((len(X), 1))], 1)
    mean, covariance = exact(design, Y, 0.7)
    draws = run(posterior, bnn.nuts(posterior), num_warmup=500, num_draws=2000)
    found = np.concatenate(
        [draws.posterior[f"net.layers.1.{part}"].values.reshape(4000, -1) for part in PARTS], 1
    )
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose((found.mean(0) - mean) / sd, 0, atol=0.1)
    np.testing.assert_allclose(
        np.cov(found.T) / np.outer(sd, sd), covariance / np.outer(sd, sd), atol=0.1
    )


@pytest.mark.statistical
@pytest.mark.parametrize("estimator", ["weights", "local_reparametrisation", "flipout"])
def test_mfvi_of_a_kernel_beside_a_fixed_bias(estimator):
    net = linear()
    posterior = conditioned(net, {"layers.1.kernel": PRIOR, "*": "fixed"})
    mean, covariance = exact(design_of_last(net), Y - float(net.layers[1].bias[0]), 0.7)
    draws = run(
        posterior, bnn.mfvi(posterior, estimator=estimator), num_chains=1, num_warmup=None, thin=0
    )
    fitted = draws["fitted"].isel(chain=0)
    sd = np.diag(np.linalg.inv(covariance)) ** -0.5
    away = fitted["net.layers.1.kernel.loc"].values[:, 0] - mean
    np.testing.assert_allclose(away / np.sqrt(np.diag(covariance)), 0, atol=0.15)
    np.testing.assert_allclose(fitted["net.layers.1.kernel.scale"].values[:, 0], sd, rtol=0.1)


def test_dropout_is_of_the_inputs_of_random_kernels():
    def rates(prior):
        posterior = conditioned(READY, prior)
        return bnn.mc_dropout(posterior, learning_rate=1e-3).settings["rate"]

    assert rates({"layers.0.*": "fixed", "*": PRIOR}) == {"net.layers.1": 0.01}
    with pytest.raises(ValueError, match="no layer with a rate above 0"):
        rates({"layers.1.kernel": "fixed", "*": PRIOR})


# --- points


@pytest.fixture(scope="module")
def flat():
    """A linear regression whose slopes are points and whose intercept is random."""
    return conditioned(partial(nnx.Linear, 3, 1), {"kernel": "point", "bias": PRIOR})


@pytest.fixture(scope="module")
def held(flat):
    return bnn.fit_points(jax.random.key(3), flat, progress=False)


def test_points_are_at_the_joint_mode_and_the_rest_is_conditional(flat, held):
    assert flat.points == ("net.kernel",) and not flat.held
    design = np.concatenate([X, np.ones((len(X), 1))], 1)
    flat_but_last = np.diag([0, 0, 0, 1 / 0.7**2])
    slopes = np.linalg.solve(design.T @ design / STD**2 + flat_but_last, design.T @ Y / STD**2)[:3]
    np.testing.assert_allclose(held.held["net.kernel"][:, 0], slopes, atol=1e-3)
    assert held.points == () and set(held.prior_std) == {"net.bias"}

    precision = len(X) / STD**2 + 1 / 0.7**2
    mean = np.sum(Y - X @ np.asarray(held.held["net.kernel"])[:, 0]) / STD**2 / precision
    density = lambda b: float(held.logdensity({"net.bias": jnp.array([b])}, held.data))  # noqa: E731
    for away in (0.2, -0.5):
        change = density(mean + away) - density(mean)
        assert change == pytest.approx(-0.5 * precision * away**2, rel=1e-3)


@pytest.mark.thorough
def test_points_with_a_prior_are_at_the_joint_mode_under_it():
    prior = {"kernel": bnn.priors.point(bnn.priors.normal(0.3)), "bias": PRIOR}
    posterior = conditioned(partial(nnx.Linear, 3, 1), prior)
    assert posterior.points == ("net.kernel",)
    held = bnn.fit_points(jax.random.key(3), posterior, progress=False)
    design = np.concatenate([X, np.ones((len(X), 1))], 1)
    precisions = np.diag([1 / 0.3**2] * 3 + [1 / 0.7**2])
    slopes = np.linalg.solve(design.T @ design / STD**2 + precisions, design.T @ Y / STD**2)[:3]
    np.testing.assert_allclose(held.held["net.kernel"][:, 0], slopes, atol=1e-3)
    assert set(held.prior_std) == {"net.bias"}


@pytest.mark.thorough
def test_a_run_fits_the_points_by_itself(flat, held):
    method = partial(bnn.hmc, step_size=0.05, trajectory_length=0.2)
    draws = run(flat, method(flat))
    assert_same(draws, run(held, method(held)))
    assert set(draws.posterior) == {"net.bias"}
    np.testing.assert_array_equal(draws.constant_data["net.kernel"], held.held["net.kernel"])


@pytest.mark.thorough
def test_analyses_take_the_posterior_before_its_points_were_held(flat, held):
    draws = run(flat, bnn.sgld(flat, step_size=1e-4))
    for found, expected in (
        (bnn.predict(flat, draws, (X, Y)), bnn.predict(held, draws, (X, Y))),
        (
            bnn.function_draws(flat, draws, X).posterior,
            bnn.function_draws(held, draws, X).posterior,
        ),
    ):
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name])
    corner = bnn.surface.corner(flat, draws)
    assert set(corner) == {"net.bias", "net.kernel"}
    np.testing.assert_array_equal(corner["net.kernel"], held.held["net.kernel"])
    assert bnn.verdict(flat, draws).text == bnn.verdict(held, draws).text
    quantiles = [bnn.predict_quantiles(each, draws, X, [0.1, 0.9]) for each in (flat, held)]
    np.testing.assert_array_equal(*quantiles)


@pytest.mark.thorough
def test_draws_without_the_points_are_refused(flat, held):
    draws = run(held, bnn.sgld(held, step_size=1e-4))
    del draws.constant_data
    with pytest.raises(ValueError, match="got draws without the values of the points net.kernel"):
        bnn.predict(flat, draws, (X, Y))


@pytest.mark.thorough
def test_closed_form_and_linearised_predictions_with_points(flat, held):
    draws = run(flat, bnn.laplace(flat, structure="full"), num_chains=1, thin=0, num_warmup=1)
    for predict in (
        bnn.predict_closed_form,
        lambda p, d, r: bnn.predict(bnn.linearised(p, d), d, r),
    ):
        found, expected = (predict(each, draws, (X, Y)) for each in (flat, held))
        np.testing.assert_allclose(found["mean"], expected["mean"], rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_a_run_is_resumed_with_the_points_that_it_began_with(flat, tmp_path, monkeypatch):
    method = bnn.sgld(flat, step_size=1e-4)
    whole = run(flat, method, folder=tmp_path / "whole")
    run(flat, method, folder=tmp_path / "parts", num_draws=2)

    def refit(*args):
        raise AssertionError("fitted again")

    monkeypatch.setattr(points_module, "point_setup", refit)
    resumed = run(flat, method, folder=tmp_path / "parts")
    assert_same(resumed, whole)
    opened = bnn.diagnostics.load(tmp_path / "parts")
    np.testing.assert_array_equal(
        opened.constant_data["net.kernel"], whole.constant_data["net.kernel"]
    )
    # Whatever the key: a folder's points are its own.
    again = bnn.fit_points(jax.random.key(99), flat, folder=tmp_path / "parts")
    np.testing.assert_array_equal(again.held["net.kernel"], whole.constant_data["net.kernel"])


@pytest.mark.thorough
def test_stopped_while_the_points_are_fitted_it_gives_the_fit_so_far_and_resumes(flat, tmp_path):
    method = bnn.sgld(flat, step_size=1e-4)
    whole = run(flat, method)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["bnn_ppl.sampling.loop.compiled_loop"], "_DRAWS_PER_CHUNK", 80)
        for _ in range(2):
            with pytest.MonkeyPatch.context() as pressed:
                press_ctrl_c(pressed, 2)
                draws = run(flat, method, folder=tmp_path)
            assert draws.attrs["stopped_in"] == "points"
            assert draws.posterior.sizes["draw"] == 1
            assert np.isfinite(draws.constant_data["net.kernel"]).all()
            assert not (tmp_path / "draws.zarr").exists()
    resumed = run(flat, method, folder=tmp_path)
    assert_same(resumed, whole)
    np.testing.assert_array_equal(
        resumed.constant_data["net.kernel"], whole.constant_data["net.kernel"]
    )
    assert not (tmp_path / "before").exists()


@pytest.mark.thorough
def test_another_run_whose_points_are_not_yet_fitted_is_refused(flat, tmp_path):
    method = bnn.sgld(flat, step_size=1e-4)
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c(patch, 1)
        run(flat, method, folder=tmp_path)
    with pytest.raises(OtherRunError, match=r"got seed=\[0, 4\], expected seed=\[0, 3\]"):
        bnn.run(jax.random.key(4), flat, method, folder=tmp_path, progress=False)


@pytest.mark.thorough
def test_damaged_points_are_fitted_again(flat, tmp_path):
    method = bnn.sgld(flat, step_size=1e-4)
    expected = run(flat, method, folder=tmp_path, num_draws=2).constant_data["net.kernel"].values
    file = tmp_path / "draws.zarr/constant_data/net.kernel/c/0/0"
    content = bytearray(file.read_bytes())
    content[0] ^= 1
    file.write_bytes(content)
    with pytest.warns(UserWarning, match="the points are fitted again"):
        draws = run(flat, method, folder=tmp_path)
    np.testing.assert_array_equal(draws.constant_data["net.kernel"], expected)
    assert draws.posterior.sizes["draw"] == 6 and not (tmp_path / "before").exists()
    file.write_bytes(content)
    with (
        pytest.warns(UserWarning, match="the points are fitted again"),
        pytest.raises(OtherRunError, match="got seed"),
    ):
        bnn.fit_points(jax.random.key(99), flat, folder=tmp_path)
    assert not (tmp_path / "before").exists()


def test_points_are_those_reached_when_the_time_is_up(flat, monkeypatch):
    monkeypatch.setattr(sys.modules["bnn_ppl.sampling.loop.compiled_loop"], "_DRAWS_PER_CHUNK", 4)
    ticks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: float(next(ticks)))
    monkeypatch.setattr("bnn_ppl.runtime.interrupts.time", clock)
    key, fit = jax.random.key(3), points_module.fit_points_until
    held, is_whole = fit(3.0, key, flat, None, False)
    assert not held.sites.points and not is_whole
    with pytest.raises(TimeoutError, match="too few max_minutes"):
        fit(0.0, key, flat, None, False)
    press_ctrl_c(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        fit(np.inf, key, flat, None, False)


def test_what_will_fail_is_refused_before_the_points_are_fitted(flat, monkeypatch):
    monkeypatch.setattr(points_module, "point_setup", None)
    with pytest.raises(KeyError, match="nowhere"):
        run(flat, bnn.sgld(flat, step_size=1e-4), keep=lambda values: {"a": values["nowhere"]})
    with pytest.raises(ValueError, match="got num_draws=0"):
        run(flat, bnn.sgld(flat, step_size=1e-4), num_draws=0)


@pytest.mark.thorough
def test_other_points_are_not_resumed_with(flat, held, tmp_path):
    run(held, bnn.sgld(held, step_size=1e-4), folder=tmp_path)
    other = flat.hold({"net.kernel": held.held["net.kernel"] + 1e-6})
    with pytest.raises(OtherRunError, match="got other values of the points"):
        run(other, bnn.sgld(other, step_size=1e-4), folder=tmp_path)
    fewer = conditioned(partial(nnx.Linear, 3, 1), {"bias": "point", "kernel": PRIOR})
    with pytest.raises(OtherRunError, match="got points net.bias, expected net.kernel"):
        run(fewer, bnn.sgld(fewer, step_size=1e-4), folder=tmp_path)


def test_a_method_is_built_as_for_the_rest():
    wide = conditioned(partial(bnn.nets.MLP, 3, (3000,), 1), {"*.1.bias": PRIOR, "*": "point"})
    bnn.laplace(wide, structure="full")  # of one weight; of all of them it is refused
    changed = bnn.sgld(wide, step_size=1e-4)._replace(settings={})
    with pytest.raises(ValueError, match="got a method that was changed after it was built"):
        run(wide, changed)


def test_values_to_hold_are_checked(flat, held):
    with pytest.raises(ValueError, match="got nothing for 'net.kernel'"):
        flat.hold({})
    with pytest.raises(
        ValueError, match=r"got an array \(2,\) for 'net.kernel', expected an array"
    ):
        flat.hold({"net.kernel": np.zeros(2)})
    with pytest.raises(ValueError, match="got an array .* for 'net.kernel', expected nothing"):
        held.hold({"net.kernel": np.zeros((3, 1))})


def test_points_start_at_the_weights_of_a_ready_module():
    posterior = conditioned(READY, {"layers.1.*": PRIOR, "*": "point"})
    start = posterior.init(jax.random.key(0))
    np.testing.assert_array_equal(start["net.layers.0.kernel"], READY.layers[0].kernel[...])


@pytest.mark.thorough
def test_a_plan_counts_the_points(flat):
    plan = bnn.plan(jax.random.key(0), flat, bnn.sgld(flat, step_size=1e-4), trial_seconds=0.1)
    assert plan.gradients > 0 and plan.hours > 0


@pytest.mark.thorough
def test_a_point_that_is_a_single_number_is_stored(tmp_path):
    def shifted(x, y=None):
        shift = numpyro.sample("shift", flat_prior(), infer={POINT: True})
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(shift + slope * x[:, 0], STD), obs=y)

    posterior = bnn.condition(shifted, (X, Y)).hold({"shift": 0.25})
    draws = run(posterior, bnn.sgld(posterior, step_size=1e-4), folder=tmp_path)
    assert draws.constant_data["shift"].shape == () and float(draws.constant_data["shift"]) == 0.25
