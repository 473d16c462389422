"""What a certificate is worth on NISQA: how far noise lets one say anything, and what it leaves of the score.

    python -m experiments.certificate.run --shared ../shared --work runs/certificate

audits NISQA behind noise by PGD and certifies each run. Can be interrupted and goes on where it stopped;
``README.md`` holds what ``--table`` prints from the small files in ``results/``.
"""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import jaxhack as jh
from experiments.command import command
from experiments.files import keep, markdown, write_list
from jaxhack.progress import display
from jaxhack.report import page

HERE = Path(__file__).parent
KEPT = ("run.json", "rows.parquet", "summary.json", "certificates.json", "certificates.jsonl")
PLAIN = "plain.json"  # scores of x without noise
SECONDS = (2.0, 2.5)
COMMON = {"profile": "standard", "seeds": 1, "seed": 0, "limit": 24, "attacker": "pgd", "options": {"steps": 10}}


class Case(NamedTuple):
    """A place and size of the noise, and an attack in it."""

    predictor: str
    noise: str
    space: str
    epsilon: float
    draws: int  # fresh ones

    @property
    def smoothed(self) -> str:
        """The name of what is audited."""
        return f"smoothed({self.predictor},{self.noise})"


RUNS = {
    "waveform_0.01": Case("nisqa", "waveform=0.01,draws=5", "waveform", 6e-5, 1000),
    "waveform_0.05": Case("nisqa", "waveform=0.05,draws=5", "waveform", 3e-4, 1000),
    "lyra_0.5": Case("nisqa", "lyra=0.5,draws=3", "latent", 0.01, 300),
}
HEADS = (
    "predictor",
    "space",
    "ε",
    "n",
    "score of x without noise",
    "score of x̂",
    "r / σ",
    "finite bounds",
    "bound",
    "surely reached",
    "crossed",
)
HEADS += ("gain, known draws", "gain, fresh draws", "within ε no gain above τ")
TINY = {"limit": 2, "options": {"steps": 1}}


def run(name: str, shared: Path, work: Path, results: Path, *, tiny: bool = False) -> None:
    """Audits and certifies one case, as far as that is not done."""
    case, out = RUNS[name], work / name
    with (shared / "speech" / "manifest.csv").open(newline="") as file:
        lines = [row for row in csv.DictReader(file) if SECONDS[0] < float(row["seconds"]) <= SECONDS[1]]
    found = [(row["file"], shared / "speech" / row["file"], row["speaker"]) for row in lines]
    listed = write_list(work / "recordings.csv", found)
    with display() as observe:
        given = {"models": shared / "models", "observe": observe}
        jh.audit(
            [listed],
            predictor=case.smoothed,
            codec="lyra",
            space=case.space,
            epsilon=case.epsilon,
            out=out,
            resume=(out / "run.json").exists(),
            **COMMON | (TINY if tiny else {}) | given,
        )
        resume = (out / "certificates.json").exists()
        jh.certify_run(out, draws=16 if tiny else case.draws, resume=resume, **given)
    tested = {row["utterance"] for row in jh.rows.read(out / "rows.parquet")}
    heard = [u for u in jh.inputs.collect([listed]) if u.id in tested]
    plain = jh.predictor(case.predictor, models=shared / "models")
    (results / name).mkdir(parents=True, exist_ok=True)
    scores = {row["file"]: row["score"] for row in jh.score_files(plain, heard)}
    (results / name / PLAIN).write_text(json.dumps(scores, indent=0) + "\n")
    keep(out, results / name, KEPT)


def table(results: Path) -> str:
    """The results as Markdown, one line a case."""
    lines = []
    for name, case in RUNS.items():
        if (results / name / "summary.json").exists():
            found = json.loads((results / name / "summary.json").read_text())["certificate"]
            plain = median(json.loads((results / name / PLAIN).read_text()).values())
            lines.append([case.smoothed, case.space, f"{case.epsilon:g}", *_cells(found, plain)])
    return markdown(HEADS, lines)


def _cells(found: dict, plain: float) -> list[str]:
    (attack,), budget = found["attackers"], found["budget"]
    return [
        str(found["utterances"]),
        page.number(plain, ".2f"),
        page.number(found["score"], ".2f"),
        page.number(attack["radius"] / found["sigma"], ".2f"),
        f"{found['finite']} of {found['bounds']}",
        page.number(attack["upper"], ".2f"),
        page.number(attack["lower"], ".2f"),
        str(len(found["crossed"])),
        page.number(found["gain_known"], "+.3f"),
        page.number(found["gain"], "+.3f"),
        f"{budget['no_hack']} of {budget['n']}" if budget else "–",
    ]


def main(argv: Sequence[str] | None = None) -> None:
    command(__doc__.splitlines()[0], HERE, RUNS, run, table, argv)


if __name__ == "__main__":
    main()
