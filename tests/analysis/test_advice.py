"""Each advice of the verdict, tried: a run with the fault, and one that does as it is told."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from marks import quick_first
from numpyro.infer.reparam import LocScaleReparam

import bnn_ppl as bnn
from bnn_ppl.storage.arviz_versions import draws_of_arrays

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 1))
Y = 2 * X[:, 0] + 0.1 * RNG.normal(size=60)
KEY = jax.random.key(0)
FIT = {"num_draws": 1, "thin": 0, "num_chains": 1}


def line(x, y=None, floor=0.01):
    slope = numpyro.sample("slope", dist.Normal(0, 2))
    noise = numpyro.sample("noise", dist.TruncatedNormal(0.0, 1.0, low=floor))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(slope * x[:, 0], noise), obs=y)


@pytest.fixture(scope="module")
def posterior():
    return bnn.condition(line, (X, Y))


def sampled(posterior, method, **options):
    options = {"num_chains": 2, "num_warmup": 200, "num_draws": 200, "progress": False} | options
    return bnn.run(KEY, posterior, method, **options)


def told(posterior, draws, kind):
    """Give the advice on a fault that must be found."""
    found = {each.kind: each.advice for each in bnn.verdict(posterior, draws).findings}
    assert kind in found, found
    return found[kind]


def kinds(posterior, draws):
    return [each.kind for each in bnn.verdict(posterior, draws).findings]


def nll(posterior, draws, rows):
    return -float(bnn.predict(posterior, draws, rows)["log_prob"].mean())


# --- are the draws those of the posterior?


@pytest.mark.thorough
def test_steps_of_sgld_that_are_not_finite(posterior):
    lengths = {"num_warmup": 0, "thin": 20, "batch_size": "all", "init": _near(posterior)}
    draws = sampled(posterior, bnn.sgld(posterior, 1e9), **lengths)
    assert told(posterior, draws, "not_finite") == "shorter steps (a smaller step_size)"
    draws = sampled(posterior, bnn.sgld(posterior, 1e-5), **lengths)
    assert "not_finite" not in kinds(posterior, draws)


def _near(posterior):
    return posterior.unconstrain({"slope": np.asarray(2.0), "noise": np.asarray(0.1)})


@pytest.mark.thorough
def test_steps_that_are_never_accepted(posterior):
    options = {"num_warmup": 0, "init": _near(posterior)}
    draws = sampled(posterior, bnn.hmc(posterior, 1e3, 1e3), **options)
    advice = "shorter steps (a smaller step_size), or more warm-up"
    assert told(posterior, draws, "stuck") == advice
    draws = sampled(posterior, bnn.hmc(posterior, 0.01, 0.1), **options)
    assert "stuck" not in kinds(posterior, draws)


def cube(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([100]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(x @ weights[:1], 1.0), obs=y)


@pytest.mark.thorough
def test_temperatures_that_are_still_rising_need_a_longer_warmup():
    posterior = bnn.condition(cube, (X[:30], Y[:30]))
    method = bnn.kinetic_langevin(posterior, 0.2)
    options = {"thin": 5, "batch_size": "all", "num_draws": 100, "init": posterior.init(KEY)}
    draws = sampled(posterior, method, num_warmup=0, **options)
    assert told(posterior, draws, "temperature").startswith("more warm-up: the temperature is")
    draws = sampled(posterior, method, num_warmup=2000, **options)
    assert "temperature" not in kinds(posterior, draws)


def known(x, y=None, width=1.0, noise=1.0):
    weights = numpyro.sample("weights", dist.Normal(0, width).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(x @ weights, noise), obs=y)


@pytest.mark.thorough
def test_steps_and_minibatches_that_heat_a_chain():
    x = RNG.normal(size=(300, 20))
    posterior = bnn.condition(known, (x, x.sum(1) + RNG.normal(size=300)))

    def drawn(step_size, batch_size, init, **options):
        method = bnn.kinetic_langevin(posterior, step_size, friction=20.0)
        options = {"thin": 10, "batch_size": batch_size, "init": init} | options
        return sampled(posterior, method, **options)

    long = drawn(0.03, 100, posterior.init(KEY))
    advice = "shorter steps (a smaller step_size), or larger batches"
    assert told(posterior, long, "temperature") == advice
    assert "temperature" not in kinds(posterior, drawn(0.03, 300, long))
    assert "temperature" not in kinds(posterior, drawn(0.003, 100, long, num_warmup=1000))


@pytest.mark.thorough
def test_runs_that_are_too_short(posterior):
    method = bnn.hmc(posterior, 0.004, 0.02)
    for draws, kind, words in (
        (sampled(posterior, method, num_draws=2), "few_draws", "make at least 4 in each of"),
        (sampled(posterior, method, num_warmup=0, num_draws=20), "disagree", "run longer (more"),
        (sampled(posterior, method, num_draws=60), "few_independent", "more draws, or more steps"),
    ):
        assert told(posterior, draws, kind).startswith(words)
    longer = sampled(posterior, method, num_warmup=1000, num_draws=400, thin=20)
    assert bnn.verdict(posterior, longer).converged


@pytest.mark.thorough
def test_particles_on_their_way_reach_the_posterior_in_a_longer_warmup(posterior):
    method = bnn.tempered_smc(posterior, num_particles=16)
    short = sampled(posterior, method, num_chains=1, num_warmup=2)
    assert told(posterior, short, "tempered") == "raise num_warmup"
    longer = sampled(posterior, method, num_chains=1, num_warmup=200)
    assert "tempered" not in kinds(posterior, longer)


def funnel(x, y=None, away=False):
    scale = numpyro.sample("scale", dist.LogNormal(0.5, 0.5) if away else dist.HalfNormal(3.0))
    each = numpyro.sample("each", dist.Normal(jnp.zeros(8), scale).to_event(1))
    numpyro.sample("y", dist.Normal(each[x], 10.0), obs=y)


@pytest.mark.thorough
def test_divergences_near_a_scale_of_0():
    rows = np.arange(8), 10 * np.random.default_rng(0).normal(size=8)

    def diverging(model, **options):
        posterior = bnn.condition(model, rows)
        draws = sampled(posterior, bnn.hmc(posterior, **options))
        return posterior, draws, int(draws.sample_stats.diverging.sum())

    posterior, draws, count = diverging(funnel)
    advice = told(posterior, draws, "divergences")
    assert advice.startswith("write each, whose scale is learnt, non-centred (LocScaleReparam, ")
    assert "a prior that keeps that scale away from 0, or take shorter steps (raise" in advice
    non_centred = numpyro.handlers.reparam(funnel, {"each": LocScaleReparam(0)})
    assert diverging(non_centred)[-1] == diverging(partial(funnel, away=True))[-1] == 0
    assert diverging(funnel, target_acceptance=0.99)[-1] < count / 2


@pytest.mark.thorough
def test_divergences_of_a_noise_that_goes_to_0():
    def model(x, y=None, prior=None):
        slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([4]).to_event(1))
        noise = numpyro.sample("noise", prior or dist.HalfNormal(1.0))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ slopes, noise), obs=y)

    x = np.c_[np.random.default_rng(2).normal(size=(5, 3)), np.ones(5)]
    rows = x, x @ [1.0, 0.5, 0.0, 0.2]

    def diverging(model):
        posterior = bnn.condition(model, rows)
        options = {"num_chains": 4, "num_warmup": 300, "num_draws": 500}
        draws = sampled(posterior, bnn.nuts(posterior), **options)
        return posterior, draws, int(draws.sample_stats.diverging.sum())

    posterior, draws, count = diverging(model)
    assert told(posterior, draws, "divergences").startswith("a noise that is bounded further")
    assert diverging(partial(model, prior=bnn.priors.noise(0.3)))[-1] < count / 2


@pytest.mark.thorough
def test_a_prior_that_is_too_narrow_is_told_from_the_bias_of_a_method():
    def model(x, y=None, width=1e-3):
        slope = numpyro.sample("slope", dist.Normal(0, width))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(slope * x[:, 0], 0.5), obs=y)

    narrow = bnn.condition(model, (X, Y - Y.mean()))
    advice = told(narrow, sampled(narrow, bnn.sgld(narrow)), "worse_than_mean")
    assert advice == "a wider prior, shorter steps, or start from another fit (init=)"


@pytest.mark.thorough
def test_divergences_of_a_model_without_a_learnt_scale(posterior):
    options = {"init": _near(posterior), "num_warmup": 0}
    draws = sampled(posterior, bnn.hmc(posterior, 0.1, 1.0), **options)
    kind = {"all_diverge", "divergences"} & {*kinds(posterior, draws)}
    assert told(posterior, draws, kind.pop()).startswith("shorter steps (a smaller step_size)")
    draws = sampled(posterior, bnn.hmc(posterior, 0.005, 0.05), **options)
    assert not {"all_diverge", "divergences", "some_divergences"} & {*kinds(posterior, draws)}


@pytest.mark.thorough
def test_particles_that_lag_and_particles_that_are_few():
    x = np.random.default_rng(7).normal(size=(100, 10))
    y = x.sum(1) + 0.1 * np.random.default_rng(8).normal(size=100)
    posterior = bnn.condition(partial(known, width=3.0, noise=0.1), (x, y))

    def drawn(num_particles, target_ess):
        options = {"num_particles": num_particles, "target_ess": target_ess, "max_num_steps": 4}
        method = bnn.tempered_smc(posterior, **options)
        return sampled(posterior, method, num_warmup=500, num_draws=num_particles)

    far = drawn(20, 0.1)
    assert told(posterior, far, "lag") == "more exponents (target_ess nearer to 1)"
    near = drawn(20, 0.97)
    assert "lag" not in kinds(posterior, near)
    assert told(posterior, near, "disagree") == "more particles (num_particles)"
    assert bnn.verdict(posterior, drawn(100, 0.97)).converged


def test_without_the_chain_that_diverges_the_others_are_right(posterior):
    diverging = np.zeros((3, 100), bool)
    diverging[1] = True
    slope = 2 + 0.01 * RNG.normal(size=(3, 100)) + 9 * diverging
    noise = 0.1 + 0.01 * np.abs(RNG.normal(size=(3, 100)))
    values, stats = {"slope": slope, "noise": noise}, {"diverging": diverging}
    draws = draws_of_arrays({"posterior": values, "sample_stats": stats})
    assert told(posterior, draws, "divergences").startswith("leave out that chain")
    assert bnn.verdict(posterior, draws.isel(chain=[0, 2])).converged


# --- do fits reach what they fit?


@pytest.mark.thorough
def test_training_that_ran_out_of_steps(posterior):
    draws = sampled(posterior, bnn.descent(posterior), num_warmup=30, **FIT)
    assert told(posterior, draws, "unfinished").startswith("raise num_warmup; held-out rows tell")
    longer = sampled(posterior, bnn.descent(posterior), num_warmup=20_000, **FIT)
    assert "unfinished" not in kinds(posterior, longer)
    rows = RNG.normal(size=(100, 1))
    rows = rows, 2 * rows[:, 0] + 0.1 * RNG.normal(size=100)
    assert nll(posterior, longer, rows) < nll(posterior, draws, rows)


@pytest.mark.thorough
def test_an_approximation_that_is_far_from_the_point_it_started_from(posterior):
    start = sampled(posterior, bnn.descent(posterior, learning_rate=0.05), num_warmup=500, **FIT)
    options = {"init": start, "num_chains": 1, "verdict": True}
    wide = bnn.mfvi(posterior, init_std=2.0, learning_rate=1e-9)
    with pytest.warns(bnn.VerdictWarning):
        draws = sampled(posterior, wide, num_warmup=1, num_draws=100, thin=0, **options)
    assert "use hmc" in told(posterior, draws, "far_from_start")
    members = bnn.descent(posterior, learning_rate=0.05)
    ensemble = sampled(posterior, members, num_warmup=500, **FIT | {"num_chains": 3})
    for better in (sampled(posterior, bnn.hmc(posterior), **options), ensemble):
        assert nll(posterior, better, (X, Y)) < nll(posterior, draws, (X, Y)) - 0.5


@pytest.mark.thorough
def test_a_laplace_approximation_that_is_too_wide():
    digits = bnn.data.load("digits", subset=400)
    network = partial(bnn.nets.MLP, 64, (50,), 10)
    model = bnn.models.classifier(network, bnn.priors.fan_in(5.0))
    posterior = bnn.condition(model, digits.train)
    options = {"num_chains": 1, "progress": False, "verdict": True}
    with pytest.warns(bnn.VerdictWarning):
        draws = bnn.run(KEY, posterior, bnn.laplace(posterior), **options)
    assert "structure='last_layer'" in told(posterior, draws, "far_from_start")
    last = bnn.laplace(posterior, "last_layer")
    narrower = bnn.run(KEY, posterior, last, **options | {"verdict": False})
    assert nll(posterior, narrower, digits.test) < nll(posterior, draws, digits.test) - 0.1


@pytest.mark.thorough
def test_a_noise_at_the_floor_of_its_prior(posterior):
    above = bnn.condition(partial(line, floor=0.5), (X, Y))
    draws = sampled(above, bnn.nuts(above))
    assert told(above, draws, "bound").startswith("move this bound")
    lower = sampled(posterior, bnn.nuts(posterior))
    assert not kinds(posterior, lower)
    assert nll(posterior, lower, (X, Y)) < nll(above, draws, (X, Y)) - 0.5


def test_a_scale_at_the_ceiling_of_its_prior():
    def limited(x, y=None, most=0.5):
        slope = numpyro.sample("slope", dist.Uniform(0.0, most))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(slope * x[:, 0], 0.1), obs=y)

    near = bnn.condition(limited, (X, Y))
    slope = 0.5 - 1e-3 * np.random.default_rng(0).random((4, 100))
    draws = draws_of_arrays({"posterior": {"slope": slope}})
    assert told(near, draws, "bound").startswith("move this bound")
    free = bnn.condition(partial(limited, most=5.0), (X, Y))
    moved = draws_of_arrays({"posterior": {"slope": 2 + 0.01 * RNG.normal(size=(4, 100))}})
    assert not kinds(free, moved) and nll(free, moved, (X, Y)) < nll(near, draws, (X, Y))


def many(x, y=None, width=1.0):
    weights = numpyro.sample("weights", dist.Normal(0, width).expand([x.shape[1]]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(x @ weights, noise), obs=y)


@pytest.mark.thorough
def test_a_fit_of_many_weights_to_few_rows_understates_the_noise():
    x, truth = RNG.normal(size=(225, 20)), RNG.normal(size=20)
    y = x @ truth + RNG.normal(size=225)
    posterior, rows = bnn.condition(many, (x[:25], y[:25])), (x[25:], y[25:])
    method = bnn.descent(posterior, learning_rate=0.02)
    fit = sampled(posterior, method, num_warmup=3000, **FIT)
    assert told(posterior, fit, "narrow") == "use hmc or sghmc"
    for method in (bnn.hmc(posterior), bnn.sghmc(posterior)):
        draws = sampled(posterior, method, num_draws=100)
        assert nll(posterior, draws, rows) < nll(posterior, fit, rows) - 0.5


@pytest.mark.thorough
def test_more_members_predict_better_than_few_that_differ():
    x, rows = np.linspace(-1, 1, 20)[:, None], np.random.default_rng(2).uniform(-1, 1, (200, 1))
    net = partial(bnn.nets.MLP, 1, (20,), 1)
    model = bnn.models.regressor(net, bnn.priors.normal(2.0), 0.3)
    posterior = bnn.condition(model, (x, np.sin(6 * x[:, 0])))
    brief = bnn.descent(posterior, learning_rate=0.01)
    ensemble = sampled(posterior, brief, num_warmup=50, **FIT | {"num_chains": 8})
    method = bnn.mfvi(posterior, init_std=0.02, learning_rate=1e-9)
    options = {"num_chains": 8, "num_warmup": 1, "thin": 0, "num_draws": 10, "init": ensemble}
    more = sampled(posterior, method, **options)
    few, others = more.isel(chain=slice(4)), more.isel(chain=slice(4, 8))
    assert told(posterior, few, "members") == "use more members (num_chains)"
    rows = rows, np.sin(6 * rows[:, 0])
    means = [nll(posterior, half, rows) for half in (few, others)]
    assert nll(posterior, more, rows) < np.mean(means)


# --- do they predict?


@pytest.mark.thorough
def test_a_run_that_has_not_learnt_starts_from_a_fit(posterior):
    still = bnn.hmc(posterior, 1e-6, 1e-5)
    away = posterior.unconstrain({"slope": np.asarray(-1.0), "noise": np.asarray(0.5)})
    draws = sampled(posterior, still, num_warmup=0, init=away)
    assert "or start from " in told(posterior, draws, "worse_than_mean")
    fit = sampled(posterior, bnn.descent(posterior, learning_rate=0.05), num_warmup=500, **FIT)
    started = sampled(posterior, bnn.hmc(posterior), init=fit)
    assert bnn.verdict(posterior, started).converged


@pytest.mark.thorough
@pytest.mark.parametrize(("width", "kind"), [(1e-4, "worse_than_mean")])
def test_a_prior_that_is_too_narrow_to_learn(width, kind):
    y = Y - Y.mean()

    def model(x, y=None, width=2.0):
        slope = numpyro.sample("slope", dist.Normal(0, width))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(slope * x[:, 0], 1.0), obs=y)

    narrow = bnn.condition(partial(model, width=width), (X, y))
    draws = sampled(narrow, bnn.nuts(narrow))
    assert told(narrow, draws, kind).startswith("a wider prior")
    wide = bnn.condition(model, (X, y))
    assert kind not in kinds(wide, sampled(wide, bnn.nuts(wide)))


@pytest.mark.thorough
def test_data_of_another_scale(posterior):
    far = bnn.condition(line, (X, 1000 * Y))
    draws = sampled(far, bnn.nuts(far))
    assert told(far, draws, "worse_than_mean").startswith("scale y to mean 0 and sd 1")
    scaled = bnn.condition(line, (X, Y / Y.std()))
    assert bnn.verdict(scaled, sampled(scaled, bnn.nuts(scaled))).converged


@pytest.mark.thorough
def test_inputs_of_another_scale():
    far = bnn.condition(line, (1000 * X, Y))
    draws = sampled(far, bnn.hmc(far, 1e-3, 1e-2), num_warmup=0, init=far.init(KEY))
    assert told(far, draws, "worse_than_mean").startswith("scale the inputs to mean 0 and sd 1")
    scaled = bnn.condition(line, (X / X.std(), Y))
    assert bnn.verdict(scaled, sampled(scaled, bnn.hmc(scaled))).converged


@quick_first("cause", ["rate", "steps"])
def test_a_fit_that_has_not_learnt_takes_another_rate_or_more_steps(posterior, cause):
    away = posterior.unconstrain({"slope": np.asarray(-1.0), "noise": np.asarray(0.5)})
    fit = partial(sampled, posterior, **FIT, init=away)
    if cause == "rate":
        draws = fit(bnn.descent(posterior, learning_rate=1e-6), num_warmup=500)
        assert told(posterior, draws, "worse_than_mean").startswith("another learning_rate, or no")
        better = fit(bnn.descent(posterior, learning_rate=0.05), num_warmup=500)
    else:
        draws = fit(bnn.descent(posterior), num_warmup=2)
        assert told(posterior, draws, "worse_than_mean") == "more steps (num_warmup)"
        better = fit(bnn.descent(posterior), num_warmup=3000)
    assert "worse_than_mean" not in kinds(posterior, better)


def logistic(x, y=None, width=1.0):
    weights = numpyro.sample("weights", dist.Normal(0, width).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def drawn_from(model, rows, **options):
    posterior = bnn.condition(model, rows, **options)
    return posterior, sampled(posterior, bnn.hmc(posterior), thin=3)


@pytest.mark.thorough
def test_random_labels_are_not_told_to_train_for_longer():
    """Nor is anything else advised that would predict other rows worse."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(1300, 5)), (rng.random(1300) < 0.3).astype(int)
    net = partial(bnn.nets.MLP, 5, (20,), 2)

    def fit(width, num_warmup):
        model = bnn.models.classifier(net, bnn.priors.normal(width))
        posterior = bnn.condition(model, (x[:300], y[:300]))
        return posterior, sampled(posterior, bnn.descent(posterior), num_warmup=num_warmup, **FIT)

    found = {each.kind: each.advice for each in bnn.verdict(*fit(1.0, 300)).findings}
    assert found["uninformative"] == "other inputs; longer runs change nothing"
    assert set(found) <= {"uninformative", "overfits"}
    assert found.get("overfits", "a narrower prior").startswith("a narrower prior")
    rows = x[300:], y[300:]
    assert nll(*fit(0.1, 300), rows) < nll(*fit(1.0, 300), rows) + 0.01


