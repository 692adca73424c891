"""Studies of many fits: labels, permutations, priors handed on, scores by hand, resuming."""

import sys
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pandas as pd
import pytest
import scipy.special
import scipy.stats as st
import xarray as xr
from marks import quick_first
from scipy.spatial.distance import cdist

matplotlib.use("Agg")

import bnn_ppl as bnn
from bnn_ppl import studies
from bnn_ppl.cli.commands import studies as commands
from bnn_ppl.storage.inference_data import inference_data
from bnn_ppl.studies import continual, training
from bnn_ppl.studies.sparse_process import laplace_fit, latent_means, prior_at

KERNEL, BIAS = "net.layers.0.kernel", "net.layers.0.bias"
RNG = np.random.default_rng(0)


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def digits():
    return bnn.data.load("digits", subset=64)


def linear(num_inputs=64, num_outputs=10):
    return partial(bnn.nets.MLP, num_inputs, (), num_outputs)


# --- random labels


def replaced(share, num_classes=10, num_rows=1001, seed=3):
    """Give the rows replaced, for they alone do not depend on the labels, and their new labels."""
    y = RNG.integers(num_classes, size=num_rows)
    noisy = studies.with_label_noise(y, share, num_classes, seed)
    other = studies.with_label_noise((y + 1) % num_classes, share, num_classes, seed)
    rows = noisy == other
    np.testing.assert_array_equal(noisy[~rows], y[~rows])
    return rows, np.where(rows, noisy, -1)


@pytest.mark.parametrize("share", [0, 0.001, 0.25, 0.5, 0.9996, 1])
def test_just_the_share_of_labels_is_replaced(share):
    rows, _ = replaced(share)
    assert rows.sum() == round(share * 1001)


def test_rows_replaced_at_a_share_are_replaced_by_the_same_labels_at_a_larger_one():
    shares = (0.0, 0.25, 0.5, 1.0)
    found = [replaced(share) for share in shares]
    for (fewer, labels), (more, all_labels) in pairwise(found):
        assert more[fewer].all() and more.sum() > fewer.sum()
        np.testing.assert_array_equal(all_labels[fewer], labels[fewer])


def test_new_labels_are_uniform_over_the_classes_and_other_seeds_have_others():
    rows, labels = replaced(1, num_rows=20_000)
    assert rows.all()
    assert st.chisquare(np.bincount(labels, minlength=10)).pvalue > 1e-3
    first, second = (replaced(0.5, seed=seed)[0] for seed in (0, 1))
    assert (first != second).any()


def test_the_labels_given_are_not_changed():
    y = np.arange(10)
    studies.with_label_noise(y, 1.0, 10)
    np.testing.assert_array_equal(y, np.arange(10))


# --- permuted pixels


def test_a_task_permutes_the_pixels_of_all_images_alike():
    x = np.arange(3 * 4 * 5).reshape(3, 4, 5, 1)
    moved = studies.permuted(x, 2)
    assert moved.shape == x.shape
    order = moved[0].ravel()
    assert sorted(order) == list(range(20)) and list(order) != list(range(20))
    np.testing.assert_array_equal(moved.reshape(3, -1), x.reshape(3, -1)[:, order])


def test_the_first_task_is_the_data_and_every_other_one_has_a_permutation_of_its_own():
    x = np.arange(64)[None]
    orders = {tuple(studies.permuted(x, task, seed=s)[0]) for task in (2, 3) for s in (0, 1)}
    assert len(orders) == 4
    np.testing.assert_array_equal(studies.permuted(x, 1, seed=5), x)
    np.testing.assert_array_equal(studies.permuted(x, 2), studies.permuted(x, 2))


# --- the posterior as prior

DESIGN = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]]) * [2.0, 0.5]  # orthogonal, also to 1
NOISE, FIRST_STD = 0.7, 1.3


