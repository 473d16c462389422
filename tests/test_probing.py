"""Probes: each transformation against its definition, what is said of the scores, and the command."""

import csv
import io
import json
import warnings

import fakes
import jax.numpy as jnp
import numpy as np
import pytest
import soundfile
import toys
from click.testing import CliRunner

import jaxhack as jh
from jaxhack import probing, registry
from jaxhack.cli import main
from jaxhack.inputs import Utterance
from jaxhack.types import Predictor
from ports.blackbox import host_predictor

RATE = 16000
DEGENERATE = ["zeros", "constant 0.1", "one click", "white noise", "one 20 ms frame repeated"]


@pytest.fixture
def clips(tmp_path):
    folder = tmp_path / "clips"
    folder.mkdir()
    for i in range(3):
        soundfile.write(folder / f"{i}.wav", toys.speechlike(1 + i / 10, i), RATE, subtype="FLOAT")
    return folder


def test_every_change_is_what_its_name_says():
    wav = toys.speechlike(1.0, 0)
    made = {name: change(wav) for name, change in probing.recording_probes(RATE, fakes.delayed_codec()).items()}
    assert list(made) == ["gain +6 dB", "gain -6 dB", "polarity", "silence around", "halves swapped", "via 48 kHz",
                          "16 bit", "codec delayed"]  # fmt: skip
    for name, factor in {
        "gain +6 dB": 1.99526,
        "gain -6 dB": 0.501187,
        "polarity": -1.0,
        "codec delayed": 0.5,
    }.items():
        np.testing.assert_allclose(made[name], factor * wav, rtol=1e-5, atol=1e-7)
    around = made["silence around"]
    assert len(around) == len(wav) + 3200 and not around[:1600].any() and not around[-1600:].any()
    np.testing.assert_array_equal(around[1600:-1600], wav)
    np.testing.assert_array_equal(made["halves swapped"], np.concatenate([wav[8000:], wav[:8000]]))
    steps = made["16 bit"] * 32768
    np.testing.assert_array_equal(steps, np.rint(steps))
    assert 0 < np.abs(made["16 bit"] - wav).max() <= 0.5 / 32768
    tone = np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE).astype(np.float32)
    there_and_back = probing.recording_probes(RATE, fakes.delayed_codec())["via 48 kHz"](tone)
    assert there_and_back.shape == tone.shape
    np.testing.assert_allclose(there_and_back[500:-500], tone[500:-500], atol=1e-4)


def test_a_codec_of_another_rate_is_resampled_to():
    tone = np.sin(2 * np.pi * 440 * np.arange(7999) / 8000).astype(np.float32)
    tripped = probing.recording_probes(8000, fakes.delayed_codec())["codec delayed"](tone)
    assert tripped.shape == tone.shape
    np.testing.assert_allclose(tripped[500:-500], tone[500:-500] / 2, atol=1e-4)


def test_inputs_that_are_no_speech():
    frame = probing.loudest_frame(np.concatenate([0.1 * np.ones(400), np.ones(320), np.zeros(240)]), RATE)
    assert frame.shape == (320,) and frame.sum() == pytest.approx(320 - 80 + 8)
    made = probing.degenerate(RATE, frame)
    assert list(made) == DEGENERATE and all(wav.shape == (160000,) for wav in made.values())
    assert not made["zeros"].any() and set(made["constant 0.1"]) == {np.float32(0.1)}
    assert np.count_nonzero(made["one click"]) == 1 and made["one click"].max() == 1
    assert made["white noise"].std() == pytest.approx(0.1, rel=0.01)
    np.testing.assert_array_equal(made[DEGENERATE[-1]].reshape(-1, 320), np.tile(frame, (500, 1)))
    assert list(probing.degenerate(RATE, None)) == DEGENERATE[:-1]
    assert probing.loudest_frame(np.ones(5), RATE).shape == (5,)


def test_shifts_of_a_level(clips):
    """The level in dB moves by what is known; silence has no level of its own to outscore anything."""
    (clips / "broken.wav").write_text("not audio")
    rows, summary = jh.probe([clips], predictor=fakes.level(), codec=fakes.delayed_codec())
    assert [row["file"] for row in rows if row["probe"] == "unchanged"] == ["0.wav", "1.wav", "2.wav", "broken.wav"]
    assert list(rows[0]) == list(probing.COLUMNS)
    (broken,) = (row for row in rows if row["file"] == "broken.wav")
    assert broken["status"] == "unreadable" and "not audio" in broken["reason"] and broken["score"] is None
    assert (summary["recordings"], summary["scored"], summary["repeat_sd"]) == (4, 3, 0.0)
    shifts = {p["probe"]: p for p in summary["probes"]}
    silence = [10 * np.log10(s / (s + 0.2)) for s in (1.0, 1.1, 1.2)]
    for name, mean in {"gain +6 dB": 6, "gain -6 dB": -6, "polarity": 0, "silence around": np.mean(silence),
                       "halves swapped": 0, "16 bit": 0, "codec delayed": -6.0206}.items():  # fmt: skip
        assert shifts[name]["mean"] == pytest.approx(mean, abs=2e-3) and shifts[name]["n"] == 3
    assert shifts["silence around"]["largest"] == pytest.approx(min(silence), abs=1e-3)
    assert shifts["silence around"]["file"] == "0.wav"
    assert shifts["silence around"]["sd"] == pytest.approx(np.std(silence, ddof=1), abs=1e-3)
    assert [d["input"] for d in summary["degenerate"]] == DEGENERATE
    above, moved = summary["warnings"]
    assert "above the median of the recordings" in above and "constant 0.1 -20.00, white noise -19.98" in above
    assert "zeros" not in above and "gain +6 dB +6.00, gain -6 dB -6.00" in moved and "polarity" not in moved


