"""Recordings through a codec and back, as 16-bit files: what the zero perturbation sounds like."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import jax
import numpy as np

from jaxhack import audio
from jaxhack.inputs import Utterance
from jaxhack.types import Codec

PIECE = 60.0  # s coded at once
OVERLAP = 1.0  # s coded before each later piece and thrown away, so that the codec's state is warm
COLUMNS = ("file", "output", "seconds", "sample_rate", "channels", "resampled", "clipped", "status", "reason")


def round_trip(codec: Codec) -> Callable[[np.ndarray], np.ndarray]:
    """``wav [T] -> [T]``: decoded, its measured delay taken off, not clipped; any length in bounded memory."""
    run = jax.jit(lambda params, wav: codec.decode(params, codec.encode(params, wav)))
    piece = math.ceil(PIECE * codec.sample_rate / codec.hop) * codec.hop
    overlap = math.ceil(OVERLAP * codec.sample_rate / codec.hop) * codec.hop

    def apply(wav: np.ndarray) -> np.ndarray:
        out = []
        for start in range(0, len(wav), piece):
            first, end = max(0, start - overlap), min(len(wav), start + piece)
            heard = wav[first : end + codec.delay]
            length = audio.bucket_length(end - first + codec.delay, codec.sample_rate)
            decoded = np.asarray(run(codec.params, audio.pad(heard, length)))
            out.append(decoded[codec.delay + start - first : codec.delay + end - first])
        return np.concatenate(out)

    return apply


def reconstruct_files(codec: Codec, utterances: Sequence[Utterance], out: Path) -> Iterator[dict[str, Any]]:
    """Writes each recording's round trip below `out`, at the codec's rate and exactly as long as the input.

    Yields:
      One row a recording, in input order, with :data:`COLUMNS`; `status` as in :mod:`jaxhack.scoring`.
    """
    apply = round_trip(codec)
    for utterance, name in zip(utterances, output_names(utterances), strict=True):
        row: dict[str, Any] = {"file": utterance.id, "status": "ok", "reason": ""}
        try:
            clip = audio.read(utterance.path, sample_rate=codec.sample_rate)
            row.update(seconds=round(clip.seconds, 6), sample_rate=clip.sample_rate, channels=clip.channels)
            row["resampled"] = clip.resampled
            if len(clip.wav) > PIECE * codec.sample_rate:
                row["reason"] = f"coded in pieces of {PIECE:g} s with {OVERLAP:g} s of overlap"
            wav = apply(clip.wav)
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            row["clipped"] = audio.write(out / name, wav, codec.sample_rate)
            row["output"] = name
        except audio.AudioError as error:
            row.update(status="unreadable" if "seconds" not in row else "failed", reason=str(error))
        except OSError as error:
            row.update(status="failed", reason=f"{name!r} cannot be written: {error.strerror}.")
        yield {column: row.get(column) for column in COLUMNS}


def output_names(utterances: Sequence[Utterance]) -> list[str]:
    """Relative names ending in .wav, one for each utterance; never two alike, on any file system."""
    parts = [[part for part in PurePosixPath(u.id).parts if part not in ("/", "..")] or ["_"] for u in utterances]
    whole = ["/".join(p) for p in parts]
    stems = [_stem(name) for name in whole]
    shared = Counter(stem.casefold() for stem in stems)
    taken: set[str] = set()
    names = []
    for name, stem in zip(whole, stems, strict=True):
        base = stem if shared[stem.casefold()] == 1 else name
        chosen, number = f"{base}.wav", 2
        while chosen.casefold() in taken:
            chosen, number = f"{base}-{number}.wav", number + 1
        taken.add(chosen.casefold())
        names.append(chosen)
    return names


def _stem(name: str) -> str:
    suffix = PurePosixPath(name).suffix
    return name.removesuffix(suffix) if suffix.lower() in audio.SUFFIXES else name
