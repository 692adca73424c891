"""The chains of a run placed on its devices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bnn_ppl.data.streams.streams import Stream
from bnn_ppl.methods.method import Method
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.features import rows_with_features, stream_with_features
from bnn_ppl.runtime.machines.devices import by_chain, by_row, everywhere, products_in
from bnn_ppl.runtime.progress import Show
from bnn_ppl.sampling.loop.rows_of_stream import num_at_a_time, rows_of_stream
from bnn_ppl.sampling.setup.initial_states import first_positions, given_positions, with_states
from bnn_ppl.sampling.setup.numeric_arguments import numbers_to_run
from bnn_ppl.sampling.setup.run_setup import RunSetup, phases_of
from bnn_ppl.sampling.setup.run_spec import RunLength, RunSpec
from bnn_ppl.sampling.setup.setup_checks import accumulates, check_plates, check_setup

Tree = Any

_DEFAULTS = RunSpec()


def prepare(
    key: jax.Array,
    posterior: Posterior,
    method: Method,
    length: RunLength,
    spec: RunSpec = _DEFAULTS,
    data: Tree = None,
    progress: Show = False,
) -> RunSetup:
    """Check the arguments, and start the chains on the mesh, and where, that `spec` gives.

    `data` are the rows as another method's run has them on the mesh; by default they are placed
    there, with the features of the fixed part of the model if the method can use these. `progress`
    is shown of features that are computed into a folder.
    """
    check_arguments(key=key, posterior=posterior, method=method)
    mesh, length = check_setup(posterior, method, length, spec)
    minibatches = length.minibatches
    stream = posterior.data if isinstance(posterior.data, Stream) else None
    if accumulates(posterior, method):
        data, stream = rows_of_stream(posterior, method, minibatches, mesh, progress), None
    elif stream is not None and not method.batching.raw_rows:
        stream = stream_with_features(posterior, progress) or stream
    if data is None:
        data = by_row(_rows(posterior, method, mesh.shape["data"], progress), mesh)
    check_plates(posterior, minibatches.size, num_at_a_time(data))
    init_key, warmup_key, draws_key, batch_key = (
        everywhere(jax.random.fold_in(key, i), mesh) for i in range(4)
    )
    chains = by_chain(np.arange(length.num_chains), mesh)
    of_posterior, make = numbers_to_run(posterior, method)
    numbers = everywhere([jnp.asarray(number) for number in of_posterior], mesh)
    if spec.init is None:
        with products_in(posterior.density.precision):
            positions = first_positions(init_key, posterior, chains, data, mesh, numbers)
    else:
        positions = given_positions(spec.init, posterior, length.num_chains, mesh)
    setup = RunSetup(
        mesh,
        data,
        numbers,
        chains,
        positions,
        states=None,
        phases=phases_of(method, posterior, int(length.thin), minibatches, spec.keep, make),
        num={"warmup": int(length.num_warmup), "draws": int(length.num_draws)},
        precision=posterior.density.precision,
        keys={"warmup": (warmup_key, batch_key), "draws": (draws_key, batch_key)},
        stream=stream,
    )
    return with_states(setup, key, posterior, method, positions)


def _rows(posterior: Posterior, method: Method, shards: int, progress: Show) -> Tree:
    """Give the rows that are placed on devices; of a stream, examples that they share evenly."""
    if not isinstance(posterior.data, Stream):
        if method.batching.raw_rows:
            return posterior.data
        return rows_with_features(posterior, shards, progress)
    num_rows = max(1, len(posterior.rows.examples[1]) // shards * shards)
    return jax.tree.map(lambda leaf: leaf[:num_rows], posterior.rows.examples)
