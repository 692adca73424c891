"""Data, model and posterior, as given on the command line."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

import bnn_ppl as bnn
from bnn_ppl.cli.networks import Net, first_kernel, network, refuse_hidden
from bnn_ppl.cli.partly import parameters_in_words, partly, refuse_unused_others
from bnn_ppl.cli.rows import load_data, num_training, training_rows
from bnn_ppl.cli.trained import refuse_unused_new
from bnn_ppl.data.catalogue import IMAGES
from bnn_ppl.data.choice import of_classes
from bnn_ppl.data.encoding import in_words
from bnn_ppl.data.images import blank as blank_images
from bnn_ppl.data.user_files import is_file
from bnn_ppl.runtime.devices import MatmulPrecision
from bnn_ppl.sampling.prior_scale import is_searched, scale_or_usual

USUAL_SCALE = round(math.sqrt(2), 3)
_SEARCHED = ("fan_in", "normal")  # priors whose scale a run finds


class Problem(NamedTuple):
    """Data and model.

    Attributes
    ----------
    data
        Data set: a table (yacht and energy ship with the package), images (digits, mnist,
        cifar10), imdb; tfds:NAME from tensorflow-datasets; or your own: a .csv file (y is the last
        column) or .npz file, a folder of images, train/CLASS/* and test/CLASS/*, or a folder with
        x.npy and y.npy (or x.zarr and y.zarr), whose rows stay on disk.
    split
        Number of a published split into training and test rows (UCI), or "seed-3" or "fold-3" for
        other splits, or "gap-3" to test on the middle third by column 3. For digits and your own
        files and folders it is a seed.
    subset
        Use only the first training rows of images and texts; 160 of mnist ship with the package.
    target
        The column of a .csv file that is y, by name or number; several with commas between them,
        as in height,weight, make a regression of several outputs.
    classes
        Whether y in your own file is a class number; text and True/False always are.
    impute
        Fill empty cells of a .csv file: by the mean of the training rows, or the most frequent
        category. By default they are refused.
    image_size
        Scale the images of a folder, or of tfds:NAME, so that the shorter side has this many
        pixels, and crop the central square.
    only_classes
        Train and test on these classes only, renumbered in this order.
    label_noise
        Fraction of the training labels replaced by random classes, the same in each run (including
        held-out rows; test rows keep their labels).
    data_dir
        Folder with more data sets; by default the environment variable BNN_PPL_DATA.
    net
        Network: "mlp" takes rows of any shape, "cnn_lstm" token sequences, the others images.
    hidden
        Width of each hidden layer of the mlp.
    width
        Channels of the first stage of resnet18 and vgg16 (by default 64), the others in proportion.
    norm
        Normalisation of the residual networks and vgg16: "filter_response" (of each image by
        itself; the default, except for vgg16, which has none) or "batch", for methods that train
        on minibatches.
    prior
        Prior family of the weights. Two treat the first layer differently: "empcov" gives it the
        covariance of the training inputs, "sum_filter" filters whose weights sum to about 0.
    prior_scale
        Scale of the prior: for fan_in the gain (standard deviation times the square root of the
        fan-in); for mixture the standard deviation of the wider component, which has weight 3/4 and
        is 200 times as wide as the other; for even_mixture that of the wider of two equally likely
        components, the other half as wide (0.158 gives the variances 1/40 and 1/160 of Izmailov et
        al., 2021); for hierarchical the standard deviation at the mean
        precision; for horseshoe the median scale of a tensor; otherwise the standard deviation. By
        default for fan_in and normal the scale that maximises the Laplace evidence of the training
        rows, if rows times weights are at most 5e9; otherwise 1.414.
    prior_power
        Power of generalised_normal, with density exp(-|w / s|^power): 2 is normal and 1 Laplace; by
        default 1.5.
    bayesian
        Weights that are random, by names or patterns such as "layers.1.*"; by default all.
    weights
        Trained weights to start from, or to keep: a .safetensors file, an orbax checkpoint, or the
        folder of a run of the same network (the last draw of its first chain).
    new
        Names or patterns of weights that are not loaded from --weights but initialised, such as
        "output.*" where the classes are different ones.
    others
        What to do with the weights that --bayesian does not name: "point" trains them together with
        all others, before the run and under the same prior, and then holds them fixed; "fixed"
        keeps the values from --weights.
    noise
        Noise of a regression: "learnt", "heteroscedastic", or a known standard deviation in units
        of the standardised y.
    covariance
        Noise covariance of several outputs: "diagonal", or "full" with learnt correlations.
    held_out
        Fraction of the training rows held out of training. Commands then score these rows in place
        of the test rows, so that settings can be chosen without the test rows. Descent stops early
        on them, which flatters its scores there; no method sees the rows held out by --folds.
        Inputs and y are still standardised by all training rows.
    held_out_seed
        Seed for choosing the rows held out by --held-out or --folds; None takes the last rows (for
        --folds, rows in their order).
    folds
        Number of folds of the training rows (cross-validation), of which --fold is held out. With
        --held-out, the held-out rows are taken from the other folds.
    fold
        The fold that is held out, from 0.
    temperature
        Temperature of the posterior; 1 is the Bayes posterior.
    tempered
        Which log density the temperature divides: that of the whole posterior, or the likelihood
        alone.
    microbatch
        Rows per chunk of the likelihood, to save memory; by default as many as fit.
    float64
        Compute in double precision.
    matmul_precision
        Precision of float32 matrix products and convolutions on accelerators: "highest" is float32;
        "tensorfloat32" and "bfloat16" are faster, but too coarse for HMC's energies on large
        networks.
    """

    data: str = "yacht"
    split: int | str = 0
    subset: int | None = None
    target: int | str | None = None
    classes: bool | None = None
    impute: bool = False
    image_size: int | None = None
    only_classes: tuple[int, ...] | None = None
    label_noise: float = 0.0
    data_dir: Path | None = None
    net: Net = "mlp"
    hidden: tuple[int, ...] = (50,)
    width: int | None = None
    norm: Literal["filter_response", "batch"] | None = None
    prior: Literal[
        "fan_in",
        "normal",
        "laplace",
        "logistic",
        "student_t",
        "generalised_normal",
        "mixture",
        "even_mixture",
        "hierarchical",
        "horseshoe",
        "empcov",
        "sum_filter",
    ] = "fan_in"
    prior_scale: float | None = None
    prior_power: float | None = None
    bayesian: tuple[str, ...] | None = None
    weights: Path | None = None
    new: tuple[str, ...] | None = None
    others: Literal["fixed", "point"] = "point"
    noise: Literal["learnt", "heteroscedastic"] | float = "learnt"
    covariance: Literal["diagonal", "full"] = "diagonal"
    held_out: float = 0.0
    held_out_seed: int | None = 0
    folds: int | None = None
    fold: int = 0
    temperature: float = 1.0
    tempered: Literal["posterior", "likelihood"] = "posterior"
    microbatch: int | None = None
    float64: bool = False
    matmul_precision: MatmulPrecision = "highest"


def conditioned(
    problem: Problem,
    encoding: bnn.data.Encoding | None = None,
    *,
    blank: bool = False,
    features: Path | None = None,
) -> tuple[Any, bnn.Posterior]:
    """Load the data and condition the model, in single or double precision.

    The encoding of a .csv file is that given, if there is one. With `blank`, a set of images that
    is not found is replaced by one of its shapes. `features` is the folder for those of fixed
    layers.
    """
    jax.config.update("jax_enable_x64", problem.float64)
    refuse_unused_new(problem)
    try:
        data = load_data(problem, encoding)
    except FileNotFoundError:
        if not blank or problem.data not in IMAGES:
            raise
        kind = IMAGES[problem.data]
        data = blank_images(problem.data, problem.subset, np.dtype(float), kind)
        data = data if problem.only_classes is None else of_classes(data, problem.only_classes)
    return data, posterior_of(problem, data, features)


def posterior_of(problem: Problem, data: Any, features: Path | None = None) -> bnn.Posterior:
    """Condition the model on the training rows of these data."""
    return bnn.condition(
        _model(problem, data),
        training_rows(problem, data)[0],
        temperature=problem.temperature,
        tempered=problem.tempered,
        microbatch=problem.microbatch,
        precision=problem.matmul_precision,
        features=features,
    )


def with_prior_scale(
    problem: Problem,
    data: Any,
    posterior: bnn.Posterior,
    features: Path | None = None,
    known: float | None = None,
    **search: Any,
) -> tuple[Problem, bnn.Posterior]:
    """Find the scale of a Gaussian prior from the training rows, unless it is given or known.

    `search` has options of :func:`bnn_ppl.prior_scale`.
    """
    if problem.prior_scale is not None:
        return problem, posterior
    if known is not None:
        problem = problem._replace(prior_scale=known)
        return problem, posterior_of(problem, data, features)
    if problem.prior not in _SEARCHED:
        return problem._replace(prior_scale=USUAL_SCALE), posterior
    train, _ = training_rows(problem, data)
    # Points are fitted anew for each scale: their features would fill the folder.
    while_searching = features if problem.others == "fixed" else None

    def posterior_at(scale: float) -> bnn.Posterior:
        model = _model(problem._replace(prior_scale=scale), data)
        options: Any = {"precision": problem.matmul_precision, "features": while_searching}
        return bnn.condition(model, train, **options)

    if scale_is_searched(problem, posterior):
        print("finding the scale of the prior (--prior-scale sets it)", file=sys.stderr, flush=True)
    problem = problem._replace(prior_scale=scale_or_usual(posterior_at, USUAL_SCALE, **search))
    return problem, posterior_of(problem, data, features)


def scale_is_searched(problem: Problem, posterior: bnn.Posterior) -> bool:
    """Whether a run first searches for the scale of the prior."""
    unknown = problem.prior_scale is None and problem.prior in _SEARCHED
    return unknown and is_searched(posterior)


def refuse_unused(problem: Problem, data: Any) -> None:
    """Refuse options without effect, before a run; folders made with such are still opened."""
    if data.num_classes is not None and problem.noise != "learnt":
        raise ValueError(
            f"got --noise {problem.noise} for {problem.data}, expected it of a regression: drop it"
        )
    if problem.covariance == "full" and data.num_classes is not None:
        raise ValueError(
            f"got --covariance full for {problem.data}, expected it of several outputs: drop it"
        )
    refuse_hidden(problem.net, problem.hidden, Problem().hidden)
    refuse_unused_others(problem)
    if problem.prior_power is not None and problem.prior != "generalised_normal":
        raise ValueError(
            f"got --prior-power with --prior {problem.prior}, expected generalised_normal: drop it"
        )


def _model(problem: Problem, data: Any) -> Callable:
    net = _network(problem, data)
    prior = partly(problem, net, _prior(problem, data, net))
    if data.num_classes is not None:
        return bnn.models.classifier(net, prior)
    noise = None if problem.noise == "learnt" else problem.noise
    more: dict[str, Any] = {"num_outputs": _num_outputs(data), "covariance": problem.covariance}
    return bnn.models.regressor(net, prior, noise, **more)


def _network(problem: Problem, data: Any) -> Any:
    if data.num_classes is not None:
        return network(problem, data, data.num_classes)
    parameters = 2 if problem.noise == "heteroscedastic" else 1
    return network(problem, data, _num_outputs(data) * parameters)


def _num_outputs(data: Any) -> int:
    return math.prod(data.train.y.shape[1:])


def _prior(problem: Problem, data: Any, net: Callable) -> Any:
    scale = USUAL_SCALE if problem.prior_scale is None else problem.prior_scale
    if problem.prior == "mixture":
        return bnn.priors.mixture((scale, scale / 200), (0.75, 0.25))
    if problem.prior == "even_mixture":
        return bnn.priors.mixture((scale, scale / 2))
    if problem.prior == "generalised_normal":
        return bnn.priors.generalised_normal(scale, problem.prior_power or 1.5)
    if problem.prior in ("empcov", "sum_filter"):
        site, shape = first_kernel(problem, net)
        if problem.prior == "sum_filter":
            return bnn.priors.sum_filter(scale, site=site)
        # Of a stream, some of them.
        train = data.train if data.stream is not None else training_rows(problem, data)[0]
        patch = None if problem.net == "mlp" else shape[:2]
        return bnn.priors.empcov(train.x, scale, site=site, patch=patch)
    return getattr(bnn.priors, problem.prior)(scale)


def describe(problem: Problem, data: Any, posterior: bnn.Posterior) -> str:
    """Describe data and model in two lines, and the columns of a .csv file if they were changed."""
    kind = "regression" if data.num_classes is None else f"{data.num_classes} classes"
    if data.num_classes is None and data.stream is None and len(np.unique(data.train.y)) == 2:
        kind += " (y has two values: --classes True makes them classes)"
    if problem.label_noise:
        kind += f", {problem.label_noise:.0%} of the training labels random"
    if problem.only_classes is not None:
        kind += f" ({' '.join(map(str, problem.only_classes))})"
    kind += f" of {', '.join(data.output_names)}" if data.output_names else ""
    hidden = "-".join(map(str, problem.hidden)) if problem.net == "mlp" else ""
    prior = f"{problem.prior}({problem.prior_scale or USUAL_SCALE}) prior"
    if scale_is_searched(problem, posterior):
        prior = f"{problem.prior} prior of a scale to be found"
    columns = "" if data.encoding is None else in_words(data.encoding)
    held_out = num_training(data) - posterior.num_rows
    apart = f", {held_out} held-out" if held_out else ""
    of = " of the likelihood" if posterior.tempered == "likelihood" else ""
    if posterior.subspace is not None:
        of += ", in a subspace of rank {rank} ({kind})".format(**posterior.subspace.settings)
    where = "" if is_file(problem.data) else f" ({data.source})"
    return "\n".join(
        [
            f"data   {problem.data}, split {problem.split}{where}: {posterior.num_rows} "
            f"training{apart} and {len(data.test.y)} test rows of {data.train.x.shape[1:]}, {kind}",
            *([f"input  {columns}"] if columns else []),
            f"model  {problem.net} {hidden} with "
            f"{parameters_in_words(problem, _network(problem, data), posterior.whole)}, "
            f"{prior}, T = {posterior.temperature:g}{of}",
        ]
    )
