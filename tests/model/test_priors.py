"""Priors against SciPy: densities, variances, what is shared by a tensor and what is not."""

import math
from functools import partial

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats as st
from flax import linen, nnx
from numpyro import handlers
from numpyro.infer.util import log_density
from scipy.integrate import quad
from scipy.special import logsumexp

import bnn_ppl as bnn
from bnn_ppl import priors
from bnn_ppl.storage.inference_data import inference_data

STD = 0.3
WEIGHTS = np.array([-2.0, -0.4, -1e-3, 0.0, 0.1, 0.7, 5.0])
SHAPE = (5, 5, 3, 4)  # a convolution's kernel: its fan-in is 75


def mixture_log_density(w, stds=(1.0, 0.1), weights=(0.25, 0.75)):
    return logsumexp(np.log(weights) + st.norm.logpdf(np.asarray(w)[..., None], 0, stds), axis=-1)


# name: how to build it, the standard deviation it should have, SciPy's log density.
INDEPENDENT = {
    "normal": (
        partial(priors.normal, STD),
        STD,
        st.norm(0, STD).logpdf,
    ),
    "laplace": (
        partial(priors.laplace, STD),
        STD,
        st.laplace(0, STD / math.sqrt(2)).logpdf,
    ),
    "logistic": (
        partial(priors.logistic, STD),
        STD,
        st.logistic(0, STD * math.sqrt(3) / math.pi).logpdf,
    ),
    "student_t": (
        partial(priors.student_t, STD, df=7.0),
        STD,
        st.t(7, 0, STD * math.sqrt(5 / 7)).logpdf,
    ),
    **{
        f"generalised_normal, power {power}": (
            partial(priors.generalised_normal, STD, power),
            STD,
            st.gennorm(power, 0, STD / st.gennorm(power).std()).logpdf,
        )
        for power in (0.7, 1.5, 4.0)
    },
    "mixture": (
        partial(priors.mixture, (1.0, 0.1), (0.25, 0.75)),
        math.sqrt(0.25 * 1 + 0.75 * 0.01),
        mixture_log_density,
    ),
    "mixture, equal weights": (
        partial(priors.mixture, (1.0, 0.1)),
        math.sqrt(0.5 * 1 + 0.5 * 0.01),
        partial(mixture_log_density, weights=(0.5, 0.5)),
    ),
    "fan_in, kernel": (
        lambda: priors.fan_in(1.5)("kernel", SHAPE),
        1.5 / math.sqrt(75),
        st.norm(0, 1.5 / math.sqrt(75)).logpdf,
    ),
    "fan_in, bias": (
        lambda: priors.fan_in(1.5, bias_std=0.2)("bias", (4,)),
        0.2,
        st.norm(0, 0.2).logpdf,
    ),
}
every_family = pytest.mark.parametrize("family", INDEPENDENT)


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


@every_family
def test_log_density_equals_scipy(family, float64):
    build, _, log_density = INDEPENDENT[family]
    np.testing.assert_allclose(build().log_prob(WEIGHTS), log_density(WEIGHTS), rtol=1e-10)


@every_family
def test_variance_is_the_square_of_std(family, float64):
    build, std, _ = INDEPENDENT[family]
    np.testing.assert_allclose(build().variance, std**2, rtol=1e-10)
    np.testing.assert_allclose(build().mean, 0, atol=1e-12)


@every_family
def test_draws_have_std(family, float64):
    build, std, _ = INDEPENDENT[family]
    squares = np.asarray(build().sample(jax.random.key(1), (40_000,))) ** 2
    error = squares.std() / math.sqrt(squares.size)
    assert abs(squares.mean() - std**2) < 5 * error
    assert error < 0.05 * std**2  # or the comparison above would say nothing


def test_default_std_is_one(float64):
    for family in (priors.normal, priors.laplace, priors.logistic, priors.student_t):
        np.testing.assert_allclose(family().variance, 1.0, rtol=1e-10)


def test_mixture_mixes_each_weight_on_its_own(float64):
    pair = np.array([0.05, 2.0])  # one from the spike, one from the slab
    prior = priors.mixture((1.0, 0.1), (0.25, 0.75)).expand(pair.shape).to_event()
    by_weight = mixture_log_density(pair).sum()
    by_tensor = logsumexp(
        np.log([0.25, 0.75]) + st.norm.logpdf(pair[:, None], 0, [1.0, 0.1]).sum(0)
    )
    np.testing.assert_allclose(prior.log_prob(pair), by_weight, rtol=1e-10)
    assert abs(by_weight - by_tensor) > 1


