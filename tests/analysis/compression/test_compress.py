"""Fewer draws for the same predictions: their distance, and that everything reads them."""

from functools import partial
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bnn_ppl as bnn
from bnn_ppl.cli import main
from bnn_ppl.runtime import progress
from bnn_ppl.storage.arviz_versions import draws_of_arrays
from bnn_ppl.storage.copied_run import write_run

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 2)).astype(np.float32)
CHAINS, DRAWS = 2, 200


def linear(x, y=None):
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    scale = numpyro.sample("noise", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(x @ slopes, scale), obs=y)


def classes(x, y=None):
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Categorical(logits=x @ slopes), obs=y)


@pytest.fixture(scope="module")
def numbers():
    posterior = bnn.condition(linear, (X, X[:, 0]))
    values = {
        "slopes": RNG.normal(1.0, 0.2, (CHAINS, DRAWS, 2)).astype(np.float32),
        "noise": RNG.lognormal(-1.0, 0.3, (CHAINS, DRAWS)).astype(np.float32),
    }
    stats = {"lp": RNG.normal(size=(CHAINS, DRAWS))}
    return posterior, draws_of_arrays({"posterior": values, "sample_stats": stats})


def changes(posterior, draws, kept):
    """Compute the largest changes at the training rows by the functions that users call."""
    before, after = (bnn.predict(posterior, each, X) for each in (draws, kept))
    sd = np.sqrt(before["variance"].values)
    levels = 0.05, 0.25, 0.5, 0.75, 0.95
    quantiles = [bnn.predict_quantiles(posterior, each, X, levels) for each in (draws, kept)]
    return {
        "mean": np.abs((after["mean"] - before["mean"]).values / sd).max(),
        "sd": np.abs(np.sqrt(after["variance"].values) / sd - 1).max(),
        "quantile": np.abs((quantiles[1] - quantiles[0]) / sd).max(),
    }


@pytest.mark.thorough
def test_a_tenth_of_the_draws_predicts_within_a_tenth_of_an_sd(numbers):
    found = bnn.compress(*numbers, tolerance=0.1)
    assert found.num_draws <= CHAINS * DRAWS / 10 and found.change <= 0.1
    stated = found.table.loc[found.num_draws]
    for name, change in changes(*numbers, found.draws).items():
        assert change == pytest.approx(stated[name], abs=2e-3), name
    assert stated["evenly"] > 1.5 * found.change  # thinning is worse
    assert found.draws.attrs["compressed_from"] == CHAINS * DRAWS


@pytest.mark.thorough
def test_chosen_draws_are_draws_with_their_statistics(numbers):
    _, draws = numbers
    kept = bnn.compress(*numbers, num_draws=10).draws
    assert kept["posterior"].sizes["chain"] == 2 and kept["posterior"].sizes["draw"] == 5
    for chain in range(CHAINS):
        slopes = draws["posterior"]["slopes"].values[chain]
        own = kept["posterior"]["slopes"].values[chain]
        places = [int(np.flatnonzero((slopes == each).all(1))[0]) for each in own]
        assert places == sorted(set(places))
        expected = draws["sample_stats"]["lp"].values[chain, places]
        np.testing.assert_array_equal(kept["sample_stats"]["lp"].values[chain], expected)


def test_members_of_an_ensemble_are_left_out_whole():
    posterior = bnn.condition(classes, (X, np.arange(30) % 3))
    slopes = RNG.normal(size=(40, 1, 2, 3)).astype(np.float32)
    draws = draws_of_arrays({"posterior": {"slopes": slopes}})
    found = bnn.compress(posterior, draws, tolerance=0.2)
    assert found.draws["posterior"].sizes["draw"] == 1 and 1 < found.num_draws < 40
    probs = [bnn.predict(posterior, each, X)["probs"].values for each in (draws, found.draws)]
    sd = np.sqrt(np.maximum(probs[0] * (1 - probs[0]), 1e-4))
    largest = np.abs((probs[1] - probs[0]) / sd).max()
    assert largest == pytest.approx(found.change, abs=1e-4) and largest <= 0.2


