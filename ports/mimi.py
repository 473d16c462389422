"""Mimi, Kyutai's neural codec for speech: 24 kHz, 12.5 frames a second.

A re-implementation in Flax of ``MimiModel`` in the PyPI package ``transformers`` (code Apache-2.0), whose file
``model.safetensors`` of https://huggingface.co/kyutai/mimi it loads (weights CC-BY-4.0, says the project's own
repository, https://github.com/kyutai-labs/moshi). A. Défossez et al., *Moshi: a speech-text foundation model for
real-time dialogue*, arXiv 2410.00037.

**The latent.** Mimi quantises two linear projections of its encoder's output apart, semantic and acoustic, and the
decoder sees the sum of two others. Where Kyutai's training code skips the quantiser (``no_quantization_rate``), it
keeps the projections. So the latent here is the two projections side by side, ``[N, 2 · 256]``: quantised or not,
the decoder can take it. The encoder's bare output is as wide, but no decoder was trained on it.

What differs from the original:

* The last frame is filled with zeros up to its 1920 samples, as in Kyutai's own package; ``transformers`` fills each
  layer's input instead. A waveform of whole frames gives the latent of both.
* The gradient of the quantiser is straight through as a whole; ``transformers`` has none.
* Nothing is streamed: all frames are computed at once, with the same result.

The model is causal, without exception: a frame depends on no later sample, so padding changes nothing. There is no
delay: the model was trained to give back the waveform aligned.
"""

import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxhack.types import Array, Codec, Weight
from ports.activations import elu
from ports.checkpoint import read_safetensors, strict_load
from ports.conv1d import HIGHEST, conv1d, from_torch, torch_shape, transposed1d
from ports.latents import check_latent, check_stages, check_wav, leaves, looked_up
from ports.transformer import stack
from ports.weight_file import weight_file

FILE = "model.safetensors"
MIMI_WEIGHTS = (Weight(FILE, "mimi", None, None, None, "CC-BY-4.0", "https://huggingface.co/kyutai/mimi"),)
_PARTS = ("semantic_residual_vector_quantizer", "acoustic_residual_vector_quantizer")
_LAYER = {  # what each parameter of a transformer layer is called in the original
    "qkv.kernel": tuple(f"self_attn.{x}_proj.weight" for x in "qkv"),
    "out.kernel": ("self_attn.o_proj.weight",),
    "scale1": ("self_attn_layer_scale.scale",),
    "linear1.kernel": ("mlp.fc1.weight",),
    "linear2.kernel": ("mlp.fc2.weight",),
    "scale2": ("mlp_layer_scale.scale",),
    "norm1.scale": ("input_layernorm.weight",),
    "norm1.bias": ("input_layernorm.bias",),
    "norm2.scale": ("post_attention_layernorm.weight",),
    "norm2.bias": ("post_attention_layernorm.bias",),
}


class Config(NamedTuple):
    """The architecture; the defaults are the published model."""

    filters: int = 64
    ratios: tuple[int, ...] = (8, 6, 5, 4)  # strides of the decoder, and those of the encoder backwards
    dimension: int = 512  # channels between the convolutions, and of the transformers
    layers: int = 8  # of each transformer
    heads: int = 8
    feed_forward: int = 2048
    window: int = 250  # rows that a row attends to, itself included; 25 rows a second
    codebooks: int = 32  # the first one semantic, the others acoustic
    entries: int = 2048  # of a codebook
    codebook_dimension: int = 256
    stages: tuple[int, ...] = (8, 32)  # codebooks: as the paper and Moshi use it, and all that were published

    @property
    def hop(self) -> int:
        """Samples a frame."""
        return 2 * math.prod(self.ratios)


MIMI = Config()


