"""Makes the demo speech that ships in ``jaxhack/demo``: five synthetic voices, each clean, noisy and coded.

    python -m experiments.make_demo_speech.run

Needs the programs flite and festival, the latter with its voice ked; the same versions give the same files.
"""

import argparse
import csv
import io
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile

import jaxhack
from jaxhack import audio

RATE = 16_000  # Hz
LEVEL = -26.0  # dBFS, root mean square of a whole clip
PEAK = 0.9  # what no sample may reach
SECONDS = (3.0, 5.0)
SIZE = 1_000_000  # bytes, all clips together
SEED = 26
INSTALL = "on Debian, apt install flite festival festvox-kdlpc16k"
COLUMNS = ("file", "speaker", "quality", "transcript")


class Voice(NamedTuple):
    """A speaker: what is said, and what is done to it."""

    program: str  # that has the voice
    clean: str  # three sentences, one a quality
    noisy: str
    coded: str
    noise: str  # "pink", "babble" (the other four voices) or "hum"
    snr: float  # dB, over the whole clip
    bit_rate: int  # bit/s of Opus before its Ogg pages: narrowband at 6 000, wideband at 9 000


VOICES = {
    "slt": Voice(
        "flite",
        "The ferry to the island leaves at a quarter past seven.",
        "We picked a basket of ripe plums behind the old garden wall.",
        "Could you bring two blue chairs over to the kitchen table?",
        *("pink", 12.0, 6_000),
    ),
    "rms": Voice(
        "flite",
        "Heavy clouds rolled over the valley just before noon.",
        "My brother fixed the bicycle with a piece of thick rope.",
        "She chose the yellow jacket because the weather was cold.",
        *("babble", 10.0, 9_000),
    ),
    "awb": Voice(
        "flite",
        "A small brown fox was watching us from the other side of the river.",
        "Please measure the flour twice before you add the warm milk.",
        "The museum opens later on Thursdays during the winter months.",
        *("hum", 10.0, 6_000),
    ),
    "kal16": Voice(
        "flite",
        "Fresh bread, a little cheese and hot soup are all we need this evening.",
        "The young engineer drew the plan of a bridge on the back of an old letter.",
        "Their train was late, so they shared a pot of ginger tea.",
        *("pink", 15.0, 9_000),
    ),
    "ked": Voice(
        "festival",
        "Nobody noticed the quiet boy reading under the stairs.",
        "The choir will sing three short songs at the village hall.",
        "Most of the ships in the bay had lost their white paint.",
        *("babble", 15.0, 6_000),
    ),
}


def speak(voice: str, text: str) -> np.ndarray:
    """What a voice says, ``[T]`` at 16 kHz and the common level."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "speech.wav"
        if VOICES[voice].program == "flite":
            command = ["flite", "-voice", voice, "-t", text, "-o", str(file)]
        else:
            save = f"(utt.save.wave (SynthText {json.dumps(text)}) {json.dumps(str(file))} 'riff)"
            command = ["festival", "-b", f"(voice_{voice}_diphone)", save]
        subprocess.run(command, check=True, capture_output=True)
        return levelled(audio.read(file, stated_rate=RATE).wav)


def check_programs() -> None:
    """Refuses to begin without every voice, since flite speaks with another one rather than fail."""
    for program in sorted({voice.program for voice in VOICES.values()}):
        if not shutil.which(program):
            raise ValueError(f"The program {program!r} is not installed: {INSTALL}.")
    listed = subprocess.run(["flite", "-lv"], check=True, capture_output=True, text=True).stdout.split()
    for name, voice in VOICES.items():
        if voice.program == "flite":
            there = name in listed
        else:
            there = not subprocess.run(["festival", "-b", f"(voice_{name}_diphone)"], capture_output=True).returncode
        if not there:
            raise ValueError(f"{voice.program} has no voice {name!r}: {INSTALL}.")


def levelled(wav: np.ndarray) -> np.ndarray:
    """The same at the common level."""
    return wav * np.float32(10 ** (LEVEL / 20) / np.sqrt(np.mean(np.square(wav, dtype=np.float64))))


def noise(voice: str, length: int, rng: np.random.Generator) -> np.ndarray:
    """The noise of a voice's noisy clip, ``[length]`` at the common level."""
    kind = VOICES[voice].noise
    if kind == "babble":
        others = [np.resize(speak(name, other.clean), length) for name, other in VOICES.items() if name != voice]
        wav = np.sum([np.roll(other, rng.integers(length)) for other in others], axis=0)
    elif kind == "hum":
        seconds = np.arange(length) / RATE
        phases = rng.uniform(0, 2 * np.pi, 12)
        tones = [np.sin(2 * np.pi * 50 * k * seconds + phase) / k for k, phase in enumerate(phases, 1)]
        wav = np.sum(tones, axis=0) + 0.1 * rng.standard_normal(length)  # the hiss that comes with it
    else:
        spectrum = np.fft.rfft(rng.standard_normal(length))
        hertz = np.fft.rfftfreq(length, 1 / RATE)
        wav = np.fft.irfft(spectrum / np.sqrt(np.maximum(hertz, 50.0)), length)
    return levelled(wav.astype(np.float32))


