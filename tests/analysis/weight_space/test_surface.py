"""The posterior on a plane: exact at its corners, a known quadratic, the same on all devices."""

import json
import re
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import matplotlib
import numpy as np
import pytest
import targets
import tyro
import xarray as xr
from jax.sharding import Mesh
from marks import quick_first
from scipy import stats
from targets import NOISE, PRIOR_MEANS, PRIOR_SDS, linear_regression

import bnn_ppl as bnn
from bnn_ppl.analysis.weight_space.surface import corner, corners, surface
from bnn_ppl.cli.commands.analysis import surface as surface_command
from bnn_ppl.cli.problem.build import conditioned
from bnn_ppl.cli.problem.problem import Problem
from bnn_ppl.plots.weight_space.surface import posterior_surface
from bnn_ppl.storage.arviz_versions import draws_of_arrays

matplotlib.use("Agg")

TEMPERED = [(1.0, "posterior"), (0.25, "posterior"), (3.0, "likelihood")]
NAMES = ("one", "two", "three")
QUANTITIES = ("log_density", "log_likelihood", "log_prior")


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


def silent(posterior, through, num_points=4, **options):
    return surface(posterior, through, num_points=num_points, progress=False, **options)


def at_corners(found):
    return found.sel(u=found.corners.sel(axis="u"), v=found.corners.sel(axis="v"))


