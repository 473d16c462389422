"""Attackers of finished runs against other predictors, or on other speech: what was learned on A, judged by B."""

import csv
import hashlib
import io
import itertools
import json
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from rich.table import Table

from jaxhack import auditing, examples, inputs, registry, report, rows, run, spaces
from jaxhack.attack import Setup, Weights, refusal
from jaxhack.detect import Rule
from jaxhack.judgement import attack_test_set
from jaxhack.measures.panel import make_panel, rules
from jaxhack.patch import patched
from jaxhack.report import page
from jaxhack.report.terminal import bare_table
from jaxhack.settings import Settings
from jaxhack.training import trained
from jaxhack.types import Codec, Measure, Predictor, PyTree

TABLE = "transfer.csv"


class Found(NamedTuple):
    """An audit that is meant."""

    label: str  # the run's folder; of a suite's or a patching's audit that one's and its own
    folder: Path
    patching: Path | None  # whose it is
    number: int  # of its round there, from 1


class Source(NamedTuple):
    """A finished run, as much of it as attacks again."""

    label: str
    folder: Path
    record: Mapping[str, Any]
    settings: Settings
    attacked: Predictor
    chain: Codec | None
    panel: tuple[Measure, ...]
    training: list[inputs.Utterance]
    test: list[inputs.Utterance]
    noted: list[dict[str, Any]]  # lines of recordings.jsonl
    best_of: bool  # whether the best of many random actions was a control


def transfer(
    runs: inputs.Paths,
    paths: inputs.Paths = (),
    *,
    predictors: registry.Named | Sequence[registry.Named] = (),
    attacked: str | os.PathLike[str] | Callable | Predictor | None = None,
    codec: str | Codec | None = None,
    models: str | os.PathLike[str] | None = None,
    out: str | Path,
    resume: bool = False,
    overwrite: bool = False,
    observe: auditing.Observer = lambda *_: None,
) -> list[dict[str, Any]]:
    """Lets the attackers of finished runs perturb recordings, and other predictors judge them.

    Trained attackers act as they were saved. Those that search on the test utterance itself (pgd) attack the
    predictor of their run again, with the same keys. Verdicts, panel, table and report are an audit's; ``grpo@nisqa``
    names an attacker of nisqa, and ``random_best@nisqa`` the best of as many random actions *in the ears of nisqa*.

    Args:
      runs: folders of audits, of suites of them, or of patchings: every round's audits.
      paths: recordings to perturb; none: each run's own test set, which must not have changed. Of a patching that is
        the training half, which its attackers learned on.
      predictors: those who judge, as :func:`jaxhack.predictor` takes them. None: of a patching's audits its parent,
        and what each round made of that.
      attacked: the predictor of the run, where its name in the record does not lead to it (an ONNX file); of a
        patching its parent.
      codec: the same for the codec.
      models: a folder of weight files, looked in first.
      out: a folder; each run and judge gets one of its own in it, and ``transfer.csv`` holds the matrix.
      resume: continue what was interrupted.
      overwrite: replace what is found.
      observe: as of :func:`jaxhack.audit`.

    Returns:
      Lines of the matrix, one per run and judge, see :func:`line`; a run on its own test set is there as it was, in
      place of a patching's own judge or before all.

    Raises:
      ValueError: a run is unfinished, lacks what a transfer needs, or its weights or recordings are others now.
    """
    runs, predictors, paths = inputs.several(runs), inputs.several(predictors), inputs.several(paths)
    if (made := Path(out) / TABLE).exists() and not (resume or overwrite):
        raise ValueError(
            f"{made} exists: continue its transfer with --resume, replace it with --overwrite, or name another "
            "folder with --out."
        )
    if any(Path(out).resolve() == Path(given).resolve() for given in runs):
        raise ValueError(f"{out} is the run itself: give the transfer a folder of its own.")
    found = expand(runs)
    registry.distinct("run", [one.label for one in found])
    sources = [load(one, attacked=attacked, codec=codec, models=models) for one in found]
    judges = [registry.predictor(name, models=models) for name in predictors]
    registry.distinct("predictor", [judge.name for judge in judges])
    families = {one.patching: _family(one, attacked, models) for one in found} if not judges else {}
    others = inputs.collect(paths) if paths else None
    needed = [*runs, *(one.folder for one in found), *registry.places(*predictors, attacked), models, *paths]
    out, lines = Path(out), []
    for one, source in zip(found, sources, strict=True):
        itself = None if others else line(source, report.read(source.folder))
        if judges and itself:
            lines.append(itself)
        for judge in judges or families[one.patching]:
            if not judges and itself and judge.name == source.attacked.name:
                lines.append(itself)
                continue
            folder = out / run.folder_name(f"{source.label}@{judge.name}")
            summary = _judge(source, judge, others or source.test, folder, resume, overwrite, needed, observe)
            lines.append(line(source, summary))
    run.write_text(out / TABLE, _csv(lines))
    return lines