def test_a_change_that_leaves_full_scale_is_cut_and_counted(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.full(RATE, 0.75, np.float32), RATE, subtype="FLOAT")
    rows, summary = jh.probe([tmp_path], predictor=fakes.level(), codec=fakes.delayed_codec())
    louder = next(row for row in rows if row["probe"] == "gain +6 dB")
    assert louder["clipped"] == RATE and louder["score"] == pytest.approx(0.0, abs=1e-4)
    assert [p["clipped"] for p in summary["probes"]] == [1] + [0] * 7


def test_a_predictor_with_noise_and_refusals(clips):
    """A black box that never says the same twice, and raises on silence: noted, and nothing else is lost."""
    draw = np.random.default_rng(0)

    def moody(clips):
        if not np.any(clips):
            raise RuntimeError("no mood for silence")
        return 3.0 + 0.1 * draw.normal(size=(len(clips), 1))

    black_box = host_predictor("moody", moody, sample_rate=RATE, head_names=("score",), scale=(1.0, 5.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it raised is a warning of its own
        rows, summary = jh.probe([clips], predictor=black_box, codec=fakes.delayed_codec())
    zeros = next(row for row in rows if row["probe"] == "zeros")
    assert zeros["status"] == "failed" and zeros["score"] is None and zeros["reason"]
    assert all(row["status"] == "ok" for row in rows if row["probe"] != "zeros")
    assert 0.01 < summary["repeat_sd"] < 0.3 and "the same audio the same score" in summary["warnings"][0]


def test_recordings_are_read_as_they_are_needed(clips):
    """At most a window of waveforms waits, however many recordings there are."""
    taken = []

    def endless():
        for i in range(1000):
            taken.append(i)
            yield Utterance(f"{i}", clips / f"{i % 3}.wav", None, "")

    probes = probing.recording_probes(RATE, fakes.delayed_codec())
    found = probing.run(fakes.level(), endless(), probes, batch=1)
    first = [next(found) for _ in range(5)]
    assert [row["probe"] for row in first] == ["unchanged", "scored again", *list(probes)[:3]] and len(taken) <= 8


def test_only_silence_and_no_score_at_all(tmp_path):
    soundfile.write(tmp_path / "silent.wav", np.zeros(RATE, np.float32), RATE)

    def heads(params, wav, length):
        return jnp.full(1, jnp.nan) + 0 * wav[0]

    mute = Predictor("mute", RATE, None, heads, ("score",), (1.0, 5.0), True, 1)
    rows, summary = jh.probe([tmp_path], predictor=mute, codec=fakes.delayed_codec())
    assert summary["median"] is None and summary["repeat_sd"] is None and summary["warnings"] == []
    assert [d["input"] for d in summary["degenerate"]] == DEGENERATE[:-1]
    assert {row["reason"] for row in rows} == {"mute gives no finite score."}
    assert probing.tables(summary)[0].row_count == 8


@pytest.fixture
def listed(monkeypatch):
    for name, make in {"level": "fakes:level", "delayed": "fakes:delayed_codec"}.items():
        kind = "codec" if name == "delayed" else "predictor"
        monkeypatch.setitem(registry.ENTRIES, name, registry.Entry(kind, make, "toys:NO_WEIGHTS", "for tests"))


def command(*args, status):
    result = CliRunner().invoke(main, ["probe", *map(str, args), "--predictor", "level", "--codec", "delayed"])
    assert result.exit_code == status, result.output
    return result


def test_the_command_prints_tables_and_keeps_rows(clips, tmp_path, listed):
    out = tmp_path / "rows.csv"
    printed = command(clips, "--out", out, status=0).stdout
    assert max(map(len, printed.splitlines())) <= 80 or "Warning" in printed
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert "gain +6 dB +6.000 0.000 +6.000 3" in lines and "constant 0.1 -20.00 above".replace("-", "−") in lines
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert len(rows) == 3 * 10 + 5 == probing.count(3, dict.fromkeys(range(8)))
    assert float(rows[2]["shift"]) == pytest.approx(6, abs=1e-3) and rows[0]["shift"] == ""
    assert "exists" in command(clips, "--out", out, status=2).stderr


def test_the_command_on_what_cannot_be_read(clips, tmp_path, listed):
    (clips / "broken.wav").write_text("not audio")
    out = tmp_path / "rows.jsonl"
    result = command(clips, "--format", "jsonl", "--out", out, status=1)
    assert result.stderr.splitlines()[-1] == "1 of 4 recordings have no score: the rows say why"
    assert "unreadable" in [json.loads(line)["status"] for line in out.read_text().splitlines()]
