"""The package's noise is JAX's, made in one loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from bnn_ppl.methods.random import gaussian_like, random_bits

KEYS = jax.random.key(3), jax.random.fold_in(jax.random.key(2**31), 7)


@pytest.mark.parametrize("sizes", [[(8, 3), (5,), ()], [(7,), (3, 5)], [(1,)]])
@pytest.mark.parametrize("key", KEYS)
def test_it_is_that_of_jax(key, sizes):
    tree = {str(i): jnp.zeros(size) for i, size in enumerate(sizes)}
    flat, unravel = ravel_pytree(tree)
    bits = random_bits(jax.random.key_data(key), flat.size)
    np.testing.assert_array_equal(bits, jax.random.bits(key, flat.shape))
    expected, found = unravel(jax.random.normal(key, flat.shape)), gaussian_like(key, tree)
    for name in tree:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6)


def test_in_double_precision_too():
    with jax.enable_x64(True):
        found = gaussian_like(KEYS[0], {"w": jnp.zeros(5)})["w"]
        np.testing.assert_array_equal(found, jax.random.normal(KEYS[0], (5,), float))


def test_chains_side_by_side_have_the_noise_of_chains_alone():
    keys = jax.random.split(KEYS[0], 3)
    tree = {"w": jnp.zeros(6)}
    together = jax.vmap(lambda key: gaussian_like(key, tree))(keys)["w"]
    alone = [gaussian_like(key, tree)["w"] for key in keys]
    np.testing.assert_allclose(together, np.stack(alone), rtol=1e-5)
