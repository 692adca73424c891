"""Predictions of models with several observed sites, by site."""

import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpyro.distributions as dist
from jax.tree_util import Partial

from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.program.several_targets import Targets
from bnn_ppl.model.rows.checks import rows_to_predict
from bnn_ppl.model.rows.given_rows import inputs_and_targets
from bnn_ppl.model.rows.labels import Classes
from bnn_ppl.model.trace import Batch, Position, Terms, Values

if TYPE_CHECKING:
    import xarray

_ROW = "row"  # the dimension that sites share
_NONFINITE = "got NaN or infinite values in .* rows of [xy]"  # a warning of `rows_to_predict`


def of_site(posterior: Posterior, site: str) -> Posterior:
    """Give the part of a posterior that predicts one of several observed sites.

    All functions that predict take it in place of the posterior, with rows x or (x, y), y the
    values of that site.

    Parameters
    ----------
    posterior
        Posterior of a model with several observed sites.
    site
        Name of one of them.

    Returns
    -------
    Posterior
        The same posterior, whose rows and predictions are of that site alone.

    Raises
    ------
    ValueError
        If the model does not observe several sites, or none of this name.
    """
    names = targets_in(posterior).names
    if site not in names:
        raise ValueError(
            f"got site={site!r}, expected one of several observed sites, "
            f"{', '.join(names) or 'of which the model has none'}: see bnn_ppl.condition"
        )
    return view_of(posterior, site)


def check_one_target(posterior: Posterior) -> None:
    """Refuse a posterior of several observed sites where one is to be predicted."""
    names = targets_in(posterior).names
    if names:
        raise ValueError(
            f"got a posterior of the observed sites {', '.join(names)}, expected one of them: pass "
            f"bnn_ppl.of_site(posterior, {names[0]!r})"
        )


def check_one_site(posterior: Posterior, doing: str) -> None:
    """Refuse a model of several observed sites, saying what may be done for each by itself."""
    if posterior.rows.targets is not None:
        raise ValueError(
            f"got a model of {', '.join(posterior.rows.targets.names)}, expected one observed "
            f"site: {doing} by bnn_ppl.of_site"
        )


def predicted_by_site(
    predict: Callable[[Posterior, Any], "xarray.Dataset"],
    posterior: Posterior,
    data: Any,
    first: int | None = None,
) -> "xarray.Dataset":
    """Predict rows site by site, and jointly where y is given; names begin with the site's.

    ``predict(posterior, rows)`` predicts the rows of a posterior with one observed site; `first` is
    the number of the first row, of a part of the rows.
    """
    import xarray

    x, y = inputs_and_targets(data, posterior.rows.examples[0])
    if y is not None and not isinstance(y, Mapping):  # the rows of the posterior itself
        y = targets_in(posterior).unpacked(y)
    columns = None if y is None else targets_in(posterior).packed(y)
    rows_to_predict(jointly(posterior), (x, columns), first)  # warns of all sites once
    found: dict[Any, xarray.DataArray] = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", _NONFINITE)
        for site in targets_in(posterior).names:
            rows = x if y is None else (x, y[site])
            own = predict(view_of(posterior, site), rows)
            names = [str(name) for name in (*own.data_vars, *own.dims) if name != _ROW]
            found |= own.rename({name: f"{site}_{name}" for name in names}).data_vars
        if columns is not None:
            found["log_prob"] = predict(jointly(posterior), (x, columns)).log_prob
    return xarray.Dataset(found)


def of_one_site(prediction: "xarray.Dataset", site: str) -> "xarray.Dataset":
    """Give the prediction of one site from that of all."""
    own = [name for name in prediction.data_vars if str(name).startswith(f"{site}_")]
    chosen = prediction[own]
    names = [str(name) for name in (*chosen.data_vars, *chosen.dims) if name != _ROW]
    return chosen.rename({name: name.removeprefix(f"{site}_") for name in names})


def targets_in(posterior: Posterior) -> Targets:
    """Give how a posterior's y holds several targets; none of one that observes a single site."""
    return posterior.rows.targets or Targets(())


def view_of(posterior: Posterior, site: str) -> Posterior:
    """Give a posterior whose rows and predictions are of one observed site alone.

    Its density stays that of all sites, at all training rows whatever rows it is asked for.
    """
    targets, opened = targets_in(posterior), posterior.prior.open_scale
    x, y = posterior.rows.examples
    own = x, targets.unpacked(y)[site]
    names = next(target.names for target in targets.sites if target.site == site)
    classes = None if names is None else Classes(len(names), names)
    rows = posterior.rows._replace(data=own, examples=own, targets=None, classes=classes, take=None)

    def terms(position: Position, batch: Batch) -> Terms:
        return posterior.density.terms(position, posterior.rows.examples)

    def constrain(position: Position, data: Batch | None = None) -> Values:
        return posterior.constrain(position)

    def unconstrain(values: Values, data: Batch | None = None) -> Position:
        return posterior.unconstrain(values)

    def hold(values: Any) -> Posterior:
        return view_of(posterior.hold(values), site)

    if opened is not None:
        at_scale = opened.hold
        opened = opened._replace(hold=lambda scale: view_of(at_scale(scale), site))
    return posterior._replace(
        predictive=_predictive_of(site, targets, posterior.predictive),
        constrain=constrain,
        unconstrain=unconstrain,
        density=posterior.density._replace(terms=terms),
        prior=posterior.prior._replace(open_scale=opened),
        sites=posterior.sites._replace(hold=hold),
        rows=rows,
        recipe=None,
    )


@lru_cache(maxsize=16)  # what is compiled for a predictive is found again for the same one
def _predictive_of(site: str, targets: Targets, predictive: Callable) -> Callable:
    return Partial(partial(_part, site, targets), predictive)


def jointly(posterior: Posterior) -> Posterior:
    """Give a posterior that takes the columns of y, and predicts them, in place of a dict."""
    rows = posterior.rows._replace(targets=None, take=None)
    return posterior._replace(rows=rows, recipe=None)


def _part(
    site: str, targets: Targets, predictive: Callable, values: Any, x: Any, y: Any = None
) -> dist.Distribution:
    known = () if y is None else (targets.columns_of(site, y),)
    return predictive(values, x, *known).part(site)
