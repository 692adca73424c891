"""Run a method: warm-up, then draws, over chains and devices, recorded as they are made."""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import jax
import numpy as np
from jax.sharding import Mesh

from bnn_ppl.analysis.prediction.draw_statistics import statistics_to_store
from bnn_ppl.data.streams.streams import Stream
from bnn_ppl.methods.method import Method
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.compilation.programs import compiled_once
from bnn_ppl.runtime.event_log import check_event_log, event_log
from bnn_ppl.runtime.interrupts import interrupts
from bnn_ppl.runtime.machines.devices import chain_sharding, products_in, to_host
from bnn_ppl.runtime.machines.processes import agreed
from bnn_ppl.runtime.names import known_keywords
from bnn_ppl.runtime.progress import waiting
from bnn_ppl.sampling.convergence_target import check_recorded, deadline, pressed_or_late
from bnn_ppl.sampling.loop.compiled_loop import one_record
from bnn_ppl.sampling.phases import RunState, kept_in_errors, through_start, to_the_end, with_draws
from bnn_ppl.sampling.point_estimates import points_held
from bnn_ppl.sampling.run_checks import asked_of, check_run
from bnn_ppl.sampling.run_metadata import attributes, settings_to_resume
from bnn_ppl.sampling.run_verdict import judged, tell
from bnn_ppl.sampling.setup.run_setup import Keep, drawn_anew, prepare
from bnn_ppl.storage import checkpoint
from bnn_ppl.storage.recorder import FolderRecorder, Layout, MemoryRecorder, Progress, Recorder

if TYPE_CHECKING:
    import arviz

Tree = Any


