"""What every method promises, read off what it says of itself; and adding one in a single file."""

import importlib
import inspect
import re

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from marks import quick_first, some_quick

import bnn_ppl as bnn
from bnn_ppl import cli
from bnn_ppl.estimators import BayesianRegressor
from bnn_ppl.methods.defaults import Batching
from bnn_ppl.methods.method import METHODS, Method, Tuning, table

X = np.linspace(-1, 1, 12, dtype=np.float32)
OF_RUN = {"num_chains": 2, "num_warmup": 6}  # enough for swag to collect two points


@pytest.fixture(scope="module")
def posterior():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(w[0] + w[1] * x, 0.5), obs=y)

    return bnn.condition(model, (X, 0.3 + X))


def network_posterior():
    net = bnn.models.regressor(lambda rngs: bnn.nets.MLP(1, (2,), 1, rngs=rngs), dist.Normal(), 0.5)
    return bnn.condition(net, (X[:, None], 0.3 + X))


def built(name, posterior):
    """A method with its defaults, and a number for each option that has none."""
    description = METHODS[name]
    options = {
        option: 1e-3 if parameter.default is parameter.empty else parameter.default
        for option, parameter in list(inspect.signature(description.build).parameters.items())[1:]
    }
    return description.build(posterior, **description.complete(options, OF_RUN | {"thin": 0}))


@quick_first("name", some_quick(METHODS, ("descent", "hmc")))
def test_a_resumed_run_equals_an_uninterrupted_one_and_is_what_the_method_says(
    name, posterior, tmp_path
):
    description = METHODS[name]
    if name in ("laplace", "mc_dropout", "noisy_kfac"):  # they look at layers
        posterior = network_posterior()
    method = built(name, posterior)
    thin = description.counts.thin
    options = OF_RUN | {"thin": thin, "batch_size": 6 if description.stochastic_gradients else None}
    run = lambda **more: bnn.run(  # noqa: E731
        jax.random.key(0), posterior, method, **options, **more, progress=False
    )
    run(folder=tmp_path / "run", num_draws=2)
    resumed, whole = run(folder=tmp_path / "run", num_draws=5), run(num_draws=5)
    for site, values in whole.posterior.items():
        np.testing.assert_array_equal(resumed.posterior[site].values, values.values)
    assert whole.attrs["method"] == name and whole.attrs["draws_from"] == method.draws_from
    assert np.isfinite(whole.posterior.to_array()).all()
    arrays = [values.values for values in whole.posterior.values()]
    equal = all((array == array[:, :1]).all() for array in arrays)
    assert equal == (method.draws_from == "point" and not thin)
    assert ("fitted" in whole) == (method.fitted is not None)
    if method.draws_from == "gaussian":
        assert callable(bnn.guide(posterior, whole))
    else:
        with pytest.raises(ValueError, match="independent Gaussians"):
            bnn.guide(posterior, whole)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_can_be_called_by_its_public_name_and_says_what_it_gives(name):
    description = METHODS[name]
    assert getattr(bnn, name).__name__ == name
    assert description.gives and description.cost and description.bias
    assert (description.kind == "sampler") == (description.counts.thin > 0)


def test_fields_of_batching_and_tuning_are_given_and_replaced_by_their_own_names():
    method = Method(*"abc", all_rows=True, needs_warmup=True)
    assert method.all_rows and method.batching.order == "all" and method.tuning.needs_warmup
    other = method._replace(subsample=0.5, finish=len)
    assert other.batching == Batching("all", 0.5)
    assert other.tuning == Tuning(finish=len, needs_warmup=True)
    assert type(other) is Method and len(other) == 12
    for order in ("symmetric", "independent"):
        ordered = Method(*"abc", **{f"{order}_batches": True})
        assert ordered.batching.order == order
        assert ordered._replace(**{f"{order}_batches": False}).batching.order == "epochs"


# --- a method of one's own, in one file

RANDOM_WALK = '''
import jax, jax.numpy as jnp
from bnn_ppl.methods.method import Method, describe, step_info

@describe(gives="draws of a random walk", cost="a value on all rows", bias="mixes slowly")
def random_walk(posterior, *, scale: float = 0.1) -> Method:
    """Metropolis's random walk.

    Parameters
    ----------
    posterior
        What to sample.
    scale
        Standard deviation of a proposal.
    """
    def init(key, position, batch):
        return position, posterior.logdensity(position, batch)

    def step(key, state, batch):
        position, lp = state
        keys = jax.random.split(key, len(position) + 1)
        proposal = {
            site: w + scale * jax.random.normal(k, w.shape)
            for k, (site, w) in zip(keys, position.items())
        }
        new = posterior.logdensity(proposal, batch)
        accept = jnp.log(jax.random.uniform(keys[-1])) < new - lp
        state = jax.tree.map(lambda a, b: jnp.where(accept, a, b), (proposal, new), state)
        return state, step_info(state[1], 0)

    return Method(
        init, step, lambda key, state: state[0],
        settings={"method": "random_walk", "scale": scale},
        logdensity=posterior.logdensity, all_rows=True,
    )
'''


@pytest.fixture
def random_walk(tmp_path, monkeypatch):
    (tmp_path / "my_random_walk.py").write_text(RANDOM_WALK)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_start_jax", lambda: None)
    yield importlib.import_module("my_random_walk")
    del METHODS["random_walk"]


@pytest.mark.thorough
def test_a_new_method_is_one_file(random_walk, capsys):
    few = ["--scale", "0.05", "--num-chains", "2", "--num-warmup", "3", "--hidden", "2"]
    few += ["--no-progress"]
    cli.main(["run", "random_walk", *few, "--num-draws", "4"])
    first = bnn.diagnostics.load("runs/yacht-0-random_walk").posterior.load()
    cli.main(["run", "random_walk", *few, "--num-draws", "6"])  # resumed
    draws = bnn.diagnostics.load("runs/yacht-0-random_walk")
    assert draws.attrs["method"] == "random_walk" and draws.posterior.sizes["draw"] == 6
    for site, values in first.items():
        np.testing.assert_array_equal(draws.posterior[site][:, :4], values)
    capsys.readouterr()

    cli.main(["plan", "random_walk", *few[:-1], "--num-draws", "4"])
    assert "the run" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["run", "--help"])
    assert re.search("random_walk +Metropolis.s random walk", capsys.readouterr().out)

    fitted = BayesianRegressor("random_walk", hidden=(2,), num_chains=1, random_state=0)
    fitted.set_params(num_warmup=3, num_draws=3).fit(X[:, None], X)
    assert np.isfinite(fitted.predict(X[:, None])).all()

    row = "draws of a random walk | a value on all rows | mixes slowly"
    row += " | 300 warm-up steps, 200 draws |"
    assert f"| [`random_walk`](random_walk.md) | {row}" in table()


def test_a_method_is_shown_by_its_name_and_settings(posterior):
    shown = repr(bnn.hmc(posterior, step_size=0.1, trajectory_length=1.0))
    assert shown.startswith("hmc(step_size=0.1, trajectory_length=1.0, mass='identity'")
