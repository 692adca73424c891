"""Measure how close cheap methods come to HMC on 160 images of MNIST, 784-256-256-10.

The setting is that of Izmailov et al. (bnn_hmc, README), with prior N(0, 1). The images ship with
the package, and so do HMC's predictions for the 2,000 test images (docs/explanation/comparison.md
says how it was run). One command fits every approximation and prints the table:

    python benchmarks/mnist160.py

    python benchmarks/mnist160.py sghmc mfvi --folder runs/mnist160     only some of them

    python benchmarks/mnist160.py --hmc runs/hmc      with another run of HMC as reference

Rerun a command to resume it. No setting was chosen by its distance to HMC or by test images:
learning rates are the largest that keep the training images fitted.
"""

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

import bnn_ppl as bnn
from bnn_ppl.analysis.comparison.compare_tables import to_latex

HMC = Path(bnn.__file__).parent / "data" / "files" / "mnist" / "hmc_160.npz"


class Setting(NamedTuple):
    """How a method was run, from "initialisers" of the network, draws of the "prior", or a run."""

    method: Callable[[bnn.Posterior, int], bnn.Method]  # posterior, steps of warm-up
    start: str
    num_chains: int
    num_warmup: int
    num_draws: int = 1
    thin: int = 0
    batch_size: int | None = 80


def cosine(rate: float) -> Callable:
    """Make a learning rate that falls to 0 during warm-up."""
    return partial(optax.cosine_decay_schedule, rate)


def fitted(method: Callable, rate: float, **options: Any) -> Callable:
    return lambda posterior, steps: method(posterior, learning_rate=cosine(rate)(steps), **options)


def sampled(method: Callable, step_size: float, **options: Any) -> Callable:
    return lambda posterior, steps: method(posterior, step_size, **options)


def cyclical(step_size: float, **options: Any) -> Callable:
    def build(posterior: bnn.Posterior, steps: int) -> bnn.Method:
        schedule = bnn.schedules.cyclical(step_size, CYCLE, steps)
        return bnn.sghmc(posterior, schedule, momentum=0.95, **options)

    return build


