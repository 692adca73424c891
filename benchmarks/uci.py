"""Measure HMC compared with MC dropout on the UCI tables.

One hidden layer of 50 ReLU units and a learnt noise of at least 0.05 sd of y, on the 20 published
splits, compared with the published MC-dropout results for the same splits (protocol and network of
Gal & Ghahramani, their hyper-parameters chosen by grid search). All results in the units of y.

    python benchmarks/uci.py --data yacht energy boston
    python benchmarks/uci.py --data concrete --choose-gain --num-draws 50
    python benchmarks/uci.py --data concrete --gain 2

The second command compares prior scales on training rows alone: a fifth of those of split 0 is
held out in place of the test rows.

Each finished split is appended to a CSV file; rerun the command to resume. Tables other than yacht
and energy need BNN_PPL_DATA.
"""

import argparse
import os
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pandas

import bnn_ppl as bnn

COLUMNS = ["rmse", "nll", "gaussian_nll", "coverage_90"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=["yacht", "energy"])
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--gain", type=float, default=2**0.5, help="prior scale (fan_in)")
    parser.add_argument("--choose-gain", action="store_true", help="compare gains and stop")
    parser.add_argument("--num-chains", type=int, default=4)
    parser.add_argument("--num-warmup", type=int, default=100)
    parser.add_argument("--num-draws", type=int, default=200)
    parser.add_argument("--results", type=Path, default=Path("runs/uci.csv"))
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    args.results.parent.mkdir(parents=True, exist_ok=True)
    if args.choose_gain:
        for name in args.data:
            compare_gains(name, args)
        return
    for name in args.data:
        for split in range(args.splits):
            if not _done(args.results, name, split):
                data = bnn.data.load(name, split=split)
                row = {"data": name, "split": split, "gain": args.gain}
                row |= evaluate(data, split, args.gain, args) | published(name, split)
                _append(args.results, row)
                print(_line(row), flush=True)
    print(table(pandas.read_csv(args.results)).to_string(float_format="{:.3f}".format))


def compare_gains(name: str, args: argparse.Namespace) -> None:
    """Hold out a fifth of the training rows of split 0 and evaluate there."""
    data = bnn.data.load(name, split=0)
    rows = np.random.default_rng(0).permutation(len(data.train.y))
    kept, held = np.split(rows, [len(rows) * 4 // 5])
    x, y = data.train
    data = data._replace(train=(x[kept], y[kept]), test=bnn.data.Data(x[held], y[held]))
    for gain in (1.0, 2**0.5, 2.0):
        row = evaluate(data, 0, gain, args)
        print(f"{name} gain {gain:.3f}: rmse {row['rmse']:.3f}, nll {row['nll']:.3f}", flush=True)


def evaluate(data, seed: int, gain: float, args: argparse.Namespace) -> dict[str, float]:
    """Sample with the defaults of ``bnn-ppl run hmc`` and evaluate on the test rows."""
    net = partial(bnn.nets.MLP, data.test.x.shape[1], (50,), 1)
    model = bnn.models.regressor(net, bnn.priors.fan_in(gain), bnn.priors.noise(0.05))
    posterior = bnn.condition(model, data.train)
    draws = bnn.run(
        jax.random.key(seed),
        posterior,
        bnn.hmc(posterior),
        num_chains=args.num_chains,
        num_warmup=args.num_warmup,
        num_draws=args.num_draws,
        progress=False,
    )
    prediction = bnn.predict(posterior, draws, data.test)
    scores = bnn.metrics.summary(prediction, data.test.y, scale=data.y_scale, digits=None)
    mixing = bnn.diagnostics.summary(draws, bnn.function_draws(posterior, draws, data.test.x))
    return {
        **{column: float(scores[column]) for column in COLUMNS},
        "function_rhat_median": float(mixing.loc["function", "rhat_median"]),
        "function_rhat_95": float(mixing.loc["function", "rhat_95"]),
        "weight_rhat_median": float(mixing.loc["weights", "rhat_median"]),
        "weight_rhat_95": float(mixing.loc["weights", "rhat_95"]),
        "acceptance": float(draws.sample_stats.acceptance_rate.mean()),
        "divergences": int(draws.sample_stats.diverging.sum()),
        "gradients": draws.attrs["gradient_evaluations"],
        "seconds": draws.attrs["sampling_time"],
    }


def published(name: str, split: int) -> dict[str, float]:
    """Return the published MC-dropout scores of the same split."""
    row = bnn.data.published(name, split=split)
    return {"published_rmse": row["rmse"], "published_nll": -row["log_likelihood"]}


def table(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Mean over splits and, for the scores, its standard error."""
    groups = rows.groupby("data")
    means = groups.mean().drop(columns="split")
    means.insert(0, "splits", groups.size())
    means.insert(2, "rmse_se", groups["rmse"].sem())
    means.insert(4, "nll_se", groups["nll"].sem())
    return means.T


def _done(path: Path, name: str, split: int) -> bool:
    if not path.exists():
        return False
    rows = pandas.read_csv(path)
    return bool(((rows.data == name) & (rows.split == split)).any())


def _append(path: Path, row: dict) -> None:
    pandas.DataFrame([row]).to_csv(path, mode="a", header=not path.exists(), index=False)


def _line(row: dict) -> str:
    return (
        f"{row['data']:9} split {row['split']:2}: rmse {row['rmse']:.3f} "
        f"(published {row['published_rmse']:.3f}), nll {row['nll']:.3f} "
        f"({row['published_nll']:.3f}), R-hat of functions {row['function_rhat_median']:.3f}, "
        f"{row['seconds']:.0f} s"
    )


if __name__ == "__main__":
    main()
