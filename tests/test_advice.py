"""Each advice of the verdict, tried: a run with the fault, and one that does as it is told."""

from functools import partial

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

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


def test_steps_of_sgld_that_are_not_finite(posterior):
    lengths = {"num_warmup": 0, "thin": 20, "batch_size": "all", "init": _near(posterior)}
    draws = sampled(posterior, bnn.sgld(posterior, 1e9), **lengths)
    assert told(posterior, draws, "not_finite") == "shorter steps (a smaller step_size)"
    draws = sampled(posterior, bnn.sgld(posterior, 1e-5), **lengths)
    assert "not_finite" not in kinds(posterior, draws)


def _near(posterior):
    return posterior.unconstrain({"slope": np.asarray(2.0), "noise": np.asarray(0.1)})


def test_steps_that_are_never_accepted(posterior):
    options = {"num_warmup": 0, "init": _near(posterior)}
    draws = sampled(posterior, bnn.hmc(posterior, 1e3, 1e3), **options)
    advice = "shorter steps (a smaller step_size), or more warm-up"
    assert told(posterior, draws, "stuck") == advice
    draws = sampled(posterior, bnn.hmc(posterior, 0.01, 0.1), **options)
    assert "stuck" not in kinds(posterior, draws)


def test_runs_that_are_too_short(posterior):
    method = bnn.hmc(posterior, 0.004, 0.02)
    for draws, kind, words in (
        (sampled(posterior, method, num_draws=2), "few_draws", "at least 4 from each of several"),
        (sampled(posterior, method, num_warmup=0, num_draws=20), "disagree", "run longer (more"),
        (sampled(posterior, method, num_draws=60), "few_independent", "more draws, or more steps"),
    ):
        assert told(posterior, draws, kind).startswith(words)
    longer = sampled(posterior, method, num_warmup=1000, num_draws=400, thin=20)
    assert bnn.verdict(posterior, longer).converged


def test_particles_on_their_way_reach_the_posterior_in_a_longer_warmup(posterior):
    method = bnn.tempered_smc(posterior, num_particles=16)
    short = sampled(posterior, method, num_chains=1, num_warmup=2)
    assert told(posterior, short, "tempered") == "raise num_warmup"
    longer = sampled(posterior, method, num_chains=1, num_warmup=200)
    assert "tempered" not in kinds(posterior, longer)


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


def test_training_that_ran_out_of_steps(posterior):
    draws = sampled(posterior, bnn.descent(posterior), num_warmup=30, **FIT)
    assert told(posterior, draws, "unfinished").startswith("raise num_warmup; held-out rows tell")
    longer = sampled(posterior, bnn.descent(posterior), num_warmup=20_000, **FIT)
    assert "unfinished" not in kinds(posterior, longer)
    rows = RNG.normal(size=(100, 1))
    rows = rows, 2 * rows[:, 0] + 0.1 * RNG.normal(size=100)
    assert nll(posterior, longer, rows) < nll(posterior, draws, rows)


def test_an_approximation_that_is_far_from_the_point_it_started_from(posterior):
    start = sampled(posterior, bnn.descent(posterior, learning_rate=0.05), num_warmup=500, **FIT)
    options = {"init": start, "num_chains": 1, "verdict": True}
    wide = bnn.mfvi(posterior, init_std=2.0, learning_rate=1e-9)
    with pytest.warns(bnn.VerdictWarning):
        draws = sampled(posterior, wide, num_warmup=1, num_draws=100, thin=0, **options)
    assert "use hmc" in told(posterior, draws, "far_from_start")
    exact = sampled(posterior, bnn.hmc(posterior), **options)
    assert nll(posterior, exact, (X, Y)) < nll(posterior, draws, (X, Y)) - 0.5


def test_a_noise_at_the_floor_of_its_prior(posterior):
    above = bnn.condition(partial(line, floor=0.5), (X, Y))
    draws = sampled(above, bnn.nuts(above))
    assert told(above, draws, "bound").startswith("move that bound")
    lower = sampled(posterior, bnn.nuts(posterior))
    assert not kinds(posterior, lower)
    assert nll(posterior, lower, (X, Y)) < nll(above, draws, (X, Y)) - 0.5


