"""The samplers' state on disk: what is saved is what is read, and nothing else is."""

import json

import jax
import numpy as np
import pytest

from bnn_ppl.storage import checkpoint

STATE = {"at": np.arange(6, dtype=np.float32).reshape(2, 3), "count": np.array([3, 4])}
SETTINGS = {"exact": {"thin": 1}, "approximate": {"log_prior_at_start": -3.0}}
HEADER = {"settings": SETTINGS, "progress": {"draws": 4}, "saves": 7}
WHOLE = HEADER | {"format": 2, "arrays": [], "files": ["a"]}


def nothing():
    pass


def saved(folder):
    folder.mkdir(exist_ok=True)
    checkpoint.save_state(folder, HEADER, STATE, [0], nothing)
    return checkpoint.read_header(folder)


def test_state_comes_back_as_it_was_saved(tmp_path):
    header = saved(tmp_path)
    assert {name: header[name] for name in HEADER} == HEADER
    state = checkpoint.read_state(tmp_path, header, STATE, 2)
    jax.tree.map(np.testing.assert_array_equal, state, STATE)
    for saves in (8, 9):
        checkpoint.save_state(tmp_path, HEADER | {"saves": saves}, STATE, [0], nothing)
    assert len(list(tmp_path.iterdir())) == 4  # it and the one before; the first is gone


def test_state_of_another_method_is_refused(tmp_path):
    header = saved(tmp_path)
    for other in ({"more": STATE["at"]}, STATE | {"at": STATE["at"][..., None]}):
        with pytest.raises(ValueError, match="its arrays are not those"):
            checkpoint.read_state(tmp_path, header, other, 2)


def test_arrays_that_a_state_has_gained_since_are_zero(tmp_path):
    more = np.arange(6.0).reshape(2, 3)
    state = checkpoint.read_state(tmp_path, saved(tmp_path), {"first": more} | STATE, 2)
    np.testing.assert_array_equal(state.pop("first"), 0 * more)
    jax.tree.map(np.testing.assert_array_equal, state, STATE)


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
    ["", "[]", "{", "3", '{"format": 2, "settings": {}}', "[" * 100_000]
    + [
        json.dumps(WHOLE | change)
        for change in (
            {"files": "state"},
            {"files": []},
            {"progress": {"draws": "4"}},
            {"settings": {"thin": 1}},
        )
    ],
)
def test_state_that_is_no_state_is_refused(tmp_path, content):
    (tmp_path / "state.json").write_text(content)
    with pytest.raises(ValueError, match=r"state.json', which is damaged or not a run's"):
        checkpoint.read_header(tmp_path)


@pytest.mark.parametrize("version", [None, 1, 3])
def test_a_state_of_another_version_is_refused_in_one_line(tmp_path, version):
    """Before there was a format, settings were one dict."""
    older = WHOLE | {"format": version, "settings": {"thin": 1, "log prior at the start": -3.0}}
    older = {name: value for name, value in older.items() if value is not None}
    (tmp_path / "state.json").write_text(json.dumps(older))
    message = f"whose state.json has format {version}, expected 2.*name another folder"
    with pytest.raises(checkpoint.OtherRunError, match=message) as refused:
        checkpoint.read_header(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"approximate": {"log_prior_at_start": -3.0001}}, None),
        (
            {"approximate": {"log_prior_at_start": -3.1}},
            "got another prior or other first",
        ),
        ({"approximate": {}}, "got another prior"),
        ({"exact": {"thin": 1.0001}}, "got thin=1.0001, expected thin=1 "),
        ({"exact": {"thin": 1, "new": 2}}, "got new=2, expected new=None"),
    ],
)
def test_only_computed_numbers_may_differ_by_rounding(change, words):
    given = SETTINGS | change
    if words is None:
        checkpoint.refuse_difference("run", SETTINGS, given)
    else:
        with pytest.raises(checkpoint.OtherRunError, match=words):
            checkpoint.refuse_difference("run", SETTINGS, given)


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
