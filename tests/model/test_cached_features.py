"""Features of the fixed part of a model: computed once, the posterior and the draws unchanged."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx
from jax.sharding import AxisType
from marks import quick_first, some_quick

import bnn_ppl as bnn
from bnn_ppl.analysis.prediction.model_average import add_block
from bnn_ppl.analysis.prediction.per_draw import at_inputs, known_of, with_targets
from bnn_ppl.estimators import BayesianClassifier
from bnn_ppl.model.rows import features
from bnn_ppl.model.rows.features import Features, raw_inputs, rows_with_features
from bnn_ppl.runtime.compilation.jaxprs import cost_of, equations_in, programs_in
from bnn_ppl.runtime.machines.devices import AllRows
from bnn_ppl.runtime.machines.machines import Device, Machine
from bnn_ppl.sampling.loop.compiled_loop import trace_loop
from bnn_ppl.sampling.loop.minibatches import Minibatches
from bnn_ppl.sampling.planning.machine_plan import plan_for_machine
from bnn_ppl.sampling.setup.chain_placement import prepare
from bnn_ppl.sampling.setup.run_spec import RunLength
from bnn_ppl.sampling.setup.warm_start import initial_setup

RNG = np.random.default_rng(0)
X = {
    "dense": RNG.normal(size=(30, 6)).astype("f"),
    "convolutional": RNG.normal(size=(30, 8, 8, 3)).astype("f"),
}
Y = RNG.integers(0, 3, 30)
HEAD = partial(nnx.Linear, 5, 3)


class Convolutions(nnx.Module):
    """Layers that mix calls of compiled functions, custom gradients and plain operations."""

    def __init__(self, rngs):
        self.first = nnx.Conv(3, 8, (3, 3), strides=2, rngs=rngs)
        self.norm = nnx.GroupNorm(8, num_groups=2, rngs=rngs)
        self.second = nnx.Conv(8, 8, (3, 3), rngs=rngs)
        self.out = nnx.Linear(8, 5, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.first(x)))
        x = jnp.where(x > 1, 1.0, x) + nnx.swish(self.second(x))
        return nnx.relu(self.out(x.mean((1, 2))))


class Dense(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(6, 50, rngs=rngs), nnx.Linear(50, 5, rngs=rngs)])

    def __call__(self, x):
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return x


BACKBONES = {"dense": Dense(nnx.Rngs(0)), "convolutional": Convolutions(nnx.Rngs(0))}


def on_head(fixed, head=HEAD, scale=1.0):
    """Make a model: fixed layers, given as a function, and a random head."""

    def model(x, y=None):
        f = bnn.random_network("head", head, bnn.priors.normal(scale))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Categorical(logits=f(fixed(x))), obs=y)

    return model


def conditioned(kind="dense", **options):
    return bnn.condition(on_head(BACKBONES[kind]), (X[kind], Y), **options)


@pytest.fixture(scope="module")
def posterior():
    return conditioned()


def raw(method):
    """Make the same method, for which no features are computed."""
    return method._replace(raw_rows=True)


def position_of(posterior):
    return posterior.init(jax.random.key(3))


def differences(one, other):
    gaps = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), one, other)
    return jax.tree.leaves(gaps)


def flops(posterior, batch):
    gradient = jax.make_jaxpr(jax.grad(posterior.logdensity))
    return cost_of(gradient(position_of(posterior), batch).jaxpr).flops


# --- the density


@quick_first(
    ("kind", "microbatch"),
    [
        ("dense", None),
        ("convolutional", 7),
        pytest.param("dense", 7, marks=pytest.mark.thorough),
        pytest.param("convolutional", None, marks=pytest.mark.thorough),
    ],
)
def test_density_and_gradient_are_those_of_all_layers(kind, microbatch):
    posterior = conditioned(kind, microbatch=microbatch, temperature=0.5)
    rows = rows_with_features(posterior)
    assert [array.shape for array in rows[0].arrays] == [(30, 5)]
    position = position_of(posterior)
    both = jax.jit(jax.value_and_grad(posterior.logdensity))
    assert max(differences(both(position, rows), both(position, posterior.data))) < 1e-5
    terms = (
        posterior.density.terms(position, rows),
        posterior.density.terms(position, posterior.data),
    )
    assert jax.tree.structure(terms[0]) == jax.tree.structure(terms[1])
    assert max(differences(*terms)) < 1e-5


def test_features_are_what_the_fixed_layers_give(posterior):
    (array,) = rows_with_features(posterior)[0].arrays
    np.testing.assert_allclose(array, BACKBONES["dense"](X["dense"]), atol=1e-6)


@quick_first("kind", X)
def test_a_gradient_costs_what_the_head_costs(kind):
    posterior = conditioned(kind)
    of_head = bnn.condition(on_head(lambda x: x), (np.zeros((30, 5), "f"), Y))
    expected = flops(of_head, of_head.data)
    assert expected > 0
    assert flops(posterior, rows_with_features(posterior)) == expected
    assert flops(posterior, posterior.data) > 10 * expected
    # What the compiler counts, of the whole step: the head's and no more.
    counted = [
        jax.jit(jax.grad(p.logdensity)).lower(position_of(p), batch).compile().cost_analysis()
        for p, batch in [
            (posterior, rows_with_features(posterior)),
            (of_head, of_head.data),
            (posterior, posterior.data),
        ]
    ]
    cached, head, everything = (each["flops"] for each in counted)
    assert cached < 1.1 * head < 0.2 * everything


def test_padding_counts_nothing(posterior):
    x, y = rows_with_features(posterior)
    padded = jax.tree.map(lambda leaf: leaf[np.arange(32) % 30], (x, y))
    batch = AllRows(*padded, np.arange(32) < 30)
    position = position_of(posterior)
    lp = posterior.logdensity(position, batch)
    assert lp == pytest.approx(float(posterior.logdensity(position, posterior.data)), rel=1e-6)


def test_chunks_bound_the_rows_computed_at_once(monkeypatch):
    posterior = conditioned(microbatch=4)
    shapes = []
    place = jax.device_put

    def noting(tree, sharding):
        shapes.extend(leaf.shape for leaf in jax.tree.leaves(tree) if leaf.shape[1:] == (6,))
        return place(tree, sharding)

    monkeypatch.setattr(features.jax, "device_put", noting)
    (array,) = rows_with_features(posterior)[0].arrays
    assert set(shapes) == {(8, 6)}, "4 rows on each of two devices"
    assert len(shapes) == 5, "chunks of 30 rows, and one to see whether rows are independent"
    np.testing.assert_allclose(array, BACKBONES["dense"](X["dense"]), atol=1e-6)


@pytest.mark.thorough
def test_a_number_of_rows_that_was_not_given_is_chosen_for_the_head(monkeypatch):
    monkeypatch.setattr("bnn_ppl.model.rows.microbatch.memory_limit", lambda: 400_000)
    chosen, given = conditioned("convolutional"), conditioned("convolutional", microbatch=5)
    assert chosen.density.microbatch < 30

    def chunks(posterior, batch):
        program = jax.make_jaxpr(posterior.log_likelihood)(position_of(posterior), batch).jaxpr
        return any(e.primitive.name == "scan" for e in equations_in(program))

    for posterior in (chosen, given):
        assert chunks(posterior, posterior.data)
    assert chunks(given, rows_with_features(given))
    assert not chunks(chosen, rows_with_features(chosen))


def test_rows_that_depend_on_each_other_are_left_as_they_are():
    def standardised(x):
        return BACKBONES["dense"]((x - x.mean(0)) / x.std(0))

    for microbatch, cached in ((4, False), (None, True)):
        posterior = bnn.condition(on_head(standardised), (X["dense"], Y), microbatch=microbatch)
        assert isinstance(rows_with_features(posterior)[0], Features) == cached


@pytest.mark.thorough
def test_other_functions_take_rows_with_features(posterior):
    rows = rows_with_features(posterior)
    position = position_of(posterior)
    values = posterior.constrain(position, rows)
    assert max(differences(values, posterior.constrain(position))) == 0
    assert max(differences(posterior.unconstrain(values, rows), position)) == 0
    assert max(differences(posterior.init(jax.random.key(3), rows), position)) == 0
    logits = [posterior.predictive(values, x).logits for x in (rows[0], X["dense"])]
    assert max(differences(*logits)) == 0


def test_features_of_another_program_are_not_used(posterior):
    x, y = rows_with_features(posterior)
    position = position_of(posterior)
    expected = posterior.log_likelihood(position, posterior.data)
    wrong = [array + 1 for array in x.arrays]
    for other in (x._replace(digest="other", arrays=wrong), x._replace(arrays=[wrong[0][:, :4]])):
        assert max(differences(posterior.log_likelihood(position, (other, y)), expected)) == 0
    found = posterior.log_likelihood(position, (x._replace(arrays=wrong), y))
    assert max(differences(found, expected)) > 0.01, "those of this program are"


# --- what is cached, and what not


def test_nothing_is_cached_where_the_first_layer_is_random():
    net = partial(bnn.nets.MLP, 6, (8,), 3)
    posterior = bnn.condition(bnn.models.classifier(net, bnn.priors.normal()), (X["dense"], Y))
    assert posterior.rows.fixed_part() is None
    assert rows_with_features(posterior)[0] is posterior.data[0]


def printing(x):
    jax.debug.print("{}", x.sum())
    return BACKBONES["dense"](x)


@pytest.mark.parametrize(
    "fixed",
    [lambda x: jnp.tanh(x[:, :5]) / 2, lambda x: jnp.sort(x)[:, 1:], printing],
    ids=["no product", "sorted", "with a side effect"],
)
def test_nothing_is_cached_without_products_or_with_side_effects(fixed):
    assert bnn.condition(on_head(fixed), (X["dense"], Y)).rows.fixed_part() is None


def test_nothing_is_cached_where_all_rows_must_be_there():
    def model(x, y=None):
        f = bnn.random_network("head", HEAD, bnn.priors.normal())
        logits = f(BACKBONES["dense"](x)) + jnp.zeros((30, 1))
        with numpyro.plate("data", 30):
            numpyro.sample("y", dist.Categorical(logits=logits), obs=y)

    assert bnn.condition(model, (X["dense"], Y)).rows.fixed_part() is None


def features_first(x):
    return jnp.tanh(BACKBONES["dense"](x).T)


@pytest.mark.thorough
def test_what_has_its_rows_elsewhere_is_computed_from_what_has_them_first():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal().expand([3, 5]).to_event(2))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Categorical(logits=(w @ features_first(x)).T), obs=y)

    posterior = bnn.condition(model, (X["dense"], Y))
    rows = rows_with_features(posterior)
    assert [array.shape for array in rows[0].arrays] == [(30, 5)]
    position = position_of(posterior)
    both = jax.value_and_grad(posterior.logdensity)
    assert max(differences(both(position, rows), both(position, posterior.data))) < 1e-5


@pytest.mark.thorough
def test_rows_are_told_from_other_axes_of_their_length():
    wide = RNG.normal(size=(6, 30)).astype("f")

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal().expand([3, 30]).to_event(2))
        hidden = (x @ wide).T  # (30, rows), of 30 rows here
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Categorical(logits=(w @ hidden).T), obs=y)

    posterior = bnn.condition(model, (X["dense"], Y))
    x, y = rows_with_features(posterior)
    few = jax.tree.map(lambda leaf: leaf[:10], (x, y))
    expected = posterior.log_likelihood(position_of(posterior), (X["dense"][:10], Y[:10]))
    found = posterior.log_likelihood(position_of(posterior), few)
    assert max(differences(found, expected)) < 1e-5
    assert x.arrays[0].shape == (30, 30)
    np.testing.assert_allclose(x.arrays[0], X["dense"] @ wide, atol=1e-5)


def test_what_a_head_sees_besides_the_features_is_kept_or_cheap():
    def model(x, y=None):
        x, offsets = x
        f = bnn.random_network("head", HEAD, bnn.priors.normal())
        logits = f(BACKBONES["dense"](x)) + offsets[:, None] ** 2
        with numpyro.plate("data", len(offsets)):
            numpyro.sample("y", dist.Categorical(logits=logits), obs=y)

    data = (X["dense"], np.linspace(0, 1, 30, dtype="f")), Y
    posterior = bnn.condition(bnn.models.weighted(model), ((data[0], np.arange(30.0)), Y))
    rows = rows_with_features(posterior)
    assert len(rows[0].arrays) == 1
    position = position_of(posterior)
    terms = (
        posterior.density.terms(position, rows),
        posterior.density.terms(position, posterior.data),
    )
    assert max(differences(*terms)) < 1e-4


def test_large_features_are_not_kept(posterior, monkeypatch):
    part = posterior.rows.fixed_part()
    monkeypatch.setattr(features, "memory_limit", lambda: 4 * 30 * 5 * 4)
    assert part.pays(), "a quarter of the memory"
    monkeypatch.setattr(features, "memory_limit", lambda: 1)
    assert part.pays(), "fewer bytes than the inputs"
    monkeypatch.setattr(features, "_MOST_BYTES", 0.5)
    assert not part.pays() and not part.pays(num_shards=2)
    assert rows_with_features(posterior)[0] is posterior.data[0]


# --- runs


def draws(posterior, method, **options):
    options = {"num_chains": 2, "num_warmup": 3, "num_draws": 4, "progress": False} | options
    return bnn.run(jax.random.key(0), posterior, method, **options)


def kernels(draws):
    return draws.posterior["head.kernel"].values


def hmc(posterior):
    return bnn.hmc(posterior, step_size=0.1, trajectory_length=0.5)


@pytest.mark.thorough
def test_draws_are_those_without(posterior):
    cached, other = (draws(posterior, m) for m in (hmc(posterior), raw(hmc(posterior))))
    assert cached.attrs["cached_features"] == 5
    assert "cached_features" not in other.attrs
    assert np.abs(np.diff(kernels(cached), axis=1)).min(2).max() > 0, "the chains move"
    np.testing.assert_allclose(kernels(cached), kernels(other), atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", X)
def test_draws_of_nuts_are_those_without(kind):
    posterior = conditioned(kind)
    method = bnn.nuts(posterior)
    options = {"num_warmup": 10, "num_draws": 5}
    cached, other = (draws(posterior, m, **options) for m in (method, raw(method)))
    np.testing.assert_allclose(kernels(cached), kernels(other), rtol=1e-3, atol=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [pytest.param((2, 1), marks=pytest.mark.thorough), (1, 2)])
def test_chains_and_rows_over_devices(shape):
    data = X["dense"][:29], Y[:29]  # so that rows are padded
    posterior = bnn.condition(on_head(BACKBONES["dense"]), data)
    mesh = jax.make_mesh(shape, ("chain", "data"), axis_types=(AxisType.Auto,) * 2)
    cached = draws(posterior, hmc(posterior), mesh=mesh)
    assert cached.attrs["cached_features"] == 5
    other = draws(posterior, raw(hmc(posterior)))
    np.testing.assert_allclose(kernels(cached), kernels(other), atol=1e-5)


def prepared(posterior, method, size=None, **options):
    lengths = RunLength(1, 3, 4, 1, Minibatches(size, False))
    return prepare(jax.random.key(0), posterior, method, lengths)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["hmc", "descent"])
def test_the_loop_of_a_run_has_the_head_alone(name):
    """Also where the prior's numbers are arguments of the program, as the ready-made models'."""
    backbone = BACKBONES["convolutional"]

    class Network(nnx.Module):
        def __init__(self, rngs):
            self.head = HEAD(rngs=rngs)

        def __call__(self, x):
            return self.head(backbone(x))

    data = X["convolutional"], Y
    posterior = bnn.condition(bnn.models.classifier(Network, bnn.priors.normal(0.3)), data)
    options = {"hmc": (0.1, 0.5), "descent": ()}[name]
    method = getattr(bnn, name)(posterior, *options)

    def convolves(method):
        run = prepared(posterior, method, None if method.all_rows else 10)
        assert (
            bool(run.numbers) != method.batching.raw_rows
        )  # a method that was changed has no recipe
        program = trace_loop(run.phases[0], run).lower().compile()
        return " convolution(" in program.as_text()

    assert convolves(raw(method))
    assert not convolves(method)


@pytest.mark.thorough
def test_minibatches_and_the_starting_method_see_features(posterior):
    method = bnn.sgld(posterior)
    run = prepared(posterior, method, 10)
    start = initial_setup(jax.random.key(1), posterior, method.tuning.start, run)
    assert start.data is run.data
    tapped = prepared(posterior, raw(method), 10)
    start = initial_setup(jax.random.key(1), posterior, method.tuning.start, tapped)
    assert isinstance(start.data[0], Features)
    options = {"batch_size": 10, "num_warmup": 20, "init": position_of(posterior)}
    cached, other = (draws(posterior, m, **options) for m in (method, raw(method)))
    np.testing.assert_allclose(kernels(cached), kernels(other), atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["laplace", "mc_dropout", "vogn", "noisy_kfac"])
def test_methods_that_read_layers_are_right_with_features_too(name, posterior):
    options = {"rate": {"head": 0.1}} if name == "mc_dropout" else {}
    method = getattr(bnn, name)(posterior, **options)
    assert method.batching.raw_rows
    options = {"init": position_of(posterior), "num_chains": 1, "thin": 0}
    forced, other = (
        draws(posterior, m, **options) for m in (method._replace(raw_rows=False), method)
    )
    np.testing.assert_allclose(kernels(forced), kernels(other), atol=1e-4)


def test_augmented_inputs_are_the_images(posterior):
    def moved(key, x):
        assert x.shape == (10, 6)
        return x + 0.1

    method = bnn.augmentation.augmented(bnn.descent(posterior, learning_rate=0.01), moved)
    assert method.batching.raw_rows
    rows = jax.tree.map(lambda leaf: leaf[:10], rows_with_features(posterior))
    state = method.init(jax.random.key(0), position_of(posterior), rows)
    one, other = (
        method.step(jax.random.key(1), state, batch)[0].position
        for batch in (rows, (raw_inputs(rows[0]), rows[1]))
    )
    assert max(differences(one, other)) == 0


@pytest.mark.thorough
def test_a_resumed_run_gives_the_same_bits(tmp_path):
    def extended(num_draws, folder):  # a new posterior each time, as in a new process
        posterior = conditioned()
        return draws(posterior, hmc(posterior), num_draws=num_draws, folder=folder)

    extended(2, tmp_path / "run")
    resumed = extended(5, tmp_path / "run")
    whole = extended(5, tmp_path / "whole")
    np.testing.assert_array_equal(kernels(resumed), kernels(whole))


@pytest.mark.thorough
def test_plans_count_the_head_alone(posterior):
    options = {"num_chains": 1, "num_warmup": 2, "num_draws": 2}
    rates = dict.fromkeys(("highest", "high", "default"), 1e9)
    here = Machine("here", Device(rates, 1e9, 2**30), np.array(jax.devices()[:1]))
    cached, other = (
        plan_for_machine(posterior, method, here, **options).flops
        for method in (bnn.hmc(posterior), raw(bnn.hmc(posterior)))
    )
    assert cached == flops(posterior, rows_with_features(posterior)) < other / 10


@pytest.mark.thorough
def test_estimators_sample_the_head_alone():
    x = RNG.normal(size=(60, 6))
    backbone = BACKBONES["dense"]

    class Network(nnx.Module):
        def __init__(self, rngs):
            self.head = nnx.Linear(5, 2, rngs=rngs)

        def __call__(self, x):
            return self.head(backbone(x))

    options = {"num_chains": 1, "num_warmup": 50, "num_draws": 50, "progress": False}
    found = BayesianClassifier("hmc", net=Network, prior=bnn.priors.normal(3.0), **options)
    found.fit(x, backbone(x)[:, 0] > 0)
    assert found.draws_.attrs["cached_features"] == 5
    assert found.score(x, backbone(x)[:, 0] > 0) > 0.9


# --- predictions


@pytest.mark.thorough
@pytest.mark.parametrize("kind", some_quick(X, ("dense",)))
@pytest.mark.parametrize("draws_a_block", [3, pytest.param(100, marks=pytest.mark.thorough)])
def test_predictions_are_those_of_all_layers(kind, draws_a_block, monkeypatch):
    monkeypatch.setattr("bnn_ppl.storage.inference_data._BYTES_A_BLOCK", draws_a_block * 18 * 4)
    posterior = conditioned(kind)
    some = draws(posterior, hmc(posterior))
    x = RNG.normal(size=(4, *X[kind].shape[1:])).astype("f")
    probs = bnn.predict(posterior, some, (x, Y[:4])).probs.values
    values = jax.tree.map(
        lambda leaf: leaf.values.reshape(-1, *leaf.shape[2:]), dict(some.posterior.data_vars)
    )
    each = [
        jax.nn.softmax(BACKBONES[kind](x) @ values["head.kernel"][i] + values["head.bias"][i])
        for i in range(8)
    ]
    np.testing.assert_allclose(probs, np.mean(each, 0), atol=1e-5)
    functions = bnn.function_draws(posterior, some, x).posterior["probs"].values
    np.testing.assert_allclose(functions.reshape(8, 4, 3), each, atol=1e-5)


def convolutions(program):
    return [e for e in equations_in(program) if e.primitive.name == "conv_general_dilated"]


def test_fixed_layers_see_each_row_once_for_all_draws():
    posterior = conditioned("convolutional")
    block = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), position_of(posterior))
    args = None, block, jnp.ones(3), X["convolutional"], Y
    known = known_of(posterior, block, X["convolutional"])
    add = partial(
        add_block, posterior.predictive, keep_each=False, targeted=with_targets(posterior)
    )
    program = jax.make_jaxpr(add)(*args).jaxpr
    loops = [e for e in equations_in(program) if e.primitive.name == "scan"]
    inside = [c for loop in loops for body in programs_in(loop) for c in convolutions(body)]
    assert len(convolutions(program)) == 2 and not inside
    compiled = jax.jit(add).lower(*args, known).compile().as_text()
    assert " convolution(" not in compiled, "one program for all blocks of draws does them"


def test_results_that_are_no_trees_are_left_as_they_are():
    class Own:
        def __init__(self, logits):
            self.logits = logits

    at = at_inputs(lambda w, x: Own(BACKBONES["dense"](x) * w), 2.0, X["dense"])
    np.testing.assert_allclose(at(2.0).logits, 2 * BACKBONES["dense"](X["dense"]), atol=1e-6)
