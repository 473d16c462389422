"""The test set, batch by batch: one row per utterance × attacker, in parts that an interruption cannot take back."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxhack import audio, detect, rows
from jaxhack.attack import Arm, Judged, Setup, Weights, arms, judge
from jaxhack.inputs import Utterance
from jaxhack.measures.panel import rules
from jaxhack.run import Transcripts
from jaxhack.settings import MAX_SECONDS
from jaxhack.types import Measure, PyTree

BATCH = 4  # utterances attacked at once; the same everywhere, since parts are numbered by it

Observer = Callable[[str, int, int, dict[str, Any]], None]


class Loaded(NamedTuple):
    """A batch in memory, filled up to :data:`BATCH` with empty waveforms, so that one program serves a length."""

    wav: np.ndarray  # [BATCH, T] float32
    length: np.ndarray  # [BATCH] int32, samples
    keys: jax.Array  # [BATCH], by position in the test set: an utterance's attack depends on no other
    clips: list[audio.Clip | str]  # what was read, or why it was not


class Attacked(NamedTuple):
    """A batch after the attack."""

    rows: list[dict[str, Any]]  # of each utterance one per arm
    loaded: Loaded
    judged: Judged | None  # None: nothing in it could be read


Keep = Callable[[int, Attacked], None]  # with the batch's number


class Batch(NamedTuple):
    """Utterances of one padded length."""

    members: list[tuple[int, Utterance]]  # position in the test set, utterance
    samples: int  # padded length; 0: nothing in it can be read


def attack_test_set(
    setup: Setup,
    weights: Weights,
    states: PyTree,
    test: Sequence[Utterance],
    folder: Path,
    observe: Observer,
    keep: Keep | None = None,
) -> None:
    """Attacks every test utterance and writes ``rows.parquet`` in input order.

    A batch's rows are written as a part of their own as soon as they are known; parts that are there already are
    kept, and so is ``rows.parquet``. An utterance that cannot be read keeps its rows, empty, with the reason.

    Args:
      setup: what attacks what.
      weights: of all of it.
      states: of the trained attackers.
      test: the utterances.
      folder: the run's.
      observe: called before the first batch and after each.
      keep: called with each batch's signals before its rows are stored, so that what it stores is never missing.
    """
    parts = folder / "parts"
    if (folder / "rows.parquet").exists():
        rows.drop_parts(parts)
        return
    run = jax.jit(partial(judge, setup, signals_too=keep is not None))
    transcripts = Transcripts(folder / "transcripts.jsonl")
    done, todo = 0, list(batches(test, setup.sample_rate))
    observe("attack", 0, len(test), {})
    for number, batch in enumerate(todo):
        if not rows.has_part(parts, number, [utterance.id for _, utterance in batch.members]):
            made = _judge_batch(setup, partial(run, weights, states), transcripts, test_key(setup), batch)
            if keep:
                keep(number, made)
            rows.write_part(parts, number, made.rows)
        done += len(batch.members)
        observe("attack", done, len(test), {})
    found = rows.merge(parts, len(todo))
    order = {u.id: i for i, u in enumerate(test)}
    rows.write(folder / "rows.parquet", sorted(found, key=lambda row: order[row["utterance"]]))
    rows.drop_parts(parts)


def load(batch: Batch, rate: int, key: jax.Array) -> Loaded:
    """Reads a batch at `rate` Hz; `key` is the run's."""
    wav, length = np.zeros((BATCH, batch.samples), np.float32), np.zeros(BATCH, np.int32)
    clips: list[audio.Clip | str] = []
    for i, (_, utterance) in enumerate(batch.members):
        try:
            clip = audio.read(utterance.path, sample_rate=rate, longest=MAX_SECONDS)
        except audio.AudioError as error:
            clips.append(str(error))
            continue
        clips.append(clip)
        length[i] = min(len(clip.wav), batch.samples)
        wav[i, : length[i]] = clip.wav[: length[i]]
    positions = [i for i, _ in batch.members] + [0] * (BATCH - len(batch.members))
    return Loaded(wav, length, jax.vmap(partial(jax.random.fold_in, key))(jnp.asarray(positions)), clips)


