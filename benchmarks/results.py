"""Write RESULTS.md, docs/results/ and the tables of README.md and docs/ from stored measurements.

    python benchmarks/results.py
    python benchmarks/results.py --check      exit 1 where a file differs from what this would write

Measurements are CSV files in benchmarks/stored/: rows of runs, each with its day, commit and
machine (NAME.csv, written by stored.py), or tables as they were printed, whose runs are gone
(STUDY/TABLE.csv with an entry in STUDY/origin.toml). The words are in benchmarks/studies/, a page a
study, where a line ``<!-- table: STUDY/TABLE -->`` is replaced by the table and its origin. In
README.md and docs/ the same line begins a table that ``<!-- end of table -->`` ends.
"""

import argparse
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import default_tables
import frontier_table
import noise_table
import numpy as np
import pandas
import peers_table
import posteriors_table
from default_tables import FIGURE
from tables import cells, markdown, number

ROOT = Path(__file__).resolve().parent.parent
STORED, STUDIES = ROOT / "benchmarks" / "stored", ROOT / "benchmarks" / "studies"
PUBLISHED = ROOT / "benchmarks" / "published"
PAGES = ROOT / "docs" / "results"
ORDER = ["defaults", "early", "uci", "samplers", "gradients", "training", "mnist", "airfoil"]
ORDER += ["noise", "peers", "comparison", "partly_bayesian", "priors", "large_data"]
ORDER += ["machines", "precision", "waiting", "networks", "exactness", "standard_errors"]
BEGIN, END = "<!-- table: {} -->", "<!-- end of table -->"
PLACE = re.compile(r"<!-- table: (\S+) -->")
FILLED = re.compile(rf"<!-- table: (\S+) -->.*?{END}", re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 on differences")
    args = parser.parse_args()
    texts, left_out = files()
    for name, why in left_out.items():
        print(f"left out: {name} ({why})")
    differ = {path for path, text in texts.items() if not path.exists() or path.read_text() != text}
    differ |= {path for path in PAGES.glob("*.md") if path not in texts}
    drawn = "defaults/figure" not in left_out
    if drawn and not FIGURE.exists():
        differ.add(FIGURE)
    if args.check and differ:
        names = ", ".join(sorted(str(path.relative_to(ROOT)) for path in differ))
        raise SystemExit(f"not as stored, run python benchmarks/results.py: {names}")
    if drawn and differ & {PAGES / "defaults.md", FIGURE}:
        default_tables.draw()
    PAGES.mkdir(exist_ok=True)
    for path in differ - {FIGURE}:
        if path in texts:
            path.write_text(texts[path])
        else:
            path.unlink()


def files() -> tuple[dict[Path, str], dict[str, str]]:
    """Give the text of every file, and of each table that is left out the reason."""
    tables = Tables()
    pages = {name: page(name, tables) for name in ORDER}
    texts = {PAGES / f"{name}.md": text for name, text in pages.items()}
    texts[PAGES / "index.md"] = index(pages)
    texts[ROOT / "benchmarks" / "RESULTS.md"] = results(pages, tables)
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]:
        if path.parent != PAGES and "build" not in path.relative_to(ROOT).parts:
            text = path.read_text()
            texts[path] = FILLED.sub(lambda found: tables.between(found.group(1)), text)
    return texts, tables.left_out


def page(name: str, tables: "Tables") -> str:
    """Fill the tables of a study into its words."""
    text = (STUDIES / f"{name}.md").read_text()
    filled = PLACE.sub(lambda found: tables.with_origin(found.group(1)), text)
    return f"{NOTE.format(f'benchmarks/studies/{name}.md')}\n\n{filled}"


NOTE = "<!-- Written by benchmarks/results.py from benchmarks/stored/ and {}; do not edit. -->"


def results(pages: dict[str, str], tables: "Tables") -> str:
    """Put all studies in one file, their headings a level lower and their links as from there."""
    first = (STUDIES / "preamble.md").read_text()
    parts = [PLACE.sub(lambda found: tables.with_origin(found.group(1)), first).strip()]
    for text in pages.values():
        lowered = re.sub("^#", "##", text.split("\n\n", 1)[1], flags=re.MULTILINE)
        parts.append(_links_from_here(lowered.strip()))
    return "\n\n".join([NOTE.format("benchmarks/studies/"), *parts]) + "\n"


