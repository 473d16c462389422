"""`jaxhack audit` and `report` met with what should not happen: one sentence, the right status, nothing lost."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import toys
from click.testing import CliRunner

from jaxhack import audio, auditing, registry, rows
from jaxhack.cli import main

pytestmark = pytest.mark.standard_promotion  # optax and orbax

TINY = "--space toy_codec --seeds 1 --steps 2 --batch 2 --group 2 --crop-seconds 0.5".split()  # noqa: SIM905
ENTRIES = {"toy": ("predictor", "toys:listed"), "toy_codec": ("codec", "toys:listed_codec")}


@pytest.fixture(scope="module", autouse=True)
def listed():
    with pytest.MonkeyPatch.context() as patch:
        for name, (kind, make) in ENTRIES.items():
            patch.setitem(registry.ENTRIES, name, registry.Entry(kind, make, "toys:NO_WEIGHTS", "for tests"))
        yield


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    for i, name in enumerate(("a", "b", "c", "d")):
        audio.write(folder / f"{name}.wav", toys.speechlike(1.0 + 0.1 * i, i), toys.RATE)
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
    assert sentence == "0 of 2 training and 2 of 2 test recordings gave nothing: the report says why"


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
        ("inputs.json", "[1]", "holds files that no audit wrote"),
        ("examples/examples.json", "[{}, 1]", "holds files that no audit wrote"),
        ("training.jsonl", "[1]\n", "holds files that no audit wrote"),
        ("rows.parquet", "", "truncated or not a Parquet file"),
    ],
)
def test_reports_of_edited_runs(copy, name, content, sentence):
    (copy / name).write_text(content)
    assert sentence in refused("report", copy)
