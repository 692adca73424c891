"""A run of shapes: its programs can be compiled for machines that are not here."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bnn_ppl.methods.method import Method
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.features import worthwhile_part
from bnn_ppl.runtime.machines.devices import (
    chain_sharding,
    copied_sharding,
    over_chains,
    products_in,
    shapes_by_row,
    shapes_on,
)
from bnn_ppl.sampling.setup.initial_states import (
    batches_at_start,
    functions_at_start,
    states_over_chains,
)
from bnn_ppl.sampling.setup.numeric_arguments import numbers_to_run
from bnn_ppl.sampling.setup.run_setup import RunSetup, phases_of
from bnn_ppl.sampling.setup.run_spec import RunLength


def setup_of_shapes(
    posterior: Posterior, method: Method, length: RunLength, mesh: Mesh
) -> RunSetup:
    """Prepare a run as :func:`prepare` does, of shapes and shardings in place of arrays.

    The devices of `mesh` need not be here: those of a topology will do. Nothing is computed.
    """
    num_chains, num_warmup, num_draws, thin, minibatches = length
    numbers, make = numbers_to_run(posterior, method)
    phases = phases_of(method, posterior, thin, minibatches, None, make)
    by_chain, copied = chain_sharding(mesh), copied_sharding(mesh)
    key = shapes_on(jax.eval_shape(lambda: jax.random.key(0)), copied)
    chains: Any = jax.ShapeDtypeStruct((num_chains,), jnp.result_type(int), sharding=by_chain)
    part = None if method.batching.raw_rows else worthwhile_part(posterior, mesh.shape["data"])
    x, y = posterior.rows.examples
    data = shapes_by_row((x if part is None else part.of_shapes(), y), mesh)
    numbers = shapes_on([jnp.asarray(number) for number in numbers], copied)

    def position(chain: jax.Array, key: jax.Array, data: object) -> object:
        return posterior.init(jax.random.fold_in(key, chain), data)

    first = functions_at_start(posterior, method)
    states_at = states_over_chains(first, make, batches_at_start(posterior, minibatches), mesh)
    with products_in(posterior.density.precision):
        positions = jax.eval_shape(over_chains(position, mesh, 1), chains, key, data)
        positions = shapes_on(positions, by_chain)
        states, _ = jax.eval_shape(
            states_at, chains, positions, (key, key), data, jnp.asarray(num_warmup), numbers
        )
    return RunSetup(
        mesh,
        data,
        numbers,
        chains,
        positions,
        shapes_on(states, by_chain),
        phases,
        num={"warmup": num_warmup, "draws": num_draws},
        precision=posterior.density.precision,
        keys={"warmup": (key, key), "draws": (key, key)},
    )
