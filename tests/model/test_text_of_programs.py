"""The text of programs, by which a later process finds what an earlier one has compiled."""

import os
import subprocess
import sys

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
