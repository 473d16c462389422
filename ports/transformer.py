"""The transformer layer that several published models share, and the matrix product under it.

A. Vaswani et al., "Attention Is All You Need", 2017. Optional are the gated relative position bias of S. Chen et
al., "WavLM", 2022, the rotary positions of J. Su et al., "RoFormer", 2021, and the layer scale of H. Touvron et al.,
"Going deeper with Image Transformers", 2021. Array names: F frames, C channels, H heads.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxhack.types import Array


def dot(x: Array, y: Array, dtype: Any = jnp.float32) -> Array:
    """``x @ y`` with the factors rounded to ``dtype``; sums and result are float32."""
    factors = (x.astype(dtype), y.astype(dtype))
    return jnp.matmul(*factors, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)


def layer_norm(name: str) -> nn.LayerNorm:
    """PyTorch's layer norm; its variance is that of the centred values."""
    return nn.LayerNorm(1e-5, use_fast_variance=False, name=name)


def rotary(x: Array, base: float) -> Array:
    """``x [H, F, D]`` with each pair of channels, i and i + D/2, turned by an angle of frame · base^(−2i/D)."""
    frames, size = x.shape[1:]
    frequency = 1 / np.float32(base) ** (np.arange(0, size, 2, dtype=np.float32) / np.float32(size))
    angle = np.arange(frames, dtype=np.float32)[:, None] * frequency
    cos, sin = np.cos(angle), np.sin(angle)
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


class Dense(nn.Module):
    """A linear map, [..., C] -> [..., features] float32."""

    features: int
    dtype: Any = jnp.float32  # of the product's factors
    biased: bool = True
    kernel_init: Callable[..., Array] = nn.initializers.lecun_normal()

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """See the class."""
        kernel = self.param("kernel", self.kernel_init, (x.shape[-1], self.features))
        y = dot(x, kernel, self.dtype)
        return y + self.param("bias", nn.initializers.zeros, (self.features,)) if self.biased else y


class Layer(nn.Module):
    """Self-attention and a feed-forward network, each with a residual and a layer norm."""

    heads: int
    feed_forward: int  # channels between its two linear maps
    activation: Callable[[Array], Array]
    norm_first: bool = False  # the norms stand before attention and feed-forward, not after the residuals
    gated: bool = False  # each frame weighs the position bias, as in WavLM
    dtype: Any = jnp.float32  # of the products' factors; all else is float32
    biased: bool = True  # the linear maps have biases
    scaled: bool = False  # a learnt scale of each channel before it is added to the residual
    rotary_base: float = 0.0  # queries and keys are turned by their positions, see `rotary`; 0: they are not

    @nn.compact
    def __call__(self, x: Array, valid: Array, bias: Array | None = None) -> tuple[Array, Array]:
        """One layer, as the body of a scan.

        Args:
            x: [F, C].
            valid: [F] bool, the frames that may be attended to; or [F, F], those that each frame may attend to.
            bias: [H, F, F] added to the scores before the softmax, or None.

        Returns:
            [F, C] twice: what the next layer takes, and what the scan keeps.
        """
        norm1, norm2 = layer_norm("norm1"), layer_norm("norm2")
        if self.norm_first:
            x = x + self._scaled("scale1", self._attention(norm1(x), valid, bias))
            x = x + self._scaled("scale2", self._feed_forward(norm2(x)))
        else:
            x = norm1(x + self._scaled("scale1", self._attention(x, valid, bias)))
            x = norm2(x + self._scaled("scale2", self._feed_forward(x)))
        return x, x

    def _scaled(self, name: str, x: Array) -> Array:
        return x * self.param(name, nn.initializers.ones, (x.shape[-1],)) if self.scaled else x

    def _attention(self, x: Array, valid: Array, bias: Array | None) -> Array:
        frames, channels = x.shape
        size = channels // self.heads
        qkv = Dense(3 * channels, self.dtype, self.biased, name="qkv")(x)
        q, k, v = qkv.reshape(frames, 3, self.heads, size).transpose(1, 2, 0, 3)
        if self.rotary_base:
            q, k = rotary(q, self.rotary_base), rotary(k, self.rotary_base)
        scores = dot(q * size**-0.5, k.swapaxes(1, 2), self.dtype)
        if bias is not None:
            scores = scores + (bias * self._gate(x)[:, :, None] if self.gated else bias)
        weights = jax.nn.softmax(jnp.where(valid, scores, -1e30), axis=-1)  # finite where nothing is valid
        mixed = dot(weights, v, self.dtype).transpose(1, 0, 2).reshape(frames, channels)
        return Dense(channels, self.dtype, self.biased, name="out")(mixed)

    def _gate(self, x: Array) -> Array:
        """How much of the position bias each head of each frame takes: [F, C] -> [H, F]."""
        parts = x.reshape(x.shape[0], self.heads, -1)
        reset, update = jnp.moveaxis(nn.sigmoid(Dense(2, self.dtype, name="gate")(parts)), -1, 0)
        scale = self.param("gate_scale", nn.initializers.ones, (self.heads,))
        return (reset * (update * scale - 1.0) + 2.0).T

    def _feed_forward(self, x: Array) -> Array:
        hidden = self.activation(Dense(self.feed_forward, self.dtype, self.biased, name="linear1")(x))
        return Dense(x.shape[-1], self.dtype, self.biased, name="linear2")(hidden)


def stack(layers: int, **options: Any) -> Any:
    """A module of equal layers, compiled once: ``(x, valid, bias) -> (x, every layer's output [layers, F, C])``.

    ``options`` are those of :class:`Layer`; the parameters of all layers are stacked along a first axis.
    """
    scanned: Any = nn.scan(
        Layer, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=nn.broadcast, length=layers
    )
    return scanned(**options)
