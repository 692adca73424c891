"""Programs of NumPyro's users: their densities, draws and predictions."""

import warnings
from contextlib import nullcontext
from functools import partial

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from marks import quick_first
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import log_density
from programs.battery import CLASS, COUNT, MISSING, PROGRAMS, REAL, ROWS, X, weights

import bnn_ppl as bnn
from bnn_ppl.analysis.verdict.training_rows import predict_training_rows


def conditioned(name):
    return bnn.condition(PROGRAMS[name].model, PROGRAMS[name].data)


def few_draws(posterior, folder=None, num_chains=1, **options):
    lengths = {"num_warmup": 5, "num_draws": 6, "num_chains": num_chains}
    method = bnn.hmc(posterior, step_size=0.01, trajectory_length=0.02)
    return bnn.run(
        jax.random.key(0), posterior, method, folder=folder, progress=False, **lengths, **options
    )


@quick_first("name", PROGRAMS)
def test_the_density_is_that_of_numpyro(name):
    program = PROGRAMS[name]
    posterior = conditioned(name)
    x, y = program.data
    for seed in range(2):
        position = posterior.init(jax.random.key(seed))
        values = posterior.constrain(position)
        expected, _ = log_density(program.plain, (x, y), {}, values)
        terms = posterior.density.terms(position, posterior.rows.examples)
        found = terms.log_prior + terms.log_likelihood.sum()
        np.testing.assert_allclose(found, expected, rtol=2e-5)


@quick_first("name", ["nnx_module", "two_heads", "discrete"])
def test_programs_run_predict_and_are_stored(name, tmp_path):
    posterior = conditioned(name)
    draws = few_draws(posterior, tmp_path / "run")
    stored = bnn.diagnostics.load(tmp_path / "run")
    assert set(stored.posterior.data_vars) == set(draws.posterior.data_vars)
    for site, values in draws.posterior.items():
        np.testing.assert_array_equal(stored.posterior[site], values)
    prediction = bnn.predict(posterior, stored, PROGRAMS[name].data)
    assert np.isfinite(prediction.log_prob).all()
    assert len(bnn.metrics.summary(prediction, PROGRAMS[name].data[1])) >= 4


def test_sites_keep_their_names_and_the_same_call_resumes_them(tmp_path):
    posterior = conditioned("nnx_module")
    few_draws(posterior, tmp_path / "run")
    draws = few_draws(posterior, tmp_path / "run")  # whole: nothing is computed
    assert set(draws.posterior.data_vars) == {"net/bias", "net/kernel"}
    zarr = pytest.importorskip("zarr")
    assert "net%2Fkernel" in zarr.open_group(tmp_path / "run" / "draws.zarr")["posterior"]


@pytest.mark.thorough
def test_sites_of_several_targets_predict_as_they_do_alone():
    posterior = conditioned("two_heads")
    draws = few_draws(posterior)
    x, y = PROGRAMS["two_heads"].data

    def label(x, c=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2, 2]).to_event(2))
        with numpyro.plate("data", len(x)):
            numpyro.sample("c", dist.Bernoulli(logits=x @ w[:, 1]), obs=c)

    alone = bnn.predict(bnn.condition(label, (x, CLASS)), draws, (x, CLASS))
    both = bnn.predict(posterior, draws, (x, y))
    np.testing.assert_allclose(both.c_probs, alone.probs, rtol=1e-6)
    np.testing.assert_allclose(both.c_log_prob, alone.log_prob, rtol=1e-5)
    of_site = bnn.of_site(posterior, "y")
    np.testing.assert_allclose(both.y_mean, bnn.predict(of_site, draws, x)["mean"], rtol=1e-6)
    assert bnn.predict_quantiles(of_site, draws, x, (0.1, 0.9)).shape == (2, ROWS)
    draws_of_y = bnn.function_draws(posterior, draws, x)
    assert draws_of_y.posterior["mean"].shape[-1] == 2
    # Joint: the average over draws of the product of the densities, not the product of averages.
    w = draws.posterior["w"].values[0]
    out = np.asarray(x @ w)  # (draw, row, 2)
    joint = np.asarray(dist.Normal(out[..., 0], 0.3).log_prob(REAL))
    joint = joint + np.asarray(dist.Bernoulli(logits=out[..., 1]).log_prob(CLASS))
    expected = np.log(np.exp(joint.astype(float)).mean(0))
    np.testing.assert_allclose(both.log_prob, expected, rtol=1e-4)


@pytest.mark.thorough
@pytest.mark.usefixtures("verdicts")
def test_each_of_several_targets_is_judged_and_scored():
    posterior = conditioned("two_heads")
    draws = few_draws(posterior, num_chains=2)
    assert draws.attrs["verdict"].startswith("c: ") and "; y: " in draws.attrs["verdict"]
    prediction = bnn.predict(posterior, draws, PROGRAMS["two_heads"].data)
    scores = bnn.metrics.summary(prediction, PROGRAMS["two_heads"].data[1], digits=None)
    assert scores["nll"] == pytest.approx(-float(prediction.log_prob.mean()))
    assert {"c: accuracy", "y: rmse"} <= set(scores.index)


