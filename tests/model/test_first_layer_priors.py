"""Priors of the first layer: correlated with the inputs, or with filters that sum to about 0."""

from functools import partial

import jax
import numpy as np
import pytest
import scipy.stats as st
from marks import quick_first, some_quick
from scipy.integrate import nquad

import bnn_ppl as bnn
from bnn_ppl import priors
from bnn_ppl.cli.problem.build import _prior, refuse_unused
from bnn_ppl.cli.problem.networks import NETS, first_kernel
from bnn_ppl.cli.problem.problem import Problem

SITE = "net.layers.0.kernel"
STD, FLOOR = 0.3, 0.05


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(0)
    x = rng.normal(2.0, 1.0, (200, 3)) @ np.array([[2.0, 1, 0], [0, 1, 0], [0, 0, 0.5]])
    return np.column_stack([x, np.full(200, 7.0)])  # the last is constant


def covariance(x):
    """The prior's covariance by its definition, as a loop over rows."""
    centred = x - x.mean(0)
    of_inputs = sum(np.outer(row, row) for row in centred) / len(x)
    of_inputs /= np.trace(of_inputs) / len(of_inputs)
    return STD**2 * (of_inputs + FLOOR**2 * np.eye(len(of_inputs))) / (1 + FLOOR**2)


@pytest.mark.thorough
def test_empcov_is_scipys_multivariate_normal_in_each_column(inputs, float64):
    prior = priors.empcov(inputs, STD, floor=FLOOR)(SITE, (4, 5))
    kernel = np.random.default_rng(1).normal(size=(4, 5)) * STD
    expected = st.multivariate_normal(np.zeros(4), covariance(inputs)).logpdf(kernel.T).sum()
    np.testing.assert_allclose(prior.log_prob(kernel), expected, rtol=1e-10)
    both = prior.log_prob(np.stack([kernel, 2 * kernel]))
    np.testing.assert_allclose(both[1], prior.log_prob(2 * kernel), rtol=1e-12)
    np.testing.assert_allclose(prior.variance, covariance(inputs).diagonal()[:, None] + 0 * kernel)
    np.testing.assert_allclose(prior.variance.mean(), STD**2, rtol=1e-10)


def test_empcov_draws_have_the_covariance_of_the_inputs(inputs):
    prior = priors.empcov(inputs, STD, floor=FLOOR)(SITE, (4, 5))
    columns = np.moveaxis(np.asarray(prior.sample(jax.random.key(0), (8000,))), 1, 2)
    columns = columns.reshape(-1, 4)
    np.testing.assert_allclose(np.cov(columns.T), covariance(inputs), atol=0.02 * STD**2 * 4)
    assert columns[:, 3].std() < 0.06 * STD  # of the constant input
    assert np.corrcoef(columns.T)[0, 1] > 0.5


def test_empcov_of_a_convolution_has_the_covariance_of_patches(float64):
    images = np.random.default_rng(0).normal(size=(6, 4, 5, 2)).cumsum(1)
    prior = priors.empcov(images, STD, site="conv", patch=(3, 2), floor=FLOOR)("conv", (3, 2, 2, 7))
    patches = [
        image[i : i + 3, j : j + 2].reshape(-1)
        for image in images
        for i in range(2)
        for j in range(4)
    ]
    kernel = np.random.default_rng(1).normal(size=(3, 2, 2, 7)) * STD
    law = st.multivariate_normal(np.zeros(12), covariance(np.array(patches)))
    expected = law.logpdf(kernel.reshape(12, 7).T).sum()
    np.testing.assert_allclose(prior.log_prob(kernel), expected, rtol=1e-10)


@pytest.mark.thorough
def test_empcov_of_many_images_is_that_of_all_their_patches_at_once(float64):
    images = np.random.default_rng(0).normal(size=(130, 3, 3, 1)).cumsum(0)
    prior = priors.empcov(images, STD, site="conv", patch=(3, 3), floor=FLOOR)("conv", (3, 3, 1, 1))
    law = st.multivariate_normal(np.zeros(9), covariance(images.reshape(130, 9)))
    kernel = np.random.default_rng(1).normal(size=9) * STD
    got = prior.log_prob(kernel.reshape(3, 3, 1, 1))
    np.testing.assert_allclose(got, law.logpdf(kernel), rtol=1e-10)


@pytest.mark.parametrize("prior", [priors.empcov(np.eye(4), STD), priors.sum_filter(STD)])
def test_other_parameters_are_normal(prior):
    for site, shape in (("net.layers.0.bias", (5,)), ("net.layers.1.kernel", (5, 2))):
        np.testing.assert_allclose(prior(site, shape).log_prob(0.7), st.norm(0, STD).logpdf(0.7))


# --- sum_filter


