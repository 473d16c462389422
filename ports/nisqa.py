"""NISQA v2 and NISQA-TTS: speech quality from a waveform alone, with the published weights.

G. Mittag et al., "NISQA: A Deep CNN-Self-Attention Model for Multidimensional Speech Quality Prediction with
Crowdsourced Datasets", Interspeech 2021; G. Mittag and S. Möller, "Deep Learning Based Assessment of Synthetic
Speech Naturalness", Interspeech 2020.

A log-mel spectrogram is cut into windows of 15 frames, a CNN turns each window into features, and a small
network over time (self-attention, or an LSTM) turns those into scores. Everything that the reference
implementation derives from a file (reflected edges, the floor 80 dB below the loudest band, the number of
windows) is derived from ``length`` here, so padding changes nothing.

Array names: F frames of 10 ms, N windows, H mel bands (or what pooling leaves), W columns of a window,
C channels. Feature maps are laid out [H, W, N, C]: shifts along H and W move large contiguous blocks.
"""

import hashlib
import itertools
import math
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import librosa
import numpy as np

from jaxhack.types import Array, Predictor, PyTree, Weight
from ports.checkpoint import read_torch, strict_load

_COMMIT = "fe84f0f252abec382b24367d5b22498a7ce34dbb"


def _weight(file: str, size: int, sha256: str) -> Weight:
    source = f"https://github.com/gabrielmittag/NISQA/raw/{_COMMIT}/weights/{file}"
    origin = f"github.com/gabrielmittag/NISQA, commit {_COMMIT[:7]}"
    return Weight(file, "nisqa", sha256, size, source, "CC-BY-NC-SA-4.0", origin)


NISQA_WEIGHTS: tuple[Weight, ...] = (
    _weight("nisqa.tar", 1051663, "7ec4cf937514dd3f8860b21e66fabd8ca87a168572675ef8d979c4c4ad2e805c"),
)
NISQA_TTS_WEIGHTS: tuple[Weight, ...] = (
    _weight("nisqa_tts.tar", 1237159, "c556a954cd9536360b4fe6f524ad432816509cd22f436f345b281a7851360656"),
)

_N_FFT, _MELS, _WINDOW = 4096, 48, 15  # samples, bands, frames: the same at every rate
_CHANNELS = (1, 16, 32, 64, 64, 64, 64)  # of the input and of the six convolutions


def nisqa(paths: Mapping[str, Path], *, sample_rate: int = 16000) -> Predictor:
    """NISQA v2.0: overall quality, noisiness, discontinuity, coloration and loudness, in MOS.

    Args:
        paths: file name -> where it lies; needs ``nisqa.tar``.
        sample_rate: the native rate of the audio, Hz. The reference never resamples: the mel bands reach up to
            20 kHz at every rate, so the same speech scores a little differently at another rate.

    Returns:
        A predictor; NaN for a ``length`` outside its ``min_samples`` (15 frames) … ``max_samples`` (52 s).

    Raises:
        ValueError: no such file, not this model's weights, or a rate out of range.
    """
    tensors, weights = _read(paths, "nisqa.tar", {"model": "NISQA_DIM", "ms_fmax": 20000, "cnn_model": "adapt"})
    params = _cnn_params(tensors, "time_dependency.model.linear.")
    time = "time_dependency.model."
    params["norm"] = _norm(tensors, f"{time}norm1")
    for i in range(2):
        layer = f"{time}layers.{i}."
        params[f"layer{i}"] = {
            "qkv": _dense(tensors, f"{layer}self_attn.in_proj_"),
            "out": _dense(tensors, f"{layer}self_attn.out_proj."),
            "linear1": _dense(tensors, f"{layer}linear1."),
            "linear2": _dense(tensors, f"{layer}linear2."),
            "norm1": _norm(tensors, f"{layer}norm1"),
            "norm2": _norm(tensors, f"{layer}norm2"),
        }
    pools = [
        {f"linear{j}": _dense(tensors, f"pool_layers.{i}.model.linear{j}.") for j in (1, 2, 3)} for i in range(5)
    ]
    params["pool"] = jax.tree.map(lambda *x: np.stack(x), *pools)
    heads = ("mos", "noisiness", "discontinuity", "coloration", "loudness")
    return _predictor("nisqa", Nisqa, heads, jax.tree.map(jnp.asarray, params), weights, sample_rate)


