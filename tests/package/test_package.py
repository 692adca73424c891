"""The package as a whole: its map, its floors, what importing it costs."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import rooms
from PIL import Image

import bnn_ppl
from bnn_ppl.methods.method import METHODS

ROOT = Path(bnn_ppl.__file__).parent

MAKERS = {f"{name}.{make}" for name in ("az", "arviz") for make in ("from_dict", "InferenceData")}

# A room imports only from rooms below its own line, the lowest first.
FLOORS = [
    ["data", "nets", "runtime"],
    ["model"],
    ["methods", "storage"],
    ["analysis"],
    ["sampling"],
    ["plots", "robustness", "studies"],
    ["cli", "estimators"],
]


def test_a_room_imports_only_from_rooms_below():
    level = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
    assert sorted(level) == rooms.rooms(), "each room stands on one floor: mend FLOORS"
    for (room, imported), files in rooms.arrows().items():
        assert level[imported] < level[room], f"{files} of {room} import {imported} from above"


def test_the_figure_of_the_rooms_has_their_arrows():
    figure = rooms.PACKAGE.parent / "docs" / "figures" / "rooms.png"
    with Image.open(figure) as image:
        drawn = image.text["Description"]
    assert drawn == ", ".join(rooms.shown()), f"python tests/package/rooms.py {figure}"


def test_there_are_few_rooms_levels_and_arrows():
    assert len(rooms.rooms()) <= 16 and len(rooms.levels()) <= 8 and len(rooms.arrows()) <= 50


def test_a_folder_has_at_most_twelve_files_none_of_them_tiny():
    folders = Counter(path.parent for path in rooms.files())
    assert not {folder: count for folder, count in folders.items() if count > 12}
    assert not [path for path in rooms.files() if len(path.read_text().splitlines()) < 40]


def test_a_record_has_at_most_twelve_fields():
    trees = [rooms.parsed(path) for path in rooms.files()]
    records = [node for t in trees for node in ast.walk(t) if isinstance(node, ast.ClassDef)]
    counts = [(r.name, sum(isinstance(part, ast.AnnAssign) for part in r.body)) for r in records]
    assert ("Posterior", 12) in counts
    assert not [record for record in counts if record[1] > 12]


def test_files_do_not_import_each_other_in_circles():
    assert not rooms.in_circles()


def test_a_run_hands_its_folder_to_one_object():
    nodes = ast.walk(ast.parse((ROOT / "sampling" / "run.py").read_text()))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    given = {
        ast.unparse(call.func)
        for call in calls
        for argument in [*call.args, *(keyword.value for keyword in call.keywords)]
        if ast.unparse(argument) == "folder"
    }
    assert given == {"RunStorage"}


def test_arrows_are_read_from_real_imports(tmp_path, monkeypatch):
    assert "model/network.py" in rooms.arrows()["model", "nets"]
    for room, line in {
        "a": "from bnn_ppl.b import x",
        "b": "def f():\n    from bnn_ppl import a",
    }.items():
        (tmp_path / f"{room}.py").write_text(line)
    monkeypatch.setattr(rooms, "PACKAGE", tmp_path)
    assert set(rooms.arrows()) == {("a", "b"), ("b", "a")}
    with pytest.raises(ValueError, match="circle"):
        rooms.levels()


def test_all_is_sorted_and_complete():
    assert bnn_ppl.__all__ == sorted(bnn_ppl.__all__)
    assert all(hasattr(bnn_ppl, name) for name in bnn_ppl.__all__)
    modules = {name for name, thing in vars(bnn_ppl).items() if isinstance(thing, ModuleType)}
    public = {name for name in vars(bnn_ppl) if not name.startswith("_")}
    extra = public - set(bnn_ppl.__all__) - modules - {"METHODS"}
    assert not extra, f"public but not in __all__: {extra}"
    assert set(METHODS) <= set(bnn_ppl.__all__)


def test_import_pulls_in_no_plotting_storage_or_command_line_and_does_not_start_jax():
    script = """
import sys, bnn_ppl, jax
unwanted = {"matplotlib", "arviz", "xarray", "pandas", "tensorflow", "tensorflow_datasets", "tyro"}
unwanted |= {"scipy.stats", "scipy.optimize", "scipy.ndimage", "scipy.spatial"}  # most of SciPy
assert not unwanted & set(sys.modules), unwanted & set(sys.modules)
jax.config.update("jax_num_cpu_devices", 3)  # refused once JAX has started
assert len(jax.devices("cpu")) == 3
"""
    environment = {"JAX_PLATFORMS": "cpu", "PATH": "/usr/bin"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, timeout=120)


@pytest.mark.parametrize("first, shown", [("os", True), ("bnn_ppl", False)])
@pytest.mark.thorough
def test_one_warning_of_arviz_is_silenced_and_no_other(first, shown, tmp_path):
    script = f"""
import {first}, warnings, arviz
for category in (FutureWarning, UserWarning):
    warnings.warn("\\nArviZ is " + "another matter", category)
warnings.warn("\\nArviZ is " + "undergoing a major refactor", FutureWarning)  # not from ArviZ
"""
    # ArviZ warns once a day and remembers that in the user's cache.
    environment = {"JAX_PLATFORMS": "cpu", "PATH": "/usr/bin", "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, check=True, env=environment, timeout=120, capture_output=True, text=True
    )
    assert ("migration_guide" in done.stderr) == shown
    assert done.stderr.count("ArviZ is another matter") == 2
    assert done.stderr.count("ArviZ is undergoing") == 1 + shown


def test_no_underscored_module_of_another_package_is_imported():
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(rooms.parsed(path)):
            if isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            else:
                continue
            for module in modules:
                parts = [] if module.startswith("bnn_ppl.") else module.split(".")
                private = [p for p in parts if p.startswith("_") and p != "__future__"]
                assert not private, f"{path.name} imports {module}"


def test_every_public_function_has_a_numpydoc_docstring():
    for name in bnn_ppl.__all__:
        thing = getattr(bnn_ppl, name)
        assert thing.__doc__, name
        if callable(thing) and not isinstance(thing, type):
            assert "Parameters\n    ----------" in thing.__doc__, name


def test_one_file_alone_makes_draws_of_arviz_s_own_types():
    """Its versions differ there: examples, benchmarks and tests go through the same file."""
    adapter, its_tests = ROOT / "storage" / "arviz_versions.py", "test_arviz_versions.py"
    found = set()
    for folder in (ROOT, *(ROOT.parent / name for name in ("examples", "benchmarks", "tests"))):
        for path in folder.rglob("*.py"):
            calls = (n for n in ast.walk(rooms.parsed(path)) if isinstance(n, ast.Call))
            makers = {ast.unparse(call.func) for call in calls} & MAKERS
            if makers and path != adapter:
                found.add(path.name)
    assert found == {its_tests}
