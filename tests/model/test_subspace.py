"""Posteriors in a subspace, against closed forms; and their draws, as draws of the model."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from stats import assert_covariance, assert_means
from targets import NOISE, linear_regression

import bnn_ppl as bnn
from bnn_ppl.cli.problem.problem import Problem
from bnn_ppl.cli.problem.subspace import InSubspace, problem_inside
from bnn_ppl.model.recipe import recipe_of
from bnn_ppl.sampling.setup.numeric_arguments import numbers_to_run
from bnn_ppl.storage.inference_data import inference_data

RANK = 2


def as_draws(**sites):
    """Make draws of arrays (chain, draw, ...)."""
    return inference_data(sites, {}, None, {})


def path_of(target, num_chains=1):
    """Draw a path of 12 points about the posterior's mean, correlated, with unlike variances."""
    rng = np.random.default_rng(0)
    mix = rng.standard_normal((4, 4)) * [0.5, 0.2, 0.1, 0.02]
    points = target.means["weights"] + 0.05 + rng.standard_normal((num_chains, 12, 4)) @ mix.T
    return as_draws(weights=points.astype(np.float32))


def conditioned(target, temperature=1.0, tempered="posterior"):
    tempering = {"temperature": temperature, "tempered": tempered}
    return bnn.condition(target.model, tuple(target.data), **tempering)


@pytest.fixture(scope="module")
def linear():
    target = linear_regression()
    posterior, path = conditioned(target), path_of(target)
    return target, posterior, path, bnn.subspace(posterior, path, RANK)


def plane_of(inside):
    """Read centre (4,) and directions (4, rank) off what positions map to."""
    at = lambda z: np.asarray(inside.constrain({"z": jnp.asarray(z)})["weights"], float)  # noqa: E731
    centre = at(np.zeros(inside.num_weights))
    return centre, np.stack([at(row) - centre for row in np.eye(inside.num_weights)], 1)


def law(target, inside, prior_std=None, temperature=1.0, tempered="posterior"):
    """Give the mean and covariance of z given that the weights lie in the subspace."""
    centre, directions = plane_of(inside)
    by_row = target.data.x.T @ target.data.x / (NOISE**2 * temperature)
    of_prior = temperature if tempered == "posterior" else 1.0
    precision = np.linalg.inv(target.covariance["weights"])
    pull = precision @ (target.means["weights"] - centre)
    precision, pull = directions.T @ precision @ directions, directions.T @ pull
    if prior_std is not None:
        precision = directions.T @ by_row @ directions
        precision += np.eye(len(precision)) / (prior_std**2 * of_prior)
        rows = target.data.y - target.data.x @ centre
        pull = directions.T @ target.data.x.T @ rows / (NOISE**2 * temperature)
    covariance = np.linalg.inv(precision)
    return covariance @ pull, covariance


# --- the subspace


def test_directions_are_the_principal_components_of_the_path(linear):
    _, _, path, inside = linear
    points = path.posterior["weights"].values[0].astype(float)
    _, sizes, vectors = np.linalg.svd(points - points.mean(0), full_matrices=False)
    centre, directions = plane_of(inside)
    np.testing.assert_allclose(centre, points.mean(0), atol=1e-6)
    expected = (sizes[:RANK, None] * vectors[:RANK]).T / np.sqrt(len(points) - 1)
    signs = np.sign(np.sum(expected * directions, 0))
    np.testing.assert_allclose(directions, signs * expected, atol=1e-6)
    assert (directions[np.abs(directions).argmax(0), range(RANK)] > 0).all()


def test_the_path_has_unit_variance_and_is_projected_onto_itself(linear):
    _, _, path, inside = linear
    values = {"weights": jnp.asarray(path.posterior["weights"].values[0])}
    z = np.asarray(jax.vmap(lambda w: inside.unconstrain({"weights": w})["z"])(values["weights"]))
    np.testing.assert_allclose(np.cov(z.T), np.eye(RANK), atol=1e-4)
    there = {"z": jnp.asarray([0.7, -1.3])}
    back = inside.unconstrain(inside.constrain(there))
    np.testing.assert_allclose(back["z"], there["z"], rtol=1e-4)