def multiswag(posterior: bnn.Posterior, steps: int) -> bnn.Method:
    inner = bnn.descent(posterior, optax.sgd(0.005, momentum=0.9))
    return bnn.swag(posterior, inner, 20, collect_every=10, collect_from=steps // 2)


CYCLE = 100
SAMPLER = {"start": "ensemble_from_prior", "num_chains": 100, "num_warmup": 50}
SETTINGS = {
    "ensemble": Setting(fitted(bnn.descent, 1e-3), "initialisers", 50, 400),
    "ensemble_from_prior": Setting(fitted(bnn.descent, 1e-3), "prior", 200, 200),
    "sgld": Setting(sampled(bnn.sgld, 1e-8), num_draws=2, thin=100, **SAMPLER),
    "sghmc": Setting(sampled(bnn.sghmc, 1e-8), num_draws=2, thin=100, **SAMPLER),
    "sghmc_cyclical": Setting(cyclical(1e-8), num_draws=2, thin=CYCLE, **SAMPLER),
    "sghmc_cyclical_rmsprop": Setting(
        cyclical(1e-5, preconditioner=bnn.preconditioners.rmsprop()),
        num_draws=2,
        thin=CYCLE,
        **SAMPLER,
    ),
    "multiswag": Setting(multiswag, "initialisers", 20, 800, num_draws=10),
    "mfvi": Setting(fitted(bnn.mfvi, 1e-2), "initialisers", 1, 10_000, num_draws=200),
    "laplace": Setting(lambda posterior, steps: bnn.laplace(posterior), "ensemble", 1, 2, 200),
    "mc_dropout": Setting(fitted(bnn.mc_dropout, 1e-3), "initialisers", 1, 1000, num_draws=200),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*", help=f"some of {', '.join(SETTINGS)}; default: all")
    parser.add_argument("--folder", type=Path, default=Path("runs/mnist160"))
    parser.add_argument("--hmc", type=Path, help="take the reference from this run, and store it")
    parser.add_argument("--table", type=Path, default=Path("mnist160"), help="of csv, tex and png")
    args = parser.parse_args()
    unknown = set(args.methods) - set(SETTINGS)
    if unknown:
        parser.error(f"got {', '.join(unknown)}, expected some of {', '.join(SETTINGS)}")
    data = bnn.data.load("mnist", subset=160)
    data = data._replace(test=bnn.data.Data(*(leaf[:2000] for leaf in data.test)))
    posterior = conditioned(data)
    if args.hmc:
        keep_reference(posterior, bnn.diagnostics.load(args.hmc), data)
    names = args.methods or list(SETTINGS)
    draws = {name: fit(name, posterior, args.folder) for name in names}
    table = compared(posterior, draws, data)
    print(table.drop(columns="brier").to_string(float_format="{:.4g}".format))
    table.to_csv(args.table.with_suffix(".csv"))
    args.table.with_suffix(".tex").write_text(to_latex(table))
    shown = table.drop(columns=["rhat_median", "rhat_max"])
    bnn.plots.comparison(shown).savefig(args.table.with_suffix(".png"), dpi=150)


def conditioned(data: bnn.data.DataSet) -> bnn.Posterior:
    net = partial(bnn.nets.MLP, 784, (256, 256), 10)
    return bnn.condition(bnn.models.classifier(net, bnn.priors.normal(1.0)), data.train)


def fit(name: str, posterior: bnn.Posterior, folder: Path) -> Any:
    chosen = SETTINGS[name]
    init = None
    if chosen.start == "prior":
        init = bnn.prior_draws(jax.random.key(1), posterior, 1, chosen.num_chains)
    elif chosen.start in SETTINGS:
        init = fit(chosen.start, posterior, folder)
    print(f"\n{name}, from {chosen.start}", flush=True)
    return bnn.run(
        jax.random.key(0),
        posterior,
        chosen.method(posterior, chosen.num_warmup),
        num_chains=chosen.num_chains,
        num_warmup=chosen.num_warmup,
        num_draws=chosen.num_draws,
        thin=chosen.thin,
        batch_size=chosen.batch_size,
        init=init,
        folder=folder / name,
    )


def keep_reference(posterior: bnn.Posterior, draws: Any, data: bnn.data.DataSet) -> None:
    """Write what ships of HMC: R-hats, and average predictions of each chain or of several.

    At most 16 averages, to keep the package small.
    """
    functions = bnn.function_draws(posterior, draws, data.test.x)
    probs = functions.posterior["probs"]
    parts = np.array_split(probs.mean("draw").to_numpy(), min(16, probs.sizes["chain"]))
    np.savez_compressed(
        HMC,
        probs_by_chain=np.stack([part.mean(0) for part in parts]),
        num_chains=probs.sizes["chain"],
        rhat=bnn.diagnostics.rhat(functions)["probs"].to_numpy().astype(np.float16),
        num_draws=probs.sizes["draw"],
        acceptance=draws.sample_stats["acceptance_rate"].mean().to_numpy(),
        seconds=draws.attrs["sampling_time"],
        gradient_evaluations=draws.attrs["gradient_evaluations"],
    )


def compared(posterior: bnn.Posterior, draws: dict, data: bnn.data.DataSet) -> Any:
    """Scores of each method and its distance to HMC, which is the first row."""
    with np.load(HMC) as file:
        chains, rhat = file["probs_by_chain"], file["rhat"]
    halves = chains[::2].mean(0), chains[1::2].mean(0)
    print(
        "\nhalf of the chains of HMC against the other half: agreement "
        f"{bnn.metrics.agreement(*halves):.4f}, "
        f"total variation {bnn.metrics.total_variation(*halves):.4f}"
    )
    predictions = {
        name: bnn.predict(posterior, run, data.test, predictive="sampled")
        for name, run in draws.items()
    }
    if "laplace" in draws:
        linear = bnn.predict(posterior, draws["laplace"], data.test)
        predictions["laplace_linearised"] = linear
    return bnn.compare(
        {"hmc": chains.mean(0)} | predictions,
        data.test.y,
        "hmc",
        draws=draws,
        function_rhat={"hmc": rhat},
    )


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    main()
