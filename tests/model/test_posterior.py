"""`condition`: densities against NumPyro's, temperature, starts, and everything it refuses."""

import math
import sys
from contextlib import nullcontext
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import scipy.stats as st
from flax import nnx
from marks import quick_first, some_quick
from numpyro import handlers
from numpyro.contrib.module import random_nnx_module
from numpyro.distributions import constraints
from numpyro.infer.util import constrain_fn, log_density, potential_energy
from scipy.integrate import quad

import bnn_ppl as bnn
from bnn_ppl.model.rows.microbatch import in_chunks
from bnn_ppl.runtime.machines import devices

ROWS = 12
X = np.random.default_rng(0).normal(size=(ROWS, 3))
REAL = X[:, 0] - 0.5 * X[:, 1] + 0.1
LABELS = np.arange(ROWS) % 2


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


# --- models: with a network, without, with supports that move, with scaled sites


def net(num_outputs):
    return partial(bnn.nets.MLP, 3, (4,), num_outputs)


def classifier(prior):
    return bnn.models.classifier(net(2), prior)


def regressor(*noise, num_outputs=1):
    return lambda prior: bnn.models.regressor(net(num_outputs), prior, *noise)


def by_site(*priors):
    """Give each of the four tensors of the network a prior of its own."""
    sites = [f"net.layers.{i}.{part}" for i in (0, 1) for part in ("bias", "kernel")]
    chosen = dict(zip(sites, priors, strict=True))

    def prior(site, shape):
        return (
            chosen[site]
            if isinstance(chosen[site], dist.Distribution)
            else chosen[site](site, shape)
        )

    return prior


def simple_priors():
    families = bnn.priors.normal, bnn.priors.laplace, bnn.priors.logistic, bnn.priors.student_t
    return by_site(*(family(0.5) for family in families))


def structured_priors():
    families = bnn.priors.mixture, bnn.priors.fan_in, bnn.priors.hierarchical, bnn.priors.horseshoe
    return by_site(*(family() for family in families))


LIKELIHOODS = {
    "classifier": (classifier, LABELS),
    "known noise": (regressor(0.4), REAL),
    "learnt noise": (regressor(dist.LogNormal(-1.0, 0.5)), REAL),
    "heteroscedastic": (regressor("heteroscedastic", num_outputs=2), REAL),
}
every_likelihood = pytest.mark.parametrize("likelihood", LIKELIHOODS)


def linear(x, y=None):
    """Sample coefficients in a plate and a noise, without a network."""
    with numpyro.plate("columns", x.shape[1]):
        weights = numpyro.sample("weights", dist.Normal(0.2, 1.5))
    noise = numpyro.sample("noise", dist.HalfNormal(2.0))
    mean = numpyro.deterministic("mean", x @ weights)
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(mean, noise), obs=y)


def dynamic(x, y=None):
    a = numpyro.sample("a", dist.Uniform(0.0, 1.0))
    b = numpyro.sample("b", dist.Uniform(0.0, 1.0 - a))
    c = numpyro.sample("c", dist.TruncatedNormal(0.0, 1.0, low=a, high=a + b))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(a * x[:, 0] + b * x[:, 1], 0.1 + c), obs=y)


def scaled(x, y=None):
    with handlers.scale(scale=0.25):
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    noise = numpyro.sample("noise", dist.Gamma(2.0, 1.0))
    with handlers.scale(scale=jnp.linspace(0.5, 2.0, len(x))), numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.StudentT(4.0, x @ weights, noise), obs=y)


def vectors(x, y=None):
    """Sample from supports of vectors and matrices, and a prior that is a transformation."""
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
    ordered = numpyro.sample(
        "ordered",
        dist.TransformedDistribution(
            dist.Normal(0.0, 1.0).expand([3]).to_event(1),
            dist.transforms.OrderedTransform(),
        ),
    )
    factor = numpyro.sample("factor", dist.LKJCholesky(3, 2.0))
    level = numpyro.sample("level", dist.LogNormal(0.0, 0.5).expand([2]).to_event(1))
    mean = x @ (shares * ordered) + x @ factor.sum(0)
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(mean, level.sum()), obs=y)


def improper(x, y=None):
    slope = numpyro.sample("slope", dist.ImproperUniform(constraints.real, (), (3,)))
    noise = numpyro.sample("noise", dist.ImproperUniform(constraints.positive, (), ()))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(x @ slope, noise), obs=y)


def pairs(x, y=None):
    """Observe two outputs a row as one event."""
    kernel = numpyro.sample("kernel", dist.Normal(0.0, 1.0).expand([3, 2]).to_event(2))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(x @ kernel, 0.5).to_event(1), obs=y)


def grid(x, y=None):
    """Observe two outputs a row, in two plates."""
    kernel = numpyro.sample("kernel", dist.Normal(0.0, 1.0).expand([3, 2]).to_event(2))
    with numpyro.plate("outputs", 2, dim=-1), numpyro.plate("data", len(x), dim=-2):
        numpyro.sample("y", dist.Normal(x @ kernel, 0.5), obs=y)


WITHOUT_NETWORK = {
    "linear": (linear, REAL),
    "dynamic supports": (dynamic, REAL),
    "scaled sites": (scaled, REAL),
    "vectors and matrices": (vectors, REAL),
    "improper": (improper, REAL),
    "two outputs as an event": (pairs, X[:, 1:]),
    "two outputs in a plate": (grid, X[:, 1:]),
}
every_model = pytest.mark.parametrize("name", WITHOUT_NETWORK)


@cache
def posterior_of(name):
    """Condition a model without a network, in float64."""
    model, y = WITHOUT_NETWORK[name]
    return bnn.condition(model, (X, y))


def position_of(posterior, seed=0):
    """Draw a position with every coordinate away from 0."""
    shapes = jax.eval_shape(posterior.init, jax.random.key(0))
    rng = np.random.default_rng(seed)
    return {
        site: jnp.asarray(rng.uniform(0.2, 0.8, leaf.shape) * rng.choice([-1, 1], leaf.shape))
        for site, leaf in shapes.items()
    }


