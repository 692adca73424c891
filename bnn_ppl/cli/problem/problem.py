"""The options of a problem, as given on the command line: data, network, prior and likelihood."""

from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_type_hints

from bnn_ppl.model.prior.priors import EARLIER_FLOOR
from bnn_ppl.runtime.machines.devices import MatmulPrecision
from bnn_ppl.runtime.names import hint
from bnn_ppl.storage.problem import is_open

Net = Literal[
    "auto",
    "mlp",
    "lenet",
    "lenet5",
    "lenet_caffe",
    "lenet_small",
    "alexnet",
    "vgg16",
    "resnet20",
    "resnet18",
    "resnet50",
    "preresnet20",
    "wide_resnet",
    "cnn_lstm",
    "competition_alexnet",
    "competition_lenet",
    "competition_cnn",
]


class DataOptions(NamedTuple):
    """Data set, and which of its rows, columns and classes.

    Attributes
    ----------
    data
        Data set: a table (yacht and energy ship with the package), images (digits, mnist,
        cifar10), imdb; tfds:NAME from tensorflow-datasets; or your own: a table (.csv, .tsv,
        .parquet, .feather, .xlsx; a folder or a pattern of such files; - for standard input; y is
        the last column), an .npz file, a folder of images, train/CLASS/* and test/CLASS/*, or a
        folder with x.npy and y.npy (or x.zarr and y.zarr), whose rows stay on disk.
    split
        Number of a published split into training and test rows (UCI), or "seed-3" or "fold-3" for
        other splits, or "gap-3" to test on the middle third by column 3. For digits and your own
        files and folders it is a seed.
    subset
        Use only the first training rows of images and texts; 160 of mnist ship with the package.
    target
        The column of your table that is y, by name or number; several with commas between them,
        as in height,weight, make a regression of several outputs.
    classes
        Whether the numbers of y in your own file are classes. By default two whole numbers of a
        table, and integers of an .npz file, are, unless --likelihood says otherwise. Text and
        True/False always are.
    impute
        Without effect (of earlier versions): empty cells are always filled.
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


class ColumnOptions(NamedTuple):
    """What columns of your own table are for, by their names.

    Attributes
    ----------
    drop
        Columns to leave out.
    only
        Columns that are the inputs; by default all that are nothing else.
    categorical
        Columns whose numbers, or many texts, are names of categories.
    row_weights
        Column of weights: a row counts as if it were there so many times.
    group
        Column of groups: rows of one group stay together in every split, also in --held-out and
        --folds, and in the rows that training holds out. It is no input.
    time
        Column of times, numbers or dates: the last tenth of the rows tests, and --held-out takes
        the last training rows. It is an input too, unless --drop names it.
    exposure
        Column of exposures of counts, whose rate is per unit of it.
    trials
        Column of numbers of trials, of which y counts the successes.
    censoring
        Column that is 1 or True where y is only known to be larger.
    """

    drop: tuple[str, ...] | None = None
    only: tuple[str, ...] | None = None
    categorical: tuple[str, ...] | None = None
    row_weights: str | None = None
    group: str | None = None
    time: str | None = None
    exposure: str | None = None
    trials: str | None = None
    censoring: str | None = None


class HeldOutOptions(NamedTuple):
    """Training rows held out of training.

    Attributes
    ----------
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
    """

    held_out: float = 0.0
    held_out_seed: int | None = 0
    folds: int | None = None
    fold: int = 0


class NetworkOptions(NamedTuple):
    """Network, and weights it starts from.

    Attributes
    ----------
    net
        Network: "mlp" takes rows of any shape, "cnn_lstm" token sequences, the others images;
        "auto" is the mlp for tables, lenet for images (resnet20 for more than 48 pixels a side,
        the mlp for less than 15), and cnn_lstm for tokens.
    hidden
        Width of each hidden layer of the mlp. By default 50; with --net auto, and 1,000 training
        rows or more of a table, that of 50, 64 64 and 128 128 128 whose fits predict held-out rows
        best.
    width
        Channels of the first stage of resnet18 and vgg16 (by default 64), the others in proportion.
    norm
        Normalisation of the residual networks and vgg16: "filter_response" (of each image by
        itself; the default, except for vgg16, which has none) or "batch", for methods that train
        on minibatches.
    weights
        Trained weights to start from, or to keep: a .safetensors file, an orbax checkpoint, or the
        folder of a run of the same network (the last draw of its first chain).
    new
        Names or patterns of weights that are not loaded from --weights but initialised, such as
        "output.*" where the classes are different ones.
    """

    net: Net = "auto"
    hidden: tuple[int, ...] | None = None
    width: int | None = None
    norm: Literal["filter_response", "batch"] | None = None
    weights: Path | None = None
    new: tuple[str, ...] | None = None


class PriorOptions(NamedTuple):
    """Prior of the weights, and which weights are random.

    Attributes
    ----------
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
    others
        What to do with the weights that --bayesian does not name: "point" trains them together with
        all others, before the run and under the same prior, and then holds them fixed; "fixed"
        keeps the values from --weights.
    """

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
    others: Literal["fixed", "point"] = "point"


class LikelihoodOptions(NamedTuple):
    """Distribution of y given the outputs of the network, and noise of a regression.

    Attributes
    ----------
    likelihood
        Distribution of y: "auto" is normal for numbers and categorical for classes. For numbers
        also student_t (outliers), mixture (several likely values), quantile (any shape); for
        numbers above 0 gamma, log_normal, weibull; between 0 and 1 beta; for counts poisson,
        negative_binomial, zero_inflated_poisson, binomial; for classes ordinal (in their order),
        bernoulli (two, by one output).
    num_parts
        Number of Gaussians of --likelihood mixture; by default 3.
    levels
        Levels of the quantiles that --likelihood quantile has; by default .05 .25 .5 .75 .95.
    noise
        Noise of a regression: "learnt", one for all rows; "heteroscedastic", learnt as a function
        of x by a network of its own; "auto", the latter where it predicts held-out rows of a table
        better (tried with 1,000 training rows or more, or 300 whose errors seem to depend on x);
        or a known standard deviation in units of the standardised y.
        ("softplus" is the heteroscedastic noise of earlier versions, a second output of the
        network.)
    noise_floor
        Smallest standard deviation of learnt noise, in units of the standardised y: by default
        0.02, and of heteroscedastic noise at least what the rounding of y leaves.
    covariance
        Noise covariance of several outputs: "diagonal", or "full" with learnt correlations.
    """

    likelihood: str = "auto"
    num_parts: int | None = None
    levels: tuple[float, ...] | None = None
    noise: Literal["auto", "learnt", "heteroscedastic", "softplus"] | float = "auto"
    noise_floor: float | None = None
    covariance: Literal["diagonal", "full"] = "diagonal"


class TargetOptions(NamedTuple):
    """Density that is sampled, and how it is computed.

    Attributes
    ----------
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

    temperature: float = 1.0
    tempered: Literal["posterior", "likelihood"] = "posterior"
    microbatch: int | None = None
    float64: bool = False
    matmul_precision: MatmulPrecision = "highest"


