"""A run before its first step: its chains on their devices, and what each iteration does."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from bnn_ppl.data.streams.streams import Stream
from bnn_ppl.methods.method import Method
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.machines.devices import everywhere
from bnn_ppl.sampling.loop.minibatches import Minibatches
from bnn_ppl.sampling.setup.numeric_arguments import Make, Numbers
from bnn_ppl.sampling.setup.run_spec import Keep, Recording, Target
from bnn_ppl.storage.recorder import Progress, Recorder

Tree = Any


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
    keep: Recording
    minibatches: Minibatches
    finish: Callable[[Tree], Tree] | None  # of Tuning, after the last iteration
    make: Make | None  # the posterior and the method anew, of numbers
    together: bool = False  # of Tuning; in warm-up alone

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


class PhaseInputs(NamedTuple):
    """What the program of a phase takes of its run."""

    keys: tuple[jax.Array, jax.Array]  # for steps, for minibatches
    data: Tree
    numbers: Numbers


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

    def inputs(self, phase: Phase) -> PhaseInputs:
        """Give what the program of a phase takes besides chains, states and counts."""
        return PhaseInputs(self.keys[phase.name], self.data, self.numbers)


def _recording(posterior: Posterior, keep: Keep | None) -> Recording:
    """Give what is recorded of the values of a draw."""
    if keep is None:
        return dict
    # A new partial is equal to no other: a user's keep may read values that have changed since the
    # last run, so it is traced anew.
    if callable(keep):
        return partial(keep)
    names = (keep,) if isinstance(keep, str) else tuple(keep)
    return partial(_named, posterior.sites.deterministic, names)


def is_function(keep: Recording) -> bool:
    """Whether what is recorded is given by a user's function, rather than by names of sites."""
    return isinstance(keep, partial) and keep.func is not _named


def _named(
    deterministic: Callable[[Any], Any], names: tuple[str, ...], values: dict[str, Any]
) -> dict[str, Any]:
    known = values | deterministic(values)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"got keep= with {', '.join(map(str, unknown))}, expected names of sites, "
            f"{', '.join(known)}, or a function of their values"
        )
    return {name: known[name] for name in names}


def phases_of(
    method: Method,
    posterior: Posterior,
    thin: int,
    minibatches: Minibatches,
    keep: Keep | None,
    make: Make | None,
) -> tuple[Phase, Phase]:
    """Give warm-up and draws of a method."""
    draws = Phase(
        "draws",
        method.step,
        thin,
        method.draw,
        posterior.constrain,
        _recording(posterior, keep),
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
        finish=method.tuning.finish,
        together=method.tuning.together,
    )
    return warmup, draws


def drawn_anew(key: jax.Array, setup: RunSetup, count: int) -> RunSetup:
    """Give the draws other keys, after the old ones' draws were damaged `count` times."""
    own = jax.random.fold_in(jax.random.fold_in(key, 2), count)
    of_draws = everywhere(own, setup.mesh), setup.keys["draws"][1]
    return setup._replace(keys=setup.keys | {"draws": of_draws})


class RunState(NamedTuple):
    """A run of a method, and how far it is."""

    key: jax.Array
    posterior: Posterior
    method: Method
    setup: RunSetup
    recorder: Recorder
    target: Target | None
    done: Progress
    from_fit: bool = False  # of its initial method, or given as `init`
    warm_starts: bool = False  # its initial method comes first, and has not ended

    @property
    def has_begun(self) -> bool:
        """Whether it has taken a step of its own."""
        return self.done.warmup + self.done.draws > 0

    def at(self, states: Tree, done: Progress) -> "RunState":
        """Give the run with its chains in these states."""
        return self._replace(setup=self.setup._replace(states=states), done=done)
