"""The one list of everything that has a name: name -> how it is made. The only module that knows `ports`.

A port is imported when it is asked for, so that listing names costs nothing.
"""

import difflib
import importlib
import os
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from jaxhack import weights as weight_files
from jaxhack.ensemble import ensemble
from jaxhack.types import Codec, Embedder, Predictor, Weight

BLACK_BOX_RATE = 16000  # Hz, of a black box that was given none


class Entry(NamedTuple):
    """How one named thing is made; licence and origin are in its weights."""

    kind: str  # "predictor", "codec" or "embedder"
    make: str  # "module:factory", called with {file name: path}
    weights: str  # "module:TUPLE of Weight"
    summary: str


ENTRIES: dict[str, Entry] = {
    "nisqa": Entry(
        "predictor",
        "ports.nisqa:nisqa",
        "ports.nisqa:NISQA_WEIGHTS",
        "NISQA v2.0, overall quality and four dimensions",
    ),
    "nisqa-tts": Entry(
        "predictor", "ports.nisqa:nisqa_tts", "ports.nisqa:NISQA_TTS_WEIGHTS", "NISQA-TTS, naturalness of synthesis"
    ),
    "dnsmos": Entry(
        "predictor", "ports.dnsmos:dnsmos", "ports.dnsmos:DNSMOS_WEIGHTS", "DNSMOS P.835, overall, signal, background"
    ),
    "dnsmos-p808": Entry(
        "predictor", "ports.dnsmos:dnsmos_p808", "ports.dnsmos:DNSMOS_P808_WEIGHTS", "DNSMOS P.808, overall quality"
    ),
    "dnsmos-onnx": Entry(
        "predictor",
        "ports.dnsmos_onnx:dnsmos_onnx",
        "ports.dnsmos:DNSMOS_WEIGHTS",
        "dnsmos as a black box, no gradient",
    ),
    "dnsmos-p808-onnx": Entry(
        "predictor",
        "ports.dnsmos_onnx:dnsmos_p808_onnx",
        "ports.dnsmos:DNSMOS_P808_WEIGHTS",
        "dnsmos-p808 as a black box, no gradient",
    ),
    "plcmos": Entry(
        "predictor",
        "ports.plcmos:plcmos",
        "ports.plcmos:PLCMOS_WEIGHTS",
        "PLCMOS v2, packet loss concealment, a black box, no gradient",
    ),
    "distillmos": Entry(
        "predictor",
        "ports.distillmos:distillmos",
        "ports.distillmos:DISTILLMOS_WEIGHTS",
        "DistillMOS, overall quality, small",
    ),
    "utmos": Entry(
        "predictor", "ports.utmos:utmos", "ports.utmos:UTMOS_WEIGHTS", "UTMOS22 strong learner, naturalness"
    ),
    "mini": Entry(
        "codec", "ports.mini:mini", "ports.mini:MINI_WEIGHTS", "our own small codec, weights in the package"
    ),
    "lyra": Entry("codec", "ports.lyra:lyra", "ports.lyra:LYRA_WEIGHTS", "Lyra V2, continuous latent at 50 Hz"),
    "ge2e": Entry(
        "embedder", "ports.ge2e:ge2e", "ports.ge2e:GE2E_WEIGHTS", "Resemblyzer's GE2E speaker encoder, 256 numbers"
    ),
    # Spaces and attackers belong here too, as further kinds.
}


def names(kind: str | None = None) -> list[str]:
    """Names in the list, of one kind or of all."""
    return [name for name, entry in ENTRIES.items() if kind in (None, entry.kind)]


def entry(name: str, kind: str | None = None) -> Entry:
    """The entry of a name.

    Raises:
      ValueError: unknown, or of another kind; says which names are near.
    """
    if name not in ENTRIES:
        raise ValueError(unknown(kind or "model", name, names(kind)))
    found = ENTRIES[name]
    if kind is not None and found.kind != kind:
        raise ValueError(f"{name!r} is {_a(found.kind)}, not {_a(kind)}; known: {', '.join(names(kind))}.")
    return found


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The sentence for an unknown name: the nearest known ones, or all of them."""
    known = list(known)
    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}."
    return f"Unknown {what} {name!r}; {hint}"


def weights_of(name: str) -> tuple[Weight, ...]:
    """The weight files that a name needs."""
    return tuple(_load(entry(name).weights))


def predictor(
    name: str | os.PathLike[str] | Callable | Predictor,
    *,
    models: str | os.PathLike[str] | None = None,
    sample_rate: int | None = None,
) -> Predictor:
    """A speech quality predictor.

    Args:
      name: a name in the list, an ``.onnx`` file, ``package.module:function``, a Python function
        (wav [T], float32) -> score, a predictor, which is returned; or several of the first three as one, by
        ``min(nisqa,dnsmos-p808)`` or ``mean(…)``, see :func:`jaxhack.ensemble.ensemble`.
      models: a folder of weight files, looked in first.
      sample_rate: Hz of the waveforms it will get; None takes the predictor's own (16000 for a black box).

    Raises:
      ValueError: an unknown name, a missing or foreign weight file, or a rate that it does not take.
    """
    if isinstance(name, Predictor):
        made = name
    elif callable(name):
        return _load("ports.blackbox:callable_predictor")(name, sample_rate=sample_rate or BLACK_BOX_RATE)
    else:
        name = os.fspath(name)
        if joined := re.fullmatch(r"(min|mean)\((.+)\)", name):
            members = [predictor(member.strip(), models=models) for member in joined[2].split(",")]
            return at_rate(ensemble(members, joined[1]), sample_rate)
        if name.lower().endswith(".onnx"):
            return _load("ports.blackbox:onnx_predictor")(name, sample_rate=sample_rate or BLACK_BOX_RATE)
        if re.fullmatch(r"[\w.]+:[\w.]+", name):
            return _load("ports.blackbox:callable_predictor")(name, sample_rate=sample_rate or BLACK_BOX_RATE)
        made = _make(name, "predictor", models)
    return at_rate(made, sample_rate)


def codec(name: str | Codec, *, models: str | os.PathLike[str] | None = None) -> Codec:
    """A neural codec by name, or a codec, which is returned; see :func:`predictor`."""
    return name if isinstance(name, Codec) else _make(name, "codec", models)


def embedder(name: str | Embedder, *, models: str | os.PathLike[str] | None = None) -> Embedder:
    """A speaker encoder by name, or an embedder, which is returned; see :func:`predictor`."""
    return name if isinstance(name, Embedder) else _make(name, "embedder", models)


def at_rate(made: Predictor, sample_rate: int | None) -> Predictor:
    """A predictor that takes waveforms of `sample_rate` Hz.

    Raises:
      ValueError: it has one rate, and that is another.
    """
    if sample_rate in (None, made.sample_rate):
        return made
    if made.at_rate is None:
        raise ValueError(f"{made.name} takes {made.sample_rate} Hz only, not {sample_rate} Hz.")
    return made.at_rate(sample_rate)


def _a(noun: str) -> str:
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"


def _make(name: str, kind: str, models: str | os.PathLike[str] | None) -> Any:
    found = entry(name, kind)
    return _load(found.make)(weight_files.locate(name, weights_of(name), models))


def _load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
