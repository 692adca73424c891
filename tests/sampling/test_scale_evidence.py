"""The prior precision of most evidence, found by one program."""

import time
from contextlib import nullcontext
from functools import partial
from unittest.mock import Mock

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.tree_util import Partial

import bnn_ppl as bnn
from bnn_ppl.sampling.search import scale_search
from bnn_ppl.sampling.search.evidence import precision_multipliers
from bnn_ppl.sampling.search.fits import Search


@pytest.mark.thorough
@pytest.mark.parametrize("num_rows", [60, 1_100])
def test_it_is_that_of_a_run_of_laplace(num_rows):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, 3))
    y = x @ np.array([0.5, -0.2, 0.1]) + 0.3 * rng.normal(size=num_rows)
    net = partial(bnn.nets.MLP, 3, (4,), 1)
    posterior = bnn.condition(bnn.models.regressor(net, bnn.priors.normal(2.0), 0.5), (x, y))
    approximation = bnn.laplace(posterior, prior_precision="marginal_likelihood")
    modes = jax.vmap(posterior.init)(jax.random.split(jax.random.key(1), 2))
    found = precision_multipliers(posterior, approximation, modes)
    expected = [of_run(posterior, approximation, modes, chain) for chain in (0, 1)]
    np.testing.assert_allclose(found, expected, rtol=0.01)
    assert found[0] != found[1]


def test_points_take_half_of_the_time_and_are_not_kept_if_cut_short(monkeypatch, tmp_path):
    ends, places = [], []

    def fit(end, key, posterior, folder, progress):
        ends.append(end)
        if len(ends) == 2:
            raise TimeoutError
        return posterior, False

    def evidence(search, *_):
        places.append(search.place)
        return None, np.full(2, 4.0)

    monkeypatch.setattr(scale_search, "fit_points_until", fit)
    monkeypatch.setattr(scale_search, "like", lambda posterior, _: posterior)
    monkeypatch.setattr(scale_search, "_evidence", Mock())
    monkeypatch.setattr(scale_search, "_round", evidence)
    search = Search.of(None, "prior scale", tmp_path, max_minutes=1.0)
    began = time.monotonic()
    scale = scale_search.search_scale(search, jax.random.key(0), lambda scale: None, 1.0)
    assert scale == 0.5  # of the first round
    assert ends[0] < began + 40 and places == [None]


@pytest.mark.thorough
def test_a_model_whose_scale_is_no_argument_is_searched_too():
    """Of a function that encloses the scale, programs take no numbers."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    rows = x, (x @ np.array([0.5, -0.2, 0.1]) + 0.3 * rng.normal(size=40)).astype(np.float32)

    def of_function(scale):
        def model(x, y=None):
            slopes = numpyro.sample("slopes", dist.Normal(0, scale).expand([3]).to_event(1))
            with numpyro.plate("rows", len(x)):
                numpyro.sample("y", dist.Normal(x @ slopes, 0.3), obs=y)

        return bnn.condition(model, rows)

    def of_numbers(scale):
        return bnn.condition(Partial(linear, scale), rows)

    found = [bnn.prior_scale(jax.random.key(0), at, 1.0) for at in (of_function, of_numbers)]
    assert found[0] == pytest.approx(found[1], rel=0.02)


def linear(scale, x, y=None):
    slopes = numpyro.sample("slopes", dist.Normal(0, scale).expand([3]).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(x @ slopes, 0.3), obs=y)


def of_run(posterior, approximation, modes, chain):
    start = {site: leaf[chain] for site, leaf in modes.items()}
    options = {"num_draws": 1, "init": start, "progress": False, "verdict": False}
    draws = bnn.run(jax.random.key(2), posterior, approximation, **options)
    return draws["fitted"]["prior_precision_multiplier"].item()


@pytest.mark.parametrize(
    "changes, to_come",
    [
        ([0.0], 0.0),
        ([0.0, -0.4], 0.0),
        ([0.0, -0.4, -0.2], -0.2),
        ([0.0, -0.4, -0.36], -0.36 * 0.7 / 0.3),
        ([0.0, -0.4, -0.5], 0.0),  # at 2.3 times the last change fits have collapsed
        ([0.0, -0.4, 0.1], 0.0),
    ],
)
def test_changes_to_come_are_those_of_a_geometric_series(changes, to_come):
    assert scale_search._changes_to_come(changes) == pytest.approx(to_come)


def test_more_rounds_are_taken_until_the_changes_shrink(monkeypatch):
    multipliers = iter(np.exp([0.8, 1.0, 0.1, 0.0]))  # minus twice the changes

    def next_round(search, key, posterior, evidence, modes, number):
        return modes, np.array([next(multipliers)])

    monkeypatch.setattr(scale_search, "_round", next_round)
    told = []
    monkeypatch.setattr(Search, "told", lambda _, part: nullcontext(told.append(part)))
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20, 2)), rng.normal(size=20)
    net = partial(bnn.nets.MLP, 2, (3,), 1)

    def posterior_at(scale):
        return bnn.condition(bnn.models.regressor(net, bnn.priors.normal(scale), 0.5), rows)

    found = bnn.prior_scale(jax.random.key(0), posterior_at, 1.0)
    assert found == pytest.approx(np.exp(-0.4 - 0.5 - 0.05 * (1 + 0.1 / 0.9)), rel=0.01)
    assert next(multipliers) == 1
    assert told == ["round 1 of 2", "round 2 of 2", "round 3, one more"]
