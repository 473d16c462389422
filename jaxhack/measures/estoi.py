"""Extended short-time objective intelligibility (Jensen and Taal, IEEE/ACM TASLP 24(11), 2016).

The published algorithm drops frames; here shapes are fixed. Dropped frames are moved to the end and
masked, so that the function compiles once a length bucket, batches, and has a gradient.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxhack import dsp
from jaxhack.detect import Rule
from jaxhack.types import Array, Measure, PyTree

RATE = 10_000  # Hz, at which the measure is defined
HOP = 128  # samples; a frame is two hops
SEGMENT = 30  # frames, 384 ms
BANDS = 15
_FFT = 512
_DYNAMIC_RANGE = 1e-4  # 40 dB: quieter frames, against the loudest of the reference, are silence
_CONSTANT = 1e-10  # variance over energy below which float32 can't tell a band from a constant
_CHUNK = 2048  # segments (26 s) held at once, so that memory doesn't grow with SEGMENT × length
_WINDOW = np.hanning(2 * HOP + 2)[1:-1].astype(np.float32)


@functools.cache
def _third_octaves() -> np.ndarray:
    """``[257, 15]``: which FFT bin belongs to which third-octave band, the first centred on 150 Hz."""
    bins = np.arange(_FFT // 2 + 1) * RATE / _FFT
    centres = 150 * 2 ** (np.arange(BANDS) / 3)
    low, high = (np.abs(bins[:, None] - centres * 2 ** (side / 6)).argmin(axis=0) for side in (-1, 1))
    index = np.arange(len(bins))[:, None]
    return ((index >= low) & (index < high)).astype(np.float32)


def _frames(blocks: Array) -> Array:
    """Hops ``[F + 1, HOP]`` to windowed half-overlapping frames ``[F, 2 · HOP]``."""
    return jnp.concatenate([blocks[:-1], blocks[1:]], axis=1) * _WINDOW


def _without_silence(frames: Array, order: Array, kept: Array) -> Array:
    """Frames ``[F, 2 · HOP]`` in `order`, the first `kept` of them overlap-added: hops ``[F + 1, HOP]``."""
    frames = jnp.where(jnp.arange(frames.shape[0])[:, None] < kept, frames[order], 0.0)
    return jnp.pad(frames[:, :HOP], ((0, 1), (0, 0))) + jnp.pad(frames[:, HOP:], ((1, 0), (0, 0)))


def _bands(blocks: Array) -> Array:
    """Hops ``[F + 1, HOP]`` to third-octave magnitudes ``[BANDS, F]``."""
    spectrum = jnp.fft.rfft(_frames(blocks), _FFT)
    power = jnp.square(spectrum.real) + jnp.square(spectrum.imag)
    power = jnp.matmul(power, _third_octaves(), precision=jax.lax.Precision.HIGHEST).T
    return jnp.where(power > 0, jnp.sqrt(jnp.where(power > 0, power, 1.0)), 0.0)


def _unit(x: Array, axis: int) -> Array:
    """Mean 0 and norm 1 along `axis`; what is constant there becomes 0 (published: noise of random sign)."""
    centred = x - jnp.mean(x, axis, keepdims=True)
    energy = jnp.sum(centred * centred, axis, keepdims=True)
    varies = energy > _CONSTANT * jnp.sum(x * x, axis, keepdims=True)
    return jnp.where(varies, centred * jax.lax.rsqrt(jnp.where(varies, energy, 1.0)), 0.0)


def _correlations(reference: Array, estimate: Array) -> Array:
    """Bands ``[BANDS, S + 29]`` twice to the correlation of each of the S segments ``[S]``."""
    count = reference.shape[1] - SEGMENT + 1

    def normalised(bands: Array) -> Array:
        # A loop of copies: a stack of 30 slices takes four times as long to compile, a gather to run.
        segments = jax.lax.map(lambda i: jax.lax.dynamic_slice_in_dim(bands, i, count, 1), jnp.arange(SEGMENT))
        return _unit(_unit(segments, 0), 1)

    return jnp.sum(normalised(reference) * normalised(estimate), (0, 1)) / SEGMENT


def _mean_correlation(reference: Array, estimate: Array, segments: Array) -> Array:
    """Bands ``[BANDS, F]`` twice to the mean over the first `segments` segments ``[]``, chunk by chunk."""
    total = reference.shape[1] - SEGMENT + 1
    size = min(total, _CHUNK)
    starts = np.arange(0, total, size)
    pad = ((0, 0), (0, int(starts[-1]) + size - total))
    reference, estimate = jnp.pad(reference, pad), jnp.pad(estimate, pad)

    def chunk(start: Array) -> Array:
        span = size + SEGMENT - 1
        parts = (jax.lax.dynamic_slice_in_dim(bands, start, span, 1) for bands in (reference, estimate))
        return jnp.sum(jnp.where(start + jnp.arange(size) < segments, _correlations(*parts), 0.0))

    if len(starts) == 1:  # a loop would cost the gradient a factor of two
        correlation = chunk(jnp.int32(0))
    else:
        correlation = jnp.sum(jax.lax.map(jax.checkpoint(chunk), jnp.asarray(starts, jnp.int32)))
    return correlation / jnp.maximum(segments, 1).astype(jnp.float32)


def estoi(reference: Array, estimate: Array, length: Array, *, sample_rate: int) -> Array:
    """ESTOI of an estimate against its clean reference, about 0 (unintelligible) to 1.

    Args:
      reference: ``[T]`` float32, clean.
      estimate: ``[T]`` float32, aligned to the reference.
      length: ``[]`` int32, samples that count; what lies after them is not read.
      sample_rate: Hz, of both; static.

    Returns:
      ``[]``. NaN where it is undefined: fewer than 30 frames (384 ms) of the compacted signal are left once
      the frames 40 dB below the loudest one of the reference are dropped, or the reference or the estimate is
      silent there. No noise is added, so equal calls give equal results. Its gradient is finite.
    """
    length = jnp.asarray(length, jnp.int32)
    octave = dsp.octave_filter(sample_rate, RATE) if sample_rate != RATE else None
    wavs = jnp.stack([reference, estimate])
    wavs = jax.vmap(lambda wav: dsp.resample(wav, sample_rate, RATE, window=octave, length=length))(wavs)
    # The frame that ends with the last sample is left out, here and after the compaction, as published.
    count = -(-(wavs.shape[1] - 2 * HOP) // HOP)
    if count <= SEGMENT:
        return jnp.float32(jnp.nan)
    in_clip = jnp.arange(count) * HOP + 2 * HOP < dsp.resampled_length(length, sample_rate, RATE)
    blocks = jnp.pad(wavs, ((0, 0), (0, max(0, (count + 1) * HOP - wavs.shape[1]))))
    blocks = blocks[:, : (count + 1) * HOP].reshape(2, count + 1, HOP)
    frames = jax.vmap(_frames)(blocks)

    energy = jnp.where(in_clip, jnp.sum(jnp.square(frames[0]), -1), 0.0)
    active = energy > _DYNAMIC_RANGE * jnp.max(energy)
    kept = jnp.sum(active, dtype=jnp.int32)
    order = jnp.argsort(~active, stable=True)
    spoken = jax.vmap(_without_silence, (0, None, None))(frames, order, kept)
    bands = jax.vmap(_bands)(spoken)[..., :-1]

    segments = kept - SEGMENT
    audible = jnp.all(jnp.max(jnp.where(jnp.arange(count - 1) < kept - 1, bands, 0.0), (1, 2)) > 0)
    value = _mean_correlation(bands[0], bands[1], segments)
    return jnp.where((segments > 0) & audible, value, jnp.nan)


def estoi_measure(sample_rate: int, *, margin: float = 0.02) -> Measure:
    """ESTOI for the panel at `sample_rate` Hz; worse by more than `margin` counts as degraded."""
    up, down = dsp.ratio(sample_rate, RATE)
    enough = (SEGMENT + 2) * HOP  # at 10 kHz one sample more than this gives the 31 frames of one segment

    def fn(params: PyTree, reference: Array, estimate: Array, length: Array) -> Array:
        return estoi(reference, estimate, length, sample_rate=sample_rate)

    return Measure("estoi", Rule(margin), enough * down // up + 1, fn)
