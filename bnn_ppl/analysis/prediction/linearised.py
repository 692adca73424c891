"""Predictions of a network linearised about given weights."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from flax import nnx
from jax.tree_util import Partial
from numpyro.distributions import Distribution, TransformedDistribution

from bnn_ppl.analysis.prediction.draw_statistics import CENTRE
from bnn_ppl.model.network import changed_networks
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.program.several_targets import Joint
from bnn_ppl.model.trace import Values, innermost
from bnn_ppl.runtime.checks import warn
from bnn_ppl.storage.inference_data import sites_of, with_points_of

if TYPE_CHECKING:
    import arviz

# They keep more arrays that are computed from their location or logits.
_WITH_MORE = (
    dist.AsymmetricLaplaceQuantile,
    dist.NegativeBinomialLogits,
    dist.RelaxedBernoulliLogits,
)


def linearised(
    posterior: Posterior, values: "Mapping[str, Any] | arviz.InferenceData"
) -> Posterior:
    r"""Give the posterior that predicts with its networks linearised about given weights.

    .. math:: f(x, w) \to f(x, w^*) + J(x) (w - w^*), \qquad J(x) = \partial f(x, w^*) / \partial w

    A Gaussian about a mode with the Gauss-Newton curvature approximates the posterior of this
    linearised network rather than of the original one, in which its draws can predict badly (Immer
    et al., 2021). So draws from :func:`bnn_ppl.laplace` predict like this by default, which is the
    same as::

        predict(linearised(posterior, draws), draws, data)

    Each chain has its own weights w*, and their average is that of a mixture of Laplace
    approximations. Sites outside networks keep their drawn values.

    In a model without :func:`bnn_ppl.random_network` the location or the logits of y are
    linearised, in all real-valued sites. If its likelihood has neither, nothing is, with a warning.

    Parameters
    ----------
    posterior
        The posterior that was approximated.
    values
        The weights w*: a dict of arrays by site, or an InferenceData, of which each chain has its
        fitted mean if there is one, else its only draw.

    Returns
    -------
    Posterior
        The same except for ``predictive(values, x)``; densities remain those of the original
        network. Linearised about several chains, it predicts with draws of as many.

    Raises
    ------
    ValueError
        If a site is missing or has another shape, the network has batch normalisation in train
        mode, or there are several draws without a fitted distribution.
    """
    if hasattr(values, "posterior"):
        posterior = with_points_of(values, posterior)
    statistics = posterior.rows.batch_statistics
    if statistics is not None:
        raise ValueError(
            f"got the BatchNorm {statistics.layers[0]} in train mode to linearise, "
            "expected fixed statistics: pass a trained network after .eval()"
        )
    given = _values(posterior.whole, values)
    shapes, real, networks = _sites_of(posterior.whole)
    each = [_checked(shapes, own) for own in given]
    centres = {site: jnp.stack([own[site] for own in each]) for site in each[0]}
    if networks or not _has_parameter(posterior, each[0]):
        real = ()
    weights = [site for network in networks for site in _variables(network)]
    by_name = len(set(weights)) == len(weights) and set(weights) <= set(shapes)
    # Only this function is captured, not the posterior: `predict` caches programs by it, and the
    # cache must not keep the data alive. The centres are numbers of a program, not constants.
    predictive = Partial(partial(_predictive, real, by_name), posterior.predictive, centres)
    return posterior._replace(
        predictive=predictive,
        prior=posterior.prior._replace(open_scale=None),
        sites=posterior.sites._replace(centres=len(each)),
    )


def _predictive(
    real: tuple[str, ...],
    by_name: bool,
    of_model: Callable,
    centres: Values,
    values: Values,
    x: Any,
    *y: Any,
) -> Distribution:
    """Linearise the networks of a model; in one without, y's parameter in the `real` sites.

    Weights that are sites `by_name` are known without a run of the model at the centre.
    """
    count = len(next(iter(centres.values())))
    if count > 1 and CENTRE not in values:
        raise ValueError(
            f"got values of a draw for a posterior linearised about {count} chains, expected the "
            "chain too: linearise about one, draws.isel(chain=[0])"
        )
    number = values.get(CENTRE, 0)
    centre = {site: each[number] for site, each in centres.items()}
    own = {site: value for site, value in values.items() if site != CENTRE}
    if real:
        at = {site: centre[site] for site in real if site in own}  # others are held
        return _of_parameter(lambda values: of_model(values, x, *y), own, at)
    if by_name:
        weights_of: Callable[[_Network], nnx.State] = partial(_named, centre)
    else:
        with _networks_noted() as met:
            of_model(own | centre, x, *y)
        weights_of = partial(_met, iter(met))
    with changed_networks(_linearised_about(weights_of)):
        return of_model(own, x, *y)


class _Network(NamedTuple):
    name: str
    weights: nnx.State


def _variables(network: _Network) -> dict[str, tuple[tuple, nnx.Variable]]:
    """Give the path and the variable of each weight, by the name that its site has if sampled."""
    flat: Any = nnx.to_flat_state(network.weights)
    return {".".join([network.name, *map(str, path)]): (path, leaf) for path, leaf in flat}


def _met(networks: Iterator[_Network], _: _Network) -> nnx.State:
    """Give the weights of the next network, since they are met again in the same order."""
    return next(networks).weights


def _named(centre: Values, network: _Network) -> nnx.State:
    """Give the weights of a network that values have by their names."""
    variables = _variables(network).items()
    return nnx.from_flat_state(
        [(path, leaf.replace(centre[site])) for site, (path, leaf) in variables]
    )


@contextmanager
def _networks_noted() -> Iterator[list[_Network]]:
    """Give the networks as they are met, whose weights need not be sites themselves.

    Two networks may have one name, where their weights are fixed.
    """
    found: list[_Network] = []

    def note(name: str, module: nnx.Module) -> nnx.Module:
        found.append(_Network(name, nnx.state(module, nnx.Param)))
        return module

    with changed_networks(note):
        yield found


def _linearised_about(
    weights_of: Callable[[_Network], nnx.State],
) -> Callable[[str, nnx.Module], Callable]:
    def change(name: str, module: nnx.Module) -> Callable:
        graph, own, rest = nnx.split(module, nnx.Param, ...)  # type: ignore[misc]
        centre = weights_of(_Network(name, own))

        def network(*args: Any, **kwargs: Any) -> Any:
            def outputs(weights: nnx.State) -> Any:
                called: Any = nnx.merge(graph, weights, rest)
                return called(*args, **kwargs)

            return _linear(outputs, own, centre)

        return network

    return change


def _linear(function: Callable, own: Any, at: Any) -> Any:
    """Give the value of a function linearised about another place."""
    at = jax.tree.map(lambda there, here: there.astype(jnp.result_type(here)), at, own)
    away = jax.tree.map(jnp.subtract, own, at)
    return jax.tree.map(jnp.add, *jax.jvp(function, (at,), (away,)))


def _of_parameter(of_values: Callable, own: Values, at: Values) -> Distribution:
    """Linearise the location or the logits of y, with all else as the draw has it."""
    distribution = of_values(own)
    leaves, structure = jax.tree.flatten(distribution)
    known = _parameters(distribution)
    linear = _linear(
        lambda values: [jnp.asarray(each.value) for each in _parameters(of_values(own | values))],
        {site: own[site] for site in at},
        at,
    )
    changed: dict[int, Any] = {}  # by the identity of the array in its place
    for parameter, value in zip(known, linear, strict=True):
        changed |= parameter.changed(value)
    return jax.tree.unflatten(structure, [changed.get(id(leaf), leaf) for leaf in leaves])


class _Parameter(NamedTuple):
    """The location or the logits of a distribution."""

    distribution: Any
    name: str

    @property
    def value(self) -> Any:
        return getattr(self.distribution, self.name)

    def changed(self, value: Any) -> dict[int, Any]:
        """Give the arrays of the distribution with another value, by identity of its own ones."""
        own: Any = self.distribution
        if not isinstance(own, _WITH_MORE):
            return {id(self.value): value}
        arguments = {name: getattr(own, name) for name in own.arg_constraints}
        new = type(own)(**arguments | {self.name: value}, validate_args=False)
        pairs = zip(jax.tree.leaves(own), jax.tree.leaves(new), strict=True)
        return {id(old): leaf for old, leaf in pairs}


def _parameters(distribution: Any) -> list[_Parameter]:
    """Give the parameters to linearise: of several observed sites, those that each has."""
    parameters = [_parameter(part) for part in _parts(distribution)]
    return [each for each in parameters if each]


def _parts(distribution: Distribution) -> list[Distribution]:
    return distribution.parts if isinstance(distribution, Joint) else [distribution]


def _parameter(distribution: Any) -> _Parameter | None:
    """Find the location or the logits that a distribution has; None without."""
    while not isinstance(distribution, TransformedDistribution) and hasattr(
        distribution, "base_dist"
    ):
        distribution = distribution.base_dist
    leaves = jax.tree.leaves(distribution)
    parameters = (_Parameter(distribution, each) for each in ("loc", "logits"))
    known = (each for each in parameters if each.name in vars(distribution))
    return next((each for each in known if any(leaf is each.value for leaf in leaves)), None)


def _has_parameter(posterior: Posterior, values: Values) -> bool:
    """Whether y has a location or logits; warn if not, also of one of several observed sites."""
    found: list[Distribution] = []

    def look(values: Values, rows: tuple) -> None:
        y = rows[1:] if posterior.density.is_of_y else ()
        found.append(posterior.predictive(values, rows[0], *y))

    jax.eval_shape(look, values, posterior.rows.examples[:2])
    parts = _parts(found[0])
    without = [type(innermost(part)).__name__ for part in parts if _parameter(part) is None]
    if without:
        warn(
            "predictions are not linearised: the model has no random_network, and its "
            f"{', '.join(without)} no loc or logits; if it holds a network, they are often too wide"
        )
    return len(without) < len(parts)


def _values(posterior: Posterior, given: Any) -> list[Mapping[str, Any]]:
    """Give the values of each chain's centre."""
    if not hasattr(given, "posterior"):
        return [given]
    draws = sites_of(posterior, given)
    num_chains, num_draws = next(iter(draws.values())).shape[:2]
    if has_centres(posterior, given):
        locs = {site: np.asarray(given["fitted"][f"{site}.loc"]) for site in posterior.sites.names}
        return [
            posterior.constrain({site: jnp.asarray(loc[chain]) for site, loc in locs.items()})
            for chain in range(num_chains)
        ]
    if num_draws != 1:
        raise ValueError(
            f"got {num_draws} draws without a fitted mean to linearise about, expected one of each "
            "chain: select it by draws.isel(draw=[0])"
        )
    only = {site: each.values[:, 0] for site, each in draws.items()}
    return [{site: each[chain] for site, each in only.items()} for chain in range(num_chains)]


