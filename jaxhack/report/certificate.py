"""What the certificates of a run say: its summary's part ``certificate``, a table, the page's section."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from jaxhack import run
from jaxhack.checks import known
from jaxhack.report import figures, page
from jaxhack.report.terminal import bare_table

RECORD, LINES = "certificates.json", "certificates.jsonl"  # settings; an utterance a line

Line = Mapping[str, Any]


_BOUND = {"radius": run.NUMBER, "upper": run.MAYBE, "reason": str}
_REACHED = {"score": run.MAYBE, "lower": run.MAYBE, "failed": int}
_ATTACK = {"attacker": str, "seed": int, "crossed": bool, **_BOUND, **_REACHED}
_FAILED = {"utterance": str, "status": ("unreadable", "silent", "too_short", "failed"), "reason": str}
_MADE = {"utterance": str, "status": "ok", "budget": (_BOUND, None), "attacks": [_ATTACK], **_REACHED}


def read(folder: Path, test: Sequence[str]) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """Settings and lines of a run's certificates, what a crash cut off left out; None: it has none.

    Args:
      folder: the run's.
      test: ids of its test utterances.

    Raises:
      ValueError: they are damaged, or of others.
    """
    if not ((folder / RECORD).is_file() and (folder / LINES).is_file()):
        return None
    remedy = f"delete {folder / RECORD} and {folder / LINES}, and certify again"
    kinds: dict[str, Any] = dict.fromkeys(("sigma", "percentile", "alpha"), run.NUMBER)
    kinds |= {"predictor": str, "place": str} | dict.fromkeys(("known_draws", "draws", "seed"), int)
    settings = run.read_json(folder / RECORD, kinds, "the settings of certificates", remedy)
    lines = run.read_lines(folder / LINES, (_MADE, _FAILED), "certificates", remedy)
    named = [line["utterance"] for line in lines]
    if len({*named}) < len(named) or not {*named} <= {*test}:
        raise ValueError(f"{folder / LINES} is not of the test recordings of {folder}, each once: {remedy}.")
    return (settings, lines) if lines else None


def summary(
    settings: Mapping[str, Any], lines: Sequence[Line], record: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Counts and medians.

    Args:
      settings: of the certificates.
      lines: one an utterance.
      record: of the run.
      rows: of the run, one per utterance × attacker.

    Returns:
      `settings`, and ``utterances`` with bounds, of ``test``; ``failed``, names without; ``score``, the median at x̂;
      ``attackers``, entries with ``attacker, seed, n``, how many bounds are ``finite``, medians of the distance
      ``radius``, of ``score`` and its ``lower`` bound at y, of the bound ``upper``, and of what is ``left`` between
      both bounds; ``budget``, of what the run's ``epsilon`` allows, the same as far as it has that, and ``no_hack``,
      on how many utterances that gains no more than τ, or None; ``bounds`` at the attacks' distance, ``finite`` ones,
      ``crossed`` ones by name, and how many are ``expected`` to be by chance at most; ``gain_known`` and ``gain``,
      the attacks' mean under the run's fixed draws and under fresh ones.
    """
    made = [line for line in lines if line["status"] == "ok"]
    attacks = [{"utterance": line["utterance"], **attack} for line in made for attack in line["attacks"]]
    by_attacker: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for attack in attacks:
        by_attacker.setdefault((attack["attacker"], attack["seed"]), []).append(attack)
    budgets = [{"lower": line["lower"]} | line["budget"] for line in made if line["budget"]]
    tau, epsilon = record["settings"]["tau"], record["settings"]["epsilon"]
    before = {(r["utterance"], r["attacker"], r["seed"]): r.get("gain") for r in rows}
    gains = [
        (then, a["score"] - line["score"])
        for line in made
        for a in line["attacks"]
        if known(then := before.get((line["utterance"], a["attacker"], a["seed"])))
        and known(a["score"])
        and known(line["score"])
    ]
    return {
        **settings,
        "utterances": len(made),
        "test": len(record["test"]),
        "failed": [line["utterance"] for line in lines if line["status"] != "ok"],
        "score": _median(line["score"] for line in made),
        "attackers": [
            {"attacker": attacker, "seed": seed, **_bounds(found)}
            | {key: _median(a[key] for a in found) for key in ("lower", "score")}
            | {"left": median(left if known(left := _left(a)) else float("inf") for a in found)}
            for (attacker, seed), found in by_attacker.items()
        ],
        "budget": {
            "epsilon": epsilon,
            **_bounds(budgets),
            "no_hack": sum(left <= tau for left in map(_left, budgets) if known(left)),
        }
        if budgets
        else None,
        "bounds": len(attacks),
        "finite": sum(known(a["upper"]) for a in attacks),
        "crossed": [
            {key: a[key] for key in ("utterance", "attacker", "seed", "lower", "upper")}
            for a in attacks
            if a["crossed"]
        ],
        "expected": 2 * settings["alpha"] * len(attacks),
        "gain_known": sum(then for then, _ in gains) / len(gains) if gains else None,
        "gain": sum(now for _, now in gains) / len(gains) if gains else None,
    }


