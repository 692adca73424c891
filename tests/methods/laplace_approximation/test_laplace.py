"""Laplace's approximation against exact posteriors, loops over rows and labels, closed forms."""

import math
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx
from interrupts import press_ctrl_c
from jax.flatten_util import ravel_pytree
from marks import quick_first, some_quick
from numpyro import handlers
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from scipy.stats import multivariate_normal, norm
from stats import assert_covariance
from targets import NOISE, PRIOR_MEANS, PRIOR_SDS, linear_regression

import bnn_ppl as bnn
from bnn_ppl.analysis.prediction.linearised import linearised
from bnn_ppl.methods.laplace_approximation import fisher as fisher_module
from bnn_ppl.methods.laplace_approximation.covariance_blocks import Factors
from bnn_ppl.methods.laplace_approximation.fisher_labels import labels_and_weights
from bnn_ppl.methods.laplace_approximation.laplace import laplace
from bnn_ppl.methods.layers.layer_calls import inputs_of
from bnn_ppl.storage.arviz_versions import draws_of_arrays

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3))
REAL = X @ [1.0, -0.5, 0.2] + 0.3 * RNG.normal(size=12)
CLASSES = np.arange(12) % 3
KERNEL_STD, BIAS_STD, KNOWN_NOISE = 0.25, 1.1, 0.4
LOGISTIC = 1 / (1 + np.exp(-0.7))


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def fit(posterior, method, position, *batches):
    """Give the state after warm-up on some batches, by default all rows at once."""

    @jax.jit
    def whole(position):
        state = method.init(None, position, posterior.data)
        for batch in batches or (posterior.data,):
            state, _ = method.warmup(None, state, batch)
        return method.tuning.finish(state)

    return whole(position)


def covariance(factors):
    """Write a block's covariance out: of raveled sites, or of (input and bias, output) pairs."""
    if isinstance(factors, Factors):
        root = np.kron(factors.inputs, factors.outputs) * np.ravel(factors.along)
        return root @ root.T
    return np.asarray(factors @ factors.T)


def position_of(posterior, seed=1):
    shapes = jax.eval_shape(posterior.init, jax.random.key(0))
    rng = np.random.default_rng(seed)
    return {site: jnp.asarray(rng.normal(0, 0.7, leaf.shape)) for site, leaf in shapes.items()}


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0])


# --- linear networks with Gaussian noise: everything is exact


@cache
def linear_network(multiplier=1.0, **tempering):
    net = partial(bnn.nets.MLP, 3, (), 1)
    stds = {"kernel": KERNEL_STD, "bias": BIAS_STD}
    prior = {
        f"net.layers.0.{part}": bnn.priors.normal(std / math.sqrt(multiplier))
        for part, std in stds.items()
    }
    model = bnn.models.regressor(net, prior, KNOWN_NOISE)
    return bnn.condition(model, (X, REAL), **tempering)


def exact(multiplier=1.0, prior_share=1.0, likelihood_share=1.0):
    """Give mean and covariance of kernel and bias, in this order."""
    inputs = np.column_stack([X, np.ones(len(X))])
    stds = np.array([KERNEL_STD] * 3 + [BIAS_STD])
    share = likelihood_share / KNOWN_NOISE**2
    precision = np.diag(prior_share * multiplier / stds**2) + share * inputs.T @ inputs
    covariance = np.linalg.inv(precision)
    return covariance @ inputs.T @ REAL * share, covariance


def exact_evidence(multiplier=1.0):
    inputs = np.column_stack([X, np.ones(len(X))])
    variances = np.array([KERNEL_STD**2] * 3 + [BIAS_STD**2]) / multiplier
    total = (inputs * variances) @ inputs.T + KNOWN_NOISE**2 * np.eye(len(X))
    return multivariate_normal(np.zeros(len(X)), total).logpdf(REAL)


def at(mean):
    return {"net.layers.0.kernel": jnp.array(mean[:3, None]), "net.layers.0.bias": mean[3:]}


TEMPERINGS = [(1.0, "posterior"), (0.5, "posterior"), (0.5, "likelihood")]


@quick_first(("temperature", "tempered"), TEMPERINGS)
def test_of_a_conjugate_regression_it_is_the_posterior(temperature, tempered):
    target = linear_regression(temperature, tempered)
    posterior = bnn.condition(target.model, target.data, temperature=temperature, tempered=tempered)
    mode = {"weights": jnp.asarray(target.means["weights"])}
    method = laplace(posterior, "full")
    state = fit(posterior, method, mode)
    np.testing.assert_allclose(covariance(*state.factors), target.covariance["weights"], rtol=1e-9)
    found = method.fitted(state)
    np.testing.assert_array_equal(found["weights.loc"], mode["weights"])
    np.testing.assert_allclose(found["weights.scale"], target.sds["weights"], rtol=1e-9)


@pytest.mark.parametrize(("temperature", "tempered"), TEMPERINGS)
def test_the_evidence_of_a_conjugate_regression_is_exact(temperature, tempered):
    """A normal density to the power 1/T is a constant times that of T times the variance."""
    target = linear_regression(temperature, tempered)
    x, y = target.data
    prior_heat = temperature if tempered == "posterior" else 1.0

    def lost(stds, heat):
        return np.sum(norm.logpdf(0, 0, stds) / heat - norm.logpdf(0, 0, stds * heat**0.5))

    total = (x * prior_heat * PRIOR_SDS**2) @ x.T + temperature * NOISE**2 * np.eye(len(x))
    expected = multivariate_normal(x @ PRIOR_MEANS, total).logpdf(y)
    expected += lost(np.full(len(x), NOISE), temperature) + lost(PRIOR_SDS, prior_heat)
    posterior = bnn.condition(target.model, target.data, temperature=temperature, tempered=tempered)
    mode = {"weights": jnp.asarray(target.means["weights"])}
    state = fit(posterior, laplace(posterior, "full"), mode)
    assert float(state.log_evidence) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    ("structure", "temperature", "tempered"),
    [("full", 1.0, "posterior"), ("last_layer", 0.5, "likelihood")]
    + [("kronecker", *tempering) for tempering in TEMPERINGS],
)
def test_of_a_linear_network_it_is_the_posterior(structure, temperature, tempered):
    prior_share = 1 / temperature if tempered == "posterior" else 1.0
    mean, expected = exact(1.0, prior_share, 1 / temperature)
    posterior = linear_network(temperature=temperature, tempered=tempered)
    method = laplace(posterior, structure)
    state = fit(posterior, method, at(mean))
    if structure == "kronecker":
        np.testing.assert_allclose(covariance(*state.factors), expected, rtol=1e-9)
    else:  # sites in the order of their names
        order = [3, 0, 1, 2]
        expected_flat = expected[np.ix_(order, order)]
        np.testing.assert_allclose(covariance(*state.factors), expected_flat, rtol=1e-9)
    scales = method.fitted(state)
    stds = np.sqrt(np.diag(expected))
    np.testing.assert_allclose(scales["net.layers.0.kernel.scale"][:, 0], stds[:3], rtol=1e-9)
    np.testing.assert_allclose(scales["net.layers.0.bias.scale"], stds[3:], rtol=1e-9)


