"""Kernels of compiled programs, counted."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def chain_programs(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import chain_programs

    return chain_programs


def test_kernels_are_counted_by_loop(chain_programs):
    def inner(i, x):
        return x @ x

    def outer(i, x):
        return jnp.sort(jax.lax.fori_loop(0, i, inner, x), axis=0)

    program = jax.jit(lambda x, n: jax.lax.fori_loop(0, n, outer, x))
    text = program.lower(jnp.ones((300, 300)), 3).compile().as_text()
    loops = chain_programs.kernels_by_loop(text)
    names = ["dot_general", "/sort", "/add"]
    counts = [[sum(name in line for line in loop) for name in names] for loop in loops]
    assert counts == [[0, 0, 0], [0, 1, 1], [1, 0, 1]]


@pytest.mark.thorough
def test_chains_side_by_side_need_no_more_kernels_than_a_bare_loop(chain_programs):
    posterior, density = chain_programs.yacht()
    steps = {}
    for lower in (chain_programs.bare, chain_programs.ours):
        steps[lower.__name__] = chain_programs.measured(lower(posterior, density, 3))["step"]
    assert 20 < steps["ours"] <= 1.2 * steps["bare"]
