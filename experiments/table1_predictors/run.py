"""Table I in Lyra's latent space: how hackable are NISQA and DNSMOS P.808?

    python -m experiments.table1_predictors.run --shared ../shared --work runs/table1

Each run can be interrupted and goes on where it stopped. Its small files are copied to ``results/``; ``README.md``'s
table is what ``--table`` prints from them, and ``gains.svg`` is drawn from them at the same time.
"""

import base64
import json
from collections.abc import Sequence
from pathlib import Path

import jaxhack as jh
from experiments.command import command
from experiments.files import keep, markdown
from jaxhack.progress import display
from jaxhack.report import figures

HERE = Path(__file__).parent
KEPT = ("run.json", "rows.parquet", "summary.json", "table.csv", "training.jsonl")

# Half of 170 recordings of ../shared/speech and ../shared/degraded train, half test, by disjoint speakers.
COMMON = {"seeds": 5, "batch": 4, "group": 8, "crop_seconds": 3.0, "tau": 0.3, "limit": 170, "seed": 0}
RUNS = {
    "nisqa_0.5": ("nisqa", {"epsilon": 0.5, "steps": 300}),
    "nisqa_0.3": ("nisqa", {"epsilon": 0.3, "steps": 300}),
    "dnsmos-p808_0.5": ("dnsmos-p808", {"epsilon": 0.5, "steps": 100}),
}
PICTURED = "nisqa_0.3"
HEADS = ("predictor", "ε", "steps", "n", "offset", "mean ASR", "worst ASR", "naive mean ASR", "mean gain")
HEADS += ("one random: ASR, gain", "best of n random", "called worse: attackers, random")
TINY = {"seeds": 1, "steps": 1, "batch": 2, "group": 2, "crop_seconds": 1.0}
# Four speakers, and one padded length: a program less to compile for each that is saved.
TINY_SPEECH = ("en_052_vctk_p287_p287_002", "en_116_ls_3331_3331_159605_0001")
TINY_SPEECH += ("en_131_ls_1624_1624_142933_0000", "en_163_sb_spk1_spk1_snt1")


def run(name: str, shared: Path, work: Path, results: Path, *, tiny: bool = False) -> dict:
    """Runs or continues one line of the table; returns its summary."""
    predictor, settings = RUNS[name]
    out = work / name
    folders = [shared / "speech", shared / "degraded"]
    with display() as observe:
        summary = jh.audit(
            [shared / "speech" / f"{clip}.flac" for clip in TINY_SPEECH] if tiny else folders,
            predictor=predictor,
            codec="lyra",
            models=shared / "models",
            out=out,
            resume=(out / "run.json").exists(),
            observe=observe,
            **COMMON | settings | (TINY if tiny else {}),
        )
    keep(out, results / name, KEPT)
    return summary


def table(results: Path) -> str:
    """The results as Markdown, one line a run."""
    lines = []
    for name in RUNS:
        file = results / name / "summary.json"
        if file.exists():
            lines.append([RUNS[name][0], *_cells(json.loads(file.read_text()))])
    return markdown(HEADS, lines)


def picture(results: Path, name: str) -> bytes:
    """The histogram of gains in the report of a line, as SVG."""
    tau = json.loads((results / name / "summary.json").read_text())["configuration"]["settings"]["tau"]
    address = figures.gains(jh.rows.read(results / name / "rows.parquet"), tau)
    return base64.b64decode(address.partition(",")[2])


def _cells(s: dict) -> list[str]:
    settings = s["configuration"]["settings"]
    trained = [a for a in s["attackers"] if not a["baseline"]]
    baseline = {a["attacker"]: a for a in s["attackers"] if a["baseline"]}
    best = baseline["random_best"]
    return [
        str(settings["epsilon"]),
        str(settings["steps"]),
        str(trained[0]["n"]),
        f"{s['offset']:+.2f}",
        f"{s['mean_attack_success_rate']:.3f}",
        f"{s['worst_attack_success_rate']:.3f}",
        f"{s['mean_attack_success_rate_naive']:.3f}",
        f"{sum(a['mean_gain'] for a in trained) / len(trained):+.2f}",
        f"{baseline['random']['attack_success_rate']:.3f}, {baseline['random']['mean_gain']:+.2f}",
        f"{best['attack_success_rate']:.3f}, {best['mean_gain']:+.2f} (n = {best['queries']})",
        f"{s['degraded_rate']:.2f}, {s['degraded_rate_baseline']:.2f}",
    ]


def main(argv: Sequence[str] | None = None) -> None:
    results = command(__doc__.splitlines()[0], HERE, RUNS, run, table, argv)
    if (results / PICTURED).exists():
        (results / "gains.svg").write_bytes(picture(results, PICTURED))


if __name__ == "__main__":
    main()
