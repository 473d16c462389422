"""Attackers of one predictor judged by another: the same perturbations, other scores, nothing confused."""

import csv
import io
import json
import logging
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import toys
from click.testing import CliRunner
from rich.console import Console

import jaxhack as jh
from jaxhack import audio, registry, rows, run, spaces, transferring
from jaxhack.cli import main
from jaxhack.patch import Recipe, patch

pytestmark = [
    pytest.mark.standard_promotion,
    pytest.mark.quick_compilation,
    pytest.mark.usefixtures("one_device"),
]

SETTINGS = {"seeds": 2, "steps": 4, "batch": 2, "group": 2, "crop_seconds": 0.5, "profile": "standard"}


def other():
    """A predictor that likes the opposite, and says so at half the loudness."""
    return toys.predictor()._replace(name="other", params=-0.5 * jnp.asarray(toys.TARGET))


@pytest.fixture(scope="module", autouse=True)
def listed():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.ENTRIES, "toy", registry.Entry("predictor", "toys:listed", "toys:NO_WEIGHTS", ""))
        yield


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    for i in range(6):
        audio.write(folder / f"{'ab'[i % 2]}{i}.wav", toys.speechlike(1.0, i), toys.RATE)
    names = sorted(path.name for path in folder.iterdir())
    (folder / "manifest.csv").write_text("file,speaker\n" + "".join(f"{n},{n[0]}\n" for n in names))
    return folder


