"""Probes before any attack: what changes that hardly matter do to a score, and what score noise and silence get.

A probe is a pure function ``wav [T] -> wav [T']`` at one sample rate. Every recording is scored as it is, once more,
and after each probe; a *shift* is the score after minus the score before.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import soxr
from rich.table import Table

from jaxhack import audio, inputs, reconstruct, registry
from jaxhack.checks import REPEATABLE, known
from jaxhack.report import page
from jaxhack.report.terminal import bare_table
from jaxhack.scoring import score_waveforms
from jaxhack.settings import DEFAULT_CODEC, DEFAULT_PREDICTOR, MAX_SECONDS, Settings
from jaxhack.types import Codec, Predictor

COLUMNS = ("file", "probe", "score", "shift", "seconds", "clipped", "status", "reason")
UNCHANGED, REPEAT = "unchanged", "scored again"
SILENCE = 0.1  # s, added on either side
DEGENERATE_SECONDS = 10.0
LEVEL = 0.1  # of the constant and, as standard deviation, of the noise
FRAME = 0.02  # s, of the frame that is repeated

Row = dict[str, Any]
Probe = Callable[[np.ndarray], np.ndarray]  # wav [T] -> wav [T']


class Probed(NamedTuple):
    """What :func:`probe` found."""

    rows: list[Row]  # with the columns COLUMNS; of a degenerate input `file` is empty
    summary: dict[str, Any]  # see `summarise`


def probe(
    paths: inputs.Paths | None = None,
    *,
    predictor: str | os.PathLike[str] | Callable | Predictor = DEFAULT_PREDICTOR,
    codec: str | Codec = DEFAULT_CODEC,
    models: str | os.PathLike[str] | None = None,
) -> Probed:
    """Probes a predictor; no attacker, no training.

    Args:
      paths: audio files, folders or lists; None is the demo speech that ships with the package. At most the first
        30 s of a recording are used.
      predictor: anything that :func:`jaxhack.predictor` takes, black boxes too.
      codec: of the round trip; one that takes any rate listens at this codec's.
      models: a folder of weight files, looked in first.

    Raises:
      ValueError: no such path, predictor, codec or weights.
    """
    utterances, made, probes = prepare(paths, predictor=predictor, codec=codec, models=models)
    rows = list(run(made, utterances, probes))
    return Probed(rows, summarise(rows, made))


def prepare(
    paths: inputs.Paths | None,
    *,
    predictor: str | os.PathLike[str] | Callable | Predictor,
    codec: str | Codec,
    models: str | os.PathLike[str] | None,
) -> tuple[list[inputs.Utterance], Predictor, dict[str, Probe]]:
    """The recordings, the predictor and the probes that :func:`run` takes; arguments as of :func:`probe`."""
    utterances = inputs.collect(inputs.DEMO if paths is None else paths)
    chain, made = registry.codec(codec, models=models), registry.predictor(predictor, models=models)
    made = made.at_rate(chain.sample_rate) if made.at_rate else made
    return utterances, made, recording_probes(made.sample_rate, chain)


def run(
    predictor: Predictor,
    utterances: Iterable[inputs.Utterance],
    probes: Mapping[str, Probe],
    *,
    batch: int | None = None,
) -> Iterator[Row]:
    """Scores every recording as it is, again, and after each probe, then the degenerate inputs.

    Args:
      predictor: R; recordings are resampled to its rate.
      utterances: what to probe; may be a generator. At most 64 waveforms are held at once.
      probes: by name, as :func:`recording_probes` makes them.
      batch: waveforms in one call of the predictor, as in :func:`jaxhack.score_files`.

    Yields:
      Rows with the columns :data:`COLUMNS`, in order; a recording that cannot be read has one, with the reason.
    """
    rate = predictor.sample_rate
    waiting: deque[Row] = deque()  # rows in order; one without a status waits for its score
    changes = {UNCHANGED: _same, REPEAT: _same, **probes}

    def waveforms() -> Iterator[tuple[str, np.ndarray]]:
        voiced: np.ndarray | None = None
        for utterance in utterances:
            try:
                clip = audio.read(utterance.path, sample_rate=rate, longest=MAX_SECONDS)
            except audio.AudioError as error:
                waiting.append(
                    {"file": utterance.id, "probe": UNCHANGED, "status": "unreadable", "reason": str(error)}
                )
                continue
            voiced = clip.wav if voiced is None and clip.wav.any() else voiced
            for name, change in changes.items():
                yield prepared(utterance.id, name, change(clip.wav))
        for name, wav in degenerate(rate, loudest_frame(voiced, rate) if voiced is not None else None).items():
            yield prepared("", name, wav)

    def prepared(file: str, name: str, wav: np.ndarray) -> tuple[str, np.ndarray]:
        waiting.append({"file": file, "probe": name, "clipped": int(np.sum(np.abs(wav) > 1))})
        return name, np.clip(wav, -1, 1).astype(np.float32)

    reference: float | None = None  # of the recording at hand
    for found in score_waveforms(predictor, waveforms(), batch=batch):
        while "status" in waiting[0]:
            yield _row(waiting.popleft())
        row = waiting.popleft() | {key: found[key] for key in ("score", "seconds", "status", "reason")}
        if row["probe"] == UNCHANGED:
            reference = row["score"]
        elif row["file"] and known(row["score"]) and known(reference):
            row["shift"] = row["score"] - reference
        yield _row(row)
    yield from map(_row, waiting)


def count(recordings: int, probes: Mapping[str, Probe]) -> int:
    """How many rows :func:`run` makes of recordings that can all be read."""
    return recordings * (2 + len(probes)) + len(degenerate(1000, np.zeros(1)))


def recording_probes(sample_rate: int, codec: Codec) -> dict[str, Probe]:
    """Changes to a recording that leave its quality as it is, or nearly so, by name.

    Args:
      sample_rate: Hz, of the waveforms.
      codec: of the round trip; resampled where its rate differs.
    """
    return {
        "gain +6 dB": lambda wav: wav * 10 ** (6 / 20),
        "gain -6 dB": lambda wav: wav * 10 ** (-6 / 20),
        "polarity": np.negative,
        "silence around": lambda wav: np.pad(wav, round(SILENCE * sample_rate)),
        "halves swapped": lambda wav: np.roll(wav, len(wav) // 2),
        f"via {3 * sample_rate / 1000:g} kHz": lambda wav: _through(wav, sample_rate, 3 * sample_rate, _same),
        "16 bit": lambda wav: audio.pcm16(wav) / np.float32(32768),
        f"codec {codec.name}": _round_trip(codec, sample_rate),
    }


def degenerate(sample_rate: int, frame: np.ndarray | None) -> dict[str, np.ndarray]:
    """Inputs that are no speech, 10 s each: ``[T] float32`` by name; `frame` ``[n]`` is the one that is repeated."""
    size = round(DEGENERATE_SECONDS * sample_rate)
    click = np.zeros(size, np.float32)
    click[size // 2] = 1.0
    made = {
        "zeros": np.zeros(size, np.float32),
        f"constant {LEVEL:g}": np.full(size, LEVEL, np.float32),
        "one click": click,
        "white noise": (LEVEL * np.random.default_rng(0).standard_normal(size)).astype(np.float32),
    }
    return made if frame is None else made | {f"one {1000 * FRAME:g} ms frame repeated": np.resize(frame, size)}


def loudest_frame(wav: np.ndarray, sample_rate: int) -> np.ndarray:
    """The 20 ms of ``wav [T]`` with the most energy ``[n]``; a shorter recording as it is."""
    size = round(FRAME * sample_rate)
    frames = wav[: max(len(wav) // size, 1) * size]
    frames = frames.reshape(-1, min(size, len(wav)))
    return frames[np.argmax(np.sum(np.square(frames), axis=1))]


def summarise(rows: Sequence[Mapping[str, Any]], predictor: Predictor) -> dict[str, Any]:
    """What the rows of :func:`run` say.

    Returns:
      ``predictor``; ``recordings`` and ``scored``, how many there are and how many have a score; ``median``, of the
      scores of recordings as they are; ``repeat_sd``, standard deviation of the score of the same audio;
      ``probes``: ``probe, n, mean, sd, largest, file, clipped`` (largest in size, and where; recordings that left
      ±1); ``degenerate``: ``input, score, status, reason``; ``warnings``, sentences. Undefined numbers are None.
    """
    recordings = [row for row in rows if row["file"]]
    plain = [row["score"] for row in recordings if row["probe"] == UNCHANGED and known(row["score"])]
    again = np.array([r["shift"] for r in recordings if r["probe"] == REPEAT and known(r["shift"])])
    names = dict.fromkeys(row["probe"] for row in recordings)
    made: dict[str, Any] = {
        "predictor": predictor.name,
        "recordings": sum(row["probe"] == UNCHANGED for row in recordings),
        "scored": len(plain),
        "median": float(np.median(plain)) if plain else None,
        "repeat_sd": float(np.sqrt(np.mean(np.square(again)) / 2)) if len(again) else None,
        "probes": [
            _shifts(name, [row for row in recordings if row["probe"] == name])
            for name in names
            if name not in (UNCHANGED, REPEAT)
        ],
        "degenerate": [
            {"input": row["probe"], "score": row["score"], "status": row["status"], "reason": row["reason"]}
            for row in rows
            if not row["file"]
        ],
    }
    return made | {"warnings": list(_warnings(made))}


def tables(summary: Mapping[str, Any]) -> list[Table]:
    """The shifts and the degenerate inputs for a terminal of 80 columns; `summary` as of :func:`summarise`."""
    many, median = summary["scored"], page.number(summary["median"], ".2f")
    again = page.number(summary["repeat_sd"], ".4f")
    clipped = [f"{p['clipped']} at {p['probe']}" for p in summary["probes"] if p["clipped"]]
    shifts = _table(
        f"shift of {summary['predictor']}: score after the change minus score before, on {many} recordings (median "
        f"score {median}). Scored again, the same audio differs by {again} (sd)."
        + (f" Recordings cut at ±1: {', '.join(clipped)}." if clipped else ""),
        ("change", "mean shift", "sd", "largest", "n"),
    )
    for p in summary["probes"]:
        numbers = [page.number(p[key], form) for key, form in (("mean", "+.3f"), ("sd", ".3f"), ("largest", "+.3f"))]
        shifts.add_row(p["probe"], *numbers, str(p["n"]))
    others = _table(
        "10 s each; what scores above the median recording is marked.", ("input that is no speech", "score", "", "")
    )
    for d in summary["degenerate"]:
        above = known(d["score"]) and known(summary["median"]) and d["score"] > summary["median"]
        others.add_row(d["input"], page.number(d["score"], ".2f"), "above" if above else "", d["reason"])
    return [shifts, others]


def _table(caption: str, heads: Sequence[str]) -> Table:
    made = bare_table(caption)
    made.add_column(heads[0], min_width=26)
    for head in heads[1:]:
        made.add_column(head, justify="right" if head else "left", no_wrap=bool(head))
    return made


def _shifts(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = [row for row in rows if known(row["shift"])]
    shifts = np.array([row["shift"] for row in found])
    largest = max(found, key=lambda row: abs(row["shift"]), default={"shift": None, "file": None})
    return {
        "probe": name,
        "n": len(found),
        "mean": float(shifts.mean()) if len(found) else None,
        "sd": float(shifts.std(ddof=1)) if len(found) > 1 else None,
        "largest": largest["shift"],
        "file": largest["file"],
        "clipped": sum(bool(row["clipped"]) for row in rows),
    }


def _warnings(summary: Mapping[str, Any]) -> Iterator[str]:
    noise, median = summary["repeat_sd"], summary["median"]
    if known(noise) and noise > REPEATABLE:
        yield (
            f"{summary['predictor']} does not give the same audio the same score (sd {noise:.2g}): smaller shifts "
            "and gains are its noise."
        )
    if known(median):
        above = [d for d in summary["degenerate"] if known(d["score"]) and d["score"] > median]
        if above:
            named = ", ".join(f"{d['input']} {d['score']:.2f}" for d in above)
            yield (
                f"What is no speech scores above the median of the recordings ({median:.2f}): {named}. An optimiser "
                "can be paid for it."
            )
    tau = Settings.tau
    moved = [p for p in summary["probes"] if known(p["mean"]) and abs(p["mean"]) > tau]
    if moved:
        named = ", ".join(f"{p['probe']} {p['mean']:+.2f}" for p in moved)
        yield f"Changes that leave the speech much as it is move the score by more than {tau:g} on average: {named}."


def _row(row: Mapping[str, Any]) -> Row:
    return {name: row.get(name) for name in COLUMNS}


def _same(wav: np.ndarray) -> np.ndarray:
    return wav


def _through(wav: np.ndarray, rate: int, other: int, change: Probe) -> np.ndarray:
    """A change made at another rate: ``[T] -> [T]``."""
    if other == rate:
        return change(wav)
    back = soxr.resample(change(soxr.resample(wav, rate, other, audio.QUALITY)), other, rate, audio.QUALITY)
    return np.pad(back, (0, max(0, len(wav) - len(back))))[: len(wav)]


def _round_trip(codec: Codec, rate: int) -> Probe:
    trip = reconstruct.round_trip(codec)
    return lambda wav: _through(wav, rate, codec.sample_rate, trip)
