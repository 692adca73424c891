"""Choose rows of a pool: to label them, or to find where y is largest."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import numpy as np

from bnn_ppl.analysis.acquisition import scores as by
from bnn_ppl.analysis.acquisition.scores import Array
from bnn_ppl.analysis.metrics.inputs import refuse_unpredicted
from bnn_ppl.analysis.prediction.predict import function_draws, predict
from bnn_ppl.analysis.prediction.several_sites import check_one_site
from bnn_ppl.data.streams.streams import Stream
from bnn_ppl.data.tables.reading import DataSet
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import checked_inputs
from bnn_ppl.runtime.checks import check_count
from bnn_ppl.storage.inference_data import equally_weighted, evenly

if TYPE_CHECKING:
    import arviz
    import pandas

Given = tuple[int, by.Allow, Array]  # how many rows to take, and which may be

Score = Literal["bald", "batchbald", "epig", "variance", "ei", "ucb", "thompson"]

_OF_CLASSES = "bald", "batchbald", "epig"
_OF_NUMBERS = "variance", "epig", "ei", "ucb", "thompson"
_MOST_DRAWS, _MOST_TARGETS = 200, 100
_WIDTH = 2.0  # standard deviations of the upper confidence bound


class Acquired(NamedTuple):
    """What :func:`bnn_ppl.acquire` gives.

    Attributes
    ----------
    table : pandas.DataFrame
        By number of the row in the pool, in the order chosen: ``score`` when it was chosen, and
        what is predicted: ``mean`` and the ``sd`` of the function, or the most probable ``class``
        and its ``probability``.
    score : str
        Which score it is.
    """

    table: "pandas.DataFrame"
    score: str

    @property
    def rows(self) -> Array:
        """Numbers of the rows in the pool."""
        return self.table.index.to_numpy()

    def in_units(self, data: DataSet, labels: Sequence[Any] | None = None) -> "Acquired":
        """Give the table in the units of the data, and classes by their names."""
        table = self.table.copy()
        if "class" in table:
            table["class"] = [labels[number] if labels else number for number in table["class"]]
            return self._replace(table=table)
        scale, mean = np.asarray(data.y_scale).item(), np.asarray(data.y_mean).item()
        table["mean"], table["sd"] = table["mean"] * scale + mean, table["sd"] * scale
        factor = {"epig": 1.0, "variance": scale**2}.get(self.score, scale)
        added = mean if self.score in ("ucb", "thompson") else 0.0
        table["score"] = table["score"] * factor + added
        return self._replace(table=table)


def acquire(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    pool: Any,
    num: int = 1,
    *,
    score: Score | None = None,
    targets: Any = None,
    minimise: bool = False,
    seed: int = 0,
) -> Acquired:
    """Choose the rows of a pool whose y is worth most.

    To learn classes: "bald" (mutual information of a label and the weights; Houlsby et al., 2011),
    "batchbald" (of the labels of a batch together; Kirsch et al., 2019), "epig" (information about
    the labels of `targets`; Bickford Smith et al., 2023). To learn numbers: "variance" of the
    function, or "epig". To find the largest y: "ei" (expected improvement on the largest y of
    training), "ucb" (mean and two standard deviations of the function), "thompson" (the best row of
    a draw).

    Parameters
    ----------
    posterior
        The posterior that was sampled, of one observed site with one output.
    draws
        From :func:`bnn_ppl.run`; at most 200 are used, in proportion to their weights.
    pool
        Inputs x (rows, ...), as for :func:`bnn_ppl.predict`.
    num
        How many rows: a batch, chosen one after another without rows that are alike. After each,
        "batchbald", "variance", "ucb" and "ei" count what its y would tell; "bald" and "epig" do
        not.
    score
        By default "variance" for numbers; for classes "bald", and "batchbald" for a batch.
    targets
        Inputs that are to be predicted, for "epig": by default the pool itself. At most 100 are
        used, evenly spaced.
    minimise
        Find the smallest y, with "ei", "ucb" and "thompson".
    seed
        Random seed for "thompson".

    Returns
    -------
    Acquired
        With a table of the chosen rows.

    Raises
    ------
    ValueError
        If the score does not fit y, the pool has too few different rows, a prediction is NaN, or
        there is one draw.
    """
    import pandas

    check_arguments(posterior=posterior, draws=draws)
    check_count("num", num)
    pool = checked_inputs(posterior, pool)
    targets = None if targets is None else checked_inputs(posterior, targets)
    kept = equally_weighted(draws, _MOST_DRAWS)
    kind, values = _functions(posterior, kept, pool)
    by_score = _checked(score, kind, num, values, minimise)
    given = num, *_unlike(pool, num)
    if kind == "probs":
        wanted = _some(pool, targets) if by_score == "epig" else None
        of_targets = None if wanted is None else _functions(posterior, kept, wanted)[1]
        chosen = _of_classes(by_score, values, of_targets, given)
        predicted = {"class": values.mean(0).argmax(1), "probability": values.mean(0).max(1)}
    else:
        at = posterior, kept, pool, targets
        chosen = _of_numbers(by_score, values, at, given, minimise, seed)
        predicted = {"mean": values.mean(0), "sd": values.std(0, ddof=1)}
    rows = [row for row, _ in chosen]
    columns = {"score": [value for _, value in chosen]}
    columns |= {name: each[rows] for name, each in predicted.items()}
    return Acquired(pandas.DataFrame(columns, index=pandas.Index(rows, name="row")), by_score)


def _functions(posterior: Posterior, draws: Any, x: Any) -> tuple[str, Array]:
    check_one_site(posterior, "acquire for each")
    ((kind, values),) = function_draws(posterior, draws, x)["posterior"].items()
    found = values.values.reshape(-1, *values.shape[2:]).astype(float)
    if found.ndim != 2 + (kind == "probs"):
        raise ValueError(
            f"got predictions of shape {found.shape[1:]}, expected one output a row: acquire for a "
            "run of one target"
        )
    refuse_unpredicted(~np.isfinite(found).all(axis=(0, *range(2, found.ndim))))
    return str(kind), found


def _checked(score: str | None, kind: str, num: int, values: Array, minimise: bool) -> str:
    if len(values) < 2:
        raise ValueError("got one draw, expected several, which disagree where y is worth most")
    known = _OF_CLASSES if kind == "probs" else _OF_NUMBERS
    if score is None:
        score = ("batchbald" if num > 1 else "bald") if kind == "probs" else "variance"
    if score not in known:
        what = "classes" if kind == "probs" else "numbers"
        raise ValueError(f"got score={score!r} for {what}, expected one of {', '.join(known)}")
    if minimise and score not in ("ei", "ucb", "thompson"):
        raise ValueError(f"got minimise with score={score!r}, expected ei, ucb or thompson")
    return score


def _unlike(pool: Any, num: int) -> tuple[by.Allow, Array]:
    """Give what rules out the rows that are like one that is taken; all may be taken first."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(pool)]
    flat = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)
    _, numbers = np.unique(flat, axis=0, return_inverse=True)
    numbers = numbers.reshape(-1)
    if numbers.max() + 1 < num:
        raise ValueError(
            f"got num={num} of a pool of {numbers.max() + 1} different rows, expected at most as "
            "many: choose fewer"
        )
    return lambda row: numbers != numbers[row], np.ones(len(numbers), bool)