def test_random_directions_have_norm_one_and_follow_the_key(linear):
    _, posterior, path, _ = linear
    planes = [
        plane_of(bnn.subspace(posterior, path, 3, "random", key=jax.random.key(seed)))
        for seed in (1, 1, 2)
    ]
    np.testing.assert_allclose(np.linalg.norm(planes[0][1], axis=0), 1.0, atol=1e-5)
    np.testing.assert_array_equal(planes[0][1], planes[1][1])
    assert np.abs(planes[0][1] - planes[2][1]).max() > 0.1


def test_the_usual_rank_is_five_or_what_the_path_spans(linear):
    _, posterior, path, _ = linear
    assert bnn.subspace(posterior, path).num_weights == 4
    assert bnn.subspace(posterior, path.isel(draw=slice(0, 3))).num_weights == 2


# --- its density


@pytest.mark.parametrize("prior_std", [None, 0.8])
@pytest.mark.parametrize(
    ("temperature", "tempered"), [(1.0, "posterior"), (0.3, "posterior"), (4.0, "likelihood")]
)
def test_density_of_a_linear_model_is_the_exact_gaussian(prior_std, temperature, tempered):
    target = linear_regression(temperature, tempered)
    posterior = conditioned(target, temperature, tempered)
    inside = bnn.subspace(posterior, path_of(target), RANK, prior_std=prior_std)
    mean, covariance = law(target, inside, prior_std, temperature, tempered)
    start = {"z": jnp.zeros(RANK)}
    value, change = inside.logdensity_from(start, posterior.data)
    np.testing.assert_allclose(value, inside.logdensity(start, posterior.data), rtol=1e-6)
    for z in np.random.default_rng(1).standard_normal((5, RANK)):
        expected = -0.5 * ((z - mean) @ np.linalg.solve(covariance, z - mean))
        expected += 0.5 * mean @ np.linalg.solve(covariance, mean)
        np.testing.assert_allclose(change({"z": jnp.asarray(z)}), expected, rtol=1e-3, atol=1e-3)


def test_the_models_own_prior_is_restricted_and_the_papers_replaces_it(linear):
    _, posterior, path, inside = linear
    z = {"z": jnp.asarray([0.4, 0.9])}
    weights = posterior.unconstrain({"weights": inside.constrain(z)["weights"]})
    np.testing.assert_allclose(inside.log_prior(z), posterior.log_prior(weights), rtol=1e-5)
    gaussian = bnn.subspace(posterior, path, RANK, prior_std=2.0)
    expected = dist.Normal(0, 2.0).log_prob(z["z"]).sum()
    np.testing.assert_allclose(gaussian.log_prior(z), expected, rtol=1e-6)
    np.testing.assert_allclose(
        gaussian.log_likelihood(z, posterior.data),
        posterior.log_likelihood(weights, posterior.data),
    )
    assert gaussian.prior_std["z"] == 2.0
    _, directions = plane_of(inside)  # the unit of length: of a site with one scale, exactly
    length = float(posterior.prior_std["weights"]) / np.sqrt(np.sum(directions**2) / RANK)
    assert inside.prior_std["z"] == pytest.approx(length, rel=1e-4)


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["nuts", "hmc", "elliptical_slice"])
def test_draws_have_the_exact_law(linear, name):
    target, posterior, path, _ = linear
    inside = bnn.subspace(posterior, path, RANK, prior_std=0.8)
    method = getattr(bnn, name)(inside)
    draws = bnn.run(jax.random.key(0), inside, method, num_chains=4, num_draws=1000, progress=False)
    mean, covariance = law(target, inside, 0.8)
    assert_means(draws.posterior["z"].values, mean)
    assert_covariance(draws.posterior["z"].values, covariance)


@pytest.mark.thorough
def test_fits_find_the_exact_law(linear):
    target, posterior, path, _ = linear
    inside = bnn.subspace(posterior, path, RANK, prior_std=0.8)
    mean, covariance = law(target, inside, 0.8)
    laplace = bnn.laplace(inside, structure="full")
    draws = bnn.run(jax.random.key(0), inside, laplace, num_draws=4000, progress=False)
    np.testing.assert_allclose(draws["fitted"]["z.loc"].values[0], mean, atol=0.02)
    spread = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(draws["fitted"]["z.scale"].values[0], spread, rtol=0.02)
    bnn.predict(inside, draws, posterior.data)
    mfvi = bnn.run(jax.random.key(0), inside, bnn.mfvi(inside), progress=False)
    np.testing.assert_allclose(mfvi["fitted"]["z.loc"].values[0], mean, atol=0.1)


