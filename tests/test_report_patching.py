"""The report of handmade patchings: rates by round, pairs that nobody judged, what is unfinished, escaping, bytes."""

import html
import json
import re
import shlex
from dataclasses import asdict

import pytest
from audit_rows import RULES
from click.testing import CliRunner
from rich.console import Console

from jaxhack.cli import main
from jaxhack.report import figures, patching
from jaxhack.settings import Recipe, Settings

HOSTILE = "<script>alert(1)</script>"
LATENT, PGD = "latent-lyra/grpo", "waveform/pgd"
ATTACKS = {
    LATENT: Settings.of("standard", seeds=2, seed=3),
    PGD: Settings.of("standard", space="waveform", attacker="pgd", seeds=2, seed=3, options={"steps": 10}),
}
RATES = {LATENT: [(0.75, 0.5), (0.25, 0.5), (0.0, 0.25)], PGD: [(1.0, 1.0), (0.75, 1.0), (0.5, 0.5)]}
FOUND = {LATENT: (40, 20, 10), PGD: (80, 70, 40)}
DISTANCE = (0.0625, 0.03125, 0.125)


def record(sources=ATTACKS, *, labels="self-distillation", **recipe):
    return {
        "predictor": {"name": "toy", "sample_rate": 16000, "scale": [1, 5], "weights": {"toy.tar": "ab" * 32}},
        "recipe": asdict(Recipe(**{"rounds": 3, "capacity": 200} | recipe)),
        "sources": {name: asdict(settings) for name, settings in sources.items()},
        "panel": {name: rule._asdict() for name, rule in RULES.items()},
        "labels": labels,
        "ratings": {"a.wav": 3.0} if labels == "people" else {},
        "demo": False,
        "recordings": "cd" * 32,
        "train": [f"{i}.wav" for i in range(40)],
    }


def audited(rates, warnings=()):
    """What of an audit's summary is read."""
    trained = [{"baseline": False, "attack_success_rate": r, "mean_gain": r, "n": 39} for r in rates]
    random = {"baseline": True, "attack_success_rate": 1.0, "mean_gain": 9.0, "n": 39}
    return {
        "worst_attack_success_rate": max(rates, default=None),
        "mean_attack_success_rate": sum(rates) / len(rates),
        "offset": -0.125,
        "attackers": [*trained, random],
        "warnings": list(warnings),
    }


