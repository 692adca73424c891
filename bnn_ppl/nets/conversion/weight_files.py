"""Weights in files and states, as a flat dict of arrays by name, by the libraries' readers."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

Arrays = dict[str, np.ndarray]

_COLLECTIONS = {"params", "batch_stats"}  # of flax linen


def read_weights(source: Any) -> Arrays:
    """Read a state, a dict of arrays, a file or a folder; names are paths with dots."""
    if isinstance(source, Mapping):
        return flat_arrays(source)
    if not isinstance(source, str | Path):
        raise TypeError(
            f"got weights of type {type(source).__name__}, expected a state, a dict of arrays or a "
            "path: of a module, nnx.state(module)"
        )
    path = Path(source)
    if not path.exists():
        raise FileNotFoundError(
            f"got weights {str(source)!r}, where nothing is, expected a .safetensors file, an "
            "orbax checkpoint or the folder of a run: check the path"
        )
    if path.is_dir():
        return _read_folder(path)
    if path.suffix != ".safetensors":
        raise ValueError(
            f"got weights {str(source)!r}, expected a .safetensors file, an orbax checkpoint or "
            "the folder of a run: load it by its own library and pass a dict of arrays"
        )
    return _read_safetensors(path)


def flat_arrays(tree: Mapping) -> Arrays:
    """Give the arrays of a tree by name, such as "layers.0.kernel"."""
    if tree and set(tree) <= _COLLECTIONS:
        return {k: v for collection in tree.values() for k, v in flat_arrays(collection).items()}
    found = {}
    for path, leaf in _leaves((), tree):
        name = ".".join(path[:-1] if len(path) > 1 and path[-1] == "value" else path)
        try:
            found[name] = np.asarray(leaf)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"got a {type(leaf).__name__} for {name!r}, expected an array: of a PyTorch "
                "tensor, tensor.numpy()"
            ) from error
    return found


def _leaves(path: tuple[str, ...], tree: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(tree, nnx.Variable):
        if not isinstance(tree, nnx.RngState):
            yield path, tree[...]
    elif isinstance(tree, Mapping):
        for key, inner in tree.items():
            yield from _leaves((*path, str(key)), inner)
    elif isinstance(tree, list | tuple):
        for index, inner in enumerate(tree):
            yield from _leaves((*path, str(index)), inner)
    else:
        yield path, tree


def _read_folder(path: Path) -> Arrays:
    if (path / "draws.zarr").is_dir():
        return _read_run(path)
    if any((path / name).exists() for name in ("_CHECKPOINT_METADATA", "_METADATA")):
        return _read_orbax(path)
    raise ValueError(
        f"got the folder {str(path)!r}, expected an orbax checkpoint or the folder of a run: name "
        "the folder with _CHECKPOINT_METADATA or draws.zarr in it"
    )


def _read_run(path: Path) -> Arrays:
    """Read the last draw of chain 0, and the points of a partly Bayesian network."""
    import zarr

    groups: Any = zarr.open_group(path / "draws.zarr", mode="r")
    posterior = groups["posterior"]
    sites = [name for name, _ in posterior.arrays() if not _is_axis(name)]
    if not posterior["draw"].shape[0]:
        raise ValueError(
            f"got the run {str(path)!r} without draws, expected one or more: run it to its end"
        )
    found = {name: np.asarray(_whole(posterior[name], path)[0, -1]) for name in sites}
    if "constant_data" in groups:
        for name, array in groups["constant_data"].arrays():
            if not _is_axis(name):
                found[name] = np.asarray(_whole(array, path)[...])
    networks = {name.partition(".")[0] for name in found if "." in name}
    if len(networks) != 1:
        return found
    start = f"{networks.pop()}."
    return {name.removeprefix(start): found[name] for name in found if name.startswith(start)}


def _whole(array: Any, path: Path) -> Any:
    """Refuse an array of which a chunk is missing: Zarr would read it as zeros."""
    if array.nchunks_initialized < array.nchunks:
        raise ValueError(
            f"got the run {str(path)!r}, of which a part of {array.basename} is missing, expected "
            "all of it: copy the folder again"
        )
    return array


def _is_axis(name: str) -> bool:
    head, _, number = name.rpartition("_dim_")
    return name in ("chain", "draw") or (bool(head) and number.isdigit())


def _read_orbax(path: Path) -> Arrays:
    import jax
    import orbax.checkpoint as ocp

    # As NumPy arrays, so that a checkpoint of other devices is read on these.
    with ocp.PyTreeCheckpointer() as reader:
        metadata = reader.metadata(path.absolute()).item_metadata
        tree = getattr(metadata, "tree", metadata)
        options = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        return flat_arrays(reader.restore(path.absolute(), restore_args=options))


def _read_safetensors(path: Path) -> Arrays:
    library = _safetensors()
    try:
        return {name: np.asarray(array) for name, array in library.load_file(path).items()}
    except Exception as error:  # the library's errors have no common class
        raise ValueError(
            f"got {str(path)!r}, which is damaged or no safetensors file ({error}), expected one: "
            "copy it again"
        ) from error


def write_weights(arrays: Mapping[tuple, np.ndarray], path: str | Path) -> None:
    """Write arrays by path: a .safetensors file, or else an orbax checkpoint."""
    path = Path(path).absolute()
    if path.exists():
        raise FileExistsError(f"got path {str(path)!r}, which exists, expected a new one: name it")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        _safetensors().save_file({".".join(map(str, p)): a for p, a in arrays.items()}, path)
        return
    import orbax.checkpoint as ocp

    tree: dict[str, Any] = {}
    for names, array in arrays.items():
        inner = tree
        for name in names[:-1]:
            inner = inner.setdefault(str(name), {})
        inner[str(names[-1])] = array
    with ocp.PyTreeCheckpointer() as writer:
        writer.save(path, tree)


def _safetensors() -> Any:
    try:
        import safetensors.flax
    except ImportError as error:
        raise ImportError(
            "got a .safetensors file without the library safetensors, expected it installed: "
            "pip install safetensors"
        ) from error
    return safetensors.flax