def expand(runs: inputs.Paths) -> list[Found]:
    """The audits meant: of a suite and of a patching each one.

    Raises:
      ValueError: no run, or one without audits, or a patching that is not finished.
    """
    if not runs:
        raise ValueError("A transfer needs at least one finished run.")
    made: list[Found] = []
    for given in map(Path, inputs.several(runs)):
        if not os.path.exists(given / run.RECORD):
            raise ValueError(f"{given} holds no run ({run.RECORD}).")
        record = run.read(given / run.RECORD)["record"]
        places = _places(record)
        if places and "recipe" in record and not (given / "summary.json").exists():
            audit = given / places[0]
            raise ValueError(
                f"{given} is no finished patching (summary.json is missing): finish it with --resume, or name audits "
                f"of its finished rounds, such as {audit}."
            )
        if not places:
            raise ValueError(
                f"{given} holds no audits: its pairs are of {record['recipe']['source']}, without attackers."
            )
        made += [_found(given / place) for place in places]
    return made


def _places(record: Mapping[str, Any]) -> list[str]:
    """The folders of a run's audits below its own, in order."""
    if "recipe" not in record:
        return list(record.get("legs", ["."]))
    rounds = range(1, record["recipe"]["rounds"] + 1) if record["recipe"]["source"] == "hacks" else ()
    return [f"rounds/{number}/{name}" for number in rounds for name in record["sources"]]


def _found(folder: Path) -> Found:
    """An audit's folder as one of the run it is a part of, if it is."""
    whole = folder.resolve()
    for home in whole.parents[:4]:  # rounds/1/latent-lyra/grpo
        if not (home / run.RECORD).is_file():
            continue
        record, place = run.read(home / run.RECORD)["record"], whole.relative_to(home).as_posix()
        if place in _places(record):
            patching = home if "recipe" in record else None
            label = "-".join(part for part in (home.name, *PurePath(place).parts) if part != "rounds")
            return Found(label, folder, patching, int(PurePath(place).parts[1]) if patching else 1)
    return Found(whole.name, folder, None, 1)


def _family(
    found: Found,
    attacked: str | os.PathLike[str] | Callable | Predictor | None,
    models: str | os.PathLike[str] | None,
) -> list[Predictor]:
    """A patching's parent, and what its rounds made of that, as far as they are finished.

    Raises:
      ValueError: the audit is of no patching.
    """
    if found.patching is None:
        raise ValueError(f"{found.folder} is of no patching: name the predictors that are to judge (--predictor).")
    stored = run.read(found.patching / run.RECORD)["record"]["predictor"]
    if not attacked:
        named_by(found.patching, stored["name"])
    parent = registry.predictor(attacked or stored["name"], models=models)
    _same(found.patching, parent.name, parent.weights, stored["weights"])
    later = map(partial(_after, found.patching), itertools.count(1))
    rounds = itertools.takewhile(lambda folder: (folder / patched.RECORD).exists(), later)
    made = [parent, *(registry.predictor(folder, models=models) for folder in rounds)]
    return list({one.name: one for one in made}.values())  # a round without pairs changes nothing


def _after(patching: Path, number: int) -> Path:
    """Where the predictor lies that a round of a patching made; of round 0 it lies nowhere."""
    return patching / "rounds" / str(number) / patched.FOLDER


def load(
    found: Found,
    *,
    attacked: str | os.PathLike[str] | Callable | Predictor | None,
    codec: str | Codec | None,
    models: str | os.PathLike[str] | None,
) -> Source:
    """A finished run with its predictor and codec, found again by name and compared by hash; errors as `transfer`."""
    folder = found.folder
    for name in ("rows.parquet", "summary.json"):
        if not (folder / name).exists():
            raise ValueError(f"{folder} is no finished run ({name} is missing): finish it with --resume.")
    record = run.read(folder / run.RECORD)["record"]
    if "target" in record:
        raise ValueError(f"{folder} is a transfer itself: name the run whose attackers it used.")
    settings, kept = _settings(folder, record), record["space"]
    kind = spaces.KINDS[settings.space]
    needed = ["recordings.jsonl", *(["statistics.npz"] if kind.chain else [])]
    for name in needed:
        if not (folder / name).exists():
            raise ValueError(f"{folder} was made before runs kept what a transfer needs ({name}): audit again.")
    chain = None
    if kind.chain:
        chain = registry.codec(codec or kept["name"].removeprefix(f"{settings.space}-"), models=models)
        _same(folder, chain.name, chain.weights, kept["weights"])
    stored = record["predictor"]
    if found.patching and found.number > 1:
        attacked = _after(found.patching, found.number - 1)
    if not attacked:
        named_by(folder, stored["name"])
    played = registry.predictor(attacked or stored["name"], models=models, sample_rate=stored["sample_rate"])
    _same(folder, played.name, played.weights, stored["weights"])
    if played.name != stored["name"]:
        raise ValueError(f"The attackers of {folder} were played against {stored['name']}, not {played.name}.")
    noted = run.recordings(folder, record)
    training, test = (_listed(noted, half) for half in ("train", "test"))
    best_of = any(row["attacker"].startswith("random_best") for row in rows.read(folder / "rows.parquet"))
    panel = _panel(folder, record, models)
    return Source(found.label, folder, record, settings, played, chain, panel, training, test, noted, best_of)


