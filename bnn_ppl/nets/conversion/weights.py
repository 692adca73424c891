"""Weights of a trained network, loaded by name from a state or a file, and saved."""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from flax import nnx

from bnn_ppl.nets.conversion.weight_files import Arrays, read_weights, write_weights

Net: TypeAlias = nnx.Module | Callable[..., nnx.Module]
Rename: TypeAlias = Mapping[str, str | None] | Callable[[str], str | None]

# The last part of a name in PyTorch, and what it may be in Flax.
_PYTORCH = {
    "weight": ("kernel", "scale", "embedding"),
    "running_mean": ("mean",),
    "running_var": ("var",),
}
_COUNTERS = "num_batches_tracked"  # of PyTorch's batch normalisation, which Flax has not


class WeightMatch(NamedTuple):
    """Which weights of a network a source has.

    Attributes
    ----------
    loaded
        Name in the source of each weight of the network that it has.
    missing
        Weights of the network that it lacks, and statistics, if it has others of these.
    extra
        Names in the source that are no weights of the network.
    wrong_shape
        Shape in the source, transposed where it would be, and in the network, by weight.
    """

    loaded: dict[str, str]
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    wrong_shape: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]

    def __str__(self) -> str:
        """Give a table: a line for each weight of the network and of the source."""
        lines = [(weight, source) for weight, source in self.loaded.items()]
        lines += [(weight, "(missing)") for weight in self.missing]
        lines += [(w, f"(shape {got}, not {own})") for w, (got, own) in self.wrong_shape.items()]
        lines += [("(no such weight)", source) for source in self.extra]
        width = max((len(weight) for weight, _ in lines), default=0)
        return "\n".join(f"{weight:{width}}  {source}" for weight, source in lines)


def load_weights(
    net: Net,
    source: Any,
    *,
    rename: Rename | None = None,
    strict: bool = True,
    new: str | Sequence[str] = (),
) -> nnx.Module:
    """Make a network with the weights of a trained one, matched by name.

    Its statistics of batch normalisation are loaded too. In the prior of
    :func:`bnn_ppl.random_network` the weights may then be ``"fixed"``.

    Parameters
    ----------
    net
        A factory that gives an ``nnx.Module`` when called with ``rngs=``, or a ready module, which
        stays as it is.
    source
        An nnx state; a dict of arrays, nested or with names such as "layers.0.kernel" (variables
        of Flax linen, a PyTorch state dict of NumPy arrays); or a path: of an orbax checkpoint, a
        .safetensors file, or the folder of a run, of which the last draw of chain 0 is taken.
    rename
        Names of the network for those of the source: a dict whose keys are names or the first
        parts of names ("fc" of "fc.weight"), or a function of each name. None leaves a weight out,
        and "" drops the first parts: {"backbone": ""}.
    strict
        Whether each weight must be in both, in the same shape. If not, those that are are loaded,
        and the others stay as new, or as the module has them.
    new
        Shell patterns of weights of the network that stay as new, whatever the source has: those of
        a head for other classes, such as "output.*".

    Returns
    -------
    nnx.Module

    Raises
    ------
    ValueError
        If weights are missing, of another shape or, in the source, too many, or two have one name;
        if none match, strict or not; if values are not finite, or not floating-point numbers; if
        a pattern of `new` or a key of `rename` fits nothing.

    Notes
    -----
    PyTorch's names are known by their last part. ``weight`` becomes ``kernel``, transposed from
    (out, in, height, width) to (height, width, in, out) and from (out, in) to (in, out); or
    ``scale`` or ``embedding``, as it is, where the network has that in this place.
    ``running_mean`` becomes ``mean`` and ``running_var`` ``var``; ``num_batches_tracked`` is left
    out. A dense layer after images are flattened has another order of inputs in PyTorch (channels
    first), and a transposed convolution another of axes: permute these beforehand.
    """
    module = nnx.clone(net) if isinstance(net, nnx.Module) else net(rngs=nnx.Rngs(0))
    arrays = read_weights(source)
    own = _own(module)
    match = _without(_match(own, arrays, rename), _matching(new, own))
    if strict or not match.loaded:
        _refuse(match, len(own), len(arrays))
    _refuse_values({name: arrays[name] for name in match.loaded.values()})
    for weight, name in match.loaded.items():
        variable = own[weight]
        value = _as_own(weight, name, arrays[name])
        variable[...] = jnp.asarray(value, variable[...].dtype)
    return module


def match_weights(net: Net, source: Any, *, rename: Rename | None = None) -> WeightMatch:
    """Say which weights of a network a source has, as :func:`load_weights` finds them.

    Parameters
    ----------
    net, source, rename
        As there.

    Returns
    -------
    WeightMatch
        Printed, a table.
    """
    module = net if isinstance(net, nnx.Module) else nnx.eval_shape(lambda: net(rngs=nnx.Rngs(0)))
    return _match(_own(module), read_weights(source), rename)


def save_weights(module: nnx.Module, path: str | Path) -> None:
    """Save the weights and the statistics of batch normalisation of a network.

    Parameters
    ----------
    module
        The network.
    path
        Path of a .safetensors file, by this suffix, or else of the folder of an orbax checkpoint.
        The names are those of Flax. Something that exists is not replaced.

    Raises
    ------
    FileExistsError
        If something is there.
    """
    write_weights({path: np.asarray(leaf[...]) for path, leaf in _variables(module)}, path)


