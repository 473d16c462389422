"""DistillMOS in Flax: speech quality from a waveform alone, with the weights of the package ``distillmos`` (MIT).

B. Stahl and H. Gamper, "Distillation and Pruning for Scalable Self-Supervised Representation-Based Speech Quality
Assessment", ICASSP 2025; variant 7, as ``distillmos`` 0.9.1 runs it:

- 16 kHz; segments of 7.68 s (122 880 samples), each divided by its own maximum: the score knows no level. A shorter
  clip is padded with zeros, which the network sees; a longer one is cut into segments at most 1 s apart, the first
  at its beginning and the last at its end, and their scores are averaged.
- A convolutional network over the compressed complex spectrogram makes 384 frames of features of a segment; a
  transformer and attention pooling make a score of them.

Where a segment begins is computed in whole numbers here, in floating point there: it may be off by one sample. The
compression (magnitude to the power of 0.3) is so steep at zero that gradients on digital silence are huge; here they
are finite, the original's are NaN.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxhack.types import Array, Predictor, PyTree, Weight
from ports.checkpoint import read_torch, strict_load
from ports.transformer import Dense, dot, stack
from ports.two_ways import two_ways
from ports.weight_file import weight_file

SAMPLE_RATE = 16_000
SEGMENT = 122_880  # samples, 7.68 s
HOP = 16_000  # samples, the most from one segment to the next
FRAME, STEP = 320, 160  # samples
MIN_SAMPLES = FRAME  # less than one analysis frame: nothing but padding to judge
CONVOLUTIONS = (  # channels, stride in frequency, stride in time
    (64, 1, 1),
    (64, 2, 1),
    (128, 2, 1),
    (256, 2, 1),
    (256, 2, 1),
    (256, 2, 2),
)
FRAMES, BANDS = 384, 4  # what the convolutions leave
CHANNELS, HEADS, FEED_FORWARD, LAYERS = 200, 8, 400, 7

DISTILLMOS_WEIGHTS = (
    Weight(
        file="distill_mos_v7.pt",
        folder="distillmos",
        sha256="b18b3ac60227267cfb91e5d00ce22cc7b73716fd92f269484da1446e27031a40",
        size=16_907_522,
        source="pypi:distillmos==0.9.1:distillmos/weights/distill_mos_v7.pt",
        licence="MIT",
        origin="microsoft/Distill-MOS, distillmos 0.9.1",
    ),
)


def distillmos(paths: Mapping[str, Path], *, dtype: Any = jnp.float32) -> Predictor:
    """DistillMOS: one head, mos, 1 … 5, of ``wav [T]`` at 16 kHz, −1 … 1; level-invariant.

    Args:
        paths: where ``distill_mos_v7.pt`` (:data:`DISTILLMOS_WEIGHTS`) is.
        dtype: of the products' factors; ``jnp.bfloat16`` halves their memory and changes scores by up to 0.003.

    Returns:
        A differentiable predictor; NaN below 320 samples.

    Raises:
        ValueError: no such file, not this model's weights, down to a tensor's name; or a value is not finite.
    """
    file = DISTILLMOS_WEIGHTS[0].file
    path, digest = weight_file("distillmos", file, paths)
    net = DistillMos(dtype)

    def heads(params: PyTree, wav: Array, length: Array) -> Array:
        return _score(net, params, wav, jnp.asarray(length, jnp.int32))[None]

    return Predictor(
        name="distillmos",
        sample_rate=SAMPLE_RATE,
        params=_load(path),
        heads=heads,
        head_names=("mos",),
        scale=(1.0, 5.0),
        differentiable=True,
        min_samples=MIN_SAMPLES,
        weights={file: digest},
    )


# Segments


def segment_count(length: Array) -> Array:
    """Segments of a clip of ``length []`` samples: [] int32, 1 or more."""
    return 1 + -(-jnp.maximum(length - SEGMENT, 0) // HOP)


def segment_start(index: Array, length: Array) -> Array:
    """The first sample of segment ``index []``: spread evenly from the clip's beginning to its end."""
    spare, gaps = jnp.maximum(length - SEGMENT, 0), jnp.maximum(segment_count(length) - 1, 1)
    return index * (spare // gaps) + index * (spare % gaps) // gaps  # not index · spare, which may overflow


def _score(net: "DistillMos", params: PyTree, wav: Array, length: Array) -> Array:
    """Mean over the clip's segments, NaN below ``MIN_SAMPLES``: []."""
    most = 1 + -(-max(wav.shape[0] - SEGMENT, 0) // HOP)
    wav = jnp.where(jnp.arange(wav.shape[0]) < length, wav, 0.0)
    wav = jnp.pad(wav, (0, max(SEGMENT - wav.shape[0], 0)))

    @jax.checkpoint  # a gradient's memory is that of one segment
    def segment(index: Array) -> Array:
        cut = lax.dynamic_slice(wav, (segment_start(index, length),), (SEGMENT,))
        return jnp.asarray(net.apply({"params": params}, cut))

    def step(index: Array) -> Array:  # a loop with a dynamic number of turns has no gradient, a scan has
        return lax.cond(index < count, segment, lambda _: jnp.zeros(()), index)

    count = jnp.where(length >= MIN_SAMPLES, segment_count(length), 0)
    total = jnp.sum(lax.map(step, jnp.arange(most, dtype=jnp.int32)))
    return jnp.where(count > 0, total / jnp.maximum(count, 1).astype(jnp.float32), jnp.nan)


# The network


class DistillMos(nn.Module):
    """One segment ``[122880]`` to its score [], 1 … 5."""

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, segment: Array) -> Array:
        """See the class."""
        x = compressed_spectrum(segment / (jnp.max(jnp.abs(segment)) + 1e-8))
        for i, (channels, down, along) in enumerate(CONVOLUTIONS):
            x = Conv(channels, down, along, self.dtype, name=f"conv{i}")(x)
            x = jnp.where(x > 0, x, 0.1 * x)
        x = x.transpose(1, 0, 2).reshape(FRAMES, -1)
        x = Dense(CHANNELS, self.dtype, name="projection")(x)
        x = x + self.param("positions", nn.initializers.zeros, (FRAMES, CHANNELS))
        layers = stack(
            LAYERS, heads=HEADS, feed_forward=FEED_FORWARD, activation=nn.relu, dtype=self.dtype, name="layers"
        )
        x, _ = layers(x, jnp.ones(FRAMES, bool), None)
        scale = self.param("scale", nn.initializers.ones, (CHANNELS,))
        x = x * scale + self.param("bias", nn.initializers.zeros, (CHANNELS,))
        attention = Dense(1, name="linear2")(nn.relu(Dense(2 * CHANNELS, self.dtype, name="linear1")(x)))
        pooled = jax.nn.softmax(attention[:, 0]) @ x
        return 1.0 + 4.0 * nn.sigmoid(Dense(1, name="linear3")(pooled)[0])


def compressed_spectrum(segment: Array) -> Array:
    """Complex spectrogram with magnitudes to the power of 0.3: ``[122880]`` -> [161 bands, 768 frames, (re, im)].

    Frames of 20 ms every 10 ms under a Hann window, reflected at both ends; magnitudes below 1e-12 count as that.
    """
    edge = (FRAME - STEP) // 2
    steps = jnp.pad(segment, edge, mode="reflect").reshape(-1, STEP)
    hann = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME) / FRAME)).astype(np.float32)
    spectrum = jnp.fft.rfft(jnp.concatenate([steps[:-1], steps[1:]], axis=1) * hann)
    power = spectrum.real**2 + spectrum.imag**2
    gain = jnp.maximum(power, 1e-24) ** -0.35
    return jnp.stack([spectrum.real.T * gain.T, spectrum.imag.T * gain.T], axis=-1)