def test_key(setup: Setup) -> jax.Array:
    """The key that attacks on the test set draw from."""
    return jax.random.fold_in(jax.random.key(setup.settings.seed), 0x7E57)


def batches(test: Sequence[Utterance], rate: int) -> Iterator[Batch]:
    """Groups utterances by padded length; those whose header cannot be read form batches of length 0."""
    groups: dict[int, list[tuple[int, Utterance]]] = {}
    for i, utterance in enumerate(test):
        try:
            seconds = min(audio.probe(utterance.path).seconds, MAX_SECONDS)
            samples = audio.bucket_length(math.ceil(seconds * rate), rate, math.ceil(MAX_SECONDS * rate))
        except audio.AudioError:
            samples = 0
        groups.setdefault(samples, []).append((i, utterance))
    for samples, members in sorted(groups.items()):
        for start in range(0, len(members), BATCH):
            yield Batch(members[start : start + BATCH], samples)


class Heard(NamedTuple):
    """What the measures of the host say of one utterance's A + 1 signals."""

    values: dict[str, np.ndarray]  # measure -> [A + 1], NaN where it is undefined
    reasons: dict[int, str]  # signal -> why one is


def _judge_batch(
    setup: Setup, run: Callable[..., Judged], transcripts: Transcripts, key: jax.Array, batch: Batch
) -> Attacked:
    """Reads, attacks and judges one batch."""
    loaded = load(batch, setup.sample_rate, key)
    judged = None
    if loaded.length.any():
        judged = jax.tree.map(np.asarray, run(loaded.wav, loaded.length, loaded.keys))
    made, every, space = [], arms(setup), setup.space(setup.untrained()).name
    for b, ((_, utterance), clip) in enumerate(zip(batch.members, loaded.clips, strict=True)):
        length, heard = loaded.length[b], None
        if judged is not None and not isinstance(clip, str):
            saved = () if judged.saved is None else judged.saved[:, b, :length]
            heard = on_host(setup.panel, loaded.wav[b, :length], saved, transcripts)
        for a, arm in enumerate(every):
            measured, reason = {}, ""
            if judged is not None and heard is not None:
                measured, reason = _measured(judged, heard, a, b), _why(heard, a)
            made.append(_row(setup, space, utterance, arm, clip, measured, reason))
    return Attacked(made, loaded, judged)


def on_host(
    panel: Sequence[Measure], wav: np.ndarray, saved: Sequence[np.ndarray], transcripts: Transcripts
) -> Heard:
    """The measures of the host on x ``wav [T]``, as it would be saved, and signals ``[T]``, unpadded.

    Whatever goes wrong in one costs that value alone: it is NaN, and the reason is kept.
    """
    reference = audio.pcm16(wav) / np.float32(32768)
    values: dict[str, np.ndarray] = {m.name: np.full(len(saved), np.nan) for m in panel if m.host}
    reasons: dict[int, list[str]] = {}
    for measure in panel:
        if not measure.host or len(wav) < measure.min_samples or not wav.any():
            continue
        for i, estimate in enumerate(saved):
            try:
                value = measure.fn(transcripts, reference, estimate, len(wav))
                values[measure.name][i] = value
            except Exception as error:  # of a package that is not ours
                kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
                reasons.setdefault(i, []).append(f"{measure.name}: {kind}{' '.join(str(error).split())}")
    return Heard(values, {i: "; ".join(said) for i, said in reasons.items()})


def _why(heard: Heard, arm: int) -> str:
    """Why a measure of the host is undefined in an arm's row: on x̂, or on y."""
    return "; ".join(dict.fromkeys(heard.reasons[i] for i in (0, arm + 1) if i in heard.reasons))


