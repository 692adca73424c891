"""Point estimates: modes, averages, early stopping, augmentation."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from gaussians import gaussian, sample
from targets import linear_regression

import bnn_ppl as bnn
from bnn_ppl.cli.methods import Chosen, Training, built_method
from bnn_ppl.methods.augmentation import augmented, crop_and_flip
from bnn_ppl.methods.method import METHODS
from bnn_ppl.methods.training.early_stopping import stopped_early
from bnn_ppl.storage.arviz_versions import draws_of_arrays


@pytest.fixture(scope="module")
def posterior():
    return bnn.condition(gaussian, (np.zeros((4, 1)), np.zeros((4, 200))))


def test_it_finds_the_mode_of_a_regression():
    target = linear_regression()
    posterior = bnn.condition(target.model, target.data)
    method = bnn.descent(posterior, learning_rate=optax.cosine_decay_schedule(0.1, 2000))
    draws = sample(posterior, method, num_warmup=2000, num_draws=1, thin=0)
    for chain in draws.posterior["weights"].values[:, 0]:
        np.testing.assert_allclose(chain, target.means["weights"], atol=1e-3)


@pytest.mark.thorough
def test_it_takes_any_optimiser_and_warm_starts_a_sampler(posterior):
    method = bnn.descent(posterior, optax.sgd(0.1, momentum=0.9))
    found = sample(posterior, method, num_warmup=300, num_draws=1, thin=0)
    np.testing.assert_allclose(found.posterior["w"], 0, atol=1e-3)
    warm = sample(posterior, bnn.sgld(posterior, 1e-9), init=found, num_draws=2, thin=1)
    np.testing.assert_allclose(warm.posterior["w"], 0, atol=2e-3)


def test_lars_trains_and_its_first_step_is_a_share_of_each_arrays_norm():
    """You et al. (2017), equation 6: the rate times 0.001 times the norm of the weights."""
    target = linear_regression()
    posterior = bnn.condition(target.model, target.data)
    chosen = Chosen(METHODS["descent"], {"learning_rate": 20.0})
    running = {"batch_size": "all", "num_warmup": 400}
    training = Training(optimizer="lars", rate_schedule="cosine")
    method = built_method(chosen, training, running, posterior, SimpleNamespace(y=()))
    assert method.settings["optimizer"] == "lars"
    state = method.init(jax.random.key(0), {"weights": jnp.full(4, 0.5)}, posterior.data)
    step = jax.jit(method.step)
    for count in range(401):
        before = state.position["weights"]
        state, _ = step(jax.random.key(0), state, posterior.data)
        if not count:
            moved = jnp.linalg.norm(state.position["weights"] - before)
            np.testing.assert_allclose(moved, 20 * 0.001 * jnp.linalg.norm(before), rtol=1e-4)
    np.testing.assert_allclose(state.position["weights"], target.means["weights"], atol=0.03)


def test_the_schedule_of_the_learning_rate_is_recorded(posterior):
    method = bnn.descent(posterior, learning_rate=optax.linear_schedule(0.1, 0.0, 10))
    assert method.settings["learning_rate"].startswith("schedule: 0.1, 0.09, 0")
    assert bnn.descent(posterior, optax.sgd(0.1)).settings["learning_rate"] != 1e-3


@pytest.mark.thorough
def test_the_average_is_that_of_the_points_from_a_step_on(posterior):
    last = sample(posterior, bnn.descent(posterior), num_warmup=3, num_draws=5)
    averaging = bnn.descent(posterior, average_from=16)
    mean = sample(posterior, averaging, num_warmup=3, num_draws=5, thin=4)
    points = sample(posterior, bnn.descent(posterior), num_warmup=3, num_draws=20, thin=1)
    np.testing.assert_allclose(mean.posterior["w"][:, 2], last.posterior["w"][:, 2], rtol=1e-6)
    expected = points.posterior["w"].values[:, 16 - 3 : 20].mean(1)
    np.testing.assert_allclose(mean.posterior["w"][:, -1], expected, rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("batch_size", "num_steps"), [(None, 400), pytest.param(4, 3000, marks=pytest.mark.thorough)]
)
def test_on_a_share_of_the_rows_it_finds_the_mode_given_these_alone(batch_size, num_steps):
    """A prior as strong as the data: weighed as for all rows, the mode would be elsewhere."""
    x, y = np.eye(10), np.linspace(1.0, 2.0, 10)  # row i is all that is known of weight i

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1.0).expand([10]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    posterior = bnn.condition(model, (x, y))
    rate = optax.cosine_decay_schedule(0.3, num_steps)
    method = bnn.descent(posterior, learning_rate=rate, subsample=0.8)
    options = {"num_warmup": num_steps, "num_draws": 1, "thin": 0, "batch_size": batch_size}
    draws = sample(posterior, method, **options)
    seen = draws.posterior["w"].values[:, 0] > 0.25
    assert (seen.sum(1) == 8).all() and (seen[0] != seen[1]).any()
    for chain in range(2):
        expected = np.where(seen[chain], y / 2, 0)
        np.testing.assert_allclose(draws.posterior["w"][chain, 0], expected, atol=0.02)
    assert method.settings["subsample"] == 0.8


def test_a_share_reaches_what_wraps_the_method_and_is_refused_out_of_range():
    posterior, held_out = overfitting()
    assert bnn.descent(posterior, subsample=0.5, held_out=held_out).batching.subsample == 0.5
    assert bnn.swag(posterior, bnn.descent(posterior, subsample=0.5)).batching.subsample == 0.5
    for share in (0.0, 1.1, -0.5):
        with pytest.raises(ValueError, match=f"got subsample={share}, expected a share above 0"):
            bnn.descent(posterior, subsample=share)


def logistic(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 2.0).expand([3]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_a_step_on_adversarial_inputs_is_the_one_written_by_hand(temperature):
    """The slope of a logistic loss by x is (p - y) w: all rows of a class move along sign(w)."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 3)), np.array([0, 1, 1, 0, 1, 0])
    w, epsilon, rate = np.array([0.5, -1.0, 0.25]), 0.3, 0.1
    posterior = bnn.condition(logistic, (x, y), temperature=temperature)
    moved = x - epsilon * np.where(y == 1, 1, -1)[:, None] * np.sign(w)

    def log_likelihood(x):
        return -np.log1p(np.exp(-np.where(y == 1, 1, -1) * (x @ w)))

    def gradient(x):
        return (y - 1 / (1 + np.exp(-x @ w))) @ x

    slope = ((gradient(x) + gradient(moved)) / 2 - w / 2.0**2) / temperature / len(y)
    method = bnn.descent(posterior, optax.sgd(rate), fgsm_epsilon=epsilon)
    state = method.init(jax.random.key(0), {"w": jnp.asarray(w, float)}, posterior.data)
    state, info = method.step(jax.random.key(1), state, posterior.data)
    np.testing.assert_allclose(state.position["w"], w + rate * slope, rtol=1e-5)
    prior = dist.Normal(0, 2.0).log_prob(w).sum()
    lp = ((log_likelihood(x) + log_likelihood(moved)).sum() / 2 + prior) / temperature
    np.testing.assert_allclose(info["lp"], lp, rtol=1e-5)
    assert info["n_steps"] == 2 and method.settings["fgsm_epsilon"] == epsilon