@pytest.mark.thorough
def test_rows_that_a_fit_holds_out_by_itself_tell_how_it_predicts_others():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(1200, 5))
    y = (rng.random(1200) < 1 / (1 + np.exp(-2 * x[:, 0]))).astype(int)
    posterior = bnn.condition(logistic, (x[:200], y[:200]))
    options = FIT | {"num_chains": 4, "num_warmup": 20_000}
    draws = sampled(posterior, bnn.descent(posterior), **options)
    text = bnn.verdict(posterior, draws).text
    said = float(text.split("; NLL of held-out rows ")[1].split(",")[0])
    assert abs(said - nll(posterior, draws, (x[200:], y[200:]))) < 0.15


@pytest.mark.thorough
def test_labels_that_do_not_depend_on_the_inputs_are_not_the_fault_of_the_draws():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(100, 3)), (rng.random(100) < 0.3).astype(int)
    model = partial(logistic, width=0.3)
    x = np.concatenate([x, np.ones((100, 1))], axis=1)
    posterior, draws = drawn_from(model, (x, y))
    found = bnn.verdict(posterior, draws)
    assert found.converged and kinds(posterior, draws) == ["uninformative"]
    assert found.text.startswith("converged: R-hat of predictions")
    assert told(posterior, draws, "uninformative") == "other inputs; longer runs change nothing"
    x[:, 0] += 2 * y
    # A prior as narrow as that leaves these labels unsure, which is said where it is so.
    assert not kinds(*drawn_from(partial(logistic, width=0.5), (x, y)))


