import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import fakes
import numpy as np
import pytest
import rich.console
import soundfile
from click.testing import CliRunner
from fakes import delayed_codec, speechlike

from jaxhack import audio, registry
from jaxhack.cli import main
from jaxhack.inputs import Utterance
from jaxhack.reconstruct import output_names, round_trip


@pytest.fixture(autouse=True)
def listed(monkeypatch, tmp_path_factory):
    models = tmp_path_factory.mktemp("models")
    (models / "fake.bin").write_bytes(b"fake")
    monkeypatch.setenv("JAXHACK_MODELS", str(models))
    monkeypatch.setenv("XDG_CACHE_HOME", str(models / "cache"))
    for name, kind in {"level": "predictor", "level_16k": "predictor", "delayed_codec": "codec"}.items():
        entry = registry.Entry(kind, f"fakes:{name}", "fakes:WEIGHTS", "for tests")
        monkeypatch.setitem(registry.ENTRIES, name, entry)
    return models


@pytest.fixture
def clips(tmp_path):
    folder = tmp_path / "clips"
    (folder / "sub").mkdir(parents=True)
    for i, name in enumerate(("a.wav", "a.flac", "sub/a b.wav")):
        soundfile.write(folder / name, speechlike(1 + i / 10), 16000)
    return folder


def run(*args, status=0):
    result = CliRunner().invoke(main, [str(a) for a in args])
    assert result.exit_code == status, result.output
    return result


def test_score_prints_rows_alone(clips):
    result = run("score", clips, "--predictor", "level")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [row["file"] for row in rows] == ["a.flac", "a.wav", "sub/a b.wav"]
    assert list(rows[0]) == ["file", "score", "changes", "seconds", "sample_rate", "status", "reason"]
    assert float(rows[0]["score"]) == pytest.approx(10 * np.log10(np.mean(speechlike(1.1) ** 2)), abs=1e-3)
    assert "\r" not in result.stdout and result.stderr == "3 of 3 done\n"


def test_score_as_json_lines_into_a_new_file(clips, tmp_path):
    out = tmp_path / "rows.jsonl"
    args = ("score", clips, "--predictor", "level", "--format", "jsonl", "--out", out, "--sample-rate", "8000")
    assert run(*args).stdout == ""
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["sample_rate"] for row in rows] == [8000] * 3 and rows[0]["status"] == "ok"
    before = out.read_bytes()
    assert "exists" in run(*args, status=2).stderr and out.read_bytes() == before


def test_some_inputs_failed(clips):
    (clips / "new\nline.wav").write_text("not audio")
    result = run("score", clips, "--predictor", "level", status=1)
    rows = list(csv.DictReader(io.StringIO(result.stdout, newline="")))
    assert [row["status"] for row in rows] == ["ok", "ok", "unreadable", "ok"]
    assert rows[2]["file"] == "new\nline.wav" and rows[2]["score"] == "" and "not audio" in rows[2]["reason"]
    assert "3 of 4 done, 1 not" in result.stderr


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["score", "{clips}", "--predictor", "levl"], "did you mean level"),
        (["score", "{clips}", "--predictor", "delayed_codec"], "is a codec, not a predictor"),
        (["score", "{clips}/none", "--predictor", "level"], "does not exist"),
        (["score", "{empty}", "--predictor", "level"], "No audio in"),
        (["score", "--predictor", "level"], "Missing argument"),
        (["score", "{clips}"], "Missing option '--predictor'"),
        (["score", "{clips}", "--predictor", "level", "--sample-rate", "0"], "x>=1"),
        (["score", "{clips}", "--predictor", "level_16k", "--sample-rate", "8000"], "16000 Hz only"),
        (["score", "{clips}", "--predictor", "level", "--models", "{clips}/none"], "does not exist"),
        (["score", "{clips}", "--predictor", "level", "--out", "{clips}/no/rows.csv"], "cannot be written"),
        (["reconstruct", "{clips}", "--codec", "delayed_codec", "--out", "{clips}"], "not an empty folder"),
        (["reconstruct", "{clips}", "--codec", "lira", "--out", "{empty}"], "did you mean lyra"),
        (["models", "get", "nisqua"], "did you mean nisqa"),
        (["models", "get", "level"], "could not be fetched"),
    ],
)
def test_mistakes_get_one_sentence(clips, tmp_path, args, reason):
    (tmp_path / "empty").mkdir()
    result = run(*[arg.format(clips=clips, empty=tmp_path / "empty") for arg in args], status=2)
    assert reason in " ".join(result.stderr.split()) and "Traceback" not in result.stderr
    assert result.stdout == "" and not list((tmp_path / "empty").iterdir())
    sentence = result.stderr.splitlines()[-1]
    assert sentence.startswith("Error: ") or "did you mean" in sentence


