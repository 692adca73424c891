"""Classifier of sequences of tokens."""

import jax
import jax.numpy as jnp
from flax import nnx

from bnn_ppl.nets.parts.layers import max_pool

_WINDOW = 5
_POOLED = 4


class CNNLSTM(nnx.Module):
    r"""Embedding, a convolution over 5 tokens, ReLU, max-pooling by 4, an LSTM, a dense layer.

    As on IMDB in Izmailov et al. (2021), "What Are Bayesian Neural Network Posteriors Really Like?"
    (100 tokens of a vocabulary of 20,000, 2 classes): 2,700,098 parameters. The LSTM starts from
    zeros and its last output h is classified; a step computes

    .. math::
        c \leftarrow \sigma(f + 1) c + \sigma(i) \tanh(g), \quad h \leftarrow \sigma(o) \tanh(c)

    with (i, f, g, o) affine in the step's input and the last h, under one bias. The 1 is the
    source's (Jozefowicz et al., 2015): under a prior centred on 0 it is part of the model.

    Parameters
    ----------
    sequence_shape
        (tokens,) of one row; at least 8.
    num_classes
        Number of outputs.
    vocabulary_size
        Number of distinct tokens 0, 1, ...; larger ones give NaN outputs, negative ones count from
        the last, so pad with a token of its own.
    embedding_size
        Size of the embedding of a token.
    filters
        Channels of the convolution.
    units
        Width of the LSTM.
    rngs
        Source of the initial weights.

    Raises
    ------
    ValueError
        If rows are not sequences, or too short for one step of the LSTM.
    """

    def __init__(
        self,
        sequence_shape: tuple[int, ...],
        num_classes: int,
        *,
        vocabulary_size: int = 20_000,
        embedding_size: int = 128,
        filters: int = 64,
        units: int = 128,
        rngs: nnx.Rngs,
    ):
        shortest = _WINDOW + _POOLED - 1
        if len(sequence_shape) != 1 or sequence_shape[0] < shortest:
            raise ValueError(
                f"got rows of shape {tuple(sequence_shape)}, expected (tokens,) of at least "
                f"{shortest}: pad shorter ones at the front"
            )
        self.embedding = nnx.Embed(vocabulary_size, embedding_size, rngs=rngs)
        self.embedding.dtype = None  # computes in the dtype of its weights, as other layers do
        self.convolution = nnx.Conv(
            embedding_size, filters, kernel_size=(_WINDOW,), padding="VALID", rngs=rngs
        )
        self.cell = nnx.OptimizedLSTMCell(filters, units, rngs=rngs)
        self.output = nnx.Linear(units, num_classes, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Map whole numbers (rows, tokens) to logits (rows, num_classes)."""
        x = nnx.relu(self.convolution(self.embedding(tokens)))
        return self.output(_last_output(self.cell, max_pool(x, (_POOLED,))))


def _last_output(cell: nnx.OptimizedLSTMCell, x: jax.Array) -> jax.Array:
    """Output (rows, units) after the last step of x (rows, steps, features)."""

    def step(carry: tuple[jax.Array, jax.Array], x: jax.Array) -> tuple:
        memory, output = carry
        i, f, g, o = jnp.split(cell.dense_i(x) + cell.dense_h(output), 4, axis=-1)
        memory = nnx.sigmoid(f + 1) * memory + nnx.sigmoid(i) * nnx.tanh(g)
        return (memory, nnx.sigmoid(o) * nnx.tanh(memory)), None

    zeros = jnp.zeros((x.shape[0], cell.hidden_features), x.dtype)
    (_, output), _ = jax.lax.scan(step, (zeros, zeros), x.swapaxes(0, 1))
    return output
