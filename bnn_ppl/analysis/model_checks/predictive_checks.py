"""Data that a model makes before and after it has seen y, beside y."""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from bnn_ppl.analysis.prediction.predictive_draws import predictive_draws
from bnn_ppl.analysis.prior_draws import prior_draws
from bnn_ppl.data.tables.reading import DataSet
from bnn_ppl.methods.method import PredictiveForm
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.labels import Classes
from bnn_ppl.storage.inference_data import (
    draws_at,
    equally_weighted,
    evenly,
    most_independent,
    weights_of,
    with_points_of,
)

if TYPE_CHECKING:
    import arviz
    import pandas

Array = np.ndarray

_NUM_DRAWS, _MOST_ROWS = 400, 1_000
_INTERVAL = 0.025, 0.975
_UNLIKELY = 0.005  # two-sided p: outside all data that were drawn
_MOST_OUTPUTS = 10
_FEW = 50  # draws of the weights


class PredictiveChecks(NamedTuple):
    """What :func:`bnn_ppl.check_predictive` gives, in the units of y.

    Attributes
    ----------
    observed : array (rows, ...)
        y.
    prior, posterior : array (draws, rows, ...)
        Drawn from the prior predictive and the posterior predictive distribution.
    table : pandas.DataFrame
        By statistic of y: ``observed``; where 95 % of the draws have it, ``prior_lower`` to
        ``prior_upper`` and ``posterior_lower`` to ``posterior_upper``; and ``prior_p`` and
        ``posterior_p``, two-sided. Of several outputs, each by itself.
    classes : bool
        Whether y is classes.
    num_draws : int
        Of the weights, behind `posterior`; the effective number of weighted ones.
    """

    observed: Array
    prior: Array
    posterior: Array
    table: "pandas.DataFrame"
    classes: bool
    num_draws: int

    @property
    def prior_sentence(self) -> str:
        """Say whether y is what the prior can make."""
        unlikely = self.table.index[self.table["prior_p"] < _UNLIKELY]
        if len(unlikely):
            return f"the prior hardly makes data like y: {self._named(unlikely, 'prior')}"
        widths = "; a statistic may be far wider than that of y" if self._is_vague else ""
        return f"the prior makes data like y{widths}: {self._named(self.table.index[:2], 'prior')}"

    @property
    def posterior_sentence(self) -> str:
        """Say whether y is what the posterior makes."""
        unlikely = self.table.index[self.table["posterior_p"] < _UNLIKELY]
        if len(unlikely):
            named = self._named(unlikely, "posterior")
            return (
                f"the fitted model does not make data like y: {named}{self._few}: try another "
                "likelihood"
            )
        named = self._named(self.table.index[:2], "posterior")
        return f"the fitted model makes data like y: {named}{self._few}"

    @property
    def _few(self) -> str:
        if self.num_draws >= _FEW:
            return ""
        plural = "s" if self.num_draws > 1 else ""
        return f" (from {self.num_draws} draw{plural} of the weights, too few to see them vary)"

    @property
    def _is_vague(self) -> bool:
        sds = self.table[self.table.index.str.match("sd")]
        return bool((sds["prior_upper"] > 10 * sds["observed"]).any())

    def _named(self, names: Any, kind: str) -> str:
        told = []
        for name in list(names)[:3]:
            row = self.table.loc[name]
            ends = row[f"{kind}_lower"], row[f"{kind}_upper"]
            told.append(f"{name} {row['observed']:.3g} (model {ends[0]:.3g} to {ends[1]:.3g})")
        return ", ".join(told)