@pytest.mark.thorough
@pytest.mark.usefixtures("verdicts")
def test_one_of_several_targets_may_be_missing():
    posterior = conditioned("two_heads_one_masked")
    draws = few_draws(posterior, num_chains=2)
    assert "nan" not in draws.attrs["verdict"] and "not judged" not in draws.attrs["verdict"]
    x, y = PROGRAMS["two_heads_one_masked"].data
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prediction = bnn.predict(posterior, draws, (x, y))
    assert (abs(prediction.y_log_prob[np.isnan(MISSING)]) < 1e-6).all()
    assert np.isfinite(prediction.log_prob).all()
    assert np.isfinite(bnn.metrics.summary(prediction, y)).all()


@pytest.mark.thorough
def test_other_targets_than_those_observed_are_refused():
    model, (x, y) = PROGRAMS["two_heads"].model, PROGRAMS["two_heads"].data
    with pytest.raises(ValueError, match="got y of y for a model that observes .*the same"):
        bnn.condition(lambda x, y=None: model(x, y and y | {"c": y["y"] > 0}), (x, {"y": REAL}))
    posterior = bnn.condition(model, (x, y))
    with pytest.raises(ValueError, match=r"got y of c \(24,\), expected rows of c \(\), y \(\)"):
        bnn.predict(posterior, few_draws(posterior), (x, {"c": CLASS}))
    with pytest.raises(ValueError, match=r"got y of c \(\), y \(\), expected rows of c \(\), y"):
        bnn.predict(posterior, few_draws(posterior), (x, {"c": 1, "y": 0.5}))
    with pytest.raises(ValueError, match="got site='z', expected one of several observed sites, c"):
        bnn.of_site(posterior, "z")


@quick_first("name", ["masked", "obs_mask"])
@pytest.mark.usefixtures("verdicts")
def test_missing_targets_count_for_nothing(name):
    posterior = conditioned(name)
    position = posterior.init(jax.random.key(0))
    rows = posterior.log_likelihood(position, posterior.rows.examples)
    assert (rows[np.isnan(MISSING)] == 0).all() and (rows[~np.isnan(MISSING)] != 0).all()
    draws = few_draws(posterior, num_chains=2)
    assert "nan" not in draws.attrs["verdict"] and "not judged" not in draws.attrs["verdict"]
    prediction = bnn.predict(posterior, draws, PROGRAMS[name].data)
    known = ~np.isnan(MISSING)
    found = bnn.metrics.summary(prediction, MISSING, digits=None)
    kept = prediction.isel(row=np.flatnonzero(known))
    expected = bnn.metrics.summary(kept, MISSING[known], digits=None)
    assert found["rmse"] == pytest.approx(expected["rmse"]) and np.isfinite(found).all()


@pytest.mark.usefixtures("verdicts")
def test_classes_that_are_missing_in_part_count_for_nothing():
    posterior, (x, y) = conditioned("masked_classes"), PROGRAMS["masked_classes"].data
    draws = few_draws(posterior, num_chains=2)
    assert "nan" not in draws.attrs["verdict"] and "not judged" not in draws.attrs["verdict"]
    prediction, known = bnn.predict(posterior, draws, (x, y)), ~np.isnan(y)
    whole = bnn.predict(posterior, draws, (x[known], y[known].astype(int)))
    np.testing.assert_allclose(prediction["log_prob"][known], whole["log_prob"], rtol=1e-5)
    np.testing.assert_allclose(prediction["log_prob"][~known], 0.0, atol=1e-6)
    found = bnn.metrics.summary(prediction, y, digits=None)
    expected = bnn.metrics.summary(whole, y[known].astype(int), digits=None)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    drawn = bnn.predictive_draws(jax.random.key(0), posterior, draws, (x, y))
    assert np.isfinite(drawn["log_likelihood"]["y"]).all()


def test_missing_targets_without_a_mask_are_refused():
    with pytest.raises(ValueError, match=r"got NaN in 5 of 24 rows of y .*handlers\.mask"):
        bnn.condition(PROGRAMS["linear"].model, (X, MISSING))