def has_centres(posterior: Posterior, draws: Any) -> bool:
    """Whether draws hold the mean of a fitted distribution for each site of a posterior."""
    return "fitted" in draws and all(
        f"{site}.loc" in draws["fitted"] for site in posterior.whole.sites.names
    )


def _sites_of(posterior: Posterior) -> tuple[Values, tuple[str, ...], list[_Network]]:
    """Give the shapes of the sites, those with any real values, and the networks that are met."""
    real: list[str] = []

    def inspect(position: Values) -> Values:
        values = posterior.constrain(position)
        real.extend(site for site in position if values[site] is position[site])
        return values

    with _networks_noted() as at_start:
        start = jax.eval_shape(posterior.init, jax.random.key(0))
    with _networks_noted() as networks:  # of one run of the model, if it needs one
        shapes = jax.eval_shape(inspect, start)
    return shapes, tuple(real), networks or at_start


def _checked(shapes: Values, values: Mapping[str, Any]) -> Values:
    for site, expected in shapes.items():
        got = jnp.shape(values[site]) if site in values else "nothing"
        if got != expected.shape:
            raise ValueError(
                f"got {got} for the site {site!r}, expected an array {expected.shape}: pass one "
                "draw with all sites of this model"
            )
    return {site: jnp.asarray(values[site]) for site in shapes}
