"""Can intervals, or probabilities of classes, be trusted: where they hold, and one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bnn_ppl.analysis.metrics.chance import range_of_count, shows_failures
from bnn_ppl.analysis.metrics.classification import confidence_and_hits
from bnn_ppl.analysis.metrics.inputs import (
    PIT_ENDS,
    Array,
    Prediction,
    error_and_variance,
    is_regression,
    one_output,
    positive_scale,
)
from bnn_ppl.analysis.metrics.likelihood import gaussian_nll_by_row, nll_by_row
from bnn_ppl.analysis.metrics.regression import is_covered
from bnn_ppl.analysis.metrics.row_thirds import most_important, number_columns, thirds_of
from bnn_ppl.runtime.checks import check_level
from bnn_ppl.runtime.progress import in_words

if TYPE_CHECKING:
    import pandas

SD, CONFIDENCE = "predicted sd", "confidence"
INNER = "50 % intervals"
_COLUMNS = "{:>7}{:>15}{:>8}{:>11}"
_SAME_SD = 1.05  # ratio of the sd of rows, up to which thirds by it would mean nothing
_OUTSIDE = 0.05  # probability that a calibrated prediction has any finding


@dataclass(frozen=True)
class CalibrationCheck:
    """Whether intervals hold, or confidences are met: a table and one sentence; prints as both.

    Attributes
    ----------
    table : pandas.DataFrame
        A line for all rows, and one for each third (for several outputs, of each): ``output``;
        ``by``, the quantity that splits them ("" for all rows), and ``part``, its values;
        ``num_rows``; ``held``, the share of targets inside their intervals, or of right classes;
        ``expected``, the level, or the mean confidence; ``lower`` and ``upper``, between which the
        share of a calibrated prediction lies; ``nll``, nats a row, in original units, NaN for
        several outputs that are not Gaussian; ``finding``: "", "too narrow", "too wide",
        "overconfident" or "underconfident".
    level : float or None
        Level of the intervals; None for classes.
    trusted : bool or None
        False with any finding; None if there are too few rows to tell.
    """

    table: pandas.DataFrame
    level: float | None
    trusted: bool | None

    def __str__(self) -> str:
        """Table and sentence; of several outputs only all rows and what was found."""
        return f"{self.text()}\n\n{self.sentence}"

    def shown(self) -> pandas.DataFrame:
        """Select the lines to show, each with its ``label``."""
        table = self.table
        several = table.output.nunique() > 1
        table = table[(table.by == "") | (table.finding != "")] if several else table
        labels = (table.output + " " + table.by + " " + table.part).str.split().str.join(" ")
        return table.assign(label=labels)

    def text(self) -> str:
        """Lay out the table as text."""
        shown = self.shown()
        width = max(24, 2 + shown.label.str.len().max())
        titles = self._of("right", "hold"), "expected", "rows", "nll"
        lines = [f"{self._what:{width}}{_COLUMNS.format(*titles)}"]
        for row in shown.itertuples():
            between = f"{_percent(row.lower)} to {_percent(row.upper)} %"
            nll = "" if np.isnan(row.nll) else in_words(row.nll, 4)
            cells = f"{_percent(row.held)} %", between, f"{row.num_rows:,}", nll
            lines.append(f"{row.label:{width}}{_COLUMNS.format(*cells)}  {row.finding}".rstrip())
        return "\n".join(lines)

    @property
    def sentence(self) -> str:
        """What was found, in plain words with its numbers."""
        return self.in_words("rows")

    def in_words(self, rows: str) -> str:
        """Give the sentence, by what the rows are called, such as "test rows"."""
        table = self.table
        whole, inner = table[table.by == ""], table[(table.by == INNER) & (table.finding != "")]
        thirds = table[~table.by.isin(["", INNER])]
        of_all = whole if (whole.finding == "").all() else whole[whole.finding != ""]
        first = of_all.loc[(of_all.held - of_all.expected).abs().idxmax()]
        found = thirds[thirds.finding != ""]
        if first.finding:
            text = f"{self._what} are {first.finding}: {self._held(first, rows)}"
            same = found[(found.finding == first.finding) & (found.output == first.output)]
            some = 0 < len(same) < (thirds.output == first.output).sum()
            text += f", above all where {self._where(same)}" if some else ""
            return text + self._but(found[found.finding != first.finding])
        if len(inner):
            line = inner.loc[(inner.held - inner.expected).abs().idxmax()]
            wide = whole[whole.output == line.output].iloc[0]
            others = f"{self._what} hold {_percent(wide.held)} % ({_expected(wide)})"
            text = f"50 % intervals are {line.finding}: {self._held(line, rows)}; {others}"
            return text + self._but(found[found.finding != line.finding])
        if len(found):
            kinds = [found[found.finding == kind] for kind in found.finding.unique()]
            told = [f"{each.finding.iloc[0]} where {self._where(each)}" for each in kinds]
            return f"{self._what} are {' and '.join(told)}; over all, {self._held(first, rows)}"
        number, verb = f"{first.num_rows:,} {rows}", "are"
        if first.num_rows == 1:
            number, verb = f"1 {rows.removesuffix('s')}", "is"
        if self.trusted is None:
            text = f"{number} {verb} too few to tell whether {self._what} can be trusted"
        else:
            text = f"{self._what} can be trusted as far as {number} tell"
        text += f": {'furthest off, ' if first.output else ''}{self._held(first)}"
        if len(thirds):
            gap = thirds.held - thirds.expected
            lowest = thirds if self.level is None else thirds.loc[[gap.idxmin()]]
            if self.level is None or gap.min() < first.held - first.expected:
                text += f", {self._of('furthest off', 'lowest')} where {self._where(lowest)}"
        known = self.level is None or INNER in set(table.by)
        if self.trusted and first.upper == 1 and not known:
            text += "; too few rows to tell whether they are too wide"
        return text

    def _but(self, other: Any) -> str:
        """Tell the thirds in which the opposite was found."""
        if not len(other):
            return ""
        return f"; but {self._what} are {other.finding.iloc[0]} where {self._where(other)}"

    @property
    def _what(self) -> str:
        return "class probabilities" if self.level is None else f"{100 * self.level:g} % intervals"

    def _of(self, classes: str, intervals: str) -> str:
        return classes if self.level is None else intervals

    def _held(self, line: Any, rows: str = "") -> str:
        made = f"predictions of {_percent(line.expected)} % confidence are right in"
        of = f" of {line.num_rows:,} {rows}" if rows else self._of("", " of them")
        output = f"for {line.output} " if line.output else ""
        held = f"{output}{self._of(made, 'they hold')} {_percent(line.held)} %"
        return f"{held}{of} ({_expected(line)})"

    def _where(self, lines: Any) -> str:
        """Tell the part whose share is furthest from what is expected."""
        line = lines.loc[(lines.held - lines.expected).abs().idxmax()]
        the = "the " if line.by in (SD, CONFIDENCE) else ""
        of = f" ({line.output})" if line.output else ""
        share = f"{_percent(line.held)} % of {line.num_rows:,}"
        return f"{the}{line.by} is {line.part}{of}: {share} ({_expected(line)})"


def _expected(line: Any) -> str:
    return f"{_percent(line.lower)} to {_percent(line.upper)} % expected"


def _percent(share: float) -> str:
    """Write a share in whole percent; those near 0 and 1 to a tenth."""
    return f"{100 * share:.{0 if share in (0, 1) or 0.015 < share < 0.985 else 1}f}"


def calibration_check(
    prediction: Prediction,
    y: ArrayLike,
    x: Any = None,
    *,
    level: float = 0.9,
    intervals: tuple[ArrayLike, ArrayLike] | None = None,
    scale: ArrayLike = 1.0,
    outputs: Sequence[str] | None = None,
) -> CalibrationCheck:
    """Check whether intervals can be trusted, over all rows and where: a table and one sentence.

    Of a regression, how many targets the intervals hold: of all rows; of thirds of them by the
    predicted sd, unless most rows share it; and of thirds by the most important input, the one
    whose thirds explain the largest share of the variance of the predicted means (the correlation
    ratio, which does not see an input that acts only together with others). Of a classifier, how
    many classes are right, against the mean confidence: of all rows, and of thirds by the
    confidence. There are thirds of 30 rows or more.

    A share is a finding if it is outside its exact binomial range. All ranges hold together with a
    probability of at least 95 %, if the prediction is calibrated (Bonferroni: half of the 5 % is
    for all rows and half for the thirds, in equal parts for each output). Unless `intervals` are
    given, all rows are also looked at by intervals of 50 %, which a few large errors do not make
    right; where there are so few rows that not even all of them inside would be too many, these
    alone show whether the predicted sd is too large. The ranges are for independent rows:
    errors of weights are shared by the rows, so that misses come together, and a share just outside
    its range may still be chance.

    Parameters
    ----------
    prediction : Dataset or array (rows, classes)
        Result of `predict`, or class probabilities.
    y : array (rows,) or (rows, outputs)
        Targets, in the units of the prediction, or class numbers.
    x : array or pandas.DataFrame (rows, inputs), optional
        Inputs of a regression, in any units; columns of a data frame are called by their names, and
        those of text or dates are left out.
        Without it there are thirds by the sd alone, which is what images and texts have.
    level : float
        Probability of the intervals, between 0 and 1.
    intervals : pair of arrays, optional
        Their lower and upper ends, each of the shape of y, such as quantiles or conformal ones. By
        default mean +- z sd, as for `coverage`.
    scale : float or array (outputs,)
        What regression targets were divided by.
    outputs : sequence of str, optional
        Names of several outputs; by default their numbers.

    Returns
    -------
    CalibrationCheck
        Its ``table``, its ``sentence``, and ``trusted``: True, False, or None if there are too few
        rows to tell: fewer than would show, in nine cases of ten, four times as many misses as
        expected (which intervals of 90 % have where the sd is half of what it should be).

    Raises
    ------
    ValueError
        If shapes, labels, level or probabilities are invalid, or intervals are of a classifier.
    """
    check_level(level)
    if is_regression(prediction):
        judged = list(_of_regression(prediction, y, x, level, intervals, scale, outputs))
        return _checked(judged, level, ("too narrow", "too wide"))
    if intervals is not None or x is not None:
        raise ValueError("got x or intervals for classes, expected a regression: leave them out")
    confidence, right = confidence_and_hits(prediction, y)
    nll = nll_by_row(prediction, y, 1.0)
    of_classes = _Judged("", right, confidence, nll, {CONFIDENCE: confidence})
    return _checked([of_classes], None, ("overconfident", "underconfident"))


# --- the numbers


class _Judged(NamedTuple):
    """Of one output: which rows hold, with what probability each should, and what splits them."""

    output: str
    held: Array
    expected: Array
    nll: Array
    by: Mapping[str, Array]
    inner: Array | None = None  # which rows intervals of 50 % hold


def _of_regression(
    prediction: Prediction,
    y: ArrayLike,
    x: Any,
    level: float,
    intervals: tuple[ArrayLike, ArrayLike] | None,
    scale: ArrayLike,
    outputs: Sequence[str] | None,
) -> Iterator[_Judged]:
    error, variance = error_and_variance(prediction, y)
    y, scales = np.asarray(y, dtype=float), positive_scale(scale, error.shape[1:])
    held, inner = is_covered(prediction, y, level), is_covered(prediction, y, 0.5)
    if intervals is not None:
        lower, upper = (np.asarray(end, dtype=float) for end in intervals)
        if not lower.shape == upper.shape == y.shape:
            raise ValueError(
                f"got intervals from {lower.shape} to {upper.shape}, expected ends of shape "
                f"{y.shape}, as y; pass those of the predicted rows"
            )
        held = (lower <= y) & (y <= upper)
    expected, has_inner = np.full(len(y), level), intervals is None and level > 0.5
    columns = number_columns(x, len(y))
    if y.ndim == 1:
        known = "log_prob" in prediction  # type: ignore[operator]
        nll = (nll_by_row if known else gaussian_nll_by_row)(prediction, y, scale)
        by = _sd(np.sqrt(variance) * scales) | most_important(columns, y - error)
        yield _Judged("", held, expected, nll, by, inner if has_inner else None)
        return
    names = [f"output {k}" for k in range(y.shape[1])] if outputs is None else map(str, outputs)
    for k, name in enumerate(names):
        nll = np.full(len(y), np.nan)  # `log_prob` is of all outputs together
        if PIT_ENDS[0] not in prediction:  # type: ignore[operator]
            nll = gaussian_nll_by_row(one_output(prediction, k), y[:, k], scales[k])
        by = _sd(np.sqrt(variance[:, k]) * scales[k]) | most_important(columns, (y - error)[:, k])
        yield _Judged(name, held[:, k], expected, nll, by, inner[:, k] if has_inner else None)


def _sd(values: Array) -> dict[str, Array]:
    """Give the sd by its name; nothing where most rows share it."""
    low, high = np.quantile(values, (1 / 6, 5 / 6))
    return {SD: values} if high > _SAME_SD * low else {}


def _checked(
    judged: Sequence[_Judged], level: float | None, kinds: tuple[str, str]
) -> CalibrationCheck:
    import pandas

    lines, enough = [], True
    for one in judged:
        thirds = [(name, *third) for name, values in one.by.items() for third in thirds_of(values)]
        half = _OUTSIDE / len(judged) / (2 if thirds else 1)
        whole = "", "all", np.ones(len(one.held), bool)
        chances = [half, *[half / len(thirds) for _ in thirds]]
        of_output = [
            _line(one, *part, chance, kinds)
            for part, chance in zip([whole, *thirds], chances, strict=True)
        ]
        first = of_output[0]
        least = first["lower"] * first["num_rows"]
        enough &= shows_failures(first["num_rows"], first["expected"], least)
        if one.inner is not None:
            # Where no count is too great, the probability of that goes to the narrower intervals,
            # elsewhere they share it.
            of_inner = one._replace(held=one.inner, expected=np.full(len(one.held), 0.5))
            alone = first["upper"] == 1
            if not alone:
                half /= 2
                of_output[0] = _line(one, *whole, half, kinds)
            line = _line(of_inner, INNER, "", whole[2], half, kinds)
            if alone:
                line |= {"lower": 0.0, "finding": kinds[1] * (line["held"] > line["upper"])}
            of_output.insert(1, line)
        lines += of_output
    table = pandas.DataFrame(lines)
    trusted = False if (table.finding != "").any() else True if enough else None
    return CalibrationCheck(table, level, trusted)


def _line(
    one: _Judged, by: str, part: str, rows: Array, outside: float, kinds: tuple[str, str]
) -> dict[str, Any]:
    held, expected, number = one.held[rows].mean(), one.expected[rows].mean(), int(rows.sum())
    low, high = range_of_count(number, expected, outside)
    count = one.held[rows].sum()
    return {
        "output": one.output,
        "by": by,
        "part": part,
        "num_rows": number,
        "held": float(held),
        "expected": float(expected),
        "lower": float(low / number),
        "upper": float(high / number),
        "nll": float(one.nll[rows].mean()),
        "finding": kinds[0] if count < low else kinds[1] if count > high else "",
    }