def _links_from_here(text: str) -> str:
    text = text.replace("](../", "](../docs/")
    return re.sub(r"\]\((\w+\.md)", r"](../docs/results/\1", text)


def index(pages: dict[str, str]) -> str:
    """List the studies with their titles and first paragraphs."""
    lines = [NOTE.format("benchmarks/studies/"), "", "# What was measured", ""]
    preamble = (STUDIES / "preamble.md").read_text().split("\n\n")
    lines += [preamble[1].strip(), ""]
    for name, text in pages.items():
        _, title, question, *_ = text.split("\n\n")
        lines.append(f"- [{title.removeprefix('# ')}]({name}.md). {' '.join(question.split())}")
    return "\n".join([*lines, "", "```{toctree}", ":hidden:", "", *pages, "```", ""])


class Tables:
    """Tables by name: made from rows of runs by a function of ``MADE``, or stored as printed."""

    def __init__(self) -> None:
        self.left_out: dict[str, str] = {}

    def text(self, name: str) -> str:
        """Give a table as Markdown, or say that it is left out."""
        study, _, table = name.partition("/")
        try:
            if name in MADE:
                return MADE[name].function()
            return markdown(cells(STORED / study / f"{table}.csv"))
        except FileNotFoundError as error:
            missing = Path(error.filename).relative_to(ROOT)
            self.left_out[name] = f"{missing} is absent"
            return f"This table is left out: {missing} is absent."

    def between(self, name: str) -> str:
        """Give a table with the lines that begin and end it."""
        return f"{BEGIN.format(name)}\n\n{self.text(name)}\n\n{END}"

    def with_origin(self, name: str) -> str:
        """Give a table, and below it what was run, when, where and at which commit."""
        text = self.text(name)
        known = "" if name in self.left_out else origin(name)
        return f"{text}\n\n{known}" if known else text


def origin(name: str) -> str:
    """Say where the runs of a table are from; "" where its other tables say that."""
    if name not in MADE:
        study, table = name.split("/")
        about = tomllib.loads((STORED / study / "origin.toml").read_text())[table]
        return f"{about['command']}; {about['date']}; {about['machine']}; commit {about['commit']}"
    if not MADE[name].file:
        return ""
    files = MADE[name].file.split(", ")
    rows = pandas.concat(pandas.read_csv(STORED / file, dtype=str) for file in files).fillna("")
    days = sorted(set(rows["date"]))
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    where, commits = ("; ".join(rows[name].unique()) for name in ("machine", "commit"))
    return f"`{MADE[name].command}`; {when}; {where}; commit {commits.replace('; ', ', ')}"


def uci() -> str:
    """Join the tables of uci_tables.py: the data sets, who keeps up with what was published."""
    (STORED / "defaults.csv").stat()  # or the table is left out
    from uci_tables import read_splits, tables  # it imports the package, which takes seconds

    return "\n\n".join(tables(read_splits()).values())


def beside_mc_dropout() -> str:
    """Give the table of uci_tables.py of the method that has run all splits."""
    (STORED / "defaults.csv").stat()
    from uci_tables import beside_mc_dropout, read_splits

    return beside_mc_dropout(read_splits())


def gaps() -> str:
    (STORED / "gaps.csv").stat()
    from uci_tables import gap_tables, read_gaps

    return "\n\n".join(gap_tables(read_gaps()).values())


def digits_lenet() -> str:
    """Give a row a method, scores with their standard errors; first the reference and its floor."""
    rows = pandas.read_csv(STORED / "digits_lenet.csv")
    scores = ["accuracy", "nll", "ece", "agreement", "total_variation"]
    first = rows.iloc[0]
    own = [*(f"{first[f'hmc_{score}']:.3f}" for score in scores[:3]), "1", "0"]
    floor = ["", "", "", f"{first['floor_agreement']:.3f}", f"{first['floor_total_variation']:.3f}"]
    body = [["HMC, the reference", *own, "", ""]]
    body += [["half of its chains against the other", *floor, "", ""]]
    for _, row in rows.iterrows():
        written = [f"{row[score]:.3f} ± {row[f'{score}_se']:.3f}" for score in scores]
        body.append(
            [f"`{row['method']}`", *written, number(row["seconds"]), f"{row['gradients']:,}"]
        )
    head = ["", "accuracy", "NLL", "ECE", "agreement", "total variation", "seconds", "gradients"]
    return markdown([head, *body])