def halves():
    x = np.concatenate([DESIGN, DESIGN[::-1] * 3])
    y = x @ [1.0, -2.0] + 0.5 + NOISE * RNG.normal(size=8)
    return (x[:4], y[:4]), (x[4:], y[4:])


def fitted_exactly(prior, data):
    """Give the diagonal Laplace approximation about the mode: here the posterior itself."""
    posterior = bnn.condition(bnn.models.regressor(linear(2, 1), prior, NOISE), data)
    flat, shaped = jax.flatten_util.ravel_pytree(posterior.init(jax.random.key(0)))

    def logdensity(flat):
        return posterior.logdensity(shaped(flat), posterior.data)

    newton = jnp.linalg.solve(jax.hessian(logdensity)(flat), jax.grad(logdensity)(flat))
    mode = {site: np.asarray(w)[None, None] for site, w in shaped(flat - newton).items()}
    options = {"init": inference_data(mode, {}, None, {}), "num_warmup": 1, "thin": 0}
    method = bnn.laplace(posterior, "diagonal")
    return bnn.run(jax.random.key(0), posterior, method, progress=False, **options)


@pytest.mark.thorough
def test_two_halves_in_sequence_give_the_posterior_of_both_at_once(float64):
    """Exactly: where the columns are orthogonal the posterior is a diagonal Gaussian."""
    first, second = halves()
    handed_on = bnn.priors.from_draws(fitted_exactly(bnn.priors.normal(FIRST_STD), first))
    draws = fitted_exactly(handed_on, second)
    x, y = (np.concatenate(parts) for parts in zip(first, second, strict=True))
    x = np.column_stack([x, np.ones(8)])
    precision = x.T @ x / NOISE**2 + np.eye(3) / FIRST_STD**2
    mean = np.linalg.solve(precision, x.T @ y / NOISE**2)
    fitted = {
        part: np.append(draws.fitted[f"{KERNEL}.{part}"], draws.fitted[f"{BIAS}.{part}"])
        for part in ("loc", "scale")
    }
    np.testing.assert_allclose(fitted["loc"], mean, rtol=1e-9)
    np.testing.assert_allclose(fitted["scale"], np.diag(precision) ** -0.5, rtol=1e-9)


def made_up_fit(seed, num_draws):
    rng = np.random.default_rng(seed)
    values, fitted = {}, {}
    for site, shape in {KERNEL: (64, 10), BIAS: (10,)}.items():
        values[site] = rng.normal(size=(1, num_draws, *shape))
        fitted[f"{site}.loc"] = rng.normal(size=(1, *shape)).astype(np.float32)
        fitted[f"{site}.scale"] = rng.uniform(0.1, 1, size=(1, *shape)).astype(np.float32)
    return inference_data(values, {}, None, {}, fitted)


@pytest.fixture
def fits(monkeypatch):
    """Make up what every fit gives: a list of (name, posterior, method, init, draws)."""
    made = []

    def fit(key, posterior, method, training, name, *, num_draws=1, init=None):
        draws = made_up_fit(len(made), num_draws)
        made.append((name, posterior, method, init, draws))
        return draws

    def predict(posterior, draws, data, **options):
        return {"probs": xr.DataArray(np.eye(10)[np.zeros(len(data[0]), int)])}

    monkeypatch.setattr(continual, "fit", fit)
    monkeypatch.setattr(continual, "predict", predict)
    return made


def learn(data, learner, num_tasks=2, **options):
    return studies.continual_learning(
        data, linear(), learners=[learner], num_tasks=num_tasks, progress=False, **options
    )


def log_density(position, gaussian):
    """Independent normal log-density, by SciPy."""
    return sum(
        st.norm(gaussian[f"{site}.loc"][0], gaussian[f"{site}.scale"][0]).logpdf(w).sum()
        for site, w in position.items()
    )


