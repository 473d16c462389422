"""Scale-invariant signal-to-distortion ratio (Le Roux et al., "SDR – half-baked or well done?", 2019)."""

import jax
import jax.numpy as jnp

from jaxhack import dsp
from jaxhack.detect import Rule
from jaxhack.types import Array, Measure, PyTree

CAP = 80.0  # dB, both ways: beyond it float32 (and 16-bit audio long before) holds only rounding noise
SATURATION = 40.0  # dB: no codec gets there; above it x̂ is x but for rounding, and any change loses many dB
MIN_SAMPLES = 2  # of one sample, every estimate is a scaled copy


def _prepared(wav: Array, length: Array, zero_mean: bool) -> tuple[Array, Array]:
    """The wave scaled to a peak of 1, which the ratio does not see, and whether it holds any sound."""
    peak = jax.lax.stop_gradient(jnp.max(jnp.abs(wav), initial=0.0))
    wav = wav / jnp.where(peak > 0, peak, 1.0)
    raw = jnp.sum(wav * wav)
    if zero_mean:
        wav = dsp.masked(wav - jnp.sum(wav) / jnp.maximum(length, 1).astype(wav.dtype), length)
    # A constant leaves rounding noise behind when its mean goes, 1e-14 of its energy; that's silence too.
    return wav, jnp.sum(wav * wav) > 1e-12 * raw


def si_sdr(reference: Array, estimate: Array, length: Array, *, zero_mean: bool = False) -> Array:
    """10 · log10(‖α·t‖² / ‖α·t − p‖²) with α = ⟨p, t⟩ / ‖t‖², in dB, clipped to ±`CAP`.

    Args:
      reference: t ``[T]`` float32.
      estimate: p ``[T]`` float32, aligned to the reference: a lag of a few samples ruins the ratio.
      length: ``[]`` int32, samples that count; what lies after them is not read.
      zero_mean: remove both means first, as the paper does; off, as in most toolkits.

    Returns:
      ``[]`` dB. NaN where it is undefined: a silent reference or estimate (a constant one, with
      `zero_mean`), or fewer than `MIN_SAMPLES` samples. Its gradient is finite everywhere.
    """
    length = jnp.asarray(length, jnp.int32)
    target, has_target = _prepared(dsp.masked(reference, length), length, zero_mean)
    estimate, has_estimate = _prepared(dsp.masked(estimate, length), length, zero_mean)
    defined = has_target & has_estimate & (length >= MIN_SAMPLES)

    energy = jnp.sum(target * target)
    scaled = jnp.sum(estimate * target) / jnp.where(has_target, energy, 1.0) * target
    wanted = jnp.sum(scaled * scaled)
    unwanted = jnp.sum(jnp.square(scaled - estimate))
    # Each side is at least 1e-8 of the other: that is the cap, and no logarithm meets a zero.
    floor = 10.0 ** (-CAP / 10)
    above = jnp.where(defined, jnp.maximum(wanted, floor * unwanted), 1.0)
    below = jnp.where(defined, jnp.maximum(unwanted, floor * wanted), 1.0)
    decibel = jnp.clip(10.0 * (jnp.log10(above) - jnp.log10(below)), -CAP, CAP)  # exact despite rounding
    return jnp.where(defined, decibel, jnp.nan)


def si_sdr_measure(*, zero_mean: bool = False, margin: float = 1.0) -> Measure:
    """SI-SDR for the panel; worse by more than `margin` dB counts as degraded.

    Unless x̂ is above `SATURATION`: then the vote is void.
    """

    def fn(params: PyTree, reference: Array, estimate: Array, length: Array) -> Array:
        return si_sdr(reference, estimate, length, zero_mean=zero_mean)

    return Measure("si_sdr", Rule(margin, saturation=SATURATION), MIN_SAMPLES, fn)
