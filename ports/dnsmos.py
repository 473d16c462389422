"""DNSMOS P.835 (OVRL, SIG, BAK) and P.808 in Flax, from Microsoft's ONNX files.

Source: Reddy, Gopal, Cutler, "DNSMOS P.835: A non-intrusive perceptual objective speech quality metric to
evaluate noise suppressors", ICASSP 2022, and "DNSMOS", ICASSP 2021; files and scoring rules of ``speechmos``
0.0.1.1 (MIT). The rules, followed to the letter by :func:`counted_windows` and :func:`window_count`:

- 16 kHz; a window is 9.01 s (144 160 samples), the hop 1 s; a clip shorter than a window is doubled until it
  isn't; the score is the mean over windows of the calibrated value of each.
- The official code computes a window's end in floating point. For the windows that start at 7 … 23 s (and
  a few later ones) it lands one sample short and they are silently skipped, so a part of a file longer than
  17 s is never heard. That is reproduced: a score that differs from the published metric's isn't that metric.

**Shared work.** Eight ninths of a window is its neighbour's too, and a repeated clip brings the same frames
again. So the network's convolutional stem runs once over the clip's frames; a window differs from that only
in three rows at either edge, where its stem sees zero padding. Those rows come from two short strips, and the
result is the official one to rounding, at a fraction of its cost.
"""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import librosa
import numpy as np
from jax import Array, lax

from jaxhack import types
from jaxhack.types import Predictor, PyTree, Weight
from ports.conv3x3 import conv3x3
from ports.onnx_weights import load_params
from ports.weight_file import weight_file

SAMPLE_RATE = 16_000
WINDOW = 144_160  # samples, 9.01 s
HOP = 16_000  # samples from one window to the next
FRAME, STEP = 320, 160  # samples
MIN_SAMPLES = FRAME  # less than one analysis frame: nothing but repetitions to judge
CALIBRATION = (  # highest power first, for ovrl, sig, bak
    (-0.06766283, 1.11546468, 0.04602535),
    (-0.08397278, 1.22083953, 0.0052439),
    (-0.13166888, 1.60915514, -0.39604546),
)


def _weight(file: str, size: int, sha256: str) -> Weight:
    source = f"pypi:speechmos==0.0.1.1:speechmos/dnsmos_models/{file}"
    return Weight(file, "dnsmos", sha256, size, source, "MIT", "microsoft/DNS-Challenge, speechmos 0.0.1.1")


DNSMOS_WEIGHTS = (
    _weight("sig_bak_ovr.onnx", 1_157_965, "269fbebdb513aa23cddfbb593542ecc540284a91849ac50516870e1ac78f6edd"),
)
DNSMOS_P808_WEIGHTS = (
    _weight("model_v8.onnx", 224_860, "9246480c58567bc6affd4200938e77eef49468c8bc7ed3776d109c07456f6e91"),
)

# ---------------------------------------------------------------------------------------------- window rules


def counted_windows(samples: int) -> tuple[int, ...]:
    """Windows, by their start in seconds, that the official code scores in some clip of up to ``samples``."""
    most = max(samples, 2 * WINDOW - 1) // SAMPLE_RATE - 9  # doubling ends below two windows
    return tuple(i for i in range(most) if int((i + 9.01) * SAMPLE_RATE) - i * SAMPLE_RATE == WINDOW)


