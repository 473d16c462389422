"""The experiment of every attack: its smallest size, and its committed results."""

import shutil

import pytest
import toys

from experiments.attack_suite import run as attack_suite
from jaxhack import registry

pytestmark = [
    pytest.mark.standard_promotion,  # optax and orbax
    pytest.mark.usefixtures("no_examples", "one_device"),
]


@pytest.mark.quick_compilation
def test_the_smallest_size(tmp_path, capsys, monkeypatch):
    """A finished audit is not repeated where only the small files are left."""
    monkeypatch.setitem(registry.ENTRIES, "toy", registry.Entry("predictor", "toys:listed", "toys:NO_WEIGHTS", ""))
    monkeypatch.setattr(attack_suite, "PREDICTORS", ("toy",))
    monkeypatch.setattr(attack_suite, "SECONDS", (0.5, 1.0))
    arguments = ["--shared", toys.shared(tmp_path / "shared"), "--results", tmp_path / "results", "--tiny", "--work"]
    attack_suite.main([str(a) for a in [*arguments, tmp_path / "work"]])
    printed = capsys.readouterr().out
    assert "| toy | waveform | 0.002 | pgd | 1, 1 |" in printed and "**any attack**" in printed
    before = (tmp_path / "results" / "tiny" / "toy" / "waveform" / "pgd" / "rows.parquet").read_bytes()
    shutil.rmtree(tmp_path / "work")
    attack_suite.main([str(a) for a in [*arguments, tmp_path / "other"]])
    assert capsys.readouterr().out == printed
    assert (tmp_path / "results" / "tiny" / "toy" / "waveform" / "pgd" / "rows.parquet").read_bytes() == before


def test_the_committed_results_make_the_table_of_the_attack_suite():
    printed = attack_suite.table(attack_suite.HERE / "results")
    assert printed in (attack_suite.HERE / "README.md").read_text()
