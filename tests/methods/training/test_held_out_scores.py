"""Scores of held-out rows while a method trains."""

from functools import partial

import jax
import numpy as np
import pytest

import bnn_ppl as bnn
from bnn_ppl import cli
from bnn_ppl.methods.training.held_out_scores import steps_between

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2)).astype(np.float32)
Y = (X @ [1.0, -2.0] + 0.3 * RNG.normal(size=60)).astype(np.float32)
LABELS = (Y > 0).astype(np.int32)
KEPT, HELD = slice(0, 40), slice(40, 60)
NET = partial(bnn.nets.MLP, 2, (3,))


def regression():
    model = bnn.models.regressor(partial(NET, 1), bnn.priors.normal(1.0), 0.3)
    return bnn.condition(model, (X[KEPT], Y[KEPT])), (X[HELD], Y[HELD])


def classes():
    model = bnn.models.classifier(partial(NET, 2), bnn.priors.normal(1.0))
    return bnn.condition(model, (X[KEPT], LABELS[KEPT])), (X[HELD], LABELS[HELD])


def run(posterior, method, **options):
    options = {"num_chains": 2, "num_draws": 1, "thin": 0, "batch_size": 10} | options
    return bnn.run(jax.random.key(1), posterior, method, progress=False, **options)


@pytest.mark.thorough
@pytest.mark.parametrize("problem", [regression, pytest.param(classes, marks=pytest.mark.thorough)])
def test_the_last_score_is_that_of_the_point_drawn(problem):
    posterior, held = problem()
    method = bnn.descent(posterior, learning_rate=0.03)
    scored = {"score_every": 10, "held_out": held}
    draws = run(posterior, method, num_warmup=30, **scored)
    stats = draws["warmup_sample_stats"]
    score = "held_out_rmse" if problem is regression else "held_out_accuracy"
    for chain in range(2):
        own = bnn.predict(posterior, draws.isel(chain=[chain]), held)
        expected = bnn.metrics.summary(own, held[1], digits=None)
        nll, other = (np.asarray(stats[name])[chain] for name in ("held_out_nll", score))
        np.testing.assert_allclose(nll[-1], expected["nll"], rtol=1e-4)
        np.testing.assert_allclose(other[-1], expected[score.removeprefix("held_out_")], rtol=1e-4)
        assert np.isnan(nll[:9]).all() and len(set(nll[9:])) == 3
        assert len(set(nll[9:19])) == len(set(nll[19:29])) == 1  # a score holds until the next
    without = run(posterior, method, num_warmup=30)
    for site, values in without["posterior"].items():
        np.testing.assert_allclose(values, draws["posterior"][site], atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mfvi", "vogn", "ivon", "mc_dropout"])
def test_fitted_distributions_are_scored_by_an_average(name):
    posterior, held = regression()
    method = getattr(bnn, name)(posterior, learning_rate=0.03)
    draws = run(posterior, method, num_warmup=400, score_every="5 epochs", held_out=held)
    nll = np.asarray(draws["warmup_sample_stats"]["held_out_nll"])
    assert np.isnan(nll[:, :19]).all() and np.isfinite(nll[:, 19:]).all()
    assert (nll[:, -1] < nll[:, 19]).all()
    many = run(posterior, method, num_warmup=400, num_draws=160)
    for chain in range(2):  # among averages over 8 draws of the run
        eights = (many.isel(chain=[chain], draw=slice(k, k + 8)) for k in range(0, 160, 8))
        others = [bnn.metrics.nll(bnn.predict(posterior, own, held), held[1]) for own in eights]
        margin = max(others) - min(others)
        assert min(others) - margin < nll[chain, -1] < max(others) + margin


@pytest.mark.thorough
def test_swag_is_scored_before_it_has_collected_points_too(tmp_path):
    posterior, held = regression()
    method = bnn.swag(posterior, bnn.descent(posterior, learning_rate=0.03), collect_from=20)
    scored = {"score_every": 8, "held_out": held}
    draws = run(posterior, method, num_warmup=40, folder=tmp_path / "here", **scored)
    nll = np.asarray(draws["warmup_sample_stats"]["held_out_nll"])
    assert np.isfinite(nll[:, 7:]).all() and "score_every" in draws.attrs["settings"]
    again = run(posterior, method, num_warmup=40, folder=tmp_path / "here", **scored)
    np.testing.assert_array_equal(again["warmup_sample_stats"]["held_out_nll"], nll)
    ax = bnn.plots.warmup_scores(again)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "NLL (nats per row)",
        "RMSE (units of the model)",
    ]


def test_intervals_in_steps_and_epochs():
    assert steps_between(7, 100, 10) == 7
    assert steps_between("2 epochs", 105, 10) == steps_between("2epochs", 105, 10) == 20
    assert steps_between("0.5 epochs", 100, 10) == 5 and steps_between("1 epoch", 100, None) == 1


@pytest.mark.parametrize("every", [0, -1, 2.5, True, "often", "0 epochs", "2"])
def test_other_intervals_are_refused(every):
    posterior, held = regression()
    with pytest.raises(ValueError, match="^got score_every=.*, expected a number of steps"):
        run(posterior, bnn.descent(posterior), score_every=every, held_out=held)


def test_one_without_the_other_is_refused():
    posterior, held = regression()
    with pytest.raises(ValueError, match="expected both: give held_out=, or drop the other"):
        run(posterior, bnn.descent(posterior), score_every=5)
    with pytest.raises(ValueError, match="expected both: give score_every="):
        run(posterior, bnn.descent(posterior), held_out=held)
    with pytest.raises(ValueError, match="got x with rows of"):
        run(posterior, bnn.descent(posterior), score_every=5, held_out=(X[:, :1], Y))


@pytest.mark.thorough
def test_the_command_line_scores_the_rows_held_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_start_jax", lambda: None)
    command = ["run", "descent", "--learning-rate", "0.01", "--num-warmup", "40", "--hidden", "3"]
    command += ["--prior-scale", "1", "--num-chains", "2", "--no-progress", "--folder", "here"]
    command += ["--score-every", "5epochs"]
    cli.main([*command, "--held-out", "0.2"])
    stats = bnn.diagnostics.load("here")["warmup_sample_stats"]
    assert np.isfinite(np.asarray(stats["held_out_rmse"])[:, -1]).all()
    assert (tmp_path / "here/report.png").stat().st_size > 10_000
    with pytest.raises(SystemExit):
        cli.main([*command[:-4], *command[-2:], "--folder", "there"])
    assert "got --score-every for a run that trains on all" in capsys.readouterr().err
