"""Runs whose every step sees all rows of a stream."""

from typing import Any

import jax
from jax.sharding import Mesh

from bnn_ppl.methods.method import Method
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import refuse_nonfinite_chunks
from bnn_ppl.model.rows.features import stream_with_features
from bnn_ppl.model.rows.microbatch import fitting_rows
from bnn_ppl.model.rows.streamed_rows import StreamChunks, StreamedRows
from bnn_ppl.runtime.machines.devices import chain_mesh, everywhere
from bnn_ppl.runtime.progress import Show
from bnn_ppl.sampling.loop.minibatches import Minibatches


def mesh_of_all_rows(num_chains: int, mesh: Mesh | None, method: Method) -> Mesh:
    """Give a mesh whose devices do not share rows, as each chain reads the chunks for itself.

    Raises
    ------
    ValueError
        If that given has devices that share rows, or there are more processes than chains.
    """
    name, num_processes = method.settings.get("method", "this method"), jax.process_count()
    if num_chains < num_processes:
        raise ValueError(
            f"got num_chains={num_chains} for {name} on a stream and {num_processes} processes, "
            f"expected a chain for each: use num_chains={num_processes}, or sgld or sghmc, whose "
            "minibatches processes share"
        )
    if mesh is None:
        mesh = chain_mesh(num_chains)
        return Mesh(mesh.devices[:, :1], mesh.axis_names, axis_types=mesh.axis_types)
    shards = mesh.shape.get("data", 1)
    if shards > 1:
        raise ValueError(
            f"got a mesh of {shards} devices that share rows for {name} on a stream, expected one "
            "device for each row of chains: use a mesh of shape (chains, 1)"
        )
    return mesh


def rows_of_stream(
    posterior: Posterior,
    method: Method,
    minibatches: Minibatches,
    mesh: Mesh,
    progress: Show = False,
) -> StreamedRows:
    """Give what stands for all rows on the devices; refuse rows that are not finite.

    Its chunks have the features of the fixed part in place of x, if the posterior stores these.

    Raises
    ------
    ValueError
        If batches of some rows are asked for, or a row has NaN or infinite values.
    """
    rows = posterior.rows.full_batch
    assert isinstance(rows, StreamedRows)
    if minibatches.bootstrap or minibatches.subsample < 1:
        name = method.settings.get("method", "this method")
        raise ValueError(
            f"got a sample of the rows for {name} on a stream, expected all of them: leave "
            "bootstrap and subsample out, or use minibatches, as of sgld"
        )
    features = None if method.batching.raw_rows else stream_with_features(posterior, progress)
    if features is None:
        refuse_nonfinite_chunks(rows.chunks)
    else:  # of finite rows: they were read when these were computed
        most = _fitting_rows(posterior, features.examples)
        rows = rows._replace(chunks=StreamChunks(features, features.examples, most))
    return everywhere(rows, mesh)


def _fitting_rows(posterior: Posterior, examples: Any) -> int | None:
    def by_row(data: Any, position: Any) -> jax.Array:
        return posterior.log_likelihood(position, data)

    return fitting_rows(by_row, examples, jax.eval_shape(posterior.init, jax.random.key(0)))


def num_at_a_time(data: Any) -> int:
    """Give the number of rows, and of padding, that a model is evaluated on at a time."""
    return data.chunks.size if isinstance(data, StreamedRows) else len(data[1])