def nisqa_tts(paths: Mapping[str, Path], *, sample_rate: int = 16000) -> Predictor:
    """NISQA-TTS v1.0: naturalness of synthetic speech, in MOS. Arguments, result and errors as :func:`nisqa`.

    Needs ``nisqa_tts.tar``; the longest input is 60 s.
    """
    tensors, weights = _read(paths, "nisqa_tts.tar", {"model": "NISQA", "ms_fmax": 8000, "cnn_model": "standard"})
    params = _cnn_params(tensors, "cnn.model.fc_out.")
    for direction, end in (("forward", ""), ("backward", "_reverse")):
        lstm = "time_dependency.model.lstm."
        params[direction] = {
            "kernel": tensors[f"{lstm}weight_ih_l0{end}"].T,
            "recurrent": tensors[f"{lstm}weight_hh_l0{end}"].T,
            "bias": tensors[f"{lstm}bias_ih_l0{end}"] + tensors[f"{lstm}bias_hh_l0{end}"],
        }
    params["pool"] = _dense(tensors, "pool.model.linear.")
    return _predictor("nisqa_tts", NisqaTts, ("mos",), jax.tree.map(jnp.asarray, params), weights, sample_rate)


def _predictor(name: str, module: type[nn.Module], heads: tuple, params: PyTree, weights: Mapping, rate: int):
    if not 8000 <= rate <= 192000:
        raise ValueError(f"{name} needs a sample rate of 8000 to 192000 Hz, got {rate}.")
    hop = int(rate * 0.01)
    last_frame = module.stride * (module.max_windows - 1) + _WINDOW - 1
    shortest, longest = hop * (_WINDOW - 1), hop * (last_frame + module.stride) - 1

    def apply(params: PyTree, wav: Array, length: Array) -> Array:
        out = module(rate).apply({"params": params}, wav, length)
        return jnp.where((length >= shortest) & (length <= longest), out, jnp.nan)

    return Predictor(
        name=name,
        sample_rate=rate,
        params=params,
        heads=apply,
        head_names=heads,
        scale=(1.0, 5.0),
        differentiable=True,
        min_samples=shortest,
        max_samples=longest,
        at_rate=partial(_predictor, name, module, heads, params, weights),
        weights=weights,
    )


# Front end


