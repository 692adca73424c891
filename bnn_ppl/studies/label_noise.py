"""Training labels that are partly random: who fits them, and what the evidence says of it."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from bnn_ppl.analysis import metrics
from bnn_ppl.analysis.prediction.predict import predict
from bnn_ppl.data import Data, DataSet
from bnn_ppl.methods import descent, laplace
from bnn_ppl.methods.laplace_approximation.laplace import Structure
from bnn_ppl.model import models
from bnn_ppl.model.conditioning import condition
from bnn_ppl.model.network import Prior as WeightPrior
from bnn_ppl.model.prior import priors
from bnn_ppl.runtime.checks import check_count, check_positive, check_seed
from bnn_ppl.studies.sparse_process import Prior, laplace_fit, latent_means, prior_at
from bnn_ppl.studies.training import Training, check_study, fit, rate

if TYPE_CHECKING:
    import pandas

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)

_ROWS_OF_MEDIAN = 1000  # at most, between which distances are taken


class Row(NamedTuple):
    """Results at one share of random labels: a row of the tables."""

    model: str
    share: float
    num_rows: int
    num_classes: int
    train_accuracy: float
    test_accuracy: float
    log_evidence: float


def with_label_noise(y: np.ndarray, share: float, num_classes: int, seed: int = 0) -> np.ndarray:
    """Replace a share of the labels by classes drawn uniformly.

    A drawn label may be the true one, as about one in num_classes of those replaced is (Zhang et
    al., 2017). With the same seed, labels replaced at one share are replaced by the same classes at
    every larger share.

    Parameters
    ----------
    y
        Class numbers (rows,), from 0 to below `num_classes`.
    share
        Share of the rows, from 0 to 1; their number is rounded.
    num_classes
        Classes to draw from.
    seed
        Random seed for the rows and the labels.

    Returns
    -------
    numpy.ndarray
        As `y`, which is not changed.

    Raises
    ------
    ValueError
        If the share or the seed is out of range, or a label is no such class.
    """
    y = np.asarray(y)
    _checked_shares(share)
    check_seed(seed)
    if y.ndim != 1 or y.dtype.kind not in "iu" or not np.all((y >= 0) & (y < num_classes)):
        raise ValueError(
            f"got labels {y.dtype} {y.shape}, expected class numbers (rows,) from 0 to "
            f"{num_classes - 1}: pass data.train.y and data.num_classes"
        )
    # NumPy promises never to change RandomState's streams; a Generator's may change.
    random = np.random.RandomState(seed)
    order, drawn = random.permutation(len(y)), random.randint(num_classes, size=len(y))
    rows = order[: round(share * len(y))]
    noisy = y.copy()
    noisy[rows] = drawn[rows]
    return noisy


def label_noise_network(
    data: DataSet,
    net: Any,
    *,
    shares: float | Sequence[float] = SHARES,
    prior: WeightPrior | None = None,
    structure: Structure = "kronecker",
    num_epochs: int = 300,
    batch_size: int = 64,
    learning_rate: float = 5e-3,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> "pandas.DataFrame":
    """Train a network on increasingly random labels, with the Laplace evidence of each.

    Networks fit random labels (Zhang et al., 2017); that the evidence falls with the share
    shows that the prior over functions distinguishes structure from noise (Wilson & Izmailov, 2020,
    section 6). The point is the maximum a posteriori; the evidence is Laplace's about it, at
    temperature 1. The prior is the same at every share: the table compares
    one model on several data sets. (The prior precision of highest evidence would be a different
    model for each, and Laplace's approximation is taken at the mode under the prior it was trained
    with.) The curvature counts all rows that fill a batch.

    Parameters
    ----------
    data
        From :func:`bnn_ppl.data.load`, of classes.
    net
        Any network, one of your own too: a factory as :func:`bnn_ppl.random_network` takes, from x
        (rows, ...) to logits (rows, classes).
    shares
        Shares of the training labels that are replaced, see `with_label_noise`.
    prior
        Prior of the weights; by default :func:`bnn_ppl.priors.normal` of standard deviation 1, wide
        enough for the maximum a posteriori to fit random labels.
    structure
        Structure of Laplace's approximation, see :func:`bnn_ppl.laplace`: "kronecker" needs layers
        of Flax; networks from other libraries, or plain functions, take "diagonal" or "full".
    num_epochs, batch_size
        Passes over the rows, and rows per step.
    learning_rate
        Learning rate of Adam at the first step; it falls to 0 along half a cosine, so that the end
        is a mode.
    seed
        Random seed for the labels, the start and the batches; equal at all shares.
    folder
        Where each fit goes (``share-<s>/point`` and ``share-<s>/laplace``); the same call
        resumes after an interruption.
    progress
        Whether to announce each fit and show a bar.

    Returns
    -------
    pandas.DataFrame
        A row a share: ``model`` ("network"), ``share``, ``num_rows``, ``num_classes``,
        ``train_accuracy`` (on the labels trained on, random ones too), ``test_accuracy`` (on true
        labels), ``log_evidence`` (nats a training row; guessing has -log(num_classes)).

    Raises
    ------
    ValueError
        If the data have no classes, a number is out of range, the network has no layers that the
        structure needs, or `folder` holds runs with other settings.
    """
    import pandas as pd

    training = Training(
        num_epochs, batch_size, learning_rate, None if folder is None else Path(folder), progress
    )
    check_study(data, training, seed)
    shares = _checked_shares(shares)
    chosen = priors.normal(1.0) if prior is None else prior
    rows = [_of_network(data, net, chosen, structure, share, training, seed) for share in shares]
    return pd.DataFrame(rows, columns=Row._fields)


def label_noise_gp(
    data: DataSet,
    *,
    shares: float | Sequence[float] = SHARES,
    classes: tuple[int, int] = (0, 1),
    num_rows: int = 300,
    num_inducing: int = 500,
    std: float = 10.0,
    length_scale: float | None = None,
    seed: int = 0,
) -> "pandas.DataFrame":
    r"""Train a Gaussian process classifier of two classes on labels more and more random.

    .. math:: P(y = 1 | x) = \frac{1}{1 + e^{-f(x)}}, \qquad
        \mathrm{cov}(f(x), f(x')) = s^2 \exp\left(-\frac{|x - x'|^2}{2 l^2}\right)

    by Laplace's approximation, as is its evidence (Rasmussen & Williams, 2006, algorithms 3.1 and
    3.2). Where there are more rows than `num_inducing`, the values of f are independent given those
    at that many of the rows, spread over the inputs (FITC; Quiñonero-Candela & Rasmussen, 2005,
    section 6): the evidence is then Laplace's of that process, which is the closer to the one above
    the more there are. As in `label_noise_network` the prior, here s and l, is fixed and the same
    at every share, and chosen without a look at the labels. (With both at their highest evidence
    the process of mostly random labels is nearly 0: it then guesses, at log 1/2 a row.)

    Parameters
    ----------
    data
        From :func:`bnn_ppl.data.load`, of classes.
    shares
        Shares of the training labels that are replaced, see `with_label_noise`: by one of the two
        classes.
    classes
        The two classes.
    num_rows
        Training rows, the first ones of these classes, or as many as there are.
    num_inducing
        Number m of rows by which all others know of each other, chosen without a look at the
        labels. With as many as rows nothing is approximated. Time grows as rows times m squared,
        memory as rows times m.
    std
        s, in logits.
    length_scale
        l, in the units of x; by default half the median distance between training rows that differ,
        of at most the first 1,000.
    seed
        Random seed for the labels.

    Returns
    -------
    pandas.DataFrame
        As `label_noise_network` gives, with "gp" as ``model``; training rows are predicted as new
        ones are.

    Raises
    ------
    ValueError
        If a part of the data has no such classes, all training rows are equal, or a number is out
        of range.
    """
    import pandas as pd

    shares = _checked_shares(shares)
    _check_gp(data, classes, num_rows, num_inducing, std, length_scale)
    train, test = (_two_classes(part, classes) for part in (data.train, data.test))
    train = Data(*(leaf[:num_rows] for leaf in train))
    length = _median_distance(train.x) / 2 if length_scale is None else length_scale
    _check_both_classes(train.y, shares, seed)
    prior = prior_at(train.x, std, length, num_inducing)
    rows = [_of_process(train, test, share, prior, seed) for share in shares]
    return pd.DataFrame(rows, columns=Row._fields)


# --- the network


def _of_network(
    data: DataSet,
    net: Any,
    prior: WeightPrior,
    structure: Structure,
    share: float,
    training: Training,
    seed: int,
) -> Row:
    num_rows, num_classes = len(data.train.y), data.num_classes or 0
    y = with_label_noise(data.train.y, share, num_classes, seed)
    key, name = jax.random.key(seed), f"share-{share:g}"
    posterior = condition(models.classifier(net, prior), (data.train.x, y))
    approximation = laplace(posterior, structure)  # which may refuse, so before the point is fitted
    method = descent(posterior, learning_rate=rate(training, posterior))
    point = fit(key, posterior, method, training, f"{name}/point")
    once = training._replace(num_epochs=1)
    about = fit(key, posterior, approximation, once, f"{name}/laplace", init=point)
    both = np.concatenate([data.train.x, data.test.x]), None
    probs = predict(posterior, point, both, batch_size=len(data.test.y))["probs"].values
    return Row(
        "network",
        share,
        num_rows,
        num_classes,
        metrics.accuracy(probs[:num_rows], y),
        metrics.accuracy(probs[num_rows:], data.test.y),
        about["fitted"]["log_evidence"].item() / num_rows,
    )


# --- the Gaussian process


def _of_process(train: Data, test: Data, share: float, prior: Prior, seed: int) -> Row:
    y = with_label_noise(train.y, share, 2, seed)
    fit = laplace_fit(prior, y)
    fitted, tested = (
        float(np.mean((latent_means(prior, fit, x) > 0) == labels))
        for x, labels in ((train.x, y), (test.x, test.y))
    )
    return Row("gp", share, len(y), 2, fitted, tested, fit.log_evidence / len(y))


def _two_classes(part: Data, classes: tuple[int, int]) -> Data:
    """Give the rows of two classes, flat, with the labels 0 and 1."""
    rows = np.isin(part.y, classes)
    x = part.x[rows].reshape(rows.sum(), -1).astype(float)
    return Data(x, (part.y[rows] == classes[1]).astype(np.int32))


def _median_distance(x: np.ndarray) -> float:
    from scipy.spatial.distance import pdist

    distances = pdist(x[:_ROWS_OF_MEDIAN])
    if not distances.any():
        raise ValueError(
            "got training rows that are all equal, whose median distance is 0, expected others: "
            "give length_scale="
        )
    return float(np.median(distances[distances > 0]))


# --- refusing


def _checked_shares(shares: float | Sequence[float]) -> list[float]:
    found = np.atleast_1d(shares).tolist()
    for share in found:
        if not 0 <= share <= 1:
            raise ValueError(f"got share={share}, expected from 0 to 1; a half is share=0.5")
    return found


def _check_gp(
    data: DataSet,
    classes: tuple[int, int],
    num_rows: int,
    num_inducing: int,
    std: float,
    length_scale: float | None,
) -> None:
    known = set(np.unique(data.train.y)) if data.num_classes else set()
    if len(set(classes)) != 2 or not set(classes) <= known:
        raise ValueError(
            f"got classes={tuple(classes)} of {data.name}, expected two of its classes: "
            f"{', '.join(map(str, sorted(known))) or 'a regression has none'}"
        )
    if not np.isin(data.test.y, classes).any():
        raise ValueError(
            f"got no test row of classes={tuple(classes)}, expected some: choose others"
        )
    check_count("num_rows", num_rows, least=2)
    check_count("num_inducing", num_inducing)
    for name, value in {"std": std, "length_scale": length_scale}.items():
        if value is not None:
            check_positive(name, value)


def _check_both_classes(y: np.ndarray, shares: Sequence[float], seed: int) -> None:
    for share in shares:
        if len(np.unique(with_label_noise(y, share, 2, seed))) < 2:
            raise ValueError(
                f"got labels of one class only in {len(y)} rows at share={share:g}, expected both: "
                "make num_rows larger"
            )
