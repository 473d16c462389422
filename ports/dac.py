"""The Descript Audio Codec (DAC) at 16, 24 and 44.1 kHz.

A re-implementation in Flax of the PyPI package ``descript-audio-codec`` 1.0.0 (code and weights MIT, says its
README): Kumar et al., *High-Fidelity Audio Compression with Improved RVQGAN*, arXiv 2306.06546. The latent is the
encoder's continuous output. The published decoders were trained on quantised latents:
``decode(quantise(encode(wav)))`` is the original's chain, without the normalisation to −16 dB that its ``compress``
adds.

What differs from the original:

* The codec is not causal, so its result depends on where the signal ends. That is taken to be where only zeros
  follow, in the waveform (rounded up to whole frames) and in the latent; there the original's result is met, whatever
  comes behind: the latent of padding is zeros, and so is its audio.
* With an odd stride, at 16 and 24 kHz, the original's audio is 8 samples shorter than its frames; here zeros follow.
* The gradient of the quantiser is straight through as a whole; the original's passes through the projections
  of each stage.

There is no delay: every convolution is centred.
"""

import functools
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxhack.types import Array, Codec, Weight
from ports.activations import snake
from ports.checkpoint import read_torch, strict_load
from ports.conv1d import HIGHEST, conv1d, fold_weight_norm, from_torch, kept, torch_shape, transposed1d, used
from ports.latents import check_latent, check_stages, check_wav, leaves
from ports.weight_file import weight_file


class Config(NamedTuple):
    """What tells one model from another; names as in the original's configuration, which checkpoints hold."""

    name: str
    file: str  # of the published weights
    tag: str  # the release that the file is in
    sample_rate: int  # Hz
    encoder_rates: tuple[int, ...]  # strides
    decoder_rates: tuple[int, ...]
    n_codebooks: int
    latent_dim: int = 1024
    encoder_dim: int = 64
    decoder_dim: int = 1536
    codebook_size: int = 1024
    codebook_dim: int = 8

    @property
    def hop(self) -> int:
        """Samples a frame."""
        return math.prod(self.encoder_rates)


DAC_16KHZ = Config("dac-16khz", "weights_16khz.pth", "0.0.5", 16000, (2, 4, 5, 8), (8, 5, 4, 2), 12)
DAC_24KHZ = Config("dac-24khz", "weights_24khz.pth", "0.0.4", 24000, (2, 4, 5, 8), (8, 5, 4, 2), 32)
DAC_44KHZ = Config("dac-44khz", "weights.pth", "0.0.1", 44100, (2, 4, 8, 8), (8, 8, 4, 2), 9)
DAC_44KHZ_16KBPS = Config(
    "dac-44khz-16kbps", "weights_44khz_16kbps.pth", "1.0.0", 44100, (2, 4, 8, 8), (8, 8, 4, 2), 18, latent_dim=128
)


def _weight(config: Config) -> Weight:
    origin = f"github.com/descriptinc/descript-audio-codec, release {config.tag}"
    return Weight(config.file, "dac", None, None, None, "MIT", origin)


DAC_16KHZ_WEIGHTS = (_weight(DAC_16KHZ),)
DAC_24KHZ_WEIGHTS = (_weight(DAC_24KHZ),)
DAC_44KHZ_WEIGHTS = (_weight(DAC_44KHZ),)
DAC_44KHZ_16KBPS_WEIGHTS = (_weight(DAC_44KHZ_16KBPS),)


def dac(paths: Mapping[str, Path], config: Config, *, dtype: Any = jnp.float32) -> Codec:
    """A published model.

    Args:
      paths: file name -> path, of ``config.file``.
      config: which model: ``DAC_16KHZ``, ``DAC_24KHZ``, ``DAC_44KHZ`` or ``DAC_44KHZ_16KBPS``.
      dtype: of the products' factors in encoder and decoder; sums and the quantiser are float32. ``jnp.bfloat16``
        moves the latent by up to 1.7 % (RMS) and the audio of one latent by −40 dB, with random weights.

    Raises:
      ValueError: the file is missing, damaged, or not what the architecture expects, down to a tensor's name.
    """
    path, digest = weight_file(config.name, config.file, paths)
    return codec(load(path, config), config, {config.file: digest}, dtype=dtype)