def scale_and_network(temperature=1.0, tempered="posterior", rows=7):
    """A regression with a constrained site, whose log-density has a Jacobian."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(rows, 3)), rng.normal(size=rows)
    net = partial(bnn.nets.MLP, 3, (5,), 1)
    model = bnn.models.regressor(net, bnn.priors.normal(0.7))
    return bnn.condition(model, (x, y), temperature=temperature, tempered=tempered)


def random_positions(posterior, seed=0):
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(posterior.init, jax.random.key(0))
    return {
        name: {site: rng.normal(size=leaf.shape) for site, leaf in shapes.items()} for name in NAMES
    }


def flat(position):
    return np.concatenate([np.ravel(leaf) for leaf in position.values()])


# --- on the plane


@quick_first(("temperature", "tempered"), TEMPERED)
def test_at_the_corners_the_surface_is_the_posterior(float64, temperature, tempered):
    posterior = scale_and_network(temperature, tempered)
    through = random_positions(posterior)
    found = at_corners(silent(posterior, through))
    for name, position in through.items():
        expected = {
            "log_density": posterior.logdensity(position, posterior.data),
            "log_likelihood": posterior.log_likelihood(position, posterior.data).sum(),
            "log_prior": posterior.log_prior(position),
        }
        for quantity, value in expected.items():
            got = float(found[quantity].sel(corner=name))
            assert got == pytest.approx(float(value), rel=1e-12, abs=1e-10)
    assert found.attrs["temperature"] == temperature and found.attrs["tempered"] == tempered


@pytest.mark.parametrize(("temperature", "tempered"), TEMPERED)
def test_on_a_gaussian_posterior_the_surface_is_the_quadratic(float64, temperature, tempered):
    """At weights that NumPy makes from the coordinates by Gram-Schmidt."""
    target = linear_regression(temperature, tempered)
    posterior = bnn.condition(target.model, target.data, temperature=temperature, tempered=tempered)
    w = np.random.default_rng(1).normal(size=(3, 4))
    found = silent(posterior, {name: {"weights": row} for name, row in zip(NAMES, w, strict=True)})
    along = (w[1] - w[0]) / np.linalg.norm(w[1] - w[0])
    across = w[2] - w[0] - (w[2] - w[0]) @ along * along
    across /= np.linalg.norm(across)
    u, v = np.meshgrid(found.u, found.v)
    points = w[0] + u[..., None] * along + v[..., None] * across
    off = points - target.means["weights"]
    precision = np.linalg.inv(target.covariance["weights"])
    expected = -np.einsum("vui,ij,vuj->vu", off, precision, off) / 2
    constant = found.log_density.values - expected
    np.testing.assert_allclose(constant, constant[0, 0], atol=1e-9)
    mean = np.einsum("vui,ni->vun", points, target.data.x)
    likelihood = stats.norm.logpdf(target.data.y, mean, NOISE).sum(-1)
    prior = stats.norm.logpdf(points, PRIOR_MEANS, PRIOR_SDS).sum(-1)
    np.testing.assert_allclose(found.log_likelihood, likelihood, rtol=1e-11)
    np.testing.assert_allclose(found.log_prior, prior, rtol=1e-11)


@quick_first("seed", range(5))
def test_distances_on_the_plane_are_distances_between_weights(seed):
    posterior = scale_and_network()
    through = random_positions(posterior, seed)
    plane = silent(posterior, through).corners
    assert plane.dims == ("corner", "axis") and tuple(plane.corner.values) == NAMES
    np.testing.assert_array_equal(plane[0], [0, 0])
    assert plane[1, 0] > 0 and plane[1, 1] == 0 and plane[2, 1] > 0
    for one in NAMES:
        for other in NAMES:
            between = np.linalg.norm(flat(through[one]) - flat(through[other]))
            on_plane = np.linalg.norm(plane.sel(corner=one) - plane.sel(corner=other))
            assert on_plane == pytest.approx(between, rel=1e-6)


@pytest.mark.parametrize("third", [(0.3, 2.0), (-1.5, 0.2), (4.0, 1.0)])
def test_the_grid_is_even_but_for_the_lines_through_the_corners(third):
    target = linear_regression()
    posterior = bnn.condition(target.model, target.data)
    w = np.zeros((3, 4))
    w[1, 0], w[2, :2] = 2.0, third
    found = silent(
        posterior,
        {name: {"weights": row} for name, row in zip(NAMES, w, strict=True)},
        9,
        margin=0.5,
    )
    np.testing.assert_allclose(found.corners, w[:, :2], atol=1e-6)
    low, high = w[:, :2].min(0), w[:, :2].max(0)
    strip = (high - low).max() / 2
    for axis, first, last, through in zip("uv", low, high, found.corners.values.T, strict=True):
        even = np.linspace(first - strip, last + strip, 9)
        assert set(through) <= set(found[axis].values)
        np.testing.assert_allclose(sorted({*even, *through}), found[axis], atol=1e-6)


# --- on the devices


def on(*grid):
    devices = np.array(jax.devices()[: np.prod(grid)])
    return Mesh(devices.reshape(grid), ("chain", "data"))


@pytest.mark.thorough
def test_one_device_two_and_rows_on_two_give_the_same_numbers(float64):
    posterior = scale_and_network(0.5)  # 7 rows: two devices need padding
    a = random_positions(posterior)["one"]
    kernel, bias = "net.layers.0.kernel", "net.layers.0.bias"
    through = dict(
        zip(NAMES, (a, a | {bias: a[bias] + 1}, a | {kernel: a[kernel] - 1}), strict=True)
    )
    one = silent(posterior, through, 3, margin=0.0, mesh=on(1, 1))
    assert one.log_density.size == 9  # which two devices do not share evenly either
    for mesh in (None, on(2, 1), on(1, 2)):
        other = silent(posterior, through, 3, margin=0.0, mesh=mesh)
        xr.testing.assert_allclose(other, one, rtol=1e-12)


@pytest.mark.thorough
def test_rows_in_chunks_give_the_same_numbers(float64):
    whole = scale_and_network()
    rng = np.random.default_rng(0)
    data = rng.normal(size=(7, 3)), rng.normal(size=7)
    model = bnn.models.regressor(partial(bnn.nets.MLP, 3, (5,), 1), bnn.priors.normal(0.7))
    chunked = bnn.condition(model, data, microbatch=2)
    through = random_positions(whole)
    xr.testing.assert_allclose(silent(chunked, through), silent(whole, through), rtol=1e-12)


TWO_PROCESSES = """
import json, sys
from functools import partial
import jax, numpy as np
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", 1)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
port, process = sys.argv[1:]
jax.distributed.initialize(f"localhost:{port}", 2, int(process))
sys.path[:0] = {folders!r}
from test_surface import random_positions, scale_and_network, silent
assert jax.device_count() == 2
posterior = scale_and_network()
print(json.dumps(silent(posterior, random_positions(posterior)).log_density.values.tolist()))
"""


@pytest.mark.slow
def test_two_processes_both_have_the_whole_surface(float64):
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port = listener.getsockname()[1]
    files = (__file__, targets.__file__)  # for what is imported there
    script = TWO_PROCESSES.replace("{folders!r}", repr([str(Path(file).parent) for file in files]))
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(port), str(i)], stdout=subprocess.PIPE, text=True
        )
        for i in range(2)
    ]
    posterior = scale_and_network()
    expected = silent(posterior, random_positions(posterior)).log_density
    for process in running:
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        np.testing.assert_allclose(json.loads(out.splitlines()[-1]), expected, rtol=1e-12)


# --- corners from draws


def draws_of(posterior, num_chains, num_draws, seed=2):
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(posterior.init, jax.random.key(0))
    return draws_of_arrays(
        {
            "posterior": {
                site: np.exp(rng.normal(size=(num_chains, num_draws, *leaf.shape)))
                for site, leaf in shapes.items()
            }
        }
    )


@quick_first(
    ("num_chains", "num_draws", "which", "expected"),
    [
        (4, 2, None, {"chain 0": (0, 1), "chain 1": (1, 1), "chain 2": (2, 1)}),
        (2, 7, None, {"draw 0": (0, 0), "draw 3": (0, 3), "draw 6": (0, 6)}),
        (1, 3, None, {"draw 0": (0, 0), "draw 1": (0, 1), "draw 2": (0, 2)}),
        (3, 5, [(1, -1), (1, 0), (-2, 2)], {"draw 4": (1, 4), "draw 0": (1, 0), "draw 2": (1, 2)}),
        (
            2,
            2,
            [(0, 0), (1, 0), (1, -1)],
            {"chain 0, draw 0": (0, 0), "chain 1, draw 0": (1, 0), "chain 1, draw 1": (1, 1)},
        ),
    ],
)
def test_corners_are_draws_and_their_names_say_which(num_chains, num_draws, which, expected):
    posterior = scale_and_network()
    draws = draws_of(posterior, num_chains, num_draws)
    found = corners(posterior, draws, which)
    assert list(found) == list(expected)
    for name, (chain, draw) in expected.items():
        for site, values in posterior.constrain(found[name]).items():
            np.testing.assert_allclose(values, draws.posterior[site][chain, draw], rtol=1e-5)


def test_a_corner_of_another_run_is_its_last_draw():
    posterior = scale_and_network()
    draws = draws_of(posterior, 2, 3)
    for site, values in posterior.constrain(corner(posterior, draws)).items():
        np.testing.assert_allclose(values, draws.posterior[site][0, -1], rtol=1e-5)


# --- bad input


def test_corners_that_make_no_plane_are_refused():
    posterior = scale_and_network()
    a, b, _ = random_positions(posterior).values()
    middle = {site: (a[site] + b[site]) / 2 for site in a}
    for third in (a, b, middle):
        with pytest.raises(ValueError, match=r"^got three corners on one line \(dist.*\Z") as error:
            silent(posterior, dict(zip(NAMES, (a, b, third), strict=True)))
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"distances 0, .*expected a triangle: choose draws"):
        silent(posterior, dict(zip(NAMES, (a, a, b), strict=True)))


def test_a_prior_whose_scale_is_open_is_refused_and_held_as_the_run_found_it():
    rows = np.ones((4, 3)), np.ones(4)
    model = bnn.models.regressor(partial(bnn.nets.MLP, 3, (), 1), bnn.priors.normal(None), 0.5)
    posterior = bnn.condition(model, rows)
    through = random_positions(posterior)
    with pytest.raises(ValueError, match=r"scale open, .*: pass posterior.open_scale.hold\(draws"):
        silent(posterior, through)
    held = posterior.open_scale.hold(0.3)
    found = at_corners(silent(held, through, 2)).log_prior.sel(corner="one")
    np.testing.assert_allclose(found, held.log_prior(through["one"]), rtol=1e-5)


def test_a_surface_of_a_stream_is_of_all_its_rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1100, 1)).astype(np.float32)
    rows = x, np.where(np.arange(1100) < 1000, 0, 5.0).astype(np.float32)
    model = bnn.models.regressor(partial(bnn.nets.MLP, 1, (), 1), bnn.priors.normal(1.0), 0.5)
    posteriors = [bnn.condition(model, data) for data in (rows, bnn.data.stream(*rows))]
    through = random_positions(posteriors[0])
    through["three"]["net.layers.0.bias"] += 1.0
    one, other = (silent(each, through, 2) for each in posteriors)
    for name in QUANTITIES:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-5)
    mesh = Mesh(np.array(jax.devices()[:2]).reshape(1, 2), ("chain", "data"))
    with pytest.raises(ValueError, match="got a mesh of 2 devices that share rows for a stream"):
        silent(posteriors[1], through, 2, mesh=mesh)


def test_bad_input_is_refused_before_anything_is_computed(monkeypatch):
    posterior = scale_and_network()
    through = random_positions(posterior)
    monkeypatch.setattr("bnn_ppl.analysis.weight_space.surface._on_devices", None)
    bias = "net.layers.0.bias"
    other = {site: leaf for site, leaf in through["two"].items() if site != bias}
    for changes, words in (
        ({"num_points": 1}, "got num_points=1, expected a whole number from 2"),
        ({"num_points": 4.5}, "got num_points=4.5, expected a whole number from 2"),
        ({"margin": -0.1}, "got margin=-0.1, expected a share of 0 or more"),
        ({"margin": np.nan}, "got margin=nan, expected"),
        ({"mesh": Mesh(np.array(jax.devices()), ("x",))}, r"got a mesh with the axes \('x',\)"),
        ({"through": dict(list(through.items())[:2])}, "got 2 corners in a dict, expected three"),
        ({"through": list(through.values())}, "got 3 corners in a list, expected three"),
        ({"through": through | {"two": other}}, f"got the corner 'two' with {bias} missing, not"),
        (
            {"through": through | {"two": through["two"] | {bias: np.zeros(6)}}},
            r"with net.layers.0.bias \(6,\), not \(5,\), expected the sites",
        ),
        (
            {"through": through | {"two": through["two"] | {"extra": np.zeros(6)}}},
            r"with extra \(6,\), not a site",
        ),
    ):
        options = {"through": through} | changes
        with pytest.raises(ValueError, match=words) as error:
            silent(posterior, **options)
        assert "\n" not in str(error.value)


def test_draws_that_give_no_three_corners_are_refused():
    posterior = scale_and_network()
    for num_chains, num_draws, which, words in (
        (2, 2, None, "got 2 chains of 2 draws, expected three of either"),
        (2, 3, [(0, 0), (1, 1)], "expected three pairs"),
        (2, 3, [(0, 0), (1, 1), (2, 0)], "got chain 2, expected one from -2 to 1"),
        (2, 3, [(0, 0), (1, 1), (0, -4)], "got draw -4, expected one from -3 to 2"),
        (2, 3, [(0, 0), (1, 1), (-2, 0)], "expected three different ones"),
    ):
        with pytest.raises(ValueError, match=words):
            corners(posterior, draws_of(posterior, num_chains, num_draws), which)
    with pytest.raises(ValueError, match="expected .*net.layers.0.bias"):
        corners(posterior, draws_of_arrays({"posterior": {"noise": np.ones((3, 4))}}))


# --- the figure


def made_up(log_density=None, **attributes):
    u, v = np.linspace(-1, 3, 9), np.linspace(-1, 2, 7)
    bowl = -((u - 1) ** 2) - (v[:, None] - 1) ** 2
    grids = {
        "log_density": 1e4 * bowl**3 if log_density is None else log_density(u, v[:, None]),
        "log_likelihood": 5 * (u + v[:, None]) - 100,
        "log_prior": 0 * bowl - 7,
    }
    return xr.Dataset(
        {name: (("v", "u"), grid) for name, grid in grids.items()}
        | {"corners": (("corner", "axis"), [[0.0, 0], [2, 0], [1, 1]])},
        coords={"u": u, "v": v, "corner": list(NAMES), "axis": ["u", "v"]},
        attrs={"temperature": 1.0, "tempered": "posterior"} | attributes,
    )


def test_the_figure_marks_the_corners_where_they_are_with_their_values(tmp_path):
    found = made_up()
    figure = posterior_surface(found)
    assert len(figure.axes) == 3
    for ax, name in zip(figure.axes, QUANTITIES, strict=True):
        np.testing.assert_array_equal(ax.lines[0].get_xydata(), found.corners)
        shown = zip(ax.texts, NAMES, found.corners, at_corners(found)[name].values, strict=True)
        for text, corner_name, place, value in shown:
            shown_name, number = text.get_text().split("\n")
            assert shown_name == corner_name
            assert float(number.replace("\N{MINUS SIGN}", "-").replace(",", "")) == value
            np.testing.assert_array_equal(text.xy, place)
    titles = [ax.get_title("left") for ax in figure.axes]
    assert titles[1] == "Log-likelihood (highest \N{MINUS SIGN}75)"
    figure.savefig(tmp_path / "surface.png")


def colour_bar(ax):
    (bar,) = ax.child_axes
    return [label.get_text().replace(",", "") for label in bar.get_yticklabels()]


def power(digits, exponent):
    return rf"{digits:g}$\times$10$^{{{exponent}}}$"


def test_colours_are_logarithmic_only_where_values_span_magnitudes():
    density, likelihood, prior = (colour_bar(ax) for ax in posterior_surface(made_up()).axes)
    assert density == ["0", "100", "1000", "10000", "100000", power(1, 6), power(1, 7)]
    assert likelihood == ["0", "5", "10", "15", "20", "25", "30", "35"]
    assert prior == ["0", "1"]


def test_small_differences_have_colours_too():
    ax = posterior_surface(made_up(lambda u, v: -3e-6 * (u + v))).axes[0]
    assert colour_bar(ax)[:4] == ["0", power(5, -6), power(1, -5), power(1.5, -5)]


def test_every_finite_point_has_a_colour_and_no_other():
    def half(u, v):
        return np.where(u > 1, -((u - 2) ** 2) - 3 * v**2, -np.inf)

    ax = posterior_surface(made_up(half)).axes[0]
    filled = ax.collections[0]
    paths = filled.get_paths()
    assert max(float(path.vertices[:, 0].min()) for path in paths if len(path.vertices)) >= 1.5
    covered = [any(path.contains_point(at) for path in paths) for at in ([2.4, 0.3], [2.9, 1.9])]
    assert covered == [True, True]
    assert "\N{MINUS SIGN}inf" in ax.texts[0].get_text()


def test_the_temperature_is_in_the_title():
    cold = posterior_surface(made_up(temperature=0.1, tempered="likelihood")).axes
    assert cold[0].get_title("left").startswith("Log-density, likelihood at T = 0.1 (highest")
    assert "T =" not in cold[1].get_title("left")


def test_a_figure_of_something_else_is_refused():
    with pytest.raises(ValueError, match="got a surface without log_prior, corners, expected"):
        posterior_surface(made_up().drop_vars(["corners", "log_prior"]))
    with pytest.raises(ValueError, match="got log_density that is finite nowhere"):
        posterior_surface(made_up(lambda u, v: np.full((7, 9), -np.inf)))


# --- the command


def command(*arguments):
    options = (tyro.conf.OmitArgPrefixes, tyro.conf.CascadeSubcommandArgs)
    arguments = [*map(str, arguments), "--num-points", "3", "--no-progress"]
    return tyro.cli(surface_command, args=arguments, config=options)


@pytest.fixture
def folder_of(tmp_path, monkeypatch):
    """Make a folder of a run with the settings given, and give its posterior."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BNN_PPL_DATA", raising=False)

    def make(name, **problem):
        problem = Problem.of(hidden=(3,)).changed(**problem)
        Path(name).mkdir()
        Path(name, "problem.json").write_text(json.dumps(problem.options()))
        return conditioned(problem)[1]

    return make


