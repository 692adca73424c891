"""What a search has found is found again for the same model and rows, and for no others."""

from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx
from other_processes import written_to

import bnn_ppl as bnn
from bnn_ppl.sampling.search import scale_search, search_cache, structure
from bnn_ppl.sampling.search.fits import Search
from bnn_ppl.sampling.search.prior_scale import scale_or_usual
from bnn_ppl.sampling.search.search_cache import SearchCache
from bnn_ppl.storage.files import damaged

X = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]
Y = np.sin(3 * X[:, 0])
WIDTHS = (2,), (2, 2)


@pytest.fixture(autouse=True)
def kept(searched_priors, monkeypatch, tmp_path):
    """Search, and keep what is found in a folder of its own."""
    monkeypatch.setattr(search_cache, "_folder", lambda: tmp_path / "searches")


@pytest.fixture
def search(monkeypatch):
    """Stand in for the search, and count it."""
    search = Mock(return_value=0.7)
    monkeypatch.setattr(scale_search, "search_scale", search)
    return search


def at_scale(scale, width=3, y=Y, slope=1.0, shift=0.0):
    prior = bnn.priors.fan_in(slope * (scale - 1) + 1 + shift)
    model = bnn.models.regressor(partial(bnn.nets.MLP, 1, [width], 1), prior)
    return bnn.condition(model, (X, y))


def found(**options):
    return scale_or_usual(partial(at_scale, **options), 1.0)


def test_a_scale_is_searched_once_for_the_same_model_and_rows(search):
    assert [found(), found(), found()] == [0.7, 0.7, 0.7]
    assert search.call_count == 1


@pytest.mark.parametrize(
    "other", [{"width": 4}, {"y": -Y}, {"slope": 2.0}, {"shift": 0.1}], ids=lambda o: next(iter(o))
)
def test_it_is_searched_anew_for_another(search, other):
    found()
    found(**other)
    assert search.call_count == 2


def with_mean(mean_of):
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(mean_of(w * x[:, 0]), 1.0), obs=y)

    return bnn.condition(model, (X, Y))


@pytest.mark.parametrize("as_arguments", [False, True])  # of the equations of its program
def test_a_model_is_another_by_values_that_it_encloses(as_arguments):
    name = "jax_use_simplified_jaxpr_constants"
    before = jax.config.values[name]
    jax.config.update(name, as_arguments)
    try:
        posteriors = [with_mean(lambda f, by=by: f + np.full(len(f), by)) for by in (0.1, 0.1, 0.2)]
        first, same, other = (SearchCache.of([posterior]).place for posterior in posteriors)
    finally:
        jax.config.update(name, before)
    assert first == same != other and first is not None


@pytest.mark.parametrize("within", ["checkpoint", "map", "scan"])
def test_a_model_is_another_by_values_within_the_programs_of_its_equations(within):
    def of(by):
        factor = jnp.full(len(Y), by)
        inner = jax.jit(lambda f: f * factor)
        wrapped = {
            "checkpoint": jax.checkpoint(inner),
            "map": lambda f: jax.lax.map(lambda _: inner(f), jnp.zeros(2))[0],
            "scan": lambda f: jax.lax.scan(lambda f, _: (inner(f), None), f, length=1)[0],
        }[within]
        return SearchCache.of([with_mean(wrapped)]).place

    first, same, other = map(of, (0.1, 0.1, 0.2))
    assert first == same != other and first is not None


def test_a_network_is_another_by_its_initialisers():
    def of(scale):
        init = nnx.initializers.normal(scale)
        net = partial(nnx.Linear, 1, 1, kernel_init=init)
        model = bnn.models.regressor(lambda rngs: net(rngs=rngs), bnn.priors.fan_in(1.0))
        return SearchCache.of([bnn.condition(model, (X, Y))]).place

    assert of(0.1) != of(30.0)


def test_the_key_is_the_same_on_a_terminal(monkeypatch):
    before = SearchCache.of([at_scale(1.0)]).place
    monkeypatch.setattr("jax._src.pretty_printer.CAN_USE_COLOR", True)
    assert SearchCache.of([at_scale(1.0)]).place == before


def test_settings_that_json_does_not_know_are_no_error():
    assert SearchCache.of([at_scale(1.0)], np.int64(3)).place is None


def test_a_model_that_calls_back_is_not_known_again():
    shape = jax.ShapeDtypeStruct((len(Y),), np.float32)
    assert SearchCache.of([with_mean(lambda f: jax.pure_callback(np.sin, shape, f))]).place is None


def test_a_damaged_file_is_no_answer(search, tmp_path):
    found()
    (file,) = (tmp_path / "searches").iterdir()
    file.write_bytes(file.read_bytes()[:1] + b"\xff")
    assert found() == 0.7
    assert search.call_count == 2


