"""Data, model and posterior, as given on the command line."""

import math
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax

import bnn_ppl as bnn
from bnn_ppl.data.encoding import in_words
from bnn_ppl.sampling.prior_scale import is_searched, scale_or_usual

USUAL_SCALE = round(math.sqrt(2), 3)

NETS: dict[str, Callable] = {
    "lenet": bnn.nets.LeNet,
    "lenet5": bnn.nets.LeNet5,
    "lenet_caffe": bnn.nets.LeNetCaffe,
    "alexnet": bnn.nets.AlexNet,
    "vgg16": bnn.nets.VGG16,
    "resnet20": bnn.nets.ResNet20,
    "resnet18": bnn.nets.ResNet18,
    "preresnet20": bnn.nets.PreResNet,
    "cnn_lstm": bnn.nets.CNNLSTM,
}


class Problem(NamedTuple):
    """Data and model.

    Attributes
    ----------
    data
        Data set: a table (yacht and energy ship with the package), images (digits, mnist,
        cifar10), imdb; or a file of your own that ends with .csv (y is the last column) or .npz.
    split
        Number of a published split into training and test rows (UCI), or "seed-3" or "fold-3" for
        others; for digits and your own files a seed.
    subset
        Use only the first training rows of images and texts; 160 of mnist ship with the package.
    target
        The column of a .csv file that is y, by name or number.
    classes
        Whether y in your own file is a class number; text and True/False always are.
    impute
        Fill empty cells of a .csv file: by the mean of the training rows, or the most frequent
        category. By default they are refused.
    data_dir
        Folder with more data sets; by default the environment variable BNN_PPL_DATA.
    net
        Network: "mlp" takes rows of any shape, "cnn_lstm" token sequences, the others images.
    hidden
        Width of each hidden layer of the mlp.
    prior
        Prior family of the weights.
    prior_scale
        Scale of the prior: for fan_in the gain (standard deviation times the square root of the
        fan-in); for mixture the standard deviation of the wider component, which has weight 3/4 and
        is 200 times as wide as the other; for hierarchical the standard deviation at the mean
        precision; for horseshoe the median scale of a tensor; otherwise the standard deviation. By
        default for fan_in and normal the scale that maximises the Laplace evidence of the training
        rows, if rows times weights are at most 5e9; otherwise 1.414.
    noise
        Noise of a regression: "learnt", "heteroscedastic", or a known standard deviation in units
        of the standardised y.
    held_out
        Fraction of the training rows (the last ones) held out; descent stops early on them.
    temperature
        Temperature of the posterior; 1 is the Bayes posterior.
    tempered
        What the temperature divides the log of: the whole posterior density, or the likelihood
        alone.
    microbatch
        Rows per chunk of the likelihood, to save memory; by default as many as fit.
    float64
        Compute in double precision.
    matmul_precision
        Precision of float32 matrix products on accelerators: "highest" is float32; "tensorfloat32"
        and "bfloat16" are faster, but too coarse for HMC's energies on large networks.
    """

    data: str = "yacht"
    split: int | str = 0
    subset: int | None = None
    target: int | str | None = None
    classes: bool | None = None
    impute: bool = False
    data_dir: Path | None = None
    net: Literal[
        "mlp",
        "lenet",
        "lenet5",
        "lenet_caffe",
        "alexnet",
        "vgg16",
        "resnet20",
        "resnet18",
        "preresnet20",
        "cnn_lstm",
    ] = "mlp"
    hidden: tuple[int, ...] = (50,)
    prior: Literal[
        "fan_in",
        "normal",
        "laplace",
        "logistic",
        "student_t",
        "mixture",
        "hierarchical",
        "horseshoe",
    ] = "fan_in"
    prior_scale: float | None = None
    noise: Literal["learnt", "heteroscedastic"] | float = "learnt"
    held_out: float = 0.0
    temperature: float = 1.0
    tempered: Literal["posterior", "likelihood"] = "posterior"
    microbatch: int | None = None
    float64: bool = False
    matmul_precision: Literal["highest", "tensorfloat32", "bfloat16"] = "highest"


def conditioned(
    problem: Problem, encoding: bnn.data.Encoding | None = None
) -> tuple[Any, bnn.Posterior]:
    """Load the data and condition the model, in the precision asked for.

    The encoding of a .csv file is that given, if there is one.
    """
    jax.config.update("jax_enable_x64", problem.float64)
    jax.config.update("jax_default_matmul_precision", problem.matmul_precision)
    data = load_data(problem, encoding)
    model = _model(problem, data)
    train, _ = training_rows(problem, data)
    return data, bnn.condition(
        model,
        train,
        temperature=problem.temperature,
        tempered=problem.tempered,
        microbatch=problem.microbatch,
    )