class Evaluated(NamedTuple):
    """What the package and NumPyro say at one position."""

    logdensity: Any
    gradient: Any
    log_prior: Any
    log_likelihood: Any  # by row
    values: Any
    position: Any = None  # from the values back


def ours(posterior, position, data):
    logdensity, gradient = jax.value_and_grad(posterior.logdensity)(position, data)
    values = posterior.constrain(position, data)
    return Evaluated(
        logdensity,
        gradient,
        posterior.log_prior(position),
        posterior.log_likelihood(position, data),
        values,
        posterior.unconstrain(values, data),
    )


def numpyros(model, position, data):
    energy, slope = jax.value_and_grad(partial(potential_energy, model, data, {}))(position)
    values = constrain_fn(model, data, {}, position)
    joint, trace = log_density(model, data, {}, values)
    site = trace["y"]
    rows = site["fn"].log_prob(site["value"]) * (1.0 if site["scale"] is None else site["scale"])
    gradient = jax.tree.map(jnp.negative, slope)
    return Evaluated(-energy, gradient, joint - rows.sum(), rows.reshape(ROWS, -1).sum(1), values)


def evaluated(posterior, model, fields=Evaluated._fields):
    """Evaluate some fields of both in one program; the others are not compiled."""

    @jax.jit
    def both(position, data):
        pair = ours(posterior, position, data), numpyros(model, position, data)
        others = dict.fromkeys(set(Evaluated._fields) - set(fields))
        return tuple(evaluated._replace(**others) for evaluated in pair)

    return both(position_of(posterior), posterior.data)


@cache
def evaluated_without_network(name):
    return evaluated(posterior_of(name), WITHOUT_NETWORK[name][0])


def assert_equal_densities(got, expected, rtol):
    assert got.logdensity.dtype == expected.logdensity.dtype
    np.testing.assert_allclose(got.logdensity, expected.logdensity, rtol=rtol)
    assert set(got.gradient) == set(expected.gradient)
    for site, slope in expected.gradient.items():
        assert np.any(slope != 0), site
        largest = np.abs(slope).max()
        np.testing.assert_allclose(got.gradient[site], slope, rtol=rtol, atol=rtol * largest)


# --- densities


@quick_first(
    ("prior", "likelihood"),
    [
        pytest.param(simple_priors, "known noise", marks=pytest.mark.thorough),
        (simple_priors, "learnt noise"),
        (structured_priors, "classifier"),
        (structured_priors, "heteroscedastic"),
        pytest.param(simple_priors, "classifier", marks=pytest.mark.thorough),
        pytest.param(simple_priors, "heteroscedastic", marks=pytest.mark.thorough),
        pytest.param(structured_priors, "known noise", marks=pytest.mark.thorough),
        pytest.param(structured_priors, "learnt noise", marks=pytest.mark.thorough),
    ],
)
def test_logdensity_equals_numpyro_for_each_prior_and_likelihood(prior, likelihood, float64):
    build, y = LIKELIHOODS[likelihood]
    model = build(prior())
    posterior = bnn.condition(model, (X, y))
    got, expected = evaluated(posterior, model, ("logdensity", "gradient"))
    assert_equal_densities(got, expected, rtol=1e-12)


@every_model
def test_logdensity_equals_numpyro_without_a_network(name, float64):
    assert_equal_densities(*evaluated_without_network(name), rtol=1e-12)


@quick_first("likelihood", some_quick(LIKELIHOODS, ("classifier", "learnt noise")))
def test_logdensity_equals_numpyro_in_float32(likelihood):
    build, y = LIKELIHOODS[likelihood]
    model = build(simple_priors())
    posterior = bnn.condition(model, (X, y))
    got, expected = evaluated(posterior, model, ("logdensity", "gradient"))
    assert got.logdensity.dtype == np.float32
    assert_equal_densities(got, expected, rtol=1e-5)


@every_model
def test_prior_and_likelihood_are_those_of_numpyro(name, float64):
    got, expected = evaluated_without_network(name)
    np.testing.assert_allclose(got.log_prior, expected.log_prior, rtol=1e-10)
    np.testing.assert_allclose(got.log_likelihood, expected.log_likelihood, rtol=1e-12)


@every_model
def test_logdensity_and_its_change_from_there_are_those_of_another_position(name, float64):
    posterior = posterior_of(name)
    here = position_of(posterior)
    there = jax.tree.map(lambda w: w + 0.1, here)
    start, change = posterior.logdensity_from(here, posterior.data)
    expected = [float(posterior.logdensity(at, posterior.data)) for at in (here, there)]
    np.testing.assert_allclose([start, start + change(there)], expected, rtol=1e-10)
    assert change(here) == 0


@pytest.mark.parametrize("tempered", ["posterior", "likelihood"])
@pytest.mark.parametrize("temperature", [0.1, 1, 3.0])
def test_temperature_divides_what_it_should(temperature, tempered, float64):
    posterior = bnn.condition(linear, (X, REAL), temperature=temperature, tempered=tempered)
    position, data = position_of(posterior), posterior.data
    _, plain = evaluated_without_network("linear")
    log_prior, rows = plain.log_prior, plain.log_likelihood
    log_jacobian = plain.logdensity - (log_prior + rows.sum())
    assert abs(log_jacobian) > 0.1
    if tempered == "posterior":
        expected = (log_prior + rows.sum()) / temperature + log_jacobian
    else:
        expected = log_prior + rows.sum() / temperature + log_jacobian
    np.testing.assert_allclose(posterior.logdensity(position, data), expected, rtol=1e-12)
    np.testing.assert_allclose(posterior.log_prior(position), log_prior, rtol=1e-12)
    np.testing.assert_allclose(posterior.log_likelihood(position, data), rows, rtol=1e-12)
    assert (posterior.temperature, posterior.density.tempered) == (temperature, tempered)