def gradient_noise() -> str:
    """Give a row a data set and order: the noise in units of that of plain minibatches."""
    rows = pandas.read_csv(STORED / "gradient_noise.csv")
    noise = rows.pivot_table("noise", ["data", "order"], "at", sort=False)
    plain = noise.xs(0, level="order")
    head = ["data", "order", *(f"at {name}" for name in noise.columns)]
    body = [
        [
            data,
            str(order) if order else "plain",
            *map(number, noise.loc[data, order] / plain.loc[data]),
        ]
        for data, order in noise.index
    ]
    return markdown([head, *body])


def large_estimator() -> str:
    """Give a row a form of X: seconds and peak memory of fitting and of predicting."""
    rows = pandas.read_csv(STORED / "large_estimator.csv")
    head = ["rows", "X", "fit, seconds", "peak, MB", "predict, seconds", "peak, MB"]
    columns = ["fit_seconds", "fit_peak_mb", "predict_seconds", "predict_peak_mb"]
    body = [
        [f"{row['rows']:,}", row["X"], *map(number, row[columns])] for _, row in rows.iterrows()
    ]
    return markdown([head, *body])


def estimator_fits() -> str:
    """Give a row a table: seconds of fits, and the programs that were compiled."""
    rows = pandas.read_csv(STORED / "estimator_fits.csv")
    head = ["data", "what", "fits", "seconds", "seconds a fit", "programs compiled"]
    body = [
        [
            row["data"],
            row["what"],
            str(row["fits"]),
            number(row["seconds"]),
            number(row["seconds"] / row["fits"]),
            str(row["compiled"]),
        ]
        for _, row in rows.iterrows()
    ]
    return markdown([head, *body])


def commands() -> str:
    """Give a row a process of a command: what it takes, and what JAX does in it."""
    rows = pandas.read_csv(STORED / "commands.csv", dtype={"package": str})
    head = ["method", "commit", "process", "seconds", "CPU seconds"]
    head += ["programs traced", "compiled", "not kept from before"]
    names = ["method", "package", "process", "seconds", "cpu", "traced", "compiled", "not kept"]
    body = [list(map(str, row[names])) for _, row in rows.iterrows()]
    return markdown([head, *body])


def subspace() -> str:
    """Give a row a way, RMSE and NLL a data set; last the published RMSE."""
    rows = pandas.read_csv(STORED / "subspace.csv")
    means = rows.groupby(["way", "data"], sort=False)[["rmse", "nll"]].mean()
    published = pandas.read_csv(PUBLISHED / "subspace.csv").set_index("data")["rmse"]
    names = rows["data"].unique()
    head = ["", *(f"{name}, {score}" for name in names for score in ("RMSE", "NLL"))]
    body = [
        [way, *(number(value) for name in names for value in means.loc[way, name])]
        for way in rows["way"].unique()
    ]
    known = [cell for name in names for cell in (number(published.get(name, np.nan)), "")]
    return markdown([head, *body, ["published, on splits of its own", *known]])


def standard_errors() -> str:
    """Give a row an estimate: how often the truth is within two of its stated errors."""
    rows = pandas.read_csv(STORED / "standard_errors.csv")
    head = ["estimate", "problem", "repetitions", "within two errors", "mean error", "rms"]
    body = [
        [
            row["estimate"],
            row["problem"],
            str(row["repetitions"]),
            f"{100 * row['within_2']:.0f} %",
            f"{row['bias']:+.2f}",
            f"{row['rms']:.2f}",
        ]
        for _, row in rows.iterrows()
    ]
    return markdown([head, *body])