@pytest.mark.parametrize("structure", ["kronecker", "full"])
def test_the_evidence_of_a_linear_network_is_exact(structure):
    posterior = linear_network()
    state = fit(posterior, laplace(posterior, structure), at(exact()[0]))
    assert float(state.log_evidence) == pytest.approx(exact_evidence(), abs=1e-9)
    assert float(state.multiplier) == 1


def test_few_weights_start_at_the_mode_of_a_learnt_noise():
    """Of a noise fitted to eight held-out rows the evidence is 2 to 50 nats too low."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(40, 3))
    y = x @ [1.0, -0.5, 0.2] + 0.4 * rng.normal(size=40)

    def model(x, y=None):
        slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([3]).to_event(1))
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(x @ slopes, noise), obs=y)

    posterior = bnn.condition(model, (x, y))
    options = {"num_chains": 2, "num_draws": 4, "progress": False}
    draws = bnn.run(jax.random.key(0), posterior, bnn.laplace(posterior), **options)
    noises = np.linspace(0.15, 1.2, 200)
    given = [multivariate_normal.logpdf(y, cov=x @ x.T + s**2 * np.eye(40)) for s in noises]
    density = np.exp(given) * 2 * norm.pdf(noises)
    exact = np.log(np.trapezoid(density, noises))
    np.testing.assert_allclose(draws.fitted["log_evidence"], exact, atol=0.3)


def test_the_diagonal_is_the_inverse_of_the_precisions_diagonal():
    mean, cov = exact()
    posterior = linear_network()
    found = laplace(posterior, "diagonal").fitted(
        fit(posterior, laplace(posterior, "diagonal"), at(mean))
    )
    expected = np.diag(np.linalg.inv(cov)) ** -0.5
    np.testing.assert_allclose(found["net.layers.0.kernel.scale"][:, 0], expected[:3], rtol=1e-9)
    np.testing.assert_allclose(found["net.layers.0.bias.scale"], expected[3:], rtol=1e-9)


# --- the multiplier of the prior precision


@pytest.mark.parametrize("structure", ["kronecker", "full"])
def test_at_the_prior_with_the_highest_exact_evidence_the_multiplier_is_1(structure):
    """A mode moves with the prior, but there the evidence does not change by it."""
    best = minimize_scalar(lambda power: -exact_evidence(10**power), bounds=(-2, 2)).x
    assert 0.2 < abs(best) < 1.9
    posterior = linear_network(10**best)
    method = laplace(posterior, structure, prior_precision="marginal_likelihood")
    state = fit(posterior, method, at(exact(10**best)[0]))
    assert float(state.multiplier) == pytest.approx(1, abs=1e-4)
    assert float(state.log_evidence) == pytest.approx(exact_evidence(10**best), abs=1e-8)


@cache
def learnt_noise():
    """A network of which two sites' priors, the last bias's and the noise's, are not Gaussian."""

    def prior(site, shape):
        return bnn.priors.logistic(0.8) if site == "net.layers.1.bias" else bnn.priors.normal(0.8)

    net = partial(bnn.nets.MLP, 3, (2,), 1)
    model = bnn.models.regressor(net, prior, dist.LogNormal(-1.0, 0.5))
    return bnn.condition(model, (X, REAL))


@pytest.mark.thorough
@pytest.mark.parametrize("structure", some_quick(("diagonal", "kronecker", "full"), ("full",)))
def test_the_multiplier_maximises_the_evidence_of_dense_matrices(structure):
    posterior = learnt_noise()
    position = position_of(posterior)
    plain = fit(posterior, laplace(posterior, structure), position)
    kept = {"noise", "net.layers.1.bias"}  # by the multiplier, and with a factored layer's bias
    kept |= {"net.layers.1.kernel"} if structure == "kronecker" else set()
    scaled = flat({site: np.full(w.shape, site not in kept) for site, w in position.items()})
    precision = np.linalg.inv(dense_covariance(structure, plain, position))
    at_mode = float(jax.jit(posterior.logdensity)(position, posterior.data))
    weights = flat(position)[scaled]

    def evidence(multiplier):
        changed = precision + np.diag((multiplier - 1) * scaled / 0.8**2)
        more = norm.logpdf(weights, 0, 0.8 / multiplier**0.5) - norm.logpdf(weights, 0, 0.8)
        log_det = np.linalg.slogdet(changed)[1]
        return at_mode + more.sum() + 0.5 * (len(changed) * math.log(2 * math.pi) - log_det)

    assert float(plain.log_evidence) == pytest.approx(evidence(1.0), rel=1e-9)
    best = minimize_scalar(
        lambda power: -evidence(10**power), bounds=(-4, 4), options={"xatol": 1e-9}
    )
    method = laplace(posterior, structure, prior_precision="marginal_likelihood")
    state = fit(posterior, method, position)
    assert 0.1 < abs(best.x) < 3.9
    assert math.log10(state.multiplier) == pytest.approx(best.x, abs=1e-5)
    assert float(state.log_evidence) == pytest.approx(-best.fun, rel=1e-9)
    changed = precision + np.diag((10**best.x - 1) * scaled / 0.8**2)
    np.testing.assert_allclose(
        dense_covariance(structure, state, position), np.linalg.inv(changed), rtol=2e-4, atol=1e-9
    )


def dense_covariance(structure, state, position):
    """Write the covariance of all sites out, in the order of their names."""
    if structure == "full":
        return covariance(*state.factors)
    ids, _ = ravel_pytree(position)
    _, unravel = ravel_pytree(position)
    numbers = jax.tree.map(lambda leaf: np.asarray(leaf).astype(int), unravel(jnp.arange(ids.size)))
    whole = np.zeros((ids.size, ids.size))
    for factors in state.factors:
        if isinstance(factors, Factors):
            layer = "net.layers.0" if len(factors.inputs) == 4 else "net.layers.1"
            parts = [numbers[f"{layer}.kernel"].ravel(), numbers[f"{layer}.bias"].ravel()]
            whole[np.ix_(*[np.concatenate(parts)] * 2)] = covariance(factors)
        else:
            for site, scale in factors.items():
                own = numbers[site].ravel()
                whole[own, own] = np.ravel(scale) ** 2
    return whole