@known_keywords
def run(
    key: jax.Array,
    posterior: Posterior,
    method: Method,
    *,
    num_chains: int = 1,
    num_warmup: int | None = None,
    num_draws: int | None = None,
    thin: int | None = None,
    batch_size: int | Literal["all"] | None = None,
    bootstrap: bool = False,
    init: "arviz.InferenceData | Mapping[str, Any] | None" = None,
    keep: Keep | None = None,
    folder: str | Path | None = None,
    mesh: Mesh | None = None,
    until: Mapping[str, Any] | None = None,
    max_minutes: float | None = None,
    progress: bool | Literal["json"] = True,
    log_to: str | Path | None = None,
    score_every: int | str | None = None,
    held_out: Any = None,
    verdict: bool = True,
) -> "arviz.InferenceData":
    """Run a method: `num_warmup` warm-up steps, then `num_draws` times (`thin` steps, one draw).

    Chains run side by side: over the devices, and on each by ``vmap`` on an accelerator, one after
    the other on a CPU. There ``jax.config.update("jax_num_cpu_devices", n)``, before JAX starts,
    gives each core a device. Ctrl-C ends the run after the current draws and keeps all of them;
    before the first draw, it ends the run with draws of the fit that it has reached (see Notes).

    Parameters
    ----------
    key
        From ``jax.random.key``. Equal keys give equal draws.
    posterior
        From :func:`bnn_ppl.condition`.
    method
        From :func:`bnn_ppl.hmc` or another method, built with this posterior. If a prior leaves
        its scale open (``priors.fan_in()``), that is found first from the training rows, as by
        :func:`bnn_ppl.prior_scale`, told in a line and recorded as the attribute ``prior_scale``;
        points are fitted first, as by :func:`bnn_ppl.fit_points`. The method is then built anew
        for the rest.
    num_chains
        Chains, independent but for those of chees, laps and meads, which adapt together and want
        16 or more.
    num_warmup
        Warm-up steps of each chain, which adapt and are discarded. A method that trains stops
        earlier once its objective has stopped improving. This and the other counts default to the
        method's own.
    num_draws
        Draws kept from each chain.
    thin
        Steps between saved draws; 0 samples a fitted distribution directly.
    batch_size
        Rows per step, drawn on the device: an independent permutation for each chain and epoch
        (rows that do not fill a batch are left out), or with replacement for methods whose friction
        counters the minibatch noise (sgnht, smile, tuned sghmc). "all" takes all rows, as samplers
        with a Metropolis test and mclmc require. By default, for methods that take minibatches,
        128 rows, or up to 1,024 for networks with few weights, unless the rows make at most two
        such batches.
    bootstrap
        Give each chain a bootstrap sample of the rows: the same number, drawn with replacement.
    init
        Draws of another run to start from: the last draw of each chain if it has as many chains,
        otherwise draws spread evenly over it. Or a position, a dict of unconstrained arrays by
        site as ``posterior.init(key)`` gives it, where every chain then starts. By default the
        networks' own initialisers.
    keep
        What to record for each draw: a function of the constrained values (a dict by site name)
        that returns a dict of arrays. By default all sites.
    folder
        Where to store the draws, as Zarr, as they are made; memory does not grow with their number.
        :func:`bnn_ppl.diagnostics.load` opens them at any time. The same call with the same
        folder resumes a run that was stopped or killed; the draws match an uninterrupted run, bit
        for bit on the same devices. A larger `num_draws` extends it.
    mesh
        Devices as a ``jax.sharding.Mesh`` with the axes ("chain", "data"): rows of the data are
        spread over the second, padded where they do not divide. By default as many of
        ``jax.devices()`` as share the chains evenly; on accelerators the others share the rows.
    until
        Keep drawing until the predictions have converged this far, for example ``{"rhat": 1.01,
        "ess": 400}``, or one of the two: the 95 % quantile of their R-hat is at most `rhat`, and
        the 5 % quantile of their bulk ESS at least `ess` (as :func:`bnn_ppl.diagnostics.rhat` and
        ``ess`` of :func:`bnn_ppl.function_draws`). The predictions are those at no more than 200
        rows, spread evenly over the training rows, or over the inputs given as ``"x"``. The first
        check is made after `num_draws` draws, each further one after half as many again, so the
        draws are those of an ordinary run of that length. Without `max_minutes` there is no other
        limit; memory grows with the draws unless there is a `folder`.
    max_minutes
        Stop after this time, including compilation, as after Ctrl-C: all draws so far, or the fit
        so far, are kept, and with `folder` the same call continues, for up to as long again.
    progress
        True for a bar with the time left, or plain lines where there is no terminal; "json" for
        lines of JSON on standard error; False for silence.
    log_to
        Folder for TensorBoard's event files, with the statistics of each chain about twice a
        second; needs tensorboardX (``pip install '.[tensorboard]'``).
    score_every
        Score the `held_out` rows during warm-up (in which fits train), every so many steps, or
        epochs, as in "2 epochs". ``warmup_sample_stats`` then has ``held_out_nll`` (nats per row)
        and ``held_out_rmse`` (in the units of the model) or ``held_out_accuracy``: of the current
        point where the method moves a point, of the average over 8 draws where it fits a
        distribution. A fit that another method starts from (``sgld``'s descent) is not scored.
    held_out
        Rows (x, y), not among the posterior's, for `score_every`.
    verdict
        End with a line that says whether the run has converged and, if not, what is wrong and what
        to do: :func:`bnn_ppl.verdict`. Runs of several processes end without it.

    Returns
    -------
    arviz.InferenceData
        Groups ``posterior`` (chain, draw, ...), ``sample_stats`` under ArviZ's names,
        ``warmup_sample_stats`` (chain, step) of at most 1,000 steps of warm-up, spread evenly,
        ``observed_data``; where weights are held as points, ``constant_data``, their values; and,
        for a method that fits a distribution, ``fitted``, its parameters (chain, ...). Attributes
        say how it was run, among them ``verdict`` and ``converged``, 1 or 0, and, if `until` is
        given, ``until``, as JSON, and ``until_met``, 1 or 0. With `folder`,
        values are read when used.

    Raises
    ------
    ValueError
        If a count is out of range, `thin` is 0 for a sampler, `method` was built with another
        posterior or cannot use minibatches, `init` lacks a site or has one of another shape, the
        mesh does not fit, the log-density is not finite at the start, `folder` holds a damaged run
        or one with other settings (the error names the first that differs), or `until` has other
        keys, a number out of range, fewer than 2 chains or 4 draws to look at, or a method that
        draws without steps; if only one of `score_every` and `held_out` is given, or it does not
        fit.
    TypeError
        If key, posterior, method, `init` or `until` is of another type.
    FileExistsError
        If `folder` holds something else.
    OSError
        If the folder cannot be written. What it held before stays and can be resumed.
    ImportError
        If `log_to` is given and tensorboardX is not installed.
    TimeoutError
        If `max_minutes` pass before the first draw and there is no fit to draw from: in the warm-up
        of a sampler that starts from the prior. With `folder` the same call resumes the run.

    Warns
    -----
    VerdictWarning
        If the verdict is that the draws are not to be used as they are, whatever `progress` says;
        its text is the verdict, which is then not printed besides.

    Notes
    -----
    A run that is stopped before its first draw gives what it has reached. A distribution or point
    in training is drawn from as it is. A sampler that starts from a fit, stopped in that fit or in
    its own warm-up, gives one draw of each chain: the point of that fit. The verdict says so, and
    so do the attributes ``stopped``, in words, and ``stopped_in``: "points", "start", "warmup" or
    "draws". With `folder` each of these phases is saved, the draws are there to be read, and the
    same call drops them and goes on. Without, an error or a second Ctrl-C carries the draws so far,
    or those of the fit so far, as its attribute ``draws``.

    A further run of the same method and posterior compiles nothing, whatever its counts, unless
    chains, devices or shapes differ or `keep` is given. For this the last four compiled loops are
    cached (a warm-up and its draws have one each), and with them the data of their posteriors. Nor
    does a run of a posterior that differs only in its data and in the numbers of its priors (see
    :func:`bnn_ppl.condition`); tracing it takes about a second.
    """
    end = deadline(max_minutes)
    check_event_log(log_to)
    # Refuses a folder that is not a run's before any work.
    folder = None if folder is None else Path(folder).expanduser()
    header = None if folder is None else checkpoint.read_header(folder)
    check_arguments(key=key, posterior=posterior, method=method)
    asked: dict[str, Any] = {
        "num_chains": num_chains,
        "num_warmup": num_warmup,
        "num_draws": num_draws,
        "thin": thin,
        "batch_size": batch_size,
        "bootstrap": bootstrap,
        "until": until,
        "score_every": score_every,
        "held_out": held_out,
    }
    if posterior.open_scale is not None:
        from bnn_ppl.sampling.prior_scale import with_scale_found  # which runs methods itself

        check_run(key, posterior, method, folder=folder, mesh=mesh, init=init, **asked)
        posterior, method = with_scale_found(posterior, method, header, folder, end, progress)
    posterior, method, stopped, position = points_held(
        key, posterior, method, keep, folder, progress, end
    )
    if stopped is not None:  # the points are not yet those that a folder is to hold
        init, folder, header = position, None, None
    method, lengths, goal = asked_of(posterior, method, header, **asked)
    recorder: Recorder
    with waiting(progress):
        prepared = prepare(key, posterior, method, lengths, init, keep, mesh, progress=progress)
        layout = Layout(
            one_record(prepared),
            int(lengths.num_chains),
            int(lengths.num_draws),
            None if isinstance(posterior.data, Stream) else np.asarray(posterior.data[1]),
            attributes(key, posterior, method, prepared),
            {site: np.asarray(value) for site, value in posterior.held.items()},
        )
        check_recorded(goal, posterior, layout)
        if folder is None:
            recorder, done = MemoryRecorder(layout), Progress()
        else:
            settings = settings_to_resume(key, posterior, method, prepared, layout)
            recorder = FolderRecorder(folder, layout, settings, prepared.mesh)
            states, done = recorder.resume(prepared.states)
            prepared = prepared._replace(states=states)
            if recorder.redrawn and lengths.thin:
                prepared = drawn_anew(key, prepared, recorder.redrawn)
    from_fit = method.start is not None or init is not None
    starts = method.start is not None and init is None and not done.warmup + done.draws
    ready = RunState(key, posterior, method, prepared, done, recorder, from_fit, starts)
    with kept_in_errors(recorder, lambda: ready):
        with event_log(log_to) as recorder.log, interrupts(progress) as pressed:
            interrupted = pressed_or_late(pressed, end)
            if stopped is None:
                ready, stopped = through_start(ready, interrupted, progress, notes=verdict)
            if stopped is None:
                ready, stopped = to_the_end(ready, goal, interrupted, progress)
            by_user = agreed(pressed() or (stopped is not None and stopped.pressed))
            if stopped is not None:
                by = "Ctrl-C" if by_user else f"max_minutes={max_minutes:g}"
                ready = with_draws(ready, stopped, by) or ready
        if not ready.done.draws:
            _raise_without_draws(by_user, max_minutes)
        return _result(ready, verdict, progress)


