"""Draws for ArviZ 0.23 and for ArviZ 1, by its recorded interface where it is not installed."""

import ast
import inspect
import re
import sys
import threading
import time
import warnings
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

import arviz
import jax
import numpy as np
import pytest
import xarray as xr

import bnn_ppl as bnn
from bnn_ppl.analysis.weight_space.weight_statistics import moments
from bnn_ppl.plots.warmup import shows_rates
from bnn_ppl.storage.arviz_versions import (
    as_dataset,
    draws_of_groups,
    groups_of,
    import_meanwhile,
)
from bnn_ppl.storage.inference_data import dataset_of, inference_data, with_groups

PACKAGE = Path(bnn.__file__).parent
ADAPTER = PACKAGE / "storage" / "arviz_versions.py"
INSTALLED_1 = int(arviz.__version__.split(".")[0]) >= 1
X = np.random.default_rng(0).normal(size=(12, 2)).astype(np.float32)
DATA = X, X.sum(1)
FACTS = {"method": "hmc", "seed": [0, 42], "thin": 2}


def recorded_from_dict(
    data,
    *,
    name=None,
    sample_dims=None,
    save_warmup=None,
    index_origin=None,
    coords=None,
    dims=None,
    pred_dims=None,
    pred_coords=None,
    check_conventions=True,
    attrs=None,
):
    """Recorded from ArviZ 1.3.0 (arviz_base 1.3.1): the signature, and what our arguments do."""
    attrs, groups = attrs or {}, {}
    for group, arrays in data.items():
        sample = [] if "data" in group else ["chain", "draw"]
        variables = {}
        for variable, values in arrays.items():
            rest = range(np.ndim(values) - len(sample))
            own = (dims or {}).get(variable, [f"{variable}_dim_{i}" for i in rest])
            variables[variable] = ([*sample, *own], values)
            if check_conventions and sample and np.shape(values)[0] > np.shape(values)[1]:
                warnings.warn("Found chain dimension to be longer than draw", stacklevel=2)
        made = xr.Dataset(variables, attrs=attrs.get(group, {}))
        groups[group] = made.assign_coords({dim: np.arange(n) for dim, n in made.sizes.items()})
    tree = xr.DataTree.from_dict(groups, name=name)
    if "/" in attrs:
        tree.attrs = attrs["/"]
    return tree


def recorded():
    """Give what the package uses of ArviZ 1, and nothing else: another use is an error."""
    module = ModuleType("arviz")
    module.__version__, module.from_dict = "1.3.0", recorded_from_dict
    return module


@pytest.fixture
def arviz_1(monkeypatch):
    """ArviZ 1 itself where it is installed, else its recorded interface."""
    if not INSTALLED_1:
        monkeypatch.setitem(sys.modules, "arviz", recorded())


@pytest.fixture(scope="module")
def posterior():
    net = partial(bnn.nets.MLP, 2, (2,), 1)
    return bnn.condition(bnn.models.regressor(net, bnn.priors.fan_in(2**0.5), 0.5), DATA)


@pytest.fixture(scope="module")
def method(posterior):
    return bnn.sgld(posterior, step_size=1e-4)


def short(posterior, method, **options):
    options = {"num_chains": 2, "num_warmup": 4, "num_draws": 6, "progress": False} | options
    return bnn.run(jax.random.key(0), posterior, method, **options)


@pytest.mark.skipif(not INSTALLED_1, reason="needs ArviZ 1")
def test_the_record_is_of_the_interface_that_is_installed():
    assert str(inspect.signature(arviz.from_dict)) == str(inspect.signature(recorded_from_dict))
    arrays = {"w": np.zeros((2, 5, 3)), "probs": np.ones((2, 5, 4, 2))}
    data = {"posterior": arrays, "observed_data": {"y": np.arange(7.0)}}
    options = {"dims": {"probs": ["row", "class"]}, "attrs": {"/": FACTS}}
    real, ours = arviz.from_dict(data, **options), recorded_from_dict(data, **options)
    assert list(real) == list(ours) and real.attrs == ours.attrs == FACTS
    for group in real:
        xr.testing.assert_equal(real[group].to_dataset(), ours[group].to_dataset())


