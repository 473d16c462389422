"""NISQA v2 and NISQA-TTS: speech quality from a waveform alone, with the published weights.

G. Mittag et al., "NISQA: A Deep CNN-Self-Attention Model for Multidimensional Speech Quality Prediction with
Crowdsourced Datasets", Interspeech 2021; G. Mittag and S. Möller, "Deep Learning Based Assessment of
Synthetic Speech Naturalness", Interspeech 2020.
"""

import itertools
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxhack.types import Array, Predictor, PyTree, Weight
from ports.checkpoint import read_torch, strict_load
from ports.lstm import from_torch, torch_shapes
from ports.nisqa_model import WINDOW, Nisqa, NisqaTts
from ports.weight_file import weight_file

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

_CHANNELS = (1, 16, 32, 64, 64, 64, 64)  # of the input and of the six convolutions


def nisqa(paths: Mapping[str, Path], *, sample_rate: int = 16000, dtype: Any = jnp.float32) -> Predictor:
    """NISQA v2.0: overall quality, noisiness, discontinuity, coloration and loudness, in MOS.

    Args:
        paths: file name -> where it lies; needs ``nisqa.tar``.
        sample_rate: the native rate of the audio, Hz. The reference never resamples: the mel bands reach
            up to 20 kHz at every rate, so the same speech scores a little differently at another rate.
        dtype: of the products' factors in convolutions and attention; sums, the spectrogram, its first convolution,
            norms, softmax and the pooling heads are float32. ``jnp.bfloat16`` changes mos by up to 0.010 and the
            other heads by up to 0.018.

    Returns:
        A predictor; NaN for a ``length`` outside its ``min_samples`` (15 frames) … ``max_samples`` (52 s).

    Raises:
        ValueError: no such file, not this model's weights, or a rate out of range.
    """
    tensors, weights = _read(
        "nisqa", "nisqa.tar", paths, {"model": "NISQA_DIM", "ms_fmax": 20000, "cnn_model": "adapt"}
    )
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
    return _predictor("nisqa", Nisqa, heads, jax.tree.map(jnp.asarray, params), weights, dtype, sample_rate)


def nisqa_tts(paths: Mapping[str, Path], *, sample_rate: int = 16000, dtype: Any = jnp.float32) -> Predictor:
    """NISQA-TTS v1.0: naturalness of synthetic speech, in MOS. Arguments, result and errors as :func:`nisqa`.

    Needs ``nisqa_tts.tar``; the longest input is 60 s. ``jnp.bfloat16``, which the LSTM's recurrence does without,
    changes the score by up to 0.012.
    """
    tensors, weights = _read(
        "nisqa-tts", "nisqa_tts.tar", paths, {"model": "NISQA", "ms_fmax": 8000, "cnn_model": "standard"}
    )
    params = _cnn_params(tensors, "cnn.model.fc_out.")
    for direction, end in (("forward", ""), ("backward", "_reverse")):
        params[direction] = from_torch(tensors, "time_dependency.model.lstm.", f"l0{end}")
    params["pool"] = _dense(tensors, "pool.model.linear.")
    return _predictor("nisqa-tts", NisqaTts, ("mos",), jax.tree.map(jnp.asarray, params), weights, dtype, sample_rate)


def _predictor(
    name: str,
    module: type[Nisqa] | type[NisqaTts],
    heads: tuple,
    params: PyTree,
    weights: Mapping,
    dtype: Any,
    rate: int,
) -> Predictor:
    if not 8000 <= rate <= 192000:
        raise ValueError(f"{name} needs a sample rate of 8000 to 192000 Hz, got {rate}.")
    hop = int(rate * 0.01)
    last_frame = module.stride * (module.max_windows - 1) + WINDOW - 1
    shortest, longest = hop * (WINDOW - 1), hop * (last_frame + module.stride) - 1

    def apply(params: PyTree, wav: Array, length: Array) -> Array:
        out = jnp.asarray(module(rate, dtype).apply({"params": params}, wav, length))
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
        at_rate=partial(_predictor, name, module, heads, params, weights, dtype),
        weights=weights,
    )


# Loading


def _read(
    port: str, file: str, paths: Mapping[str, Path], args: Mapping
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The checked tensors of a checkpoint whose recorded arguments agree with ``args``, and its hash."""
    path, digest = weight_file(port, file, paths)
    saved = read_torch(path)
    if not isinstance(saved.get("model_state_dict"), dict) or not isinstance(saved.get("args"), dict):
        raise ValueError(f"{path} holds {sorted(map(str, saved))}; expected NISQA's args and model_state_dict.")
    differ = {k: saved["args"].get(k) for k, v in args.items() if saved["args"].get(k) != v}
    if differ:
        raise ValueError(f"{path} is another model: it has {differ}, expected {dict(args)}.")
    shapes = (_shapes_tts if args["cnn_model"] == "standard" else _shapes)()
    counters = [f"cnn.model.bn{i}.num_batches_tracked" for i in range(1, 7)]
    tensors = strict_load(saved["model_state_dict"], shapes, ignore=counters)
    return tensors, {file: digest}


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
        shapes |= torch_shapes("time_dependency.model.lstm.", 20, 128, f"l0{end}")
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
