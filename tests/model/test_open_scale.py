"""A prior whose scale is left open: found by the first run, then held."""

from functools import partial

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density

import bnn_ppl as bnn
from bnn_ppl.runtime.machines.devices import chain_mesh
from bnn_ppl.sampling.search import scale_search
from bnn_ppl.storage.inference_data import with_points_of
from bnn_ppl.storage.phase_state import place_before
from bnn_ppl.storage.recorder import Progress
from bnn_ppl.storage.run_storage import RunStorage

X = np.linspace(-1, 1, 12, dtype=np.float32)[:, None]
Y = np.sin(3 * X[:, 0])
KEY = jax.random.key(0)
FOUND = 3.0


def of_package(prior):
    return bnn.models.regressor(partial(bnn.nets.MLP, 1, (2,), 1), prior, 0.3)


def of_user(prior):
    """A function that encloses its prior, so that its numbers are seen only when it is traced."""

    def model(x, y=None):
        f = bnn.random_network("net", partial(bnn.nets.MLP, 1, (2,), 1), prior)
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(f(x)[:, 0], 0.3), obs=y)

    return model


def assert_same(got, expected):
    assert set(got) == set(expected)
    for site in expected:
        np.testing.assert_allclose(got[site], expected[site], rtol=1e-5)


def step_of(posterior):
    return bnn.sgld(posterior, step_size=1e-4)  # compiles quickly


def run(posterior, method=None, **options):
    method = step_of(posterior) if method is None else method
    counts = {"num_warmup": 0, "num_draws": 2, "progress": False}
    return bnn.run(KEY, posterior, method, **counts | options)


@pytest.fixture
def searches(monkeypatch):
    """Find `FOUND` without training: what was searched with."""
    made = []

    def scale_of(search, key, posterior_at, start):
        made.append(posterior_at)
        return FOUND

    monkeypatch.setattr(scale_search, "MOST_SEARCHED", 5e9)
    monkeypatch.setattr(scale_search, "search_scale", scale_of)
    return made


def test_a_scale_of_next_to_nothing_is_not_taken(monkeypatch, capsys):
    """About modes that explain nothing the evidence has no maximum: it falls toward 0."""
    monkeypatch.setattr(scale_search, "MOST_SEARCHED", 5e9)
    monkeypatch.setattr(scale_search, "search_scale", lambda *_: 4e-8)
    opened = bnn.condition(of_package(bnn.priors.fan_in()), (X, Y))
    usual = opened.prior.open_scale.usual
    found = scale_search.scale_or_usual(None, opened.prior.open_scale.hold, usual, progress=True)
    assert found == usual
    told = "the rows do not tell the scale of the prior: the usual one, 1.41"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("model", [of_package, pytest.param(of_user, marks=pytest.mark.thorough)])
def test_a_run_is_that_at_the_scale_it_finds_and_searches_once(model, searches, capsys):
    opened = bnn.condition(model(bnn.priors.fan_in()), (X, Y), temperature=0.5)
    given = bnn.condition(model(bnn.priors.fan_in(FOUND)), (X, Y), temperature=0.5)
    first, again = run(opened, progress=True), run(opened)
    expected = run(given)
    for draws in (first, again):
        assert draws.attrs["prior_scale"] == FOUND
        assert_same(draws.posterior, expected.posterior)
    assert "prior_scale" not in expected.attrs
    assert "prior scale 3: found from the training rows\n" in capsys.readouterr().err
    (posterior_at,) = searches
    untempered = bnn.condition(model(bnn.priors.fan_in(2.0)), (X, Y))
    assert posterior_at(2.0).temperature == 1
    assert_same(posterior_at(2.0).prior_std, untempered.prior_std)


@pytest.mark.thorough
def test_until_it_is_found_the_scale_is_the_usual_one_also_for_numpyro():
    opened = bnn.condition(of_user(bnn.priors.fan_in()), (X, Y))
    usual = bnn.condition(of_user(bnn.priors.fan_in(2**0.5)), (X, Y))
    position = usual.init(KEY)
    assert_same(opened.prior_std, usual.prior_std)
    assert opened.log_prior(position) == usual.log_prior(position)
    own = log_density(of_user(bnn.priors.fan_in()), (X, Y), {}, position)[0]
    np.testing.assert_allclose(own, usual.logdensity(position, (X, Y)), rtol=1e-5)
    assert opened.open_scale is not None and usual.open_scale is None
    assert "a prior scale to be found" in repr(opened)


