"""Compare three ways to find the scale of the prior from training rows.

The Laplace evidence (the default), rows held out (a tenth of the training rows, scored by ensembles
at five scales), and a hyperprior (a precision for each tensor, sampled with the weights). The
posterior of each is then sampled by one method at its defaults.

    python benchmarks/prior_scales.py --data energy digits --method hmc
"""

import argparse
import time
from functools import partial
from typing import Any

import jax
import numpy as np
import pandas

import bnn_ppl as bnn
from bnn_ppl.sampling.search.prior_scale import prior_scale

SCALES = (0.5, 1.0, 2.0, 4.0, 8.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=["energy", "digits"])
    parser.add_argument("--method", default="hmc")
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 2)
    rows = []
    for name in args.data:
        data = bnn.data.load(name, split=0)
        for way, find in (("evidence", evidence), ("held out", held_out), ("hyperprior", None)):
            began = time.perf_counter()
            scale = None if find is None else find(data)
            seconds = time.perf_counter() - began
            row = {"data": name, "way": way, "scale": scale, "seconds to find": seconds}
            rows.append(row | sampled(data, prior_of(scale), args.method))
            print(rows[-1], flush=True)
    print(pandas.DataFrame(rows).to_markdown(index=False, floatfmt=".3g"))


def prior_of(scale: float | None) -> Any:
    # The hyperprior's precisions are about those of fan_in, but each tensor has its own.
    return bnn.priors.hierarchical(1.0) if scale is None else bnn.priors.fan_in(scale)


def conditioned(data: Any, rows: Any, prior: Any) -> bnn.Posterior:
    num_inputs = int(np.prod(rows.x.shape[1:]))
    if data.num_classes is None:
        net = partial(bnn.nets.MLP, num_inputs, (50,), 1)
        return bnn.condition(bnn.models.regressor(net, prior), rows)
    net = partial(bnn.nets.MLP, num_inputs, (50,), data.num_classes)
    return bnn.condition(bnn.models.classifier(net, prior), rows)


def evidence(data: Any) -> float:
    posterior_at = lambda scale: conditioned(data, data.train, prior_of(scale))  # noqa: E731
    return prior_scale(jax.random.key(0), posterior_at)


def held_out(data: Any) -> float:
    order = np.random.default_rng(0).permutation(len(data.train.y))
    kept, scored = (
        bnn.data.Data(*(np.asarray(leaf)[part] for leaf in data.train))
        for part in (order[len(order) // 10 :], order[: len(order) // 10])
    )

    def nll(scale: float) -> float:
        posterior = conditioned(data, kept, prior_of(scale))
        method = bnn.descent(posterior)
        draws = bnn.run(jax.random.key(0), posterior, method, num_chains=4, progress=False)
        return -float(bnn.predict(posterior, draws, scored).log_prob.mean())

    return min(SCALES, key=nll)


def sampled(data: Any, prior: Any, name: str) -> dict[str, Any]:
    posterior = conditioned(data, data.train, prior)
    began = time.perf_counter()
    method = getattr(bnn, name)(posterior)
    draws = bnn.run(jax.random.key(0), posterior, method, num_chains=4, progress=False)
    seconds = time.perf_counter() - began
    scores = bnn.metrics.summary(
        bnn.predict(posterior, draws, data.test), data.test.y, scale=data.y_scale
    )
    kept = ("rmse", "accuracy", "nll", "ece", "coverage_90")
    found = {score: float(scores[score]) for score in kept if score in scores}
    return found | {"seconds": seconds, "verdict": draws.attrs["verdict"][:60]}


if __name__ == "__main__":
    main()