def gaussian(posterior, noise=None, width=1.0):
    """Draw from the Gaussian at the mode of `known` or `logistic`: for the former exactly."""
    x, y = (np.asarray(leaf) for leaf in posterior.data)
    mode = np.zeros(x.shape[1])
    for _ in range(50):
        probs = 1 / (1 + np.exp(-x @ mode))
        residual, curvature = y - probs, probs * (1 - probs)
        if noise is not None:
            residual, curvature = (y - x @ mode) / noise**2, np.full(len(y), noise**-2)
        precision = np.eye(len(mode)) / width**2 + (x * curvature[:, None]).T @ x
        step = np.linalg.solve(precision, x.T @ residual - mode / width**2)
        mode += step * min(1, 3 / np.abs(step).max())
    covariance = posterior.temperature * np.linalg.inv(precision)
    weights = np.random.default_rng(1).multivariate_normal(mode, covariance, size=(4, 200))
    return draws_of_arrays({"posterior": {"weights": weights}}, {"draws_from": "chain", "thin": 1})


@pytest.mark.thorough
def test_what_does_not_generalise_takes_a_narrower_prior():
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(460, 30)), rng.normal(size=460)
    wide, narrow = (
        bnn.condition(partial(known, width=width), (x[:60], y[:60])) for width in (10.0, 0.1)
    )
    draws, fewer = gaussian(wide, 1.0, 10.0), gaussian(narrow, 1.0, 0.1)
    assert told(wide, draws, "overfits") == "a narrower prior, or a smaller network"
    found = bnn.verdict(wide, draws)
    assert not found.converged and "; the draws have converged: R-hat" in found.text
    assert found.text.startswith("LEFT-OUT ROWS ARE PREDICTED WORSE THAN WITHOUT INPUTS (log ")
    assert "overfits" not in kinds(narrow, fewer)
    rows = x[60:], y[60:]
    assert nll(narrow, fewer, rows) < nll(wide, draws, rows) - 0.1
    small = bnn.condition(known, (x[:60, :1], y[:60]))
    assert "overfits" not in kinds(small, gaussian(small, 1.0))


