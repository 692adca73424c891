"""Predictions averaged over draws, and each draw's own, for diagnosis."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import numpyro.distributions as dist

from bnn_ppl.analysis.convergence.function_convergence import Mixing, mixing_of
from bnn_ppl.analysis.distributions.crps import crps_of
from bnn_ppl.analysis.prediction.closed_form import closed_form_parts
from bnn_ppl.analysis.prediction.draw_statistics import by_block, sites_to_predict
from bnn_ppl.analysis.prediction.large_data import rows_of, stream_parts, written
from bnn_ppl.analysis.prediction.model_average import Sums, adder, dataset_of
from bnn_ppl.analysis.prediction.per_draw import (
    Array,
    Predictive,
    Tree,
    center_and_sd,
    compiled,
    known_of,
    of_draws,
    probs_or_mean,
    row_dims,
    with_arguments,
)
from bnn_ppl.analysis.prediction.predictives import predicting
from bnn_ppl.analysis.prediction.several_sites import check_one_target, predicted_by_site
from bnn_ppl.methods.method import PredictiveForm
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import checked_inputs
from bnn_ppl.runtime.checks import warn
from bnn_ppl.runtime.machines.devices import products_in
from bnn_ppl.storage.arviz_versions import as_dataset
from bnn_ppl.storage.inference_data import (
    in_blocks,
    inference_data,
    weights_of,
    with_class_names,
    with_groups,
    with_points_of,
)

if TYPE_CHECKING:
    import arviz
    import xarray


def predict(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    data: Any,
    *,
    predictive: PredictiveForm | None = None,
    batch_size: int | None = None,
    folder: str | Path | None = None,
    crps: bool = False,
) -> "xarray.Dataset":
    """Bayesian model average: the mixture over draws of the observed site's distribution.

    Draws and rows stream through: memory grows with neither the number of draws nor, beyond the
    result, the number of rows.

    The folder of a run by the command line or an estimator may take the place of `posterior` and
    `draws`, as in ``predict("runs/mine", x=rows)``: rows and result are then in the units of the
    data, and rows may be a data frame with the columns of the training table. No training rows are
    loaded. The other functions that predict take a folder in the same way.

    Parameters
    ----------
    posterior
        The posterior that was sampled.
    draws
        From :func:`bnn_ppl.run`, or any InferenceData with the model's sites. Draws have equal
        weights unless ``sample_stats`` holds ``log_weight``; chains always have.
    data
        Inputs x, a pair (x, y) or (x, None), or rows on disk, from :func:`bnn_ppl.data.stream`.
        Arrays, or data frames or lists of numbers; y is in the units of training.
    predictive
        What draws predict with: "sampled" the network itself; "linearised" the network linearised
        about the fitted mean of the draw's chain (:func:`bnn_ppl.linearised`); "closed_form" does
        without draws (:func:`bnn_ppl.predict_closed_form`). By default what the draws are made for:
        "linearised" for :func:`bnn_ppl.laplace`, whose draws can predict badly with the network
        itself; otherwise "sampled".
    batch_size
        Rows at a time; all at once by default, 1,024 of a stream.
    folder
        A new Zarr folder, such as "x.zarr", to write the result to, a chunk for each
        `batch_size` rows, where it does not fit in memory. It appears once it is complete.
    crps
        Whether to add the continuous ranked probability score of y, for numbers and counts:
        ``crps``, exact for Gaussians of at most 500 draws, otherwise by at least 4,096 draws of
        y with a Monte Carlo standard error ``crps_mcse``; in the units of y, and NaN where y is
        censored. Not with `folder`.

    Returns
    -------
    xarray.Dataset
        With `folder`, values are read when used. By row, for classification: ``probs`` (row,
        class), summing to 1, with the names of the classes as the coordinate ``class`` if the
        labels were not the numbers 0, 1, ... For regression: ``mean``, ``variance`` (total),
        ``epistemic_variance`` (of the mean over draws). For both, in nats:
        ``entropy`` of the average (for regression, of the Gaussian with its mean and variance),
        ``expected_entropy`` of a draw (NaN where the distribution has no closed form), their
        difference ``mutual_information``, and, if y is given, ``log_prob``, the log of the average
        density of y (not the average of the log); for likelihoods other than Gaussians and classes
        also ``pit_lower`` and ``pit_upper``, the probabilities below y and up to it, which differ
        for counts, and for censored y, where the latter is 1. With several outputs all are by row
        and output (``output_0``, ``output_1`` for pixels), except that ``log_prob`` is joint over
        outputs that form one event (``to_event``). With several observed sites names begin with the
        site's, as in ``y_mean`` and ``label_probs``; ``log_prob`` alone is of all of them.

    Raises
    ------
    TypeError
        If posterior or draws are of another type.
    ValueError
        If the draws lack a site, x and y differ in length, x or y differ in structure, shape or
        dtype from the training data, `batch_size` is below 1, or `predictive` is unknown or needs
        a fitted distribution that the draws do not have; `crps` is given with `folder`; or a run
        given by its folder is of a user's own model, which it does not store.
    FileExistsError
        If `folder` exists.
    """
    import xarray

    check_arguments(posterior=posterior, draws=draws)
    if crps and folder is not None:
        raise ValueError("got crps and folder=, expected one of them: leave folder out")
    parts: Iterator[xarray.Dataset]
    if posterior.rows.targets is not None:
        if predictive == "closed_form":
            check_one_target(posterior)

        def of_one(posterior: Posterior, rows: Any) -> "xarray.Dataset":
            own: dict[str, Any] = {"predictive": predictive, "batch_size": batch_size}
            return predict(posterior, draws, rows, **own, crps=crps)

        whole = with_points_of(draws, posterior)
        given = stream_parts(data, batch_size)
        parts = (predicted_by_site(of_one, whole, rows, first) for rows, first in given)
    elif predictive == "closed_form":
        parts = closed_form_parts(posterior, draws, data, batch_size)
    else:
        averaging = predicting(posterior, draws, predictive)
        averages = _averages(averaging, draws, data, batch_size)
        parts = (
            with_class_names(dataset_of([part], has_y), draws, posterior)
            for part, has_y in averages
        )
    if folder is None:
        first, *others = parts
        found = xarray.concat([first, *others], "row") if others else first
        of_all = crps and posterior.rows.targets is None  # else each site has its own already
        scored = crps_of(posterior, draws, data, predictive, batch_size) if of_all else {}
        return found.assign({str(name): each for name, each in scored.items()})
    return _stored(parts, folder)


def _stored(parts: Iterable["xarray.Dataset"], folder: str | Path) -> "xarray.Dataset":
    import xarray

    folder = Path(folder).expanduser()
    with written(folder) as write:
        for part in parts:
            write(part)
    return xarray.open_zarr(folder, chunks=None)


def predict_with_functions(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    data: Any,
    *,
    batch_size: int | None = None,
    report: Callable[[int], None] = lambda num_draws: None,
) -> tuple["xarray.Dataset", "arviz.InferenceData"]:
    """Return the results of :func:`predict` and :func:`function_draws` from one pass.

    Parameters, results and errors are as for these; `report` is told how many draws have been used,
    over all batches of rows.
    """
    check_arguments(posterior=posterior, draws=draws)
    posterior = predicting(posterior, draws)
    functions: list[dict[str, np.ndarray]] = []
    found = list(_averages(posterior, draws, data, batch_size, functions, report))
    of_chains = weights_of(draws).shape
    by_chain = jax.tree.map(
        lambda leaf: leaf.reshape(*of_chains, *leaf.shape[1:]), _joined(functions, axis=1)
    )
    prediction = dataset_of([part for part, _ in found], found[0][1])
    functions_of_draws = _as_draws(by_chain, draws, posterior)
    return with_class_names(prediction, draws, posterior), functions_of_draws


def _averages(
    posterior: Posterior,
    draws: Any,
    data: Any,
    batch_size: int | None,
    kept: list[dict[str, np.ndarray]] | None = None,
    report: Callable[[int], None] = lambda num_draws: None,
) -> Iterator[tuple[Sums, bool]]:
    """Give the average over all draws, part by part of the rows, and whether y is known.

    What each draw predicts of a part is added to `kept`.
    """
    num_rows, size, part = rows_of(posterior, data, batch_size)
    sites = sites_to_predict(posterior, draws)
    all_weights = weights_of(draws)
    add = adder(posterior, kept is not None)
    used = not_finite = 0
    for start in range(0, num_rows, size):
        rows = part(start)
        sums, blocks, known = None, [], None
        with products_in(posterior.density.precision):
            for block, weights in in_blocks(sites, all_weights):
                # Waiting keeps blocks from piling up in memory in front of a slow device.
                if sums is None:
                    known = known_of(posterior, block, rows[0])
                sums, each = jax.block_until_ready(add(sums, block, weights, *rows, known))
                blocks.append(jax.tree.map(np.asarray, each))
                used += len(weights)
                not_finite += _num_not_finite(block) if start == 0 else 0
                report(used)
        if start == 0 and not_finite:
            warn(
                f"got NaN or infinite values in {not_finite} of {used} draws, expected finite "
                "numbers: predictions are not finite either; leave these draws out (draws.isel)"
            )
        if kept is not None:
            kept.append(_joined(blocks, axis=0))
        yield jax.tree.map(np.asarray, sums), rows[1] is not None


def _joined(trees: list[Tree], axis: int) -> Tree:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis), *trees)


def function_draws(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    x: Any,
    *,
    predictive: PredictiveForm | None = None,
) -> "arviz.InferenceData":
    """Prediction of each draw, to diagnose chains in function space.

    The weights of a network need not mix, since permuting units leaves the function unchanged; its
    predictions must.

    Parameters
    ----------
    posterior
        The posterior that was sampled.
    draws
        From :func:`bnn_ppl.run`.
    x
        Inputs, shape (rows, ...), in any form that :func:`predict` takes.
    predictive
        "linearised" or "sampled", as for :func:`predict`.

    Returns
    -------
    arviz.InferenceData
        Group ``posterior`` with ``probs`` (chain, draw, row, class) or ``mean`` (chain, draw, row),
        for ``az.summary``, R-hat and ESS in function space; of weighted draws, also
        ``sample_stats`` with their ``log_weight``, which ``az.summary`` ignores.

    Raises
    ------
    TypeError, ValueError
        As :func:`predict`.
    """
    check_arguments(posterior=posterior, draws=draws)
    posterior = predicting(posterior, draws, predictive)
    return _as_draws(_functions(_center, posterior, draws, x), draws, posterior)


def mixing_at(posterior: Posterior, draws: "arviz.InferenceData", x: Any) -> tuple[Mixing, bool]:
    """Diagnose what the draws predict at x, and say whether all of it is finite.

    The network itself predicts: a run that goes on has no fitted mean yet.
    """
    posterior = predicting(posterior, draws, "sampled")
    functions = _functions(center_and_sd, posterior, draws, x)
    sd = functions.pop("sd", None)
    (center,) = functions.values()
    mixes = mixing_of(center, sd, weights=weights_of(draws))
    return mixes, bool(np.isfinite(center).all())


def _num_not_finite(block: Tree) -> int:
    finite = [np.isfinite(leaf).reshape(len(leaf), -1).all(1) for leaf in block.values()]
    return int((~np.all(finite, 0)).sum())


def _as_draws(
    functions: dict[str, np.ndarray], draws: Any, posterior: Posterior
) -> "arviz.InferenceData":
    dims = {}
    for name, values in functions.items():
        classes = name == "probs"
        dims[name] = [*row_dims(values.ndim - 3 - classes), *(["class"] if classes else [])]
    stats = draws.get("sample_stats", {})
    weights = {}
    if "log_weight" in stats:
        weights["log_weight"] = stats["log_weight"].transpose("chain", "draw").values
    found = inference_data(functions, weights, None, dict(draws.attrs), dims=dims)
    of_functions = as_dataset(found["posterior"])
    return with_groups(found, posterior=with_class_names(of_functions, draws, posterior))


def _functions(tell: Callable, posterior: Posterior, draws: Any, x: Any) -> dict[str, np.ndarray]:
    """Give what is told of the distribution of y that each draw predicts."""
    x = checked_inputs(posterior, x)
    of_draws = compiled(with_arguments(_told, tell), posterior)
    known: list[Array] | None = None

    def of_block(block: Tree, first: int) -> dict[str, Array]:
        nonlocal known
        known = known_of(posterior, block, x) if first == 0 else known
        return of_draws(block, x, known)

    return map_draws(of_block, posterior, draws)


def map_draws(of_block: Callable, posterior: Posterior, draws: Any) -> dict[str, np.ndarray]:
    """Apply a function of a block of draws and the first one's number to all; join by chain."""
    with products_in(posterior.density.precision):
        return by_block(of_block, sites_to_predict(posterior, draws))


def _told(
    tell: Callable, predictive: Predictive, block: Tree, x: Tree, known: list[Array] | None
) -> dict[str, Array]:
    at = of_draws(predictive, block, x, known)
    return jax.lax.map(lambda values: tell(at(values)), block)


def _center(law: dist.Distribution) -> dict[str, Array]:
    return dict([probs_or_mean(law)])
