"""Corrupted images in the layout of CIFAR-10-C: written, read, scored."""

from functools import partial

import matplotlib
import numpy as np
import pandas as pd
import pytest

matplotlib.use("Agg")

import bnn_ppl as bnn
from bnn_ppl import shift
from bnn_ppl.cli.commands import robustness as commands
from bnn_ppl.robustness.corruptions import corrupt
from bnn_ppl.robustness.corruptions.files import CorruptedFiles, write_files
from bnn_ppl.robustness.more_models import corrupted_by_models, doubled
from bnn_ppl.storage.arviz_versions import draws_of_arrays

NAMES = ["brightness", "gaussian_noise"]
COLOUR = np.random.default_rng(0).integers(0, 256, (7, 16, 16, 3)).astype(np.uint8)
LABELS = np.array([3, 1, 4, 1, 5, 9, 2])


def test_the_layout_is_that_of_cifar10_c(tmp_path):
    assert write_files(tmp_path / "new", COLOUR, LABELS, names=NAMES, seed=3) == NAMES
    stored = {path.name: np.load(path) for path in (tmp_path / "new").iterdir()}
    assert sorted(stored) == ["brightness.npy", "gaussian_noise.npy", "labels.npy"]
    assert stored["labels.npy"].dtype == np.uint8
    np.testing.assert_array_equal(stored["labels.npy"], np.concatenate([LABELS] * 5))
    for name in NAMES:
        assert (stored[f"{name}.npy"].shape, stored[f"{name}.npy"].dtype) == ((35, 16, 16, 3), "u1")
        by_severity = [corrupt(COLOUR, name, severity, seed=3) for severity in range(1, 6)]
        np.testing.assert_array_equal(stored[f"{name}.npy"], np.concatenate(by_severity))


@pytest.mark.parametrize("grey", [False, True])
def test_published_files_are_read_by_row_and_severity(tmp_path, grey):
    shape = (50, 4, 3) if grey else (50, 4, 3, 3)  # of 10 images; MNIST-C has no channels
    images = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)
    np.save(tmp_path / "frost.npy", images)
    np.save(tmp_path / "labels.npy", np.tile(np.arange(10), 5))
    files = CorruptedFiles(tmp_path, [7, 2], [7, 2])
    assert files.names == ["frost"]
    shape = (4, 3, 1) if grey else (4, 3, 3)
    expected = np.stack([images[20 + 7], images[20 + 2]]).reshape(2, *shape)
    np.testing.assert_array_equal(files.read("frost", 3, shape), expected)


def test_files_that_are_there_are_kept_and_those_of_other_images_refused(tmp_path):
    write_files(tmp_path, COLOUR, LABELS, names=NAMES[0])
    marked = np.load(tmp_path / "brightness.npy")
    marked[-1] = 0
    np.save(tmp_path / "brightness.npy", marked)
    write_files(tmp_path, COLOUR, LABELS, names=NAMES)  # goes on with the second
    np.testing.assert_array_equal(np.load(tmp_path / "brightness.npy"), marked)
    assert (tmp_path / "gaussian_noise.npy").is_file()
    with pytest.raises(FileExistsError, match=r"labels.npy' of other images"):
        write_files(tmp_path, COLOUR, LABELS[::-1].copy(), names=NAMES)
    with pytest.raises(FileExistsError, match=r"gaussian_noise.npy' of other images or another"):
        write_files(tmp_path, COLOUR, LABELS, names=NAMES[1], seed=1)
    with pytest.raises(FileExistsError, match=r"brightness.npy' of other images or another"):
        write_files(tmp_path, COLOUR[::-1], LABELS, names=NAMES[0])
    np.save(tmp_path / "brightness.npy", marked[:-1])
    with pytest.raises(FileExistsError, match=r"brightness.npy' of other images .*\(35, 16"):
        write_files(tmp_path, COLOUR, LABELS, names=NAMES)


@pytest.fixture(scope="module")
def mnist():
    return bnn.data.load("mnist", subset=160)


@pytest.fixture(scope="module")
def linear(mnist):
    """A softmax regression of packaged images, not trained: (posterior, draws)."""
    model = bnn.models.classifier(partial(bnn.nets.MLP, 784, (), 10), bnn.priors.normal(0.05))
    posterior = bnn.condition(model, mnist.train)
    values = np.random.default_rng(0).normal(0, 0.05, (1, 2, 784, 10)).astype(np.float32)
    bias = np.zeros((1, 2, 10), np.float32)
    return posterior, draws_of_arrays(
        {"posterior": {"net.layers.0.kernel": values, "net.layers.0.bias": bias}}
    )


def pixels(data):
    return np.rint(data.test.x * data.x_scale + data.x_mean).astype(np.uint8)


def test_scores_of_files_are_those_of_the_same_images_computed(tmp_path, mnist, linear):
    rows = np.array([5, 0, 11])
    write_files(tmp_path, pixels(mnist)[:12], mnist.test.y[:12], names=NAMES)
    given = (mnist.test.x[:12], mnist.test.y[:12])
    options = {"x_mean": mnist.x_mean, "x_scale": mnist.x_scale, "severities": (2, 5)}
    computed = shift.corrupted(*linear, given, names=NAMES, **options)
    pd.testing.assert_frame_equal(
        shift.corrupted(*linear, given, files=tmp_path, **options), computed
    )
    some = mnist.test.x[rows], mnist.test.y[rows]
    table = shift.corrupted(*linear, some, files=tmp_path, rows=rows, **options)
    changed = corrupt(pixels(mnist)[:12], "gaussian_noise", 5)[rows]
    x = ((changed - mnist.x_mean) / mnist.x_scale).astype(np.float32)
    nll = bnn.metrics.nll(bnn.predict(*linear, (x, some[1])), some[1])
    assert table["nll"].iloc[-1] == pytest.approx(nll, rel=1e-5)
    assert len(table) == 5 and set(table["corruption"]) == {"none", *NAMES}