def test_at_an_end_of_the_grid_the_multiplier_stays_there():
    posterior = linear_network()
    method = laplace(posterior, "full", prior_precision="marginal_likelihood")
    state = fit(posterior, method, at(np.zeros(4)))
    assert float(state.multiplier) == pytest.approx(1e4, rel=1e-6)


# --- the curvature against loops over rows and labels


class Convolutional(nnx.Module):
    """A strided convolution, one with padding of its own and no bias, and a dense layer."""

    def __init__(self, *, rngs):
        self.first = nnx.Conv(2, 3, (3, 2), strides=2, padding="SAME", rngs=rngs)
        self.second = nnx.Conv(3, 2, (2, 2), padding=((1, 0), (0, 1)), use_bias=False, rngs=rngs)
        self.output = nnx.Linear(12, 3, rngs=rngs)

    def __call__(self, x):
        x = jnp.tanh(self.first(x))
        x = jnp.tanh(self.second(x))
        return self.output(x.reshape(len(x), -1))


class Positions(nnx.Module):
    """A dense layer at each of several positions, between which nothing is shared after it."""

    def __init__(self, *, rngs):
        self.each = nnx.Linear(3, 4, rngs=rngs)
        self.norm = nnx.LayerNorm(4, rngs=rngs)
        self.output = nnx.Linear(8, 3, use_bias=False, rngs=rngs)

    def __call__(self, x):
        x = jnp.tanh(self.norm(self.each(x)))
        return self.output(x.reshape(len(x), -1))


IMAGES = RNG.normal(size=(12, 5, 4, 2))
SEQUENCES = RNG.normal(size=(12, 2, 3))
NETWORKS = {
    "dense": (partial(bnn.nets.MLP, 3, (5, 4), 3, activation=jnp.tanh), X),
    "convolutional": (Convolutional, IMAGES),
    "positions": (Positions, SEQUENCES),
}
every_network = pytest.mark.parametrize("name", NETWORKS)
STDS = {"kernel": 0.5, "bias": 1.3, "scale": 0.7}


@cache
def classifier(name, **options):
    net, x = NETWORKS[name]

    def prior(site, shape):
        return bnn.priors.normal(STDS[site.rsplit(".")[-1]])

    return bnn.condition(bnn.models.classifier(net, prior), (x, CLASSES), **options)


def network_at(name, position):
    """Give the network itself with weights of its own, to be called without a model."""
    net, _ = NETWORKS[name]
    module = net(rngs=nnx.Rngs(0))
    graph, state = nnx.split(module)
    leaves = [
        (path, leaf.replace(position[".".join(["net", *map(str, path)])]))
        for path, leaf in nnx.to_flat_state(state)
    ]
    return nnx.merge(graph, nnx.from_flat_state(leaves))


def fisher(name, position, choose):
    """Sum over rows and labels, by jax.grad of one log-probability after another."""
    _, x = NETWORKS[name]

    @jax.jit
    def log_probs(position, row):
        return jax.nn.log_softmax(network_at(name, position)(row[None])[0])

    gradient = jax.jit(jax.grad(lambda position, row, label: log_probs(position, row)[label]))
    total = 0.0
    for i, row in enumerate(x):
        probs = np.exp(log_probs(position, row))
        for label in choose(i):
            g = flat(gradient(position, row, label))
            total = total + (probs[label] if len(choose(i)) > 1 else 1.0) * np.outer(g, g)
    return total


LABELS = {"gauss_newton": lambda i: range(3), "empirical": lambda i: [CLASSES[i]]}


@cache
def dense_fisher(name, kind):
    return fisher(name, position_of(classifier(name)), LABELS[kind])


def prior_precision(position):
    return flat({s: np.full(w.shape, STDS[s.rsplit(".")[-1]] ** -2) for s, w in position.items()})


@quick_first("kind", LABELS)
def test_the_full_covariance_is_that_of_a_loop_over_rows_and_labels(kind):
    name = "dense"
    posterior = classifier(name)
    position = position_of(posterior)
    state = fit(posterior, laplace(posterior, "full", curvature=kind), position)
    precision = dense_fisher(name, kind) + np.diag(prior_precision(position))
    np.testing.assert_allclose(covariance(*state.factors), np.linalg.inv(precision), atol=1e-10)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("dense", "gauss_newton"),
        ("dense", "empirical"),
        pytest.param("convolutional", "gauss_newton", marks=pytest.mark.thorough),
        pytest.param("positions", "gauss_newton", marks=pytest.mark.thorough),
    ],
)
def test_the_diagonal_is_that_of_a_loop_over_rows_and_labels(name, kind, monkeypatch):
    monkeypatch.setattr(fisher_module, "_NUMBERS_AT_ONCE", 1500)  # so that rows come in chunks
    posterior = classifier(name)
    position = position_of(posterior)
    method = laplace(posterior, "diagonal", curvature=kind)
    found = method.fitted(fit(posterior, method, position))
    precision = np.diag(dense_fisher(name, kind)) + prior_precision(position)
    scales = flat({site: found[f"{site}.scale"] for site in position})
    np.testing.assert_allclose(scales, precision**-0.5, rtol=1e-10)


# --- Kronecker factors


def dense_by_hand(network, x, probes):
    inputs = []
    for layer, probe in zip(network.layers, probes, strict=True):
        inputs.append(x)
        x = layer(x) + probe
        x = jnp.tanh(x) if layer is not network.layers[-1] else x
    return x, inputs


def patches_by_hand(x, kernel, stride, pads):
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    places = [
        x[:, i : i + kernel[0], j : j + kernel[1]].reshape(len(x), 1, -1)
        for i in range(0, x.shape[1] - kernel[0] + 1, stride)
        for j in range(0, x.shape[2] - kernel[1] + 1, stride)
    ]
    return jnp.concatenate(places, 1)


def convolutional_by_hand(network, x, probes):
    first = patches_by_hand(x, (3, 2), 2, ((1, 1), (0, 0)))
    x = jnp.tanh(network.first(x) + probes[0])
    second = patches_by_hand(x, (2, 2), 1, ((1, 0), (0, 1)))
    x = jnp.tanh(network.second(x) + probes[1]).reshape(len(x), -1)
    return network.output(x) + probes[2], [first, second, x]


def positions_by_hand(network, x, probes):
    inputs = [x]
    x = jnp.tanh(network.norm(network.each(x) + probes[0])).reshape(len(x), -1)
    return network.output(x) + probes[1], [*inputs, x]


