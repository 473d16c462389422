"""Table II for NISQA: what a patch loop mends, beside pairs that nobody looked at and defences without training.

    python -m experiments.table2_patching.run --shared ../shared --work runs/table2

Each defence, with each seed, is made, attacked afresh on speakers that it never met, and heard on unattacked speech.
Can be interrupted and goes on where it stopped; small files of what is finished go to ``results/``, from where
another machine can go on. ``README.md`` holds what ``--table`` prints from them.
"""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jaxhack as jh
from experiments.command import command
from experiments.files import keep, write_list
from experiments.table2_patching.presets import PAPER, PRESETS, SMALL, Attack, Loop, Preset
from experiments.table2_patching.table import picture, table
from jaxhack import auditing, data, inputs
from jaxhack.data import Rated
from jaxhack.patch import Recipe, patch
from jaxhack.progress import display
from jaxhack.scoring import score_files
from jaxhack.settings import Settings

HERE = Path(__file__).parent
KEPT = ("run.json", "inputs.json", "rows.parquet", "summary.json")  # of an audit
FRESH = 100  # added to a seed: attackers that no loop has met
FAMILIAR = ("opus_6", "opus_9", "opus_16", "noise_15dB")  # conditions of ../shared/degraded in both halves
FOREIGN = ("codec2_1600", "noise_5dB")  # and those that no training holds
OPTIONS = {
    "--preset": {"choices": list(PRESETS), "default": SMALL.name, "help": "its size; paper needs --ratings"},
    "--ratings": {"metavar": "SET:DIR", "help": "rated speech, in place of ../shared's; bvcc:DIR"},
    "--others": {"metavar": "SET:DIR", "nargs": "+", "default": [], "help": "rated speech of other domains"},
}


class Speech(NamedTuple):
    """What is attacked, and what is only heard."""

    train: Path  # a list
    test: Path  # a list, of other speakers
    heard: dict[str, list[Rated]]  # "test" and what else scores are compared on
    rated: list[Rated]  # what the loop should go on saying; none: its own scores


def recordings(preset: Preset, shared: Path, work: Path) -> Speech:
    """Speech of the preset's length, half of the speakers to train on; unrated.

    ``foreign`` has conditions that training lacks, of any length, by speakers that it lacks too.
    """
    with (shared / "speech" / "manifest.csv").open(newline="") as file:
        clean = {row["file"]: row for row in csv.DictReader(file)}
    with (shared / "degraded" / "manifest.csv").open(newline="") as file:
        degraded = [row | {"speaker": clean[row["clean_file"]]["speaker"]} for row in csv.DictReader(file)]
    low, high = preset.seconds
    fits = {name for name, row in clean.items() if low < float(row["seconds"]) <= high}
    familiar = [(name, shared / "speech" / name, clean[name]["speaker"]) for name in sorted(fits)]
    familiar += [
        (row["file"], shared / "degraded" / row["file"], row["speaker"])
        for row in degraded
        if row["condition"] in FAMILIAR and row["clean_file"] in fits
    ]
    found = inputs.collect([write_list(work / "all.csv", familiar)])
    train, test = inputs.split(inputs.limit(found, preset.limit, 0), seed=0)
    known = {utterance.speaker for utterance in train}
    foreign = [
        Rated(
            row["file"],
            (shared / "degraded" / row["file"]).resolve(),
            None,
            None,
            None,
            "test",
            {"speaker": row["speaker"]},
        )
        for row in degraded
        if row["condition"] in FOREIGN and row["speaker"] not in known
    ][: preset.limit]
    heard = [Rated(u.id, u.path, None, None, None, "test", {"speaker": u.speaker}) for u in test]
    train_list, test_list = (
        write_list(work / f"{name}.csv", [(u.id, u.path, u.speaker) for u in half])
        for name, half in (("train", train), ("test", test))
    )
    return Speech(train_list, test_list, {"test": heard, "foreign": foreign}, [])


def rated(ratings: str, others: Sequence[str], work: Path) -> Speech:
    """Rated speech: the paper's, BVCC's training and test split, and its out-of-domain sets."""
    found = data.read(ratings)
    halves = {half: [one for one in found if one.split == half] for half in ("train", "test")}
    lists = [
        write_list(work / f"{half}.csv", [(one.id, one.audio, _speaker(one)) for one in halves[half]])
        for half in halves
    ]
    heard = {name: [one for one in data.read(name) if one.split == "test" and one.mos is not None] for name in others}
    return Speech(*lists, {"test": halves["test"], **heard}, found)


def _speaker(one: Rated) -> str:
    return one.meta.get("speaker") or one.system or one.id


