"""A posterior: pure functions of unconstrained positions, and what they are of."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpyro.distributions as dist

from bnn_ppl.data.streams.streams import Stream
from bnn_ppl.model.normalisation.batch_statistics import BatchStatistics
from bnn_ppl.model.prior.open_scale import OpenScale
from bnn_ppl.model.prior.prior_summary import Precision, PriorSummary
from bnn_ppl.model.recipe import Recipe
from bnn_ppl.model.rows.features import FixedPart
from bnn_ppl.model.rows.labels import Classes
from bnn_ppl.model.rows.streamed_rows import StreamedRows
from bnn_ppl.model.trace import Array, Batch, Data, Position, Terms, Values
from bnn_ppl.runtime.machines.devices import MatmulPrecision

if TYPE_CHECKING:
    from bnn_ppl.model.program.several_targets import Targets


class Subspace(NamedTuple):
    """What a posterior that :func:`bnn_ppl.subspace` gives is a part of."""

    whole: "Posterior"
    settings: Mapping[str, Any]  # recorded with its draws


class Prior(NamedTuple):
    """What a posterior knows of its model's prior.

    Attributes
    ----------
    draw
        ``key, data=data -> values``: every site drawn from the model's prior, untempered.
    summary
        Gives `std` and `precisions`, which are computed when they are first asked for.
    std
        Dict from site to scalar: the standard deviation of the tempered prior (root mean square
        over the site's elements; times sqrt(T) where T divides the prior), the natural unit of
        length for samplers. 1 where it is infinite or unknown, and for constrained sites.
    precisions
        Dict from the site of a precision to its Gamma prior, for sites that a model marks with
        ``infer={"precision_of": site}``, as :func:`bnn_ppl.priors.hierarchical` does.
    open_scale
        What to do about the scale that priors leave open
        (:class:`bnn_ppl.model.prior.open_scale.OpenScale`); None if there is no such prior, or its
        scale is held.
    scale
        The scale at which such priors are held; None otherwise.
    """

    draw: Callable[..., Values]
    summary: Callable[[], PriorSummary]
    open_scale: OpenScale | None = None
    scale: Any = None

    @property
    def std(self) -> dict[str, Array]:
        """Give the standard deviations, see above."""
        return self.summary().std

    @property
    def precisions(self) -> dict[str, Precision]:
        """Give the priors of precisions, see above."""
        return self.summary().precisions


class Density(NamedTuple):
    """The log-density of a posterior as a sum of terms, and how it is computed.

    Attributes
    ----------
    terms
        ``position, batch -> Terms``: the terms of the log-density.
    total
        ``terms, batch -> scalar``: the tempered log-density of the terms, the likelihood scaled
        from the batch to all rows: ``logdensity`` is ``total(terms(position, batch), batch)``.
        Methods that replace a term, or want one part alone, pass terms of their own.
    temperature
        T; 1 is the Bayes posterior.
    tempered
        ``"posterior"`` or ``"likelihood"``.
    microbatch
        Rows that a device works on at a time; None for all of a batch.
    precision
        Precision of matrix products and convolutions, in the posterior's functions and whatever is
        computed with it; None for that of JAX's configuration when they are traced, or else
        "highest".
    is_of_y
        Whether y's distribution is another one where y is known, as of censored or masked y:
        ``predictive(values, x, y)`` then gives it.
    observed
        ``x, y -> value``: what the observed site has for its value, where that is of another shape
        than y, such as a column of it; None where it is y.
    factors
        Names of factors of the prior, and of latent sites that are scaled or masked:
        ``prior.draw`` knows nothing of these.
    is_whole
        Whether one of these is of all rows together: only batches of all rows will do.
    """

    terms: Callable[[Position, Batch], Terms]
    total: Callable[[Terms, Batch], Array]
    temperature: float
    tempered: str
    microbatch: int | None
    precision: MatmulPrecision | None
    is_of_y: bool = False
    observed: Callable[[Any, Array], Array] | None = None
    factors: tuple[str, ...] = ()
    is_whole: bool = False

    @property
    def needs_y(self) -> bool:
        """Whether to score y takes more than its distribution at x and y itself."""
        return self.is_of_y or self.observed is not None

    def value_of(self, x: Any, y: Array) -> Array:
        """Give what is observed of y, by which predictions are scored."""
        return y if self.observed is None else self.observed(x, y)

    @property
    def prior_temperature(self) -> float:
        """What divides the log prior density."""
        return self.temperature if self.tempered == "posterior" else 1.0


class TrainingRows(NamedTuple):
    """The rows that a posterior is conditioned on.

    Attributes
    ----------
    data
        The pair (x, y) conditioned on, or the stream of rows.
    num
        Rows in `data`.
    examples
        Rows (x, y) in memory: all of `data`, or at most 1,024 of a stream, spread evenly. The
        posterior's functions that have ``data=data`` take these.
    full_batch
        The batch of all rows: `data`, or what reads those of a stream chunk by chunk
        (:class:`bnn_ppl.model.rows.streamed_rows.StreamedRows`), for the log-density and its
        gradient. ``log_likelihood`` then has the sum of all rows, and what it has been rounded
        by, (2,).
    fixed_part
        ``() -> FixedPart or None``: what its likelihood needs of x alone, where that is worth being
        computed once. Such :class:`bnn_ppl.model.rows.features.Features` may stand for x in
        batches.
    stored_features
        ``progress=False -> Stream or None``: the rows with these features, of a folder where they
        are computed if they are not there, and progress is shown if asked for; None unless
        :func:`condition` was given one.
    classes
        The classes that y is one of, and their names if the labels were not 0, 1, ...; None for
        other models.
    batch_statistics
        For networks with batch normalisation in train mode: the statistics of the training rows, by
        which `predictive` normalises, in place of those of the batch. None for other models.
    targets
        For a model with several observed sites: how the columns of y hold the values of each. None
        for other models.
    groups
        The group of each row (rows,), where :func:`condition` was given them; None otherwise.
    take
        ``numbers -> Posterior``: the same posterior of some of these rows alone, in memory; its
        points, and the scale of its prior, are as open as those of this one. None for a part of a
        posterior, such as that of one of several observed sites.
    """

    data: Data | Stream
    num: int
    examples: Data
    full_batch: Data | StreamedRows
    fixed_part: Callable[[], FixedPart | None]
    stored_features: Callable[..., Stream | None]
    classes: Classes | None
    batch_statistics: BatchStatistics | None
    targets: "Targets | None" = None
    groups: np.ndarray | None = None
    take: Callable[[Any], "Posterior"] | None = None


class Sites(NamedTuple):
    """What a position of a posterior is made of.

    Attributes
    ----------
    names
        Names of the sites of a position.
    num_weights
        Unconstrained dimensions.
    value_shapes
        ``() -> dict``: the shape of each site's value.
    points
        Names of the point sites that are not held yet; until then they are sites like any other,
        with a flat prior. :func:`bnn_ppl.fit_points` holds them, as does :func:`bnn_ppl.run`.
    held
        Dict from point site to the value at which it is held.
    hold
        ``values -> Posterior``: the posterior of the other sites, with all points held.
    deterministic
        ``values -> values``: those of the model's ``numpyro.deterministic`` sites, at the training
        rows.
    centres
        The number of weights, one set for each chain, about which `predictive` is linearised (see
        :func:`bnn_ppl.linearised`); 0 where it is that of the network itself.
    subspace
        What it is a part of, for one that :func:`bnn_ppl.subspace` gives: its position is then not
        of the sites of the model, whose values `constrain` gives all the same.
    """

    names: tuple[str, ...]
    num_weights: int
    value_shapes: Callable[[], dict[str, tuple[int, ...]]]
    points: tuple[str, ...]
    held: Values
    hold: Callable[[Mapping[str, Any]], "Posterior"]
    deterministic: Callable[[Values], Values]
    centres: int = 0
    subspace: Subspace | None = None


class Posterior(NamedTuple):
    """A model conditioned on data. Build it with :func:`condition`.

    A *position* is a dict from site name to unconstrained array; *values* are the same sites on
    their own support. A *batch* is a pair ``(x, y)`` of rows, or a triple ``(x, y, mask)``: rows
    where the mask is False are padding. They contribute nothing, but must be copies of real rows,
    so that the model is finite there.

    Attributes
    ----------
    init
        ``key, data=data -> position``: a network starts from its own initialisers, every other site
        at one of 16 draws from its prior, chosen by its likelihood.
    log_likelihood
        ``position, batch -> (rows,)``: log likelihood of each row; 0 for padding.
    logdensity
        ``position, batch -> scalar``: the tempered log posterior density that samplers see, the
        likelihood scaled from the batch to all rows. Unnormalised.
    constrain
        ``position, data=data -> values``.
    unconstrain
        ``values, data=data -> position``.
    predictive
        ``values, x, y=None -> Distribution``: the observed site's distribution at inputs x.
    check
        ``position -> None``: raises ValueError naming the sites and rows where the log-density is
        not finite.
    density
        The log-density as a sum of terms, and its temperature, also ``posterior.temperature``.
    prior
        What it knows of the model's prior: scales, also as ``posterior.prior_std`` and
        ``posterior.open_scale``, and draws.
    rows
        The rows conditioned on; also ``posterior.data`` and ``posterior.num_rows``.
    sites
        What a position is made of; also ``posterior.num_weights``, ``posterior.points`` and
        ``posterior.held``.
    recipe
        How to make it anew with other numbers, if the model has some: see :func:`condition`.

    Methods
    -------
    log_prior
        ``position -> scalar``: log prior density of the constrained values.
    logdensity_from
        ``origin, batch -> scalar, (position -> scalar)``: the log-density at an origin, and the
        function of its change from there, for the Metropolis test.
    hold
        ``values -> Posterior``: the posterior of the other sites, with all points held.
    """

    init: Callable[..., Position]
    log_likelihood: Callable[[Position, Batch], Array]
    logdensity: Callable[[Position, Batch], Array]
    constrain: Callable[..., Values]
    unconstrain: Callable[..., Position]
    predictive: Callable[..., dist.Distribution]
    check: Callable[[Position], None]
    density: Density
    prior: Prior
    rows: TrainingRows
    sites: Sites
    recipe: Recipe | None = None

    def log_prior(self, position: Position) -> Array:
        """Give the log prior density of the constrained values, a scalar."""
        return self.density.terms(position, self.rows.examples).log_prior

    def logdensity_from(
        self, origin: Position, batch: Batch
    ) -> tuple[Array, Callable[[Position], Array]]:
        """Give the log-density at an origin, and the function of its change from there.

        Terms are subtracted one by one before they are summed: in single precision a Metropolis
        test needs that, for many weights or rows.
        """
        terms, total = self.density.terms, self.density.total
        start = terms(origin, batch)

        def change(position: Position) -> Array:
            return total(terms(position, batch).less(start), batch)

        return total(start, batch), change

    def hold(self, values: Mapping[str, Any]) -> "Posterior":
        """Give the posterior of the other sites, with all points held at these values."""
        return self.sites.hold(values)

    @property
    def data(self) -> Data | Stream:
        """The pair (x, y) conditioned on, or the stream of rows."""
        return self.rows.data

    @property
    def num_rows(self) -> int:
        """Rows in `data`."""
        return self.rows.num

    @property
    def num_weights(self) -> int:
        """Unconstrained dimensions."""
        return self.sites.num_weights

    @property
    def whole(self) -> "Posterior":
        """The posterior of all sites: itself, unless it is restricted to a subspace."""
        return self if self.sites.subspace is None else self.sites.subspace.whole

    # For users: the package reads the records.

    @property
    def temperature(self) -> float:
        """T; 1 is the Bayes posterior."""
        return self.density.temperature

    @property
    def prior_std(self) -> dict[str, Array]:
        """The natural unit of length of each site."""
        return self.prior.std

    @property
    def open_scale(self) -> OpenScale | None:
        """What to do about a scale that priors leave open."""
        return self.prior.open_scale

    @property
    def points(self) -> tuple[str, ...]:
        """Names of the point sites that are not held yet."""
        return self.sites.points

    @property
    def held(self) -> Values:
        """The value of each point site that is held."""
        return self.sites.held

    def __repr__(self) -> str:
        """Give the sizes and the temperature, without the data."""
        names = self.sites.names
        sizes = f"{self.num_rows} rows, {self.num_weights} parameters in {len(names)} sites"
        sizes += f", {len(self.sites.points)} of them points" if self.sites.points else ""
        sizes += "" if self.prior.open_scale is None else ", a prior scale to be found"
        if self.sites.subspace is not None:
            of_all = f"a subspace of {self.whole.num_weights} parameters"
            sizes = f"{self.num_rows} rows, {self.num_weights} coordinates in {of_all}"
        return f"Posterior({sizes}, T = {self.density.temperature:g})"


def with_prior_read(posterior: Posterior) -> Posterior:
    """Read `prior.std` and `prior.precisions` now, for a method whose steps use them.

    Otherwise a program whose numbers are traced would compute them in each step.
    """
    found = posterior.prior.summary()
    return posterior._replace(prior=posterior.prior._replace(summary=lambda: found))