BY_HAND = {
    "dense": (
        dense_by_hand,
        {"net.layers.0": (1, 5), "net.layers.1": (1, 4), "net.layers.2": (1, 3)},
    ),
    "convolutional": (
        convolutional_by_hand,
        {"net.first": (1, 3, 2, 3), "net.second": (1, 3, 2, 2), "net.output": (1, 3)},
    ),
    "positions": (positions_by_hand, {"net.each": (1, 2, 4), "net.output": (1, 3)}),
}


@cache
def factors_by_hand(name):
    """Average A and G over rows, one row and label after another."""
    by_hand, shapes = BY_HAND[name]
    position = position_of(classifier(name))
    _, x = NETWORKS[name]

    @jax.jit
    def all_gradients(row):
        def log_probs(probes):
            logits, inputs = by_hand(network_at(name, position), row[None], probes)
            return jax.nn.log_softmax(logits[0]), inputs

        probes = [jnp.zeros(shape) for shape in shapes.values()]
        return jax.jacobian(log_probs, has_aux=True)(probes), log_probs(probes)[0]

    sums = {layer: [0.0, 0.0] for layer in shapes}
    for row in x:
        (gradients, inputs), log_probs = all_gradients(row)
        for layer, a, g in zip(shapes, inputs, gradients, strict=True):
            a = np.reshape(a, (-1, a.shape[-1]))
            if f"{layer}.bias" in position:
                a = np.column_stack([a, np.ones(len(a))])
            sums[layer][0] += sum(np.outer(one, one) for one in a) / len(x)
            for share, of_label in zip(np.exp(log_probs), np.asarray(g), strict=True):
                places = of_label.reshape(-1, of_label.shape[-1])
                mean = sum(np.outer(one, one) for one in places) / len(places)
                sums[layer][1] += share * mean / len(x)
    return sums


@every_network
def test_each_layer_has_the_product_of_its_factors_and_the_whole_prior(name):
    temperature = 0.5
    posterior = classifier(name, temperature=temperature, tempered="likelihood")
    position = position_of(posterior)
    method = laplace(posterior, "kronecker")
    state = fit(posterior, method, position)
    _, x = NETWORKS[name]
    sites = set(position)
    for (layer, (a, g)), factors in zip(factors_by_hand(name).items(), state.factors, strict=False):
        own = [site for site in (f"{layer}.kernel", f"{layer}.bias") if site in position]
        prior = np.concatenate(
            [np.full(position[s].size, STDS[s.rsplit(".")[-1]] ** -2) for s in own]
        )
        expected = np.linalg.inv(len(x) / temperature * np.kron(a, g) + np.diag(prior))
        np.testing.assert_allclose(covariance(factors), expected, rtol=1e-9, atol=1e-12)
        scales = [np.ravel(method.fitted(state)[f"{site}.scale"]) for site in own]
        np.testing.assert_allclose(np.concatenate(scales) ** 2, np.diag(expected), rtol=1e-9)
        sites -= set(own)
    if name == "positions":
        assert sites == {"net.norm.scale", "net.norm.bias"}
        ravelled = dense_fisher(name, "gauss_newton")
        precision = np.diag(ravelled) / temperature + prior_precision(position)
        _, unravel = ravel_pytree(position)
        for site in sites:
            expected = unravel(jnp.asarray(precision**-0.5))[site]
            np.testing.assert_allclose(state.factors[-1][site], expected, rtol=1e-9)


@every_network
def test_a_damped_layer_has_the_product_of_its_damped_factors(name):
    temperature, damping = 0.5, 3.0
    posterior = classifier(name, temperature=temperature, tempered="likelihood")
    position = position_of(posterior)
    method = laplace(posterior, "kronecker", damping=damping)
    state = fit(posterior, method, position)
    _, x = NETWORKS[name]
    root = math.sqrt(len(x) / temperature)
    by_hand = factors_by_hand(name).values()
    for (a, g), factors in zip(by_hand, state.factors, strict=False):
        damped = (root * factor + damping * np.eye(len(factor)) for factor in (a, g))
        expected = np.linalg.inv(np.kron(*damped))
        np.testing.assert_allclose(covariance(factors), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("damping", [pytest.param(None, marks=pytest.mark.thorough), 1.5])
def test_a_row_of_weight_two_counts_as_two_rows(damping):
    def model(x, y=None, weight=1.0):
        net = partial(bnn.nets.MLP, 3, (4,), 1)
        f = bnn.random_network("net", net, bnn.priors.normal(0.5))
        with handlers.scale(scale=weight), numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(f(x)[:, 0], 0.4), obs=y)

    twice = bnn.condition(model, (np.tile(X, (2, 1)), np.tile(REAL, 2)))
    weighted = bnn.condition(partial(model, weight=2.0), (X, REAL))
    position = position_of(twice)
    got, expected = (
        method.fitted(fit(posterior, method, position))
        for posterior in (weighted, twice)
        for method in [laplace(posterior, "kronecker", damping=damping)]
    )
    for name in expected:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"damping": 0.0}, "got damping=0.0, expected a number above 0"),
        ({"damping": 1.0, "structure": "full"}, "got damping with structure='full'"),
        ({"damping": 1.0, "prior_precision": "marginal_likelihood"}, "got damping with .*'model'"),
    ],
)
def test_damping_where_it_has_no_meaning_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        laplace(linear_network(), **options)


CONVOLUTIONS = {
    "same": dict(kernel_size=(3, 2)),
    "strided": dict(kernel_size=(3, 2), strides=(2, 1), padding="VALID"),
    "dilated": dict(kernel_size=(2, 2), kernel_dilation=(2, 1), padding=1),
    "dilated input": dict(kernel_size=(2, 3), input_dilation=2, padding=1, use_bias=False),
    "padded": dict(kernel_size=(2, 2), padding=[(1, 0), 2], strides=2),
    "in one dimension": dict(kernel_size=3, strides=2),
}


@quick_first("name", CONVOLUTIONS)
def test_patches_times_the_kernel_are_the_convolution(name):
    options = CONVOLUTIONS[name]
    layer = nnx.Conv(2, 4, param_dtype=float, rngs=nnx.Rngs(0), **options)
    images = RNG.normal(size=(3, 6, 5, 2) if name != "in one dimension" else (3, 2, 7, 2))
    inputs = inputs_of(layer, jnp.asarray(images), layer.bias is not None)
    kernel = layer.kernel[...].reshape(-1, 4)
    if layer.bias is not None:
        layer.bias[...] = jnp.arange(4.0)
        kernel = jnp.concatenate([kernel, layer.bias[...][None]])
    expected = layer(jnp.asarray(images))
    np.testing.assert_allclose(inputs @ kernel, expected.reshape(3, -1, 4), atol=1e-12)