def networks() -> str:
    """Give a row a network and method: what a minute of one core has reached."""
    rows = pandas.read_csv(STORED / "networks.csv", keep_default_na=False, na_values=[""])
    head = ["network", "rows", "weights", "method", "gradients", "seconds", "accuracy", "NLL"]
    body = [
        [
            row["net"],
            *(f"{row[name]:,}" for name in ("rows", "weights")),
            row["method"],
            *(number(row[name]) for name in ("gradients", "seconds", "accuracy", "nll")),
        ]
        for _, row in rows.iterrows()
    ]
    return markdown([head, *body])


def many_chains() -> str:
    """Give a row a number of chains and method."""
    rows = pandas.read_csv(STORED / "many_chains.csv").sort_values("chains", kind="stable")
    head = ["method", "chains", "warm-up", "draws", "CPU seconds", "gradients", "R-hat", "ESS"]
    head += ["ESS a CPU second", "ESS a thousand gradients"]
    body = [
        [
            row["method"],
            *(f"{row[name]:,}" for name in ("chains", "warmup", "draws")),
            number(row["cpu_seconds"]),
            f"{row['gradients']:,}",
            f"{row['rhat']:.2f}",
            number(row["ess"]),
            number(row["ess"] / row["cpu_seconds"]),
            number(1000 * row["ess"] / row["gradients"]),
        ]
        for _, row in rows.iterrows()
    ]
    return markdown([head, *body])


def effective_draws() -> str:
    """Give a row a table and sampler, with its ratios to NUTS of BlackJAX and of NumPyro."""
    rows = pandas.read_csv(STORED / "effective_draws.csv")
    rows["a_gradient"] = 1000 * rows["ess"] / rows["gradients"]
    rows["a_second"] = rows["ess"] / rows["cpu_seconds"]
    of = rows.set_index(["data", "sampler"])
    head = ["data", "sampler", "gradients", "CPU seconds", "R-hat, 95 %", "median ESS", "lowest"]
    head += ["ESS a thousand gradients", "over BlackJAX's", "ESS a CPU second", "over NumPyro's"]
    body = [
        [
            row["data"],
            row["sampler"],
            f"{row['gradients']:,.0f}",
            number(row["cpu_seconds"]),
            f"{row['rhat']:.3f}",
            f"{row['ess']:,.0f}",
            f"{row['lowest_ess']:,.0f}",
            number(row["a_gradient"]),
            f"{row['a_gradient'] / of['a_gradient'][row['data'], 'BlackJAX nuts']:.2f}",
            number(row["a_second"]),
            f"{row['a_second'] / of['a_second'][row['data'], 'NumPyro NUTS']:.2f}",
        ]
        for _, row in rows.iterrows()
    ]
    return markdown([head, *body])


def airfoil_chosen() -> str:
    """Give a row a setting tried on held-out training rows, the best likelihood first."""
    rows = _airfoil("held out").query("method == 'mclmc'").sort_values("gaussian_nll")
    head = ["activation", "hidden", "prior", "steps", "RMSE", "NLL", "R-hat, median / 95 %"]
    body = []
    for _, row in rows.iterrows():
        steps = f"{row['num_warmup'] + row['num_draws'] * row['thin']:,}"
        own = [row["activation"], row["hidden"], f"{row['prior']}({row['scale']:g})", steps]
        body.append([*own, *_airfoil_scores(row)])
    return markdown([head, *body])


def airfoil_test() -> str:
    """Give a row a run on the test rows, and the means over seeds."""
    rows = _airfoil("test")
    head = ["", "nets", "seed", "RMSE", "NLL", "R-hat, median / 95 %", "seconds", "CPU s"]
    body = []
    for method, found in rows.groupby("method", sort=False):
        for _, row in found.iterrows():
            times = number(row["seconds"]), number(row["cpu_seconds"])
            own = [str(row["num_nets"]), str(row["seed"]), *_airfoil_scores(row), *times]
            body.append([method, *own])
        mean = found[["rmse", "gaussian_nll"]].mean()
        scores = [f"{mean['rmse']:.4f}", f"{mean['gaussian_nll']:.3f}"]
        body.append([f"{method}, mean", "", "", *scores, "", "", ""])
    return markdown([head, *body])


def _airfoil(rows: str) -> pandas.DataFrame:
    found = pandas.read_csv(STORED / "airfoil.csv")
    return found[found["rows"] == rows]


