"""Check rows (x, y): to condition on, like those conditioned on, or to predict."""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from bnn_ppl.model.rows.features import shapes_with_rows
from bnn_ppl.model.rows.given_rows import (
    array_of,
    arrays_like,
    given_arrays,
    inputs_and_targets,
    pair_of,
    refuse_text,
)
from bnn_ppl.model.rows.labels import of_one_kind, whole_numbers
from bnn_ppl.model.trace import Array, Data, Terms, Values
from bnn_ppl.runtime.checks import is_number, warn
from bnn_ppl.runtime.machines.devices import MatmulPrecision

if TYPE_CHECKING:
    from bnn_ppl.model.posterior import Posterior
    from bnn_ppl.model.rows.streamed_rows import StreamChunks


def check_options(
    temperature: float, tempered: str, microbatch: int | None, precision: str | None
) -> None:
    """Refuse options of :func:`bnn_ppl.condition` that are out of range."""
    if not is_number(temperature) or not 0 < temperature < math.inf:
        raise ValueError(f"got temperature={temperature!r}, expected a finite number above 0")
    if tempered not in ("posterior", "likelihood"):
        raise ValueError(f"got tempered={tempered!r}, expected 'posterior' or 'likelihood'")
    if microbatch is not None and not (isinstance(microbatch, int | np.integer) and microbatch > 0):
        raise ValueError(
            f"got microbatch={microbatch!r}, expected a whole number of rows, at least 1: "
            "leave it out to have one chosen"
        )
    known = get_args(MatmulPrecision)
    if precision is not None and precision not in known:
        raise ValueError(
            f"got precision={precision!r}, expected one of {', '.join(map(repr, known))}: leave it "
            "out for that of JAX's configuration"
        )


def paired_rows(data: Any) -> tuple[Any, np.ndarray]:
    """Give rows (x, y) as arrays; refuse different numbers of rows, NaN and infinities in x.

    y may still be text, of which :func:`bnn_ppl.model.structure.numbered_classes` makes numbers.
    """
    x, y = pair_of(data)
    if y is None:
        raise ValueError("got rows without y, expected a pair (x, y): give their y too")
    x, y = given_arrays(x), _labels_or_numbers(y)
    leaves = jax.tree.leaves(x)
    lengths = {np.shape(leaf)[0] if np.ndim(leaf) else None for leaf in [*leaves, y]}
    if len(lengths) != 1 or lengths & {None, 0} or not leaves:
        shapes = dict.fromkeys(str(np.shape(leaf)) for leaf in leaves)
        raise ValueError(
            f"got x of {' and '.join(shapes) or 'nothing'} and y of {np.shape(y)}, expected arrays "
            "with as many rows in x as in y, at least one"
        )
    for leaf in leaves:
        _refuse_nonfinite("x", np.asarray(leaf))
    return x, y


def checked_y(y: np.ndarray, as_float: bool = False, missing: bool = False) -> Array:
    """Give y as an array of numbers; refuse text, infinities and, unless it is `missing`, NaN."""
    refuse_text("y", y)
    _refuse_nonfinite("y", np.where(np.isnan(y), 0.0, y) if missing and y.dtype.kind == "f" else y)
    return array_of("y", y, as_float)


def checked_rows(posterior: "Posterior", data: Any) -> Data:
    """Give rows (x, y) as arrays; refuse rows unlike those conditioned on."""
    known, known_y = posterior.rows.examples
    x, y = inputs_and_targets(data, known)
    x, y = paired_rows((arrays_like(known, x), _columns(posterior, y)))
    is_float = known_y.dtype.kind == "f"
    missing = is_float and bool(jnp.isnan(known_y).any())
    rows = x, checked_y(_numbers(posterior, y), is_float, missing)
    for name, new, seen in zip("xy", rows, posterior.rows.examples, strict=True):
        got, expected = (
            [f"{leaf.shape[1:]} {leaf.dtype}" for leaf in jax.tree.leaves(tree)]
            for tree in (new, seen)
        )
        if got != expected:
            raise ValueError(
                f"got {name} with rows of {', '.join(got)}, expected {', '.join(expected)} as in "
                "the data conditioned on: prepare both in the same way"
            )
    return rows