def save(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


def write_run(folder, made=None, *, rates=RATES, found=FOUND, rounds=3, distance=DISTANCE, ended=True, before=0.0):
    """The files of a patching of which `rounds` are finished."""
    made = made or record()
    save(folder / "run.json", {"record": made, "versions": {"python": "3.11"}})
    notes = {"warnings": ["Speakers are unknown & guessed."], "unread": [], "clips": 44, "distance": before}
    save(folder / "inputs.json", notes)
    held = 0
    for k in range(rounds):
        at = folder / "rounds" / str(k + 1)
        for name in made["sources"] if rates else ():
            save(at / name / "summary.json", audited(rates[name][k], ["Mind."] * k))
            save(at / name / "report.html", "")
        mine = {name: found[name][k] for name in made["sources"]}
        held = min(held + sum(mine.values()), made["recipe"]["capacity"])
        lines = [{"step": i, "regression": 10.0 ** -(i / 9), "ranking": 0.5 / (k + 1)} for i in range(30)]
        save(at / "fit" / "fitting.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        save(at / "patched" / "patched.json", {"name": f"toy-patched-{k + 1}", "params": f"{k + 1}e" * 32})
        save(at / "round.json", {"found": mine, "pairs": held, "distance": distance[k]})
    if ended:
        save(folder / "patched" / "patched.json", {"name": f"toy-patched-{rounds}", "params": f"{rounds}e" * 32})
    return folder


def text_of(folder):
    markup = (folder / "report.html").read_text()
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", markup.split("</style>")[1])))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = write_run(tmp_path_factory.mktemp("patching") / "run")
    return folder, patching.make(folder)


def test_rates_and_pairs_by_round(done):
    folder, summary = done
    assert json.loads((folder / "summary.json").read_text()) == summary
    last = summary["rounds"][2]
    assert last["in_loop"][LATENT] == {
        **{"worst_attack_success_rate": 0.25, "mean_attack_success_rate": 0.125, "offset": -0.125},
        **{"rates": [0.0, 0.25], "mean_gain": 0.125, "n": 39, "found": 10, "warnings": 2},
        "report": "rounds/3/latent-lyra/grpo/report.html",
    }
    assert [r["pairs"] for r in summary["rounds"]] == [120, 200, 200]  # no more than the buffer holds
    assert (summary["name"], summary["params"]) == ("toy-patched-3", "3e" * 32)
    said = text_of(folder)
    assert "The worst of 4 fresh attackers hacked toy on 100 % of its training recordings before patching" in said
    assert "before patching, and on 50 % after 2 rounds." in said
    assert f"Patched in 3 rounds against {LATENT}, {PGD}." in said
    assert "Worst in loop, round 1 → 3 1.000 → 0.500" in said
    assert "Mean in loop, round 1 → 3 0.812 → 0.312" in said
    assert "260 found, 200 held" in said
    assert f"{LATENT} 0.750 0.625 −0.12 +0.62 39 40 120 0.0625 0 {PGD} 1.000 1.000 −0.12 +1.00 39 80 0" in said
    assert "No ratings of people were at hand" in said and "Speakers are unknown & guessed." in said
    assert "distance grew from 0.0625 MOS² after round 1 to 0.125 after round 3" in said
    assert "first look" not in said and "few" not in said
    assert "3 5 50 200 toy-patched-3 " + "3e" * 32 in said and "ab" * 32 in said
    assert "recipe.margin 0.5" in said and "panel.estoi.margin 0.02" in said
    assert f"{LATENT} standard 2 300 4 8 3.0 0.5 0.3 – 3 – {PGD} standard 2 – – – – 0.002 0.3 – 3 steps 10" in said
    assert (folder / "report.html").read_text().count('href="rounds/2/waveform/pgd/report.html"') == 1


def test_the_figure_has_a_line_for_each_attack_and_a_dot_for_each_seed(done, monkeypatch):
    drawn = []
    svg = figures._svg
    monkeypatch.setattr(figures, "_svg", lambda fig: drawn.append(fig) or svg(fig))
    for rounds in (3, 1):
        figures.by_round(done[1]["rounds"][:rounds])
        (axes,) = drawn.pop().axes
        lines = {line.get_label(): line.get_xydata() for line in axes.lines if line.get_linestyle() != "None"}
        assert list(lines) == [LATENT, PGD]
        assert lines[LATENT][:, 1].tolist() == [0.625, 0.375, 0.125][:rounds]
        dots = [y for line in axes.lines if line.get_linestyle() == "None" for y in line.get_ydata()]
        assert sorted(dots) == sorted(rate for name in RATES for pair in RATES[name][:rounds] for rate in pair)
        left, right = axes.get_xlim()
        assert [t for t in axes.get_xticks() if left <= t <= right] == list(range(1, rounds + 1))
        assert axes.get_ylim() == pytest.approx((-0.02, 1.02))
    fits = {1: [{"step": i, "regression": 10.0**-i, "ranking": i % 2} for i in range(6)], 2: []}
    figures.fitting(fits)
    assert [(axes.get_ylabel(), axes.get_yscale()) for axes in drawn.pop().axes] == [
        ("regression (MOS²)", "log"),
        ("ranking (MOS)", "linear"),
    ]


@pytest.mark.parametrize(
    ("source", "name", "settings", "attack"),
    [
        ("noise", "noise/square", {"space": "noise", "attacker": "square", "epsilon": 0.5623}, "latent/grpo"),
        ("random", "latent-lyra/square", {"attacker": "square", "epsilon": 0.3}, "latent/grpo --epsilon 0.3"),
        ("pgd", PGD, {"space": "waveform", "attacker": "pgd", "options": {"steps": 5}}, PGD),
    ],
)
def test_pairs_that_nobody_judged_have_no_rates(tmp_path, source, name, settings, attack):
    made = record({name: Settings.of("paper", **settings)}, source=source, rounds=1, labels="people")
    write_run(tmp_path / "run", made, rates=None, found={name: (120,)}, rounds=1, before=0.01)
    summary = patching.make(tmp_path / "run")
    assert summary["rounds"][0]["in_loop"] == {name: {"found": 120}} and summary["rounds"][0]["pairs"] == 120
    said = text_of(tmp_path / "run")
    made_by = " ".join(patching.PAIRS[source].split())
    assert f"toy was patched in 1 round on 120 pairs of {made_by}, which no detector looked at;" in said
    assert f"1 {patching.label(name, source)} 120 120 0.0625" in said and "no detector looked at them" in said
    assert "in loop" not in said.lower() and "report.html" not in said and "/square" not in said
    assert "self-distillation" not in said and "grew from 0.01 MOS² before the first round to 0.0625" in said
    assert f"--attacker {attack}" in said
    printed = lines_of(summary)
    assert f"1 {patching.label(name, source)} 120 120 0.0625" in printed


def lines_of(summary):
    console = Console(width=80, quiet=False, force_terminal=False)
    with console.capture() as capture:
        console.print(patching.table(summary))
    assert max(map(len, capture.get().splitlines())) <= 80
    return [re.sub(r"\s+", " ", line).strip() for line in capture.get().splitlines()]


def test_an_unfinished_run_says_so(tmp_path):
    """Killed in its second round, before and after an attack of it was done; and before anything was."""
    made = record({LATENT: Settings.of("quick")})
    folder = write_run(tmp_path / "run", made, rounds=1, ended=False)
    summary = patching.make(folder)
    assert summary["name"] is None and [r["round"] for r in summary["rounds"]] == [1]
    said = text_of(folder)
    assert "At a first look and so far, the worst of 2 fresh attackers hacked toy on 75 %" in said
    assert "not finished: 1 of 3 rounds are." in said and "none has met it since" in said
    assert "40 pairs after round 1 are few to learn from: its fit drew each about 300 times" in said
    save(folder / "rounds" / "2" / LATENT / "summary.json", audited([0.5, 0.125]))
    summary = patching.make(folder)
    assert summary["rounds"][1] == {
        **{"round": 2, "pairs": None, "distance": None, "name": None, "params": None},
        "in_loop": {LATENT: summary["rounds"][1]["in_loop"][LATENT]},
    }
    assert "and on 50 % after 1 round." in text_of(folder)
    assert "2 latent-lyra/grpo 0.500 0.312 −0.12" in text_of(folder)
    assert "2 latent-lyra/grpo 0.500 0.312 −0.12 – – –" in lines_of(summary)
    part = write_run(tmp_path / "part", rounds=1, ended=False)
    save(part / "rounds" / "2" / LATENT / "summary.json", audited([0.5, 0.125]))
    patching.make(part)
    assert "patching; not every attack has been repeated since." in text_of(part)
    write_run(tmp_path / "begun", rounds=0, ended=False)
    with pytest.raises(ValueError, match="no finished attack of a patching: go on with --resume"):
        patching.make(tmp_path / "begun")
    save(folder / "rounds" / "1" / "round.json", "{")
    with pytest.raises(ValueError, match=r"round\.json cannot be read as a round's record: delete it and go on"):
        patching.make(folder)


DAMAGED = {
    "inputs.json": ("[]", "5", "{}"),
    "rounds/1/round.json": ("[]", "5", '{"a": 1}', '{"found": {}, "pairs": 1, "distance": 0}', "[" * 200_000),
    "rounds/2/fit/fitting.jsonl": ("[]\n", "5", '{"a": 1}\n', '{"step": 1, "ranking": "x"}\n', "[" * 200_000),
    "rounds/1/patched/patched.json": ("[]", "5", "{}"),
    f"rounds/2/{LATENT}/summary.json": ("[]", "5", "{}"),
}


@pytest.mark.parametrize("name,content", [(name, text) for name, texts in DAMAGED.items() for text in texts])
def test_damaged_files_are_named(tmp_path, name, content):
    write_run(tmp_path / "run")
    save(tmp_path / "run" / name, content)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "run" / name))):
        patching.make(tmp_path / "run")


