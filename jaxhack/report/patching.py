"""The results of a patching, from its stored files alone: in-loop success, round by round, and what mending cost."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from jaxhack import checks, run, spaces
from jaxhack.checks import known, percent
from jaxhack.detect import Rule
from jaxhack.measures.panel import default_panel, rules
from jaxhack.report import figures, page
from jaxhack.report.terminal import bare_table
from jaxhack.settings import BLIND, first_look, learns

ROUND = "round.json"  # what a finished round leaves in its folder: pairs found and held, distance
PAIRS = {
    "noise": "Gaussian noise (SNR 5–30\u00a0dB)",
    "pgd": "projected gradient steps",
    "random": "random perturbations",
}
LEARNING = ("steps", "batch", "group", "crop_seconds")  # settings that only a trained attacker has


def make(folder: Path) -> dict[str, Any]:
    """Writes ``summary.json`` and ``report.html`` of a patching's folder.

    Returns:
      What ``summary.json`` holds. Of the run: ``predictor``, what was patched; ``name`` and ``params`` (SHA-256) of
      what came of it, None while the run is not finished; ``source`` of the pairs; ``labels``; the numbers of
      ``recordings``, unattacked ``clips`` and ``planned`` rounds; ``unread``, which recordings gave nothing, and why;
      ``distance_before`` the first round, the mean squared error (MOS²) of the scores of those clips against what
      they should be; ``warnings``; and ``rounds``. Of each round: ``in_loop``, attack -> success rates of its fresh
      attackers on the recordings that they learn from,
      ``offset``, ``mean_gain`` (MOS) and pairs ``found``; ``pairs`` held and ``distance`` after it; ``name`` and
      ``params`` of what it left. Of a round that is not finished its finished attacks are there; the rest is None.

    Raises:
      ValueError: no attack of the first round has been finished, or a file is damaged.
    """
    stored = run.read(folder / run.RECORD)
    record = stored["record"]
    noted, final = _noted(folder), _patched(folder)
    rounds = [_round(folder, number, record) for number in range(1, record["recipe"]["rounds"] + 1)]
    rounds = [found for found in rounds if found["in_loop"]]
    if not rounds:
        raise ValueError(f"{folder} holds no finished attack of a patching: go on with --resume first.")
    result = {
        **final,
        "predictor": record["predictor"]["name"],
        "source": record["recipe"]["source"],
        "labels": record["labels"],
        "recordings": len(record["train"]),
        "unread": list(noted.get("unread") or []),
        "clips": noted.get("clips"),
        "distance_before": noted.get("distance"),
        "planned": record["recipe"]["rounds"],
        "versions": stored["versions"],
        "rounds": rounds,
    }
    result = page.plain(result)
    result["warnings"] = [*checks.patching(record, result), *noted.get("warnings", ())]
    fits = {
        found["round"]: run.read_lines(
            folder / "rounds" / str(found["round"]) / "fit" / "fitting.jsonl",
            {"step": int, ...: run.NUMBER},
            "a log of fitting",
            "delete it",
        )
        for found in rounds
    }
    run.write_json(folder / "summary.json", result)
    run.write_text(folder / "report.html", html(result, record, fits))
    return result


def _round(folder: Path, number: int, record: Mapping[str, Any]) -> dict[str, Any]:
    """What a round has left so far."""
    at = Path("rounds", str(number))
    after = read_round(folder / at, record) or {}
    found = {name: _attack(folder, at / name, after.get("found", {}).get(name)) for name in record["sources"]}
    return {
        "round": number,
        "in_loop": {name: entry for name, entry in found.items() if entry},
        "pairs": after.get("pairs"),
        "distance": after.get("distance"),
        **_patched(folder / at),
    }


def read_round(folder: Path, record: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a finished round left in its folder: pairs ``found`` by attack, ``pairs`` held, ``distance``; else None.

    Raises:
      ValueError: it is damaged.
    """
    found: dict[Any, Any] = {**dict.fromkeys(record["sources"], int), ...: ()}
    return _json(folder / ROUND, {"found": found, "pairs": int, "distance": run.MAYBE}, "a round's record")