def noisy(voice: str, rng: np.random.Generator) -> np.ndarray:
    """The noisy sentence of a voice."""
    speech = speak(voice, VOICES[voice].noisy)
    return levelled(speech + noise(voice, len(speech), rng) * np.float32(10 ** (-VOICES[voice].snr / 20)))


def coded(voice: str) -> np.ndarray:
    """The coded sentence of a voice: through Opus and back, aligned and as long as before."""
    speech = speak(voice, VOICES[voice].coded)
    share = (VOICES[voice].bit_rate - 6_000) / 250_000  # libsndfile: 0 is 6 kb/s, 1 is 256 kb/s
    file = io.BytesIO()
    soundfile.write(file, speech, RATE, format="OGG", subtype="OPUS", compression_level=1 - share)
    file.seek(0)
    wav, rate = soundfile.read(file, dtype="float32")
    if rate != RATE or len(wav) != len(speech):
        raise ValueError(f"Opus gave {len(wav)} samples at {rate} Hz for {len(speech)} at {RATE} Hz.")
    return levelled(wav)


def make(out: Path) -> None:
    """Writes the clips and their ``manifest.csv`` into a folder.

    Raises:
      ValueError: a program or voice that is missing, or a clip or a sum of sizes outside the bounds above.
    """
    check_programs()
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, (name, voice) in enumerate(VOICES.items()):
        clips = {
            "clean": speak(name, voice.clean),
            "noisy": noisy(name, np.random.default_rng([SEED, number])),
            "coded": coded(name),
        }
        for quality, wav in clips.items():
            file = f"{name}_{quality}.flac"
            seconds, peak = len(wav) / RATE, float(np.abs(wav).max())
            if not SECONDS[0] <= seconds <= SECONDS[1] or peak >= PEAK:
                raise ValueError(f"{file} lasts {seconds:.2f} s and peaks at {peak:.2f}: change its sentence.")
            audio.write(out / file, wav, RATE)
            rows.append((file, name, quality, getattr(voice, quality)))
    size = sum((out / row[0]).stat().st_size for row in rows)
    if size >= SIZE:
        raise ValueError(f"The clips take {size} bytes, {SIZE} or more: shorten some sentences.")
    with open(out / "manifest.csv", "w", newline="", encoding="utf-8") as manifest:
        csv.writer(manifest, lineterminator="\n").writerows([COLUMNS, *rows])
    print(f"{len(rows)} clips, {size / 1000:.0f} kB, in {out}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(jaxhack.__file__).parent / "demo", help="where the clips go")
    args = parser.parse_args(argv)
    try:
        make(args.out)
    except ValueError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
