"""Table II from stored rows, the attackers of each round against other rounds' predictors, and the decisions."""

import base64
import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.files import markdown
from experiments.table2_patching.presets import MULTI, PRESETS, RANDOM, UNDEFENDED, Loop, Preset
from jaxhack import rows
from jaxhack.detect import Rule
from jaxhack.report import figures, page
from jaxhack.stats.agreement import statistics
from jaxhack.stats.success import judgements, summary

RESAMPLES = 4000
ROUNDING = 1e-9  # rates are ratios of small counts: what is equal must compare as equal
REACH, COST, FAMILIAR_RANKS, HALF = 0.1, {"test": 0.05, "foreign": 0.1}, 0.95, 0.5  # of PREREGISTRATION.md


class Found(NamedTuple):
    """What is stored of one preset."""

    preset: Preset
    folder: Path

    def finished(self, defence: str) -> list[Path]:
        """Folders of the seeds that are done."""
        folders = [self.folder / f"{defence}-{seed}" for seed in self.preset.seeds]
        return [folder for folder in folders if (folder / "scores.csv").exists()]

    @property
    def missing(self) -> list[str]:
        """Runs that are not done."""
        return [run for run in self.preset.runs if not (self.folder / run / "scores.csv").exists()]


def table(results: Path) -> str:
    """All that is there, as Markdown."""
    return "\n\n".join(_of(Found(p, results / p.name)) for p in PRESETS.values() if (results / p.name).is_dir())


def _of(found: Found) -> str:
    if not found.finished(UNDEFENDED):
        return f"Still to be made: {', '.join(found.missing)}."
    known = [defence for defence in found.preset.defences if found.finished(defence)]
    parts = [markdown(*attacks(found, known)), markdown(*fidelity(found, known)), *_replays(found), decisions(found)]
    parts += [f"Still to be made: {', '.join(found.missing)}."] if found.missing else []
    return "\n\n".join(part for part in parts if part)