@pytest.mark.parametrize("tempered", ["posterior", "likelihood"])
def test_temperature_tempers_the_density_of_the_value_and_not_of_the_position(tempered, float64):
    """A positive site: the Jacobian belongs to the map, so T must leave it alone."""

    def model(x, y=None):
        scale = numpyro.sample("scale", dist.Gamma(3.0, 2.0))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(0.0, scale), obs=y)

    y, temperature = np.array([0.8, -1.7, 0.3]), 0.5
    posterior = bnn.condition(model, (np.zeros(3), y), temperature=temperature, tempered=tempered)
    logdensity = jax.jit(lambda z: posterior.logdensity({"scale": z}, posterior.data))

    def pushed(scale):  # change of variables from the position log(scale)
        return math.exp(logdensity(math.log(scale)) + 5) / scale

    def tempered_density(scale):
        log_prior = st.gamma(3.0, scale=1 / 2.0).logpdf(scale)
        log_likelihood = st.norm(0, scale).logpdf(y).sum()
        if tempered == "posterior":
            return math.exp((log_prior + log_likelihood) / temperature)
        return math.exp(log_prior + log_likelihood / temperature)

    mass, expected_mass = (quad(f, 1e-3, 20, limit=200)[0] for f in (pushed, tempered_density))
    for scale in (0.5, 1.0, 2.0, 4.0):
        np.testing.assert_allclose(
            pushed(scale) / mass, tempered_density(scale) / expected_mass, rtol=1e-6
        )


@pytest.mark.parametrize("tempered", ["posterior", "likelihood"])
@pytest.mark.parametrize("size", [1, 4, ROWS])
def test_batches_of_a_partition_average_to_the_whole(size, tempered, float64):
    posterior = bnn.condition(linear, (X, REAL), temperature=0.3, tempered=tempered)
    position = position_of(posterior)
    x, y = posterior.data
    batches = [(x[i : i + size], y[i : i + size]) for i in range(0, ROWS, size)]
    by_batch = [posterior.logdensity(position, batch) for batch in batches]
    whole = posterior.logdensity(position, posterior.data)
    np.testing.assert_allclose(np.mean(by_batch), whole, rtol=1e-12)
    assert size == ROWS or np.ptp(by_batch) > 1
    assert [len(posterior.log_likelihood(position, batch)) for batch in batches] == [
        size for _ in batches
    ]


# --- positions and values


@every_model
def test_constrain_and_unconstrain_are_inverse(name, float64):
    posterior = posterior_of(name)
    position = position_of(posterior)
    got, expected = evaluated_without_network(name)
    assert set(got.values) == set(expected.values)
    for site, value in got.values.items():
        np.testing.assert_allclose(value, expected.values[site], rtol=1e-12)
    for site, value in position.items():
        np.testing.assert_allclose(got.position[site], value, rtol=1e-9, atol=1e-12)
    assert posterior.num_weights == sum(value.size for value in position.values())


def test_values_lie_on_the_support(float64):
    posterior = posterior_of("dynamic supports")
    for seed in range(5):
        values = posterior.constrain(position_of(posterior, seed))
        assert 0 < values["a"] < 1
        assert 0 < values["b"] < 1 - values["a"]
        assert values["a"] < values["c"] < values["a"] + values["b"]


@quick_first("name", ["linear", "scaled sites", "improper"])
def test_predictive_is_the_observed_distribution_at_new_inputs(name, float64):
    posterior = posterior_of(name)
    values = posterior.constrain(position_of(posterior))
    new = np.random.default_rng(1).normal(size=(5, 3))
    substituted = handlers.substitute(WITHOUT_NETWORK[name][0], values)
    seeded = handlers.seed(substituted, jax.random.key(0))
    expected = handlers.trace(seeded).get_trace(new)["y"]["fn"]
    got = posterior.predictive(values, new)
    assert got.batch_shape == (5,)
    np.testing.assert_array_equal(got.mean, expected.mean)
    np.testing.assert_array_equal(got.variance, expected.variance)


# --- starts


class Constant(nnx.Module):
    """A linear network that starts at one known value."""

    def __init__(self, *, rngs):
        constant = nnx.initializers.constant(0.123)
        self.linear = nnx.Linear(3, 1, kernel_init=constant, rngs=rngs)

    def __call__(self, x):
        return self.linear(x)


def test_init_starts_a_network_from_its_initialisers_and_the_rest_from_the_prior():
    noise = dist.LogNormal(-1.0, 0.5)
    model = bnn.models.regressor(Constant, bnn.priors.normal(100.0), noise)
    posterior = bnn.condition(model, (X, REAL))
    positions = jax.jit(jax.vmap(posterior.init))(jax.random.split(jax.random.key(0), 500))
    np.testing.assert_array_equal(positions["net.linear.kernel"], np.float32(0.123))
    np.testing.assert_array_equal(positions["net.linear.bias"], 0)
    assert len(np.unique(positions["noise"])) == 500
    assert np.all(np.abs(positions["noise"] + 1.0) < 5 * 0.5)  # of the prior
    # REAL is about as wide as 1, which 0 = log(1) fits better than the prior's median of -1.
    assert np.mean(positions["noise"]) > -0.8


def test_init_traces_its_model_once():
    traced = []

    def model(x, y=None):
        traced.append(x)
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(w * x[:, 0], 1.0), obs=y)

    posterior = bnn.condition(model, (X, REAL))
    first = posterior.init(jax.random.key(0))
    num = len(traced)
    assert posterior.init(jax.random.key(1))["w"] != first["w"]
    assert len(traced) == num


@pytest.mark.thorough
def test_init_builds_a_fresh_module_for_each_key_and_samples_the_scales_above_its_weights():
    prior = bnn.priors.horseshoe(0.1)
    model = bnn.models.classifier(partial(bnn.nets.MLP, 3, (), 2), prior)
    posterior = bnn.condition(model, (X, LABELS))
    init = jax.jit(jax.vmap(posterior.init))
    positions = init(jax.random.split(jax.random.key(0), 300))
    kernels = np.asarray(positions["net.layers.0.kernel"])
    assert np.all(kernels.std(0) > 0.1)
    assert np.abs(kernels).max() < 2  # the initialiser's; the prior has heavy tails
    assert np.std(positions["net.layers.0.kernel.global_scale"]) > 0.1
    again = init(jax.random.split(jax.random.key(0), 300))
    np.testing.assert_array_equal(again["net.layers.0.kernel"], kernels)


def test_init_of_an_improper_prior_is_finite_and_moves_with_the_key(float64):
    posterior = posterior_of("improper")
    first, other = (posterior.init(jax.random.key(seed)) for seed in (0, 1))
    for site in ("slope", "noise"):
        assert np.isfinite(first[site]).all()
        assert np.all(first[site] != other[site])
    posterior.check(first)