@pytest.mark.thorough
def test_sum_filter_is_its_formula_and_integrates_to_one(float64):
    prior = priors.sum_filter(STD, sum_scale=0.5)(SITE, (2, 1))

    def density(a, b):
        return np.exp(float(prior.log_prob(np.array([[a], [b]]))))

    limits = [(-6 * STD, 6 * STD, {"points": [0]})[:2]] * 2
    total, _ = nquad(density, limits, opts={"epsrel": 1e-4, "limit": 30})
    assert total == pytest.approx(1, rel=2e-3)
    scale = float(prior.scale)

    def formula(w):
        return st.norm(0, scale).logpdf(w).sum() - abs(w.sum()) / (0.5 * scale)

    first, second = np.array([[0.1], [0.3]]), np.array([[0.5], [-0.45]])
    difference = prior.log_prob(first) - prior.log_prob(second)
    np.testing.assert_allclose(difference, formula(first) - formula(second), rtol=1e-10)


@quick_first(("shape", "axes"), [((6, 4), (0,)), ((3, 3, 2, 4), (0, 1))])
def test_sum_filter_sums_over_each_filter(shape, axes, float64):
    prior = priors.sum_filter(STD)(SITE, shape)
    kernel = np.random.default_rng(0).normal(size=(2, *shape))
    scale = float(prior.scale)
    change = [
        st.norm(0, scale).logpdf(w).sum() - np.abs(w.sum(axes)).sum() / (0.2 * scale)
        for w in kernel
    ]
    got = prior.log_prob(kernel)
    np.testing.assert_allclose(got[0] - got[1], change[0] - change[1], rtol=1e-10)


@quick_first("sum_scale", [0.05, 1.0, 30.0])
def test_sum_filter_draws_follow_the_density(sum_scale):
    prior = priors.sum_filter(STD, sum_scale=sum_scale)(SITE, (5, 2))
    draws = np.asarray(prior.sample(jax.random.key(0), (20_000,)))
    np.testing.assert_allclose(draws.std(), STD, rtol=0.01)
    np.testing.assert_allclose(prior.variance, STD**2, rtol=1e-3)
    sums = draws.sum(1)
    spread, scale = float(prior.scale) * np.sqrt(5), float(prior.sum_scale)
    # its size is a normal about -spread^2 / scale, above 0
    size = st.truncnorm(spread / scale, np.inf, -(spread**2) / scale, spread)
    assert st.kstest(np.abs(sums[:, 0]), size.cdf).pvalue > 1e-3
    assert abs(np.sign(sums).mean()) < 0.03
    residual = (draws - draws.mean(1, keepdims=True)).std(ddof=0) / np.sqrt(4 / 5)
    np.testing.assert_allclose(residual, float(prior.scale), rtol=0.01)


# --- in a network


@quick_first(("num_inputs", "sum_scale"), [(784, 0.02), (3072, 0.2), (12288, 0.2)])
def test_weights_of_many_inputs_have_the_standard_deviation_asked_for(num_inputs, sum_scale):
    prior = priors.sum_filter(STD, sum_scale=sum_scale)(SITE, (num_inputs, 20))
    draws = np.asarray(prior.sample(jax.random.key(0)))
    error = (2 * draws.size) ** -0.5  # of a standard deviation, relative
    np.testing.assert_allclose(draws.std(), STD, rtol=5 * error)
    np.testing.assert_allclose(prior.variance, STD**2, rtol=1e-5)


@pytest.mark.parametrize("prior", [priors.empcov, lambda x: priors.sum_filter()])
@pytest.mark.thorough
def test_a_posterior_samples_with_it(prior, inputs):
    net = partial(bnn.nets.MLP, 4, (3,), 1)
    model = bnn.models.regressor(net, prior(inputs), 0.5)
    x = inputs.astype(np.float32)
    posterior = bnn.condition(model, (x, x[:, 0]))
    values = posterior.init(jax.random.key(0))
    first = prior(inputs)(SITE, (4, 3)).log_prob(values[SITE])
    others = sum(st.norm(0, 1).logpdf(leaf).sum() for s, leaf in values.items() if s != SITE)
    np.testing.assert_allclose(posterior.log_prior(values), first + others, rtol=1e-4)
    draws = bnn.run(
        jax.random.key(0),
        posterior,
        bnn.hmc(posterior, step_size=1e-3, trajectory_length=0.01),
        num_warmup=0,
        num_draws=3,
        progress=False,
    )
    assert np.isfinite(draws.posterior[SITE]).all()
    assert draws.posterior[SITE].shape == (1, 3, 4, 3)


def test_a_network_without_the_site_is_refused():
    net = partial(bnn.nets.MLP, 4, (3,), 1)
    model = bnn.models.regressor(net, priors.sum_filter(site="net.first.kernel"), 0.5)
    with pytest.raises(ValueError, match=r"got a prior for 'net.first.kernel', .*net.layers.0.ker"):
        bnn.condition(model, (np.zeros((5, 4)), np.zeros(5)))