def _noted(folder: Path) -> dict[str, Any]:
    kinds = {"warnings": [str], "unread": [str], "clips": int, "distance": run.MAYBE}
    return _json(folder / "inputs.json", kinds, "a patching's notes on its recordings") or {}


def _attack(folder: Path, at: Path, pairs: int | None) -> dict[str, Any] | None:
    """One attack of a round; of pairs that nobody judged, only their number. None: not finished."""
    if not (folder / at / "summary.json").exists():
        return None if pairs is None else {"found": pairs}
    rates = ("worst_attack_success_rate", "mean_attack_success_rate", "offset")
    attacker = {"baseline": bool, "attack_success_rate": run.MAYBE, "mean_gain": run.MAYBE, "n": int}
    kinds: dict[str, Any] = {"attackers": [attacker], "warnings": [str], **dict.fromkeys(rates, run.MAYBE)}
    remedy = f"make it anew by jaxhack report {folder / at}"
    summary = run.read_json(folder / at / "summary.json", kinds, "a run's summary", remedy)
    trained = [a for a in summary["attackers"] if not a["baseline"]]
    gains = [a["mean_gain"] for a in trained if known(a["mean_gain"])]
    page_at = at / "report.html"
    return {
        **{key: summary[key] for key in rates},
        "rates": [a["attack_success_rate"] for a in trained],
        "mean_gain": sum(gains) / len(gains) if gains else None,
        "n": max((a["n"] for a in trained), default=0),
        "found": pairs,
        "warnings": len(summary["warnings"]),
        "report": page_at.as_posix() if (folder / page_at).exists() else None,
    }


def _patched(folder: Path) -> dict[str, Any]:
    """Name of the patched predictor in a folder and SHA-256 of its params; None where there is none yet."""
    kinds = dict.fromkeys(("name", "params"), str)
    record = _json(folder / "patched" / "patched.json", kinds, "a patched predictor's record") or {}
    return {key: record.get(key) for key in kinds}


def _json(path: Path, kinds: Mapping[str, Any], what: str) -> dict[str, Any] | None:
    """What a file of a patching holds; None where there is none yet."""
    return run.read_json(path, kinds, what, "delete it and go on with --resume") if path.exists() else None


def worst(found: Mapping[str, Any]) -> float | None:
    """The rate of the worst attacker of a round."""
    rates = [entry.get("worst_attack_success_rate") for entry in found["in_loop"].values()]
    return max(filter(known, rates), default=None)


def mean(found: Mapping[str, Any]) -> float | None:
    """The mean rate of a round's attackers, whatever their attack."""
    rates = [rate for entry in found["in_loop"].values() for rate in entry.get("rates", ()) if known(rate)]
    return sum(rates) / len(rates) if rates else None


