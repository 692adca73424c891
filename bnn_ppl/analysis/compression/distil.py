"""One network that predicts as all draws do: distillation of a posterior."""

from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from bnn_ppl.analysis.compression.inputs import Inputs, inputs_about
from bnn_ppl.analysis.compression.student import Target, distances, student_of_numbers
from bnn_ppl.analysis.compression.student_training import Taught, Trained, trained
from bnn_ppl.analysis.prediction.predict import predict
from bnn_ppl.analysis.prediction.several_sites import check_one_site
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import checked_inputs
from bnn_ppl.runtime.checks import check_count, check_seed
from bnn_ppl.runtime.progress import reporting
from bnn_ppl.storage.inference_data import (
    inference_data,
    weights_of,
    with_constants,
    with_points_of,
)

if TYPE_CHECKING:
    import arviz
    import pandas
    import xarray

_PARTS, _LEAST_PART = 10, 300  # in which the draws predict, to show progress; inputs of each
_NUMBERS_A_PART = 2**20  # of all its inputs
_MOST_INPUTS, _LEAST_INPUTS = 30_000, 3_000
_PREDICTING = 2**38  # inputs times draws times weights: minutes on two cores
# What the draws and the student have in common.
_KEPT = "inference_library", "inference_library_version", "class_names", "prior_scale"


class Distilled(NamedTuple):
    """What :func:`bnn_ppl.distil` gives.

    Attributes
    ----------
    student
        The model of the network, conditioned on the rows of the posterior.
    draws : arviz.InferenceData
        Its values: one chain of one draw, which is no sample of a posterior.
    table : pandas.DataFrame
        How far it is from the draws, by kind of held-out inputs: the average Kullback-Leibler
        divergence ``kl`` in nats, and the largest changes of a ``mean`` and ``sd`` in predictive
        standard deviations, or of a ``probability``.
    steps : int
        Steps of training.
    """

    student: Posterior
    draws: "arviz.InferenceData"
    table: "pandas.DataFrame"
    steps: int

    def predict(self, data: Any, **options: Any) -> "xarray.Dataset":
        """Predict as :func:`bnn_ppl.predict` of the student and its one draw."""
        return predict(self.student, self.draws, data, **options)