@pytest.mark.parametrize("build", [lambda: linear, lambda: regressor()(bnn.priors.normal())])
def test_positions_and_data_have_the_float_type_of_the_run(build):
    for x64, dtype in ((True, np.float64), (False, np.float32)):
        with jax.enable_x64(x64):
            posterior = bnn.condition(build(), (X, REAL))
            position = jax.eval_shape(posterior.init, jax.random.key(0))
            values = jax.eval_shape(posterior.constrain, position)
            back = jax.eval_shape(posterior.unconstrain, values)
            density = jax.eval_shape(posterior.logdensity, position, posterior.data)
            for leaf in jax.tree.leaves((position, values, back, density, posterior.data)):
                assert leaf.dtype == dtype


def test_integers_stay_integers_and_inputs_may_be_trees():
    def model(x, y=None):
        effect = numpyro.sample("effect", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("data", len(x["group"])):
            numpyro.sample("y", dist.Poisson(jnp.exp(effect[x["group"]] * x["dose"])), obs=y)

    x = {"group": LABELS, "dose": X[:, 0]}
    posterior = bnn.condition(model, (x, np.arange(ROWS).tolist()))
    assert posterior.num_rows == ROWS
    assert posterior.data[0]["group"].dtype.kind == posterior.data[1].dtype.kind == "i"
    position = {"effect": jnp.array([0.5, -0.3])}
    got = posterior.log_likelihood(position, posterior.data)
    rate = np.exp(np.array([0.5, -0.3])[LABELS] * X[:, 0])
    np.testing.assert_allclose(got, st.poisson(rate).logpmf(np.arange(ROWS)), rtol=1e-4)


# --- the natural length of each site


@pytest.mark.parametrize(
    ("temperature", "tempered", "widening"),
    [(1, "posterior", 1), (0.25, "posterior", 0.5), (4, "likelihood", 1)],
)
def test_prior_std_is_that_of_the_tempered_prior(temperature, tempered, widening):
    def model(x, y=None):
        numpyro.sample("normal", dist.Normal(1.0, 0.3))
        numpyro.sample("student", bnn.priors.student_t(0.7, 3.0))
        numpyro.sample("vector", dist.Normal(0.0, jnp.array([3.0, 4.0])).to_event(1))
        joint = dist.MultivariateNormal(jnp.zeros(2), jnp.diag(jnp.array([9.0, 16.0])))
        numpyro.sample("joint", joint)
        numpyro.sample("cauchy", dist.Cauchy(0.0, 1.0))
        numpyro.sample("flat", dist.ImproperUniform(constraints.real, (), ()))
        scale = numpyro.sample("positive", dist.HalfNormal(5.0))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x[:, 0], scale), obs=y)

    rms = math.sqrt(12.5)
    expected = {"normal": 0.3, "student": 0.7, "vector": rms, "joint": rms}
    expected = {**expected, "cauchy": 1, "flat": 1, "positive": 1}
    posterior = bnn.condition(model, (X, REAL), temperature=temperature, tempered=tempered)
    assert set(posterior.prior_std) == set(expected)
    for site, std in expected.items():
        np.testing.assert_allclose(posterior.prior_std[site], widening * std, rtol=1e-5)


def test_prior_std_under_random_scales_is_that_of_their_medians():
    """Half-Cauchy scales: one draw of them may be a hundred times the median."""
    posterior = bnn.condition(classifier(bnn.priors.horseshoe(0.1)), (X, LABELS))
    for site, std in posterior.prior_std.items():
        if site.endswith(("kernel", "bias")):
            assert 0.02 < std < 0.5, site
        else:
            assert std == 1


# --- what is refused


def plain(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(w * x[:, 0], 1.0), obs=y)


def nothing_observed(x, y=None):
    numpyro.sample("w", dist.Normal(0.0, 1.0))


def nothing_latent(x, y=None):
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(x[:, 0], 1.0), obs=y)


def two_observed(x, y=None):
    plain(x, y)
    with numpyro.plate("again", len(x)):
        numpyro.sample("z", dist.Normal(0.0, 1.0), obs=y)


def discrete_latent(x, y=None):
    numpyro.sample("kind", dist.Bernoulli(0.5))
    plain(x, y)


def mutable_state(x, y=None):
    numpyro.primitives.mutable("running_mean", jnp.zeros(2))
    plain(x, y)


def dependent_rows(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(w * x[:, 0], 1.0).to_event(1), obs=y)


def with_nan(array, *rows):
    array = np.array(array)
    array[list(rows)] = np.nan
    return array


REFUSED_MODELS = {
    nothing_observed: r"got a model that observes nothing \(its sites: w\), expected one",
    nothing_latent: "got a model without latent sites, expected at least one",
    two_observed: r"got 2 observed sites \(y, z\), expected one: give y as a dict of arrays",
    discrete_latent: r"got the discrete latent site 'kind' of shape \(\), expected one value for",
    mutable_state: "got the mutable state 'running_mean', expected .*LayerNorm",
    dependent_rows: r"got a log-likelihood of shape \(\) at site 'y' for 12 rows, expected one",
}


@pytest.mark.parametrize("model", REFUSED_MODELS)
def test_refused_models(model):
    with pytest.raises(ValueError, match=REFUSED_MODELS[model]):
        bnn.condition(model, (X, REAL))


