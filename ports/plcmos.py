"""PLCMOS v2, how well lost packets were concealed, run by onnxruntime: no gradient.

L. Diener et al., "PLCMOS – a data-driven non-intrusive metric for the evaluation of packet loss concealment
algorithms", Interspeech 2023; file and rules of ``speechmos`` 0.0.1.1 (MIT). The official score is the mean over 15
imagined raters, drawn anew at each call, so that it differs from call to call (by a standard deviation of 0.02 MOS
on speech); here the 15 are drawn once for all.

AECMOS, of the same package, judges an enhanced signal together with the far-end and the microphone signal. It is no
predictor of one waveform, and so it is not here.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from jaxhack.types import Predictor, Weight
from ports.blackbox import host_predictor, open_session
from ports.onnx_weights import read_model
from ports.weight_file import weight_file

SAMPLE_RATE = 16_000
WINDOW, HOP = 512, 256  # samples
MIN_SAMPLES = 5 * HOP + 1  # seven frames, the fewest that the network takes
RATERS = np.random.RandomState(0).normal(size=(15, 64)).astype(np.float32)  # as after `np.random.seed(0)`

PLCMOS_WEIGHTS = (
    Weight(
        file="plcmos_v2.onnx",
        folder="plcmos",
        sha256="c0ad3fc64ef9682b4749c0e96636b41c73b4b30bd123b9348feea06a96895286",
        size=1_344_808,
        source="pypi:speechmos==0.0.1.1:speechmos/plcmos_models/plcmos_v2.onnx",
        licence="MIT",
        origin="microsoft/PLC-Challenge, speechmos 0.0.1.1",
    ),
)


def plcmos(paths: Mapping[str, Path]) -> Predictor:
    """PLCMOS v2 as a black box: one head, plcmos (MOS), of ``wav [T]`` at 16 kHz, −1 … 1.

    Args:
        paths: where ``plcmos_v2.onnx`` (:data:`PLCMOS_WEIGHTS`) is.

    Returns:
        A predictor without gradient; NaN below 1281 samples. Agrees with ``speechmos.plcmos.run`` to 1e-4 when that
        draws the same raters.

    Raises:
        ValueError: no such file, or no ONNX model of PLCMOS.
    """
    file = PLCMOS_WEIGHTS[0].file
    path, digest = weight_file("plcmos", file, paths)
    session = open_session(path, _for_many_raters(path))

    def judge(clip: np.ndarray) -> np.ndarray:
        audio = _spectrum(clip)[None, None]
        return session.run(None, {"degraded_audio": audio, "rater_embed": RATERS})[0].mean(keepdims=True)

    return host_predictor(
        "plcmos",
        lambda clips: np.stack([judge(clip) for clip in clips]),
        sample_rate=SAMPLE_RATE,
        head_names=("plcmos",),
        min_samples=MIN_SAMPLES,
        weights={file: digest},
    )


def _spectrum(clip: np.ndarray) -> np.ndarray:
    """``clip [L]`` -> [F, 257] float32: natural log power over 20, F = ⌈L / 256⌉ + 1.

    Zero power is 120 dB below the least that is not zero; the level of digital silence is −80 dB.
    """
    padded = np.zeros((-(-len(clip) // HOP) + 2) * HOP)
    padded[HOP : HOP + len(clip)] = clip
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP]
    power = np.square(np.abs(np.fft.rfft(frames * np.hamming(WINDOW + 1)[:-1])))
    nepers = np.log(10.0) / 10.0  # of power, in a decibel
    heard = power > 0
    floor = np.log(power[heard].min()) - 120.0 * nepers if heard.any() else -80.0 * nepers
    return (np.log(power, where=heard, out=np.full_like(power, floor)) / 20.0).astype(np.float32)


def _for_many_raters(path: Path) -> bytes:
    """The model, changed to hear a clip once for all raters: a row for each where a clip meets them."""
    model = read_model(path)
    meet = [node for node in model.graph.node if node.name == "Concat_60"]
    if len(meet) != 1 or len(meet[0].input) != 3:
        raise ValueError(f"{path} is not PLCMOS v2: where its clip and its rater meet was not found.")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([len(RATERS), 1]), "raters"))
    at = list(model.graph.node).index(meet[0])
    for i in range(2):  # the states that the clip leaves in a GRU, one in each direction
        row, rows = meet[0].input[i], f"rows{i}"
        model.graph.node.insert(at, onnx.helper.make_node("Expand", [row, "raters"], [rows]))
        meet[0].input[i] = rows
    return model.SerializeToString()
