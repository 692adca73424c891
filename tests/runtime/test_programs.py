"""Numbers that programs take as arguments, and programs found again by their text."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from marks import quick_first, some_quick

import bnn_ppl as bnn
from bnn_ppl.methods import method
from bnn_ppl.model.recipe import like, numbers_of, recipe_of
from bnn_ppl.runtime.compilation import programs
from bnn_ppl.sampling.setup.numeric_arguments import numbers_to_run

X = np.linspace(-1, 1, 6, dtype=np.float32)[:, None]
Y = X[:, 0]
NET = partial(bnn.nets.MLP, 1, (2,), 1)
PRIORS = {
    "normal": (bnn.priors.normal, 0.3, 2.0),
    "laplace": (bnn.priors.laplace, 0.3, 2.0),
    "logistic": (bnn.priors.logistic, 0.3, 2.0),
    "student_t": (bnn.priors.student_t, 0.3, 2.0),
    "mixture": (bnn.priors.mixture, (1.0, 0.1), (2.0, 0.3)),
    "fan_in": (bnn.priors.fan_in, 0.3, 2.0),
    "horseshoe": (bnn.priors.horseshoe, 0.3, 2.0),
    "hierarchical": (bnn.priors.hierarchical, 0.3, 2.0),
    "by_site": (lambda s: dict.fromkeys(SITES, bnn.priors.normal(s)), 0.3, 2.0),
}
SITES = [f"net.layers.{i}.{kind}" for i in (0, 1) for kind in ("bias", "kernel")]


def posterior(prior, noise=None):
    return bnn.condition(bnn.models.regressor(NET, prior, noise), (X, Y))


def test_an_array_that_single_precision_took_is_itself_in_double_precision():
    array = np.array([1 / 3, 2 / 3])
    taken = jax.make_jaxpr(lambda: jnp.sin(array))()
    program = programs.compiled_once(lambda numbers: 2 * numbers[0])
    with jax.enable_x64(True):
        found = np.asarray(program(numbers_of([array])[0]))
    np.testing.assert_array_equal(found, 2 * array)
    assert taken is not None  # by which JAX keeps what it made of the array


@quick_first("name", some_quick(PRIORS, ("normal", "mixture")))
@quick_first("noise", [0.5, None])
def test_a_posterior_of_another_prior_is_the_same_one_of_other_numbers(name, noise):
    prior, one, other = PRIORS[name]
    recipe = recipe_of(posterior(prior(one), noise))
    expected = posterior(prior(other), noise)
    position = expected.init(jax.random.key(0))
    numbers = expected.recipe.numbers

    def evaluated(numbers):
        made = recipe.make(numbers)
        return made.logdensity(position, (X, Y)), made.prior_std

    lp, prior_std = jax.jit(evaluated)(numbers)
    assert lp == pytest.approx(float(expected.logdensity(position, (X, Y))), rel=1e-5)
    for site, std in expected.prior_std.items():
        assert prior_std[site] == pytest.approx(float(std), rel=1e-6)


def test_posteriors_that_differ_in_numbers_alone_share_a_recipe():
    known = posterior(bnn.priors.fan_in(0.3))
    other = bnn.condition(
        bnn.models.regressor(partial(bnn.nets.MLP, 1, (2,), 1), bnn.priors.fan_in(2.0)),
        (X.copy(), Y.copy()),
    )
    found = like(other, known)
    assert recipe_of(found).make is recipe_of(known).make
    position = other.init(jax.random.key(0))
    for name in ("log_prior", "logdensity"):
        arguments = (position,) if name == "log_prior" else (position, (X, Y))
        got, expected = (getattr(each, name)(*arguments) for each in (found, other))
        assert got == pytest.approx(float(expected), rel=1e-5), name


def scaled(scale, x, y=None):
    bnn.models.regressor(NET, bnn.priors.normal(), scale)(x, y)


@pytest.mark.parametrize(
    "changed",
    [
        lambda: posterior(bnn.priors.normal(0.3)),
        lambda: posterior(bnn.priors.fan_in(0.3), 0.5),
        lambda: bnn.condition(
            bnn.models.classifier(partial(bnn.nets.MLP, 1, (2,), 2), bnn.priors.fan_in(0.3)),
            (X, (Y > 0).astype(int)),
        ),
        lambda: bnn.condition(bnn.models.regressor(NET, bnn.priors.fan_in(0.3)), (X, Y + 1)),
        lambda: bnn.condition(bnn.models.regressor(NET, bnn.priors.fan_in(0.3)), (X[:5], Y[:5])),
        lambda: bnn.condition(
            bnn.models.regressor(NET, bnn.priors.fan_in(0.3)), (X, Y), temperature=0.5
        ),
        lambda: bnn.condition(
            bnn.models.regressor(partial(bnn.nets.MLP, 1, (3,), 1), bnn.priors.fan_in(0.3)), (X, Y)
        ),
        lambda: bnn.condition(
            bnn.models.regressor(NET, {"*kernel": bnn.priors.fan_in(0.3), "*": "point"}), (X, Y)
        ),
        lambda: bnn.condition(partial(scaled, 0.5), (X, Y)),
    ],
    ids=[
        *("prior", "noise", "likelihood", "y", "rows", "temperature", "width", "points", "function")
    ],
)
def test_posteriors_that_differ_otherwise_keep_their_own_recipe(changed):
    other = changed()
    assert like(other, posterior(bnn.priors.fan_in(0.3))) is other


def test_a_function_that_encloses_itself_is_no_error():
    def conditioned():
        def activation(x):
            return x if activation is None else jnp.tanh(x)

        net = partial(bnn.nets.MLP, 1, (2,), 1, activation=activation)
        return bnn.condition(bnn.models.regressor(net, bnn.priors.fan_in(0.3)), (X, Y))

    other = conditioned()
    assert like(other, conditioned()) is other


def test_what_was_changed_after_it_was_made_is_not_made_anew():
    first = posterior(bnn.priors.normal())
    assert numbers_to_run(first, bnn.nuts(first))[1] is not None
    changed = first._replace(constrain=lambda position, data: position)
    assert numbers_to_run(changed, bnn.nuts(changed)) == ([], None)
    assert numbers_to_run(first, bnn.nuts(first)._replace(settings={})) == ([], None)


def test_a_method_within_a_method_is_made_anew(monkeypatch):
    monkeypatch.setattr(method, "METHODS", {})
    outer = method.describe(name="outer", gives="", cost="", bias="")(lambda _, inner: inner)
    first = posterior(bnn.priors.normal())
    make = outer(first, inner=bnn.descent(first)).recipe.make
    other = posterior(bnn.priors.normal(3.0))
    assert make(other).logdensity is other.logdensity


@pytest.mark.thorough
def test_a_number_that_decides_about_the_program_stays_in_it():
    first = posterior(bnn.priors.normal())
    fixed = bnn.hmc(first, step_size=0.1)  # as many steps as fit in a length from the prior
    assert numbers_to_run(first, fixed) == ([], None)
    bnn.run(jax.random.key(0), first, fixed, num_warmup=1, num_draws=1, progress=False)


def test_programs_that_call_back_are_not_shared():
    def calling(number):
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        return programs.compiled_once(
            lambda x: jax.pure_callback(lambda x: np.float32(number), shape, x)
        )

    assert float(calling(1.0)(0.0)) == 1 and float(calling(2.0)(0.0)) == 2


@pytest.mark.parametrize("as_arguments", [False, True])
def test_programs_that_enclose_other_arrays_are_not_shared(as_arguments):
    name = "jax_use_simplified_jaxpr_constants"
    before = jax.config.values[name]
    jax.config.update(name, as_arguments)
    try:
        for number in (1.0, 2.0):
            enclosed = jnp.full(9, number)
            program = programs.compiled_once(lambda x, own=enclosed: (x + own).sum())
            assert program(0.0) == 9 * number
    finally:
        jax.config.update(name, before)


def test_a_program_that_calls_back_is_found_again_by_its_trace():
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    function = jax.jit(lambda x: jax.pure_callback(np.float32, shape, x))
    first, again = (programs.compiled(function.trace(0.0), (0.0,)) for _ in range(2))
    assert first is again and float(first(2.5)) == 2.5


@pytest.fixture
def cache_of_jax(tmp_path, monkeypatch):
    """Have JAX keep nothing, and look for the user's caches in a folder of the test."""
    names = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"
    before = [jax.config.values[name] for name in names]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(names[1].upper(), raising=False)
    jax.config.update(names[0], None)
    jax.config.update(names[1], 1.0)
    compilation_cache.reset_cache()
    programs._keep_by_default.cache_clear()
    yield names[0]
    for name, value in zip(names, before, strict=True):
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_programs_are_kept_by_themselves_once_the_package_compiles(cache_of_jax, tmp_path):
    def kept():
        return len(list(tmp_path.glob("bnn_ppl/*/*-cache")))

    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.jit(lambda x: jnp.cos(x) * 3.21)(1.0).block_until_ready()
    assert kept() == 0
    program = programs.compiled_once(lambda x: jnp.sin(x) * 1.23)
    program(1.0)
    assert kept() > 0


