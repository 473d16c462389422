"""EnCodec, Meta's neural codec: the causal model of 24 kHz and the non-causal one of 48 kHz.

A re-implementation in Flax of the PyPI package ``encodec`` 0.1.1: Défossez et al., *High Fidelity Neural Audio
Compression*, arXiv 2210.13438. The latent is the encoder's continuous output; the published decoders were trained on
quantised latents. The SHA-256 of the weight files is known by its first eight digits only, which are in their names
and are checked here.

The package is under CC BY-NC 4.0, as its metadata and README state. Since April 2023 the repository,
github.com/facebookresearch/encodec, puts "the code" under MIT; whether the weights too is asked in its issues 49 and
69, where we found no answer. So the weights count as CC BY-NC 4.0.

What differs from the original, so that padding changes nothing:

* 24 kHz. The last frame is filled with zeros, where the original mirrors the end of the signal; a waveform of
  whole frames gives the original's latent. The model is causal, except that the beginning is mirrored to the left,
  so that the first six frames see up to the seventh; a shorter waveform is filled with zeros up to there.
* 48 kHz. Its normalisation and its mirrored edges depend on where the signal ends: that is taken to be where only
  zeros follow, in the waveform and in the latent, and there the original's result is met whatever comes behind.
  The original cuts recordings into seconds that overlap by a hundredth and fades them into each other, which fits
  no grid of frames; here the seconds do not overlap, each one equal to the original's. The model is stereo: mono goes
  into both channels, and the mean of the two comes out. The loudness that the original transmits beside the latent
  is the latent's last channel, the same in each frame of a second; decoding takes its mean.

There is no delay: the models were trained to give back the waveform aligned.
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
from ports.checkpoint import read_torch, strict_load
from ports.conv1d import conv1d, fold_weight_norm, from_torch, kept, torch_shape, transposed1d, used
from ports.latents import check_latent, check_stages, check_wav, leaves, looked_up
from ports.lstm import lstm
from ports.transformer import dot
from ports.weight_file import weight_file

_TRAINING = ("inited", "cluster_size", "embed_avg")  # what a checkpoint holds of a codebook beside its entries
EDGE = 7  # taps of the convolutions beside the latent: frames that the first one sees


class Config(NamedTuple):
    """What tells one model from another."""

    name: str
    file: str  # the published weights; the digits before the dot are the first of its SHA-256
    sample_rate: int  # Hz
    stages: tuple[int, ...]  # codebooks at each published bandwidth
    audio: int = 1  # channels of the waveform
    causal: bool = True  # False: padding on both sides, normalisation over time, normalised loudness
    segment: int = 0  # frames coded apart; 0: the whole signal at once
    filters: int = 32
    ratios: tuple[int, ...] = (8, 5, 4, 2)
    dimension: int = 128
    entries: int = 1024  # of a codebook

    @property
    def hop(self) -> int:
        """Samples a frame."""
        return math.prod(self.ratios)


ENCODEC_24KHZ = Config("encodec-24khz", "encodec_24khz-d7cc33bc.th", 24000, (2, 4, 8, 16, 32))
ENCODEC_48KHZ = Config(
    "encodec-48khz", "encodec_48khz-7e698e3e.th", 48000, (2, 4, 8, 16), audio=2, causal=False, segment=150
)


def _weight(config: Config) -> Weight:
    origin = "https://dl.fbaipublicfiles.com/encodec/v0/"
    return Weight(config.file, "encodec", None, None, None, "CC-BY-NC-4.0", origin)


ENCODEC_24KHZ_WEIGHTS = (_weight(ENCODEC_24KHZ),)
ENCODEC_48KHZ_WEIGHTS = (_weight(ENCODEC_48KHZ),)


def encodec_24khz(paths: Mapping[str, Path], *, dtype: Any = jnp.float32) -> Codec:
    """The causal model, 24 kHz, 320 samples a frame, 128 channels; 1.5, 3, 6, 12 and 24 kb/s.

    Args:
      paths: file name -> path, of ``encodec_24khz-d7cc33bc.th``.
      dtype: of the products' factors in encoder and decoder; sums, norms, the LSTM's recurrence and the quantiser are
        float32. ``jnp.bfloat16`` moves the latent by 0.3 % (RMS) and the audio of one latent by −52 dB, with random
        weights.

    Raises:
      ValueError: the file is missing, is another than the published one, or does not fit, down to a tensor's name.
    """
    return _published(paths, ENCODEC_24KHZ, dtype)


def encodec_48khz(paths: Mapping[str, Path], *, dtype: Any = jnp.float32) -> Codec:
    """The non-causal model, 48 kHz, 320 samples a frame, 128 channels and the loudness; 3, 6, 12 and 24 kb/s.

    Args:
      paths: file name -> path, of ``encodec_48khz-7e698e3e.th``.
      dtype: as :func:`encodec_24khz`; the latent moves by 0.6 % and the audio by −43 dB.

    Raises:
      ValueError: as :func:`encodec_24khz`.
    """
    return _published(paths, ENCODEC_48KHZ, dtype)


def codec(
    params: Any, config: Config, weights: Mapping[str, str] | None = None, *, dtype: Any = jnp.float32
) -> Codec:
    """The codec with any parameters that fit `config`.

    `weights`: file name -> SHA-256; `dtype` as in :func:`encodec_24khz`.
    """
    return Codec(
        name=config.name,
        sample_rate=config.sample_rate,
        hop=config.hop,
        channels=_channels(config),
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


def encode(params: Any, wav: Array, *, config: Config = ENCODEC_24KHZ, dtype: Any = jnp.float32) -> Array:
    """``wav [T]`` float32, −1..1 -> latent ``[ceil(T / 320), 128]``, 48 kHz: 129; differentiable."""
    check_wav(wav)
    frames = -(-wav.shape[0] // config.hop)
    if config.causal:
        wav = jnp.pad(wav, (0, max(frames, EDGE) * config.hop - wav.shape[0]))
        return _encoder(params, wav[:, None], wav.shape[0], config, dtype)[:frames]
    wavs, n = _segments(wav, config.segment * config.hop, frames * config.hop)
    z = jax.vmap(lambda wav, n: _encode_segment(params, wav, n, config, dtype))(wavs, n)
    return z.reshape(-1, config.dimension + 1)[:frames]


def decode(params: Any, z: Array, *, config: Config = ENCODEC_24KHZ, dtype: Any = jnp.float32) -> Array:
    """Latent ``z [N, 128]``, 48 kHz: 129, float32 -> waveform ``[N · 320]``, not clipped; differentiable."""
    check_latent("decode", z, _channels(config))
    frames = z.shape[0]
    if config.causal:
        z = jnp.pad(z, ((0, max(EDGE - frames, 0)), (0, 0)))
        return _decoder(params, z, z.shape[0], config, dtype)[: frames * config.hop, 0]
    zs, n = _segments(z, config.segment, frames)
    wav = jax.vmap(lambda z, n: _decode_segment(params, z, n, config, dtype))(zs, n)
    return wav.ravel()[: frames * config.hop]


def codes(params: Any, z: Array, stages: int, *, config: Config = ENCODEC_24KHZ) -> Array:
    """The transmitted numbers of latent ``z [N, C]``: ``[N, stages]`` int32, 0..1023; 10 bits each.

    Any number of stages from 1 works; ``config.stages`` are the published ones.
    """
    check_latent("codes", z, _channels(config))
    books = params["codebooks"]
    check_stages(stages, books.shape[0], config.stages)

    def stage(rest: Array, book: Array) -> tuple[Array, Array]:
        product = jnp.matmul(rest, book.T, precision=lax.Precision.HIGHEST)
        index = jnp.argmax(2 * product - jnp.sum(jnp.square(book), axis=1), axis=1)
        return rest - book[index], index.astype(jnp.int32)

    return lax.scan(stage, z[:, : config.dimension], books[:stages])[1].T


def dequantise(params: Any, codes: Array) -> Array:
    """Latent ``[N, 128]`` of ``codes [N, S]``; the loudness is not theirs to say."""
    return looked_up(params["codebooks"], codes)


def _channels(config: Config) -> int:
    """Of the latent; the model that is not causal has the loudness too."""
    return config.dimension + (not config.causal)


# --- seconds coded apart, 48 kHz ---


def _segments(x: Array, size: int, least: int) -> tuple[Array, Array]:
    """``x [T]`` or ``[T, C]`` cut into ``[S, size, …]``, and how much of each counts ``[S]``.

    One segment is enough for what is no longer than `size`; it is then `least` long.
    """
    n = used(x)
    size = min(size or least, least)
    count = -(-x.shape[0] // size)
    x = jnp.pad(x, [(0, count * size - x.shape[0])] + [(0, 0)] * (x.ndim - 1))
    starts = size * jnp.arange(count, dtype=jnp.int32)
    return x.reshape(count, size, *x.shape[1:]), jnp.clip(n - starts, 0, size)


def _encode_segment(params: Any, wav: Array, n: Array, config: Config, dtype: Any) -> Array:
    power = jnp.sum(jnp.square(wav)) / jnp.maximum(n, 1).astype(wav.dtype)
    loudness = jnp.where(power > 0, jnp.sqrt(jnp.where(power > 0, power, 1.0)), 0.0) + 1e-8
    stereo = jnp.repeat((wav / loudness)[:, None], config.audio, axis=1)
    z = _encoder(params, stereo, n, config, dtype)
    z = jnp.concatenate([z, jnp.broadcast_to(loudness, (z.shape[0], 1))], axis=1)
    return kept(z, -(-n // config.hop))


def _decode_segment(params: Any, z: Array, n: Array, config: Config, dtype: Any) -> Array:
    loudness = jnp.sum(z[:, -1]) / jnp.maximum(n, 1).astype(z.dtype)
    stereo = _decoder(params, z[:, :-1], n, config, dtype)
    return kept(loudness * jnp.mean(stereo, axis=1, keepdims=True), n * config.hop)[:, 0]


def _encoder(params: Any, wav: Array, n: Array | int, config: Config, dtype: Any) -> Array:
    return jnp.asarray(Encoder(config, dtype).apply({"params": params["encoder"]}, wav, n))


def _decoder(params: Any, z: Array, n: Array | int, config: Config, dtype: Any) -> Array:
    return jnp.asarray(Decoder(config, dtype).apply({"params": params["decoder"]}, z, n))


# --- architecture; modules carry the names of the original's, `n` rows of `x` count ---


_kernel_init = nn.initializers.lecun_normal()


class TimeGroupNorm(nn.Module):
    """Normalisation over all channels and the first `n` rows, as PyTorch's ``GroupNorm(1, C)``."""

    @nn.compact
    def __call__(self, x: Array, n: Array | int) -> Array:
        """See the class."""
        scale = self.param("weight", nn.initializers.ones, (x.shape[1],))
        bias = self.param("bias", nn.initializers.zeros, (x.shape[1],))
        count = jnp.maximum(jnp.asarray(n), 1).astype(x.dtype) * x.shape[1]
        centred = x - jnp.sum(kept(x, n)) / count
        variance = jnp.sum(jnp.square(kept(centred, n))) / count
        return centred * lax.rsqrt(variance + 1e-5) * scale + bias