def _some(pool: Any, targets: Any) -> Any:
    x = pool if targets is None else targets
    chosen = evenly(len(jax.tree.leaves(x)[0]), _MOST_TARGETS)
    return jax.tree.map(lambda leaf: leaf[chosen], x)


def _of_classes(score: str, probs: Array, targets: Array | None, given: Given) -> by.Chosen:
    if score == "batchbald":
        return by.batch_bald(probs, *given)
    found = by.bald(probs) if targets is None else by.epig_of_classes(probs, targets)
    return by.top(found, *given)


def _of_numbers(
    score: str,
    means: Array,
    at: tuple[Posterior, Any, Any, Any],
    given: Given,
    minimise: bool,
    seed: int,
) -> by.Chosen:
    posterior, draws, pool, targets = at
    sign = -1.0 if minimise else 1.0
    if score == "thompson":
        return _signed(by.thompson(sign * means, *given, seed), sign)
    if score == "ei":
        return by.expected_improvement(sign * means, _largest_y(posterior, sign), *given)
    noise = _noise(posterior, draws, pool)
    if score == "epig":
        x = _some(pool, targets)
        others = _functions(posterior, draws, x)[1], _noise(posterior, draws, x)
        return by.top(by.epig_of_numbers(means, noise, *others), *given)
    functions, average = by.Gaussian(means, noise), sign * means.mean(0)
    scores: dict[str, Callable[[by.Gaussian], Array]] = {
        "variance": lambda functions: functions.variance,
        "ucb": lambda functions: average + _WIDTH * np.sqrt(functions.variance),
    }
    found = by.by_variance(functions, scores[score], *given)
    return found if score == "variance" else _signed(found, sign)


def _largest_y(posterior: Posterior, sign: float) -> float:
    data: Any = posterior.data
    y: Any = posterior.density.value_of(*posterior.rows.examples)
    if isinstance(data, Stream) and (y := data.ends_of_y()) is None:
        raise ValueError(
            "got score='ei' for a stream that reads y with x, expected y by itself, or rows in "
            "memory: the largest y is not known"
        )
    return float(np.nanmax(sign * np.asarray(y)))


def _signed(found: by.Chosen, sign: float) -> by.Chosen:
    return [(row, sign * value) for row, value in found]


def _noise(posterior: Posterior, draws: Any, x: Any) -> Array:
    found = predict(posterior, draws, x)
    noise = found["variance"].values - found["epistemic_variance"].values
    return np.maximum(np.nan_to_num(noise.astype(float)), 0.0)