def test_draws_are_of_the_type_that_the_installed_arviz_takes():
    draws = inference_data({"w": np.random.default_rng(0).normal(size=(2, 50))}, {}, None, FACTS)
    assert isinstance(draws, xr.DataTree if INSTALLED_1 else arviz.InferenceData)
    assert float(arviz.rhat(draws)["w"]) == pytest.approx(float(bnn.diagnostics.rhat(draws)["w"]))


def test_a_tree_has_the_groups_dimensions_and_facts(arviz_1):
    values = {"w": np.arange(30.0).reshape(2, 5, 3), "noise": np.ones((2, 5))}
    stats, fitted = {"lp": np.zeros((2, 5))}, {"w.loc": np.ones((2, 3))}
    dims = {"w": ["unit"]}
    draws = inference_data(values, stats, np.arange(7.0), FACTS, fitted, dims)
    assert isinstance(draws, xr.DataTree)
    assert list(draws) == ["posterior", "sample_stats", "observed_data", "fitted"]
    assert draws.attrs == FACTS
    assert draws["posterior"]["w"].dims == ("chain", "draw", "unit")
    assert draws["observed_data"]["y"].dims == ("y_dim_0",)
    assert draws["fitted"]["w.loc"].dims == ("chain", "w.loc_dim_0")
    np.testing.assert_array_equal(draws.posterior["w"], values["w"])
    assert "fitted" in draws and draws.get("prior", {}) == {}
    some = draws.isel(chain=[1], draw=slice(2))
    assert dict(some["posterior"].sizes) == {"chain": 1, "draw": 2, "unit": 3}
    assert some["fitted"].sizes["chain"] == 1 and some.attrs == FACTS


def test_chains_of_one_draw_are_no_reason_to_warn(arviz_1):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draws = inference_data({"w": np.zeros((5, 1, 2))}, {}, None, FACTS)
    assert dict(draws["posterior"].sizes) == {"chain": 5, "draw": 1, "w_dim_0": 2}


def test_groups_of_a_tree_are_added_replaced_and_left_out(arviz_1):
    draws = inference_data({"w": np.zeros((2, 5))}, {}, None, FACTS)
    both = with_groups(draws, posterior=dataset_of({"v": np.ones(2)}), prior=dataset_of({}))
    assert list(both) == ["posterior", "prior"] and list(both["posterior"]) == ["v"]
    assert list(draws["posterior"]) == ["w"]  # as it was
    assert list(draws_of_groups({"posterior": dataset_of({}), "fitted": None}, {})) == ["posterior"]
    assert all(type(group) is xr.Dataset for group in groups_of(both).values())


def test_a_tree_without_posterior_is_refused(arviz_1):
    draws = draws_of_groups({"prior": dataset_of({"w": np.zeros(2)})}, {})
    for use in (as_dataset, bnn.diagnostics.rhat, bnn.diagnostics.weights):
        with pytest.raises(ValueError, match="got a DataTree with groups prior, expected one"):
            use(draws)


def answers(posterior, method, draws):
    """Give what the package makes of draws, as arrays."""
    key = jax.random.key(1)
    checked = bnn.predictive_draws(key, posterior, draws)
    prior = bnn.priors.from_draws(draws, chain=1)
    resumed = short(posterior, method, init=draws, num_warmup=0, num_draws=2, verdict=False)
    return {
        "mean": bnn.predict(posterior, draws, DATA)["mean"],
        "functions": bnn.function_draws(posterior, draws, X[:3])["posterior"]["mean"],
        "log_likelihood": checked["log_likelihood"]["y"],
        "drawn": checked["posterior_predictive"]["y"],
        "rhat": bnn.diagnostics.rhat(draws)["net.layers.0.kernel"],
        "table": bnn.diagnostics.weights(draws).to_numpy(float),
        "pruned": bnn.pruning.pruned(posterior, draws, 0.5)["posterior"]["net.layers.0.kernel"],
        "moments": moments(draws)[1]["net.layers.0.kernel"],
        "prior": prior["net.layers.0.kernel"].scale,
        "thinned": bnn.shift.thinned(draws, 4)["posterior"]["net.layers.0.kernel"],
        "step": draws["warmup_sample_stats"]["step"],
        "shown": float(shows_rates(draws)),
        "resumed": resumed["posterior"]["net.layers.0.kernel"],
    }