def test_reconstruct_is_as_long_as_its_input_and_aligned(clips, tmp_path):
    soundfile.write(clips / "odd.wav", speechlike(2)[:10000], 16000)
    soundfile.write(clips / "high.wav", speechlike(1, 48000), 48000)
    out = tmp_path / "out"
    result = run("reconstruct", clips, "--codec", "delayed_codec", "--out", out)
    rows = {row["file"]: row for row in csv.DictReader(io.StringIO(result.stdout))}
    written = sorted(str(path.relative_to(out)) for path in out.rglob("*.wav"))
    assert written == ["a.flac.wav", "a.wav.wav", "high.wav", "odd.wav", "sub/a b.wav"]
    assert rows["a.flac"]["output"] == "a.flac.wav" and rows["high.wav"]["sample_rate"] == "16000"
    assert "8 samples" in result.stderr
    for name, length in {"odd.wav": 10000, "high.wav": 16000, "a.wav.wav": 16000}.items():
        info = soundfile.info(out / name)
        assert (info.frames, info.samplerate, info.subtype) == (length, 16000, "PCM_16")
    np.testing.assert_allclose(audio.read(out / "odd.wav").wav, speechlike(2)[:10000] / 2, atol=1.01 / 32768)


def test_a_long_recording_has_no_seams():
    wav = speechlike(130)
    np.testing.assert_array_equal(round_trip(delayed_codec())(wav), wav / 2)


def test_output_names_never_meet():
    given = ["a.wav", "a.flac", "a.flac.wav", "A.ogg", "../up.wav", "/abs/x.wav", "p.287_01", "..", "c/d.wav"]
    names = output_names([Utterance(name, Path(name), None, name) for name in given])
    assert names == ["a.wav.wav", "a.flac.wav", "a.flac-2.wav", "A.ogg.wav", "up.wav", "abs/x.wav", "p.287_01.wav",
                     "_.wav", "c/d.wav"]  # fmt: skip
    assert len({name.casefold() for name in names}) == len(given)


def test_models_lists_what_is_here(listed):
    row = next(line for line in run("models").stdout.splitlines() if " level " in line)
    assert "have" in row and "NON-COMMERCIAL" in row and "fake v1" in row
    (listed / "fake.bin").write_bytes(b"evil")
    row = next(line for line in run("models").stdout.splitlines() if " level " in line)
    assert "wrong contents" in row
    (listed / "fake.bin").unlink()
    row = next(line for line in run("models").stdout.splitlines() if " level " in line)
    assert "missing" in row and "jaxhack models get level" in row


