"""The codec benchmark runs, measures what it says, and refuses to time sides that disagree."""

import json
import sys

import numpy as np
import pytest
import toys
from click.testing import CliRunner

from benchmarks import bench_codecs


def test_tiny(shared, tmp_path):
    pytest.importorskip("ai_edge_litert", reason="needs ai-edge-litert")
    out = tmp_path / "codecs.json"
    arguments = ["--models", shared / "models", "--speech", shared / "speech", "--tiny", "--out", out]
    run = CliRunner().invoke(bench_codecs.main, [str(a) for a in arguments], catch_exceptions=False)
    assert run.exit_code == 0
    assert "audio_s_per_s" in run.output and "tflite" in run.output
    result = json.loads(out.read_text())
    assert [(row["side"], row["task"]) for row in result["rows"]] == [
        (side, task) for task in ("encode", "decode", "round trip") for side in ("jax", "tflite")
    ]
    assert all(row["audio_s_per_s"] > 0 for row in result["rows"])
    assert (result["clips"], result["seconds"]) == (2, 0.2)
    assert min(result["agreement"].values()) >= 0.98
    assert result["machine"]["cpu"] and result["peak_memory_mb"] > 0


def test_without_the_original(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    result = bench_codecs.bench(toys.codec(), tmp_path, np.ones((3, 600), np.float32), repeats=1)
    assert [row["task"] for row in result["rows"]] == ["encode", "decode", "round trip"]
    assert {row["codec"] for row in result["rows"]} == {"toy"}
    assert (result["clips"], result["seconds"]) == (3, 0.037)  # 37 whole frames of 16
    assert "agreement" not in result and "absent" in result["notes"][0]


def test_sides_that_disagree():
    x = np.arange(8.0)
    ours = {task: (lambda: x, 0.0) for task in bench_codecs.TASKS}
    theirs = {task: (lambda: x[::-1], 0.0) for task in bench_codecs.TASKS}
    with pytest.raises(ValueError, match="do not agree"):
        bench_codecs.agreement(ours, theirs)
