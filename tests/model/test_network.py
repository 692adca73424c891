"""Random networks: site names, the kinds of net and prior accepted, what is refused."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import linen, nnx
from numpyro import handlers

import bnn_ppl as bnn

X = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(4, 3)
MLP = partial(bnn.nets.MLP, 3, (5,), 2)
PARTS = ("bias", "kernel")
SHAPES = {
    "net.layers.0.bias": (5,),
    "net.layers.0.kernel": (3, 5),
    "net.layers.1.bias": (2,),
    "net.layers.1.kernel": (5, 2),
}


def trace(net, prior=None, seed=0, values=None, name="net"):
    """Return the network of one seeded trace and the trace's sample sites."""

    def program():
        return bnn.random_network(name, net, bnn.priors.normal(0.3) if prior is None else prior)

    seeded = handlers.seed(handlers.substitute(program, values or {}), jax.random.key(seed))
    with handlers.trace() as sites:
        module = seeded()
    return module, {name: site for name, site in sites.items() if site["type"] == "sample"}


def shapes(sites):
    return {name: site["value"].shape for name, site in sites.items()}


# --- the kinds of network


def test_sites_are_the_paths_of_the_weights():
    module, sites = trace(MLP)
    assert shapes(sites) == SHAPES
    assert isinstance(module, bnn.nets.MLP)


def test_the_network_has_the_weights_of_the_trace():
    module, sites = trace(MLP)
    for path, weight in nnx.to_flat_state(nnx.state(module, nnx.Param)):
        site = sites[".".join(["net", *map(str, path)])]
        np.testing.assert_array_equal(weight[...], site["value"])
    w = {name.removeprefix("net.layers."): np.asarray(s["value"]) for name, s in sites.items()}
    hidden = np.maximum(X @ w["0.kernel"] + w["0.bias"], 0)
    np.testing.assert_allclose(module(X), hidden @ w["1.kernel"] + w["1.bias"], rtol=1e-5)


def test_the_weights_come_from_the_prior_and_not_from_the_initialisers():
    _, sites = trace(partial(bnn.nets.MLP, 100, (100,), 2), bnn.priors.normal(7.0))
    kernel = np.asarray(sites["net.layers.0.kernel"]["value"])
    assert abs(kernel.std() / 7.0 - 1) < 5 / np.sqrt(2 * kernel.size)
    np.testing.assert_allclose(
        sites["net.layers.0.kernel"]["fn"].log_prob(kernel),
        dist.Normal(0, 7).log_prob(kernel).sum(),
        rtol=1e-5,
    )


def test_a_factory_starts_each_chain_elsewhere_and_a_ready_module_does_not():
    def initial(net, seed):
        return trace(net, seed=seed)[1]["net.layers.0.kernel"]["infer"]["initial_value"].array

    assert np.any(initial(MLP, 0) != initial(MLP, 1))
    ready = MLP(rngs=nnx.Rngs(3))
    for seed in (0, 1):
        np.testing.assert_array_equal(initial(ready, seed), ready.layers[0].kernel[...])


class RandomFeatures(nnx.Module):
    def __init__(self, *, rngs):
        self.directions = jax.random.normal(rngs.params(), (3, 4))
        self.output = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x):
        return self.output(jnp.sin(x @ self.directions))


def test_random_features_are_the_same_in_all_traces():
    ready = RandomFeatures(rngs=nnx.Rngs(0))
    _, sites = trace(ready)
    values = {name: site["value"] for name, site in sites.items()}

    def outputs(net, key=None):
        program = handlers.substitute(
            partial(bnn.random_network, "net", net, dist.Normal()), values
        )
        program = program if key is None else handlers.seed(program, key)
        return program()(X)

    expected = outputs(ready)
    for net in (RandomFeatures, ready):
        for key in (None, jax.random.key(1)):
            np.testing.assert_allclose(outputs(net, key), expected, rtol=1e-5)
            found = jax.jit(partial(outputs, net))(key)
            np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_arrays_that_a_factory_draws_by_numpy_are_refused():
    class Drawn(RandomFeatures):
        def __init__(self, *, rngs):
            super().__init__(rngs=rngs)
            self.other = nnx.data(np.random.default_rng().normal(size=3))

    with pytest.raises(ValueError, match="have other arrays each time, .* draw them from rngs"):
        trace(Drawn)


def test_a_density_initialises_no_weights_of_our_networks():
    def own(*, rngs):
        return MLP(rngs=rngs)

    position, program = {}, {}
    for name, net in {"ours": MLP, "own": own}.items():
        model = bnn.models.regressor(net, bnn.priors.normal(), 0.5, num_outputs=2)
        posterior = bnn.condition(model, (X, X[:, :2]))
        position[name] = posterior.init(jax.random.key(3))
        program[name] = str(jax.make_jaxpr(posterior.logdensity)(position["ours"], posterior.data))
    assert "random_bits" in program["own"] and "random_" not in program["ours"]
    jax.tree.map(np.testing.assert_array_equal, position["ours"], position["own"])


