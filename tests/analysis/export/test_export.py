"""Exports predict as the package does, in a process that cannot import it."""

import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas
import pytest
from flax import nnx
from logistic import classes_by_a_slope

import bnn_ppl as bnn
from bnn_ppl import data
from bnn_ppl.analysis.export import predict
from bnn_ppl.analysis.export.preparation import _columns, preparation
from bnn_ppl.cli import main
from bnn_ppl.data.tables.encoding import Column, Encoding
from bnn_ppl.data.tables.kinds.date import days_of

pytest.importorskip("flatbuffers")
RNG = np.random.default_rng(0)
SGLD = partial(bnn.sgld, step_size=1e-5)
# Nothing but JAX, NumPy and flatbuffers can be imported.
ALONE = """
import sys
for name in ("bnn_ppl", "numpyro", "flax", "blackjax", "arviz", "pandas", "optax", "xarray"):
    sys.modules[name] = None
sys.path.insert(0, {folder!r})
"""


def alone(folder, code, **options):
    """Run code beside an export, in a process of its own."""
    command = [sys.executable, "-c", ALONE.format(folder=str(folder)) + code]
    environment = {"JAX_PLATFORMS": "cpu", "PATH": "/usr/bin"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=environment, **options
    )


def found_alone(folder, x):
    """Predict rows with the export in a folder."""
    np.save(folder / "rows.npy", x)
    code = """
import numpy as np
from predict import load
found = load()(sys.path[0] + "/rows.npy")
np.savez(sys.path[0] + "/found.npz", **found)
"""
    done = alone(folder, code)
    assert not done.returncode, done.stderr
    with np.load(folder / "found.npz") as file:
        return dict(file)


def sampled(model, data, method=SGLD):
    posterior = bnn.condition(model, data)
    run = partial(bnn.run, jax.random.key(0), posterior, num_chains=2, progress=False)
    return posterior, run(method(posterior), num_warmup=3, num_draws=4)


def images(side, num_classes, channels=1):
    x = RNG.normal(size=(6, side, side, channels)).astype(np.float32)
    return x, np.arange(6) % num_classes


class Own(nnx.Module):
    """A user's own: two branches and a sine."""

    def __init__(self, rngs):
        self.left, self.right = nnx.Linear(3, 4, rngs=rngs), nnx.Linear(3, 4, rngs=rngs)
        self.out = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x):
        branches = jnp.sin(self.left(x)), nnx.relu(self.right(x))
        return self.out(jnp.concatenate(branches, -1))


def own_model(x, y=None):
    net = bnn.random_network("net", Own, bnn.priors.normal(0.5))
    outputs = net(x)
    with numpyro.plate("rows", len(x)):
        scale = 0.1 + jnp.exp(outputs[:, 1])
        numpyro.sample("y", dist.StudentT(5.0, outputs[:, 0], scale), obs=y)


def mlp():
    x = RNG.normal(size=(9, 3)).astype(np.float32)
    net = partial(bnn.nets.MLP, 3, (5,), 1)
    model = bnn.models.regressor(net, bnn.priors.fan_in(), bnn.priors.noise())
    return *sampled(model, (x, x[:, 0])), x


def classifier(net, data):
    return *sampled(bnn.models.classifier(net, bnn.priors.fan_in()), data), data[0]


def tokens():
    x = RNG.integers(0, 20, (6, 16)).astype(np.int32)
    net = partial(bnn.nets.CNNLSTM, (16,), 2, vocabulary_size=20, embedding_size=3, units=4)
    return classifier(net, (x, np.arange(6) % 2))


def resnet(norm):
    net = partial(bnn.nets.ResNet, (8, 8, 3), 3, depth=8, widths=(2, 3, 4), norm=norm)
    return classifier(net, images(8, 3, 3))


def own():
    x = RNG.normal(size=(9, 3)).astype(np.float32)
    return *sampled(own_model, (x, x[:, 0])), x


CASES = {
    "mlp": mlp,
    "own": own,
    "lenet": lambda: classifier(partial(bnn.nets.LeNetSmall, (16, 16, 1), 3), images(16, 3)),
    "resnet": partial(resnet, "filter_response"),
    "resnet_batch_norm": partial(resnet, "batch"),
    "resnet20": lambda: classifier(partial(bnn.nets.ResNet20, (32, 32, 3), 10), images(32, 10, 3)),
    "cnn_lstm": tokens,
}
QUICK, SLOW = ("mlp",), ("resnet20",)


