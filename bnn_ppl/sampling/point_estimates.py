"""Points of a partly Bayesian network: optimised together with all other sites, then held."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from bnn_ppl.methods.ensembles.descent import descent
from bnn_ppl.methods.method import Method, before_points
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.recipe import Recipe, recipe_of
from bnn_ppl.runtime.interrupts import interrupts
from bnn_ppl.runtime.machines.devices import products_in, to_host
from bnn_ppl.runtime.progress import Report, reporting, waiting
from bnn_ppl.sampling.convergence_target import pressed_or_late
from bnn_ppl.sampling.loop.compiled_loop import one_record
from bnn_ppl.sampling.loop.loop import advance
from bnn_ppl.sampling.loop.minibatches import Minibatches
from bnn_ppl.sampling.run_metadata import settings_to_resume
from bnn_ppl.sampling.setup.run_setup import RunLength, RunSetup, check_built_with, prepare
from bnn_ppl.sampling.setup.warm_start import MOST_STEPS, Interruption
from bnn_ppl.storage import checkpoint
from bnn_ppl.storage.phase_state import NullRecorder, place_before
from bnn_ppl.storage.recorder import Layout
from bnn_ppl.storage.zarr_reader import read_constants

_OWN_KEY = 6  # of the key given; `run` has those below


def fit_points(
    key: jax.Array,
    posterior: Posterior,
    *,
    folder: str | Path | None = None,
    progress: bool | Literal["json"] = True,
) -> Posterior:
    """Fit the points of a partly Bayesian network, and give the posterior of its other sites.

    All sites together are moved to a mode of the (tempered) log posterior density, under the prior
    of the points (a flat one, if they have none), by :func:`bnn_ppl.descent`: one chain, at a rate
    that it finds, until the objective has stopped improving. The points are then held there; the
    others are random again, and chains start them anew (Sharma et al., 2023, section 3; Daxberger
    et al., 2021).
    :func:`bnn_ppl.run` does this by itself, with the same result for the same key::

        held = fit_points(key, posterior)
        draws = run(key, held, nuts(held))

    Parameters
    ----------
    key
        From ``jax.random.key``.
    posterior
        From :func:`bnn_ppl.condition`, of a model with points among its weights.
        A prior scale that is left open is taken at its usual value: hold another one first, by
        ``posterior.open_scale.hold``. Without points, or with all held, it is given back.
    folder
        Folder of a run: if one has begun there, its points are read instead. Otherwise the fit is
        saved there, and goes on where an earlier one was stopped or killed.
    progress
        As for :func:`bnn_ppl.run`.

    Returns
    -------
    Posterior
        With the points held: ``held`` has their values, and no other site is changed.

    Raises
    ------
    TypeError
        If key or posterior are of another type.
    ValueError
        If the log-density is not finite at the start or at the end, the folder's points are those
        of another model, or several processes run.
    """
    check_arguments(key=key, posterior=posterior)
    held, stopped = _with_points(key, posterior, folder, progress, float("inf"))
    if stopped is not None:
        raise KeyboardInterrupt
    return held


class Held(NamedTuple):
    """What a run with points runs."""

    posterior: Posterior  # which holds the points
    method: Method  # for it
    stopped: Interruption | None = None  # within the fit of the points
    position: Mapping[str, Any] | None = None  # of the other sites, then


def points_held(
    key: jax.Array,
    posterior: Posterior,
    method: Method,
    keep: Callable[..., Any] | None,
    folder: str | Path | None,
    progress: bool | Literal["json"],
    end: float,
) -> Held:
    """Fit the points, or read them, and give what the run runs; refuse a `keep` that will fail."""
    if not posterior.points:
        return Held(posterior, method)
    make = maker_of(posterior, method)
    if keep is not None:
        before = before_points(posterior)
        position = jax.eval_shape(before.init, key)
        jax.eval_shape(lambda at: keep(before.constrain(at, before.examples)), position)
    held, reached = _with_points(key, posterior, folder, progress, end)
    return Held(held, make(held), *(reached or ()))


def maker_of(posterior: Posterior, method: Method) -> Callable[[Posterior], Method]:
    """Give the function that builds a method, of a posterior with points, for another one."""
    check_built_with(posterior, method)
    recipe = recipe_of(method)
    if recipe is None:
        raise ValueError(
            "got a method that was changed after it was built, and a posterior with points, "
            "expected them held: build it with the posterior that fit_points(key, posterior) gives"
        )
    return recipe.make


def prepared_points(key: jax.Array, posterior: Posterior) -> tuple[Method, RunSetup]:
    """Prepare the one chain that fits the points: its method, and the run before its first step."""
    joint = _jointly(posterior)
    method = descent(joint, noise_rows="training")
    minibatches = Minibatches(method.counts.batch_size, False, 1.0)
    num_warmup = min(method.counts.num_warmup, MOST_STEPS)
    own_key = jax.random.fold_in(key, _OWN_KEY)
    return method, prepare(own_key, joint, method, RunLength(1, num_warmup, 1, 0, minibatches))


def _with_points(
    key: jax.Array, posterior: Posterior, folder: str | Path | None, progress: Any, end: float
) -> tuple[Posterior, tuple[Interruption, Mapping[str, Any]] | None]:
    """Hold the points; where the fit was stopped, also say so, and where the other sites were."""
    if not posterior.points:
        return posterior, None
    if folder is not None and checkpoint.read_header(folder) is not None:
        return posterior.hold(_recorded(posterior, folder)), None
    if jax.process_count() > 1:
        raise ValueError(
            "got points to fit in several processes, expected them held: fit them in one, by "
            "fit_points, and hold the same values in each, by posterior.hold(values)"
        )
    with waiting(progress):
        method, prepared = prepared_points(key, posterior)
        saved = _place(key, posterior, method, prepared, folder)
        states, done = saved.resume(prepared.states)
    num = prepared.num["warmup"]
    prepared = prepared._replace(num=prepared.num | {"draws": 0}, states=states)
    with interrupts(progress) as pressed, reporting(progress, num, done.warmup) as report:
        interrupted = pressed_or_late(pressed, end)
        states, done = advance(prepared, done, saved, _of_points(report), interrupted)
    with products_in(posterior.precision):
        state = jax.tree.map(lambda leaf: leaf[0], to_host(states))
        found = method.draw(key, state)
    values = {site: np.asarray(value) for site, value in found.items()}
    held = posterior.hold(_finite({site: values.pop(site) for site in posterior.points}))
    if done.warmup == num:
        return held, None
    if not done.warmup:
        if pressed():
            raise KeyboardInterrupt
        raise TimeoutError("got too few max_minutes to fit the points, expected more: give more")
    stopped = Interruption("points", "the fit of the points", done.warmup, num, pressed())
    return held, (stopped, values)


def _place(
    key: jax.Array,
    posterior: Posterior,
    method: Method,
    prepared: RunSetup,
    folder: str | Path | None,
) -> NullRecorder:
    """Give where the state of the fit is saved."""
    if folder is None:
        return NullRecorder()
    layout = Layout(one_record(prepared), 1, 1, None, {})
    settings = settings_to_resume(key, posterior, method, prepared, layout)
    return place_before(Path(folder).expanduser(), "points", settings, prepared.mesh)


def _recorded(posterior: Posterior, folder: str | Path) -> Mapping[str, np.ndarray]:
    found = read_constants(folder)
    if set(found) != set(posterior.points):
        raise checkpoint.OtherRunError(
            f"got points {', '.join(posterior.points)}, expected {', '.join(found) or 'none'} as "
            f"in the run that {str(folder)!r} holds: resume it with its model, or name another "
            "folder"
        )
    return found


def _finite(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    wrong = [site for site, value in values.items() if not np.isfinite(value).all()]
    if wrong:
        raise ValueError(
            f"got points that are not finite after training, {', '.join(wrong)}, expected a mode: "
            "rescale the data, or give these weights a prior and fit them by descent"
        )
    return values


def _jointly(posterior: Posterior) -> Posterior:
    """Give the posterior of all sites, the points among them, as methods take it."""
    recipe = recipe_of(posterior)
    joint = posterior._replace(points=(), recipe=None)
    if recipe is None:
        return joint
    return joint._replace(recipe=Recipe(partial(_made_jointly, recipe.make), joint, recipe.numbers))


def _made_jointly(make: Callable[[Any], Posterior], numbers: Any) -> Posterior:
    return make(numbers)._replace(points=())


def _of_points(report: Report) -> Report:
    """Tell this training from the run's own."""

    def of_points(phase: str, done: int, facts: dict[str, Any]) -> None:
        report("points" if phase == "warmup" else phase, done, facts)

    return of_points