def _airfoil_scores(row: pandas.Series) -> list[str]:
    rhat = f"{row['function_rhat_median']:.2f} / {row['function_rhat_95']:.2f}"
    known = row["function_rhat_median"] == row["function_rhat_median"]
    return [f"{row['rmse']:.4f}", f"{row['gaussian_nll']:.3f}", rhat if known else ""]


def gpu() -> str:
    """Give a table for each machine and part of gpu.py: a row a case, its last figures."""
    rows = pandas.read_csv(STORED / "gpu.csv", dtype=str, keep_default_na=False)
    parts = []
    for (machine, part), found in rows.groupby(["machine", "part"], sort=False):
        table = found.pivot_table("value", "case", "quantity", aggfunc="last", sort=False)
        body = [[case, *table.loc[case].fillna("")] for case in table.index]
        parts.append(f"**{part}, {machine}**\n\n{markdown([['', *table.columns], *body])}")
    return "\n\n".join(parts)


def chain_programs() -> str:
    """Give a row a problem and number of chains: hmc beside the bare loop."""
    rows = pandas.read_csv(STORED / "chain_programs.csv")
    names = ["step", "kernels", "cpu_seconds"]
    by_program = rows.set_index(["problem", "chains", "program"])[names].unstack("program")
    head = ["problem", "chains", "kernels of a step", "of the bare loop", "all kernels, ratio"]
    head += ["compiling, ratio"]
    body = []
    for problem, chains in rows[["problem", "chains"]].drop_duplicates().itertuples(index=False):
        found = by_program.loc[(problem, chains)]
        ratios = [number(found[name, "hmc"] / found[name, "bare"]) for name in names[1:]]
        step = [f"{found['step', program]:,.0f}" for program in ("hmc", "bare")]
        body.append([problem, str(chains), *step, *ratios])
    return markdown([head, *body])


def planned_memory() -> str:
    """Give a row a run: the peak memory that was planned, that of the run and of a bare loop."""
    rows = pandas.read_csv(STORED / "planned_memory.csv")
    head = ["run", "planned, MB", "run, MB", "planned over run", "bare loop, MB"]
    body = [
        [
            row["case"].replace("_", " "),
            *(f"{row[name]:.0f}" for name in ("planned_mb", "run_mb")),
            f"{row['planned_mb'] / row['run_mb']:.2f}",
            f"{row['bare_mb']:.0f}",
        ]
        for _, row in rows.iterrows()
    ]
    return markdown([head, *body])


def acquisition() -> str:
    """Give a row a data set and rule: the mean error by the number of labelled rows."""
    rows = pandas.read_csv(STORED / "acquisition.csv")
    errors = rows.groupby(["data", "rule", "rows"], sort=False)["error"].mean().unstack("rows")
    seeds = rows.groupby(["data", "rule"])["seed"].nunique()
    head = ["data", "rule", "seeds", *(f"{count} rows" for count in errors.columns)]
    body = [
        [data, rule, str(seeds[data, rule]), *map(number, errors.loc[(data, rule)])]
        for data, rule in errors.index
    ]
    return markdown([head, *body])


