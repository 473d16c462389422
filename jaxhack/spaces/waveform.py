"""The samples themselves: ``y = x + δ``. No chain stands between, so x̂ is x."""

import math

import jax
import jax.numpy as jnp

from jaxhack import dsp
from jaxhack.spaces.latent import TINY, standardised, unit_peak
from jaxhack.types import Array, Point, Space

FRAME = 320  # samples of one feature frame
BANDS = 40  # features F: log powers of as many equal bands
TILE = 0.1  # s, of an action that is held: it repeats


def waveform(sample_rate: int = 16000, *, epsilon: float = 0.002) -> Space:
    r"""Perturbs each sample by at most ε: :math:`\|\delta\|_\infty \le \epsilon`, and x + δ stays within ±1.

    Args:
      sample_rate: Hz.
      epsilon: largest deviation of a sample, full scale being 1 (the paper's is 0.002). 0 gives x to the bit.

    Returns:
      A :class:`~jaxhack.types.Space` with actions ``[TILE · rate]``, repeated over time, or ``[T]``; features
      ``[N, 40]``, log band powers of 320 samples each. A random action is ±ε, sample by sample. The budget holds
      before the rounding to 16 bits, which may add half a step.

    Raises:
      ValueError: if `epsilon` is negative or not finite.
    """
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise ValueError(f"epsilon must be a finite number ≥ 0 (largest deviation of a sample), got {epsilon}.")

    def sample(key: Array, point: Point) -> Array:
        return epsilon * jax.random.rademacher(key, point.content.shape, jnp.float32)

    def project(point: Point, action: Array) -> Array:
        x = point.content
        delta = jnp.clip(_expand(point, action), -epsilon, epsilon)
        return jnp.clip(delta, jnp.minimum(-1.0 - x, 0.0), jnp.maximum(1.0 - x, 0.0))  # x beyond ±1 is left alone

    def size(point: Point, delta: Array) -> Array:
        return jnp.max(jnp.abs(dsp.masked(delta, point.length)))

    return _space("waveform", sample_rate, epsilon, "linf", sample, project, size)


def noise(sample_rate: int = 16000, *, epsilon: float = 10 ** (-30 / 20)) -> Space:
    r"""Adds a signal whose level follows the speech: :math:`\mathrm{RMS}(\delta) = \epsilon \, \mathrm{RMS}(x)`.

    Its random actions are white Gaussian noise at a signal-to-noise ratio of :math:`-20 \log_{10} \epsilon` dB: the
    control of the other spaces. Any other attacker may shape the noise.

    Args:
      sample_rate: Hz.
      epsilon: RMS of δ over that of the speech; default 30 dB below it. 0 gives x to the bit.

    Returns:
      A :class:`~jaxhack.types.Space` like :func:`waveform`'s. Silence gets no noise.

    Raises:
      ValueError: if `epsilon` is negative or not finite.
    """
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise ValueError(
            f"epsilon must be a finite number ≥ 0 (RMS of the noise over that of speech), got {epsilon}."
        )

    def sample(key: Array, point: Point) -> Array:
        return jax.random.normal(key, point.content.shape, jnp.float32)

    def project(point: Point, action: Array) -> Array:
        a, largest = unit_peak(_expand(point, action))
        scale = epsilon * jnp.sqrt(_energy(point.content) / jnp.maximum(_energy(a), TINY))
        return jnp.where(largest > TINY, scale, 0.0) * a

    def size(point: Point, delta: Array) -> Array:
        energy = _energy(point.content)
        return jnp.where(energy > 0, jnp.sqrt(_energy(delta) / jnp.where(energy > 0, energy, 1.0)), 0.0)

    return _space("noise", sample_rate, epsilon, "rms", sample, project, size)


def _space(name, sample_rate, epsilon, norm, sample, project, size) -> Space:
    return Space(
        name=name,
        sample_rate=sample_rate,
        epsilon=float(epsilon),
        norm=norm,
        action_shape=(round(TILE * sample_rate),),
        feature_size=BANDS,
        encode=_encode,
        expand=_expand,
        sample=sample,
        project=project,
        render=lambda point, delta: point.content + delta,
        size=size,
    )


def _encode(wav: Array, length: Array) -> Point:
    x = dsp.masked(wav, length)
    frames = jnp.pad(x, (0, -x.shape[0] % FRAME)).reshape(-1, FRAME)
    power = jnp.square(jnp.abs(jnp.fft.rfft(frames)))[:, : FRAME // 2].reshape(-1, BANDS, FRAME // 2 // BANDS)
    count = -(-length // FRAME)
    return Point(standardised(jnp.log(1e-5 + jnp.sum(power, -1)), count), x, count, length)


def _expand(point: Point, action: Array) -> Array:
    size = point.content.shape[0]
    return dsp.masked(jnp.tile(action, -(-size // action.shape[0]))[:size], point.length)


def _energy(wav: Array) -> Array:
    return jnp.sum(jnp.square(wav))
