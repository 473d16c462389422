"""The main job on real weights and real speech, through the experiment that reports it, at its smallest size."""

import json

import pytest

from experiments.table1_predictors import run as table1
from jaxhack import rows

pytestmark = pytest.mark.standard_promotion  # optax and orbax


@pytest.mark.quick_compilation
def test_table1(shared, tmp_path, capsys):
    arguments = ["--shared", shared, "--work", tmp_path / "work", "--results", tmp_path / "results"]
    table1.main([str(a) for a in arguments] + ["--only", "nisqa_0.5", "--tiny"])
    assert "| nisqa | 0.5 | 1 | 2 |" in capsys.readouterr().out
    found = rows.read(tmp_path / "results" / "nisqa_0.5" / "rows.parquet")
    assert [r["attacker"] for r in found] == ["grpo", "random", "random_best"] * 2
    assert all(1 < r["score_reference"] < 6 and r["status"] == "ok" for r in found)
    summary = json.loads((tmp_path / "work" / "nisqa_0.5" / "summary.json").read_text())
    assert set(summary["weights"]) == {
        "nisqa.tar",
        "soundstream_encoder.tflite",
        "lyragan.tflite",
        "quantizer.tflite",
    }
    page = (tmp_path / "work" / "nisqa_0.5" / "report.html").read_text()
    assert page.count("<audio") == 6  # x, x̂ and y of two utterances


def test_the_committed_results_make_the_table_of_the_readme():
    printed = table1.table(table1.HERE / "results")
    assert printed in (table1.HERE / "README.md").read_text()
