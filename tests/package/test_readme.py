"""Programs and commands of the README and the docs run as printed, with fewer draws."""

import ast
import builtins
import re
import shlex
from glob import glob
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pytest
import rooms

import bnn_ppl as bnn
from bnn_ppl import cli
from bnn_ppl.methods.method import METHODS as BY_NAME

README = Path(__file__).parents[2] / "README.md"
MOST_BYTES = 7000
DOCS = README.parent / "docs"
PAGES = DOCS / "methods"

# One program and one command of the methods' pages run each time, the others as slow tests.
METHOD_PAGES = {
    f"methods/{path.stem}.md": path.read_text()
    for path in sorted(PAGES.glob("*.md"))
    if path.stem not in ("index", "combinations")
}
PROGRAMS = (
    ["index.md", "guides/diagnosis.md", "guides/your_own.md", "guides/noise.md"]
    + ["guides/numpyro.md", "guides/estimators.md", "guides/coming_from.md"]
    + ["methods/combinations.md"]
    + [pytest.param("guides/partly_bayesian.md", marks=pytest.mark.thorough)]
    + [pytest.param("guides/large_data.md", marks=pytest.mark.thorough)]
    + [pytest.param("explanation/evidence.md", marks=pytest.mark.thorough)]
    + [
        pytest.param(name, marks=pytest.mark.slow)
        for name, page in METHOD_PAGES.items()
        if "```python\n" in page
    ]
)
COUNTS = {
    "guides/minibatches.md": 12,
    "guides/distributions.md": 8,
    "methods/combinations.md": 7,
} | {name: 1 for name, page in METHOD_PAGES.items() if "```sh\n" in page}
COMMANDS = [
    pytest.param(page, count, marks=[pytest.mark.slow] * (page != "methods/sghmc.md"))
    for page, count in COUNTS.items()
]


def test_the_program_in_the_readme_runs(tmp_path, monkeypatch, capsys):
    program = "\n".join(re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL))
    shorter = program.replace("num_chains=4,", "num_chains=4, num_warmup=4, num_draws=6,")
    assert shorter != program
    monkeypatch.chdir(tmp_path)
    exec(compile(shorter, "README.md", "exec"), {})
    out = capsys.readouterr().out
    assert "r_hat" in out and "rmse" in out
    assert (tmp_path / "runs" / "mine" / "draws.zarr").is_dir()


PRINTED = {"guides/your_own.md": ("rmse", "elpd_loo"), "guides/diagnosis.md": ("r_hat", "elpd_loo")}


@pytest.mark.thorough
@pytest.mark.parametrize("page", PROGRAMS)
@pytest.mark.filterwarnings("ignore:.*Pareto")  # few draws
def test_the_programs_of_the_docs_run(page, tmp_path, monkeypatch, capsys):
    """The blocks of a page one after the other, with fewer draws."""
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
    program = "\n".join(blocks)
    shorter = program
    for count, few in {"num_warmup": 10, "num_draws": 20, "thin": 1}.items():
        shorter = re.sub(rf"{count}=[1-9]\d*", f"{count}={few}", shorter)  # 0 stays
    assert shorter != program
    exec(compile(shorter, page, "exec"), {})
    out = capsys.readouterr().out
    assert out and all(word in out for word in PRINTED.get(page, ()))
    plt.close("all")


