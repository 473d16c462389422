"""Training speech from Debian packages: fetched, unpacked (never installed), resampled, joined in one file.

Only packages whose licence lets weights trained on them be shipped under CC BY-SA 4.0: CC BY, CC BY-SA or BSD-like.
"""

import argparse
import json
import shutil
import subprocess
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soxr

RATE = 16000
SPEEDS = (0.85, 0.92, 1.0, 1.08, 1.17)  # pitch moves too: other speakers, roughly
LONGEST = 120.0  # s


class Source(NamedTuple):
    package: str
    files: str  # below the unpacked package
    licence: str
    voices: str


_ASTERISK = "usr/share/asterisk/sounds/**/*.g722"
SOURCES = (
    Source("asterisk-core-sounds-en-g722", _ASTERISK, "CC-BY-SA-3.0", "Allison Smith, English"),
    Source("asterisk-core-sounds-es-g722", _ASTERISK, "CC-BY-SA-3.0", "Allison Smith, Spanish"),
    Source("asterisk-core-sounds-fr-g722", _ASTERISK, "CC-BY-SA-3.0", "June Wallack, French"),
    Source("asterisk-core-sounds-it-g722", _ASTERISK, "CC-BY-3.0", "Carlo Flora's studio, Italian"),
    Source("asterisk-core-sounds-ru-g722", _ASTERISK, "CC-BY-3.0", "Maxim Topal's studio, Russian"),
    Source("festvox-ru", "usr/share/festival/voices/**/*.wav", "BSD-like", "Nickolay Shmyrev's voice, Russian"),
    Source("gcin-voice", "usr/share/gcin-voice/ogg/**/5.ogg", "CC-BY-3.0", "Chu Lo, Mandarin syllables"),
    Source(
        "unknown-horizons",
        "usr/share/unknown-horizons/content/audio/voice/**/*.ogg",
        "CC-BY-SA-3.0",
        "narrators of the game, English, French, German",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="Folder for packages and prepared speech.")
    prepare(parser.parse_args().work)


def prepare(work: Path) -> None:
    """Writes ``speech.npy`` (int16, 16 kHz, one clip after the other) and ``clips.json`` (where each begins)."""
    if (work / "clips.json").exists():
        return
    audio, starts, seconds = [], [0], {}
    for source in SOURCES:
        folder = _unpacked(source.package, work / "packages")
        for path in sorted(folder.glob(source.files)):
            for wav in _versions(_read(path)):
                audio.append(np.round(wav * 32767).astype(np.int16))
                starts.append(starts[-1] + len(wav))
        seconds[source.package] = round((starts[-1] - starts[0]) / RATE / len(SPEEDS) - sum(seconds.values()))
        print(f"{source.package}: {seconds[source.package]} s of {source.voices}, {source.licence}", flush=True)
    np.save(work / "speech.npy", np.concatenate(audio))
    (work / "clips.part").write_text(json.dumps({"starts": starts, "seconds": seconds}))
    (work / "clips.part").rename(work / "clips.json")  # last and in one move: it says that all is there


def _unpacked(package: str, folder: Path) -> Path:
    target = folder / package
    if not target.exists():
        if not shutil.which("apt-get"):
            raise SystemExit("The training speech comes from Debian packages: run this where apt-get is.")
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.glob(f"{package}_*.deb"):
            stale.unlink()
        done = subprocess.run(["apt-get", "download", "-qq", package], cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{package} could not be fetched: {' '.join(done.stderr.split())}")
        (archive,) = folder.glob(f"{package}_*.deb")
        subprocess.run(["dpkg-deb", "-x", archive.name, f"{package}.part"], cwd=folder, check=True)
        (folder / f"{package}.part").rename(target)
        archive.unlink()
    return target


def _read(path: Path) -> np.ndarray:
    """Mono at 16 kHz, peak at most 1."""
    if path.suffix == ".g722":
        import av

        with av.open(str(path), format="g722") as container:
            parts = [frame.to_ndarray()[0] for frame in container.decode(audio=0)]
        wav, rate = np.concatenate([np.zeros(0, np.int16), *parts]).astype(np.float32) / 32768, RATE
    else:
        import soundfile

        wav, rate = soundfile.read(path, dtype="float32", always_2d=True)
        wav = wav.mean(axis=1)
    wav = soxr.resample(wav[: int(LONGEST * rate)], rate, RATE)
    return wav / max(1.0, np.abs(wav).max(initial=0.0))


def _versions(wav: np.ndarray) -> Iterator[np.ndarray]:
    """The recording at every speed, peak at most 1; none of one that is silent or a fragment."""
    if len(wav) < RATE // 5 or not wav.any():
        return
    for speed in SPEEDS:
        ratio = Fraction(speed).limit_denominator(100)
        other = soxr.resample(wav, RATE * ratio.numerator, RATE * ratio.denominator)
        yield other / max(1.0, np.abs(other).max())


class Speech:
    """Prepared speech, and batches of crops drawn from it."""

    def __init__(self, work: Path):
        self.samples = np.load(work / "speech.npy", mmap_mode="r")

    def batch(self, rng: np.random.Generator, size: int, samples: int) -> np.ndarray:
        """Augmented crops ``[size, samples]`` float32: mixtures, noise, filters, gain, pauses."""
        return np.stack([self._augmented(rng, samples) for _ in range(size)])

    def _crop(self, rng: np.random.Generator, samples: int) -> np.ndarray:
        begin = rng.integers(0, len(self.samples) - samples)
        # Most recordings are prompts of one or two seconds: a crop may run on into the next one.
        return self.samples[begin : begin + samples].astype(np.float32) / 32768

    def _augmented(self, rng: np.random.Generator, samples: int) -> np.ndarray:
        wav = self._crop(rng, samples)
        level = np.sqrt(np.mean(np.square(wav))) + 1e-4
        if rng.random() < 0.15:  # another voice below
            wav = wav + 10 ** (-rng.uniform(3, 15) / 20) * self._crop(rng, samples)
        if rng.random() < 0.4:  # coloured noise, 5–40 dB below
            wav = wav + level * 10 ** (-rng.uniform(5, 40) / 20) * _noise(rng, samples)
        if rng.random() < 0.3:  # a gentle tilt, as of another microphone
            tilt = rng.uniform(-0.4, 0.4)
            wav = wav + tilt * np.concatenate([[0.0], wav[:-1]])
        if rng.random() < 0.08:  # digital silence
            begin = rng.integers(0, samples)
            wav[begin : begin + rng.integers(samples // 8, samples // 2)] = 0
        peak = np.abs(wav).max() + 1e-5
        loudness = 10 ** (rng.uniform(-32, -15) / 20) / level if rng.random() < 0.9 else rng.uniform(0.05, 1) / peak
        return (wav * min(loudness, 0.98 / peak)).astype(np.float32)


def _noise(rng: np.random.Generator, samples: int) -> np.ndarray:
    """Noise of RMS 1 whose spectrum falls by 0–9 dB an octave."""
    spectrum = np.fft.rfft(rng.standard_normal(samples))
    spectrum *= np.maximum(np.arange(len(spectrum)), 20.0) ** -rng.uniform(0, 1.5)
    wav = np.fft.irfft(spectrum, samples)
    return wav / np.sqrt(np.mean(np.square(wav)))


if __name__ == "__main__":
    main()