def test_a_prior_that_differs_among_an_inputs_outputs_counts_by_its_mean_precision():
    stds = jnp.asarray(RNG.uniform(0.3, 1.0, (3, 3)))
    prior = {"net.layers.0.kernel": dist.Normal(0, stds), "net.layers.0.bias": dist.Normal(0, 1)}
    model = bnn.models.classifier(partial(bnn.nets.MLP, 3, (), 3), prior)
    posterior = bnn.condition(model, (X, CLASSES))
    position = position_of(posterior)
    (factors,) = fit(posterior, laplace(posterior), position).factors
    plain = fit(posterior, laplace(posterior, "full"), position)
    assert np.isfinite(float(plain.log_evidence))
    inputs = np.column_stack([X, np.ones(12)])
    logits = X @ position["net.layers.0.kernel"] + position["net.layers.0.bias"]
    probs = softmax(logits, -1)
    g = np.mean([np.diag(p) - np.outer(p, p) for p in probs], 0)
    by_input = np.append(np.mean(stds**-2.0, 1), 1.0)
    expected = np.linalg.inv(np.kron(inputs.T @ inputs, g) + np.diag(np.repeat(by_input, 3)))
    np.testing.assert_allclose(covariance(factors), expected, rtol=1e-9)


# --- likelihoods


@pytest.mark.thorough
def test_a_heteroscedastic_fisher_is_the_closed_form():
    net = partial(bnn.nets.MLP, 3, (4,), 2, activation=jnp.tanh)
    model = bnn.models.regressor(net, bnn.priors.normal(1.0), "softplus")
    posterior = bnn.condition(model, (X, REAL))
    position = position_of(posterior)

    def mean_and_std(position):
        likelihood = posterior.predictive(position, X)
        return likelihood.loc, likelihood.scale

    to_mean, to_std = (
        np.stack([flat(jax.tree.map(lambda leaf, i=i: leaf[i], jacobian)) for i in range(12)])
        for jacobian in jax.jit(jax.jacobian(mean_and_std))(position)
    )
    std = np.asarray(mean_and_std(position)[1])[:, None]
    fisher = (to_mean / std).T @ (to_mean / std) + 2 * (to_std / std).T @ (to_std / std)
    (root,) = fit(posterior, laplace(posterior, "full"), position).factors
    np.testing.assert_allclose(
        covariance(root), np.linalg.inv(fisher + np.eye(len(fisher))), atol=1e-9
    )


def products(distribution, parameters, y):
    """Give the expected outer product of a row's score by the labels and weights."""
    labels, weights = jax.jit(lambda z: labels_and_weights(distribution(z), y, "gauss_newton"))(
        parameters
    )
    assert labels.shape[1:] == y.shape and labels.dtype == y.dtype
    np.testing.assert_allclose(weights.sum(0), 1, rtol=1e-12)

    def log_prob(parameters, label):
        return distribution(parameters).log_prob(label).sum()

    scores = jax.jit(jax.vmap(jax.grad(log_prob), (None, 0)))(parameters, labels)
    scores = scores.reshape(*weights.shape, -1)
    return np.einsum("kr,kri,krj->rij", weights, scores, scores)


@pytest.mark.thorough
def test_labels_and_weights_give_the_fisher_information_of_each_likelihood():
    logits = jnp.asarray(RNG.normal(size=(4, 3)))
    probs = np.asarray(jax.nn.softmax(logits))
    got = products(lambda z: dist.Categorical(logits=z), logits, jnp.zeros(4, int))
    expected = [np.diag(p) - np.outer(p, p) for p in probs]
    np.testing.assert_allclose(got, expected, atol=1e-12)

    p = np.asarray(jax.nn.sigmoid(logits))
    got = products(lambda z: dist.Bernoulli(logits=z).to_event(1), logits, jnp.zeros((4, 3), int))
    np.testing.assert_allclose(got, [np.diag(q * (1 - q)) for q in p], atol=1e-12)

    def pair(z):
        return dist.Normal(z[:, :2], jnp.exp(z[:, 2:])).to_event(1)

    z = jnp.asarray(RNG.normal(size=(4, 4)))
    precision = np.exp(-2 * np.asarray(z[:, 2:]))
    got = products(pair, z, jnp.zeros((4, 2)))
    expected = [np.diag([*row, 2.0, 2.0]) for row in precision]
    np.testing.assert_allclose(got, expected, atol=1e-10)

    root = jnp.asarray([[0.5, 0.0], [-0.4, 0.3]])

    def correlated(z):
        return dist.MultivariateNormal(z, scale_tril=root)

    got = products(correlated, z[:, :2], jnp.zeros((4, 2)))
    expected = np.linalg.inv(np.asarray(root) @ np.asarray(root).T)
    np.testing.assert_allclose(got, np.broadcast_to(expected, (4, 2, 2)), rtol=1e-10)

    def shared(z):
        return dist.Normal(z[0], jnp.exp(z[1]))  # of all rows alike, without a plate

    labels, weights = labels_and_weights(shared(z[0]), jnp.zeros(5), "gauss_newton")
    assert labels.shape == weights.shape == (3, 5)


def test_counts_of_trials_that_are_a_column_of_x_are_drawn():
    def of_rows(trials):
        counts = dist.Binomial(trials.astype(int), logits=jnp.zeros(2))
        return labels_and_weights(counts, jnp.zeros(2), "gauss_newton")

    labels, weights = jax.jit(of_rows)(jnp.array([4.0, 1000.0]))
    assert labels.shape == weights.shape == (32, 2)
    errors = np.array([1, 250]) ** 0.5 / 32**0.5
    assert (abs(labels.mean(0) - np.array([2, 500])) < 4 * errors).all()


@quick_first(
    ("distribution", "parameters", "expected"),
    [
        (lambda z: dist.Poisson(jnp.exp(z)), 0.7, np.exp(0.7)),
        # As a column of x.
        (
            lambda z: dist.Binomial(jnp.full(z.shape, 9), logits=z),
            0.7,
            9 * LOGISTIC * (1 - LOGISTIC),
        ),
        pytest.param(
            lambda z: dist.StudentT(4.0, z, 0.5),
            0.7,
            5 / 7 / 0.5**2,
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            lambda z: dist.NegativeBinomial2(jnp.exp(z), 3.0),
            0.7,
            np.exp(0.7) / (1 + np.exp(0.7) / 3),
            marks=pytest.mark.thorough,
        ),
        (lambda z: dist.Normal(z, 0.5).to_event(1), [0.7] * 7, np.eye(7) / 0.5**2),
    ],
)
def test_without_an_exact_sum_the_fisher_information_is_a_mean_over_draws(
    distribution, parameters, expected
):
    rows = jnp.broadcast_to(jnp.asarray(parameters), (2000, *np.shape(parameters)))
    y = jnp.zeros_like(distribution(rows).sample(jax.random.key(1)))
    got = products(distribution, rows, y).mean(0)
    np.testing.assert_allclose(got, np.atleast_2d(expected), atol=0.04 * np.max(expected))


