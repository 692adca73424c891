"""Files of predictions, scored as in the NeurIPS 2021 competition."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from bnn_ppl import cli, data

RNG = np.random.default_rng(0)
PROBS, REFERENCE = RNG.dirichlet(np.ones(7), size=(2, 2000))
SAMPLES, SAMPLES_OF_REFERENCE = RNG.normal(size=(2, 256, 1000)) + [[[0.0]], [[0.3]]]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def scored(*arguments):
    cli.main(["score", *arguments, "--out", "table.csv"])
    return pd.read_csv("table.csv").set_index(["file", "rows"])


def agreement(p, q):
    return np.mean(p.argmax(1) == q.argmax(1))


def total_variation(p, q):
    return np.abs(p - q).sum(1).mean() / 2


def test_probabilities_of_the_competition_get_a_public_and_a_full_score(capsys):
    np.savetxt("mine.csv", PROBS)
    np.savetxt("comma.csv", PROBS, delimiter=",")
    np.savez("mine.npz", probs=PROBS, entropy=np.zeros(2000))
    np.savetxt("reference.csv", REFERENCE)
    table = scored("mine.csv", "comma.csv", "mine.npz", "--reference", "reference.csv")
    for name in ("mine.csv", "comma.csv", "mine.npz"):
        for rows, number in (("first 1000", 1000), ("all", 2000)):
            p, q = PROBS[:number], REFERENCE[:number]
            assert table.loc[(name, rows), "agreement"] == pytest.approx(agreement(p, q))
            assert table.loc[(name, rows), "total_variation"] == pytest.approx(
                total_variation(p, q)
            )
    assert "total_variation" in capsys.readouterr().out


def test_a_reference_scores_itself_as_perfect():
    np.savetxt("reference.csv", REFERENCE[:50])
    table = scored("reference.csv", "--reference", "reference.csv", "--public", "20")
    assert table.index.tolist() == [("reference.csv", "first 20"), ("reference.csv", "all")]
    assert table.to_numpy().tolist() == [[1, 0], [1, 0]]


def test_a_reference_of_the_package_goes_by_its_name():
    np.savez("mine.npz", probs=data.hmc_reference("digits-lenet").probs_by_chain[0])
    table = scored("mine.npz", "--reference", "digits-lenet")
    assert table["agreement"].item() > 0.98
    assert 0 < table["total_variation"].item() < 0.02


def test_samples_get_wasserstein_distances_also_of_a_reference_in_columns():
    np.savetxt("mine.csv", SAMPLES)
    np.savetxt("uci.csv", SAMPLES_OF_REFERENCE.T)
    table = scored("mine.csv", "--reference", "uci.csv")
    by_row = [
        scipy.stats.wasserstein_distance(a, b)
        for a, b in zip(SAMPLES, SAMPLES_OF_REFERENCE, strict=True)
    ]
    assert table.loc[("mine.csv", "all"), "wasserstein_1"] == pytest.approx(np.mean(by_row))
    first = table.loc[("mine.csv", "first 100"), "wasserstein_1"]
    assert first == pytest.approx(np.mean(by_row[:100]))
    gap = np.sort(SAMPLES) - np.sort(SAMPLES_OF_REFERENCE)
    expected = np.sqrt((gap**2).mean(1)).mean()
    assert table.loc[("mine.csv", "all"), "wasserstein_2"] == pytest.approx(expected)


REFUSED = {
    "nothing": ([], "got no files"),
    "not there": (["no.csv"], "got 'no.csv', expected a file that is there"),
    "a header": (["header.csv"], "expected numbers separated by spaces or commas"),
    "other rows": (["few.csv"], "got probabilities of shape (3, 7), expected probabilities of"),
    "samples": (["samples.csv"], "got samples of shape (20, 7), expected probabilities of shape"),
    "no array": (["other.npz"], "got arrays mean, expected probs or samples"),
    "damaged": (["damaged.npz"], "cannot be read"),
    "too many public": (["good.csv", "--public", "21"], "got --public 21 of 20 rows"),
    "a workbook": (["good.csv", "--out", "t.xlsx"], "got --out t.xlsx, expected a name that ends"),
    "empty": (["empty.csv"], "got numbers of shape (0, 1), expected (rows, classes)"),
    "no folder": (["good.csv", "--out", "no/t.csv"], "in a folder that does not exist"),
}


@pytest.mark.filterwarnings("error:loadtxt")
@pytest.mark.parametrize("case", REFUSED)
def test_refused(case, capsys):
    arguments, message = REFUSED[case]
    np.savetxt("good.csv", PROBS[:20])
    np.savetxt("few.csv", PROBS[:3])
    np.savetxt("samples.csv", RNG.normal(size=(20, 7)))
    np.savetxt("header.csv", PROBS[:20], header="a b c d e f g", comments="")
    np.savez("other.npz", mean=PROBS)
    Path("empty.csv").touch()
    Path("damaged.npz").write_bytes(b"PK\x03\x04 not one")
    with pytest.raises(SystemExit) as stop:
        cli.main(["score", *arguments, "--reference", "good.csv"])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