class WithDropout(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(X.shape[1], 1, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.linear(self.drop(x))


def test_random_keys_are_state_that_a_model_may_hold_but_not_use():
    net = WithDropout(nnx.Rngs(0))

    def model(x, y=None):
        f = random_nnx_module("net", net, dist.Normal())
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(f(x)[:, 0], 1.0), obs=y)

    with pytest.raises(ValueError, match=r"got a network that draws noise .* call .eval\(\)"):
        bnn.condition(model, (X, REAL))
    net.eval()
    posterior = bnn.condition(model, (X, REAL))
    at = posterior.init(jax.random.key(0))
    kernel, bias = at["net/linear.kernel"], at["net/linear.bias"]
    np.testing.assert_allclose(
        posterior.predictive(at, X).mean, (X @ kernel + bias)[:, 0], rtol=1e-5
    )


class Recurrent(nnx.Module):
    def __init__(self, rngs):
        self.cells = nnx.RNN(nnx.GRUCell(1, 2, rngs=rngs))

    def __call__(self, x):
        return self.cells(x[..., None])[:, -1]


@pytest.mark.parametrize("net", [WithDropout, Recurrent])
def test_keys_of_a_network_built_in_the_model_are_no_noise(net):
    def model(x, y=None, train=False):
        module = net(nnx.Rngs(0))
        module.set_attributes(deterministic=not train, raise_if_not_found=False)
        f = random_nnx_module("net", module, dist.Normal())
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(f(x)[:, 0], 1.0), obs=y)

    posterior = bnn.condition(model, (X, REAL))
    assert np.isfinite(posterior.logdensity(posterior.init(jax.random.key(0)), posterior.data))
    if net is WithDropout:
        with pytest.raises(ValueError, match="got a network that draws noise when called"):
            bnn.condition(partial(model, train=True), (X, REAL))


NO_MODELS = {
    "nothing": (None, "NoneType"),
    "a network": (bnn.nets.MLP(3, (4,), 1, rngs=nnx.Rngs(0)), "MLP"),
    "a factory of networks": (partial(bnn.nets.MLP, 3, (4,), 1), "MLP"),
}


@pytest.mark.parametrize("case", NO_MODELS)
def test_refused_in_the_place_of_a_model(case):
    model, name = NO_MODELS[case]
    with pytest.raises(TypeError, match=rf"got {name} as model, expected a function model\(x, y"):
        bnn.condition(model, (X, REAL))


REFUSED_DATA = {
    "NaN in x": (
        (with_nan(X, 2, 5), REAL),
        r"got NaN or infinite values in 2 of 12 rows of x \(first rows \[2, 5\]\), expected finite",
    ),
    "infinity in y": (
        (X, np.where(np.arange(ROWS) == 7, np.inf, REAL)),
        r"got NaN or infinite values in 1 of 12 rows of y \(first rows \[7\]\), expected finite",
    ),
    "NaN in every row": ((X, REAL * np.nan), r"12 of 12 rows of y \(first rows \[0, 1, 2, 3, 4\]"),
    "y too short": ((X, REAL[:-1]), r"got x of \(12, 3\) and y of \(11,\), expected .* as many"),
    "a number as y": ((X, 1.0), r"got x of \(12, 3\) and y of \(\), expected arrays"),
    "no rows": ((X[:0], REAL[:0]), r"got x of \(0, 3\) and y of \(0,\), expected .* at least one"),
    "no inputs": ((None, REAL), r"got x of nothing and y of \(12,\), expected arrays"),
    "strings": ((X, np.array(["a"] * ROWS)), "got y of dtype <U1, expected real numbers: encode"),
    "objects": ((X, [None] * ROWS), "got y of dtype object, expected real numbers: encode"),
    "complex numbers": ((X * 1j, REAL), "got x of dtype complex128, expected real numbers"),
    "an array": (X, r"got data of type ndarray, expected a pair \(x, y\): pass data.train"),
    "a number": (3, r"got data of type int, expected a pair \(x, y\)"),
    "a triple": ((X, REAL, REAL), r"got data of type tuple of 3, expected a pair \(x, y\)"),
    "a column as y": (
        (X, REAL[:, None]),
        r"got y of shape \(12, 1\) at site 'y', expected the shape \(12,\) of its distribution",
    ),
}


@pytest.mark.parametrize("case", REFUSED_DATA)
def test_refused_data(case):
    data, message = REFUSED_DATA[case]
    with pytest.raises(ValueError, match=message):
        bnn.condition(plain, data)


def test_inputs_that_the_network_does_not_take_are_refused():
    net = partial(bnn.nets.MLP, X.shape[1] + 1, (4,), 1)
    model = bnn.models.regressor(net, bnn.priors.fan_in(2**0.5), 0.5)
    told = rf"got x with rows of \({X.shape[1]},\), expected rows that the model's network takes"
    with pytest.raises(ValueError, match=told) as error:
        bnn.condition(model, (X, REAL))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("of", [np.ndarray.tolist, pd.DataFrame], ids=["lists", "a table"])
def test_lists_of_numbers_and_tables_are_taken_as_x_and_y(of):
    posterior = bnn.condition(plain, (of(X), REAL.tolist()))
    for leaf, expected in zip(posterior.data, (X, REAL), strict=True):
        np.testing.assert_array_equal(leaf, np.asarray(expected, np.float32))


def test_trees_of_lists_are_as_trees_of_arrays():
    def model(x, y=None):
        plain(x["a"] + x["b"][:, None], y)

    trees = [{"a": of(X), "b": of(X[:, 0])} for of in (np.asarray, np.ndarray.tolist)]
    one, other = (bnn.condition(model, (x, REAL)).data[0] for x in trees)
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_lists_that_are_no_columns_are_refused():
    with pytest.raises(ValueError, match="got x as a list whose rows differ in length"):
        bnn.condition(plain, ([[1.0, 2.0], [3.0]] * 6, REAL))
    model = bnn.models.regressor(net(1), bnn.priors.normal(), 0.5)
    with pytest.raises(ValueError, match=r"got x with rows of \(\), .*: give it columns: one is"):
        bnn.condition(model, (X[:, 0].tolist(), REAL))


