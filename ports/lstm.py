"""Long short-term memory, as PyTorch's ``LSTM`` has it: the one cell of all ports, and its weights.

S. Hochreiter, J. Schmidhuber, "Long Short-Term Memory", 1997. Gates are ordered input, forget, cell, output.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxhack.types import Array, PyTree
from ports.transformer import Dense, dot


def lstm(drive: Array, recurrent: Array, valid: Array | None = None, *, reverse: bool = False) -> Array:
    """The hidden states of one layer in one direction, from zero.

    Args:
        drive: [N, 4C] what the input adds to the gates of each step, biases included.
        recurrent: [C, 4C] what the hidden state adds.
        valid: [N] bool, the steps that count, the others repeat a state; None: all.
        reverse: run from the last step to the first.

    Returns:
        [N, C], one state a step, in the order of the steps.
    """

    def step(state: tuple[Array, Array], inputs: tuple[Array, Array | None]) -> tuple[tuple[Array, Array], Array]:
        (cell, hidden), (row, counts) = state, inputs
        i, f, g, o = jnp.split(row + dot(hidden, recurrent), 4)
        new_cell = nn.sigmoid(f) * cell + nn.sigmoid(i) * jnp.tanh(g)
        new_hidden = nn.sigmoid(o) * jnp.tanh(new_cell)
        if counts is not None:
            new_cell, new_hidden = jnp.where(counts, new_cell, cell), jnp.where(counts, new_hidden, hidden)
        return (new_cell, new_hidden), new_hidden

    zero = jnp.zeros(recurrent.shape[0], drive.dtype)
    return lax.scan(step, (zero, zero), (drive, valid), reverse=reverse)[1]


class Lstm(nn.Module):
    """One layer in one direction: x [N, C], valid [N] bool or None -> [N, features]; see :func:`lstm`."""

    features: int
    reverse: bool = False
    dtype: Any = jnp.float32  # of the factors of the input's product

    @nn.compact
    def __call__(self, x: Array, valid: Array | None = None) -> Array:
        """See the class."""
        drive = Dense(4 * self.features, self.dtype, name="input")(x)
        recurrent = self.param("recurrent", nn.initializers.lecun_normal(), (self.features, 4 * self.features))
        return lstm(drive, recurrent, valid, reverse=self.reverse)


def torch_shapes(where: str, inputs: int, features: int, layer: str) -> dict[str, tuple[int, ...]]:
    """The tensors of one layer in one direction in a checkpoint; ``where`` "lstm.", ``layer`` "l0_reverse"."""
    return {
        f"{where}weight_ih_{layer}": (4 * features, inputs),
        f"{where}weight_hh_{layer}": (4 * features, features),
        f"{where}bias_ih_{layer}": (4 * features,),
        f"{where}bias_hh_{layer}": (4 * features,),
    }


def from_torch(tensors: Mapping[str, np.ndarray], where: str, layer: str) -> PyTree:
    """The parameters of :class:`Lstm` from the tensors that :func:`torch_shapes` names."""
    bias = tensors[f"{where}bias_ih_{layer}"] + tensors[f"{where}bias_hh_{layer}"]
    return {
        "input": {"kernel": tensors[f"{where}weight_ih_{layer}"].T, "bias": bias},
        "recurrent": tensors[f"{where}weight_hh_{layer}"].T,
    }
