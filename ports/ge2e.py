"""Resemblyzer's speaker encoder: who speaks, as a vector of unit length.

L. Wan et al., "Generalized End-to-End Loss for Speaker Verification", ICASSP 2018; weights and rules of the PyPI
package ``resemblyzer`` 0.1.4 (Apache-2.0). An utterance is cut into partial ones of 1.6 s, one every 0.77 s; the last
may be a quarter empty. Each goes, as the power in 40 mel bands, not its logarithm, through three LSTMs, a linear map
and a ReLU; the mean of the unit vectors, scaled to unit length, is the embedding.

This is the package's ``embed_utterance``. What its ``preprocess_wav`` does before is left out: raising quiet
recordings to −30 dBFS and cutting long silences away. The level matters, because the bands are not logarithmic: half
of it moves a recording to a cosine of 0.91 from itself. Embeddings compare where waveforms were treated alike.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import librosa
import numpy as np
from jax import lax

from jaxhack.types import Array, Embedder, PyTree, Weight
from ports.checkpoint import read_torch, strict_load
from ports.lstm import Lstm, from_torch, torch_shapes
from ports.transformer import Dense, dot
from ports.weight_file import weight_file

SAMPLE_RATE = 16_000
WINDOW, HOP, MELS = 400, 160, 40  # samples, samples, bands
PARTIAL, STEP = 160, 77  # frames of a partial utterance, and from one to the next
COVERED = PARTIAL * HOP * 3 // 4  # samples that a partial utterance holds, unless it is the first
SIZE, LAYERS = 256, 3
MIN_SAMPLES = WINDOW  # less than one analysis window: nothing but padding to hear

GE2E_WEIGHTS = (
    Weight(
        file="pretrained.pt",
        folder="ge2e",
        sha256="39373b86598fa3da9fcddee6142382efe09777e8d37dc9c0561f41f0070f134e",
        size=17_090_379,
        source="pypi:resemblyzer==0.1.4:resemblyzer/pretrained.pt",
        licence="Apache-2.0",
        origin="resemble-ai/Resemblyzer 0.1.4",
    ),
)


def ge2e(paths: Mapping[str, Path], *, dtype: Any = jnp.float32) -> Embedder:
    """The speaker encoder of Resemblyzer: 256 numbers, none negative, of ``wav [T]`` at 16 kHz, −1 … 1.

    Args:
        paths: where ``pretrained.pt`` (:data:`GE2E_WEIGHTS`) is.
        dtype: of the factors of the LSTMs' input products; all else is float32. ``jnp.bfloat16`` turns the embedding
            to a cosine of 1 − 4e-5 with itself.

    Returns:
        An embedder; NaN below 400 samples. Agrees with ``resemblyzer.VoiceEncoder.embed_utterance`` to 1e-4.

    Raises:
        ValueError: no such file, not this model's weights, down to a tensor's name; or a value is not finite.
    """
    file = GE2E_WEIGHTS[0].file
    path, digest = weight_file("ge2e", file, paths)
    net = Ge2e(dtype)

    def embed(params: PyTree, wav: Array, length: Array) -> Array:
        embedding = jnp.asarray(net.apply({"params": params}, wav, length))
        return jnp.where(length >= MIN_SAMPLES, embedding, jnp.nan)

    return Embedder(
        name="ge2e",
        sample_rate=SAMPLE_RATE,
        size=SIZE,
        params=_load(path),
        embed=embed,
        min_samples=MIN_SAMPLES,
        weights={file: digest},
    )


class Ge2e(nn.Module):
    """wav [T], length [] -> [256] of unit length."""

    dtype: Any = jnp.float32  # of the factors of the LSTMs' input products

    @nn.compact
    def __call__(self, wav: Array, length: Array) -> Array:
        """See the class."""
        starts = np.arange(1 + max(wav.shape[0] - COVERED, 0) // (STEP * HOP)) * STEP
        mel = mel_power(wav, int(starts[-1]) + PARTIAL)
        partials = nn.vmap(Partial, variable_axes={"params": None}, split_rngs={"params": False})
        embeddings = partials(self.dtype, name="partial")(mel[starts[:, None] + np.arange(PARTIAL)])
        held = (starts == 0) | (length >= starts * HOP + COVERED)
        return _unit(jnp.sum(jnp.where(held[:, None], embeddings, 0.0), axis=0))


class Partial(nn.Module):
    """Mel power of a partial utterance [160, 40] -> [256] of unit length."""

    dtype: Any = jnp.float32  # of the factors of the LSTMs' input products

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """See the class."""
        for layer in range(LAYERS):
            x = Lstm(SIZE, dtype=self.dtype, name=f"lstm{layer}")(x)
        return _unit(nn.relu(Dense(SIZE, name="linear")(x[-1])))


def mel_power(wav: Array, frames: int) -> Array:
    """Power in mel bands, [frames, 40], of ``wav [T]``, zero outside; frame i is centred on sample 160 i."""
    spans = -(-WINDOW // HOP)
    total = (frames + spans - 1) * HOP
    wav = jnp.pad(wav, (WINDOW // 2, max(total - WINDOW // 2 - wav.shape[0], 0)))
    blocks = wav[:total].reshape(-1, HOP)
    cut = jnp.concatenate([blocks[i : i + frames] for i in range(spans)], axis=1)[:, :WINDOW]
    spectrum = jnp.fft.rfft(cut * np.hanning(WINDOW + 1)[:-1].astype(np.float32))
    bank = librosa.filters.mel(sr=SAMPLE_RATE, n_fft=WINDOW, n_mels=MELS)
    return dot(spectrum.real**2 + spectrum.imag**2, jnp.asarray(bank.T))


def _unit(x: Array) -> Array:
    """``x`` scaled to unit length; zero stays zero, with a finite gradient."""
    return x * lax.rsqrt(jnp.maximum(jnp.sum(jnp.square(x)), 1e-24))


def _load(path: Path) -> PyTree:
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": (SIZE, SIZE), "linear.bias": (SIZE,)}
    for layer in range(LAYERS):
        shapes |= torch_shapes("lstm.", SIZE if layer else MELS, SIZE, f"l{layer}")
    state = read_torch(path).get("model_state")
    if not isinstance(state, dict):
        raise ValueError(f"{path} holds no 'model_state'; expected the checkpoint of Resemblyzer.")
    tensors = strict_load(state, shapes, ignore=("similarity_weight", "similarity_bias"))  # those of its training
    params: dict[str, PyTree] = {f"lstm{layer}": from_torch(tensors, "lstm.", f"l{layer}") for layer in range(LAYERS)}
    params["linear"] = {"kernel": tensors["linear.weight"].T, "bias": tensors["linear.bias"]}
    return {"partial": jax.tree.map(jnp.asarray, params)}
