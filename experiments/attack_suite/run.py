"""Every family of attack on NISQA and DNSMOS P.808: which space and which attacker finds the worst case?

    python -m experiments.attack_suite.run --shared ../shared --work runs/attack_suite

Can be interrupted and goes on where it stopped. The small files of every finished audit are copied to ``results/``,
from where another machine can go on; the table in ``README.md`` is what ``--table`` prints from them.
"""

import csv
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import jaxhack as jh
from experiments.command import command
from experiments.files import keep, markdown, write_list
from jaxhack.progress import display
from jaxhack.report import suite as report

HERE = Path(__file__).parent
KEPT = ("run.json", "inputs.json", "rows.parquet", "summary.json", "training.jsonl")  # of an audit

PREDICTORS = ("nisqa", "dnsmos-p808")
ATTACKS = {
    "latent": ("grpo", "universal", "pgd", "nes", "square"),
    "quantised": ("grpo", "pgd"),
    "codes": ("codes-search",),
    "waveform": ("pgd", "apgd", "universal", "square"),
    "noise": ("square",),
}
SECONDS = (4.505, 5.4)  # recordings between these: one padded length, one or two windows of DNSMOS
COMMON = {"profile": "standard", "seeds": 1, "steps": 150, "batch": 4, "tau": 0.3, "seed": 0, "panel": "estoi,si_sdr"}
OPTIONS = {name: {"queries": 100} for name in ("nes", "square", "codes-search")}

TINY = {"seeds": 1, "steps": 1, "batch": 2, "group": 2, "crop_seconds": 1.0, "limit": 4}
TINY_ATTACKS = {"waveform": ("pgd",), "noise": ("square",)}
TINY_OPTIONS = {"pgd": {"steps": 1}, "square": {"queries": 2}}

HEADS = ("predictor", "space", "ε", "attacker", "scores, gradients", "hacked", "95 %", "gain", "worse")
HEADS += ("random: hacked, worse", "best of n random: hacked, gain", "void votes counted", "ΔESTOI", "ΔSI-SDR (dB)")


def recordings(shared: Path, work: Path) -> Path:
    """A list of the recordings of `SECONDS`, clean and degraded, with their speakers."""
    with (shared / "speech" / "manifest.csv").open(newline="") as file:
        clean = {row["file"]: row for row in csv.DictReader(file) if SECONDS[0] < float(row["seconds"]) <= SECONDS[1]}
    lines = [(shared / "speech" / name, row["speaker"]) for name, row in clean.items()]
    with (shared / "degraded" / "manifest.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["clean_file"] in clean:
                lines.append((shared / "degraded" / row["file"], clean[row["clean_file"]]["speaker"]))
    return write_list(work / "recordings.csv", [(path.name, path, speaker) for path, speaker in lines])


def run(predictor: str, shared: Path, work: Path, results: Path, *, tiny: bool = False) -> dict:
    """Runs or continues the attacks on one predictor; returns its summary."""
    attacks, options = (TINY_ATTACKS, TINY_OPTIONS) if tiny else (ATTACKS, OPTIONS)
    out, kept = work / predictor, results / predictor
    if not out.exists() and kept.exists():
        shutil.copytree(kept, out)
    with display() as observe:

        def finished(stage: str, done: int, total: int, figures: dict) -> None:
            if stage == "start":
                keep_all(out, kept)
            observe(stage, done, total, figures)

        summary = jh.suite(
            [recordings(shared, work)],
            predictor=predictor,
            codec="lyra",
            models=shared / "models",
            spaces=list(attacks),
            attackers=[f"{space}/{attacker}" for space, kinds in attacks.items() for attacker in kinds],
            options=options,
            out=out,
            resume=(out / "run.json").exists(),
            observe=finished,
            **COMMON | (TINY if tiny else {}),
        )
    keep_all(out, kept)
    return summary


def keep_all(out: Path, kept: Path) -> None:
    """Copies the small files of a suite and of its finished audits."""
    for folder in (out, *(path.parent for path in out.glob("*/*/summary.json"))):
        names = [name for name in KEPT if not (folder == out and name == "rows.parquet")]
        keep(folder, kept / folder.relative_to(out), names)


def table(results: Path) -> str:
    """The results as Markdown: every attack, and the worst case of each predictor."""
    lines = []
    for name in PREDICTORS:
        if (results / name / "run.json").exists():
            with tempfile.TemporaryDirectory() as copy:  # whose report is nobody's
                summary = report.make(Path(shutil.copytree(results / name, copy, dirs_exist_ok=True)))
            lines += [[name, *_cells(line)] for line in summary["lines"]]
            low, high = summary["any_attack_interval"]
            if summary["unfinished"]:
                missing = f"still to be made: {', '.join(summary['unfinished'])}"
                lines.append([name, missing, *[""] * (len(HEADS) - 2)])
            worst = ["any space", "", "any attack", "", f"{summary['any_attack_success_rate']:.3f}"]
            worst += [f"{low:.2f}–{high:.2f}", f"{summary['mean_best_gain']:+.2f}", *[""] * 6]
            lines.append([f"**{cell}**" if cell else "" for cell in [name, *worst]])
    return markdown(HEADS, lines)


def _cells(line: dict) -> list[str]:
    low, high = line["interval"]
    return [
        line["space"],
        f"{line['epsilon']:.3g}",
        line["attacker"],
        f"{line['queries']}, {line['gradients']}",
        f"{line['attack_success_rate']:.3f}",
        f"{low:.2f}–{high:.2f}",
        f"{line['mean_gain']:+.2f}",
        f"{line['degraded_rate']:.2f}",
        f"{line['random']:.3f}, {line['random_degraded_rate']:.2f}",
        f"{line['random_best']:.3f}, {line['random_best_gain']:+.2f} (n = {line['random_best_queries']})",
        f"{line['attack_success_rate_void']:.3f}",
        f"{line['mean_change']['estoi']:+.3f}",
        f"{line['mean_change']['si_sdr']:+.1f}",
    ]


def main(argv: Sequence[str] | None = None) -> None:
    command(__doc__.splitlines()[0], HERE, PREDICTORS, run, table, argv)


if __name__ == "__main__":
    main()
