"""The experiment of every attack: its smallest size, and its committed results."""

import shutil

import pytest

from experiments.attack_suite import run as attack_suite

pytestmark = [
    pytest.mark.standard_promotion,  # optax and orbax
    pytest.mark.usefixtures("no_examples"),
]


@pytest.mark.quick_compilation
def test_the_smallest_size(shared, tmp_path, capsys):
    """A finished audit is not repeated where only the small files are left."""
    arguments = ["--shared", shared, "--results", tmp_path / "results", "--only", "nisqa", "--tiny", "--work"]
    attack_suite.main([str(a) for a in [*arguments, tmp_path / "work"]])
    printed = capsys.readouterr().out
    assert "| nisqa | waveform | 0.002 | pgd | 1, 1 |" in printed and "**any attack**" in printed
    before = (tmp_path / "results" / "nisqa" / "waveform" / "pgd" / "rows.parquet").read_bytes()
    shutil.rmtree(tmp_path / "work")
    attack_suite.main([str(a) for a in [*arguments, tmp_path / "other"]])
    assert capsys.readouterr().out == printed
    assert (tmp_path / "results" / "nisqa" / "waveform" / "pgd" / "rows.parquet").read_bytes() == before


def test_the_committed_results_make_the_table_of_the_attack_suite():
    printed = attack_suite.table(attack_suite.HERE / "results")
    assert printed in (attack_suite.HERE / "README.md").read_text()
