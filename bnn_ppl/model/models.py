"""Ready-made models: a random network and the likelihood of its outputs."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from flax import nnx
from jax.tree_util import Partial
from numpyro.primitives import Messenger

from bnn_ppl.data.tables.roles import apart
from bnn_ppl.model.likelihoods.likelihood import LIKELIHOODS, Likelihood
from bnn_ppl.model.likelihoods.noise_of_x import noise_at
from bnn_ppl.model.likelihoods.noise_of_x import usual_noise_floor as usual_noise_floor
from bnn_ppl.model.network import Prior, random_network
from bnn_ppl.model.prior import priors
from bnn_ppl.runtime.checks import check_count, check_positive

Model = Callable[..., None]
Noise: TypeAlias = float | dist.Distribution | Literal["heteroscedastic", "softplus"]

_OF_X = "heteroscedastic", "softplus"  # noises that depend on x
# Of the network of g, whose values then have a spread of about 0.4 a priori: at 1, noise explains
# what the mean could, and the RMSE on yacht is up to 1.6 times that with constant noise.
_NOISE_GAIN = 0.4


def classifier(net: Any, prior: Prior) -> Model:
    """Build a classification model: the network's outputs are the logits of a categorical.

    Parameters
    ----------
    net
        As in :func:`bnn_ppl.random_network`; maps x (rows, ...) to logits (rows, classes), or
        (rows, height, width, classes) if every pixel has a label.
    prior
        As in :func:`bnn_ppl.random_network`.

    Returns
    -------
    Callable
        ``model(x, y=None)`` with classes y, shape (rows,) or (rows, height, width), whose pixels
        are one event; :func:`bnn_ppl.condition` numbers labels that are not 0, 1, ...
    """

    def model(ready: Any, prior: Prior, x: jax.Array, y: jax.Array | None = None) -> None:
        network = random_network("net", net if ready is None else ready, prior)
        logits = _array(network(x))
        if logits.ndim < 2:
            raise ValueError(
                f"got network outputs of shape {logits.shape}, expected (rows, classes): a logit "
                "for each class, of two classes too"
            )
        with numpyro.plate("data", logits.shape[0]):
            labels = dist.Categorical(logits=logits).to_event(logits.ndim - 2)
            numpyro.sample("y", labels, obs=y)

    return Partial(model, _ready(net), prior)  # whose numbers are arguments of compiled programs


def regressor(
    net: Any,
    prior: Prior,
    noise: Noise | None = None,
    *,
    num_outputs: int = 1,
    covariance: Literal["diagonal", "full"] = "diagonal",
    noise_net: Any = None,
    noise_floor: Any = None,
) -> Model:
    r"""Build a regression model: Gaussian noise about the network's outputs.

    Heteroscedastic noise has the standard deviation

    .. math:: \sigma(x) = \sigma_0 + \tau \exp(\alpha\, g(x)), \qquad
        \tau, \alpha \sim \mathrm{HalfNormal}(1)

    with a floor :math:`\sigma_0`, a level :math:`\tau` (the site ``noise``), an amplitude
    :math:`\alpha` (``noise_amplitude``) and a function g given by a network. With an amplitude of
    0 it is constant noise.

    Parameters
    ----------
    net
        As in :func:`bnn_ppl.random_network`; maps x (rows, ...) to (rows, num_outputs), the means,
        or for noise that depends on x, without `noise_net`, to (rows, 2 num_outputs): the means,
        then g of each output.
    prior
        As in :func:`bnn_ppl.random_network`.
    noise
        Standard deviation of y about the network, in the units of y: a number (known); a
        distribution, its prior (learnt, as the site ``noise``, one for each output);
        ``"heteroscedastic"``, learnt for each x; or ``"softplus"``, the same without floor, level
        and amplitude, :math:`\sigma(x) = \log(1 + e^{g(x)})`. By default learnt under
        :func:`bnn_ppl.priors.noise`.
    num_outputs
        Columns of y.
    covariance
        Covariance of the noise of several outputs: ``"diagonal"``, or ``"full"``,
        :math:`\mathrm{diag}(\sigma)\, C\, \mathrm{diag}(\sigma)` with a learnt correlation matrix
        C, uniform a priori (Lewandowski, Kurowicka & Joe, 2009, with :math:`\eta = 1`); its
        Cholesky factor is the site ``correlation``.
    noise_net
        Network of g for heteroscedastic noise, which maps x to (rows, num_outputs); its weights,
        sites ``noise_net.*``, have the prior ``priors.fan_in(0.4)``. Training fits these to
        held-out rows too, which it cannot do where mean and noise share layers.
    noise_floor
        Smallest standard deviation of heteroscedastic noise, in the units of y; a number, or one
        for each output. By default 0.02, for standardised y. No density can be sharper than the
        resolution of y: for values rounded to multiples of h take at least h / sqrt(12).

    Returns
    -------
    Callable
        ``model(x, y=None)`` with y real, shape (rows,), or (rows, num_outputs) if there are
        several; the outputs of a row are one event.

    Raises
    ------
    ValueError
        If `noise` or `covariance` is none of these, `noise_net` or `noise_floor` is given without
        heteroscedastic noise, the floor is not above 0, or a network has the wrong number of
        outputs.
    TypeError
        If the network gives anything other than an array.
    """
    noise = priors.noise() if noise is None else noise
    _check_noise(noise, num_outputs, covariance)
    of_x = noise if isinstance(noise, str) else None  # how it depends on x
    if of_x != "heteroscedastic":
        _refuse(noise_net=noise_net, noise_floor=noise_floor)
    noise_floor = priors.NOISE_FLOOR if noise_floor is None else noise_floor
    _check_floor(noise_floor, num_outputs)
    in_outputs = of_x is not None and noise_net is None
    nets = net, noise_net

    def model(
        ready: tuple, prior: Prior, noise: Any, floor: Any, x: jax.Array, y: jax.Array | None = None
    ) -> None:
        mean_net, spread_net = (
            given if own is None else own for own, given in zip(ready, nets, strict=True)
        )
        output = _outputs(
            _array(random_network("net", mean_net, prior)(x)), (1 + in_outputs) * num_outputs
        )
        mean = output[:, :num_outputs]
        if of_x == "softplus":
            std = jax.nn.softplus(output[:, num_outputs:])
        elif of_x is not None:
            shape = output[:, num_outputs:] if in_outputs else _spread(spread_net, x, num_outputs)
            std = noise_at(shape, floor)
        elif isinstance(noise, dist.Distribution):
            each = noise if num_outputs == 1 else noise.expand((num_outputs,)).to_event(1)
            std = numpyro.sample("noise", each)
        else:
            std = jnp.asarray(noise, float)
        likelihood = _gaussian(mean, std, covariance)
        with numpyro.plate("data", len(output)):
            numpyro.sample("y", likelihood, obs=y)

    return Partial(model, tuple(map(_ready, nets)), prior, noise, noise_floor)


def with_likelihood(net: Any, prior: Prior, likelihood: Likelihood) -> Model:
    """Build a model with one of the likelihoods by name.

    Parameters
    ----------
    net
        As in :func:`bnn_ppl.random_network`; maps x (rows, ...) to (rows, num_outputs) of the
        likelihood.
    prior
        As in :func:`bnn_ppl.random_network`.
    likelihood
        Such as ``bnn_ppl.likelihoods.poisson(y)``, of the training targets.

    Returns
    -------
    Callable
        ``model(x, y=None)`` with y (rows,), or (rows, targets) of a likelihood of several, which
        are one event. Columns that the likelihood uses beside those of the network stand with x, as
        in ``model((x, {"exposure": days}), y)``, each (rows,).

    Raises
    ------
    ValueError
        If the network has the wrong number of outputs.
    TypeError
        If the network gives anything other than an array.
    """
    num_outputs = likelihood.num_outputs

    def model(ready: Any, prior: Prior, law: Callable, x: Any, y: jax.Array | None = None) -> None:
        x, columns = x if isinstance(x, tuple) else (x, {})
        network = random_network("net", net if ready is None else ready, prior)
        outputs = _outputs(_array(network(x)), num_outputs)
        distribution = jax.tree.map(_in_own_precision, law)(outputs, **columns)
        distribution = distribution.to_event(len(distribution.batch_shape) - 1)
        with numpyro.plate("data", len(outputs)):
            numpyro.sample("y", distribution, obs=y)

    return Partial(model, _ready(net), prior, likelihood.law)


def with_roles(model: Model, roles: Sequence[str], likelihood: Likelihood | None) -> Model:
    """Give a model of rows x whose last columns have roles: weights, or those of a likelihood."""
    known = () if likelihood is None else LIKELIHOODS[likelihood.name].columns
    others = [role for role in roles if role in known]

    def of_rows(model: Any, x: Any, y: Any = None) -> None:
        inputs, columns = apart(x, roles)
        rows = (inputs, {role: columns[role] for role in others}) if others else inputs
        model((rows, columns["weights"]) if "weights" in roles else rows, y)

    return Partial(of_rows, weighted(model) if "weights" in roles else model)


def _ready(net: Any) -> nnx.Module | None:
    """Give a ready network, whose weights are then numbers of the model; None for a factory."""
    return net if isinstance(net, nnx.Module) else None


def _in_own_precision(number: Any) -> Any:
    """Give an array of NumPy in JAX's precision of now.

    JAX would take what it made of the same array before: without the copy, 64 bits have numbers
    rounded to 32, and without the conversion programs that do not compile.
    """
    return jnp.asarray(number.copy()) if isinstance(number, np.ndarray) else number


def _spread(noise_net: Any, x: jax.Array, num_outputs: int) -> jax.Array:
    network = random_network("noise_net", noise_net, priors.fan_in(_NOISE_GAIN))
    return _outputs(_array(network(x)), num_outputs)


def _gaussian(mean: jax.Array, std: jax.Array, covariance: str) -> dist.Distribution:
    """Give the distribution of y (rows,), or (rows, outputs) as one event."""
    num_outputs = mean.shape[1]
    if num_outputs == 1:
        return dist.Normal(mean[:, 0], std[:, 0] if std.ndim == 2 else std)
    if covariance == "diagonal":
        return dist.Normal(mean, std).to_event(1)
    correlation = numpyro.sample("correlation", dist.LKJCholesky(num_outputs))
    scales = jnp.broadcast_to(std, (num_outputs,))
    return dist.MultivariateNormal(mean, scale_tril=scales[:, None] * correlation)


def _check_noise(noise: Any, num_outputs: Any, covariance: Any) -> None:
    check_count("num_outputs", num_outputs)
    if covariance not in ("diagonal", "full"):
        raise ValueError(f"got covariance={covariance!r}, expected 'diagonal' or 'full'")
    of_x = isinstance(noise, str) and noise in _OF_X
    if covariance == "full" and (of_x or num_outputs == 1):
        got = f"{noise} noise" if of_x else "one output"
        raise ValueError(f"got covariance='full' with {got}, expected 'diagonal'")
    if of_x or isinstance(noise, dist.Distribution):
        return
    if isinstance(noise, str) or callable(noise) or np.shape(noise) not in ((), (num_outputs,)):
        raise ValueError(
            f"got noise={noise!r}, expected a number, a distribution, 'heteroscedastic' or "
            "'softplus'"
        )
    if not np.all(np.asarray(noise) > 0):
        raise ValueError(f"got noise={noise}, expected a standard deviation above 0")


def _refuse(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"got {name}, expected it with noise='heteroscedastic': drop it")


def _check_floor(noise_floor: Any, num_outputs: int) -> None:
    if np.shape(noise_floor) not in ((), (num_outputs,)):
        raise ValueError(
            f"got noise_floor={noise_floor!r}, expected a number, or one for each of "
            f"{num_outputs} outputs"
        )
    for floor in np.ravel(noise_floor).tolist():
        check_positive("noise_floor", floor)


def _array(output: Any) -> jax.Array:
    if not hasattr(output, "ndim"):
        raise TypeError(
            f"got a {type(output).__name__} from the network, expected one array of outputs: wrap "
            "the network in a module that returns the array alone"
        )
    return output


def _outputs(output: jax.Array, expected: int) -> jax.Array:
    if output.ndim != 2 or output.shape[1] != expected:
        raise ValueError(
            f"got network outputs of shape {output.shape}, expected (rows, {expected}): one for "
            "each of the num_outputs= columns of y, which is 1 unless given, and for "
            "heteroscedastic noise without noise_net as many again; for a likelihood by name its "
            "num_outputs"
        )
    return output


def weighted(model: Model) -> Model:
    r"""Weight the rows of a model: row i counts as if it were there w_i times.

    .. math:: \log p(y | x, w) = \sum_i w_i \log p(y_i | x_i)

    Parameters
    ----------
    model
        ``model(x, y=None)`` with one observed site.

    Returns
    -------
    Callable
        ``model((x, weights), y=None)``, weights of shape (rows,), at least 0: condition it on
        ``((x, weights), y)``. They do not change predictions, for which any will do.
    """

    def of_rows(model: Model, x: Any, y: jax.Array | None = None) -> None:
        x, weights = x
        with _Weighted(weights):
            model(x, y)

    return Partial(of_rows, model)


class _Weighted(Messenger):
    """Multiply the log-likelihood of each row by its weight, and nothing of all rows together."""

    def __init__(self, weights: jax.Array) -> None:
        super().__init__()
        self.weights = weights

    def process_message(self, message: dict) -> None:
        if message["type"] != "sample" or not message["is_observed"]:
            return
        likelihood, value = message["fn"], jnp.shape(message["value"])
        shape = value[: len(value) - likelihood.event_dim]
        shape = jnp.broadcast_shapes(likelihood.batch_shape, shape)
        if shape[:1] != self.weights.shape[:1]:  # a factor of the prior, or a soft constraint
            return
        weights = self.weights.reshape(-1, *[1] * (len(shape) - 1))
        scale = message["scale"]
        message["scale"] = weights if scale is None else scale * weights
