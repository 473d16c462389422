"""The continuous latent of a neural codec: ``y = Dec(z + δ ⊙ s_z)`` with RMS(δ) = ε."""

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxhack.arrays import read_npz
from jaxhack.parallel import mapped
from jaxhack.types import Array, Codec, Point, Space, Unsuited

TINY = 1e-12  # an action with a smaller peak has no direction and moves nothing


class Statistics(NamedTuple):
    """Per-channel statistics of a codec's latent, over the valid frames of a training set."""

    mean: Array  # [C] float32
    scale: Array  # [C] float32, standard deviation s_z


def latent(codec: Codec, *, epsilon: float = 0.5, statistics: Statistics | None = None) -> Space:
    r"""Perturbs a codec's continuous latent by an offset of fixed size.

    An action ``a`` is one offset per channel ``[C]``, held over time, or one per frame ``[N, C]``. It is rescaled so
    that its root mean square over valid frames and channels is exactly :math:`\epsilon`, whatever its length:

    .. math:: \delta = \epsilon \, a / \mathrm{RMS}(a), \qquad y = \mathrm{Dec}(z + \delta \odot s_z)

    Args:
      codec: the chain that the perturbation passes through; x̂ = Dec(z).
      epsilon: RMS of δ in standardised latent units (the paper's default is 0.5). 0 gives x̂ to the bit.
      statistics: per-channel mean and standard deviation s_z of the training set, see :func:`latent_statistics`.
        None takes each utterance's own.

    Returns:
      A :class:`~jaxhack.types.Space` with actions ``[C]`` and features ``[N, C]``, the standardised latent.

    Raises:
      ValueError: if `epsilon` is negative or not finite.

    Source: "How Hackable Is Your Speech Quality Metric?", section III.
    """
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise ValueError(f"epsilon must be a finite number ≥ 0 (RMS in standardised latent units), got {epsilon}.")

    def encode(wav: Array, length: Array) -> Point:
        z = codec.encode(codec.params, wav)
        frames = -(-length // codec.hop)
        mean, scale = statistics or _own_statistics(z, frames)
        return Point(standardised(z, frames, mean, scale), (z, jnp.asarray(scale, z.dtype)), frames, length)

    def expand(point: Point, action: Array) -> Array:
        whole = jnp.broadcast_to(action, point.features.shape)
        return jnp.where(_valid(point.features, point.frames), whole, 0.0)

    def sample(key: Array, point: Point) -> Array:
        del point
        return jax.random.normal(key, (codec.channels,), jnp.float32)

    def project(point: Point, action: Array) -> Array:
        a, largest = unit_peak(expand(point, action))
        rms = _rms(a, point.frames)
        return jnp.where(largest > TINY, epsilon / jnp.where(rms > 0, rms, 1.0), 0.0) * a

    def render(point: Point, delta: Array) -> Array:
        z, scale = point.content
        return codec.decode(codec.params, z + delta * scale)

    def size(point: Point, delta: Array) -> Array:
        return _rms(delta, point.frames)

    return Space(
        name=f"latent-{codec.name}",
        sample_rate=codec.sample_rate,
        epsilon=float(epsilon),
        norm="rms",
        action_shape=(codec.channels,),
        feature_size=codec.channels,
        encode=encode,
        expand=expand,
        sample=sample,
        project=project,
        render=render,
        size=size,
        weights=codec.weights,
    )


def quantised(codec: Codec, *, epsilon: float = 0.5, statistics: Statistics | None = None) -> Space:
    """Perturbs what a residual quantiser hands to the decoder: :func:`latent` of the codec :func:`rounding`.

    Args:
      codec: a codec that has a quantiser; x̂ = Dec(z_q), with all its published stages.
      epsilon: as in :func:`latent`.
      statistics: of the quantised latent, those of ``latent_statistics(rounding(codec), …)``.

    Raises:
      ValueError: `codec` has no quantiser; or as :func:`latent`.
    """
    space = latent(rounding(codec), epsilon=epsilon, statistics=statistics)
    return space._replace(name=f"quantised-{codec.name}")


def rounding(codec: Codec) -> Codec:
    """The codec whose latent is the quantised one, with the most of its published numbers of stages.

    Raises:
      ValueError: `codec` has no quantiser.
    """
    if codec.codes is None:
        raise Unsuited(f"{codec.name} has no quantiser: attack its continuous latent, or take another codec.")
    stages = max(codec.stages)
    return codec._replace(encode=lambda params, wav: codec.quantise(params, codec.encode(params, wav), stages))


def latent_statistics(codec: Codec, wavs: Iterable[tuple[np.ndarray, np.ndarray]]) -> Statistics:
    """Mean and standard deviation of each latent channel over a training set.

    Args:
      codec: whose latent.
      wavs: batches ``(wav [B, T] float32, length [B] int32)`` at the codec's sample rate; only one batch is held at
        a time.

    Returns:
      Statistics ``[C]``; a channel that never moves gets scale 1.

    Raises:
      ValueError: if there is no valid frame.
    """

    def moments(wav, length):
        z = codec.encode(codec.params, wav)
        frames = -(-length // codec.hop)
        z = jnp.where(_valid(z, frames), z, 0.0)
        centre = jnp.sum(z, 0) / jnp.maximum(frames, 1).astype(z.dtype)  # two-pass: no cancellation
        spread = jnp.sum(jnp.where(_valid(z, frames), jnp.square(z - centre), 0.0), 0)
        return centre, spread, frames

    run = jax.jit(mapped(moments))
    parts = [jax.device_get(run(jnp.asarray(w), jnp.asarray(n))) for w, n in wavs]
    if not parts or not (total := sum(p[2].sum() for p in parts)):
        raise ValueError("The latent's statistics need at least one training clip with one frame of audio.")
    centre = np.concatenate([p[0] for p in parts]).astype(np.float64)
    spread = np.concatenate([p[1] for p in parts]).astype(np.float64)
    frames = np.concatenate([p[2] for p in parts]).astype(np.float64)[:, None]
    mean = (frames * centre).sum(0) / total
    variance = (spread + frames * np.square(centre - mean)).sum(0) / total
    scale = np.where(variance > 0, np.sqrt(variance), 1.0)
    return Statistics(jnp.asarray(mean, jnp.float32), jnp.asarray(scale, jnp.float32))


def save_statistics(path: Path, statistics: Statistics) -> None:
    """Writes an ``.npz`` file, complete or not at all."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        np.savez(file, mean=np.asarray(statistics.mean, np.float32), scale=np.asarray(statistics.scale, np.float32))
    os.replace(part, path)


def load_statistics(path: Path, channels: int) -> Statistics:
    """Reads what :func:`save_statistics` wrote, of a latent of so many `channels`; nothing in it is executed.

    Raises:
      ValueError: the file is damaged, or of another latent.
    """
    wanted = dict.fromkeys(Statistics._fields, ((channels,), np.dtype(np.float32)))
    found = read_npz(path, wanted, f"it does not hold statistics of a latent of {channels} channels; audit again")
    if not (np.isfinite(found["mean"]).all() and np.isfinite(found["scale"]).all() and (found["scale"] > 0).all()):
        raise ValueError(f"{path} holds statistics that are not finite, or scales that are not above 0: audit again.")
    return Statistics(**{name: jnp.asarray(values) for name, values in found.items()})


def unit_peak(action: Array) -> tuple[Array, Array]:
    """An action scaled to a peak of 1, so that squaring neither overflows nor vanishes, and its peak ``[]``."""
    largest = jnp.max(jnp.abs(action))
    return action / jnp.where(largest > TINY, largest, 1.0), largest


def _valid(z: Array, frames: Array) -> Array:
    return (jnp.arange(z.shape[0]) < frames)[:, None]


def _rms(delta: Array, frames: Array) -> Array:
    """Root mean square over the valid frames; what lies beyond them must be zero."""
    count = jnp.maximum(frames, 1).astype(delta.dtype) * delta.shape[1]
    return jnp.sqrt(jnp.sum(jnp.square(delta)) / count)


def standardised(z: Array, frames: Array, mean: Array | None = None, scale: Array | None = None) -> Array:
    """Features ``z [N, C]`` with mean 0 and deviation 1 in each channel; zero beyond the valid `frames`.

    `mean` and `scale` ``[C]`` are the utterance's own where they are not given.
    """
    if mean is None or scale is None:
        mean, scale = _own_statistics(z, frames)
    return jnp.where(_valid(z, frames), (z - mean) / scale, 0.0)


def _own_statistics(z: Array, frames: Array) -> Statistics:
    valid = _valid(z, frames)
    count = jnp.maximum(frames, 1).astype(z.dtype)
    mean = jnp.sum(jnp.where(valid, z, 0.0), 0) / count
    variance = jnp.sum(jnp.where(valid, jnp.square(z - mean), 0.0), 0) / count
    return Statistics(mean, jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1.0)), 1.0))