def test_a_factory_of_ours_is_not_built_again_for_another_posterior(monkeypatch):
    built, build = [], bnn.nets.MLP.__init__

    def counted(self, *args, **options):
        built.append(args)
        build(self, *args, **options)

    monkeypatch.setattr(bnn.nets.MLP, "__init__", counted)
    net = partial(bnn.nets.MLP, 3, (4,), 1)
    counts = []
    for scale in (1.0, 2.0):
        model = bnn.models.regressor(net, bnn.priors.normal(scale), 0.5)
        posterior = bnn.condition(model, (X, X[:, 0]))
        posterior.logdensity(posterior.init(jax.random.key(0)), posterior.data)
        counts.append(len(built))
    assert counts == [2, 2]  # once for each precision of products: JAX's, and that of `init`


def test_a_ready_module_keeps_its_own_weights():
    ready = MLP(rngs=nnx.Rngs(3))
    before = np.asarray(ready.layers[0].kernel[...])
    module, sites = trace(ready)
    assert module is not ready
    assert shapes(sites) == SHAPES
    np.testing.assert_array_equal(ready.layers[0].kernel[...], before)
    assert np.any(module.layers[0].kernel[...] != before)


class LinenMLP(linen.Module):
    @linen.compact
    def __call__(self, x):
        hidden = linen.relu(linen.Dense(5)(x))
        return linen.Dense(2)(hidden)


def test_a_linen_module_through_the_bridge_computes_what_linen_computes():
    module, sites = trace(bnn.nets.from_linen(LinenMLP(), X[:1]))
    assert shapes(sites) == {
        "net.Dense_0.bias": (5,),
        "net.Dense_0.kernel": (3, 5),
        "net.Dense_1.bias": (2,),
        "net.Dense_1.kernel": (5, 2),
    }
    params = {
        layer: {part: sites[f"net.{layer}.{part}"]["value"] for part in PARTS}
        for layer in ("Dense_0", "Dense_1")
    }
    np.testing.assert_allclose(module(X), LinenMLP().apply({"params": params}, X), rtol=1e-6)


@pytest.mark.thorough
def test_two_networks_in_one_model():
    def model(x, y=None):
        mean = bnn.random_network("mean", partial(bnn.nets.MLP, 3, (), 1), bnn.priors.normal(0.3))
        std = bnn.random_network("std", partial(bnn.nets.MLP, 3, (), 1), bnn.priors.normal(0.1))
        with numpyro.plate("data", len(x)):
            spread = jax.nn.softplus(std(x)[:, 0])
            numpyro.sample("y", dist.Normal(mean(x)[:, 0], spread), obs=y)

    posterior = bnn.condition(model, (X, X[:, 0]))
    assert {site: float(std) for site, std in posterior.prior_std.items()} == pytest.approx(
        {
            "mean.layers.0.bias": 0.3,
            "mean.layers.0.kernel": 0.3,
            "std.layers.0.bias": 0.1,
            "std.layers.0.kernel": 0.1,
        }
    )
    values = posterior.constrain(posterior.init(jax.random.key(0)))
    moved = posterior.predictive(values | {"std.layers.0.bias": jnp.array([3.0])}, X)
    plain = posterior.predictive(values, X)
    np.testing.assert_array_equal(moved.mean, plain.mean)
    assert np.all(moved.variance > plain.variance)


# --- the kinds of prior


@pytest.mark.thorough
def test_a_dict_gives_each_site_its_own():
    prior = {site: dist.Normal(0.0, 1.0 + i) for i, site in enumerate(SHAPES)}
    _, sites = trace(MLP, prior)
    for site, chosen in prior.items():
        got = sites[site]["fn"].log_prob(sites[site]["value"])
        np.testing.assert_allclose(got, chosen.log_prob(sites[site]["value"]).sum(), rtol=1e-5)


def test_a_function_gets_the_site_and_its_shape():
    seen = {}

    def prior(site, shape):
        seen[site] = shape
        return dist.Normal(0.0, 1.0)

    trace(MLP, prior)
    assert seen == SHAPES


def test_a_function_may_sample_a_scale_of_its_own():
    _, sites = trace(MLP, bnn.priors.hierarchical())
    assert set(sites) == set(SHAPES) | {f"{site}.precision" for site in SHAPES}
    value = sites["net.layers.0.kernel"]["value"]
    precision = sites["net.layers.0.kernel.precision"]["value"]
    expected = dist.Normal(0.0, precision**-0.5).log_prob(value).sum()
    np.testing.assert_allclose(
        sites["net.layers.0.kernel"]["fn"].log_prob(value), expected, rtol=1e-5
    )


