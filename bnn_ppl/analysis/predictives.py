"""Predictions of a run in the form that is asked for: sampled, linearised or in closed form."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from bnn_ppl.analysis.closed_form import closed_form_quantiles, predict_closed_form
from bnn_ppl.analysis.linearised import for_prediction
from bnn_ppl.analysis.predict import predict
from bnn_ppl.analysis.quantiles import predict_quantiles
from bnn_ppl.model.posterior import Posterior

if TYPE_CHECKING:
    import arviz
    import xarray

PredictiveForm: TypeAlias = Literal["linearised", "closed_form", "sampled"]


def predict_in_form(
    form: PredictiveForm | None, posterior: Posterior, draws: "arviz.InferenceData", data: Any
) -> "xarray.Dataset":
    """Predict rows (x, y) or (x, None) as :func:`bnn_ppl.predict` does, in a given form.

    None is linearised for a single Laplace approximation and sampled for all else.

    Raises
    ------
    ValueError
        If the form is unknown, or the draws are not of a single Laplace approximation and the form
        needs one; or as the function that predicts.
    """
    predicting = _predicting(form, posterior, draws)
    if form == "closed_form":
        return predict_closed_form(posterior, draws, data)
    return predict(predicting, draws, data)


def quantiles_in_form(
    form: PredictiveForm | None,
    posterior: Posterior,
    draws: "arviz.InferenceData",
    x: Any,
    quantiles: Sequence[float] | np.ndarray,
) -> np.ndarray:
    """Give quantiles (quantiles, rows), as :func:`bnn_ppl.predict_quantiles` does, in a form.

    Raises
    ------
    ValueError
        As :func:`predict_in_form`, or if a quantile is not between 0 and 1.
    """
    predicting = _predicting(form, posterior, draws)
    if form == "closed_form":
        return closed_form_quantiles(predict_closed_form(posterior, draws, (x, None)), quantiles)
    return predict_quantiles(predicting, draws, x, quantiles)


def _predicting(form: PredictiveForm | None, posterior: Posterior, draws: Any) -> Posterior:
    if form not in (None, *get_args(PredictiveForm)):
        known = ", ".join(map(repr, get_args(PredictiveForm)))
        raise ValueError(f"got predictive={form!r}, expected one of {known}, or None")
    return for_prediction(posterior, draws, form)
