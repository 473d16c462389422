"""The one list of everything that has a name: name -> how it is made. The only module that knows `ports`.

A port is imported when it is asked for, so that listing names costs nothing.
"""

import difflib
import importlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp

from jaxhack import weights as weight_files
from jaxhack.ensemble import REDUCE, ensemble
from jaxhack.types import Codec, Embedder, Encoder, Predictor, Recogniser, Weight

if TYPE_CHECKING:
    from jaxhack import defences

BLACK_BOX_RATE = 16000  # Hz, of a black box that was given none
DEEPEST = 20  # parentheses in each other, of a name
COMPOSED = r"\s*(\w+)\((.*)\)\s*"
FORMS = {  # defences by name, and how they are asked for
    "smoothed": "smoothed(PREDICTOR,waveform=SIGMA) or smoothed(PREDICTOR,CODEC=SIGMA), and draws, percentile, seed",
    "denoised": "denoised(PREDICTOR,CODEC) or denoised(PREDICTOR,CODEC,quantised=true)",
}


class Entry(NamedTuple):
    """How one named thing is made; licence and origin are in its weights."""

    kind: str  # "predictor", "codec", "embedder" or "encoder"
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
    "ssl-mos": Entry(
        "predictor",
        "ports.ssl_mos:ssl_mos",
        "ports.ssl_mos:SSL_MOS_WEIGHTS",
        "SSL-MOS on wav2vec 2.0 base, naturalness",
    ),
    "mini": Entry(
        "codec", "ports.mini:mini", "ports.mini:MINI_WEIGHTS", "our own small codec, weights in the package"
    ),
    "lyra": Entry("codec", "ports.lyra:lyra", "ports.lyra:LYRA_WEIGHTS", "Lyra V2, continuous latent at 50 Hz"),
    "encodec-24khz": Entry(
        "codec",
        "ports.encodec:encodec_24khz",
        "ports.encodec:ENCODEC_24KHZ_WEIGHTS",
        "EnCodec, causal, continuous latent at 75 Hz",
    ),
    "encodec-48khz": Entry(
        "codec",
        "ports.encodec:encodec_48khz",
        "ports.encodec:ENCODEC_48KHZ_WEIGHTS",
        "EnCodec, not causal, continuous latent at 150 Hz",
    ),
    "dac-16khz": Entry(
        "codec", "ports.dac:dac_16khz", "ports.dac:DAC_16KHZ_WEIGHTS", "DAC, continuous latent at 50 Hz"
    ),
    "dac-24khz": Entry(
        "codec", "ports.dac:dac_24khz", "ports.dac:DAC_24KHZ_WEIGHTS", "DAC, continuous latent at 75 Hz"
    ),
    "dac-44khz": Entry(
        "codec", "ports.dac:dac_44khz", "ports.dac:DAC_44KHZ_WEIGHTS", "DAC, continuous latent at 86 Hz"
    ),
    "dac-44khz-16kbps": Entry(
        "codec",
        "ports.dac:dac_44khz_16kbps",
        "ports.dac:DAC_44KHZ_16KBPS_WEIGHTS",
        "DAC, continuous latent at 86 Hz, 128 channels",
    ),
    "mimi": Entry("codec", "ports.mimi:mimi", "ports.mimi:MIMI_WEIGHTS", "Mimi, continuous latent at 12.5 Hz"),
    "ge2e": Entry(
        "embedder", "ports.ge2e:ge2e", "ports.ge2e:GE2E_WEIGHTS", "Resemblyzer's GE2E speaker encoder, 256 numbers"
    ),
    "distillmos-frames": Entry(
        "encoder",
        "ports.distillmos:distillmos_frames",
        "ports.distillmos:DISTILLMOS_WEIGHTS",
        "the frames that DistillMOS pools, 200 numbers each 20 ms",
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


def distinct(what: str, names: Sequence[str]) -> None:
    """Refuses names of things of one kind, `what`, of which two are equal."""
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"Two {what}s are called {min(twice)!r}: nothing would tell their results apart.")


def weights_of(name: str) -> tuple[Weight, ...]:
    """The weight files that a name needs."""
    return tuple(_load(entry(name).weights))


Named = str | os.PathLike[str] | Callable | Predictor  # what leads to a predictor


