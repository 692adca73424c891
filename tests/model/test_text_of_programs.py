"""The text of programs, by which a later process finds what an earlier one has compiled."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from bnn_ppl.model.recipe import numbers_of

_LOWERED = """
import hashlib
from functools import partial
import jax
import bnn_ppl as bnn
from bnn_ppl.model.recipe import recipe_of

model = bnn.models.regressor(
    partial(bnn.nets.MLP, 6, (5,), 1), bnn.priors.fan_in(1.4), bnn.priors.noise()
)
posterior = bnn.condition(model, bnn.data.load("yacht").train)
recipe, position = recipe_of(posterior), posterior.init(jax.random.key(0))

def logdensity(numbers, position, data):
    return recipe.make(numbers).logdensity(position, data)

text = jax.jit(logdensity).lower(recipe.numbers, position, posterior.data).as_text()
print(recipe.numbers, hashlib.sha256(text.encode()).hexdigest())
"""


@pytest.mark.thorough
def test_it_is_the_same_in_every_process():
    """NumPyro flattens a distribution in the order of a set of names, which a seed decides."""
    texts = {_printed(hash_seed) for hash_seed in "13"}
    assert len(texts) == 1


def _printed(hash_seed: str) -> str:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", _LOWERED]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=environment
    ).stdout


class OfItsOwnForm(dist.Normal):
    """A distribution whose leaves are not those that its fields name."""

    def __init__(self, *numbers):
        self.packed = numbers

    def tree_flatten(self):
        return (self.packed, None)

    @classmethod
    def tree_unflatten(cls, _, leaves):
        return cls(*leaves)


@pytest.mark.parametrize(
    "distribution",
    [
        dist.LogNormal(0.5, 1.5),
        dist.MixtureSameFamily(
            dist.Categorical(jnp.array([0.3, 0.7])), dist.Normal(2.5, jnp.array([1.0, 2.0]))
        ),
        dist.Normal(0.5, 1.5).expand([3]).to_event(1).mask(jnp.array(True)),
        dist.TruncatedNormal(0.5, 1.5, low=-0.25),
        OfItsOwnForm(0.5, 1.5),
    ],
    ids=lambda each: type(each).__name__,
)
def test_every_number_of_a_distribution_is_taken_once(distribution):
    numbers, with_numbers = numbers_of({"prior": distribution, "scale": 4.5})
    real = [leaf for leaf in jax.tree.leaves(distribution) if np.asarray(leaf).dtype.kind == "f"]
    assert sorted(np.hstack(numbers)) == sorted([*np.hstack(real), 4.5])
    others = [np.asarray(number) + 1 for number in numbers]
    found = numbers_of(with_numbers(others))[0]
    np.testing.assert_array_equal(np.hstack(found), np.hstack(others))