@quick_first(
    ("noise", "kind", "advice"),
    [
        (0.2, "worse_than_mean", "more"),
        (0.3, "too_sure", "more"),
        (8.0, "unsure", "less"),
        (40.0, "worse_than_mean", "less"),
    ],
)
def test_a_noise_that_is_far_from_the_errors(noise, kind, advice):
    rng = np.random.default_rng(6)
    x = rng.normal(size=(460, 1))
    y = 10 * x[:, 0] + rng.normal(size=460)
    wrong, right = (
        bnn.condition(partial(known, width=10.0, noise=sd), (x[:60], y[:60])) for sd in (noise, 1)
    )
    draws, better = gaussian(wrong, noise, 10.0), gaussian(right, 1.0, 10.0)
    assert told(wrong, draws, kind) == f"a prior that allows {advice} noise"
    assert not kinds(right, better)
    rows = x[60:], y[60:]
    assert nll(right, better, rows) < nll(wrong, draws, rows) - 0.5


@quick_first(("seed", "slope", "columns", "cold"), [(0, 1.0, 50, 0.3), (7, 3.0, 60, 1.0)])
def test_classes_predicted_far_more_surely_than_they_are_right(seed, slope, columns, cold):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(600, columns))
    y = (rng.random(600) < 1 / (1 + np.exp(-slope * x[:, 0]))).astype(int)

    def drawn(width, temperature):
        model = partial(logistic, width=width)
        posterior = bnn.condition(model, (x[:200], y[:200]), temperature=temperature)
        return posterior, gaussian(posterior, width=width)

    wrong = drawn(10.0, cold)
    advice = "a temperature of 1, or a narrower prior" if cold < 1 else "a narrower prior"
    assert told(*wrong, "too_sure") == advice
    rows = x[200:], y[200:]
    for better in [drawn(0.3, cold), *([drawn(10.0, 1.0)] if cold < 1 else [])]:
        assert "too_sure" not in kinds(*better)
        assert nll(*better, rows) < nll(*wrong, rows)


