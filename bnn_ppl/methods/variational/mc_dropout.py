"""Monte Carlo dropout: a distribution over dropout masks of a network."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bnn_ppl.methods.defaults import TRAINED
from bnn_ppl.methods.ensembles.descent import descent_to_mode
from bnn_ppl.methods.layers.layer_calls import network_of
from bnn_ppl.methods.layers.layers import Layer, tapped
from bnn_ppl.methods.layers.per_example_gradients import row_layers
from bnn_ppl.methods.method import Method, describe, step_info
from bnn_ppl.methods.schedules import Schedule
from bnn_ppl.methods.training.optimizers import optimizer_of
from bnn_ppl.methods.variational.natural_gradient import trained
from bnn_ppl.model.posterior import Posterior

Tree = Any


class DropoutState(NamedTuple):
    """The weights without dropout, and the state of their optimiser."""

    position: Tree
    optimizer: Tree


@describe(
    TRAINED,
    gives="dropout masks",
    cost="1.05 Adam steps",
    bias="its spread follows the dropout rate, not the data",
)
def mc_dropout(
    posterior: Posterior,
    optimizer: optax.GradientTransformation | None = None,
    *,
    learning_rate: float | Schedule | None = None,
    rate: float | Mapping[str, float] = 0.01,
) -> Method:
    r"""Monte Carlo dropout: train with dropout, and draw dropout masks.

    .. math:: q(w): W = \mathrm{diag}(z / (1 - p)) M, \quad z_k \sim \mathrm{Bernoulli}(1 - p),
        \qquad M \gets M + \mathrm{optimizer}(\nabla E_q[\log \pi(w)] / N)

    This maximises the evidence lower bound for a q that drops whole rows of a layer's kernel, in
    the limit of point masses, where the entropy of q does not depend on M (Gal & Ghahramani, 2016).
    During training each row of a batch has its own masks in the likelihood; the log prior is
    evaluated at a draw of q, so any prior is allowed. A draw is a network with one mask, the same
    for all inputs. Convolutions drop whole channels (Gal & Ghahramani, 2015). Biases are not
    dropped. Train in warm-up and draw without stepping::

        run(key, posterior, mc_dropout(posterior), num_warmup=20_000, batch_size=128,
            num_draws=100, thin=0)

    Parameters
    ----------
    posterior
        Posterior to approximate; its network must have dense or convolutional layers.
    optimizer
        Any optax optimiser; by default ``optax.adam(learning_rate)``. To resume a run, pass an
        equal one.
    learning_rate
        Learning rate of Adam, a number or a schedule. None: tuned by trying eight values; training
        stops automatically (as in :func:`bnn_ppl.descent`).
    rate
        Dropout rate p, the probability that an input of a layer is dropped: a number, for all
        layers but the first of the network, whose inputs are the data; or a dict by layer
        ("net.layers.1"), with 0 for those not named. In a partly Bayesian network only the inputs
        of random kernels are dropped.

    Raises
    ------
    ValueError
        If a number is out of range, a layer is unknown or called twice, or the model has no layers
        to apply dropout to.
    """
    rates = _rates(posterior, rate)
    finds_rate, recorded, optimizer = optimizer_of(optimizer, learning_rate, posterior.init)

    def init(key: jax.Array, position: Tree, batch: Any) -> DropoutState:
        del key, batch
        return DropoutState(position, optimizer.init(position))

    def loss(position: Tree, key: jax.Array, batch: Any) -> jax.Array:
        rows_key, prior_key = jax.random.split(key)
        with tapped(_dropout_tap(rows_key, rates)):
            rows = posterior.log_likelihood(position, batch)
        terms = posterior.density.terms(_dropped(prior_key, rates, position), batch)
        total = posterior.density.total(terms._replace(log_likelihood=rows), batch)
        return -total / posterior.num_rows

    def step(
        key: jax.Array, state: DropoutState, batch: Any, rate: jax.Array | float = 1.0
    ) -> tuple[DropoutState, dict]:
        value, gradient = jax.value_and_grad(loss)(state.position, key, batch)
        updates, inner = optimizer.update(gradient, state.optimizer, state.position)
        position = optax.tree.add_scale(state.position, rate, updates)
        return DropoutState(position, inner), step_info(-value * posterior.num_rows)

    def draw(key: jax.Array, state: DropoutState) -> Tree:
        return _dropped(key, rates, state.position)

    def fitted(state: DropoutState) -> dict[str, jax.Array]:
        spread = {f"{name}.kernel": (p / (1 - p)) ** 0.5 for name, p in rates.items()}
        loc = {f"{site}.loc": w for site, w in state.position.items()}
        return loc | {
            f"{site}.scale": jnp.abs(w) * spread.get(site, 0.0)
            for site, w in state.position.items()
        }

    settings = {"method": "mc_dropout", **recorded, "rate": rates}
    method = Method(
        init,
        step,
        draw,
        settings=settings,
        fitted=fitted,
        logdensity=posterior.logdensity,
        draws_from="dropout",
        raw_rows=True,
    )
    if not finds_rate:
        return method
    return trained(posterior, method, step, "lp", descent_to_mode(posterior))


def _rates(posterior: Posterior, rate: float | Mapping[str, float]) -> dict[str, float]:
    """Dropout rates by layer, without the layers whose rate is 0."""
    layers = row_layers(posterior)
    names = [name for name, layer in layers.items() if "kernel" in layer.sites]
    if not names:
        raise ValueError(
            "got a model that calls no nnx.Linear or nnx.Conv with unconstrained weights on "
            "(rows, ...), expected at least one, to drop its inputs: use another method"
        )
    first = {network_of(name): name for name in reversed(layers)}.values()  # sees the data
    inner = [name for name in names if name not in first]
    rates = dict(rate) if isinstance(rate, Mapping) else dict.fromkeys(inner, rate)
    for name, share in rates.items():
        if name not in names:
            raise ValueError(f"got a rate for {name!r}, expected one of {', '.join(names)}")
        if not 0 <= share < 1:
            raise ValueError(f"got rate={share}, expected a number from 0 to below 1")
    if not any(rates.values()):
        raise ValueError(
            "got no layer with a rate above 0, expected at least one: if the network has only one "
            "layer, name it in rate; without dropout use descent"
        )
    return {name: float(share) for name, share in rates.items() if share}


def _dropout_tap(key: jax.Array, rates: dict[str, float]) -> Any:
    """Make a tap that applies dropout to the inputs of layers, with a mask for each row."""

    def tap(name: str, layer: Layer, inputs: jax.Array) -> jax.Array:
        if name not in rates:
            return layer(inputs)
        if getattr(layer, "feature_group_count", 1) != 1:
            raise ValueError(
                f"got the grouped convolution {name}, expected one group, in which every output "
                "sees all channels: give it no rate"
            )
        shape = (inputs.shape[0], *(1,) * (inputs.ndim - 2), inputs.shape[-1])
        return layer(inputs * _mask(_own_key(key, rates, name), rates[name], shape, inputs.dtype))

    return tap


def _dropped(key: jax.Array, rates: dict[str, float], position: Tree) -> Tree:
    """Drop rows of kernels, which are inputs of their layers."""
    new = dict(position)
    for name, rate in rates.items():
        kernel = position[f"{name}.kernel"]
        shape = (kernel.shape[-2], 1)
        new[f"{name}.kernel"] = kernel * _mask(
            _own_key(key, rates, name), rate, shape, kernel.dtype
        )
    return new


def _own_key(key: jax.Array, rates: dict[str, float], name: str) -> jax.Array:
    return jax.random.fold_in(key, list(rates).index(name))


def _mask(key: jax.Array, rate: float, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Draw a mask of 0 for dropped inputs and 1 / (1 - rate) for the others: 1 on average."""
    return jax.random.bernoulli(key, 1 - rate, shape).astype(dtype) / (1 - rate)
