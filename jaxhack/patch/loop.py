"""The closed loop: attack a predictor, keep what the panel calls hacks, train against them, attack again."""

import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import tee
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxhack import audio, auditing, crops, inputs, registry, run, suites
from jaxhack.attack import Setup, refusal
from jaxhack.data.rated import Rated, source
from jaxhack.measures.panel import rules
from jaxhack.patch import losses, pairs, patched, replay
from jaxhack.patch.clips import Clips, store
from jaxhack.patch.fitting import Term, adamw, fit
from jaxhack.patch.regression import mean_squared_error, needs_weights
from jaxhack.report import page, patching
from jaxhack.scoring import score_waveforms
from jaxhack.settings import DEFAULT_CODEC, DEFAULT_PANEL, DEFAULT_PREDICTOR, Recipe, Settings
from jaxhack.spaces import KINDS
from jaxhack.types import Codec, Measure, Predictor

DEFAULT_SPACE, DEFAULT_ATTACKER = "latent", "grpo"
USED = {"hacks": ("spaces", "attackers", "options"), "noise": (), "pgd": ("options",), "random": ("spaces",)}


class Source(NamedTuple):
    """Where pairs of a round come from."""

    name: str  # "latent-lyra/grpo", "noise"
    settings: Settings
    codec: Codec | None


