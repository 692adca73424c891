"""Programs as tutorials write them have NumPyro's density here, and predict rows of any number."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers, plate, sample
from numpyro.contrib.control_flow import scan
from numpyro.infer import log_likelihood
from numpyro.infer.reparam import ProjectedNormalReparam
from numpyro.infer.util import potential_energy

import bnn_ppl as bnn
from bnn_ppl.analysis.verdict.training_rows import predict_training_rows

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 2)).astype(np.float32)
Y = (X[:, 0] + 0.3 * RNG.normal(size=20)).astype(np.float32)
MISSING = np.where(np.arange(20) % 5, RNG.poisson(2.0, size=20), np.nan)


def weights(num=2):
    return sample("w", dist.Normal(0, 1).expand([num]).to_event(1))


def linear(x, y=None):
    w, noise = weights(), sample("noise", dist.HalfNormal(1.0))
    with plate("rows", len(x)):
        sample("y", dist.Normal(x @ w, noise), obs=y)


def sum_to_zero(x, y=None):
    w = weights()
    sample("zero", dist.Normal(w.sum(), 0.01), obs=0.0)
    with plate("rows", len(x)):
        sample("y", dist.Normal(x @ w, 0.3), obs=y)


def in_a_scan(x, y=None):
    def step(carry, _):
        level = sample("level", dist.Normal(carry, 1.0))
        factor = sample("factor", dist.LogNormal(0.0, 0.3))
        return level, level * factor

    w, (_, levels) = weights(), scan(step, 0.0, jnp.arange(3))
    with plate("rows", len(x)):
        sample("y", dist.Normal(x @ w + levels.sum(), 0.3), obs=y)


def shared(x, y=None):
    mean, noise = sample("mean", dist.Normal(0, 1)), sample("noise", dist.HalfNormal(1.0))
    with plate("rows", len(x)):
        sample("y", dist.Normal(mean, noise), obs=y)


def without_a_plate(x, y=None):
    mean, noise = sample("mean", dist.Normal(0, 1)), sample("noise", dist.HalfNormal(1.0))
    sample("y", dist.Normal(mean, noise), obs=y)


def one_mean_for_outputs(x, y=None):
    law = dist.StudentT(4.0, (x @ weights())[:, None], 0.3)
    with plate("rows", len(x)):
        sample("y", law.expand([len(x), 3]).to_event(1), obs=y)


def columns_of_means(x, y=None):
    sample("y", dist.Normal((x @ weights())[:, None], 0.3), obs=y)


def constraint_on_a_param(x, y=None):
    theta = numpyro.param("theta", 1.0)
    w = weights()
    sample("penalty", dist.Normal(theta, 0.1), obs=0.0 if y is not None else None)
    with plate("rows", len(x)):
        sample("y", dist.Normal(x @ w + theta, 0.3), obs=y)


def counts_of_classes(x, y=None):
    w = sample("w", dist.Normal(0, 1).expand([2, 3]).to_event(2))
    with plate("rows", len(x)):
        sample("y", dist.Multinomial(10, logits=x @ w), obs=y)


def counts(x, y=None):
    mask = True if y is None else ~jnp.isnan(y)
    w = weights()
    with plate("rows", len(x)), handlers.mask(mask=mask):
        sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)


def below_a_limit(x, y=None):
    law = dist.Normal(x[:, 0] * weights()[0], 0.3)
    with plate("rows", len(x)):
        sample("y", dist.LeftCensoredDistribution(law, x[:, 1]), obs=y)


PROGRAMS = {
    "a site held by a handler": (handlers.condition(linear, {"noise": 0.3}), Y),
    "a soft constraint": (sum_to_zero, Y),
    "sites in a scan": (in_a_scan, Y),
    "parameters that rows share": (shared, Y),
    "no plate": (without_a_plate, Y),
    "parameters that outputs share": (one_mean_for_outputs, np.stack([Y, Y, Y], 1)),
    "means of columns": (columns_of_means, np.stack([Y, Y, Y], 1)),
    "counts of classes": (counts_of_classes, RNG.multinomial(10, [0.2, 0.3, 0.5], size=20)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_numpyro_s_density_and_predicts_rows_of_any_number(name):
    model, y = PROGRAMS[name]
    posterior = bnn.condition(model, (X, y))
    first, second = (posterior.init(jax.random.key(seed)) for seed in (1, 2))
    ours = [posterior.logdensity(at, posterior.data) for at in (first, second)]
    theirs = [-potential_energy(model, (X, y), {}, at) for at in (first, second)]
    # Constants, such as the density of a site that is held, are no part of ours.
    np.testing.assert_allclose(ours[0] - ours[1], theirs[0] - theirs[1], rtol=2e-4)
    draws = bnn.run(
        *(jax.random.key(0), posterior, bnn.hmc(posterior, 0.01, 0.03)),
        **{"num_chains": 2, "num_warmup": 2, "num_draws": 4, "progress": False, "verdict": False},
    )
    for num_rows in (1, 3, 20):
        found = bnn.predict(posterior, draws, X[:num_rows])
        assert found["mean"].shape == (num_rows, *y.shape[1:])
        levels = bnn.predict_quantiles(posterior, draws, X[:num_rows], [0.1, 0.9])
        assert levels.shape == (2, num_rows, *y.shape[1:])
        assert (levels[0] <= levels[1]).all()
    scored = bnn.predict(posterior, draws, (X, y), crps=True)
    assert scored["crps"].shape == y.shape and np.isfinite(scored["crps"]).all()


def test_missing_counts_are_as_if_their_rows_were_not_there():
    known = ~np.isnan(MISSING)
    whole, part = (
        bnn.condition(counts, rows)
        for rows in ((X, MISSING), (X[known], MISSING[known].astype(int)))
    )
    for seed in (1, 2):
        at = whole.init(jax.random.key(seed))
        ours, expected = (
            jax.value_and_grad(each.logdensity)(at, each.data) for each in (whole, part)
        )
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), ours, expected)


def test_a_value_below_a_limit_may_be_anything_below_it():
    hidden = (Y < -0.5).astype(np.float32)
    x, y = np.stack([X[:, 0], hidden], 1), np.maximum(Y, -0.5)
    posterior = bnn.condition(below_a_limit, (x, y))
    draws = bnn.run(
        *(jax.random.key(0), posterior, bnn.hmc(posterior, 0.01, 0.03)),
        **{"num_chains": 1, "num_warmup": 2, "num_draws": 4, "progress": False, "verdict": False},
    )
    found = bnn.predict(posterior, draws, (x, y), crps=True)
    below = found["pit_lower"].values
    assert (below[hidden == 1] == 0).all() and (below[hidden == 0] > 0).all()
    assert np.isnan(found["crps"].values[hidden == 1]).all()
    assert np.isfinite(found["crps"].values[hidden == 0]).all()


def test_a_plate_of_one_size_is_refused_where_rows_are_others():
    def of_size(x, y=None):
        w = weights()
        with plate("rows", 20, subsample_size=5) as chosen:
            given = None if y is None else y[chosen]
            sample("y", dist.Normal(x[chosen] @ w, 0.3), obs=given)

    posterior = bnn.condition(of_size, (X, Y))
    draws = bnn.run(
        *(jax.random.key(0), posterior, bnn.hmc(posterior, 0.01, 0.03)),
        **{"num_chains": 1, "num_warmup": 2, "num_draws": 4, "progress": False, "verdict": False},
    )
    with pytest.raises(ValueError, match="got 7 rows to predict with a model that only works for"):
        bnn.predict(posterior, draws, X[:7])


def test_classes_that_are_hidden_in_rows_of_several_outputs_are_summed_out():
    def hidden(x, y=None):
        with plate("classes", 2):
            shares = sample("shares", dist.Beta(2.0, 2.0).expand([4]).to_event(1))
        w = weights()
        with plate("rows", len(x)):
            of = sample("of", dist.Bernoulli(logits=x @ w), infer={"enumerate": "parallel"})
            sample("y", dist.Bernoulli(shares[of]).to_event(1), obs=y)

    y = RNG.integers(0, 2, size=(20, 4))
    posterior = bnn.condition(hidden, (X, y))
    at = posterior.init(jax.random.key(1))
    values = posterior.constrain(at)
    ones = jax.nn.sigmoid(X @ values["w"])
    parts = [
        np.prod(np.where(y == 1, share, 1 - share), axis=1)
        for share in np.asarray(values["shares"])
    ]
    expected = np.log((1 - ones) * parts[0] + ones * parts[1])
    np.testing.assert_allclose(posterior.log_likelihood(at, posterior.data), expected, rtol=1e-4)


def test_a_value_computed_from_a_summed_out_site_is_not_recorded():
    def mixed(x, y=None):
        w = weights()
        with plate("rows", len(x)):
            of = sample("of", dist.Bernoulli(0.3))
            loc = numpyro.deterministic("loc", w[of])
            numpyro.deterministic("mean", x @ w)
            sample("y", dist.Normal(loc, 1.0), obs=y)

    posterior = bnn.condition(mixed, (X, Y))
    found = posterior.sites.deterministic({"w": jnp.array([-1.0, 5.0])})
    assert list(found) == ["mean"]


@pytest.mark.parametrize("how", ["scale", "mask"])
def test_a_factor_by_row_may_be_scaled_or_masked_by_the_data(how):
    def model(x, y=None):
        around = (
            handlers.scale(scale=abs(x[:, 0]))
            if how == "scale"
            else handlers.mask(mask=x[:, 0] > 0)
        )
        w = weights()
        with plate("rows", len(x)), around:
            numpyro.factor("likelihood", 0.0 if y is None else -((y - x @ w) ** 2))

    posterior = bnn.condition(model, (X, Y))
    w = np.array([0.5, -1.0], np.float32)
    shares = abs(X[:, 0]) if how == "scale" else X[:, 0] > 0
    expected = shares * -((Y - X @ w) ** 2)
    found = posterior.log_likelihood({"w": jnp.asarray(w)}, posterior.data)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_several_sites_may_share_parameters_between_rows_and_outputs():
    def model(x, y=None):
        y, w = y or {}, weights()
        sample("a", dist.Poisson(jnp.exp(w[0])), obs=y.get("a"))
        sample("b", dist.Normal((x @ w)[:, None], 1.0), obs=y.get("b"))

    y = {"a": np.arange(20) % 3, "b": np.stack([Y, Y, Y], 1)}
    posterior = bnn.condition(model, (X, y))
    draws = bnn.prior_draws(jax.random.key(0), posterior, 2)
    found = bnn.predict(posterior, draws, X[:4])
    assert found["a_mean"].shape == (4,) and found["b_mean"].shape == (4, 3)
    drawn = bnn.predictive_draws(jax.random.key(0), posterior, draws, (X, y))
    assert drawn.posterior_predictive["y"].shape == (1, 2, 20, 4)


def test_a_law_may_have_numbers_of_python_among_its_parameters():
    def model(x, y=None):
        moved = dist.transforms.AffineTransform(-2.0, 3.0)
        rates = jnp.exp(x @ weights())
        with plate("rows", len(x)):
            sample("y", dist.TransformedDistribution(dist.Exponential(rates), moved), obs=y)

    posterior = bnn.condition(model, (X, abs(Y)))
    draws = bnn.prior_draws(jax.random.key(0), posterior, 2)
    found = bnn.predict(posterior, draws, (X, abs(Y)))
    assert np.isfinite(found["entropy"]).all()


def test_a_latent_delta_is_refused():
    def model(x, y=None):
        w = weights()
        total = sample("total", dist.Delta(w.sum()))
        with plate("rows", len(x)):
            sample("y", dist.Normal(x @ w + total, 1.0), obs=y)

    with pytest.raises(ValueError, match=r"got the latent site 'total' of Delta, expected"):
        bnn.condition(model, (X, Y))


def test_a_latent_direction_is_refused_unless_it_is_reparametrised():
    def model(x, y=None):
        direction = sample("direction", dist.ProjectedNormal(jnp.ones(2)))
        with plate("rows", len(x)):
            sample("y", dist.Normal(x @ direction, 1.0), obs=y)

    with pytest.raises(ValueError, match="got the latent site 'direction' of ProjectedNormal"):
        bnn.condition(model, (X, Y))
    config = {"direction": ProjectedNormalReparam()}
    assert bnn.condition(handlers.reparam(model, config=config), (X, Y)).sites.num_weights == 2


def test_intervals_are_refused_by_name():
    def model(x, y=None):
        law, no = dist.Normal(x @ weights(), 1.0), jnp.zeros(len(x))
        with numpyro.plate("rows", len(x)):
            sample("y", dist.IntervalCensoredDistribution(law, no, no), obs=y)

    with pytest.raises(ValueError, match="got IntervalCensoredDistribution at site 'y', expected"):
        bnn.condition(model, (X, np.stack([Y - 1, Y + 1], 1)))


def test_columns_that_no_likelihood_can_have_are_refused():
    y = np.arange(4.0)
    with pytest.raises(ValueError, match=r"got 10\.5 trials, expected whole numbers, at least 1"):
        bnn.likelihoods.binomial(y, [9, 10.5, 9, 9])
    with pytest.raises(ValueError, match="got an exposure of 0, expected numbers above 0"):
        bnn.likelihoods.poisson(y, exposure=[1, 0, 1, 1])


def test_a_constraint_on_a_param_counts_in_its_fit():
    posterior = bnn.condition(constraint_on_a_param, (X, Y))
    at = posterior.init(jax.random.key(0))
    slope = jax.grad(posterior.logdensity)(at, posterior.data)["theta"]
    residuals = Y - X @ at["w"] - at["theta"]
    np.testing.assert_allclose(slope, residuals.sum() / 0.3**2 - at["theta"] / 0.1**2, rtol=1e-3)


def observing(value):
    def model(x, y=None):
        w = weights()
        with plate("rows", len(x)):
            sample("y", dist.Normal(x @ w, 0.3), obs=None if y is None else value(y))

    return model


def times(x, y=None):
    time, event = (None, jnp.ones(len(x))) if y is None else (y[:, 0], y[:, 1])
    law = dist.Weibull(jnp.exp(x @ weights()), 2.0)
    with plate("rows", len(x)):
        sample("y", dist.RightCensoredDistribution(law, 1 - event), obs=time)


def hot(x, y=None):
    w = sample("w", dist.Normal(0, 1).expand([2, 3]).to_event(2))
    with plate("rows", len(x)):
        sample("y", dist.Categorical(logits=x @ w), obs=None if y is None else y.argmax(-1))


PARTS_OF_Y = {
    "a column": (observing(lambda y: y[:, 0]), np.stack([Y, Y**2], 1), (4, 2)),
    "an only column": (observing(lambda y: y.squeeze(-1)), Y[:, None], (4, 2)),
    "times and events": (times, np.stack([np.exp(Y), Y > 0], 1).astype(np.float32), (4, 2)),
    "one-hot rows": (hot, np.eye(3)[np.arange(20) % 3], (4, 2, 3)),
}


@pytest.mark.parametrize("name", PARTS_OF_Y)
def test_a_part_of_y_that_is_observed_is_what_is_scored(name):
    model, y, shape = PARTS_OF_Y[name]
    posterior = bnn.condition(model, (X, y))
    values = {"w": np.random.default_rng(1).normal(size=shape).astype(np.float32)}
    draws = bnn.from_numpyro(posterior, values)
    by_draw = log_likelihood(model, values, X, jnp.asarray(y))["y"]
    expected = jax.nn.logsumexp(by_draw, axis=0) - np.log(4)
    found = bnn.predict(posterior, draws, (X, y), crps=True)
    np.testing.assert_allclose(found.log_prob, expected, rtol=2e-4)
    assert ("probs" in found) or found.crps.shape == (20,)
    judged = predict_training_rows(posterior, draws)
    np.testing.assert_allclose(judged.log_score, expected, rtol=2e-4)
    assert judged.y.shape == (20,)
    drawn = bnn.predictive_draws(jax.random.key(0), posterior, draws)
    np.testing.assert_allclose(drawn.log_likelihood.y[0], by_draw, rtol=2e-4)
    assert drawn.observed_data.y.shape == (20,)


def test_a_part_of_y_outside_of_the_support_is_refused():
    def model(x, y=None):
        w = sample("w", dist.Normal(0, 1).expand([2, 3]).to_event(2))
        with plate("rows", len(x)):
            sample("y", dist.Categorical(logits=x @ w), obs=None if y is None else y[:, 0])

    with pytest.raises(ValueError, match="got y from -1 to 18 at site 'y', expected from 0 to 2"):
        bnn.condition(model, (X, np.arange(-1, 19)[:, None]))


def of_two(x, y=None):
    w = weights()
    with plate("rows", len(x)):
        sample("a", dist.Normal(x @ w, 0.3), obs=None if y is None else jnp.log(y["a"]))
        sample("b", dist.Normal(x @ w, 0.3), obs=None if y is None else y["b"])


def residual(x, y=None):
    mean = x @ weights()
    with plate("rows", len(x)):
        sample("y", dist.Normal(0.0, 0.3), obs=None if y is None else y[:, 0] - mean)


@pytest.mark.parametrize(
    ("model", "y"),
    [
        (observing(jnp.log), np.exp(Y)),
        (observing(lambda y: (y - 5) / 2), Y),
        (observing(lambda y: y - 1), np.arange(20)),
        (observing(lambda y: jnp.log(y[:, 0])), np.exp(np.stack([Y, Y], 1))),
        (observing(lambda y: y[:, 0] - y[:, 1]), np.stack([Y, Y[::-1]], 1)),
        (of_two, {"a": np.exp(Y), "b": Y}),
        (residual, Y[:, None]),
    ],
)
def test_a_function_of_y_is_not_observed_in_the_place_of_y(model, y):
    with pytest.raises(ValueError, match="got a model that observes a function of y at site"):
        bnn.condition(model, (X, y))


def test_values_that_are_hidden_may_be_others_than_those_of_y():
    def model(x, y=None):
        known = True if y is None else ~jnp.isnan(y)
        mean = x @ weights()
        with plate("rows", len(x)), handlers.mask(mask=known):
            sample("y", dist.Normal(mean, 0.3), obs=None if y is None else jnp.where(known, y, 0.0))

    posterior = bnn.condition(model, (X, np.where(np.arange(20) % 5, Y, np.nan)))
    assert posterior.density.observed is None


def test_a_class_that_a_mask_hides_may_be_another_than_that_of_y():
    y = np.eye(3)[np.arange(20) % 3]
    known = np.arange(20) % 5 > 0

    def classes(x, y=None):
        numbers = None if y is None else jnp.where(known, y.argmax(-1), 0)
        logits = jnp.outer(x @ weights(), jnp.arange(3.0))
        with plate("rows", len(x)), handlers.mask(mask=known):
            sample("y", dist.Categorical(logits=logits), obs=numbers)

    assert bnn.condition(classes, (X, y)).density.observed is not None


def test_the_only_column_of_y_is_explained():
    def model(x, y=None):
        mean = x @ weights()
        with plate("rows", len(x)):
            sample("y", dist.Normal(mean, 0.3), obs=None if y is None else y.squeeze(-1))

    rows = X, Y[:, None]
    posterior = bnn.condition(model, rows)
    draws = bnn.prior_draws(jax.random.key(0), posterior, 8, 2)
    importance = bnn.explain(posterior, draws, rows, num_permutations=2, progress=False).importance
    assert np.isfinite(importance.to_numpy()).all()
    assert np.isfinite(bnn.chain_budget(posterior, draws, rows)["rmse"]).all()
    prediction = bnn.predict(posterior, draws, rows)
    expected = np.sqrt(np.mean((prediction["mean"].values - Y) ** 2))
    np.testing.assert_allclose(bnn.metrics.rmse(prediction, Y), expected, rtol=1e-5)


@pytest.mark.parametrize("observe", [lambda y: jnp.asarray(y), lambda y: y.astype(jnp.float32)])
def test_a_program_that_needs_y_for_its_value_alone_is_warned_of(observe):
    def model(x, y=None):
        mean = x @ weights()
        with plate("rows", len(x)):
            sample("y", dist.Normal(mean, 0.3), obs=observe(y))

    with pytest.warns(UserWarning, match="got a model that fails without y"):
        assert bnn.condition(model, (X, Y)).density.observed is None


def test_a_logarithm_of_a_column_is_a_function_of_y_too_and_clipped_ends_are_not():
    def model(observe, x, y=None):
        mean = x @ weights()
        with plate("rows", len(x)):
            sample("y", dist.Normal(mean, 0.3), obs=None if y is None else observe(y))

    positive = np.exp(Y)[:, None]
    with pytest.raises(ValueError, match="observes a function of y"):
        bnn.condition(partial(model, lambda y: jnp.log(y.squeeze(-1))), (X, positive))
    bnn.condition(partial(model, lambda y: y.squeeze(-1)), (X, positive))
    bnn.condition(partial(model, lambda y: jnp.clip(y, 1e-6, 1e9)), (X, np.maximum(Y, 0)))


def test_values_that_a_mask_hides_may_be_those_of_latent_sites():
    def model(x, y=None):
        mean, known = x @ weights(), True if y is None else ~jnp.isnan(y)
        value = None if y is None else jnp.where(known, y, mean)
        with plate("rows", len(x)):
            sample("y", dist.Normal(mean, 0.3).mask(known), obs=value)

    bnn.condition(model, (X, np.where(np.arange(20) % 5, Y, np.nan)))


def test_a_program_that_fails_without_y_is_warned_of():
    def model(x, y=None):
        with plate("rows", y.shape[0]):
            sample("y", dist.Normal(weights().sum(), 0.3), obs=y)

    message = r"got a model that fails without y .*size plates by x, as in numpyro\.plate\('data'"
    with pytest.warns(UserWarning, match=message):
        bnn.condition(model, (X, Y))


def test_angles_have_the_moments_of_numbers():
    def model(x, y=None):
        turn = sample("turn", dist.Normal(0.0, 1.0))
        with plate("rows", len(x)):
            sample("y", dist.VonMises(turn, 2.0), obs=y)

    posterior = bnn.condition(model, (X, Y))
    draws = bnn.from_numpyro(posterior, {"turn": np.zeros(20)})
    found = bnn.predict(posterior, draws, X[:3])
    np.testing.assert_allclose(found["variance"], 0.764, rtol=0.06)  # and not 1 - I_1(2) / I_0(2)
    np.testing.assert_allclose(found["mean"], 0.0, atol=0.03)
    assert predict_training_rows(posterior, draws).sd is None
