"""PLCMOS on the host: the official score, given the same raters."""

import warnings
from pathlib import Path

import jax
import numpy as np
import onnx
import pytest
import soundfile
from parity import largest

from ports.plcmos import MIN_SAMPLES, PLCMOS_WEIGHTS, plcmos

CLIPS = (
    "speech/de_229_pv_leopard_de_test_de.flac",
    "degraded/de_229_pv_leopard_de_test_de__noise_5dB.flac",
    "degraded/en_183_ljspeech_LJ001_0006__opus_6.flac",
)
FILE = PLCMOS_WEIGHTS[0].file


@pytest.fixture(scope="module")
def official():
    module = pytest.importorskip("speechmos.plcmos", reason="needs the official speechmos package")

    def score(wav):
        np.random.seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return module.run(wav, 16000)["plcmos"]

    return score


@pytest.fixture(scope="module")
def path():
    speechmos = pytest.importorskip("speechmos", reason="needs the official speechmos package")
    return Path(speechmos.__file__).parent / "plcmos_models" / FILE


@pytest.fixture(scope="module")
def predictor(path):
    return plcmos({FILE: path})


def both(predictor, official, wav):
    return float(jax.jit(predictor.score)({}, wav, len(wav))), official(wav)


@pytest.mark.parametrize("clip", CLIPS)
def test_equals_the_official_score_on_speech(predictor, official, shared, clip, parity):
    wav, rate = soundfile.read(shared / clip, dtype="float32", stop=48_000)
    assert rate == 16000
    parity("plcmos", "score of speech", largest(*both(predictor, official, wav)), 1e-4, "MOS")


def test_equals_the_official_score_on_edge_cases(predictor, official, parity):
    noise = np.random.default_rng(0).normal(0, 0.1, 4096).clip(-1, 1).astype(np.float32)
    half = np.where(np.arange(4096) < 2000, noise, 0).astype(np.float32)
    for wav in (np.zeros(4096, np.float32), half, noise[:MIN_SAMPLES], noise[:1537]):
        parity("plcmos", "score of edge cases", largest(*both(predictor, official, wav)), 1e-4, "MOS")
    assert np.isnan(predictor.score({}, noise, MIN_SAMPLES - 1))
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        official(noise[: MIN_SAMPLES - 1])


def test_foreign_files_are_refused(tmp_path, path):
    other = onnx.load(path)
    next(node for node in other.graph.node if node.name == "Concat_60").name = "other"
    onnx.save(other, tmp_path / FILE)
    with pytest.raises(ValueError, match="is not PLCMOS v2"):
        plcmos({FILE: tmp_path / FILE})