@pytest.mark.parametrize(
    ("shape", "fan_in"), [((6, 50), 6), ((3, 3, 16, 32), 144), ((5, 2, 7), 10), ((7, 1), 7)]
)
def test_fan_in_reads_all_axes_but_the_last(shape, fan_in):
    std = priors.fan_in(2.0)("net.layers.0.kernel", shape).scale
    np.testing.assert_allclose(std, 2.0 / math.sqrt(fan_in), rtol=1e-6)


def test_the_fan_in_of_an_embedding_is_one_row():
    """Over the size of the vocabulary it would keep the inputs of the next layer close to 0."""
    sizes = {"vocabulary_size": 13, "embedding_size": 3, "filters": 4, "units": 5}
    net = partial(bnn.nets.CNNLSTM, (21,), 2, **sizes)
    tokens = np.zeros((4, 21), int)
    posterior = bnn.condition(
        bnn.models.classifier(net, priors.fan_in(2.0)), (tokens, [0, 1, 0, 1])
    )
    assert posterior.prior_std["net.embedding.embedding"] == 2.0
    assert posterior.prior_std["net.output.kernel"] == pytest.approx(2 / math.sqrt(5))


class Attention(nnx.Module):
    def __init__(self, rngs):
        self.attention = nnx.MultiHeadAttention(4, 8, 16, decode=False, rngs=rngs)
        self.up = nnx.ConvTranspose(8, 3, (3,), transpose_kernel=True, rngs=rngs)

    def __call__(self, x):
        return self.up(self.attention(x)).mean(1)


