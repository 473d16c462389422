"""The results of a suite of audits, from their stored rows alone: the worst case of one predictor."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from jaxhack import checks, rows, run
from jaxhack.checks import known, percent
from jaxhack.detect import Rule
from jaxhack.report import page
from jaxhack.stats.success import summary as summarise
from jaxhack.stats.worst import choose_epsilon, worst_case

RATES = ("attack_success_rate", "attack_success_rate_naive", "attack_success_rate_void", "void_rate", "degraded_rate")
COUNTS = ("queries", "gradients", "n", "n_undetermined", "n_failed")


def make(folder: Path) -> dict[str, Any]:
    """Writes ``summary.json``, ``table.csv``, ``rows.parquet`` and ``report.html`` of a suite's folder.

    Returns:
      What ``summary.json`` holds: the worst case of :func:`jaxhack.stats.worst_case` over the test utterances, at the
      chosen budgets where there were several; ``lines``, one an audit; ``chosen_epsilon`` by space, and
      ``validation``, the number of utterances it was chosen on; ``left_out`` and why; ``unfinished``, audits that are
      still to be made.

    Raises:
      ValueError: no audit of the suite has been finished.
    """
    stored = run.read(folder / run.RECORD)
    record = stored["record"]
    validation = set(record["validation"])
    legs = {name: leg for name, leg in record["legs"].items() if (folder / name / "summary.json").exists()}
    if not legs:
        raise ValueError(f"{folder} holds no finished audit: go on with --resume first.")
    audits = {name: run.read(folder / name / run.RECORD)["record"] for name in legs}
    own = {name: json.loads((folder / name / "summary.json").read_text(encoding="utf-8")) for name in legs}
    found = {name: rows.read(folder / name / "rows.parquet") for name in legs}
    panels = {name: {m: Rule(**rule) for m, rule in audit["panel"].items()} for name, audit in audits.items()}
    tau, panel = next(iter(legs.values()))["tau"], next(iter(panels.values()))
    part = {
        name: (
            [row for row in of if row["utterance"] in validation],
            [row for row in of if row["utterance"] not in validation],
        )
        for name, of in found.items()
    }
    chosen = _chosen(legs, {name: of[0] for name, of in part.items()}, tau, panel) if validation else {}
    counted = {
        name: part[name][1]
        for name, settings in legs.items()
        if not chosen or chosen[settings["space"]] == settings["epsilon"]
    }
    result = {
        "predictor": record["predictor"],
        "versions": stored["versions"],
        "utterances": len({row["utterance"] for of in counted.values() for row in of}),
        "validation": len(validation),
        "chosen_epsilon": chosen,
        **worst_case(counted, tau, panel),
        "left_out": record["left_out"],
        "unfinished": [name for name in record["legs"] if name not in legs],
        "panel": {name: rule._asdict() for name, rule in panel.items()},
    }
    summaries = result.pop("audits")
    shown = {name: summaries.get(name) or summarise(part[name][1], tau, panel) for name in legs}
    result["lines"] = [
        _line(name, legs[name], audits[name]["space"]["name"], success, name in counted)
        | {"warnings": len(own[name]["warnings"])}
        for name, success in shown.items()
    ]
    result["inputs"] = {key: own[name]["inputs"][key] for name in list(legs)[:1] for key in ("train", "test")} | {
        "unread": list(dict.fromkeys(file for of in own.values() for file in of["inputs"]["unread"]))
    }
    result["warnings"] = list(checks.across(record, result))
    result = page.plain(result)
    rows.write(folder / "rows.parquet", [row for of in found.values() for row in of])
    run.write_json(folder / "summary.json", result)
    run.write_text(folder / "table.csv", _csv(result["lines"]))
    run.write_text(folder / "report.html", html(result))
    return result


def _chosen(
    legs: Mapping[str, Mapping[str, Any]], of: Mapping[str, Sequence], tau: float, panel: Mapping[str, Rule]
) -> dict[str, float]:
    """The budget of each space, from validation rows."""
    found: dict[str, dict[float, Any]] = {}
    for name, settings in legs.items():
        # Random actions are the same whatever attacker stands beside them: the first will do.
        found.setdefault(settings["space"], {}).setdefault(settings["epsilon"], summarise(of[name], tau, panel))
    return {space: choose_epsilon(summaries) for space, summaries in found.items()}


def _line(
    name: str, settings: Mapping[str, Any], space: str, success: Mapping[str, Any], counted: bool
) -> dict[str, Any]:
    """One audit as a line of the table: its worst attacker's figures, and the controls beside it."""
    mine = [a for a in success["attackers"] if not a["baseline"]]
    controls = {a["attacker"]: a for a in success["attackers"] if a["baseline"]}
    worst = max(mine, key=lambda a: -1.0 if a["attack_success_rate"] is None else a["attack_success_rate"])
    return {
        "audit": name,
        "space": space,
        "epsilon": settings["epsilon"],
        "attacker": settings["attacker"],
        "seeds": len(mine),
        "counted": counted,
        **{key: worst[key] for key in (*RATES, "mean_gain", *COUNTS)},
        "interval": worst["interval"],
        "mean_change": worst["mean_change"],
        "any_attacker_success_rate": success["any_attacker_success_rate"],
        "random": controls["random"]["attack_success_rate"],
        "random_gain": controls["random"]["mean_gain"],
        "random_degraded_rate": controls["random"]["degraded_rate"],
        "random_best": controls["random_best"]["attack_success_rate"],
        "random_best_gain": controls["random_best"]["mean_gain"],
        "random_best_queries": controls["random_best"]["queries"],
    }