class Conv(nn.Module):
    """A 3 × 3 convolution of [H, W, C], padded along W alone."""

    features: int
    down: int  # stride along H
    along: int  # stride along W
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Return [(H − 3) // down + 1, (W − 1) // along + 1, features]."""
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (3, 3 * x.shape[2], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        return two_ways(self._convolution, self._products)(x, kernel) + bias

    def _convolution(self, x: Array, kernel: Array) -> Array:
        return lax.conv_general_dilated(
            x[None].astype(self.dtype),
            kernel.reshape(3, 3, x.shape[2], -1).astype(self.dtype),
            (self.down, self.along),
            ((0, 0), (1, 1)),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            precision=lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )[0]

    def _products(self, x: Array, kernel: Array) -> Array:
        """Three matrix products: one for each row of taps."""
        height, width = (x.shape[0] - 3) // self.down + 1, x.shape[1]
        x = jnp.pad(x, ((0, 0), (1, 1), (0, 0)))
        x = jnp.concatenate([x[:, j : j + width : self.along] for j in range(3)], axis=-1)
        rows = [x[i : i + self.down * (height - 1) + 1 : self.down] for i in range(3)]
        return jnp.asarray(sum(dot(row, kernel[i], self.dtype) for i, row in enumerate(rows)))


# Loading

_HEAD = "transformer_pool_attn."
_NORMS = {f"{_HEAD}norm_input": 1024, f"{_HEAD}transformer.norm": 1024, f"{_HEAD}norm_trans": CHANNELS}


def _load(path: Path) -> PyTree:
    saved = read_torch(path)
    if not isinstance(saved.get("model"), dict):
        raise ValueError(f"{path} holds {sorted(map(str, saved))}; expected DistillMOS's model.")
    tensors = strict_load(saved["model"], _shapes(), ignore=[f"{norm}.num_batches_tracked" for norm in _NORMS])
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), _params(tensors))


