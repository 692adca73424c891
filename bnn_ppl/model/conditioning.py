"""Condition a NumPyro model on data: checks of both, and the posterior of what has passed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from bnn_ppl.data.streams.streams import Stream, converted
from bnn_ppl.model.initial import inspected_sites
from bnn_ppl.model.normalisation.batch_norm import statistics_found
from bnn_ppl.model.normalisation.batch_statistics import layers_of
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.posterior_functions import (
    Conditions,
    GivenRows,
    ModelSites,
    Options,
    posterior_of,
)
from bnn_ppl.model.prior.open_scale import scales_asked
from bnn_ppl.model.program.missing_targets import check_missing
from bnn_ppl.model.program.preparation import prepared
from bnn_ppl.model.program.several_targets import Targets, taking_columns, targets_of
from bnn_ppl.model.rows.checks import (
    check_number_of_rows,
    check_options,
    checked_y,
    paired_rows,
    whole_batches,
)
from bnn_ppl.model.rows.given_rows import given_arrays, pair_of
from bnn_ppl.model.rows.labels import Classes
from bnn_ppl.model.rows.microbatch import fitting_microbatch, fitting_rows
from bnn_ppl.model.rows.scales import warn_of_scales
from bnn_ppl.model.rows.streamed_rows import StreamChunks
from bnn_ppl.model.structure import (
    check_classes,
    check_independent,
    check_model,
    checked_structure,
    numbered_classes,
    warn_of_need_of_y,
)
from bnn_ppl.model.trace import Array, Data, Position, evaluated
from bnn_ppl.runtime.machines.devices import MatmulPrecision


def condition(
    model: Callable[..., Any],
    data: Any,
    *,
    temperature: float = 1.0,
    tempered: Literal["posterior", "likelihood"] = "posterior",
    microbatch: int | None = None,
    precision: MatmulPrecision | None = None,
    features: str | Path | None = None,
    groups: Any = None,
) -> Posterior:
    """Condition a NumPyro model on data.

    Parameters
    ----------
    model
        ``model(x, y=None)``, a NumPyro program whose rows are conditionally independent given its
        latent sites. With or without a network. Plates that subsample are taken whole, parameters
        (``numpyro.param``) are points, discrete latent sites of a row are summed out.
    data
        A pair ``(x, y)``: y an array (rows, ...), or a dict of these by site for several observed
        sites; x an array or a tree of arrays (rows, ...); lists of numbers and tables count as
        arrays. NaN in y is a missing target, which the model must mask; masked numbers outside a
        discrete support, such as the label -1, also count as missing. Or rows that stay on disk,
        from :func:`bnn_ppl.data.stream`, where no y may be NaN. Labels of classes may be whole
        floats, truth values, text with as many words as classes, one-hot rows, or 1 to K (with a
        warning); predictions then keep their names.
    temperature
        T > 0. Below 1 a cold, above 1 a warm posterior.
    tempered
        What T divides: ``"posterior"`` gives ``(p(D|w) p(w))^(1/T)``, ``"likelihood"`` gives
        ``p(D|w)^(1/T) p(w)``.
    microbatch
        Rows that a device works on at a time, for data whose gradient does not fit in memory: the
        likelihood of a larger batch is computed in chunks of this many rows, each recomputed in the
        backward pass, and is the same up to rounding. By default all rows, unless the intermediate
        results of their likelihood would together take more than a quarter of the device's memory
        (host devices share the computer's); then as many rows as take a quarter. Methods that
        intercept layers (taps) see whole batches; only :func:`bnn_ppl.vogn` takes them in chunks.
    precision
        Precision of products and convolutions of float32 on accelerators, here and in all that is
        done with the posterior (runs, predictions, plans), by JAX's names; a CPU computes in
        float32 always.

        - ``"highest"``: float32; six passes of bfloat16 on a TPU, no tensor cores on a GPU.
        - ``"tensorfloat32"``: TF32 on GPUs since Ampere, three passes of bfloat16 on a TPU.
        - ``"bfloat16"``: one pass of bfloat16 on a TPU, TF32 on a GPU.

        By default as JAX is configured (``jax_default_matmul_precision``), or else "highest". What
        the others do to the energy errors of HMC is in benchmarks/RESULTS.md.
    features
        Folder where the outputs of fixed layers are kept, computed by the first run that needs
        them. Runs then read them in place of the rows of a stream, and rows in memory are not
        computed again by later processes. Those of other layers, weights or rows are told apart by
        a digest, and none is deleted.
    groups
        The group of each row (rows,), such as the patient that it is of: where training holds out
        rows, to find the noise or its own end, those of a group stay together, so that intervals
        are those of new groups. The model does not see them.

    Returns
    -------
    Posterior
        Pure functions of unconstrained positions; see :class:`Posterior`.

    Warns
    -----
    UserWarning
        If y, or a column of x, is on another scale than draws from the model's prior. For this 16
        draws are made, unless the data look standardised or the model has more than 20 sites.
        Also if the model fails with y=None, by which it predicts.

    Raises
    ------
    TypeError
        If `model` is not a function, or is a network.
    ValueError
        If the data contain infinite values, or NaN that no mask hides, or x and y differ in length;
        if the model observes nothing, a function of y such as its logarithm, or several sites
        without a dict y; if it has discrete latent sites that are not of single rows or have no
        finite support, plates of a fixed size with `microbatch`, or mutable state, or its
        likelihood is not one value per row; if y does not have the shape and kind of its
        distribution; if T is not a finite number above 0, or `microbatch` is not a whole number of
        rows, or `precision` is none of those above; if `features` is given for a model without
        fixed layers.

    Notes
    -----
    The log-density is ``(log p(w) + N/|batch| sum_i log p(y_i | x_i, w)) / T`` plus the
    log-Jacobian of the map from the position to w, which is not tempered: T tempers the density of
    w itself.

    The real numbers in a model are arguments of what is compiled from it: with others, nothing is
    compiled again. They are the leaves of a model that is a ``jax.tree_util.Partial``, as those of
    :mod:`bnn_ppl.models` are: the parameters of its priors and a noise scale, where these are
    distributions, Partials or numbers themselves.

    Where a prior leaves its scale open, as ``priors.fan_in()`` does, the posterior has it at the
    usual one, and :func:`bnn_ppl.run` runs the posterior at the scale that it finds.
    """
    check_options(temperature, tempered, microbatch, precision)
    check_model(model)
    stream = data if isinstance(data, Stream) else None
    targets, model, (x, y) = _with_one_target(model, data if stream is None else stream.examples)
    y, names = numbered_classes(model, x, y) if stream is None else (y, None)
    data = x, checked_y(y, missing=True)
    groups = None if groups is None else _checked_groups(groups, stream, len(data[1]))
    model = prepared(model, *data)
    with statistics_found() as found, scales_asked() as scales:
        observed = checked_structure(model, data, targets)
    if not observed.is_factor:
        warn_of_need_of_y(model, data[0])
    if stream is not None:
        check_classes(model, stream, data, targets)
        stream = stream if targets is None else converted(stream, targets.with_columns)
    check_missing(model, data)
    _check_targets(targets, list(found))
    layers = layers_of(tuple(found), data[0], microbatch, streamed=stream is not None)
    latent = inspected_sites(model, data)
    shapes = latent.shapes
    by_row = _by_row(model)
    automatic = microbatch is None
    if observed.is_whole and (stream is not None or not automatic):
        raise whole_batches("rows of a stream" if automatic else f"microbatch={microbatch}")
    if microbatch is None and layers is None and not observed.is_whole:
        microbatch = fitting_microbatch(by_row, data, shapes)
    if microbatch is not None and microbatch < len(data[1]):
        got = f"microbatch={microbatch} rows"
        check_number_of_rows(lambda w, rows: by_row(rows, w), shapes, data, microbatch, got)
    chunks = None
    if stream is not None:
        chunks = StreamChunks(stream, data, microbatch or fitting_rows(by_row, data, shapes))
    classes = None if observed.num_classes is None else Classes(observed.num_classes, names)
    open_scale = next(iter(scales), None)
    size = None if microbatch is None else int(microbatch)
    folder = None if features is None else Path(features).expanduser().absolute()
    given = Conditions(
        GivenRows(data, stream, chunks, classes, targets, groups),
        ModelSites(observed, latent, open_scale, layers),
        Options(float(temperature), tempered, size, automatic, precision, folder),
    )
    posterior = posterior_of(model, given, held={})
    if (
        features is not None
        and _with_any_points(posterior, latent.points).rows.fixed_part() is None
    ):
        raise ValueError(
            f"got features={str(features)!r} for a model without fixed layers before the random "
            "ones, whose outputs could be kept, expected some: leave it out"
        )
    if targets is None and not observed.is_factor:
        warn_of_scales(model, observed.name, len(shapes), data)
    return posterior


def _with_one_target(
    model: Callable, data: Any
) -> tuple[Targets | None, Callable, tuple[Any, np.ndarray]]:
    """Give rows whose y is one array, and the model that takes it, in place of a dict by site."""
    x, y = pair_of(data)
    targets = targets_of(y)
    if targets is None:
        return None, model, paired_rows((x, y))
    columns = targets.packed(y)
    check_independent(model, given_arrays(x), targets.unpacked(jnp.asarray(columns, float)))
    return targets, taking_columns(targets, model), paired_rows((x, columns))


def _checked_groups(groups: Any, stream: Stream | None, num_rows: int) -> np.ndarray:
    """Give the groups as numbers from 0 up (rows,)."""
    if stream is not None:
        raise ValueError("got groups for rows of a stream, expected rows in memory: leave them out")
    names = np.asarray(groups).ravel().tolist()
    if any(name is None or name != name for name in names):
        raise ValueError(
            "got groups of which some are missing, expected one for each row: fill them"
        )
    numbers = np.unique(list(map(str, names)), return_inverse=True)[1]
    if len(numbers) != num_rows:
        raise ValueError(
            f"got groups of {len(numbers)} rows for {num_rows} rows, expected one each"
        )
    return numbers


def _check_targets(targets: Targets | None, layers: list[str]) -> None:
    if targets is not None and layers:
        raise ValueError(
            f"got several observed sites and the BatchNorm {layers[0]} in train mode, expected one "
            "or the other: pass a network after .eval(), or with LayerNorm"
        )


def _with_any_points(posterior: Posterior, points: dict[str, tuple[int, ...]]) -> Posterior:
    """Hold the points, if there are some, at values that do not matter."""
    values = {site: jnp.zeros(shape) for site, shape in points.items()}
    return posterior.hold(values) if points else posterior


def _by_row(model: Callable) -> Callable[[Data, Position], Array]:
    return lambda data, position: evaluated(model, None, position, data).log_likelihood