def test_rounds_without_pairs_and_attacks_without_verdicts(tmp_path):
    made = record({LATENT: Settings.of("standard", seeds=1)}, rounds=2, prefer_input=True)
    write_run(tmp_path / "run", made, rates={LATENT: [(0.5,), (0.0,)]}, found={LATENT: (4, 0)}, rounds=2)
    patching.make(tmp_path / "run")
    said = text_of(tmp_path / "run")
    assert "A fresh attacker hacked toy on 50 %" in said and "and on 0 % after 1 round." in said
    assert "No pair was found in round 2:" in said and "each hack is a pair x ≻ y." in said
    for k in "12":
        empty = audited([0.0]) | {"worst_attack_success_rate": None, "mean_attack_success_rate": None, "offset": None}
        empty["attackers"][0] |= {"attack_success_rate": None, "mean_gain": None, "n": 0}
        save(tmp_path / "run" / "rounds" / k / LATENT / "summary.json", empty)
    summary = patching.make(tmp_path / "run")
    assert "Nothing can be said about toy: no attack on it could be judged" in text_of(tmp_path / "run")
    assert "1 latent-lyra/grpo – – – 4 4 0.0625" in lines_of(summary)


def test_names_stay_text(tmp_path):
    name = f"latent-{HOSTILE}/grpo"
    made = record({name: ATTACKS[LATENT]}, rounds=1)
    made["predictor"] |= {"name": HOSTILE, "weights": {HOSTILE: HOSTILE}}
    made["train"] = [HOSTILE]
    write_run(tmp_path / "run", made, rates={name: RATES[LATENT]}, found={name: (3,)}, rounds=1)
    save(tmp_path / "run" / "patched" / "patched.json", {"name": HOSTILE, "params": HOSTILE})
    patching.make(tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<script" not in page and html.escape(HOSTILE) in page


def test_the_command_audits_what_was_attacked():
    """Spaces, codecs, budgets and split are the patching's; its first look and its attackers' sizes are not kept."""
    (line,) = patching.commands(record())
    assert line == (
        "jaxhack audit RECORDINGS --predictor DIR/patched --codec lyra --attacker latent/grpo,waveform/pgd --seed 3 "
        "--profile standard --out runs/patched"
    )
    sources = {
        "waveform/pgd": Settings.of("quick", space="waveform", attacker="pgd", limit=8, epsilon=0.004),
        "latent-dac-16khz/grpo": Settings.of("quick", limit=8),
        "latent-my codec/grpo": Settings.of("quick", limit=8),
    }
    made = record(sources) | {"demo": True}
    made["panel"]["estoi"]["margin"] = 0.5
    lines = list(map(shlex.split, patching.commands(made)))
    given = {
        flag: [line[line.index(flag) + 1] for line in lines if flag in line] for flag in lines[0] if "--" in flag
    }
    assert given["--codec"] == ["dac-16khz", "dac-16khz", "my codec"] and given["--epsilon"] == ["0.004"]
    assert given["--attacker"] == ["waveform/pgd", "latent/grpo", "latent/grpo"] and set(given["--limit"]) == {"8"}
    assert len(set(given["--out"])) == 3 and given["--panel"][0].startswith("estoi=0.5,")
    assert "RECORDINGS" not in lines[0] and "--seed" not in lines[0]


def test_the_same_files_give_the_same_bytes_and_nothing_is_fetched(done, tmp_path):
    folder, _ = done
    again = write_run(tmp_path / "again")
    result = CliRunner().invoke(main, ["report", str(again)])
    assert result.exit_code == 0, result.output
    assert f"Report: {again}/report.html" in result.stdout and "No ratings of people" in result.stdout
    for name in ("report.html", "summary.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()
    page = (folder / "report.html").read_text()
    assert "http" not in page and "url(" not in page and "<script" not in page
    found = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert [a for a in found if not a.startswith("data:image/svg")] == [
        f"rounds/{k}/{name}/report.html" for k in (1, 2, 3) for name in ATTACKS
    ]
    assert len(found) == 6 + 2