def mimi(paths: Mapping[str, Path], *, dtype: Any = jnp.float32) -> Codec:
    """The published model: 24 kHz, 1920 samples a frame, 512 channels; 137.5 b/s for each codebook.

    Args:
      paths: file name -> path, of ``model.safetensors``. Its SHA-256 is not pinned; the codec states it.
      dtype: of the products' factors in encoder and decoder; sums, norms, softmax, and the quantiser with its
        projections are float32. ``jnp.bfloat16`` moves the latent by 0.5 % (RMS) and the audio of one latent by
        −45 dB, with random weights.

    Raises:
      ValueError: the file is missing, damaged, or not what the architecture expects, down to a tensor's name.
    """
    path, digest = weight_file("mimi", FILE, paths)
    return codec(load(path), weights={FILE: digest}, dtype=dtype)


def codec(
    params: Any, config: Config = MIMI, weights: Mapping[str, str] | None = None, *, dtype: Any = jnp.float32
) -> Codec:
    """The codec with any parameters that fit `config`.

    `weights`: file name -> SHA-256; `dtype` as in :func:`mimi`.
    """
    return Codec(
        name="mimi",
        sample_rate=24000,
        hop=config.hop,
        channels=2 * config.codebook_dimension,
        params=params,
        encode=functools.partial(encode, config=config, dtype=dtype),
        decode=functools.partial(decode, config=config, dtype=dtype),
        delay=0,
        codes=functools.partial(codes, config=config),
        dequantise=dequantise,
        codebook_size=config.entries,
        stages=config.stages,
        weights=weights or {},
    )


def encode(params: Any, wav: Array, *, config: Config = MIMI, dtype: Any = jnp.float32) -> Array:
    """``wav [T]`` float32, −1..1 -> latent ``[ceil(T / 1920), 512]``; differentiable.

    Channels 0..255 are the semantic projection, the others the acoustic one.
    """
    check_wav(wav)
    wav = jnp.pad(wav, (0, -wav.shape[0] % config.hop))
    x = jnp.asarray(Encoder(config, dtype).apply({"params": params["encoder"]}, wav))
    return jnp.concatenate([conv1d(x, params["quantizer"][part]["input_proj"]["kernel"]) for part in _PARTS], axis=1)


def decode(params: Any, z: Array, *, config: Config = MIMI, dtype: Any = jnp.float32) -> Array:
    """Latent ``z [N, 512]`` float32 -> waveform ``[N · 1920]``, not clipped; differentiable."""
    check_latent("decode", z, 2 * config.codebook_dimension)
    return jnp.asarray(Decoder(config, dtype).apply({"params": params["decoder"]}, combined(params, z)))


def combined(params: Any, z: Array) -> Array:
    """What the decoder sees of latent ``z [N, 512]``: ``[N, 512]``, the original's quantised embedding."""
    halves = zip(jnp.split(z, 2, axis=1), _PARTS, strict=True)
    semantic, acoustic = (conv1d(x, params["quantizer"][part]["output_proj"]["kernel"]) for x, part in halves)
    return semantic + acoustic


def codes(params: Any, z: Array, stages: int, *, config: Config = MIMI) -> Array:
    """The transmitted numbers of latent ``z [N, 512]``: ``[N, stages]`` int32, 0..2047; 11 bits each.

    The first codebook is the semantic one. Any number of codebooks works, from 1 to 32.
    """
    check_latent("codes", z, 2 * config.codebook_dimension)
    check_stages(stages, config.codebooks, config.stages)

    def stage(rest: Array, book: Array) -> tuple[Array, Array]:
        product = jnp.matmul(rest, book.T, precision=HIGHEST)
        index = jnp.argmax(2 * product - jnp.sum(jnp.square(book), axis=1), axis=1)
        return rest - book[index], index.astype(jnp.int32)

    halves = zip(_PARTS, jnp.split(z, 2, axis=1), (1, stages - 1), strict=True)
    found = [lax.scan(stage, half, params["quantizer"][part]["codebooks"][:n])[1] for part, half, n in halves]
    return jnp.concatenate(found).T


def dequantise(params: Any, codes: Array) -> Array:
    """Latent ``[N, 512]`` of ``codes [N, S]``; of the semantic one alone, the acoustic half is zero."""
    halves = zip(_PARTS, (codes[:, :1], codes[:, 1:]), strict=True)
    return jnp.concatenate([looked_up(params["quantizer"][part]["codebooks"], x) for part, x in halves], axis=1)


# --- architecture; modules carry the names of the original's ---