def _row(
    setup: Setup,
    space: str,
    utterance: Utterance,
    arm: Arm,
    clip: audio.Clip | str,
    measured: dict[str, Any],
    reason: str,
) -> dict[str, Any]:
    """One utterance × attacker: who and what, the figures, the verdicts, and what there is to say about it."""
    row = {
        "utterance": utterance.id,
        "predictor": setup.predictor.name,
        "space": space,
        "epsilon": setup.settings.epsilon,
        "attacker": arm.attacker,
        "seed": arm.seed,
        "baseline": arm.baseline,
        "queries": arm.queries.scores,
        "gradients": arm.queries.gradients,
    }
    if isinstance(clip, str):
        undecided = {"verdict": detect.UNDETERMINED, "verdict_naive": detect.UNDETERMINED}
        return row | undecided | {"status": "unreadable", "reason": clip}
    attacked = min(clip.seconds, MAX_SECONDS)
    row |= measured | {"seconds": attacked, "source_rate": clip.source_rate, "resampled": clip.resampled}
    panel = rules(setup.panel)
    row |= detect.verdicts(row, panel, setup.settings.tau) | detect.vote_columns(row, panel)
    return row | _status(setup, row, clip, reason)


def _measured(judged: Judged, heard: Heard, arm: int, b: int) -> dict[str, Any]:
    """The figures of arm `arm` (signal ``arm + 1``) on utterance `b` of a batch."""
    reference, attacked = (0, b), (arm + 1, b)
    score_input, score_reference, score_attacked = (
        float(x) for x in (judged.score_input[b], judged.scores[reference], judged.scores[attacked])
    )
    return {
        "score_input": score_input,
        "score_reference": score_reference,
        "score_attacked": score_attacked,
        "score_attacked_unrounded": float(judged.scores_unrounded[attacked]),
        "score_repeat": float(judged.score_repeat[b]),
        "slope": None if judged.slope is None else float(judged.slope[b]),
        "gain": score_attacked - score_reference,
        "gain_naive": score_attacked - score_input,
        **{f"{name}_reference": float(values[reference]) for name, values in judged.panel.items()},
        **{f"{name}_attacked": float(values[attacked]) for name, values in judged.panel.items()},
        **{f"{name}_reference": float(values[0]) for name, values in heard.values.items()},
        **{f"{name}_attacked": float(values[arm + 1]) for name, values in heard.values.items()},
        "clipped_samples": int(judged.clipped[attacked]),
        "achieved_size": float(judged.sizes[attacked]),
    }


def _status(setup: Setup, row: dict[str, Any], clip: audio.Clip, reason: str) -> dict[str, str]:
    """Why a row's verdict is open, as far as known by `reason`, or which part of a long utterance was attacked."""
    samples = len(clip.wav)
    shortest = max(setup.predictor.min_samples * setup.sample_rate / setup.predictor.sample_rate, 1)
    wanted = {"the score": shortest} | {m.name: m.min_samples for m in setup.panel}
    short = [name for name, low in wanted.items() if samples < low]
    missing = [k for k in ("score_reference", "score_attacked", *_panel_columns(setup)) if not np.isfinite(row[k])]
    if not np.any(clip.wav):
        return {"status": "silent", "reason": "every sample is zero"}
    if short:
        return {"status": "too_short", "reason": f"{samples} samples are too few for {', '.join(short)}"}
    if missing:
        said = f" ({reason})" if reason else ""
        return {"status": "undefined", "reason": f"no finite {', '.join(missing)}{said}"}
    if clip.seconds > MAX_SECONDS:
        return {"status": "ok", "reason": f"the first {MAX_SECONDS:g} of {clip.seconds:.0f} s were attacked"}
    return {"status": "ok", "reason": ""}


def _panel_columns(setup: Setup) -> list[str]:
    return [f"{m.name}_{which}" for m in setup.panel for which in ("reference", "attacked")]