def _variables(module: nnx.Module) -> list[tuple[tuple, Any]]:
    return list(nnx.to_flat_state(nnx.state(module, nnx.Any(nnx.Param, nnx.BatchStat))))


def _own(module: nnx.Module) -> dict[str, Any]:
    return {".".join(map(str, path)): leaf for path, leaf in _variables(module)}


# --- matching


def _matching(new: str | Sequence[str], own: Mapping[str, Any]) -> set[str]:
    """Give the weights that the patterns name; refuse a pattern of none."""
    found = set()
    for pattern in (new,) if isinstance(new, str) else new:
        fits = {weight for weight in own if fnmatchcase(weight, pattern)}
        if not fits:
            raise ValueError(
                f"got new weights {pattern!r}, expected a pattern of weights of the network: "
                f"{few(list(own))}"
            )
        found |= fits
    return found


def _without(match: WeightMatch, new: set[str]) -> WeightMatch:
    return WeightMatch(
        {weight: name for weight, name in match.loaded.items() if weight not in new},
        tuple(weight for weight in match.missing if weight not in new),
        match.extra,
        {weight: shapes for weight, shapes in match.wrong_shape.items() if weight not in new},
    )


def _match(own: Mapping[str, Any], arrays: Arrays, rename: Rename | None) -> WeightMatch:
    _check_renamed(arrays, rename)
    loaded: dict[str, str] = {}
    extra, wrong = [], {}
    for name, array in arrays.items():
        renamed = _renamed(name, rename)
        if renamed is None or name.endswith(_COUNTERS):
            continue
        weight = _weight(renamed, own)
        if weight is None:
            extra.append(name)
        elif weight in loaded or weight in wrong:
            raise ValueError(
                f"got {name} and another for {weight}, expected one: leave the other out by "
                f"rename={{{name!r}: None}}"
            )
        elif (shape := _as_own(weight, name, array).shape) != own[weight].shape:
            wrong[weight] = (shape, own[weight].shape)
        else:
            loaded[weight] = name
    missing = [weight for weight in own if weight not in loaded and weight not in wrong]
    statistics = [weight for weight in own if isinstance(own[weight], nnx.BatchStat)]
    if not any(weight in loaded or weight in wrong for weight in statistics):  # as in a run
        missing = [weight for weight in missing if weight not in statistics]
    return WeightMatch(loaded, tuple(missing), tuple(extra), wrong)


def _weight(name: str, own: Mapping[str, Any]) -> str | None:
    """Give the weight of the network that has this name, or that PyTorch names so."""
    if name in own:
        return name
    start, dot, last = name.rpartition(".")
    found = [f"{start}{dot}{own_last}" for own_last in _PYTORCH.get(last, ())]
    return next((weight for weight in found if weight in own), None)


def _as_own(weight: str, name: str, array: np.ndarray) -> np.ndarray:
    """Transpose a kernel of PyTorch."""
    if name.rpartition(".")[2] == "weight" and weight.rpartition(".")[2] == "kernel":
        return array.transpose(*range(2, array.ndim), 1, 0) if array.ndim > 1 else array
    return array


def _renamed(name: str, rename: Rename | None) -> str | None:
    if rename is None:
        return name
    if not isinstance(rename, Mapping):
        return rename(name)
    keys = [key for key in rename if name == key or name.startswith(f"{key}.")]
    if not keys:
        return name
    key = max(keys, key=len)
    new = rename[key]
    return None if new is None else (new + name[len(key) :]).removeprefix(".")


def _check_renamed(arrays: Arrays, rename: Rename | None) -> None:
    """Refuse a name of no weight of the source."""
    for key in rename if isinstance(rename, Mapping) else ():
        if not any(name == key or name.startswith(f"{key}.") for name in arrays):
            raise ValueError(
                f"got rename= of {key!r}, expected a name, or the first parts of one, of the "
                f"source: {few(list(arrays))}"
            )


def _refuse(match: WeightMatch, num_own: int, num_source: int) -> None:
    for weight, (got, expected) in match.wrong_shape.items():
        raise ValueError(
            f"got {weight} of shape {got}, expected {expected} ({len(match.wrong_shape)} of "
            f"{num_own} weights have another shape): build the network in the same size, or keep "
            "these new by strict=False"
        )
    if match.missing:
        hint = f"; the source has also {few(match.extra, 3)}" if match.extra else ""
        raise ValueError(
            f"got a source without {len(match.missing)} of the network's {num_own} weights "
            f"({few(match.missing, 3)}{hint}), expected all: give their names by rename=, or keep "
            "these new by strict=False"
        )
    if match.extra:
        raise ValueError(
            f"got {len(match.extra)} of {num_source} weights that the network has not "
            f"({few(match.extra, 3)}), expected none: leave them out by rename={{name: None}} or "
            "strict=False"
        )


def _refuse_values(arrays: Arrays) -> None:
    """Refuse integers, as of quantised weights, and numbers that are not finite."""
    for name, array in arrays.items():
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(
                f"got {name} of dtype {array.dtype}, expected floating-point numbers: convert "
                "quantised weights first"
            )
        if not np.isfinite(array).all():
            raise ValueError(f"got {name} with values that are not finite, expected numbers")


def few(names: Sequence[str], most: int = 8) -> str:
    """List the first of some names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