def names_undefined(page):
    """Names that the programs of a page use and define nowhere; fragments are marked as py."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    nodes = list(ast.walk(ast.parse("\n".join(blocks))))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    known = {node.id for node in names if isinstance(node.ctx, ast.Store)} | set(dir(builtins))
    known |= {(n.asname or n.name).split(".")[0] for n in nodes if isinstance(n, ast.alias)}
    known |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    known |= {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    return {node.id for node in names} - known


def test_programs_of_the_docs_define_what_they_use():
    pages = [README, *(path for path in DOCS.rglob("*.md") if "build" not in path.parts)]
    assert len(pages) > 40
    undefined = {page.name: names_undefined(page) for page in pages}
    assert {name: found for name, found in undefined.items() if found} == {}


def test_the_readme_is_short_and_its_links_lead_somewhere():
    text = README.read_text()
    assert len(text.encode()) <= MOST_BYTES
    links = re.findall(r"\]\((?!http)([^)#]+)", text)
    assert len(links) > 10
    assert [link for link in links if not (README.parent / link).exists()] == []


def test_a_page_of_the_docs_is_in_the_menu():
    parts = re.findall(
        r"```{toctree}\n:hidden:\n:caption: .*?\n\n(.*?)```", (DOCS / "index.md").read_text(), re.S
    )
    kinds = "tutorials", "guides", "explanation", "reference"
    pages = {f"{kind}/{path.stem}" for kind in kinds for path in (DOCS / kind).glob("*.*")}
    assert len(pages) > 20
    listed = "\n".join(parts).split()
    assert sorted(listed) == sorted(pages | {"methods/index", "results/index"})
    assert {path.name for path in DOCS.glob("*.md")} == {"index.md"}


def test_the_files_and_rooms_that_the_architecture_names_exist():
    text = (DOCS / "explanation/architecture.md").read_text()
    named = set(re.findall(r"[\w/]+\.py", text))
    assert len(named) > 20
    folders = (README.parent, README.parent / "bnn_ppl")
    missing = [name for name in named if not any((at / name).is_file() for at in folders)]
    assert missing == []
    table = re.findall(r"^\| `(\w+)(?:/|\.py)` \|", text, flags=re.MULTILINE)
    assert sorted(table) == rooms.rooms()
    assert f"{len(rooms.rooms())} rooms" in text and f"{len(rooms.levels())} levels" in text


@pytest.mark.parametrize("target", ["demo", "test", "check"])
def test_the_commands_in_the_readme_are_in_the_makefile(target):
    makefile = (README.parent / "Makefile").read_text()
    assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


def commands(page):
    """Lines of the blocks of a page that a shell would run."""
    blocks = re.findall(r"```sh\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
    return "".join(blocks).splitlines()


@pytest.mark.thorough
@pytest.mark.parametrize(("page", "count"), COMMANDS)
def test_the_commands_of_the_docs_run(page, count, tmp_path, monkeypatch, capsys):
    """All of them, in their order: with the options as printed, and then less of everything."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_start_jax", lambda: None)  # JAX already runs in these tests
    monkeypatch.setattr("bnn_ppl.cli.commands.run.results_table", lambda *args: "")
    monkeypatch.setattr(bnn.plots, "report", lambda *args, **kwargs: Figure())
    lines = commands(page)
    assert len(lines) == count
    for line in lines:
        program, command, method, *options = shlex.split(line)
        assert (program, command) == ("bnn-ppl", "run")
        cli.main([command, method, *options, *less(method, options), "--no-progress"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "count"),
    [("guides/four_systems.md", 28), ("explanation/comparison.md", 7), ("guides/studies.md", 25)]
    + [("guides/command_line.md", 15), ("../README.md", 2)],
)
def test_the_commands_of_a_page_run(page, count, tmp_path, monkeypatch, capsys):
    """Every line of every block that calls the package, in order, with less of everything."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_start_jax", lambda: None)
    lines = [line for line in commands(page) if line.startswith("bnn-ppl ")]
    assert len(lines) == count
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        words = [path for word in words for path in (sorted(glob(word)) or [word])]
        if words[-1] == "--help":
            with pytest.raises(SystemExit, match="0"):
                cli.main(words)
        else:
            cli.main([*words, *smaller(words)])


def smaller(words):
    """Options for a fraction of the work, of a run or of the run that is swept over."""
    for before in ("--", "run"):
        if before in words:
            method = words[words.index(before) + 1]
            small = less(method, words)
            pairs = zip(small[::2], small[1::2], strict=True)
            swept = {f"--{word}" for word in words[: words.index(before)]}  # not to be said twice
            return [*(w for pair in pairs if pair[0] not in swept for w in pair), "--no-progress"]
    return LESS_OF_STUDIES.get(words[0], [])


LESS_OF_STUDIES = {
    "label-noise": ["--num-epochs", "2"],
    "continual": ["--num-epochs", "1", "--num-rows", "500"],
    "surface": ["--num-points", "3"],
}


def less(method, options):
    """Options for a run of a second: the last one given counts."""
    small = ["--num-chains", "3", "--num-draws", "1" if method == "descent" else "3"]
    small += ["--num-warmup-epochs", "1", "--net", "mlp", "--hidden", "4"]
    small += ["--num-epochs", "1"] if "--num-epochs" in options else []
    small += ["--subset", "80"] if {"mnist", "cifar10", "imdb"} & set(options) else []
    small += ["--batch-size", "40"] if "--batch-size" in options else []
    swept = "trajectory-length" in options
    return small + (["--trajectory-length", "3e-5"] if method == "hmc" and not swept else [])


class Figure:
    """Stands for the report, which other tests draw."""

    def savefig(self, path, **options):
        path.write_bytes(b"")


def test_every_public_name_is_in_the_reference():
    pages = "\n".join(path.read_text() for path in DOCS.rglob("*.md"))
    shown = re.findall(r"^\.\. auto[a-z]+:: (?:bnn_ppl\.)?(\w+)$", pages, flags=re.MULTILINE)
    assert sorted(set(bnn.__all__) - set(shown)) == []


def test_each_method_has_a_page_with_the_same_sections():
    pages = {path.stem: path.read_text() for path in PAGES.glob("*.md")}
    assert set(pages) == set(BY_NAME) | {"index", "combinations"}
    menu = re.findall(r"```{toctree}\n:hidden:\n:caption: .*?\n\n(.*?)```", pages["index"], re.S)
    assert sorted("\n".join(menu).split()) == sorted(set(pages) - {"index"})
    for name in BY_NAME:
        assert f".. autofunction:: bnn_ppl.{name}\n" in pages[name]
        sections = re.findall("^## (.*)", pages[name], flags=re.MULTILINE)
        own = [section for section in sections if section != "linearised"]
        rest = ["When to use it", "Cost", "Bias", "Tests", "Example"]
        assert own == ["Rule and arguments", *rest], name
        assert re.search("```(python|sh)\n", pages[name])


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda path: path.stem)
def test_the_tests_that_a_page_names_exist(page):
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page.read_text())
    assert named
    for file, test in named:
        assert f"def {test}(" in (README.parent / file).read_text() or not test, (file, test)
