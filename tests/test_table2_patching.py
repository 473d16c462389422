"""The experiment of Table II: its smallest size on a toy, its decisions, and its committed results."""

import csv
import json
import shutil

import numpy as np
import pytest
import toys

from experiments.table2_patching import presets, run, table
from jaxhack import registry
from jaxhack.patch import Recipe, loop

pytestmark = [
    pytest.mark.standard_promotion,
    pytest.mark.quick_compilation,
    pytest.mark.usefixtures("one_device", "no_examples"),
]


def test_the_smallest_size(tmp_path, capsys, monkeypatch):
    shared = toys.shared(tmp_path / "shared")
    monkeypatch.setitem(registry.ENTRIES, "toy", registry.Entry("predictor", "toys:listed", "toys:NO_WEIGHTS", ""))
    tiny = presets.TINY._replace(predictor="toy", seconds=(0.5, 1.0))
    monkeypatch.setitem(presets.PRESETS, "tiny", tiny)
    arguments = ["--shared", shared, "--results", tmp_path / "results", "--tiny", "--work"]
    run.main([str(a) for a in [*arguments, tmp_path / "work"]])
    printed = capsys.readouterr().out
    assert "| undefended | 1 |" in printed and "attackers of loop-multi" in printed and "**H1" in printed
    assert "Still to be made" not in printed and (tmp_path / "results" / "tiny" / "tiny" / "in_loop.svg").exists()
    folder = tmp_path / "results" / "tiny" / "tiny"
    with (folder / "undefended-0" / "scores.csv").open(newline="") as file:
        heard = list(csv.DictReader(file))
    trained = json.loads((folder / "loop-multi-0" / "patch" / "run.json").read_text())["record"]["train"]
    assert {row["set"] for row in heard} == {"test", "foreign"} and all(float(row["score"]) for row in heard)
    assert not {row["speaker"] for row in heard} & {name[0] for name in trained}
    stored = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    shutil.rmtree(tmp_path / "work")
    run.main([str(a) for a in [*arguments, tmp_path / "other"]])
    assert capsys.readouterr().out == printed
    assert stored == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert not any(str(tmp_path).encode() in content for content in stored.values()), "a path of this machine"


@pytest.mark.parametrize("preset", presets.PRESETS.values(), ids=lambda preset: preset.name)
def test_every_loop_of_a_preset_can_be_run(preset):
    for how in preset.defences.values():
        if isinstance(how, presets.Loop):
            kinds = list(dict.fromkeys(attacker.partition("/")[0] for attacker in how.attackers))
            sizes = dict(preset.sizes) | {"seeds": how.draws or 1}
            recipe = Recipe(**preset.recipe | how.recipe)
            given = recipe, how.codecs and ["mini"], kinds, how.attackers, run.own_options(preset, how)
            assert loop.find_sources(*given, sizes.pop("profile"), sizes, None)


def test_a_difference_is_of_whole_speakers(tmp_path):
    """Against its own definition: two speakers of 1 and 3 utterances, drawn twice with return."""
    (tmp_path / "small" / "undefended-0").mkdir(parents=True)
    scores = "set,id,speaker,system,mos,score\ntest,a,x,,,3\ntest,b,y,,,3\ntest,c,y,,,3\ntest,d,y,,,3\n"
    (tmp_path / "small" / "undefended-0" / "scores.csv").write_text(scores)
    found = table.Found(presets.SMALL, tmp_path / "small")
    before = {("0", name): 1.0 for name in "abcd"}
    value, low, high = table.difference(found, before, {("0", "a"): 1.0, **{("0", name): 0.0 for name in "bcd"}})
    assert (value, low, high) == (0.75, 0.0, 1.0)
    assert np.isnan(table.difference(found, before, {("1", "a"): 1.0})).all()


def test_decisions_wait_for_every_run(tmp_path):
    (tmp_path / "small" / "undefended-0").mkdir(parents=True)
    printed = table.table(tmp_path)
    assert "Still to be made: undefended-0" in printed and "**H1" not in printed


def test_the_paper_needs_ratings(tmp_path):
    with pytest.raises(ValueError, match="--ratings bvcc:DIR"):
        run.run("loop-multi-0", tmp_path, tmp_path, tmp_path, preset="paper")


def test_the_committed_results_make_the_tables_of_the_readme():
    printed = table.table(run.HERE / "results")
    assert printed in (run.HERE / "README.md").read_text()