def in_brief() -> str:
    """Time of a gradient or step over that of the bare loop, without the ranges."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for name in ("full_batch", "minibatches"):
        head, *body = cells(STORED / "gradients" / f"{name}.csv")
        for row in body:
            package, _, sampler = row[0].partition(" ")
            if package not in PACKAGES or "," in sampler:
                continue
            for size, cell in zip(head[1:], row[1:], strict=True):
                if "weights" in size:
                    ratios = found.setdefault((sampler.lower(), size), {})
                    ratios[package] = cell.split(" ")[0]
    body = [
        [sampler, size, *(ratios.get(package, "") for package in PACKAGES)]
        for (sampler, size), ratios in found.items()
    ]
    return markdown([["", "network", *PACKAGES], *body])


PACKAGES = ["bnn_ppl", "BlackJAX", "NumPyro"]


class Made(NamedTuple):
    """How a table is made; the file of its rows (or "a.csv, b.csv") and their command, or ""."""

    function: Callable[[], str]
    file: str = ""
    command: str = ""


# The tables by name. A function may read any file; where that is absent, the table is left out.
MADE = {
    "in_brief": Made(in_brief),
    "exactness/at_defaults": Made(
        posteriors_table.table,
        "posteriors.csv",
        "python benchmarks/posteriors.py --data-dir ../data",
    ),
    "machines/chain_programs": Made(
        chain_programs, "chain_programs.csv", "python benchmarks/chain_programs.py"
    ),
    "machines/planned_memory": Made(
        planned_memory, "planned_memory.csv", "python benchmarks/planned_memory.py"
    ),
    "acquisition": Made(
        acquisition,
        "acquisition.csv",
        "python benchmarks/acquisition.py --data-dir ../data",
    ),
    "defaults": Made(default_tables.defaults, "defaults.csv", "python benchmarks/defaults.py"),
    "defaults/ratios": Made(default_tables.ratios, "defaults.csv", "python benchmarks/defaults.py"),
    "defaults/missed": Made(default_tables.misses),
    "defaults/step_sizes": Made(
        default_tables.step_sizes,
        "step_sizes.csv",
        "python benchmarks/defaults.py --step-sizes --data yacht boston "
        "--methods sgld sghmc sgnht csgld",
    ),
    "defaults/figure": Made(default_tables.figure_link),
    "uci/beside_mc_dropout": Made(
        beside_mc_dropout,
        "defaults.csv, uci.csv",
        "python benchmarks/uci.py --data yacht boston energy concrete --methods hmc",
    ),
    "uci": Made(  # whose first splits are those of defaults.py, which uci.py does not repeat
        uci, "defaults.csv, uci.csv", "python benchmarks/uci.py --all"
    ),
    "frontier": Made(frontier_table.table, "frontier.csv", "python benchmarks/frontier.py"),
    "gaps": Made(gaps, "gaps.csv", "python benchmarks/uci.py --gaps"),
    "peers": Made(peers_table.table, "peers.csv", "python benchmarks/peers/run.py"),
    "peers/against_ours": Made(
        peers_table.against_ours, "peers.csv", "python benchmarks/peers/run.py"
    ),
    "peers/missing": Made(
        peers_table.missing, "peers_missing.csv", "python benchmarks/peers/environments.py"
    ),
    "peers/pairs": Made(peers_table.pairs, "peers.csv", "python benchmarks/peers/run.py"),
    "digits_lenet": Made(
        digits_lenet, "digits_lenet.csv", "python benchmarks/digits_lenet.py --score"
    ),
    "airfoil/held_out": Made(
        airfoil_chosen,
        "airfoil.csv",
        "python benchmarks/airfoil.py --choose --seeds 0 --num-nets 4",
    ),
    "airfoil/test": Made(airfoil_test, "airfoil.csv", "python benchmarks/airfoil.py"),
    "large_data/estimator": Made(
        large_estimator, "large_estimator.csv", "python benchmarks/large_estimator.py"
    ),
    "waiting/commands": Made(
        commands, "commands.csv", "python benchmarks/commands.py --before OTHER"
    ),
    "waiting/estimator_fits": Made(
        estimator_fits, "estimator_fits.csv", "python benchmarks/estimator_fits.py"
    ),
    "priors/subspace_tables": Made(subspace, "subspace.csv", "python benchmarks/subspace.py"),
    "gradient_noise": Made(
        gradient_noise, "gradient_noise.csv", "python benchmarks/gradient_noise.py"
    ),
    "effective_draws": Made(
        effective_draws, "effective_draws.csv", "taskset -c 1 python benchmarks/effective_draws.py"
    ),
    "many_chains": Made(many_chains, "many_chains.csv", "python benchmarks/many_chains.py"),
    "noise": Made(noise_table.table, "noise.csv", "taskset -c 1 python benchmarks/noise.py"),
    "networks": Made(networks, "networks.csv", "taskset -c 1 python benchmarks/networks.py"),
    "standard_errors": Made(
        standard_errors, "standard_errors.csv", "python benchmarks/standard_errors.py"
    ),
    "gpu": Made(gpu, "gpu.csv", "python benchmarks/gpu.py"),
}


if __name__ == "__main__":
    main()
