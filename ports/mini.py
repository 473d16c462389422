"""`mini`, the small neural codec that this project trains itself and ships: 16 kHz, 64 channels at 50 Hz.

Forty channels are the modified discrete cosine transform (MDCT) of 0–1 kHz, compressed by asinh; they carry the
waveform where the ear hears phase. Twenty-four channels are learned and carry what is above. The decoder inverts the
transform and adds what a network makes of all sixty-four. A residual vector quantiser follows the encoder: 64 stages
of 6 bits, 19.2 kb/s at most.

Everything is causal in frames, so that padding changes nothing: frame n of the latent sees the waveform up to 30 ms
after its own 20 ms, and the waveform of frame n is made of the latent's frames up to n. There is no delay. Only of
the first 20 ms the transform knows half, since what overlaps them would lie before the beginning.

Architecture, training and data are the project's own: ``experiments/train_mini_codec``. The blocks follow Liu et al.,
*A ConvNet for the 2020s*, arXiv 2201.03545, and the head Siuzdak, *Vocos*, arXiv 2306.00814.
"""

import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization
from jax import lax

from jaxhack.types import Array, Codec, Weight
from ports.latents import check_latent, check_stages, check_wav, leaves, looked_up
from ports.transformer import Dense
from ports.weight_file import weight_file

HOP = 320  # samples a frame, 20 ms
WINDOW = 640  # samples, of MDCT and of the short-time Fourier transforms
STEP = 160  # samples, of the short-time Fourier transforms
BINS = WINDOW // 2 + 1
LINEAR = 40  # channels that are MDCT coefficients, 25 Hz each
LEARNED = 24
CHANNELS = LINEAR + LEARNED
STAGES = (16, 32, 64)  # 4.8, 9.6 and 19.2 kb/s
ENTRIES = 64  # of a stage's codebook: 6 bits
QUIET = 0.01  # MDCT amplitude up to which the compression is linear
LOUDEST = 8.0  # of a bin's log magnitude, and of a compressed coefficient: beyond it no magnitude grows exponentially

MINI_WEIGHTS: tuple[Weight, ...] = (
    Weight(
        file="mini.msgpack",
        folder="mini",
        sha256="a6f32c04643640f0c02396689a06cd6dad93c966ac76ff4c2c821e301dfb91ae",
        size=5381316,
        source="bundled:ports",
        licence="CC-BY-SA-4.0",
        origin="jaxhack, experiments/train_mini_codec",
    ),
)


def mini(paths: Mapping[str, Path], *, dtype: Any = jnp.float32) -> Codec:
    """The codec with the weights that the package ships.

    Args:
      paths: file name -> path of the file that ``MINI_WEIGHTS`` lists.
      dtype: of the products' factors in encoder and decoder; sums, norms, transforms, depthwise convolutions and the
        quantiser are float32. On speech ``jnp.bfloat16`` moves the latent by up to 0.23 % (RMS) and the audio of one
        latent by −54 dB.

    Returns:
      A codec of 16 kHz, 320 samples a frame and 64 unbounded channels of about unit variance on speech.

    Raises:
      ValueError: the file is missing, damaged, or not what the architecture expects, down to a tensor's name.
    """
    (weight,) = MINI_WEIGHTS
    path, digest = weight_file("mini", weight.file, paths)
    return codec(unpack(path), {weight.file: digest}, dtype=dtype)


def codec(params: Any, weights: Mapping[str, str] | None = None, *, dtype: Any = jnp.float32) -> Codec:
    """The codec with any parameters, such as those of a training.

    `weights`: file name -> SHA-256; `dtype` as in :func:`mini`.
    """
    return Codec(
        name="mini",
        sample_rate=16000,
        hop=HOP,
        channels=CHANNELS,
        params=params,
        encode=functools.partial(encode, dtype=dtype),
        decode=functools.partial(decode, dtype=dtype),
        delay=0,
        codes=codes,
        dequantise=dequantise,
        codebook_size=ENTRIES,
        stages=STAGES,
        weights=weights or {},
    )


def encode(params: Any, wav: Array, *, dtype: Any = jnp.float32) -> Array:
    """``wav [T]`` float32, −1..1, 16 kHz -> latent ``[ceil(T / 320), 64]``; differentiable."""
    check_wav(wav)
    wav = jnp.pad(wav, (0, -wav.shape[0] % HOP))
    return jnp.asarray(Encoder(dtype=dtype).apply({"params": params["encoder"]}, wav))


def decode(params: Any, z: Array, *, dtype: Any = jnp.float32) -> Array:
    """Latent ``z [N, 64]`` float32 -> waveform ``[N · 320]``, not clipped; differentiable."""
    check_latent("decode", z, CHANNELS)
    return jnp.asarray(Decoder(dtype=dtype).apply({"params": params["decoder"]}, z))


