"""Convolutions over time ``[T, C]`` for the ports of neural codecs, and PyTorch's weights for them.

Fast on a CPU, gradients and loop bodies included: XLA's own convolution where it wins, which is forward and with
many channels; matrix products and shifted additions elsewhere.

``dtype`` is that of the products' factors, see :func:`ports.transformer.dot`; sums, the multiply-adds that serve a
single channel, and all results are float32. Gradients round theirs alike.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ports.transformer import dot

HIGHEST = lax.Precision.HIGHEST


def conv1d(x: Array, kernel: Array, *, stride: int = 1, dilation: int = 1, dtype: Any = jnp.float32) -> Array:
    """Correlation without padding: ``x [T, C]``, ``kernel [taps, C, D]`` -> ``[T', D]``, as PyTorch's Conv1d.

    With a stride, `taps` and T must be whole strides and dilation 1; T' is then ``(T − taps) / stride + 1``.
    """
    if stride > 1:  # a kernel of taps / stride taps over frames of `stride` samples
        x, kernel = x.reshape(-1, stride * x.shape[1]), kernel.reshape(-1, stride * x.shape[1], kernel.shape[2])
    return _conv(x, kernel, dilation, dtype)


def transposed1d(x: Array, kernel: Array, *, stride: int, dtype: Any = jnp.float32) -> Array:
    """Transposed convolution, nothing cut: ``x [N, C]``, ``kernel [taps, C, D]`` -> ``[(N − 1) · stride + taps, D]``.

    `taps` must be whole strides. As PyTorch's ConvTranspose1d without padding.
    """
    taps, size, features = kernel.shape
    late, width = taps // stride, stride * features
    shares = dot(x, kernel.transpose(1, 0, 2).reshape(size, taps * features), dtype)
    # One product for all taps; then each frame's share moves on by as many frames.
    moved = [jnp.pad(shares[:, i * width : (i + 1) * width], ((i, late - 1 - i), (0, 0))) for i in range(late)]
    return functools.reduce(jnp.add, moved).reshape(-1, features)


def used(x: Array) -> Array:
    """How many rows of ``x [T]`` or ``[T, C]`` there are up to the last that is not zero: ``[]`` int32.

    Ours is the convention that a signal ends where only zeros follow; so padding is recognised, and a model whose
    result depends on where its input ends can be padded.
    """
    alive = x != 0 if x.ndim == 1 else jnp.any(x != 0, axis=1)
    return jnp.max(jnp.where(alive, jnp.arange(1, x.shape[0] + 1, dtype=jnp.int32), 0))


def kept(x: Array, n: Array | int) -> Array:
    """``x [T, C]`` with zeros from row `n` on."""
    return jnp.where((jnp.arange(x.shape[0]) < n)[:, None], x, 0.0)


def fold_weight_norm(g: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The weight ``g · v / ‖v‖`` of PyTorch's ``weight_norm``; the norm is over every axis but the first."""
    norm = np.sqrt(np.sum(np.square(v, dtype=np.float64), axis=tuple(range(1, v.ndim)), keepdims=True))
    return np.asarray(g * v / norm, np.float32)


def torch_shape(kernel: tuple[int, ...], transposed: bool = False) -> tuple[int, int, int]:
    """The shape that PyTorch gives the weight which is our ``kernel [taps, C, D]``."""
    taps, size, features = kernel
    return (size, features, taps) if transposed else (features, size, taps)


def from_torch(weight: np.ndarray, transposed: bool = False) -> np.ndarray:
    """Our ``kernel [taps, C, D]`` from PyTorch's weight."""
    return np.ascontiguousarray(weight.transpose((2, 0, 1) if transposed else (2, 1, 0)))


def _taps(x: Array, taps: int, dilation: int) -> list[Array]:
    """``x`` as each tap sees it."""
    n = x.shape[0] - (taps - 1) * dilation
    return [x[tap * dilation : tap * dilation + n] for tap in range(taps)]


def _correlate(x: Array, kernel: Array, dilation: int, dtype: Any) -> Array:
    taps, size, features = kernel.shape
    if size == 1:  # shifted multiply-adds beat a convolution of one channel
        return functools.reduce(jnp.add, [s * tap for s, tap in zip(_taps(x, taps, dilation), kernel, strict=True)])
    if features == 1:
        shares = dot(x, kernel[:, :, 0].T, dtype)
        seen = _taps(shares, taps, dilation)
        return functools.reduce(jnp.add, [s[:, tap : tap + 1] for tap, s in enumerate(seen)])
    return lax.conv_general_dilated(
        x[None].astype(dtype),
        kernel.astype(dtype),
        (1,),
        "VALID",
        rhs_dilation=(dilation,),
        dimension_numbers=("NWC", "WIO", "NWC"),
        precision=HIGHEST,
        preferred_element_type=jnp.float32,
    )[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _conv(x: Array, kernel: Array, dilation: int, dtype: Any) -> Array:
    """The derivatives are the usual ones, written out: those that JAX derives run slowly in a loop body."""
    return _correlate(x, kernel, dilation, dtype)


def _forward(x: Array, kernel: Array, dilation: int, dtype: Any) -> tuple[Array, tuple[Array, Array]]:
    return _correlate(x, kernel, dilation, dtype), (x, kernel)


def _backward(dilation: int, dtype: Any, saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, kernel = saved
    overhang = (kernel.shape[0] - 1) * dilation
    # The barrier keeps the flipped kernel an array: folded into the convolution it would take the slow path.
    flipped = lax.optimization_barrier(kernel[::-1].transpose(0, 2, 1))
    by_x = _correlate(jnp.pad(g, ((overhang, overhang), (0, 0))), flipped, dilation, dtype)
    seen = _taps(x, kernel.shape[0], dilation)
    by_kernel = jnp.stack([dot(s.T, g, dtype) for s in seen])
    return by_x, by_kernel


_conv.defvjp(_forward, _backward)
