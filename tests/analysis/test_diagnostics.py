"""R-hat and ESS equal ArviZ's, scalar by scalar, on ordinary and on awkward draws."""

import logging
import warnings

import arviz as az
import numpy as np
import pytest
import xarray as xr
from scipy import stats

from bnn_ppl import diagnostics
from bnn_ppl.analysis.convergence import lazy_draws
from bnn_ppl.storage.arviz_versions import as_dataset, draws_of_arrays, draws_of_groups
from bnn_ppl.storage.draws_zarr import zarr_writer

KINDS = {
    "rhat": (diagnostics.rhat, az.rhat),
    "bulk": (diagnostics.ess, az.ess),
    "tail": (lambda x: diagnostics.ess(x, "tail"), lambda x: az.ess(x, method="tail")),
}


def chains(num_chains=4, num_draws=100, shape=(6,), rejected=0.2, correlation=0.7, seed=0):
    """AR(1) draws (chain, draw, *shape); a rejected proposal repeats all of the old draw."""
    rng = np.random.default_rng(seed)
    draws = rng.normal(size=(num_chains, num_draws, *shape))
    for i in range(1, num_draws):
        moves = (rng.random(num_chains) >= rejected).reshape(-1, *[1] * len(shape))
        proposal = correlation * draws[:, i - 1] + (1 - correlation**2) ** 0.5 * draws[:, i]
        draws[:, i] = np.where(moves, proposal, draws[:, i - 1])
    return draws


def replaced(index, value, **kwargs):
    draws = chains(**kwargs)
    draws[index] = value
    return draws


def shifted(by, **kwargs):
    """Chains that disagree, in one or in every weight."""
    draws = chains(**kwargs)
    return draws + by * np.arange(len(draws)).reshape(-1, 1, 1)


AWKWARD = {
    "ordinary": chains(rejected=0),
    "ties of rejected draws": chains(rejected=0.6),
    "float32": chains().astype(np.float32),
    "float16, many ties": chains().astype(np.float16),
    "odd number of draws": chains(num_draws=101),
    "odd number of draws, quantile at a draw": chains(num_chains=3, num_draws=7),
    "chains apart": shifted(2.0),
    "chains of different spread": chains() * np.arange(1, 5).reshape(-1, 1, 1),
    "antithetic": chains(correlation=-0.8, rejected=0),
    "hardly moving": chains(correlation=0.999, rejected=0),
    "trend": chains() + np.linspace(0, 3, 100)[:, None],
    "stuck chains": shifted(1.0)[:, :1].repeat(100, axis=1),
    "one stuck chain": replaced(2, 0.3),
    "one stuck chain of few": replaced(1, 1.0, num_chains=2, num_draws=11),
    "constant": replaced((...), 0.1),
    "constant column": replaced((..., 1), -3.0),
    "constant column, float32": replaced((..., 1), -3.0).astype(np.float32),
    "two values": np.sign(chains()),
    "signed zeros": np.where(chains() > 0, 0.0, -0.0),
    "one chain": chains(num_chains=1),
    "two chains": chains(num_chains=2),
    "nine chains": chains(num_chains=9, num_draws=31),
    "three draws": chains(num_draws=3),
    "four draws": chains(num_draws=4, rejected=0),
    "five draws": chains(num_draws=5, rejected=0),
    "ten draws": chains(num_draws=10),
    "ten draws, one chain": chains(num_chains=1, num_draws=10),
    "NaN": replaced((1, 7, 2), np.nan),
    "chain of NaN": replaced(3, np.nan),
    "infinity": replaced((0, 5, 1), np.inf),
    "mostly infinity": np.where(chains() > -0.5, np.inf, chains()),
    "both infinities": np.where(chains() > 0, np.inf, -np.inf),
    "NaN, infinities and signed zeros, float32": replaced(
        (2, [4, 5, 6, 7, 8], [0, 1, 1, 3, 4]), [np.nan, np.inf, -np.inf, 0.0, -0.0]
    ).astype(np.float32),
    "constant of zero, float32": replaced((..., 0), 0.0).astype(np.float32),
    "mostly infinity, float32": np.where(chains() > -0.5, np.inf, chains()).astype(np.float32),
    "subnormal, float32": (1e-44 * chains()).astype(np.float32),
    "largest, float32": (3e38 * np.tanh(chains())).astype(np.float32),
    "huge": 1e300 * chains(),
    "tiny": 1e-300 * chains(),
    "offset": 1e6 + chains().astype(np.float32),
    "int": np.round(3 * chains()).astype(int),
    "uint8": np.abs(3 * chains()).astype(np.uint8),
    "bool": chains() > 1,
    "bool, few draws": chains(num_draws=10, num_chains=3, shape=(300,), rejected=0) > 0,
    "bool, few draws, tail": chains(num_draws=11, num_chains=2, shape=(300,), rejected=0) > 0,
    "many scalars": chains(num_draws=8, shape=(3, 5, 7)),
    "no event dimension": chains(shape=()),
}


