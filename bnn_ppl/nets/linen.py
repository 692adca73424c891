"""Bridge from Flax linen to NNX."""

from collections.abc import Callable

import jax
from flax import linen, nnx


def from_linen(module: linen.Module, example_input: jax.Array) -> Callable[..., nnx.Module]:
    """Turn a linen module into a factory for :func:`bnn_ppl.random_network`.

    Parameters
    ----------
    module
        A linen module called as ``module(x)``.
    example_input
        Any input of the right shape, for example ``x[:1]``: linen infers shapes from it.

    Returns
    -------
    Callable
        Called with ``rngs=`` it gives an ``nnx.Module`` with freshly initialised weights.
    """

    def factory(*, rngs: nnx.Rngs) -> nnx.Module:
        bridged = nnx.bridge.lazy_init(nnx.bridge.ToNNX(module, rngs=rngs), example_input)
        bridged.to_nnx__rngs = None  # active dropout then fails instead of freezing one mask
        return bridged

    return factory