@pytest.mark.thorough
def test_the_covariance_of_counts_is_the_inverse_of_their_information():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 3))  # of fewer rows, 32 counts each tell the information to 7 %

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)

    w = np.array([0.5, -0.3, 0.1])
    posterior = bnn.condition(model, (x, rng.poisson(np.exp(x @ w))))
    (root,) = fit(posterior, laplace(posterior), {"w": jnp.asarray(w)}).factors
    information = (x.T * np.exp(x @ w)) @ x + np.eye(3)
    np.testing.assert_allclose(covariance(root) @ information, np.eye(3), atol=0.06)


def test_labels_and_weights_are_constants():
    def moved(z):
        labels, weights = labels_and_weights(dist.Normal(z, jnp.exp(z)), z, "gauss_newton")
        return labels.sum() + weights.sum()

    np.testing.assert_array_equal(jax.grad(moved)(jnp.ones(3)), 0.0)


# --- priors that are not Gaussian


def test_other_priors_count_by_their_second_derivative_where_it_is_not_negative():
    def model(x, y=None):
        w = numpyro.sample("w", dist.StudentT(3.0, 0.0, 0.5).expand([3]).to_event(1))
        noise = numpyro.sample("noise", dist.Gamma(3.0, 2.0))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, noise), obs=y)

    temperature = 0.5
    posterior = bnn.condition(model, (X, REAL), temperature=temperature)
    w, log_noise = np.array([0.1, -0.4, 3.0]), 0.3
    position = {"w": jnp.asarray(w), "noise": jnp.asarray(log_noise)}
    method = laplace(posterior, "diagonal")
    state = jax.jit(lambda position: method.init(None, position, posterior.data))(position)
    second = 4 * (3 * 0.25 - w**2) / (3 * 0.25 + w**2) ** 2
    assert second[2] < 0
    variance = temperature * 0.25 * 3
    expected = np.maximum(second, 0) / temperature + 1e-6 / variance
    np.testing.assert_allclose(state.prior.precision["w"], expected, rtol=1e-6)
    # log of Gamma's density at exp(u): -2 exp(u) bends, what is linear in u does not.
    expected = 2 * math.exp(log_noise) / temperature + 1e-6
    assert float(state.prior.precision["noise"]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.thorough
def test_a_noise_on_its_bound_is_drawn_close_to_it():
    """Its logarithm has hardly any information there, and a prior that does not bend."""
    x = RNG.normal(size=(60, 2))
    net = partial(bnn.nets.MLP, 2, (), 1)
    posterior = bnn.condition(bnn.models.regressor(net, bnn.priors.normal(1.0)), (x, x[:, 0]))
    kernel = jnp.array([[1.0], [0.0]])
    position = {"net.layers.0.kernel": kernel, "net.layers.0.bias": jnp.zeros(1)}
    position |= {"noise": jnp.asarray(math.log(0.03 / 60))}
    state = fit(posterior, laplace(posterior), position)
    assert float(state.prior.precision["noise"]) == 0.5
    (noise,) = (block["noise"] for block in state.factors if isinstance(block, dict))
    assert 1.3 < float(noise) < 1.42  # without that, 5 and more


@pytest.mark.thorough
def test_the_prior_counts_by_its_diagonal_where_it_correlates_weights():
    covariance = np.array([[1.0, 0.9], [0.9, 1.0]])

    def model(x, y=None):
        w = numpyro.sample("w", dist.MultivariateNormal(jnp.zeros(2), covariance))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, 10.0), obs=y)

    x = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    posterior = bnn.condition(model, (x, x.sum(1)))
    draws = bnn.run(
        jax.random.key(0), posterior, bnn.laplace(posterior, "diagonal"), num_warmup=1, thin=0
    )
    precision = np.diag(np.linalg.inv(covariance)) + (x**2).sum(0) / 100
    np.testing.assert_allclose(draws.fitted["w.scale"].values[0], precision**-0.5, rtol=1e-4)


@pytest.mark.thorough
def test_whole_numbers_under_a_normal_have_its_curvature():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)

    x = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    posterior = bnn.condition(model, (x, np.round(3 * x.sum(1)).astype(int)))
    draws = bnn.run(
        jax.random.key(0), posterior, bnn.laplace(posterior, "full"), num_warmup=1, thin=0
    )
    covariance = np.linalg.inv(np.eye(2) + x.T @ x / 0.25)
    np.testing.assert_allclose(
        draws.fitted["w.scale"].values[0], np.sqrt(np.diag(covariance)), rtol=1e-4
    )


@pytest.mark.thorough
def test_positive_weights_are_curved_in_their_logarithms():
    def prior(site, shape):
        return dist.LogNormal(0.0, 1.0) if "0.kernel" in site else dist.Normal(0.0, 1.0)

    net = partial(bnn.nets.MLP, 3, (2,), 3, activation=jnp.tanh)
    posterior = bnn.condition(bnn.models.classifier(net, prior), (X, CLASSES))
    position = position_of(posterior)
    full, diagonal, factored = (
        fit(posterior, laplace(posterior, structure), position)
        for structure in ("full", "diagonal", "kronecker")
    )
    expected = np.diag(np.linalg.inv(covariance(*full.factors))) ** -0.5
    np.testing.assert_allclose(flat(diagonal.factors[0]), expected, rtol=1e-9)
    factors, others = factored.factors  # of the second layer alone, and of the others
    assert factors.inputs.shape == (3, 3)
    for site, scales in others.items():
        np.testing.assert_allclose(scales, diagonal.factors[0][site], rtol=1e-9)


def test_a_learnt_noise_has_the_fisher_information_of_its_logarithm():
    posterior = learnt_noise()
    position = position_of(posterior)
    state = fit(posterior, laplace(posterior), position)
    prior = 1 / 0.5**2  # LogNormal(-1, 0.5): normal in the logarithm
    expected = (2 * len(X) + prior) ** -0.5
    assert float(state.factors[-1]["noise"]) == pytest.approx(expected, rel=1e-5)


# --- batches