def arviz_of(function, draws):
    """ArviZ's answer, without the warnings that awkward draws mean to provoke."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        answer = function(az.convert_to_dataset(draws))["x"].values
    logging.disable(logging.NOTSET)
    return answer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", AWKWARD)
def test_equals_arviz(name, kind):
    ours, arviz = KINDS[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = ours(AWKWARD[name])
    # ArviZ ranks by SciPy, since 1.18 in the precision of the draws, where ours ranks in float64.
    ranks = stats.rankdata(AWKWARD[name][:, :1].ravel())
    rtol = max(1e-10, 10 * np.finfo(ranks.dtype).eps)
    np.testing.assert_allclose(answer, arviz_of(arviz, AWKWARD[name]), rtol=rtol)


def test_weighted_draws_are_worth_fewer_as_kish_says():
    rng = np.random.default_rng(0)
    log_weight = rng.normal(size=(4, 1000))
    draws = draws_of_arrays(
        {
            "posterior": {"x": rng.normal(size=(4, 1000, 30))},
            "sample_stats": {"log_weight": log_weight},
        }
    )
    weights = np.exp(log_weight)
    kish = weights.sum() ** 2 / (weights**2).sum()
    for kind in ("bulk", "tail"):
        found = diagnostics.ess(draws, kind)["x"].values
        assert np.mean(found) == pytest.approx(kish, rel=0.2)
    table = diagnostics.summary(draws)
    assert table.loc["weights", "ess_bulk_median"] == pytest.approx(kish, rel=0.2)
    assert diagnostics.rhat(draws)["x"].max() < 1.02
    shifted = draws.posterior["x"] + 5 * (log_weight[..., None] < 0) * np.arange(4)[:, None, None]
    draws.sample_stats["log_weight"][:] = np.where(log_weight < 0, -50.0, 0.0)
    draws.posterior["x"][:] = shifted  # where chains disagree, no draw has a weight
    assert diagnostics.rhat(draws)["x"].max() < 1.03
    draws.posterior = draws.posterior.isel(draw=slice(0, None, 2))
    words = r"got weights of \(4, 1000\) \(chain, draw\) for draws of \(4, 500\), expected as many"
    with pytest.raises(ValueError, match=words):
        diagnostics.ess(draws)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_and_slabs_leave_no_seams(kind, monkeypatch):
    ours, arviz = KINDS[kind]
    draws = chains(num_chains=2, num_draws=9, shape=(3, 50, 2))
    monkeypatch.setattr(diagnostics, "BLOCK_VALUES", 18 * 7)
    monkeypatch.setattr(lazy_draws, "SLAB_BYTES", draws.nbytes // 4)
    np.testing.assert_allclose(ours(draws), arviz_of(arviz, draws), rtol=1e-10)
    monkeypatch.setattr(lazy_draws, "SLAB_BYTES", 1)
    np.testing.assert_allclose(ours(draws), arviz_of(arviz, draws), rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_containers_come_back(kind):
    ours, arviz = KINDS[kind]
    coords = {"unit": ["a", "b"]}
    values = {"kernel": chains(shape=(3, 2)), "noise": chains(shape=(), seed=1)}
    dims = {"kernel": ["input", "unit"], "noise": []}
    arrays = {name: (["chain", "draw", *dims[name]], array) for name, array in values.items()}
    inference = draws_of_groups({"posterior": xr.Dataset(arrays, coords)}, {})
    expected = arviz(inference)
    xr.testing.assert_allclose(ours(inference), expected, rtol=1e-10)
    shuffled = as_dataset(inference["posterior"]).transpose("input", "draw", ...)
    xr.testing.assert_allclose(ours(shuffled), expected, rtol=1e-10)
    array = ours(values["kernel"])
    assert isinstance(array, np.ndarray)
    np.testing.assert_allclose(array, expected["kernel"], rtol=1e-10)


def test_no_scalars():
    assert diagnostics.rhat(np.zeros((4, 10, 0, 3))).shape == (0, 3)


@pytest.mark.parametrize("function", [diagnostics.rhat, diagnostics.ess])
@pytest.mark.parametrize(
    ("draws", "error", "message"),
    [
        (np.zeros(7), ValueError, r"got shape \(7,\), expected \(chain, draw"),
        (np.full((4, 9), "a"), TypeError, "got dtype <U1, expected real numbers"),
        (np.zeros((4, 9), complex), TypeError, "got dtype complex128, expected real numbers"),
        (draws_of_groups({}, {}), ValueError, "with a group posterior"),
        (xr.Dataset({"w": ("step", np.zeros(9))}), ValueError, r"w: got dimensions \('step',\)"),
    ],
)
def test_refuses_what_are_not_draws(function, draws, error, message):
    with pytest.raises(error, match=message):
        function(draws)


def test_refuses_unknown_kind():
    with pytest.raises(ValueError, match="got kind='tails'; did you mean 'tail'"):
        diagnostics.ess(chains(), "tails")


def test_weights_table_has_a_row_a_layer():
    good, bad = chains(shape=(20, 3)), shifted(0.3, shape=(40,), seed=1)
    bad[..., 0] = 2.0
    table = diagnostics.weights(draws_of_arrays({"posterior": {"z.kernel": bad, "a.bias": good}}))
    assert list(table.index) == ["z.kernel", "a.bias"]
    assert list(table.n) == [40, 60]
    assert list(table.undefined) == [1, 0]
    rhat = diagnostics.rhat(bad)[1:]
    assert table.loc["z.kernel", "rhat_median"] == np.median(rhat)
    assert table.loc["z.kernel", "rhat_95"] == np.quantile(rhat, 0.95)
    assert table.loc["z.kernel", "rhat_max"] == np.max(rhat)
    assert table.loc["z.kernel", "share_rhat_above_1.01"] == np.mean(rhat > 1.01)
    assert 0 < table.loc["z.kernel", "share_rhat_above_1.1"] == np.mean(rhat > 1.1) < 1
    assert table.loc["a.bias", "ess_bulk_min"] == diagnostics.ess(good).min()
    assert table.loc["a.bias", "ess_bulk_median"] == np.median(diagnostics.ess(good))
    assert table.loc["a.bias", "ess_tail_min"] == diagnostics.ess(good, "tail").min()


def test_summary_puts_function_space_first():
    """Chains sit in the modes +w and -w: the weights do not mix, the function |w| does."""
    signs = np.array([1, -1, 1, -1]).reshape(-1, 1, 1)
    absolute = 5 + chains(num_draws=400, rejected=0, correlation=0, shape=(30,))
    draws = draws_of_arrays({"posterior": {"w": signs * absolute, "b": absolute[..., :2]}})
    function_draws = draws_of_arrays({"posterior": {"mean": absolute}})
    table = diagnostics.summary(draws, function_draws)
    assert list(table.index) == ["function", "weights"]
    assert list(table.n) == [30, 32]
    assert table.loc["function", "share_rhat_below_1.01"] > 0.9
    assert table.loc["weights", "share_rhat_below_1.05"] == 2 / 32
    assert table.loc["weights", "rhat_median"] > 1.5
    ess = diagnostics.ess(absolute, "tail")
    assert table.loc["function", "ess_tail_min"] == ess.min()
    assert table.loc["function", "ess_tail_median"] == np.median(ess)
    assert list(diagnostics.summary(draws).index) == ["weights"]


def test_tables_say_what_is_undefined():
    one_chain = diagnostics.weights(
        draws_of_arrays({"posterior": {"w": chains(num_chains=1)}})
    ).loc["w"]
    assert one_chain["undefined"] == one_chain["n"] == 6
    assert np.isnan(one_chain[["rhat_max", "share_rhat_above_1.01"]]).all()
    assert one_chain["ess_bulk_min"] > 4


def test_tables_show_stuck_chains():
    for num_draws in (8, 100):  # R-hat is infinite for the one, large by rounding for the other
        stuck = shifted(1.0, num_draws=num_draws)[:, :1].repeat(num_draws, axis=1)
        row = diagnostics.weights(draws_of_arrays({"posterior": {"w": stuck}})).loc["w"]
        assert row["rhat_median"] > 1e6
        assert row["rhat_95"] > 1e6


@pytest.mark.parametrize(("num_draws", "attrs"), [(1, {}), (6, {"thin": 0})])
def test_tables_of_fits_say_how_well_they_agree(num_draws, attrs):
    values = chains(num_chains=3, num_draws=num_draws, shape=(5,))
    functions = draws_of_arrays({"posterior": {"mean": values}}, attrs)
    draws = draws_of_arrays({"posterior": {"w": 2 * values, "b": values[..., 0]}}, attrs)
    table = diagnostics.summary(draws, functions)
    assert list(table.index) == ["function", "weights"]
    assert list(table.n) == [5, 6] and list(table.fits) == [3, 3]
    between = np.std(values.mean(1), axis=0, ddof=1)
    within = np.sqrt(np.mean(np.var(values, axis=1, ddof=min(1, num_draws - 1)), axis=0))
    for name, expected in {"between": between, "within": within}.items():
        if name == "within" and num_draws == 1:
            assert table.loc[:, "within_median":].isna().all(axis=None)
            continue
        found = table.loc["function", [f"{name}_{level}" for level in ("median", "95", "max")]]
        np.testing.assert_allclose(found, np.quantile(expected, [0.5, 0.95, 1.0]), rtol=1e-6)
        assert table.loc["weights", f"{name}_max"] == pytest.approx(2 * expected.max())
    assert not any("rhat" in column or "ess" in column for column in table)
    layers = diagnostics.weights(draws)
    assert layers.loc["b", "between_max"] == pytest.approx(between[0])


def test_tables_refuse_arrays():
    with pytest.raises(TypeError, match="got ndarray, expected an arviz"):
        diagnostics.summary(chains())


def test_load_opens_a_run_folder(tmp_path):
    values = chains(shape=(50,)).astype(np.float32)
    one = {"posterior": {"w": np.zeros(50, np.float32)}, "sample_stats": {}}
    zarr_writer.create_empty(tmp_path, one, len(values), values.shape[1], np.zeros(1))
    writer = zarr_writer.open_writer(tmp_path, values.shape[1])
    records = {"posterior": {"w": values}}
    zarr_writer.write_draws(writer, slice(0, len(values)), values.shape[1], records)
    zarr_writer.publish_draws(writer, values.shape[1], {})
    opened = diagnostics.load(tmp_path)
    np.testing.assert_array_equal(diagnostics.rhat(opened)["w"], diagnostics.rhat(values))
