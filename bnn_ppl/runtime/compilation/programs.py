"""Compiled programs found again: in this process by their text, later by the cache of JAX."""

import ctypes
import hashlib
import os
import platform
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import jax
from jax.experimental.compilation_cache import compilation_cache

from bnn_ppl.runtime.files import cache_folder, check_can_be_made
from bnn_ppl.runtime.machines.devices import is_accelerator

_NUM_KEPT = 32  # compiled programs; a run has four to seven
_SETTINGS = ("jax_default_device", "jax_disable_most_optimizations", "jax_optimization_level")

_FOLDER = "jax_compilation_cache_dir"
_UNOPTIMISED = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}

_kept: OrderedDict[tuple, jax.stages.Compiled] = OrderedDict()
# Freed with their traces, which the functions traced keep.
_of_trace: WeakKeyDictionary[Any, dict[tuple, jax.stages.Compiled]] = WeakKeyDictionary()


def compiled(
    traced: jax.stages.Traced,  # of a function made by `to_compile`
    args: tuple,
    announce: Callable[[], None] = lambda: None,
    *,
    runs_once: bool = False,
) -> jax.stages.Compiled:
    """Compile what was traced with `args`, or take what a program of the same text has compiled.

    `announce` is called before compiling. A program that runs once is compiled for CPUs without
    LLVM's optimisations, the initial weights of a ResNet-20 in 4 s instead of 31, and by XLA's
    older emitters, which take half the time.

    JAX finds a program again by the function that was traced. The functions of two posteriors
    differ, but not the text of their programs if the posteriors differ only in their data and in
    numbers that are arguments; and tracing takes a tenth of the time of compiling.
    """
    settings = tuple(jax.config.values.get(name) for name in _SETTINGS)
    own = _of_trace.setdefault(traced.jaxpr, {})
    options = _UNOPTIMISED if runs_once and not is_accelerator() else {}
    # JAX gives the same trace to all that is made of one function, whatever memory it may reuse.
    donated = tuple(info.donated for info in jax.tree.leaves(traced.args_info))
    place = _types_and_places(args), settings, bool(options), donated
    if place not in own:
        own[place] = _of_text(traced, place, announce, options)
    return own[place]


def _of_text(
    traced: jax.stages.Traced,
    place: tuple,
    announce: Callable[[], None],
    options: dict[str, Any],
) -> jax.stages.Compiled:
    lowered = traced.lower()
    text = lowered.as_text()
    # A callback's text does not name its function, and where JAX hands over enclosed arrays as
    # arguments, it lacks their values; but the same trace has the same ones.
    lacks = "callback" in text or "jax.const" in text
    digest = traced.jaxpr if lacks else hashlib.sha256(text.encode()).digest()
    # The text lacks devices.
    key = digest, lowered.in_tree, lowered.out_tree, place
    program = _kept.pop(key, None)
    if program is None:
        announce()
        _keep_by_default()
        program = lowered.compile(compiler_options=options)
        _return_freed_memory()
    _kept[key] = program  # as the last one used
    while len(_kept) > _NUM_KEPT:
        _kept.popitem(last=False)
    return program


def _return_freed_memory() -> None:
    """Give the system what compiling has freed, of which glibc keeps 100 MB and more."""
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def to_compile(function: Callable, **options: Any) -> jax.stages.Wrapped:
    """Give ``jax.jit(function, **options)`` for :func:`compiled`, with all arguments in its text.

    JAX leaves out those that are not used. Functions that use the first number of two, or the
    second, would have the same text.
    """
    return jax.jit(function, keep_unused=True, **options)


def compiled_once(function: Callable, *, runs_once: bool = False, **options: Any) -> Callable:
    """Compile as ``jax.jit(function, **options)`` does, by :func:`compiled`."""
    jitted = to_compile(function, **options)

    def call(*args: Any) -> Any:
        traced = jitted.trace(*args)  # once for the same shapes
        return compiled(traced, args, runs_once=runs_once)(*args)

    return call


def _types_and_places(args: tuple) -> tuple:
    leaves = jax.tree.leaves(args)
    return tuple((jax.typeof(leaf), getattr(leaf, "sharding", None)) for leaf in leaves)


def cache_compiled_programs(folder: str | Path | None = None) -> None:
    """Keep all compiled programs on disk, so that later processes start without compiling.

    By default the package turns JAX's persistent compilation cache on when it first compiles, and
    JAX keeps programs that took at least a second to compile. After this function, as in
    ``bnn-ppl``, it keeps all that the process compiles. The folder grows unless
    ``jax_compilation_cache_max_size`` is set, and may be deleted at any time.
    ``jax.config.update("jax_enable_compilation_cache", False)`` turns the cache off.

    Parameters
    ----------
    folder
        Where to keep them. By default where JAX is told (``JAX_COMPILATION_CACHE_DIR``), else in a
        folder for each machine within ``$XDG_CACHE_HOME/bnn_ppl`` or ``~/.cache/bnn_ppl``: what is
        compiled for a processor need not run on another, and home folders may be shared. Without a
        home folder nothing is kept.
    """
    if folder is None:
        folder = _usual_folder()
        if jax.config.values[_FOLDER] not in (None, str(folder)):
            return
    if folder is None:
        return
    _keep_in(folder)
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


@cache
def _keep_by_default() -> None:
    """Turn JAX's cache on if no folder is set and the usual one can be written.

    Not for several processes: only the first of them writes, and the folder is of one machine.
    """
    folder = _usual_folder()
    if folder is None or jax.config.values[_FOLDER] is not None or jax.process_count() > 1:
        return
    with suppress(OSError):
        check_can_be_made(folder / "any")
        _keep_in(folder)


def _usual_folder() -> Path | None:
    with suppress(RuntimeError):  # a user without a home
        return cache_folder() / platform.node()
    return None


def _keep_in(folder: str | Path) -> None:
    jax.config.update(_FOLDER, str(folder))
    compilation_cache.reset_cache()  # JAX looks for the folder once, at its first compilation