def predictor(
    name: Named,
    *,
    models: str | os.PathLike[str] | None = None,
    sample_rate: int | None = None,
    dtype: Any = None,
) -> Predictor:
    """A speech quality predictor.

    Args:
      name: a name in the list, an ``.onnx`` file, ``package.module:function``, a Python function
        (wav [T], float32) -> score, the folder of a patched predictor, a predictor, which is returned; or made of
        what has a name, one in another: ``min(nisqa,dnsmos-p808)`` and ``mean(…)``, see
        :func:`jaxhack.ensemble.ensemble`; ``smoothed(nisqa,waveform=0.01,draws=31)`` or ``smoothed(nisqa,lyra=0.5)``,
        with `percentile` and `seed` too, and ``denoised(nisqa,lyra)``, with ``quantised=true``, see
        :mod:`jaxhack.defences`.
      models: a folder of weight files, looked in first.
      sample_rate: Hz of the waveforms it will get; None takes the predictor's own (16000 for a black box).
      dtype: of the products' factors of a port in Flax, ``jnp.bfloat16``; sums stay float32. None: float32. How far
        it moves the scores, the port's own documentation says.

    Raises:
      ValueError: an unknown name, a missing or foreign weight file, a rate that it does not take, or a dtype for
        what is no port in Flax.
    """
    if isinstance(name, Predictor):
        return at_rate(_as_made(name, dtype), sample_rate)
    name = name if callable(name) else os.fspath(name)
    if made := None if callable(name) else re.fullmatch(COMPOSED, name):
        return at_rate(_composed(made[1], _parts(str(name), made[2]), models, dtype), sample_rate)
    if not callable(name) and name not in ENTRIES and os.path.isdir(name):
        return at_rate(_patched(Path(name), models, dtype), sample_rate)
    black_box = _black_box(name)
    if black_box is None:
        return at_rate(_make(str(name), "predictor", models, dtype), sample_rate)
    if dtype is not None:
        raise ValueError(_no_dtype(getattr(name, "__name__", name)))
    return _load(black_box)(name, sample_rate=sample_rate or BLACK_BOX_RATE)


def places(*named: Any) -> list[Path]:
    """The files and folders that names of predictors lead to, as :func:`predictor` takes them; of anything else none.

    Of ``min(runs/a/patched,nisqa)`` that is ``runs/a/patched``: whoever loads it needs that folder.
    """
    texts = [os.fspath(name) for name in named if isinstance(name, str | os.PathLike)]
    leaves = [leaf for text in texts for leaf in _leaves(text)]
    return [Path(leaf) for leaf in leaves if leaf not in ENTRIES and os.path.lexists(leaf)]


def _patched(folder: Path, models: str | os.PathLike[str] | None, dtype: Any) -> Predictor:
    """The patched predictor in a folder."""
    from jaxhack.patch import patched

    if not (folder / patched.RECORD).exists():
        raise ValueError(f"{str(folder)!r} is a folder without a patched predictor ({patched.RECORD}).")
    parent = patched.read(folder)["parent"]
    if word := _unlisted(parent):
        raise ValueError(f"{folder} says what it was patched from: {unknown('predictor', word, names('predictor'))}")
    return patched.load(folder, predictor(parent, models=models, dtype=dtype))


def listed(name: str) -> bool:
    """Whether a predictor's name is of the list, or made of such: it then runs no code and reads no file."""
    return bool(name) and not _unlisted(name)


def _unlisted(name: str) -> str:
    """The first predictor that a name is made of and that is not of the list, or empty."""
    return next((leaf for leaf in _leaves(name) if leaf not in ENTRIES), "")


def _leaves(name: str) -> Iterator[str]:
    """The predictors that a name is made of, as written: ``min(a,smoothed(b,lyra=0.5))`` of a and b."""
    made = re.fullmatch(COMPOSED, name)
    if not made:
        yield name
        return
    parts = _parts(name, made[2])
    for part in parts if made[1] in REDUCE else parts[:1]:
        yield from _leaves(part)


def smoothing(
    name: str, *, models: str | os.PathLike[str] | None = None, dtype: Any = None
) -> "defences.Smoothing | None":
    """What a predictor named ``smoothed(…)`` is made of, None of any other name; errors as :func:`predictor`."""
    made = re.fullmatch(COMPOSED, name)
    return _smoothing(_parts(name, made[2]), models, dtype) if made and made[1] == "smoothed" else None


def codec(name: str | Codec, *, models: str | os.PathLike[str] | None = None, dtype: Any = None) -> Codec:
    """A neural codec by name, or a codec, which is returned; see :func:`predictor`."""
    return _as_made(name, dtype) if isinstance(name, Codec) else _make(name, "codec", models, dtype)


def embedder(name: str | Embedder, *, models: str | os.PathLike[str] | None = None, dtype: Any = None) -> Embedder:
    """A speaker encoder by name, or an embedder, which is returned; see :func:`predictor`."""
    return _as_made(name, dtype) if isinstance(name, Embedder) else _make(name, "embedder", models, dtype)


def encoder(name: str | Encoder, *, models: str | os.PathLike[str] | None = None, dtype: Any = None) -> Encoder:
    """A frame encoder by name, or an encoder, which is returned; see :func:`predictor`."""
    return _as_made(name, dtype) if isinstance(name, Encoder) else _make(name, "encoder", models, dtype)


def recogniser(model: str | os.PathLike[str] | None = None) -> Recogniser:
    """A speech recogniser: Whisper from a folder with a model in CTranslate2's format, else PocketSphinx.

    Raises:
      ValueError: the folder holds no model, or the package that runs it is not installed.
    """
    return (
        _load("ports.recognisers:pocketsphinx")()
        if model is None
        else _load("ports.recognisers:faster_whisper")(model)
    )


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


