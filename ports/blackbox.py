"""Any ONNX file, and any Python callable, as a predictor: scores without gradients.

The model runs on the host, reached by a callback; so it works under ``jit``, ``vmap``, ``lax.map``
and on several devices. The callback cuts each clip to its ``length`` first: padding never reaches the model.
A clip on which the model fails has the score NaN, and a warning says why.
"""

import functools
import hashlib
import importlib
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
from jax import lax
from jax.experimental.buffer_callback import buffer_callback

from jaxhack.types import Array, Predictor, PyTree

HostScore = Callable[[np.ndarray], np.ndarray]  # clips [B, L] float32 of equal length -> scores [B, H]
DTYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16}
SCORE_NAMES = {"score", "scores", "mos", "ovrl", "ovr", "overall", "quality", "rating"}


def host_predictor(
    name: str,
    host_score: HostScore,
    *,
    sample_rate: int,
    head_names: tuple[str, ...],
    scale: tuple[float, float] = (1.0, 5.0),
    min_samples: int = 1,
    weights: Mapping[str, str] | None = None,
) -> Predictor:
    """A black box around ``host_score``, which maps clips [B, L] to scores [B, H] with NumPy alone.

    ``host_score`` must not call JAX: the device that would answer is waiting for it. ``heads`` gives NaN
    below ``min_samples`` and where a sample is not finite, whatever ``host_score`` would make of it; a gradient
    through it raises ``ValueError``.
    """
    heads = len(head_names)

    def on_host(wav: Any, length: Any) -> np.ndarray:
        clips, lengths = np.asarray(wav), np.asarray(length)
        lead = clips.shape[:-1]
        clips, lengths = clips.reshape(-1, clips.shape[-1]), np.minimum(lengths.reshape(-1), clips.shape[-1])
        out = np.full((len(clips), heads), np.nan, np.float32)
        for samples in np.unique(lengths[lengths >= min_samples]):
            rows = np.flatnonzero(lengths == samples)
            rows = rows[np.isfinite(clips[rows, :samples]).all(axis=1)]
            if not len(rows):
                continue
            try:
                out[rows] = host_score(np.ascontiguousarray(clips[rows, :samples]))
            except Exception as error:  # one clip a stranger's model can't take must not end an audit
                warnings.warn(f"{name} gave no score to {samples} samples: {_reason(error)}", stacklevel=2)
        return out.reshape(*lead, heads)

    call = _callback(name, on_host, heads)

    def checked(params: PyTree, wav: Array, length: Array) -> Array:
        del params
        if jnp.ndim(wav) != 1:
            raise ValueError(f"{name} expected one utterance, wav [T], got shape {wav.shape}; use vmap outside")
        if wav.shape[0] < min_samples:
            return jnp.full(heads, jnp.nan, jnp.float32)
        return call(jnp.asarray(wav, jnp.float32), jnp.asarray(length, jnp.int32))

    return Predictor(
        name=name,
        sample_rate=sample_rate,
        params={},
        heads=checked,
        head_names=head_names,
        scale=scale,
        differentiable=False,
        min_samples=min_samples,
        weights=weights or {},
    )


