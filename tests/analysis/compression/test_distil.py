"""One network for all draws: how close it is, that it says so, and that everything reads it."""

from functools import partial

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy
import scipy.stats
from small_runs import enter, refused

import bnn_ppl as bnn
from bnn_ppl.analysis.compression.inputs import inputs_about
from bnn_ppl.analysis.compression.student import distances, divergence
from bnn_ppl.cli import main
from bnn_ppl.storage.arviz_versions import draws_of_arrays

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2)).astype(np.float32)
NOISE = 0.5


def bayesian_line(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(x @ weights[:2] + weights[2], NOISE), obs=y)


def slopes_of_classes(x, y=None):
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Categorical(logits=x @ slopes), obs=y)


def exact_posterior():
    """Give the mean and covariance of the weights of a conjugate regression on 60 rows."""
    rows = np.c_[X, np.ones(len(X))].astype(float)
    y = rows @ [1.0, -0.5, 0.3] + NOISE * RNG.normal(size=len(X))
    covariance = np.linalg.inv(np.eye(3) + rows.T @ rows / NOISE**2) * 20  # a wide one
    return covariance @ rows.T @ y / NOISE**2 / 20, covariance, y.astype(np.float32)


def network_of_mean_and_sd(y):
    net = partial(bnn.nets.MLP, 2, (20,), 1)
    noise = {"noise": "heteroscedastic", "noise_net": net, "noise_floor": 1e-4}
    return bnn.condition(bnn.models.regressor(net, bnn.priors.fan_in(1.0), **noise), (X, y))


@pytest.mark.thorough
def test_a_network_has_the_predictive_mean_and_sd_of_a_conjugate_regression():
    mean, covariance, y = exact_posterior()
    posterior = bnn.condition(bayesian_line, (X, y))
    weights = RNG.multivariate_normal(mean, covariance, (1, 4_000)).astype(np.float32)
    draws = draws_of_arrays({"posterior": {"weights": weights}})
    found = bnn.distil(posterior, draws, student=network_of_mean_and_sd(y), num_inputs=3_000)
    new = RNG.uniform(-1.0, 1.0, (200, 2)).astype(np.float32)
    rows = np.c_[new, np.ones(200)]
    exact_sd = np.sqrt(np.einsum("ij,jk,ik->i", rows, covariance, rows) + NOISE**2)
    predicted = found.predict(new)
    assert exact_sd.max() > 1.3 * exact_sd.min()  # so that one sd for all would be far off
    assert np.abs((predicted["mean"] - rows @ mean) / exact_sd).max() < 0.1
    assert np.abs(np.sqrt(predicted["variance"]) / exact_sd - 1).max() < 0.1
    assert found.draws["posterior"].sizes["draw"] == 1
    assert found.draws.attrs["distilled_from"] == 4_000


@pytest.fixture(scope="module")
def classes():
    posterior = bnn.condition(slopes_of_classes, (X, np.arange(60) % 3))
    slopes = RNG.normal([[2.0, 0.0, -2.0], [0.0, 1.0, 0.0]], 0.3, (2, 100, 2, 3))
    draws = draws_of_arrays({"posterior": {"slopes": slopes.astype(np.float32)}})
    return posterior, draws, bnn.distil(posterior, draws, num_inputs=600)


@pytest.mark.thorough
def test_probabilities_are_those_of_all_draws(classes):
    posterior, draws, found = classes
    new = RNG.normal(size=(100, 2)).astype(np.float32)
    wanted, got = (bnn.predict(posterior, each, new)["probs"] for each in (draws, found.draws))
    assert np.abs(got - wanted).max() < 0.06
    one = bnn.predict(posterior, draws.isel(chain=[0], draw=[0]), new)["probs"]
    assert np.abs(one - wanted).max() > 0.06
    np.testing.assert_array_equal(found.predict(new)["probs"], got)


@pytest.mark.thorough
def test_the_distance_is_that_of_the_inputs_held_out(classes):
    posterior, draws, found = classes
    _, held_out = inputs_about(X, 600, np.random.default_rng(0))
    wanted, got = (
        bnn.predict(posterior, each, held_out.x)["probs"].values for each in (draws, found.draws)
    )
    first, divergences = 0, scipy.stats.entropy(wanted, got, axis=1)
    assert list(found.table.index) == ["rows", "noisy rows", "mixtures"]
    for name, count in held_out.kinds.items():
        own = slice(first, first + count)
        stated = found.table.loc[name]
        assert stated["kl"] == pytest.approx(divergences[own].mean(), rel=1e-3, abs=1e-6)
        changes = np.abs(wanted - got)[own]
        assert stated["probability"] == pytest.approx(changes.max(), abs=1e-5)
        first += count
    assert found.draws.attrs["divergence"] == pytest.approx(found.table["kl"].mean(), rel=1e-3)


