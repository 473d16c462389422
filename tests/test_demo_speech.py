"""The demo speech as it ships; making it needs programs that these tests do without."""

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import jaxhack
from experiments.make_demo_speech import run as make_demo_speech
from jaxhack import audio, inputs

DEMO = Path(jaxhack.__file__).parent / "demo"


@pytest.fixture(scope="module")
def utterances():
    return inputs.collect([DEMO / "manifest.csv"])


def test_every_voice_has_every_quality(utterances):
    assert len(utterances) == 15
    assert len({u.speaker for u in utterances}) >= 4
    pairs = Counter((u.speaker, u.meta["quality"]) for u in utterances)
    assert pairs == Counter((s, q) for s in {u.speaker for u in utterances} for q in ("clean", "noisy", "coded"))
    transcripts = [u.meta["transcript"].strip() for u in utterances]
    assert all(transcripts) and len(set(transcripts)) == len(transcripts)


def test_the_manifest_names_what_is_there(utterances):
    assert {u.path for u in utterances} == set(DEMO.glob("*.flac"))
    assert sum(u.path.stat().st_size for u in utterances) < 1_000_000
    assert {u.id: u.speaker for u in inputs.collect([DEMO])} == {u.id: u.speaker for u in utterances}


def test_the_clips_are_sound(utterances):
    for u in utterances:
        clip = audio.read(u.path)
        assert (clip.source_rate, clip.channels, clip.clipped) == (16_000, "mono", 0), u.id
        assert 3 <= clip.seconds <= 5, u.id
        assert np.abs(clip.wav).max() < 0.9, u.id
        assert 20 * np.log10(np.sqrt(np.mean(clip.wav**2))) == pytest.approx(-26, abs=0.1), u.id


def test_the_script_and_the_manifest_agree():
    with open(DEMO / "manifest.csv", newline="", encoding="utf-8") as file:
        shipped = [tuple(row) for row in csv.reader(file)]
    made = [
        (f"{name}_{quality}.flac", name, quality, getattr(voice, quality))
        for name, voice in make_demo_speech.VOICES.items()
        for quality in ("clean", "noisy", "coded")
    ]
    assert shipped == [make_demo_speech.COLUMNS, *made]


def test_a_missing_program_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"^Error: The program 'festival' is not installed: .*\.$"):
        make_demo_speech.main(["--out", str(tmp_path / "demo")])
    assert not (tmp_path / "demo").exists()
