"""The results of a suite of audits, from their stored rows alone: the worst case of one predictor."""

import csv
import io
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from jaxhack import checks, rows, run
from jaxhack.checks import known, percent
from jaxhack.detect import Rule
from jaxhack.report import SUMMARY, page
from jaxhack.report.terminal import bare_table
from jaxhack.stats.success import summary as summarise
from jaxhack.stats.worst import choose_epsilon, worst_case

RATES = ("attack_success_rate", "attack_success_rate_naive", "attack_success_rate_void", "void_rate", "degraded_rate")
COUNTS = ("queries", "gradients", "n", "n_undetermined", "n_failed")


class Audit(NamedTuple):
    """What one finished audit of a suite left behind."""

    settings: Mapping[str, Any]
    record: Mapping[str, Any]
    summary: Mapping[str, Any]
    rows: Sequence[rows.Row]

    @property
    def panel(self) -> dict[str, Rule]:
        """Measure -> rule."""
        return {name: Rule(**rule) for name, rule in self.record["panel"].items()}


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
    record, validation = stored["record"], set(stored["record"]["validation"])
    audits = {name: _read(folder / name, s) for name, s in record["legs"].items() if _finished(folder / name)}
    if not audits:
        raise ValueError(f"{folder} holds no finished audit: go on with --resume first.")
    first = next(iter(audits.values()))
    tau, panel = first.settings["tau"], first.panel
    test = {name: [row for row in a.rows if row["utterance"] not in validation] for name, a in audits.items()}
    chosen = _chosen(audits, validation, tau, panel) if validation else {}
    counted = [
        n
        for n, a in audits.items()
        if chosen.get(a.settings["space"], a.settings["epsilon"]) == a.settings["epsilon"]
    ]
    worst = worst_case({name: test[name] for name in counted}, tau, panel)
    found = worst.pop("audits")
    result = {
        "predictor": record["predictor"],
        "versions": stored["versions"],
        "utterances": len({row["utterance"] for name in counted for row in test[name]}),
        "validation": len(validation),
        "chosen_epsilon": chosen,
        **worst,
        "left_out": record["left_out"],
        "unfinished": [name for name in record["legs"] if name not in audits],
        "panel": {name: rule._asdict() for name, rule in panel.items()},
        "lines": [
            _line(name, audit, found.get(name) or summarise(test[name], tau, panel), name in counted)
            for name, audit in audits.items()
        ],
        "inputs": {key: first.summary["inputs"][key] for key in ("train", "test")}
        | {"unread": list(dict.fromkeys(file for a in audits.values() for file in a.summary["inputs"]["unread"]))},
    }
    result = page.plain(result | {"warnings": list(checks.across(record, result))})
    rows.write(folder / "rows.parquet", [row for audit in audits.values() for row in audit.rows])
    run.write_json(folder / "summary.json", result)
    run.write_text(folder / "table.csv", _csv(result["lines"]))
    run.write_text(folder / "report.html", html(result))
    return result


def _finished(folder: Path) -> bool:
    return (folder / "summary.json").exists()


def _read(folder: Path, settings: Mapping[str, Any]) -> Audit:
    remedy, kinds = f"make it anew by jaxhack report {folder}", {key: SUMMARY[key] for key in ("inputs", "warnings")}
    summary = run.read_json(folder / "summary.json", kinds, "a run's summary", remedy)
    return Audit(settings, run.read(folder / run.RECORD)["record"], summary, rows.read(folder / "rows.parquet"))


def _chosen(
    audits: Mapping[str, Audit], validation: Container[str], tau: float, panel: Mapping[str, Rule]
) -> dict[str, float]:
    """The budget of each space, from the rows of validation utterances."""
    found: dict[str, dict[float, Any]] = {}
    for audit in audits.values():
        space, epsilon = audit.settings["space"], audit.settings["epsilon"]
        if epsilon not in found.setdefault(space, {}):  # random actions are the same beside every attacker
            mine = [row for row in audit.rows if row["utterance"] in validation]
            found[space][epsilon] = summarise(mine, tau, panel)
    return {space: choose_epsilon(summaries) for space, summaries in found.items()}


def _line(name: str, audit: Audit, success: Mapping[str, Any], counted: bool) -> dict[str, Any]:
    """One audit as a line of the table: its worst attacker's figures, and the controls beside it."""
    mine = [a for a in success["attackers"] if not a["baseline"]]
    controls = {a["attacker"]: a for a in success["attackers"] if a["baseline"]}
    worst = max(mine, key=lambda a: -1.0 if a["attack_success_rate"] is None else a["attack_success_rate"])
    return {
        "audit": name,
        "space": audit.record["space"]["name"],
        "epsilon": audit.settings["epsilon"],
        "attacker": audit.settings["attacker"],
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
        "warnings": len(audit.summary["warnings"]),
    }


def headline(summary: Mapping[str, Any]) -> str:
    """The result as one sentence."""
    name, rate = summary["predictor"], summary["any_attack_success_rate"]
    if not known(rate):
        return f"Nothing can be said about {name}: none of {summary['utterances']} utterances could be judged."
    what = f"{summary['any_attack_n']} utterances"
    if rate == 0:
        tried = sum(line["counted"] for line in summary["lines"])
        return f"No attack hacked {name} on any of {what}; {tried} {'was' if tried == 1 else 'were'} tried."
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
    made = bare_table(
        f"{headline(summary)}\nhacked: share of utterances, of the worst of the seeds (any attack, 95\u00a0%: "
        f"{low:.2f}–{high:.2f}); gain: mean, MOS (any attack: of the largest on each utterance, hack or not); worse: "
        "share of outputs that the panel calls worse. Rates of different spaces do not compare.",
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
