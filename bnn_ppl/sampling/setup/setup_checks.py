"""Arguments of a run that do not fit its posterior, its method or the devices."""

import math
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bnn_ppl.data.streams.streams import Stream
from bnn_ppl.methods.method import METHODS, Method
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import check_number_of_rows, whole_batches
from bnn_ppl.runtime.checks import check_count
from bnn_ppl.runtime.machines.devices import chain_mesh
from bnn_ppl.sampling.loop.minibatches import Minibatches
from bnn_ppl.sampling.loop.rows_of_stream import mesh_of_all_rows
from bnn_ppl.sampling.setup.run_spec import RunLength, RunSpec

Tree = Any

_SHORT = 2048  # rows of a stream that may be a batch: as few as methods take all of by default


def check_setup(
    posterior: Posterior, method: Method, length: RunLength, spec: RunSpec
) -> tuple[Mesh, RunLength]:
    """Refuse arguments of :func:`run` that do not fit; give the mesh, and batches that fit it."""
    num_chains, num_warmup, num_draws, thin, minibatches = length
    _check_counts(num_chains=num_chains, num_draws=num_draws, num_warmup=num_warmup, thin=thin)
    _refuse_repeated_draws(method, num_draws, thin)
    _refuse_repeated_particles(method, num_draws, thin)
    mesh, of_all_rows = spec.mesh, accumulates(posterior, method)
    if of_all_rows:
        mesh = mesh_of_all_rows(num_chains, mesh, method)
    mesh = chain_mesh(num_chains, mesh)
    if isinstance(posterior.data, Stream) and not of_all_rows:
        minibatches = _of_stream(posterior.data, method, minibatches)
    if spec.batch_size is None:  # nobody chose the size
        minibatches = minibatches.shared_by(mesh.shape["data"])
    minibatches.check(posterior.num_rows, mesh.shape["data"])
    _check_method(method, posterior, num_warmup, minibatches)
    _check_batch_statistics(posterior, minibatches.size)
    return mesh, length._replace(minibatches=minibatches)


def _refuse_repeated_particles(method: Method, num_draws: int, thin: int) -> None:
    """Refuse steps between draws by which particles, which take turns, would be drawn again."""
    count = method.settings.get("num_particles")
    if (
        isinstance(count, int | np.integer)
        and thin > 1
        and num_draws * math.gcd(thin, count) > count
    ):
        raise ValueError(
            f"got thin={thin} and {num_draws} draws for {count} particles, which take turns, "
            "expected each once: leave thin (or --num-epochs) out, or draw fewer"
        )


def accumulates(posterior: Posterior, method: Method) -> bool:
    """Whether values and gradients are sums over the chunks of a stream."""
    return isinstance(posterior.data, Stream) and method.all_rows


def check_built_with(posterior: Posterior, method: Method) -> None:
    """Refuse a method that was built with another posterior."""
    name = name_of(method)
    if method.logdensity not in (None, posterior.logdensity):
        raise ValueError(
            f"got {name} built with another posterior, expected one built with the posterior given "
            f"to run: {name}(posterior, ...)"
        )


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        check_count(name, count, least=1 if name in ("num_chains", "num_draws") else 0)


def _refuse_repeated_draws(method: Method, num_draws: int, thin: int) -> None:
    known = METHODS.get(method.settings.get("method", ""))  # a user's own may not be
    if known is not None and known.kind == "sampler" and num_draws > 1 and not thin:
        raise ValueError(
            f"got thin=0 for {known.name}, expected at least 1: without steps between them, all "
            "draws of a chain are the same"
        )


def _check_method(
    method: Method, posterior: Posterior, num_warmup: int, minibatches: Minibatches
) -> None:
    check_built_with(posterior, method)
    name = name_of(method)
    if method.tuning.finish is not None and not num_warmup:
        raise ValueError(
            f"{name} fits a distribution during warm-up: set num_warmup > 0 (got 0); its draws "
            "need no steps (thin=0)"
        )
    if method.tuning.needs_warmup and not num_warmup:
        raise ValueError(
            f"{name} tunes its steps during warm-up, without which its draws are wrong: set "
            "num_warmup > 0 (got 0)"
        )
    if method.all_rows and minibatches.size is not None and minibatches.size < posterior.num_rows:
        raise ValueError(
            f"got batch_size={minibatches.size} for {name}, whose steps compare the log-densities "
            "of all rows: leave batch_size out, or use sgld or sghmc; microbatch= saves memory"
        )


def _check_batch_statistics(posterior: Posterior, size: int | None) -> None:
    statistics = posterior.rows.batch_statistics
    if statistics is not None and size == 1:
        raise ValueError(
            f"got batch_size=1 with the BatchNorm {statistics.layers[0]} in train "
            "mode, expected at least 2 rows, whose mean and variance it takes: use a larger one"
        )


def check_plates(posterior: Posterior, size: int | None, num_padded: int) -> None:
    """Refuse a model for a fixed number of rows where batches, or rows and padding, are others."""
    rows = size or num_padded
    if rows == posterior.num_rows:  # nothing to trace
        return
    got = f"batch_size={size}" if size else f"{num_padded} rows, padded for the devices,"
    if posterior.density.is_whole:
        raise whole_batches(got)
    position = jax.eval_shape(posterior.init, jax.random.key(0))
    check_number_of_rows(posterior.log_likelihood, position, posterior.rows.examples, rows, got)


def _of_stream(stream: Stream, method: Method, minibatches: Minibatches) -> Minibatches:
    """Refuse a long stream as a batch; the rows of a short one are a batch by themselves."""
    name = name_of(method)
    if minibatches.size is None and stream.num_rows > _SHORT:
        raise ValueError(
            f"got batch_size='all' for {name} on a stream of {stream.num_rows} rows, expected "
            "minibatches: give batch_size=1024, or leave it out where the method takes some"
        )
    return minibatches._replace(size=minibatches.size or stream.num_rows)


def name_of(method: Method) -> str:
    """Give the method's name; a user's own may have none."""
    return str(method.settings.get("method", "this method"))