@pytest.mark.parametrize("options", [{"tolerance": 0.4}, {"num_draws": 10}])
def test_progress_counts_to_its_total(options, numbers, monkeypatch):
    told = []
    lines = progress._lines

    def noted(style, total):
        report = lines(style, total)
        return lambda phase, done, facts: told.append((done, total)) or report(phase, done, facts)

    monkeypatch.setattr(progress, "_lines", noted)
    found = bnn.compress(*numbers, **options, progress=True)
    assert all(done <= total for done, total in told)
    assert told[-1][0] == len(found.table)
    assert "num_draws" not in options or told[-1][0] == told[-1][1]


@pytest.mark.thorough
def test_weighted_draws_are_kept_to_by_draws_of_equal_weight(numbers):
    posterior, draws = numbers
    logs = jnp.log(1.0 + 50 * (draws["posterior"]["slopes"].values[..., 0] > 1.1))
    groups = {name: {str(k): v.values for k, v in draws[name].items()} for name in ("posterior",)}
    weighted = draws_of_arrays(groups | {"sample_stats": {"log_weight": np.asarray(logs)}})
    found = bnn.compress(posterior, weighted, tolerance=0.1)
    assert "log_weight" not in found.draws.get("sample_stats", {})
    assert max(changes(posterior, weighted, found.draws).values()) <= 0.1 + 2e-3
    assert max(changes(posterior, draws, found.draws).values()) > 0.2


@pytest.mark.thorough
def test_a_folder_of_chosen_draws_opens_as_a_run(numbers, tmp_path):
    kept = bnn.compress(*numbers, num_draws=6).draws
    write_run(tmp_path / "new", tmp_path, kept)
    again = bnn.diagnostics.load(tmp_path / "new")
    np.testing.assert_array_equal(again["posterior"]["slopes"], kept["posterior"]["slopes"])
    np.testing.assert_array_equal(again["sample_stats"]["lp"], kept["sample_stats"]["lp"])
    assert again.attrs["compressed_from"] == CHAINS * DRAWS
    with pytest.raises(FileExistsError, match="which exists"):
        write_run(tmp_path / "new", tmp_path, kept)


@pytest.mark.thorough
def test_a_compressed_run_is_one_for_other_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    table = np.c_[X, X[:, :1] + 0.1 * RNG.normal(size=(30, 1))]
    np.savetxt("table.csv", table, delimiter=",", header="a,b,y", comments="")
    run = partial(main, ["run", "sgld", "--data", "table.csv", "--folder", "run", "--hidden", "3"]
                  + ["--prior-scale", "1", "--step-size", "1e-5", "--num-warmup", "5"]
                  + ["--num-draws", "40", "--num-chains", "2"])  # fmt: skip
    run()
    main(["compress", "run", "--num-draws", "8"])
    assert "8 of 80 draws change a prediction by at most" in capsys.readouterr().out
    main(["predict", "run-compressed"])
    main(["summary", "run-compressed"])
    assert Path("run-compressed/predictions.csv").is_file()
    assert "compressed_from" in capsys.readouterr().out
    rows = X[:3].tolist()
    folder, loaded = "run-compressed", bnn.diagnostics.load("run-compressed")
    assert (
        bnn.predict(folder, x=rows)["mean"].shape == (3,) and loaded["posterior"].sizes["draw"] == 4
    )


def test_what_cannot_be_compressed_is_refused(numbers):
    with pytest.raises(ValueError, match="got tolerance=0"):
        bnn.compress(*numbers, tolerance=0)
    with pytest.raises(ValueError, match="got num_draws=401, expected 1 to 400"):
        bnn.compress(*numbers, num_draws=401)
    posterior, draws = numbers
    with pytest.raises(ValueError, match="got one draw"):
        bnn.compress(posterior, draws.isel(chain=[0], draw=[0]))