def window_count(length: Array) -> Array:
    """Number of hops of a clip of ``length []`` samples, those that the official code skips included.

    Zero below ``MIN_SAMPLES``.
    """
    total = length
    for _ in range((WINDOW // MIN_SAMPLES).bit_length()):
        total = jnp.where(total < WINDOW, 2 * total, total)
    hops = jnp.maximum(total // SAMPLE_RATE - 9, 1)
    return jnp.where(length >= MIN_SAMPLES, hops, 0)


def _cut(wav: Array, length: Array, start: Array, samples: int) -> Array:
    """``samples`` of the endlessly repeated clip, from ``start []`` on (which may be negative): [samples]."""
    return jnp.asarray(wav)[(start + jnp.arange(samples, dtype=jnp.int32)) % jnp.maximum(length, 1)]


def _map_if(fn: Callable[[Array], Array], indices: np.ndarray, wanted: Array) -> Array:
    """``fn`` of each index, zeros where it isn't ``wanted [N]``: really skipped, and differentiable.

    A loop with a dynamic number of turns has no reverse mode; a ``scan`` over ``cond`` has. Each turn is
    rematerialised, so a gradient's memory is that of one turn. Under ``vmap`` over lengths the ``cond``
    becomes a ``select`` and every turn is paid for; map clips one by one on a CPU.
    """
    turn = jax.checkpoint(fn)
    shape = jax.eval_shape(fn, jax.ShapeDtypeStruct((), jnp.int32))

    def step(pair: tuple[Array, Array]) -> Array:
        return lax.cond(pair[1], turn, lambda _: jnp.zeros(shape.shape, shape.dtype), pair[0])

    return lax.map(step, (jnp.asarray(indices, jnp.int32), wanted))


def _mean_over(values: Array, valid: Array) -> Array:
    """Mean of ``values [W, H]`` over the ``valid [W]`` windows; NaN when there is none."""
    total = jnp.sum(jnp.where(valid[:, None], values, 0.0), axis=0)
    count = jnp.sum(valid, dtype=jnp.float32)
    return jnp.where(count > 0, total / jnp.maximum(count, 1.0), jnp.nan)


# -------------------------------------------------------------------------------------------------- networks


class Conv3x3(nn.Module):
    """3×3 convolution, zero-padded, with a bias and ReLU: [..., H, W, C] -> [..., H, W, features]."""

    features: int
    dtype: Any = jnp.float32  # of the products' factors

    @nn.compact
    def __call__(self, x: Array) -> Array:  # noqa: D102
        shape = (3, 3, x.shape[-1], self.features)
        kernel = self.param("kernel", nn.initializers.he_normal(), shape, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32)
        y = conv3x3(x.reshape((-1, *x.shape[-3:])), kernel, self.dtype)
        return nn.relu(y + bias).reshape((*x.shape[:-1], self.features))


def _halve(x: Array) -> Array:
    """2×2 max pooling, an odd last row or column dropped: [..., H, W, C] -> [..., H // 2, W // 2, C]."""
    height, width = x.shape[-3] // 2 * 2, x.shape[-2] // 2 * 2
    x = x[..., :height, :width, :]
    x = jnp.maximum(x[..., ::2, :, :], x[..., 1::2, :, :])
    return jnp.maximum(x[..., ::2, :], x[..., 1::2, :])


class P835(nn.Module):
    """The P.835 network: learned STFT, log power, seven convolutions, global maximum, three dense layers.

    ``stem`` makes one row of 4 frames; zero padding reaches ``EDGE`` rows in, beyond it is shift-invariant.
    """

    dtype: Any = jnp.float32  # of the factors of the convolutions' products
    EDGE: ClassVar[int] = 3  # rows

    def setup(self) -> None:  # noqa: D102
        self.stft = self.param("stft", nn.initializers.lecun_normal(), (FRAME, 322), jnp.float32)
        self.conv = [Conv3x3(features, self.dtype) for features in (128, 64, 64, 32, 32, 32, 64)]
        self.dense = [nn.Dense(features) for features in (128, 64, 3)]

    def stem(self, samples: Array) -> Array:
        """``samples [..., 160 · N + 160]`` to rows [..., N // 4, 40, 32]."""
        steps = samples.reshape((*samples.shape[:-1], -1, STEP))
        frames = jnp.concatenate([steps[..., :-1, :], steps[..., 1:, :]], axis=-1)
        parts = jnp.matmul(frames, self.stft, precision=lax.Precision.HIGHEST)
        # The graph takes a root and squares it again: the same number, with NaN for the gradient of silence.
        power = jnp.square(parts[..., :161]) + jnp.square(parts[..., 161:])
        x = jnp.log10(jnp.maximum(power, 1e-12))[..., None]
        for conv in self.conv[:4]:
            x = conv(x)
        return self.conv[5](_halve(self.conv[4](_halve(x))))

    def tail(self, rows: Array) -> Array:
        """A window's rows [225, 40, 32] to raw (sig, bak, ovr) [3]."""
        x = jnp.max(self.conv[6](_halve(rows)), axis=(-3, -2))
        return self.dense[2](nn.relu(self.dense[1](nn.relu(self.dense[0](x)))))

    def __call__(self, window: Array) -> Array:
        """One ``window [144160]`` to raw (sig, bak, ovr) [3], as the ONNX graph computes it."""
        return self.tail(self.stem(window))


class P808(nn.Module):
    """The P.808 network: mel dB map [900, 120] to MOS [1]."""

    dtype: Any = jnp.float32  # of the factors of the convolutions' products

    @nn.compact
    def __call__(self, mel: Array) -> Array:  # noqa: D102
        conv, x = functools.partial(Conv3x3, dtype=self.dtype), mel[..., None]
        x = _halve(conv(32, name="conv_0")(x))
        x = _halve(conv(32, name="conv_1")(x))
        x = conv(32, name="conv_2")(x)
        x = _halve(conv(32, name="conv_3")(x))
        x = jnp.max(conv(64, name="conv_4")(x), axis=(-3, -2))
        x = nn.relu(nn.Dense(64, name="dense_0")(x))
        x = nn.relu(nn.Dense(64, name="dense_1")(x))
        return nn.Dense(1, name="dense_2")(x)


# ------------------------------------------------------------------------------------------------ predictors

ROW = 4 * STEP  # samples a row
BLOCK = 75  # rows of the stem computed at a time: 3 s
WINDOW_ROWS = 225


def _apply(net: nn.Module, params: PyTree, x: Array, method: str = "__call__") -> Array:
    result: Any = net.apply(params, x, method=method)
    return result


def _p835_rows(net: P835, params: PyTree, wav: Array, length: Array, last: Array, blocks: int) -> Array:
    """The stem's rows over the repeated clip, as far as the window that starts at ``last`` s: [N, 40, 32].

    A clip of a whole number of rows repeats them, so that one period is enough: see :func:`_row_period`.
    """
    edge = P835.EDGE

    def block(index: Array) -> Array:
        start = (index * BLOCK - edge) * ROW
        samples = _cut(wav, length, start, (BLOCK + 2 * edge) * ROW + STEP)
        return _apply(net, params, samples, "stem")[edge:-edge]

    needed = jnp.minimum(last * (HOP // ROW) + WINDOW_ROWS, _row_period(length))
    wanted = (jnp.arange(blocks, dtype=jnp.int32) * BLOCK < needed) & (last >= 0)
    rows = _map_if(block, np.arange(blocks), wanted)
    return rows.reshape((-1, *rows.shape[2:]))


def _row_period(length: Array) -> Array:
    """Rows after which the stem repeats itself; more than there ever are if ``length`` is no whole number."""
    return jnp.where(length % ROW == 0, jnp.maximum(length // ROW, 1), jnp.iinfo(jnp.int32).max)


def _p835_heads(net: P835, params: PyTree, wav: Array, length: Array) -> Array:
    """Calibrated (ovrl, sig, bak) [3] of ``wav [T]``."""
    edge = P835.EDGE
    starts = np.asarray(counted_windows(wav.shape[0]), np.int32)
    blocks = -(-(int(starts[-1]) * (HOP // ROW) + WINDOW_ROWS) // BLOCK)
    valid = jnp.asarray(starts) < window_count(length)
    last = jnp.max(jnp.where(valid, jnp.asarray(starts), -1))
    rows = _p835_rows(net, params, wav, length, last, blocks)
    inner = jnp.arange(edge, WINDOW_ROWS - edge, dtype=jnp.int32)

    def window(start: Array) -> Array:
        samples = 2 * edge * ROW + STEP
        strips = jnp.stack(
            [_cut(wav, length, start * HOP + at, samples) for at in (0, WINDOW - samples)]
        )  # rows 0 … 2 of the first and 3 … 5 of the second are the window's own edges
        edges = _apply(net, params, strips, "stem")
        middle = rows[(start * (HOP // ROW) + inner) % _row_period(length)]
        whole = jnp.concatenate([edges[0, :edge], middle, edges[1, edge:]])
        return _apply(net, params, whole, "tail")

    raw = _map_if(window, starts, valid)[:, jnp.array([2, 0, 1])]  # the graph's order is sig, bak, ovr
    a, b, c = jnp.asarray(CALIBRATION, jnp.float32).T
    return _mean_over((a * raw + b) * raw + c, valid)


def mel_tables() -> tuple[np.ndarray, np.ndarray]:
    """Hann-windowed DFT [321, 322] (cosines, then sines) and mel filters [161, 120] of P.808, float32."""
    angle = 2 * np.pi * np.outer(np.arange(321), np.arange(161)) / 321
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(321) / 321)
    dft = np.concatenate([np.cos(angle), np.sin(angle)], axis=1) * hann[:, None]
    mel = librosa.filters.mel(sr=SAMPLE_RATE, n_fft=321, n_mels=120)
    return dft.astype(np.float32), np.ascontiguousarray(mel.T, np.float32)


def _p808_features(window: Array, dft: Array, mel: Array) -> Array:
    """dB mel map [900, 120] of a ``window [144160]``, (dB + 40) / 40, 0 dB at the window's own maximum."""
    padded = jnp.pad(window[:-STEP], (STEP, 2 * STEP))  # librosa's centred frames, zeros beyond either end
    steps = padded.reshape(-1, STEP)[:902]
    frames = jnp.concatenate([steps[:-2], steps[1:-1], steps[2:, :1]], axis=1)  # [900, 321]
    parts = jnp.matmul(frames, dft, precision=lax.Precision.HIGHEST)
    power = jnp.square(parts[:, :161]) + jnp.square(parts[:, 161:])
    power = jnp.maximum(jnp.matmul(power, mel, precision=lax.Precision.HIGHEST), 1e-10)
    level = 10 * jnp.log10(power)
    return (jnp.maximum(level - jnp.max(level), -80.0) + 40) / 40


def _p808_heads(net: P808, params: PyTree, wav: Array, length: Array) -> Array:
    """P.808 MOS [1] of ``wav [T]``."""
    dft, mel = (jnp.asarray(table) for table in mel_tables())
    starts = np.asarray(counted_windows(wav.shape[0]), np.int32)
    valid = jnp.asarray(starts) < window_count(length)

    def window(start: Array) -> Array:
        return _apply(net, params, _p808_features(_cut(wav, length, start * HOP, WINDOW), dft, mel))

    return _mean_over(_map_if(window, starts, valid), valid)


def _p835_names() -> dict[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {"stft": ("time2freq/stft-real/kernel:0", "time2freq/stft-imag/kernel:0")}
    for i, conv in enumerate(["conv2d", *(f"conv2d_{n}" for n in range(1, 7))]):
        names |= {f"conv_{i}/{part}": (f"{conv}/{part}:0",) for part in ("kernel", "bias")}
    return names | _dense_names("mos_estimator_logpow", ("dense", "dense_1", "dense_3"))


def _p808_names() -> dict[str, tuple[str, ...]]:
    names = {f"conv_{i}/{part}": (f"conv2d_{i + 5}/{part}:0",) for i in range(5) for part in ("kernel", "bias")}
    return names | _dense_names("mos_estimator_small_1", ("dense_3", "dense_4", "dense_5"))


def _dense_names(scope: str, layers: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    return {
        f"dense_{i}/{part}": (f"{scope}/{layer}/{op}/ReadVariableOp/resource:0",)
        for i, layer in enumerate(layers)
        for part, op in (("kernel", "MatMul"), ("bias", "BiasAdd"))
    }


def _predictor(
    name: str,
    head_names: tuple[str, ...],
    weights: Mapping[str, str],
    params: PyTree,
    heads: Callable[[PyTree, Array, Array], Array],
) -> Predictor:
    def checked(params: PyTree, wav: types.Array, length: types.Array) -> Array:
        if wav.ndim != 1:
            raise ValueError(f"{name} expected one utterance, wav [T], got shape {wav.shape}; use vmap outside")
        if wav.shape[0] < MIN_SAMPLES:
            return jnp.full(len(head_names), jnp.nan, jnp.float32)
        length = jnp.asarray(length, jnp.int32)
        # Rectifiers and maxima swallow NaN; the original gives it back.
        sound = jnp.all(jnp.isfinite(wav) | (jnp.arange(wav.shape[0]) >= length))
        return jnp.where(sound, heads(params, wav, length), jnp.nan)

    return Predictor(
        name=name,
        sample_rate=SAMPLE_RATE,
        params=params,
        heads=checked,
        head_names=head_names,
        scale=(1.0, 5.0),
        differentiable=True,
        min_samples=MIN_SAMPLES,
        weights=weights,
    )


def dnsmos(paths: Mapping[str, Path], *, dtype: Any = jnp.float32) -> Predictor:
    """DNSMOS P.835: heads (ovrl, sig, bak), calibrated MOS, of ``wav [T]`` at 16 kHz, −1 … 1.

    Args:
        paths: where ``sig_bak_ovr.onnx`` (:data:`DNSMOS_WEIGHTS`) is.
        dtype: of the factors of the convolutions' products; sums, the spectrogram, the first convolution and the
            dense layers are float32. ``jnp.bfloat16`` changes scores by up to 0.011.

    Returns:
        A differentiable predictor; NaN below 320 samples. Agrees with ``speechmos.dnsmos.run`` to 1e-3.

    Raises:
        ValueError: no such file, no ONNX model, or a weight is missing, left over, misshapen or not finite.
    """
    file, net = DNSMOS_WEIGHTS[0].file, P835(dtype)
    path, digest = weight_file("dnsmos", file, paths)
    shapes = jax.eval_shape(net.init, jax.random.key(0), jax.ShapeDtypeStruct((WINDOW,), jnp.float32))
    params = load_params(path, _p835_names(), shapes)
    return _predictor(
        "dnsmos",
        ("ovrl", "sig", "bak"),
        {file: digest},
        params,
        lambda params, wav, length: _p835_heads(net, params, wav, length),
    )


def dnsmos_p808(paths: Mapping[str, Path], *, dtype: Any = jnp.float32) -> Predictor:
    """DNSMOS P.808: one head, p808 (MOS), of ``wav [T]`` at 16 kHz, −1 … 1; level-invariant.

    Args:
        paths: where ``model_v8.onnx`` (:data:`DNSMOS_P808_WEIGHTS`) is.
        dtype: as :func:`dnsmos`; ``jnp.bfloat16`` changes scores by up to 0.0025.

    Returns:
        A differentiable predictor; NaN below 320 samples. Agrees with ``speechmos.dnsmos.run`` to 1e-3.

    Raises:
        ValueError: no such file, no ONNX model, or a weight is missing, left over, misshapen or not finite.
    """
    file, net = DNSMOS_P808_WEIGHTS[0].file, P808(dtype)
    path, digest = weight_file("dnsmos-p808", file, paths)
    shapes = jax.eval_shape(net.init, jax.random.key(0), jax.ShapeDtypeStruct((900, 120), jnp.float32))
    params = load_params(path, _p808_names(), shapes)
    return _predictor(
        "dnsmos-p808",
        ("p808",),
        {file: digest},
        params,
        lambda params, wav, length: _p808_heads(net, params, wav, length),
    )
