"""Warnings of data on a scale that the prior of a model does not expect."""

import warnings
from functools import partial

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from marks import quick_first

import bnn_ppl as bnn
from bnn_ppl.model.rows import scales

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)).astype(np.float32)
Y = np.sin(X[:, 0]) + 0.3 * RNG.normal(size=40)
ONE_LARGE = np.array([1.0, 1e9, 1.0])


def regressor(noise=None, num_outputs=1):
    net = partial(bnn.nets.MLP, 3, (8,), num_outputs)
    return bnn.models.regressor(net, bnn.priors.fan_in(), noise, num_outputs=num_outputs)


def classifier():
    return bnn.models.classifier(partial(bnn.nets.MLP, 3, (8,), 2), bnn.priors.fan_in())


def line(slopes, noise, rows=None):
    def model(x, y=None):
        slope = numpyro.sample("slope", slopes.expand([3]).to_event(1))
        scale = numpyro.sample("scale", noise)
        with numpyro.plate("data", len(x) if rows is None else rows):
            numpyro.sample("y", dist.Normal(x @ slope, scale), obs=y)

    return model


LARGE_X = r"got x as large as [\d.]+e\+09 in column 1 of x, which gives "
WARNED = {
    "y of 1e9": (regressor(), X, 1e9 * Y, r"standard deviation 8.62e\+08, .* on y / 8.62e\+08,"),
    "y far from 0": (regressor(), X, 1013 + Y, r"condition on \(y - 1.01e\+03\) / 0.862, or give"),
    "small y": (regressor(), X, 1e-3 * Y, r"condition on y / 0.000862, or give the model a prior"),
    "outputs of two scales": (
        regressor(num_outputs=2),
        X,
        np.stack([1e-3 * Y, 1e5 * Y], 1),
        r"condition on y / \[0.000862, 8.62e\+04\], or give",
    ),
    "a large constant y": (regressor(), X, 0 * Y + 1e9, r"condition on y / 1e\+09, or give"),
    "half precision": (regressor(), X, (1e4 * Y).astype(np.float16), r"y / 8.62e\+03, or"),
    "a Cauchy noise": (line(dist.Normal(0, 1), dist.HalfCauchy(1.0)), X, 1e9 * Y, "condition on y"),
    "a column of x": (regressor(), X * ONE_LARGE, Y, LARGE_X + "y a standard deviation of about"),
    "a constant column": (
        regressor(),
        X * [1, 0, 1] + [0, 1e9, 0],
        Y,
        r"as large as 1e\+09 in column",
    ),
    "a column of x, for classes": (classifier(), X * ONE_LARGE, Y > 0, LARGE_X + "logits of about"),
}


@quick_first("case", WARNED)
def test_data_on_another_scale_than_the_prior_are_warned_of_at_once(case):
    model, x, y, message = WARNED[case]
    with pytest.warns(UserWarning, match=message) as told:
        bnn.condition(model, (x, y))
    (warning,) = told
    assert warning.filename == __file__ and "\n" not in str(warning.message)


WIDE = line(dist.Normal(0, 1e9), dist.HalfNormal(1e9))
ITS_OWN = dist.Normal(0, jnp.array([1.0, 1e-9, 1.0]))
NOT_WARNED = {
    "usual data": (regressor(), X, Y),
    "usual classes": (classifier(), X, Y > 0),
    "units of a table": (regressor(), X, 22 + 9 * Y),
    "pixels": (classifier(), 255 * abs(X), Y > 0),
    "a constant column": (regressor(), X * [1, 0, 1], Y),
    "a constant y": (regressor(), X, 0 * Y + 3),
    "a row of zeros": (regressor(), X[:1] * 0, Y[:1] * 0),
    "a noise of this scale": (regressor(noise=1e8), X, 1e9 * Y),
    "a prior of this scale": (WIDE, X, 1e9 * Y),
    "a prior of every scale": (line(dist.Normal(0, 1), dist.LogNormal(0, 20)), X, 1e9 * Y),
    "slopes of the scale of x": (line(ITS_OWN, dist.HalfNormal(1)), X * ONE_LARGE, Y),
    "an improper prior": (
        line(dist.Normal(0, 1), dist.ImproperUniform(dist.constraints.positive, (), ())),
        X,
        1e9 * Y,
    ),
    "a plate of a fixed size": (line(dist.Normal(0, 1), dist.HalfNormal(1), 40), X, 1e9 * Y),
}


@pytest.mark.parametrize("case", NOT_WARNED)
def test_what_the_prior_may_expect_is_not_warned_of(case):
    model, x, y = NOT_WARNED[case]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bnn.condition(model, (x, y))


def test_usual_data_and_deep_networks_cost_no_draws(monkeypatch):
    def draws(*_):
        raise AssertionError

    monkeypatch.setattr(scales, "_drawn", draws)
    bnn.condition(regressor(), (X, Y))
    deep = partial(bnn.nets.MLP, 3, (2,) * 10, 1)
    bnn.condition(bnn.models.regressor(deep, bnn.priors.fan_in(), 1.0), (X, 1e9 * Y))
    with pytest.raises(AssertionError):
        bnn.condition(regressor(), (X, 1e9 * Y))
