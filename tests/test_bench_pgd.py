"""The benchmark of PGD runs, measures what it says, and refuses to time sides that disagree."""

import json

import numpy as np
import pytest
import toys
from click.testing import CliRunner

from benchmarks import bench_pgd, timing

SIZE = bench_pgd.TINY


@pytest.mark.quick_compilation
def test_tiny(shared, tmp_path):
    pytest.importorskip("torch", reason="needs PyTorch")
    pytest.importorskip("nisqa", reason="needs the official package")
    out = tmp_path / "pgd.json"
    arguments = ["--models", shared / "models", "--speech", shared / "speech", "--tiny", "--out", out]
    run = CliRunner().invoke(bench_pgd.main, [str(a) for a in arguments], catch_exceptions=False)
    assert run.exit_code == 0 and "steps_per_s" in run.output
    result = json.loads(out.read_text())
    sides = [row["side"] for row in result["rows"]]
    assert sides[:2] == ["jaxhack", "eager PyTorch"]
    assert "torchattacks" in sides or any("torchattacks is absent" in note for note in result["notes"])
    assert result["agreement"]["first gradient (least cosine)"] >= 0.999
    assert all(row["steps_per_s"] > 0 and np.isfinite(row["gain"]) for row in result["rows"])
    assert result["rows"][0]["gain"] > 0  # two steps from a random start promise the other sides none


def test_without_the_other_sides():
    result = bench_pgd.bench(toys.predictor(), None, toys.speechlike(0.2, 0)[None].repeat(2, 0), SIZE)
    assert [row["side"] for row in result["rows"]] == ["jaxhack"] and result["rows"][0]["gain"] > 0
    assert "agreement not checked" in result["notes"][0]


def test_sides_that_disagree(shared, monkeypatch):
    pytest.importorskip("torch", reason="needs PyTorch")
    pytest.importorskip("nisqa", reason="needs the official package")
    monkeypatch.setattr(bench_pgd, "gradient", lambda predictor, wavs: np.ones_like(wavs))
    wavs = timing.recordings(shared / "speech", 1, 0.5)
    with pytest.raises(ValueError, match="do not agree"):
        bench_pgd.bench(toys.predictor(), shared / "models/nisqa/nisqa.tar", wavs, SIZE)