@quick_first(("learner", "of_a_task"), [("vcl", 1), ("ewc", 2)])
def test_the_gaussian_fitted_to_a_task_is_the_prior_of_the_next(digits, fits, learner, of_a_task):
    learn(digits, learner)
    before, (_, posterior, *_) = fits[of_a_task - 1][-1], fits[of_a_task]
    position = posterior.init(jax.random.key(0))
    expected = log_density(position, before.fitted)
    assert float(posterior.log_prior(position)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("learner", ["same_prior", "fine_tuning"])
def test_the_others_keep_the_first_prior(digits, fits, learner):
    learn(digits, learner, prior=bnn.priors.normal(0.3))
    _, posterior, *_ = fits[1]
    position = posterior.init(jax.random.key(0))
    expected = sum(st.norm(0, 0.3).logpdf(w).sum() for w in position.values())
    assert float(posterior.log_prior(position)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("learner", ["vcl", "same_prior"])
def test_variational_learners_start_at_the_last_means_and_standard_deviations(
    digits, fits, learner
):
    learn(digits, learner)
    (*_, before), (_, posterior, method, init, _) = fits
    position = posterior.init(jax.random.key(0))
    state = method.init(jax.random.key(0), position, posterior.data)
    assert init.posterior.equals(before.posterior.isel(draw=[0]))  # however many there are
    for site in (KERNEL, BIAS):
        np.testing.assert_array_equal(state.mean[site], before.fitted[f"{site}.loc"][0])
        scale = before.fitted[f"{site}.scale"][0]
        np.testing.assert_allclose(np.exp(state.log_std[site]), scale, rtol=1e-6)


def test_points_start_at_the_last_point_and_laplace_is_about_its_own(digits, fits):
    learn(digits, "ewc")
    names, _, _, inits, draws = zip(*fits, strict=True)
    assert names == ("ewc/task-1", "ewc/task-1-laplace", "ewc/task-2", "ewc/task-2-laplace")
    assert inits[0] is None and inits[1] is draws[0]
    assert inits[2] is draws[0] and inits[3] is draws[2]


def test_the_likelihood_is_tempered_and_the_rows_are_the_tasks(digits, fits):
    learn(digits, "vcl", temperature=0.2)
    for task, (_, posterior, *_) in enumerate(fits, 1):
        assert (posterior.temperature, posterior.density.tempered) == (0.2, "likelihood")
        np.testing.assert_array_equal(posterior.data[0], studies.permuted(digits.train.x, task))
        np.testing.assert_array_equal(posterior.data[1], digits.train.y)


def test_every_task_so_far_is_tested_on_its_own_rows(digits, fits, monkeypatch):
    """A network that tells the tasks apart by the first pixels and is right on the second alone."""
    tests = {k: studies.permuted(digits.test.x, k) for k in (1, 2, 3)}

    def predict(posterior, draws, data, **options):
        right = np.array([(row == tests[2]).all((1, 2, 3)).any() for row in data[0]])
        labels = np.tile(digits.test.y, len(data[0]) // 360)
        return {"probs": xr.DataArray(np.eye(10)[np.where(right, labels, (labels + 1) % 10)])}

    monkeypatch.setattr(continual, "predict", predict)
    table = learn(digits, "fine_tuning", num_tasks=3)
    assert table[["task", "tested_on"]].values.tolist() == [
        [1, 1], [2, 1], [2, 2], [3, 1], [3, 2], [3, 3]
    ]  # fmt: skip
    assert table["accuracy"].tolist() == [0, 0, 1, 0, 1, 0]


# --- scores

TOY = pd.DataFrame(
    [("a", 1, 1, 0.9)]
    + [("a", 2, 1, 0.5), ("a", 2, 2, 0.8)]
    + [("a", 3, 1, 0.6), ("a", 3, 2, 0.9), ("a", 3, 3, 0.7)]
    + [("b", 1, 1, 0.4), ("b", 2, 1, 0.6), ("b", 2, 2, 0.2)],
    columns=["learner", "task", "tested_on", "accuracy"],
)


def test_the_average_is_over_the_tasks_seen():
    found = studies.average_accuracy(TOY)
    assert found[["learner", "task"]].values.tolist() == [
        ["a", 1], ["a", 2], ["a", 3], ["b", 1], ["b", 2]
    ]  # fmt: skip
    np.testing.assert_allclose(found["accuracy"], [0.9, 0.65, 2.2 / 3, 0.4, 0.4])


def test_forgetting_is_the_fall_from_the_best_of_before_and_negative_for_a_gain():
    found = studies.forgetting(TOY)
    assert found[["learner", "task"]].values.tolist() == [["a", 2], ["a", 3], ["b", 2]]
    np.testing.assert_allclose(found["forgetting"], [0.4, (0.3 - 0.1) / 2, -0.2])


# --- the command, small, from end to end


def small(folder, **options):
    given = {"subset": 64, "num_epochs": 2, "batch_size": 32, "progress": False} | options
    return {"hidden": (), "studying": commands.Studying(**given, folder=folder)}


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    folder = tmp_path_factory.mktemp("continual")
    commands.continual(**small(folder), num_tasks=2, num_draws=3, num_rows=100)
    return folder, pd.read_csv(folder / "accuracies.csv")


@pytest.mark.thorough
def test_accuracies_are_those_of_the_fits_in_the_folder(learnt, digits):
    folder, table = learnt
    rows = table.set_index(["learner", "task", "tested_on"])["accuracy"]
    assert len(rows) == 6
    x, y = (leaf[:100] for leaf in digits.test)
    model = bnn.models.classifier(linear(), bnn.priors.fan_in(2**0.5))
    posterior = bnn.condition(model, digits.train)
    for learner in ("vcl", "fine_tuning"):
        draws = bnn.diagnostics.load(folder / learner / "task-2")
        assert draws.posterior.sizes["draw"] == (3 if learner == "vcl" else 1)
        prediction = bnn.predict(posterior, draws, (studies.permuted(x, 2), None))
        expected = bnn.metrics.accuracy(prediction, y)
        assert rows[learner, 2, 2] == pytest.approx(expected)
    assert (folder / "continual.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.thorough
def test_the_same_command_goes_on_without_a_step(learnt, monkeypatch, capsys):
    folder, table = learnt
    monkeypatch.setattr(sys.modules["bnn_ppl.sampling.loop.loop"], "loop_of", None)
    commands.continual(**small(folder), num_tasks=2, num_draws=3, num_rows=100)
    pd.testing.assert_frame_equal(pd.read_csv(folder / "accuracies.csv"), table)
    out = capsys.readouterr().out
    assert "variational (VCL)" in out and "after task  task 1  task 2  average  forgetting" in out


@pytest.mark.thorough
def test_more_draws_of_every_task_go_on_in_the_same_folder(learnt):
    folder, table = learnt
    commands.continual(**small(folder), num_tasks=2, num_draws=5, num_rows=100)
    assert len(pd.read_csv(folder / "accuracies.csv")) == len(table)
    draws = bnn.diagnostics.load(folder / "vcl" / "task-2")
    assert draws.posterior.sizes["draw"] == 5


def test_a_fit_that_is_stopped_while_drawing_stops_the_study(digits, monkeypatch):
    monkeypatch.setattr(training, "run", lambda *args, **options: made_up_fit(0, num_draws=2))
    with pytest.raises(KeyboardInterrupt):
        learn(digits, "vcl", num_draws=3)


@pytest.mark.thorough
def test_sites_of_the_prior_itself_go_on_where_the_fit_starts(digits):
    """The Gaussian of weights says nothing of their precisions."""
    options = {"prior": bnn.priors.hierarchical(), "num_epochs": 1, "num_draws": 2}
    table = learn(digits, "same_prior", num_rows=10, **options)
    assert len(table) == 3


@pytest.mark.thorough
def test_other_settings_in_the_same_folder_are_refused_in_one_line(tmp_path):
    options = {"num_tasks": 1, "num_rows": 20, "learners": ("fine_tuning",)}
    commands.continual(**options, **small(tmp_path))
    with pytest.raises(ValueError, match="got .*learning_rate.*expected") as error:
        commands.continual(**options, **small(tmp_path, learning_rate=0.1))
    assert "\n" not in str(error.value)


# --- evidence of random labels


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("noise")
    commands.label_noise(**small(folder), shares=(1,), gp_rows=12)
    return folder, pd.read_csv(folder / "label_noise.csv")


@pytest.mark.thorough
def test_a_row_says_what_the_point_and_laplace_in_its_folder_say(noisy, digits):
    folder, table = noisy
    assert table["model"].tolist() == ["network", "gp"]
    assert table["num_rows"].tolist() == [64, 12]
    row = table.iloc[0]
    y = studies.with_label_noise(digits.train.y, 1, 10)
    model = bnn.models.classifier(linear(), bnn.priors.normal(1.0))
    posterior = bnn.condition(model, (digits.train.x, y))
    point = bnn.diagnostics.load(folder / "share-1" / "point")
    for part, labels, name in ((digits.train, y, "train"), (digits.test, digits.test.y, "test")):
        prediction = bnn.predict(posterior, point, (part.x, None))
        assert row[f"{name}_accuracy"] == pytest.approx(bnn.metrics.accuracy(prediction, labels))
    method = bnn.laplace(posterior)
    options = {"num_warmup": 2, "batch_size": 32, "thin": 0, "progress": False}
    about = bnn.run(jax.random.key(0), posterior, method, init=point, **options)
    assert row["log_evidence"] == pytest.approx(about.fitted["log_evidence"].item() / 64, rel=1e-4)
    assert (folder / "label_noise.png").read_bytes().startswith(b"\x89PNG")


def own_network():
    """A linear map of the pixels as a plain function of its weights."""
    return bnn.nets.from_function(
        lambda key: {"w": 0.1 * jax.random.normal(key, (64, 10))},
        lambda weights, x: x.reshape(len(x), -1) @ weights["w"],
    )


@pytest.mark.thorough
def test_a_network_of_ones_own_has_its_evidence_in_full(digits, tmp_path):
    """For logits linear in the weights the Gauss-Newton matrix is the Hessian."""
    options = {"num_epochs": 2, "batch_size": 32, "folder": tmp_path, "progress": False}
    net = own_network()
    table = studies.label_noise_network(digits, net, shares=[1.0], structure="full", **options)
    point = bnn.diagnostics.load(tmp_path / "share-1" / "point").posterior["net.w"].values[0, 0]
    w, x = point.astype(float), digits.train.x.reshape(64, -1).astype(float)
    probs = scipy.special.softmax(x @ w, axis=1)
    y = studies.with_label_noise(digits.train.y, 1, 10)
    density = np.log(probs[np.arange(64), y]).sum() + st.norm.logpdf(w).sum()
    of_logits = probs[:, :, None] * np.eye(10) - probs[:, :, None] * probs[:, None]
    hessian = np.einsum("ni,nj,nab->iajb", x, x, of_logits).reshape(640, 640) + np.eye(640)
    expected = density + 320 * np.log(2 * np.pi) - np.linalg.slogdet(hessian)[1] / 2
    assert table["log_evidence"].item() == pytest.approx(expected / 64, rel=1e-4)


def test_the_command_takes_any_network_of_the_package(monkeypatch, tmp_path):
    taken = []

    def stop(data, net, *, structure, **options):
        taken.extend([net.func, net.args, structure])
        raise KeyboardInterrupt

    monkeypatch.setattr(studies, "label_noise_network", stop)
    at = commands.Studying(folder=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        commands.label_noise(studying=at, net="resnet20", structure="diagonal", gp=False)
    assert taken == [bnn.nets.ResNet20, ((8, 8, 1), 10), "diagonal"]


def laplace_evidence(kernel, signs):
    """Rasmussen & Williams (2006), algorithm 3.1 in plain steps, with labels -1 and 1."""
    f = np.zeros(len(signs))
    for _ in range(100):
        p = 1 / (1 + np.exp(-f))
        w = p * (1 - p)
        f = np.linalg.solve(np.linalg.inv(kernel) + np.diag(w), w * f + (signs + 1) / 2 - p)
    _, log_det = np.linalg.slogdet(np.eye(len(f)) + kernel * w)
    log_likelihood = -np.log1p(np.exp(-signs * f)).sum()
    return log_likelihood - 0.5 * f @ np.linalg.solve(kernel, f) - 0.5 * log_det


def test_the_evidence_of_the_gaussian_process_is_laplaces(digits):
    (row,) = studies.label_noise_gp(
        digits, shares=[0.5], classes=(3, 1), num_rows=10, std=2.0, length_scale=1.5
    ).itertuples()
    chosen = np.flatnonzero(np.isin(digits.train.y, (3, 1)))[:10]
    x = digits.train.x[chosen].reshape(len(chosen), -1).astype(float)
    y = studies.with_label_noise((digits.train.y[chosen] == 1).astype(int), 0.5, 2)
    kernel = 4 * np.exp(-cdist(x, x, "sqeuclidean") / (2 * 1.5**2))
    assert row.log_evidence == pytest.approx(laplace_evidence(kernel, 2 * y - 1) / 10, rel=1e-6)


def two_digits(num_rows, share=0.5):
    """Rows of the digits 0 and 1, flat, and partly random labels."""
    rows = bnn.data.load("digits").train
    chosen = np.flatnonzero(rows.y < 2)[:num_rows]
    x = rows.x[chosen].reshape(len(chosen), -1).astype(float)
    return x, studies.with_label_noise(rows.y[chosen].astype(int), share, 2)


@pytest.mark.parametrize("num_inducing", [1, 20, 60])
def test_inducing_points_make_another_covariance_and_laplaces_evidence_of_it(num_inducing):
    x, y = two_digits(60)
    prior = prior_at(x, 3.0, 2.0, num_inducing)
    kernel = 9 * np.exp(-cdist(x, x, "sqeuclidean") / (2 * 2.0**2))
    across = 9 * np.exp(-cdist(x, prior.points, "sqeuclidean") / (2 * 2.0**2))
    among = 9 * np.exp(-cdist(prior.points, prior.points, "sqeuclidean") / (2 * 2.0**2))
    known = across @ np.linalg.solve(among, across.T)
    sparse = known + np.diag(np.diag(kernel - known))
    assert len(prior.points) == num_inducing
    if num_inducing == 60:
        np.testing.assert_allclose(sparse, kernel, atol=1e-8)
    fit = laplace_fit(prior, y)
    assert fit.log_evidence == pytest.approx(laplace_evidence(sparse, 2 * y - 1), rel=1e-7)
    np.testing.assert_allclose(prior.times(y), sparse @ y, atol=1e-8)
    # At the mode the slope of the log-likelihood is the inverse covariance times the values.
    slope = y - scipy.special.expit(sparse @ fit.weights)
    np.testing.assert_allclose(fit.weights, slope, atol=1e-5)
    new = x[::7] + 0.1
    at_new = 9 * np.exp(-cdist(new, prior.points, "sqeuclidean") / (2 * 2.0**2))
    expected = at_new @ np.linalg.solve(among, across.T @ fit.weights)
    np.testing.assert_allclose(latent_means(prior, fit, new), expected, atol=1e-6)


def test_with_all_points_inducing_it_is_the_process_of_scikit_learn():
    process = pytest.importorskip("sklearn.gaussian_process")
    kernel = process.kernels.ConstantKernel(100.0) * process.kernels.RBF(2.0)
    x, y = two_digits(80)
    exact = process.GaussianProcessClassifier(kernel, optimizer=None).fit(x[:60], y[:60])
    prior = prior_at(x[:60], 10.0, 2.0, 60)
    fit = laplace_fit(prior, y[:60])
    assert fit.log_evidence == pytest.approx(exact.log_marginal_likelihood_value_, rel=1e-6)
    np.testing.assert_array_equal(latent_means(prior, fit, x[60:]) > 0, exact.predict(x[60:]))


def test_the_evidence_nears_the_exact_one_as_points_are_added():
    x, y = two_digits(200, share=0.25)
    of_all = laplace_fit(prior_at(x, 10.0, 4.0, 200), y).log_evidence
    errors = [
        abs(laplace_fit(prior_at(x, 10.0, 4.0, num), y).log_evidence - of_all) / 200
        for num in (1, 20, 120)
    ]
    assert errors[0] > 0.1 and errors[1] < errors[0] / 5 and errors[2] < 1e-3


def with_rows(data, x):
    return data._replace(train=data.train._replace(x=x))


def without_test(data):
    return data._replace(test=bnn.data.Data(*(each[:0] for each in data.test)))


def test_lengths_come_from_rows_that_differ(digits):
    most_equal = digits.train.x.copy()
    most_equal[len(most_equal) // 5 :] = 0
    table = studies.label_noise_gp(with_rows(digits, most_equal), shares=0.5)
    assert table["share"].tolist() == [0.5] and np.isfinite(table["log_evidence"]).all()


def test_equal_rows_are_known_of_each_other():
    x, y = two_digits(30)
    prior = prior_at(np.concatenate([x, x]), 10.0, 2.0, 60)
    assert len(prior.points) == 30 and np.all(prior.rest <= 1e-8)
    assert np.isfinite(laplace_fit(prior, np.concatenate([y, y])).log_evidence)


@pytest.mark.thorough
def test_the_process_fits_random_labels_and_its_evidence_falls():
    table = studies.label_noise_gp(bnn.data.load("digits"), num_rows=200)
    assert (table["train_accuracy"] > 0.97).all()
    assert (np.diff(table["log_evidence"]) < 0).all()
    first, last = table["log_evidence"].iloc[[0, -1]] + np.log(2)
    assert first > 0.5 and last < 0  # guessing has -log 2
    assert table["test_accuracy"].iloc[0] == 1


# --- figures


def lines(ax):
    return {line.get_label(): line.get_xydata() for line in ax.lines}


def test_the_figure_shows_averages_and_the_first_task():
    table = TOY.replace({"learner": {"a": "vcl", "b": "fine_tuning"}})
    average, first = map(lines, bnn.plots.continual(table).axes)
    np.testing.assert_allclose(average["variational (VCL)"], [[1, 0.9], [2, 0.65], [3, 2.2 / 3]])
    np.testing.assert_allclose(first["variational (VCL)"], [[1, 0.9], [2, 0.5], [3, 0.6]])
    np.testing.assert_allclose(first["fine-tuning"], [[1, 0.4], [2, 0.6]])


def test_evidence_stands_in_units_in_which_guessing_has_minus_1():
    row = {"num_rows": 5, "train_accuracy": 1.0, "test_accuracy": 0.3}
    rows = [
        {"model": "network", "share": 0.5, "num_classes": 10, "log_evidence": np.log(0.1)} | row,
        {"model": "gp", "share": 0.5, "num_classes": 2, "log_evidence": np.log(0.25)} | row,
    ]
    accuracies, evidence = map(lines, bnn.plots.label_noise(pd.DataFrame(rows)).axes)
    np.testing.assert_allclose(evidence["network"], [[0.5, -1]])
    np.testing.assert_allclose(evidence["Gaussian process"], [[0.5, -2]])
    np.testing.assert_allclose(accuracies["network, test labels"], [[0.5, 0.3]])


# --- what is refused

REFUSED = {
    "a share above 1": (
        lambda data: studies.with_label_noise(data.train.y, 1.5, 10),
        "got share=1.5, expected from 0 to 1",
    ),
    "labels that are no classes": (
        lambda data: studies.with_label_noise(data.train.y / 2, 0.5, 10),
        r"got labels float64 \(64,\), expected class numbers \(rows,\) from 0 to 9: pass",
    ),
    "a label too many": (
        lambda data: studies.with_label_noise(data.train.y, 0.5, 9),
        "got labels int32 .*expected class numbers .* from 0 to 8",
    ),
    "task 0": (
        lambda data: studies.permuted(data.train.x, 0),
        "got task=0, expected a whole number from 1 up",
    ),
    "an unknown learner": (
        lambda data: learn(data, "si"),
        r"got learners=\('si',\), expected some of vcl, ewc, same_prior, fine_tuning, each once",
    ),
    "no task": (
        lambda data: learn(data, "vcl", num_tasks=0),
        "got num_tasks=0, expected a whole number from 1 up",
    ),
    "larger batches than rows": (
        lambda data: learn(data, "vcl", batch_size=65),
        "got batch_size=65 for 64 training rows, expected at most as many",
    ),
    "a rate of 0": (
        lambda data: learn(data, "vcl", learning_rate=0),
        "got learning_rate=0, expected a number above 0",
    ),
    "a share of the network's above 1": (
        lambda data: studies.label_noise_network(data, linear(), shares=[0, 2]),
        "got share=2, expected from 0 to 1",
    ),
    "a function without the layers that Kronecker factors need": (
        lambda data: studies.label_noise_network(data, own_network(), num_epochs=1, batch_size=32),
        "got a model that calls no dense or convolutional layer",
    ),
    "hidden layers of another network": (
        lambda data: commands.label_noise(net="lenet", hidden=(3,), gp=False),
        "got --hidden with --net lenet, expected --net mlp: drop it",
    ),
    "a table": (
        lambda data: studies.label_noise_network(bnn.data.load("yacht"), linear()),
        "got yacht, a regression, expected classes: use digits or mnist",
    ),
    "classes there are not": (
        lambda data: studies.label_noise_gp(data, classes=(0, 10)),
        r"got classes=\(0, 10\) of digits, expected two of its classes: 0, 1, .*9",
    ),
    "one class twice": (
        lambda data: studies.label_noise_gp(data, classes=(1, 1)),
        r"got classes=\(1, 1\) of digits, expected two",
    ),
    "a seed below 0": (
        lambda data: learn(data, "vcl", seed=-1),
        r"got seed=-1, expected a whole number from 0 to 2\*\*32 - 1",
    ),
    "rows of one class": (
        lambda data: studies.label_noise_gp(data, num_rows=1),
        "got num_rows=1, expected a whole number from 2 up",
    ),
    "labels all drawn alike": (
        lambda data: studies.label_noise_gp(data, num_rows=2, shares=[1.0], seed=0),
        "got labels of one class only in 2 rows at share=1, expected both: make num_rows larger",
    ),
    "equal rows alone": (
        lambda data: studies.label_noise_gp(with_rows(data, data.train.x * 0)),
        "got training rows that are all equal, .*: give length_scale=",
    ),
    "no test row of the classes": (
        lambda data: studies.label_noise_gp(without_test(data)),
        r"got no test row of classes=\(0, 1\), expected some",
    ),
    "no inducing point": (
        lambda data: studies.label_noise_gp(data, num_inducing=0),
        "got num_inducing=0, expected a whole number from 1 up",
    ),
    "a process of std 0": (
        lambda data: studies.label_noise_gp(data, std=0.0),
        "got std=0.0, expected a number above 0",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line_before_anything_is_trained(case, digits, monkeypatch):
    monkeypatch.setattr(sys.modules["bnn_ppl.sampling.loop.loop"], "loop_of", None)
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message) as error:
        call(digits)
    assert "\n" not in str(error.value)