def check_float_inputs(x: Any) -> None:
    """Refuse inputs that have no gradient."""
    if not isinstance(x, Array) or x.dtype.kind != "f":
        kind = x.dtype if isinstance(x, Array) else type(x).__name__
        raise ValueError(f"got x of {kind}, expected an array of floats: others have no gradient")


def rows_to_predict(
    posterior: "Posterior", data: Any, first: int | None = None
) -> tuple[Any, Array | None]:
    """Give rows x, (x, y) or (x, None) to predict as arrays; see :func:`checked_inputs` for x."""
    x, y = inputs_and_targets(data, posterior.rows.examples[0])
    x = _checked_inputs(posterior, x, first)
    if y is None:
        return x, None
    seen = posterior.rows.examples[1]
    y = _columns(posterior, y)
    y = array_of("y", _numbers(posterior, y), as_float=seen.dtype.kind == "f")
    expected = (len(jax.tree.leaves(x)[0]), *seen.shape[1:])
    if y.shape != expected:
        raise ValueError(f"got y of shape {y.shape}, expected {expected}: a row for each of x")
    if y.dtype.kind != seen.dtype.kind:
        raise ValueError(
            f"got y of dtype {y.dtype}, expected {seen.dtype} as the model saw: use y.astype, or "
            "condition on y.astype(float) where y is only whole by chance"
        )
    if not posterior.density.is_of_y:  # which may mask them
        _warn_of_nonfinite("y", y, first, "their log_prob is not finite")
    return x, y


def rows_to_score(posterior: "Posterior", data: Any) -> Data:
    """Give rows (x, y) to predict and compare with y as arrays; refuse x alone."""
    x, y = rows_to_predict(posterior, data)
    if y is None:
        raise ValueError("got no y, expected a pair (x, y): give the y of these rows too")
    return x, y


def labels_of(posterior: "Posterior", numbers: Any) -> Any:
    """Give the labels of class numbers, as predictions take them; other y as it is."""
    classes = posterior.rows.classes
    return numbers if classes is None else classes.labels(numbers)


def checked_inputs(posterior: "Posterior", x: Any) -> Any:
    """Give inputs, or those of rows (x, y), as arrays.

    A row's shape may differ from those conditioned on, for networks that take images of any size.
    """
    return _checked_inputs(posterior, inputs_and_targets(x, posterior.rows.examples[0])[0])


def _checked_inputs(posterior: "Posterior", x: Any, first: int | None = None) -> Any:
    """Give inputs as arrays.

    NaN is allowed, since each row has its own prediction; a warning counts such rows. `first` is
    the number of the first row, of a part of the rows.
    """
    seen = posterior.rows.examples[0]
    x = arrays_like(seen, x)
    for new, known in zip(jax.tree.leaves(x), jax.tree.leaves(seen), strict=True):
        if new.ndim != known.ndim:
            raise ValueError(
                f"got inputs x of shape {new.shape}, expected rows of {known.shape[1:]} as in the "
                "data conditioned on: a single row is x[None]"
            )
    if len({len(leaf) for leaf in jax.tree.leaves(x)}) > 1:
        shapes = ", ".join(str(leaf.shape) for leaf in jax.tree.leaves(x))
        raise ValueError(f"got inputs x of shapes {shapes}, expected as many rows in each")
    if not len(jax.tree.leaves(x)[0]):
        raise ValueError("got inputs x of no rows, expected at least one")
    means = "predictions for these rows are NaN unless the model handles such values"
    _warn_of_nonfinite("x", x, first, means)
    return x


