"""DNSMOS and P.808 run by onnxruntime: files and window rules of :mod:`ports.dnsmos`, no gradient."""

from collections.abc import Callable, Mapping
from pathlib import Path

import librosa
import numpy as np

from jaxhack.types import Predictor
from ports.blackbox import host_predictor, open_session
from ports.dnsmos import (
    CALIBRATION,
    DNSMOS_P808_WEIGHTS,
    DNSMOS_WEIGHTS,
    HOP,
    MIN_SAMPLES,
    SAMPLE_RATE,
    STEP,
    WINDOW,
    counted_windows,
)
from ports.weight_file import weight_file


def _mean_score(clip: np.ndarray, judge: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Mean of ``judge(window [144160]) -> [H]`` over the official windows of ``clip [L]``."""
    total = len(clip)
    while total < WINDOW:
        total *= 2
    hops = max(total // SAMPLE_RATE - 9, 1)
    repeated = np.resize(clip, max(len(clip), (hops - 1) * HOP + WINDOW))
    starts = [start * HOP for start in counted_windows(len(clip)) if start < hops]
    return np.mean([judge(repeated[start : start + WINDOW]) for start in starts], axis=0)


def _black_box(
    name: str, head_names: tuple[str, ...], weights: Mapping[str, str], judge: Callable[[np.ndarray], np.ndarray]
) -> Predictor:
    return host_predictor(
        name,
        lambda clips: np.stack([_mean_score(clip, judge) for clip in clips]),
        sample_rate=SAMPLE_RATE,
        head_names=head_names,
        min_samples=MIN_SAMPLES,
        weights=weights,
    )


def dnsmos_onnx(paths: Mapping[str, Path]) -> Predictor:
    """DNSMOS P.835 as a black box: heads (ovrl, sig, bak); as :func:`ports.dnsmos.dnsmos`."""
    file = DNSMOS_WEIGHTS[0].file
    path, digest = weight_file("dnsmos-onnx", file, paths)
    session = open_session(path)
    a, b, c = np.asarray(CALIBRATION).T

    def judge(window: np.ndarray) -> np.ndarray:
        raw = session.run(None, {"input_1": window[None]})[0][0][[2, 0, 1]]  # the graph's: sig, bak, ovr
        return (a * raw + b) * raw + c

    return _black_box("dnsmos-onnx", ("ovrl", "sig", "bak"), {file: digest}, judge)


def dnsmos_p808_onnx(paths: Mapping[str, Path]) -> Predictor:
    """DNSMOS P.808 as a black box: one head, p808; as :func:`ports.dnsmos.dnsmos_p808`."""
    file = DNSMOS_P808_WEIGHTS[0].file
    path, digest = weight_file("dnsmos-p808-onnx", file, paths)
    session = open_session(path)

    def judge(window: np.ndarray) -> np.ndarray:
        mel = librosa.feature.melspectrogram(
            y=window[:-STEP], sr=SAMPLE_RATE, n_fft=321, hop_length=STEP, n_mels=120, pad_mode="constant"
        )
        level = librosa.power_to_db(mel, ref=np.max)
        return session.run(None, {"input_1": ((level.T + 40) / 40)[None].astype(np.float32)})[0][0]

    return _black_box("dnsmos-p808-onnx", ("p808",), {file: digest}, judge)
