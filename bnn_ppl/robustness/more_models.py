"""Scores of corrupted images as more and more models are averaged."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bnn_ppl.model.posterior import Posterior
from bnn_ppl.robustness.shift import corrupted
from bnn_ppl.runtime.checks import each_of

if TYPE_CHECKING:
    import arviz
    import pandas


def corrupted_by_models(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    data: Any,
    numbers: int | Sequence[int] | None = None,
    **options: Any,
) -> "pandas.DataFrame":
    """Score predictions of corrupted images by the first chain, the first two, and so on.

    A chain is a model: a member of a deep ensemble, one Gaussian of MultiSWAG. As in Wilson &
    Izmailov (2020), section 4, who find that the more models and the stronger the corruption, the
    more is gained by marginalising within each mode too.

    Parameters
    ----------
    posterior, draws, data
        As :func:`bnn_ppl.shift.corrupted` takes them; the chains are the models.
    numbers
        Numbers of models, or one; by default 1, 2, 4, ... and all.
    options
        Further options of :func:`bnn_ppl.shift.corrupted`.

    Returns
    -------
    pandas.DataFrame
        The tables of :func:`bnn_ppl.shift.corrupted` one after another, with a column
        ``num_models``.

    Raises
    ------
    ValueError
        If a number is not from 1 to that of the chains, and as `corrupted`.
    """
    import pandas as pd

    num_chains = draws["posterior"].sizes["chain"]
    chosen = doubled(num_chains) if numbers is None else each_of(numbers)
    wrong = [number for number in chosen if not 1 <= number <= num_chains]
    if wrong or not chosen:
        raise ValueError(
            f"got numbers={chosen} of models, expected some from 1 to {num_chains}, the number of "
            "chains: draw more chains"
        )
    tables = []
    for number in chosen:
        models: Any = draws.isel(chain=slice(number))
        table = corrupted(posterior, models, data, **options)
        tables.append(table.assign(num_models=number))
    return pd.concat(tables, ignore_index=True)


def doubled(most: int) -> list[int]:
    """Give 1, 2, 4, ... and `most`."""
    powers = [2**power for power in range(most.bit_length()) if 2**power < most]
    return [*powers, most]
