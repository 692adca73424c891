"""The prior of each parameter of a network, or whether it is a number: fixed or optimised."""

import inspect
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import numpyro.distributions as dist

from bnn_ppl.runtime.names import hint

POINT = "point"  # a key of the dict `infer` of a site that is optimised and then held


class Point(NamedTuple):
    """Weights that are optimised under a prior and then held; see :func:`bnn_ppl.priors.point`."""

    prior: Any  # a distribution, or a function (site, shape) -> distribution


SitePrior: TypeAlias = dist.Distribution | Literal["fixed"] | Point
Prior: TypeAlias = SitePrior | Literal["point"] | Mapping[str, Any] | Callable[..., Any]


def flat_prior() -> dist.Distribution:
    """Give the prior of a point without another: a density of 1 everywhere."""
    return dist.ImproperUniform(dist.constraints.real, (), ())


def prior_by_site(
    prior: Prior, name: str, sites: list[str]
) -> Callable[[str, tuple[int, ...]], SitePrior]:
    """Give ``site, shape -> distribution, Point or "fixed"`` for the network `name`."""
    if isinstance(prior, Mapping):
        entries = _by_pattern(prior, name, sites)
        return lambda site, shape: _at_site(entries[site], site, shape)
    if not isinstance(prior, str):
        use = "bnn_ppl.priors.normal(0.3), a dict by site name or a function"
        _check_one(prior.prior if isinstance(prior, Point) else prior, sites, use)
    return lambda site, shape: _at_site(prior, site, shape)


def _by_pattern(prior: Mapping[str, Any], name: str, sites: list[str]) -> dict[str, Any]:
    """Give the entry of each site: that of its name, else of the first pattern that fits it."""
    matched = {key: [site for site in sites if _fits(key, name, site)] for key in prior}
    for key, fitting in matched.items():
        if not fitting:
            raise _fits_nothing(key, sites)
        own = prior[key]
        if not isinstance(own, str):
            one = own.prior if isinstance(own, Point) else own
            _check_one(one, sites, f"a numpyro Distribution for {key!r}")
    found: dict[str, Any] = {}
    # Names first; the order is kept otherwise.
    for key in sorted(matched, key=lambda key: any(letter in key for letter in "*?[")):
        for site in matched[key]:
            found.setdefault(site, prior[key])
    missing = [site for site in sites if site not in found]
    if missing:
        raise ValueError(
            f"got a prior that misses {', '.join(missing)}, expected one for every parameter: "
            "add them, or '*' for all others, or use a function (site_name, shape) -> distribution"
        )
    return found


def _fits(key: str, name: str, site: str) -> bool:
    return fnmatchcase(site, key) or fnmatchcase(site.removeprefix(f"{name}."), key)


def _fits_nothing(key: str, sites: list[str]) -> ValueError:
    if any(f".{site}".find(f".{key}.") >= 0 for site in sites):
        return ValueError(
            f"got a prior for {key!r}, expected a parameter of the net: for all below it use "
            f"'{key}.*'"
        )
    known = ", ".join(sites)
    return ValueError(f"got a prior for {key!r}{hint(key, sites)} expected one of {known}")


def _at_site(chosen: Any, site: str, shape: tuple[int, ...]) -> SitePrior:
    if callable(chosen) and not isinstance(chosen, dist.Distribution):
        chosen = chosen(site, shape)
    if isinstance(chosen, Point):
        return Point(_at_site(chosen.prior, site, shape))
    if chosen == "point":
        return Point(flat_prior())
    if isinstance(chosen, str):
        if chosen != "fixed":
            raise ValueError(
                f"got {chosen!r} as prior of {site!r}, expected 'fixed', 'point' or a distribution"
            )
    elif not isinstance(chosen, dist.Distribution):
        raise _not_a_prior(chosen, f"a numpyro Distribution for {site!r}")
    return chosen


def _check_one(prior: Any, sites: list[str], use: str) -> None:
    """Refuse what is neither a distribution nor a function of sites of this network."""
    if isinstance(prior, dist.Distribution):
        return
    if not callable(prior):
        raise _not_a_prior(prior, use)
    _check_takes_sites(prior)
    _check_has_site(prior, sites)


def _check_takes_sites(prior: Callable) -> None:
    """Refuse a class or function that was meant to be called, such as ``priors.normal``."""
    function = prior.func if isinstance(prior, partial) else prior
    name = getattr(function, "__name__", type(function).__name__)
    try:
        inspect.signature(prior).bind("site", ())
        takes_sites = not isinstance(prior, type)
    except ValueError:  # no signature to read
        return
    except TypeError:
        takes_sites = False
    if not takes_sites:
        raise TypeError(
            f"got {name} as prior, expected a distribution or a function (site_name, shape) -> "
            f"distribution: call it, as in {name}(...)"
        )


def _check_has_site(prior: Callable, sites: list[str]) -> None:
    """Refuse a prior of one kernel, such as ``priors.empcov``, for a network without it."""
    site = getattr(prior, "site", None)
    if site is not None and site not in sites:
        raise ValueError(
            f"got a prior for {site!r}, expected a parameter of the net: the sites are "
            f"{', '.join(sites)}; pass one as site="
        )


def _not_a_prior(got: Any, use: str) -> TypeError:
    return TypeError(f"got a {type(got).__name__} as prior, expected a distribution: use {use}")