def dac_16khz(paths: Mapping[str, Path], *, dtype: Any = jnp.float32) -> Codec:
    """16 kHz, 320 samples a frame, 1024 channels, 12 codebooks; see :func:`dac`."""
    return dac(paths, DAC_16KHZ, dtype=dtype)


def dac_24khz(paths: Mapping[str, Path], *, dtype: Any = jnp.float32) -> Codec:
    """24 kHz, 320 samples a frame, 1024 channels, 32 codebooks; see :func:`dac`."""
    return dac(paths, DAC_24KHZ, dtype=dtype)


def dac_44khz(paths: Mapping[str, Path], *, dtype: Any = jnp.float32) -> Codec:
    """44.1 kHz, 512 samples a frame, 1024 channels, 9 codebooks; see :func:`dac`."""
    return dac(paths, DAC_44KHZ, dtype=dtype)


def dac_44khz_16kbps(paths: Mapping[str, Path], *, dtype: Any = jnp.float32) -> Codec:
    """44.1 kHz, 512 samples a frame, 128 channels, 18 codebooks; see :func:`dac`."""
    return dac(paths, DAC_44KHZ_16KBPS, dtype=dtype)


def codec(
    params: Any, config: Config, weights: Mapping[str, str] | None = None, *, dtype: Any = jnp.float32
) -> Codec:
    """The codec with any parameters that fit `config`.

    `weights`: file name -> SHA-256; `dtype` as in :func:`dac`.
    """
    return Codec(
        name=config.name,
        sample_rate=config.sample_rate,
        hop=config.hop,
        channels=config.latent_dim,
        params=params,
        encode=functools.partial(encode, config=config, dtype=dtype),
        decode=functools.partial(decode, config=config, dtype=dtype),
        delay=0,
        codes=functools.partial(codes, config=config),
        dequantise=functools.partial(dequantise, config=config),
        codebook_size=config.codebook_size,
        stages=(config.n_codebooks,),
        weights=weights or {},
    )