def headline(summary: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """The result as one sentence."""
    name, rounds = summary["predictor"], summary["rounds"]
    finished, planned = _finished(summary), summary["planned"]
    count = f"{finished} of {planned} rounds" if finished < planned else _times(planned, "round")
    if summary["source"] in BLIND:
        pairs = sum(entry["found"] for found in rounds for entry in found["in_loop"].values())
        return (
            f"{name} was patched in {count} on {_times(pairs, 'pair')} of {PAIRS[summary['source']]}, which no "
            "detector looked at; nothing here measures how hackable it was or is."
        )
    first, last = compared(summary)
    before, after = worst(first), worst(last)
    if not known(before):
        return f"Nothing can be said about {name}: no attack on it could be judged in the first round."
    many = sum(len(entry["rates"]) for entry in first["in_loop"].values())
    sentence = (
        f"{'A' if many == 1 else f'The worst of {many}'} fresh attacker{'' if many == 1 else 's'} hacked {name}"
    )
    sentence += f" on {percent(before)} of its training recordings before patching"
    if last is not first:
        sentence += f", and on {percent(after) if known(after) else 'none that could be judged'} after "
        sentence += _times(last["round"] - 1, "round")
    elif len(rounds) > 1:
        sentence += "; not every attack has been repeated since"
    else:
        sentence += ", and none has met it since"
    small = any(map(first_look, record["sources"].values()))
    so_far = [*(["at a first look"] if small else []), *(["so far"] if summary["name"] is None else [])]
    if so_far:
        sentence = f"{' and '.join(so_far).capitalize()}, {sentence[0].lower()}{sentence[1:]}"
    return f"{sentence}."


def compared(summary: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The first round, and the last in which all of its attacks are finished."""
    first = summary["rounds"][0]
    return first, [found for found in summary["rounds"] if found["in_loop"].keys() == first["in_loop"].keys()][-1]


def _finished(summary: Mapping[str, Any]) -> int:
    return sum(found["pairs"] is not None for found in summary["rounds"])


def _times(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def commands(record: Mapping[str, Any]) -> list[str]:
    """How to audit what the patching left, in every space in which it was attacked: command lines.

    DIR stands for the patching's folder, RECORDINGS for what it was given: its test half is new to the predictor.
    """
    shared = next(iter(record["sources"].values()))
    chains = filter(None, [_chain(name, s["space"]) for name, s in record["sources"].items()])
    first = next(chains, "")  # of spaces without one
    plan: dict[tuple[str, float | None], list[str]] = {}
    for name, s in record["sources"].items():
        epsilon = None if s["epsilon"] == spaces.KINDS[s["space"]].epsilon else s["epsilon"]
        attack = f"{s['space']}/{s['attacker']}"
        if record["recipe"]["source"] == "random":
            attack = f"{s['space']}/{'codes-search' if s['space'] == 'codes' else 'grpo'}"
        elif record["recipe"]["source"] == "noise":  # the budget is of the pairs
            epsilon, attack = None, "latent/grpo"
        plan.setdefault((_chain(name, s["space"]) or first, epsilon), []).append(attack)
    profile = "standard" if shared["profile"] == "quick" else shared["profile"]
    more = [] if record.get("demo") else ["RECORDINGS"]
    panel = {name: Rule(**rule) for name, rule in record["panel"].items()}
    made = []
    for number, ((chain, epsilon), attacks) in enumerate(plan.items(), 1):
        line = ["jaxhack", "audit", *more, "--predictor", "DIR/patched", *(["--codec", chain] if chain else [])]
        line += ["--attacker", ",".join(dict.fromkeys(attacks))]
        line += [] if epsilon is None else ["--epsilon", repr(epsilon)]
        line += [] if shared["tau"] == 0.3 else ["--tau", f"{shared['tau']:g}"]
        if panel != rules(default_panel(16_000)):
            line += ["--panel", ",".join(f"{name}={rule.margin:g}" for name, rule in panel.items())]
        line += [] if shared["limit"] is None else ["--limit", str(shared["limit"])]
        line += ["--seed", str(shared["seed"])] if shared["seed"] else []
        line += ["--profile", profile, "--out", "runs/patched" + (f"-{number}" if len(plan) > 1 else "")]
        made.append(shlex.join(line))
    return made


def _chain(source: str, space: str) -> str:
    """The codec in a source's name: ``latent-lyra/grpo -> lyra``; empty where there is none."""
    return source.rpartition("/")[0].removeprefix(space).removeprefix("-")


def label(source: str, of: str) -> str:
    """How tables call where pairs come from: an attack, or what blind ones are made in."""
    return source.rpartition("/")[0] if of in ("noise", "random") else source


def html(
    summary: Mapping[str, Any], record: Mapping[str, Any], fits: Mapping[int, Sequence[Mapping[str, Any]]]
) -> str:
    """One self-contained page; the audits' own pages are linked.

    Args:
      summary: what ``summary.json`` holds.
      record: ``run.json``'s ``"record"``.
      fits: round -> lines of its ``fitting.jsonl``; may be empty.
    """
    blind = summary["source"] in BLIND
    return page.render(
        "patch.html",
        s=summary,
        headline=headline(summary, record),
        blind=blind,
        ends=compared(summary),
        finished=_finished(summary),
        after=[found for found in summary["rounds"] if found["pairs"] is not None],
        found=sum(entry["found"] or 0 for r in summary["rounds"] for entry in r["in_loop"].values()),
        worst=worst,
        mean=mean,
        label=lambda source: label(source, summary["source"]),
        made_by=PAIRS.get(summary["source"]),
        seed=next(iter(record["sources"].values()))["seed"],
        tau=next(iter(record["sources"].values()))["tau"],
        panel=list(record["panel"]),
        weights=record["predictor"]["weights"],
        preferred="x" if record["recipe"]["prefer_input"] else "x̂",
        capacity=record["recipe"]["capacity"],
        commands=commands(record),
        demo=record.get("demo", False),
        figures=_figures(summary, fits),
        attacks=_attacks(record),
        recipe=list(page.flat({"recipe": record["recipe"], "panel": record["panel"]})),
        ratings=len(record["ratings"]),
    )


def _attacks(record: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Attack, or what else makes pairs -> setting -> its value, a dash where it had no say."""
    source, made = record["recipe"]["source"], {}
    for name, settings in record["sources"].items():
        idle = () if learns(settings) and source not in BLIND else LEARNING
        idle = (*idle, "tau") if source in BLIND else idle
        options = ", ".join(f"{key} {value}" for key, value in settings["options"].items())
        shown = {key: "–" if key in idle or value is None else str(value) for key, value in settings.items()}
        shown = {key: value for key, value in shown.items() if key not in ("space", "attacker", "options")}
        made[label(name, source)] = shown | {"options": options or "–"}
    return made


def _figures(summary: Mapping[str, Any], fits: Mapping[int, Sequence[Mapping[str, Any]]]) -> list[dict[str, str]]:
    """Each figure's address, caption and alternative text."""
    made, rounds = [], summary["rounds"]
    if summary["source"] not in BLIND:
        several = any(len(entry["rates"]) > 1 for r in rounds for entry in r["in_loop"].values())
        dots, apart = " Lines: mean of an attack’s seeds; dots: each seed.", " Lines are set apart a little."
        rates = (
            f"round {r['round']}: "
            + ", ".join(
                f"{name} {page.number(e['mean_attack_success_rate'], '.2f')}" for name, e in r["in_loop"].items()
            )
            for r in rounds
        )
        made.append(
            {
                "src": figures.by_round(rounds),
                "caption": "In-loop success: fresh attackers against the predictor as the round found it, patched in "
                f"the rounds before.{dots if several else ''}{apart if len(rounds[0]['in_loop']) > 1 else ''}",
                "alt": f"In-loop success rate, mean of the seeds, by round. {'; '.join(rates)}.",
            }
        )
    if any(fits.values()):
        made.append(
            {
                "src": figures.fitting(fits),
                "caption": "Fitting: each part of the loss, unweighted, on the batch of a step, one line per round "
                "(long ones as a running mean).",
                "alt": f"Curves of the losses of {_times(sum(map(bool, fits.values())), 'round')}.",
            }
        )
    return made


def table(summary: Mapping[str, Any]) -> Table:
    """What a patching came to, round by round, for a terminal of 80 columns."""
    blind = summary["source"] in BLIND
    told = "pairs: found by each, and held after the round; distance: mean squared error of the scores of unattacked "
    told += (
        f"recordings after it, against {'ratings' if summary['labels'] == 'people' else 'those before the first'}."
    )
    if not blind:
        told = (
            "hacked: of the worst and, as their mean, of all fresh attackers of the round, on the recordings it "
            f"learns from, before it learns; {told}"
        )
    made = bare_table(told)
    made.add_column("round", justify="right")
    made.add_column("pairs of" if blind else "attack", overflow="fold")
    for head in (*(() if blind else ("hacked", "mean", "offset")), "found", "held", "distance"):
        made.add_column(head, justify="right", no_wrap=True)
    for entry in summary["rounds"]:
        after = page.number(entry["pairs"], "d"), page.number(entry["distance"], ".3g")
        for i, (name, found) in enumerate(entry["in_loop"].items()):
            rates = (found.get(key) for key in ("worst_attack_success_rate", "mean_attack_success_rate", "offset"))
            numbers = [page.number(rate, form) for rate, form in zip(rates, (".3f", ".3f", "+.2f"), strict=True)]
            made.add_row(
                "" if i else str(entry["round"]),
                label(name, summary["source"]),
                *([] if blind else numbers),
                page.number(found["found"], "d"),
                *(("", "") if i else after),
            )
    return made
