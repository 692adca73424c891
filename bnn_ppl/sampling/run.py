"""Run a method: warm-up, then draws, over chains and devices, recorded as they come."""

import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh

from bnn_ppl.methods.method import Method
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.devices import chain_sharding, matmul_precision, to_host
from bnn_ppl.runtime.processes import agreed
from bnn_ppl.runtime.progress import reporting
from bnn_ppl.sampling.compiled_loop import one_record
from bnn_ppl.sampling.loop import advance, interrupts, num_steps
from bnn_ppl.sampling.minibatches import Minibatches
from bnn_ppl.sampling.settings import attributes, settings_to_resume
from bnn_ppl.sampling.start import Keep, prepare
from bnn_ppl.storage import checkpoint
from bnn_ppl.storage.recorder import Folder, Layout, Memory, Progress

if TYPE_CHECKING:
    import arviz

Tree = Any


def run(
    key: jax.Array,
    posterior: Posterior,
    method: Method,
    *,
    num_chains: int = 1,
    num_warmup: int = 0,
    num_draws: int = 1,
    thin: int = 1,
    batch_size: int | None = None,
    bootstrap: bool = False,
    init: "arviz.InferenceData | None" = None,
    keep: Keep | None = None,
    folder: str | Path | None = None,
    mesh: Mesh | None = None,
    progress: bool | Literal["json"] = True,
) -> "arviz.InferenceData":
    """Run a method: `num_warmup` warm-up steps, then `num_draws` times (`thin` steps, one draw).

    Chains run side by side: over the devices, and on each by ``vmap`` on an accelerator, one after
    the other on a CPU. There ``jax.config.update("jax_num_cpu_devices", n)``, before JAX starts,
    gives each core a device. Ctrl-C ends the run after the current draws and keeps all of them.

    Parameters
    ----------
    key
        From ``jax.random.key``. Equal keys give equal draws.
    posterior
        From :func:`bnn_ppl.condition`.
    method
        From :func:`bnn_ppl.hmc` or another method, built with this posterior.
    num_chains
        Independent chains.
    num_warmup
        Warm-up steps of each chain, which adapt and are discarded.
    num_draws
        Draws kept from each chain.
    thin
        Steps between saved draws; 0 samples a fitted distribution directly.
    batch_size
        Rows per step, drawn on the device: an independent permutation for each chain and epoch;
        rows that do not fill a batch sit out the epoch. By default all rows, as samplers with a
        Metropolis test and mclmc need.
    bootstrap
        Give each chain a bootstrap sample of the rows: as many, drawn with replacement.
    init
        Draws of another run to start from: the last draw of each chain if it has as many chains,
        otherwise draws spread evenly over it. By default the networks' own initialisers.
    keep
        What to record for each draw: a function of the constrained values (a dict by site name)
        that returns a dict of arrays. By default all sites.
    folder
        Where to store the draws, as Zarr, as they come; memory does not grow with their number.
        :func:`bnn_ppl.diagnostics.load` opens them at any moment. The same call with the same
        folder resumes a run that was stopped or killed; the draws match an uninterrupted run, bit
        for bit on the same devices. A larger `num_draws` extends it.
    mesh
        Devices as a ``jax.sharding.Mesh`` with the axes ("chain", "data"): rows of the data are
        spread over the second, padded where they do not divide. By default as many of
        ``jax.devices()`` as share the chains evenly; on accelerators the others share the rows.
    progress
        True for a bar with the time left, or plain lines where there is no terminal; "json" for
        lines of JSON on standard error; False for silence.

    Returns
    -------
    arviz.InferenceData
        Groups ``posterior`` (chain, draw, ...), ``sample_stats`` under ArviZ's names,
        ``observed_data`` and, for a method that fits a distribution, ``fitted``, its parameters
        (chain, ...); attributes say how it was run. With `folder`, values are read when used.

    Raises
    ------
    ValueError
        If a count is out of range, `method` was built with another posterior or cannot use
        minibatches, `init` lacks a site, the mesh does not fit, the log-density is not finite at
        the start, or `folder` holds a damaged run or one with other settings (the error names the
        first that differs).
    TypeError
        If key, posterior or method is of another type.
    FileExistsError
        If `folder` holds something else.
    OSError
        If the folder cannot be written. What it held before stays and can be resumed.

    Notes
    -----
    A further run of the same method and posterior compiles nothing, whatever its counts, unless
    chains, devices or shapes differ or `keep` is given. For this the last four compiled loops are
    cached (a warm-up and its draws have one each), and with them the data of their posteriors.
    """
    if folder is not None:
        checkpoint.read_header(folder)  # refuses a folder that is not a run's before any work
    counts = num_chains, num_warmup, num_draws, thin
    minibatches = Minibatches(batch_size, bootstrap)
    prepared = prepare(key, posterior, method, *counts, minibatches, init, keep, mesh)
    layout = Layout(
        one_record(prepared),
        int(num_chains),
        int(num_draws),
        np.asarray(posterior.data[1]),
        attributes(key, posterior, method, prepared),
    )
    recorder: Memory | Folder
    if folder is None:
        recorder, done = Memory(layout), Progress()
    else:
        settings = settings_to_resume(posterior, method, prepared, layout)
        recorder = Folder(Path(folder), layout, settings, prepared.mesh)
        states, done = recorder.resume(prepared.states)
        prepared = prepared._replace(states=states)
    total, before = num_steps(num_warmup, num_draws, thin), num_steps(done.warmup, done.draws, thin)
    with interrupts() as interrupted, reporting(progress, total, before) as report:
        states, done = advance(prepared, done, recorder, report, interrupted)
    if agreed(interrupted()) and done.draws < num_draws:
        recorder.stopped(done)
    if progress is True:
        _warn_of_divergences(done, layout.num_chains)
    fitted = _fitted(method, states, prepared.mesh) if done.warmup == num_warmup else {}
    return recorder.result(done, fitted)


def _warn_of_divergences(done: Progress, num_chains: int) -> None:
    if done.divergences and jax.process_index() == 0:
        print(
            f"divergences in {done.divergences} of {done.draws * num_chains} draws, which may bias "
            "every estimate: take shorter steps, or keep scales away from 0",
            file=sys.stderr,
        )


def _fitted(method: Method, states: Tree, mesh: Mesh) -> dict[str, np.ndarray]:
    """Give the parameters of this process's fitted distributions; nothing for a sampler."""
    if method.fitted is None:
        return {}
    with jax.default_matmul_precision(matmul_precision()):
        return to_host(_parameters(method.fitted, mesh)(states))


@lru_cache(maxsize=2)
def _parameters(fitted: Callable, mesh: Mesh) -> Callable:
    return jax.jit(jax.vmap(fitted), out_shardings=chain_sharding(mesh))