def coin(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def counts(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)


COLOURS = np.array(["blue", "red"])
TAKEN_LABELS = {
    "floats": (LABELS * 1.0, None),
    "booleans": (LABELS > 0, (False, True)),
    "text": (COLOURS[LABELS], ("blue", "red")),
    "text of pandas": (pd.Series(COLOURS[LABELS], dtype="category"), ("blue", "red")),
    "bytes": (COLOURS[LABELS].astype("S"), ("blue", "red")),
    "one-hot": (np.eye(2)[LABELS], None),
    "one-hot truth values": (np.eye(2)[LABELS] > 0, None),
}


@pytest.mark.parametrize("model", [classifier(bnn.priors.normal()), coin], ids=["net", "coin"])
@pytest.mark.parametrize("case", TAKEN_LABELS)
def test_labels_that_are_not_ambiguous_are_numbered(case, model):
    labels, names = TAKEN_LABELS[case]
    posterior = bnn.condition(model, (X, labels))
    np.testing.assert_array_equal(posterior.data[1], LABELS)
    assert posterior.data[1].dtype == jnp.int32 and posterior.rows.classes == (2, names)


@pytest.mark.parametrize("labels", [LABELS + 1, LABELS + 1.0])
def test_labels_from_1_are_numbered_from_0_with_a_warning(labels):
    with pytest.warns(UserWarning, match="got labels from 1 to 2 of 2 classes, taken for the cla"):
        posterior = bnn.condition(classifier(bnn.priors.normal()), (X, labels))
    np.testing.assert_array_equal(posterior.data[1], LABELS)
    assert posterior.rows.classes == (2, (1, 2))


def test_whole_floats_are_counts_where_the_model_counts():
    posterior = bnn.condition(counts, (X, LABELS * 3.0))
    np.testing.assert_array_equal(posterior.data[1], LABELS * 3)
    assert posterior.data[1].dtype == jnp.int32 and posterior.rows.classes is None


def test_y_of_a_regression_is_left_as_it_is():
    posterior = bnn.condition(plain, (X, LABELS * 1.0))
    assert posterior.data[1].dtype == jnp.float32 and posterior.rows.classes is None


REFUSED_LABELS = {
    "a column": (LABELS[:, None], r"got y of shape \(12, 1\) at site 'y', expected .* \(12,\)"),
    "one-hot of 3": (np.eye(3)[LABELS], r"got y of shape \(12, 3\) at site 'y', .*y.argmax\(1\)"),
    "between numbers": (LABELS + 0.5, "got y of dtype float32 at the discrete site 'y', .*astype"),
    "three texts": (np.array([*"abc"] * 4), "got 3 different texts as labels, a, b, c, for a mo"),
    "-1 and 1": (2 * LABELS - 1, "got y from -1 to 1 at site 'y', expected from 0 to 1: number"),
    "from 2": (LABELS + 2, "got y from 2 to 3 at site 'y', expected from 0 to 1: number the cl"),
}


@pytest.mark.parametrize("case", REFUSED_LABELS)
def test_refused_labels(case):
    labels, message = REFUSED_LABELS[case]
    with pytest.raises(ValueError, match=message):
        bnn.condition(classifier(bnn.priors.normal()), (X, labels))


@pytest.mark.parametrize(
    ("law", "message"),
    [
        (lambda logits: dist.Bernoulli(logits=logits), "expected from 0 to 1"),
        (lambda logits: dist.Poisson(jnp.exp(logits)), "expected 0 or more"),
    ],
)
def test_refused_counts(law, message):
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", law(x @ w), obs=y)

    with pytest.raises(ValueError, match=message):
        bnn.condition(model, (X, LABELS - 1))


def test_a_posterior_says_what_it_is_of_without_the_data():
    posterior = bnn.condition(classifier(bnn.priors.normal()), (X, LABELS), temperature=0.5)
    parameters = f"{posterior.num_weights} parameters in {len(posterior.prior_std)} sites"
    assert repr(posterior) == f"Posterior(12 rows, {parameters}, T = 0.5)"


REFUSED_OPTIONS = {
    "temperature 0": ({"temperature": 0}, "got temperature=0, expected a finite number above 0"),
    "temperature below 0": ({"temperature": -1.0}, "got temperature=-1.0, expected"),
    "temperature NaN": ({"temperature": math.nan}, "got temperature=nan, expected"),
    "temperature as text": ({"temperature": "1"}, "got temperature='1', expected a finite number"),
    "temperatures": ({"temperature": np.ones(2)}, "got temperature=array.*expected a finite"),
    "temperature infinite": ({"temperature": math.inf}, "got temperature=inf, expected"),
    "tempered misspelt": (
        {"tempered": "prior"},
        "got tempered='prior', expected 'posterior' or 'likelihood'",
    ),
    "microbatch 0": ({"microbatch": 0}, "got microbatch=0, expected a whole number .* 1: leave"),
    "microbatch below 0": ({"microbatch": -5}, "got microbatch=-5, expected a whole number"),
    "microbatch a float": ({"microbatch": 8.0}, "got microbatch=8.0, expected a whole number"),
    "precision unknown": (
        {"precision": "low"},
        "got precision='low', expected one of 'highest', 'tensorfloat32', 'bfloat16': leave it out",
    ),
}


@pytest.mark.parametrize("case", REFUSED_OPTIONS)
def test_refused_options(case):
    options, message = REFUSED_OPTIONS[case]
    with pytest.raises(ValueError, match=message):
        bnn.condition(plain, (X, REAL), **options)


def test_refusals_come_before_anything_is_computed():
    """The model of a refused condition is traced with abstract values only."""
    seen = []

    def model(x, y=None):
        seen.append(isinstance(x, jax.core.Tracer) and isinstance(y, jax.core.Tracer))
        discrete_latent(x, y)

    with pytest.raises(ValueError, match="discrete"):
        bnn.condition(model, (X, REAL))
    assert seen == [True]


def test_a_whole_plate_of_a_given_size_is_accepted(float64):
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(x), subsample_size=len(x)):
            numpyro.sample("y", dist.Normal(w * x[:, 0], 1.0), obs=y)

    position = {"w": jnp.array(0.7)}
    got, expected = (bnn.condition(m, (X, REAL)) for m in (model, plain))
    np.testing.assert_array_equal(
        got.logdensity(position, got.data), expected.logdensity(position, expected.data)
    )


# --- the check at the start


def test_check_passes_where_the_density_is_finite():
    posterior = bnn.condition(linear, (X, REAL))
    posterior.check(position_of(posterior))


def test_check_names_the_rows():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.LogNormal(w, 1.0), obs=y)

    y = np.where(np.isin(np.arange(ROWS), [3, 8]), -1.0, 1.0)
    posterior = bnn.condition(model, (X, y))
    message = r"not finite at the start: the likelihood 'y' at 2 of 12 rows \(first \[3, 8\]\); exp"
    with pytest.raises(ValueError, match=message):
        posterior.check({"w": jnp.zeros(())})


