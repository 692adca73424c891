"""Tables that the commands print and write."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import bnn_ppl as bnn
from bnn_ppl.analysis.convergence.ensemble_spread import are_fits
from bnn_ppl.cli.problem.problem import Problem
from bnn_ppl.methods.training.rate_trials import num_trial_steps
from bnn_ppl.runtime.progress import in_words

if TYPE_CHECKING:
    import pandas
    import xarray

_COLUMNS = [
    *("mean", "sd", "epistemic_sd", "quantile", "probs", "predicted"),
    *("entropy", "expected_entropy", "mutual_information"),
    *("at_most", "equal", "conformal_lower", "conformal_upper", "conformal_set", "observed"),
    *("log_score", "crps"),
    *("outside_range", "outside_column"),
]

_TUNED = ("step_size", "trajectory_length", "decoherence_length")
_MOST_LISTED = 4


def results_table(
    problem: Problem, data: Any, draws: Any, prediction: Any, functions: Any, scored: str = "test"
) -> str:
    """Format scores (beside published ones, if any), mixing and cost of a run."""
    published = None
    if scored == "test":
        chosen = problem.data
        published = bnn.data.published(chosen.data, split=chosen.split, data_dir=chosen.data_dir)
    published = published or {}
    rows = [(f"{scored} rows", "this run", "MC dropout" if published else "")]
    beside = {"rmse": published.get("rmse"), "nll": published.get("log_likelihood")}
    if beside["nll"] is not None:
        beside["nll"] = -beside["nll"]
    for name, value in scores(prediction, data.test.y, data).items():
        other = beside.get(name)
        rows.append((name, in_words(value, 4), "" if other is None else in_words(other, 4)))
    fits = are_fits(draws)
    if not fits or max(draws.posterior.sizes[dim] for dim in ("chain", "draw")) > 1:
        diagnosis = bnn.diagnostics.summary(draws, functions).T.dropna(how="all")
        mixing = "mixing by weight" if "log_weight" in draws.get("sample_stats", {}) else "mixing"
        title = f"{'agreement of the fits' if fits else mixing}, {scored} rows"
        rows += [("", "", ""), (title, "functions", "weights")]
        for name in diagnosis.index:
            rows.append((name, *(cell(diagnosis.loc[name, space]) for space in diagnosis)))
    rows += [("", "", ""), ("sampling", "", "")]
    stats = draws.get("sample_stats", {})
    if "acceptance_rate" in stats:
        rows.append(("acceptance", f"{float(stats.acceptance_rate.mean()):.3f}", ""))
    if "diverging" in stats:
        rows.append(("divergences", f"{int(stats.diverging.sum()):,}", ""))
    rows.append(("gradient evaluations", f"{draws.attrs['gradient_evaluations']:,}", ""))
    rows.append(("seconds", f"{draws.attrs['sampling_time']:.1f}", ""))
    width = max(24, 2 + max(len(name) for name, *_ in rows))
    lines = [f"{a:{width}}{b:>14}{c:>14}".rstrip() for a, b, c in rows]
    if published:
        lines.append("\nMC dropout: published for this split (Gal & Ghahramani, 2016)")
    return "\n" + "\n".join(lines) + "\n"


def table_text(table: "pandas.DataFrame | pandas.Series", *, index: bool = True) -> str:
    """Lay out a table: numbers to four digits, nothing where there is none."""
    return table.map(cell).to_string(index=index)


def cell(value: Any) -> str:
    """Write a number to four digits; nothing for one that was not computed."""
    is_nan = isinstance(value, float | np.floating) and math.isnan(value)
    return "" if value is None or is_nan else in_words(value, 4)


def write_table(
    table: Any, draw: Callable[[], Any], path: Path, figure: Path | None = None
) -> None:
    """Write a table, and then draw its figure, by default beside it."""
    figure = figure or path.with_suffix(".png")
    table.to_csv(path, index=False)
    draw().savefig(figure, dpi=150)
    print(f"table in {path}, figure in {figure}")


def found_in_warmup(draws: Any) -> str:
    """Tell the step size, trajectory length or learning rate that warm-up found, by chain."""
    settings = json.loads(draws.attrs.get("settings", "{}"))
    stats, warmup = draws.get("sample_stats", {}), draws.get("warmup_sample_stats", {})
    found = {name: stats[name] for name in _TUNED if name in stats and settings.get(name) is None}
    found = {
        name.replace("_", " "): values.max("draw").values
        for name, values in found.items()
        if values.size
    }
    if settings.get("learning_rate") == "found" and "step_size" in warmup:
        # It falls later on, as training settles.
        first = int(num_trial_steps(draws.attrs["num_warmup"]))
        rates = warmup["step_size"].values[:, warmup["step"].values >= first]
        found |= {"learning rate": rates[:, 0]} if rates.size else {}
    return "; ".join(f"{name} {_by_chain(values)}" for name, values in found.items())


def _by_chain(values: np.ndarray) -> str:
    """List a few numbers; of many say from where to where they lie."""
    told = [in_words(float(value)) for value in values]
    if len(set(told)) == 1:
        return told[0]
    if len(told) <= _MOST_LISTED:
        return ", ".join(told)
    return " to ".join(in_words(float(end)) for end in (min(values), max(values)))


def scores(prediction: Any, y: np.ndarray, data: Any) -> Any:
    """Give all metrics of a prediction, those of each output by the output's name."""
    return with_output_names(bnn.metrics.summary(prediction, y, scale=data.y_scale), data)