def encode(params: Any, wav: Array, *, config: Config, dtype: Any = jnp.float32) -> Array:
    """``wav [T]`` float32, −1..1 -> latent ``[ceil(T / hop), latent_dim]``; differentiable."""
    check_wav(wav)
    frames = -(-used(wav) // config.hop)
    wav = jnp.pad(wav, (0, -wav.shape[0] % config.hop))
    return jnp.asarray(Encoder(config, dtype).apply({"params": params["encoder"]}, wav, frames))


def decode(params: Any, z: Array, *, config: Config, dtype: Any = jnp.float32) -> Array:
    """Latent ``z [N, latent_dim]`` float32 -> waveform ``[N · hop]``, −1..1; differentiable."""
    check_latent("decode", z, config.latent_dim)
    wav = jnp.asarray(Decoder(config, dtype).apply({"params": params["decoder"]}, z, used(z)))
    return jnp.pad(wav, (0, z.shape[0] * config.hop - wav.shape[0]))


def codes(params: Any, z: Array, stages: int, *, config: Config) -> Array:
    """The transmitted numbers of latent ``z [N, latent_dim]``: ``[N, stages]`` int32, 0..1023; 10 bits each.

    Each stage looks up a projection of what is left, by its direction alone. Any number of codebooks works, from 1 to
    ``config.n_codebooks``.
    """
    check_latent("codes", z, config.latent_dim)
    check_stages(stages, config.n_codebooks, (config.n_codebooks,))

    def stage(rest: Array, p: Any) -> tuple[Array, Array]:
        low = jnp.matmul(rest, p["in_proj"]["kernel"][0], precision=HIGHEST) + p["in_proj"]["bias"]
        book = p["codebook"]
        index = jnp.argmax(jnp.matmul(_direction(low), _direction(book).T, precision=HIGHEST), axis=1)
        entry = low + (book[index] - low)  # rounded as the original's straight-through form
        return rest - _projected(entry, p), index.astype(jnp.int32)

    return lax.scan(stage, z, _first(params, stages))[1].T


def dequantise(params: Any, codes: Array, *, config: Config) -> Array:
    """Latent ``[N, latent_dim]`` of ``codes [N, S]``."""

    def stage(total: Array, x: tuple[Any, Array]) -> tuple[Array, None]:
        p, index = x
        return total + _projected(p["codebook"][index], p), None

    start = jnp.zeros((codes.shape[0], config.latent_dim), jnp.float32)
    return lax.scan(stage, start, (_first(params, codes.shape[1]), codes.T))[0]


def _first(params: Any, stages: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[:stages], params["quantiser"])


def _projected(entry: Array, p: Any) -> Array:
    return jnp.matmul(entry, p["out_proj"]["kernel"][0], precision=HIGHEST) + p["out_proj"]["bias"]


def _direction(x: Array) -> Array:
    return x / jnp.maximum(jnp.linalg.norm(x, axis=1, keepdims=True), 1e-12)


# --- architecture; modules carry the names of the original's, `n` rows of `x` count ---


_kernel_init = nn.initializers.lecun_normal()


class Conv(nn.Module):
    """Centred convolution ``[N, C] -> [N / stride, features]``, zeros beyond the signal."""

    features: int
    taps: int
    dilation: int = 1
    stride: int = 1
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array, n: Array) -> Array:
        """See the class."""
        kernel = self.param("kernel", _kernel_init, (self.taps, x.shape[1], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        both = (self.taps - 1) * self.dilation - (self.stride - 1)
        left = -(-both // 2)
        x = jnp.pad(kept(x, n), ((left, both - left), (0, 0)))
        return conv1d(x, kernel, stride=self.stride, dilation=self.dilation, dtype=self.dtype) + bias


class ConvTransposed(nn.Module):
    """Centred transposed convolution, kernel two strides long; with an odd stride one row is lost."""

    features: int
    stride: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array, n: Array) -> Array:
        """See the class."""
        kernel = self.param("kernel", _kernel_init, (2 * self.stride, x.shape[1], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        cut = -(-self.stride // 2)
        return transposed1d(kept(x, n), kernel, stride=self.stride, dtype=self.dtype)[cut:-cut] + bias


class Snake(nn.Module):
    """``x + sin²(αx) / α``, α per channel: Ziyin et al., arXiv 2006.08195."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """See the class."""
        alpha = self.param("alpha", nn.initializers.ones, (x.shape[1],))
        return snake(x, alpha)


def _residuals(x: Array, n: Array, scope: str, first: int, dtype: Any) -> Array:
    """Three residual units over ``[N, C]``, named from `first` on."""
    for i in range(3):
        unit = f"{scope}.block.{first + i}.block"
        h = Conv(x.shape[1], 7, 3**i, dtype=dtype, name=f"{unit}.1")(Snake(name=f"{unit}.0")(x), n)
        x = x + Conv(x.shape[1], 1, dtype=dtype, name=f"{unit}.3")(Snake(name=f"{unit}.2")(h), n)
    return x


class Encoder(nn.Module):
    """Waveform ``[N · hop]`` -> latent ``[N, latent_dim]``, zeros from row `frames` on."""

    config: Config
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, wav: Array, frames: Array) -> Array:
        """See the class."""
        c, n, size = self.config, frames * self.config.hop, self.config.encoder_dim
        conv = functools.partial(Conv, dtype=self.dtype)
        x = conv(size, 7, name="block.0")(wav[:, None], n)
        for i, stride in enumerate(c.encoder_rates, 1):
            x, size = _residuals(x, n, f"block.{i}", 0, self.dtype), 2 * size
            x = Snake(name=f"block.{i}.block.3")(x)
            x, n = conv(size, 2 * stride, stride=stride, name=f"block.{i}.block.4")(x, n), n // stride
        x = Snake(name=f"block.{len(c.encoder_rates) + 1}")(x)
        return kept(conv(c.latent_dim, 3, name=f"block.{len(c.encoder_rates) + 2}")(x, n), n)


class Decoder(nn.Module):
    """Latent ``[N, latent_dim]`` -> waveform ``[N · hop]`` or a little shorter, zeros where `n` frames end."""

    config: Config
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, z: Array, n: Array) -> Array:
        """See the class."""
        c, size = self.config, self.config.decoder_dim
        conv = functools.partial(Conv, dtype=self.dtype)
        x = conv(size, 7, name="model.0")(z, n)
        for i, stride in enumerate(c.decoder_rates, 1):
            x, size = Snake(name=f"model.{i}.block.0")(x), size // 2
            x = ConvTransposed(size, stride, self.dtype, name=f"model.{i}.block.1")(x, n)
            n = jnp.maximum(n * stride - stride % 2, 0)
            x = _residuals(x, n, f"model.{i}", 2, self.dtype)
        x = Snake(name=f"model.{len(c.decoder_rates) + 1}")(x)
        return kept(jnp.tanh(conv(1, 7, name=f"model.{len(c.decoder_rates) + 2}")(x, n)), n)[:, 0]


# --- weights ---


def shapes(config: Config) -> Any:
    """The parameters that the architecture expects, as ``ShapeDtypeStruct``."""
    key, n = jax.random.key(0), jnp.int32(1)
    wav, z = jnp.zeros(config.hop), jnp.zeros((1, config.latent_dim))
    low, high, stages = config.codebook_dim, config.latent_dim, config.n_codebooks

    def stacked(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((stages, *shape), jnp.float32)

    return {
        "encoder": jax.eval_shape(Encoder(config).init, key, wav, n)["params"],
        "decoder": jax.eval_shape(Decoder(config).init, key, z, n)["params"],
        "quantiser": {
            "in_proj": {"kernel": stacked(1, high, low), "bias": stacked(low)},
            "codebook": stacked(config.codebook_size, low),
            "out_proj": {"kernel": stacked(1, low, high), "bias": stacked(high)},
        },
    }


def load(path: str | Path, config: Config) -> Any:
    """The parameters in an official checkpoint: ``{"state_dict": …, "metadata": …}``; strict both ways.

    Weight normalisation is folded into the kernels. Nothing in the file is executed.

    Raises:
      ValueError: not such a file; of another configuration; unknown, missing, misshapen or non-finite tensors, by
        name.
    """
    whole = read_torch(path)
    if not isinstance(whole.get("state_dict"), dict):
        raise ValueError(f"{path} holds {sorted(map(str, whole))[:5]}, expected state_dict and metadata.")
    _check_metadata(path, whole.get("metadata"), config)
    names = official_names(config)
    expected = {name: shape for parts in names.values() for part in parts for name, shape in part.items()}
    tensors = strict_load(whole["state_dict"], expected)

    def made(where: str, leaf: jax.ShapeDtypeStruct) -> Array:
        parts = []
        for part in names[where]:
            found = [tensors[name] for name in part]
            kernel = len(found) == 2
            parts.append(from_torch(fold_weight_norm(*found), _is_transposed(where)) if kernel else found[0])
        return jnp.asarray(np.stack(parts).reshape(leaf.shape))

    layers = shapes(config)
    return jax.tree.unflatten(jax.tree.structure(layers), [made(*item) for item in leaves(layers).items()])


def official_names(config: Config) -> dict[str, list[dict[str, tuple[int, ...]]]]:
    """What each of our parameters is made of in the official checkpoint: ``a.b.c`` -> {name: shape} a stage."""
    found: dict[str, list[dict[str, tuple[int, ...]]]] = {}
    for where, leaf in leaves(shapes(config)).items():
        part, _, rest = where.partition(".")
        if part == "quantiser":
            stages = range(config.n_codebooks)
            found[where] = [_source(f"quantizer.quantizers.{i}.{rest}", leaf.shape[1:]) for i in stages]
        else:
            found[where] = [_source(where, leaf.shape)]
    return found


def _source(where: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    scope, _, name = where.rpartition(".")
    if name == "alpha":
        return {where: (1, *shape, 1)}
    if name == "codebook":
        return {f"{where}.weight": shape}
    if name == "bias":
        return {where: shape}
    weight = torch_shape(shape, _is_transposed(where))
    return {f"{scope}.weight_g": (weight[0], 1, 1), f"{scope}.weight_v": weight}


def _is_transposed(where: str) -> bool:
    return re.fullmatch(r"decoder\.model\.\d+\.block\.1\.kernel", where) is not None


def _check_metadata(path: str | Path, metadata: Any, config: Config) -> None:
    """The configuration that a checkpoint states, as far as it does, is `config`'s."""
    stated = metadata.get("kwargs") if isinstance(metadata, dict) else None
    stated = stated if isinstance(stated, dict) else {}
    for name, value in config._asdict().items():
        found = stated.get(name)
        found = tuple(found) if isinstance(found, list) else found
        if found is not None and found != value:
            raise ValueError(f"{path} holds a model with {name} {found}; {config.name} has {value}.")