@pytest.fixture
def draws_in(monkeypatch):
    """Draws by name of the folder that the command finds them in."""
    found = {}
    monkeypatch.setattr(bnn.diagnostics, "load", lambda folder: found[str(folder)])
    return found


@pytest.mark.thorough
def test_three_draws_of_a_run_from_the_command_line(folder_of, capsys):
    posterior = folder_of("run")
    sizes = {"num_chains": 2, "num_draws": 4, "batch_size": 32}
    sgld = bnn.sgld(posterior, 1e-6)
    draws = bnn.run(jax.random.key(0), posterior, sgld, folder="run", progress=False, **sizes)
    command("run", "--corners", 0, -1, 1, 0, 1, 2)
    expected = silent(posterior, corners(posterior, draws, [(0, 3), (1, 0), (1, 2)]), 3)
    found = xr.open_dataset("run/surface.nc")
    xr.testing.assert_allclose(found, expected)
    assert found.attrs == expected.attrs
    assert Path("run/surface.png").read_bytes().startswith(b"\x89PNG")
    out = capsys.readouterr().out
    value = float(at_corners(expected).log_density.sel(corner="chain 1, draw 2"))
    assert re.search(rf"^chain 1, draw 2 +{re.escape(f'{value:.6g}')} ", out, re.MULTILINE)
    assert f"highest on the plane {float(expected.log_density.max()):>12.6g}" in out
    distance = np.linalg.norm(expected.corners[2] - expected.corners[1])
    assert f"chain 1, draw 0 to chain 1, draw 2 {distance:.4g}\n" in out
    assert "figure in run/surface.png, numbers in run/surface.nc" in out