def distil(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    x: Any = None,
    *,
    student: Posterior | None = None,
    num_inputs: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Distilled:
    r"""Train one network to predict as the average over all draws does.

    It minimises the average over inputs of the Kullback-Leibler divergence
    :math:`\mathrm{KL}(p(y | x, D) \| q(y | x))` of the predictive distribution p from its own q
    (Bayesian dark knowledge: Balan et al., 2015). Of numbers q is Gaussian, and the one with the
    mean and variance of p has the least divergence of all.

    Parameters
    ----------
    posterior
        The posterior that was sampled.
    draws
        From :func:`bnn_ppl.run`.
    x
        Rows about which predictions are kept, at least 10; by default the training rows. The inputs
        are rows, rows with Gaussian noise of 0.3 standard deviations of each column (0.1 of images)
        and mixtures of two rows in random shares, alike in weight. Tokens stay as they are.
    student
        The model to train, conditioned on rows like those of `posterior`. By default, for classes,
        the same network; for numbers two of them, for the mean and the log standard deviation.
    num_inputs
        About how many inputs; a tenth of them, and of the rows, is held out. By default 30,000,
        fewer (down to 3,000) for many draws of many weights.
    seed
        Random seed for the inputs and for training.
    progress
        Show progress bars.

    Returns
    -------
    Distilled
        The network, and its distance from the draws at the held-out inputs, by which training also
        ends.

    Raises
    ------
    ValueError
        If there are several observed sites, classes of pixels, batch normalisation in train mode,
        fewer than 10 rows, or predictions that are not finite.

    Notes
    -----
    It says no more than p: which part of the uncertainty is that of the weights is lost, and so are
    correlations of several outputs.
    """
    check_arguments(posterior=posterior, draws=draws)
    if num_inputs is None:
        num_inputs = _usual_num_inputs(posterior, draws)
    check_count("num_inputs", num_inputs, 100)
    check_seed(seed)
    _check(posterior, student)
    x = checked_inputs(posterior, posterior.rows.examples[0] if x is None else x)
    inputs = inputs_about(x, num_inputs, np.random.default_rng(seed))
    learnt, held_out = (_taught(posterior, draws, each, progress) for each in inputs)
    if student is None:
        own = with_points_of(draws, posterior.whole)
        student = own if "probs" in learnt.target else student_of_numbers(own)
    else:
        student = with_points_of(draws, student)
    found = trained(student, learnt, held_out, jax.random.key(seed), progress)
    kept = _as_draws(student, found, draws)
    return Distilled(student, kept, _table(student, kept, held_out), found.steps)


def _check(posterior: Posterior, student: Posterior | None) -> None:
    for each in filter(None, (posterior, student)):
        check_one_site(each, "distil each")
        if each.rows.batch_statistics is not None:
            raise ValueError(
                "got a network with batch normalisation in train mode, expected one without: "
                "use bnn_ppl.compress"
            )


def _usual_num_inputs(posterior: Posterior, draws: Any) -> int:
    affordable = _PREDICTING // (weights_of(draws).size * posterior.whole.num_weights)
    return min(max(affordable, _LEAST_INPUTS), _MOST_INPUTS)


def _taught(posterior: Posterior, draws: Any, inputs: Inputs, progress: bool) -> Taught:
    """Predict the inputs with all draws."""
    num = sum(inputs.kinds.values())
    numbers = sum(leaf.size for leaf in jax.tree.leaves(inputs.x)) // num
    size = min(max(_LEAST_PART, -(-num // _PARTS)), max(1, _NUMBERS_A_PART // numbers))
    parts = []
    with reporting(progress, num) as report:
        for start in range(0, num, size):
            part = slice(start, start + size)
            rows = jax.tree.map(itemgetter(part), inputs.x)
            parts.append(_target(predict(posterior, draws, rows)))
            report("predicting", min(start + size, num), {})
    target = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    return Taught(inputs, target)


def _target(found: "xarray.Dataset") -> Target:
    names = ["probs"] if "probs" in found else ["mean", "variance"]
    target = {name: found[name].values for name in names}
    if "probs" in target and target["probs"].ndim > 2:
        raise ValueError("got classes of pixels, expected one class a row: use bnn_ppl.compress")
    if not all(np.isfinite(values).all() for values in target.values()):
        raise ValueError(
            f"got predictions whose {' or '.join(names)} is not finite, expected numbers: "
            "use bnn_ppl.compress"
        )
    return target


def _as_draws(student: Posterior, found: Trained, draws: Any) -> "arviz.InferenceData":
    """Give the values that training has found, as a chain of one draw."""
    own_values, total = student.constrain(found.position), weights_of(draws).size
    values = {site: np.asarray(own_values[site])[None, None] for site in student.whole.sites.names}
    y = student.rows.examples[1]
    attrs = {name: draws.attrs[name] for name in _KEPT if name in draws.attrs}
    attrs |= {"method": "distil", "draws_from": "point", "num_draws": 1, "thin": 0}
    said = f"one network distilled from {total:,} draws, {found.loss:.2g} nats a row from them"
    of_draws = draws.attrs.get("verdict")
    attrs |= {"verdict": said + (f"; these: {of_draws}" if of_draws else "")}
    attrs |= {"distilled_from": total, "divergence": found.loss, "training_steps": found.steps}
    kept = inference_data(values, {}, np.asarray(y), attrs)
    held = {site: np.asarray(value) for site, value in student.sites.held.items()}
    return with_constants(kept, held)


def _table(student: Posterior, kept: Any, held_out: Taught) -> "pandas.DataFrame":
    """Compare what the student predicts with the targets, by kind of input."""
    import pandas

    found = _target(predict(student, kept, held_out.inputs.x))
    ends = np.cumsum([0, *held_out.inputs.kinds.values()])
    rows = {}
    for name, start, end in zip(held_out.inputs.kinds, ends, ends[1:], strict=False):
        pair = [{key: each[key][start:end] for key in each} for each in (held_out.target, found)]
        rows[name] = {"inputs": end - start} | distances(*pair)
    return pandas.DataFrame.from_dict(rows, "index").rename_axis("held out")
