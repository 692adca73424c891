"""Folders of images, a subfolder for each class, or with a mask for each image; reads by Pillow."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bnn_ppl.data.splits import permutation, published_split, split_number, whole
from bnn_ppl.data.standardise import by_last_axis, classification
from bnn_ppl.data.tables.reading import Data, DataSet, require, unreadable

if TYPE_CHECKING:
    from PIL.Image import Image

_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
_LAYOUT = "train/CLASS/*.png and test/CLASS/*.png (or val), or train, trainannot, test, testannot"


def is_folder(name: str) -> bool:
    """Whether a name given to `load` is a folder of images."""
    return (Path(name).expanduser() / "train").is_dir()


def image_folder(
    name: str, split: int | str, subset: int | None, dtype: np.dtype, image_size: int | None
) -> DataSet:
    """Load a folder of images, standardised by channel of the training rows.

    The layout ``train/CLASS/*``, ``test/CLASS/*`` (without test: val) gives y the number of the
    class in alphabetical order, and the training rows an order seeded by `split`. The layout
    ``train/*``, ``trainannot/*`` and so on, with a mask of the same name for each image, whose
    levels are classes (CamVid as distributed with SegNet), gives y (rows, height, width).
    """
    root = Path(name).expanduser()
    test = _test_part(root)
    masks = (root / "trainannot").is_dir()
    files, held = (_listed(root, part, masks) for part in ("train", test))
    rows = len(files) if subset is None else whole(name, "subset", subset, 1, len(files))
    if masks:
        published_split(name, split, 1)
        files = files[:rows]
    else:
        order = permutation(split_number(name, split, 2**32 - 1), len(files))
        files = [files[row] for row in order[:rows]]
    grey = all(_mode(file) in ("1", "L") for file in files)
    labels = _masks if masks else _numbers
    train, held_out = (
        Data(_images(part, image_size, grey), labels(root, part, image_size))
        for part in (files, held)
    )
    got = _sizes(train.x.shape[1:], held_out.x.shape[1:])
    same = train.x.shape[1:] == held_out.x.shape[1:]
    require(root, same, got, "one size", "pass image_size=")
    top = max(train.y.max(), held_out.y.max()) if masks else len(_classes(root)) - 1
    by = by_last_axis(train.x)
    return classification(train, held_out, by, 1 + int(top), name, str(root), dtype)


def folder_test_images(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Read the test images of a folder, scaled and cropped to `shape`: uint8 (rows, *shape)."""
    root = Path(name).expanduser()
    files = _listed(root, _test_part(root), (root / "trainannot").is_dir())
    require(root, shape[0] == shape[1], f"like= of images {shape}", "square ones", "change it")
    return _images(files, shape[0], shape[2] == 1)


def scaled(image: "Image", size: int, smooth: bool = True) -> "Image":
    """Scale an image so that its shorter side has `size` pixels, and cut the middle out of it."""
    from PIL.Image import Resampling

    width, height = image.size
    short = min(width, height)
    width, height = round(size * width / short), round(size * height / short)
    image = image.resize((width, height), Resampling.BILINEAR if smooth else Resampling.NEAREST)
    left, top = (width - size) // 2, (height - size) // 2
    return image.crop((left, top, left + size, top + size))


def _test_part(root: Path) -> str:
    found = [part for part in ("test", "val") if (root / part).is_dir()]
    require(root, found, "train alone", _LAYOUT, "add test rows")
    return found[0]


def _listed(root: Path, part: str, masks: bool) -> list[Path]:
    """Give the images of a part, and check that each has a class or a mask."""
    if masks:
        files, beside = _files(root / part), _files(root / f"{part}annot")
        same = [file.stem for file in files] == [mask.stem for mask in beside]
        got = f"{len(files)} images and {len(beside)} masks"
        require(root / part, same, got, f"masks of the same names in {part}annot", "complete them")
    else:
        folders = _subfolders(root / part)
        unknown = sorted({folder.name for folder in folders} - set(_classes(root)))
        require(root / part, not unknown, f"classes {unknown}", "those of train", "remove them")
        files = [file for folder in folders for file in _files(folder)]
    require(root / part, files, "no images", _LAYOUT, "add them")
    return files


def _numbers(root: Path, files: list[Path], size: int | None) -> np.ndarray:
    """Class numbers (rows,); `size` is not used."""
    numbers = {name: number for number, name in enumerate(_classes(root))}
    return np.array([numbers[file.parent.name] for file in files])


def _masks(root: Path, files: list[Path], size: int | None) -> np.ndarray:
    """Classes of the pixels (rows, height, width)."""
    folder = root / f"{files[0].parent.name}annot"
    beside = {mask.stem: mask for mask in _files(folder)}
    masks = [beside[file.stem] for file in files]
    return _stacked(masks, [_read(mask, size, None) for mask in masks])


def _images(files: Sequence[Path], size: int | None, grey: bool) -> np.ndarray:
    """Read images: uint8 (rows, height, width, channels)."""
    images = _stacked(files, [_read(file, size, "L" if grey else "RGB") for file in files])
    return images.reshape(*images.shape[:3], -1)


def _stacked(files: Sequence, images: list[np.ndarray]) -> np.ndarray:
    for file, image in zip(files, images, strict=True):
        got = _sizes(image.shape, images[0].shape)
        require(file, image.shape == images[0].shape, got, "one size", "pass image_size=")
    return np.stack(images)


def _read(file: Path, size: int | None, mode: str | None) -> np.ndarray:
    """Read an image in a mode of Pillow; with None a mask, whose levels stay as they are."""
    from PIL.Image import open as opened

    if mode is None:
        got = f"a mask in Pillow's mode {_mode(file)}"
        require(file, _mode(file) in ("1", "L", "P"), got, "a level from 0 to 255 a pixel")
    try:
        with opened(file) as stored:
            got, few = f"an image in Pillow's mode {stored.mode}", stored.mode[0] not in "IF"
            require(file, few, got, "8 bits a channel", "save it with 8 bits a channel")
            image = stored.copy() if mode is None else stored.convert(mode)
    except OSError as error:
        raise unreadable(file, error) from error
    return np.asarray(image if size is None else scaled(image, size, mode is not None), np.uint8)


def _mode(file: Path) -> str:
    from PIL.Image import open as opened

    try:
        with opened(file) as image:
            return str(image.mode)
    except OSError as error:
        raise unreadable(file, error) from error


def _classes(root: Path) -> list[str]:
    return [folder.name for folder in _subfolders(root / "train")]


def _subfolders(folder: Path) -> list[Path]:
    own = (path for path in folder.iterdir() if not path.name.startswith((".", "__MACOSX")))
    return sorted(path for path in own if path.is_dir())


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in _ENDINGS)


def _sizes(one: Sequence[int], other: Sequence[int]) -> str:
    return f"images of {one[0]}x{one[1]} and {other[0]}x{other[1]}"