@pytest.fixture(scope="module")
def trained(clips, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "trained"
    jh.audit([clips], predictor=toys.predictor(), codec=toys.codec(), out=out, **SETTINGS, options={"hidden": 8})
    return out


@pytest.fixture(scope="module")
def moved(trained, tmp_path_factory):
    """(folder, lines): judged by the predictor itself and by another."""
    out = tmp_path_factory.mktemp("moved")
    lines = jh.transfer([trained], predictors=[toys.predictor(), other()], codec=toys.codec(), out=out)
    return out, lines


@pytest.fixture(scope="module")
def rounds(clips, tmp_path_factory) -> Path:
    """A patching of two rounds."""
    out = tmp_path_factory.mktemp("runs") / "hardened"
    recipe = Recipe(rounds=2, fit_steps=4, fit_batch=2, fit_seconds=0.5, learning_rate=0.05, weight=5.0)
    quick = {"attackers": "universal", "panel": "si_sdr", "codecs": [toys.codec()]}
    patch([clips], predictor="toy", out=out, recipe=recipe, **SETTINGS | quick)
    return out


SAME = ("achieved_size", "estoi_reference", "estoi_attacked", "si_sdr_attacked", "clipped_samples", "queries")


def test_the_same_perturbations_and_names_that_cannot_be_confused(trained, moved):
    out, _ = moved
    before = rows.read(trained / "rows.parquet")
    itself, judged = (rows.read(out / f"trained@{name}" / "rows.parquet") for name in ("toy", "other"))
    assert [r["attacker"] for r in judged[:4]] == ["grpo@toy", "grpo@toy", "random", "random_best@toy"]
    for old, same, new in zip(before, itself, judged, strict=True):
        assert old["utterance"] == same["utterance"] == new["utterance"] and new["predictor"] == "other"
        for name in (*SAME, "score_attacked", "gain", "verdict", "votes"):
            assert same[name] == pytest.approx(old[name], abs=1e-5), name
        for name in SAME:
            assert new[name] == pytest.approx(old[name], abs=1e-5), name
        # The judge's scores, not the attacked one's: 3 + 40 ⟨frame, target⟩ turned round and halved.
        assert new["score_attacked"] - 3 == pytest.approx(-0.5 * (old["score_attacked"] - 3), abs=1e-3)


def test_the_matrix(trained, moved):
    out, lines = moved
    assert [(line["attacked"], line["judged_by"], line["transferred"]) for line in lines] == [
        ("toy", "toy", False),
        ("toy", "toy", True),
        ("toy", "other", True),
    ]
    assert lines[0]["mean_gain"] == pytest.approx(lines[1]["mean_gain"], abs=1e-5)
    with (out / "transfer.csv").open() as file:
        stored = list(csv.DictReader(file))
    assert [float(line["worst_attack_success_rate"]) for line in stored] == [
        pytest.approx(line["worst_attack_success_rate"]) for line in lines
    ]
    assert all(line["random"] is not None and line["random_best"] is not None for line in lines)
    summary = json.loads((out / "trained@other" / "summary.json").read_text())
    c = summary["configuration"]
    assert (c["predictor"]["name"], c["target"]["name"], c["source"]["run"]) == ("other", "toy", "trained")
    assert summary["weights"] == {"toy.bin": "0" * 64}
    page = " ".join((out / "trained@other" / "report.html").read_text().split())
    assert "trained to raise toy for 4 steps" in page and "other took no part in that" in page
    assert "random actions for toy" in page and "random@toy" in page and "of toy raised other by more" in page
    assert "Decided by the training half: attackers, statistics; by the test half: rates;" in page
    assert jh.report.make(out / "trained@other") == summary


def test_other_recordings_are_told_from_the_training_ones(clips, trained, tmp_path, no_examples):
    record = json.loads((trained / "run.json").read_text())["record"]
    (tmp_path / "new").mkdir()
    shutil.copy(clips / record["train"][0], tmp_path / "new" / "copy.wav")
    audio.write(tmp_path / "new" / "z.wav", toys.speechlike(1.0, 99), toys.RATE)
    options = {"predictors": [other()], "codec": toys.codec(), "out": tmp_path / "out"}
    (line,) = jh.transfer([trained], [tmp_path / "new"], **options)
    summary = json.loads((tmp_path / "out" / "trained@other" / "summary.json").read_text())
    assert line["n"] == 2 and line["transferred"]
    assert any("'copy.wav', hold the very audio of a training recording" in w for w in summary["warnings"])
    with pytest.raises(ValueError, match="in both the train and the test set"):
        jh.transfer([trained], [clips / record["train"][0]], **options | {"out": tmp_path / "no"})
    with pytest.raises(ValueError, match=r"transfer\.csv exists: continue its transfer with --resume"):
        jh.transfer([trained], [tmp_path / "new"], **options)
    again = jh.transfer([trained], [tmp_path / "new"], **options, resume=True)
    assert again == [line]


def test_an_attacker_that_searches_on_the_spot_attacks_the_first_predictor_again(clips, tmp_path, no_examples):
    source = tmp_path / "pgd"
    settings = SETTINGS | {"seeds": 1, "attacker": "pgd", "space": "waveform", "options": {"steps": 1}}
    jh.audit([clips], predictor=toys.predictor(), out=source, **settings)
    jh.transfer([source], predictors=[other()], out=tmp_path / "out")  # found again by its name
    before, after = (rows.read(p / "rows.parquet") for p in (source, tmp_path / "out" / "pgd@other"))
    for old, new in zip(before, after, strict=True):
        assert new["gradients"] == old["gradients"] and new["slope"] == pytest.approx(old["slope"], rel=1e-4)
        assert new["gain"] == pytest.approx(-0.5 * old["gain"], abs=1e-3)
        assert old["slope"] > 0 and old["score_repeat"] == old["score_reference"]
    assert {row["attacker"] for row in after} == {"pgd@toy", "random", "random_best@toy"}


def test_attackers_of_every_round_meet_the_predictor_before_it_and_after(rounds, tmp_path, no_examples, caplog):
    logging.getLogger("absl").addHandler(caplog.handler)
    lines = jh.transfer([rounds], codec=toys.codec(), out=tmp_path)
    logging.getLogger("absl").removeHandler(caplog.handler)
    assert not [entry.message for entry in caplog.records if entry.levelno >= logging.WARNING]
    names = ["toy", *(jh.predictor(rounds / "rounds" / number / "patched").name for number in "12")]
    assert len(set(names)) == 3
    labels = ["hardened-1-latent-toy-universal", "hardened-2-latent-toy-universal"]
    assert [(e["run"], e["attacked"], e["judged_by"], e["transferred"]) for e in lines] == [
        (label, names[k], names[j], j != k) for k, label in enumerate(labels) for j in range(3)
    ]
    own = [rows.read(rounds / "rounds" / number / "latent-toy" / "universal" / "rows.parquet") for number in "12"]
    shared = [name for name in SAME if not name.startswith("estoi")]
    assert all(line["random_best"] is None for line in lines)  # as in the loop
    for k, label in enumerate(labels):
        for j in {0, 1, 2} - {k}:
            folder = tmp_path / f"{label}@{names[j]}"
            found = rows.read(folder / "rows.parquet")
            for old, new in zip(own[k], found, strict=True):
                assert new["predictor"] == names[j]
                for name in shared:
                    assert new[name] == pytest.approx(old[name], abs=1e-5), name
            if j < 2:  # the same round trips, in the ears of who was attacked in the other round
                for before, new in zip(own[j], found, strict=True):
                    assert new["score_reference"] == pytest.approx(before["score_reference"], abs=1e-4)
            warnings = json.loads((folder / "summary.json").read_text())["warnings"]
            assert sum("hold the very audio of a training recording" in w for w in warnings) == 1
            assert not any("share" in w and "speaker" in w for w in warnings)
    table = Console(width=80, file=io.StringIO())
    table.print(transferring.table(lines))
    printed = [" ".join(line.split()) for line in table.file.getvalue().splitlines()]
    assert printed[1] == "universal in latent-toy of toy" and [line.split(" ")[0] for line in printed[2:5]] == names


def test_audits_of_a_patching_or_a_suite_are_named_after_it_however_they_are_given(rounds, tmp_path):
    audits = [rounds / "rounds" / number / "latent-toy" / "universal" for number in "12"]
    assert [one.label for one in transferring.expand(audits)] == [one.label for one in transferring.expand([rounds])]
    for audit, attacked in zip(audits, ("toy", rounds / "rounds" / "1" / "patched"), strict=True):
        (found,) = transferring.expand([audit])
        source = transferring.load(found, attacked=None, codec=toys.codec(), models=None)
        assert source.attacked.name == jh.predictor(attacked).name
        assert [u.id for u in source.training] == [u.id for u in source.test] == source.record["train"]
    record = {"predictor": "toy", "legs": {"latent/grpo": {}, "waveform/pgd": {}}, "left_out": {}, "validation": []}
    for folder, kept in (("", record), ("waveform/pgd", json.loads((audits[0] / "run.json").read_text())["record"])):
        (tmp_path / "all" / folder).mkdir(parents=True, exist_ok=True)
        run.write_json(tmp_path / "all" / folder / "run.json", {"record": kept, "versions": {}})
    whole, alone = (transferring.expand([tmp_path / "all" / folder]) for folder in ("", "waveform/pgd"))
    assert [one.label for one in whole] == ["all-latent-grpo", "all-waveform-pgd"]
    assert alone[0].label == "all-waveform-pgd" and alone[0].patching is None


def test_a_patching_without_audits_or_unfinished_is_refused(rounds, trained, tmp_path):
    copy = Path(shutil.copytree(rounds, tmp_path / "copy"))
    (copy / "summary.json").unlink()
    sentence = refused([copy], predictors=[], out=tmp_path / "out")
    assert "is no finished patching" in sentence and sentence.endswith(f"{copy}/rounds/1/latent-toy/universal.")
    (copy / "run.json").write_text((copy / "run.json").read_text().replace('"hacks"', '"noise"'))
    assert "holds no audits: its pairs are of noise" in refused([copy], predictors=[], out=tmp_path / "out")
    assert "is of no patching: name the predictors" in refused([trained], predictors=[], out=tmp_path / "out")
    stranger = toys.predictor()._replace(weights={"toy.bin": "1" * 64})
    assert "The weights of toy are not those" in refused([rounds], predictors=[], attacked=stranger, out=tmp_path)


def refused(*args, **options):
    with pytest.raises(ValueError) as error:
        jh.transfer(*args, **{"predictors": [other()], "codec": toys.codec()} | options)
    return str(error.value)


def test_what_cannot_be_transferred_is_refused_in_one_sentence(trained, moved, clips, tmp_path):
    out = tmp_path / "out"
    copy = Path(shutil.copytree(trained, tmp_path / "copy"))
    heard = moved[0] / "trained@other" / "examples"
    assert "examples is part of the run in" in refused([trained], [heard], out=moved[0], overwrite=True)
    assert any(heard.glob("*.wav"))
    stranger = toys.codec()._replace(weights={"toy.bin": "1" * 64})
    assert "The weights of toy are not those that" in refused([copy], codec=stranger, out=out)
    assert "played against toy, not other" in refused([copy], attacked=other(), out=out)
    assert "holds no run" in refused([clips], out=out) and "at least one finished run" in refused([], out=out)
    assert "is a transfer itself" in refused([moved[0] / "trained@other"], out=out)
    assert "Two predictors are called 'other'" in refused([copy], predictors=[other(), other()], out=out)
    assert "Two runs are called 'copy'" in refused([copy, copy], out=out)
    stored = (copy / "run.json").read_text()
    (copy / "run.json").write_text(stored.replace('"saturation": 40.0', '"saturation": 41.0'))
    assert "The panel of" in refused([copy], out=out)
    (copy / "run.json").write_text(stored)
    for name, given in (("toy", "DIR/patched"), ("min(nisqa,toy", "'min(nisqa,DIR/patched)'")):
        patched = f"{name}-patched-abc123{')' if '(' in name else ''}"
        (copy / "run.json").write_text(stored.replace('"name": "toy"', f'"name": "{patched}"', 1))
        assert f"attacked {patched}, and a patched predictor" in (sentence := refused([copy], out=out))
        assert sentence.endswith(f"name it by --attacked {given}.")
    (copy / "run.json").write_text(stored)
    witness = other()._replace(name="estoi")
    assert "estoi is a witness on the panel" in refused([copy], predictors=[witness], out=out)
    noted = (copy / "recordings.jsonl").read_text()
    (copy / "recordings.jsonl").write_text(noted.replace('"digest": "', '"digest": "0'))
    assert "are not what they were" in refused([copy], out=out)
    (copy / "recordings.jsonl").write_text(noted.partition("\n")[2])
    assert "does not list the train recordings" in refused([copy], out=out)
    (copy / "recordings.jsonl").write_text(noted)
    summary = (copy / "summary.json").read_text()
    for content in ("[]", "{}", "5", "[" * 200_000, summary.replace('"interval"', '"intervals"')):
        (copy / "summary.json").write_text(content)
        assert "summary.json cannot be read as a run's summary: make it anew by jaxhack report" in refused(
            [copy], out=out
        )
    (copy / "summary.json").write_text(summary)
    (copy / "run.json").write_text(stored.replace('"steps": 4', '"steps": 4, "stepps": 4'))
    assert "holds other settings than an audit's" in refused([copy], out=out)
    (copy / "run.json").write_text(stored)
    spaces.save_statistics(copy / "statistics.npz", spaces.Statistics(np.zeros(3), np.ones(3)))
    assert "statistics of a latent of 8 channels" in refused([copy], out=out)
    (copy / "statistics.npz").write_bytes(b"damaged")
    assert "(File is not a zip file)" in refused([copy], out=out)
    (copy / "statistics.npz").unlink()
    assert "before runs kept what a transfer needs (statistics.npz)" in refused([copy], out=out)
    shutil.copy(trained / "statistics.npz", copy)
    shutil.rmtree(copy / "checkpoints" / "4")
    assert "trained for 0 of 4 steps" in refused([copy], out=out)
    shutil.rmtree(copy / "checkpoints")
    assert "holds no attackers" in refused([copy], out=out)
    (copy / "summary.json").unlink()
    assert "is no finished run" in refused([copy], out=out)
    assert not out.exists() or not any(out.rglob("rows.parquet"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "transfer.csv").write_text("mine")
    assert "transfer.csv exists" in refused([trained], out=tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["transfer.csv"]


def test_a_record_runs_no_code(rounds, trained, tmp_path, monkeypatch):
    """A predictor that it names is imported, or read from a folder, only where the caller names it too."""
    (tmp_path / "evil.py").write_text("raise SystemExit('it was run')")
    monkeypatch.syspath_prepend(tmp_path)
    runs = {rounds: [], trained: [other()], rounds / "rounds" / "1" / "latent-toy" / "universal": [other()]}
    for i, (run_, judges) in enumerate(runs.items()):
        copy = Path(shutil.copytree(run_, tmp_path / str(i)))
        for record in copy.rglob("run.json"):
            stored = json.loads(record.read_text())
            stored["record"]["predictor"]["name"] = ("evil:f", f"min(toy,{rounds / 'patched'})", "min(evil:f,toy)")[i]
            record.write_text(json.dumps(stored))
        assert "whose name alone does not lead to it: give --attacked" in refused(
            [copy], predictors=judges, out=tmp_path / "out"
        )


def test_overwriting_a_run_takes_what_a_transfer_needs_with_it():
    assert {"recordings.jsonl", "statistics.npz"} <= set(run.OWN)


def test_statistics_are_read_as_they_were_written(tmp_path):
    made = spaces.Statistics(jnp.arange(3.0), jnp.array([1.0, 0.5, 2.0]))
    spaces.save_statistics(tmp_path / "s.npz", made)
    again = spaces.load_statistics(tmp_path / "s.npz", 3)
    np.testing.assert_array_equal(again.mean, made.mean)
    np.testing.assert_array_equal(again.scale, made.scale)
    np.savez(tmp_path / "evil.npz", mean=np.array([print], object), scale=np.ones(1))
    with pytest.raises(ValueError, match=r"evil\.npz cannot be read"):
        spaces.load_statistics(tmp_path / "evil.npz", 1)


def test_the_command(trained, clips, tmp_path, monkeypatch):
    lines = [{"run": "trained", "attacked": "toy", "attacker": "grpo", "space": "latent-toy",
              "judged_by": "other", "transferred": True,
              "worst_attack_success_rate": 0.5, "mean_gain": 0.25, "gain_p90": 0.5, "random": 0.0,
              "random_best": 0.25, "n": 3, "warnings": 2}]  # fmt: skip
    calls = []
    monkeypatch.setattr("jaxhack.transferring.transfer", lambda *args, **more: calls.append((args, more)) or lines)
    arguments = [str(trained), str(clips), "--predictor", "toy", "--predictor", "nisqa", "--out", str(tmp_path / "o")]
    result = CliRunner().invoke(main, ["transfer", *arguments])
    assert result.exit_code == 0, result.output
    ((runs, paths), options) = calls[0]
    assert runs == [str(trained)] and paths == [str(clips)] and options["predictors"] == ("toy", "nisqa")
    printed = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "grpo in latent-toy of toy" in printed and "other 0.500 +0.25 +0.50 0.000 0.250 3" in printed
    assert max(map(len, result.stdout.splitlines()[:-1])) <= 80