@pytest.mark.thorough
def test_a_censored_time_has_the_law_of_the_time_itself():
    posterior = conditioned("censored")
    draws = few_draws(posterior)
    x, y = PROGRAMS["censored"].data
    prediction = bnn.predict(posterior, draws, (x, y))
    law = dist.Weibull(np.exp(x @ draws.posterior["w"].values[0, :, :, None])[..., 0], 2.0)
    np.testing.assert_allclose(prediction["mean"], np.asarray(law.mean).mean(0), rtol=1e-5)
    below = np.asarray(law.cdf(y))
    found = bnn.predict_cdf(posterior, draws, x, 2.0)
    np.testing.assert_allclose(found, np.asarray(law.cdf(2.0)).mean(0), rtol=1e-5)
    densities = np.where(y >= 3, 1 - below, np.exp(law.log_prob(y)))
    np.testing.assert_allclose(prediction.log_prob, np.log(densities.mean(0)), rtol=1e-3)


@quick_first("name", ["poisson", "zero_inflated", "binomial", "ordinal"])
def test_quantiles_of_counts_are_the_least_that_reach_the_probability(name):
    posterior = conditioned(name)
    draws = few_draws(posterior)
    levels = (0.05, 0.5, 0.95)
    found = bnn.predict_quantiles(posterior, draws, X, levels)
    assert (found == np.round(found)).all() and (found >= 0).all()
    values = np.arange(60 if name != "ordinal" else 3)[:, None]
    sites = {site: a.values[0] for site, a in draws.posterior.items()}
    each = [
        np.exp(posterior.predictive({site: a[i] for site, a in sites.items()}, X).log_prob(values))
        for i in range(6)
    ]
    below = np.cumsum(np.nan_to_num(np.mean(each, 0)), axis=0)
    for level, own in zip(levels, found, strict=True):
        np.testing.assert_array_equal(own, (below >= level - 1e-6).argmax(0))


@pytest.mark.thorough
def test_parameters_are_points():
    def model(x, y=None):
        scale = numpyro.param("scale", 1.0, constraint=dist.constraints.positive)
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, scale), obs=y)

    posterior = bnn.condition(model, (X, REAL))
    assert posterior.points == ("scale",)
    draws = few_draws(posterior)
    assert 0.1 < float(draws["constant_data"]["scale"]) < 1.0
    assert list(draws.posterior.data_vars) == ["w"]
    assert np.isfinite(bnn.predict(posterior, draws, (X, REAL)).log_prob).all()


def test_a_parameter_may_start_at_a_drawn_value_and_be_held_by_numpyro():
    def model(x, y=None):
        scale = numpyro.param(
            "scale", lambda key: jnp.array(0.5), constraint=dist.constraints.positive
        )
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, scale), obs=y)

    assert bnn.condition(model, (X, REAL)).points == ("scale",)
    held = bnn.condition(numpyro.handlers.substitute(model, {"scale": 4.0}), (X, REAL))
    assert held.points == ()
    found = held.log_likelihood({"w": jnp.zeros(2)}, held.data)
    np.testing.assert_allclose(found, dist.Normal(0, 4.0).log_prob(REAL), rtol=1e-5)
    of_site = numpyro.handlers.substitute(model, {"w": jnp.zeros(2)})
    with pytest.raises(ValueError, match="hold it with numpyro.handlers.condition"):
        bnn.condition(of_site, (X, REAL))


@pytest.mark.parametrize("of_y", [False, True])
def test_a_total_of_a_multinomial_may_differ_by_row(of_y):
    totals = np.arange(ROWS) % 4 + 1
    y = np.stack([totals // 2, totals - totals // 2], 1)

    def model(x, y=None):
        total = x["total"] if y is None or not of_y else y.sum(-1)
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2, 2]).to_event(2))
        with numpyro.plate("data", len(x["x"])):
            law = dist.Multinomial(total, logits=x["x"] @ w, total_count_max=4)
            numpyro.sample("y", law, obs=y)

    x = {"x": X, "total": totals}
    posterior = bnn.condition(model, (x, y))
    draws = bnn.prior_draws(jax.random.key(0), posterior, 3)
    each = [dist.Multinomial(totals, logits=X @ w) for w in draws.posterior["w"].values[0]]
    found = bnn.predict(posterior, draws, (x, y))
    density = np.mean([np.exp(law.log_prob(y)) for law in each], 0)
    np.testing.assert_allclose(found["log_prob"], np.log(density), rtol=1e-4)
    np.testing.assert_allclose(found["mean"], np.mean([law.mean for law in each], 0), rtol=1e-4)
    # Laws that another function has traced are compared with those of this one.
    alone = bnn.predict(posterior, draws, x)
    if not of_y:
        np.testing.assert_allclose(alone["mean"], found["mean"], rtol=1e-5)
    with pytest.raises(ValueError, match="of several numbers at once"):
        bnn.predict_probabilities(posterior, draws, x, [1.0], "equal")