def with_prior_scale(
    problem: Problem, data: Any, posterior: bnn.Posterior
) -> tuple[Problem, bnn.Posterior]:
    """Find the scale of a Gaussian prior from the training rows, unless it is given."""
    if problem.prior_scale is not None:
        return problem, posterior
    if problem.prior not in ("fan_in", "normal"):
        return problem._replace(prior_scale=USUAL_SCALE), posterior
    train, _ = training_rows(problem, data)

    def posterior_at(scale: float) -> bnn.Posterior:
        return bnn.condition(_model(problem._replace(prior_scale=scale), data), train)

    if is_searched(posterior):
        print("finding the scale of the prior (--prior-scale sets it)", file=sys.stderr, flush=True)
    problem = problem._replace(prior_scale=scale_or_usual(posterior_at, USUAL_SCALE))
    return problem, conditioned(problem)[1]


def refuse_unused(problem: Problem, data: Any) -> None:
    """Refuse options without effect, before a run; folders made with such are still opened."""
    if data.num_classes is not None and problem.noise != "learnt":
        raise ValueError(
            f"got --noise {problem.noise} for {problem.data}, expected it of a regression: drop it"
        )
    if problem.net != "mlp" and problem.hidden != Problem().hidden:
        raise ValueError(f"got --hidden with --net {problem.net}, expected --net mlp: drop it")


def load_data(problem: Problem, encoding: bnn.data.Encoding | None = None) -> Any:
    """Load the data set that the problem names."""
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # `describe` tells it
        return bnn.data.load(
            problem.data,
            split=problem.split,
            subset=problem.subset,
            data_dir=problem.data_dir,
            target=problem.target,
            classes=problem.classes,
            impute=problem.impute,
            encoding=encoding,
        )


def training_rows(problem: Problem, data: Any) -> tuple[Any, Any]:
    """Training rows, and those of them that are held out."""
    if not 0 <= problem.held_out < 1:
        raise ValueError(f"got --held-out {problem.held_out:g}, expected a share from 0 to below 1")
    first = len(data.train.y) - round(problem.held_out * len(data.train.y))
    kept, held = (
        bnn.data.Data(*(leaf[rows] for leaf in data.train))
        for rows in (slice(first), slice(first, None))
    )
    return kept, held


def _model(problem: Problem, data: Any) -> Callable:
    scale = USUAL_SCALE if problem.prior_scale is None else problem.prior_scale
    prior = _prior(problem.prior, scale)
    if data.num_classes is not None:
        return bnn.models.classifier(_net(problem, data, data.num_classes), prior)
    num_outputs = 2 if problem.noise == "heteroscedastic" else 1
    noise = None if problem.noise == "learnt" else problem.noise
    return bnn.models.regressor(_net(problem, data, num_outputs), prior, noise)


def _prior(family: str, scale: float) -> Any:
    if family == "mixture":
        return bnn.priors.mixture((scale, scale / 200), (0.75, 0.25))
    return getattr(bnn.priors, family)(scale)


def _net(problem: Problem, data: Any, num_outputs: int) -> Callable:
    row_shape = data.train.x.shape[1:]
    if problem.net == "mlp":
        return partial(bnn.nets.MLP, math.prod(row_shape), problem.hidden, num_outputs)
    axes, kind = (1, "tokens") if problem.net == "cnn_lstm" else (3, "images")
    if len(row_shape) != axes or (kind == "tokens" and data.train.x.dtype.kind != "i"):
        raise ValueError(
            f"got --net {problem.net} for {problem.data}, expected {kind}: use --net mlp"
        )
    return partial(NETS[problem.net], row_shape, num_outputs)


def describe(problem: Problem, data: Any, posterior: bnn.Posterior) -> str:
    """Describe data and model in two lines, and the columns of a .csv file if they were changed."""
    kind = "regression" if data.num_classes is None else f"{data.num_classes} classes"
    hidden = "-".join(map(str, problem.hidden)) if problem.net == "mlp" else ""
    prior = f"{problem.prior}({problem.prior_scale or USUAL_SCALE})"
    columns = "" if data.encoding is None else in_words(data.encoding)
    of = " of the likelihood" if posterior.tempered == "likelihood" else ""
    return "\n".join(
        [
            f"data   {problem.data}, split {problem.split} ({data.source}): {posterior.num_rows} "
            f"training and {len(data.test.y)} test rows of {data.train.x.shape[1:]}, {kind}",
            *([f"input  {columns}"] if columns else []),
            f"model  {problem.net} {hidden} with {posterior.num_weights} unknowns, "
            f"{prior} prior, T = {posterior.temperature:g}{of}",
        ]
    )