def many(x, y=None, width=1.0):
    weights = numpyro.sample("weights", dist.Normal(0, width).expand([x.shape[1]]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(x @ weights, noise), obs=y)


def test_a_fit_of_many_weights_to_few_rows_understates_the_noise():
    x, truth = RNG.normal(size=(225, 20)), RNG.normal(size=20)
    y = x @ truth + RNG.normal(size=225)
    posterior, rows = bnn.condition(many, (x[:25], y[:25])), (x[25:], y[25:])
    method = bnn.descent(posterior, learning_rate=0.02)
    fit = sampled(posterior, method, num_warmup=3000, **FIT)
    assert told(posterior, fit, "narrow") == "use hmc or sghmc"
    draws = sampled(posterior, bnn.hmc(posterior), num_draws=100)
    assert nll(posterior, draws, rows) < nll(posterior, fit, rows) - 0.5


# --- do they predict?


def test_a_run_that_has_not_learnt_starts_from_a_fit(posterior):
    still = bnn.hmc(posterior, 1e-6, 1e-5)
    away = posterior.unconstrain({"slope": np.asarray(-1.0), "noise": np.asarray(0.5)})
    draws = sampled(posterior, still, num_warmup=0, init=away)
    assert "or start from " in told(posterior, draws, "worse_than_mean")
    fit = sampled(posterior, bnn.descent(posterior, learning_rate=0.05), num_warmup=500, **FIT)
    started = sampled(posterior, bnn.hmc(posterior), init=fit)
    assert bnn.verdict(posterior, started).converged


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


def test_data_of_another_scale(posterior):
    far = bnn.condition(line, (X, 1000 * Y))
    draws = sampled(far, bnn.nuts(far))
    assert told(far, draws, "overfits").startswith("scale the y to mean 0 and sd 1")
    scaled = bnn.condition(line, (X, Y / Y.std()))
    assert bnn.verdict(scaled, sampled(scaled, bnn.nuts(scaled))).converged


def logistic(x, y=None, width=1.0):
    weights = numpyro.sample("weights", dist.Normal(0, width).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def drawn_from(model, rows, **options):
    posterior = bnn.condition(model, rows, **options)
    return posterior, sampled(posterior, bnn.nuts(posterior), thin=3)


def test_labels_that_do_not_depend_on_the_inputs_are_not_the_fault_of_the_draws():
    x, y = RNG.normal(size=(100, 3)), (RNG.random(100) < 0.3).astype(int)
    model = partial(logistic, width=0.3)
    x = np.concatenate([x, np.ones((100, 1))], axis=1)
    posterior, draws = drawn_from(model, (x, y))
    found = bnn.verdict(posterior, draws)
    assert found.converged and kinds(posterior, draws) == ["uninformative"]
    assert found.text.startswith("converged: R-hat of predictions")
    assert told(posterior, draws, "uninformative") == "other inputs; longer runs change nothing"
    x[:, 0] += 2 * y
    assert not kinds(*drawn_from(model, (x, y)))


def spread_by_x(x, y=None):
    net = partial(bnn.nets.MLP, 1, (30,), 2)
    mean, raw = bnn.random_network("net", net, bnn.priors.normal(2.0))(x).T
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(mean, jax.nn.softplus(raw) + 1e-4), obs=y)


def test_training_that_overfits_is_not_told_to_go_on():
    x = RNG.uniform(-1, 1, size=(320, 1))
    y = np.sin(3 * x[:, 0]) + 0.3 * RNG.normal(size=320)
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


@pytest.mark.parametrize("cause", ["prior"])
def test_predictions_far_less_sure_than_right(cause):
    x = RNG.normal(size=(100, 2))
    y = (x[:, 0] > 0).astype(int)
    width, hot = (0.1, 1.0) if cause == "prior" else (3.0, 100.0)
    posterior, draws = drawn_from(partial(logistic, width=width), (x, y), temperature=hot)
    wanted = {"prior": "a wider prior", "temperature": "a temperature of 1"}[cause]
    assert told(posterior, draws, "unsure") == wanted
    assert "unsure" not in kinds(*drawn_from(partial(logistic, width=3.0), (x, y)))


def test_errors_far_smaller_than_predicted():
    def known(x, y=None, noise=1.0):
        slope = numpyro.sample("slope", dist.Normal(0, 2))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(slope * x[:, 0], noise), obs=y)

    posterior, draws = drawn_from(known, (X, Y))
    assert told(posterior, draws, "unsure") == "priors that allow less noise"
    assert not kinds(*drawn_from(line, (X, Y)))
