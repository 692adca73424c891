"""How close approximations come to the posterior of a real network.

Izmailov et al. (2021) sampled a ResNet-20 with filter response normalisation and swish by
full-batch HMC on CIFAR-10, with 512 TPUs, under the prior N(0, 1/5) on every weight, at temperature
1 and without augmentation, and published its predictions. Here two of the paper's baselines are
fitted to the same network, with its batch size of 80: a deep ensemble by SGD, and SGHMC started
from the members of the ensemble.

Needs the images in the folder named by BNN_PPL_DATA (or --data-dir) or through tensorflow-datasets,
and the published predictions in that folder (`bnn_ppl.data.hmc_reference`). The default is 20,480
images and a few epochs, which takes hours on a CPU. The paper's setting: --subset 50000
--num-members 50 --num-epochs 500 --num-burnin-epochs 1000 --num-sampling-epochs 9000 --num-draws
900 --num-chains 5.

Prints, for both methods and for the published HMC, the accuracy, negative log-likelihood and
calibration error on the test images, and the agreement and total variation with the published HMC.
"""

import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import arviz
import jax
import optax
import tyro

import bnn_ppl as bnn


@dataclass(frozen=True)
class Config:
    """Settings."""

    data_dir: Path | None = None  # default: the environment variable BNN_PPL_DATA
    subset: int = 20_480  # training images
    num_test: int = 10_000  # test images, the first ones
    net: str = "ResNet20"  # from bnn_ppl.nets; the reference used this one
    prior_std: float = 0.2**0.5
    batch_size: int = 80
    num_members: int = 2  # size of the ensemble
    num_epochs: int = 20  # of each member
    learning_rate: float = 0.018  # of SGD; the paper's 3e-7 is for a sum over 60,000 rows
    step_size: float = 3e-7  # of SGHMC
    num_chains: int = 2  # of SGHMC
    num_burnin_epochs: int = 5
    num_sampling_epochs: int = 15  # during which the draws are made
    num_draws: int = 15  # of each chain
    folder: Path | None = Path("runs/cifar10_as_in_the_hmc_paper")  # where a stopped run resumes


def main(config: Config) -> dict[str, float]:
    """Fit both and compare with the published HMC; return scores by "<method> <score>"."""
    data = bnn.data.load("cifar10", subset=config.subset, data_dir=config.data_dir)
    reference = bnn.data.hmc_reference("cifar10", data_dir=config.data_dir)
    probs = reference.probs
    if data.source == "tensorflow-datasets":  # which orders the images differently
        probs = probs[reference.tfds_order]
    test = bnn.data.Data(*(leaf[: config.num_test] for leaf in data.test))
    net = partial(getattr(bnn.nets, config.net), data.train.x.shape[1:], 10)
    model = bnn.models.classifier(net, bnn.priors.normal(config.prior_std))
    posterior = bnn.condition(model, data.train)
    predictions = {"published HMC": probs[: config.num_test]} | {
        name: bnn.predict(posterior, draws, test, batch_size=500)
        for name, draws in fits(config, posterior).items()
    }
    table = bnn.compare(predictions, test.y, "published HMC")
    table = table[["accuracy", "nll", "ece", "agreement", "total_variation"]]
    print(table.to_string(float_format="{:.4f}".format))
    return {f"{name} {score}": value for (name, score), value in table.stack().items()}


def fits(config: Config, posterior: bnn.Posterior) -> dict[str, arviz.InferenceData]:
    """Draws of the ensemble and of SGHMC."""
    epoch = posterior.num_rows // config.batch_size
    run = partial(bnn.run, jax.random.key(0), posterior, batch_size=config.batch_size)
    place = {"ensemble": None, "sghmc": None}
    if config.folder is not None:
        place = {name: config.folder / name for name in place}
    rate = optax.cosine_decay_schedule(config.learning_rate, config.num_epochs * epoch)
    ensemble = run(
        bnn.descent(posterior, optax.sgd(rate, momentum=0.9)),
        num_chains=config.num_members,
        num_warmup=config.num_epochs * epoch,
        thin=0,
        folder=place["ensemble"],
    )
    sghmc = run(
        bnn.sghmc(posterior, config.step_size, momentum=0.9),
        init=ensemble,
        num_chains=config.num_chains,
        num_warmup=config.num_burnin_epochs * epoch,
        num_draws=config.num_draws,
        thin=config.num_sampling_epochs * epoch // config.num_draws,
        folder=place["sghmc"],
    )
    return {"ensemble": ensemble, "SGHMC": sghmc}


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    try:
        main(tyro.cli(Config, description=__doc__))
    except FileNotFoundError as missing:
        sys.exit(str(missing))
