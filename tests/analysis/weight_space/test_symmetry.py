"""Hidden units: which can be permuted, and draws of chains matched up to their names."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import xarray
from marks import quick_first

import bnn_ppl as bnn
from bnn_ppl.storage.inference_data import inference_data, with_constants, with_groups

RNG = np.random.default_rng(0)
X = RNG.normal(size=(10, 3)).astype(np.float32)
IMAGES = RNG.normal(size=(4, 32, 32, 1)).astype(np.float32)
LABELS = np.arange(4)


def regression(activation=jax.nn.relu, prior=None):
    net = partial(bnn.nets.MLP, 3, (5, 4), 1, activation=activation)
    return bnn.condition(
        bnn.models.regressor(net, prior or bnn.priors.fan_in(2**0.5), 0.5), (X, X[:, 0] * X[:, 1])
    )


def classification(net):
    return bnn.condition(bnn.models.classifier(net, bnn.priors.fan_in(2**0.5)), (IMAGES, LABELS))


def two_chains(posterior, renamed):
    """Draws of a chain about one point, and the same draws with their units renamed."""
    shapes = posterior.sites.value_shapes()
    first = {
        site: RNG.normal(size=shape) + 0.05 * RNG.normal(size=(6, *shape))
        for site, shape in shapes.items()
    }
    second = renamed(first)
    both = {site: np.stack([first[site], second[site]]).astype(np.float32) for site in shapes}
    return inference_data(both, {}, None, {})


def renamed_by_hand(draws, signs):
    order = {0: RNG.permutation(5), 1: RNG.permutation(4)}
    sign = {i: RNG.choice([-1, 1], len(order[i])) if signs else 1 for i in order}
    draws = {site: array.copy() for site, array in draws.items()}
    for layer, own in order.items():
        kernel, bias, after = (
            f"net.layers.{i}.{name}"
            for i, name in ((layer, "kernel"), (layer, "bias"), (layer + 1, "kernel"))
        )
        draws[kernel] = draws[kernel][..., own] * sign[layer]
        draws[bias] = draws[bias][..., own] * sign[layer]
        draws[after] = draws[after][..., own, :] * np.reshape(sign[layer], (-1, 1))
    return draws


def places(units):
    return {(site, axis, repeats) for site, axis, repeats in units.places}


def test_units_of_an_mlp_are_its_hidden_layers():
    first, second = bnn.symmetry.hidden_units(regression())
    kernels = [f"net.layers.{i}.kernel" for i in range(3)]
    assert (first.size, second.size) == (5, 4) and not first.signed
    assert places(first) == {(kernels[0], 1, 1), ("net.layers.0.bias", 0, 1), (kernels[1], 0, 1)}
    assert places(second) == {(kernels[1], 1, 1), ("net.layers.1.bias", 0, 1), (kernels[2], 0, 1)}


@pytest.mark.thorough
def test_a_prior_that_tells_units_apart_leaves_no_symmetry():
    def prior(site, shape):
        return dist.Normal(0, jnp.arange(1.0, 1 + shape[-1]))

    groups = bnn.symmetry.hidden_units(regression(prior=prior))
    assert groups == []
    draws = two_chains(regression(), lambda draws: draws)
    with pytest.raises(ValueError, match="without hidden units that can be permuted"):
        bnn.symmetry.matched(regression(prior=prior), draws)


@quick_first("activation, signs", [(jax.nn.relu, False), (jnp.tanh, True)])
def test_renamed_units_are_found(activation, signs):
    posterior = regression(activation)
    draws = two_chains(posterior, partial(renamed_by_hand, signs=signs))
    apart = float(bnn.diagnostics.rhat(draws).to_array().max())
    matched = bnn.symmetry.matched(posterior, draws)
    for values in matched.posterior.values():
        np.testing.assert_array_equal(values[1], values[0])
    assert apart > 2
    before, after = (bnn.function_draws(posterior, each, X).posterior for each in (draws, matched))
    np.testing.assert_allclose(after["mean"], before["mean"], atol=1e-4)


def test_what_else_is_known_of_the_units_is_renamed_or_left_out():
    posterior = regression(jnp.tanh)
    draws = two_chains(posterior, partial(renamed_by_hand, signs=True))
    values = draws.posterior
    fitted = {f"{site}.loc": values[site].isel(draw=0, drop=True) for site in values}
    fitted |= {f"{site}.scale": abs(values[site].isel(draw=1, drop=True)) for site in values}
    covariance = ("chain", "row", "column"), np.ones((2, 3, 3))
    rest = {"root": covariance, "log_evidence": ("chain", np.ones(2))}
    draws = with_groups(
        draws,
        fitted=xarray.Dataset(fitted | rest),
        batch_statistics=xarray.Dataset({"net.n.mean": values["net.layers.0.bias"]}),
    )
    matched = bnn.symmetry.matched(posterior, draws)
    assert "batch_statistics" not in matched  # of the units as they were
    assert set(matched.fitted) == {*fitted, "log_evidence"}
    for name in fitted:
        np.testing.assert_array_equal(matched.fitted[name][1], matched.fitted[name][0])


def test_points_are_shared_by_chains_that_have_a_barrier_between_them():
    prior = {"*kernel": bnn.priors.normal(0.7), "*": "point"}
    posterior = regression(prior=prior)
    held = {site: np.ones(posterior.sites.value_shapes()[site]) for site in posterior.points}
    kernels = {"net.layers.0.kernel": (3, 5), "net.layers.1.kernel": (5, 4)}
    kernels["net.layers.2.kernel"] = (4, 1)
    draws = {site: RNG.normal(size=(2, 1, *shape)) for site, shape in kernels.items()}
    draws = with_constants(inference_data(draws, {}, None, {}), held)
    found = bnn.symmetry.barrier(posterior, draws, num_points=3)
    rows = bnn.predict(posterior, draws.isel(chain=[0]), posterior.data)
    np.testing.assert_allclose(found.nll[0], -rows["log_prob"].mean(), rtol=1e-5)


def test_the_loss_on_the_way_is_that_of_all_rows_of_a_stream():
    x = RNG.normal(size=(1100, 1)).astype(np.float32)
    model = bnn.models.regressor(partial(bnn.nets.MLP, 1, (), 1), bnn.priors.normal(1.0), 0.5)
    rows = x, np.where(np.arange(1100) < 1000, 0, 5.0).astype(np.float32)
    posteriors = [bnn.condition(model, data) for data in (rows, bnn.data.stream(*rows))]
    draws = two_chains(posteriors[0], lambda first: {site: -own for site, own in first.items()})
    one, other = (bnn.symmetry.barrier(each, draws, num_points=3).nll for each in posteriors)
    np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.thorough
def test_the_loss_between_matched_chains_is_that_at_their_ends():
    posterior = regression()
    draws = two_chains(posterior, partial(renamed_by_hand, signs=False))
    apart = bnn.symmetry.barrier(posterior, draws, num_points=7)
    together = bnn.symmetry.barrier(posterior, bnn.symmetry.matched(posterior, draws))
    assert np.ptp(apart.nll.values) > 0.1 and np.ptp(together.nll.values) < 1e-4
    chord = apart.nll[0] + apart.share * (apart.nll[-1] - apart.nll[0])
    np.testing.assert_allclose(apart.barrier, (apart.nll - chord).max(), atol=1e-12)
    values = {site: array[0, -1].values for site, array in draws.posterior.items()}
    rows = posterior.log_likelihood(posterior.unconstrain(values), posterior.data)
    np.testing.assert_allclose(apart.nll[0], -np.mean(rows), rtol=1e-4)
    assert len(bnn.plots.barriers({"as sampled": apart, "matched": together}).axes) == 1


def test_barrier_refuses_chains_that_do_not_exist():
    posterior = regression()
    draws = two_chains(posterior, lambda draws: draws)
    with pytest.raises(ValueError, match=r"got chains=\(0, 2\), expected two chains from 0 to 1"):
        bnn.symmetry.barrier(posterior, draws, chains=(0, 2))
    with pytest.raises(ValueError, match="got no lines"):
        bnn.plots.barriers({})


@pytest.mark.thorough
def test_channels_of_a_flattened_image_are_repeated_in_the_next_layer():
    groups = bnn.symmetry.hidden_units(classification(partial(bnn.nets.LeNet, (32, 32, 1), 10)))
    flattened = [place for units in groups for place in units.places if place.repeats > 1]
    assert flattened and all("kernel" in place.site for place in flattened)


@pytest.mark.thorough
def test_channels_of_a_residual_stage_are_one_group():
    groups = bnn.symmetry.hidden_units(classification(partial(bnn.nets.ResNet20, (32, 32, 1), 10)))
    assert [units.size for units in groups] == [64] * 4 + [32] * 4 + [16] * 4
    # A stage's channels are read by every block after it: both convolutions and the norms.
    assert max(len(units.places) for units in groups) > 20