# --- its draws


@pytest.fixture(scope="module")
def sampled(linear):
    _, _, _, inside = linear
    options = {"num_chains": 2, "num_draws": 8, "num_warmup": 5, "progress": False}
    return bnn.run(jax.random.key(3), inside, bnn.hmc(inside, 0.02, 0.1), **options)


def test_draws_are_values_of_all_sites_and_predict_as_the_models(linear, sampled):
    _, posterior, _, inside = linear
    assert sampled.posterior.sizes["draw"] == 8 and set(sampled.posterior) == {"weights", "z"}
    by_model, by_part = (bnn.predict(p, sampled, posterior.data) for p in (posterior, inside))
    np.testing.assert_array_equal(by_model["mean"], by_part["mean"])
    functions = bnn.function_draws(posterior, sampled, posterior.data[0])
    assert np.isfinite(bnn.diagnostics.rhat(functions)["mean"]).all()
    assert bnn.verdict(posterior, sampled) == bnn.verdict(inside, sampled)
    centre, directions = plane_of(inside)
    expected = centre + sampled.posterior["z"].values @ directions.T
    np.testing.assert_allclose(sampled.posterior["weights"], expected, atol=1e-5)
    assert '"rank": 2' in sampled.attrs["subspace"]


@pytest.mark.thorough
def test_draws_start_runs_of_the_model_and_the_models_draws_runs_inside(linear, sampled):
    _, posterior, path, inside = linear
    few = {"num_draws": 1, "num_warmup": 0, "thin": 0, "progress": False, "verdict": False}
    method = bnn.hmc(posterior, 0.1, 0.3)
    outside = bnn.run(jax.random.key(0), posterior, method, init=sampled, num_chains=2, **few)
    last = sampled.posterior["weights"].values[:, -1]
    np.testing.assert_allclose(outside.posterior["weights"].values[:, 0], last, atol=1e-6)
    method = bnn.hmc(inside, 0.1, 0.3)
    begun = bnn.run(jax.random.key(0), inside, method, init=path, **few)
    projected = inside.unconstrain(
        {"weights": jnp.asarray(path.posterior["weights"].values[0, -1])}
    )
    np.testing.assert_allclose(begun.posterior["z"].values[0, 0], projected["z"], atol=1e-5)


@pytest.mark.thorough
def test_a_resumed_run_equals_an_uninterrupted_one(linear, sampled, tmp_path):
    _, posterior, path, inside = linear
    options = {"num_chains": 2, "num_warmup": 5, "progress": False, "folder": tmp_path / "run"}
    bnn.run(jax.random.key(3), inside, bnn.hmc(inside, 0.02, 0.1), num_draws=3, **options)
    anew = bnn.subspace(posterior, path, RANK)
    resumed = bnn.run(jax.random.key(3), anew, bnn.hmc(anew, 0.02, 0.1), num_draws=8, **options)
    for site in ("weights", "z"):
        np.testing.assert_array_equal(resumed.posterior[site], sampled.posterior[site])
    other = bnn.subspace(posterior, path, RANK, prior_std=1.0)
    with pytest.raises(ValueError, match="subspace"):
        bnn.run(jax.random.key(3), other, bnn.hmc(other, 0.02, 0.1), num_draws=8, **options)


def test_another_subspace_is_the_same_program_of_other_numbers(linear):
    _, posterior, path, inside = linear
    assert numbers_to_run(inside, bnn.nuts(inside))[1] is not None
    other = bnn.subspace(posterior, path.isel(draw=slice(2, None)), RANK)
    z = {"z": jnp.asarray([0.4, 0.9])}
    made = recipe_of(inside).make(recipe_of(other).numbers)
    expected = other.constrain(z)["weights"]
    np.testing.assert_allclose(made.constrain(z)["weights"], expected, rtol=1e-6)
    assert np.abs(expected - inside.constrain(z)["weights"]).max() > 0.01


# --- curves