class Problem(NamedTuple):
    """Data and model."""

    data: DataOptions = DataOptions()
    columns: ColumnOptions = ColumnOptions()
    held_out: HeldOutOptions = HeldOutOptions()
    network: NetworkOptions = NetworkOptions()
    prior: PriorOptions = PriorOptions()
    likelihood: LikelihoodOptions = LikelihoodOptions()
    target: TargetOptions = TargetOptions()

    @classmethod
    def of(cls, **options: Any) -> "Problem":
        """Make a problem of options by their names, also of those that JSON has kept."""
        return cls().changed(**options)

    def changed(self, **options: Any) -> "Problem":
        """Give the problem with some options changed, by their names."""
        if unknown := [name for name in options if name not in HINTS]:
            raise TypeError(
                f"got {unknown[0]}{hint(unknown[0], HINTS)} expected an option of data or model"
            )
        given = {name: _as_typed(HINTS[name], value) for name, value in options.items()}
        return Problem._make(
            own._replace(**{n: given[n] for n in own._fields if n in given}) for own in self
        )

    def options(self) -> dict[str, Any]:
        """Give all options by their names."""
        return {name: value for record in self for name, value in record._asdict().items()}


# Types of the options, by name.
HINTS: dict[str, Any] = {
    name: hint
    for record in get_type_hints(Problem).values()
    for name, hint in get_type_hints(record).items()
}


def _as_typed(hint: Any, value: Any) -> Any:
    """Give a value as it is typed: JSON has lists for tuples, and texts for paths."""
    if isinstance(value, list):
        return tuple(value)
    return Path(value) if isinstance(value, str) and Path in get_args(hint) else value


# What a run finds if it is left open; the floor of noise has another default by version.
FOUND = "hidden", "noise", "noise_floor", "prior_scale"


def left_open(problem: Problem) -> list[str]:
    """Name the options that a run is to find."""
    options = problem.options()
    names = [name for name in FOUND if is_open(options[name])]
    return [name for name in names if name != "hidden" or options["net"] == "auto"]


def as_now(settings: dict[str, Any]) -> dict[str, Any]:
    """Give what earlier versions have stored as this one would have."""
    if settings.get("net", "mlp") not in ("mlp", "auto"):
        settings = settings | {"hidden": None}  # which no other network has
    if settings.get("noise") == "heteroscedastic" and "noise_floor" not in settings:
        settings = settings | {"noise": "softplus"}
    learnt = settings.get("noise") == "learnt" and _may_have_noise(settings)
    if learnt and settings.get("noise_floor") is None:
        settings = settings | {"noise_floor": EARLIER_FLOOR}
    return settings


def _may_have_noise(settings: dict[str, Any]) -> bool:
    """Whether a stored problem may be a regression with noise; earlier versions do not tell."""
    classes = (settings.get("rows") or {}).get("num_classes")
    return classes is None and settings.get("likelihood", "auto") == "auto"