def spread_by_x(x, y=None):
    net = partial(bnn.nets.MLP, 1, (30,), 2)
    mean, raw = bnn.random_network("net", net, bnn.priors.normal(2.0))(x).T
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(mean, jax.nn.softplus(raw) + 1e-4), obs=y)


@pytest.mark.thorough
def test_training_that_overfits_is_not_told_to_go_on():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(320, 1))
    y = np.sin(3 * x[:, 0]) + 0.3 * rng.normal(size=320)
    posterior, rows = bnn.condition(spread_by_x, (x[:20], y[:20])), (x[20:], y[20:])
    scored = {"score_every": 50, "held_out": rows}

    def fit(num_warmup, **options):
        method = bnn.descent(posterior, optax.adam(0.01), **options)
        given = {} if options else scored
        return sampled(posterior, method, num_warmup=num_warmup, **FIT, **given)

    over = fit(4000)
    over.attrs["training_ended"] = 0
    advice = told(posterior, over, "overfits")
    assert "unfinished" not in kinds(posterior, over) and "raise" not in advice
    steps = int(advice.split("num_warmup=")[1].split(")")[0])
    assert (
        advice
        == f"stop there (num_warmup={steps}), or stop on held-out rows (held_out= of descent)"
    )
    for better in (fit(steps), fit(4000, held_out=rows)):
        assert nll(posterior, better, rows) < nll(posterior, over, rows) - 0.5
        assert "overfits" not in kinds(posterior, better)


@pytest.mark.thorough
@pytest.mark.parametrize("cause", ["prior", "temperature"])
def test_predictions_far_less_sure_than_right(cause):
    x = RNG.normal(size=(100, 2))
    y = (x[:, 0] > 0).astype(int)
    width, hot = (0.1, 1.0) if cause == "prior" else (3.0, 100.0)
    options = {"temperature": hot, "tempered": "likelihood"}
    posterior, draws = drawn_from(partial(logistic, width=width), (x, y), **options)
    wanted = {"prior": "a wider prior", "temperature": "a temperature of 1, or a wider prior"}
    assert told(posterior, draws, "unsure") == wanted[cause]
    assert "unsure" not in kinds(*drawn_from(partial(logistic, width=3.0), (x, y)))