def marked(name):
    return pytest.mark.slow if name in SLOW else pytest.mark.thorough


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=marked(name)) for name in CASES],
)
def test_an_export_predicts_as_the_package_does(name, tmp_path):
    posterior, draws, x = CASES[name]()
    told = bnn.export(posterior, draws, tmp_path / "export")
    assert told.change == 0 and told.num_draws == 8 and told.seconds.keys() == {1, 1000}
    found, expected = found_alone(tmp_path / "export", x), bnn.predict(posterior, draws, x)
    same = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    if "probs" in expected:
        same(found["probabilities"], expected["probs"])
        for each in ("entropy", "expected_entropy", "mutual_information"):
            same(found[each], expected[each])
    else:
        same(found["mean"], expected["mean"])
        same(found["sd"] ** 2, expected["variance"])
        same(found["epistemic_sd"] ** 2, expected["epistemic_variance"])
        levels = 0.05, 0.25, 0.5, 0.75, 0.95
        same(found["quantiles"].T, bnn.predict_quantiles(posterior, draws, x, levels))


@pytest.mark.thorough
def test_each_chain_of_laplace_is_linearised_about_its_own_centre(tmp_path):
    x = RNG.normal(size=(9, 2)).astype(np.float32)
    model = bnn.models.regressor(partial(bnn.nets.MLP, 2, (3,), 1), bnn.priors.normal(1.0), 0.2)
    posterior, draws = sampled(model, (x, x[:, 0]), partial(bnn.laplace, structure="diagonal"))
    bnn.export(posterior, draws, tmp_path / "export")
    found, expected = predict.load(tmp_path / "export")(x), bnn.predict(posterior, draws, x)
    same = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    same(found["mean"], expected["mean"])
    same(found["sd"] ** 2, expected["variance"])
    same(found["quantiles"][:, 2], bnn.predict_quantiles(posterior, draws, x, 0.5)[0])


@pytest.mark.thorough
def test_a_table_with_categories_is_exported_by_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    size, cold = RNG.normal(size=40), RNG.integers(0, 2, 40).astype(bool)
    kind = np.where(RNG.uniform(size=40) > 0.5, "red", "blue")
    price = 1000 + 30 * size + 5 * cold
    lines = [f"{a},{b},{c},{d}" for a, b, c, d in zip(size, cold, kind, price, strict=True)]
    Path("table.csv").write_text("\n".join(["size,cold,kind,price", *lines]))
    main(["run", "descent", "--data", "table.csv", "--folder", "run", "--hidden", "4"]
         + ["--num-warmup", "30", "--num-chains", "2", "--noise", "learnt"])  # fmt: skip
    main(["export", "run", "--draws", "1"])
    told = capsys.readouterr().out
    assert "1 of 2 draws, which change a mean by at most" in told and "ms for 1,000 rows" in told
    main(["export", "run"])  # replaces it
    main(["export", "run", "--draws", "1", "--out", "my export"])
    assert "python 'my export/predict.py' rows.csv" in capsys.readouterr().out
    # "green" was not seen in training: it is among the others.
    Path("new.csv").write_text("kind,size,cold\nblue,0.5,True\nred,-1,False\ngreen,2.25,0\n")
    main(["predict", "run", "--inputs", "new.csv", "--level", "0.9"])
    code = "import predict\nsys.exit(predict.main(['new.csv']))"
    done = alone(tmp_path / "run" / "export", code)
    assert not done.returncode, done.stderr
    rows = np.genfromtxt(done.stdout.splitlines(), delimiter=",", names=True)
    expected = np.genfromtxt("run/predictions-new.csv", delimiter=",", names=True)
    for each in ("mean", "sd", "epistemic_sd", "quantile_005", "quantile_05", "quantile_095"):
        np.testing.assert_allclose(rows[each], expected[each], rtol=1e-5)
    Path("new.csv").write_text("kind,size,cold\nred,0.5,perhaps\n")
    done = alone(tmp_path / "run" / "export", code)
    assert done.returncode == 1
    assert done.stderr.strip().endswith(
        "predict.py: got 'perhaps' in the column 'cold', expected True or False"
    )
    about = Path("run/export/preparation.json")
    about.write_text(about.read_text().replace('"category"', '"place"'))
    assert "got columns of the kind place, expected" in alone(about.parent, code).stderr


@pytest.mark.thorough
def test_the_page_gives_what_the_loader_gives(tmp_path):
    posterior, draws, _ = mlp()
    bnn.export(posterior, draws, tmp_path / "export")
    code = """
import json, threading, urllib.request
from functools import partial
from http.server import HTTPServer
import predict
model = predict.load()
server = HTTPServer(("127.0.0.1", 0), partial(predict._Page, model))
threading.Thread(target=server.serve_forever, daemon=True).start()
at = f"http://127.0.0.1:{server.server_port}"
page = urllib.request.urlopen(at).read().decode()
assert "<svg" in page and json.load(urllib.request.urlopen(at + "/about"))["x_shape"] == [3]
found = json.load(urllib.request.urlopen(at + "/predict", b"[[1, 2, 3]]"))
assert abs(found["mean"][0] - model([[1, 2, 3]])["mean"][0]) < 1e-6
assert len(found["quantiles"][0]) == len(found["levels"]) == 199
try:
    urllib.request.urlopen(at + "/predict", b"[[1, 2]]")
except urllib.error.HTTPError as error:
    print(json.load(error)["error"])
"""
    done = alone(tmp_path / "export", code)
    assert not done.returncode, done.stderr
    assert done.stdout.strip() == "got rows of shape (2,), expected (3,)"