def test_probabilities_of_counts_whose_total_is_an_input():
    totals = np.arange(ROWS) % 4 + 1

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("data", len(x["x"])):
            numpyro.sample("y", dist.Binomial(x["total"], logits=x["x"] @ w), obs=y)

    x = {"x": X, "total": totals}
    posterior = bnn.condition(model, (x, totals // 2))
    draws = bnn.prior_draws(jax.random.key(0), posterior, 3)
    found = bnn.predict_probabilities(posterior, draws, x, np.arange(5.0), "equal")
    np.testing.assert_allclose(found.sum(-1), 1.0, rtol=1e-5)
    assert (found[totals < 4, 4] == 0).all()


def test_a_variance_that_rows_share_is_that_of_each():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.SoftLaplace(x @ w, 1.0), obs=y)

    posterior = bnn.condition(model, (X, REAL))
    draws = bnn.prior_draws(jax.random.key(0), posterior, 3)
    found = bnn.predict(posterior, draws, (X, REAL))
    expected = dist.SoftLaplace(0.0, 1.0).variance + found["epistemic_variance"]
    np.testing.assert_allclose(found["variance"], expected, rtol=1e-4)


def test_the_support_of_a_law_may_be_of_x():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        shift = dist.transforms.AffineTransform(x @ w, 2.0, domain=dist.constraints.positive)
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.TransformedDistribution(dist.Exponential(1.0), shift), obs=y)

    for y in (REAL, np.round(REAL).astype(int)):
        posterior = bnn.condition(model, (X, y + 100))
        assert np.isfinite(posterior.log_likelihood({"w": jnp.ones(2)}, posterior.data)).all()


def test_chains_start_apart_beside_a_parameter():
    def model(x, y=None):
        f = bnn.random_network("net", partial(bnn.nets.MLP, 2, (3,), 1), bnn.priors.normal())
        offset = numpyro.param("offset", 0.1)
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(f(x)[:, 0] + offset, 0.5), obs=y)

    posterior = bnn.condition(model, (X, REAL))
    one, other = (posterior.init(jax.random.key(seed)) for seed in (0, 1))
    assert np.any(one["net.layers.0.kernel"] != other["net.layers.0.kernel"])


def test_a_factor_of_all_rows_takes_whole_batches_alone():
    posterior = conditioned("factor_of_all_rows")
    with pytest.raises(ValueError, match="got batch_size=4 with a model that has a numpyro.factor"):
        bnn.run(
            jax.random.key(0),
            posterior,
            bnn.sgld(posterior),
            batch_size=4,
            num_warmup=2,
            num_draws=2,
            progress=False,
        )
    with pytest.raises(ValueError, match="got microbatch=4 with a model that has a numpyro.factor"):
        bnn.condition(PROGRAMS["factor_of_all_rows"].model, (X, REAL), microbatch=4)


@pytest.mark.thorough
@pytest.mark.usefixtures("verdicts")
def test_a_likelihood_that_is_a_factor_cannot_predict():
    posterior = conditioned("factor_by_row")
    draws = few_draws(posterior)
    with pytest.raises(NotImplementedError, match="got the factor 'likelihood' as"):
        bnn.predict(posterior, draws, X)
    assert draws.attrs["verdict"].startswith("not judged: got the factor 'likelihood'")


def test_a_factor_of_weights_is_of_the_prior_whatever_the_batch():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([8]).to_event(1))
        numpyro.factor("penalty", -3 * abs(w))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x[:, 0] * w.sum(), 1.0), obs=y)

    posterior = bnn.condition(model, (X, REAL))
    position = posterior.init(jax.random.key(0))
    priors = [posterior.density.terms(position, (X[:n], REAL[:n])).log_prior for n in (7, 8)]
    assert priors[0] == priors[1] == posterior.log_prior(position)
    for method in (bnn.laplace, bnn.tempered_smc, bnn.parallel_tempering):
        with pytest.raises(ValueError, match="got the factor, scale or mask of 'penalty' for"):
            method(posterior)


def test_targets_that_depend_on_each_other_are_refused():
    def model(x, y=None):
        y = {"a": None, "b": None} if y is None else y
        w = weights()
        with numpyro.plate("data", len(x)):
            b = numpyro.sample("b", dist.Bernoulli(logits=x @ w), obs=y["b"])
            numpyro.sample("a", dist.Normal(5.0 * b, 1.0), obs=y["a"])

    with pytest.raises(ValueError, match="got the observed site 'a' that depends on"):
        bnn.condition(model, (X, {"a": REAL, "b": CLASS}))


@pytest.mark.thorough
def test_functions_of_several_targets_take_one():
    posterior = conditioned("two_heads")
    draws = few_draws(posterior)
    for predict in (bnn.predict_quantiles, bnn.predict_cdf):
        with pytest.raises(ValueError, match=r"expected one of them: pass bnn_ppl\.of_site"):
            predict(posterior, draws, X, 0.5)
    rows = PROGRAMS["two_heads"].data
    prediction = bnn.predict(posterior, draws, rows)
    same = bnn.predict(posterior, draws, posterior.data)
    np.testing.assert_array_equal(prediction.log_prob, same.log_prob)
    with pytest.raises(ValueError, match="got scale= of several observed sites"):
        bnn.metrics.summary(prediction, rows[1], scale=2.0)
    with pytest.raises(ValueError, match="got y of 'z' for a prediction of c_probs"):
        bnn.metrics.summary(prediction, {"z": REAL})
    with pytest.raises(ValueError, match="got y of 'c' that are not whole numbers"):
        bnn.predict(posterior, draws, (X, {"y": REAL, "c": CLASS + 0.5}))