def test_a_changed_number_is_no_answer(search, tmp_path):
    found()
    (file,) = (tmp_path / "searches").iterdir()
    file.write_bytes(file.read_bytes().replace(b"0.7", b"0.6"))
    assert found() == 0.7
    assert search.call_count == 2


def test_nothing_is_kept_of_a_search_that_was_cut_short(search, tmp_path):
    options = {"max_minutes": 1e-9, "progress": False}
    assert scale_or_usual(at_scale, 1.0, **options) == 0.7  # found as the time ended
    assert not (tmp_path / "searches").exists()
    search.side_effect = TimeoutError
    assert scale_or_usual(at_scale, 1.0, **options) == 1.0
    assert not (tmp_path / "searches").exists()


def test_nothing_is_kept_without_the_cache_of_programs(search):
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        assert [found(), found()] == [0.7, 0.7]
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
    assert search.call_count == 2


def test_a_structure_is_chosen_once_if_there_was_time_for_all(monkeypatch):
    def model_with(each):
        return bnn.models.regressor(
            partial(bnn.nets.MLP, 1, each.hidden, 1), bnn.priors.fan_in(1.0)
        )

    def choose(rows=(X, Y), **limits):
        key = jax.random.key(0)
        return structure.choose_structure(key, model_with, rows, WIDTHS, ["learnt"], **limits)

    def scores(climb, each):
        return np.full(9, float(len(each.hidden))), 0.0

    tried = Mock(side_effect=scores)
    monkeypatch.setattr(structure._Climb, "_log_scores", lambda *args: tried(*args))
    with pytest.MonkeyPatch.context() as late:
        late.setattr(structure.Search, "is_over", lambda self: True)
        cut_short = choose()
    tried.side_effect = [(np.zeros(9), 0.0), TimeoutError]
    assert choose().best.hidden == (2,)
    tried.side_effect = scores
    first, again = choose(), choose()
    assert first == again == cut_short and first.best.hidden == (2, 2) and tried.call_count == 6
    choose((X, -Y))
    assert tried.call_count == 8


# --- searches kept in a folder


def test_a_choice_in_a_folder_is_that_of_the_same_call(monkeypatch, tmp_path):
    jax.config.update("jax_enable_compilation_cache", False)

    def choose(widths=WIDTHS, seed=0, prior=1.0):
        def model_with(each):
            net = partial(bnn.nets.MLP, 1, each.hidden, 1)
            return bnn.models.regressor(net, bnn.priors.fan_in(prior))

        tried.reset_mock()
        key = jax.random.key(seed)
        return structure.choose_structure(
            key, model_with, (X, Y), widths, ["learnt"], folder=tmp_path
        )

    tried = Mock(side_effect=lambda _, each: (np.full(9, float(each.hidden[0])), 0.0))
    monkeypatch.setattr(structure._Climb, "_log_scores", lambda *args: tried(*args))
    try:
        first = choose()
        assert choose() == first and not tried.called
        for other in ({"widths": ((4,), (5,))}, {"seed": 1}, {"prior": 2.0}):
            choose(**other)
            assert tried.called
        assert choose(widths=((4,), (5,))).best.hidden == (5,)
        kept = tmp_path / "choice.json"
        kept.write_text(kept.read_text().replace("[5]", "[6]"))
        assert choose(widths=((4,), (5,))).best.hidden == (5,) and tried.called
    finally:
        jax.config.update("jax_enable_compilation_cache", True)


def test_a_search_that_another_process_makes_is_refused(tmp_path):
    """The run would take the usual scale, and remove what the other has found so far."""
    place = tmp_path / "search"
    place.mkdir()
    with written_to(place), pytest.raises(ValueError, match="another process writes to"):
        scale_or_usual(at_scale, 1.0, folder=place)


def test_a_damaged_fit_begins_again(tmp_path):
    calls = []

    def fit(*_, folder, **__):
        calls.append(folder.exists())
        if len(calls) == 1:
            raise damaged(folder / "state.json", "it is not JSON")
        return SimpleNamespace(attrs={})

    search = Search.of(fit, "prior scale", tmp_path)
    place = search.folder("mode-1")
    place.mkdir()
    with pytest.warns(UserWarning, match="damaged.*this fit begins again"):
        search.run(None, None, None, folder=place)
    assert calls == [True, False]


@pytest.mark.parametrize(
    ("error", "scale"), [(scale_search.NoEvidenceError, 1.0), (ValueError, None)]
)
def test_without_a_laplace_approximation_the_scale_is_the_usual_one(search, error, scale):
    search.side_effect = error("words")
    if scale is None:
        with pytest.raises(ValueError, match="words"):
            found()
    else:
        assert found() == scale


def test_an_error_of_laplace_says_that_there_is_none(monkeypatch):
    monkeypatch.setattr(scale_search, "laplace", Mock(side_effect=NotImplementedError("words")))
    with pytest.raises(scale_search.NoEvidenceError, match="words"):
        scale_search._evidence(at_scale(1.0), None, None)