def named_by(folder: Path, name: str) -> None:
    """Refuses a predictor's name in a run's record that does not lead to it, or that leads to code or files.

    Whoever wrote the record has chosen the name: nothing is run or read because it says so.
    """
    if registry.listed(name):
        return
    if (given := in_place(name)) != name:
        raise ValueError(
            f"{folder} attacked {name}, and a patched predictor is found by its folder alone: name it by --attacked "
            f"{shlex.quote(given)}."
        )
    raise ValueError(f"{folder} attacked {name!r}, whose name alone does not lead to it: give --attacked what does.")


def in_place(name: str) -> str:
    """A recorded name with DIR/patched where it calls a patched predictor by its weights."""
    return re.sub(r"^.*-patched-[0-9a-f]{6}$|[^(),]+-patched-[0-9a-f]{6}", "DIR/patched", name)


def _settings(folder: Path, record: Mapping[str, Any]) -> Settings:
    try:
        return Settings(**record["settings"])
    except (ValueError, TypeError) as error:
        raise ValueError(f"{folder / run.RECORD} holds other settings than an audit's: {error}") from error


def _listed(noted: Sequence[Mapping[str, Any]], half: str) -> list[inputs.Utterance]:
    """A half of the recordings that a run noted; in a patching both halves are the same ones."""
    mine = [entry for entry in noted if entry["half"] == half]
    return inputs.named((entry["id"], Path(entry["path"]), {"speaker": entry["speaker"] or ""}) for entry in mine)


def _panel(folder: Path, record: Mapping[str, Any], models: str | os.PathLike[str] | None) -> tuple[Measure, ...]:
    """The run's panel, found again by its measures' names and margins."""
    named = [f"{name}={rule['margin']!r}" for name, rule in record["panel"].items()]
    panel = make_panel(named, record["space"]["sample_rate"], models=models)
    then = {name: Rule(**rule) for name, rule in record["panel"].items()}
    about = json.loads(json.dumps({m.name: dict(m.about) for m in panel if m.about}))
    if rules(panel) != then or about != record.get("measures", {}):
        raise ValueError(f"The panel of {folder} is not to be had again as it was: audit again.")
    return panel


def line(source: Source, summary: Mapping[str, Any]) -> dict[str, Any]:
    """One entry of the matrix.

    Returns:
      ``run``; ``attacked`` A; ``attacker``, ``space``, ``epsilon``; ``judged_by`` B; ``transferred``, False for the
      run itself; the rates of the worst attacker, their mean and interval; mean and 90th percentile of its gain;
      both controls' rates; ``offset``; ``n``; ``warnings``, how many.
    """
    _, own, controls = page.blocks(summary)
    worst = page.blocks(summary)[0][0]
    rates = {e["attacker"].partition("@")[0]: e["attack_success_rate"] for e in controls}
    return {
        "run": source.label,
        "attacked": source.attacked.name,
        "attacker": source.settings.attacker,
        "space": source.record["space"]["name"],
        "epsilon": source.settings.epsilon,
        "judged_by": summary["configuration"]["predictor"]["name"],
        "transferred": "target" in summary["configuration"],
        "attackers": len(own),
        "worst_attack_success_rate": summary["worst_attack_success_rate"],
        "interval_low": worst["interval"][0],
        "interval_high": worst["interval"][1],
        "mean_attack_success_rate": summary["mean_attack_success_rate"],
        "mean_gain": worst["mean_gain"],
        "gain_p90": worst["gain_p90"],
        "random": rates.get("random"),
        "random_best": rates.get("random_best"),
        "offset": summary["offset"],
        "n": worst["n"],
        "warnings": len(summary["warnings"]),
    }


