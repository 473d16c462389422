"""Tiny ports in place of published models: what the host side is tested with."""

import jax.numpy as jnp
import numpy as np

from jaxhack.types import Codec, Predictor, Weight
from ports.weight_file import weight_file

WEIGHTS = (
    Weight(
        file="fake.bin",
        folder="fake",
        sha256="b5d54c39e66671c9731b9f471e585d8262cd4f54963f0c93082d8dcf334d4c78",
        size=4,
        source="https://127.0.0.1:9/fake.bin",
        licence="CC-BY-NC-SA-4.0",
        origin="fake v1",
    ),
)

TO_BRING = (Weight("own.bin", "own", None, None, None, "MIT", "own v1"),)


def _heads(params, wav, length):
    """Level in dB (-100 for silence), and how often the sign changes a second: the padding must not count."""
    counts = jnp.arange(wav.shape[0]) < length
    energy = jnp.sum(jnp.where(counts, wav, 0.0) ** 2) / length.astype(jnp.float32)
    changes = jnp.sum(jnp.where(counts[1:], jnp.signbit(wav[1:]) != jnp.signbit(wav[:-1]), False))
    level = 10.0 * jnp.log10(jnp.maximum(energy, 1e-10))
    return params["gain"] * jnp.stack([level, changes.astype(jnp.float32) / length.astype(jnp.float32)])


def level(paths=None, *, sample_rate=16000, max_samples=None, any_rate=True) -> Predictor:
    return Predictor(
        name="level",
        sample_rate=sample_rate,
        params={"gain": jnp.float32(1.0)},
        heads=_heads,
        head_names=("level", "changes"),
        scale=(-100.0, 0.0),
        differentiable=True,
        min_samples=sample_rate // 5,
        max_samples=max_samples,
        at_rate=(lambda rate: level(sample_rate=rate, max_samples=max_samples)) if any_rate else None,
    )


def level_16k(paths=None) -> Predictor:
    return level(any_rate=False)


def delayed_codec(paths=None) -> Codec:
    """Frames of 160 samples, halved, eight samples late."""

    def encode(params, wav):
        padded = jnp.pad(wav, (8, -(wav.shape[0]) % 160))[: -(-wav.shape[0] // 160) * 160]
        return padded.reshape(-1, 160)

    return Codec(
        name="delayed",
        sample_rate=16000,
        hop=160,
        channels=160,
        params=jnp.float32(0.5),
        encode=encode,
        decode=lambda params, z: params * z.reshape(-1),
        delay=8,
    )


def brought(paths) -> Codec:
    """A codec of a file that has no hash."""
    _, digest = weight_file("own", "own.bin", paths)
    return delayed_codec()._replace(weights={"own.bin": digest})


def speechlike(seconds: float, rate: int = 16000, seed: int = 0) -> np.ndarray:
    """Noise below 3 kHz with a syllable rhythm, peak below 0.9; the same at any rate, seed by seed."""
    time = np.arange(round(seconds * rate)) / rate
    rng = np.random.default_rng(seed)
    tones = sum(
        rng.uniform(0.3, 1) * np.sin(2 * np.pi * (frequency * time + rng.uniform()))
        for frequency in rng.uniform(100, 3000, 12)
    )
    wav = tones * (0.55 + 0.45 * np.sin(2 * np.pi * 3 * time + seed))
    return (0.075 * wav).astype(np.float32)
