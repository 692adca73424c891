"""The commands, methods and options that can be typed, read from their source.

Importing a command imports JAX, which takes a second. What is typed wrongly, and the list of
commands, are answered without.
"""

import ast
import inspect
import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from shutil import get_terminal_size

from bnn_ppl.runtime.names import hint

# The file of each command in this folder.
COMMANDS = {
    "run": "run",
    "plan": "plan",
    "sweep": "sweep",
    "summary": "results",
    "predict": "predictions",
    "compare": "results",
    "score": "score",
    "prune": "results",
    "check": "check",
    "acquire": "answers",
    "explain": "answers",
    "compress": "answers",
    "distil": "answers",
    "export": "answers",
    "chains": "analysis",
    "correlations": "analysis",
    "surface": "analysis",
    "corruptions": "robustness",
    "rotations": "robustness",
    "adversarial": "robustness",
    "ood": "detection",
    "continual": "studies",
    "label-noise": "studies",
}
# Arguments of `bnn_ppl.run`, and of methods, that cannot be typed.
NOT_OF_RUN = {"key", "posterior", "method", "init", "keep", "folder", "mesh"}
NOT_OF_RUN |= {"progress", "until", "verdict", "held_out"}
NOT_OF_METHODS = {"posterior", "inner", "optimizer", "held_out"}

_PACKAGE = Path(__file__).parent.parent
_GROUPS = {  # types whose fields are options of the commands that take them
    "General": "cli/run_arguments",
    "Problem": "cli/problem/problem",
    "Training": "cli/methods",
    "InSubspace": "cli/problem/subspace",
    "Predicting": "cli/commands/robustness",
    "Corrupting": "cli/commands/robustness",
    "Studying": "cli/commands/studies",
    "Scoring": "cli/commands/results",
    "LeavingOut": "cli/leave_one_out",
    "Probabilities": "cli/commands/predictions",
    "Choice": "cli/commands/answers",
}
_FOLDERS = "folder", "folders"  # the names of arguments that are typed without them
_NUMBER = re.compile(r"-?[0-9.]+(e-?[0-9]+)?", re.IGNORECASE)


def help_text() -> str:
    """Give the help of the command itself: each command in a line."""
    width = min(get_terminal_size().columns, 100)
    indent = 4 + max(map(len, COMMANDS))
    lines = [
        "usage: bnn-ppl COMMAND ...",
        "",
        "Bayesian neural networks, sampled.  Try: bnn-ppl run hmc --data yacht;",
        "then: bnn-ppl summary runs/yacht-0-hmc.",
        "",
        "commands:",
    ]
    for command in COMMANDS:
        name = f"  {command:{indent - 2}}"
        lines += textwrap.wrap(_summary(command), width, initial_indent=name,
                               subsequent_indent=" " * indent)  # fmt: skip
    lines += ["", "bnn-ppl COMMAND --help shows the options of a command, and"]
    lines += ["bnn-ppl run METHOD --help also those of a method:"]
    lines += textwrap.wrap(", ".join(methods()), width, initial_indent="  ", subsequent_indent="  ")
    lines += ["bnn-ppl --version shows the version."]
    return "\n".join(lines)


def check_words(arguments: Sequence[str]) -> None:
    """Refuse commands, methods and options that there are not, with the closest that there is."""
    command, *others = arguments
    if command.replace("-", "_") in methods():
        raise ValueError(f"got the method {command!r}, expected a command: bnn-ppl run {command}")
    _check_word("command", command, list(COMMANDS))
    command = command.replace("_", "-")
    method = None
    if command in ("run", "plan"):
        method = first_positional(others, _flags(options(command)))
        if method is None:
            if {"--help", "-h"}.isdisjoint(others):
                typed = shlex.join([command, "hmc", *others])
                raise ValueError(
                    "got no method, expected one, such as hmc, sgnht or descent "
                    f"(bnn-ppl {command} --help lists them): bnn-ppl {typed}"
                )
            return  # options of methods are not known
        _check_word("method", method, methods())
    _check_options(others, options(command, method), " ".join(filter(None, (command, method))))
    _check_folder(others, command)


def as_named(arguments: list[str]) -> list[str]:
    """Give the method its name where it is typed with hyphens, as options are."""
    command, *others = arguments
    if command not in ("run", "plan"):
        return arguments
    at = place_of_first(others, _flags(options(command)))
    if at is not None:
        others[at] = others[at].replace("-", "_")
    return [command, *others]


def _check_word(what: str, word: str, names: list[str]) -> None:
    if word.replace("_", "-") not in [name.replace("_", "-") for name in names]:
        close = hint(word, names)
        raise ValueError(f"got {what} {word!r}{close} expected one of {', '.join(names)}")


def _check_options(words: Sequence[str], known: dict[str, str], command: str) -> None:
    names = set(known) | {word[2:].replace("-", "_") for word in _flags(known)}
    for word in words:
        name = word.partition("=")[0].removeprefix("--").replace("-", "_")
        if word.startswith("--") and name in _FOLDERS and _has_folder(known):
            raise ValueError(
                f"got {word}, expected the folder of a run by itself: bnn-ppl {command} FOLDER"
            )
        if word.startswith("--") and name not in names:
            close = hint(name, sorted(names), "--{}").replace("_", "-")
            raise ValueError(
                f"got {word.partition('=')[0]}{close} expected an option of bnn-ppl {command}: "
                "--help after it lists them"
            )