def test_the_divergence_of_gaussians_is_an_integral():
    law, target = dist.Normal(1.0, 0.7), dist.Normal(0.4, 1.2)
    y = np.linspace(-9.0, 9.0, 20_001)
    difference = target.log_prob(y) - law.log_prob(y)
    expected = scipy.integrate.trapezoid(np.exp(target.log_prob(y)) * difference, y)
    moments = {"mean": np.array([0.4]), "variance": np.array([1.2**2])}
    found = divergence(law.expand((1,)), moments)
    assert float(found[0]) == pytest.approx(expected, rel=1e-3)
    other = {"mean": np.array([1.0]), "variance": np.array([0.7**2])}
    stated = distances(moments, other)
    assert stated["mean"] == pytest.approx(0.5) and stated["sd"] == pytest.approx(1 - 0.7 / 1.2)


def test_inputs_held_out_are_about_rows_of_their_own():
    x = np.arange(100, dtype=np.float32)[:, None] * [1.0, 0.0]
    learnt, held_out = inputs_about(x, 3_000, np.random.default_rng(0))
    known, unseen = (set(own.x[: own.kinds["rows"], 0]) for own in (learnt, held_out))
    assert len(known) == 90 and len(unseen) == 10 and not known & unseen
    assert held_out.kinds == {"rows": 10, "noisy rows": 100, "mixtures": 100}
    assert held_out.share.sum() == pytest.approx(1) and held_out.share[0] == pytest.approx(1 / 30)
    assert not learnt.x[:, 1].any()  # a constant column stays one
    tokens, _ = inputs_about(np.arange(50).reshape(25, 2), 300, np.random.default_rng(0))
    assert tokens.kinds == {"rows": 22}


@pytest.mark.thorough
@pytest.mark.parametrize("of_classes", [False, True])
def test_a_distilled_run_is_one_for_other_commands(of_classes, tmp_path, monkeypatch, capsys):
    enter(tmp_path, monkeypatch)
    y = 10 * X[:, 0] + 100 + RNG.normal(size=60)
    y = np.where(y > 100, "high", "low") if of_classes else y.astype(str)
    table = [f"{a},{b},{c}" for (a, b), c in zip(X, y, strict=True)]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,y", *table]))
    options = ["--hidden", "3", "--prior-scale", "1", "--step-size", "1e-3", "--num-warmup", "50"]
    main(["run", "sgld", "--data", "table.csv", "--folder", "run", *options, "--num-draws", "20"])
    main(["distil", "run", "--num-inputs", "300"])
    assert "one network of" in capsys.readouterr().out
    loaded = bnn.diagnostics.load("run-distilled")
    assert loaded["posterior"].sizes["draw"] == 1 and loaded.attrs["method"] == "distil"
    main(["predict", "run-distilled", "--inputs", "table.csv"])
    main(["summary", "run-distilled"])
    assert "distilled_from" in capsys.readouterr().out
    assert (tmp_path / "run-distilled/predictions-table.csv").is_file()
    name = "probs" if of_classes else "mean"
    wanted, got = (bnn.predict(each, x=X)[name].values for each in ("run", "run-distilled"))
    unit = 1.0 if of_classes else np.sqrt(bnn.predict("run", x=X)["variance"].values)
    assert np.abs((got - wanted) / unit).max() < 0.3
    assert "which exists" in refused(capsys, "distil", "run")


@pytest.mark.thorough
def test_what_cannot_be_distilled_is_refused(classes):
    posterior, draws, _ = classes
    with pytest.raises(ValueError, match="got 9 rows of x, expected at least 10"):
        bnn.distil(posterior, draws, X[:9])
    with pytest.raises(ValueError, match="got num_inputs=10"):
        bnn.distil(posterior, draws, num_inputs=10)
    with pytest.raises(TypeError, match="got posterior"):
        bnn.distil(draws, posterior)
    lost = draws.copy()
    lost["posterior"]["slopes"][0, 0] = np.nan
    with pytest.raises(ValueError, match="not finite"), pytest.warns(UserWarning, match="NaN"):
        bnn.distil(posterior, lost)


@pytest.mark.thorough
def test_the_two_networks_of_a_model_of_ones_own_are_sets_of_its_sites():
    mean, covariance, y = exact_posterior()
    posterior = bnn.condition(bayesian_line, (X, y))
    weights = RNG.multivariate_normal(mean, covariance, (1, 50)).astype(np.float32)
    draws = draws_of_arrays({"posterior": {"weights": weights}})
    found = bnn.distil(posterior, draws, num_inputs=300)
    assert set(found.draws["posterior"]) == {"mean.weights", "log_sd.weights", "log_sd"}
    own = found.draws["posterior"]["mean.weights"].values[0, 0]
    np.testing.assert_allclose(own, weights[0].mean(0), atol=0.02)  # a line's average is one
    assert jax.tree.leaves(found.student.data[0])[0].shape == X.shape
