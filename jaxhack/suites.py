"""Many audits of one predictor: every attacker in every space, and the worst case over all of them."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from jaxhack import attackers as attacking
from jaxhack import auditing, inputs, registry, run
from jaxhack import spaces as perturbing
from jaxhack.attack import refusal
from jaxhack.report import suite as report
from jaxhack.settings import DEFAULT_CODEC, DEFAULT_PANEL, DEFAULT_PREDICTOR, Settings
from jaxhack.types import Codec, Measure, Predictor


class Leg(NamedTuple):
    """One audit of a suite: a kind of attacker in one space at one budget."""

    name: str  # its folder, "waveform/pgd" or "latent-0.3/grpo"
    settings: Settings


def suite(
    paths: inputs.Paths | None = None,
    *,
    predictor: str | os.PathLike[str] | Callable | Predictor = DEFAULT_PREDICTOR,
    codec: str | Codec = DEFAULT_CODEC,
    spaces: Iterable[str] | str = "all",
    attackers: Iterable[str] | str = "all",
    epsilons: Sequence[float] = (),
    panel: str | Sequence[str | Measure] = DEFAULT_PANEL,
    asr_model: str | os.PathLike[str] | None = None,
    models: str | os.PathLike[str] | None = None,
    sample_rate: int | None = None,
    out: str | Path,
    train_paths: inputs.Paths = (),
    test_paths: inputs.Paths = (),
    resume: bool = False,
    overwrite: bool = False,
    observe: auditing.Observer = lambda *_: None,
    profile: str | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Audits a predictor by many kinds of attacker in many spaces; each audit has a folder of its own in `out`.

    An attacker that cannot work in a space, or not on this predictor, is left out there; the summary says why. With
    several budgets the test utterances are parted by speaker: on the validation half the largest budget is chosen,
    space by space, at which the panel does not call most random actions worse
    (:func:`jaxhack.stats.choose_epsilon`), and the headline is of the other half at that budget.

    Args:
      paths: as all that is not named here, as :func:`jaxhack.audit` takes it.
      spaces: kinds, of :data:`jaxhack.spaces.KINDS`; "all": every one.
      attackers: kinds, of :data:`jaxhack.attackers.KINDS`, "all" being every one; in the `spaces`, or with one of
        their own, "waveform/pgd".
      epsilons: budgets, in each space's own unit; none: each space's default.
      options: attacker -> its further options.

    Returns:
      The summary, as in ``summary.json``: what :func:`jaxhack.stats.worst_case` makes of the audits, and what was
      left out.

    Raises:
      ValueError: as :func:`jaxhack.audit`; or nothing is left to run.
    """
    demo = paths is None and not (train_paths or test_paths)
    profile = profile or ("quick" if demo else "paper")
    options, combined = dict(options or {}), combinations(spaces, attackers)
    check_options(options, combined)
    plan = [
        Leg(
            f"{space}{_suffix(epsilon)}/{attacker}",
            Settings.of(
                profile,
                space=space,
                attacker=attacker,
                epsilon=epsilon,
                options=dict(options.get(attacker, {})),
                **settings,
            ),
        )
        for space, kinds in combined.items()
        for epsilon in (dict.fromkeys(map(float, epsilons)) or (None,))
        for attacker in kinds
    ]
    training, test, _ = auditing.choose(
        [inputs.DEMO] if demo else paths or (), train_paths, test_paths, plan[0].settings
    )
    loaded = {
        kind: auditing.load(
            predictor, codec, kind, panel=panel, asr_model=asr_model, models=models, sample_rate=sample_rate
        )
        for kind in dict.fromkeys(leg.settings.space for leg in plan)
    }
    setups = {leg.name: auditing.set_up(*loaded[leg.settings.space], leg.settings, len(test)) for leg in plan}
    refused = {name: refusal(setup) for name, setup in setups.items()}
    left = [leg for leg in plan if not refused[leg.name]]
    if not left:
        raise ValueError(next(reason for reason in refused.values() if reason))
    validation = _validation(test, settings.get("seed", 0)) if len(epsilons) > 1 else []
    out = Path(out)
    with run.alone(out):
        record = {
            "predictor": loaded[left[0].settings.space][0].name,
            "legs": {leg.name: asdict(leg.settings) for leg in left},
            "left_out": {name: reason for name, reason in refused.items() if reason},
            "validation": validation,
            "demo": any(inputs.is_demo(u) for u in (*training, *test)),
        }
        needed = [*registry.places(predictor), models, asr_model, *auditing.lists(paths, train_paths, test_paths)]
        needed += [utterance.path for utterance in (*training, *test)]
        run.open_run(out, record, resume=resume, overwrite=overwrite, needed=needed)
        for number, leg in enumerate(left, start=1):
            chosen, chain, witnesses = loaded[leg.settings.space]
            folder = out / leg.name
            auditing.audit(
                paths,
                predictor=chosen,
                codec=chain or DEFAULT_CODEC,
                panel=witnesses,
                out=folder,
                train_paths=train_paths,
                test_paths=test_paths,
                resume=folder.exists(),
                observe=numbered(observe, f"{number} of {len(left)}"),
                **asdict(leg.settings),
            )
        return report.make(out)


def _suffix(epsilon: float | None) -> str:
    """What tells the folders of two budgets apart: all their digits."""
    return "" if epsilon is None else f"-{epsilon!r}".removesuffix(".0")


def _validation(test: Sequence[inputs.Utterance], seed: int) -> list[str]:
    try:
        return [utterance.id for utterance in inputs.split(test, seed=seed)[0]]
    except ValueError:
        raise ValueError(
            "Several budgets need test recordings of two speakers or more, since half of them choose the budget: add "
            "recordings, or give one --epsilon."
        ) from None


def numbered(observe: auditing.Observer, number: str) -> auditing.Observer:
    """Says of an audit that starts which of a suite's it is."""

    def told(stage: str, done: int, total: int, figures: dict[str, Any]) -> None:
        observe(stage, done, total, figures | {"number": number} if stage == "start" else figures)

    return told


def combinations(spaces: Iterable[str] | str, attackers: Iterable[str] | str) -> dict[str, list[str]]:
    """Space -> its attackers, each once; one that is named with a space works there, whatever `spaces` holds.

    Raises:
      ValueError: an unknown name, or no attacker or space at all.
    """
    named = [name.rpartition("/") for name in ([attackers] if isinstance(attackers, str) else attackers)]
    pairs = [(own, kind) for own, _, name in named for kind in _names("attacker", name, attacking.KINDS)]
    shared = _names("space", spaces, perturbing.KINDS) if any(not own for own, _ in pairs) else []
    places = list(dict.fromkeys([*shared, *_names("space", [own for own, _ in pairs if own], perturbing.KINDS)]))
    if not (pairs and places):
        raise ValueError("Name at least one attacker and one space.")
    here = {space: ("", space) if space in shared else (space,) for space in places}
    return {space: list(dict.fromkeys(kind for own, kind in pairs if own in here[space])) for space in places}


def check_options(options: Iterable[str], combined: Mapping[str, Sequence[str]]) -> None:
    """Refuses options of attackers that are in none of the spaces."""
    for name in _names("attacker", options, attacking.KINDS):
        if not any(name in kinds for kinds in combined.values()):
            raise ValueError(f"{name} has options, and is not among the attackers.")


def _names(what: str, given: Iterable[str] | str, known: Iterable[str]) -> list[str]:
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if name not in ("all", *known):
            raise ValueError(registry.unknown(what, name, known))
    return list(dict.fromkeys(x for name in names for x in (known if name == "all" else [name])))
