"""Recordings that a predictor is fitted on, as 16-bit samples on disk, cut where a step asks."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxhack import audio


class Labelled(NamedTuple):
    """Cuts with what the predictor should say of them."""

    wav: np.ndarray  # [B, T] int16, zero from `length` on
    length: np.ndarray  # [B] int32, samples
    target: np.ndarray  # [B] float32, MOS


class Clips(NamedTuple):
    """Labelled recordings, read back a cut at a time, so that memory does not grow with their number."""

    samples: np.ndarray  # [sum of lengths] int16, memory-mapped
    starts: np.ndarray  # [n + 1], where each begins in `samples`
    target: np.ndarray  # [n] float32, MOS

    def take(self, step: int, *, batch: int, samples: int, seed: int) -> Labelled:
        """A batch of step `step`: recordings and places drawn anew, by (seed, step) alone."""
        rng = np.random.default_rng((seed, step))
        size = len(self.target)
        chosen = rng.choice(size, batch, replace=size < batch)
        wav, length = np.zeros((batch, samples), np.int16), np.zeros(batch, np.int32)
        for row, place, clip in zip(wav, rng.random(batch), chosen, strict=True):
            begin, end = self.starts[clip : clip + 2]
            start = begin + int(place * (max(end - begin - samples, 0) + 1))
            cut = self.samples[start : min(start + samples, end)]
            row[: len(cut)] = cut
        length[:] = np.minimum(np.diff(self.starts)[chosen], samples)
        return Labelled(wav, length, self.target[chosen])

    def waveform(self, i: int) -> np.ndarray:
        """Recording `i` whole: ``[T] float32``."""
        return self.samples[self.starts[i] : self.starts[i + 1]].astype(np.float32) / 32768


def store(wavs: Iterable[tuple[np.ndarray, float]], file: Path) -> Clips:
    """Writes waveforms ``[T] float32`` with their targets (MOS) to `file`.

    Raises:
      ValueError: none at all, an empty waveform, or a target that is not finite.
    """
    starts, targets = [0], []
    with file.open("wb") as out:
        for wav, target in wavs:
            if not len(wav) or not np.isfinite(target):
                raise ValueError(f"A labelled recording has samples and a finite score, got {len(wav)} and {target}.")
            out.write(audio.pcm16(wav).tobytes())
            starts.append(starts[-1] + len(wav))
            targets.append(target)
    if not targets:
        raise ValueError("There is no labelled recording to fit a predictor on.")
    return Clips(np.memmap(file, np.int16, "r"), np.asarray(starts), np.asarray(targets, np.float32))