def codes(params: Any, z: Array, stages: int) -> Array:
    """The transmitted numbers of latent ``z [N, 64]``: ``[N, stages]`` int32, 0..63; 6 bits each.

    `stages` is 16, 32 or 64 as published; any number from 1 to 64 works.
    """
    check_latent("codes", z, CHANNELS)
    books = params["codebooks"]
    check_stages(stages, books.shape[0], STAGES)
    return _stages(books[:stages], z)[0].T


def dequantise(params: Any, codes: Array) -> Array:
    """Latent ``[N, 64]`` of ``codes [N, S]``."""
    return looked_up(params["codebooks"], codes)


def quantised(books: Array, z: Array) -> Array:
    """What each number of stages makes of latent ``z [N, C]``: ``[S, N, C]`` for codebooks ``[S, K, C]``."""
    return _stages(books, z)[1]


def _stages(books: Array, z: Array) -> tuple[Array, Array]:
    """Of each stage the entries chosen ``[S, N]``, and the sum so far ``[S, N, C]``."""

    def stage(total: Array, book: Array) -> tuple[Array, tuple[Array, Array]]:
        scores = (z - total) @ book.T - 0.5 * jnp.sum(jnp.square(book), axis=1)
        index = jnp.argmax(scores, axis=1)
        total = total + book[index]
        return total, (index.astype(jnp.int32), total)

    return lax.scan(stage, jnp.zeros_like(z), books)[1]


# --- transforms ---

_SINE = np.sin(np.pi * (np.arange(WINDOW) + 0.5) / WINDOW).astype(np.float32)


def _mdct_basis() -> np.ndarray:
    """The windowed, orthonormal MDCT of the lowest coefficients, ``[640, 40]``."""
    time, k = np.arange(WINDOW)[:, None], np.arange(LINEAR)
    waves = np.cos(np.pi / HOP * (time + 0.5 + HOP / 2) * (k + 0.5))
    return (math.sqrt(2 / HOP) * _SINE[:, None] * waves).astype(np.float32)


_MDCT = _mdct_basis()


