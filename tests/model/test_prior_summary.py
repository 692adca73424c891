"""What is read off a prior, when a method asks for it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bnn_ppl as bnn
from bnn_ppl.model.prior import prior_summary

X = np.random.default_rng(0).normal(size=(12, 2)).astype(np.float32)
Y = X[:, 0]


def of_package(scale=0.5):
    return bnn.models.regressor(partial(bnn.nets.MLP, 2, (3,), 1), bnn.priors.normal(scale), 0.3)


def without_numbers(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 0.5).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ w, 0.3), obs=y)


MODELS = [of_package(), without_numbers]


@pytest.mark.parametrize("model", MODELS, ids=["package", "without numbers"])
def test_a_program_may_be_the_first_to_ask(model):
    posterior = bnn.condition(model, (X, Y))

    @jax.jit
    def first(x):
        def body(_, total):
            return total + sum(posterior.prior.std.values())

        return jax.lax.fori_loop(0, 2, body, x)

    number = len(posterior.sites.names)
    assert first(1.0) == pytest.approx(1 + 2 * 0.5 * number)
    assert {float(std) for std in posterior.prior.std.values()} == {0.5}
    assert posterior.prior.summary() is posterior.prior.summary()


def test_the_type_is_that_of_the_posterior_whoever_asks():
    posterior = bnn.condition(of_package(), (X, Y))
    with jax.enable_x64(True):
        found = posterior.prior.std
    assert {std.dtype for std in found.values()} == {jnp.float32.dtype}


def test_nothing_is_compiled_for_methods_that_do_not_need_it(monkeypatch):
    asked = []

    def compiled_once(function):
        program = jax.jit(function)
        return lambda *args: asked.append(args) or program(*args)

    monkeypatch.setattr(prior_summary, "compiled_once", compiled_once)
    posterior = bnn.condition(of_package(0.7), (X, Y))
    method = bnn.descent(posterior, learning_rate=0.01)
    draws = bnn.run(jax.random.key(0), posterior, method, num_warmup=3, progress=False)
    bnn.predict(posterior, draws, (X, Y))
    assert not asked
    assert float(posterior.prior.std["net.layers.0.kernel"]) == pytest.approx(0.7) and asked


def test_a_step_that_needs_it_can_be_the_first_to_ask():
    """Scores in warm-up leave the method without a recipe: its program has the posterior's own."""
    posterior = bnn.condition(of_package(), (X, Y))
    options = {"num_warmup": 4, "num_draws": 2, "progress": False, "score_every": 2}
    draws = bnn.run(
        jax.random.key(0), posterior, bnn.vogn(posterior, 0.01), held_out=(X[:4], Y[:4]), **options
    )
    assert np.isfinite(draws.posterior["net.layers.0.kernel"]).all()