KINDS = np.array(["ash", "birch", "oak"])[np.digitize(X[:, 0], [-0.5, 0.5])]


def two_kinds(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2, 4]).to_event(2))
    out = x @ w
    size, kind = (None, None) if y is None else (y["size"], y["kind"])
    with numpyro.plate("data", len(x)):
        numpyro.sample("size", dist.Normal(out[:, 0], 0.3), obs=size)
        numpyro.sample("kind", dist.Categorical(logits=out[:, 1:]), obs=kind)


@pytest.mark.thorough
def test_text_labels_among_several_targets_keep_their_names():
    y = {"size": REAL, "kind": KINDS}
    posterior = bnn.condition(two_kinds, (X, y))
    draws = few_draws(posterior)
    prediction = bnn.predict(posterior, draws, (X, y))
    assert prediction["kind_class"].values.tolist() == ["ash", "birch", "oak"]
    numbers = np.searchsorted(["ash", "birch", "oak"], KINDS)
    of_numbers = bnn.condition(two_kinds, (X, y | {"kind": numbers}))
    same = bnn.predict(of_numbers, draws, (X, y | {"kind": numbers}))
    np.testing.assert_array_equal(prediction.log_prob, same.log_prob)
    hits = prediction["kind_probs"].values.argmax(1) == numbers
    assert bnn.metrics.summary(prediction, y, digits=None)["kind: accuracy"] == np.mean(hits)
    with pytest.raises(ValueError, match="got the class label 'elm', expected those of the train"):
        bnn.predict(posterior, draws, (X, y | {"kind": np.where(KINDS == "oak", "elm", KINDS)}))


@pytest.mark.thorough
def test_several_targets_are_compared_each_and_jointly():
    y = {"size": np.where(np.arange(ROWS) % 3 == 0, np.nan, REAL), "kind": KINDS}
    posterior = bnn.condition(two_kinds, (X, {"size": REAL, "kind": KINDS}))
    draws = few_draws(posterior)
    full = bnn.predict(posterior, draws, (X, {"size": REAL, "kind": KINDS}))
    part = bnn.predict(posterior, draws.isel(draw=[0]), (X, {"size": REAL, "kind": KINDS}))
    known = y | {"size": REAL}
    table = bnn.compare({"all": full, "one": part}, known, "all", draws={"all": draws})
    summary = bnn.metrics.summary(full, known, digits=None)
    for name in ("nll", "size: rmse", "size: nll", "kind: accuracy", "kind: brier"):
        assert table.loc["all", name] == pytest.approx(summary[name], rel=1e-6)
    assert table.loc["all", "kind: agreement"] == 1 and table.loc["one", "size: wasserstein_2"] > 0
    assert table.loc["all", "num_draws"] == draws.posterior.sizes["draw"]
    assert table.attrs["better"]["kind: accuracy"] == "higher" and table.columns[0] == "nll"
    of_known = bnn.compare({"all": full}, y)["size: rmse"].iloc[0]
    error = (full["size_mean"].values - REAL)[np.arange(ROWS) % 3 != 0]
    assert of_known == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-5)
    with pytest.raises(ValueError, match="got validation= with y of several observed sites"):
        bnn.compare({"all": full}, known, validation=[0, 1])
    with pytest.raises(ValueError, match="got y of 'z' for 'all', a prediction of kind_probs"):
        bnn.compare({"all": full}, {"z": REAL})


@pytest.mark.thorough
def test_pruning_scores_several_targets():
    y = {"size": REAL, "kind": KINDS}
    posterior = bnn.condition(two_kinds, (X, y))
    draws = few_draws(posterior)
    curve = bnn.pruning.pruning_curve(posterior, draws, (X, y), shares=(0.0, 0.75))
    summary = bnn.metrics.summary(bnn.predict(posterior, draws, (X, y)), y, digits=None)
    assert curve["nll"][0] == pytest.approx(summary["nll"])
    assert curve["size: rmse"][0] == pytest.approx(summary["size: rmse"])
    assert curve["kind: error"][0] == pytest.approx(1 - summary["kind: accuracy"])
    assert curve["nll"][1] != curve["nll"][0] and curve["num_weights"].tolist() == [8, 2]