def log_mel(wav: Array, length: Array, *, sample_rate: int, fmax: float) -> Array:
    """Log-mel magnitudes as the reference computes them with librosa, made independent of padding.

    Frames are centred, 10 ms apart and 20 ms long under a Hann window, reflected at both ends of the clip; the
    floor is the larger of −80 dB and 80 dB below the clip's loudest band. Bands above the Nyquist frequency
    are empty and lie on that floor, as in the reference.

    Args:
        wav: [T] float32, −1..1.
        length: [] int32, samples that count.
        sample_rate: Hz.
        fmax: upper edge of the highest band, Hz.

    Returns:
        [F, 48] dB, F = max(1 + T // hop, 15); rows from ``1 + length // hop`` on mean nothing.
    """
    hop, window = int(sample_rate * 0.01), int(sample_rate * 0.02)
    head = _N_FFT // 2 - (_N_FFT - window) // 2  # samples before a frame's centre
    tail = window - head
    frames = max(1 + wav.shape[0] // hop, _WINDOW)
    wav = jnp.pad(wav, (0, frames * hop - wav.shape[0]))  # the one place where a clip is too short to reflect
    end = jnp.flip(jax.lax.dynamic_slice(wav, (length - 1 - tail,), (tail,)))
    wav = jnp.concatenate([jnp.flip(wav[1 : head + 1]), wav, jnp.zeros(2 * window, wav.dtype)])
    wav = jax.lax.dynamic_update_slice(wav, end, (head + length,))
    spans = math.ceil(window / hop)
    blocks = wav[: (frames + spans - 1) * hop].reshape(-1, hop)
    cut = jnp.concatenate([blocks[i : i + frames] for i in range(spans)], axis=1)[:, :window]
    spectrum = jnp.fft.rfft(cut * np.hanning(window + 1)[:window].astype(np.float32), _N_FFT)
    # 1e-20 keeps the gradient finite at zero and lies 12 orders below the floor's square.
    magnitude = jnp.sqrt(spectrum.real**2 + spectrum.imag**2 + 1e-20)
    level = 20.0 * jnp.log10(jnp.maximum(magnitude @ _mel_bank(sample_rate, fmax), 1e-4))
    counts = jnp.arange(frames)[:, None] <= length // hop
    return jnp.maximum(level, jnp.max(level, where=counts, initial=-80.0) - 80.0)


def _mel_bank(sample_rate: int, fmax: float) -> np.ndarray:
    """[2049, 48] Slaney mel filters of unit area."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Empty filters")  # the bands above the Nyquist frequency
        bank = librosa.filters.mel(sr=sample_rate, n_fft=_N_FFT, n_mels=_MELS, fmax=fmax)
    return np.ascontiguousarray(bank.T)


# The CNN over windows


class FirstConv(nn.Module):
    """The first convolution, pooled over pairs of bands: mel [F, 48] -> three maps [24, F, 16].

    Neighbouring windows share most of their columns, so the whole clip is convolved once. A window's first and
    last column see zeros where the clip has neighbours; they come from kernels without the left and without
    the right taps. The maps are: all taps, no left taps, no right taps.
    """

    @nn.compact
    def __call__(self, mel: Array) -> tuple[Array, Array, Array]:
        """Convolve; the maps lack bias and ReLU, which commute with the pooling that follows."""
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (3, 3, 1, 16))[:, :, 0]
        frames = mel.shape[0]
        image = jnp.pad(mel.T, 1)
        taps = jnp.stack([image[i : i + _MELS, j : j + frames] for i in range(3) for j in range(3)])
        kernels = jnp.stack([kernel, kernel.at[:, 0].set(0.0), kernel.at[:, 2].set(0.0)], axis=2)
        maps = jnp.tensordot(taps, kernels.reshape(9, 48), axes=(0, 0))
        full, no_left, no_right = jnp.split(_pair_max(maps), 3, axis=-1)
        return full, no_left, no_right


class Conv(nn.Module):
    """A 3 × 3 convolution with bias and ReLU of [H, W, N, C], as one matrix product.

    Three taps along W are gathered before the product and three along H are added after it: on a CPU that
    moves less memory than gathering nine.
    """

    features: int
    same: bool = True  # zero-pad W; H is always padded

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Return [H, W or W − 2, N, features]."""
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (3, 3, x.shape[-1], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        height = x.shape[0]
        if self.same:
            x = jnp.pad(x, ((0, 0), (1, 1), (0, 0), (0, 0)))
        width = x.shape[1] - 2
        taps = jnp.concatenate([x[:, j : j + width] for j in range(3)], axis=-1)
        matrix = kernel.transpose(1, 2, 0, 3).reshape(taps.shape[-1], 3 * self.features)
        rows = jnp.pad(taps @ matrix, ((1, 1), (0, 0), (0, 0), (0, 0)))
        above, middle, below = jnp.split(rows, 3, axis=-1)
        return nn.relu(above[:height] + middle[1 : height + 1] + below[2:] + bias)


def _pair_max(x: Array) -> Array:
    """Max over pairs along the first axis."""
    x = x.reshape(x.shape[0] // 2, 2, *x.shape[1:])
    return jnp.maximum(x[:, 0], x[:, 1])


def _max_columns(x: Array, bins: tuple[tuple[int, int], ...]) -> Array:
    """Max over pairs of rows and over each half-open range of columns: [H, W, N, C] -> [H/2, len(bins), N, C]."""
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

    @nn.compact
    def __call__(self, mel: Array) -> Array:
        """Features of every window, ordered H, W, channel."""
        stride = 4 if self.adaptive else 1
        windows = -(-(mel.shape[0] - _WINDOW + 1) // stride)
        grid = stride * (windows + 3) if self.adaptive else mel.shape[0]
        maps = FirstConv(name="conv1")(jnp.pad(mel, ((0, 3), (0, 0)))[:grid])
        bias = self.param("bias1", nn.initializers.zeros, (16,))
        x = nn.relu((_columns_adaptive if self.adaptive else _columns_pairs)(*maps, windows) + bias)
        x = Conv(32, name="conv2")(x)
        x = _max_columns(x, ((0, 2), (1, 3), (2, 5), (4, 6), (5, 7)) if self.adaptive else _halves(8))
        x = Conv(64, name="conv3")(x)
        x = Conv(64, name="conv4")(x)
        x = _max_columns(x, ((0, 2), (1, 4), (3, 5)) if self.adaptive else _halves(4))
        x = Conv(64, name="conv5")(x)
        x = Conv(64, same=not self.adaptive, name="conv6")(x)
        return x.transpose(2, 0, 1, 3).reshape(windows, -1)


def _halves(width: int) -> tuple[tuple[int, int], ...]:
    return tuple((i, i + 2) for i in range(0, width, 2))


# The networks over time


class Nisqa(nn.Module):
    """NISQA v2.0: wav [T], length [] -> [5] MOS. Defined for lengths of 15 frames and more."""

    sample_rate: int  # Hz
    stride = 4  # frames between windows
    max_windows = 1300

    @nn.compact
    def __call__(self, wav: Array, length: Array) -> Array:
        """Score one utterance."""
        mel = log_mel(wav, length, sample_rate=self.sample_rate, fmax=20000.0)
        x = nn.Dense(64, name="linear")(Cnn(adaptive=True, name="cnn")(mel))
        valid = jnp.arange(x.shape[0]) < _windows(length, self.sample_rate, self.stride)
        x = nn.LayerNorm(1e-5, name="norm")(x)
        for i in range(2):
            x = SelfAttention(name=f"layer{i}")(x, valid)
        pools = nn.vmap(
            AttentionPool, in_axes=None, axis_size=5, variable_axes={"params": 0}, split_rngs={"params": True}
        )
        return pools(name="pool")(x, valid)


class SelfAttention(nn.Module):
    """A post-norm transformer layer with one head: x [N, 64], valid [N] bool -> [N, 64]."""

    @nn.compact
    def __call__(self, x: Array, valid: Array) -> Array:
        """Attend to the valid windows."""
        q, k, v = jnp.split(nn.Dense(192, name="qkv")(x), 3, axis=-1)
        attention = _softmax(q @ k.T / 8.0, valid)
        x = nn.LayerNorm(1e-5, name="norm1")(x + nn.Dense(64, name="out")(attention @ v))
        hidden = nn.relu(nn.Dense(64, name="linear1")(x))
        return nn.LayerNorm(1e-5, name="norm2")(x + nn.Dense(64, name="linear2")(hidden))


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
    stride = 1
    max_windows = 6000

    @nn.compact
    def __call__(self, wav: Array, length: Array) -> Array:
        """Score one utterance."""
        mel = log_mel(wav, length, sample_rate=self.sample_rate, fmax=8000.0)
        x = nn.Dense(20, name="linear")(Cnn(adaptive=False, name="cnn")(mel))
        valid = jnp.arange(x.shape[0]) < _windows(length, self.sample_rate, self.stride)
        ends = [
            LastState(128, reverse=False, name="forward")(x, valid),
            LastState(128, reverse=True, name="backward")(x, valid),
        ]
        return nn.Dense(1, name="pool")(jnp.concatenate(ends))


class LastState(nn.Module):
    """The state in which an LSTM leaves the valid windows: x [N, C], valid [N] bool -> [features]."""

    features: int
    reverse: bool  # run from the last valid window to the first

    @nn.compact
    def __call__(self, x: Array, valid: Array) -> Array:
        """Scan; gates are ordered input, forget, cell, output."""
        size, init = 4 * self.features, nn.initializers.lecun_normal()
        kernel = self.param("kernel", init, (x.shape[-1], size))
        recurrent = self.param("recurrent", init, (self.features, size))
        bias = self.param("bias", nn.initializers.zeros, (size,))

        def step(state, inputs):
            (cell, hidden), (gates, counts) = state, inputs
            i, f, g, o = jnp.split(gates + hidden @ recurrent, 4)
            new_cell = nn.sigmoid(f) * cell + nn.sigmoid(i) * jnp.tanh(g)
            new = new_cell, nn.sigmoid(o) * jnp.tanh(new_cell)
            return jax.tree.map(lambda a, b: jnp.where(counts, a, b), new, state), None

        zero = jnp.zeros(self.features, x.dtype)
        (_, hidden), _ = jax.lax.scan(step, (zero, zero), (x @ kernel + bias, valid), reverse=self.reverse)
        return hidden


def _windows(length: Array, sample_rate: int, stride: int) -> Array:
    """Windows that a clip of ``length`` samples fills."""
    frames = 1 + length // int(sample_rate * 0.01)
    return (frames - _WINDOW + stride) // stride


def _softmax(scores: Array, valid: Array) -> Array:
    """Over the last axis, among the valid; finite even where nothing is valid."""
    return jax.nn.softmax(jnp.where(valid, scores, -1e30), axis=-1)


# Loading


def _read(paths: Mapping[str, Path], file: str, args: Mapping) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The checked tensors of a checkpoint whose recorded arguments agree with ``args``, and its hash."""
    if file not in paths:
        raise ValueError(f"needs the weight file {file!r}; got {sorted(paths)}.")
    path = Path(paths[file])
    saved = read_torch(path)
    if not isinstance(saved.get("model_state_dict"), dict) or not isinstance(saved.get("args"), dict):
        raise ValueError(f"{path} holds {sorted(map(str, saved))}; expected NISQA's args and model_state_dict.")
    differ = {k: saved["args"].get(k) for k, v in args.items() if saved["args"].get(k) != v}
    if differ:
        raise ValueError(f"{path} is another model: it has {differ}, expected {dict(args)}.")
    shapes = (_shapes_tts if args["cnn_model"] == "standard" else _shapes)()
    counters = [f"cnn.model.bn{i}.num_batches_tracked" for i in range(1, 7)]
    tensors = strict_load(saved["model_state_dict"], shapes, ignore=counters)
    return tensors, {file: hashlib.sha256(path.read_bytes()).hexdigest()}


def _shapes_cnn() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for i, (c, d) in enumerate(itertools.pairwise(_CHANNELS), start=1):
        shapes |= {f"cnn.model.conv{i}.weight": (d, c, 3, 3), f"cnn.model.conv{i}.bias": (d,)}
        shapes |= {f"cnn.model.bn{i}.{x}": (d,) for x in ("weight", "bias", "running_mean", "running_var")}
    return shapes


def _linear(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}weight": (outputs, inputs), f"{name}bias": (outputs,)}


def _shapes() -> dict[str, tuple[int, ...]]:
    time = "time_dependency.model."
    shapes = _shapes_cnn() | _linear(f"{time}linear.", 384, 64)
    norms = [f"{time}norm1"]
    for layer in (f"{time}layers.0.", f"{time}layers.1."):
        shapes |= _linear(f"{layer}self_attn.in_proj_", 64, 192)
        for name in ("self_attn.out_proj.", "linear1.", "linear2."):
            shapes |= _linear(layer + name, 64, 64)
        norms += [f"{layer}norm1", f"{layer}norm2"]
    shapes |= {f"{norm}.{x}": (64,) for norm in norms for x in ("weight", "bias")}
    for i in range(5):
        for j, (c, d) in enumerate(((64, 128), (128, 1), (64, 1)), start=1):
            shapes |= _linear(f"pool_layers.{i}.model.linear{j}.", c, d)
    return shapes


def _shapes_tts() -> dict[str, tuple[int, ...]]:
    shapes = _shapes_cnn() | _linear("cnn.model.fc_out.", 768, 20) | _linear("pool.model.linear.", 256, 1)
    for end in ("", "_reverse"):
        lstm = "time_dependency.model.lstm."
        shapes |= {f"{lstm}weight_ih_l0{end}": (512, 20), f"{lstm}weight_hh_l0{end}": (512, 128)}
        shapes |= {f"{lstm}bias_ih_l0{end}": (512,), f"{lstm}bias_hh_l0{end}": (512,)}
    return shapes


def _dense(tensors: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    return {"kernel": tensors[f"{name}weight"].T, "bias": tensors[f"{name}bias"]}


def _norm(tensors: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    return {"scale": tensors[f"{name}.weight"], "bias": tensors[f"{name}.bias"]}


def _cnn_params(tensors: Mapping[str, np.ndarray], linear: str) -> dict[str, PyTree]:
    """The CNN with batch norm folded into its convolutions, and the linear map of its flattened output."""
    cnn: dict[str, PyTree] = {}
    for i in range(1, 7):
        conv, norm = f"cnn.model.conv{i}.", f"cnn.model.bn{i}."
        scale = tensors[f"{norm}weight"] / np.sqrt(tensors[f"{norm}running_var"] + np.float32(1e-5))
        bias = (tensors[f"{conv}bias"] - tensors[f"{norm}running_mean"]) * scale + tensors[f"{norm}bias"]
        kernel = tensors[f"{conv}weight"].transpose(2, 3, 1, 0) * scale
        cnn[f"conv{i}"] = {"kernel": kernel, "bias": bias}
    cnn["bias1"] = cnn["conv1"].pop("bias")  # added after pooling
    weight = tensors[f"{linear}weight"]
    ours = weight.reshape(len(weight), 64, -1).transpose(2, 1, 0)  # flattened as (H, W, channel), not (channel, H, W)
    return {"cnn": cnn, "linear": {"kernel": ours.reshape(-1, len(weight)), "bias": tensors[f"{linear}bias"]}}
