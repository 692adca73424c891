"""What draws predict with: the network itself, the linearised one, or a closed form."""

from typing import TYPE_CHECKING, get_args

from bnn_ppl.analysis.prediction.linearised import has_centres, linearised
from bnn_ppl.methods.method import METHODS, PredictiveForm
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.checks import warn
from bnn_ppl.storage.inference_data import with_points_of

if TYPE_CHECKING:
    import arviz


def predicting(
    posterior: Posterior, draws: "arviz.InferenceData", form: PredictiveForm | None = None
) -> Posterior:
    """Give the posterior by which draws predict in a form; None is the one they are made for.

    A posterior that is linearised already stays as it is.

    Raises
    ------
    ValueError
        If the form is unknown, "closed_form" where each draw is to predict, or "linearised" for
        draws without a fitted mean.
    """
    check_form(form)
    posterior = with_points_of(draws, posterior)
    if form == "closed_form":
        raise ValueError(
            "got predictive='closed_form' where each draw predicts, expected 'linearised' or "
            "'sampled': predict, and quantiles and probabilities of numbers, have the closed form"
        )
    if posterior.sites.centres and form == "sampled":
        raise ValueError(
            "got predictive='sampled' with a linearised posterior, expected the one that was "
            "sampled: pass what linearised(...) was given"
        )
    if posterior.sites.centres:
        return posterior
    method, wanted = draws.attrs.get("method"), form or made_for(draws)
    if wanted == "sampled":
        return posterior
    if has_centres(posterior, draws):
        return linearised(posterior, draws)
    if form is None:
        if draws.attrs.get("draws_from") != "point":  # of a run that was stopped in its fit
            warn(
                f"got draws of {method} without the fitted mean, expected it in the group fitted, "
                "to linearise about: they predict with the network itself, often badly"
            )
        return posterior
    raise ValueError(
        f"got predictive={form!r} for draws of {method} without a fitted mean, expected those of "
        "laplace: use 'sampled'"
    )


def made_for(draws: "arviz.InferenceData") -> PredictiveForm:
    """Say what draws predict with by default."""
    described = METHODS.get(draws.attrs.get("method", ""))
    # In a subspace the fitted mean is that of its coordinates.
    return described.predictive if described and "subspace" not in draws.attrs else "sampled"


def check_form(form: str | None) -> None:
    """Refuse a form that does not exist."""
    if form not in (None, *get_args(PredictiveForm)):
        known = ", ".join(map(repr, get_args(PredictiveForm)))
        raise ValueError(f"got predictive={form!r}, expected one of {known}, or None")
