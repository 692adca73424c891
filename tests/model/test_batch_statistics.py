"""Networks with batch normalisation: fixed statistics, and those of the batch."""

import json
import shutil
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from flax import linen, nnx

import bnn_ppl as bnn
from bnn_ppl import cli
from bnn_ppl.analysis.prediction.draw_statistics import sites_to_predict
from bnn_ppl.analysis.weight_space.correlations import function_correlations
from bnn_ppl.cli.problem.networks import refuse_norm
from bnn_ppl.methods.augmentation import augmented
from bnn_ppl.methods.method import METHODS
from bnn_ppl.runtime.machines.devices import by_row, chain_mesh

RNG = np.random.default_rng(0)
X = (1 + 2 * RNG.normal(size=(300, 3))).astype(np.float32)
Y = (X[:, 0] > X[:, 1]).astype(np.int32)
NORMAL = bnn.priors.normal(1.0)


class Net(nnx.Module):
    """Dense, batch normalisation, dense."""

    def __init__(self, *, rngs, norm=nnx.BatchNorm):
        self.first = nnx.Linear(3, 4, rngs=rngs)
        self.norm = norm(4, rngs=rngs)
        self.last = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.tanh(self.norm(self.first(x))))


class Images(nnx.Module):
    """Two normalised convolutions, the second layer called twice."""

    def __init__(self, *, rngs):
        self.conv = nnx.Conv(2, 3, (2, 2), rngs=rngs)
        self.first = nnx.BatchNorm(3, rngs=rngs)
        self.second = nnx.BatchNorm(3, rngs=rngs)
        self.last = nnx.Linear(3, 2, rngs=rngs)

    def __call__(self, x):
        h = self.second(nnx.tanh(self.first(self.conv(x))))
        return self.last(self.second(h**2).mean((1, 2)))


def trained(mean=(0.5, -1.0, 2.0, 0.0), var=(0.3, 2.0, 1.0, 4.0)):
    """A network in eval mode with given statistics."""
    net = Net(rngs=nnx.Rngs(0))
    net.norm.mean[...], net.norm.var[...] = jnp.array(mean), jnp.array(var)
    net.eval()
    return net


def conditioned(net=Net, x=X, y=Y, **options):
    return bnn.condition(bnn.models.classifier(net, NORMAL), (x, y), **options)


@pytest.fixture(scope="module")
def posterior():
    return conditioned()


@pytest.fixture(scope="module")
def draws(posterior):
    method = bnn.sgld(posterior, 1e-4)
    options = {"num_chains": 2, "num_warmup": 5, "num_draws": 3, "thin": 2, "batch_size": 50}
    return bnn.run(jax.random.key(0), posterior, method, **options, progress=False, verdict=False)


def logits(values, x, mean, var):
    """A pass in NumPy."""
    w = {name.removeprefix("net."): np.asarray(value, float) for name, value in values.items()}
    h = x.astype(float) @ w["first.kernel"] + w["first.bias"]
    h = (h - mean) / np.sqrt(var + 1e-5) * w["norm.scale"] + w["norm.bias"]
    return np.tanh(h) @ w["last.kernel"] + w["last.bias"]


def log_probs(values, x, y, mean, var):
    out = logits(values, x, mean, var)
    return out[np.arange(len(y)), y] - np.log(np.exp(out).sum(1))


def hidden(values, x):
    return x.astype(float) @ np.asarray(values["net.first.kernel"]) + values["net.first.bias"]


# --- fixed statistics