_kernel_init = nn.initializers.lecun_normal()


class Conv(nn.Module):
    """Causal convolution ``[N, C] -> [N / stride, features]``, N whole strides, zeros before the signal."""

    features: int
    taps: int
    stride: int = 1
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """See the class."""
        kernel = self.param("kernel", _kernel_init, (self.taps, x.shape[1], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        x = jnp.pad(x, ((self.taps - self.stride, 0), (0, 0)))
        return conv1d(x, kernel, stride=self.stride, dtype=self.dtype) + bias


class ConvTransposed(nn.Module):
    """Causal transposed convolution ``[N, C] -> [N · stride, features]``, kernel two strides long."""

    features: int
    stride: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """See the class."""
        kernel = self.param("transposed_kernel", _kernel_init, (2 * self.stride, x.shape[1], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        x, n = transposed1d(x, kernel, stride=self.stride, dtype=self.dtype), x.shape[0] * self.stride
        return x[:n] + bias


class Downsample(nn.Module):
    """Two rows to one, ``[2N, C] -> [N, C]``; the first row repeated before the signal."""

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """See the class."""
        kernel = self.param("kernel", _kernel_init, (4, x.shape[1], x.shape[1]))
        return conv1d(jnp.pad(x, ((2, 0), (0, 0)), mode="edge"), kernel, stride=2, dtype=self.dtype)


class Upsample(nn.Module):
    """A row to two, ``[N, C] -> [2N, C]``: a transposed convolution of each channel for itself."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """See the class."""
        kernel = self.param("transposed_kernel", _kernel_init, (4, x.shape[1], 1))[..., 0]
        before = jnp.pad(x, ((1, 0), (0, 0)))[:-1]
        return (x[:, None] * kernel[:2] + before[:, None] * kernel[2:]).reshape(-1, x.shape[1])


def _residual(x: Array, name: str, dtype: Any) -> Array:
    """``x + block(x)``, over ``[N, C]``."""
    h = Conv(x.shape[1] // 2, 3, dtype=dtype, name=f"{name}.block.1.conv")(elu(x))
    return x + Conv(x.shape[1], 1, dtype=dtype, name=f"{name}.block.3.conv")(elu(h))


def _transformer(x: Array, config: Config, name: str, dtype: Any) -> Array:
    """Causal transformer over ``[N, C]``; a row attends to itself and to the ``window − 1`` before."""
    row = jnp.arange(x.shape[0])
    age = row[:, None] - row
    layers = stack(
        config.layers,
        heads=config.heads,
        feed_forward=config.feed_forward,
        activation=functools.partial(jax.nn.gelu, approximate=False),
        norm_first=True,
        biased=False,
        scaled=True,
        rotary_base=10_000.0,
        dtype=dtype,
        name=name,
    )
    return layers(x, (age >= 0) & (age < config.window), None)[0]


class Encoder(nn.Module):
    """Waveform ``[N · hop]`` -> ``[N, dimension]``."""

    config: Config
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, wav: Array) -> Array:
        """See the class."""
        c, size = self.config, self.config.filters
        conv = functools.partial(Conv, dtype=self.dtype)
        x = conv(size, 7, name="encoder.layers.0.conv")(wav[:, None])
        for i, stride in enumerate(reversed(c.ratios)):
            x, size = _residual(x, f"encoder.layers.{3 * i + 1}", self.dtype), 2 * size
            x = conv(size, 2 * stride, stride, name=f"encoder.layers.{3 * i + 3}.conv")(elu(x))
        x = conv(c.dimension, 3, name=f"encoder.layers.{3 * len(c.ratios) + 2}.conv")(elu(x))
        x = _transformer(x, c, "encoder_transformer.layers", self.dtype)
        return Downsample(self.dtype, name="downsample.conv")(x)


class Decoder(nn.Module):
    """``[N, dimension]`` -> waveform ``[N · hop]``."""

    config: Config
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """See the class."""
        c, size = self.config, self.config.filters * 2 ** len(self.config.ratios)
        conv = functools.partial(Conv, dtype=self.dtype)
        x = _transformer(Upsample(name="upsample.conv")(x), c, "decoder_transformer.layers", self.dtype)
        x = conv(size, 7, name="decoder.layers.0.conv")(x)
        for i, stride in enumerate(c.ratios):
            size //= 2
            x = ConvTransposed(size, stride, self.dtype, name=f"decoder.layers.{3 * i + 2}.conv")(elu(x))
            x = _residual(x, f"decoder.layers.{3 * i + 3}", self.dtype)
        return conv(1, 3, name=f"decoder.layers.{3 * len(c.ratios) + 2}.conv")(elu(x))[:, 0]


# --- weights ---


def shapes(config: Config = MIMI) -> Any:
    """The parameters that the architecture expects, as ``ShapeDtypeStruct``."""
    key, c, size = jax.random.key(0), config, config.codebook_dimension

    def leaf(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    return {
        "encoder": jax.eval_shape(Encoder(c).init, key, jnp.zeros(c.hop))["params"],
        "decoder": jax.eval_shape(Decoder(c).init, key, jnp.zeros((1, c.dimension)))["params"],
        "quantizer": {
            part: {
                "input_proj": {"kernel": leaf(1, c.dimension, size)},
                "codebooks": leaf(count, c.entries, size),
                "output_proj": {"kernel": leaf(1, size, c.dimension)},
            }
            for part, count in zip(_PARTS, (1, c.codebooks - 1), strict=True)
        },
    }


def load(path: str | Path, config: Config = MIMI) -> Any:
    """The parameters in an official ``model.safetensors``; strict both ways.

    Raises:
      ValueError: not such a file; unknown, missing, misshapen or non-finite tensors, by name.
    """
    names = official_names(config)
    expected = {name: shape for parts in names.values() for part in parts for name, shape in part.items()}
    flags = {name.replace("embed_sum", "initialized") for name in expected if name.endswith("embed_sum")}
    tensors = strict_load(read_safetensors(path), expected, ignore=flags)

    def made(where: str, leaf: jax.ShapeDtypeStruct) -> Array:
        parts = [_made(where, [tensors[name] for name in part]) for part in names[where]]
        return jnp.asarray(np.stack(parts).reshape(leaf.shape))

    layers = shapes(config)
    return jax.tree.unflatten(jax.tree.structure(layers), [made(*item) for item in leaves(layers).items()])


def _made(where: str, found: list[np.ndarray]) -> np.ndarray:
    """One layer's parameter from the original's tensors."""
    if where.endswith("codebooks"):  # kept as running sums, over how often each entry was used
        total, usage = found
        return total / np.maximum(usage, np.float32(1e-5))[:, None]
    if not where.endswith("kernel"):
        return found[0]
    if found[0].ndim == 2:
        return np.concatenate(found).T
    return from_torch(found[0], where.endswith("transposed_kernel"))


def official_names(config: Config = MIMI) -> dict[str, list[dict[str, tuple[int, ...]]]]:
    """What each of our parameters is made of in the official file: ``a.b.c`` -> {name: shape} a layer or stage."""
    return {where: _sources(where.partition(".")[2], leaf.shape) for where, leaf in leaves(shapes(config)).items()}


def _sources(where: str, shape: tuple[int, ...]) -> list[dict[str, tuple[int, ...]]]:
    scope, _, name = where.rpartition(".")
    if name == "codebooks":
        count, entries, size = shape
        books = [f"quantizer.{scope}.layers.{i}.codebook" for i in range(count)]
        return [{f"{book}.embed_sum": (entries, size), f"{book}.cluster_usage": (entries,)} for book in books]
    first, found, rest = where.partition("_transformer.layers.")
    if found:
        names = _LAYER[rest]
        each = shape[1:] if len(shape) == 2 else (shape[2] // len(names), shape[1])
        return [{f"{first}{found}{i}.{name}": each for name in names} for i in range(shape[0])]
    if name == "bias":
        return [{where: shape}]
    scope = f"quantizer.{scope}" if scope.endswith("_proj") else scope
    return [{f"{scope}.weight": torch_shape(shape, transposed=name == "transposed_kernel")}]