def _composed(how: str, parts: list[str], models: str | os.PathLike[str] | None, dtype: Any) -> Predictor:
    """``how(part,…)``: several predictors as one, or one behind a defence."""
    from jaxhack import defences

    if how in REDUCE:
        return ensemble([predictor(part, models=models, dtype=dtype) for part in parts], how)
    if how not in FORMS:
        raise ValueError(unknown("way to make a predictor of others", how, (*REDUCE, *FORMS)))
    if how == "smoothed":
        return defences.smoothed(**_smoothing(parts, models, dtype)._asdict())
    first, *rest = parts
    if not rest or "=" in rest[0]:
        raise ValueError(f"Expected {FORMS[how]}, got denoised({','.join(parts)}).")
    options = _options(how, rest[1:], {"quantised": bool})
    return defences.denoised(
        predictor(first, models=models, dtype=dtype), codec(rest[0], models=models, dtype=dtype), **options
    )


def _smoothing(parts: list[str], models: str | os.PathLike[str] | None, dtype: Any) -> "defences.Smoothing":
    """What ``smoothed(part,…)`` is made of."""
    from jaxhack import defences

    first, *rest = parts
    kinds = {"draws": int, "percentile": float, "seed": int}
    options = _options("smoothed", rest, kinds | dict.fromkeys(("waveform", *names("codec")), float))
    where = {name: options.pop(name) for name in [*options] if name not in kinds}
    if len(where) != 1:
        raise ValueError(f"Expected noise in one place, {FORMS['smoothed']}, got smoothed({','.join(parts)}).")
    ((place, sigma),) = where.items()
    noise = defences.Noise(sigma)
    if place != "waveform":
        chain = codec(place, models=models, dtype=dtype)
        noise = defences.Noise(sigma, chain, defences.demo_statistics(chain))
    return defences.Smoothing(predictor(first, models=models, dtype=dtype), noise, **options)


def _options(how: str, parts: list[str], kinds: dict[str, type]) -> dict[str, Any]:
    """``name=value`` of each of `parts`, the value of the name's kind."""
    options: dict[str, Any] = {}
    for part in parts:
        name, equals, written = (text.strip() for text in part.partition("="))
        if not equals:
            raise ValueError(f"Expected {FORMS[how]}, got {part!r} where NAME=VALUE should be.")
        if name not in kinds:
            raise ValueError(unknown(f"option of {how}", name, kinds))
        if name in options:
            raise ValueError(f"{how} is given {name} twice.")
        kind = kinds[name]
        try:
            options[name] = {"true": True, "false": False}[written] if kind is bool else kind(written)
        except (KeyError, ValueError) as error:
            noun = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
            raise ValueError(f"{how} takes {name}={noun}, got {written!r}.") from error
    return options


def _parts(name: str, inside: str) -> list[str]:
    """`inside` cut at the commas that no parenthesis holds."""
    parts, depth = [""], 0
    for letter in inside:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth < 0:
            break
        if depth == DEEPEST:
            raise ValueError(f"The name {name[:40]!r}… is nested too deep: more than {DEEPEST} levels.")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    if depth:
        raise ValueError(f"The parentheses of {name!r} do not match.")
    parts = [part.strip() for part in parts]
    if not all(parts):
        raise ValueError(f"{name!r} has an empty place: expected names with commas between them.")
    return parts


def _make(name: str, kind: str, models: str | os.PathLike[str] | None, dtype: Any) -> Any:
    make, options = _load(entry(name, kind).make), {}
    if dtype is not None:
        if "dtype" not in inspect.signature(make).parameters:
            raise ValueError(_no_dtype(name))
        if dtype not in (jnp.float32, jnp.bfloat16):
            raise ValueError(f"dtype is jnp.float32 or jnp.bfloat16; got {dtype}.")
        options = {"dtype": dtype}
    paths = weight_files.locate(name, weights_of(name), models)
    try:
        return make(paths, **options)
    except ValueError as error:
        files = ", ".join(str(path) for path in paths.values())
        raise ValueError(f"{name} cannot be made of {files}: {error}") from error


def _as_made(thing: Any, dtype: Any) -> Any:
    if dtype is not None:
        raise ValueError(_no_dtype(thing.name))
    return thing


def _no_dtype(name: Any) -> str:
    return f"{name} takes no dtype here; only a port in Flax does, when it is asked for by its name."


def _black_box(name: str | Callable) -> str | None:
    """What makes a predictor of a function, of one that is named, or of an ONNX file; None of any other name."""
    if isinstance(name, str) and name.lower().endswith(".onnx"):
        return "ports.blackbox:onnx_predictor"
    named = isinstance(name, str) and re.fullmatch(r"[\w.]+:[\w.]+", name)
    return "ports.blackbox:callable_predictor" if named or callable(name) else None


def _load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
