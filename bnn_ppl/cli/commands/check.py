"""Command ``check``: whether a run's model and method can be trusted."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jax
import tyro

import bnn_ppl as bnn
from bnn_ppl.analysis.model_checks.sensitivity import sensitivity_in_words
from bnn_ppl.analysis.model_checks.simulations import NUM_RANKED, Simulated
from bnn_ppl.cli.problem.build import model_of
from bnn_ppl.cli.problem.likelihoods import likelihood_of
from bnn_ppl.cli.run_folders import Opened, figure_path, reopen
from bnn_ppl.cli.stored_methods import as_recorded, recorded_options
from bnn_ppl.cli.tables import table_text
from bnn_ppl.methods.method import METHODS
from bnn_ppl.storage.inference_data import evenly, with_points_of


def check(
    folder: Annotated[Path, tyro.conf.Positional],
    *,
    num_simulations: int = 0,
    num_rows: int = 50,
    seed: int = 0,
    max_minutes: float | None = None,
    figure: Path | None = None,
    progress: bool = True,
    data_dir: Path | None = None,
) -> None:
    """Check a run's model and method: data of the model, sensitivity, and simulations.

    Draws data from the model before and after it has seen y; tells whether the prior or the data
    decide; and, with --num-simulations 100, fits data that the model makes and ranks the values
    that made them among the draws. A sentence for each, and checks.png in the folder.

    Parameters
    ----------
    folder
        Folder of a run.
    num_simulations
        Fits of simulated data with the run's method and length: 30 show large errors, 100 smaller
        ones. They are kept in simulations.jsonl in the folder, and the same command goes on.
    num_rows
        Rows of each simulation, evenly from the training rows.
    seed
        Random seed for the simulations and drawn data.
    max_minutes
        Stop simulating after this time, once the fit in progress has ended.
    figure
        Path of the figure.
    progress
        Show a progress bar (plain lines where there is no terminal).
    data_dir
        Folder with the data set, if it has moved since the run.
    """
    path = figure_path((folder,), figure, "checks.png")
    run = reopen(folder, data_dir, "test")
    draws, key = run.draws, jax.random.key(seed)
    fit = _fit(draws) if num_simulations else None
    predictive = bnn.check_predictive(key, run.posterior, draws, data_set=run.data)
    print(predictive.prior_sentence)
    print(predictive.posterior_sentence)
    print(f"\n{table_text(predictive.table)}\n")
    sensitivity = _sensitivity(run, draws)
    simulated = None
    if fit is not None:
        shown = {"max_minutes": max_minutes, "progress": progress}
        simulated = _simulated(run, draws, fit, num_simulations, num_rows, key, shown)
        print(f"\n{simulated.sentence}")
        print(f"\n{table_text(simulated.table)}")
    bnn.plots.model_checks(predictive, sensitivity, simulated).savefig(path, dpi=150)
    more = "" if num_simulations else " (--num-simulations 100 checks the method too)"
    print(f"\nfigure in {path}{more}")


def _sensitivity(run: Opened, draws: Any) -> Any:
    """Print what the prior moves; draws that cannot be weighted say why."""
    try:
        found = bnn.check_sensitivity(run.posterior, draws)
    except ValueError as error:
        print(f"sensitivity to the prior: not found: {error}")
        return None
    print(sensitivity_in_words(found))
    print(f"\n{table_text(found)}")
    return found


def _simulated(
    run: Opened,
    draws: Any,
    fit: Callable,
    num_simulations: int,
    num_rows: int,
    key: Any,
    shown: dict[str, Any],
) -> Simulated:
    problem, target = run.problem, run.problem.target
    model = model_of(problem, run.data, likelihood_of(problem, run.data))

    def condition(data: Any) -> bnn.Posterior:
        posterior = bnn.condition(
            model,
            data,
            temperature=target.temperature,
            tempered=target.tempered,
            precision=target.matmul_precision,
        )
        return with_points_of(draws, posterior)

    known = run.posterior.rows.examples
    chosen = evenly(len(known[1]), num_rows)
    rows = jax.tree.map(lambda leaf: leaf[chosen], known)
    return bnn.check_simulations(
        *(key, condition, rows, fit),
        num_simulations=num_simulations,
        folder=run.folder,
        **shown,
    )


def _fit(draws: Any) -> Callable[[Any, bnn.Posterior], Any]:
    """Give what fits as the run did: its method with its settings, and its length."""
    attrs, settings = draws.attrs, json.loads(draws.attrs.get("settings", "{}"))
    described = METHODS.get(attrs.get("method", ""))
    if described is None or "subspace" in attrs or int(attrs.get("bootstrap", 0)):
        raise ValueError(
            f"got a run of {attrs.get('method')} that cannot be repeated, expected one of a method "
            "by its name: leave --num-simulations out"
        )
    sizes = draws["posterior"].sizes
    if sizes["chain"] * sizes["draw"] < NUM_RANKED:
        raise ValueError(
            f"got a run of {sizes['chain'] * sizes['draw']} draws, expected {NUM_RANKED} or more "
            "for simulations: run it longer, or leave --num-simulations out"
        )
    options = recorded_options(described, settings)
    lengths = {name: attrs[name] for name in ("num_warmup", "num_draws", "thin") if name in attrs}
    build = partial(described.build, **options)

    def fit(key: Any, posterior: bnn.Posterior) -> Any:
        method = build(posterior)
        _check_same(as_recorded(method), settings)
        size = attrs.get("batch_size", "all")
        rows = size if size == "all" else min(int(size), posterior.num_rows)
        quiet = {"progress": False, "verdict": False}
        given = lengths | quiet | {"num_chains": sizes["chain"], "batch_size": rows}
        return bnn.run(key, posterior, method, **given)

    return fit


def _check_same(made: dict[str, Any], settings: dict[str, Any]) -> None:
    """Refuse a method with other settings than the run's, of which not all can be read back."""
    differing = [name for name in settings if made.get(name) != settings[name]]
    if differing:
        name = differing[0]
        raise ValueError(
            f"got a run with {name}={settings[name]!r}, which cannot be repeated (it would be "
            f"{made.get(name)!r}), expected a method at its own settings: run it anew for this"
        )