@pytest.mark.thorough
def test_one_of_several_targets_is_predicted_with_points_held():
    def model(x, y=None):
        scale = numpyro.param("scale", 1.0, constraint=dist.constraints.positive)
        y = {"a": None, "b": None} if y is None else y
        mean = x @ weights()
        with numpyro.plate("data", len(x)):
            numpyro.sample("a", dist.Normal(mean, scale), obs=y["a"])
            numpyro.sample("b", dist.Bernoulli(logits=mean), obs=y["b"])

    posterior = bnn.condition(model, (X, {"a": REAL, "b": CLASS}))
    draws = few_draws(posterior)
    of_site = bnn.of_site(posterior, "a")
    assert bnn.predict(of_site, draws, X)["mean"].shape == (ROWS,)
    assert bnn.predict_quantiles(of_site, draws, X, 0.5).shape == (1, ROWS)


def test_labels_from_1_under_a_subsampling_plate_are_refused():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2, 3]).to_event(2))
        with numpyro.plate("data", len(x), subsample_size=8) as rows:
            observed = None if y is None else y[rows]
            numpyro.sample("y", dist.Categorical(logits=x[rows] @ w), obs=observed)

    with pytest.raises(ValueError, match="got y from 1 to 3 at site 'y', expected from 0 to 2"):
        bnn.condition(model, (X, 1 + np.arange(ROWS) % 3))


@pytest.mark.thorough
def test_noisy_labels_are_predicted_as_classes():
    def model(x, y=None):
        logits = x @ weights()
        with numpyro.plate("data", len(x)):
            flipped = numpyro.sample("flipped", dist.Bernoulli(0.1))
            probs = jax.nn.sigmoid(logits)
            probs = jnp.where(flipped == 1, 1 - probs, probs)
            numpyro.sample("y", dist.Bernoulli(probs=probs), obs=y)

    posterior = bnn.condition(model, (X, CLASS))
    draws = few_draws(posterior)
    probs = 1 / (1 + np.exp(-X @ draws.posterior["w"].values[0].T))
    expected = (0.9 * probs + 0.1 * (1 - probs)).mean(1)
    np.testing.assert_allclose(bnn.predict(posterior, draws, X).probs[:, 1], expected, rtol=1e-4)


def test_what_the_unobserved_part_decides_keeps_it():
    def model(x, y=None):
        w = weights()
        mask = None if y is None else ~jnp.isnan(y)
        with numpyro.plate("data", len(x)):
            known = None if y is None else jnp.where(mask, y, 0.0)
            whole = numpyro.sample("y", dist.Normal(x @ w, 0.3), obs=known, obs_mask=mask)
            numpyro.factor("more", -abs(whole))

    posterior = bnn.condition(model, (X, MISSING))
    assert set(posterior.prior_std) == {"w", "y_unobserved"}


@pytest.mark.thorough
def test_scores_of_held_out_rows_leave_out_what_is_missing():
    posterior = conditioned("masked")
    lengths = {"num_warmup": 10, "num_draws": 1, "score_every": 5, "held_out": (X, MISSING)}
    method = bnn.descent(posterior)
    draws = bnn.run(jax.random.key(0), posterior, method, progress=False, **lengths)
    scores = draws["warmup_sample_stats"]
    for name in ("held_out_nll", "held_out_rmse"):
        assert np.isfinite(np.asarray(scores[name])).any()