@pytest.mark.thorough
def test_training_on_adversarial_inputs_withstands_them():
    """One input separates the classes by much, many others by little that an attack takes away."""
    rng = np.random.default_rng(0)
    y = np.arange(400) % 2
    x = 0.3 * (2 * y - 1)[:, None] + rng.normal(size=(400, 10))
    x[:, 0] += 2.7 * (2 * y - 1)
    model = bnn.models.classifier(partial(bnn.nets.MLP, 10, (), 2), bnn.priors.normal(1.0))
    posterior = bnn.condition(model, (x[:200], y[:200]))
    options = {"num_warmup": 600, "num_draws": 1, "thin": 0}
    scores = []
    for epsilon in (0.0, 0.8):
        method = bnn.descent(posterior, learning_rate=0.05, fgsm_epsilon=epsilon)
        draws = sample(posterior, method, **options)
        attack = bnn.adversarial.fgsm(posterior, draws, (x[200:], y[200:]), 0.8)
        prediction = bnn.predict(posterior, draws, (attack, y[200:]))
        scores.append(bnn.metrics.accuracy(prediction, y[200:]))
    assert scores[1] > scores[0] + 0.02


def test_adversarial_inputs_are_refused_where_there_is_no_gradient():
    words = (np.arange(8).reshape(4, 2), np.arange(4) % 2)
    model = bnn.models.classifier(partial(bnn.nets.MLP, 2, (), 2), bnn.priors.normal(1.0))
    posterior = bnn.condition(model, words)
    with pytest.raises(ValueError, match=r"got x of int32, expected an array of floats"):
        bnn.descent(posterior, fgsm_epsilon=0.1)
    floats = bnn.condition(model, (words[0].astype(float), words[1]))
    for epsilon in (-0.1, np.inf, np.nan):
        with pytest.raises(ValueError, match=f"got fgsm_epsilon={epsilon}, expected a finite"):
            bnn.descent(floats, fgsm_epsilon=epsilon)