def test_check_names_the_rows_outside_of_the_support():
    def positive(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.LogNormal(x @ w, 1.0), obs=y)

    times = np.where(np.isin(np.arange(ROWS), (4, 9)), -1.0, np.exp(REAL))
    posterior = bnn.condition(positive, (X, times))
    with pytest.raises(ValueError, match=r"the likelihood 'y' at 2 of 12 rows \(first \[4, 9\]\)"):
        posterior.check(position_of(posterior))


def test_check_names_the_sites():
    posterior = bnn.condition(linear, (X, REAL))
    position = {"weights": jnp.array([0.0, jnp.nan, 0.0]), "noise": jnp.zeros(())}
    message = "got a log-density that is not finite at the start: the prior of weights and the lik"
    with pytest.raises(ValueError, match=message):
        posterior.check(position)


def test_check_names_the_edge_of_a_support():
    def model(x, y=None):
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(0.0, 1.0 + scale), obs=y)

    posterior = bnn.condition(model, (X, REAL))
    with pytest.raises(ValueError, match="a constrained site at the edge of its support"):
        posterior.check({"scale": jnp.array(-jnp.inf)})


def test_start_of_a_wide_prior_is_a_likely_one_of_several():
    """A single draw of the prior lands where the density overflows in one chain of three."""

    def explosive(x, y=None):
        theta = numpyro.sample("theta", dist.Normal(0, 2))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(theta**50, 1.0), obs=y)

    posterior = bnn.condition(explosive, (np.zeros((5, 1)), np.zeros(5)))
    keys = jax.random.split(jax.random.key(0), 50)
    starts = jax.jit(jax.vmap(posterior.init))(keys)["theta"]
    assert np.abs(starts).max() < 1.1
    assert np.std(starts) > 0.1  # and chains still start apart


# --- padding


def padded(posterior, num):
    """The whole batch with some copies of real rows behind it, masked."""
    x, y = posterior.data
    index = np.r_[np.arange(ROWS), np.arange(num)]
    return x[index], y[index], jnp.arange(ROWS + num) < ROWS


@quick_first("name", ["linear", "vectors and matrices", "two outputs in a plate"])
def test_padding_counts_for_nothing(name, float64):
    posterior = posterior_of(name)
    position, batch = position_of(posterior), padded(posterior, 3)
    got, expected = jax.jit(lambda p, a, b: (ours(posterior, p, a), ours(posterior, p, b)))(
        position, batch, posterior.data
    )
    assert_equal_densities(got, expected, rtol=1e-12)
    np.testing.assert_array_equal(got.log_likelihood[ROWS:], 0)
    np.testing.assert_allclose(got.log_likelihood[:ROWS], expected.log_likelihood, rtol=1e-12)
    for site in position:
        np.testing.assert_array_equal(got.values[site], expected.values[site])
        np.testing.assert_array_equal(got.position[site], expected.position[site])


def test_a_padded_minibatch_is_scaled_by_its_real_rows(float64):
    posterior = posterior_of("linear")
    position, (x, y) = position_of(posterior), posterior.data
    mask = jnp.array([True, True, False, True])
    got = posterior.logdensity(position, (x[:4], y[:4], mask))
    expected = posterior.logdensity(position, (x[:4][mask], y[:4][mask]))
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_init_from_the_prior_does_not_see_the_padding(float64):
    posterior = posterior_of("linear")
    got = posterior.init(jax.random.key(0), padded(posterior, 3))
    expected = posterior.init(jax.random.key(0))
    for site, start in expected.items():
        np.testing.assert_array_equal(got[site], start)


@pytest.mark.filterwarnings("ignore:Out-of-support")
def test_the_likelihood_of_padding_is_0_whatever_the_model_says_of_it():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.LogNormal(w, 1.0), obs=y)

    posterior = bnn.condition(model, (np.zeros(2), np.ones(2)))
    batch = jnp.zeros(3), jnp.array([1.0, 1.0, -1.0]), jnp.array([True, True, False])
    assert not np.isfinite(posterior.log_likelihood({"w": 0.3}, batch[:2])[2])
    assert posterior.log_likelihood({"w": 0.3}, batch)[2] == 0


@pytest.mark.parametrize("shape", [(5, 2), (1, 2), (2,)])
def test_a_scale_that_differs_between_the_outputs_of_a_row_is_refused(shape):
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal())
        with handlers.scale(scale=jnp.ones(shape).at[..., 1].set(3.0)):
            numpyro.sample("y", dist.Normal(w * jnp.ones((len(x), 2))), obs=y)

    with pytest.raises(ValueError, match="got a scale of shape .* for y .*, expected one"):
        bnn.condition(model, (np.ones((5, 1)), np.ones((5, 2)))).logdensity(
            {"w": 0.0}, (np.ones((5, 1)), np.ones((5, 2)))
        )


# --- chunks of rows


def evaluated_in_chunks(model, y, microbatch, num_padding=0):
    whole, chunked = (bnn.condition(model, (X, y), microbatch=m) for m in (None, microbatch))
    assert (whole.density.microbatch, chunked.density.microbatch) == (None, microbatch)
    batch = padded(whole, num_padding) if num_padding else whole.data
    both = jax.jit(lambda p, batch: (ours(chunked, p, batch), ours(whole, p, batch)))
    return both(position_of(whole), batch)


@quick_first(("microbatch", "num_padding"), [(1, 0), (4, 0), (5, 0), (5, 3), (11, 0), (100, 0)])
def test_chunks_equal_the_whole(microbatch, num_padding, float64):
    got, expected = evaluated_in_chunks(linear, REAL, microbatch, num_padding)
    assert_equal_densities(got, expected, rtol=1e-12)
    np.testing.assert_allclose(got.log_likelihood, expected.log_likelihood, rtol=1e-12)


@pytest.mark.parametrize(
    "name", some_quick(("dynamic supports", "vectors and matrices", "improper"), ("improper",))
)
def test_chunks_equal_the_whole_for_constrained_sites(name, float64):
    got, expected = evaluated_in_chunks(*WITHOUT_NETWORK[name], 5)
    assert_equal_densities(got, expected, rtol=1e-12)