def patch(
    paths: inputs.Paths | None = None,
    *,
    predictor: str | os.PathLike[str] | Predictor = DEFAULT_PREDICTOR,
    codecs: str | Codec | Sequence[str | Codec] = (DEFAULT_CODEC,),
    spaces: Sequence[str] | str = (),
    attackers: Sequence[str] | str = (),
    options: Mapping[str, Mapping[str, Any]] | None = None,
    panel: str | Sequence[str | Measure] = DEFAULT_PANEL,
    models: str | os.PathLike[str] | None = None,
    out: str | Path,
    recipe: Recipe | None = None,
    rated: Sequence[Rated] = (),
    train_paths: inputs.Paths = (),
    test_paths: inputs.Paths = (),
    resume: bool = False,
    overwrite: bool = False,
    observe: auditing.Observer = lambda *_: None,
    profile: str | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Trains a predictor against attacks on it, round by round; leaves it in ``out/patched``.

    A round trains fresh attackers on the training half of the recordings, lets them attack that half, keeps what the
    detector calls a hack in a replay buffer with those of earlier rounds, and fits the predictor to rank x̂ above y
    beside saying what it should say of unattacked speech. The test half, of other speakers, is not touched: an audit
    with the same recordings and seed attacks that half.

    Args:
      paths: recordings, split by speaker as of :func:`jaxhack.audit`; None is the demo speech.
      predictor: by its name or folder; it must have gradients.
      codecs: the chains of spaces that have one; each such space is taken with every one.
      spaces: kinds of space; none: "latent". Pairs of noise and pgd are made in the waveform.
      attackers: kinds of attacker, as of :func:`jaxhack.suite`: "grpo", "waveform/pgd"; none: "grpo". Pairs that no
        detector looks at have no use for them.
      options: attacker -> its options.
      panel: the witnesses.
      models: a folder of weight files, looked in first.
      out: the run's folder.
      recipe: how pairs are found and trained on; None: as in the paper.
      rated: recordings with people's ratings, of :func:`jaxhack.data.read`; those of the split "train" are what the
        predictor should go on saying. None: its own scores of the unattacked training recordings, before it was
        patched, stand for them (self-distillation).
      train_paths: with `test_paths`, in place of `paths`: the training half.
      test_paths: the other half, which is not touched, but must be of other recordings and speakers.
      resume: continue an interrupted run; its result is that of an unbroken one.
      overwrite: replace the run found in `out`.
      observe: as of :func:`jaxhack.audit`.
      profile: sizes of the attackers' training.
      **settings: of the attackers, in place of the profile's.

    Returns:
      The summary, as :func:`jaxhack.report.patching.make` returns it.

    Raises:
      ValueError: a black box, settings out of range or of no use for these pairs, spaces and attackers that do not
        go together, or not a single recording that can be used.

    Source: *How Hackable Is Your Speech Quality Metric?*, section III.
    """
    demo, recipe = paths is None and not (train_paths or test_paths), recipe or Recipe()
    ratings = [(one, one.mos) for one in rated if one.split == "train" and one.mos is not None]
    if rated and not ratings:
        raise ValueError("None of the rated recordings is both rated and of the split train.")
    profile = profile or ("quick" if demo else "paper")
    parent = registry.predictor(predictor, models=models)
    needs_weights(parent)
    root = _root(predictor, parent, models)
    sources = find_sources(recipe, codecs, spaces, attackers, options or {}, profile, settings, models)
    if (last := sources[0].settings.seed + recipe.rounds - 1) >= 2**32:
        raise ValueError(f"Each round has the next seed: the last one's must be below 2**32, got {last}.")
    training, _, warnings = auditing.choose(
        [inputs.DEMO] if demo else paths or (), train_paths, test_paths, sources[0].settings
    )

    def set_up(source: Source, target: Predictor, number: int, panel: str | Sequence[str | Measure] = panel) -> Setup:
        again = Settings(**asdict(source.settings) | {"seed": source.settings.seed + number - 1})
        chain = source.codec or DEFAULT_CODEC
        loaded = auditing.load(target, chain, source.settings.space, panel=panel, models=models)
        return auditing.set_up(*loaded, again, len(training))._replace(best_of=False)

    first = [set_up(source, parent, 1) for source in sources]
    if reason := next(filter(None, map(refusal, first)), None):
        raise ValueError(reason)
    start = registry.at_rate(parent, max(s.sample_rate for s in first) if parent.at_rate else None)
    samples = crops.samples(start, "fit_seconds", recipe.fit_seconds)
    record = {
        "predictor": auditing.described(start),
        "recipe": asdict(recipe),
        "sources": {source.name: asdict(source.settings) for source in sources},
        "panel": {name: rule._asdict() for name, rule in rules(first[0].panel).items()},
        "labels": "people" if ratings else "self-distillation",
        "ratings": {one.id: mos for one, mos in ratings},
        "demo": any(inputs.is_demo(utterance) for utterance in training),
        "recordings": inputs.fingerprint(training),
        "train": [utterance.id for utterance in training],
    }
    most = recipe.rounds * len(training) * sum(source.settings.seeds for source in sources)
    out = Path(out)
    with run.alone(out), tempfile.TemporaryDirectory(prefix="jaxhack-") as cache:
        needed: list[Any] = [*registry.places(predictor), models, *auditing.lists(paths, train_paths, test_paths)]
        needed += [utterance.path for utterance in training]
        needed += [getattr(one.audio, "file", one.audio) for one, _ in ratings]
        run.open_run(out, record, resume=resume, overwrite=overwrite, needed=needed)
        clips, useless = _clips(start, training, ratings, samples, Path(cache) / "clips.bin")
        if not (out / "inputs.json").exists():
            before = _distance(start, parent, clips) if ratings else 0.0
            if ratings:  # the others were heard
                heard = {utterance.id: _heard(start, utterance.path) for utterance in training}
                useless |= {name: reason for name, (_, reason) in heard.items() if reason}
            unread = [f"{name}: {reason}" for name, reason in useless.items()]
            noted = {"warnings": warnings, "unread": unread, "clips": len(clips.target), "distance": before}
            run.write_json(out / "inputs.json", page.plain(noted))
        current, ring = parent, replay.empty(min(recipe.capacity, most), samples)
        for number in range(1, recipe.rounds + 1):
            folder, found = out / "rounds" / str(number), dict.fromkeys((source.name for source in sources), 0)
            after = patching.read_round(folder, record)
            told = suites.numbered(observe, f"round {number} of {recipe.rounds}")
            for source, at_first in zip(sources, first, strict=True):
                setup, place = set_up(source, current, number, at_first.panel), folder / source.name
                cut = pairs.Cut(setup.sample_rate, start.sample_rate, samples, start.min_samples)
                _collect(recipe, setup, training, place, cut, told)
                for batch in pairs.read(place, samples):
                    ring = push(ring, batch, np.ones(len(batch.length), bool))
                    found[source.name] += len(batch.length)
                if after and (then := after["found"][source.name]) != (now := found[source.name]):
                    raise ValueError(
                        f"{place} holds {now} pairs, and {folder / patching.ROUND} says {then}: delete {place} and "
                        "go on with --resume, which makes them again."
                    )
            lineage = {"record": record, "round": number, "pairs": int(ring.pushed)}
            current = _fit(recipe, start, current, root, clips, ring, folder, lineage, told)
            if not after:
                held = {"found": found, "pairs": int(replay.size(ring)), "distance": _distance(start, current, clips)}
                run.write_json(folder / patching.ROUND, page.plain(held))
        patched.save(out / patched.FOLDER, current, root, patched.read(folder / patched.FOLDER)["lineage"])
        return patching.make(out)


push = jax.jit(replay.push)


def _root(
    given: str | os.PathLike[str] | Predictor, made: Predictor, models: str | os.PathLike[str] | None
) -> Predictor:
    """What the patched predictor will be made of: `made`, or what that was patched from itself.

    Raises:
      ValueError: its name does not lead to it, so that nothing would load what the loop makes.
    """
    if made.name in registry.ENTRIES:
        return made
    name = made.name
    if not isinstance(given, Predictor) and os.path.isfile(Path(given) / patched.RECORD):
        name = patched.read(Path(given))["parent"]
    try:
        return registry.predictor(name, models=models)
    except ValueError as error:
        raise ValueError(
            f"{made.name} cannot be patched, for its name does not lead to it: give a name, or a patched one's "
            f"folder, alone. {error}"
        ) from error


def find_sources(
    recipe: Recipe,
    codecs: str | Codec | Sequence[str | Codec],
    kinds: Sequence[str] | str,
    attackers: Sequence[str] | str,
    options: Mapping[str, Mapping[str, Any]],
    profile: str,
    settings: Mapping[str, Any],
    models: str | os.PathLike[str] | None,
) -> list[Source]:
    """Every attack of a round."""
    for what, given in {"spaces": kinds, "attackers": attackers, "options": options}.items():
        if given and what not in USED[recipe.source]:
            raise ValueError(f"Pairs of the source {recipe.source} have no use for {what}: leave them out.")
    kinds, attackers = kinds or DEFAULT_SPACE, attackers or DEFAULT_ATTACKER
    if recipe.source == "noise":
        settings = {**settings, "epsilon": 10 ** (-pairs.SNR[0] / 20)}
        combined = {"noise": ["square"]}  # an attacker that is never asked
    elif recipe.source == "pgd":
        combined, options = {"waveform": ["pgd"]}, {"pgd": {"steps": 5}, **options}
    else:
        combined = suites.combinations(kinds, attackers)
        if recipe.source == "random":
            combined = {space: ["square"] for space in combined}  # the same
    suites.check_options(options, combined)
    chains = [registry.codec(codec, models=models) for codec in inputs.several(codecs)]
    registry.distinct("codec", [chain.name for chain in chains])
    for name in (chain.name for chain in chains):
        if name != (plain := run.folder_name(name)):
            raise ValueError(f"A codec's name becomes a folder's, which {name!r} cannot be: call it {plain!r}.")
    made = []
    for space, names in combined.items():
        for chain in chains if KINDS[space].chain else [None]:
            for name in names:
                given = {"space": space, "attacker": name, "options": dict(options.get(name, {})), **settings}
                label = "-".join([space, *([chain.name] if chain else [])])
                made.append(Source(f"{label}/{name}", Settings.of(profile, **given), chain))
    if not made:
        raise ValueError("Name at least one space, and a codec for a space that has one.")
    return made


def _clips(
    start: Predictor,
    training: Sequence[inputs.Utterance],
    ratings: Sequence[tuple[Rated, float]],
    samples: int,
    file: Path,
) -> tuple[Clips, dict[str, str]]:
    """What the predictor should go on saying: of rated recordings what people said, else of windows what it says.

    Returns:
      The clips, and recordings that gave none -> why.

    Raises:
      ValueError: not a single one.
    """
    useless: dict[str, str] = {}

    def heard(sources: Iterable[tuple[str, audio.Source, float]]) -> Iterator[tuple[str, np.ndarray, float]]:
        for name, place, mos in sources:
            wav, reason = _heard(start, place)
            if reason:
                useless[name] = reason
            else:
                yield name, wav, mos

    def scored() -> Iterator[tuple[np.ndarray, float]]:
        files = ((utterance.id, utterance.path, math.nan) for utterance in training)
        wavs = ((name, audio.pcm16(wav) / np.float32(32768)) for name, wav, _ in heard(files))
        cuts, again = tee((name, cut) for name, wav in wavs for cut in crops.windows(wav, samples))
        rows, used = score_waveforms(start, cuts), set()  # a few ahead of `again`: no more is in memory
        for (name, cut), row in zip(again, rows, strict=True):
            if row["score"] is None:
                useless[name] = row["reason"]
                continue
            used.add(name)
            yield cut, row["score"]
        for name in used & useless.keys():
            del useless[name]

    rated = ((one.id, source(one), mos) for one, mos in ratings)
    try:
        made = store(((wav, mos) for _, wav, mos in heard(rated)) if ratings else scored(), file)
    except ValueError:
        if len(useless) < len(ratings or training):
            raise
        name, reason = next(iter(useless.items()))
        what = "rated" if ratings else "training"
        raise ValueError(f"None of the {what} recordings can be used; the first, {name!r}: {reason}") from None
    return made, useless


def _heard(start: Predictor, source: audio.Source) -> tuple[np.ndarray, str]:
    """A recording at the predictor's rate, and why it is of no use to it; empty where it is."""
    rate = start.sample_rate
    try:
        wav = audio.read(source, sample_rate=rate).wav
    except audio.AudioError as error:
        return np.zeros(0, np.float32), str(error)
    if not wav.any():
        return wav, "Every sample is zero."
    if len(wav) < start.min_samples:
        return wav, f"{len(wav) / rate:.3f} s; {start.name} needs {start.min_samples / rate:.3f} s."
    return wav, ""


def _collect(
    recipe: Recipe,
    setup: Setup,
    training: Sequence[inputs.Utterance],
    folder: Path,
    cut: pairs.Cut,
    observe: auditing.Observer,
) -> None:
    """One attack of one round; its pairs lie in its folder."""
    if recipe.source == "hacks":
        auditing.carry_out(
            setup,
            training,
            training,
            folder,
            resume=folder.exists(),
            observe=observe,
            keep=pairs.hacks(setup, folder, cut, prefer_input=recipe.prefer_input),
            listening=False,
        )
        return
    folder.mkdir(parents=True, exist_ok=True)
    weights = auditing.measure(auditing.Reading(setup, training, observe), folder)
    perturb = {"noise": pairs.noise, "pgd": pairs.act, "random": pairs.random}[recipe.source]
    pairs.blind(setup, weights, perturb, training, folder, cut, draws=setup.settings.seeds)


def _fit(
    recipe: Recipe,
    start: Predictor,
    current: Predictor,
    root: Predictor,
    clips: Clips,
    ring: replay.Replay,
    folder: Path,
    lineage: Mapping[str, Any],
    observe: auditing.Observer,
) -> Predictor:
    """The predictor after a round; as it was where there is nothing to rank."""
    if (folder / patched.FOLDER / patched.RECORD).exists():
        return patched.load(folder / patched.FOLDER, root)
    params = current.params
    if int(ring.pushed):
        rate = start.sample_rate
        terms = [
            Term("regression", losses.regression(start, rate)),
            Term("ranking", losses.ranking(start, rate, recipe.margin), recipe.weight),
            Term("consistency", losses.consistency(start, rate), recipe.consistency),
            Term("gradient_norm", losses.gradient_norm(start, rate), recipe.gradient_norm),
        ]
        key = jax.random.key(lineage["round"])
        samples = ring.pairs.preferred.shape[1]

        def batches(step: int) -> dict[str, Any]:
            labelled = clips.take(step, batch=recipe.fit_batch, samples=samples, seed=lineage["round"])
            drawn = sample(ring, jax.random.fold_in(key, step), recipe.fit_batch)
            return {"regression": labelled, "gradient_norm": labelled, "ranking": drawn, "consistency": drawn}

        params = fit(
            params,
            [term for term in terms if term.weight],
            batches,
            adamw(params, recipe.learning_rate),
            steps=recipe.fit_steps,
            folder=folder / "fit",
            trainable=start.trainable,
            observe=lambda done, figures: observe("fit", done, recipe.fit_steps, figures),
        )
    return patched.save(folder / patched.FOLDER, current._replace(params=params), root, lineage)


sample = jax.jit(replay.sample, static_argnums=2)


def _distance(start: Predictor, current: Predictor, clips: Clips) -> float:
    """Mean squared error of the patched scores of whole clips against what they should be."""
    waveforms = (clips.waveform(i) for i in range(len(clips.target)))
    return mean_squared_error(start, current.params, waveforms, clips.target)