@pytest.mark.thorough
def test_the_command_writes_and_reads(tmp_path, mnist, linear, monkeypatch, capsys):
    posterior, _ = linear
    small = mnist._replace(test=bnn.data.Data(mnist.test.x[:12], mnist.test.y[:12]))

    class Run:
        data, draws = small, linear[1]

    Run.posterior = posterior
    monkeypatch.setattr(commands, "image_runs", lambda *args: ({"run": Run}, small))
    folder, csv = tmp_path / "files", tmp_path / "corruptions.csv"
    predicting = commands.Predicting(progress=False)

    def command(**corrupting):
        chosen = commands.Corrupting(severities=(4,), **corrupting)
        commands.corruptions((tmp_path,), corrupting=chosen, num_rows=6, predicting=predicting)

    command(only=tuple(NAMES), write=folder)
    assert "2 corruptions of 12 test images written to" in capsys.readouterr().out
    assert np.load(folder / "gaussian_noise.npy").shape == (60, 28, 28, 1)
    written = pd.read_csv(csv)
    csv.unlink()
    command(read=folder)
    pd.testing.assert_frame_equal(pd.read_csv(csv), written)
    assert written["num_rows"].tolist() == [6] * 3
    with pytest.raises(ValueError, match="got --read and --write, expected one"):
        command(read=folder, write=folder)


def test_more_models_are_averages_of_the_first_chains(mnist, linear):
    posterior, draws = linear
    values = draws.posterior["net.layers.0.kernel"].values[0]  # two draws: here two models
    models = draws_of_arrays(
        {
            "posterior": {
                "net.layers.0.kernel": np.concatenate([values, 2 * values[:1]])[:, None],
                "net.layers.0.bias": np.zeros((3, 1, 10), np.float32),
            }
        }
    )
    options = {"x_mean": mnist.x_mean, "x_scale": mnist.x_scale, "severities": (2,)}
    rows = mnist.test.x[:12], mnist.test.y[:12]
    table = corrupted_by_models(posterior, models, rows, names=NAMES, **options)
    assert table["num_models"].tolist() == [1] * 3 + [2] * 3 + [3] * 3
    two = table[table["num_models"] == 2].drop(columns="num_models").reset_index(drop=True)
    pd.testing.assert_frame_equal(two, shift.corrupted(*linear, rows, names=NAMES, **options))
    assert len(set(table["nll"])) == 9
    for numbers in ((0,), (4,), ()):
        with pytest.raises(ValueError, match="of models, expected some from 1 to 3"):
            corrupted_by_models(posterior, models, rows, numbers, **options)
    figure = bnn.plots.more_models({"a": table, "b": table.assign(nll=table["nll"] + 1)})
    assert [ax.get_title("left") for ax in figure.axes] == ["No corruption", "Severity 2"]
    line = figure.axes[1].lines[0]
    strong = table[table["severity"] == 2].groupby("num_models")["nll"].mean()
    np.testing.assert_allclose(line.get_xdata(), [1, 2, 3])
    np.testing.assert_allclose(line.get_ydata(), strong)
    assert doubled(1) == [1] and doubled(4) == [1, 2, 4] and doubled(5) == [1, 2, 4, 5]


def without_labels(folder):
    (folder / "labels.npy").unlink()


def of_other_shape(folder):
    np.save(folder / "brightness.npy", np.zeros((35, 8, 8, 3), np.uint8))


REFUSED = {
    "no files": (without_labels, {}, FileNotFoundError, "expected a folder with labels.npy"),
    "other labels": (None, {"labels": [0, 0]}, ValueError, "got 7 images in .* the same order"),
    "a row beyond": (None, {"rows": [0, 7]}, ValueError, "got 7 images in .* the same order"),
    "no such file": (None, {"name": "fog"}, ValueError, "got 'fog' at severity 1, expected one of"),
    "no such severity": (None, {"severity": 6}, ValueError, "at severity 6, .* from 1 to 5"),
    "other shape": (of_other_shape, {}, ValueError, r"got uint8 \(35, 8, 8, 3\) in brightness.npy"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case, tmp_path):
    damage, options, error, message = REFUSED[case]
    write_files(tmp_path, COLOUR, LABELS, names=NAMES)
    if damage:
        damage(tmp_path)
    rows, labels = options.get("rows", [0, 2]), options.get("labels", [3, 4])
    name, severity = options.get("name", "brightness"), options.get("severity", 1)
    with pytest.raises(error, match=message):
        CorruptedFiles(tmp_path, rows, labels).read(name, severity, (16, 16, 3))


@pytest.mark.parametrize("labels", [LABELS[:-1], LABELS + 250, LABELS / 2])
def test_labels_that_are_no_classes_of_the_images_are_refused(labels, tmp_path):
    with pytest.raises(ValueError, match="expected a class from 0 to 255 for each"):
        write_files(tmp_path / "new", COLOUR, labels)
    assert not (tmp_path / "new").exists()