def test_chunks_equal_the_whole_in_float32():
    got, expected = evaluated_in_chunks(classifier(simple_priors()), LABELS, 5)
    assert got.logdensity.dtype == np.float32
    assert_equal_densities(got, expected, rtol=1e-6)


@pytest.mark.parametrize(("num_rows", "most"), [(391, 64), (391, 300), (65, 64), (12, 4), (5, 9)])
def test_chunks_compute_hardly_a_row_twice(num_rows, most):
    chunks = in_chunks(most, np.zeros((num_rows, 1)), num_rows)
    assert chunks.size <= most and len(chunks.starts) == -(-num_rows // most)
    assert num_rows <= chunks.size * len(chunks.starts) < num_rows + len(chunks.starts)


@pytest.mark.thorough
def test_rows_on_two_devices_are_taken_in_chunks_where_they_are(float64):
    def gradient(posterior, mesh):
        def one(position, batch):
            return jax.value_and_grad(posterior.logdensity)(position, batch)

        position = position_of(posterior)
        positions = devices.by_chain({k: v[None] for k, v in position.items()}, mesh)
        batch = devices.by_row(posterior.data, mesh)
        program = jax.jit(devices.over_chains(one, mesh, 1)).lower(positions, batch).compile()
        return program.as_text(), program(positions, batch)

    data = X[:11], REAL[:11]  # 6 rows on each device, one of them padding
    whole, chunked = (bnn.condition(linear, data, microbatch=m) for m in (None, 4))
    used = jax.sharding.Mesh(np.array(jax.devices()).reshape(1, 2), ("chain", "data"))
    text, (value, slope) = gradient(chunked, devices.chain_mesh(1, used))
    assert "while" in text and "all-reduce" in text
    assert not any(sent in text for sent in ("all-gather", "all-to-all", "collective-permute"))
    expected, expected_slope = jax.value_and_grad(whole.logdensity)(position_of(whole), whole.data)
    np.testing.assert_allclose(value[0], expected, rtol=1e-12)
    for site in slope:
        np.testing.assert_allclose(slope[site][0], expected_slope[site], rtol=1e-11)


def wide(microbatch=None, num_rows=2048):
    x = np.random.default_rng(0).normal(size=(num_rows, 4))
    net = partial(bnn.nets.MLP, 4, (64, 64), 1)
    model = bnn.models.regressor(net, bnn.priors.normal(), 0.1)
    return bnn.condition(model, (x, x[:, 0]), microbatch=microbatch)


def memory_of_gradient(posterior):
    position = jax.eval_shape(posterior.init, jax.random.key(0))
    gradient = jax.jit(jax.grad(posterior.logdensity)).lower(position, posterior.data).compile()
    return gradient.memory_analysis().temp_size_in_bytes


@pytest.mark.thorough
def test_memory_falls_in_proportion_to_the_chunk():
    whole, half, eighth = (memory_of_gradient(wide(m)) for m in (None, 1024, 256))
    assert half < 0.6 * whole
    assert eighth < 0.2 * whole


def test_the_prior_is_computed_once_and_not_in_each_chunk():
    calls = []

    class Counted(dist.Normal):
        def log_prob(self, value):
            calls.append(value)
            return super().log_prob(value)

    def model(x, y=None):
        w = numpyro.sample("w", Counted(0.0, 1.0))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(w * x[:, 0], 1.0), obs=y)

    posterior = bnn.condition(model, (X, REAL), microbatch=5)
    calls.clear()
    jax.make_jaxpr(jax.grad(posterior.logdensity))({"w": 0.3}, posterior.data)
    assert len(calls) == 1


@pytest.mark.thorough
def test_chunks_are_chosen_only_where_the_whole_does_not_fit(monkeypatch):
    module = sys.modules["bnn_ppl.model.rows.microbatch"]
    used = memory_of_gradient(wide())

    def chosen(bytes_limit):
        monkeypatch.setattr(module, "memory_limit", lambda: bytes_limit)
        return wide().density.microbatch

    assert chosen(None) is None
    assert chosen(16 * used) is None
    rows = chosen(used)
    assert 2048 / 16 < rows < 2048 / 4  # a quarter, of an estimate that errs above
    assert chosen(used // 4) == pytest.approx(rows / 4, abs=1)
    assert chosen(1) == 1
    assert memory_of_gradient(wide(chosen(used))) < 0.35 * used


def test_the_estimate_counts_rows_and_not_weights():
    module = sys.modules["bnn_ppl.model.rows.microbatch"]

    def program(weights, x):
        positive = jnp.exp(weights)

        def layer(x, _):
            return jax.nn.relu(x @ positive), None

        return jax.lax.scan(layer, x, None, length=3)[0]

    jaxpr = jax.make_jaxpr(program)(jnp.ones((50, 50)), jnp.ones((2, 50))).jaxpr
    found = module._bytes_from(jaxpr, jaxpr.invars[1:])
    a_result = 2 * 50 * 4
    assert found == 2 * 3 * a_result  # a product and a maximum a layer


# --- inside another NumPyro program


def test_a_numpyro_program_around_it_sees_neither_sites_nor_keys():
    posterior = bnn.condition(bnn.models.classifier(net(2), bnn.priors.normal()), (X, LABELS))
    position = posterior.init(jax.random.key(0))

    def program(evaluates=True):
        lp = posterior.logdensity(position, posterior.data) if evaluates else 0.0
        numpyro.factor("lp", lp)
        return numpyro.prng_key()

    seeded = handlers.seed(program, 0)
    assert set(handlers.trace(seeded).get_trace()) == {"lp"}
    np.testing.assert_array_equal(*map(jax.random.key_data, (seeded(), seeded(evaluates=False))))


@pytest.mark.parametrize("in_plate", [True, False])
def test_a_mean_that_is_a_column_is_told_from_a_y_that_is_one(in_plate):
    def model(x, y=None):
        mean = bnn.random_network("net", net(1), bnn.priors.normal())(x)
        with numpyro.plate("data", len(x)) if in_plate else nullcontext():
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    with pytest.raises(ValueError, match=r"its parameters are columns.*use f\(x\)\[:, 0\]"):
        bnn.condition(model, (X, REAL))
