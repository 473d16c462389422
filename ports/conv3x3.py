"""A 3×3 convolution whose gradients stay fast on a CPU, inside ``lax.map`` and ``scan`` too."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ports.transformer import dot

TAPS = [(i, j) for i in range(3) for j in range(3)]


def _shifts(x: Array) -> list[Array]:
    """``x [B, H, W, C]`` as each of the nine taps sees it, zeros beyond the border."""
    height, width = x.shape[1:3]
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return [padded[:, i : i + height, j : j + width] for i, j in TAPS]


def _correlate(x: Array, kernel: Array, dtype: Any) -> Array:
    if x.shape[-1] == 1:  # nine shifted multiply-adds beat a convolution of one channel
        shifted = zip(_shifts(x), kernel.reshape(9, -1), strict=True)
        return sum((plane * tap for plane, tap in shifted), jnp.zeros((), x.dtype))
    return lax.conv_general_dilated(
        x.astype(dtype),
        kernel.astype(dtype),
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def conv3x3(x: Array, kernel: Array, dtype: Any = jnp.float32) -> Array:
    """Zero-padded 3×3 correlation: ``x [B, H, W, C]``, ``kernel [3, 3, C, D]`` -> [B, H, W, D].

    ``dtype`` is that of the products' factors; sums, and the multiply-adds that serve a single channel, are float32.

    The derivatives are the usual ones, written out. Those that JAX derives are convolutions which XLA's CPU
    backend runs on a slow path in a loop body: 3 times (by ``x``) and 30 times (by ``kernel``) slower.
    """
    return _correlate(x, kernel, dtype)


def _forward(x: Array, kernel: Array, dtype: Any) -> tuple[Array, tuple[Array, Array]]:
    return _correlate(x, kernel, dtype), (x, kernel)


def _backward(dtype: Any, kept: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, kernel = kept
    flipped = kernel[::-1, ::-1].transpose(0, 1, 3, 2)
    if x.shape[-1] == 1:
        planes = jnp.einsum("bhwd,ijd->bhwij", g, flipped[..., 0])
        by_x = sum((_shifts(planes[..., i, j, None])[3 * i + j] for i, j in TAPS), jnp.zeros((), x.dtype))
        by_kernel = jnp.einsum("bhwt,bhwd->td", jnp.concatenate(_shifts(x), axis=-1), g)
        return by_x, by_kernel.reshape(kernel.shape)
    # The barrier keeps the flipped kernel an array: folded into the convolution it would take the slow path.
    by_x = _correlate(g, lax.optimization_barrier(flipped), dtype)
    around = jnp.concatenate(_shifts(g)[::-1], axis=-1)  # x at a tap of g is g at the opposite tap of x
    size = x.shape[-1]
    by_kernel = dot(x.reshape(-1, size).T, around.reshape(-1, around.shape[-1]), dtype)
    return by_x, by_kernel.reshape(size, 3, 3, -1).transpose(1, 2, 0, 3)


conv3x3.defvjp(_forward, _backward)
