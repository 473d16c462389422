"""A codec and predictors small enough to know the right answer by hand."""

import csv
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from jaxhack import audio
from jaxhack.types import Codec, Embedder, Encoder, Predictor

HOP, CHANNELS, RATE = 16, 8, 16000
TARGET = np.random.default_rng(5).normal(size=CHANNELS).astype(np.float32)


BOOKS = np.random.default_rng(6).normal(size=(2, 12, CHANNELS)).astype(np.float32) * np.float32([[[0.1]], [[0.04]]])


def codec() -> Codec:
    """Each frame of 16 samples keeps its first 8; the decoder repeats them. The gain is a weight.

    The quantiser has two stages of 12 entries; the last channel is not quantised.
    """

    def encode(params, wav):
        wav = jnp.pad(wav, (0, -wav.shape[0] % HOP))
        return wav.reshape(-1, HOP)[:, :CHANNELS] * params["gain"]

    def decode(params, z):
        return jnp.concatenate([z, z], 1).reshape(-1) / params["gain"]

    def codes(params, z, stages):
        rest, found = z[:, :-1], []
        for book in params["books"][:stages]:
            found.append(jnp.argmin(jnp.sum((rest[:, None] - book) ** 2, -1), 1))
            rest = rest - book[found[-1]]
        return jnp.stack(found, 1).astype(jnp.int32)

    def dequantise(params, codes):
        return sum(book[index] for book, index in zip(params["books"], codes.T, strict=False))

    return Codec(
        "toy",
        RATE,
        HOP,
        CHANNELS,
        {"gain": jnp.float32(2.0), "books": jnp.asarray(BOOKS[:, :, :-1])},
        encode,
        decode,
        codes=codes,
        dequantise=dequantise,
        codebook_size=BOOKS.shape[1],
        stages=(1, 2),
        weights={"toy.bin": "0" * 64},
    )


def predictor(differentiable: bool = True) -> Predictor:
    """3 + 40 ⟨mean frame, target⟩ over the valid frames: an offset along the target is the best attack."""

    def heads(params, wav, length):
        frames = wav[: wav.shape[0] // HOP * HOP].reshape(-1, HOP)[:, :CHANNELS]
        valid = (jnp.arange(frames.shape[0]) < length // HOP)[:, None]
        mean = jnp.sum(jnp.where(valid, frames, 0.0), 0) / jnp.maximum(length // HOP, 1).astype(wav.dtype)
        score = 3.0 + 40.0 * jnp.dot(mean, params)
        return jnp.where(length >= HOP, score, jnp.nan)[None]

    return Predictor("toy", RATE, jnp.asarray(TARGET), heads, ("score",), (1.0, 5.0), differentiable, HOP)


def embedder() -> Embedder:
    """The direction of the mean frame."""

    def embed(params, wav, length):
        frames = wav[: wav.shape[0] // HOP * HOP].reshape(-1, HOP)[:, :CHANNELS]
        mean = jnp.sum(jnp.where((jnp.arange(frames.shape[0]) < length // HOP)[:, None], frames, 0.0), 0) + params
        return jnp.where(length >= HOP, mean / jnp.linalg.norm(mean), jnp.nan)

    return Embedder("toy", RATE, CHANNELS, jnp.asarray(TARGET), embed, HOP)


def encoder() -> Encoder:
    """The frames themselves, moved by a weight."""

    def features(params, wav, length):
        wav = jnp.pad(wav, (0, -wav.shape[0] % HOP))
        return wav.reshape(-1, HOP)[:, :CHANNELS] + 0.01 * params, length // HOP

    return Encoder("toy", RATE, CHANNELS, jnp.asarray(TARGET), features, HOP, weights={"encoder.bin": "1" * 64})


def speechlike(seconds: float, seed: int, rate: int = RATE) -> np.ndarray:
    """Noise under a slow envelope, peak near 0.3: has silent and active frames. ``[T]`` float32."""
    rng = np.random.default_rng(seed)
    n = round(seconds * rate)
    envelope = 0.5 + 0.5 * np.sin(2 * np.pi * 2.0 * np.arange(n) / rate + rng.uniform(0, 6))
    return (0.1 * envelope * rng.normal(size=n)).clip(-1, 1).astype(np.float32)


NO_WEIGHTS = ()


def listed(paths: dict) -> Predictor:
    """As an entry of the registry makes it."""
    return predictor()


def listed_codec(paths: dict) -> Codec:
    """As an entry of the registry makes it."""
    return codec()


def listed_chain(paths: dict) -> Codec:
    """As an entry called chain makes it."""
    return codec()._replace(name="chain")


def bursts(samples: int, seed: int = 0) -> np.ndarray:
    """Noise with a slow envelope, in which every band and every level occurs."""
    random = np.random.default_rng(seed)
    knots = random.normal(size=samples // 400 + 2)
    envelope = np.abs(np.interp(np.arange(samples), 400 * np.arange(len(knots)), knots))
    return (0.1 * envelope * random.normal(size=samples)).astype(np.float32)


def listed_clips(folder: Path, speakers: str) -> Path:
    """A list of clips of 0.9 s, one per letter, which names its speaker."""
    lines = ["file,speaker"]
    for i, speaker in enumerate(speakers):
        audio.write(folder / f"{speaker}{i}.wav", speechlike(0.9, i), RATE)
        lines.append(f"{speaker}{i}.wav,{speaker}")
    (folder / "list.csv").write_text("\n".join(lines))
    return folder / "list.csv"


def shared(folder: Path) -> Path:
    """Speech as experiments expect it in a folder: four speakers, a fifth of longer clips, and degraded copies."""
    lines: dict[str, list[dict]] = {"speech": [], "degraded": []}
    for name in (*lines, "models"):
        (folder / name).mkdir(parents=True)
    for i, speaker in enumerate("abcde"):
        seconds = 0.9 if speaker != "e" else 2.0
        lines["speech"].append({"file": f"{speaker}.wav", "seconds": seconds, "speaker": speaker})
        audio.write(folder / "speech" / f"{speaker}.wav", speechlike(seconds, i), RATE)
        for condition in ("opus_6", "noise_5dB"):
            name = f"{speaker}-{condition}.wav"
            lines["degraded"].append({"file": name, "clean_file": f"{speaker}.wav", "condition": condition})
            audio.write(folder / "degraded" / name, speechlike(seconds, i + 9), RATE)
    for name, found in lines.items():
        with (folder / name / "manifest.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(found[0]))
            writer.writeheader()
            writer.writerows(found)
    return folder
