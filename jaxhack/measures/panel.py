"""The panel of independent witnesses: what can be on it by name, and all of them evaluated together."""

import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp

from jaxhack import registry
from jaxhack.detect import Rule
from jaxhack.inputs import several
from jaxhack.measures import models as by_model
from jaxhack.measures.estoi import estoi_measure
from jaxhack.measures.pesq import pesq_measure
from jaxhack.measures.si_sdr import si_sdr_measure
from jaxhack.measures.wer import wer_measure
from jaxhack.settings import DEFAULT_PANEL
from jaxhack.types import Array, Measure

Folder = str | os.PathLike[str] | None


class Files(NamedTuple):
    """Where the models of measures are."""

    models: Folder = None  # a folder of weight files, looked in first
    asr_model: Folder = None  # a folder of a Whisper model; None: PocketSphinx


class Kind(NamedTuple):
    """A measure that has a name."""

    title: str  # as reports write it
    unit: str  # with the space before it
    make: Callable[..., Measure]  # (sample_rate, Files, margin=); a margin left out is the measure's own


def _similarity(rate: int, files: Files, **margin: float) -> Measure:
    return by_model.speaker_similarity(registry.embedder("ge2e", models=files.models), rate, **margin)


def _matched(name: str, rate: int, files: Files, **margin: float) -> Measure:
    if registry.entry(name).kind == "codec":
        encoder = by_model.latent_encoder(registry.codec(name, models=files.models))
    else:
        encoder = registry.encoder(name, models=files.models)
    return by_model.speech_bert_score(encoder, rate, **margin)


def _judge(name: str, rate: int, files: Files, **margin: float) -> Measure:
    made = registry.predictor(name, models=files.models)
    return by_model.no_reference(made.at_rate(rate) if made.at_rate else made, rate, **margin)


MEASURES: dict[str, Kind] = {
    "estoi": Kind("ESTOI", "", lambda rate, files, **margin: estoi_measure(rate, **margin)),
    "si_sdr": Kind("SI-SDR", " dB", lambda rate, files, **margin: si_sdr_measure(**margin)),
    "pesq": Kind("PESQ", " MOS", lambda rate, files, **margin: pesq_measure(rate, **margin)),
    "wer": Kind(
        "WER", "", lambda rate, files, **margin: wer_measure(registry.recogniser(files.asr_model), rate, **margin)
    ),
    "speaker_similarity": Kind("speaker similarity", "", _similarity),
}


def kinds() -> dict[str, Kind]:
    """Every measure that has a name: ours, SpeechBERTScore over each encoder and codec, each predictor as a judge."""
    encoders = [*registry.names("encoder"), *registry.names("codec")]
    matched = {f"speech_bert_score_{e}": Kind(f"SpeechBERTScore ({e})", "", partial(_matched, e)) for e in encoders}
    judges = {name: Kind(name, " MOS", partial(_judge, name)) for name in registry.names("predictor")}
    return {**MEASURES, **matched, **judges}


def make_panel(
    chosen: str | Sequence[str | Measure], sample_rate: int, *, models: Folder = None, asr_model: Folder = None
) -> tuple[Measure, ...]:
    """The measures of a panel.

    Args:
      chosen: names, with a comma between if they are one text, each with a margin after ``=`` or with its own:
        ``"estoi,si_sdr,wer=0.1"``; or measures as they are.
      sample_rate: Hz, of the waveforms that it judges.
      models: a folder of weight files, looked in first.
      asr_model: a folder of a Whisper model in CTranslate2's format, for ``wer``; None is PocketSphinx.

    Raises:
      ValueError: an unknown or repeated name, a margin that is no number ≥ 0, a missing weight file or package,
        or no measure at all.
    """
    known = kinds()
    items = [item.strip() for item in chosen.split(",")] if isinstance(chosen, str) else several(chosen)
    if not any(items):
        raise ValueError("A panel needs at least one measure.")
    makers = [
        (lambda item=item: item)
        if isinstance(item, Measure)
        else _named(item, known, sample_rate, Files(models, asr_model))
        for item in items
    ]
    panel = tuple(make() for make in makers)  # after every name and margin is known to be right
    _check_names(panel)
    return panel


def _named(text: str, known: dict[str, Kind], rate: int, files: Files) -> Callable[[], Measure]:
    name, given, value = (part.strip() for part in text.partition("="))
    if name not in known:
        raise ValueError(registry.unknown("measure", name, known))
    if not given:
        return partial(known[name].make, rate, files)
    try:
        margin = float(value)
    except ValueError:
        margin = math.nan
    if not (math.isfinite(margin) and margin >= 0):
        raise ValueError(f"The margin of {name} must be a finite number ≥ 0, got {value!r}.")
    return partial(known[name].make, rate, files, margin=margin)


def default_panel(sample_rate: int) -> tuple[Measure, ...]:
    """The measures of an audit that asks for no others, for audio at `sample_rate` Hz."""
    return make_panel(DEFAULT_PANEL, sample_rate)


def rules(panel: Sequence[Measure]) -> dict[str, Rule]:
    """Name to rule, as :mod:`jaxhack.detect` takes them."""
    return {measure.name: measure.rule for measure in panel}


def evaluate(panel: Sequence[Measure], reference: Array, estimate: Array, length: Array) -> dict[str, Array]:
    """Every measure of the panel but the host's on a pair: ``reference [T], estimate [T], length [] -> {name: []}``.

    A measure is NaN where it is undefined, so also below its own `min_samples`.

    Raises:
      ValueError: not two waveforms of one length, or two measures share a name.
    """
    if jnp.ndim(reference) != 1 or jnp.shape(reference) != jnp.shape(estimate):
        raise ValueError(
            "evaluate takes two waveforms [T] of one length, "
            f"got {jnp.shape(reference)} and {jnp.shape(estimate)}; vmap over a batch"
        )
    _check_names(panel)
    return {
        m.name: jnp.where(length >= m.min_samples, m.fn(m.params, reference, estimate, length), jnp.nan)
        for m in panel
        if not m.host
    }


def _check_names(panel: Sequence[Measure]) -> None:
    names = [measure.name for measure in panel]
    if len(set(names)) < len(names):
        raise ValueError(f"The measures of a panel need different names, got {', '.join(names)}: name each once.")