def calibration_of(prediction: Any, rows: Any, data: Any, **chosen: Any) -> Any:
    """Check calibration at rows x, y, in the units of the data and by the names of its columns."""
    if data.num_classes is not None:
        return bnn.metrics.calibration_check(prediction, rows.y)
    import pandas

    x = None  # of images and texts
    if np.ndim(rows.x) == 2 and np.asarray(rows.x).dtype.kind == "f":
        x = pandas.DataFrame(rows.x * data.x_scale + data.x_mean)
        x = x.iloc[:, : x.shape[1] - len(data.roles)]
        names = [] if data.encoding is None else data.encoding.names_of_x
        x.columns = names or [f"input {k}" for k in range(x.shape[1])]
    units = {"scale": data.y_scale, "outputs": data.output_names}
    return bnn.metrics.calibration_check(prediction, rows.y, x, **units, **chosen)


def with_output_names(table: Any, data: Any, axis: int = 0) -> Any:
    """Rename scores of single outputs: rmse[0] to rmse[height]."""
    names = {f"[{number}]": f"[{name}]" for number, name in enumerate(data.output_names or ())}

    def renamed(score: str) -> str:
        at = score.find("[")
        return score if at < 0 else score[:at] + names.get(score[at:], score[at:])

    found = table.rename(renamed, axis=axis)
    for name in {"better", "reference_scores"} & set(table.attrs):
        found.attrs[name] = {renamed(score): value for score, value in table.attrs[name].items()}
    return found


def plan_table(plan: Any) -> str:
    """Format the estimated cost of a run."""

    def size(count: int | None) -> str:
        return "unknown" if count is None else f"{count / 1e6:,.1f} MB"

    unknown = "not counted by the method"
    gradients = unknown if plan.gradients is None else f"{plan.gradients:,.0f}"
    a_draw = unknown if plan.gradients_a_draw is None else f"{plan.gradients_a_draw:,.0f}"
    rows = [
        ("compiling", f"{plan.compile_seconds:.1f} s"),
        ("one gradient, all chains", f"{in_words(plan.gradient_seconds * 1e3, 4)} ms"),
        ("gradients a draw, each chain", a_draw),
        ("a warm-up step", f"{in_words(plan.seconds_a_warmup_step)} s"),
        ("a draw, all chains", f"{in_words(plan.seconds_a_draw)} s"),
        ("the run", duration(3600 * plan.hours)),
        ("gradients in all", gradients),
        ("memory on a device", f"{size(plan.memory_a_device)} of {size(plan.memory_limit)}"),
        ("memory of the process", size(plan.process_memory)),
        ("disk", size(plan.disk)),
    ]
    lines = [f"{name:30}{value}" for name, value in rows]
    adapting = "the cost of a step changes while a method adapts, and training may end early"
    lines.append(f"\nfrom {plan.trial_steps:,} trial steps; {adapting}")
    return "\n" + "\n".join(lines)