class LinenAttention(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.MultiHeadDotProductAttention(4, qkv_features=16, name="attention")(x)
        return linen.ConvTranspose(3, (3,), transpose_kernel=True, name="up")(x).mean(1)


@pytest.mark.parametrize("kind", ["nnx", "linen"])
def test_the_fan_in_of_a_layer_is_of_all_its_input_axes_alone(kind):
    x = np.ones((2, 5, 8), np.float32)
    net = Attention if kind == "nnx" else bnn.nets.from_linen(LinenAttention(), x)
    posterior = bnn.condition(bnn.models.classifier(net, priors.fan_in(1.0, 0.7)), (x, [0, 1]))
    shapes, stds = posterior.sites.value_shapes(), posterior.prior_std
    for site, shape, std in (
        ("net.attention.query.kernel", (8, 4, 4), 8**-0.5),
        ("net.attention.query.bias", (4, 4), 0.7),
        ("net.attention.out.kernel", (4, 4, 8), 16**-0.5),
        ("net.up.kernel", (3, 3, 8), 24**-0.5),
    ):
        assert shapes[site] == shape and stds[site] == pytest.approx(std)
    at = posterior.init(jax.random.key(0))
    assert np.isfinite(posterior.logdensity(at, posterior.data))


@pytest.mark.parametrize("shape", [(50,), ()])
def test_fan_in_gives_vectors_the_bias_std(shape):
    assert priors.fan_in(2.0, bias_std=0.7)("net.layers.0.bias", shape).scale == 0.7


def test_a_generalised_normal_has_a_slope_everywhere():
    slope = jax.grad(priors.generalised_normal(STD, 0.7).log_prob)
    assert slope(0.0) == 0  # where biases start
    assert slope(0.1) == pytest.approx(-slope(-0.1)) and slope(0.1) < 0


def test_a_scale_may_be_sampled_itself():
    def model():
        std = numpyro.sample("std", dist.HalfNormal(1.0))
        return numpyro.sample("w", priors.normal(std))

    density = jax.jit(lambda std, w: log_density(model, (), {}, {"std": std, "w": w})[0])
    expected = st.halfnorm.logpdf(0.5) + st.norm.logpdf(0.2, 0, 0.5)
    assert float(density(0.5, 0.2)) == pytest.approx(expected, rel=1e-6)


def test_fan_in_by_default_makes_up_for_relu():
    std = priors.fan_in()("net.layers.0.kernel", (50, 2)).scale
    np.testing.assert_allclose(std, math.sqrt(2 / 50), rtol=1e-6)


def test_noise_is_half_normal_above_its_floor(float64):
    prior, values = priors.noise(floor=0.05, scale=2.0), np.array([0.06, 0.4, 3.0, 9.0])
    expected = st.truncnorm(0.05 / 2, np.inf, scale=2.0).logpdf(values)
    np.testing.assert_allclose(prior.log_prob(values), expected, rtol=1e-10)
    assert not prior.support(0.04)


# --- priors that sample a scale of their own


def trace(prior, shape, values, site="net.layers.0.kernel"):
    seeded = handlers.seed(handlers.substitute(prior, values), jax.random.key(0))
    with handlers.trace() as sites:
        chosen = seeded(site, shape)
    return chosen, sites


def test_hierarchical_learns_one_precision_a_tensor(float64):
    site = "net.layers.0.kernel.precision"
    chosen, sites = trace(priors.hierarchical(STD, concentration=3.0), SHAPE, {site: 16.0})
    assert list(sites) == [site]
    assert sites[site]["fn"].shape() == ()
    values = np.array([0.1, 1.0, 11.0, 90.0])
    expected = st.gamma(3.0, scale=1 / (3.0 * STD**2)).logpdf(values)
    np.testing.assert_allclose(sites[site]["fn"].log_prob(values), expected, rtol=1e-10)
    np.testing.assert_allclose(sites[site]["fn"].mean, STD**-2, rtol=1e-10)
    np.testing.assert_allclose(
        chosen.log_prob(WEIGHTS), st.norm(0, 1 / 4).logpdf(WEIGHTS), rtol=1e-10
    )


def test_hierarchical_default_is_gamma_10_10(float64):
    _, sites = trace(priors.hierarchical(), (2,), {})
    gamma = sites["net.layers.0.kernel.precision"]["fn"]
    assert (gamma.concentration, gamma.rate) == (10.0, 10.0)


@pytest.mark.parametrize("concentration", [1.5, 10.0])
def test_a_hierarchical_weight_is_marginally_student_t(concentration, float64):
    prior = priors.hierarchical(STD, concentration)

    def joint(precision, weight):
        values = {"w.precision": precision}
        chosen, sites = trace(prior, (), values, site="w")
        scale = sites["w.precision"]["fn"]
        return np.exp(chosen.log_prob(weight) + scale.log_prob(precision))

    for weight in (0.0, 0.2, 1.1):
        marginal, _ = quad(joint, 0, 60 / STD**2, args=(weight,), limit=200)
        expected = st.t(2 * concentration, 0, STD).pdf(weight)
        np.testing.assert_allclose(marginal, expected, rtol=1e-5)


def test_horseshoe_has_a_scale_for_the_tensor_and_one_for_each_weight(float64):
    site, shape = "net.layers.0.kernel", (2, 3)
    names = [f"{site}.global_scale", f"{site}.local_scale"]
    local = np.linspace(0.2, 3.0, 6).reshape(shape)
    chosen, sites = trace(priors.horseshoe(0.5), shape, dict(zip(names, (0.1, local), strict=True)))
    assert list(sites) == names
    shared, own = (sites[name]["fn"] for name in names)
    assert (shared.shape(), own.shape()) == ((), shape)
    np.testing.assert_allclose(
        shared.log_prob(0.1), st.halfcauchy(scale=0.5).logpdf(0.1), rtol=1e-10
    )
    np.testing.assert_allclose(own.log_prob(local), st.halfcauchy.logpdf(local).sum(), rtol=1e-10)
    weights = np.linspace(-1, 1, 6).reshape(shape)
    np.testing.assert_allclose(
        chosen.log_prob(weights), st.norm(0, 0.1 * local).logpdf(weights), rtol=1e-10
    )


# --- priors that another run found

KERNEL, BIAS = "net.layers.0.kernel", "net.layers.0.bias"


def draws_of(num_chains=2, num_draws=6, log_weight=None, fitted=None, **others):
    rng = np.random.default_rng(0)
    values = {
        KERNEL: rng.normal(3, 2, (num_chains, num_draws, 3, 2)),
        BIAS: rng.normal(3, 2, (num_chains, num_draws, 2)),
    }
    stats = {} if log_weight is None else {"log_weight": log_weight}
    return inference_data(values | others, stats, None, {}, fitted)


def gaussians(num_chains, scale=0.1):
    """Make up the parameters of a fit, float32 as a run has them."""
    rng = np.random.default_rng(1)
    fitted = {"log_evidence": np.zeros(num_chains)}
    for site, shape in ((KERNEL, (num_chains, 3, 2)), (BIAS, (num_chains, 2))):
        fitted[f"{site}.loc"] = rng.normal(size=shape).astype(np.float32)
        fitted[f"{site}.scale"] = (scale * rng.uniform(size=shape)).astype(np.float32)
    return fitted


@pytest.mark.parametrize("chain", [0, 1])
def test_the_prior_from_a_fit_has_its_means_and_scales_to_the_last_bit(chain):
    fitted = gaussians(2)
    prior = priors.from_draws(draws_of(fitted=fitted), chain=chain)
    assert list(prior) == [KERNEL, BIAS]
    for site, gaussian in prior.items():
        np.testing.assert_array_equal(gaussian.loc, fitted[f"{site}.loc"][chain])
        np.testing.assert_array_equal(gaussian.scale, fitted[f"{site}.scale"][chain])


def test_the_prior_from_draws_has_their_moments(float64):
    draws = draws_of()
    for site, gaussian in priors.from_draws(draws, chain=1).items():
        own = draws.posterior[site].values[1]
        np.testing.assert_allclose(gaussian.loc, own.mean(0), rtol=1e-12)
        np.testing.assert_allclose(gaussian.scale, own.std(0), rtol=1e-12)


def test_the_prior_from_weighted_draws_counts_them_as_often_as_they_weigh(float64):
    counts = np.array([1, 3, 2, 1, 1, 4])
    draws = draws_of(1, log_weight=np.log(counts)[None] + 800)
    repeated = np.repeat(draws.posterior[KERNEL].values[0], counts, axis=0)
    gaussian = priors.from_draws(draws)[KERNEL]
    np.testing.assert_allclose(gaussian.loc, repeated.mean(0), rtol=1e-12)
    np.testing.assert_allclose(gaussian.scale, repeated.std(0), rtol=1e-12)


def test_the_prior_from_draws_is_of_the_weights_of_one_network_alone():
    scales = {f"{KERNEL}.precision": np.ones((2, 6)), "noise": np.ones((2, 6))}
    other = {"network.bias": np.random.default_rng(2).normal(size=(2, 6, 4))}
    draws = draws_of(**scales, **other)
    assert list(priors.from_draws(draws, chain=0)) == [KERNEL, BIAS]
    assert list(priors.from_draws(draws, "network", chain=0)) == ["network.bias"]


# --- what is refused

REFUSED = {
    "normal of std 0": (partial(priors.normal, 0.0), "got std=0.0, expected a number above 0"),
    "normal of negative std": (partial(priors.normal, -1), "got std=-1, expected .* above 0"),
    "normal of std NaN": (partial(priors.normal, math.nan), "got std=nan, expected .* above 0"),
    "laplace": (partial(priors.laplace, 0), "got std=0, expected"),
    "generalised_normal": (partial(priors.generalised_normal, 0), "got std=0, expected"),
    "generalised_normal of power 0": (
        partial(priors.generalised_normal, 1, 0),
        "got power=0, expected",
    ),
    "logistic": (partial(priors.logistic, 0), "got std=0, expected"),
    "student_t of std 0": (partial(priors.student_t, 0), "got std=0, expected"),
    "student_t of 2 df": (partial(priors.student_t, 1.0, 2), "got df=2, expected more than 2"),
    "mixture of std 0": (partial(priors.mixture, (1.0, 0.0)), "got stds=0.0, expected"),
    "mixture weights of sum 0.9": (
        partial(priors.mixture, (1.0, 0.1), (0.5, 0.4)),
        r"got weights \[0.5, 0.4\] for 2 components, expected .* summing to 1",
    ),
    "mixture weights too few": (partial(priors.mixture, (1.0, 0.1), (1.0,)), "got weights .* 2"),
    "mixture weights negative": (
        partial(priors.mixture, (1.0, 0.1), (1.5, -0.5)),
        "got weights .* expected .* none negative",
    ),
    "fan_in of gain 0": (partial(priors.fan_in, 0), "got gain=0, expected"),
    "fan_in of bias_std 0": (partial(priors.fan_in, 1, 0), "got bias_std=0, expected"),
    "noise of floor 0": (partial(priors.noise, 0), "got floor=0, expected"),
    "noise of scale 0": (partial(priors.noise, 0.1, 0), "got scale=0, expected"),
    "horseshoe": (partial(priors.horseshoe, 0), "got scale=0, expected"),
    "hierarchical of std 0": (partial(priors.hierarchical, 0), "got std=0, expected"),
    "hierarchical": (partial(priors.hierarchical, 1, 0), "got concentration=0, expected"),
    "several chains, none named": (
        lambda: priors.from_draws(draws_of(3)),
        "got chain=None of 3 chains, expected a number from 0 to 2: choose the chain",
    ),
    "a chain there is not": (
        lambda: priors.from_draws(draws_of(3), chain=3),
        "got chain=3 of 3 chains, expected a number from 0 to 2",
    ),
    "a network there is not": (
        lambda: priors.from_draws(draws_of(1), "ne"),
        "got draws of net.layers.0.kernel, .*expected weights of a network 'ne': pass",
    ),
    "one draw, which has no spread": (
        lambda: priors.from_draws(draws_of(1, 1)),
        f"got a standard deviation of 0, or not finite, in '{KERNEL}', expected a spread",
    ),
    "weights that a fit left where they were": (
        lambda: priors.from_draws(draws_of(1, fitted=gaussians(1, scale=0))),
        f"got a standard deviation of 0, or not finite, in '{KERNEL}', expected a spread",
    ),
    "no draws": (
        lambda: priors.from_draws(draws_of(1).isel(draw=slice(0))),
        "got no draws, expected some: resume the run",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    build, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        build()