def _check_folder(words: Sequence[str], command: str) -> None:
    """Refuse a command about a run that is given none, with one that there is."""
    known = options(command)
    if not _has_folder(known) or not {"--help", "-h"}.isdisjoint(words):
        return
    named = any(Path(word).is_dir() for word in words)
    if not named and first_positional(words, _flags(known)) is None:
        runs = sorted(Path("runs").glob("*/problem.json"), key=lambda file: file.stat().st_mtime)
        run = runs[-1].parent if runs else "runs/yacht-0-hmc"
        typed = shlex.join([command, str(run), *words])
        raise ValueError(f"got no folder of a run, expected one: bnn-ppl {typed}")


def _has_folder(known: dict[str, str]) -> bool:
    """Whether a command is about a run, whose folder is its first argument."""
    return next(iter(known)) in _FOLDERS


def _flags(known: dict[str, str]) -> set[str]:
    """Options that take no value, as they are typed."""
    plain = [name.replace("_", "-") for name, annotation in known.items() if annotation == "bool"]
    return {f"--{prefix}{name}" for name in plain for prefix in ("", "no-")} | {"--help", "-h"}


def first_positional(arguments: Sequence[str], flags: set[str]) -> str | None:
    """Give the first word that is neither an option nor the value of one, if there is one."""
    place = place_of_first(arguments, flags)
    return None if place is None else arguments[place]


def place_of_first(arguments: Sequence[str], flags: set[str]) -> int | None:
    """Give the place of that word.

    After the first value of an option, numbers and name=value are taken for further ones.
    """
    taken = False  # whether the next word is the value of an option
    for place, word in enumerate(arguments):
        is_option = word.startswith("-") and not _NUMBER.fullmatch(word)
        if is_option:
            taken = "=" not in word and word.replace("_", "-") not in flags
        elif taken:
            taken = False
        elif not (place and (_NUMBER.fullmatch(word) or "=" in word)):
            return place
    return None


@cache
def methods() -> list[str]:
    """List the methods, which are what their folder imports."""
    return list(_files_of_methods())


@cache
def _files_of_methods() -> dict[str, str]:
    imports = (node for node in _tree("methods/__init__").body if isinstance(node, ast.ImportFrom))
    files = {alias.name: node.module or "" for node in imports for alias in node.names}
    return {name: file.removeprefix("bnn_ppl.").replace(".", "/") for name, file in files.items()}


@cache
def options(command: str, method: str | None = None) -> dict[str, str]:
    """Give the arguments of a command and of a method, with their types as written."""
    found: dict[str, str] = {}
    for name, annotation in _arguments(_function(f"cli/commands/{COMMANDS[command]}", command)):
        if annotation in _GROUPS:
            found |= _fields(annotation)
        elif command in ("run", "plan") and name == "running":
            found |= _without(NOT_OF_RUN, _arguments(_function("sampling/run", "run")))
        elif command in ("run", "plan") and name == "method":
            if method is not None:
                build = _function(_files_of_methods()[method.replace("-", "_")], method)
                found |= _without(NOT_OF_METHODS, _arguments(build))
        else:
            found[name] = annotation
    return found


def _without(names: set[str], arguments: Iterator[tuple[str, str]]) -> dict[str, str]:
    return {name: annotation for name, annotation in arguments if name not in names}


def _summary(command: str) -> str:
    docstring = ast.get_docstring(_function(f"cli/commands/{COMMANDS[command]}", command)) or ""
    return " ".join(inspect.cleandoc(docstring).split("\n\n")[0].replace("``", "").split())


def _arguments(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    for each in (*function.args.args, *function.args.kwonlyargs):
        yield each.arg, ast.unparse(each.annotation) if each.annotation else ""


def _fields(group: str) -> dict[str, str]:
    """Give the fields of a class and their types; of a field that is a record, its fields."""
    nodes = (node for node in _tree(_GROUPS[group]).body if isinstance(node, ast.ClassDef))
    classes = {node.name: node for node in nodes}

    def fields(name: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for node in classes[name].body:
            if isinstance(node, ast.AnnAssign):
                kind = ast.unparse(node.annotation)
                found |= fields(kind) if kind in classes else {ast.unparse(node.target): kind}
        return found

    return fields(group)


def _function(file: str, name: str) -> ast.FunctionDef:
    """Find a function, maybe within another; of methods, that which is described by this name."""
    name = name.replace("-", "_")
    found = [node for node in ast.walk(_tree(file)) if isinstance(node, ast.FunctionDef)]
    marks = {node: " ".join(map(ast.unparse, node.decorator_list)) for node in found}
    described = [node for node in found if f"name='{name}'" in marks[node]]
    return next(node for node in (*described, *found) if node in described or node.name == name)


@cache
def _tree(file: str) -> ast.Module:
    return ast.parse((_PACKAGE / f"{file}.py").read_text(encoding="utf-8"))