@pytest.mark.thorough
def test_what_cannot_be_exported_is_refused(tmp_path, capsys):
    posterior, draws, _ = mlp()
    with pytest.raises(FileExistsError, match="which exists"):
        bnn.export(posterior, draws, tmp_path)
    with pytest.raises(ValueError, match="num_draws=0"):
        bnn.export(posterior, draws, tmp_path / "a", num_draws=0)
    with pytest.raises(TypeError, match="expected the folder to write"):
        bnn.export(str(tmp_path))
    program = SimpleNamespace(kind=SimpleNamespace(is_of_classes=True))
    two = bnn.condition(classes_by_a_slope, (np.ones((3, 1), "f"), np.array([0, 1, 1])))
    with pytest.raises(ValueError, match="got 3 labels of a model of 2 classes"):
        preparation(two, program, None, ("a", "b", "c"))
    unknown = Encoding((Column("day", "date", form="words"),), Column("y", "number"))
    data = bnn.data.load("yacht")._replace(encoding=unknown)
    with pytest.raises(ValueError, match="got a column 'day' of the kind 'date'"):
        preparation(posterior, None, data)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letter.txt").write_text("mine")
    with pytest.raises(SystemExit):
        main(["export", str(tmp_path), "--out", str(tmp_path / "out")])
    assert "a folder with letter.txt, expected a new one" in capsys.readouterr().err


def ordinary_table(rows=60):
    rng = np.random.default_rng(0)
    day = np.datetime64("2020-01-01") + rng.integers(0, 900, rows)
    table = pandas.DataFrame(
        {
            "size": rng.normal(size=rows).round(3),
            "sold": day.astype(str),
            "city": np.where(np.arange(rows) < 58, rng.choice(["Bern", "Rome"], rows), "Oslo"),
            "garden": rng.choice(["yes", "no"], rows),
            "price": rng.normal(size=rows).round(3),
        }
    )
    table.loc[:7, "size"] = np.nan
    table.loc[5:20, "city"] = None
    return table


def test_cells_of_ordinary_tables_become_the_same_numbers(tmp_path):
    ordinary_table().to_csv(tmp_path / "table.csv", index=False)
    with warnings.catch_warnings(action="ignore"):
        encoding = data.load(tmp_path / "table.csv", target="price").encoding
    new = ordinary_table().assign(city="Paris").drop(columns="price").astype(object)
    new.loc[:3, ["city", "garden", "sold"]] = None
    cells = new.where(new.notna(), None)
    found = predict.encoded(_columns(encoding), dict(cells))
    with warnings.catch_warnings(action="ignore"):
        expected = data.encode(cells, encoding)
    assert found.shape[1] > 8  # with marks of empty cells, other cities and the cycles of dates
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-9)
    with pytest.raises(ValueError, match="got '12 %' in the column 'size', expected a finite"):
        predict.encoded(_columns(encoding), dict(cells.assign(size="12 %")))


def test_cells_written_in_other_ways_are_refused():
    column = Column("price", "number", fill=1.0, form=",")
    with pytest.raises(ValueError, match="written as ',', expected one of number, .*with bnn_ppl"):
        _columns(Encoding((column,), Column("y", "number")))
    few = Column("day", "date", fill=1.0, form="iso, day first with /")  # of the training rows
    assert _columns(Encoding((few,), Column("y", "number")))


def test_tables_of_data_frames_are_read_with_their_headers_and_without_their_index(tmp_path):
    frame, path = pandas.DataFrame(RNG.normal(size=(3, 2))), tmp_path / "rows.csv"
    for index in (False, True):
        frame.to_csv(path, index=index)
        found = predict._by_number(predict._read(path), (2,))
        np.testing.assert_allclose(found, frame, atol=1e-9)
    np.savetxt(path, frame, delimiter=",")
    np.testing.assert_allclose(predict._by_number(predict._read(path), (2,)), frame, atol=1e-9)


def test_tables_without_names_keep_their_first_row(tmp_path):
    path = tmp_path / "rows.csv"
    for text, names in (("0\n0.1\n0.2\n", ["0"]), ("1,0\n0,0\n1,1\n", ["0", "1"])):
        path.write_text(text)
        table = predict._read(path, names)
        assert list(table) == names and len(table["0"]) == 3
    path.write_text("2019,2020\n1,2\n")
    assert predict._read(path, ["2019", "2020"]) == {"2019": ["1"], "2020": ["2"]}


