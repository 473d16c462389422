"""The networks of NISQA v2 and NISQA-TTS, and the spectrogram they look at.

A log-mel spectrogram is cut into windows of 15 frames, a CNN turns each window into features, and a small
network over time (self-attention, or an LSTM) turns those into scores. Everything that the reference
implementation derives from a file (reflected edges, the floor 80 dB below the loudest band, the number of
windows) is derived from ``length`` here, so padding changes nothing.

Array names: F frames of 10 ms, N windows, H mel bands (or what pooling leaves), W columns of a window,
C channels. Feature maps are laid out [H, W, N, C]: shifts along H and W move large contiguous blocks.
"""

import math
import warnings
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import librosa
import numpy as np

from jaxhack.types import Array
from ports.lstm import Lstm
from ports.transformer import Dense, dot

N_FFT, MELS, WINDOW = 4096, 48, 15  # samples, bands, frames: the same at every rate

# Front end


def log_mel(wav: Array, length: Array, *, sample_rate: int, fmax: float) -> Array:
    """Log-mel magnitudes as the reference computes them with librosa, made independent of padding.

    Frames are centred, 10 ms apart and 20 ms long under a Hann window, reflected at both ends of the clip;
    the floor is the larger of −80 dB and 80 dB below the clip's loudest band. Bands above the Nyquist
    frequency are empty and lie on that floor, as in the reference.

    Args:
        wav: [T] float32, −1..1.
        length: [] int32, samples that count.
        sample_rate: Hz.
        fmax: upper edge of the highest band, Hz.

    Returns:
        [F, 48] dB, F = max(1 + T // hop, 15); rows from ``1 + length // hop`` on mean nothing.
    """
    hop, window = int(sample_rate * 0.01), int(sample_rate * 0.02)
    head = N_FFT // 2 - (N_FFT - window) // 2  # samples before a frame's centre
    tail = window - head
    frames = max(1 + wav.shape[0] // hop, WINDOW)
    wav = jnp.pad(wav, (0, frames * hop - wav.shape[0]))  # the one place where a clip is too short to reflect
    end = jnp.flip(jax.lax.dynamic_slice(wav, (length - 1 - tail,), (tail,)))
    wav = jnp.concatenate([jnp.flip(wav[1 : head + 1]), wav, jnp.zeros(2 * window, wav.dtype)])
    wav = jax.lax.dynamic_update_slice(wav, end, (head + length,))
    spans = math.ceil(window / hop)
    blocks = wav[: (frames + spans - 1) * hop].reshape(-1, hop)
    cut = jnp.concatenate([blocks[i : i + frames] for i in range(spans)], axis=1)[:, :window]
    spectrum = jnp.fft.rfft(cut * np.hanning(window + 1)[:window].astype(np.float32), N_FFT)
    # 1e-20 keeps the gradient finite at zero and lies 12 orders below the floor's square.
    magnitude = jnp.sqrt(spectrum.real**2 + spectrum.imag**2 + 1e-20)
    level = 20.0 * jnp.log10(jnp.maximum(magnitude @ _mel_bank(sample_rate, fmax), 1e-4))
    counts = jnp.arange(frames)[:, None] <= length // hop
    return jnp.maximum(level, jnp.max(level, where=counts, initial=-80.0) - 80.0)


def _mel_bank(sample_rate: int, fmax: float) -> np.ndarray:
    """[2049, 48] Slaney mel filters of unit area."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Empty filters")  # the bands above the Nyquist frequency
        bank = librosa.filters.mel(sr=sample_rate, n_fft=N_FFT, n_mels=MELS, fmax=fmax)
    return np.ascontiguousarray(bank.T)


# The CNN over windows


class FirstConv(nn.Module):
    """The first convolution, pooled over pairs of bands: mel [F, 48] -> three maps [24, F, 16].

    Neighbouring windows share most of their columns, so the whole clip is convolved once. A window's first
    and last column see zeros where the clip has neighbours; they come from kernels without the left and
    without the right taps. The maps are: all taps, no left taps, no right taps.
    """

    @nn.compact
    def __call__(self, mel: Array) -> tuple[Array, Array, Array]:
        """Convolve; the maps lack bias and ReLU, which commute with the pooling that follows."""
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (3, 3, 1, 16))[:, :, 0]
        frames = mel.shape[0]
        image = jnp.pad(mel.T, 1)
        taps = jnp.stack([image[i : i + MELS, j : j + frames] for i in range(3) for j in range(3)])
        kernels = jnp.stack([kernel, kernel.at[:, 0].set(0.0), kernel.at[:, 2].set(0.0)], axis=2)
        maps = jnp.tensordot(taps, kernels.reshape(9, 48), axes=(0, 0))
        full, no_left, no_right = jnp.split(_pair_max(maps), 3, axis=-1)
        return full, no_left, no_right


class Conv(nn.Module):
    """A 3 × 3 convolution with bias and ReLU of [H, W, N, C], H even, as matrix products.

    Winograd's F(2, 3) along H: two rows of output take four products instead of six. Three taps along W are
    gathered before the product. Convolutions proper are slow inside a loop on a CPU, their gradients most.
    S. Winograd, "Arithmetic Complexity of Computations", 1980.
    """

    features: int
    same: bool = True  # zero-pad W; H is always padded
    dtype: Any = jnp.float32  # of the products' factors

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Return [H, W or W − 2, N, features]."""
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (3, 3, x.shape[-1], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        edge = 1 if self.same else 0
        x = jnp.pad(x, ((1, 1), (edge, edge), (0, 0), (0, 0)))
        width = x.shape[1] - 2
        pairs = x.reshape(x.shape[0] // 2, 2, *x.shape[1:])
        row0, row1, row2, row3 = pairs[:-1, 0], pairs[:-1, 1], pairs[1:, 0], pairs[1:, 1]
        above, here, below = kernel.reshape(3, -1, self.features)
        half = 0.5 * (above + below)
        a, b, c, d = (
            dot(jnp.concatenate([rows[:, j : j + width] for j in range(3)], axis=-1), matrix, self.dtype)
            for rows, matrix in (
                (row0 - row2, above),
                (row1 + row2, half + 0.5 * here),
                (row2 - row1, half - 0.5 * here),
                (row1 - row3, below),
            )
        )
        out = jnp.stack([a + b + c, b - c - d], axis=1)
        return nn.relu(out.reshape(-1, *out.shape[2:]) + bias)


def _pair_max(x: Array) -> Array:
    """Max over pairs along the first axis."""
    x = x.reshape(x.shape[0] // 2, 2, *x.shape[1:])
    return jnp.maximum(x[:, 0], x[:, 1])


def _max_columns(x: Array, bins: tuple[tuple[int, int], ...]) -> Array:
    """Max over pairs of rows and over each half-open range of columns: [H, W, N, C] -> [H/2, bins, N, C]."""
    x = _pair_max(x)
    columns = [jax.tree.reduce(jnp.maximum, [x[:, i] for i in range(*span)]) for span in bins]
    return jnp.stack(columns, axis=1)


def _columns_adaptive(full: Array, no_left: Array, no_right: Array, windows: int) -> Array:
    """Windows every 4 frames, 15 columns pooled to 7 (kernel 3, stride 2): [24, F, 16] -> [24, 7, N, 16]."""
    full, no_left, no_right = (x.reshape(24, -1, 4, 16) for x in (full, no_left, no_right))
    even = jnp.max(full[:, :, :3], axis=2)
    odd = jnp.maximum(jnp.maximum(full[:, :-1, 2], full[:, :-1, 3]), full[:, 1:, 0])
    first = jnp.maximum(jnp.maximum(no_left[:, :, 0], full[:, :, 1]), full[:, :, 2])
    last = jnp.maximum(jnp.maximum(full[:, :, 0], full[:, :, 1]), no_right[:, :, 2])
    order = ((first, 0), (odd, 0), (even, 1), (odd, 1), (even, 2), (odd, 2), (last, 3))
    return jnp.stack([x[:, start : start + windows] for x, start in order], axis=1)


def _columns_pairs(full: Array, no_left: Array, no_right: Array, windows: int) -> Array:
    """Windows at every frame, 15 columns pooled to 8 (one, then pairs): [24, F, 16] -> [24, 8, N, 16]."""
    pairs = jnp.maximum(full[:, :-1], full[:, 1:])
    last = jnp.maximum(full[:, :-1], no_right[:, 1:])
    order = ((no_left, 0), *((pairs, start) for start in range(1, 12, 2)), (last, 13))
    return jnp.stack([x[:, start : start + windows] for x, start in order], axis=1)


class Cnn(nn.Module):
    """Six convolutions over each window of a spectrogram: mel [F, 48] -> [N, H · W · 64]."""

    adaptive: bool  # NISQA: adaptive pooling, a window every 4 frames; NISQA-TTS: plain pooling, every frame
    dtype: Any = jnp.float32  # of the products' factors, but those of the first convolution

    @nn.compact
    def __call__(self, mel: Array) -> Array:
        """Features of every window, ordered H, W, channel."""
        stride = 4 if self.adaptive else 1
        windows = -(-(mel.shape[0] - WINDOW + 1) // stride)
        grid = stride * (windows + 3) if self.adaptive else mel.shape[0]
        maps = FirstConv(name="conv1")(jnp.pad(mel, ((0, 3), (0, 0)))[:grid])
        bias = self.param("bias1", nn.initializers.zeros, (16,))
        x = nn.relu((_columns_adaptive if self.adaptive else _columns_pairs)(*maps, windows) + bias)
        x = Conv(32, dtype=self.dtype, name="conv2")(x)
        x = _max_columns(x, ((0, 2), (1, 3), (2, 5), (4, 6), (5, 7)) if self.adaptive else _halves(8))
        x = Conv(64, dtype=self.dtype, name="conv3")(x)
        x = Conv(64, dtype=self.dtype, name="conv4")(x)
        x = _max_columns(x, ((0, 2), (1, 4), (3, 5)) if self.adaptive else _halves(4))
        x = Conv(64, dtype=self.dtype, name="conv5")(x)
        x = Conv(64, not self.adaptive, self.dtype, name="conv6")(x)
        return x.transpose(2, 0, 1, 3).reshape(windows, -1)


def _halves(width: int) -> tuple[tuple[int, int], ...]:
    return tuple((i, i + 2) for i in range(0, width, 2))


# The networks over time


class Nisqa(nn.Module):
    """NISQA v2.0: wav [T], length [] -> [5] MOS. Defined for lengths of 15 frames and more."""

    sample_rate: int  # Hz
    dtype: Any = jnp.float32  # of the products' factors; spectrogram, norms, softmax and pooling are float32
    stride: ClassVar[int] = 4  # frames between windows
    max_windows: ClassVar[int] = 1300

    @nn.compact
    def __call__(self, wav: Array, length: Array) -> Array:
        """Score one utterance."""
        mel = log_mel(wav, length, sample_rate=self.sample_rate, fmax=20000.0)
        x = Dense(64, self.dtype, name="linear")(Cnn(True, self.dtype, name="cnn")(mel))
        valid = jnp.arange(x.shape[0]) < _windows(length, self.sample_rate, self.stride)
        x = nn.LayerNorm(1e-5, name="norm")(x)
        for i in range(2):
            x = SelfAttention(self.dtype, name=f"layer{i}")(x, valid)
        pools = nn.vmap(
            AttentionPool, in_axes=None, axis_size=5, variable_axes={"params": 0}, split_rngs={"params": True}
        )
        return pools(name="pool")(x, valid)


class SelfAttention(nn.Module):
    """A post-norm transformer layer with one head: x [N, 64], valid [N] bool -> [N, 64]."""

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array, valid: Array) -> Array:
        """Attend to the valid windows."""
        q, k, v = jnp.split(Dense(192, self.dtype, name="qkv")(x), 3, axis=-1)
        attention = _softmax(dot(q, k.T, self.dtype) / 8.0, valid)
        mixed = dot(attention, v, self.dtype)
        x = nn.LayerNorm(1e-5, name="norm1")(x + Dense(64, self.dtype, name="out")(mixed))
        hidden = nn.relu(Dense(64, self.dtype, name="linear1")(x))
        return nn.LayerNorm(1e-5, name="norm2")(x + Dense(64, self.dtype, name="linear2")(hidden))


class AttentionPool(nn.Module):
    """One score from the windows: x [N, 64], valid [N] bool -> []."""

    @nn.compact
    def __call__(self, x: Array, valid: Array) -> Array:
        """Weigh the valid windows, then a linear map."""
        scores = nn.Dense(1, name="linear2")(nn.relu(nn.Dense(128, name="linear1")(x)))
        return nn.Dense(1, name="linear3")(_softmax(scores[:, 0], valid) @ x)[0]


class NisqaTts(nn.Module):
    """NISQA-TTS v1.0: wav [T], length [] -> [1] MOS. Defined for lengths of 15 frames and more."""

    sample_rate: int  # Hz
    dtype: Any = jnp.float32  # of the products' factors; spectrogram, norms, softmax and pooling are float32
    stride: ClassVar[int] = 1
    max_windows: ClassVar[int] = 6000

    @nn.compact
    def __call__(self, wav: Array, length: Array) -> Array:
        """Score one utterance."""
        mel = log_mel(wav, length, sample_rate=self.sample_rate, fmax=8000.0)
        x = Dense(20, self.dtype, name="linear")(Cnn(False, self.dtype, name="cnn")(mel))
        valid = jnp.arange(x.shape[0]) < _windows(length, self.sample_rate, self.stride)
        ends = [
            Lstm(128, dtype=self.dtype, name="forward")(x, valid)[-1],  # the windows that aren't valid repeat a state
            Lstm(128, True, self.dtype, name="backward")(x, valid)[0],
        ]
        return nn.Dense(1, name="pool")(jnp.concatenate(ends))


def _windows(length: Array, sample_rate: int, stride: int) -> Array:
    """Windows that a clip of ``length`` samples fills."""
    frames = 1 + length // int(sample_rate * 0.01)
    return (frames - WINDOW + stride) // stride


def _softmax(scores: Array, valid: Array) -> Array:
    """Over the last axis, among the valid; finite even where nothing is valid."""
    return jax.nn.softmax(jnp.where(valid, scores, -1e30), axis=-1)