@quick_first("name", ["censored", "masked"])
def test_a_linearised_posterior_knows_what_is_known_of_y(name):
    posterior = conditioned(name)
    draws = bnn.run(
        jax.random.key(0), posterior, bnn.laplace(posterior), num_draws=6, progress=False
    )
    both = [
        bnn.predict(posterior, draws, PROGRAMS[name].data, predictive=form).log_prob
        for form in ("sampled", "linearised")
    ]
    np.testing.assert_allclose(*both, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_laplace_counts_what_is_observed_alone():
    y = np.stack([REAL, np.where(np.arange(ROWS) % 2, np.nan, REAL)], 1)

    def model(x, y=None):
        w = weights()
        mask = True if y is None else ~jnp.isnan(y)
        with numpyro.handlers.mask(mask=mask):
            numpyro.sample("y", dist.Normal(x[:, :1] * w, 1.0), obs=y)

    posterior = bnn.condition(model, (X, y))
    method = bnn.laplace(posterior, structure="full")
    draws = bnn.run(jax.random.key(0), posterior, method, num_draws=2_000, progress=False)
    squares = [(X[:, 0] ** 2).sum(), (X[::2, 0] ** 2).sum()]
    sds = draws.posterior["w"].std(("chain", "draw"))
    np.testing.assert_allclose(sds, 1 / np.sqrt(1 + np.array(squares)), rtol=0.06)


@pytest.mark.thorough
def test_deterministic_sites_are_kept_by_name():
    posterior = conditioned("deterministic_sites")
    draws = few_draws(posterior, keep=("w", "mean"))
    expected = draws.posterior["w"].values @ X.T
    np.testing.assert_allclose(draws.posterior["mean"], expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="got keep= with z, expected names of sites, w, mean"):
        few_draws(posterior, keep=["z"])


@pytest.mark.parametrize("name", ["subsampled", "rows_as_given"])
def test_minibatches_of_a_subsampling_program(name):
    posterior = conditioned(name)
    position = posterior.init(jax.random.key(0))
    whole = posterior.log_likelihood(position, (X, REAL))
    part = posterior.log_likelihood(position, (X[:6], REAL[:6]))
    np.testing.assert_allclose(part, whole[:6], rtol=1e-6)
    plain = conditioned("linear")
    batch = X[:6], REAL[:6]
    np.testing.assert_allclose(
        posterior.logdensity(position, batch), plain.logdensity(position, batch), rtol=1e-6
    )


def test_discrete_sites_that_cannot_be_summed_out_are_refused():
    def of_all_rows(x, y=None):
        part = numpyro.sample("part", dist.Bernoulli(0.5))
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ w + part, 0.3), obs=y)

    def unbounded(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("data", len(x)):
            part = numpyro.sample("part", dist.Poisson(1.0))
            numpyro.sample("y", dist.Normal(x @ w + part, 0.3), obs=y)

    with pytest.raises(ValueError, match=r"latent site 'part' of shape \(\), expected one"):
        bnn.condition(of_all_rows, (X, REAL))
    with pytest.raises(ValueError, match="latent site 'part' of Poisson, expected one with"):
        bnn.condition(unbounded, (X, REAL))


def test_a_discrete_site_need_not_take_the_value_0():
    def likelihood(mean, kind):
        return dist.Normal(mean, jnp.log(kind + 0.5))  # NaN at 0

    def model(x, y=None):
        w = weights()
        with numpyro.plate("data", len(x)):
            kind = numpyro.sample("kind", dist.DiscreteUniform(1, 3))
            numpyro.sample("y", likelihood(x @ w, kind), obs=y)

    posterior = bnn.condition(model, (X, REAL))
    w = np.array([0.5, -1.0], np.float32)
    each = [likelihood(X @ w, kind).log_prob(REAL) for kind in (1, 2, 3)]
    expected = jax.scipy.special.logsumexp(jnp.stack(each), axis=0) - np.log(3)
    found = posterior.log_likelihood({"w": w}, posterior.data)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def another_site(x, part):
    return numpyro.sample("more", dist.Normal(3.0 * part, 1.0))


def another_factor(x, part):
    numpyro.factor("more", 5.0 * part)
    return part


def another_row(x, part):
    return part[jnp.arange(len(x)) // 2]


def scaled(x, part):
    return part


@pytest.mark.parametrize(
    ("of_part", "got"),
    [
        (another_site, "on which a site beside the observed one depends"),
        (another_factor, "on which a site beside the observed one depends"),
        (another_row, "on which other rows depend"),
        (scaled, "with 'y' scaled or masked"),
    ],
)
def test_discrete_sites_of_more_than_their_row_are_refused(of_part, got):
    def model(x, y=None):
        w = weights()
        with numpyro.plate("data", len(x)):
            part = numpyro.sample("part", dist.Bernoulli(0.5))
            offset = of_part(x, part)
            with numpyro.handlers.scale(scale=0.25) if of_part is scaled else nullcontext():
                numpyro.sample("y", dist.Normal(x @ w + offset, 0.3), obs=y)

    with pytest.raises(ValueError, match=f"got the discrete latent site 'part' {got}, expected"):
        bnn.condition(model, (X, REAL))


@pytest.mark.thorough
def test_a_likelihood_without_moments_or_function_predicts_by_draws():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.VonMises(x @ w, 4.0), obs=y)

    posterior = bnn.condition(model, (X, np.clip(REAL, -3, 3)))
    draws = few_draws(posterior)
    found = bnn.predict_quantiles(posterior, draws, X, (0.25, 0.75))
    assert (found[0] < found[1]).all()
    exp = dist.transforms.ExpTransform()

    def scaled(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("data", len(x)):
            law = dist.TransformedDistribution(dist.Normal(x @ w, 0.3), exp)
            numpyro.sample("y", law, obs=y)

    posterior = bnn.condition(scaled, (X, np.exp(REAL)))
    draws = few_draws(posterior)
    mean = np.exp(x_w := X @ draws.posterior["w"].values[0].T + 0.3**2 / 2).mean(1)
    assert x_w.shape == (ROWS, 6)
    np.testing.assert_allclose(bnn.predict(posterior, draws, X)["mean"], mean, rtol=0.05)
    assert COUNT.dtype == np.int32


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["descent", "laplace", "mfvi", "sgld", "nuts"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_methods_run_programs_or_refuse_them_in_a_line(name, method):
    posterior = conditioned(name)
    lengths = {"num_chains": 1, "num_warmup": 50, "num_draws": 5, "progress": False}
    try:
        built = getattr(bnn, method)(posterior)
        draws = bnn.run(jax.random.key(0), posterior, built, **lengths)
    except (ValueError, TypeError, NotImplementedError) as error:
        assert str(error).startswith("got ") and "expected" in str(error), error
        assert (name, method) in REFUSED, error
        return
    assert all(np.isfinite(values).all() for values in draws.posterior.values())
    if name != "factor_by_row":
        rows = PROGRAMS[name].data
        prediction = bnn.predict(posterior, draws, rows[0])
        centers = [
            values for key, values in prediction.items() if str(key).endswith(("mean", "probs"))
        ]
        assert centers and all(np.isfinite(values).all() for values in centers)


# Curvature needs a distribution of y, priors that are distributions, and parts of the rows.
REFUSED = {
    (name, "laplace")
    for name in ("factor_by_row", "factor_of_all_rows", "groups", "latent_by_row", "penalty")
}
MOMENTS = {"mean": np.mean, "sd": np.std}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_draws_are_those_of_numpyros_nuts(name):
    program = PROGRAMS[name]
    posterior = conditioned(name)
    lengths = {"num_warmup": 1_000, "num_draws": 2_000, "num_chains": 4}
    draws = bnn.run(jax.random.key(0), posterior, bnn.nuts(posterior), **lengths)
    reference = MCMC(
        NUTS(program.plain), num_warmup=1_000, num_samples=2_000, num_chains=4, progress_bar=False
    )
    reference.run(jax.random.key(1), *program.data)
    expected = bnn.from_numpyro(posterior, reference.get_samples(group_by_chain=True))
    for site, found in draws.posterior.items():
        both = found, expected.posterior[site]
        for of, measure in MOMENTS.items():
            one, other = (measure(own.values, (0, 1)) for own in both)
            errors = [az.mcse(own.to_dataset(name="x"), method=of)["x"].values for own in both]
            tenth = 0.1 * other if of == "sd" else 0.0
            assert (abs(one - other) <= tenth + 4.5 * np.nan_to_num(np.hypot(*errors))).all(), (
                site,
                of,
            )


def hidden_labels(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2, 3]).to_event(2))
    mask = True if y is None else (y >= 0) & (y != 255)
    law = dist.Categorical(logits=(x @ w)[:, None])
    numpyro.sample("y", law.expand([len(x), 2]).mask(mask).to_event(1), obs=y)


def hidden_rows(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2, 3]).to_event(2))
    with numpyro.plate("data", len(x)), numpyro.handlers.mask(mask=x[:, 0] < 1):
        numpyro.sample("y", dist.Categorical(logits=x @ w), obs=y)