def check_predictive(
    key: jax.Array,
    posterior: Posterior,
    draws: "arviz.InferenceData",
    *,
    data_set: DataSet | None = None,
) -> PredictiveChecks:
    """Draw data from the model before and after it has seen y, and compare statistics of them.

    Parameters
    ----------
    key
        From ``jax.random.key``.
    posterior
        The posterior that was sampled, with a prior that can be drawn from.
    draws
        From :func:`bnn_ppl.run`; 400 are used, in proportion to their weights. Where there are
        fewer, data are drawn several times from each.
    data_set
        From :func:`bnn_ppl.data.load`: the units of y and the names of its outputs.

    Returns
    -------
    PredictiveChecks
        Checks of at most 1,000 training rows, evenly spaced. The statistics are mean, sd, least,
        largest and median of numbers, by output (the first ten), and the share of each of the
        first ten classes. The sentences name those outside all data that were drawn, p < 0.005. Of
        the prior of a right model that is one statistic in 200 by chance. The posterior's have seen
        y: they find what a model cannot make at all, not whether it predicts well. Fewer than 50
        draws of the weights are too few to see these vary, so that more may be outside by chance,
        which the sentence says.

    Raises
    ------
    ValueError
        If a prior is improper, or y is censored or of several sites.
    """
    check_arguments(key=key, posterior=posterior, draws=draws)
    posterior = with_points_of(draws, posterior)
    if posterior.rows.targets is not None or posterior.density.needs_y:
        raise ValueError(
            "got y of several sites, censored, masked or observed in part, expected one observed "
            "site: check a model without these"
        )
    x, y = posterior.rows.examples
    chosen = evenly(len(y), _MOST_ROWS)
    rows = jax.tree.map(lambda leaf: leaf[chosen], x)
    keys = jax.random.split(key, 3)
    before = prior_draws(keys[0], posterior, _NUM_DRAWS)
    prior = _drawn(keys[1], posterior, before, rows, "sampled")
    kept = equally_weighted(draws, _NUM_DRAWS)
    num_kept = int(np.prod([kept["posterior"].sizes[dim] for dim in ("chain", "draw")]))
    num_draws = round(min(num_kept, most_independent(weights_of(draws))))
    after = _drawn(keys[2], posterior, _repeated(kept), rows)
    observed, classes = np.asarray(y)[chosen], posterior.rows.classes
    if classes is None and data_set is not None:
        scale, mean = data_set.y_scale, data_set.y_mean
        observed, prior, after = (a * scale + mean for a in (observed, prior, after))
    names = None if data_set is None else data_set.output_names
    table = _table(observed, prior, after, _statistics(observed, classes, names))
    return PredictiveChecks(observed, prior, after, table, classes is not None, num_draws)


def _repeated(draws: Any) -> Any:
    """Repeat draws that are few, so that data outside all of theirs are as unlikely as of many."""
    num_chains, num_draws = (draws["posterior"].sizes[dim] for dim in ("chain", "draw"))
    each = -(-_NUM_DRAWS // num_chains)
    if each == num_draws:
        return draws
    return draws_at(draws, np.tile(np.arange(each) % num_draws, (num_chains, 1)))


def _drawn(
    key: jax.Array, posterior: Posterior, draws: Any, x: Any, form: PredictiveForm | None = None
) -> Array:
    found = predictive_draws(key, posterior, draws, x, predictive=form)
    values = found["posterior_predictive"]["y"].values
    return np.asarray(values.reshape(-1, *values.shape[2:]))


def _table(
    observed: Array, prior: Array, posterior: Array, statistics: dict[str, Any]
) -> "pandas.DataFrame":
    import pandas

    rows = {}
    for name, statistic in statistics.items():
        own = float(statistic(observed[None])[0])
        row = {"observed": own}
        for kind, made in (("prior", prior), ("posterior", posterior)):
            values = statistic(made)
            row[f"{kind}_lower"], row[f"{kind}_upper"] = np.quantile(values, _INTERVAL)
            tails = (1 + (values <= own).sum(), 1 + (values >= own).sum())
            row[f"{kind}_p"] = min(1.0, 2 * min(tails) / (len(values) + 1))
        rows[name] = row
    return pandas.DataFrame.from_dict(rows, "index")


_OF_NUMBERS: dict[str, Any] = {
    "mean": np.nanmean,
    "sd": np.nanstd,
    "median": np.nanmedian,
    "least": np.nanmin,
    "largest": np.nanmax,
}


def _statistics(observed: Array, classes: Classes | None, outputs: Any) -> dict[str, Any]:
    """Give functions of data (draw, row, ...) by name."""

    def share(number: int) -> Any:
        return lambda y: (y.reshape(len(y), -1) == number).mean(1)

    def of_output(statistic: Any, output: int) -> Any:
        return lambda y: statistic(y.reshape(*y.shape[:2], -1)[..., output].astype(float), 1)

    if classes is not None:
        return {f"share of {number}": share(number) for number in range(min(classes.num, 10))}
    count = observed[0].size
    different = outputs is not None and len(set(outputs)) == count
    names = [f" [{name}]" for name in (outputs if different else range(count))]
    names = names if count > 1 else [""]
    return {
        f"{name}{output}": of_output(statistic, place)
        for place, output in enumerate(names[:_MOST_OUTPUTS])
        for name, statistic in _OF_NUMBERS.items()
    }
