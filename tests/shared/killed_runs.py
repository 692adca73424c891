"""Runs that end in the middle of a write, and whether two gave the same."""

from pathlib import Path

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

SCRIPTS = Path(__file__).parent  # of runs for tests to kill, each in a process of its own


def line(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0, 2))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(slope * x[:, 0], 1.0), obs=y)


def assert_same(draws, expected):
    groups = {"posterior", "sample_stats", "warmup_sample_stats"} & set(expected)
    assert groups <= set(draws)
    for group in groups:
        assert set(draws[group]) == set(expected[group])
        for name in expected[group]:
            np.testing.assert_array_equal(draws[group][name], expected[group][name])
            for coordinate in expected[group][name].coords:
                np.testing.assert_array_equal(draws[group][coordinate], expected[group][coordinate])
    for fact in ("gradient_evaluations", "num_draws"):
        assert draws.attrs[fact] == expected.attrs[fact]


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def kill_at_write(monkeypatch):
    """Make the n-th file operation of the store the process's last one."""

    def arrange(number):
        calls = iter(range(number))

        def fatal(function):
            def call(*args, **kwargs):
                if next(calls, None) is None:
                    raise Killed
                return function(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            for owner, name in ((Path, "replace"), (Path, "rename"), (Path, "unlink")):
                patch.setattr(owner, name, fatal(getattr(owner, name)))
            yield

    return arrange
