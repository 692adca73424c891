"""Who imports whom among the rooms of the package: ``python tests/package/rooms.py`` prints it.

``python tests/package/rooms.py docs/figures/rooms.png`` draws it.
"""

import ast
import sys
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "bnn_ppl"


def rooms() -> list[str]:
    """Name the folders of the package and the files beside them."""
    entries = [path for path in PACKAGE.iterdir() if not path.name.startswith("_")]
    folders = [path.name for path in entries if path.is_dir()]
    return sorted(folders + [path.stem for path in entries if path.suffix == ".py"])


def arrows() -> dict[tuple[str, str], list[str]]:
    """Give, for each pair of rooms of which one imports the other, the files that do."""
    names, found = set(rooms()), {}
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room.startswith("_"):
            continue  # they re-export
        for imported in sorted((_imports(path) & names) - {room}):
            found.setdefault((room, imported), []).append(str(path.relative_to(PACKAGE)))
    return found


@cache
def parsed(path: Path) -> ast.Module:
    """Read a file's syntax."""
    return ast.parse(path.read_text())


@cache
def _imports(path: Path) -> set[str]:
    """Rooms that a file names in its imports, anywhere in it."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bnn_ppl"):
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
    return found


def files() -> list[Path]:
    """List the files of the package, without those that re-export."""
    return [path for path in sorted(PACKAGE.rglob("*.py")) if not path.name.startswith("_")]


def in_circles() -> list[str]:
    """List the files that import each other in circles, anywhere in them."""
    modules = {".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts): p for p in files()}
    below = {name: _modules(path) & set(modules) - {name} for name, path in modules.items()}
    while ends := {name for name in below if not below[name]}:
        below = {name: rest - ends for name, rest in below.items() if name not in ends}
    while tops := set(below) - set().union(*below.values()):
        below = {name: rest for name, rest in below.items() if name not in tops}
    return sorted(below)


def _modules(path: Path) -> set[str]:
    """Files that a file may name in its imports."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def levels() -> list[list[str]]:
    """Sort the rooms by level, each above all that it imports.

    Raises
    ------
    ValueError
        If rooms import each other in a circle.
    """
    pairs = arrows()
    below = {room: {to for of, to in pairs if of == room} for room in rooms()}
    placed: set[str] = set()
    found = []
    while len(placed) < len(below):
        level = sorted(room for room in below if room not in placed and below[room] <= placed)
        if not level:
            raise ValueError(f"a circle of imports among {sorted(set(below) - placed)}")
        found.append(level)
        placed |= set(level)
    return found


def shown() -> list[str]:
    """List the arrows that a figure needs: those that no path of other arrows implies."""
    below = {room: {to for of, to in arrows() if of == room} for room in rooms()}
    reached: dict[str, set[str]] = {}
    for level in levels():
        for room in level:
            reached[room] = below[room].union(*(reached[to] for to in below[room]))
    return [
        f"{room} {to}"
        for room, direct in sorted(below.items())
        for to in sorted(direct)
        if not any(to in reached[other] for other in direct)
    ]


def draw(path: Path) -> None:
    """Draw the rooms on their levels, and their arrows."""
    import matplotlib.pyplot as plt

    at = {
        room: ((place - (len(level) - 1) / 2) * (3.6 if len(level) == 2 else 2.2), 1.3 * floor)
        for floor, level in enumerate(levels())
        for place, room in enumerate(level)
    }
    figure, axes = plt.subplots(figsize=(7, 6), layout="constrained")
    for arrow in shown():
        (x, y), (x_to, y_to) = (at[room] for room in arrow.split())
        style = {"arrowstyle": "-|>", "color": "0.5", "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (x_to, y_to + 0.25), (x, y - 0.25), arrowprops=style)
    for room, (x, y) in at.items():
        box = {"boxstyle": "round,pad=0.5", "facecolor": "#eef3fa", "edgecolor": "#33567f"}
        axes.text(x, y, f"{room}/", ha="center", va="center", bbox=box, fontsize=10)
    axes.set(xlim=(-3.2, 3.2), ylim=(-0.7, 1.3 * len(levels()) - 0.6))
    axes.axis("off")
    figure.savefig(path, dpi=110, metadata={"Description": ", ".join(shown())})


if __name__ == "__main__":
    if sys.argv[1:]:
        draw(Path(sys.argv[1]))
    for number, level in reversed(list(enumerate(levels(), 1))):
        print(number, " ".join(level))
    print(f"{len(rooms())} rooms, {len(levels())} levels, {len(arrows())} arrows")
    for (room, imported), files in sorted(arrows().items()):
        print(f"{room} -> {imported}: {len(files)}")
