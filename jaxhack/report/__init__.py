"""A run's results from its stored files alone: ``summary.json``, ``table.csv``, ``report.html``, a terminal table.

Nothing is computed again that a model computes: the same files give the same bytes, on any machine.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from jaxhack import checks, rows, run
from jaxhack.checks import known
from jaxhack.detect import Rule
from jaxhack.report import certificate, page
from jaxhack.report.terminal import bare_table
from jaxhack.stats.success import summary as summarise
from jaxhack.stats.success import tau_sweep

TAUS = tuple(round(0.1 * i, 1) for i in range(1, 11))  # MOS; the paper's sweep

__all__ = ["make", "table"]


def make(folder: str | Path) -> dict[str, Any]:
    """Writes a run's summary, table and report beside its rows.

    Args:
      folder: holds ``run.json`` and ``rows.parquet``; ``training.jsonl``, ``recordings.jsonl``, ``inputs.json`` and
        ``examples/examples.json`` are used where they are, and so are ``certificates.json``, ``certificates.jsonl``.

    Returns:
      What ``summary.json`` holds: ``configuration``, ``versions``, ``weights``, ``inputs``, the success rates of
      :func:`jaxhack.stats.success.summary`, ``tau_sweep``, ``warnings``, and, where it has certificates,
      :func:`jaxhack.report.certificate.summary` of them as ``certificate``. Undefined numbers are None.

    Raises:
      ValueError: if the folder holds no finished run.
    """
    folder = Path(folder)
    if not all((folder / name).exists() for name in (run.RECORD, "rows.parquet")):
        raise ValueError(
            f"{folder} holds no finished run ({run.RECORD}, rows.parquet): finish it with --resume first."
        )
    stored, found = run.read(folder / run.RECORD), rows.read(folder / "rows.parquet")
    record, keys = stored["record"], [(row["utterance"], row["attacker"], row["seed"]) for row in found]
    arms = len({key[1:] for key in keys})
    if {key[0] for key in keys} != set(record["test"]) or not len(keys) == len(set(keys)) == arms * len(
        record["test"]
    ):
        raise ValueError(
            f"{folder / 'rows.parquet'} does not hold one row per attacker for each of the {len(record['test'])} "
            "test utterances in run.json: delete it and compute it again with --resume."
        )
    training, noted = run.read_lines(folder / "training.jsonl"), _read(folder / "inputs.json") or {}
    tau = record["settings"]["tau"]
    panel = {name: Rule(**rule) for name, rule in record["panel"].items()}
    success = page.plain(summarise(found, tau, panel))
    certified = certificate.read(folder)
    bounds = page.plain(certificate.summary(*certified, record, found)) if certified else None
    result = {
        "configuration": {k: v for k, v in record.items() if k not in ("train", "test")},
        "versions": stored["versions"],
        "weights": {k: v for part in _weighted(record) for k, v in (part.get("weights") or {}).items()},
        "inputs": {
            "train": len(record["train"]),
            "test": len(record["test"]),
            "both": len({*record["train"]} & {*record["test"]}),  # as in the loop of a patching
            "unread": list(noted.get("unread") or []),
        },
        **success,
        "tau_sweep": page.plain(_sweep(found, sorted({*TAUS, tau}), panel)),
        **({"certificate": bounds} if bounds else {}),
        "warnings": [
            *checks.warnings(record, found, success, training, run.read_lines(folder / "recordings.jsonl")),
            *(noted.get("warnings") or []),
            *(certificate.warnings(bounds) if bounds else []),
        ],
    }
    run.write_json(folder / "summary.json", result)
    run.write_text(folder / "table.csv", _csv(result))
    examples = page.examples(folder / "examples", _read(folder / "examples" / "examples.json") or [])
    figure = certificate.figure(certified[1]) if certified else None
    run.write_text(folder / "report.html", page.html(result, found, training, examples, figure))
    return result


def table(summary: Mapping[str, Any]) -> Table:
    """The success rates for a terminal of 80 columns.

    Args:
      summary: as :func:`make` returns it.
    """
    made = bare_table(
        "hacked: share with gain > τ that the panel calls worse; naive: against the raw "
        "input; worse: share the panel calls worse; gain: mean, MOS; undet.: no verdict. "
        f"The chain alone moves the score by {page.number(summary['offset'], '+.2f')} MOS; the same audio twice "
        f"differs by {page.number(summary['repeat_sd'], '.2g')} (sd).\n{page.settings(summary)}",
    )
    made.add_column("attacker", min_width=26, max_width=26)
    for head in ("hacked", "95 %", "naive", "worse", "gain", "n", "undet."):
        made.add_column(head, justify="right", no_wrap=True)
    for block in page.blocks(summary):
        if block and made.row_count:
            made.add_row()
        for entry in block:
            made.add_row(*_cells(entry), style="bold" if entry["role"] == "worst attacker" else None)
    return made


def _cells(entry: Mapping[str, Any]) -> list[str]:
    low, high = entry["interval"]
    between = f"{low:.2f}–{high:.2f}" if known(low) and known(high) else "–"
    numbers = [
        page.number(entry[key], fmt)
        for key, fmt in (
            ("attack_success_rate", ".3f"),
            ("attack_success_rate_naive", ".3f"),
            ("degraded_rate", ".3f"),
            ("mean_gain", "+.2f"),
            ("n", "d"),
            ("n_undetermined", "d"),
        )
    ]
    return [entry["label"], numbers[0], between, *numbers[1:]]


def _sweep(found: Sequence[Mapping[str, Any]], taus: Sequence[float], panel: Mapping[str, Rule]) -> list[dict]:
    """Success rates by τ: ``tau, worst, mean, random, random_best``."""
    made = []
    for tau, success in zip(taus, tau_sweep(found, taus, panel), strict=True):
        baselines = {
            checks.kind(a["attacker"]): a["attack_success_rate"] for a in success["attackers"] if a["baseline"]
        }
        made.append(
            {
                "tau": tau,
                "worst": success["worst_attack_success_rate"],
                "mean": success["mean_attack_success_rate"],
                "random": baselines.get("random"),
                "random_best": baselines.get("random_best"),
            }
        )
    return made


def _csv(summary: Mapping[str, Any]) -> str:
    """The table with every digit, one line per row of the report's."""
    measures = list(summary["configuration"]["panel"])
    rates = ("attack_success_rate", "attack_success_rate_naive")
    plain_keys = (*rates, "mean_gain", "gain_p90", "mean_gain_naive", "degraded_rate")
    counts = ("queries", "gradients", "n", "n_undetermined", "n_failed")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    changes = [f"mean_change_{m}" for m in measures]
    writer.writerow(["role", "attacker", "seed", *plain_keys, "interval_low", "interval_high", *changes, *counts])
    for block in page.blocks(summary):
        for e in block:
            values = [e[k] for k in plain_keys] + e["interval"] + [e["mean_change"].get(m) for m in measures]
            writer.writerow([e["role"], e["attacker"], e["seed"], *values, *(e[k] for k in counts)])
    return out.getvalue()


def _weighted(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What in a record has weights: the space, the measures, the predictors that judge and are attacked."""
    return [record["space"], *(record.get("measures") or {}).values(), record["predictor"], record.get("target", {})]


def _read(path: Path) -> Any:
    """A JSON file's content; None where there is none.

    Raises:
      ValueError: naming the file, if it is not JSON.
    """
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({error}): repeat the run with --overwrite.") from error
