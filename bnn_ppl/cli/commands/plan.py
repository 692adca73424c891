"""The command ``plan``."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jax

import bnn_ppl as bnn
from bnn_ppl.cli.commands.run import loaded
from bnn_ppl.cli.methods import Training, built_method, in_steps
from bnn_ppl.cli.problem.build import (
    USUAL_SCALE,
    describe,
    named_in_words,
    scale_is_searched,
    searched_structure,
    settled,
)
from bnn_ppl.cli.problem.problem import Problem
from bnn_ppl.cli.problem.rows import scored, training_rows
from bnn_ppl.cli.problem.subspace import InSubspace
from bnn_ppl.cli.run_arguments import General, annotations, join_hosts, until_of
from bnn_ppl.cli.tables import machine_plan_table, plan_table
from bnn_ppl.runtime.machines.devices import planned_for
from bnn_ppl.runtime.machines.machines import machine
from bnn_ppl.sampling.planning.machine_plan import plan_for_machine
from bnn_ppl.sampling.search.scale_search import MOST_STEPS

_OF_SEARCH = (
    f"the run first searches for the scale of the prior: at most {MOST_STEPS:,} steps of training, "
    f"not counted\nabove (--prior-scale saves them); planned for {USUAL_SCALE}"
)
_WITHOUT_COST = {"max_minutes", "log_to", "score_every"}


def plan_command() -> Callable[..., None]:
    """Make the command ``plan``: the arguments of ``run``, tried for some seconds."""

    def plan(
        method: Any,
        general: General,
        problem: Problem,
        training: Training,
        inside: InSubspace,
        running: Any,
        *,
        trial_seconds: float = 20.0,
        devices: str | None = None,
        gradients_a_draw: float | None = None,
    ) -> None:
        """Estimate the cost of a run: time, memory, disk, gradients.

        Takes the arguments of ``bnn-ppl run``: put plan in the place of run. Nothing is written.

        Parameters
        ----------
        method
            Inference method.
        general
            As for `bnn-ppl run`. With --until, the plan ends at the first check, after
            --num-draws; --on, --features, --folder, --progress, --json and --strict have no
            effect here.
        running
            Length of the run and number of chains, by default as for `bnn-ppl run`.
        trial_seconds
            Time to try steps. While a method adapts, the cost of a step changes: a longer trial
            gives a better estimate.
        devices
            A machine that is not here, for example tpu:v3:16x16 or gpu:h200:8: compile for it, and
            estimate from that. Needs its compiler: jax[tpu] or jax[cuda12].
        gradients_a_draw
            With --devices: gradients of a draw of one chain; by default the method's most.
        """
        until_of(general.until)  # refuses
        if general.distributed:
            join_hosts()
        if gradients_a_draw is not None and devices is None:
            raise ValueError("got --gradients-a-draw without --devices, expected both: drop it")
        target = None
        if devices is not None:
            jax.config.update("jax_platforms", "cpu")  # JAX is not to look for such devices here
            target = machine(devices)
        if general.init is not None:
            running = running | {"init": bnn.diagnostics.load(general.init)}
        with nullcontext() if target is None else planned_for(target.device.memory):
            general = general._replace(features=None)
            problem, data, posterior = loaded(general, problem, inside, blank=target is not None)
            scored(problem, data, general.on)  # refuses
            epochs = general.num_warmup_epochs, general.num_epochs
            size = running.get("batch_size")  # None where nobody chose it: devices may share it
            running = in_steps(method, running, posterior, *epochs)
            print(describe(problem, data, posterior), flush=True)
            held_out = training_rows(problem, data)[1]
            built = built_method(method, training, running, posterior, held_out)
            running = {name: running[name] for name in running if name not in _WITHOUT_COST}
            running["batch_size"] = size
            if target is None:
                key = jax.random.key(general.seed)
                found = bnn.plan(key, posterior, built, trial_seconds=trial_seconds, **running)
                print(plan_table(found))
            else:
                running |= {"gradients_a_draw": gradients_a_draw}
                print(machine_plan_table(plan_for_machine(posterior, built, target, **running)))
            if scale_is_searched(problem, posterior):
                print(_OF_SEARCH)
            if names := searched_structure(problem, data):
                usual = settled(problem, data)
                widths = "-".join(map(str, usual.network.hidden or ()))
                planned = f"planned for mlp {widths}, noise {usual.likelihood.noise}"
                print(f"the run first finds {named_in_words(names)}: {planned}")

    plan.__annotations__ |= annotations()
    return plan