@pytest.mark.thorough
def test_a_normal_prior_and_one_in_a_dict_and_of_a_point_may_leave_it_open():
    opened = bnn.condition(of_user(bnn.priors.normal(None)), (X, Y)).open_scale
    assert_same(opened.hold(2.0).prior_std, dict.fromkeys(opened.hold(2.0).prior_std, 2.0))
    assert opened.hold(2.0) is opened.hold(2.0)  # or all would be compiled again
    priors = {"layers.0.*": bnn.priors.point(bnn.priors.fan_in()), "*": bnn.priors.normal(0.5)}
    held = bnn.condition(of_user(priors), (X, Y)).open_scale.hold(2.0)
    assert held.points == ("net.layers.0.bias", "net.layers.0.kernel")
    assert held.prior_std["net.layers.0.kernel"] == 2 and held.open_scale is None
    points = {site: np.zeros(held.sites.value_shapes()[site]) for site in held.points}
    assert held.hold(points).prior.scale == 2


@pytest.mark.thorough
def test_what_is_asked_of_draws_is_asked_at_their_scale(searches):
    opened = bnn.condition(of_package(bnn.priors.fan_in()), (X, Y))
    draws = run(opened)
    at = with_points_of(draws, opened)
    assert at.prior.scale == FOUND and at.open_scale is None
    assert bnn.predict(opened, draws, (X, Y))["mean"].shape == Y.shape
    inside = bnn.subspace(opened, draws, 1)
    assert inside.open_scale is None and inside.whole.prior.scale == FOUND


@pytest.mark.thorough
def test_a_resumed_run_takes_the_scale_of_its_folder(searches, tmp_path):
    opened = partial(bnn.condition, of_package(bnn.priors.fan_in()), (X, Y))
    run(opened(), folder=tmp_path / "new")
    old = bnn.condition(of_package(bnn.priors.fan_in(2**0.5)), (X, Y))
    run(old, folder=tmp_path / "old")  # as versions without a search have run the open prior
    searches.clear()
    for folder, scale in (("new", FOUND), ("old", 2**0.5)):
        draws = run(opened(), folder=tmp_path / folder, num_draws=3)
        assert draws.posterior.sizes["draw"] == 3 and not searches
        assert bnn.diagnostics.load(tmp_path / folder).attrs.get("prior_scale", 2**0.5) == scale


def test_a_resumed_fit_of_points_takes_the_scale_at_which_it_began(searches, tmp_path):
    """With more time, the search for it could end at another."""
    prior = {"layers.1.*": bnn.priors.fan_in(), "*": "point"}
    opened = bnn.condition(of_package(prior), (X, Y))
    settings = {"exact": {"prior_scale": 2.0}, "approximate": {}}
    begun = place_before(tmp_path, "points", settings, chain_mesh(1, None))
    begun.resume({})
    begun.record(Progress(), {}, None)
    search = partial(scale_search.find_scale, bnn.run, opened, step_of(opened))
    held, _ = search(RunStorage(tmp_path), np.inf, False)
    assert held.prior.scale == 2 and not searches
    assert search(RunStorage(None), np.inf, False)[0].prior.scale == FOUND


def test_an_argument_that_does_not_fit_is_refused_before_the_search(searches):
    opened = bnn.condition(of_package(bnn.priors.fan_in()), (X, Y))
    with pytest.raises(ValueError, match="num_draws=0"):
        run(opened, num_draws=0)
    other = bnn.condition(of_package(bnn.priors.fan_in()), (X, Y))
    with pytest.raises(ValueError, match="built with another posterior"):
        run(opened, step_of(other))
    assert not searches


@pytest.mark.thorough
@pytest.mark.parametrize(
    "words", [pytest.param("cannot be built anew", marks=pytest.mark.thorough), "would take hours"]
)
def test_where_no_scale_can_be_found_it_is_the_usual_one_and_says_so(
    words, searches, monkeypatch, capsys
):
    opened = bnn.condition(of_package(bnn.priors.fan_in()), (X, Y))
    method = step_of(opened)
    if "anew" in words:
        method = method._replace(settings={"method": "mine"})
    else:
        monkeypatch.setattr(scale_search, "MOST_SEARCHED", 0)
    draws = run(opened, method, progress=True)
    line = next(each for each in capsys.readouterr().err.splitlines() if "prior scale" in each)
    assert line.startswith("prior scale 1.414: the usual one") and words in line
    assert draws.attrs.get("prior_scale", 2**0.5) == 2**0.5 and not searches