def _raise_without_draws(pressed: bool, max_minutes: float | None) -> NoReturn:
    if pressed:
        raise KeyboardInterrupt
    raise TimeoutError(
        f"got max_minutes={max_minutes:g}, which passed before the first draw, expected more: give "
        "more minutes, or a folder, where the same call or command resumes the run"
    )


def _result(ready: RunState, verdict: bool, progress: Any) -> "arviz.InferenceData":
    """Give the draws, with the verdict on them."""
    _, posterior, method, prepared, done, recorder, *_ = ready
    fitted = {}
    if prepared.states is not None:
        fitted = _fitted(posterior, method, prepared.states, prepared.mesh)
    draws = recorder.result(done, fitted)
    draws = recorder.with_statistics(draws, partial(statistics_to_store, posterior))
    if verdict and jax.process_count() == 1:
        with waiting(progress, "judging"):
            facts = judged(posterior, draws)
        recorder.set_attributes(done, facts)
        draws.attrs |= facts
        tell(facts, progress)
    return draws


def _fitted(
    posterior: Posterior, method: Method, states: Tree, mesh: Mesh
) -> dict[str, np.ndarray]:
    """Give the parameters of this process's fitted distributions; nothing for a sampler."""
    if method.fitted is None:
        return {}
    with products_in(posterior.precision):
        return to_host(_parameters(method.fitted, mesh)(states))


@lru_cache(maxsize=2)
def _parameters(fitted: Callable, mesh: Mesh) -> Callable:
    mapped = jax.vmap(fitted)
    return compiled_once(mapped, runs_once=True, out_shardings=chain_sharding(mesh))
