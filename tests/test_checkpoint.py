"""The samplers' state on disk: what is saved is what is read, and nothing else is."""

import json

import jax
import numpy as np
import pytest

from bnn_ppl.storage import checkpoint

STATE = {"at": np.arange(6, dtype=np.float32).reshape(2, 3), "count": np.array([3, 4])}
HEADER = {"settings": {"thin": 1}, "progress": {"draws": 4}, "saves": 7}


def nothing():
    pass


def saved(folder):
    folder.mkdir(exist_ok=True)
    checkpoint.save_state(folder, HEADER, STATE, nothing)
    return checkpoint.read_header(folder)


def test_state_comes_back_as_it_was_saved(tmp_path):
    header = saved(tmp_path)
    assert {name: header[name] for name in HEADER} == HEADER
    state = checkpoint.read_state(tmp_path, header, STATE, 2)
    jax.tree.map(np.testing.assert_array_equal, state, STATE)
    checkpoint.save_state(tmp_path, HEADER | {"saves": 8}, STATE, nothing)
    assert len(list(tmp_path.iterdir())) == 2  # the one before is gone


def test_state_of_another_method_is_refused(tmp_path):
    header = saved(tmp_path)
    with pytest.raises(ValueError, match="layout"):
        checkpoint.read_state(tmp_path, header, STATE | {"more": STATE["at"]}, 2)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content[:-9], "it has 35 bytes, expected 44"),
        (lambda content: b"x" + content[1:], "checksum"),
        (lambda content: b"", "it has 0 bytes"),
    ],
)
def test_damaged_state_is_refused(tmp_path, damage, words):
    header = saved(tmp_path)
    file = tmp_path / header["files"][0]
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=words):
        checkpoint.read_state(tmp_path, header, STATE, 2)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "state-1-0-1.bin/x", 3, None])
def test_state_names_no_file_outside(tmp_path, name):
    header = saved(tmp_path)
    with pytest.raises(ValueError, match="it names the file"):
        checkpoint.read_state(tmp_path, header | {"files": [name]}, STATE, 2)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", "3", '{"settings": {}}', "[" * 100_000]
    + [json.dumps(HEADER | {"layout": [], "files": "state"})]
    + [json.dumps(HEADER | {"layout": [], "files": ["a"], "progress": {"draws": "4"}})],
)
def test_state_that_is_no_state_is_refused(tmp_path, content):
    (tmp_path / "state.json").write_text(content)
    with pytest.raises(ValueError, match=r"state.json', which is damaged or not a run's"):
        checkpoint.read_header(tmp_path)


def test_a_missing_or_empty_folder_is_free(tmp_path):
    assert checkpoint.read_header(tmp_path) is None
    assert checkpoint.read_header(str(tmp_path / "new" / "run")) is None
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("taken", ["run", "run/thesis.txt", "run/.hidden"])
def test_a_folder_that_holds_something_else_is_refused(taken, tmp_path):
    path = tmp_path / taken
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    with pytest.raises(FileExistsError, match=r"got folder='.*run', which is not empty and"):
        checkpoint.read_header(tmp_path / "run")
    checkpoint.tidy(tmp_path / "run") if taken != "run" else None
    assert path.read_text() == "mine"