def _frames(wav: Array, hop: int) -> Array:
    """Windows of 640 samples that begin every `hop` samples of ``[T]``, zeros after its end: ``[T / hop, 640]``."""
    blocks = jnp.pad(wav, (0, WINDOW - hop)).reshape(-1, hop)
    count = wav.shape[0] // hop
    return jnp.concatenate([blocks[i : i + count] for i in range(WINDOW // hop)], axis=1)


def _overlapped(frames: Array, hop: int) -> Array:
    """The sum of windows ``[N, 640]`` that begin every `hop` samples, what exceeds ``[N · hop]`` cut off."""
    count, taps = frames.shape[0], WINDOW // hop
    parts = jnp.pad(frames, ((taps - 1, 0), (0, 0))).reshape(count + taps - 1, taps, hop)
    late = [parts[taps - 1 - i : taps - 1 - i + count, i] for i in range(taps)]
    return functools.reduce(jnp.add, late).reshape(-1)


def _expanded(x: Array) -> Array:
    """The inverse of asinh up to ``LOUDEST``, far above speech; beyond it the tangent, so that nothing overflows."""
    inner = jnp.clip(x, -LOUDEST, LOUDEST)
    return jnp.sinh(inner) + jnp.cosh(inner) * (x - inner)


# --- architecture ---


class Depthwise(nn.Module):
    """Causal depthwise convolution of seven taps over ``[N, C]``, as shifted additions."""

    taps: int = 7

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """See the class."""
        kernel = self.param("kernel", nn.initializers.normal(0.2), (self.taps, x.shape[1]))
        past = jnp.pad(x, ((self.taps - 1, 0), (0, 0)))
        # Kept apart from what follows: fused into a reduction, the shifts would be computed over and over.
        return lax.optimization_barrier(sum(past[i : i + x.shape[0]] * kernel[i] for i in range(self.taps)))


class Block(nn.Module):
    """ConvNeXt block over ``[N, C]``: depthwise convolution, layer norm, two products with three times the width."""

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """See the class."""
        h = nn.LayerNorm(name="norm")(Depthwise(name="depthwise")(x))
        h = nn.gelu(Dense(3 * x.shape[1], self.dtype, name="wide")(h))
        return x + Dense(x.shape[1], self.dtype, kernel_init=nn.initializers.normal(0.02), name="narrow")(h)


class Encoder(nn.Module):
    """Waveform ``[N · 320]`` -> latent ``[N, 64]``."""

    width: int = 160
    blocks: int = 3
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, wav: Array) -> Array:
        """See the class."""
        deviation = self.param("deviation", nn.initializers.ones, (LINEAR,))  # of the compressed coefficients
        linear = jnp.arcsinh(_frames(wav, HOP) @ _MDCT / QUIET) / deviation
        spectrum = jnp.fft.rfft(_frames(wav, STEP) * _SINE)
        power = jnp.square(spectrum.real) + jnp.square(spectrum.imag)
        x = 0.25 * jnp.log(power + 1e-6).reshape(-1, 2 * BINS)  # two frames of 10 ms a row
        x = nn.LayerNorm(name="norm_in")(Dense(self.width, self.dtype, name="in")(x))
        for i in range(self.blocks):
            x = Block(self.dtype, name=f"block_{i}")(x)
        learned = Dense(LEARNED, self.dtype, name="out")(nn.LayerNorm(name="norm_out")(x))
        return jnp.concatenate([linear, learned], axis=1)


class Decoder(nn.Module):
    """Latent ``[N, 64]`` -> waveform ``[N · 320]``."""

    width: int = 224
    blocks: int = 4
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, z: Array) -> Array:
        """See the class."""
        deviation = self.param("deviation", nn.initializers.ones, (LINEAR,))
        linear = _overlapped(QUIET * _expanded(z[:, :LINEAR] * deviation) @ _MDCT.T, HOP)
        x = nn.LayerNorm(name="norm_in")(Dense(self.width, self.dtype, name="in")(z))
        x = Block(self.dtype, name="slow")(x)
        x = Dense(2 * self.width, self.dtype, name="up")(x).reshape(-1, self.width)
        for i in range(self.blocks):
            x = Block(self.dtype, name=f"block_{i}")(x)
        x = Dense(3 * BINS, self.dtype, name="out")(nn.LayerNorm(name="norm_out")(x))
        size, real, imag = jnp.split(x, 3, axis=1)
        scale = jnp.exp(jnp.minimum(size - 3.0, LOUDEST)) * lax.rsqrt(jnp.square(real) + jnp.square(imag) + 1e-6)
        waves = jnp.fft.irfft(lax.complex(scale * real, scale * imag)) * _SINE
        return linear + 0.5 * _overlapped(waves, STEP)


# --- weights ---


def shapes() -> Any:
    """The parameters that the architecture expects, as ``ShapeDtypeStruct``."""
    key = jax.random.key(0)
    return {
        "encoder": jax.eval_shape(Encoder().init, key, jnp.zeros(HOP))["params"],
        "decoder": jax.eval_shape(Decoder().init, key, jnp.zeros((1, CHANNELS)))["params"],
        "codebooks": jax.ShapeDtypeStruct((STAGES[-1], ENTRIES, CHANNELS), jnp.float32),
    }


def pack(params: Any) -> bytes:
    """Parameters as the contents of a weight file: MessagePack, float16, half the size and no audible loss."""
    return serialization.msgpack_serialize(jax.tree.map(lambda leaf: np.asarray(leaf, np.float16), params))


def unpack(path: Path) -> Any:
    """The parameters in a file that :func:`pack` wrote, as float32; strict both ways.

    Raises:
      ValueError: not such a file; unknown, missing, misshapen or non-finite tensors, by name.
    """
    try:
        tree = serialization.msgpack_restore(path.read_bytes())
        loaded = leaves(tree)
    except Exception as error:  # whatever a damaged file provokes in the reader
        raise ValueError(f"{path} is not a weight file of mini ({type(error).__name__}): get it anew.") from error
    expected = leaves(shapes())
    wrong = [f"{name} {list(expected[name].shape)} is missing" for name in expected if name not in loaded]
    wrong += [f"{name} is left over" for name in loaded if name not in expected]
    for name in expected.keys() & loaded.keys():
        found = loaded[name]
        if np.shape(found) != expected[name].shape:
            wrong.append(f"{name} has shape {list(np.shape(found))}, expected {list(expected[name].shape)}")
        elif not (isinstance(found, np.ndarray) and found.dtype == np.float16 and np.isfinite(found).all()):
            wrong.append(f"{name} is not made of finite float16 numbers")
        elif name.endswith("deviation") and not (found > 0).all():
            wrong.append(f"{name} is not above zero")
    if wrong:
        more = f" (and {len(wrong) - 5} more)" if len(wrong) > 5 else ""
        raise ValueError(f"{path} does not hold the expected weights of mini: {'; '.join(sorted(wrong)[:5])}{more}.")
    if str(jax.tree.structure(tree)) != str(jax.tree.structure(shapes())):
        raise ValueError(f"{path} does not hold the expected weights of mini: its tensors are nested in another way.")
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)
