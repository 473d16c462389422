"""A run's results from its stored files alone: ``summary.json``, ``table.csv``, ``report.html``, a terminal table.

Nothing is computed again that a model computes: the same files give the same bytes, on any machine.
"""

import csv
import io
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

_RATES = ("attack_success_rate", "attack_success_rate_naive")
_GAINS = ("degraded_rate", "mean_gain", "mean_gain_naive", "gain_p90")
_COUNTS = ("seed", "n", "n_undetermined", "n_failed", "queries", "gradients")
_ATTACKER = {
    "attacker": str,
    "baseline": bool,
    "interval": [run.MAYBE],
    "mean_change": {...: run.MAYBE},
    **dict.fromkeys((*_RATES, *_GAINS), run.MAYBE),
    **dict.fromkeys(_COUNTS, int),
}
SUMMARY = {  # what of a summary is read again, as of `run.fits`
    "configuration": {"predictor": {"name": str}, "panel": dict},
    "inputs": {"train": int, "test": int, "unread": [str]},
    "attackers": [_ATTACKER],
    **{f"{which}_{rate}": run.MAYBE for which in ("worst", "mean") for rate in _RATES},
    **dict.fromkeys(("attack_success_rate_sd", "any_attacker_success_rate", "offset"), run.MAYBE),
    "any_attacker_success_rate_naive": run.MAYBE,
    "any_attacker_interval": [run.MAYBE],
    "any_attacker_n": int,
    "warnings": [str],
}

__all__ = ["SUMMARY", "make", "read", "table"]


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
    logged = {"step": int, ...: [run.MAYBE]}
    training = run.read_lines(folder / "training.jsonl", logged, "a log of training", "delete it")
    noted, heard = _noted(folder), run.recordings(folder, record)
    tau = record["settings"]["tau"]
    panel = {name: Rule(**rule) for name, rule in record["panel"].items()}
    success = page.plain(summarise(found, tau, panel))
    certified = certificate.read(folder, record["test"])
    bounds = page.plain(certificate.summary(*certified, record, found)) if certified else None
    result = {
        "configuration": {k: v for k, v in record.items() if k not in ("train", "test")},
        "versions": stored["versions"],
        "weights": {k: v for part in _weighted(record) for k, v in (part.get("weights") or {}).items()},
        "inputs": {
            "train": len(record["train"]),
            "test": len(record["test"]),
            "both": len({*record["train"]} & {*record["test"]}),  # as in the loop of a patching
            "unread": noted["unread"],
        },
        **success,
        "tau_sweep": page.plain(_sweep(found, sorted({*TAUS, tau}), panel)),
        **({"certificate": bounds} if bounds else {}),
        "warnings": [
            *checks.warnings(record, found, success, training, heard),
            *noted["warnings"],
            *(certificate.warnings(bounds) if bounds else []),
        ],
    }
    run.write_json(folder / "summary.json", result)
    run.write_text(folder / "table.csv", _csv(result))
    examples = page.examples(folder / "examples", _examples(folder / "examples" / "examples.json"))
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


def read(folder: Path) -> dict[str, Any]:
    """The summary that :func:`make` left in a run's folder.

    Raises:
      ValueError: it is damaged.
    """
    remedy = f"make it anew by jaxhack report {folder}"
    return run.read_json(folder / "summary.json", SUMMARY, "a run's summary", remedy)


def _noted(folder: Path) -> dict[str, Any]:
    """What a run noted of its recordings."""
    path, remedy = folder / "inputs.json", "delete it, or audit again"
    if not path.exists():
        return {"warnings": [], "unread": []}
    return run.read_json(path, {"warnings": [str], "unread": [str]}, "a run's notes on its recordings", remedy)


def _examples(path: Path) -> list[dict[str, Any]]:
    kinds: dict[str, Any] = {
        "label": str,
        "utterance": str,
        "attacker": str,
        "seed": int,
        "files": dict,
        "verdict": str,
    }
    kinds |= dict.fromkeys(("gain", "score_input", "score_reference", "score_attacked"), run.MAYBE)
    if not path.exists():
        return []
    return run.read_json(path, [kinds], "a list of examples", f"delete the folder {path.parent}")