@pytest.mark.thorough
def test_trees_give_the_answers_of_the_installed_arviz(posterior, method, tmp_path, request):
    draws = short(posterior, method, folder=tmp_path / "run")
    expected = answers(posterior, method, draws)
    request.getfixturevalue("arviz_1")
    read = bnn.diagnostics.load(tmp_path / "run")
    assert isinstance(read, xr.DataTree)
    assert set(read) == set(draws) and dict(read.attrs) == dict(draws.attrs)
    assert bnn.verdict(posterior, read) == bnn.verdict(posterior, draws)
    for name, values in answers(posterior, method, read).items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)
    again = short(posterior, method, folder=tmp_path / "tree")  # written with ArviZ 1 too
    for site, values in draws["posterior"].data_vars.items():
        np.testing.assert_array_equal(again["posterior"][site], values)


@pytest.mark.thorough
def test_an_estimator_predicts_from_a_tree(arviz_1):
    pytest.importorskip("sklearn")
    from bnn_ppl.estimators import BayesianRegressor

    estimator = BayesianRegressor(
        hidden=(2,), method="sgld", num_chains=2, num_warmup=4, num_draws=6, thin=1
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few draws have not converged
        estimator.fit(*DATA)
    assert isinstance(estimator.draws_, xr.DataTree)
    assert np.isfinite(estimator.predict(X)).all()


def runtime_imports_of_arviz(path):
    """Give the lines that import ArviZ outside `if TYPE_CHECKING`."""
    for_types, found = set(), set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for_types |= {inner.lineno for inner in ast.walk(node) if hasattr(inner, "lineno")}
        if isinstance(node, ast.Import | ast.ImportFrom) and "arviz" in ast.unparse(node).split():
            found.add(node.lineno)
    return found - for_types


@pytest.mark.thorough
def test_one_file_alone_calls_arviz():
    assert len(runtime_imports_of_arviz(ADAPTER)) >= 3  # the search finds them
    apart = re.compile(r"draws_?\.(groups\(|map\(|add_groups|extend\(|to_datatree|from_)")
    assert apart.search("for name in draws.groups():")
    for path in PACKAGE.rglob("*.py"):
        if path != ADAPTER:
            assert not runtime_imports_of_arviz(path), path
            assert not apart.search(path.read_text(encoding="utf-8")), path


def test_draws_of_a_run_survive_files_of_arviz_and_of_zarr(posterior, method, tmp_path):
    draws = short(posterior, method)
    expected = bnn.predict(posterior, draws, DATA)["mean"]
    tree = draws if INSTALLED_1 else draws.to_datatree()
    tree.to_zarr(tmp_path / "draws.zarr")
    read = xr.open_datatree(tmp_path / "draws.zarr", engine="zarr")
    groups = {name: read[name].to_dataset() for name in read}
    draws.to_netcdf(str(tmp_path / "draws.nc"))
    for found in (draws_of_groups(groups, read.attrs), arviz.from_netcdf(tmp_path / "draws.nc")):
        assert set(found) == set(draws)
        np.testing.assert_array_equal(bnn.predict(posterior, found, DATA)["mean"], expected)


def test_arviz_is_imported_meanwhile_and_who_uses_it_waits(tmp_path, monkeypatch):
    (tmp_path / "arviz.py").write_text("import time\ntime.sleep(0.3)\nwhole = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "arviz")
    began = time.monotonic()
    import_meanwhile()
    assert time.monotonic() - began < 0.2
    assert "import of ArviZ" in {thread.name for thread in threading.enumerate()}
    assert import_module("arviz").whole


def test_no_thread_begins_where_arviz_is_there_already(monkeypatch):
    monkeypatch.setattr("bnn_ppl.storage.arviz_versions.Thread", None)
    import_meanwhile()