@pytest.mark.thorough
def test_the_last_draws_of_three_runs_from_the_command_line(folder_of, draws_in):
    names = ("hmc", "sgd", "swag")
    posteriors = [folder_of(name, temperature=1 - i / 4) for i, name in enumerate(names)]
    for i, name in enumerate(names):
        draws_in[name] = draws_of(posteriors[0], 1, i + 2, seed=i)
    command(*names, "--figure", "plane.png")
    found = xr.open_dataset("plane.nc")
    last = {name: corner(posteriors[0], draws_in[name]) for name in names}
    xr.testing.assert_allclose(found, silent(posteriors[0], last, 3))
    assert tuple(found.corner.values) == names
    assert Path("plane.png").stat().st_size > 1000
    command(*names, "--corners", 0, 0, 0, 1, 0, -2)
    first = at_corners(xr.open_dataset("surface.nc")).log_prior[0]
    position = corner(posteriors[0], draws_in["hmc"], 0, 0)
    assert float(first) == pytest.approx(float(posteriors[0].log_prior(position)), rel=1e-5)


@pytest.mark.thorough
def test_the_command_refuses_what_has_no_plane(folder_of, draws_in):
    posterior = folder_of("one")
    for name, problem in {"two": {}, "wide": {"hidden": (4,)}, "other": {"split": 1}}.items():
        folder_of(name, **problem)
    draws_in["one"] = draws_of(posterior, 1, 1)
    for folders, words in (
        (["one", "two"], "got 2 folders, expected one run, for three of its draws, or three"),
        (["one"], "got 1 chains of 1 draws"),
        (["one", "two", "wide"], r"got hidden=\(4,\) in 'wide', expected \(3,\) as in the first"),
        (["one", "two", "other"], "got a run on yacht, split 1"),
        (["one", "two", "one"], "got several folders named one"),
    ):
        with pytest.raises(ValueError, match=words):
            command(*folders)
    with pytest.raises(FileNotFoundError, match="got --figure a/b.png in a folder that does not"):
        command("one", "--figure", "a/b.png")
    assert not Path("surface.nc").exists()
