"""Commands on the folders of runs: ``summary``, ``prune``, ``compare``."""

import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

import numpy as np
import tyro

import bnn_ppl as bnn
from bnn_ppl.analysis.comparison.compare_inputs import VARIABLES
from bnn_ppl.analysis.comparison.compare_tables import HEADINGS, to_latex, with_errors
from bnn_ppl.analysis.convergence.evidence import evidence_in_words
from bnn_ppl.analysis.metrics.inputs import Prediction
from bnn_ppl.analysis.prediction.predict import predict_with_functions
from bnn_ppl.cli.leave_one_out import LeavingOut, compare_by_loo
from bnn_ppl.cli.problem.rows import Scored
from bnn_ppl.cli.run_folders import (
    Opened,
    check_figure,
    check_names,
    check_writable,
    name_of,
    reopen,
    reopen_all,
)
from bnn_ppl.cli.tables import cell, found_in_warmup, table_text, with_output_names
from bnn_ppl.data.tables.finding import columns_table
from bnn_ppl.data.tables.published import OWN_REFERENCES, HMCChains, OwnReference
from bnn_ppl.runtime.interrupts import interrupts
from bnn_ppl.runtime.progress import reporting
from bnn_ppl.sampling.run_verdict import verdict_attributes
from bnn_ppl.storage.inference_data import weights_of
from bnn_ppl.storage.problem import CHOICE, read_problem

PUBLISHED = ("published", *OWN_REFERENCES)


def summary(
    folder: Annotated[Path, tyro.conf.Positional],
    *,
    matched: bool = False,
    data_dir: Path | None = None,
) -> None:
    """Summarise a run: its verdict and settings, and R-hat and ESS in function and weight space.

    The weights of a network need not mix, since permuting hidden units leaves the function
    unchanged. The functions must: R-hat below 1.01 is good, above 1.05 is not converged.

    Parameters
    ----------
    folder
        Folder of a run.
    matched
        Match the hidden units of the chains first, so that chains agree if their weights differ
        only by a permutation of units.
    data_dir
        Folder with the data set, if it has moved since the run.
    """
    run = reopen(folder, data_dir)
    draws = run.draws
    if matched:
        draws = bnn.symmetry.matched(run.posterior, draws)
    if "verdict" not in draws.attrs:  # still running, or killed
        draws.attrs |= verdict_attributes(run.posterior, draws)
    print(f"{draws.attrs['verdict']}\n")
    if choice := read_problem(folder).get(CHOICE):
        print(f"{'network':28} {choice}")
    for name, value in draws.attrs.items():
        if name != "verdict":
            print(f"{name:28} {cell(value)}")
    if found := found_in_warmup(draws):
        print(f"{'found in warm-up':28} {found}")
    if "log_evidence" in getattr(draws, "fitted", {}):
        print(f"{'log_evidence':28} {evidence_in_words(draws)}")
    if run.data.encoding is not None and run.data.encoding.inputs:
        print(f"\n{table_text(columns_table(run.data.encoding), index=False)}")
    if not draws["posterior"].sizes["draw"]:  # the verdict has said so
        return
    functions = bnn.function_draws(run.posterior, draws, run.data.test.x)
    print("\nfunctions at the test rows, and weights")
    print(table_text(bnn.diagnostics.summary(draws, functions)))
    print(f"\nweights, layer by layer{', units matched' if matched else ''}")
    print(table_text(bnn.diagnostics.weights(draws)))


def prune(
    folder: Annotated[Path, tyro.conf.Positional],
    *,
    on: Scored | None = None,
    data_dir: Path | None = None,
) -> None:
    """Prune a run's weights: scores against the fraction removed, weights.png and pruning.png.

    Removes the weights with the lowest signal-to-noise ratio (mean over standard deviation), or the
    lowest divergence from the prior, and scores what is left.

    Parameters
    ----------
    folder
        Folder of a run with several draws.
    on
        Rows to score: by default those held out of training if the run has any, otherwise the test
        rows.
    data_dir
        Folder with the data set, if it has moved since the run.
    """
    run = reopen(folder, data_dir, on)
    draws, scale = run.draws, run.data.y_scale
    curves = {
        title: bnn.pruning.pruning_curve(run.posterior, draws, run.data.test, by=by, scale=scale)
        for title, by in {"signal to noise": "signal_to_noise", "divergence": "kl"}.items()
    }
    for title, curve in curves.items():
        print(f"\nby {title}")
        print(table_text(curve, index=False))
    bnn.plots.pruning(curves).savefig(folder / "pruning.png", dpi=150)
    bnn.plots.weights(draws).savefig(folder / "weights.png", dpi=150)
    print(f"figures in {folder / 'pruning.png'} and {folder / 'weights.png'}")