REFUSED = {
    "one row": (lambda: priors.empcov(np.ones((1, 3))), "got inputs of shape .* expected two rows"),
    "rows that are equal": (lambda: priors.empcov(np.ones((9, 3))), "expected two rows or more"),
    "patch of rows": (lambda: priors.empcov(np.eye(3), patch=(2, 2)), "expected images"),
    "patch too large": (
        lambda: priors.empcov(np.zeros((2, 4, 4, 1)), patch=(5, 5)),
        r"patch=\(5, 5\), expected images .* of at least",
    ),
    "another width": (
        lambda: priors.empcov(np.eye(3))(SITE, (4, 2)),
        r"got an empcov prior of 3 inputs for a kernel of shape \(4, 2\), expected 4",
    ),
    "std": (lambda: priors.empcov(np.eye(3), 0), "got std=0"),
    "floor": (lambda: priors.empcov(np.eye(3), floor=0), "got floor=0"),
    "sum_scale": (lambda: priors.sum_filter(sum_scale=0), "got sum_scale=0"),
    "sum_filter std": (lambda: priors.sum_filter(-1), "got std=-1"),
    "a vector": (lambda: priors.sum_filter(site="b")("b", (3,)), "expected a kernel"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    build, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        build()


# --- from the command line

FIRST = {
    "lenet": ("net.convolutions.0.kernel", (5, 5, 3, 6)),
    "lenet5": ("net.convolutions.0.kernel", (5, 5, 3, 6)),
    "lenet_small": ("net.convolutions.0.kernel", (3, 3, 3, 8)),
    "lenet_caffe": ("net.convolutions.0.kernel", (5, 5, 3, 20)),
    "alexnet": ("net.convolutions.0.kernel", (11, 11, 3, 64)),
    "vgg16": ("net.stages.0.convolutions.0.kernel", (3, 3, 3, 64)),
    "resnet20": ("net.stem.conv.kernel", (3, 3, 3, 16)),
    "resnet18": ("net.stem.conv.kernel", (3, 3, 3, 64)),
    "resnet50": ("net.stem.conv.kernel", (7, 7, 3, 64)),
    "preresnet20": ("net.stem.kernel", (3, 3, 3, 16)),
    "wide_resnet": ("net.stem.kernel", (3, 3, 3, 16)),
    "competition_alexnet": ("net.convolutions.0.kernel", (3, 3, 3, 64)),
    "competition_lenet": ("net.convolutions.0.kernel", (5, 5, 3, 6)),
    "competition_cnn": ("net.convolutions.0.kernel", (3, 3, 3, 32)),
}


@pytest.mark.parametrize(
    "net", some_quick(set(NETS) - {"cnn_lstm"}, ("mlp", "lenet", "vgg16", "resnet20"))
)
def test_the_command_line_finds_thefirst_kernel(net):
    build = partial(NETS[net], (32, 32, 3), 10)
    assert first_kernel(Problem.of(net=net, prior="empcov"), build) == FIRST[net]


def test_the_command_line_refuses_tokens():
    with pytest.raises(ValueError, match="--prior empcov with --net cnn_lstm"):
        first_kernel(Problem.of(net="cnn_lstm", prior="empcov"), NETS["cnn_lstm"])


def prior_of(**options):
    problem = Problem.of(prior_scale=40**-0.5, **options)
    data = bnn.data.load("yacht")
    return _prior(problem, data, partial(bnn.nets.MLP, 6, (50,), 1)), data.train.x


def test_the_command_line_has_the_mixture_of_izmailov_et_al():
    prior, _ = prior_of(prior="even_mixture")
    both = [st.norm(0, variance**0.5).pdf(0.1) for variance in (1 / 40, 1 / 160)]
    assert float(prior.log_prob(0.1)) == pytest.approx(np.log(np.mean(both)), rel=1e-5)


@pytest.mark.parametrize(("power", "given"), [(1.5, {}), (0.8, {"prior_power": 0.8})])
def test_the_command_line_takes_the_power(power, given):
    prior, _ = prior_of(prior="generalised_normal", **given)
    law = st.gennorm(power, 0, 40**-0.5 / st.gennorm(power).std())
    assert float(prior.log_prob(0.1)) == pytest.approx(law.logpdf(0.1), rel=1e-5)


def test_the_power_of_another_prior_is_refused():
    with pytest.raises(ValueError, match="got --prior-power with --prior normal, .*: drop it"):
        refuse_unused(Problem.of(prior="normal", prior_power=1.0), bnn.data.load("yacht"))


def test_the_command_line_gives_empcov_the_training_rows_that_are_kept():
    prior, x = prior_of(prior="empcov", held_out=0.5)
    order = np.random.RandomState(0).permutation(len(x))
    kept = np.sort(order[: len(x) - round(0.5 * len(x))])
    expected = priors.empcov(x[kept], 40**-0.5)
    kernel = np.full((6, 50), 0.1)
    assert prior(SITE, (6, 50)).log_prob(kernel) == expected(SITE, (6, 50)).log_prob(kernel)
    whole = priors.empcov(x, 40**-0.5)(SITE, (6, 50)).log_prob(kernel)
    assert abs(whole - prior(SITE, (6, 50)).log_prob(kernel)) > 1e-3
