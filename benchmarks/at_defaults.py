"""One run of a method at its defaults, and the columns of its row: for defaults.py and uci.py.

The problem is that of ``bnn-ppl run METHOD --data DATA --split K --net mlp --noise learnt
--noise-floor 0.03``, and
what a benchmark passes on, as the width of a network.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from memory import peak_memory_mb

import bnn_ppl as bnn
from bnn_ppl.cli.problem.build import conditioned
from bnn_ppl.cli.problem.problem import Problem
from bnn_ppl.cli.problem.search import with_found
from bnn_ppl.methods.method import METHODS

SCORES = ["rmse", "nll", "gaussian_nll", "coverage_90", "accuracy", "ece"]
TEMPERATURES = ["kinetic_temperature", "configurational_temperature"]
MIXING = ["rhat_median", "rhat_95", "ess_bulk_median", "ess_bulk_min"]
COLUMNS = ["data", "split", "method", *SCORES, *TEMPERATURES, "step_size", "seconds"]
COLUMNS += ["cpu_seconds", "peak_memory_mb", "gradients", *MIXING]
COLUMNS += ["prior_scale", "seconds_for_scale", "converged", "verdict"]


def problem(
    name: str, split: int | str, scales: Sequence[Path], **settings: Any
) -> tuple[Any, bnn.Posterior, dict[str, float]]:
    """Load a problem; its prior scale, the same for all methods, is found once and kept.

    It is looked up by name in all files `scales`, and written to the first. The name is also that
    of the data, unless the settings name others.
    """
    key = f"{name} {split}"
    found = next((known[key] for known in map(_read, scales) if key in known), {})
    began = time.perf_counter()
    settings = {"data": name, "net": "mlp", "noise": "learnt", "noise_floor": 0.03} | settings
    chosen = Problem.of(split=split, **settings, prior_scale=found.get("prior_scale"))
    data, posterior = conditioned(chosen)
    if not found:
        chosen, posterior, _ = with_found(chosen, data, posterior)
        seconds = time.perf_counter() - began
        found = {"prior_scale": chosen.prior.prior_scale, "seconds_for_scale": seconds}
        scales[0].write_text(json.dumps(_read(scales[0]) | {key: found}, indent=1))
    return data, posterior, found


def _read(path: Path) -> dict[str, dict[str, float]]:
    return json.loads(path.read_text()) if path.exists() else {}


def evaluate(data: Any, posterior: bnn.Posterior, method: bnn.Method) -> dict[str, Any]:
    began, cpu_before = time.perf_counter(), time.process_time()
    draws = bnn.run(
        jax.random.key(0), posterior, method, num_chains=method.counts.num_chains, progress=False
    )
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_before
    prediction = bnn.predict(posterior, draws, data.test)
    scores = bnn.metrics.summary(prediction, data.test.y, scale=data.y_scale)
    stats = draws.get("sample_stats", {})
    return {
        **{score: float(scores[score]) for score in SCORES if score in scores},
        **{name: float(stats[name].mean()) for name in TEMPERATURES if name in stats},
        "step_size": float(stats["step_size"][:, -1].mean()) if "step_size" in stats else np.nan,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "peak_memory_mb": peak_memory_mb(),
        "gradients": draws.attrs["gradient_evaluations"],
        **mixing(data, posterior, draws),
        "converged": draws.attrs.get("converged", np.nan),
        "verdict": draws.attrs.get("verdict", ""),
    }


def mixing(data: Any, posterior: bnn.Posterior, draws: Any) -> dict[str, float]:
    """R-hat and ESS of the predictions for 200 test rows; nothing for fits."""
    if draws.attrs.get("draws_from", "chain") != "chain" or draws.attrs["thin"] == 0:
        return {}
    functions = bnn.function_draws(posterior, draws, data.test.x[:200])
    found = bnn.diagnostics.summary(draws, functions).loc["function"]
    return {name: float(found[name]) for name in MIXING if name in found}


def row_of(
    name: str, split: int | str, method: str, scales: Sequence[Path], **settings: Any
) -> dict[str, Any]:
    """Run a method on a split, and give its row."""
    data, posterior, found = problem(name, split, scales, **settings)
    row = {"data": name, "split": split, "method": method} | found
    return row | evaluate(data, posterior, METHODS[method].build(posterior))