@pytest.mark.thorough
def test_the_batches_of_an_epoch_are_the_whole():
    posterior = classifier("positions", temperature=0.5)
    position = position_of(posterior)
    method = laplace(posterior)
    whole = fit(posterior, method, position)
    x, y = posterior.data
    batches = [(x[i : i + 4], y[i : i + 4]) for i in (0, 4)]
    padded = jnp.array([8, 9, 10, 11, 0, 0])
    batches.append((x[padded], y[padded], jnp.arange(6) < 4))
    by_batch = fit(posterior, method, position, *batches)
    for got, expected in zip(by_batch.factors, whole.factors, strict=True):
        if isinstance(got, dict):
            for site in got:
                np.testing.assert_allclose(got[site], expected[site], rtol=1e-9)
        else:
            np.testing.assert_allclose(covariance(got), covariance(expected), atol=1e-10)
    assert float(by_batch.log_evidence) == pytest.approx(float(whole.log_evidence), rel=1e-9)


@pytest.mark.thorough
def test_some_of_the_rows_stand_for_all():
    posterior = classifier("dense")
    position = position_of(posterior)
    x, y = posterior.data
    half = fit(posterior, laplace(posterior, "full"), position, (x[:6], y[:6]))
    twice = bnn.condition(
        bnn.models.classifier(NETWORKS["dense"][0], bnn.priors.normal(1.0)),
        (np.tile(x[:6], (2, 1)), np.tile(y[:6], 2)),
    )
    prior = np.diag(prior_precision(position) - 1)
    expected = fit(twice, laplace(twice, "full"), position)
    got = np.linalg.inv(covariance(*half.factors)) - prior
    np.testing.assert_allclose(
        got, np.linalg.inv(covariance(*expected.factors)), rtol=1e-7, atol=1e-7
    )


# --- draws


def run(posterior, method, position, **options):
    init = draws_of_arrays(
        {"posterior": {site: np.asarray(w)[None, None] for site, w in position.items()}}
    )
    options = {"num_warmup": 3, "batch_size": 4, "num_draws": 5, "thin": 0} | options
    return bnn.run(jax.random.key(0), posterior, method, init=init, progress=False, **options)


@pytest.mark.thorough
@pytest.mark.parametrize("structure", some_quick(("diagonal", "kronecker", "full"), ("kronecker",)))
def test_draws_have_the_covariance_about_the_position(structure):
    mean, expected = exact()
    if structure == "diagonal":
        expected = np.diag(1 / np.diag(np.linalg.inv(expected)))
    posterior = linear_network()
    draws = run(
        posterior, laplace(posterior, structure), at(mean), num_chains=2, num_draws=4000
    ).posterior
    kernel = draws["net.layers.0.kernel"].values[..., 0]
    flat_draws = np.concatenate([kernel, draws["net.layers.0.bias"].values], -1)
    assert_covariance(flat_draws, expected)
    error = np.sqrt(np.diag(expected) / 8000)
    assert (np.abs(flat_draws.mean((0, 1)) - mean) < 5 * error).all()


@pytest.mark.thorough
def test_layers_and_other_sites_are_drawn_independently():
    posterior = learnt_noise()
    position = position_of(posterior)
    method = laplace(posterior)
    state = fit(posterior, method, position)

    def draw(key):
        return ravel_pytree(method.draw(key, state))[0]

    draws = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), 8000))
    expected = dense_covariance("kronecker", state, position)
    assert_covariance(np.reshape(draws, (2, 4000, -1)), expected)


@pytest.mark.thorough
def test_the_last_layer_of_each_network_is_drawn():
    net = partial(bnn.nets.MLP, 3, (4,), 1)
    prior = bnn.priors.normal(1.0)
    model = bnn.models.regressor(net, prior, "heteroscedastic", noise_net=net)
    posterior = bnn.condition(model, (X, REAL))
    start = posterior.constrain(posterior.init(jax.random.key(0)))
    draws = run(posterior, laplace(posterior, "last_layer"), start).posterior
    spread = {site for site in draws if float(draws[site].std(("chain", "draw")).max()) > 1e-4}
    parts = ("kernel", "bias")
    assert spread == {f"{name}.layers.1.{part}" for name in ("net", "noise_net") for part in parts}


@pytest.mark.thorough
def test_the_last_layer_alone_is_drawn_and_its_evidence_is_exact():
    net = partial(bnn.nets.MLP, 3, (4,), 1, activation=jnp.tanh)
    posterior = bnn.condition(
        bnn.models.regressor(net, bnn.priors.normal(0.8), KNOWN_NOISE), (X, REAL)
    )
    position = position_of(posterior)
    hidden = np.tanh(X @ position["net.layers.0.kernel"] + position["net.layers.0.bias"])
    inputs = np.column_stack([np.ones(12), hidden])  # bias first, as its name
    expected = np.linalg.inv(inputs.T @ inputs / KNOWN_NOISE**2 + np.eye(5) / 0.8**2)
    mode = expected @ inputs.T @ REAL / KNOWN_NOISE**2
    position |= {"net.layers.1.bias": mode[:1], "net.layers.1.kernel": mode[1:, None]}
    draws = run(posterior, laplace(posterior, "last_layer"), position)
    evidence = multivariate_normal(
        np.zeros(12), 0.8**2 * inputs @ inputs.T + KNOWN_NOISE**2 * np.eye(12)
    ).logpdf(REAL)
    assert draws.fitted["log_evidence"].item() == pytest.approx(evidence, abs=1e-9)
    assert draws.fitted["prior_precision_multiplier"].item() == 1
    scales = draws.fitted["net.layers.1.kernel.scale"][0, :, 0]
    np.testing.assert_allclose(scales, np.sqrt(np.diag(expected))[1:], rtol=1e-9)
    for part in ("kernel", "bias"):
        stays, moves = (draws.posterior[f"net.layers.{i}.{part}"].values[0] for i in (0, 1))
        expected_draws = np.broadcast_to(position[f"net.layers.0.{part}"], stays.shape)
        np.testing.assert_array_equal(stays, expected_draws)
        assert not draws.fitted[f"net.layers.0.{part}.scale"].values.any()
        assert (moves.std(0) > 0).all()


@pytest.mark.thorough
def test_an_interrupted_run_is_bit_identical(tmp_path):
    posterior = learnt_noise()
    position = position_of(posterior)
    method = laplace(posterior, prior_precision="marginal_likelihood")
    whole = run(posterior, method, position, num_draws=9)
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c(patch, 1)  # in warm-up
        stopped = run(posterior, method, position, num_draws=9, folder=tmp_path)
    assert stopped.attrs["stopped_in"] == "warmup"
    resumed = run(posterior, method, position, num_draws=9, folder=tmp_path)
    for group in ("posterior", "fitted"):
        for name, values in whole[group].items():
            np.testing.assert_array_equal(resumed[group][name], values, err_msg=name)