def _layer(i: int) -> str:
    return f"{_HEAD}transformer.transformer_encoder.layers.{i}."


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {f"{_HEAD}transformer.position_encoding.pe": (1, FRAMES, CHANNELS)}
    inputs = 2
    for i, (channels, _, _) in enumerate(CONVOLUTIONS):
        shapes |= {f"cnn.cnn.{2 * i}.weight": (channels, inputs, 3, 3), f"cnn.cnn.{2 * i}.bias": (channels,)}
        inputs = channels
    for norm, size in _NORMS.items():
        shapes |= {f"{norm}.{x}": (size,) for x in ("weight", "bias", "running_mean", "running_var")}
    linear = {
        f"{_HEAD}transformer.linear_proj.": (CHANNELS, BANDS * inputs),
        f"{_HEAD}pool.linear1.": (2 * CHANNELS, CHANNELS),
        f"{_HEAD}pool.linear2.": (1, 2 * CHANNELS),
        f"{_HEAD}pool.linear3.": (1, CHANNELS),
    }
    for i in range(LAYERS):
        linear[f"{_layer(i)}self_attn.in_proj_"] = (3 * CHANNELS, CHANNELS)
        linear[f"{_layer(i)}self_attn.out_proj."] = (CHANNELS, CHANNELS)
        linear[f"{_layer(i)}linear1."] = (FEED_FORWARD, CHANNELS)
        linear[f"{_layer(i)}linear2."] = (CHANNELS, FEED_FORWARD)
        shapes |= {f"{_layer(i)}{norm}.{x}": (CHANNELS,) for norm in ("norm1", "norm2") for x in ("weight", "bias")}
    for name, shape in linear.items():
        shapes |= {f"{name}weight": shape, f"{name}bias": shape[:1]}
    return shapes


def _params(tensors: Mapping[str, np.ndarray]) -> PyTree:
    """The official tensors as the parameters of :class:`DistillMos`, batch norms folded into what follows them."""

    def linear(name: str) -> dict[str, np.ndarray]:
        return {"kernel": tensors[f"{name}weight"].T, "bias": tensors[f"{name}bias"]}

    def norm(name: str) -> dict[str, np.ndarray]:
        return {"scale": tensors[f"{name}.weight"], "bias": tensors[f"{name}.bias"]}

    def batch_norm(name: str) -> tuple[np.ndarray, np.ndarray]:
        """As ``scale · x + bias``, float64."""
        t = {x: tensors[f"{name}.{x}"].astype(np.float64) for x in ("weight", "bias", "running_mean", "running_var")}
        scale = t["weight"] / np.sqrt(t["running_var"] + 1e-5)
        return scale, t["bias"] - t["running_mean"] * scale

    (scale1, bias1), (scale2, bias2), (scale, bias) = (batch_norm(name) for name in _NORMS)
    weight = tensors[f"{_HEAD}transformer.linear_proj.weight"].astype(np.float64)
    projection = (weight * scale1 * scale2).reshape(CHANNELS, -1, BANDS).transpose(2, 1, 0)  # ours: band, channel
    layers = [
        {
            "qkv": linear(f"{_layer(i)}self_attn.in_proj_"),
            "out": linear(f"{_layer(i)}self_attn.out_proj."),
            **{name: linear(f"{_layer(i)}{name}.") for name in ("linear1", "linear2")},
            **{name: norm(f"{_layer(i)}{name}") for name in ("norm1", "norm2")},
        }
        for i in range(LAYERS)
    ]
    params: dict[str, PyTree] = {
        "projection": {
            "kernel": projection.reshape(-1, CHANNELS),
            "bias": tensors[f"{_HEAD}transformer.linear_proj.bias"] + weight @ (bias1 * scale2 + bias2),
        },
        "positions": tensors[f"{_HEAD}transformer.position_encoding.pe"][0],
        "layers": jax.tree.map(lambda *x: np.stack(x), *layers),
        "scale": scale,
        "bias": bias,
        **{name: linear(f"{_HEAD}pool.{name}.") for name in ("linear1", "linear2", "linear3")},
    }
    for i, (channels, _, _) in enumerate(CONVOLUTIONS):
        kernel = tensors[f"cnn.cnn.{2 * i}.weight"].transpose(2, 3, 1, 0)
        params[f"conv{i}"] = {"kernel": kernel.reshape(3, -1, channels), "bias": tensors[f"cnn.cnn.{2 * i}.bias"]}
    return params