def _callback(
    name: str, on_host: Callable[[Any, Any], np.ndarray], heads: int
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """``on_host`` as a JAX function ``(wav [T], length []) -> [heads]`` that refuses to be differentiated.

    On a CPU, ``pure_callback`` copies its arguments to a device that is busy waiting for the callback: with
    long clips on several devices it hangs. ``buffer_callback`` hands the buffers over as they are.
    """
    result = jax.ShapeDtypeStruct((heads,), jnp.float32)

    def fill(context: Any, out: Any, wav: Any, length: Any) -> None:
        np.asarray(out)[...] = on_host(wav, length)

    on_cpu = buffer_callback(fill, result, vmap_method="broadcast_all")
    elsewhere = functools.partial(jax.pure_callback, on_host, result, vmap_method="broadcast_all")

    @jax.custom_jvp
    def call(wav: jax.Array, length: jax.Array) -> jax.Array:
        return lax.platform_dependent(wav, length, cpu=on_cpu, default=elsewhere)

    @call.defjvp
    def no_gradient(primals: Any, tangents: Any) -> Any:
        raise ValueError(
            f"{name} is a black box: it has scores but no gradient; use an attacker that needs only scores"
        )

    return call


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _probe(clips: int, samples: int) -> np.ndarray:
    """Faint noise [clips, samples] to ask a model for its shapes; silence would upset some."""
    return np.random.default_rng(0).normal(0, 0.05, (clips, samples)).astype(np.float32)


# ------------------------------------------------------------------------------------------------- ONNX files


class _Head(NamedTuple):
    name: str
    output: str
    column: int


class _Model(NamedTuple):
    """An ONNX model of audio: how to feed it."""

    session: onnxruntime.InferenceSession
    audio: str  # input name
    rank: int  # 1 [T], 2 [B, T], 3 [B, 1, T]
    dtype: Any
    samples: int | None  # fixed T
    extras: Mapping[str, str]  # further inputs: "length" or "rate"
    sample_rate: int

    def run(self, clips: np.ndarray) -> list[np.ndarray]:
        """Every output for ``clips [B, L]`` (B = 1 if the model has no batch axis)."""
        batch, samples = clips.shape
        shape = {1: (samples,), 2: (batch, samples), 3: (batch, 1, samples)}[self.rank]
        feed = {self.audio: clips.astype(self.dtype).reshape(shape)}
        for node in self.session.get_inputs():
            if node.name in self.extras:
                value = samples if self.extras[node.name] == "length" else self.sample_rate
                dtype = np.int32 if node.type == "tensor(int32)" else np.int64
                feed[node.name] = np.full((batch,) * len(node.shape), value, dtype)
        return self.session.run(None, feed)


def open_session(path: Path, changed: bytes | None = None) -> onnxruntime.InferenceSession:
    """An onnxruntime session on the CPU; ``ValueError`` when the file is missing or no model it can run.

    ``changed`` is the model to run in its stead, made of that in the file.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"expected an ONNX model at {path}, but there is no such file")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(changed or str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a kind of its own for each fault
        raise ValueError(f"{path} is not an ONNX model that onnxruntime can run: {_reason(error)}") from error


def _interface(session: onnxruntime.InferenceSession) -> str:
    def listed(nodes: Any) -> str:
        return ", ".join(f"{node.name} {node.type[7:-1]}{node.shape}" for node in nodes) or "none"

    return f"its inputs are {listed(session.get_inputs())}; its outputs {listed(session.get_outputs())}"


def _is_audio(node: Any) -> bool:
    batch, middle = node.shape[:-1][:1], node.shape[1:-1]
    shaped = len(node.shape) in (1, 2, 3) and all(size == 1 for size in middle)
    return shaped and node.type in DTYPES and all(not isinstance(size, int) or size == 1 for size in batch)


def _extra_kind(node: Any) -> str | None:
    """What an integer input next to the audio asks for, by its name."""
    if node.type not in ("tensor(int64)", "tensor(int32)") or len(node.shape) > 1:
        return None
    words = set(re.split(r"[^a-z]+", node.name.lower()))
    if words & {"len", "lens", "length", "lengths"}:
        return "length"
    return "rate" if words & {"sr", "rate", "samplerate", "fs"} else None


def _describe(session: onnxruntime.InferenceSession, path: Path, sample_rate: int) -> _Model:
    audio = [node for node in session.get_inputs() if _is_audio(node)]
    if len(audio) > 1:
        named = [node for node in audio if re.search("wav|audio|speech|signal", node.name.lower())]
        audio = named if len(named) == 1 else audio
    extras = {node.name: _extra_kind(node) for node in session.get_inputs() if node not in audio}
    if len(audio) != 1 or not all(extras.values()):
        raise ValueError(
            f"{path.name}: expected one audio input, float [T], [B, T] or [B, 1, T], beside at most a length "
            f"and a sample rate; {_interface(session)}"
        )
    (node,) = audio
    samples = node.shape[-1] if isinstance(node.shape[-1], int) else None
    known = {name: kind for name, kind in extras.items() if kind}
    return _Model(session, node.name, len(node.shape), DTYPES[node.type], samples, known, sample_rate)


def _score_heads(outputs: list[np.ndarray], names: list[str]) -> list[_Head]:
    """What of the outputs for one clip is a number: a scalar, or each column of a short row [1, H]."""
    heads = []
    for name, value in zip(names, outputs, strict=True):
        value = np.asarray(value)
        if value.dtype.kind != "f":
            continue
        if value.size == 1:
            heads.append(_Head(name, name, 0))
        elif value.ndim == 2 and len(value) == 1 and value.shape[1] <= 8:
            heads += [_Head(f"{name}[{i}]", name, i) for i in range(value.shape[1])]
    return heads


def _score_first(heads: list[_Head], output: str | None) -> list[_Head] | None:
    """``heads`` with the score in front; None when it isn't clear which one that is."""
    if output is not None:
        first = [head for head in heads if head.name == output]
    else:
        first = [head for head in heads if SCORE_NAMES & set(re.split(r"[^a-z]+", head.name.lower()))]
        first = heads if len(heads) == 1 else first
    return [*first, *(head for head in heads if head not in first)] if len(first) == 1 else None


def _windows(clip: np.ndarray, samples: int) -> np.ndarray:
    """``clip [L]`` as windows [N, samples]: repeated if shorter, else back to back, the last at the end."""
    if len(clip) <= samples:
        return np.resize(clip, (1, samples))
    starts = [*range(0, len(clip) - samples, samples), len(clip) - samples]
    return np.stack([clip[start : start + samples] for start in starts])


def onnx_predictor(
    path: str | Path,
    *,
    sample_rate: int = 16_000,
    name: str | None = None,
    output: str | None = None,
    scale: tuple[float, float] = (1.0, 5.0),
) -> Predictor:
    """Any ONNX model of audio as a black box, run by onnxruntime.

    The audio input is the float one shaped [T], [B, T] or [B, 1, T]; an integer input named like a length or
    a sample rate is fed. Every output that is one number a clip, or a row of up to 8, becomes heads; the
    score is the only one, or the only one named like a score (mos, score, ovrl, quality …), or ``output``.

    A model with a fixed T hears windows of T samples back to back, the last one ending where the clip ends;
    a shorter clip is repeated; a head is the mean over windows. Clips of equal length go in one call where
    the model has a batch axis and a trial shows that it keeps clips apart.

    Args:
        path: the ``.onnx`` file.
        sample_rate: Hz, what the model expects.
        name: of the predictor; default the file's stem.
        output: the score's head name where a model leaves it open: an output's name, or ``name[column]``.
        scale: nominal range of the score.

    Raises:
        ValueError: no such file, no ONNX model, or no clear audio input or score.
    """
    path = Path(path)
    session = open_session(path)
    model = _describe(session, path, sample_rate)
    names = [node.name for node in session.get_outputs()]
    pair = _probe(2, model.samples or sample_rate)
    try:
        heads = _score_heads(model.run(pair[:1]), names)
    except Exception as error:
        raise ValueError(
            f"{path.name} failed on a trial of {pair.shape[1]} samples: {_reason(error)}; {_interface(session)}"
        ) from error
    ordered = _score_first(heads, output)
    if ordered is None:
        choice = ", ".join(head.name for head in heads) or "none"
        asked = "" if output is None else f" and none is called {output!r}"
        raise ValueError(
            f"{path.name}: expected one output that is the score of a clip; candidates are {choice}{asked}; "
            f"{_interface(session)}; name the score with output="
        )

    def run(clips: np.ndarray) -> np.ndarray:
        values = dict(zip(names, model.run(clips), strict=True))
        columns = [np.reshape(values[head.output], (len(clips), -1))[:, head.column] for head in ordered]
        return np.stack(columns, axis=1).astype(np.float32)

    batched = _keeps_clips_apart(run, pair) if model.rank > 1 else False

    def one_or_many(clips: np.ndarray) -> np.ndarray:
        return run(clips) if batched else np.concatenate([run(clip[None]) for clip in clips])

    def score(clips: np.ndarray) -> np.ndarray:
        if model.samples is None:
            return one_or_many(clips)
        return np.stack([one_or_many(_windows(clip, model.samples)).mean(axis=0) for clip in clips])

    return host_predictor(
        name or path.stem,
        score,
        sample_rate=sample_rate,
        head_names=tuple(head.name for head in ordered),
        scale=scale,
        weights={path.name: hashlib.sha256(path.read_bytes()).hexdigest()},
    )


def _keeps_clips_apart(run: HostScore, pair: np.ndarray) -> bool:
    """Whether two different clips in one call get what each gets alone."""
    try:
        together = run(pair)
    except Exception:  # a batch axis fixed to 1
        return False
    alone = np.concatenate([run(pair[:1]), run(pair[1:])])
    return together.shape == alone.shape and np.allclose(together, alone, rtol=1e-4, atol=1e-4, equal_nan=True)


# ------------------------------------------------------------------------------------------- Python callables


def _import(spec: str) -> Callable[..., Any]:
    """The callable that ``package.module:function`` names; the current directory is searched too."""
    module_name, colon, attribute = spec.partition(":")
    if not (module_name and colon and attribute):
        raise ValueError(f"expected package.module:function, got {spec!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ValueError(f"{spec}: importing {module_name} failed: {_reason(error)}") from error
    try:
        function = functools.reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        raise ValueError(f"{spec}: {module_name} has no {attribute}") from error
    if not callable(function):
        raise ValueError(f"{spec}: expected a callable, got {type(function).__name__}")
    return function


def callable_predictor(
    function: str | Callable[..., Any],
    *,
    sample_rate: int = 16_000,
    name: str | None = None,
    scale: tuple[float, float] = (1.0, 5.0),
) -> Predictor:
    """A Python callable ``(wav [B, T] float32, sample_rate) -> [B]`` as a black box.

    It may use any library but JAX, is called by one thread at a time, with clips of one length, unpadded, and
    is tried here on two clips of noise of one second.

    Args:
        function: the callable, or ``package.module:function``, importable from the path or the current directory.
        sample_rate: Hz, what the callable expects and is told.
        name: of the predictor; default ``package.module:function``, a callable's own.
        scale: nominal range of the score.

    Raises:
        ValueError: it can't be imported, isn't callable, fails on the trial, or returns another shape.
    """
    if isinstance(function, str):
        spec, call = function, _import(function)
    else:
        spec, call = f"{function.__module__}:{getattr(function, '__qualname__', type(function).__name__)}", function
    lock = threading.Lock()

    def score(clips: np.ndarray) -> np.ndarray:
        with lock:
            result = np.asarray(call(clips, sample_rate))
        if result.shape != clips.shape[:1]:
            raise ValueError(f"{spec}: expected scores [B] = {clips.shape[:1]}, got shape {result.shape}")
        return result[:, None].astype(np.float32)

    pair = _probe(2, sample_rate)
    try:
        score(pair)
    except Exception as error:
        if isinstance(error, ValueError) and str(error).startswith(f"{spec}: expected scores"):
            raise
        raise ValueError(f"{spec}: failed on a trial of wav {pair.shape}: {_reason(error)}") from error
    return host_predictor(name or spec, score, sample_rate=sample_rate, head_names=("score",), scale=scale)