def distribution_at(of_inputs: Callable, x: Any, known: Any) -> dist.Distribution:
    """Give y's distribution at inputs; refuse those that the model cannot take.

    `known` are rows (x, y) that it can, of which only the shapes are used.
    """
    known, y = known
    num_rows, num_known = (len(jax.tree.leaves(tree)[0]) for tree in (x, known))
    problem = None
    try:
        distribution = of_inputs(x)
        shape, outputs = distribution.batch_shape, y.shape[1:]
        expected_shape = (num_rows, *outputs[: len(outputs) - distribution.event_dim])
        of_all_rows = distribution.event_dim > len(outputs)
        if of_all_rows or shape == expected_shape:
            return distribution
        if _row_shapes(x) == _row_shapes(known) and _stretches(shape, expected_shape):
            return distribution.expand(expected_shape)  # parameters that rows or outputs share
        if shape[:1] == (num_rows,):
            return distribution
    except (TypeError, ValueError) as error:
        problem = error
    got, expected = _row_shapes(x), _row_shapes(known)
    if got != expected:
        raise ValueError(
            f"got inputs x with rows of {', '.join(got)}, expected {', '.join(expected)} as in the "
            "data conditioned on: prepare both in the same way"
        ) from problem
    if problem is None or (num_rows != num_known and _works(of_inputs, known)):
        raise ValueError(_only_for(f"{num_rows} rows to predict", num_known)) from problem
    raise problem


def _row_shapes(x: Any) -> list[str]:
    return [str(leaf.shape[1:]) for leaf in jax.tree.leaves(x)]


