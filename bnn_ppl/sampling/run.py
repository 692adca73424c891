"""Run a method: warm-up, then draws, over chains and devices, recorded as they are made."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import jax
from jax.sharding import Mesh

from bnn_ppl.methods.method import Method
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.event_log import check_event_log, event_log
from bnn_ppl.runtime.interrupts import deadline, interrupts, pressed_or_late, raised_for_sure
from bnn_ppl.runtime.machines.processes import agreed
from bnn_ppl.runtime.names import known_keywords
from bnn_ppl.runtime.progress import checked_progress
from bnn_ppl.sampling.phases import (
    collect,
    draw_reached_fit,
    draws_in_errors,
    place_chains,
    warm_start,
    warm_up_and_draw,
)
from bnn_ppl.sampling.point_estimates import hold_points
from bnn_ppl.sampling.run_checks import check_spec, refuse_other_run
from bnn_ppl.sampling.run_verdict import judge
from bnn_ppl.sampling.search.scale_search import find_scale
from bnn_ppl.sampling.setup.run_spec import Keep, RunSpec
from bnn_ppl.storage.arviz_versions import import_meanwhile
from bnn_ppl.storage.run_storage import RunStorage

if TYPE_CHECKING:
    import arviz


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
        What to record for each draw: names of sites, ``numpyro.deterministic`` ones among them (at
        the training rows), or a function of the constrained values (a dict by site name) that
        returns a dict of arrays. By default all sites that are sampled.
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
    "draws". With `folder` each of these phases is saved, and the same call goes on. The draws are
    there to be read, until it drops them; but those of "points", which the folder of a run holds
    fixed, are only given back. Without, an error or a second Ctrl-C carries the draws so far, or
    those of the fit so far, as its attribute ``draws``.

    A further run of the same method and posterior compiles nothing, whatever its counts, unless
    chains, devices or shapes differ or `keep` is given. For this the last eight loops are kept
    traced (a warm-up and its draws have one each), and with them the data of their posteriors. Nor
    does a run of a posterior that differs only in its data and in the numbers of its priors (see
    :func:`bnn_ppl.condition`), as the last 32 compiled programs are kept; tracing it takes about a
    second.
    """
    with raised_for_sure():
        check_event_log(log_to)
        progress = checked_progress(progress)
        end = deadline(max_minutes)
        storage = RunStorage(folder)  # refuses a folder that is not a run's before any work
        check_arguments(key=key, posterior=posterior, method=method)
        lengths = num_chains, num_warmup, num_draws, thin, batch_size, bootstrap
        spec = RunSpec(*lengths, init, keep, mesh, until, score_every, held_out)
        length = check_spec(posterior, method, spec, storage)
        if posterior.prior.open_scale is not None:  # found by fits, each of which calls this
            refuse_other_run(key, posterior, length, storage)
            posterior, method = find_scale(run, posterior, method, storage, end, progress)
        posterior, method, interruption, position = hold_points(
            key, posterior, method, keep, storage, end, progress
        )
        if interruption is not None:  # the points are not yet those that a folder is to hold
            spec, storage = spec._replace(init=position), RunStorage(None)
        state = place_chains(key, posterior, method, spec, storage, progress)
        import_meanwhile()
        with draws_in_errors(lambda: state):
            with event_log(log_to) as state.recorder.log, interrupts(progress) as pressed:
                interrupted = pressed_or_late(pressed, end)
                if interruption is None:
                    state, interruption = warm_start(state, interrupted, progress, verdict)
                if interruption is None:
                    state, interruption = warm_up_and_draw(state, interrupted, progress)
                by_user = agreed(pressed() or (interruption is not None and interruption.pressed))
                if interruption is not None:
                    by = "Ctrl-C" if by_user else "max_minutes"
                    state = draw_reached_fit(state, interruption, by)
            if not state.done.draws:
                _raise_without_draws(by_user)
            draws = collect(state)
            if verdict and jax.process_count() == 1:
                judge(state, draws, progress)
            return draws


def _raise_without_draws(pressed: bool) -> NoReturn:
    if pressed:
        raise KeyboardInterrupt
    raise TimeoutError(
        "got too few max_minutes, which passed before the first draw, expected more: give more "
        "minutes; a run with a folder is resumed by the same call or command"
    )
