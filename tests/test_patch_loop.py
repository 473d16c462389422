"""The closed loop on a toy codec and a toy predictor: it hardens, resumes, and refuses."""

import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import toys
from click.testing import CliRunner

import jaxhack as jh
from jaxhack import audio, inputs, registry, rows, scoring
from jaxhack.cli import main
from jaxhack.patch import Recipe, pairs, patch, patched
from jaxhack.settings import BLIND

pytestmark = [
    pytest.mark.standard_promotion,
    pytest.mark.quick_compilation,
    pytest.mark.usefixtures("one_device", "listed"),
]

RECIPE = {"rounds": 2, "fit_steps": 30, "fit_batch": 4, "fit_seconds": 1.0, "learning_rate": 0.02, "weight": 5.0}
SETTINGS = {"seeds": 1, "profile": "quick", "codecs": [toys.codec()]}
PGD = {"attackers": "pgd", "options": {"pgd": {"steps": 3}}}


@pytest.fixture(scope="module")
def listed():
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, kind, make in (("toy", "predictor", "listed"), ("chain", "codec", "listed_chain")):
            monkeypatch.setitem(registry.ENTRIES, name, registry.Entry(kind, f"toys:{make}", "toys:NO_WEIGHTS", ""))
        yield


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    return toys.listed_clips(tmp_path_factory.mktemp("clips"), "aabbccdd")


run = partial(patch, predictor="toy", **SETTINGS)