def _stretches(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether a shape broadcasts to another one."""
    pairs = zip(shape[::-1], to[::-1], strict=False)
    return len(shape) <= len(to) and all(own in (1, size) for own, size in pairs)


def _works(of_inputs: Callable, known: Any) -> bool:
    try:
        jax.eval_shape(lambda x: jnp.zeros(of_inputs(x).shape()), known)
    except (TypeError, ValueError):
        return False
    return True


def check_number_of_rows(
    log_likelihood: Callable, position: Any, data: Data, num_rows: int, got: str
) -> None:
    """Refuse a model whose plates have a fixed size, where it is evaluated on other rows.

    Of `position` only the shapes are used; `got` says what asks for that number of rows. Without
    this check, a batch of one row would be repeated as often as the plate is long.
    """
    num_known, problem = len(data[1]), None
    if num_rows == num_known:
        return
    rows = shapes_with_rows(data, num_rows)
    try:
        if jax.eval_shape(log_likelihood, position, rows).shape == (num_rows,):
            return
    except (TypeError, ValueError) as error:
        problem = error
    raise ValueError(_only_for(got, num_known)) from problem


def takes_batches(posterior: "Posterior") -> bool:
    """Whether the model can be evaluated on other numbers of rows, without another density."""
    position = jax.eval_shape(posterior.init, jax.random.key(0))
    data, rows = posterior.rows.examples, len(posterior.rows.examples[1]) + 1
    try:
        check_number_of_rows(posterior.log_likelihood, position, data, rows, "")
    except ValueError:
        return False
    return not posterior.density.is_whole


def whole_batches(got: str) -> ValueError:
    """Say that a model with a factor of all rows together takes no others."""
    return ValueError(
        f"got {got} with a model that has a numpyro.factor of all rows together, expected batches "
        "of all rows: give the factor one value for each row, or use batch_size='all'"
    )


def _only_for(got: str, num_rows: int) -> str:
    return (
        f"got {got} with a model that only works for {num_rows}, those it was conditioned on, "
        "expected one for any number: size its plates by the inputs, as in "
        "numpyro.plate('data', len(x)); latent sites with a value for each row have none for others"
    )


def check_finite(terms: Terms, observed: str) -> None:
    """Name the sites and rows where the log-density is not finite."""
    sites = [site for site, values in terms.log_priors.items() if not np.isfinite(values).all()]
    rows = np.flatnonzero(~np.isfinite(np.asarray(terms.log_likelihood)))
    problems = [f"the prior of {', '.join(sites)}"] if sites else []
    if rows.size:
        problems.append(
            f"the likelihood {observed!r} at {rows.size} of {len(terms.log_likelihood)} rows "
            f"(first {rows[:5].tolist()})"
        )
    if not np.isfinite(terms.log_jacobian):
        problems.append("a constrained site at the edge of its support")
    if problems:
        raise ValueError(
            f"got a log-density that is not finite at the start: {' and '.join(problems)}; "
            "expected a finite one: check the scale of the data, the supports and init="
        )


def _labels_or_numbers(y: Any) -> np.ndarray:
    """Give y as an array of text, truth values or numbers."""
    with suppress(ValueError):  # rows that differ in length
        labels = of_one_kind(np.asarray(y))
        if labels.dtype.kind in "bU":
            return labels
    return np.asarray(array_of("y", y))


def _columns(posterior: "Posterior", y: Any) -> Any:
    """Give the columns of y by site, where several are observed; else y as it is."""
    targets = posterior.rows.targets
    return targets.packed(y) if targets is not None and isinstance(y, Mapping) else y


def _numbers(posterior: "Posterior", y: Any) -> Any:
    """Give the numbers of class labels, or of counts; y that is real as it is."""
    seen = posterior.rows.examples[1]
    if y is seen or seen.dtype.kind == "f":
        return y
    classes = posterior.rows.classes
    numbers = _labels_or_numbers(y)
    numbers = whole_numbers(numbers) if classes is None else classes.numbers(numbers, seen.ndim)
    if numbers.dtype.kind not in "iu":
        return numbers
    if classes is None:
        return numbers.astype(seen.dtype)
    outside = numbers[(numbers < 0) | (numbers >= classes.num)]
    if outside.size and not np.isin(outside, seen).all():  # else they mark labels that a mask hides
        raise ValueError(
            f"got y from {numbers.min()} to {numbers.max()}, expected the classes 0 to "
            f"{classes.num - 1} of the model: leave out rows of others"
        )
    return numbers.astype(seen.dtype)


def _refuse_nonfinite(name: str, array: np.ndarray) -> None:
    refuse_text(name, array)
    bad = np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(1))
    if bad.size:
        raise ValueError(
            f"got NaN or infinite values in {bad.size} of {len(array)} rows of {name} "
            f"(first rows {bad[:5].tolist()}), expected finite numbers: drop or impute them"
        )


def _warn_of_nonfinite(name: str, x: Any, first: int | None, means: str) -> None:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(x)]
    floats = [leaf for leaf in leaves if leaf.dtype.kind == "f" and len(leaf)]
    finite = [np.isfinite(leaf.reshape(len(leaf), -1)).all(1) for leaf in floats]
    if not np.all(finite):
        bad = (first or 0) + np.flatnonzero(~np.all(finite, axis=0))
        of = "" if first is None else f" from row {first} on"
        warn(
            f"got NaN or infinite values in {bad.size} of {len(finite[0])} rows of {name}{of} "
            f"(first rows {bad[:5].tolist()}), expected finite numbers: {means}; drop or impute "
            "them"
        )


def refuse_nonfinite_rows(rows: tuple[Any, np.ndarray], numbers: np.ndarray) -> None:
    """Refuse NaN and infinities in rows of a stream, whose numbers are told."""
    for name, array in [*(("x", leaf) for leaf in jax.tree.leaves(rows[0])), ("y", rows[1])]:
        finite = np.isfinite(array)
        if not finite.all():
            bad = np.unique(numbers[~finite.reshape(len(numbers), -1).all(1)])
            raise ValueError(
                f"got NaN or infinite values in {name} of the stream's rows {bad[:5].tolist()}, "
                "expected finite numbers: drop or impute them, or give transform="
            )


def refuse_nonfinite_chunks(chunks: "StreamChunks") -> None:
    """Refuse NaN and infinities in any row of a stream, in one pass over them.

    Where a compiled program reads them, the error would be one among many lines.
    """
    for number in range(chunks.num):
        numbers, rows = chunks.rows(number)
        refuse_nonfinite_rows(rows, numbers)


def check_no_factors(posterior: "Posterior", name: str) -> None:
    """Refuse a model whose prior density has what its draws do not: factors, scales or masks."""
    if posterior.density.factors:
        raise ValueError(
            f"got the factor, scale or mask of {posterior.density.factors[0]!r} for {name}, "
            "expected a prior of distributions alone: give the sites a prior with this density "
            "(hmc and nuts take any)"
        )


def check_proper_priors(from_prior: Callable[..., Values], examples: Data) -> None:
    """Refuse a model with a prior that cannot be drawn from."""
    try:
        jax.eval_shape(from_prior, jax.random.key(0), examples)
    except NotImplementedError:
        raise ValueError(
            "got a model with a prior that cannot be drawn from, expected proper ones: replace "
            "ImproperUniform by a distribution"
        ) from None