def warnings(certificate: Mapping[str, Any]) -> list[str]:
    """What a reader of the certificates must know first."""
    crossed = certificate["crossed"]
    if not crossed:
        return []
    named = ", ".join(f"{a['utterance']} by {a['attacker']} {a['seed']}" for a in crossed[:3])
    more = f" and {len(crossed) - 3} more" if len(crossed) > 3 else ""
    return [
        f"{len(crossed)} of {certificate['bounds']} attacks surely reached more than their certificate allows "
        f"({named}{more}). By chance at most {certificate['expected']:.2g} are expected: certify with another "
        "--seed, and if they stay, something is wrong with the bound or its noise."
    ]


def figure(lines: Sequence[Line]) -> dict[str, str]:
    """The figure's address, caption and alternative text."""
    made = [line for line in lines if line["status"] == "ok" and known(line["score"])]
    best = [max(line["attacks"], key=lambda a: a["lower"] if known(a["lower"]) else -1e9) for line in made]
    budget = [line["budget"]["upper"] for line in made if line["budget"]]
    sized = len(budget) == len(made) > 0
    bounds = [attack["upper"] for attack in best]
    return {
        "src": figures.certified(
            [line["score"] for line in made],
            [attack["lower"] for attack in best],
            bounds,
            budget if sized else None,
        ),
        "caption": "What the best attack on each utterance surely reached, and what no perturbation as far from x̂ "
        "as it exceeds" + (", nor any within the run’s budget." if sized else "."),
        "alt": f"Certified bounds of {len(made)} utterances, {sum(map(known, bounds))} of them finite.",
    }


def _within(certificate: Mapping[str, Any]) -> str:
    """What the bounds say of every attack within the budget, as a sentence."""
    budget = certificate["budget"]
    if budget is None:
        return ""
    return f"On {budget['no_hack']} of {budget['n']} utterances nothing within ε gains more than τ. "


def table(certificate: Mapping[str, Any]) -> Table:
    """The certificates for a terminal of 80 columns.

    Args:
      certificate: as :func:`summary` returns it.
    """
    share = 1 - certificate["alpha"]
    made = bare_table(
        "Medians over utterances, of the exact percentile under noise (MOS). r: ℓ2 distance of y from x̂; y ≥: what "
        "the attack surely reached; bound: what nothing at that distance exceeds; left: between these two; finite: "
        "utterances with a bound; crossed: those whose attack surely exceeds it. "
        f"{_within(certificate)}Each bound is right with probability {share:g} ({certificate['draws']} fresh "
        f"draws, σ = {certificate['sigma']:g} in {certificate['place']}).",
    )
    made.add_column("attacker", overflow="fold")
    for head in ("r / σ", "x̂", "y", "y ≥", "bound", "left", "finite", "crossed"):
        made.add_column(head, justify="right", no_wrap=True)
    score = page.number(certificate["score"], ".2f")
    for e in certificate["attackers"]:
        crossed = sum((a["attacker"], a["seed"]) == (e["attacker"], e["seed"]) for a in certificate["crossed"])
        made.add_row(
            f"{e['attacker']} {e['seed']}",
            _in_sigma(e, certificate),
            score,
            *(page.number(e[key], ".2f") for key in ("score", "lower", "upper", "left")),
            f"{e['finite']} of {e['n']}",
            str(crossed),
        )
    if budget := certificate["budget"]:
        made.add_row(
            f"any, ε = {budget['epsilon']:g}",
            _in_sigma(budget, certificate),
            score,
            "",
            "",
            page.number(budget["upper"], ".2f"),
            "",
            f"{budget['finite']} of {budget['n']}",
            "",
        )
    return made


def _in_sigma(entry: Mapping[str, Any], certificate: Mapping[str, Any]) -> str:
    return page.number(entry["radius"] / certificate["sigma"], ".2f")


def _bounds(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of several bounds: their number, how many are finite, medians of distance and bound; None is above all."""
    return {
        "n": len(found),
        "finite": sum(known(b["upper"]) for b in found),
        "radius": median(b["radius"] for b in found),
        "upper": median(b["upper"] if known(b["upper"]) else float("inf") for b in found),
    }


def _left(attack: Mapping[str, Any]) -> float | None:
    """Between the bound and what is surely reached."""
    upper, lower = attack["upper"], attack["lower"]
    return upper - lower if known(upper) and known(lower) else None


def _median(values: Any) -> float | None:
    found = [value for value in values if known(value)]
    return median(found) if found else None