def headline(summary: Mapping[str, Any]) -> str:
    """The result as one sentence."""
    name, rate = summary["predictor"], summary["any_attack_success_rate"]
    if not known(rate):
        return f"Nothing can be said about {name}: none of {summary['utterances']} utterances could be judged."
    what = f"{summary['any_attack_n']} utterances"
    if rate == 0:
        tried = sum(line["counted"] for line in summary["lines"])
        return f"None of {tried} kinds of attack hacked {name} on any of {what}."
    return (
        f"{name} can be hacked on {percent(rate)} of {what} by one attack or another; the strongest single attacker, "
        f"{summary['worst_attack']}, hacks {percent(summary['worst_attack_success_rate'])}."
    )


def html(summary: Mapping[str, Any]) -> str:
    """One self-contained page; the audits' own pages are linked."""
    void = any(line["void_rate"] for line in summary["lines"])
    return page.render("suite.html", s=summary, headline=headline(summary), void=void)


def table(summary: Mapping[str, Any]) -> Table:
    """The worst case and its lines, for a terminal of 80 columns."""
    low, high = summary["any_attack_interval"]
    made = Table(
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        caption_justify="left",
        caption=f"{headline(summary)}\nhacked: share of utterances, of the worst of the seeds; of any attack 95 %: "
        f"{low:.2f}–{high:.2f}; worse: share of outputs that the panel calls worse. Rates of different spaces do not "
        "compare.",
    )
    made.add_column("space", no_wrap=True)
    made.add_column("attacker", no_wrap=True)
    for head in ("ε", "hacked", "gain", "worse", "random", "best of n", "n"):
        made.add_column(head, justify="right", no_wrap=True)
    for line in summary["lines"]:
        made.add_row(
            line["space"],
            line["attacker"],
            f"{line['epsilon']:.3g}",
            page.number(line["attack_success_rate"], ".3f"),
            page.number(line["mean_gain"], "+.2f"),
            page.number(line["degraded_rate"], ".2f"),
            page.number(line["random"], ".3f"),
            page.number(line["random_best"], ".3f"),
            str(line["n"]),
            style="bold" if line["audit"] == summary["worst_attack"] else "" if line["counted"] else "dim",
        )
    made.add_row()
    made.add_row(
        "any space",
        "any attack",
        "",
        page.number(summary["any_attack_success_rate"], ".3f"),
        page.number(summary["mean_best_gain"], "+.2f"),
        *["", "", ""],
        str(summary["any_attack_n"]),
        style="bold",
    )
    return made


def _csv(lines: Sequence[Mapping[str, Any]]) -> str:
    """Every line with every digit."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    plain = [key for key, value in lines[0].items() if not isinstance(value, list | dict)]
    changes = list(lines[0]["mean_change"])
    writer.writerow([*plain, "interval_low", "interval_high", *(f"mean_change_{m}" for m in changes)])
    for line in lines:
        writer.writerow([*(line[k] for k in plain), *line["interval"], *(line["mean_change"][m] for m in changes)])
    return out.getvalue()
