"""Weights of rows, against rows that are there several times."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from marks import quick_first

import bnn_ppl as bnn
from bnn_ppl.methods.layers.per_example_gradients import row_gradients

RNG = np.random.default_rng(0)
X, REAL, LABELS = RNG.normal(size=(6, 3)), RNG.normal(size=6), np.arange(6) % 3
WEIGHTS = np.array([1.0, 2.0, 0.0, 3.0, 1.0, 2.0])
TWICE = np.repeat(np.arange(6), WEIGHTS.astype(int))


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def pair(classes, **tempering):
    """Posteriors of weighted and of repeated rows, and a position."""
    y = LABELS if classes else REAL
    net = partial(bnn.nets.MLP, 3, (4,), 3 if classes else 1)
    prior = bnn.priors.normal()
    model = bnn.models.classifier(net, prior) if classes else bnn.models.regressor(net, prior)
    weighted = bnn.condition(bnn.models.weighted(model), ((X, WEIGHTS), y), **tempering)
    repeated = bnn.condition(model, (X[TWICE], y[TWICE]), **tempering)
    return weighted, repeated, repeated.init(jax.random.key(1))


def assert_close(one, other):
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12), one, other)


@quick_first("classes", [False, True])
def test_the_density_and_its_gradient_are_those_of_repeated_rows(classes):
    weighted, repeated, position = pair(classes, temperature=0.5)
    of = [
        jax.jit(jax.value_and_grad(each.logdensity))(position, each.data)
        for each in (weighted, repeated)
    ]
    assert_close(*of)
    batch = jax.tree.map(lambda leaf: leaf[2:5], weighted.data)  # half of the rows count double
    rows = repeated.log_likelihood(position, (X[2:5], batch[1]))
    total = repeated.log_prior(position) + 2 * np.sum(WEIGHTS[2:5] * rows)
    log_jacobian = weighted.density.terms(position, batch).log_jacobian
    assert_close(weighted.logdensity(position, batch), total / 0.5 + log_jacobian)
    change = weighted.logdensity_from(position, weighted.data)[1]
    assert change(position) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "last_layer", "full"])
@pytest.mark.parametrize("curvature", ["gauss_newton", "empirical"])
def test_laplace_of_weighted_rows_is_that_of_repeated_rows(structure, curvature):
    weighted, repeated, position = pair(classes=True)

    def fit(posterior):
        method = bnn.laplace(posterior, structure, curvature=curvature)
        state = method.init(None, position, posterior.data)
        return method.fitted(method.tuning.finish(method.warmup(None, state, posterior.data)[0]))

    found, expected = fit(weighted), fit(repeated)
    for name in (name for name in expected if "root" not in name):  # whose columns may be turned
        assert_close(found[name], expected[name])


@pytest.mark.parametrize("classes", [False, True])
@pytest.mark.thorough
def test_squared_gradients_of_weighted_rows_are_those_of_repeated_rows(classes):
    weighted, repeated, position = pair(classes)
    found, expected = (row_gradients(each)(position, each.data) for each in (weighted, repeated))
    assert_close((found.lp, found.gradient), (expected.lp, expected.gradient))
    sums = [
        jax.tree.map(lambda leaf: leaf * each.num_rows, squares)  # noqa: B023
        for each, squares in ((weighted, found.squares), (repeated, expected.squares))
    ]
    assert_close(*sums)
    assert all(jnp.sum(leaf) > 0 for leaf in jax.tree.leaves(sums))


@pytest.mark.thorough
def test_weights_do_not_change_predictions():
    weighted, repeated, _ = pair(classes=True)
    draws = bnn.prior_draws(jax.random.key(0), repeated, 3)
    expected = bnn.predict(repeated, draws, (X, LABELS))
    for weights in (WEIGHTS, np.ones(6)):
        assert bnn.predict(weighted, draws, ((X, weights), LABELS)).equals(expected)


@pytest.mark.parametrize("kind", ["factor", "soft_constraint"])
def test_what_is_not_of_a_row_has_no_weight(kind):
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        if kind == "factor":
            numpyro.factor("penalty", -jnp.abs(w).sum())
        else:
            numpyro.sample("zero", dist.Normal(w.sum(), 0.1), obs=0.0)
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    weighted = bnn.condition(bnn.models.weighted(model), ((X, WEIGHTS), REAL))
    repeated = bnn.condition(model, (X[TWICE], REAL[TWICE]))
    position = repeated.init(jax.random.key(1))
    assert_close(*(each.logdensity(position, each.data) for each in (weighted, repeated)))