def test_nothing_is_kept_where_no_folder_can_be_written(cache_of_jax, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert float(programs.compiled_once(lambda x: x * 4.25)(2.0)) == 8.5
    assert jax.config.values[cache_of_jax] is None


def test_compiled_programs_are_kept_in_a_folder(cache_of_jax, tmp_path):
    bnn.cache_compiled_programs(tmp_path / "kept")
    jax.jit(lambda x: jnp.sin(x) * 3.21)(1.0).block_until_ready()
    assert len(list((tmp_path / "kept").iterdir()))
    bnn.cache_compiled_programs()  # JAX has been told
    assert jax.config.values[cache_of_jax] == str(tmp_path / "kept")
    jax.config.update(cache_of_jax, None)
    for _ in range(2):  # also where the package keeps its own there already
        bnn.cache_compiled_programs()
        assert jax.config.values[cache_of_jax].startswith(str(tmp_path / "bnn_ppl"))


def test_arguments_and_results_of_another_structure_are_another_program():
    def sum_of(pair):
        return jnp.add(*jax.tree.leaves(pair))

    for pair in ((1.5, 2.0), {"a": 1.5, "b": 2.0}, [1.5, 2.0]):
        assert float(programs.compiled_once(sum_of)(pair)) == 3.5


def test_arguments_of_other_shapes_that_are_not_used_are_another_program():
    for num in (2, 3):
        assert float(programs.compiled_once(lambda x, unused: x + 1)(0.0, np.ones(num))) == 1


def test_the_use_of_another_argument_is_another_program():
    first, second = (programs.compiled_once(lambda pair, i=i: pair[i] + 1.0) for i in (0, 1))
    assert [float(first((1.0, 2.0))), float(second((1.0, 2.0)))] == [2.0, 3.0]


def test_the_memory_of_arguments_is_taken_only_where_it_is_given():
    def double(x):
        return 2 * x

    x = jnp.ones(3)
    programs.compiled_once(double)(x)
    assert not x.is_deleted()
    programs.compiled_once(double, donate_argnums=0)(x)
    assert x.is_deleted()


@pytest.mark.thorough
def test_a_prior_with_a_number_more_before_those_of_the_noise_starts_as_it_does_alone():
    """Neither start takes the scale: the last number of one, the first of the other."""
    known = posterior(bnn.priors.fan_in(), bnn.priors.noise(0.05)).open_scale.untempered(1.5)
    other = posterior(bnn.priors.fan_in(0.5), bnn.priors.noise(0.05))
    settings = {"num_chains": 1, "num_warmup": 1, "num_draws": 1, "progress": False}
    for given in (known, other):
        bnn.run(jax.random.key(0), given, bnn.sgld(given, 1e-6), **settings)
