"""The start of a run: arguments checked, chains placed on devices, first states."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bnn_ppl.data.streams.streams import Stream
from bnn_ppl.methods.method import METHODS, Method
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import check_number_of_rows
from bnn_ppl.model.rows.features import rows_with_features, stream_with_features
from bnn_ppl.runtime.checks import check_count
from bnn_ppl.runtime.machines.devices import by_chain, by_row, chain_mesh, everywhere, products_in
from bnn_ppl.runtime.progress import Show
from bnn_ppl.sampling.loop.minibatches import Minibatches, minibatches_for
from bnn_ppl.sampling.loop.rows_of_stream import mesh_of_all_rows, num_at_a_time, rows_of_stream
from bnn_ppl.sampling.setup.initial_states import batches_at_start, first_positions, first_states
from bnn_ppl.sampling.setup.numeric_arguments import Make, Numbers, numbers_to_run


class RunLength(NamedTuple):
    """Counts of a run, and the batches of its steps."""

    num_chains: int
    num_warmup: int
    num_draws: int
    thin: int  # steps from draw to draw
    minibatches: Minibatches


def length_of(
    posterior: Posterior,
    method: Method,
    *,
    num_chains: int = 1,
    num_warmup: int | None = None,
    num_draws: int | None = None,
    thin: int | None = None,
    batch_size: Any = None,
    bootstrap: bool = False,
) -> RunLength:
    """Fill in the method's own counts for those of :func:`bnn_ppl.run` that are not given."""
    given = {"num_warmup": num_warmup, "num_draws": num_draws, "thin": thin}
    counts = method.counts.filled(posterior.num_rows, given | {"batch_size": batch_size})
    minibatches = minibatches_for(method, counts.batch_size, bootstrap)
    return RunLength(num_chains, counts.num_warmup, counts.num_draws, counts.thin, minibatches)


if TYPE_CHECKING:
    import arviz

Tree = Any
Keep = Callable[[dict[str, jax.Array]], Tree]

_SHORT = 2048  # rows of a stream that may be a batch: as few as methods take all of by default


class Phase(NamedTuple):
    """Warm-up or draws: what each iteration does.

    Equal phases are compiled once, so what differs from run to run (keys, counts, data) is left
    to `RunSetup`.
    """

    name: str  # a field of Progress
    step: Any  # Method.step or Method.warmup
    thin: int  # steps per iteration
    draw: Callable[..., Tree] | None  # Method.draw; None in warm-up
    constrain: Any  # Posterior.constrain
    keep: Keep
    minibatches: Minibatches
    finish: Callable[[Tree], Tree] | None  # Method.finish, after the last iteration
    make: Make | None  # the posterior and the method anew, of numbers
    together: bool = False  # Method.together; in warm-up alone

    @property
    def to_trace(self) -> "Phase":
        """Leave out the functions that are made anew: equal runs then have equal phases."""
        if self.make is None:
            return self
        return self._replace(step=None, draw=None, constrain=None, finish=None)

    def at(self, numbers: Numbers) -> "Phase":
        """Give this phase of the posterior and the method of other numbers."""
        if self.make is None:
            return self
        posterior, method = self.make(numbers)
        phases = phases_of(method, posterior, self.thin, self.minibatches, None, self.make)
        (anew,) = (phase for phase in phases if phase.name == self.name)
        return anew._replace(keep=self.keep)


class RunSetup(NamedTuple):
    """A run before its first step."""

    mesh: Mesh
    data: Tree
    numbers: Numbers  # of the posterior
    chains: jax.Array  # their numbers, each on its device
    positions: Tree
    states: Tree
    phases: tuple[Phase, Phase]
    num: dict[str, int]  # iterations of each phase
    precision: str | None  # of the posterior
    keys: dict[str, tuple[jax.Array, jax.Array]]  # of each phase: for steps, for minibatches
    stream: Stream | None = None  # of minibatches, of whose rows `data` are examples


def prepare(
    key: jax.Array,
    posterior: Posterior,
    method: Method,
    lengths: RunLength,
    init: "arviz.InferenceData | Mapping[str, Any] | None" = None,
    keep: Keep | None = None,
    mesh: Mesh | None = None,
    data: Tree = None,
    progress: Show = False,
) -> RunSetup:
    """Check the arguments, which are those of :func:`run`, and start the chains.

    `data` are the rows as another method's run has them on the mesh; by default they are placed
    there, with the features of the fixed part of the model if the method can use these. `progress`
    is shown of features that are computed into a folder.
    """
    check_arguments(key=key, posterior=posterior, method=method)
    mesh, lengths = check_start(posterior, method, lengths, mesh)
    minibatches = lengths.minibatches
    stream = posterior.data if isinstance(posterior.data, Stream) else None
    if _accumulates(posterior, method):
        data, stream = rows_of_stream(posterior, method, minibatches, mesh, progress), None
    elif stream is not None and not method.raw_rows:
        stream = stream_with_features(posterior, progress) or stream
    if data is None:
        data = by_row(_rows(posterior, method, mesh.shape["data"], progress), mesh)
    _check_plates(posterior, minibatches.size, num_at_a_time(data))
    init_key, warmup_key, draws_key, batch_key = (
        everywhere(jax.random.fold_in(key, i), mesh) for i in range(4)
    )
    chains = by_chain(np.arange(lengths.num_chains), mesh)
    with products_in(posterior.precision):
        positions = first_positions(init_key, posterior, chains, data, mesh, init)
    numbers, make = numbers_to_run(posterior, method)
    prepared = RunSetup(
        mesh,
        data,
        everywhere([jnp.asarray(number) for number in numbers], mesh),
        chains,
        positions,
        states=None,
        phases=phases_of(method, posterior, int(lengths.thin), minibatches, keep, make),
        num={"warmup": int(lengths.num_warmup), "draws": int(lengths.num_draws)},
        precision=posterior.precision,
        keys={"warmup": (warmup_key, batch_key), "draws": (draws_key, batch_key)},
        stream=stream,
    )
    return with_states(prepared, key, posterior, method, positions)