@pytest.mark.parametrize("mark", [-1, 255])
@pytest.mark.usefixtures("verdicts")
def test_marks_of_labels_that_a_mask_hides_count_for_nothing(mark):
    y = np.stack([np.arange(ROWS) % 3, np.full(ROWS, mark)], 1)
    y[0] = mark
    posterior = bnn.condition(hidden_labels, (X, y))
    w = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    expected = dist.Categorical(logits=X @ w).log_prob(np.arange(ROWS) % 3).at[0].set(0.0)
    found = posterior.log_likelihood({"w": jnp.asarray(w)}, posterior.data)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    draws = few_draws(posterior)
    assert "not judged" not in draws.attrs["verdict"]
    assert bnn.predict(posterior, draws, (X, y)).log_prob[0] == pytest.approx(0, abs=1e-6)
    with pytest.raises(
        ValueError, match=r"got y from -?\d+ to \d+ at site 'y', expected from 0 to 2"
    ):
        bnn.condition(hidden_labels, (X, np.where(y == 2, 7, y)))


def test_marks_of_counts_that_a_mask_hides_count_for_nothing_in_the_verdict():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 0.1).expand([2]).to_event(1))
        with numpyro.plate("rows", len(x)):
            rates = jnp.exp(x @ w)[:, None] * jnp.ones(2)
            shown = True if y is None else y >= 0
            numpyro.sample("y", dist.Poisson(rates).mask(shown).to_event(1), obs=y)

    y = np.ones((ROWS, 2), int)
    y[3, 1] = -9999
    posterior = bnn.condition(model, (X, y))
    found = predict_training_rows(posterior, few_draws(posterior))
    assert (found.known == (y >= 0)).all()
    np.testing.assert_array_equal(found.y_average, 1.0)


def test_classes_under_a_mask_keep_their_names():
    names = np.array(["a", "b", "c"])
    posterior = bnn.condition(hidden_rows, (X, names[np.arange(ROWS) % 3]))
    assert posterior.rows.classes.names == ("a", "b", "c")
    marked = np.where(X[:, 0] < 1, np.arange(ROWS) % 3, -1)
    assert bnn.condition(hidden_rows, (X, marked)).rows.classes.num == 3