class Scoring(NamedTuple):
    """How predictions are scored.

    Attributes
    ----------
    on
        Rows to score: by default those held out of training if the runs have any (they must be the
        same), otherwise the test rows.
    calibrate
        Fraction of the rows (the first ones) on which each method's probabilities are calibrated by
        a temperature; scores are then of the remaining rows.
    standard_errors
        Show the standard error of each score, by bootstrap over rows and chains.
    latex
        Print the table as LaTeX.
    """

    on: Scored | None = None
    calibrate: float = 0.0
    standard_errors: bool = False
    latex: bool = False


_USUAL_SCORING, _USUAL_LEAVING_OUT = Scoring(), LeavingOut()


def compare(
    folders: Annotated[tuple[Path, ...], tyro.conf.Positional],
    *,
    by: Literal["predictions", "loo"] = "predictions",
    reference: str | None = None,
    scoring: Scoring = _USUAL_SCORING,
    leaving_out: LeavingOut = _USUAL_LEAVING_OUT,
    figure: Path = Path("comparison.png"),
    progress: bool = True,
    data_dir: Path | None = None,
) -> None:
    """Compare runs on the same data: scores, distances, cost.

    Parameters
    ----------
    folders
        Folders of runs on the same data set and split.
    by
        Compare "predictions" of test rows, or models of the same training rows by "loo": the log
        density of each training row under the posterior without it, by Pareto-smoothed importance
        sampling and moment matching, with differences, their errors, and stacking weights.
    reference
        Predictions that the others are compared with, for example HMC's: the name of a run's
        folder, an .npz file with "probs" (or "mean" and "variance") of the same rows, or
        "published" for those of Izmailov et al. (2021) on cifar10's test rows; "digits-lenet" or
        "mnist160" for HMC's that ship with the package, for runs on the posterior that is then
        printed. The table shows agreement and total variation (classification) or Wasserstein
        distances (regression), and below it those between two halves of the reference's chains.
    scoring
        How predictions are scored.
    leaving_out
        How training rows are left out.
    figure
        Path of the figure.
    progress
        Show a progress bar (plain lines where there is no terminal).
    data_dir
        Folder with the data set, if it has moved since the runs.
    """
    check_figure(figure)
    check_writable("--figure", figure)
    on, calibrate, standard_errors, latex = scoring
    if by == "loo" or leaving_out.k_fold is not None:
        others = (reference, on, calibrate or None, standard_errors or None, latex or None)
        compare_by_loo(folders, others, leaving_out, figure, progress, data_dir)
        return
    if leaving_out != _USUAL_LEAVING_OUT:
        raise ValueError(
            "got --refit, --most-refits or --no-match-moments with --by predictions, expected "
            "--by loo with them"
        )
    names = list(map(name_of, folders))
    check_names(names)
    check_reference(reference, names)
    if not 0 <= calibrate < 1:
        raise ValueError(f"got --calibrate {calibrate:g}, expected a share from 0 to below 1")
    runs = reopen_all(folders, data_dir, on)
    first = next(iter(runs.values()))
    check_published(reference, first)
    data = first.data
    if calibrate and data.num_classes is None:
        raise ValueError(
            f"got --calibrate {calibrate:g} for runs on numbers, expected classes: drop it"
        )
    num_calibrating = round(calibrate * len(data.test.y))
    if calibrate and not 0 < num_calibrating < len(data.test.y):
        raise ValueError(
            f"got --calibrate {calibrate:g} of {len(data.test.y)} rows, which is "
            f"{num_calibrating}, expected some to calibrate on and some to score: choose another"
        )
    draws = {name: run.draws for name, run in runs.items()}
    predictions, functions = predicted(runs, data.test, progress=progress)
    elsewhere = None if reference in runs else predicted_elsewhere(reference, data, data_dir)
    of_regressions = set(runs) if standard_errors else {reference}
    by_chain = chain_predictions(runs, predictions, functions, of_regressions)
    if isinstance(elsewhere, HMCChains):
        by_chain["the reference"] = list(elsewhere.probs_by_chain)
        elsewhere = elsewhere.probs
    table = bnn.compare(
        predictions,
        data.test.y,
        reference if reference in runs else elsewhere,
        validation=np.arange(num_calibrating) if calibrate else None,
        draws=draws,
        function_rhat={
            name: of_run for name, of_run in functions.items() if of_run.posterior.sizes["draw"] > 1
        },
        scale=data.y_scale,
        by_chain=by_chain,
        standard_errors=standard_errors,
    )
    table = with_output_names(table, data, axis=1)
    shown = with_errors(table)
    print(to_latex(table) if latex else table_text(shown))
    if not latex:
        _print_floor(table)
    bnn.plots.comparison(table).savefig(figure, dpi=150)
    print(f"figure in {figure}")