def _rows(posterior: Posterior, method: Method, shards: int, progress: Show) -> Tree:
    """Give the rows that are placed on devices; of a stream, examples that they share evenly."""
    if not isinstance(posterior.data, Stream):
        if method.raw_rows:
            return posterior.data
        return rows_with_features(posterior, shards, progress)
    num_rows = max(1, len(posterior.examples[1]) // shards * shards)
    return jax.tree.map(lambda leaf: leaf[:num_rows], posterior.examples)


def _of_stream(stream: Stream, method: Method, minibatches: Minibatches) -> Minibatches:
    """Refuse a long stream as a batch; the rows of a short one are a batch by themselves."""
    name = name_of(method)
    if minibatches.size is None and stream.num_rows > _SHORT:
        raise ValueError(
            f"got batch_size='all' for {name} on a stream of {stream.num_rows} rows, expected "
            "minibatches: give batch_size=1024, or leave it out where the method takes some"
        )
    return minibatches._replace(size=minibatches.size or stream.num_rows)


def with_states(
    prepared: RunSetup, key: jax.Array, posterior: Posterior, method: Method, positions: Tree
) -> RunSetup:
    """Give a run the method's first states at `positions`."""
    mesh, num_warmup = prepared.mesh, prepared.num["warmup"]
    keys = everywhere(jax.random.fold_in(key, 0), mesh), prepared.keys["warmup"][1]
    batches = batches_at_start(posterior, prepared.phases[1].minibatches)
    with products_in(posterior.precision):
        states = first_states(
            posterior,
            method,
            prepared.chains,
            positions,
            keys,
            prepared.data,
            batches,
            num_warmup,
            mesh,
            prepared.numbers,
            prepared.phases[1].make,
        )
    return prepared._replace(positions=positions, states=states)


def drawn_anew(key: jax.Array, prepared: RunSetup, count: int) -> RunSetup:
    """Give the draws other keys, after the old ones' draws were damaged `count` times."""
    own = jax.random.fold_in(jax.random.fold_in(key, 2), count)
    of_draws = everywhere(own, prepared.mesh), prepared.keys["draws"][1]
    return prepared._replace(keys=prepared.keys | {"draws": of_draws})


def phases_of(
    method: Method,
    posterior: Posterior,
    thin: int,
    minibatches: Minibatches,
    keep: Keep | None,
    make: Make | None,
) -> tuple[Phase, Phase]:
    """Give warm-up and draws of a method."""
    # A new partial is equal to no other: a user's keep may read values that have changed since the
    # last run, so it is traced anew.
    kept = dict if keep is None else partial(keep)
    draws = Phase(
        "draws",
        method.step,
        thin,
        method.draw,
        posterior.constrain,
        kept,
        minibatches,
        finish=None,
        make=make,
    )
    warmup = draws._replace(
        name="warmup",
        step=method.warmup or method.step,
        thin=1,
        draw=None,
        keep=dict,
        finish=method.finish,
        together=method.together,
    )
    return warmup, draws


def name_of(method: Method) -> str:
    """Give the method's name; a user's own may have none."""
    return str(method.settings.get("method", "this method"))


# --- checks


def check_start(
    posterior: Posterior, method: Method, lengths: RunLength, mesh: Mesh | None
) -> tuple[Mesh, RunLength]:
    """Refuse arguments of :func:`run` that do not fit; give the mesh, and a stream's batches."""
    num_chains, num_warmup, num_draws, thin, minibatches = lengths
    _check_counts(num_chains=num_chains, num_draws=num_draws, num_warmup=num_warmup, thin=thin)
    _refuse_repeated_draws(method, num_draws, thin)
    of_all_rows = _accumulates(posterior, method)
    if of_all_rows:
        mesh = mesh_of_all_rows(num_chains, mesh, method)
    mesh = chain_mesh(num_chains, mesh)
    if isinstance(posterior.data, Stream) and not of_all_rows:
        minibatches = _of_stream(posterior.data, method, minibatches)
    minibatches.check(posterior.num_rows, mesh.shape["data"])
    _check_method(method, posterior, num_warmup, minibatches)
    _check_batch_statistics(posterior, minibatches.size)
    return mesh, lengths._replace(minibatches=minibatches)


def _accumulates(posterior: Posterior, method: Method) -> bool:
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
    if method.finish is not None and not num_warmup:
        raise ValueError(
            f"{name} fits a distribution during warm-up: set num_warmup > 0 (got 0); its draws "
            "need no steps (thin=0)"
        )
    if method.needs_warmup and not num_warmup:
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
    if posterior.batch_statistics is not None and size == 1:
        raise ValueError(
            f"got batch_size=1 with the BatchNorm {posterior.batch_statistics.layers[0]} in train "
            "mode, expected at least 2 rows, whose mean and variance it takes: use a larger one"
        )


def _check_plates(posterior: Posterior, size: int | None, num_padded: int) -> None:
    """Refuse a model for a fixed number of rows where batches, or rows and padding, are others."""
    rows = size or num_padded
    if rows == posterior.num_rows:  # nothing to trace
        return
    got = f"batch_size={size}" if size else f"{num_padded} rows, padded for the devices,"
    position = jax.eval_shape(posterior.init, jax.random.key(0))
    check_number_of_rows(posterior.log_likelihood, position, posterior.examples, rows, got)