def overfitting():
    """Return rows to learn by heart and rows held out, of a regression with more weights."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 30))
    y = x[:, 0] + rng.normal(size=60)

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 10).expand([30]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    return bnn.condition(model, (x[:35], y[:35])), (x[35:], y[35:])


@pytest.mark.thorough
def test_early_stopping_draws_the_best_point_on_the_rows_held_out():
    posterior, held_out = overfitting()
    begin = draws_of_arrays(
        {"posterior": {"w": np.random.default_rng(1).normal(size=(2, 1, 30)) * 0.1}}
    )
    options = {"num_warmup": 0, "num_draws": 400, "thin": 5, "init": begin}
    path = sample(posterior, bnn.descent(posterior, learning_rate=0.01), **options)
    options = {"num_warmup": 2000, "num_draws": 1, "thin": 0, "init": begin}
    method = bnn.descent(
        posterior, learning_rate=0.01, held_out=held_out, check_every=5, patience=20
    )
    stopped = sample(posterior, method, **options)
    score = jax.vmap(
        lambda w: posterior.log_likelihood({"w": w}, jax.tree.map(jnp.asarray, held_out)).sum()
    )
    for chain in range(2):
        points = path.posterior["w"].values[chain]
        scores = np.asarray(score(points))
        assert scores.max() > scores[-1] + 5  # it does overfit
        found = stopped.posterior["w"].values[chain, 0]
        np.testing.assert_allclose(found, points[scores.argmax()], rtol=1e-5)
    # A chain that has stopped takes no gradients.
    assert stopped.attrs["gradient_evaluations"] < 2 * 1000


def test_early_stopping_refuses_what_it_could_not_compare():
    posterior, (x, y) = overfitting()
    with pytest.raises(ValueError, match="got check_every=0, expected a whole number"):
        bnn.descent(posterior, held_out=(x, y), check_every=0)
    with pytest.raises(ValueError, match="row"):
        bnn.descent(posterior, held_out=(x, np.where(y > 0, np.nan, y)))
    with pytest.raises(ValueError, match="as many rows"):
        bnn.descent(posterior, held_out=(x, y[1:]))
    words = "got y with rows of .*1,.*expected .*prepare both in the same way"
    with pytest.raises(ValueError, match=words):
        bnn.descent(posterior, held_out=(x, y[:, None]))
    with pytest.raises(ValueError, match="got mclmc, which adapts in warm-up .*use descent"):
        stopped_early(bnn.mclmc(posterior), posterior, (x, y))


def test_other_rows_held_out_are_another_run():
    posterior, (x, y) = overfitting()
    one, other = (bnn.descent(posterior, held_out=(x, y + i)).settings for i in range(2))
    assert one != other


def test_augmentation_of_a_table_is_refused():
    with pytest.raises(ValueError, match="got x of shape .*expected images"):
        crop_and_flip(jax.random.key(0), np.zeros((5, 3)))


# --- augmentation

IMAGES = np.random.default_rng(0).normal(size=(64, 6, 5, 2)).astype(np.float32)


def test_crops_are_shifts_filled_from_outside():
    changed = crop_and_flip(jax.random.key(0), IMAGES, padding=2, fill=-7.0, flip=False)
    padded = np.pad(IMAGES, ((0, 0), (2, 2), (2, 2), (0, 0)), constant_values=-7.0)
    seen = set()
    for image, whole in zip(np.asarray(changed), padded, strict=True):
        shifts = [
            (i, j)
            for i in range(5)
            for j in range(5)
            if np.array_equal(image, whole[i : i + 6, j : j + 5])
        ]
        assert len(shifts) == 1
        seen |= set(shifts)
    assert len(seen) > 15  # of the 25 shifts


def test_about_half_the_images_are_mirrored():
    changed = np.asarray(crop_and_flip(jax.random.key(0), IMAGES, padding=0))
    same = (changed == IMAGES).all((1, 2, 3))
    mirrored = (changed == IMAGES[:, :, ::-1]).all((1, 2, 3))
    assert (same ^ mirrored).all() and 16 < mirrored.sum() < 48


@pytest.mark.thorough
def test_an_augmented_method_sees_other_rows_at_each_step_of_the_same_data():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(w * x.sum((1, 2, 3)), 1.0), obs=y)

    posterior = bnn.condition(model, (IMAGES, np.zeros(64)))
    method = augmented(bnn.sgld(posterior, 1e-12), partial(crop_and_flip, padding=2))
    assert method.settings["augmentation"] == "crop_and_flip(padding=2)"
    begin = draws_of_arrays({"posterior": {"w": np.ones((2, 1))}})
    options = {"num_draws": 5, "thin": 1, "batch_size": 64, "init": begin}
    lp = sample(posterior, method, **options).sample_stats.lp.values
    plain = sample(posterior, bnn.sgld(posterior, 1e-12), **options).sample_stats.lp.values
    assert (np.abs(np.diff(lp)) > 10 * np.abs(np.diff(plain))).all()
