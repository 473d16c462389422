"""The codec benchmark runs, measures what it says, and refuses to time sides that disagree."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import bench_codecs
from jaxhack.types import Codec


def test_tiny(shared, tmp_path):
    pytest.importorskip("ai_edge_litert", reason="needs ai-edge-litert")
    out = tmp_path / "codecs.json"
    arguments = ["--models", str(shared / "models"), "--tiny", "--out", str(out)]
    run = CliRunner().invoke(bench_codecs.main, arguments, catch_exceptions=False)
    assert run.exit_code == 0
    assert "audio-s/s" in run.output and "tflite" in run.output
    result = json.loads(out.read_text())
    assert [(row["side"], row["task"]) for row in result["rows"]] == [
        (side, task) for side in ("jax", "tflite") for task in ("encode", "decode", "round trip")
    ]
    assert all(row["audio_s_per_s"] > 0 for row in result["rows"])
    assert (result["clips"], result["seconds"]) == (2, 0.2)
    assert min(result["agreement"].values()) >= 0.98
    assert result["machine"]["cpu"]


def test_without_the_original():
    encode, decode = lambda _, wav: wav.reshape(-1, 320), lambda _, z: z.ravel()
    codec = Codec("toy", 16000, 320, 320, {}, encode, decode)
    result = bench_codecs.bench(codec, None, seconds=0.05, count=3, repeats=1)
    assert [row["task"] for row in result["rows"]] == ["encode", "decode", "round trip"]
    assert {row["codec"] for row in result["rows"]} == {"toy"}
    assert (result["clips"], result["seconds"]) == (3, 0.04)  # whole frames
    assert "agreement" not in result


def test_models_absent(tmp_path):
    run = CliRunner().invoke(bench_codecs.main, ["--models", str(tmp_path)])
    assert run.exit_code == 2
    assert "lacks" in run.output and "lyragan.tflite" in run.output


def test_sides_that_disagree():
    x = np.arange(8.0)
    ours = {task: (lambda: x, 0.0) for task in bench_codecs.TASKS}
    theirs = {task: (lambda: x[::-1], 0.0) for task in bench_codecs.TASKS}
    with pytest.raises(ValueError, match="do not agree"):
        bench_codecs.agreement(ours, theirs)


def test_the_first_call_is_not_counted():
    calls = []
    assert len(bench_codecs.timed(lambda: calls.append(1), 3)) == 3
    assert len(calls) == 4
