"""Which film reviews is a text classifier unsure about? A single best fit does not know.

Izmailov et al. (2021) sampled a CNN-LSTM of 2,700,098 weights on the film reviews of IMDB (the
last 100 tokens of each, 20,000 training rows) under the prior N(0, 1/40). Their full-batch HMC took
30 million epochs; here are two of their baselines with the same model, data and batch size of 80: a
deep ensemble by SGD, and SGHMC started from the members of the ensemble.

Needs imdb/imdb_len100.npz in the folder named by BNN_PPL_DATA (or --data-dir); bnn_ppl's
data/files/NOTICE.md describes its contents. The default is 2,000 rows and a few epochs, which takes
minutes. The paper's setting: --subset 20000 --num-members 50 --num-epochs 500 --num-burnin-epochs
1000 --num-sampling-epochs 9000 --num-draws 900 --num-chains 5.

Prints, for one member, the ensemble and SGHMC, the accuracy, negative log-likelihood and
calibration error on test reviews, and the agreement and total variation with SGHMC.
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
    subset: int = 2_000  # training rows
    num_test: int = 5_000  # test rows, the first ones
    embedding_size: int = 128
    filters: int = 64  # of the convolution
    units: int = 128  # of the LSTM
    prior_std: float = 40**-0.5
    batch_size: int = 80
    num_members: int = 2  # size of the ensemble
    num_epochs: int = 20  # of each member
    learning_rate: float = 0.1  # of SGD, on the mean over rows
    step_size: float = 1e-6  # of SGHMC
    num_chains: int = 2  # of SGHMC
    num_burnin_epochs: int = 5
    num_sampling_epochs: int = 15  # during which the draws are made
    num_draws: int = 15  # of each chain
    folder: Path | None = Path("runs/imdb_as_in_the_hmc_paper")  # where a stopped run resumes


def main(config: Config) -> dict[str, float]:
    """Fit both; scores by "<method> <score>"."""
    data = bnn.data.load("imdb", subset=config.subset, data_dir=config.data_dir)
    test = bnn.data.Data(*(leaf[: config.num_test] for leaf in data.test))
    net = partial(
        bnn.nets.CNNLSTM, data.train.x.shape[1:], 2, embedding_size=config.embedding_size,
        filters=config.filters, units=config.units,
    )  # fmt: skip
    model = bnn.models.classifier(net, bnn.priors.normal(config.prior_std))
    posterior = bnn.condition(model, data.train)
    predictions = {
        name: bnn.predict(posterior, draws, test, batch_size=500)
        for name, draws in fits(config, posterior).items()
    }
    table = bnn.compare(predictions, test.y, "SGHMC")
    table = table[["accuracy", "nll", "ece", "agreement", "total_variation"]]
    print(table.to_string(float_format="{:.4f}".format))
    return {f"{name} {score}": value for (name, score), value in table.stack().items()}


def fits(config: Config, posterior: bnn.Posterior) -> dict[str, arviz.InferenceData]:
    """Draws of one member, of the ensemble and of SGHMC."""
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
    return {"one member": ensemble.isel(chain=[0]), "ensemble": ensemble, "SGHMC": sghmc}


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    try:
        main(tyro.cli(Config, description=__doc__))
    except FileNotFoundError as missing:
        sys.exit(str(missing))
