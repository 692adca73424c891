"""Data sets of the package alone."""

import sys

import pytest


@pytest.fixture(autouse=True)
def package_only(monkeypatch):
    """Look in the package alone, whatever this machine has, unless a test says otherwise."""
    monkeypatch.delenv("BNN_PPL_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