@pytest.mark.thorough
def test_fixed_statistics_are_constants():
    net = trained()
    posterior = conditioned(net)
    assert posterior.rows.batch_statistics is None and "net.norm.scale" in posterior.prior_std
    values = posterior.constrain(posterior.prior.draw(jax.random.key(1)))
    mean, var = np.array(net.norm.mean[...]), np.array(net.norm.var[...])
    got = posterior.predictive(values, X[:5]).logits
    np.testing.assert_allclose(got, logits(values, X[:5], mean, var), rtol=1e-4, atol=1e-5)
    rows = posterior.log_likelihood(values, (X, Y))
    np.testing.assert_allclose(rows, log_probs(values, X, Y, mean, var), rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_a_trained_network_runs_under_hmc_and_stays_as_it_is():
    net = trained()
    before = jax.tree.map(np.array, nnx.state(net))
    posterior = conditioned(net)
    method = bnn.hmc(posterior, step_size=0.01, trajectory_length=0.05)
    draws = bnn.run(jax.random.key(0), posterior, method, num_draws=3, num_warmup=0, progress=False)
    assert draws.sample_stats["acceptance_rate"].values.mean() > 0.5
    assert np.isfinite(bnn.predict(posterior, draws, (X, Y)).probs).all()
    jax.tree.map(np.testing.assert_array_equal, before, nnx.state(net))


def test_given_statistics_of_a_linen_network_are_constants():
    module = linen.BatchNorm(use_running_average=True)
    net = bnn.nets.from_linen(module, X[:1])(rngs=nnx.Rngs(0))
    net.mean[...], net.var[...] = jnp.array([1.0, 2.0, 3.0]), jnp.array([4.0, 5.0, 6.0])
    posterior = conditioned(net, y=Y)
    position = posterior.init(jax.random.key(0))
    got = posterior.predictive(posterior.constrain(position), X).logits
    expected = (X - np.array([1, 2, 3])) / np.sqrt(np.array([4, 5, 6]) + 1e-5)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


# --- statistics of the batch


@pytest.mark.thorough
def test_rows_are_normalised_by_their_batch_without_padding(posterior):
    assert posterior.rows.batch_statistics.layers == ("net.norm",)
    assert set(posterior.prior_std) == {
        *(f"net.{layer}.{part}" for layer in ("first", "last") for part in ("kernel", "bias")),
        "net.norm.scale",
        "net.norm.bias",
    }
    values = posterior.prior.draw(jax.random.key(2))
    h = hidden(values, X[:40])
    expected = log_probs(values, X[:40], Y[:40], h.mean(0), h.var(0))
    got = posterior.log_likelihood(values, (X[:40], Y[:40]))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    padded = np.concatenate([X[:40], X[:7] + 100]), np.concatenate([Y[:40], Y[:7]])
    got = posterior.log_likelihood(values, (*padded, jnp.arange(47) < 40))
    np.testing.assert_allclose(got[:40], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(got[40:], 0)


@pytest.mark.thorough
def test_descent_equals_a_training_loop_of_flax_and_optax(posterior):
    optimizer = optax.adam(0.01)
    method = bnn.descent(posterior, optimizer)
    net = Net(rngs=nnx.Rngs(3))
    start = {
        ".".join(["net", *map(str, path)]): jnp.array(leaf[...])
        for path, leaf in nnx.to_flat_state(nnx.state(net, nnx.Param))
    }
    batches = [(X[i : i + 60], jnp.asarray(Y[i : i + 60])) for i in (0, 60, 120, 180, 240)]
    state, step = method.init(jax.random.key(0), start, batches[0]), jax.jit(method.step)
    trainer = nnx.Optimizer(net, optimizer, wrt=nnx.Param)

    def loss(net, x, y):
        cross_entropy = optax.softmax_cross_entropy_with_integer_labels(net(x), y).mean()
        squares = sum(jnp.sum(w**2) for w in jax.tree.leaves(nnx.state(net, nnx.Param)))
        return cross_entropy + squares / 2 / len(X)

    for batch in batches:
        state, _ = step(jax.random.key(0), state, batch)
        trainer.update(net, nnx.grad(loss)(net, *batch))
    for path, leaf in nnx.to_flat_state(nnx.state(net, nnx.Param)):
        site = ".".join(["net", *map(str, path)])
        # Weights before a normalisation have gradients of rounding errors, which Adam enlarges.
        tolerance = 0.06 if site == "net.first.bias" else 2e-5
        np.testing.assert_allclose(state.position[site], leaf[...], atol=tolerance)
    assert np.any(np.abs(net.norm.mean[...]) > 0.01)  # the loop's moved, ours are not kept


# --- statistics of the training rows


@pytest.mark.thorough
def test_a_draw_has_the_mean_and_variance_of_all_training_rows(posterior, draws):
    sites = sites_to_predict(posterior, draws)
    for chain in range(2):
        values = {site: sites[site].values[chain, 1] for site in posterior.prior_std}
        h = hidden(values, X)
        mean, var = (sites[f"net.norm.{name}"].values[chain, 1] for name in ("mean", "var"))
        np.testing.assert_allclose(mean, h.mean(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(var, h.var(0), rtol=1e-4)
        given = posterior.rows.batch_statistics.of_draw(values)
        np.testing.assert_allclose(given["net.norm.mean"], mean, rtol=1e-5, atol=1e-6)
        got = posterior.predictive(values, X[:6]).logits  # recomputed within
        np.testing.assert_allclose(got, logits(values, X[:6], mean, var), rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_later_layers_pool_what_they_saw_in_batches():
    x = np.random.default_rng(1).normal(size=(200, 3, 4, 2)).astype(np.float32)
    posterior = conditioned(Images, x, Y[:200])
    values = posterior.prior.draw(jax.random.key(4))
    got = posterior.rows.batch_statistics.of_draw(values)
    order = np.random.default_rng(0).permutation(200)
    seen = {"first": [], "second": []}
    net = Images(rngs=nnx.Rngs(0))
    weights = [
        (path, leaf.replace(values[".".join(["net", *map(str, path)])]))
        for path, leaf in nnx.to_flat_state(nnx.state(net, nnx.Param))
    ]
    nnx.update(net, nnx.from_flat_state(weights))
    for rows in (order[:100], order[100:]):  # two batches of at most 128
        first = net.conv(x[rows])
        h = nnx.tanh(net.first(first))
        seen["first"].append(first)
        seen["second"] += [h, net.second(h) ** 2]
    for layer, parts in seen.items():
        together = np.concatenate(parts).reshape(-1, 3).astype(float)
        np.testing.assert_allclose(got[f"net.{layer}.mean"], together.mean(0), atol=2e-5)
        np.testing.assert_allclose(got[f"net.{layer}.var"], together.var(0), rtol=2e-4)


@pytest.mark.thorough
def test_predictions_of_a_row_depend_on_no_other_row(posterior, draws):
    together = bnn.predict(posterior, draws, (X[:20], Y[:20]))
    for name in ("probs", "log_prob", "entropy", "mutual_information"):
        alone = bnn.predict(posterior, draws, (X[7:8], Y[7:8]))[name].values
        np.testing.assert_allclose(together[name].values[7:8], alone, rtol=1e-5, atol=1e-6)
    in_parts = bnn.predict(posterior, draws, (X[:20], Y[:20]), batch_size=6)
    np.testing.assert_allclose(together.probs, in_parts.probs, rtol=1e-5, atol=1e-6)
    functions = bnn.function_draws(posterior, draws, X[:20]).posterior.probs
    alone = bnn.function_draws(posterior, draws, X[7:8]).posterior.probs
    np.testing.assert_allclose(functions[:, :, 7:8], alone, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(functions.mean(("chain", "draw")), together.probs, atol=1e-6)


def test_statistics_are_computed_once_for_the_same_draws(posterior, draws):
    first, again = (sites_to_predict(posterior, draws)["net.norm.mean"] for _ in range(2))
    assert first is again
    other = sites_to_predict(posterior, draws.isel(draw=[0]))["net.norm.mean"]
    np.testing.assert_allclose(other.values, first.values[:, :1], rtol=1e-6)


@pytest.mark.thorough
def test_attacks_and_correlations_predict_with_them_too(posterior, draws):
    moved = bnn.adversarial.fgsm(posterior, draws, (X[:9], Y[:9]), 0.1)
    alone = bnn.adversarial.fgsm(posterior, draws, (X[4:5], Y[4:5]), 0.1)
    np.testing.assert_allclose(moved[4:5], alone, atol=1e-6)
    rho = function_correlations(posterior, draws, X[:9])
    few = function_correlations(posterior, draws, X[4:6])
    np.testing.assert_allclose(rho[4:6, 4:6], few, atol=1e-4)


# --- runs


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(n for n, m in METHODS.items() if m.takes_batch_statistics))
def test_a_resumed_run_equals_an_uninterrupted_one(name, posterior, tmp_path, verdicts):
    method = getattr(bnn, name)(posterior)
    thin = METHODS[name].counts.thin
    options = {"num_chains": 2, "num_warmup": 40, "thin": thin, "batch_size": 50}
    run = partial(bnn.run, jax.random.key(0), posterior, method, **options, progress=False)
    run(folder=tmp_path, num_draws=2)
    resumed, whole = run(folder=tmp_path, num_draws=4), run(num_draws=4)
    for site, values in whole.posterior.items():
        np.testing.assert_array_equal(resumed.posterior[site].values, values.values)
    assert "not judged" not in whole.attrs["verdict"]
    assert np.isfinite(bnn.predict(posterior, whole, (X, Y)).log_prob).all()


@pytest.mark.thorough
def test_devices_that_share_the_rows_give_the_statistics_of_all():
    posterior = conditioned(x=X[:31], y=Y[:31])  # an odd number: padded
    method = bnn.sgld(posterior, 1e-3)
    mesh = jax.make_mesh((1, 2), ("chain", "data"))
    run = partial(
        bnn.run, jax.random.key(0), posterior, method, num_warmup=2, num_draws=3, thin=2,
        batch_size="all", progress=False,
    )  # fmt: skip
    shared, alone = run(mesh=mesh), run()
    for site, values in alone.posterior.items():
        np.testing.assert_allclose(shared.posterior[site], values, rtol=2e-4, atol=2e-4)
    values = posterior.prior.draw(jax.random.key(2))
    batch = by_row(posterior.data, chain_mesh(1, mesh))
    got = jax.jit(posterior.logdensity)(values, batch)
    np.testing.assert_allclose(got, posterior.logdensity(values, posterior.data), rtol=1e-5)


@pytest.mark.thorough
def test_augmentation_scores_and_early_stopping_run(posterior):
    def flipped(key, x):
        return jnp.where(jax.random.bernoulli(key, shape=(len(x), 1)), x, -x)

    method = augmented(
        bnn.descent(posterior, learning_rate=0.02, held_out=(X[:3], Y[:3]), check_every=10), flipped
    )
    draws = bnn.run(
        jax.random.key(0), posterior, method, num_warmup=30, batch_size=50, progress=False,
        score_every=10, held_out=(X[:2], Y[:2]),
    )  # fmt: skip
    scores = draws["warmup_sample_stats"]["held_out_nll"].values
    assert np.isfinite(scores[:, -1]).all()
    assert np.isfinite(draws.posterior.to_array()).all()


@pytest.mark.thorough
def test_a_plan_times_the_gradient_of_a_batch():
    rows = []

    class Counted(Net):
        def __call__(self, x):
            jax.debug.callback(rows.append, len(x))
            return super().__call__(x)

    posterior = conditioned(Counted)
    method = bnn.sgld(posterior, 1e-4)
    lengths = {"num_warmup": 2, "num_draws": 1, "thin": 1, "batch_size": 50}
    rows.clear()
    found = bnn.plan(jax.random.key(0), posterior, method, trial_seconds=0.01, **lengths)
    assert found.gradient_seconds > 0
    jax.effects_barrier()
    of_all = sum(int(count) == len(X) for count in rows)  # passes; starts and draws take some
    assert of_all < 10 <= len(rows) - of_all  # ten gradients of all rows might not fit in memory


@pytest.mark.thorough
def test_vogn_s_squares_hold_the_statistics_of_the_batch(posterior):
    from bnn_ppl.methods.layers.per_example_gradients import row_gradients

    batch = X[:6], jnp.asarray(Y[:6])
    values = posterior.prior.draw(jax.random.key(5))
    got = row_gradients(posterior)(values, batch)
    whole = jax.grad(posterior.logdensity)(values, batch)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), got.gradient, whole)
    h = hidden(values, X[:6])
    slopes = [np.exp(logits(values, X[:6], h.mean(0), h.var(0)))[i] for i in range(6)]
    of_outputs = np.array([np.eye(2)[y] - s / s.sum() for y, s in zip(Y[:6], slopes, strict=True)])
    squares = (of_outputs**2).mean(0)
    np.testing.assert_allclose(got.squares["net.last.bias"], squares, rtol=1e-3)
    normed = (h - h.mean(0)) / np.sqrt(h.var(0) + 1e-5)
    before = normed * values["net.norm.scale"] + values["net.norm.bias"]
    back = of_outputs @ np.asarray(values["net.last.kernel"]).T * (1 - np.tanh(before) ** 2)
    np.testing.assert_allclose(got.squares["net.norm.bias"], (back**2).mean(0), rtol=1e-3)
    expected = ((back * normed) ** 2).mean(0)
    np.testing.assert_allclose(got.squares["net.norm.scale"], expected, rtol=1e-3)


# --- what is refused


@pytest.mark.parametrize("name", [n for n, m in METHODS.items() if not m.takes_batch_statistics])
def test_methods_that_need_independent_rows_refuse_the_statistics_of_a_batch(name, posterior):
    message = rf"got the BatchNorm net.norm in train mode for {name}, which needs rows .* \.eval"
    with pytest.raises(ValueError, match=message):
        getattr(bnn, name)(posterior)


def test_chunks_single_rows_and_linearisation_are_refused(posterior, draws):
    with pytest.raises(ValueError, match="got microbatch=10 with the BatchNorm net.norm in train"):
        conditioned(microbatch=10)
    with pytest.raises(ValueError, match="got one row for the BatchNorm net.norm, .* at least 2"):
        conditioned(x=X[:1], y=Y[:1])
    with pytest.raises(ValueError, match="got batch_size=1 with the BatchNorm net.norm in train"):
        bnn.run(jax.random.key(0), posterior, bnn.descent(posterior), batch_size=1)
    with pytest.raises(ValueError, match="got the BatchNorm net.norm in train mode to linearise"):
        bnn.linearised(posterior, draws)


class Counting(nnx.Module):
    def __init__(self, *, rngs):
        self.first = nnx.Linear(3, 2, rngs=rngs)
        self.calls = nnx.Variable(jnp.zeros(()))

    def __call__(self, x):
        return self.first(x)


class OwnNorm(nnx.BatchNorm):
    def __call__(self, x):
        return super().__call__(x)


def in_eval_mode(*, rngs):
    net = Net(rngs=rngs)
    net.eval()
    return net


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (
            in_eval_mode,
            "got statistics of no rows at norm.mean, .* pass a trained network, not its",
        ),
        (in_eval_mode(rngs=nnx.Rngs(0)), "got statistics of no rows at norm.mean"),
        (
            bnn.nets.from_linen(linen.BatchNorm(use_running_average=False), X[:1]),
            "got statistics of no rows at mean",
        ),
        (Counting, "got Variable at calls, expected a network whose only state is weights, and"),
        (partial(Net, norm=OwnNorm), "got BatchStat at norm.mean, expected a network whose only"),
    ],
)
def test_other_state_and_statistics_of_no_rows_are_refused(net, message):
    with pytest.raises(ValueError, match=message):
        conditioned(net)


def test_a_linen_network_in_train_mode_is_refused():
    net = bnn.nets.from_linen(linen.BatchNorm(use_running_average=False), X[:1])(rngs=nnx.Rngs(0))
    net.mean[...] = jnp.array([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="got a linen network that updates its statistics"):
        conditioned(net)


def test_a_network_without_a_choice_of_norm_is_refused():
    with pytest.raises(ValueError, match="got --norm batch with --net mlp, expected --net vgg16, "):
        refuse_norm("mlp", "batch")


@pytest.mark.slow
def test_swag_continues_a_descent_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_start_jax", lambda: None)
    net = ["--data", "digits", "--subset", "40", "--net", "preresnet20", "--norm", "batch"]
    some = ["--batch-size", "20", "--learning-rate", "0.01", "--num-chains", "1", "--no-progress"]
    cli.main(["run", "descent", *net, *some, "--num-warmup", "3", "--folder", "points"])
    more = ["--num-warmup", "4", "--num-draws", "2", "--rank", "2", "--collect-every", "1"]
    cli.main(["run", "swag", *net, *some, *more, "--init", "points", "--folder", "swag"])
    cli.main(["compare", "points", "swag", "--no-progress"])
    assert "271994 parameters" in capsys.readouterr().out.replace(",", "")


def test_an_unknown_normalisation_is_refused():
    with pytest.raises(ValueError, match="got norm='layer', expected one of 'filter_response', 'b"):
        bnn.nets.PreResNet((8, 8, 1), 2, norm="layer", rngs=nnx.Rngs(0))


@pytest.mark.thorough
def test_a_layer_without_scale_and_bias_has_no_sites():
    bare = partial(nnx.BatchNorm, use_scale=False, use_bias=False)
    posterior = conditioned(partial(Net, norm=bare))
    assert len(posterior.prior_std) == 4 and posterior.rows.batch_statistics.layers == ("net.norm",)
    values = posterior.prior.draw(jax.random.key(2))
    h = hidden(values, X)
    scaled = values | {"net.norm.scale": 1.0, "net.norm.bias": 0.0}
    expected = log_probs(scaled, X, Y, h.mean(0), h.var(0))
    got = posterior.log_likelihood(values, (X, Y))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_prior_may_name_its_scale_and_bias():
    prior = {
        site: dist.Normal(float(site.endswith("scale")), 0.5) for site in conditioned().prior_std
    }
    posterior = bnn.condition(bnn.models.classifier(Net, prior), (X, Y))
    means = posterior.prior.draw(jax.random.key(0))["net.norm.scale"]
    assert means.shape == (4,)


# --- other rows than those of the run


@pytest.fixture(scope="module")
def folder(posterior, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored") / "run"
    method = bnn.sgld(posterior, 1e-4)
    options = {"num_chains": 2, "num_warmup": 2, "num_draws": 3, "batch_size": 50}
    options |= {"progress": False, "verdict": False, "folder": folder}
    bnn.run(jax.random.key(0), posterior, method, **options)
    return folder


@pytest.mark.thorough
def test_a_stored_run_predicts_as_with_its_training_rows(posterior, folder):
    stored = bnn.diagnostics.load(folder)
    few = conditioned(x=np.zeros((2, 3), np.float32), y=np.array([0, 1], np.int32))
    expected = bnn.predict(posterior, bnn.diagnostics.load(folder), (X, None))
    np.testing.assert_allclose(bnn.predict(few, stored, (X, None)).probs, expected.probs, 1e-6)
    two = bnn.predict(few, stored.isel(chain=[1], draw=[0, 2]), (X, None))
    assert np.abs(two.probs - expected.probs).max() > 1e-6
    same = bnn.predict(posterior, stored.isel(chain=[1], draw=[0, 2]), (X, None))
    np.testing.assert_allclose(two.probs, same.probs, 1e-6)


def test_other_rows_are_refused_where_no_statistics_are_stored(draws, folder, tmp_path):
    few = conditioned(x=X[:20], y=Y[:20])
    with pytest.raises(ValueError, match="of other rows than the draws for net.norm") as refused:
        bnn.predict(few, draws, (X, None))
    assert "\n" not in str(refused.value)
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / "batch_statistics-0.npz").unlink()
    path = tmp_path / "run" / "draws.zarr"
    root = json.loads((path / "zarr.json").read_text())
    for name in ("data", "checksum"):  # as an earlier version wrote it
        root["attributes"].pop(name)
    (path / "zarr.json").write_text(json.dumps(root))
    with pytest.raises(ValueError, match="of other rows than the draws for net.norm"):
        bnn.predict(few, bnn.diagnostics.load(tmp_path / "run"), (X, None))
