"""Points of a partly Bayesian network: optimised together with all other sites, then held."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from bnn_ppl.methods.ensembles.descent import descent_to_mode
from bnn_ppl.methods.method import Method, before_points
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.points import digest_of
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.recipe import Recipe, recipe_of
from bnn_ppl.runtime.interrupts import interrupts, pressed_or_late
from bnn_ppl.runtime.machines.devices import products_in, to_host
from bnn_ppl.runtime.progress import Show, reporting, waiting
from bnn_ppl.sampling.loop.compiled_loop import one_record
from bnn_ppl.sampling.loop.loop import advance
from bnn_ppl.sampling.loop.minibatches import Minibatches
from bnn_ppl.sampling.run_metadata import settings_to_resume
from bnn_ppl.sampling.setup.chain_placement import prepare
from bnn_ppl.sampling.setup.run_setup import RunSetup
from bnn_ppl.sampling.setup.run_spec import Keep, RunLength
from bnn_ppl.sampling.setup.setup_checks import check_built_with
from bnn_ppl.sampling.setup.warm_start import MOST_STEPS, Interruption, report_as
from bnn_ppl.storage.recorder import Layout
from bnn_ppl.storage.run_storage import RunStorage

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
    return fit_points_until(math.inf, key, posterior, folder, progress)[0]


def fit_points_until(
    end: float, key: jax.Array, posterior: Posterior, folder: str | Path | None, progress: Show
) -> tuple[Posterior, bool]:
    """Fit the points as far as the time allows: the posterior that holds them, and if they are."""
    held, interruption, _ = _fit(key, posterior, RunStorage(folder), end, progress)
    if interruption is not None and interruption.pressed:
        raise KeyboardInterrupt
    return held, interruption is None


class PointFit(NamedTuple):
    """What is run once the points are fitted."""

    posterior: Posterior  # which holds the points
    method: Method  # for it
    interruption: Interruption | None = None  # within the fit
    position: Mapping[str, Any] | None = None  # of the other sites, then


def hold_points(
    key: jax.Array,
    posterior: Posterior,
    method: Method,
    keep: Keep | None,
    storage: RunStorage,
    end: float,
    progress: Show,
) -> PointFit:
    """Fit the points, or read them, and give what the run runs; refuse a `keep` that will fail."""
    if not posterior.sites.points:
        return PointFit(posterior, method)
    make = maker_of(posterior, method)
    if callable(keep):
        before = before_points(posterior)
        position = jax.eval_shape(before.init, key)
        jax.eval_shape(lambda at: keep(before.constrain(at, before.rows.examples)), position)
    held, interruption, position = _fit(key, posterior, storage, end, progress)
    return PointFit(held, make(held), interruption, position)


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


def point_setup(key: jax.Array, posterior: Posterior) -> tuple[Method, RunSetup]:
    """Prepare the one chain that fits the points: its method, and the run before its first step."""
    joint = _jointly(posterior)
    method = descent_to_mode(joint)
    minibatches = Minibatches(method.counts.batch_size, False, 1.0)
    num_warmup = min(method.counts.num_warmup, MOST_STEPS)
    own_key = jax.random.fold_in(key, _OWN_KEY)
    return method, prepare(own_key, joint, method, RunLength(1, num_warmup, 1, 0, minibatches))


def _fit(
    key: jax.Array, posterior: Posterior, storage: RunStorage, end: float, progress: Show
) -> tuple[Posterior, Interruption | None, Mapping[str, Any] | None]:
    """Hold the points; where the fit was stopped, also say so, and where the other sites were."""
    if not posterior.sites.points:
        return posterior, None, None
    recorded = storage.points(posterior.sites.points)
    if recorded is not None:
        return posterior.hold(recorded), None, None
    seed = np.asarray(jax.random.key_data(key)).tolist()
    storage.refuse_other({"seed": seed}, storage.num_draws)  # of a run whose points are damaged
    if jax.process_count() > 1:
        raise ValueError(
            "got points to fit in several processes, expected them held: fit them in one, by "
            "fit_points, and hold the same values in each, by posterior.hold(values)"
        )
    with waiting(progress):
        method, setup = point_setup(key, posterior)
        layout = Layout(one_record(setup), 1, 1, None, {})
        settings = partial(settings_to_resume, key, posterior, method, setup, layout)
        recorder = storage.phase("points", settings, setup.mesh)
        states, done = recorder.resume(setup.states)
    num = setup.num["warmup"]
    setup = setup._replace(num=setup.num | {"draws": 0}, states=states)
    with interrupts(progress) as pressed, reporting(progress, num, done.warmup) as report:
        interrupted = pressed_or_late(pressed, end)
        report = report_as("points", report)
        states, done = advance(setup, done, recorder, report, interrupted)
    with products_in(posterior.density.precision):
        state = jax.tree.map(lambda leaf: leaf[0], to_host(states))
        position = method.draw(key, state)
        values = posterior.constrain(position)
    points = posterior.sites.points
    held = posterior.hold(_finite({site: np.asarray(values[site]) for site in points}))
    others = {site: np.asarray(value) for site, value in position.items() if site not in points}
    if done.warmup == num:
        storage.refuse_other({"points": digest_of(held.sites.held)}, storage.num_draws)
        return held, None, None
    if not done.warmup:
        if pressed():
            raise KeyboardInterrupt
        raise TimeoutError("got too few max_minutes to fit the points, expected more: give more")
    what = "the fit of the points"
    return held, Interruption("points", what, done.warmup, num, pressed()), others


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
    joint = _without_points(posterior)._replace(recipe=None)
    if recipe is None:
        return joint
    return joint._replace(recipe=Recipe(partial(_made_jointly, recipe.make), joint, recipe.numbers))


def _made_jointly(make: Callable[[Any], Posterior], numbers: Any) -> Posterior:
    return _without_points(make(numbers))


def _without_points(posterior: Posterior) -> Posterior:
    return posterior._replace(sites=posterior.sites._replace(points=()))
