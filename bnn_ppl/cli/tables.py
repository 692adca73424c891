"""Tables that the commands print and write."""

from typing import Any

import numpy as np

import bnn_ppl as bnn
from bnn_ppl.analysis.agreement import are_fits
from bnn_ppl.cli.problem import Problem


def results_table(
    problem: Problem, data: Any, draws: Any, prediction: Any, functions: Any, scored: str = "test"
) -> str:
    """Format scores (beside published ones, if any), mixing and cost of a run."""
    published = None
    if scored == "test":
        published = bnn.data.published(problem.data, split=problem.split, data_dir=problem.data_dir)
    published = published or {}
    rows = [(f"{scored} rows", "this run", "MC dropout" if published else "")]
    beside = {"rmse": published.get("rmse"), "nll": published.get("log_likelihood")}
    if beside["nll"] is not None:
        beside["nll"] = -beside["nll"]
    for name, value in bnn.metrics.summary(prediction, data.test.y, scale=data.y_scale).items():
        other = beside.get(name)
        rows.append((name, f"{value:.4g}", "" if other is None else f"{other:.4g}"))
    fits = are_fits(draws)
    if not fits or max(draws.posterior.sizes[dim] for dim in ("chain", "draw")) > 1:
        diagnosis = bnn.diagnostics.summary(draws, functions).T.dropna(how="all")
        title = "agreement of the fits" if fits else "mixing"
        rows += [("", "", ""), (title, "functions", "weights")]
        for name in diagnosis.index:
            rows.append((name, *(f"{diagnosis.loc[name, space]:.4g}" for space in diagnosis)))
    rows += [("", "", ""), ("sampling", "", "")]
    stats = draws.get("sample_stats", {})
    if "acceptance_rate" in stats:
        rows.append(("acceptance", f"{float(stats.acceptance_rate.mean()):.3f}", ""))
    if "diverging" in stats:
        rows.append(("divergences", str(int(stats.diverging.sum())), ""))
    rows.append(("gradient evaluations", f"{draws.attrs['gradient_evaluations']:,}", ""))
    rows.append(("seconds", f"{draws.attrs['sampling_time']:.1f}", ""))
    lines = [f"{a:24}{b:>14}{c:>14}".rstrip() for a, b, c in rows]
    if published:
        lines.append("\nMC dropout: published for this split (Gal & Ghahramani, 2016)")
    return "\n" + "\n".join(lines) + "\n"


def plan_table(plan: Any) -> str:
    """Format the estimated cost of a run."""

    def size(count: int | None) -> str:
        return "unknown" if count is None else f"{count / 1e6:,.1f} MB"

    unknown = "not counted by the method"
    gradients = unknown if plan.gradients is None else f"{plan.gradients:,.0f}"
    a_draw = unknown if plan.gradients_a_draw is None else f"{plan.gradients_a_draw:,.0f}"
    rows = [
        ("compiling", f"{plan.compile_seconds:.1f} s"),
        ("one gradient, on its own", f"{plan.gradient_seconds * 1e3:.3g} ms"),
        ("gradients a draw, chain", a_draw),
        ("a warm-up step", f"{plan.seconds_a_warmup_step:.3g} s"),
        ("a draw, all chains", f"{plan.seconds_a_draw:.3g} s"),
        ("the run", f"{plan.hours:.3g} hours ({plan.hours * 60:.1f} minutes)"),
        ("gradients in all", gradients),
        ("memory on a device", f"{size(plan.memory_a_device)} of {size(plan.memory_limit)}"),
        ("disk", size(plan.disk)),
    ]
    lines = [f"{name:26}{value}" for name, value in rows]
    adapting = "the cost of a step changes while a method adapts"
    lines.append(f"\nfrom {plan.trial_steps} trial steps; {adapting}")
    return "\n" + "\n".join(lines)


def prediction_table(prediction: Any, data: Any) -> Any:
    """Make a table of predictions by row, in the units of the data."""
    import pandas

    if data.num_classes is not None:
        probs = prediction["probs"].values
        table = pandas.DataFrame(probs, columns=[f"probability_{k}" for k in range(probs.shape[1])])
        return table.assign(predicted=probs.argmax(1), observed=data.test.y)
    return pandas.DataFrame(
        {
            "mean": prediction["mean"].values * data.y_scale + data.y_mean,
            "sd": np.sqrt(prediction["variance"].values) * data.y_scale,
            "epistemic_sd": np.sqrt(prediction["epistemic_variance"].values) * data.y_scale,
            "observed": np.asarray(data.test.y) * data.y_scale + data.y_mean,
        }
    )
