"""Scores of recordings: any number of files of any rate and length, one row each, in input order."""

import math
import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxhack import audio, inputs
from jaxhack.inputs import Utterance
from jaxhack.parallel import mapped
from jaxhack.registry import at_rate
from jaxhack.types import Predictor

LONGEST_PIECE = 60.0  # s judged at once where the predictor sets no limit, so that memory is bounded
WINDOW = 64  # recordings that may wait for one that is before them
ACCELERATOR_BATCH = 16  # utterances a device

STATUSES = ("ok", "too_short", "unreadable", "failed")


def score_files(
    predictor: Predictor,
    utterances: str | os.PathLike[str] | Iterable[Utterance],
    *,
    sample_rate: int | None = None,
    batch: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Scores recordings.

    A predictor of any rate judges each file at the file's own; others get it resampled. A file longer than the
    predictor takes (`max_samples`, or 60 s) is scored in equal pieces, averaged by length, and its `reason` says so.
    The score of a file depends neither on its neighbours nor on `batch`.

    Args:
      predictor: R.
      utterances: what to score; may be a generator, or one path, as :func:`jaxhack.inputs.collect` takes it.
      sample_rate: Hz at which all are judged; None: see above.
      batch: utterances in one call of the predictor; None: one a device on a CPU, 16 on an accelerator.

    Yields:
      Rows with the columns of :func:`columns`. `status` is "ok", "too_short" (below `min_samples`), "unreadable" (the
      file) or "failed" (the predictor, or a score that is not finite); scores are None unless it is "ok".

    Raises:
      ValueError: a rate that the predictor does not take.
    """
    scorer = _Scorer(at_rate(predictor, sample_rate), sample_rate, batch)
    if isinstance(utterances, str | os.PathLike):
        utterances = inputs.collect(utterances)
    return scorer.rows(map(scorer.submit, utterances))


def score_waveforms(
    predictor: Predictor, waveforms: Iterable[tuple[str, np.ndarray]], *, batch: int | None = None
) -> Iterator[dict[str, Any]]:
    """Scores waveforms as :func:`score_files` scores recordings, at the predictor's own rate.

    Args:
      predictor: R.
      waveforms: ``(name, wav [T])``, each at `predictor.sample_rate`; may be a generator, which is read as it is
        needed.
      batch: as in :func:`score_files`.

    Yields:
      Rows with the columns of :func:`columns`, the name as `file`.
    """
    scorer = _Scorer(predictor, predictor.sample_rate, batch)
    return scorer.rows(scorer.submit_waveform(name, wav) for name, wav in waveforms)


def columns(predictor: Predictor) -> list[str]:
    """The columns of a row: the score is head 0, further heads keep their names."""
    return ["file", "score", *predictor.head_names[1:], "seconds", "sample_rate", "status", "reason"]


class _Open:
    """A row while its pieces are being scored."""

    def __init__(self, name: str):
        self.row: dict[str, Any] = {"file": name, "status": "ok"}
        self.notes: list[str] = []
        self.scores: list[tuple[int, np.ndarray]] = []  # (samples, heads [H]) of each piece
        self.open = 0  # pieces not yet scored

    def fail(self, status: str, reason: str) -> None:
        """Keeps the first reason."""
        if self.row["status"] == "ok":
            self.row["status"] = status
            self.notes = [reason]

    def finished(self, predictor: Predictor) -> dict[str, Any]:
        values: list[float | None] = [None] * len(predictor.head_names)
        if self.row["status"] == "ok":
            samples, heads = zip(*self.scores, strict=True)
            mean = np.average(np.stack(heads).astype(np.float64), axis=0, weights=samples)
            if np.isfinite(mean[0]):
                values = [float(value) if np.isfinite(value) else None for value in mean]
            else:
                self.fail("failed", f"{predictor.name} gives no finite score.")
        names = ("score", *predictor.head_names[1:])
        self.row.update(zip(names, values, strict=True), reason="; ".join(self.notes))
        return {name: self.row.get(name) for name in columns(predictor)}


class _Piece(NamedTuple):
    owner: _Open
    wav: np.ndarray  # [<= bucket]


class _Scorer:
    """Gathers pieces of one rate and padded length until they fill a batch."""

    def __init__(self, predictor: Predictor, sample_rate: int | None, batch: int | None):
        if batch is not None and batch < 1:
            raise ValueError(f"Expected a batch of at least 1, got {batch}.")
        each = 1 if jax.default_backend() == "cpu" else ACCELERATOR_BATCH
        self.predictor = predictor
        self.fixed_rate = sample_rate or (None if predictor.at_rate else predictor.sample_rate)
        self.batch = batch or each * jax.device_count()
        self.at: dict[int, tuple[Predictor, Callable]] = {}  # rate -> predictor, its compiled heads
        self.pending: dict[tuple[int, int], list[_Piece]] = defaultdict(list)  # (rate, padded length) -> pieces

    def rows(self, items: Iterable["_Open"]) -> Iterator[dict[str, Any]]:
        """The rows of items that are submitted one by one, in their order, as soon as they are known."""
        waiting: deque[_Open] = deque()
        for item in items:
            waiting.append(item)
            if len(waiting) >= WINDOW:
                self.flush()
            while waiting and not waiting[0].open:
                yield waiting.popleft().finished(self.predictor)
        self.flush()
        yield from (item.finished(self.predictor) for item in waiting)

    def submit_waveform(self, name: str, wav: np.ndarray) -> "_Open":
        """Cuts ``wav [T]`` at the predictor's rate into pieces and scores those that fill a batch."""
        item, rate = _Open(name), self.predictor.sample_rate
        item.row.update(seconds=round(len(wav) / rate, 6), sample_rate=rate)
        size = self._piece(item, len(wav), rate)
        self._cut(item, (wav[i : i + size] for i in range(0, len(wav), size)), rate)
        return item

    def submit(self, utterance: Utterance) -> "_Open":
        """Cuts a recording into pieces and scores those that fill a batch."""
        item = _Open(utterance.id)
        try:
            self._read(utterance, item)
        except audio.AudioError as error:
            item.fail("unreadable", str(error))
        except ValueError as error:
            item.fail("failed", str(error))
        return item

    def flush(self) -> None:
        for (rate, length), pieces in self.pending.items():
            self._score(rate, length, pieces)
        self.pending.clear()

    def _read(self, utterance: Utterance, item: _Open) -> None:
        info = audio.probe(utterance.path, stated_rate=_stated_rate(utterance))
        rate = self.fixed_rate or info.source_rate
        item.row.update(seconds=round(info.seconds, 6), sample_rate=rate)
        if info.channels > 1:
            item.notes.append(info.channel_policy)
        if note := audio.resampled_note(info.source_rate, rate):
            item.notes.append(note)
        size = self._piece(item, audio.resampled_length(info.frames, info.source_rate, rate), rate)
        self._cut(item, (wav for wav, _ in audio.blocks(utterance.path, info, sample_rate=rate, size=size)), rate)

    def _piece(self, item: _Open, samples: int, rate: int) -> int:
        """How long the pieces of an item of `samples` are."""
        predictor = self._at(rate)[0]
        count = max(1, math.ceil(samples / (predictor.max_samples or LONGEST_PIECE * rate)))
        size = max(1, math.ceil(samples / count))
        if count > 1:
            item.notes.append(f"scored in {count} pieces of {size / rate:.1f} s, averaged by length")
        return size

    def _cut(self, item: _Open, pieces: Iterable[np.ndarray], rate: int) -> None:
        """Takes an item's pieces."""
        predictor, peak = self._at(rate)[0], 0.0
        for wav in pieces:
            peak = max(peak, float(np.abs(wav).max()))
            # An MP3 may hold a few samples more or fewer than its header says.
            if len(wav) >= predictor.min_samples:
                self._add(item, wav, rate, predictor.max_samples)
        if not item.open and not item.scores:
            seconds = item.row["seconds"]
            item.fail("too_short", f"{seconds:.3f} s; {predictor.name} needs {predictor.min_samples / rate:.3f} s.")
        elif not peak:
            item.notes.append("digital silence")

    def _add(self, item: _Open, wav: np.ndarray, rate: int, longest: int | None) -> None:
        length = audio.bucket_length(len(wav), rate, longest)
        pieces = self.pending[rate, length]
        pieces.append(_Piece(item, wav))
        item.open += 1
        if len(pieces) == self.batch:
            del self.pending[rate, length]
            self._score(rate, length, pieces)

    def _score(self, rate: int, length: int, pieces: list[_Piece]) -> None:
        predictor, heads = self._at(rate)
        # Always a full batch, or every number of left-over pieces would be compiled anew.
        filled = pieces + [pieces[-1]] * (self.batch - len(pieces))
        wavs = np.stack([audio.pad(piece.wav, length) for piece in filled])
        lengths = np.array([len(piece.wav) for piece in filled], np.int32)
        try:
            scores = np.asarray(heads(predictor.params, wavs, lengths))
        except Exception as error:  # a black box may raise anything; one bad input must not take others with it
            if len(pieces) > 1:
                for piece in pieces:
                    self._score(rate, length, [piece])
                return
            pieces[0].owner.fail("failed", f"{predictor.name} failed: {_sentence(error)}")
            pieces[0].owner.open -= 1
            return
        for piece, score in zip(pieces, scores, strict=False):
            piece.owner.scores.append((len(piece.wav), score))
            piece.owner.open -= 1

    def _at(self, rate: int) -> tuple[Predictor, Callable]:
        if rate not in self.at:
            predictor = at_rate(self.predictor, rate)
            self.at[rate] = predictor, _compiled(predictor.heads)
        return self.at[rate]


@lru_cache(maxsize=32)  # jit knows a function by its identity: without this, every run would compile anew
def _compiled(heads: Callable) -> Callable:
    """``(params, wavs [B, T], lengths [B]) -> [B, H]``, compiled once for each T."""

    def batched(params, wavs, lengths):
        return mapped(lambda wav, length: heads(params, wav, length))(wavs, lengths)

    return jax.jit(batched)


def _stated_rate(utterance: Utterance) -> int | None:
    stated = utterance.meta.get("sample_rate", "")
    if not stated:
        return None
    try:
        return int(float(stated))
    except ValueError as error:
        raise audio.AudioError(f"The manifest states a sample rate of {stated!r}, which is no number.") from error


def _sentence(error: Exception) -> str:
    """One line of an error that may hold a whole traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return (lines[-1] if "Traceback" in str(error) else lines[0])[:200]