def test_what_its_user_brings(listed, clips, monkeypatch, tmp_path):
    monkeypatch.setitem(registry.ENTRIES, "own", registry.Entry("codec", "fakes:brought", "fakes:TO_BRING", ""))
    row = next(line for line in run("models").stdout.splitlines() if " own " in line)
    assert "to bring" in row and "bring own.bin into DIR/own" in row and "MB" not in row
    sentence = (
        "own.bin cannot be fetched, as no hash of it is confirmed: get it from own v1, put it at DIR/own/own.bin"
    )
    assert sentence in run("models", "get", "own", status=2).stderr
    (tmp_path / "own").mkdir()
    args = ("reconstruct", clips, "--codec", "own", "--out", tmp_path / "out", "--models", tmp_path)
    assert "no hash of it is confirmed" in run(*args, status=2).stderr
    (tmp_path / "own" / "own.bin").write_bytes(b"own")
    assert "3 of 3 done" in run(*args).stderr
    row = next(line for line in run("models", "--models", tmp_path).stdout.splitlines() if " own " in line)
    assert "unchecked" in row and "bring own" not in row
    assert "missing' does not exist" in run("models", "--models", tmp_path / "missing", status=2).stderr


def test_models_fit_a_narrow_terminal(monkeypatch):
    console = rich.console.Console
    monkeypatch.setattr(rich.console, "Console", lambda width: console(width=80))
    text = run("models").stdout
    assert all(len(line) <= 80 for line in text.splitlines())
    assert all(re.search(rf"│ {name} +│", text) for name in registry.names())


def test_models_get_shows_the_licence(listed, monkeypatch):
    (listed / "cache" / "jaxhack" / "fake").mkdir(parents=True)
    (listed / "cache" / "jaxhack" / "fake" / "fake.bin").write_bytes(b"fake")
    result = run("models", "get", "level")
    assert "fake.bin: CC-BY-NC-SA-4.0 (NON-COMMERCIAL use only); fake v1" in result.stderr
    assert result.stdout.strip().endswith("fake.bin")


def test_models_knows_what_is_bundled(listed, monkeypatch):
    folder = listed / "site" / "fakebundle"
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setenv("JAXHACK_MODELS", str(listed / "none"))
    monkeypatch.setattr(fakes, "WEIGHTS", (fakes.WEIGHTS[0]._replace(source="bundled:fakebundle"),))
    assert "reinstall jaxhack" in run("models", "get", "level", status=2).stderr
    for content, state in ((b"evil", "wrong contents"), (b"fake", "have")):
        (folder / "fake.bin").write_bytes(content)
        assert state in next(line for line in run("models").stdout.splitlines() if " level " in line)
    assert run("models", "get", "level").stdout.strip() == str(folder / "fake.bin")


def test_the_help_of_an_audit_is_instant_and_says_where_sizes_come_from():
    code = """import sys
from jaxhack.cli import main
main(["audit", "--help"], standalone_mode=False)
print("imported:", *{"jax", "numpy", "soundfile", "rich"} & set(sys.modules))"""
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert text.endswith("imported:\n")
    words = " ".join(text.split())
    for part in (
        "[default: dnsmos-p808]",
        "[default: mini]",
        "[default: paper; quick without recordings]",
        "[default: quick 25, standard 300, paper 2000]",
        "[default: the space's]",
        "[default: runs/PREDICTOR]",
    ):
        assert part in words


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["score"],
        ["probe"],
        ["agreement"],
        ["reconstruct"],
        ["transfer"],
        ["audit"],
        ["models"],
        ["models", "get"],
    ],
)
def test_help_has_an_example(command):
    text = run(*command, "--help").stdout
    assert "jaxhack" in text.partition("Example:")[2] or not command


def test_a_closed_pipe_is_quiet(clips):
    code = (
        "import jaxhack.registry as r; r.ENTRIES['level'] = r.Entry('predictor', 'fakes:level', 'fakes:WEIGHTS', '');"
    )
    code += "from jaxhack.cli import main; main()"
    tests = Path(__file__).parent
    env = os.environ | {"PYTHONPATH": f"{tests}:{tests.parent}"}
    command = [sys.executable, "-c", code, "score", str(clips), "--predictor", "level"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=env, text=True, check=False)
    os.close(writer)
    assert done.stderr == "" and done.returncode == 1