class Conv(nn.Module):
    """Convolution ``[N, C] -> [N / stride, features]``, N whole strides, mirrored at its ends."""

    features: int
    taps: int
    causal: bool
    stride: int = 1
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array, n: Array | int) -> Array:
        """See the class."""
        kernel = self.param("kernel", _kernel_init, (self.taps, x.shape[1], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        both = self.taps - self.stride
        right = 0 if self.causal else both // 2
        x = _mirrored(x, n, both - right, right, self.stride)
        y = conv1d(x, kernel, stride=self.stride, dtype=self.dtype) + bias
        return y if self.causal else TimeGroupNorm(name="norm")(y, -(-n // self.stride))


class ConvTransposed(nn.Module):
    """Transposed convolution ``[N, C] -> [N · stride, features]``, kernel two strides long."""

    features: int
    causal: bool
    stride: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array, n: Array | int) -> Array:
        """See the class."""
        kernel = self.param("kernel", _kernel_init, (2 * self.stride, x.shape[1], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        if not self.causal:
            x = kept(x, n)
        y = transposed1d(x, kernel, stride=self.stride, dtype=self.dtype) + bias
        if not self.causal:  # before the ends are cut, as in the original
            y = TimeGroupNorm(name="norm")(y, (n + 1) * self.stride)
        left = 0 if self.causal else self.stride - self.stride // 2
        return y[left : left + x.shape[0] * self.stride]


def _mirrored(x: Array, n: Array | int, left: int, right: int, stride: int) -> Array:
    """``x [N, C]``, of which `n` rows count, with `left` rows before and `right` and a filled stride after those.

    Mirrored at the ends. As in the original, a signal too short for that is continued by zeros first.
    """
    if left + right == 0:
        return x
    size = x.shape[0]

    def rows(i: Array) -> Array:
        return jnp.where((i < n)[:, None], x[jnp.clip(i, 0, size - 1)], 0.0)

    before = rows(jnp.arange(left, 0, -1))
    if isinstance(n, int) and right == 0:  # causal and of whole strides: nothing follows
        return jnp.concatenate([before, x])
    end = jnp.maximum(n, jnp.maximum(left, right + -n % stride) + 1)
    i = n + jnp.arange(right + stride - 1)
    after = rows(jnp.where(i < end, i, 2 * (end - 1) - i))
    whole = jnp.concatenate([before, x, jnp.zeros_like(after)])
    return lax.dynamic_update_slice(whole, after, (left + n, 0))[: left + size + right]


class Residual(nn.Module):
    """``shortcut(x) + block(x)``, over ``[N, C]``."""

    causal: bool
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array, n: Array | int) -> Array:
        """See the class."""
        size, conv = x.shape[1], functools.partial(Conv, causal=self.causal, dtype=self.dtype)
        h = conv(size // 2, 3, name="block.1.conv")(elu(x), n)
        h = conv(size, 1, name="block.3.conv")(elu(h), n)
        return conv(size, 1, name="shortcut.conv")(x, n) + h


class LSTM(nn.Module):
    """Two layers of long short-term memory over ``[N, C]``, and the input added to what they say."""

    dtype: Any = jnp.float32  # of the factors of the inputs' products; the recurrence is float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """See the class."""
        size = x.shape[1]
        y = x
        for layer in range(2):
            w, u = (self.param(f"weight_{k}_l{layer}", _kernel_init, (4 * size, size)) for k in ("ih", "hh"))
            b, c = (self.param(f"bias_{k}_l{layer}", nn.initializers.zeros, (4 * size,)) for k in ("ih", "hh"))
            y = lstm(dot(y, w.T, self.dtype) + (b + c), u.T)
        return y + x


class Encoder(nn.Module):
    """Waveform ``[N · hop, audio]`` -> latent ``[N, dimension]``."""

    config: Config
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array, n: Array | int) -> Array:
        """See the class."""
        c, index, size = self.config, 0, self.config.filters
        conv = functools.partial(Conv, causal=c.causal, dtype=self.dtype)
        x = conv(size, 7, name="model.0.conv")(x, n)
        for stride in reversed(c.ratios):
            x = Residual(c.causal, self.dtype, name=f"model.{index + 1}")(x, n)
            index, size = index + 3, 2 * size
            x = conv(size, 2 * stride, stride=stride, name=f"model.{index}.conv")(elu(x), n)
            n = -(-n // stride)
        x = LSTM(self.dtype, name=f"model.{index + 1}.lstm")(x)
        return conv(c.dimension, EDGE, name=f"model.{index + 3}.conv")(elu(x), n)


class Decoder(nn.Module):
    """Latent ``[N, dimension]`` -> waveform ``[N · hop, audio]``."""

    config: Config
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array, n: Array | int) -> Array:
        """See the class."""
        c, index = self.config, 1
        size = c.filters * 2 ** len(c.ratios)
        conv = functools.partial(Conv, causal=c.causal, dtype=self.dtype)
        x = conv(size, EDGE, name="model.0.conv")(x, n)
        x = LSTM(self.dtype, name="model.1.lstm")(x)
        for stride in c.ratios:
            size //= 2
            x = ConvTransposed(size, c.causal, stride, self.dtype, name=f"model.{index + 2}.convtr")(elu(x), n)
            n = n * stride
            x = Residual(c.causal, self.dtype, name=f"model.{index + 3}")(x, n)
            index += 3
        return conv(c.audio, 7, name=f"model.{index + 2}.conv")(elu(x), n)


# --- weights ---


def _published(paths: Mapping[str, Path], config: Config, dtype: Any) -> Codec:
    path, digest = weight_file(config.name, config.file, paths)
    start = config.file.rpartition("-")[2].removesuffix(".th")
    if not digest.startswith(start):
        raise ValueError(f"{path} is not the published {config.file}: its SHA-256 is {digest}, not {start}….")
    return codec(load(path, config), config, {config.file: digest}, dtype=dtype)


def shapes(config: Config) -> Any:
    """The parameters that the architecture expects, as ``ShapeDtypeStruct``."""
    key = jax.random.key(0)
    wav, z = jnp.zeros((config.hop, config.audio)), jnp.zeros((1, config.dimension))
    return {
        "encoder": jax.eval_shape(lambda: Encoder(config).init(key, wav, config.hop))["params"],
        "decoder": jax.eval_shape(lambda: Decoder(config).init(key, z, 1))["params"],
        "codebooks": jax.ShapeDtypeStruct((max(config.stages), config.entries, config.dimension), jnp.float32),
    }


def load(path: str | Path, config: Config) -> Any:
    """The parameters in an official checkpoint, a dictionary of tensors that ``torch.save`` wrote; strict both ways.

    Weight normalisation is folded into the kernels. Nothing in the file is executed.

    Raises:
      ValueError: not such a file; unknown, missing, misshapen or non-finite tensors, by name.
    """
    sources = official_names(config)
    expected = {name: shape for found in sources.values() for name, shape in found.items()}
    training = {name.replace("embed", other) for name in sources["codebooks"] for other in _TRAINING}
    tensors = strict_load(read_torch(path), expected, ignore=training)

    def made(where: str) -> Array:
        found = [tensors[name] for name in sources[where]]
        if where == "codebooks":
            return jnp.asarray(np.stack(found))
        weight = fold_weight_norm(*found) if len(found) == 2 else found[0]
        return jnp.asarray(from_torch(weight, "convtr" in where) if where.endswith(".kernel") else weight)

    layers = shapes(config)
    return jax.tree.unflatten(jax.tree.structure(layers), [made(where) for where in leaves(layers)])


def official_names(config: Config) -> dict[str, dict[str, tuple[int, ...]]]:
    """What each of our parameters is made of in the official checkpoint: ``a.b.c`` -> {name: shape}."""
    sources = {where: _sources(where, leaf.shape, config) for where, leaf in leaves(shapes(config)).items()}
    book = (config.entries, config.dimension)
    stages = range(max(config.stages))
    return sources | {"codebooks": {f"quantizer.vq.layers.{i}._codebook.embed": book for i in stages}}


def _sources(where: str, shape: tuple[int, ...], config: Config) -> dict[str, tuple[int, ...]]:
    """The tensors of the official checkpoint that a leaf is made of: name -> shape."""
    scope, _, name = where.rpartition(".")
    kind = scope.rpartition(".")[2]
    if kind not in ("conv", "convtr"):  # layers of PyTorch's own, with its names
        return {where: shape}
    if name == "bias":
        return {f"{scope}.{kind}.bias": shape}
    weight = torch_shape(shape, transposed=kind == "convtr")
    if not config.causal:
        return {f"{scope}.{kind}.weight": weight}
    return {f"{scope}.{kind}.weight_g": (weight[0], 1, 1), f"{scope}.{kind}.weight_v": weight}