def test_columns_of_one_name_are_refused(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("a,b,a,c,c\n1,2,3,4,5\n")
    for names in (["a", "b"], []):
        with pytest.raises(ValueError, match="got several columns .*a"):
            predict._read(path, names)
    assert predict._read(path, ["b"])["b"] == ["2"]  # the others are not used


@pytest.mark.parametrize("suffix", ["npz", "npy"])
def test_files_of_arrays_that_cannot_be_read_are_refused(suffix, tmp_path):
    path = tmp_path / f"rows.{suffix}"
    np.savez(tmp_path / "rows.npz", z=np.ones(3))
    for content in (path.read_bytes() if path.exists() else b"PK", b"PK\3\4 cut", b"text", b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"got rows.{suffix}, expected a whole file"):
            predict._read(path)


def test_rows_of_text_that_lack_a_column_are_refused():
    columns = [{"name": name, "kind": "number", "fill": None} for name in ("a", "b")]
    model = SimpleNamespace(about={"columns": columns, "x_shape": [2]})
    with pytest.raises(ValueError, match="got 1 columns, expected a, b"):
        predict.Predictor.prepared(model, np.array([["1"], ["2"]]))


def test_tables_without_names_may_lack_a_y_that_was_not_last(tmp_path):
    path = tmp_path / "rows.csv"
    for text, y in (("0.5,0.1\n", {}), ("9,0.5,0.1\n", {"0": ["9"]})):
        path.write_text(text)
        assert predict._read(path, ["1", "2"]) == {"1": ["0.5"], "2": ["0.1"]} | y


def test_dates_are_read_as_by_the_package():
    times = "", " 9:30", "T09:30:15,25", " 9:30 PM", " 12:30AM", ", 10:00 GMT", " 10:00 +0200"
    cells = ["2015-01", "2015/1", "2015.01.05", "2015/1/5", *(f"2015-1-5{time}" for time in times)]
    column = {"name": "day", "kind": "date"}
    found = [predict._date(column, cell) for cell in cells]
    np.testing.assert_allclose(found, days_of(pandas.Series(cells), "iso"), rtol=0, atol=1e-9)
    for cell in ("2015-13", "5/1/2015", "2015-01-05 14:30 PM", "2015-01-05 13:30 AM", "2024-W05"):
        with pytest.raises(ValueError, match=f"got '{cell}' in the column 'day', expected a date"):
            predict._date(column, cell)


def test_truth_values_are_1_and_0_in_columns_of_numbers_and_with_roles():
    columns = [
        {"name": "flag", "kind": "number", "categories": [], "fill": 0.0},
        {"name": "censored", "kind": "optional", "categories": [], "fill": 0.0},
    ]
    cells = {"flag": [True, False, 0.5], "censored": ["True", "no", 1]}
    np.testing.assert_array_equal(predict.encoded(columns, cells), [[1, 1], [0, 0], [0.5, 1]])
    columns.append({"name": "days", "kind": "optional", "categories": [], "fill": None})
    with pytest.raises(ValueError, match="got a table without days, expected flag, days"):
        predict.encoded(columns, cells)


@pytest.mark.parametrize(
    "content",
    ["2019| 2020|kind\n1|2|ü\n".encode("cp1252"), "\r\n2019, 2020, kind\r\n1,2,ü\r\n".encode()],
)
def test_files_that_the_package_reads_are_read(content, tmp_path):
    (tmp_path / "rows.txt").write_bytes(content)
    table = predict._read(tmp_path / "rows.txt", ["2019", "2020", "kind"])
    assert table == {"2019": ["1"], "2020": ["2"], "kind": ["ü"]}


def test_texts_keep_their_commas_and_numbers_name_their_categories(tmp_path):
    (tmp_path / "rows.csv").write_text("city;size;kind\nWashington, DC;1,5;2.0\nRome;;1\n")
    table = predict._read(tmp_path / "rows.csv")
    assert table["city"] == ["Washington, DC", "Rome"] and table["size"] == ["1.5", ""]
    column = {"name": "kind", "kind": "category", "categories": ["1", "2"], "other": True}
    assert [predict._category(column, cell) for cell in ("2.0", "1", "3")] == [1.0, 0.0, 2.0]


def test_a_likelihood_without_quantiles_is_exported_without(tmp_path):
    def angles(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.VonMises(x @ w, 2.0), obs=y)

    x = RNG.normal(size=(6, 3)).astype(np.float32)
    posterior, draws = sampled(angles, (x, x[:, 0]))
    bnn.export(posterior, draws, tmp_path / "export")
    found = predict.load(tmp_path / "export")(x)
    assert {"mean", "sd"} <= set(found) and "quantiles" not in found