def test_arguments_that_change_the_draws_are_recorded():
    posterior = linear_network()
    plain = laplace(posterior).settings
    for options in (
        {"structure": "full"},
        {"curvature": "empirical"},
        {"prior_precision": "marginal_likelihood"},
        {"damping": 2.0},
    ):
        assert laplace(posterior, **options).settings == {**plain, **options}


# --- linearised predictions


@pytest.mark.thorough
def test_a_linear_network_predicts_the_same_linearised():
    posterior = linear_network()
    draws = run(posterior, laplace(posterior), at(exact()[0]))
    expected = bnn.predict(posterior, draws, (X, REAL), predictive="sampled")
    got = bnn.predict(linearised(posterior, draws), draws, (X, REAL))
    for name, values in expected.items():
        np.testing.assert_allclose(got[name], values, rtol=1e-10, err_msg=name)


def test_a_linearised_network_is_the_tangent_at_the_values():
    posterior = classifier("convolutional")
    centre, values = (position_of(posterior, seed) for seed in (1, 2))

    def logits(values):
        return network_at("convolutional", values)(jnp.asarray(IMAGES))

    jacobian = jax.jit(jax.jacfwd(logits))(centre)
    away = jax.tree.map(jnp.subtract, values, centre)
    change = sum(jnp.tensordot(jacobian[s], away[s], away[s].ndim) for s in away)
    predictive = linearised(posterior, centre).predictive
    got = jax.jit(lambda values: predictive(values, IMAGES).logits)(values)
    np.testing.assert_allclose(got, jax.jit(logits)(centre) + change, rtol=1e-10)
    assert np.abs(got - jax.jit(logits)(values)).max() > 0.1


@pytest.mark.thorough
def test_it_is_linearised_about_the_fitted_mean_or_the_only_draw():
    posterior = learnt_noise()
    position = position_of(posterior)
    values = posterior.constrain(position)
    draws = run(posterior, laplace(posterior), position)
    other = jax.tree.map(lambda leaf: leaf + 0.1, values)

    def predicted(given):
        predictive = linearised(posterior, given).predictive
        return jax.jit(lambda other: (lambda p: (p.loc, p.scale))(predictive(other, X)))(other)

    expected, _ = predicted(values)
    only = draws_of_arrays(
        {"posterior": {site: np.asarray(leaf)[None, None] for site, leaf in values.items()}}
    )
    for given in (draws, only):
        loc, scale = predicted(given)
        np.testing.assert_allclose(loc, expected, rtol=1e-12)
        np.testing.assert_allclose(scale, other["noise"])


def test_what_it_cannot_linearise_about_is_refused():
    posterior = learnt_noise()
    values = posterior.constrain(position_of(posterior))
    with pytest.raises(ValueError, match="got nothing for the site 'noise', expected"):
        linearised(posterior, {site: w for site, w in values.items() if site != "noise"})
    with pytest.raises(ValueError, match="got .3,. for the site 'net.layers.0.bias', expected"):
        linearised(posterior, values | {"net.layers.0.bias": np.zeros(3)})
    several = {site: np.stack([[leaf, leaf]]) for site, leaf in values.items()}
    with pytest.raises(ValueError, match=r"got 2 draws .*expected one .*isel\(draw=\[0\]\)"):
        linearised(posterior, draws_of_arrays({"posterior": several}))


# --- bad input


@pytest.mark.parametrize(
    "options",
    [{"structure": "kfac"}, {"curvature": "hessian"}, {"prior_precision": 2.0}],
)
def test_unknown_words_are_refused(options):
    with pytest.raises(ValueError, match=f"got {next(iter(options))}=.*expected one of"):
        laplace(linear_network(), **options)


def with_network(net, x=IMAGES):
    model = bnn.models.classifier(net, bnn.priors.normal(1.0))
    return bnn.condition(model, (x, CLASSES))


def test_more_covariances_than_fit_are_refused():
    posterior = with_network(partial(bnn.nets.MLP, 3, (1200, 6), 3), X)
    with pytest.raises(ValueError, match="got 12027 weights .*expected at most 8000.*kronecker"):
        laplace(posterior, "full")
    laplace(posterior, "last_layer")


def test_a_structure_of_layers_is_refused_where_there_are_none():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.StudentT(4.0, x @ w, 1.0), obs=y)

    posterior = bnn.condition(model, (X, REAL))
    laplace(posterior, "full")
    with pytest.raises(ValueError, match="calls no dense or convolutional layer.*'diagonal'"):
        laplace(posterior, "kronecker")


@pytest.mark.parametrize(("width", "expected"), [(3, "full"), (8001, "diagonal")])
def test_without_layers_the_default_is_the_best_structure_that_fits(width, expected):
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([width]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ w[:3], 1.0), obs=y)

    posterior = bnn.condition(model, (X, REAL))
    assert laplace(posterior).settings["structure"] == expected
    network = with_network(partial(bnn.nets.MLP, 3, (2,), 3), X)
    assert laplace(network).settings["structure"] == "kronecker"


@quick_first(
    ("options", "got"),
    [({"padding": "CIRCULAR"}, "padding='CIRCULAR'"), ({"feature_group_count": 2}, "group_count")],
)
def test_convolutions_without_a_product_are_refused_a_kronecker_factor(options, got):
    class Net(nnx.Module):
        def __init__(self, *, rngs):
            self.conv = nnx.Conv(2, 2, (3, 3), rngs=rngs, **options)
            self.output = nnx.Linear(40, 3, rngs=rngs)

        def __call__(self, x):
            return self.output(self.conv(x).reshape(len(x), -1))

    posterior = with_network(Net)
    with pytest.raises(ValueError, match=f"got a convolution with .*{got}.*'diagonal'"):
        laplace(posterior)
    laplace(posterior, "diagonal")


def test_a_network_called_row_by_row_is_refused():
    class Net(nnx.Module):
        def __init__(self, *, rngs):
            self.output = nnx.Linear(3, 3, rngs=rngs)

        def __call__(self, x):
            return jax.vmap(self.output)(x)

    with pytest.raises(ValueError, match="got net.output called on .3,. .*without vmap"):
        laplace(with_network(Net, X))


def test_a_run_without_warm_up_is_refused():
    posterior = linear_network()
    with pytest.raises(ValueError, match=r"laplace fits.*set num_warmup > 0 \(got 0\)"):
        run(posterior, laplace(posterior), at(np.zeros(4)), num_warmup=0)
