"""Every example runs, with tiny settings, and returns what its docstring promises to print."""

import dataclasses
import importlib.util
import math
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from data_files import mask_folder

EXAMPLES = Path(__file__).parents[2] / "examples"
MOST_LINES = 115
HMC = {"num_warmup": 20, "num_draws": 6, "num_chains": 2}


class Case(NamedTuple):
    """Settings that make an example small, and some of the names it must return."""

    settings: dict
    returned: tuple[str, ...]


CASES = {
    "adapt": Case(
        {"old": "mnist", "new": "mnist", "num_old": 40, "num_new": 10, "num_steps": 3}
        | {"num_warmup": 3, "num_draws": 3, "num_chains": 2},
        ("trained anew accuracy", "mode of the head nll", "with a temperature ece")
        + ("Bayesian head accuracy",),
    ),
    "bayesian_optimisation": Case(
        HMC | {"hidden": 3, "num_first": 5, "num_batch": 2, "num_rounds": 1, "num_seeds": 1},
        ("ei at 5", "ei at 7", "random at 7"),
    ),
    "camvid": Case(
        {"image_size": 6, "blocks": (1,), "num_steps": 2, "num_collected": 2, "num_draws": 2}
        | {"batch_size": 2, "void": 2},
        ("best fit IoU", "SWAG NLL", "SWAG ECE", "SWAG AUROC of errors"),
    ),
    "cifar10_as_in_the_hmc_paper": Case(
        {"subset": 8, "num_test": 6, "net": "LeNet", "batch_size": 4}
        | {"num_members": 2, "num_epochs": 1, "num_burnin_epochs": 1, "num_sampling_epochs": 1}
        | {"num_draws": 2},
        ("ensemble accuracy", "SGHMC agreement", "SGHMC total_variation", "published HMC nll"),
    ),
    "cold_posteriors": Case(
        HMC | {"subset": 20, "temperatures": (0.3, 1.0), "hidden": (3,)},
        ("accuracy at 0.3", "nll at 1", "ece at 1", "agreement at 0.3", "rhat_median at 1"),
    ),
    "corrupted_labels": Case(
        {"subset": 40, "shares": (0.0, 1.0), "hidden": (4,), "num_epochs": 2, "batch_size": 20},
        ("network train_accuracy at 0.0", "network evidence at 1.0", "gp test_accuracy at 1.0"),
    ),
    "covariate_shift": Case(
        HMC
        | {"subset": 20, "num_test": 10, "hidden": (3,), "num_steps": 3}
        | {"corruptions": ("gaussian_noise",), "severities": (5,)},
        ("MAP accuracy under none", "HMC nll under gaussian_noise")
        + ("HMC, pixel prior accuracy under gaussian_noise",),
    ),
    "gaussian_process": Case(
        HMC | {"hidden": (3,)},
        ("gp-1d network error", "gp-1d exact noise", "gp-1d-heteroscedastic exact width beyond"),
    ),
    "gp_prior": Case(
        HMC | {"hidden": (3,), "num_steps": 2},
        ("usual prior error", "gp_prior nll"),
    ),
    "imdb_as_in_the_hmc_paper": Case(
        {"subset": 8, "num_test": 6, "embedding_size": 2, "filters": 2, "units": 2}
        | {"batch_size": 4, "num_members": 2, "num_epochs": 1, "num_burnin_epochs": 1}
        | {"num_sampling_epochs": 1, "num_draws": 2},
        ("one member nll", "ensemble accuracy", "SGHMC ece", "ensemble agreement"),
    ),
    "mnist160_hmc": Case(
        {"hidden": (3, 3), "trajectory_length": 5e-4, "num_chains": 2, "num_draws": 2}
        | {"num_steps": 3},
        ("acceptance", "best fits agreement", "2 draws a chain total_variation")
        + ("halves agreement",),
    ),
    "mnist_table": Case(
        HMC
        | {"subset": 20, "num_test": 10, "hidden": (3,), "num_steps": 10, "num_members": 2}
        | {"batch_size": 10, "methods": ("hmc", "ensemble", "cyclical sghmc")},
        ("hmc accuracy", "ensemble agreement", "cyclical sghmc total_variation", "hmc seconds"),
    ),
    "subspace": Case(
        {"hidden": (3,), "num_warmup": 10, "num_draws": 4, "num_chains": 2}
        | {"num_path": 12, "rank": 2},
        ("principal components error", "plane of a curve width at data", "all weights error"),
    ),
    "one_dimensional_regression": Case(
        HMC | {"hidden": (3,), "num_members": 2, "num_steps": 20},
        ("HMC error", "ensemble width in gaps", "MultiSWAG width at data", "mean-field error"),
    ),
    "permuted_digits": Case(
        {"subset": 32, "num_tasks": 2, "hidden": (3,), "num_epochs": 1, "num_rows": 10}
        | {"learners": ("ewc",)},
        ("ewc average", "ewc forgetting"),
    ),
    "posterior_surface": Case(
        {"hidden": (3,), "num_warmup": 2, "num_draws": 2, "num_steps": 3, "num_points": 3},
        ("log-density of chain 0", "log-density of best fit", "depth between chain 0 and chain 1"),
    ),
    "priors": Case(
        HMC | {"subset": 20, "hidden": (3,), "families": ("mixture",)},
        ("mixture prior_entropy", "mixture accuracy", "mixture nll", "mixture rhat_median"),
    ),
    "pruning": Case(
        {"subset": 40, "hidden": (4,), "num_steps": 3, "batch_size": 20, "num_draws": 2}
        | {"shares": (0.0, 0.9)},
        ("signal to noise 0.0", "divergence from the prior 0.9", "size, of the best fit 0.9"),
    ),
    "rotated_digit": Case(
        HMC
        | {"hidden": (3,), "num_members": 2, "num_steps": 3, "angles": (0, 90)}
        | {"num_test": 40},
        ("best fit entropy at first", "ensemble entropy at worst", "HMC epistemic share")
        + ("HMC AUROC, unseen digits",),
    ),
    "segmentation": Case(
        {"num_train": 8, "num_test": 8, "widths": (2,), "num_members": 2, "num_steps": 2}
        | {"batch_size": 4},
        ("best fit IoU", "ensemble ECE", "dropout AUROC of errors", "dropout NLL"),
    ),
    "several_hosts": Case(
        HMC | {"hidden": (3,)}, ("processes", "chains", "RMSE", "NLL", "R-hat, median")
    ),
    "uci_table": Case(
        HMC | {"hidden": (3,), "num_members": 2, "num_steps": 200, "methods": ("hmc", "sgld")},
        ("hmc rmse", "hmc coverage_90", "sgld nll", "sgld seconds"),
    ),
    "vogn_against_adam": Case(
        {"hidden": (3,), "num_draws": 2, "num_frames": 2, "steps_a_frame": 2},
        ("Adam accuracy", "VOGN NLL", "VOGN entropy far away"),
    ),
    "your_own_method": Case(
        {"num_warmup": 200, "num_draws": 1000},
        ("acceptance", "smallest ESS", "largest error of a mean", "largest error of an sd"),
    ),
    "your_own_model": Case(
        HMC | {"hidden": (3,)}, ("Gaussian RMSE", "Student-t NLL", "degrees of freedom")
    ),
}


