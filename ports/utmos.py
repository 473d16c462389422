"""UTMOS22, strong learner: naturalness of speech, after fine-tuned wav2vec 2.0 features.

T. Saeki et al., "UTMOS: UTokyo-SaruLab System for VoiceMOS Challenge 2022", Interspeech 2022. The weights are those
that github.com/tarepan/SpeechMOS (MIT) publishes, of the main track, without the phoneme encoder and with one domain
and one judge built in. Every frame of the encoder gets the embeddings of domain and judge beside it; an LSTM in both
directions and two linear maps score it; the utterance's score is twice the mean over frames, plus 3.

The original gives the network no lengths, so in a batch its scores depend on the padding; here they are those of each
clip alone. The waveform is taken as it is.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxhack.types import Array, Predictor, PyTree, Weight
from ports.checkpoint import read_torch
from ports.lstm import Lstm, from_torch, torch_shapes
from ports.transformer import Dense
from ports.wav2vec2 import (
    SAMPLE_RATE,
    WAV2VEC2_BASE,
    Config,
    Encoder,
    frame_count,
    load,
    mean_over_frames,
    min_samples,
)
from ports.weight_file import weight_file

EMBEDDING = 128  # channels of the domain's and of the judge's

UTMOS_WEIGHTS = (
    Weight(
        file="utmos22_strong_step7459_v1.pt",
        folder="utmos",
        # As three unrelated projects pin the file and its mirror; it was not at hand when this was written.
        sha256="38aa51ab79e2a4e09a1449758a4b37e9cbb2e8235a49662a732d33a9ba1e9bff",
        size=411_179_119,
        source="https://github.com/tarepan/SpeechMOS/releases/download/v1.0.0/utmos22_strong_step7459_v1.pt",
        licence="MIT",
        origin="tarepan/SpeechMOS v1.0.0, after sarulab-speech/UTMOS22",
    ),
)


def utmos(
    paths: Mapping[str, Path],
    *,
    config: Config = WAV2VEC2_BASE,
    hidden: int = 512,
    projection: int = 2048,
    dtype: Any = jnp.float32,
) -> Predictor:
    """UTMOS22 strong: one head, mos, of ``wav [T]`` at 16 kHz, −1 … 1; unbounded.

    Args:
        paths: where ``utmos22_strong_step7459_v1.pt`` (:data:`UTMOS_WEIGHTS`) is.
        config: the encoder's architecture.
        hidden: channels of each direction of the LSTM.
        projection: channels between the two linear maps.
        dtype: of the products' factors outside the recurrence, see :class:`ports.wav2vec2.Encoder`.

    Returns:
        A differentiable predictor; NaN below 400 samples, the encoder's first frame.

    Raises:
        ValueError: no such file, not this model's weights, down to a tensor's name; or a value is not finite.
    """
    file = UTMOS_WEIGHTS[0].file
    path, digest = weight_file("utmos", file, paths)
    net, shortest = Utmos(config, hidden, projection, dtype), min_samples(config)

    def heads(params: PyTree, wav: Array, length: Array) -> Array:
        scores = jnp.asarray(net.apply({"params": params}, wav, length))
        return jnp.where(length >= shortest, 2.0 * mean_over_frames(config, scores, length) + 3.0, jnp.nan)

    return Predictor(
        name="utmos",
        sample_rate=SAMPLE_RATE,
        params=_load(path, config, hidden, projection),
        heads=heads,
        head_names=("mos",),
        scale=(1.0, 5.0),
        differentiable=True,
        min_samples=shortest,
        weights={file: digest},
    )


class Utmos(nn.Module):
    """``wav [T]``, ``length []`` -> a score of every frame [F, 1], in units of the training, (MOS − 3) / 2."""

    config: Config
    hidden: int
    projection: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, wav: Array, length: Array) -> Array:
        """See the class."""
        x = Encoder(self.config, self.dtype, name="encoder")(wav, length)[-1]
        valid = jnp.arange(x.shape[0]) < frame_count(self.config, length)
        embeddings = self.param("embeddings", nn.initializers.normal(), (2 * EMBEDDING,))  # domain, judge
        x = jnp.concatenate([x, jnp.broadcast_to(embeddings, (x.shape[0], 2 * EMBEDDING))], axis=1)
        directions = [
            Lstm(self.hidden, reverse=False, dtype=self.dtype, name="forward")(x, valid),
            Lstm(self.hidden, reverse=True, dtype=self.dtype, name="backward")(x, valid),
        ]
        x = nn.relu(Dense(self.projection, self.dtype, name="linear1")(jnp.concatenate(directions, axis=1)))
        return Dense(1, name="linear2")(x)


# Loading

_DIRECTIONS = (("forward", ""), ("backward", "_reverse"))


def _shapes(channels: int, hidden: int, projection: int) -> dict[str, tuple[int, ...]]:
    """The tensors beside the encoder's."""
    shapes: dict[str, tuple[int, ...]] = {"domain_emb": (1, EMBEDDING), "judge_emb": (1, EMBEDDING)}
    for _, end in _DIRECTIONS:
        shapes |= torch_shapes("blstm.", channels + 2 * EMBEDDING, hidden, f"l0{end}")
    for i, size in ((0, (projection, 2 * hidden)), (2, (1, projection))):
        shapes |= {f"projection.{i}.weight": size, f"projection.{i}.bias": size[:1]}
    return shapes


def _load(path: Path, config: Config, hidden: int, projection: int) -> PyTree:
    shapes = _shapes(config.channels, hidden, projection)
    encoder, own = load(read_torch(path), config, prefix="wav2vec2.", also=shapes)
    params: dict[str, PyTree] = {
        "embeddings": np.concatenate([own["domain_emb"][0], own["judge_emb"][0]]),
        "linear1": {"kernel": own["projection.0.weight"].T, "bias": own["projection.0.bias"]},
        "linear2": {"kernel": own["projection.2.weight"].T, "bias": own["projection.2.bias"]},
    }
    for direction, end in _DIRECTIONS:
        params[direction] = from_torch(own, "blstm.", f"l0{end}")
    return {"encoder": encoder, **jax.tree.map(jnp.asarray, params)}