def duration(seconds: float) -> str:
    """Give a time in the unit in which it reads well."""
    for size, unit in ((3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{in_words(seconds / size)} {unit}"
    return f"{in_words(seconds)} seconds"


def machine_plan_table(plan: Any) -> str:
    """Format the estimated cost of a run on a machine that is not here."""
    devices = plan.chain_rows * plan.data_shards
    chains = "1 chain" if plan.chains_a_device == 1 else f"{plan.chains_a_device} chains"
    rows = "all of its rows" if plan.microbatch is None else f"{plan.microbatch:,} rows"
    lines = [
        f"{plan.machine.name}: {devices} devices, chains over {plan.chain_rows}, rows over "
        f"{plan.data_shards}; a device runs {chains}, {rows} at a time",
        "",
    ]
    for phase in plan.phases:
        used = "unknown" if phase.memory is None else f"{phase.memory / 1e6:,.0f} MB"
        room = "fits" if phase.fits else "DOES NOT FIT"
        limit = f"{plan.machine.device.memory / 1e6:,.0f} MB"
        seconds = f"compiled in {phase.compile_seconds:.0f} s"
        lines.append(f"{phase.name:10}{room}: {used} of {limit} a device; {seconds}")
        lines.extend(_sent(phase.collectives))
    hours = f"{duration(3600 * plan.hours)}, {in_words(plan.device_days)} device-days"
    work = f"{in_words(plan.flops / 1e9, 4)} GFLOP and {in_words(plan.num_bytes / 1e6, 4)} MB"
    lines += [
        "",
        f"one gradient        {work} a device; at least {in_words(plan.gradient_seconds * 1e3)} ms "
        f"({plan.precision} products)",
        f"{'':20}{_other_precisions(plan)}",
        f"the run             {plan.gradients:,.0f} gradients a chain; at least {hours}",
        f"disk                {plan.disk / 1e6:,.1f} MB of draws",
    ]
    if plan.start_steps:
        lines.append(f"before it           at most {plan.start_steps:,} steps, of other methods")
    if not all(phase.fits for phase in plan.phases):
        lines += ["", _to_fit(plan)]
    lines.append("\nnothing was run: times are what peak rates allow, without communication")
    return "\n".join(["", *lines])


def _other_precisions(plan: Any) -> str:
    """Say what a gradient would take at other precisions of its products."""
    others = {p: s for p, s in plan.seconds_by_precision.items() if p != plan.precision}
    if all(math.isclose(seconds, plan.gradient_seconds) for seconds in others.values()):
        return "as long in every precision"
    told = [f"{in_words(1e3 * seconds)} ms in {precision}" for precision, seconds in others.items()]
    return f"{', '.join(told)} (--matmul-precision)"


def _sent(collectives: Any) -> list[str]:
    """Say what devices send to each other, in loops and outside, by kind."""
    lines = []
    for depth in sorted({found.depth for found in collectives}):
        found = {each: count for each, count in collectives.items() if each.depth == depth}
        where = "outside loops" if not depth else f"in {depth} loop{'s' * (depth > 1)}"
        parts = [
            f"{count} {each.kind} of {in_words(each.num_bytes / 1e3, 4)} kB"
            for each, count in sorted(found.items(), key=lambda pair: -pair[0].num_bytes)
        ]
        lines.append(f"{'':10}{where}: {', '.join(parts)}")
    return lines


def _to_fit(plan: Any) -> str:
    """Say what to change where a program does not fit."""
    if plan.chains_a_device > 1:
        fewer = plan.chain_rows * plan.data_shards
        return f"to fit: at most {fewer} chains (--num-chains), so that a device runs one"
    half = "half its rows" if plan.microbatch is None else str(max(1, plan.microbatch // 2))
    return f"to fit: --microbatch {half}, or more devices"


def answers(prediction: "xarray.Dataset", y: np.ndarray | None, data: Any) -> "xarray.Dataset":
    """Give predictions, and y if it is known, in the units of the data; classes by their names."""
    entropies = ["entropy", "expected_entropy", "mutual_information"]
    # Without a closed form the expected entropy is not known.
    known = [name for name in entropies if not np.isnan(prediction[name]).all()]
    prediction = prediction.astype(float)
    found = prediction[["probs" if data.num_classes else "mean", *known]]
    if data.num_classes:
        found["predicted"] = "row", named(prediction["probs"].values.argmax(1), data)
        if data.class_names:
            found = found.assign_coords({"class": list(data.class_names)})
    else:
        found["mean"] = found["mean"] * data.y_scale + data.y_mean
        for name, variance in {"sd": "variance", "epistemic_sd": "epistemic_variance"}.items():
            found[name] = np.sqrt(prediction[variance]) * data.y_scale
        for name in known[:2]:  # of several outputs, each is a change of units
            found[name] = found[name] + np.log(data.y_scale)
        if data.output_names:
            found = found.assign_coords(output=list(data.output_names))
    if y is not None:
        y = np.asarray(y)
        of_classes = data.num_classes is not None
        scaled = named(y, data) if of_classes else y.astype(float) * data.y_scale + data.y_mean
        found["observed"] = ("row", "output")[: scaled.ndim], scaled
        nats = 0.0 if of_classes else np.log(data.y_scale).sum()
        found["log_score"] = prediction["log_prob"] - nats
        if "crps" in prediction:
            found["crps"] = prediction["crps"] * data.y_scale
    return found.assign_attrs(units="those of the data; entropies in nats")


def named(classes: np.ndarray, data: Any) -> np.ndarray:
    """Give class numbers, or the names of the classes if they have names."""
    return np.asarray(data.class_names)[classes] if data.class_names else classes


def answers_by_row(answers: "xarray.Dataset") -> Any:
    """Make a table of predictions: a line for each row, a column for each class and quantile.

    Where y has several outputs, each has columns of its own, as in mean_height.

    A set of classes is their numbers with spaces between them, or their names with "; ".
    """
    import pandas

    has_names = "class" in answers.coords
    classes = answers["class"].values if "class" in answers.dims else np.arange(0)
    between = "; " if has_names else " "
    columns: dict[str, np.ndarray] = {}
    if "output" in answers.dims:
        return _by_output(answers)
    for name in (name for name in _COLUMNS if name in answers):
        values = answers[name].values
        if name == "probs":
            columns |= {f"probability_{k}": own for k, own in zip(classes, values.T, strict=True)}
        elif name == "quantile":
            levels = answers["probability"].values
            names = [f"quantile_{_exact(level, 15)}" for level in levels]  # of 0.05, computed
            columns |= dict(zip(names, values, strict=True))
        elif name in ("at_most", "equal"):
            names = [f"{name}_{_exact(value)}" for value in answers["value"].values]
            columns |= dict(zip(names, values.T, strict=True))
        elif name == "conformal_set":
            sets = [between.join(map(str, classes[row.astype(bool)])) for row in values]
            columns[name] = np.array(sets)
        else:
            columns[name] = values
    return pandas.DataFrame(columns)


def _exact(value: float, digits: int = 17) -> str:
    return repr(float(f"{value:.{digits}g}")).removesuffix(".0")


def _by_output(answers: "xarray.Dataset") -> Any:
    """Give the columns of each output, in the order of the outputs, then those of all together."""
    import pandas

    of_each = [name for name, values in answers.items() if "output" in values.dims]
    tables = [
        answers_by_row(answers[of_each].isel(output=k, drop=True)).add_suffix(f"_{name}")
        for k, name in enumerate(answers["output"].values)
    ]
    return pandas.concat([*tables, answers_by_row(answers.drop_dims("output"))], axis=1)