def test_event_dimensions_are_the_last_axes_of_the_weight():
    covariance = jnp.array([[1.0, 0.8], [0.8, 2.0]])
    joint = dist.MultivariateNormal(jnp.zeros(2), covariance)
    others = {site: dist.Normal(0.0, 1.0) for site in SHAPES}
    _, sites = trace(MLP, others | {"net.layers.1.kernel": joint, "net.layers.1.bias": joint})
    for name in ("net.layers.1.kernel", "net.layers.1.bias"):
        site = sites[name]
        assert site["value"].shape == SHAPES[name]
        assert site["fn"].log_prob(site["value"]).shape == ()
        expected = joint.log_prob(site["value"]).sum()
        np.testing.assert_allclose(site["fn"].log_prob(site["value"]), expected, rtol=1e-5)


def test_a_batch_of_scales_broadcasts_over_the_weight():
    scales = jnp.array([0.1, 1.0, 2.0, 3.0, 4.0])
    others = {site: dist.Normal(0.0, 1.0) for site in SHAPES}
    _, sites = trace(MLP, others | {"net.layers.0.kernel": dist.Normal(0.0, scales)})
    site = sites["net.layers.0.kernel"]
    np.testing.assert_allclose(
        site["fn"].log_prob(site["value"]),
        dist.Normal(0.0, scales).log_prob(site["value"]).sum(),
        rtol=1e-5,
    )


# --- what is refused


class WithDropout(nnx.Module):
    def __init__(self, *, rngs):
        self.first = nnx.Linear(3, 4, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x):
        return self.last(self.drop(self.first(x)))


def complete(**changes):
    prior = {site: dist.Normal(0.0, 1.0) for site in SHAPES}
    return {site: chosen for site, chosen in (prior | changes).items() if chosen is not None}


