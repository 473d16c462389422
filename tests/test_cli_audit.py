"""`jaxhack audit` and `report` met with what should not happen: one sentence, the right status, nothing lost."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import fakes
import numpy as np
import pytest
import toys
from click.testing import CliRunner

from jaxhack import audio, auditing, inputs, registry, rows
from jaxhack.cli import main
from jaxhack.settings import PROFILES, Settings

pytestmark = [
    pytest.mark.standard_promotion,  # optax and orbax
    pytest.mark.quick_compilation,
    pytest.mark.usefixtures("one_device"),
]

TINY = "--codec toy_codec --seeds 1 --steps 2 --batch 2 --group 2 --crop-seconds 0.5".split()  # noqa: SIM905
ENTRIES = {"toy": ("predictor", "toys:listed"), "toy_codec": ("codec", "toys:listed_codec")}
DEFAULTS = {"dnsmos-p808": ENTRIES["toy"], "mini": ENTRIES["toy_codec"]}  # toys under the defaults' names


@pytest.fixture(scope="module", autouse=True)
def listed():
    with pytest.MonkeyPatch.context() as patch:
        for name, (kind, make) in (ENTRIES | DEFAULTS).items():
            patch.setitem(registry.ENTRIES, name, registry.Entry(kind, make, "toys:NO_WEIGHTS", "for tests"))
        yield


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    for i, name in enumerate(("a", "b", "c", "d")):
        audio.write(folder / f"{name}.wav", toys.speechlike(1.0, i), toys.RATE)
    return folder


def run(*args, status):
    result = CliRunner().invoke(main, [str(a) for a in args])
    assert result.exit_code == status, result.output
    return result


def audit(*args, status, predictor="toy"):
    return run("audit", *args, "--predictor", predictor, *TINY, status=status)


def refused(*args):
    sentence = run(*args, status=2).stderr.splitlines()[-1]
    assert sentence.startswith("Error: ")
    return sentence


@pytest.fixture(scope="module")
def done(clips, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run") / "out"
    audit(clips, "--out", out, status=0)
    return out


@pytest.fixture
def copy(done, tmp_path) -> Path:
    return Path(shutil.copytree(done, tmp_path / "copy"))


@pytest.mark.parametrize("out", ["/proc/no", "{clips}/a.wav/sub", "x" * 300])
def test_a_folder_that_cannot_be_made(clips, out):
    sentence = refused("audit", clips, "--predictor", "toy", *TINY, "--out", out.format(clips=clips))
    assert out.format(clips=clips) in sentence


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk(clips):
    assert "No space left on device" in refused("score", clips, "--predictor", "toy", "--out", "/dev/full")


def test_ctrl_c_keeps_what_was_computed(clips, tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    endings = []
    monkeypatch.setattr(auditing, "train", interrupted)
    monkeypatch.setattr("atexit.register", lambda *call: endings.append(call))
    result = audit(clips, "--out", tmp_path / "out", status=130)
    assert "what was computed is kept: repeat the command with --resume" in result.stderr.splitlines()[-1]
    assert (tmp_path / "out" / "run.json").exists()
    assert (os._exit, 130) in endings  # a black box at work in a thread would abort the interpreter


def test_resume_makes_only_what_is_missing_or_damaged(clips, done, copy):
    """Stopped while the examples were written, with a part that a crash damaged and one of other recordings."""
    found = rows.read(copy / "rows.parquet")
    (copy / "rows.parquet").unlink()
    shutil.rmtree(copy / "examples")
    rows.write_part(copy / "parts", 0, found[:1])
    rows.write_part(copy / "parts", 5, found[:1])
    audit(clips, "--out", copy, "--resume", status=0)
    assert rows.read(copy / "rows.parquet") == found
    assert sorted(os.listdir(copy / "examples")) == sorted(os.listdir(done / "examples"))


def test_a_damaged_checkpoint_is_named(clips, copy):
    (copy / "rows.parquet").unlink()
    for path in (copy / "checkpoints" / "2").rglob("*"):
        if path.is_file():
            path.write_bytes(b"damaged")
    sentence = refused("audit", clips, "--out", copy, "--predictor", "toy", *TINY, "--resume")
    assert str(copy / "checkpoints" / "2") in sentence and "delete it" in sentence


def test_two_processes_never_share_a_folder(clips, copy):
    code = f"import time; from pathlib import Path; from jaxhack.run import alone\nwith alone(Path({str(copy)!r})):"
    code += "\n print(flush=True); time.sleep(60)"
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        other.stdout.readline()
        for option in ("--resume", "--overwrite"):
            sentence = refused("audit", clips, "--out", copy, "--predictor", "toy", *TINY, option)
            assert f"Another process is at work in {copy}" in sentence
    finally:
        other.kill()
        other.communicate()
    audit(clips, "--out", copy, "--resume", status=0)


def test_recordings_without_a_verdict_are_an_exit_status(done, clips, tmp_path, monkeypatch):
    """A score that is not finite counts like a file that cannot be read."""
    summary = json.loads((done / "summary.json").read_text())
    summary["attackers"][1]["n_undetermined"] = 2
    monkeypatch.setattr(auditing, "audit", lambda *args, **kwargs: summary)
    sentence = audit(clips, "--out", tmp_path, status=1).stderr.splitlines()[-1]
    assert sentence == "up to 2 of 2 test recordings have no verdict: the report says why"


def test_no_argument_at_all_is_the_quick_profile_on_demo_speech(tmp_path, monkeypatch):
    (tmp_path / "demo").mkdir()
    lines = ["file,speaker"]
    for i, name in enumerate(("a1", "a2", "b1", "b2")):
        audio.write(tmp_path / "demo" / f"{name}.wav", fakes.speechlike(1.0 + 0.1 * i, seed=i), 16000)
        lines.append(f"{name}.wav,{name[0]}")
    (tmp_path / "demo" / "manifest.csv").write_text("\n".join(lines))
    tiny = {"seeds": 1, "steps": 2, "batch": 2, "group": 2, "crop_seconds": 0.5}  # compiled already
    monkeypatch.setitem(PROFILES, "quick", tiny)
    monkeypatch.setattr(inputs, "DEMO", tmp_path / "demo" / "manifest.csv")
    monkeypatch.chdir(tmp_path)
    result = run("audit", status=0)
    assert result.stderr.splitlines()[0] == (
        "Auditing toy in latent-toy by grpo: quick profile, seeds 1 × steps 2 × batch 2, 4 demo recordings; "
        "a first look, not a result"
    )
    record = json.loads(Path("runs/dnsmos-p808/run.json").read_text())["record"]
    assert record["demo"] is True and record["settings"] == asdict(Settings(profile="quick", **tiny))
    assert sorted(record["train"] + record["test"]) == ["a1.wav", "a2.wav", "b1.wav", "b2.wav"]
    warnings = json.loads(Path("runs/dnsmos-p808/summary.json").read_text())["warnings"]
    assert ["demo clips" in w for w in warnings][:2] == [True, False] and "quick profile" in warnings[1]
    printed = " ".join(result.stdout.split())
    assert "Settings: profile quick, space latent, attacker grpo" in printed
    assert "runs/dnsmos-p808/report.html" in printed
    assert "--resume" in refused("audit")  # a second time finds the first


@pytest.fixture
def called(done, monkeypatch) -> list[tuple]:
    """What the command asks for, of an audit that is not done."""
    calls = []
    summary = json.loads((done / "summary.json").read_text())
    monkeypatch.setattr(auditing, "audit", lambda paths, **options: calls.append((paths, options)) or summary)
    return calls


@pytest.mark.parametrize(
    "predictor, out",
    [
        ("nisqa-tts", "nisqa-tts"),
        ("some/where/My Model v1.2.ONNX", "My_Model_v1.2"),
        ("my.package:score", "my.package.score"),
        ("my.package:Model.score", "my.package.Model.score"),
        ("../..", "predictor"),
        (".onnx", "onnx"),
    ],
)
def test_a_run_without_a_folder_lies_under_its_predictors_name(called, predictor, out):
    run("audit", "--predictor", predictor, status=0)
    assert called[0][1]["out"] == str(Path("runs", out))


def test_the_command_passes_on_what_was_given_and_nothing_else(called):
    run("audit", "--profile", "standard", "--steps", "7", "--epsilon", "0", "--out", "o", status=0)
    run("audit", "clips", "--predictor", "nisqa", "--codec", "lyra", status=0)
    (demo, quick), (paths, plain) = called
    assert demo is None and paths == ("clips",)
    assert (quick["predictor"], quick["codec"], quick["profile"]) == ("dnsmos-p808", "mini", "standard")
    assert (quick["steps"], quick["epsilon"], quick["out"]) == (7, 0.0, "o")
    assert (plain["predictor"], plain["codec"], plain["profile"], plain["out"]) == (
        "nisqa",
        "lyra",
        None,
        str(Path("runs/nisqa")),
    )
    sizes = ("seeds", "steps", "batch", "group", "crop_seconds", "epsilon", "tau", "limit")
    assert {plain[name] for name in sizes} == {None}


def test_an_unknown_profile(clips, tmp_path):
    assert "Unknown profile 'qick'; did you mean quick?" in refused("audit", clips, "--profile", "qick")


def test_a_run_from_before_there_were_profiles(clips, copy):
    stored = json.loads((copy / "run.json").read_text())
    assert stored["record"].pop("demo") is False and stored["record"]["settings"].pop("profile") == "paper"
    assert stored["record"].pop("recordings")
    (copy / "run.json").write_text(json.dumps(stored))
    before = (copy / "rows.parquet").read_bytes()
    audit(clips, "--out", copy, "--resume", status=0)
    assert (copy / "rows.parquet").read_bytes() == before
    printed = " ".join(run("report", copy, status=0).stdout.split())
    assert "Settings: space latent, attacker grpo" in printed
    assert "starting from the" not in (copy / "report.html").read_text()


def test_other_recordings_of_the_same_names_are_another_run(clips, copy, tmp_path):
    other = tmp_path / "other" / Path(clips).name
    shutil.copytree(clips, other)
    next(other.rglob("*.wav")).write_bytes(b"RIFF")
    assert "have changed: put them back" in refused(
        "audit", other, "--out", copy, "--predictor", "toy", *TINY, "--resume"
    )


def test_a_profile_is_a_name_for_sizes_and_a_run_is_its_sizes(clips, copy):
    result = audit(clips, "--out", copy, "--resume", "--profile", "quick", status=0)
    assert "Auditing" not in result.stderr  # nothing was left to do
    sentence = refused("audit", clips, "--out", copy, "--predictor", "toy", *TINY, "--resume", "--steps", "3")
    assert "settings.steps: 2 then, 3 now" in sentence


def test_training_on_silence_is_refused(clips, tmp_path):
    for name in "ab":
        audio.write(tmp_path / f"{name}.wav", np.zeros(16000, np.float32), toys.RATE)
    options = ("--train", tmp_path, "--test", clips, "--out", tmp_path / "out", "--predictor", "toy", *TINY)
    sentence = refused("audit", *options)
    assert "None of the training recordings can be used" in sentence and "every sample is zero" in sentence


@pytest.mark.parametrize(
    "name,content,sentence",
    [
        ("run.json", "[]", "cannot be read as a run's record"),
        ("run.json", '{"record": {"settings": 1}}', "cannot be read as a run's record"),
        ("inputs.json", "[1]", "inputs.json cannot be read as a run's notes"),
        ("examples/examples.json", "[{}, 1]", "examples.json cannot be read as a list of examples"),
        ("training.jsonl", "[1]\n", "training.jsonl cannot be read as a log of training, for its line 1"),
        ("recordings.jsonl", "", "does not list the train recordings that"),
        ("rows.parquet", "", "truncated or not a Parquet file"),
    ],
)
def test_reports_of_edited_runs(copy, name, content, sentence):
    (copy / name).write_text(content)
    assert sentence in refused("report", copy)


def test_several_attackers_and_spaces_are_a_suite(clips, tmp_path):
    out = tmp_path / "out"
    many = ["--space", "latent,waveform", "--attacker", "latent/grpo,pgd", "--option", "pgd.steps=2", "--out", out]
    result = audit(clips, *many, status=0)
    printed = " ".join(result.stdout.split())
    assert "latent-toy grpo" in printed and "waveform pgd" in printed and "any space any attack" in printed
    names = {"latent/grpo", "latent/pgd", "waveform/pgd"}
    assert set(json.loads((out / "run.json").read_text())["record"]["legs"]) == names
    assert all((out / name / "report.html").exists() for name in names)
    before = (out / "summary.json").read_bytes()
    (out / "summary.json").unlink()
    assert run("report", out, status=0).stdout == result.stdout
    assert (out / "summary.json").read_bytes() == before
    assert "--resume" in refused("audit", clips, "--predictor", "toy", *TINY, *many)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--attacker", "pgd", "--option", "steps"], "--option takes NAME=VALUE"),
        (["--attacker", "pgd", "--option", "stepps=3"], "did you mean steps"),
        (["--attacker", "pgd,grpo", "--option", "steps=3"], "--option pgd.steps=VALUE"),
        (["--attacker", "pgd", "--option", "steps=0"], "steps of pgd must be at least 1"),
        (["--attacker", "pgd", "--option", "grpo.kl=3"], "grpo has options, and is not among the attackers"),
        (["--attacker", "pgd", "--option", "steps=null"], "--option takes NAME=VALUE"),
        (["--attacker", "pgd", "--option", "steps=[1]"], "--option takes NAME=VALUE"),
        (["--attacker", "pgd", "--option", "steps=1.5"], "steps of pgd must be a whole number"),
        (["--attacker", ","], "--attacker is empty"),
        (["--space", ""], "--space is empty"),
        (["--epsilon", ","], "--epsilon is empty"),
        (["--panel", ","], "at least one measure"),
        (["--panel", "estoi,estoi"], "name each once"),
        (["--attacker", "waveform/pdg"], "Unknown attacker 'pdg'; did you mean pgd"),
        (["--epsilon", "much"], "--epsilon takes numbers"),
        (["--epsilon", "-1"], "epsilon must be a finite number ≥ 0"),
        (["--epsilon", "0.1,nan"], "epsilon must be a finite number ≥ 0"),
        (["--space", "toy_codec"], "Unknown space 'toy_codec'"),
        (["--space", "latent,wave"], "Unknown space 'wave'"),
    ],
)
def test_attacks_that_cannot_be_meant(clips, tmp_path, options, sentence):
    assert sentence in refused("audit", clips, "--predictor", "toy", *TINY, *options, "--out", tmp_path / "out")
    assert not (tmp_path / "out" / "run.json").exists()