def attacks(found: Found, known: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Success of fresh attackers on each defence: mean ± sd over seeds, (worst), mean gain."""
    heads, lines = ["defence", "seeds", "pairs"], []
    for label, attack in found.preset.attacks.items():
        heads.append(f"{label}{'' if attack.met else ' (met by none)'}: hacked, gain")
        heads += [f"{label}, void votes counted"] if attack.space == "waveform" else []
    for defence in known:
        folders = found.finished(defence)
        pairs = [
            json.loads(f.read_text())["rounds"][-1]["pairs"]
            for d in folders
            if (f := d / "patch/summary.json").exists()
        ]
        cells = [defence, str(len(folders)), _mean(pairs, ".0f") if pairs else ""]
        for label, attack in found.preset.attacks.items():
            entries = [_attacker(folder / label) for folder in folders]
            rates = [entry["attack_success_rate"] for entry in entries]
            gain = _mean([entry["mean_gain"] for entry in entries], "+.2f")
            cells.append(f"{_spread(rates)}, {gain}")
            if attack.space == "waveform":
                cells.append(_spread([entry["attack_success_rate_void"] for entry in entries]))
        lines.append(cells)
    return heads, lines


def fidelity(found: Found, known: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """What a defence costs: offsets of the codecs, and agreement on unattacked speech."""
    chains = {attack.codec: label for label, attack in found.preset.attacks.items() if attack.codec}
    sets = list(dict.fromkeys(row["set"] for row in _scores(found.finished(known[0])[0]))) if known else []
    heads = ["defence", *(f"offset, {codec}" for codec in chains)]
    heads += [f"{name}: SRCC, MSE, sd of scores" for name in sets]
    lines = []
    for defence in known:
        folders, cells = found.finished(defence), [defence]
        cells += [
            _mean([_summary(folder / label)["offset"] for folder in folders], "+.2f") for label in chains.values()
        ]
        for name in sets:
            values = [agreement(found, folder, name) for folder in folders]
            cells.append(", ".join(_mean([v[key] for v in values], ".3f") for key in ("srcc", "mse", "sd")))
        lines.append(cells)
    return heads, lines


def agreement(found: Found, folder: Path, name: str) -> dict[str, float]:
    """Of one run's scores of a set: SRCC and MSE against people's, or else against the undefended's, and their sd."""
    origin = {row["id"]: row["score"] for row in _scores(found.finished(UNDEFENDED)[0]) if row["set"] == name}
    pairs = [(row["score"], row["mos"] or origin[row["id"]]) for row in _scores(folder) if row["set"] == name]
    scores, mos = np.array([pair for pair in pairs if all(pair)], float).reshape(-1, 2).T
    srcc, _, _, mse = statistics(scores, mos)
    return {"srcc": float(srcc), "mse": float(mse), "sd": float(np.std(scores))}


def _replays(found: Found) -> Iterator[str]:
    """For each loop: the attackers of its rounds against the predictor before, between and after them."""
    for defence in found.preset.defences:
        tables = [replay(folder) for folder in found.finished(defence) if (folder / "transfer.csv").exists()]
        if tables:
            heads = [
                f"attackers of {defence}: hacked, gain",
                *(f"R{j}" for j in range(len(next(iter(tables[0].values()))))),
            ]
            yield markdown(heads, [[name, *_replayed([t[name] for t in tables])] for name in tables[0]])


def _replayed(seeds: Sequence[Sequence[Mapping[str, float]]]) -> Iterator[str]:
    for judged in zip(*seeds, strict=False):  # a round without pairs leaves no predictor of its own
        yield f"{_mean([j['rate'] for j in judged], '.3f')}, {_mean([j['gain'] for j in judged], '+.2f')}"


def replay(folder: Path) -> dict[str, list[dict[str, float]]]:
    """The attackers of each round -> their success against R0, R1, …"""
    made: dict[str, list[dict[str, float]]] = {}
    with (folder / "transfer.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            name = line["run"].removeprefix("patch-")  # "1-latent-lyra-grpo"
            keys = {"rate": "mean_attack_success_rate", "gain": "mean_gain"}
            made.setdefault(name, []).append({key: float(line[column] or "nan") for key, column in keys.items()})
    return made


def decisions(found: Found) -> str:
    """What became of the hypotheses of PREREGISTRATION.md, by its rules alone."""
    if not found.preset.registered:
        return ""
    if found.missing:
        return f"The decisions wait for {len(found.missing)} of {len(found.preset.runs)} runs."
    lines = [
        f"- **{name}: {'undetermined' if holds is None else 'supported' if holds else 'not supported'}.** {text}"
        for name, (holds, text) in ((name, rule(found)) for name, rule in RULES.items())
    ]
    return "\n".join(lines)


def mends(found: Found) -> tuple[bool | None, str]:
    """H1: every attack that the loop met hacks less than before it."""
    before, after = (successes(found, defence) for defence in (UNDEFENDED, MULTI))
    differences = {label: difference(found, before[label], after[label]) for label in _met(found)}
    lows = [low for _, low, _ in differences.values()]
    return _holds(min(lows) > 0, *lows), "Fall of the success rate: " + _intervals(differences)


def beats_random(found: Found) -> tuple[bool | None, str]:
    """H2: it does so more than pairs of random perturbations, over the attacks that it met."""
    random, loop = (successes(found, defence) for defence in (RANDOM, MULTI))
    labels = _met(found)
    pooled = (
        {(label, *key): value for label in labels for key, value in side[label].items()} for side in (random, loop)
    )
    value, low, high = difference(found, *pooled)
    return _holds(
        low > 0, low
    ), f"Success against random pairs minus against the loop: {_interval(value, low, high)}."


def stays_narrow(found: Found) -> tuple[bool | None, str]:
    """H3: an attack that no training met succeeds as before, whatever was trained."""
    labels = [label for label, attack in found.preset.attacks.items() if not attack.met]
    before = {label: _rate(found, UNDEFENDED, label) for label in labels}
    falls = {
        f"{defence}, {label}": before[label] - _rate(found, defence, label)
        for defence, how in found.preset.defences.items()
        if isinstance(how, Loop) and found.finished(defence)
        for label in labels
    }
    if not falls:
        return None, "No attack was kept from the loop."
    most = max(falls, key=lambda name: falls[name])
    return _holds(
        falls[most] < REACH - ROUNDING, *falls.values()
    ), f"The largest fall is {falls[most]:+.3f} ({most}); {REACH:g} would refute."


def keeps_its_scores(found: Found) -> tuple[bool | None, str]:
    """H4: the loop moves scores of unattacked speech little."""
    folders = found.finished(MULTI)
    values = {name: [agreement(found, folder, name) for folder in folders] for name in COST}
    errors = {name: float(np.mean([v["mse"] for v in values[name]])) for name in COST}
    ranks = float(np.mean([v["srcc"] for v in values["test"]]))
    holds = all(errors[name] <= most for name, most in COST.items()) and ranks >= FAMILIAR_RANKS
    limits = ", ".join(f"MSE {errors[name]:.3f} on {name} (at most {most:g})" for name, most in COST.items())
    return _holds(
        holds, *errors.values(), ranks
    ), f"{limits}; SRCC {ranks:.3f} on test (at least {FAMILIAR_RANKS:g})."


def falls_in_the_loop(found: Found) -> tuple[bool | None, str]:
    """H5: fresh attackers of the last round hack less than those of the first, in every space and seed."""
    falls: dict[str, list[float]] = {}
    for folder in found.finished(MULTI):
        stored = json.loads((folder / "patch/summary.json").read_text())["rounds"]
        for name, first in stored[0]["in_loop"].items():
            last = stored[-1]["in_loop"][name]
            falls.setdefault(name, []).append(first["mean_attack_success_rate"] - last["mean_attack_success_rate"])
    text = "; ".join(f"{name} {', '.join(f'{fall:+.3f}' for fall in each)}" for name, each in falls.items())
    every = [fall for each in falls.values() for fall in each]
    return _holds(min(every) > 0, *every), f"Fall from the first round, by seed: {text}."


def forgets_nothing(found: Found) -> tuple[bool | None, str]:
    """H6: the trained attackers of the first round hack the last predictor at most half as often as the first."""
    tables = [replay(folder) for folder in found.finished(MULTI)]
    rates = {
        name: [float(np.mean([t[name][i]["rate"] for t in tables])) for i in (0, -1)]
        for name in (tables[0] if tables else ())
        if name.startswith("1-") and name.endswith("-grpo")
    }
    text = "; ".join(f"{name.removeprefix('1-')} {first:.3f} to {last:.3f}" for name, (first, last) in rates.items())
    holds = all(last <= HALF * first + ROUNDING for first, last in rates.values())
    return _holds(holds, *(rate for pair in rates.values() for rate in pair)) if rates else None, f"{text}."


def is_not_safe(found: Found) -> tuple[bool | None, str]:
    """H7: some attack hacks at least half of the utterances, whatever the defence."""
    known = [defence for defence in found.preset.defences if found.finished(defence)]
    worst = {d: max((_rate(found, d, label), label) for label in found.preset.attacks) for d in known}
    safest = min(worst, key=lambda defence: worst[defence])
    rate, label = worst[safest]
    return _holds(
        rate >= HALF - ROUNDING, *(each for each, _ in worst.values())
    ), f"The lowest worst case is {rate:.3f}, of {safest} by {label}; below {HALF:g} would refute."


def _holds(holds: bool, *numbers: float) -> bool | None:
    """What a rule says, or None where a number that it stands on is undefined."""
    return bool(holds) if np.isfinite(numbers).all() else None


RULES: dict[str, Callable[[Found], tuple[bool | None, str]]] = {
    "H1, the loop mends what it meets": mends,
    "H2, better than random pairs": beats_random,
    "H3, and nothing else": stays_narrow,
    "H4, at little cost": keeps_its_scores,
    "H5, success falls within the loop": falls_in_the_loop,
    "H6, old attackers stay beaten": forgets_nothing,
    "H7, no defence is safe": is_not_safe,
}


def successes(found: Found, defence: str) -> dict[str, dict[tuple[str, str], float]]:
    """By attack: (seed, utterance) -> 1 where a fresh attacker succeeds, void votes counted, else 0."""
    made: dict[str, dict[tuple[str, str], float]] = {}
    for folder in found.finished(defence):
        for label in found.preset.attacks:
            stored = rows.read(folder / label / "rows.parquet")
            judged, hack = judgements(stored, *_rules(folder / label), void_votes=True)
            for row, known, success in zip(stored, judged, hack, strict=True):
                if known and not row["baseline"]:
                    seed = folder.name.rpartition("-")[2]
                    made.setdefault(label, {})[seed, row["utterance"]] = float(success)
    return made


def difference(found: Found, a: Mapping[tuple, float], b: Mapping[tuple, float]) -> tuple[float, float, float]:
    """Mean of a − b over what both have, with a 95 % interval from resampling whole speakers."""
    speakers = {row["id"]: row["speaker"] for row in _scores(found.finished(UNDEFENDED)[0])}
    groups: dict[str, list[float]] = {}
    for key in a.keys() & b.keys():
        groups.setdefault(speakers[key[-1]], []).append(a[key] - b[key])
    if not groups:
        return math.nan, math.nan, math.nan
    sums = np.array([[sum(groups[name]), len(groups[name])] for name in sorted(groups)])
    drawn = np.random.default_rng(0).integers(len(sums), size=(RESAMPLES, len(sums)))
    totals = sums[drawn].sum(axis=1)
    low, high = np.percentile(totals[:, 0] / totals[:, 1], [2.5, 97.5])
    return float(sums[:, 0].sum() / sums[:, 1].sum()), float(low), float(high)


def picture(results: Path) -> None:
    """Draws ``in_loop.svg`` of every preset: success within the loop over several spaces, by round and seed."""
    for preset in PRESETS.values():
        found = Found(preset, results / preset.name)
        stored = [
            json.loads((folder / "patch/summary.json").read_text())["rounds"] for folder in found.finished(MULTI)
        ]
        if stored:
            address = figures.by_round([_seeds(each) for each in zip(*stored, strict=True)])
            (found.folder / "in_loop.svg").write_bytes(base64.b64decode(address.partition(",")[2]))


def _seeds(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One round of several seeds as one."""
    rates = {name: [r["in_loop"][name]["mean_attack_success_rate"] for r in each] for name in each[0]["in_loop"]}
    entries = {name: {"rates": own, "mean_attack_success_rate": float(np.mean(own))} for name, own in rates.items()}
    return {"round": each[0]["round"], "in_loop": entries}


def _met(found: Found) -> list[str]:
    return [label for label, attack in found.preset.attacks.items() if attack.met]


def _rate(found: Found, defence: str, label: str) -> float:
    """Success of a fresh attack, void votes counted, mean over seeds."""
    return float(
        np.mean([_attacker(folder / label)["attack_success_rate_void"] for folder in found.finished(defence)])
    )


def _attacker(folder: Path) -> dict[str, Any]:
    """The one attacker's entry of an audit's summary."""
    (entry,) = (a for a in _summary(folder)["attackers"] if not a["baseline"])
    return entry


@cache
def _summary(folder: Path) -> dict[str, Any]:
    return summary(rows.read(folder / "rows.parquet"), *_rules(folder))


def _rules(folder: Path) -> tuple[float, dict[str, Rule]]:
    record = json.loads((folder / "run.json").read_text())["record"]
    return record["settings"]["tau"], {name: Rule(**rule) for name, rule in record["panel"].items()}


def _scores(folder: Path) -> list[dict[str, str]]:
    with (folder / "scores.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def _mean(values: Sequence[float | None], form: str) -> str:
    return page.number(float(np.mean(np.array(values, float))), form)


def _spread(rates: Sequence[float | None]) -> str:
    """Mean ± standard deviation over seeds, and in brackets the worst."""
    if len(rates) < 2:
        return _mean(rates, ".3f")
    values = np.array(rates, float)
    deviation, worst = (page.number(float(f(values)), ".3f") for f in (partial(np.std, ddof=1), np.max))
    return f"{_mean(rates, '.3f')} ± {deviation} ({worst})"


def _interval(value: float, low: float, high: float) -> str:
    return f"{value:+.3f} ({low:+.3f} to {high:+.3f})"


def _intervals(differences: Mapping[str, tuple[float, float, float]]) -> str:
    return "; ".join(f"{label} {_interval(*d)}" for label, d in differences.items()) + "."