REFUSED = {
    "a network without its sizes": (
        nnx.Linear,
        bnn.priors.normal(),
        TypeError,
        r"got a network that needs more than rngs=: .* 'in_features' and 'out_features', expected "
        r"a factory that takes rngs= alone: .* partial\(Net, ...\)",
    ),
    "linen module": (
        LinenMLP(),
        None,
        TypeError,
        r"got the linen module LinenMLP, expected an nnx network: use bnn_ppl.nets.from_linen",
    ),
    "factory of something else": (
        lambda rngs: "net",
        None,
        TypeError,
        r"got a str from net\(rngs=...\), expected an nnx.Module",
    ),
    "active dropout": (
        WithDropout,
        None,
        ValueError,
        r"got an active Dropout at drop, expected a deterministic network: .*\.eval\(\)",
    ),
    "dict that misses a weight": (
        MLP,
        complete(**{"net.layers.0.bias": None, "net.layers.1.bias": None}),
        ValueError,
        "got a prior that misses net.layers.0.bias, net.layers.1.bias, expected one for every",
    ),
    "dict with a misspelt weight": (
        MLP,
        complete(**{"net.layers.1.kernle": dist.Normal(0.0, 1.0)}),
        ValueError,
        "got a prior for 'net.layers.1.kernle'; did you mean 'net.layers.1.kernel'",
    ),
    "dict with another net's weight": (
        MLP,
        complete(w=dist.Normal(0.0, 1.0)),
        ValueError,
        "got a prior for 'w'; expected one of net.layers.0.bias, ",
    ),
    "number as prior": (
        MLP,
        0.3,
        TypeError,
        r"got a float as prior, expected a distribution: use bnn_ppl.priors.normal\(0.3\)",
    ),
    "class as prior": (
        MLP,
        dist.Normal,
        TypeError,
        r"got Normal as prior, expected .*: call it, as in Normal\(...\)",
    ),
    "prior not called": (
        MLP,
        bnn.priors.normal,
        TypeError,
        r"got normal as prior, expected .*: call it, as in normal\(...\)",
    ),
    "prior of two arguments not called": (
        MLP,
        bnn.priors.mixture,
        TypeError,
        "got stds='net.layers.0.bias', expected a number: call the prior",
    ),
    "prior with one argument given, not called": (
        MLP,
        partial(bnn.priors.normal, 0.3),
        TypeError,
        r"got normal as prior, expected .*: call it, as in normal\(...\)",
    ),
    "prior by site not called": (
        MLP,
        bnn.priors.fan_in,
        TypeError,
        "got gain='net.layers.0.bias', expected a number: call the prior",
    ),
    "function to a number": (
        MLP,
        lambda site, shape: 0.3,
        TypeError,
        "got a float as prior, expected .* for 'net.layers.0.bias'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    net, prior, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        trace(net, prior)


def test_condition_refuses_it_too():
    model = bnn.models.regressor(WithDropout, bnn.priors.normal(), 1.0)
    with pytest.raises(ValueError, match="got an active Dropout"):
        bnn.condition(model, (X, X[:, 0]))


class WithDropoutAndNorm(nnx.Module):
    def __init__(self, *, rngs):
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(3, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(self.drop(self.norm(x)))


def test_the_message_of_a_dropout_beside_batch_norm_says_what_works():
    net = WithDropoutAndNorm(rngs=nnx.Rngs(0))
    told = r"call (net.set_attributes\(nnx.Dropout, .*?\)), which leaves BatchNorm in train mode"
    with pytest.raises(ValueError, match=told) as error:
        bnn.condition(bnn.models.regressor(net, bnn.priors.normal(), 1.0), (X, X[:, 0]))
    eval(re.search(told, str(error.value))[1])  # as a reader of the message would
    bnn.condition(bnn.models.regressor(net, bnn.priors.normal(), 1.0), (X, X[:, 0]))
    net.eval()
    told = r"(net.set_attributes\(nnx.BatchNorm, .*?\))"
    with pytest.raises(ValueError, match=told) as error:
        bnn.condition(bnn.models.regressor(net, bnn.priors.normal(), 1.0), (X, X[:, 0]))
    eval(re.search(told, str(error.value))[1])
    bnn.condition(bnn.models.regressor(net, bnn.priors.normal(), 1.0), (X, X[:, 0]))


class WithAttention(nnx.Module):
    def __init__(self, *, rngs):
        sizes = {"num_heads": 1, "in_features": 3, "decode": False, "dropout_rate": 0.5}
        self.attention = nnx.MultiHeadAttention(**sizes, deterministic=False, rngs=rngs)

    def __call__(self, x):
        return self.attention(x[:, None])[:, 0]


class WithNoise(nnx.Module):
    def __init__(self, *, rngs, own=lambda rngs: rngs):
        self.linear, self.rngs, self.own = nnx.Linear(3, 2, rngs=rngs), rngs, own

    def __call__(self, x):
        return self.linear(x + jax.random.normal(self.own(self.rngs).noise(), x.shape))


@pytest.mark.parametrize(
    ("net", "place"),
    [
        (WithAttention, "attention.rngs"),
        (WithNoise, "rngs.default"),
        (partial(WithNoise, own=nnx.Rngs.fork), "rngs.default"),
    ],
)
def test_noise_that_a_network_draws_is_refused(net, place):
    model = bnn.models.regressor(net, bnn.priors.normal(), 1.0, num_outputs=2)
    with pytest.raises(ValueError, match=f"draws noise from the random stream {place}, expected"):
        bnn.condition(model, (X, X[:, :2]))


def test_keys_that_are_not_used_are_no_noise():
    net = WithAttention(rngs=nnx.Rngs(0))
    net.eval()
    assert trace(net)[0](X).shape == X.shape

    class Recurrent(nnx.Module):
        def __init__(self, *, rngs):
            self.rnn = nnx.RNN(nnx.GRUCell(3, 2, rngs=rngs), rngs=rngs)

        def __call__(self, x):
            return self.rnn(x[:, None])[:, -1]

    assert trace(Recurrent)[0](X).shape == (4, 2)


class OfBothWays(nnx.Module):
    def __init__(self, *, rngs):
        each = [nnx.RNN(nnx.SimpleCell(3, 1, rngs=rngs), rngs=rngs) for _ in range(2)]
        self.rnn = nnx.Bidirectional(*each, rngs=rngs)

    def __call__(self, x):
        return self.rnn(x[:, None])[:, -1]


class OfOneStep(nnx.Module):
    def __init__(self, *, rngs, carry_init=nnx.initializers.zeros):
        self.cell, self.rngs, self.init = nnx.GRUCell(3, 2, rngs=rngs), rngs, carry_init

    def __call__(self, x):
        carry = self.cell.initialize_carry(x.shape, self.rngs, self.init)
        return self.cell(carry, x)[1]


def test_a_key_for_an_initial_carry_of_zeros_is_no_noise():
    for net in (OfBothWays, OfOneStep):
        assert trace(net)[0](X).shape == (4, 2)
    random = partial(OfOneStep, carry_init=nnx.initializers.normal())
    with pytest.raises(ValueError, match="draws noise from the random stream rngs.default, exp"):
        trace(random)[0](X)


def test_a_dropout_that_is_switched_off_is_accepted():
    ready = WithDropout(rngs=nnx.Rngs(0))
    ready.eval()
    module, sites = trace(ready)
    assert set(sites) == {f"net.{layer}.{part}" for layer in ("first", "last") for part in PARTS}
    np.testing.assert_array_equal(module(X), module(X))
    np.testing.assert_array_equal(module(X), module.last(module.first(X)))
