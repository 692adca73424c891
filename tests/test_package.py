"""The package as a whole: its map, its floors, what importing it costs."""

import ast
import subprocess
import sys
from pathlib import Path

import bnn_ppl

ROOT = Path(bnn_ppl.__file__).parent

# A file imports only from floors below its own; each floor is a line, the lowest first.
FLOORS = [
    ["files", "noise", "convolution", "counts", "corruptions"],
    ["network"],
    ["priors", "taps", "method", "store", "devices", "metrics", "isokinetic", "data", "nets"]
    + ["precision", "progress", "checkpoint", "schedules", "preconditioners", "no_u_turn"],
    ["models", "adaptation", "posterior", "recorder", "minibatches", "augmentation"],
    ["arguments", "gibbs", "early_stopping", "curvature", "row_gradients", "gaussian_mean_field"],
    ["linearised", "blocks"],
    ["langevin"],
    ["methods"],
    ["run"],
    ["predict", "diagnostics", "plan", "guide", "surface"],
    ["pruning", "compare", "prior_draws", "correlations", "chain_budget", "shift"],
    ["adversarial", "studies"],
    ["plots"],
    ["cli", "estimators"],
]


def test_every_file_stands_on_one_floor_and_imports_only_from_below():
    level = {name: floor for floor, names in enumerate(FLOORS) for name in names}
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if name in ("__init__", "__main__"):
            continue
        assert name in level, f"{path.name} stands on no floor: add it to FLOORS"
        for imported in _imports(path) - {name}:
            assert level[imported] < level[name], f"{path.name} imports {imported} from above"


def test_the_floors_are_read_from_real_imports():
    assert {"network", "priors"} <= _imports(ROOT / "models.py")


def _imports(path: Path) -> set[str]:
    """Rooms of the package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bnn_ppl"):
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
    rooms = {name for names in FLOORS for name in names}
    return found & rooms


def test_all_is_sorted_and_complete():
    assert bnn_ppl.__all__ == sorted(bnn_ppl.__all__)
    assert all(hasattr(bnn_ppl, name) for name in bnn_ppl.__all__)
    public = {name for name in vars(bnn_ppl) if not name.startswith("_")}
    extra = public - set(bnn_ppl.__all__) - {path.stem for path in ROOT.iterdir()}
    assert not extra, f"public but not in __all__: {extra}"


def test_import_pulls_in_no_plotting_storage_or_command_line_and_does_not_start_jax():
    script = """
import sys, bnn_ppl, jax
unwanted = {"matplotlib", "arviz", "xarray", "pandas", "tensorflow", "tensorflow_datasets", "tyro"}
assert not unwanted & set(sys.modules), unwanted & set(sys.modules)
jax.config.update("jax_num_cpu_devices", 3)  # refused once JAX has started
assert len(jax.devices("cpu")) == 3
"""
    environment = {"JAX_PLATFORMS": "cpu", "PATH": "/usr/bin"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, timeout=120)


def test_no_underscored_module_of_another_package_is_imported():
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            else:
                continue
            for module in modules:
                private = [p for p in module.split(".") if p.startswith("_") and p != "__future__"]
                assert not private, f"{path.name} imports {module}"


def test_every_public_function_has_a_numpydoc_docstring():
    for name in bnn_ppl.__all__:
        thing = getattr(bnn_ppl, name)
        assert thing.__doc__, name
        if callable(thing) and not isinstance(thing, type):
            assert "Parameters\n    ----------" in thing.__doc__, name
