"""Resampling and rounding inside compiled chains: pure JAX, differentiable, one waveform at a time."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from scipy import signal

from jaxhack.types import Array

_LARGEST_FILTER = 2**24  # entries of the polyphase matrix; 44.1 <-> 48 kHz needs under 2**18


def ratio(orig_rate: int, target_rate: int) -> tuple[int, int]:
    """``(up, down)`` in lowest terms. Rates in Hz; ``ValueError`` unless both are positive whole numbers."""
    for name, rate in (("orig_rate", orig_rate), ("target_rate", target_rate)):
        if isinstance(rate, bool) or not isinstance(rate, int | np.integer) or rate <= 0:
            raise ValueError(f"{name} must be a positive whole number of Hz, got {rate!r}")
    divisor = math.gcd(int(orig_rate), int(target_rate))
    return int(target_rate) // divisor, int(orig_rate) // divisor


def resampled_length(length: Array | int, orig_rate: int, target_rate: int) -> Array:
    """``ceil(length · target_rate / orig_rate)`` as int32 ``[]``, without overflowing on long files."""
    up, down = ratio(orig_rate, target_rate)
    length = jnp.asarray(length, jnp.int32)
    return length // down * up + (length % down * up + down - 1) // down


@functools.cache
def _default_filter(up: int, down: int) -> np.ndarray:
    """The anti-alias filter of ``scipy.signal.resample_poly``: Kaiser 5.0, ten zero crossings a side."""
    widest = max(up, down)
    return signal.firwin(20 * widest + 1, 1 / widest, window=("kaiser", 5.0))


@functools.cache
def octave_filter(orig_rate: int, target_rate: int) -> np.ndarray:
    """The 60 dB Kaiser low-pass ``[2L + 1]`` of Octave's ``resample``, which ESTOI is defined with.

    Cut-off at the narrower Nyquist rate, roll-off a tenth of it, sum one. Pass it as `window`.
    """
    rejection = 60.0  # dB
    cutoff = 1 / (2 * max(ratio(orig_rate, target_rate)))
    half = math.ceil((rejection - 8) / (28.714 * cutoff / 10))
    taps = np.sinc(2 * cutoff * np.arange(-half, half + 1))
    taps *= np.kaiser(2 * half + 1, 0.1102 * (rejection - 8.7))
    return taps / taps.sum()


def _phases(taps: np.ndarray, up: int, down: int) -> tuple[np.ndarray, int]:
    """The filter as one matrix ``[B, D, U]`` from B blocks of D inputs to U = D · up / down outputs.

    Output n is Σᵢ x[i] · taps[n · down + half − i · up]. D is a multiple of `down` about as long as the
    filter: few blocks and wide products are quickest. Also returns how many of the B blocks lie before the
    block that is being filtered.
    """
    half = (len(taps) - 1) // 2
    repeats = -(-len(taps) // (up * down))
    wide_up, wide_down = repeats * up, repeats * down
    before = -(-(half // up) // wide_down)
    after = ((wide_up - 1) * down + half) // up // wide_down + 1
    if (before + after) * wide_down * wide_up > _LARGEST_FILTER:
        raise ValueError(
            f"the rates are in the ratio {up}/{down}, too fine for a compiled filter: "
            "resample the file to a common rate first"
        )
    k = np.arange(-before * wide_down, after * wide_down)[:, None]
    index = np.arange(wide_up) * down + half - k * up
    inside = (index >= 0) & (index < len(taps))
    matrix = np.where(inside, taps[np.where(inside, index, 0)], 0) * up
    return matrix.reshape(before + after, wide_down, wide_up).astype(np.float32), before


def resample(
    wav: Array,
    orig_rate: int,
    target_rate: int,
    *,
    window: np.ndarray | None = None,
    length: Array | int | None = None,
) -> Array:
    """Polyphase FIR resampling: ``wav [T] -> [ceil(T · target_rate / orig_rate)]``, no delay.

    The numbers of ``scipy.signal.resample_poly``, as one matrix product over blocks of samples: quick on
    every device, inside ``scan`` too. The rates (Hz) are static.

    Args:
      wav: ``[T]`` float32.
      orig_rate: rate of `wav`. Equal to `target_rate`: `wav` comes back as it is.
      target_rate: rate of the result.
      window: ``[K]`` FIR taps at the rate `orig_rate · up`, sum one; ``None``: scipy's default filter.
      length: ``[]`` samples of `wav` that count. Where given, the result is what the clip of that length
        alone gives, zero after it: samples after `length` are not read and the filter's tail is cut.

    Raises:
      ValueError: `wav` is not one-dimensional, or the rates aren't positive whole numbers.
    """
    if jnp.ndim(wav) != 1:
        raise ValueError(f"resample takes one waveform [T], got shape {jnp.shape(wav)}; vmap over a batch")
    up, down = ratio(orig_rate, target_rate)
    if length is not None:
        wav = masked(wav, length)
    if up == down:
        return wav
    matrix, before = _phases(_default_filter(up, down) if window is None else np.asarray(window), up, down)
    size, wide_up = matrix.shape[1:]
    count = -(-wav.shape[0] // size)
    right = (count + len(matrix) - 1 - before) * size - wav.shape[0]
    blocks = jnp.pad(wav, (before * size, right)).reshape(-1, size)
    spans = jnp.concatenate([blocks[i : i + count] for i in range(len(matrix))], axis=1)
    out = jnp.matmul(spans, matrix.reshape(-1, wide_up), precision=jax.lax.Precision.HIGHEST)
    out = out.reshape(-1)[: -(-wav.shape[0] * up // down)]
    return out if length is None else masked(out, resampled_length(length, orig_rate, target_rate))


def masked(wav: Array, length: Array | int) -> Array:
    """``wav [T]`` with every sample from `length` on set to zero, whatever it held."""
    return jnp.where(jnp.arange(wav.shape[0]) < length, wav, 0.0)


def from_pcm16(wav: Array | np.ndarray) -> Array:
    """16-bit samples ``[...] int16`` as a reader sees them: k / 32768."""
    return jnp.asarray(wav, jnp.float32) / 32768


@jax.custom_jvp
def as_saved(wav: Array) -> Array:
    """What a waveform ``[...]`` is after it was saved as 16-bit PCM and read back.

    Clipped and rounded to k / 32768 with k in −32768…32767, so +1.0 becomes 32767 / 32768 and never wraps
    around. NaN stays NaN. The gradient passes the rounding straight through, and is zero where the clipping acts.
    """
    return jnp.clip(jnp.round(wav * 32768), -32768, 32767) / 32768


@as_saved.defjvp
def _as_saved_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (wav,), (slope,) = primals, tangents
    return as_saved(wav), jnp.where(jnp.abs(wav) <= 1.0, slope, 0.0)
