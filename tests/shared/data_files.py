"""Made-up data sets in the files that users have them in."""

import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from bnn_ppl.data.tables import reading as files

FOLDER = os.environ.get("BNN_PPL_DATA")


needs_folder = pytest.mark.skipif(not FOLDER, reason="set BNN_PPL_DATA to a folder of data sets")


def table(rows=40, splits=2, **changes):
    """Arrays of a made-up regression table whose last column is constant."""
    rng = np.random.default_rng(0)
    order = np.stack([rng.permutation(rows) for _ in range(splits)])
    x = rng.normal(3.0, 2.0, (rows, 3))
    x[:, 2] = 0.1
    arrays = {
        "x": x,
        "y": rng.normal(50.0, 10.0, rows),
        "train_index": order[:, :30],
        "test_index": order[:, 30:],
    }
    return {key: value for key, value in (arrays | changes).items() if value is not None}


def pictures(train=6, test=4, **changes):
    """Arrays of a made-up set of images, all pixels of image i equal to i."""
    arrays = {
        "x_train": np.repeat(np.arange(train, dtype=np.uint8), 784).reshape(train, 28, 28),
        "y_train": np.arange(train, dtype=np.uint8) % 10,
        "x_test": np.repeat(np.arange(test, dtype=np.uint8), 784).reshape(test, 28, 28),
        "y_test": np.arange(test, dtype=np.uint8) % 10,
    }
    return arrays | changes


def save(folder, file, arrays):
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    np.savez(folder / file, **arrays)
    return folder


def raw(name):
    with np.load(files.PACKAGE / "uci" / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


def fake_tfds(monkeypatch, arrays):
    calls = []

    def load(name, **settings):
        calls.append((name, settings))
        return [(arrays["x_train"], arrays["y_train"]), (arrays["x_test"], arrays["y_test"])]

    module = SimpleNamespace(load=load, as_numpy=lambda tree: tree)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
    return calls


def colours(train=6, test=4, classes=10):
    """Arrays of a made-up set in colour: channel c of image i is 10 i + c."""
    values = 10 * np.arange(max(train, test))[:, None] + np.arange(3)
    x = np.broadcast_to(values[:, None, None], (len(values), 32, 32, 3)).astype(np.uint8)
    y = (np.arange(len(values)) % classes).astype(np.uint8)
    return {"x_train": x[:train], "y_train": y[:train], "x_test": x[:test], "y_test": y[:test]}


RNG = np.random.default_rng(0)


def image(shape=(8, 6, 3)):
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def write(path, pixels, palette=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(pixels)
    if palette:
        picture.putpalette(list(range(256)) * 3)
        assert picture.mode == "P"
    picture.save(path)
    return pixels


def mask_folder(root, number=3):
    """Write images and masks as CamVid has them; give the masks by part."""
    masks = {}
    for part in ("train", "test"):
        masks[part] = RNG.integers(0, 5, (number, 6, 8), dtype=np.uint8)
        for i, mask in enumerate(masks[part]):
            write(root / part / f"0001TP_{i}.png", image((6, 8, 3)))
            write(root / f"{part}annot" / f"0001TP_{i}.png", mask, palette=i == 1)
    masks["test"][0, 0, 0] = 11
    write(root / "testannot" / "0001TP_0.png", masks["test"][0])
    return masks
