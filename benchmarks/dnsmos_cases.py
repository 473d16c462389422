"""Speed and agreement of the DNSMOS and P.808 ports against the official models under onnxruntime."""

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxhack.types import Predictor
from ports.dnsmos import dnsmos, dnsmos_p808
from ports.dnsmos_onnx import dnsmos_onnx, dnsmos_p808_onnx

OFFICIAL_KEYS = {"ovrl": "ovrl_mos", "sig": "sig_mos", "bak": "bak_mos", "p808": "p808_mos"}


def median_seconds(runs: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median wall seconds of each run, taken in turns so that a busy machine slows all alike; warmed up."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            if turn:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in times.items()}


def measure_case(
    port: Predictor, box: Predictor, wav: np.ndarray, repeats: int = 5, gradient: bool = False
) -> dict[str, Any]:
    """One row: the port against onnxruntime on the official windows of ``wav [T]``, one clip at a time.

    ``max_abs_difference`` is over all heads against ``speechmos.dnsmos.run`` itself, checked before timing.
    """
    from speechmos import dnsmos as official

    wav = np.asarray(wav, np.float32)
    ours, theirs = jax.jit(port.heads), jax.jit(box.heads)
    expected = official.run(wav, port.sample_rate)
    difference = np.abs(
        np.asarray(ours(port.params, wav, len(wav))) - [expected[OFFICIAL_KEYS[head]] for head in port.head_names]
    )
    runs = {
        "": lambda: ours(port.params, wav, len(wav)),
        "official_": lambda: theirs(box.params, wav, len(wav)),
    }
    if gradient:
        slope = jax.jit(jax.grad(port.score, 1))
        runs["gradient_"] = lambda: slope(port.params, wav, len(wav))
    audio = len(wav) / port.sample_rate
    speeds = {
        f"{name}audio_seconds_per_second": audio / seconds for name, seconds in median_seconds(runs, repeats).items()
    }
    return {
        "name": f"{port.name}, {audio:g} s",
        **speeds,
        "max_abs_difference": float(difference.max()),
    }


def dnsmos_cases(
    paths: Mapping[str, Path], lengths: tuple[float, ...] = (3.0, 5.3, 9.01, 20.0), repeats: int = 5
) -> Iterator[dict[str, Any]]:
    """Rows for P.835 and P.808 on noise of each length (s), as they are measured."""
    rng = np.random.default_rng(0)
    models = [(dnsmos(paths), dnsmos_onnx(paths)), (dnsmos_p808(paths), dnsmos_p808_onnx(paths))]
    wavs = [np.clip(rng.normal(0, 0.1, round(length * 16_000)), -1, 1) for length in lengths]
    for port, box in models:
        for wav in wavs:
            yield measure_case(port, box, wav, repeats)


def installed_paths() -> dict[str, Path]:
    """The weight files inside the installed ``speechmos`` package."""
    import speechmos

    folder = Path(speechmos.__file__).parent / "dnsmos_models"
    return {file: folder / file for file in ("sig_bak_ovr.onnx", "model_v8.onnx")}


if __name__ == "__main__":
    for row in dnsmos_cases(installed_paths()):
        print(json.dumps(row), flush=True)