def run(
    name: str,
    shared: Path,
    work: Path,
    results: Path,
    *,
    preset: str = SMALL.name,
    ratings: str | None = None,
    others: Sequence[str] = (),
    tiny: bool = False,
) -> None:
    """Makes, attacks and hears one defence with one seed, as far as that is not done."""
    size = PRESETS["tiny" if tiny else preset]
    kept, out = results / size.name / name, work / size.name / name
    if name not in size.runs or (kept / "scores.csv").exists():
        return
    if size is PAPER and not ratings:
        raise ValueError("The paper's preset trains on rated speech: name it by --ratings bvcc:DIR.")
    speech = rated(ratings, others, out) if ratings else recordings(size, shared, out)
    defence, _, seed = name.rpartition("-")
    how, predictor = size.defences[defence], size.predictor
    with display() as observe:
        given = {"models": shared / "models", "observe": observe}
        if isinstance(how, str):
            predictor = how.format(predictor)
        elif how:
            predictor = _trained(size, how, int(seed), speech, out / "patch", **given)
            keep(out / "patch", kept / "patch", ("run.json", "summary.json"))
        weights = dict(jh.predictor(predictor, models=shared / "models").weights)
        for label, attack in size.attacks.items():
            if not _attacked(kept / label, weights):
                _audit(size, attack, predictor, int(seed), speech, out / label, **given)
                keep(out / label, kept / label, KEPT)
        if isinstance(how, Loop) and how.recipe.get("source", "hacks") == "hacks":
            resume = (out / "replay").exists()
            jh.transfer([out / "patch"], [speech.test], predictors=(), out=out / "replay", resume=resume, **given)
            keep(out / "replay", kept, ("transfer.csv",))
    _write_scores(predictor, speech, shared / "models", kept / "scores.csv")  # the last: the run is done


def _trained(
    size: Preset, how: Loop, seed: int, speech: Speech, out: Path, *, models: Path, observe: Callable
) -> Path:
    """The folder of the predictor that a loop leaves."""
    recipe = Recipe(**size.recipe | how.recipe)
    patch(
        train_paths=[speech.train],
        test_paths=[speech.test],
        predictor=size.predictor,
        codecs=how.codecs,
        spaces=list(dict.fromkeys(attacker.partition("/")[0] for attacker in how.attackers)),
        attackers=how.attackers,
        options=own_options(size, how),
        rated=speech.rated,
        models=models,
        out=out,
        recipe=recipe,
        resume=(out / "run.json").exists(),
        observe=observe,
        **size.sizes | {"seeds": how.draws or size.sizes["seeds"], "seed": seed},
    )
    return out / "patched"


def own_options(size: Preset, how: Loop) -> dict[str, Mapping[str, Any]]:
    """The options inside a loop of those attackers that it has."""
    kinds = {attacker.rpartition("/")[2] for attacker in how.attackers}
    return {name: given for name, given in size.in_loop.items() if name in kinds}


def _attacked(folder: Path, weights: dict[str, str]) -> bool:
    """Whether an audit is there, and of these weights: another machine may have trained others."""
    if not (folder / "summary.json").exists():
        return False
    return json.loads((folder / "run.json").read_text())["record"]["predictor"]["weights"] == weights


def _audit(
    size: Preset,
    attack: Attack,
    predictor: str | Path,
    seed: int,
    speech: Speech,
    out: Path,
    *,
    models: Path,
    observe: Callable,
) -> None:
    """Fresh attackers on the test half. The best of n random actions, most of the cost, is left out."""
    given = {
        "space": attack.space,
        "attacker": attack.attacker,
        "options": dict(attack.options),
        "seed": FRESH + seed,
    }
    settings = Settings.of(**size.sizes | given)
    loaded = auditing.load(predictor, attack.codec or "mini", attack.space, models=models)
    training, test, warnings = auditing.choose((), [speech.train], [speech.test], settings)
    setup = auditing.set_up(*loaded, settings, len(test))._replace(best_of=False)
    resume = (out / "run.json").exists()
    more = {"warnings": warnings, "resume": resume, "observe": observe, "listening": False}
    auditing.carry_out(setup, training, test, out, **more)


def _write_scores(predictor: str | Path, speech: Speech, models: Path, file: Path) -> None:
    """Scores of unattacked speech, with what people said of it."""
    made, part = jh.predictor(predictor, models=models), file.with_suffix(".part")
    with part.open("w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("set", "id", "speaker", "system", "mos", "score"))
        for name, wanted in speech.heard.items():
            for one, row in zip(wanted, score_files(made, data.utterances(wanted)), strict=True):
                writer.writerow((name, one.id, _speaker(one), one.system, one.mos, row["score"]))
    part.rename(file)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs what is asked for."""
    names = dict.fromkeys(run for preset in PRESETS.values() for run in preset.runs)
    results = command(__doc__.splitlines()[0], HERE, names, run, table, argv, OPTIONS)
    picture(results)


if __name__ == "__main__":
    main()
