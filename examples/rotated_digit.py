"""A network is as confident about a digit on its side, or one it has never seen, as about any.

One network is trained on the digits 0 to 6 among 160 images of MNIST, which ship with the package,
in three ways: one best fit, an ensemble of them, and HMC. Then

- the first 1 among the test images is rotated, step by step, to 180 degrees;
- the network is shown test images of 7, 8 and 9, none of which it was trained on.

Prints, for each way, the entropy of the prediction for the upright 1 and for its most uncertain
angle (in nats, with the epistemic part of the latter: what the draws disagree about), and how well
the entropy separates unseen digits from learnt ones (AUROC; 0.5 is chance). On so small a problem
all members of the ensemble find the same function. ``--against kmnist fashion-mnist`` adds other
images (by BNN_PPL_DATA). Plots the probabilities and entropies of the 1 by angle.
"""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import arviz
import jax
import numpy as np
import optax
import tyro

import bnn_ppl as bnn
from bnn_ppl.robustness.corruptions import rotate


@dataclass(frozen=True)
class Config:
    """Settings."""

    num_learnt: int = 7  # digits below this one are learnt
    hidden: tuple[int, ...] = (50,)  # width of each hidden layer
    gain: float = 3.0  # of the prior; at 1.4 the prior outweighs 160 images
    num_members: int = 10  # size of the ensemble
    num_steps: int = 500  # of each best fit
    num_chains: int = 2  # of HMC
    num_warmup: int = 60
    num_draws: int = 60
    angles: tuple[float, ...] = tuple(range(0, 181, 12))  # degrees
    num_test: int = 2000  # test images
    against: tuple[str, ...] = ()  # other image sets
    figure: Path = Path("runs/rotated_digit.png")


def main(config: Config) -> dict[str, float]:
    """Train, rotate and detect; scores by "<way> <score>"."""
    data = bnn.data.load("mnist", subset=160)
    test = bnn.data.Data(*(leaf[: config.num_test] for leaf in data.test))
    (train, _), (learnt, unseen) = parted(config, data.train), parted(config, test)
    net = partial(bnn.nets.MLP, 784, config.hidden, config.num_learnt)
    posterior = bnn.condition(bnn.models.classifier(net, bnn.priors.fan_in(config.gain)), train)
    scale = {"x_mean": data.x_mean, "x_scale": data.x_scale}
    one = tuple(leaf[learnt.y == 1][:1] for leaf in learnt)
    others = {"unseen digits": unseen.x}
    for name in config.against:
        others[name] = bnn.data.out_of_distribution(name, like=data)[: config.num_test]

    tables, scores = {}, {}
    for way, draws in fits(config, posterior).items():
        table = bnn.shift.rotated(posterior, draws, one, angles=config.angles, **scale)
        tables[way], worst = table, table.loc[table["entropy"].idxmax()]
        inside = bnn.predict(posterior, draws, learnt)
        outside = {name: bnn.predict(posterior, draws, (x, None)) for name, x in others.items()}
        told = bnn.shift.detection(inside, outside)
        found = {
            "entropy at first": table["entropy"][0],
            "entropy at worst": worst["entropy"],
            "epistemic share": max(0.0, worst["mutual_information"] / worst["entropy"]),
            "accuracy": bnn.metrics.accuracy(inside, learnt.y),
        }
        for row in told[told["score"] == "entropy"].itertuples():
            found[f"AUROC, {row.against}"] = row.auroc
        print(f"{way:9}" + "".join(f"  {score} {value:.3f}" for score, value in found.items()))
        scores |= {f"{way} {score}": float(value) for score, value in found.items()}
    pixels = one[0] * data.x_scale + data.x_mean
    turned = np.concatenate([rotate(pixels, angle) for angle in config.angles])
    config.figure.parent.mkdir(parents=True, exist_ok=True)
    bnn.plots.rotations(tables, turned[..., 0]).savefig(config.figure, dpi=150)
    return scores


def parted(config: Config, part: bnn.data.Data) -> tuple[bnn.data.Data, bnn.data.Data]:
    """Separate images of the digits to learn from the others."""
    learnt = part.y < config.num_learnt
    return tuple(bnn.data.Data(part.x[which], part.y[which]) for which in (learnt, ~learnt))


def fits(config: Config, posterior: bnn.Posterior) -> dict[str, arviz.InferenceData]:
    """Draws of one best fit, an ensemble of them, and HMC."""
    run = partial(bnn.run, jax.random.key(0), posterior)
    rate = optax.cosine_decay_schedule(1e-2, config.num_steps)
    descent = bnn.descent(posterior, learning_rate=rate)
    ensemble = run(descent, num_chains=config.num_members, num_warmup=config.num_steps, thin=0)
    sample = partial(run, num_warmup=config.num_warmup, num_draws=config.num_draws)
    hmc = sample(bnn.hmc(posterior), num_chains=config.num_chains)
    return {"best fit": ensemble.isel(chain=[0]), "ensemble": ensemble, "HMC": hmc}


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    main(tyro.cli(Config, description=__doc__))
