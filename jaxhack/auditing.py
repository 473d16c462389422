"""The main job: train k attackers, attack utterances that they never saw, write one row per utterance × attacker."""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxhack import audio, crops, examples, inputs, registry, report, run, spaces
from jaxhack.attack import Setup, Weights, refusal
from jaxhack.judgement import Keep, attack_test_set
from jaxhack.measures.panel import make_panel, rules
from jaxhack.parallel import mapped
from jaxhack.settings import DEFAULT_CODEC, DEFAULT_PANEL, DEFAULT_PREDICTOR, Settings
from jaxhack.training import train
from jaxhack.types import Codec, Measure, Predictor, PyTree, Space

Observer = Callable[[str, int, int, dict[str, Any]], None]  # stage, done, total, figures to show

WAVEFORM_RATE = 16000  # Hz, of a space without a codec where the predictor takes any rate
STATISTICS_CLIPS = 512  # training clips, spread over the set, that the latent's statistics are taken from


def audit(
    paths: inputs.Paths | None = None,
    *,
    predictor: str | os.PathLike[str] | Callable | Predictor = DEFAULT_PREDICTOR,
    codec: str | Codec = DEFAULT_CODEC,
    panel: str | Sequence[str | Measure] = DEFAULT_PANEL,
    asr_model: str | os.PathLike[str] | None = None,
    models: str | os.PathLike[str] | None = None,
    sample_rate: int | None = None,
    out: str | Path,
    train_paths: inputs.Paths = (),
    test_paths: inputs.Paths = (),
    resume: bool = False,
    overwrite: bool = False,
    observe: Observer = lambda *_: None,
    profile: str | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Audits a predictor by one kind of attacker in one space; leaves rows, summary, report and examples in `out`.

    Args:
      paths: audio files, folders or lists, split by speaker into a training and a test half; None, and no
        `train_paths` either, is the demo speech that ships with the package.
      predictor: the target, whose score is the attackers' reward: anything that :func:`jaxhack.predictor` takes.
      codec: the chain that every perturbation passes through, by name or as it is; not of spaces without one.
      panel: the measures that may witness a hack, by names with margins, ``"estoi,si_sdr,wer=0.2"``, or as they are:
        anything that :func:`jaxhack.measures.make_panel` takes.
      asr_model: a folder of a Whisper model in CTranslate2's format, for the measure ``wer``; None is PocketSphinx.
      models: a folder of weight files, looked in first.
      sample_rate: Hz at which the predictor listens; None is the space's where the predictor takes any rate, else
        the predictor's own, 16000 for a black box. The space's rate is its codec's, which is resampled where the two
        differ; without a codec it is this one, 16000 where the predictor takes any.
      out: the run's folder.
      train_paths: with `test_paths`, in place of `paths`.
      test_paths: utterances that no attacker may see.
      resume: continue an interrupted run; the rows are those of an unbroken one.
      overwrite: replace the run found in `out`.
      observe: called with (stage, done, total, figures) as the work goes on; first with "start", the number of
        recordings as total, and what is about to run as figures.
      profile: the named sizes to start from, one of :data:`~jaxhack.settings.PROFILES`; None is "quick" for the demo
        speech and "paper" for anything else.
      **settings: further fields of :class:`~jaxhack.settings.Settings`, in place of the profile's.

    Returns:
      The summary, as in ``summary.json``.

    Raises:
      ValueError: for settings out of range, inputs that overlap or do not suffice, an `out` that exists.
    """
    demo = paths is None and not (train_paths or test_paths)
    if profile is None:
        profile = "quick" if demo else "paper"
    chosen, named = Settings.of(profile, **settings), predictor  # refused before weights are read
    predictor, chain, witnesses = load(
        predictor, codec, chosen.space, panel=panel, asr_model=asr_model, models=models, sample_rate=sample_rate
    )
    crops.samples(predictor, "crop_seconds", chosen.crop_seconds)
    training, test, warnings = choose([inputs.DEMO] if demo else paths or (), train_paths, test_paths, chosen)
    setup = set_up(predictor, chain, witnesses, chosen, len(test))
    if reason := refusal(setup):
        raise ValueError(reason)
    return carry_out(
        setup,
        training,
        test,
        Path(out),
        warnings=warnings,
        resume=resume,
        overwrite=overwrite,
        needed=[*registry.places(named), models, asr_model, *lists(paths, train_paths, test_paths)],
        observe=observe,
    )


def carry_out(
    setup: Setup,
    training: Sequence[inputs.Utterance],
    test: Sequence[inputs.Utterance],
    out: Path,
    *,
    warnings: Sequence[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    needed: Iterable[Any] = (),
    observe: Observer = lambda *_: None,
    keep: Keep | None = None,
    listening: bool = True,
) -> dict[str, Any]:
    """An audit whose every part is settled: trains, attacks, writes what :func:`audit` says into `out`.

    Args:
      setup: what attacks what; :func:`~jaxhack.attack.refusal` has found nothing.
      training: utterances that the attackers learn on.
      test: utterances that they attack.
      out: the run's folder.
      warnings: about the utterances, for the report.
      resume: as `audit`'s, and what follows but the last.
      overwrite: see there.
      needed: as of :func:`~jaxhack.run.open_run`; the utterances are among it anyway.
      observe: as `audit`'s.
      keep: as of :func:`~jaxhack.judgement.attack_test_set`.
      listening: whether examples to listen to are written.
    """
    space = setup.space(setup.untrained())
    with run.alone(out):
        record = recorded(setup, space, training, test)
        needed = (*needed, *(utterance.path for utterance in (*training, *test)))
        folder = run.open_run(out, record, resume=resume, overwrite=overwrite, needed=needed)
        if not all((folder / name).exists() for name in ("rows.parquet", "summary.json")):
            plan = {"predictor": setup.predictor.name, "name": space.name, "demo": record["demo"]}
            observe("start", 0, len(training) + len(test), plan | record["settings"])
            run.write_lines(
                folder / "recordings.jsonl", inputs.listed(training, "train") + inputs.listed(test, "test")
            )
            reading = Reading(setup, training, observe)
            weights = measure(reading, folder)
            states = _train(reading, weights, folder)
            unread = [f"{name}: {reason}" for name, reason in reading.unread.items()]
            run.write_json(folder / "inputs.json", {"warnings": list(warnings), "unread": unread})
            attack_test_set(setup, weights, states, test, folder, observe, keep)
            if listening:
                examples.write(setup, weights, states, test, folder)
        return report.make(folder)


def load(
    predictor: str | os.PathLike[str] | Callable | Predictor,
    codec: str | Codec,
    space: str,
    *,
    panel: str | Sequence[str | Measure] = DEFAULT_PANEL,
    asr_model: str | os.PathLike[str] | None = None,
    models: str | os.PathLike[str] | None = None,
    sample_rate: int | None = None,
) -> tuple[Predictor, Codec | None, tuple[Measure, ...]]:
    """The predictor at the rate at which it will listen, the chain of a kind of space, and the panel at its rate.

    Arguments as `audit`'s.

    Raises:
      ValueError: as `audit`'s; or the predictor is on the panel.
    """
    chain = registry.codec(codec, models=models) if spaces.KINDS[space].chain else None
    predictor = registry.predictor(predictor, models=models, sample_rate=sample_rate)
    if sample_rate is None and predictor.at_rate:
        predictor = predictor.at_rate(chain.sample_rate if chain else WAVEFORM_RATE)
    witnesses = make_panel(panel, _rate(predictor, chain), models=models, asr_model=asr_model)
    if predictor.name in (measure.name for measure in witnesses):
        raise ValueError(f"{predictor.name} is under attack: it cannot be a witness too. Leave it out of the panel.")
    return predictor, chain, witnesses


def _rate(predictor: Predictor, chain: Codec | None) -> int:
    """Hz, of the space."""
    return chain.sample_rate if chain else predictor.sample_rate


def set_up(
    predictor: Predictor, chain: Codec | None, panel: Sequence[Measure], settings: Settings, test: int
) -> Setup:
    """An audit of `test` utterances; :func:`~jaxhack.attack.refusal` says whether it can be."""
    return Setup(predictor, chain, _rate(predictor, chain), panel, settings, test)


def lists(paths: inputs.Paths | None, train_paths: inputs.Paths, test_paths: inputs.Paths) -> list[str | os.PathLike]:
    """Every path that the recordings were named by."""
    return [path for given in (paths or (), train_paths, test_paths) for path in inputs.several(given)]


def choose(
    paths: inputs.Paths,
    train_paths: inputs.Paths,
    test_paths: inputs.Paths,
    settings: Settings,
) -> tuple[list[inputs.Utterance], list[inputs.Utterance], list[str]]:
    """Training and test utterances, disjoint by speaker where that is known, and warnings about them.

    Raises:
      ValueError: if the paths do not say which is which, overlap, or leave one side empty.
    """
    if bool(train_paths) != bool(test_paths):
        raise ValueError("--train and --test go together: give both, or one PATH to be split by speaker.")
    if bool(paths) == bool(train_paths):
        raise ValueError("Give either PATH (split by speaker) or --train and --test, not both and not neither.")
    warnings = []
    if paths:
        found = inputs.limit(inputs.collect(paths), settings.limit, settings.seed)
        training, test = inputs.split(found, seed=settings.seed)
        unknown = inputs.check_speakers(found)
        warnings += [unknown] if unknown else []
    else:
        half = None if settings.limit is None else settings.limit // 2
        training = inputs.limit(inputs.collect(train_paths), half, settings.seed)
        test = inputs.limit(inputs.collect(test_paths), half, settings.seed)
        shared = inputs.check_disjoint(training, test)
        warnings += [shared] if shared else []
    if not (training and test):
        raise ValueError("An audit needs at least one utterance to train on and one, of another speaker, to test.")
    return training, test, warnings


def recorded(
    setup: Setup, space: Space, training: Sequence[inputs.Utterance], test: Sequence[inputs.Utterance]
) -> dict[str, Any]:
    """What a run is a function of, for its ``run.json``."""
    asked = setup.queries()
    return {
        "settings": asdict(setup.settings),
        "predictor": described(setup.predictor),
        **({} if setup.target is None else {"target": described(setup.target)}),
        "space": {
            "name": space.name,
            "sample_rate": space.sample_rate,
            "weights": dict(space.weights),
        },
        "panel": {name: rule._asdict() for name, rule in rules(setup.panel).items()},
        "measures": {measure.name: dict(measure.about) for measure in setup.panel if measure.about},
        "queries": asked._asdict(),
        "decided": {  # which recordings decided what
            "train": [*(["attackers"] if setup.trained else []), *(["statistics"] if setup.codec else [])],
            "test": ["rates"],
            "none": ["epsilon", "tau"],
        },
        "demo": any(inputs.is_demo(u) for u in (*training, *test)),
        "recordings": inputs.fingerprint([*training, *test]),
        "train": [u.id for u in training],
        "test": [u.id for u in test],
    }


def described(predictor: Predictor) -> dict[str, Any]:
    """A predictor as a record names it."""
    return {
        "name": predictor.name,
        "sample_rate": predictor.sample_rate,
        "scale": list(predictor.scale),
        "weights": dict(predictor.weights),
    }


class Reading:
    """A training set on its way into a program: crop by crop, with what could not be used and why."""

    def __init__(self, setup: Setup, training: Sequence[inputs.Utterance], observe: Observer):
        """Reads nothing yet."""
        self.setup, self.training, self.observe = setup, training, observe
        self.unread: dict[str, str] = {}  # utterance -> reason

    def crops(self, stage: str, every: int = 1) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Batches of crops, as of :func:`~jaxhack.crops.batches`, of every so-and-so-many-th recording."""
        return crops.batches(
            self._clips(stage, every), round(self.setup.settings.crop_seconds * self.setup.sample_rate)
        )

    def _clips(self, stage: str, every: int) -> Iterator[np.ndarray]:
        wanted = self.training[::every]
        self.observe(stage, 0, len(wanted), {})
        for i, utterance in enumerate(wanted):
            try:
                clip = audio.read(utterance.path, sample_rate=self.setup.sample_rate)
                if not clip.wav.any():
                    raise audio.AudioError(f"{str(utterance.path)!r} is silent: every sample is zero.")
            except audio.AudioError as error:
                self.unread[utterance.id] = str(error)
                continue
            yield clip.wav
            self.observe(stage, i + 1, len(wanted), {})

    def unusable(self) -> ValueError:
        """What to raise where nothing was left."""
        first = next(iter(self.unread.values()))
        return ValueError(f"None of the training recordings can be used; the first: {first}")


def measure(reading: Reading, folder: Path) -> Weights:
    """The weights of an attack, those of its space measured on the training set and kept in the run's folder."""
    setup = reading.setup
    weights, chain = setup.untrained(), spaces.KINDS[setup.settings.space].chain
    if not (chain and setup.codec):
        return weights
    every = max(1, len(reading.training) // STATISTICS_CLIPS)
    try:
        statistics = spaces.latent_statistics(chain(setup.codec), reading.crops("measure", every))
    except ValueError:
        if not reading.unread:
            raise
        raise reading.unusable() from None
    spaces.save_statistics(folder / "statistics.npz", statistics)
    return weights._replace(statistics=statistics)


def _train(reading: Reading, weights: Weights, folder: Path) -> PyTree:
    """The states of the attackers; None of those that learn nothing before the test."""
    setup, settings = reading.setup, reading.setup.settings
    if not setup.trained:
        return None
    encode = jax.jit(lambda w, wav, length: mapped(setup.space(w).encode)(wav, length))
    with tempfile.TemporaryDirectory(prefix="jaxhack-") as cache:
        points = crops.Crops(Path(cache)).fill(partial(encode, weights), reading.crops("encode"))
        if not points.size:
            raise reading.unusable()
        return train(
            setup.attacker,
            weights,
            points,
            seed=settings.seed,
            attackers=settings.seeds,
            steps=settings.steps,
            batch=settings.batch,
            folder=folder,
            observe=lambda done, metrics: reading.observe("train", done, settings.steps, metrics),
        )
