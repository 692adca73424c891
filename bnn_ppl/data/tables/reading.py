"""Where data files are looked for, how they are read, and what a loaded set holds."""

import lzma
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from bnn_ppl.data.streams.streams import Stream

PACKAGE = Path(__file__).parents[1] / "files"
_STREAMED = ".npy", ".zarr"
VARIABLE = "BNN_PPL_DATA"


class Data(NamedTuple):
    """Inputs and targets of the same rows.

    Attributes
    ----------
    x : numpy.ndarray
        Shape (rows, columns) for tables, (rows, height, width, channels) for images, (rows, tokens)
        for texts, there int32.
    y : numpy.ndarray
        Shape (rows,): standardised targets, or int32 class numbers; (rows, outputs) for several
        targets.
    """

    x: np.ndarray
    y: np.ndarray


class DataSet(NamedTuple):
    """A loaded data set; ``x * x_scale + x_mean`` gives back the source's numbers, y the same.

    Attributes
    ----------
    train, test : Data
        The two parts; no row of the source is in both.
    y_mean, y_scale : float, or numpy.ndarray (outputs,) for several targets
        Mean and standard deviation of y on the training rows; 0.0 and 1.0 for classification, 0.0
        and a constant of the set for curves.
    x_mean, x_scale : numpy.ndarray
        The same of x: shape (columns,) for tables, () or (channels,) for images (of a named set
        constants of the set, for pixels as stored), 0 and 1 for texts.
    num_classes : int or None
        None for regression.
    name : str
        The name, or the path, it was loaded by.
    source : str
        "package", the folder it was read from, or "tensorflow-datasets".
    encoding : Encoding or None
        For a file's table, and for an ``.npz`` file whose y are texts or truth values: how they
        became numbers, see `bnn_ppl.data.tables.encoding`.
    classes : tuple of int or None
        The source's numbers of the classes, where only some were chosen, by their new numbers.
    stream : Stream or None
        All training rows, where they stay on disk; `train` then has some of them.
    class_names : tuple of str or None
        Names of the classes, by their numbers, where they have names.
    output_names : tuple of str or None
        Names of the columns of y, where it has several.
    roles : tuple of str
        Roles of the last columns of x, which are for the likelihood and not standardised: some of
        "weights", "exposure", "trials" and "censoring", in this order.
    """

    train: Data
    test: Data
    y_mean: Any
    y_scale: Any
    x_mean: np.ndarray
    x_scale: np.ndarray
    num_classes: int | None
    name: str
    source: str
    encoding: Any = None  # its file imports this one
    classes: tuple[int, ...] | None = None
    stream: "Stream | None" = None

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes, by their numbers; None for regression and classes of numbers."""
        names = None if self.encoding is None else self.encoding.class_names
        return names if not names or self.classes is None else tuple(names[k] for k in self.classes)

    @property
    def num_outputs(self) -> int:
        """Number of columns of y; 1 for classes."""
        shape = () if self.num_classes is not None else np.shape(self.train.y)[1:]
        return shape[0] if shape else 1

    @property
    def output_names(self) -> tuple[str, ...] | None:
        """Names of the columns of y, where it has several; None where it has one."""
        if self.encoding is None or not self.encoding.more_targets:
            return None
        return tuple(column.name for column in self.encoding.targets)

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of the last columns of x; the others are the inputs of a network."""
        return () if self.encoding is None else tuple(role for role, _ in self.encoding.roles)


class Read(NamedTuple):
    """What a file of the user's holds, as numbers of its own units.

    Attributes
    ----------
    train, test : Data
        The two parts.
    of_classes : bool
        Whether y are classes, if nothing else is said.
    encoding : Encoding or None
        How they became numbers.
    groups : numpy.ndarray or None
        Groups of the training rows.
    """

    train: Data
    test: Data
    of_classes: bool
    encoding: Any = None
    groups: np.ndarray | None = None


class Place(NamedTuple):
    """A folder in the layout ``<set>/<file>`` and the name it goes by in `DataSet.source`."""

    source: str
    root: Path


def places(data_dir: str | os.PathLike[str] | None) -> list[Place]:
    """Give the folders to look in, in order: the user's, if there is one, then the package's."""
    folder = (os.environ.get(VARIABLE) or None) if data_dir is None else data_dir
    if folder is None:
        return [Place("package", PACKAGE)]
    root = Path(folder).expanduser()
    if not root.is_dir():
        origin = f"the environment variable {VARIABLE}" if data_dir is None else "data_dir="
        raise FileNotFoundError(
            f"got {str(folder)!r} from {origin}, expected a folder that exists; correct the path"
        )
    return [Place(str(root), root), Place("package", PACKAGE)]


def find(name: str, file: str, where: Sequence[Place]) -> tuple[str, Path]:
    """Give the source name and the path of the first `file` there is; refuse one of no place."""
    for place in where:
        if (place.root / file).is_file():
            return place.source, place.root / file
    raise not_found(name, file, where)


def not_found(name: str, file: str, where: Sequence[Place], others: str = "") -> FileNotFoundError:
    """Make the error for a set that no place has; `others` are further ways to get it."""
    looked = ", ".join(place.source for place in where)
    return FileNotFoundError(
        f"data set {name!r} not found (looked in: {looked}), expected {file}; pass data_dir= or "
        f"set {VARIABLE} to a folder that holds it{others}"
    )


def arrays_in(path: Path) -> list[str]:
    """Give the names of the arrays of an ``.npz`` file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return sorted(file.files)
    except Exception as error:
        raise unreadable(path, error) from error


def read_npz(path: Path, *names: str) -> tuple[np.ndarray, ...]:
    """Read the named arrays of an ``.npz`` file, never unpickling."""
    # Damaged bytes make zipfile, zlib and NumPy raise a dozen unrelated types.
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in names if name in file.files}
    except Exception as error:
        raise unreadable(path, error) from error
    require(path, len(found) == len(names), f"arrays {sorted(found)}", f"arrays {sorted(names)}")
    return tuple(found[name] for name in names)


def read_xz(path: Path) -> np.ndarray:
    """Read the array of an ``.npy.xz`` file, never unpickling."""
    try:
        with lzma.open(path) as file:
            return np.asarray(np.load(file, allow_pickle=False))
    except Exception as error:
        raise unreadable(path, error) from error


def require(
    path: Path | str, condition: Any, got: str, expected: str, do: str = "replace the file"
) -> None:
    """Raise ValueError about the contents of a file unless `condition` holds."""
    if not condition:
        raise ValueError(f"{path}: got {got}, expected {expected}; {do}")


def refuse_given(name: str, hint: str, **arguments: object) -> None:
    """Raise ValueError if an argument that another kind of data takes is given."""
    for argument, value in arguments.items():
        if value is not None:
            raise ValueError(f"got {argument}={value!r} for {name!r}, expected None; {hint}")


def unreadable(path: Path | str, error: Exception) -> ValueError:
    """Make the error for a file that could not be read, in one line."""
    first = (str(error) or type(error).__name__).splitlines()[0]
    do = "save it as UTF-8" if isinstance(error, UnicodeDecodeError) else "replace the file"
    return ValueError(f"{path}: cannot be read ({first}); {do}")


def streamed_files(name: str) -> tuple[Path, Path] | None:
    """Give the files of x and y in a folder whose rows are to stay on disk; None if it has none."""
    folder = Path(name).expanduser()
    for kind in _STREAMED:
        x, y = folder / f"x{kind}", folder / f"y{kind}"
        if x.exists() and y.exists():
            return x, y
    return None