def table(lines: Sequence[Mapping[str, Any]]) -> Table:
    """The matrix for a terminal of 80 columns: attackers trained on A, judged by B."""
    made = bare_table(
        "hacked: of the worst attacker, with its mean gain and the 90th percentile of it (p90, MOS); best of n: of "
        "random actions, chosen by the predictor that was attacked. A line in bold is the run itself.",
    )
    made.add_column("attackers, and who judges", overflow="fold")
    for head in ("hacked", "gain", "p90", "random", "best of n", "n"):
        made.add_column(head, justify="right", no_wrap=True)
    before = None
    for entry in lines:
        if before != entry["run"]:
            if before is not None:
                made.add_row()
            made.add_row(f"{entry['attacker']} in {entry['space']} of {entry['attacked']}")
        before = entry["run"]
        made.add_row(
            f"  {entry['judged_by']}",
            *(
                page.number(entry[key], form)
                for key, form in (
                    ("worst_attack_success_rate", ".3f"),
                    ("mean_gain", "+.2f"),
                    ("gain_p90", "+.2f"),
                    ("random", ".3f"),
                    ("random_best", ".3f"),
                    ("n", "d"),
                )
            ),
            style=None if entry["transferred"] else "bold",
        )
    return made


def _judge(
    source: Source,
    judge: Predictor,
    test: Sequence[inputs.Utterance],
    out: Path,
    resume: bool,
    overwrite: bool,
    needed: Sequence[Any],
    observe: auditing.Observer,
) -> dict[str, Any]:
    """One run's attackers on `test`, judged by one predictor: a folder like an audit's."""
    rate = source.record["space"]["sample_rate"]
    judge = judge.at_rate(rate) if judge.at_rate else judge
    if judge.name in source.record["panel"]:
        raise ValueError(f"{judge.name} is a witness on the panel of {source.folder}: it cannot be under attack too.")
    setup = Setup(
        judge,
        source.chain,
        rate,
        source.panel,
        source.settings,
        len(source.record["test"]),
        source.attacked,
        source.best_of,
    )
    if reason := refusal(setup):
        raise ValueError(reason)
    weights, states = act_again(source, setup)
    heard, shared = inputs.listed(test, "test"), None
    if test is source.test:
        unchanged(source, heard)
    if not (test is source.test and source.record["train"] == source.record["test"]):  # as in a loop; warned of later
        shared = inputs.check_disjoint(source.training, test)
    digest = hashlib.sha256(json.dumps(source.record, sort_keys=True).encode()).hexdigest()
    record = auditing.recorded(setup, setup.space(weights), (), test) | {
        "train": source.record["train"],
        "source": {"run": source.label, "record": digest},
    }
    with run.alone(out):
        found = out / run.RECORD
        again = {"resume": resume and found.exists(), "overwrite": overwrite and found.exists()}
        folder = run.open_run(out, record, **again, needed=[*needed, *(utterance.path for utterance in test)])
        if not all((folder / name).exists() for name in ("rows.parquet", "examples/examples.json")):
            plan = {"predictor": judge.name, "target": source.attacked.name, "name": record["space"]["name"]}
            observe("start", 0, len(test), plan | {"attacker": source.settings.attacker})
            run.write_lines(folder / "recordings.jsonl", [e for e in source.noted if e["half"] == "train"] + heard)
            run.write_json(folder / "inputs.json", {"warnings": [shared] if shared else [], "unread": []})
            attack_test_set(setup, weights, states, test, folder, observe)
            examples.write(setup, weights, states, test, folder)
        return report.make(folder)


def act_again(source: Source, setup: Setup) -> tuple[Weights, PyTree]:
    """The weights of the attack and the states of the trained attackers."""
    weights, settings = setup.untrained(), source.settings
    if setup.codec is not None:
        statistics = spaces.load_statistics(source.folder / "statistics.npz", setup.codec.channels)
        weights = weights._replace(statistics=statistics)
    if not setup.trained:
        return weights, None
    sizes = {"seed": settings.seed, "attackers": settings.seeds, "steps": settings.steps}
    return weights, trained(setup.attacker, weights, **sizes, folder=source.folder)


def _same(folder: Path, name: str, now: Mapping[str, str], then: Mapping[str, str]) -> None:
    if dict(now) != dict(then):
        raise ValueError(
            f"The weights of {name} are not those that {folder} was made with: find those, or audit again."
        )


def unchanged(source: Source, heard: Sequence[Mapping[str, Any]]) -> None:
    """Refuses recordings that are no longer what the run heard."""
    then = {entry["id"]: entry["digest"] for entry in source.noted if entry["half"] == "test"}
    changed = [entry["id"] for entry in heard if then.get(entry["id"]) != entry["digest"]]
    if changed:
        raise ValueError(
            f"{len(changed)} test recordings of {source.folder}, such as {changed[0]!r}, are not what they were: "
            "name the recordings to perturb."
        )


def _csv(lines: Sequence[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()