def ring(x, y=None):
    """Two weights whose density is high on a ring: a straight line between its points is not."""
    w = numpyro.sample("w", dist.Normal(0, 10).expand([2]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(jnp.sum(w**2) * x, 0.1), obs=y)


@pytest.mark.thorough
def test_a_curve_bends_where_the_density_is_high():
    posterior = bnn.condition(ring, (np.ones(3, np.float32), np.ones(3, np.float32)))
    ends = as_draws(w=np.array([[[1.0, 0.05]], [[-1.0, 0.05]]], np.float32))
    inside = bnn.subspace(posterior, ends, kind="curve")
    at = lambda z: np.asarray(inside.constrain({"z": jnp.asarray(z)})["w"])  # noqa: E731
    np.testing.assert_allclose(at([1.0, 0.0]), [1.0, 0.05], atol=1e-5)
    np.testing.assert_allclose(at([-1.0, 0.0]), [-1.0, 0.05], atol=1e-5)
    middle = at([0.0, 1.0])
    assert abs(middle[0]) < 0.1 and 0.7 < middle[1] < 1.3  # on the ring, about
    rows = inside.log_likelihood
    assert (
        rows({"z": jnp.asarray([0.0, 1.0])}, posterior.data).sum()
        > 10 + rows({"z": jnp.zeros(2)}, posterior.data).sum()
    )


def test_equal_ends_of_a_curve_are_refused(linear):
    _, posterior, path, _ = linear
    twice = as_draws(weights=np.repeat(path.posterior["weights"].values[:, :1], 2, 0))
    with pytest.raises(ValueError, match="two points that are equal"):
        bnn.subspace(posterior, twice, kind="curve")


# --- the command line


def test_the_command_line_takes_the_prior_of_the_path_and_refuses_other_rows(tmp_path):
    chosen = InSubspace(subspace=tmp_path)
    assert problem_inside(chosen, Problem()) == Problem()  # a run made in Python
    record = Problem.of(prior_scale=0.7).options()
    (tmp_path / "problem.json").write_text(json.dumps(record))
    assert problem_inside(chosen, Problem.of(temperature=0.1)).prior.prior_scale == 0.7
    assert problem_inside(chosen, Problem.of(prior="laplace")).prior.prior_scale is None
    with pytest.raises(ValueError, match="got --split 1 in a subspace of .*, which has 0"):
        problem_inside(chosen, Problem.of(split=1))
    with pytest.raises(ValueError, match="without --subspace"):
        problem_inside(InSubspace(subspace_rank=3), Problem())


# --- refusals


def test_what_does_not_fit_is_one_clear_error(linear):
    _, posterior, path, inside = linear
    other = as_draws(w=np.zeros((1, 4, 2)))
    wide = as_draws(weights=np.zeros((1, 4, 5)))
    still = path.isel(draw=[0, 0, 0])
    for match, draws, options in (
        ("rank=3 for a path of 3 draws, which spans 2", path.isel(draw=slice(0, 3)), {"rank": 3}),
        ("rank=9 for 4 parameters", path, {"rank": 9, "kind": "random"}),
        ("rank=0", path, {"rank": 0}),
        ("expected 2, that of its plane", path, {"rank": 3, "kind": "curve"}),
        ("kind='svd'", path, {"kind": "svd"}),
        ("prior_std=-1", path, {"prior_std": -1}),
        ("draws of w, expected weights", other, {}),
        ("of shape \\(5,\\), expected \\(4,\\)", wide, {}),
        ("all equal", still, {}),
        ("one chain, expected two", path, {"kind": "curve"}),
    ):
        with pytest.raises(ValueError, match=match):
            bnn.subspace(posterior, draws, **options)
    with pytest.raises(ValueError, match="restricted to a subspace"):
        bnn.subspace(inside, path)
    with pytest.raises(TypeError, match="draws"):
        bnn.subspace(posterior, path.posterior["weights"].values)
    with pytest.raises(ValueError, match="prior_std=1.0"):
        inside.prior.draw(jax.random.key(0))


def test_a_method_for_the_whole_posterior_is_refused_inside(linear):
    _, posterior, _, inside = linear
    with pytest.raises(ValueError, match="another posterior"):
        bnn.run(jax.random.key(0), inside, bnn.nuts(posterior), progress=False)


def test_a_site_named_as_the_coordinates_is_refused():
    def model(x, y=None):
        z = numpyro.sample("z", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ z, 1.0), obs=y)

    posterior = bnn.condition(model, (np.ones((3, 2), np.float32), np.ones(3, np.float32)))
    with pytest.raises(ValueError, match="site 'z'"):
        bnn.subspace(posterior, as_draws(z=np.random.default_rng(0).standard_normal((1, 5, 2))))