@pytest.fixture(scope="module")
def done(clips, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "out"
    return out, run([clips], out=out, recipe=Recipe(**RECIPE), **PGD)


def test_it_hardens_and_says_so(done, clips):
    out, summary = done
    assert summary == json.loads((out / "summary.json").read_text())
    first = summary["rounds"][0]["in_loop"]["latent-toy/pgd"]
    assert first["worst_attack_success_rate"] == 1.0
    stored = [rows.read(out / "rounds" / n / "latent-toy" / "pgd" / "rows.parquet") for n in "12"]
    gains = [np.mean([r["gain"] for r in found if not r["baseline"]]) for found in stored]
    assert gains[1] < 0.5 * gains[0]
    hacked = sum(r["verdict"] == "hack" and not r["baseline"] for r in stored[0])
    assert summary["rounds"][0]["pairs"] == hacked > 0
    final = jh.predictor(out / "patched")
    assert final.name == summary["name"] and final.params.shape == toys.predictor().params.shape
    page = (out / "report.html").read_bytes()
    assert b"rounds/2/latent-toy/pgd/report.html" in page and hacked == first["found"]
    assert "% of 4 training utterances" in (out / "rounds/1/latent-toy/pgd/report.html").read_text().replace(
        "\u00a0", " "
    )
    again = CliRunner().invoke(main, ["report", str(out)])
    assert again.exit_code == 0 and (out / "report.html").read_bytes() == page
    lineage = patched.read(out / "patched")["lineage"]
    assert lineage["round"] == 2 and lineage["record"]["recipe"]["margin"] == 0.5


def test_pairs_are_the_signals_of_the_rows(done):
    """The round trip and the attacked signal, as they were scored."""
    out, _ = done
    folder = out / "rounds" / "1" / "latent-toy" / "pgd"
    (held,) = pairs.read(folder)
    hacks = [r for r in rows.read(folder / "rows.parquet") if r["verdict"] == "hack" and not r["baseline"]]
    predictor, rate = jh.predictor("toy"), toys.RATE
    assert held.length.tolist() == [round(0.9 * rate)] * len(hacks)  # whole: this codec's frames cannot be cut apart
    for preferred, rejected in zip(held.preferred, held.rejected, strict=True):
        scores = [
            float(predictor.score(predictor.params, (w / np.float32(32768)), np.int32(len(w))))
            for w in (preferred, rejected)
        ]
        assert scores[1] - scores[0] > 0.3


@pytest.fixture
def pairs_of(done, tmp_path):
    """A copy of the run, an attack in it, and a file of its pairs."""
    copy = Path(shutil.copytree(done[0], tmp_path / "copy"))
    attack = copy / "rounds" / "1" / "latent-toy" / "pgd"
    return copy, attack, attack / pairs.FOLDER / "000000.npz"


def test_pairs_that_are_lost_are_not_done_without(pairs_of, clips):
    copy, attack, file = pairs_of
    file.unlink()
    with pytest.raises(ValueError, match=r"holds 0 pairs, and .*round\.json says \d+: delete .*pgd and go on"):
        run([clips], out=copy, recipe=Recipe(**RECIPE), resume=True, **PGD)
    file.write_bytes(b"")
    with pytest.raises(ValueError, match=rf"delete {attack} and go on with --resume"):
        run([clips], out=copy, recipe=Recipe(**RECIPE), resume=True, **PGD)


CHANGES = {
    "other names": (lambda held: {"x": held["length"]}, "it holds 'x', expected 'length'"),
    "no lengths": (lambda held: held | {"length": 0 * held["length"]}, "do not go together"),
    "fewer": (lambda held: held | {"rejected": held["rejected"][1:]}, "do not go together"),
    "another length": (lambda held: held | {"preferred": held["preferred"][:, 1:]}, r"expected int16\[any, \d+"),
    "scores": (lambda held: held | {"rejected": held["rejected"] / 2}, r"'rejected' is float64"),
}


@pytest.mark.parametrize("change,message", CHANGES.values(), ids=CHANGES)
def test_pairs_of_another_kind_are_refused(pairs_of, change, message):
    _, attack, file = pairs_of
    with np.load(file) as stored:
        held = dict(stored)
    np.savez(file, **change(held))
    with pytest.raises(ValueError, match=message):
        list(pairs.read(attack, len(held["preferred"][0])))


def test_a_process_that_is_killed_anywhere_ends_as_one_that_is_not(clips, killable, tmp_path):
    """`kill -9` before writes of every kind: to attackers, pairs, rows, a fit's steps, a patched predictor."""
    sizes = {"seeds": 1, "steps": 10, "profile": "quick", "attackers": "universal", "panel": "si_sdr"}
    as_here = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    given = json.dumps({"settings": sizes, "recipe": RECIPE})
    command = [sys.executable, Path(__file__).with_name("killed.py"), clips, tmp_path, given]
    ended = subprocess.run(command, env=killable | as_here, capture_output=True, text=True)
    assert ended.returncode == 0 and "orbax" not in ended.stderr, ended.stderr
    whole, broken = (
        {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
        for out in (tmp_path / "whole", tmp_path / "broken")
    )
    whole, broken = ({n: b for n, b in found.items() if "checkpoints" not in n.parts} for found in (whole, broken))
    assert whole.keys() == broken.keys()
    assert [name for name in whole if whole[name] != broken[name]] == []
    assert {"summary.json", "patched/params.npz", "rounds/2/latent-toy/universal/rows.parquet"} <= {
        name.as_posix() for name in whole
    }


def test_a_patched_predictor_is_patched_again_and_short_recordings_make_no_pairs(done, clips, tmp_path):
    lines = clips.read_text().splitlines()
    for speaker in "abcd":
        audio.write(clips.parent / f"{speaker}-short.wav", toys.speechlike(0.9, 1)[: toys.HOP - 2], toys.RATE)
        lines.append(f"{speaker}-short.wav,{speaker}")
    (clips.parent / "short.csv").write_text("\n".join(lines))
    recipe = Recipe(**RECIPE | {"rounds": 1, "fit_steps": 2, "source": "noise"})
    given = {"predictor": done[0] / "patched", "out": tmp_path / "out", "recipe": recipe}
    summary = run([clips.parent / "short.csv"], **given)
    assert summary["rounds"][0]["pairs"] == 4  # of eight recordings
    again, before = jh.predictor(tmp_path / "out" / "patched"), jh.predictor(done[0] / "patched")
    assert again.name == summary["name"] and patched.read(tmp_path / "out" / "patched")["parent"] == "toy"
    moved = np.abs(again.params - before.params).max()
    assert 0 < moved < np.abs(before.params - toys.predictor().params).max()  # it went on from there


@pytest.mark.parametrize("source", BLIND)
def test_pairs_that_no_detector_saw(source, clips, tmp_path):
    recipe = Recipe(**RECIPE | {"rounds": 1, "fit_steps": 2, "source": source})
    behind = "denoised(toy,chain)" if source == "noise" else "toy"
    summary = run([clips], out=tmp_path / "out", recipe=recipe, **{**SETTINGS, "seeds": 3, "predictor": behind})
    if source == "noise":
        (mine, codec), (now, still) = (jh.predictor(name).params for name in (behind, tmp_path / "out" / "patched"))
        assert np.all(mine != now) and all(np.all(codec[name] == still[name]) for name in codec)
    (folder,) = {path.parent for path in (tmp_path / "out" / "rounds" / "1").rglob("pairs")}
    held = list(pairs.read(folder))
    lengths = np.concatenate([h.length for h in held])
    (found,) = summary["rounds"][0]["in_loop"].values()
    assert found == {"found": len(lengths)} and len(lengths) == 3 * 4  # draws × training recordings
    x, y = (np.concatenate([getattr(h, side) for h in held]).astype(np.float64) for side in ("preferred", "rejected"))
    if source == "noise":
        snr = 10 * np.log10(np.sum(x**2, 1) / np.sum((y - x) ** 2, 1))
        assert np.all((snr > 4) & (snr < 31)) and np.ptp(snr) > 5
    elif source == "pgd":
        assert np.abs(y - x).max() <= 0.002 * 32768 + 1
    assert np.all(np.any(x != y, 1))
    assert len({row.tobytes() for row in y}) == len(y), "draws repeat"


def test_ratings_of_people_take_the_place_of_the_predictors_own(clips, tmp_path):
    labels = ["file,mos,split"] + [f"{path.name},2.5,train" for path in sorted(clips.parent.glob("*.wav"))[:4]]
    (clips.parent / "labels.csv").write_text("\n".join(labels))
    recipe = Recipe(**RECIPE | {"rounds": 1, "fit_steps": 1, "source": "noise"})
    rated = jh.data.read("csv", clips.parent)
    a, b, c, d = (clips.parent / line.partition(",")[0] for line in clips.read_text().splitlines()[1::2])
    with pytest.raises(ValueError, match="both the train and the test set"):
        run(train_paths=[a, b], test_paths=[b, d], out=tmp_path / "no", recipe=recipe)
    summary = run(train_paths=[a, c], test_paths=[b, d], out=tmp_path / "out", recipe=recipe, rated=rated)
    assert json.loads((tmp_path / "out" / "run.json").read_text())["record"]["train"] == [a.name, c.name]
    scored = scoring.score_files(jh.predictor("toy"), inputs.collect(sorted(clips.parent.glob("*.wav"))[:4]))
    before = np.mean([(row["score"] - 2.5) ** 2 for row in scored if row["score"] is not None])
    assert summary["labels"] == "people" and summary["distance_before"] == pytest.approx(before)
    assert summary["rounds"][0]["distance"] > 0
    with pytest.raises(ValueError, match="both rated and of the split train"):
        run([clips], out=tmp_path / "no", recipe=recipe, rated=[one._replace(split="test") for one in rated])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"predictor": toys.predictor(differentiable=False)}, "toy is a black box: it has no weights"),
        ({"recipe": {"source": "hack"}}, "Unknown source of pairs 'hack'; did you mean hacks"),
        ({"recipe": {"rounds": 0}}, "rounds must be at least 1"),
        ({"recipe": {"margin": float("nan")}}, "margin must be a finite number"),
        ({"recipe": {"fit_seconds": 1e-5}}, "fit_seconds must be at least"),
        ({"codecs": [toys.codec(), toys.codec()]}, "Two codecs are called 'toy'"),
        ({"seed": 2**32 - 2}, "the last one's must be below"),
        ({"predictor": toys.predictor()._replace(name="mine")}, "mine cannot be patched, for its name"),
        ({"codecs": [toys.codec()._replace(name="../../esc")]}, "becomes a folder's, which '../../esc' cannot be"),
        ({"codecs": []}, "a codec for a space that has one"),
        ({"spaces": "codes"}, "pgd"),
        ({"options": {"universal": {"steps": 1}}}, "universal has options, and is not among the attackers"),
        ({"options": {"foo": {"steps": 1}}}, "Unknown attacker 'foo'"),
        ({"recipe": {"source": "noise"}}, "Pairs of the source noise have no use for attackers"),
        ({"recipe": {"source": "pgd"}, "attackers": (), "spaces": "bogus"}, "source pgd have no use for spaces"),
        ({"recipe": {"source": "pgd"}, "attackers": (), "options": {"nes": {}}}, "nes has options, and is not"),
        ({"recipe": {"source": "random"}, "attackers": ()}, "source random have no use for options"),
        (
            {"recipe": {"source": "random"}, "attackers": (), "options": {}, "spaces": "bogus"},
            "Unknown space 'bogus'",
        ),
    ],
)
def test_faults_are_found_before_anything_is_computed(clips, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        made = Recipe(**changes.pop("recipe")) if "recipe" in changes else Recipe()
        run([clips], out=tmp_path / "out", recipe=made, **PGD | changes)
    assert not (tmp_path / "out" / "run.json").exists()


@pytest.mark.parametrize("labels", ["people", "itself"])
def test_recordings_that_gave_nothing_are_named(labels, clips, tmp_path):
    (tmp_path / "text.wav").write_text("hello")
    audio.write(tmp_path / "silent.wav", np.zeros(9000, np.float32), toys.RATE)
    audio.write(tmp_path / "short.wav", toys.speechlike(0.9, 1)[: toys.HOP - 1], toys.RATE)
    audio.write(tmp_path / "good.wav", toys.speechlike(0.9, 1), toys.RATE)
    bad = {"text.wav": "not audio", "silent.wav": "Every sample is zero", "short.wav": "toy needs 0.001 s"}
    sizes = "--predictor toy --source noise --rounds 1 --fit-steps 1 --fit-seconds 0.1 --seeds 1 --profile quick"
    halves = ["--test", clips.parent / "a0.wav", "--train", tmp_path / "silent.wav"]
    if labels == "people":
        (tmp_path / "labels.csv").write_text(
            "file,mos,split\n" + "".join(f"{n},3,train\n" for n in [*bad, "good.wav"])
        )
        halves += ["--train", tmp_path / "good.wav", "--ratings", f"csv:{tmp_path}"]
    else:
        refused = CliRunner().invoke(
            main, ["patch", *sizes.split(), *map(str, halves), "--out", str(tmp_path / "no")]
        )
        assert refused.exit_code == 2
        assert "None of the training recordings can be used; the first, 'silent.wav': Every sample" in refused.stderr
        halves += [
            part for name in ("good.wav", *bad) if name != "silent.wav" for part in ("--train", tmp_path / name)
        ]
    ended = CliRunner().invoke(main, ["patch", *sizes.split(), *map(str, halves), "--out", str(tmp_path / "out")])
    assert ended.exit_code == 1 and "3 recordings gave nothing to learn from" in ended.stderr, ended.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert sorted(line.partition(": ")[0] for line in summary["unread"]) == sorted(bad) and summary["clips"] >= 1
    assert all(reason in str(summary["unread"]) for reason in bad.values())
    assert any("recordings gave nothing" in warning for warning in summary["warnings"])
    assert all(name in (tmp_path / "out" / "report.html").read_text() for name in bad)


def test_the_command(clips, monkeypatch):
    calls, entry = (
        [],
        {"worst_attack_success_rate": 0.75, "mean_attack_success_rate": 0.5, "offset": 0.125, "found": 9},
    )
    found = {"in_loop": {"latent-lyra/grpo": entry, "waveform/pgd": entry}, "distance": 0.01}
    rounds = [found | {"round": k, "pairs": 10 * k} for k in (1, 2)]
    summary = {"source": "hacks", "labels": "self-distillation", "warnings": ["Mind this."], "rounds": rounds}
    summary["unread"] = []
    monkeypatch.setattr("jaxhack.patch.loop.patch", lambda *args, **more: calls.append((args, more)) or summary)
    flags = "--predictor nisqa --codec lyra,mini --attacker grpo,waveform/pgd --option pgd.steps=10 --margin 0.25"
    flags += " --rounds 2 --prefer-input --seeds 1 --out o"
    result = CliRunner().invoke(main, ["patch", str(clips), *flags.split()])
    assert result.exit_code == 0, result.output
    ((paths,), given) = calls[0]
    assert paths == (str(clips),) and given["recipe"] == Recipe(rounds=2, margin=0.25, prefer_input=True)
    assert given["codecs"] == ["lyra", "mini"] and given["attackers"] == ["grpo", "waveform/pgd"]
    assert given["options"] == {"pgd": {"steps": 10}} and given["seeds"] == 1 and given["steps"] is None
    printed = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "1 latent-lyra/grpo 0.750 0.500 +0.12 9 10 0.01" in printed
    assert "waveform/pgd 0.750 0.500 +0.12 9" in printed
    assert max(map(len, result.stdout.splitlines())) <= 80 and "Mind this." in result.output
    assert "Report: o/report.html" in result.stdout and "Predictor: o/patched" in result.stdout
