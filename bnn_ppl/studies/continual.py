"""Continual learning: tasks one after the other, the posterior of each the prior of the next."""

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np

from bnn_ppl.analysis.prediction.predict import predict
from bnn_ppl.data import DataSet
from bnn_ppl.methods import descent, laplace, mfvi
from bnn_ppl.methods.method import Method
from bnn_ppl.model import models
from bnn_ppl.model.conditioning import condition
from bnn_ppl.model.network import Prior
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.prior import priors
from bnn_ppl.runtime.checks import check_count, check_seed
from bnn_ppl.studies.training import Training, check_study, fit, rate

if TYPE_CHECKING:
    import arviz
    import pandas

Learner: TypeAlias = Literal["vcl", "ewc", "same_prior", "fine_tuning"]

_INIT_STD = 0.05  # of the first task: near the prior's, to which uninformed weights return


class Learnt(NamedTuple):
    """What a task leaves to the next."""

    draws: "arviz.InferenceData"  # to predict with, and to start from
    gaussian: dict[str, Any]  # by site; none where a point was fitted


class Task(NamedTuple):
    """A task before it is learnt."""

    key: jax.Array
    posterior: Posterior
    training: Training
    name: str
    num_draws: int


def continual_learning(
    data: DataSet,
    net: Any,
    *,
    learners: Sequence[Learner] = ("vcl", "fine_tuning"),
    num_tasks: int = 5,
    prior: Prior | None = None,
    temperature: float = 0.1,
    num_epochs: int = 100,
    batch_size: int = 32,
    learning_rate: float = 5e-3,
    num_draws: int = 20,
    num_rows: int | None = None,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> "pandas.DataFrame":
    r"""Learn tasks one after the other, without revisiting rows, and test on all tasks so far.

    Task 1 is the data set; each other one is the same images under a fixed permutation of their
    pixels (`permuted`; Kirkpatrick et al., 2017; Goodfellow et al., 2014). One network, whose
    outputs all tasks share, is not told which task a row belongs to. Every learner starts a task
    where it ended the previous one.

    ``"vcl"``: mean-field variational inference (local reparametrisation), the Gaussian fitted to a
    task being the prior of the next (Nguyen et al., 2018), from whose means and standard deviations
    it starts. ``"ewc"``: a maximum a posteriori point, and the diagonal Laplace approximation about
    it for the next prior: elastic weight consolidation (Kirkpatrick et al., 2017) with the one
    penalty that Huszar (2018) shows to be the recursion of Bayes; it predicts by the point.
    ``"same_prior"``: as vcl, but the first prior at every task. ``"fine_tuning"``: plain descent,
    the first prior at every task. The latter two forget; same_prior shows that vcl remembers
    through its prior, not through its noise.

    Parameters
    ----------
    data
        From :func:`bnn_ppl.data.load`, of classes.
    net
        A factory as :func:`bnn_ppl.random_network` takes, from x (rows, ...) to logits (rows,
        classes).
    learners
        Learners to compare.
    num_tasks
        Tasks, task 1 included.
    prior
        Prior of the first task, Gaussian for the expected log prior to be exact; by default
        :func:`bnn_ppl.priors.fan_in`.
    temperature
        T of the likelihood alone, ``p(D|w)^(1/T) p(w)``. For vcl that is the bound in which the
        divergence from the prior counts T times (Loo et al., 2021): at 1, Bayes' and Nguyen et
        al.'s, the best Gaussian of independent weights for few rows is hardly narrower than the
        prior and fits little. With tens of thousands of rows use 1.
    num_epochs, batch_size
        Passes over the rows of a task, and rows per step.
    learning_rate
        Learning rate of Adam at the first step of a task; it falls to 0 along half a cosine.
    num_draws
        Draws that vcl and same_prior predict with.
    num_rows
        Test rows of each task, the first ones; all by default.
    seed
        Random seed for the permutations, the starts and the batches.
    folder
        Where each fit goes (``<learner>/task-<t>``); the same call resumes after an
        interruption, and a larger `num_tasks` extends the study.
    progress
        Whether to announce each fit and show a bar.

    Returns
    -------
    pandas.DataFrame
        One row per learner, number of tasks learnt and task tested: ``learner``, ``task`` (the
        last one learnt, from 1), ``tested_on`` (from 1 to it), ``accuracy`` (share of test rows).

    Raises
    ------
    ValueError
        If the data have no classes, a learner is unknown, a number is out of range, or `folder`
        holds runs with other settings.
    """
    import pandas as pd

    training = Training(
        num_epochs, batch_size, learning_rate, None if folder is None else Path(folder), progress
    )
    check_study(data, training, seed)
    _check(learners, num_tasks, num_draws, num_rows)
    first = priors.fan_in(math.sqrt(2)) if prior is None else prior
    rows = []
    for learner in learners:
        before: Learnt | None = None
        for task in range(1, num_tasks + 1):
            key = jax.random.fold_in(jax.random.key(seed), task)
            own = before.gaussian if before and learner in ("vcl", "ewc") else first
            model = models.classifier(net, own)
            train = permuted(data.train.x, task, seed=seed), data.train.y
            posterior = condition(model, train, temperature=temperature, tempered="likelihood")
            at = Task(key, posterior, training, f"{learner}/task-{task}", num_draws)
            before = LEARNERS[learner](at, before)
            found = _accuracies(posterior, before.draws, data, task, num_rows, seed)
            rows += [(learner, task, k, value) for k, value in enumerate(found, 1)]
    return pd.DataFrame(rows, columns=["learner", "task", "tested_on", "accuracy"])


def permuted(x: np.ndarray, task: int, *, seed: int = 0) -> np.ndarray:
    """Permute the pixels of all images alike; task 1 leaves them as they are.

    Parameters
    ----------
    x
        Rows of any shape (rows, ...).
    task
        From 1 up; each has a permutation of its own.
    seed
        Random seed for the permutations.

    Returns
    -------
    numpy.ndarray
        As `x`.

    Raises
    ------
    ValueError
        If there is no such task or seed.
    """
    check_count("task", task)
    check_seed(seed)
    if task == 1:
        return x
    flat = x.reshape(len(x), -1)
    # NumPy promises never to change RandomState's streams; a Generator's may change.
    order = np.random.RandomState([seed, task]).permutation(flat.shape[1])
    return flat[:, order].reshape(x.shape)


def average_accuracy(table: "pandas.DataFrame") -> "pandas.DataFrame":
    """Average the accuracy over the tasks seen so far, in a table of `continual_learning`.

    Returns
    -------
    pandas.DataFrame
        One row per learner and task learnt: ``learner``, ``task``, ``accuracy``.
    """
    by_task = table.groupby(["learner", "task"], sort=False)["accuracy"]
    return by_task.mean().reset_index()


def forgetting(table: "pandas.DataFrame") -> "pandas.DataFrame":
    r"""Measure what learning on has cost the earlier tasks, in a table of `continual_learning`.

    .. math:: F_t = \frac{1}{t - 1} \sum_{j < t} \left(\max_{l < t} a_{l j} - a_{t j}\right)

    with :math:`a_{t j}` the accuracy on task j after task t (Chaudhry et al., 2018, equation 3):
    0 if nothing was lost, negative if earlier tasks gained.

    Returns
    -------
    pandas.DataFrame
        One row per learner and task learnt from the second on: ``learner``, ``task``,
        ``forgetting``.
    """
    import pandas as pd

    rows = []
    for (learner, task), now in table.groupby(["learner", "task"], sort=False):
        earlier = table[(table["learner"] == learner) & (table["task"] < task)]
        if len(earlier):
            best = earlier.groupby("tested_on")["accuracy"].max()
            lost = best - now.set_index("tested_on")["accuracy"].loc[best.index]
            rows.append((learner, task, lost.mean()))
    return pd.DataFrame(rows, columns=["learner", "task", "forgetting"])


# --- learners


def _variational(task: Task, before: Learnt | None) -> Learnt:
    method = mfvi(
        task.posterior,
        learning_rate=rate(task.training, task.posterior),
        estimator="local_reparametrisation",
        init_std=_INIT_STD,
    )
    if before is not None:
        method = _starting_from(before.gaussian, method)
    # A run is known by where it starts: by the first draw, however many were taken.
    start = before and before.draws.isel(draw=[0])
    draws = _fit(task, method, num_draws=task.num_draws, init=start)
    return Learnt(draws, priors.from_draws(draws))


def _starting_from(gaussian: dict[str, Any], method: Method) -> Method:
    """Start mfvi at a Gaussian; by itself it starts at a point, with one width for all weights."""

    def init(key: jax.Array, position: Any, batch: Any) -> Any:
        mean = {site: own.loc for site, own in gaussian.items()}
        log_std = {site: jnp.log(own.scale) for site, own in gaussian.items()}
        state = method.init(key, position, batch)
        return state._replace(mean=state.mean | mean, log_std=state.log_std | log_std)

    return method._replace(init=init)


def _plain(task: Task, before: Learnt | None) -> Learnt:
    method = descent(task.posterior, learning_rate=rate(task.training, task.posterior))
    return Learnt(_fit(task, method, init=before and before.draws), {})


def _elastic(task: Task, before: Learnt | None) -> Learnt:
    point = _plain(task, before).draws
    once = task._replace(name=f"{task.name}-laplace", training=task.training._replace(num_epochs=1))
    about = _fit(once, laplace(task.posterior, "diagonal"), init=point)
    return Learnt(point, priors.from_draws(about))


def _fit(task: Task, method: Method, **options: Any) -> "arviz.InferenceData":
    return fit(task.key, task.posterior, method, task.training, task.name, **options)


LEARNERS: dict[str, Callable[[Task, Learnt | None], Learnt]] = {
    "vcl": _variational,
    "ewc": _elastic,
    "same_prior": _variational,
    "fine_tuning": _plain,
}


# --- testing


def _accuracies(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    data: DataSet,
    task: int,
    num_rows: int | None,
    seed: int,
) -> np.ndarray:
    """Accuracy on each task up to this one."""
    x, y = (leaf[:num_rows] for leaf in data.test)
    all_x = np.concatenate([permuted(x, k, seed=seed) for k in range(1, task + 1)])
    probs = predict(posterior, draws, (all_x, None), batch_size=len(y))["probs"].values
    return np.mean(probs.argmax(1).reshape(task, len(y)) == y, axis=1)


def _check(learners: Sequence[str], num_tasks: int, num_draws: int, num_rows: int | None) -> None:
    unknown = [learner for learner in learners if learner not in LEARNERS]
    if unknown or not learners or len(set(learners)) < len(learners):
        raise ValueError(
            f"got learners={tuple(learners)}, expected some of {', '.join(get_args(Learner))}, "
            "each once"
        )
    check_count("num_tasks", num_tasks)
    check_count("num_draws", num_draws)
    check_count("num_rows", 1 if num_rows is None else num_rows)