# Those that compile for long.
SLOW = (
    "cifar10_as_in_the_hmc_paper",
    "cold_posteriors",
    "corrupted_labels",
    "covariate_shift",
    "gaussian_process",
    "gp_prior",
    "imdb_as_in_the_hmc_paper",
    "mnist160_hmc",
    "mnist_table",
    "one_dimensional_regression",
    "permuted_digits",
    "posterior_surface",
    "priors",
    "rotated_digit",
    "segmentation",
)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CASES]
)
def test_an_example_returns_what_it_promises(name, tmp_path, monkeypatch, capsys):
    found = run(name, tmp_path, monkeypatch)
    missing = set(CASES[name].returned) - set(found)
    assert not missing, f"{missing} not in {list(found)}"
    wrong = {key: value for key, value in found.items() if not math.isfinite(value)}
    assert not wrong
    assert capsys.readouterr().out


@pytest.mark.thorough
def test_a_method_of_ones_own_draws_from_the_known_posterior(tmp_path, monkeypatch):
    found = run("your_own_method", tmp_path, monkeypatch)
    assert found["largest error of a mean"] < 5
    assert found["largest error of an sd"] < 0.3


@pytest.mark.parametrize("name", ["cifar10_as_in_the_hmc_paper", "imdb_as_in_the_hmc_paper"])
def test_an_example_without_its_data_says_where_it_looked(name, tmp_path, monkeypatch):
    monkeypatch.setattr("bnn_ppl.data.images.images._read_tfds", lambda name: None)
    example = imported(name)
    with pytest.raises(FileNotFoundError, match="BNN_PPL_DATA"):
        example.main(example.Config(data_dir=tmp_path))


@pytest.mark.parametrize("name", ["uci_table", "mnist_table"])
def test_a_table_of_a_method_that_is_none_fits_nothing(name, monkeypatch):
    example = imported(name)
    monkeypatch.setattr(example.bnn, "run", lambda *args, **options: pytest.fail("fitted"))
    with pytest.raises(ValueError, match=r"got methods \('hcm',\), expected some of hmc"):
        example.main(example.Config(methods=("hcm",)))


def test_every_example_is_in_the_table_and_short():
    lines = {path.stem: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert set(lines) == set(CASES)
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def run(name, tmp_path, monkeypatch):
    """Run an example with its tiny settings; what it writes goes to a folder of its own."""
    monkeypatch.chdir(tmp_path)
    example = imported(name)
    settings = dict(CASES[name].settings)
    fields = {field.name for field in dataclasses.fields(example.Config)}
    if "data_dir" in fields:
        settings["data_dir"] = made_up_data(tmp_path / "data")
    if name == "camvid":
        mask_folder(tmp_path / "CamVid", number=4)
    if name == "several_hosts":
        settings["folder"] = tmp_path / "run"
    found = example.main(example.Config(**settings))
    if "figure" in fields:
        written = list((tmp_path / "runs").iterdir())
        assert [path.stem for path in written] == [name] and written[0].stat().st_size > 1000
    return found


def imported(name):
    """Import an example by its path; the folder is no package."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def made_up_data(folder):
    """Random rows in the files of sets that do not ship: these tests are of programs."""
    random = np.random.default_rng(0)
    for name in ("cifar10", "imdb"):
        (folder / name).mkdir(parents=True)
    images = {f"x_{part}": random.integers(256, size=(8, 32, 32, 3), dtype=np.uint8)
              for part in ("train", "test")}  # fmt: skip
    labels = {f"y_{part}": np.arange(8) % 10 for part in ("train", "test")}
    np.savez(folder / "cifar10" / "cifar10.npz", **images, **labels)
    probs = random.dirichlet(np.ones(10), size=8).astype(np.float32)
    np.savez(folder / "cifar10" / "hmc_reference.npz", probs=probs, tfds_order=np.arange(8))
    texts = {f"x_{part}": random.integers(20_000, size=(25_000, 100), dtype=np.uint16)
             for part in ("train", "test")}  # fmt: skip
    judged = {f"y_{part}": np.arange(25_000) % 2 for part in ("train", "test")}
    np.savez(folder / "imdb" / "imdb_len100.npz", **texts, **judged)
    return folder
