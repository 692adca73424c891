"""A trained ResNet-20 made partly Bayesian: its head by NUTS, its last block, adapters.

    python benchmarks/head.py train --folder runs/resnet20
    python benchmarks/head.py head --folder runs/resnet20

The network is trained on the first 5,000 images of CIFAR-10, with crops and flips. Then, on the
same images, the others of its weights fixed: NUTS on the head, SGHMC on the last block with the
head, and Laplace's approximation, linearised, of rank-4 adapters in these. Chosen on the next 5,000
training images, by NLL: the temperature that the trained network's logits are divided by, the scale
of the head's prior, and the temperature of NUTS's posterior. Each prints scores on the 10,000 test
images.
"""

import argparse
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import bnn_ppl as bnn

NUM_TRAIN, NUM_HELD_OUT, RANK = 5_000, 5_000, 4
BATCH, EPOCHS, RATE = 64, 30, 2e-3
SCALES = (0.05, 0.1, 0.15, 0.2, 0.3)  # of the head's prior
TEMPERATURES = (1.0, 4.0, 16.0)  # of its posterior
NUM_RESAMPLES = 500
NET = partial(bnn.nets.ResNet20, (32, 32, 3), 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    steps = {"train": train, "trained": trained, "head": head, "block": block, "lora": adapters}
    parser.add_argument("step", choices=list(steps))
    parser.add_argument("--folder", type=Path, default=Path("runs/resnet20"))
    parser.add_argument("--scale", type=float, help="of the prior of head and block, if known")
    args = parser.parse_args()
    data = bnn.data.load("cifar10", subset=20_480)
    if args.step == "train":
        return train(data, args.folder)
    net = bnn.nets.load_weights(NET, args.folder)
    return steps[args.step](data, net, args.scale)


def train(data, folder: Path) -> None:
    posterior = conditioned(data, NET, bnn.priors.normal(0.5))
    num_steps = EPOCHS * (NUM_TRAIN // BATCH)
    rate = optax.cosine_onecycle_schedule(num_steps, RATE)
    method = bnn.augmentation.augmented(
        bnn.descent(posterior, learning_rate=rate), bnn.augmentation.crop_and_flip
    )
    sizes = {"num_warmup": num_steps, "batch_size": BATCH, "num_draws": 1, "thin": 0}
    bnn.run(jax.random.key(0), posterior, method, folder=folder, **sizes)


def trained(data, net, _) -> None:
    probs, temperature, scaled = of_trained(data, net)
    train_logits = outputs(net, data.train.x[:NUM_TRAIN])
    print("accuracy in training", np.mean(train_logits.argmax(1) == data.train.y[:NUM_TRAIN]))
    report("trained network", probs, data.test.y)
    report(f"at temperature {temperature:.2f}", scaled, data.test.y)


def of_trained(data, net) -> tuple[np.ndarray, float, np.ndarray]:
    """Probabilities of test rows, the temperature of least NLL held out, probabilities at it."""
    x, y = held_out_rows(data)
    temperature = bnn.metrics.fit_temperature(jax.nn.softmax(outputs(net, x)), y)
    logits = outputs(net, data.test.x)
    return jax.nn.softmax(logits), temperature, jax.nn.softmax(logits / temperature)


def head(data, net, scale: float | None) -> None:
    """NUTS, with the scale and temperature that do best on the held-out images."""
    if scale is None:
        losses = {s: loss_of_mode(data, net, s) for s in SCALES}
        print("NLL held out, by scale of the prior:", losses, flush=True)
        scale = min(losses, key=losses.get)
    found = [nuts_on_head(data, net, scale, temperature) for temperature in TEMPERATURES]
    y = held_out_rows(data)[1]
    held_out, probs = min(found, key=lambda both: bnn.metrics.nll(both[0], y))
    report("the one of least NLL held out", probs, data.test.y)
    temperature = bnn.metrics.fit_temperature(held_out, y)
    scaled = jax.nn.softmax(np.log(probs) / temperature)
    report(f"its probabilities at temperature {temperature:.2f}", scaled, data.test.y)
    of_network = of_trained(data, net)[2]
    beside("the draws", probs, of_network, data.test.y)
    beside("their probabilities, scaled", scaled, of_network, data.test.y)


def nuts_on_head(data, net, scale: float, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Print how NUTS mixes and scores; give probabilities of held-out rows and of test rows."""
    prior = {"output.*": bnn.priors.normal(scale), "*": "fixed"}
    posterior = conditioned(data, net, prior, temperature)
    began = time.perf_counter()
    method = bnn.nuts(posterior)
    draws = bnn.run(
        jax.random.key(0), posterior, method, num_chains=4, num_warmup=150, num_draws=150
    )
    minutes = (time.perf_counter() - began) / 60
    functions = bnn.function_draws(posterior, draws, data.test.x[:200])
    rhat = bnn.diagnostics.summary(draws, functions).loc["function", "rhat_95"]
    x, y = held_out_rows(data)
    held_out, probs = (
        bnn.predict(posterior, draws, rows)["probs"].values for rows in ((x, y), data.test)
    )
    print(f"scale {scale}, temperature {temperature:g}: {minutes:.1f} min, R-hat (95 %) {rhat:.4f},"
          f" NLL held out {bnn.metrics.nll(held_out, y):.4f}")  # fmt: skip
    report(f"NUTS on the head, temperature {temperature:g}", probs, data.test.y)
    return held_out, probs


def beside(name: str, probs, other, y) -> None:
    """Print differences from the network at its temperature, standard errors by the bootstrap."""
    rng = np.random.default_rng(0)
    resamples = [rng.integers(len(y), size=len(y)) for _ in range(NUM_RESAMPLES)]
    probs, other, y = np.asarray(probs), np.asarray(other), np.asarray(y)
    for score_name in ("nll", "ece"):
        score = getattr(bnn.metrics, score_name)
        errors = [score(probs[i], y[i]) - score(other[i], y[i]) for i in resamples]
        difference = score(probs, y) - score(other, y)
        print(f"{name}, difference in {score_name} from the network at its temperature: "
              f"{difference:.4f} ± {np.std(errors):.4f}")  # fmt: skip


def loss_of_mode(data, net, scale: float) -> float:
    posterior = conditioned(data, net, {"output.*": bnn.priors.normal(scale), "*": "fixed"})
    draws = bnn.run(jax.random.key(1), posterior, bnn.descent(posterior))
    held_out = held_out_rows(data)
    return float(bnn.metrics.nll(bnn.predict(posterior, draws, held_out), held_out[1]))


def block(data, net, scale: float | None) -> None:
    prior = {"output.*": bnn.priors.normal(scale or 0.5), "blocks.8.*": bnn.priors.normal(0.5)}
    posterior = conditioned(data, net, prior | {"*": "fixed"})
    began = time.perf_counter()
    sizes = {"num_warmup": 1_000, "num_draws": 30, "thin": 30, "batch_size": BATCH}
    start = mode(posterior)
    draws = bnn.run(jax.random.key(0), posterior, bnn.sghmc(posterior), init=start, **sizes)
    print(f"SGHMC on the last block: {(time.perf_counter() - began) / 60:.1f} min")
    report("SGHMC on the last block", bnn.predict(posterior, draws, data.test), data.test.y)


def adapters(data, net, _) -> None:
    net = bnn.nets.low_rank(net, RANK, where=("blocks.8.*", "output"))
    prior = {"*.lora_?.kernel": bnn.priors.normal(0.5), "*": "fixed"}
    posterior = conditioned(data, net, prior)
    began = time.perf_counter()
    method = bnn.laplace(posterior, prior_precision="marginal_likelihood")
    draws = bnn.run(jax.random.key(1), posterior, method, num_draws=30, init=mode(posterior))
    print(f"Laplace on rank-4 adapters: {(time.perf_counter() - began) / 60:.1f} min")
    prediction = bnn.predict(posterior, draws, data.test, batch_size=250)
    report("Laplace on rank-4 adapters", prediction, data.test.y)


def mode(posterior):
    """Move from the trained weights by 500 steps of Adam."""
    sizes = {"num_warmup": 500, "batch_size": 256, "num_draws": 1, "thin": 0}
    descent = bnn.descent(posterior, learning_rate=1e-3)
    return bnn.run(jax.random.key(0), posterior, descent, **sizes)


def conditioned(data, net, prior, temperature: float = 1.0):
    rows = data.train.x[:NUM_TRAIN], data.train.y[:NUM_TRAIN]
    return bnn.condition(bnn.models.classifier(net, prior), rows, temperature=temperature)


def held_out_rows(data):
    chosen = slice(NUM_TRAIN, NUM_TRAIN + NUM_HELD_OUT)
    return data.train.x[chosen], data.train.y[chosen]


def outputs(net, x) -> np.ndarray:
    call = jax.jit(lambda x: net(x))
    return np.concatenate([call(jnp.asarray(x[i : i + 500])) for i in range(0, len(x), 500)])


def report(name: str, prediction, y) -> None:
    scores = {s: float(getattr(bnn.metrics, s)(prediction, y)) for s in ("accuracy", "nll", "ece")}
    print(f"| {name} | " + " | ".join(f"{s:.4f}" for s in scores.values()) + " |", flush=True)


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 2)
    main()