def chain_predictions(
    runs: dict[str, Opened], predictions: dict, functions: dict, of_regressions: Collection
) -> dict[str, list]:
    """Predictions of each chain: of classes averages of what is known; of regressions anew."""
    found: dict[str, list] = {}
    for name, run in runs.items():
        number = functions[name].posterior.sizes["chain"]
        if number < 2:
            continue
        if "probs" in predictions[name]:
            probs = functions[name].posterior["probs"].transpose("chain", "draw", ...).to_numpy()
            shares = weights_of(run.draws) / probs.shape[1]
            found[name] = list(np.einsum("cd,cd...->c...", shares, probs))
        elif name in of_regressions:
            draws = run.draws
            chains = [draws.isel(chain=[k]) for k in range(number)]
            found[name] = [bnn.predict(run.posterior, each, run.data.test) for each in chains]
    return found


def _print_floor(table: Any) -> None:
    floor = table.attrs["noise_floor"]
    if floor:
        words = [f"{HEADINGS[name].lower()} {cell(value)}" for name, value in floor.items()]
        print(f"one half of the reference's chains against the other: {', '.join(words)}")


def check_reference(reference: str | None, names: list[str]) -> None:
    """Refuse a reference that is neither one of these names nor predictions made elsewhere."""
    elsewhere = reference in PUBLISHED or Path(reference or "").suffix == ".npz"
    if reference is not None and reference not in names and not elsewhere:
        raise ValueError(
            f"got --reference {reference}, expected one of {', '.join(names)}, an .npz file of "
            f"predictions, or {', '.join(PUBLISHED)}"
        )
    if elsewhere and reference not in PUBLISHED and not Path(str(reference)).is_file():
        raise FileNotFoundError(f"got --reference {reference}, expected a file that is there")


def check_published(reference: str | None, run: Opened) -> None:
    """Refuse to compare published predictions, of test rows, with those of others."""
    if reference in PUBLISHED and run.rows != "test":
        raise ValueError(
            f"got --reference {reference} for held-out rows, expected the test rows: use --on test"
        )


def predicted_elsewhere(
    reference: str | None, data: Any, data_dir: Path | None
) -> Prediction | HMCChains | None:
    """Read predictions of the rows to score that were made elsewhere."""
    if reference is None:
        return None
    if reference in OWN_REFERENCES:
        return _own_reference(reference, data)
    if reference == "published":
        found = bnn.data.hmc_reference(data.name, data_dir=data_dir)
        shuffled = data.source == "tensorflow-datasets"
        return found.probs[found.tfds_order] if shuffled else found.probs
    try:
        with np.load(reference, allow_pickle=False) as file:
            return {name: file[name] for name in VARIABLES if name in file.files}
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        raise ValueError(f"{reference}: cannot be read ({error}); write it again") from error


def _own_reference(reference: str, data: Any) -> HMCChains:
    """Give HMC's predictions, and say of what; refuse other test rows than those they are of."""
    found = bnn.data.hmc_reference(cast(OwnReference, reference))
    if not np.array_equal(found.y, data.test.y):
        raise ValueError(
            f"got --reference {reference} for {len(data.test.y)} test rows of {data.name}, "
            f"expected its {len(found.y)}: compare runs on {found.about['problem']}"
        )
    print(f"reference {reference}: HMC of the posterior of {found.about['problem']}")
    return found


def predicted(
    runs: dict[str, Opened], rows: Any, known: Mapping[str, Any] = {}, progress: bool = False
) -> tuple[dict, dict]:
    """Predict rows by each run: the averages, and each draw's own.

    Those that are known by what ``bnn-ppl run`` predicted, by name, are not predicted again.
    """
    found = {name: both for name, both in known.items() if both is not None}
    draws = {name: run.draws for name, run in runs.items() if name not in found}
    before = 0
    with predicting(progress, sum(map(num_draws, draws.values()))) as report:
        for name, drawn in draws.items():
            posterior, told = runs[name].posterior, partial(report, name, before)
            found[name] = predict_with_functions(posterior, drawn, rows, report=told)
            before += num_draws(drawn)
    predictions, functions = zip(*(found[name] for name in runs), strict=True)
    return dict(zip(runs, predictions, strict=True)), dict(zip(runs, functions, strict=True))


def num_draws(draws: Any) -> int:
    """Count the draws of all chains."""
    return draws.posterior.sizes["chain"] * draws.posterior.sizes["draw"]


@contextmanager
def predicting(
    progress: bool | Literal["json"], total: int
) -> Iterator[Callable[[str, int, int], None]]:
    """Give a function that reports how many draws have predicted, and ends there on Ctrl-C.

    A KeyboardInterrupt raised while something is compiled may be lost in callbacks of the compiler.
    """
    with interrupts(progress) as pressed, reporting(progress is True, total) as report:

        def told(name: str, before: int, done: int) -> None:
            report(name, before + done, {})
            if pressed():
                raise KeyboardInterrupt

        yield told
