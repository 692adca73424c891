"""Which inputs matter, how they change a prediction, and which rows are least certain."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from bnn_ppl.analysis.explanation.inputs import Array, Input, grid_of, inputs_of, values_in_units
from bnn_ppl.analysis.metrics.inputs import refuse_unpredicted
from bnn_ppl.analysis.prediction.predict import function_draws, predict
from bnn_ppl.analysis.prediction.several_sites import check_one_site
from bnn_ppl.data.tables.reading import DataSet
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import labels_of, rows_to_score
from bnn_ppl.runtime.checks import check_count
from bnn_ppl.runtime.progress import reporting
from bnn_ppl.storage.inference_data import equally_weighted, evenly

if TYPE_CHECKING:
    import arviz
    import pandas
    import xarray

_MOST_DRAWS, _MOST_ROWS = 200, 500
_NUM_EFFECTS, _NUM_POINTS, _NUM_CURVES = 6, 20, 60  # inputs followed, their values, rows drawn
_NUM_RESAMPLES = 2_000
_INTERVAL = 0.05, 0.95
_MOST_SAVED = 50  # rows in the table of the least certain


class Effect(NamedTuple):
    """How predictions change with one input.

    Attributes
    ----------
    values : array (points,)
        Values of the input, in the units of the data; numbers of the categories that the rows have.
    categories : tuple of str
        Their names.
    mean : array (points,)
        Average prediction of the rows with this value of the input (partial dependence).
    lower, upper : array (points,)
        Where 90 % of the draws have it.
    rows : array (rows, points)
        Prediction of each row with this value (individual conditional expectation).
    """

    values: Array
    categories: tuple[str, ...]
    mean: Array
    lower: Array
    upper: Array
    rows: Array


class Explanation(NamedTuple):
    """What :func:`bnn_ppl.explain` finds.

    Attributes
    ----------
    importance : pandas.DataFrame
        By input, the most important first: ``importance``, the mean fall of a row's log score when
        the input is permuted among the rows, in nats, and its 90 % interval, ``lower`` and
        ``upper``, by bootstrap over rows.
    effects : dict of Effect
        Effects of the most important inputs; empty for images.
    rows : pandas.DataFrame
        The least certain rows, by number: ``predicted``, ``uncertainty`` and its parts ``noise``
        and ``ignorance``, ``observed``. Of numbers these are standard deviations, whose squares add
        up; of classes entropies in nats, which add up.
    parts : pandas.DataFrame
        The same of all rows that were used.
    predicts : str
        What the effects are of: "the mean", or "the probability of ...".
    score : float
        The mean log score of the rows as they are, in nats; of numbers in the units of the data.
    """

    importance: "pandas.DataFrame"
    effects: dict[str, Effect]
    rows: "pandas.DataFrame"
    parts: "pandas.DataFrame"
    predicts: str
    score: float


def explain(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    data: Any,
    *,
    data_set: DataSet | None = None,
    inputs: Mapping[str, Any] | None = None,
    of_class: Any = None,
    num_permutations: int = 10,
    progress: bool = False,
) -> Explanation:
    """Find which inputs matter, how, and for which rows the prediction is least certain.

    Which: an input is permuted among the rows (Breiman, 2001), several times, and the log score of
    the average over draws falls. How: a row's input is set to each of several values (partial
    dependence, Friedman, 2001; one curve for each row, Goldstein et al., 2015). For whom: the
    uncertainty of each row, split into what is noise under the model and what comes from the
    weights not being known. The folder of a run may take the place of `posterior` and `draws`.

    Parameters
    ----------
    posterior
        The posterior that was sampled, of one observed site with one output.
    draws
        From :func:`bnn_ppl.run`.
    data
        Rows (x, y), best those of a test set: a table, or images, whose inputs are squares of
        pixels. Where x is a pair with a number for each row, such as its weight, or with a dict of
        such numbers, as of ``{"exposure": ...}``, these are kept.
    data_set
        From :func:`bnn_ppl.data.load`: names of the inputs and units.
    inputs
        Places among the numbers of a row by the name of an input, to permute together. By default
        the columns of x, those of a category together.
    of_class
        The class whose probability is followed, by its name or number; by default 1 of two, and
        otherwise the one that is most often predicted.
    num_permutations
        Times that each input is permuted.
    progress
        Show a progress bar.

    Returns
    -------
    Explanation
        Draw it with :func:`bnn_ppl.plots.explanation`.

    Raises
    ------
    ValueError
        If y is missing or has several outputs, x is not one array of real numbers, or a log score
        is not finite.

    Notes
    -----
    At most 200 draws are used, evenly from each chain or in proportion to their weights, and at
    most 500 rows, evenly spaced; the six most important inputs are followed. Inputs that vary
    together share their importance, and rows with a permuted input may be unlike any that was
    trained on.
    """
    check_arguments(posterior=posterior, draws=draws)
    check_count("num_permutations", num_permutations)
    rows, y, observed = _chosen(posterior, data)
    named, kept = inputs_of(rows.x, data_set, inputs), equally_weighted(draws, _MOST_DRAWS)
    rng = np.random.default_rng(0)
    labels = labels_of(posterior, y)
    base = predict(posterior, kept, (rows.given(rows.x, np.arange(len(y))), labels))
    refuse_unpredicted(~np.isfinite(base["log_prob"].values), "log scores")
    units = _Units.of(posterior, data_set, base, of_class)
    scored = posterior, kept, rows, labels
    importance = _importance(scored, named, base, num_permutations, rng, progress)
    followed = [] if rows.x.ndim == 4 else list(importance.index[:_NUM_EFFECTS])
    read = posterior, kept, rows, units
    effects = {name: _effect(read, named[name], data_set) for name in followed}
    parts = units.parts(base, observed).set_index(rows.numbers).rename_axis("row")
    unsure = parts.sort_values("uncertainty", ascending=False)[:_MOST_SAVED]
    score = float(base["log_prob"].mean()) - math.log(units.scale)
    return Explanation(importance, effects, unsure, parts, units.predicts, score)


class _Rows(NamedTuple):
    """The rows that are used: their numbers, their inputs, and what stands beside these."""

    numbers: Array
    x: Any
    beside: Any  # an array, or a dict of some; None where there is nothing

    def given(self, x: Array, places: Array) -> Any:
        """Give inputs as the model takes them, beside what the rows at these places have."""
        if self.beside is None:
            return x
        return x, jax.tree.map(lambda leaf: leaf[places], self.beside)


def _chosen(posterior: Posterior, data: Any) -> tuple[_Rows, Array, Array]:
    """Choose rows to explain; with them come y and what the model observes of it."""
    check_one_site(posterior, "explain each")
    x, y = rows_to_score(posterior, data)
    observed = posterior.density.value_of(x, y)
    if np.ndim(observed) > 1:
        raise ValueError(
            f"got y of shape {np.shape(y)}, expected one output: explain a run of one target"
        )
    chosen, beside = evenly(len(y), _MOST_ROWS), None
    is_pair = isinstance(x, tuple) and len(x) == 2
    if is_pair and all(np.ndim(leaf) == 1 for leaf in jax.tree.leaves(x[1])):
        x, beside = x
    each = x, beside, y, observed
    x, beside, y, observed = jax.tree.map(lambda leaf: np.asarray(leaf)[chosen], each)
    return _Rows(chosen, x, beside), y, observed


# --- which


def _importance(
    at: tuple[Posterior, Any, _Rows, Array],
    named: Mapping[str, Input],
    base: "xarray.Dataset",
    num_permutations: int,
    rng: np.random.Generator,
    progress: bool,
) -> "pandas.DataFrame":
    import pandas

    posterior, draws, rows, y = at
    places = np.tile(np.arange(len(y)), num_permutations)
    resampled = rng.multinomial(len(y), np.full(len(y), 1 / len(y)), _NUM_RESAMPLES) / len(y)
    score, found = base["log_prob"].values.astype(float), {}
    with reporting(progress, len(named)) as report:
        for done, (name, each) in enumerate(named.items(), 1):
            orders = [rng.permutation(len(y)) for _ in range(num_permutations)]
            permuted = np.concatenate([_permuted(rows.x, each, order) for order in orders])
            after = predict(posterior, draws, (rows.given(permuted, places), y[places]))
            falls = score - after["log_prob"].values.reshape(num_permutations, -1).mean(0)
            ends = np.quantile(resampled @ falls, _INTERVAL)
            found[name] = (falls.mean(), *ends)
            report(name, done, {})
    table = pandas.DataFrame.from_dict(found, "index", columns=["importance", "lower", "upper"])
    return table.sort_values("importance", ascending=False, kind="stable")


def _permuted(x: Array, each: Input, order: Array) -> Array:
    """Give the rows with one input of other rows."""
    flat = x.reshape(len(x), -1).copy()
    flat[:, each.columns] = flat[np.ix_(order, each.columns)]
    return flat.reshape(x.shape)


# --- how


class _Units(NamedTuple):
    """What is followed, and how it reads in the units of the data."""

    predicts: str
    number: int | None  # of the class that is followed
    names: tuple[Any, ...] | None  # of classes
    mean: float = 0.0
    scale: float = 1.0

    @classmethod
    def of(
        cls, posterior: Posterior, data: DataSet | None, base: "xarray.Dataset", of_class: Any
    ) -> "_Units":
        if "probs" not in base:
            if of_class is not None:
                raise ValueError(f"got of_class={of_class!r} for numbers, expected None: drop it")
            scales = (0.0, 1.0) if data is None else (data.y_mean, data.y_scale)
            return cls("the mean", None, None, *map(float, scales))
        count = base.sizes["class"]
        names = data.class_names if data is not None else None
        names = names or (base["class"].values.tolist() if "class" in base.coords else None)
        known = tuple(names or range(count))
        usual = np.bincount(base["probs"].values.argmax(1), minlength=count).argmax()
        number = 1 if count == 2 else int(usual)
        if of_class is not None:
            texts = [str(name) for name in known]
            if str(of_class) not in texts:
                raise ValueError(
                    f"got of_class={of_class!r}, expected one of {', '.join(texts)}: name a class"
                )
            number = texts.index(str(of_class))
        return cls(f"the probability of {known[number]}", number, known)

    def of_draws(self, found: Any) -> Array:
        """Give what is followed by draw and row."""
        if self.number is not None:
            values = found["posterior"]["probs"].values[..., self.number]
        else:
            values = found["posterior"]["mean"].values * self.scale + self.mean
        return np.asarray(values, float).reshape(-1, values.shape[-1])

    def parts(self, base: "xarray.Dataset", y: Array) -> "pandas.DataFrame":
        """Split the uncertainty of each row."""
        import pandas

        if self.names is not None:
            known = np.asarray(self.names)
            columns = {
                "predicted": known[base["probs"].values.argmax(1)],
                "uncertainty": base["entropy"].values,
                "noise": base["expected_entropy"].values,
                "ignorance": base["mutual_information"].values,
                "observed": known[y],
            }
        else:
            variance, own = base["variance"].values, base["epistemic_variance"].values
            spreads = {"uncertainty": variance, "noise": variance - own, "ignorance": own}
            sds = {name: self.scale * np.sqrt(np.maximum(v, 0)) for name, v in spreads.items()}
            columns = {"predicted": base["mean"].values * self.scale + self.mean, **sds}
            columns["observed"] = y * self.scale + self.mean
        return pandas.DataFrame(columns)


def _effect(at: tuple[Posterior, Any, _Rows, _Units], each: Input, data: DataSet | None) -> Effect:
    posterior, draws, rows, units = at
    flat = rows.x.reshape(len(rows.x), -1)
    grid, some = grid_of(each, flat, _NUM_POINTS), evenly(len(flat), _NUM_CURVES)
    places = np.tile(some, len(grid))
    changed = flat[places]
    changed[:, each.columns] = np.repeat(grid, len(some), axis=0)
    x = rows.given(changed.reshape(-1, *rows.x.shape[1:]).astype(rows.x.dtype), places)
    found = function_draws(posterior, draws, x)
    values = units.of_draws(found).reshape(-1, len(grid), len(some))
    lower, upper = np.quantile(values.mean(2), _INTERVAL, axis=0)
    curves = values.mean(0)
    taken, names = values_in_units(each, grid, data), each.categories
    if each.is_one_hot:
        names = tuple(names[place] for place in taken)
    return Effect(taken, names, curves.mean(1), lower, upper, curves.T)
