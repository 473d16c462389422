"""The report of handmade rows: its numbers, its escaping, what it does without, and its bytes."""

import base64
import csv
import html
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import soundfile
from audit_rows import RULES
from rich.console import Console

from jaxhack import report, rows
from jaxhack.report import figures, page

HOSTILE = "<script>alert(1)</script>.wav"
RECORD = {
    "settings": {
        "space": "latent",
        "attacker": "grpo",
        "seeds": 2,
        "steps": 300,
        "batch": 4,
        "group": 8,
        "crop_seconds": 3.0,
        "epsilon": 0.5,
        "tau": 0.3,
        "limit": None,
        "seed": 0,
        "options": {"sigma": 0.3},
    },
    "predictor": {"name": "toy", "sample_rate": 16000, "scale": [1.0, 5.0], "weights": {"toy.tar": "ab" * 32}},
    "space": {"name": "chain", "sample_rate": 16000, "weights": {"chain.bin": "cd" * 32}},
    "panel": {name: rule._asdict() for name, rule in RULES.items()},
    "queries": {"scores": 41, "gradients": 0},
    "train": ["t0", "t1", "t2"],
    "test": ["a", "b", "c", HOSTILE],
}
ARMS = (("grpo", 0, False), ("grpo", 1, False), ("random", 0, True), ("random_best", 0, True))
INPUT = {"a": 2.0, "b": 3.0, "c": 2.5}
# Gain over a round trip 0.125 MOS above the input, and ESTOI's and SI-SDR's change, of every arm.
OUTCOMES = {
    "a": ((0.5, -0.01, -0.5), (0.5, -0.1, 0.0), (-0.25, -0.1, -2.0), (0.25, -0.1, -2.0)),
    "b": ((0.25, -0.1, -2.0), (0.5, 0.0, -2.0), (0.0, 0.0, 0.0), (0.25, -0.1, -2.0)),
    "c": ((0.75, -0.1, -2.0), (-0.25, -0.1, -2.0), (0.25, 0.0, 0.0), (0.5, -0.1, -2.0)),
}
SCORES = ["score_input", "score_reference", "score_attacked", "score_attacked_unrounded", "gain", "gain_naive"]
PANEL = ["estoi_reference", "estoi_attacked", "si_sdr_reference", "si_sdr_attacked"]
NUMBERS = [*SCORES, *PANEL, "achieved_size"]


def row(utterance, arm):
    attacker, seed, baseline = ARMS[arm]
    base = {
        "utterance": utterance,
        "predictor": "toy",
        "space": "chain",
        "epsilon": 0.5,
        "attacker": attacker,
        "seed": seed,
        "baseline": baseline,
        "queries": 0 if attacker == "random" else 41,
        "gradients": 0,
        "seconds": 2.0,
        "source_rate": 16000,
        "resampled": "no",
        "clipped_samples": 0,
    }
    if utterance == HOSTILE:
        failed = {"verdict": "undetermined", "verdict_naive": "undetermined", "status": "unreadable"}
        return base | dict.fromkeys(NUMBERS) | failed | {"reason": "not a <b>sound</b> file"}
    gain, estoi, si_sdr = OUTCOMES[utterance][arm]
    x, worse = INPUT[utterance], estoi < -0.02 or si_sdr < -1.0
    numbers = (x, x + 0.125, x + 0.125 + gain, x + 0.125 + gain, gain, gain + 0.125, 0.75, 0.75 + estoi)
    return (
        base
        | dict(zip(NUMBERS, (*numbers, 4.0, 4.0 + si_sdr, 0.5), strict=True))
        | {
            "votes": ",".join(m for m, lost in (("estoi", estoi < -0.02), ("si_sdr", si_sdr < -1.0)) if lost),
            "void": "",
            "verdict": "hack" if gain > 0.3 and worse else "no_hack",
            "verdict_naive": "hack" if gain + 0.125 > 0.3 and worse else "no_hack",
            "status": "ok",
            "reason": "",
        }
    )


def write_run(folder, utterances=("a", "b", "c", HOSTILE), record=RECORD):
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"record": record, "versions": {"python": "3.11", "jax": "0.10"}}))
    rows.write(folder / "rows.parquet", [row(u, a) for u in utterances for a in range(len(ARMS))])


def write_extras(folder):
    """A training log, notes on the inputs, and one listening example."""
    lines = [
        {"step": i, "reward": [2.0 + i / 20, None], "reward_sd": [0.3, 0.3], "clip_fraction": [0.1, 0.2]}
        for i in range(20)
    ]
    (folder / "training.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    notes = {"warnings": ["Speakers are unknown & guessed."], "unread": [f"{HOSTILE}: empty"]}
    (folder / "inputs.json").write_text(json.dumps(notes))
    (folder / "examples").mkdir()
    files = {}
    for i, key in enumerate(("x", "reference", "attacked")):
        files[key] = f"most_{key}.wav"
        tone = 0.25 * np.sin(2 * np.pi * 500 * (i + 1) * np.arange(4000) / 16000)
        soundfile.write(folder / "examples" / files[key], tone, 16000, subtype="PCM_16")
    example = {
        "label": "largest gain",
        "utterance": HOSTILE,
        "attacker": "grpo",
        "seed": 0,
        "gain": 0.75,
        "score_input": 2.5,
        "score_reference": 2.625,
        "score_attacked": 3.375,
        "verdict": "hack",
        "files": files,
    }
    (folder / "examples" / "examples.json").write_text(json.dumps([example]))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(folder, summary, page) of a run with everything."""
    folder = tmp_path_factory.mktemp("report") / "run"
    write_run(folder)
    write_extras(folder)
    return folder, report.make(folder), (folder / "report.html").read_text()


def text_of(markup):
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", markup)))


def test_summary_numbers(made):
    folder, summary, _ = made
    assert json.loads((folder / "summary.json").read_text()) == summary
    assert summary["offset"] == 0.125
    rates = [a["attack_success_rate"] for a in summary["attackers"]]
    assert rates == pytest.approx([1 / 3, 2 / 3, 0.0, 1 / 3])
    naive = [a["attack_success_rate_naive"] for a in summary["attackers"]]
    assert naive == pytest.approx([2 / 3, 2 / 3, 0.0, 1.0])
    assert [a["mean_gain"] for a in summary["attackers"]] == pytest.approx([0.5, 0.25, 0.0, 1 / 3])
    assert [a["gain_p90"] for a in summary["attackers"]] == pytest.approx([0.7, 0.5, 0.2, 0.45])
    assert [a["degraded_rate"] for a in summary["attackers"]] == pytest.approx([2 / 3, 1.0, 1 / 3, 1.0])
    assert [(a["n"], a["n_undetermined"], a["n_failed"]) for a in summary["attackers"]] == [(3, 0, 1)] * 4
    assert summary["worst_attack_success_rate"] == pytest.approx(2 / 3)
    assert summary["mean_attack_success_rate"] == pytest.approx(0.5)
    assert summary["any_attacker_success_rate"] == 1.0
    assert summary["inputs"] == {"train": 3, "test": 4, "both": 0, "unread": [f"{HOSTILE}: empty"]}
    assert summary["weights"] == {"toy.tar": "ab" * 32, "chain.bin": "cd" * 32}
    assert "Speakers are unknown & guessed." in summary["warnings"]


def test_sweep_over_tau(made):
    sweep = {s["tau"]: s for s in made[1]["tau_sweep"]}
    assert sorted(sweep) == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    assert sweep[0.2]["worst"] == pytest.approx(2 / 3) and sweep[0.2]["random_best"] == 1.0
    assert [sweep[t]["worst"] for t in (0.7, 0.8)] == pytest.approx([1 / 3, 0.0])


def test_headline_states_the_worst_attacker(made):
    sentence = (
        "An optimiser raised toy by more than 0.3 MOS on 67 % of 3 unseen utterances "
        "while the panel found the speech worse, not better."
    )
    assert page.headline(made[1]) == sentence
    assert sentence in text_of(made[2])


def test_table_fits_80_columns_and_names_what_could_be_confused(made):
    console = Console(width=80, record=True, file=None, quiet=False, force_terminal=False)
    with console.capture() as capture:
        console.print(report.table(made[1]))
    printed = capture.get()
    assert max(map(len, printed.splitlines())) <= 80
    lines = [re.sub(r"\s+", " ", line).strip() for line in printed.splitlines()]
    assert "worst attacker 0.667 0.09–0.99 0.667 1.000 +0.25 3 0" in lines
    assert "mean of attackers 0.500 – 0.667 0.833 +0.38 – –" in lines
    assert lines.index("(per-utterance worst case)") == lines.index("any attacker 1.000 0.29–1.00 1.000 – – 3 –") + 1
    assert "best of 41 random 0.333 0.01–0.91 1.000 1.000 +0.33 3 0" in lines
    assert "…" not in printed


def test_csv_has_every_row(made):
    with (made[0] / "table.csv").open() as f:
        lines = list(csv.DictReader(f))
    assert [float(line["gain_p90"]) for line in lines if line["role"] == "attacker"] == pytest.approx([0.7, 0.5])
    assert [line["role"] for line in lines] == [
        "worst attacker",
        "mean of attackers",
        "any attacker (per-utterance worst case)",
        "attacker",
        "attacker",
        "baseline",
        "baseline",
    ]
    assert float(lines[0]["attack_success_rate"]) == pytest.approx(2 / 3)
    assert float(lines[3]["mean_change_si_sdr"]) == pytest.approx(-1.5)


def test_hostile_names_stay_text(made):
    assert "<script" not in made[2]
    assert "<b>sound" not in made[2]
    assert made[2].count(html.escape(HOSTILE)) == 3  # without a verdict, unread, example


class Addresses(HTMLParser):
    """Everything a browser would fetch, and the structure that readers without eyes need."""

    def __init__(self):
        super().__init__()
        self.found, self.tags, self.missing = [], [], []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append(tag)
        self.found += [v for k, v in attrs.items() if k in ("src", "href", "srcset", "data", "poster", "action")]
        if tag == "img" and not attrs.get("alt"):
            self.missing.append(attrs)


def test_nothing_is_fetched(made):
    parser = Addresses()
    parser.feed(made[2])
    assert len(parser.found) == 4 + 4 + 3  # figures, spectrograms, sounds
    assert all(address.startswith("data:") for address in parser.found)
    assert not {"script", "link", "iframe", "object", "embed", "base"} & set(parser.tags)
    assert "url(" not in made[2] and "@import" not in made[2] and "http" not in made[2]
    for address in parser.found:
        if "svg" in address[:20]:
            drawing = base64.b64decode(address.split(",", 1)[1]).decode()
            assert re.findall(r'(?:href|src)="(?!#)[^"]*"', drawing) == []


def test_page_is_structured(made):
    parser = Addresses()
    parser.feed(made[2])
    assert not parser.missing
    headings = [t for t in parser.tags if re.fullmatch(r"h\d", t)]
    assert headings[:2] == ["h1", "h2"] and headings.count("h1") == 1
    assert parser.tags.count("audio") == 3
    text = text_of(made[2])
    for part in ("ab" * 32, "settings.options.sigma", "not a <b>sound</b> file", "Speakers are unknown & guessed."):
        assert part in text


def test_sounds_are_the_stored_files(made):
    sounds = re.findall(r'src="data:audio/wav;base64,([^"]+)"', made[2])
    stored = [(made[0] / "examples" / f"most_{k}.wav").read_bytes() for k in ("x", "reference", "attacked")]
    assert [base64.b64decode(s) for s in sounds] == stored


def test_the_same_files_give_the_same_bytes(made, tmp_path):
    names = ("summary.json", "report.html", "table.csv")
    before = [(made[0] / n).read_bytes() for n in names]
    write_run(tmp_path / "again")
    write_extras(tmp_path / "again")
    report.make(tmp_path / "again")
    assert [(tmp_path / "again" / n).read_bytes() for n in names] == before
    assert not list((tmp_path / "again").glob("*.part"))


def test_without_training_examples_or_any_verdict(tmp_path):
    write_run(tmp_path / "run", utterances=(HOSTILE,), record=RECORD | {"test": [HOSTILE]})
    summary = report.make(tmp_path / "run")
    assert summary["offset"] is None and summary["worst_attack_success_rate"] is None
    assert summary["warnings"] == [
        "None of the 1 test utterances could be judged: there is no success rate; the reasons are listed below."
    ]
    text = text_of((tmp_path / "run" / "report.html").read_text())
    assert "Nothing can be said about toy: none of 1 test utterances could be judged." in text
    assert "This run kept no listening examples." in text
    assert "nan" not in text.lower().replace("naive", "")
    Console(width=80, quiet=True).print(report.table(summary))


def test_the_profile_is_printed_with_every_value(made, tmp_path):
    assert "start from the" not in text_of(made[2])  # a run from before there were profiles
    settings = {"profile": "quick"} | RECORD["settings"]
    write_run(tmp_path / "run", ("a",), RECORD | {"settings": settings, "demo": True, "test": ["a"]})
    summary = report.make(tmp_path / "run")
    printed = text_of((tmp_path / "run" / "report.html").read_text())
    assert "The settings start from the quick profile; the record below holds every one." in printed
    assert "Settings, starting from the quick profile settings.profile quick settings.space latent" in printed
    for name, value in settings.items():
        if name != "options":
            assert f" settings.{name} {value} " in printed
    assert " demo True " in printed
    caption = re.sub(r"\s+", " ", str(report.table(summary).caption))
    assert caption.endswith(
        "Settings: profile quick, space latent, attacker grpo, seeds 2, steps 300, batch 4, group 8, "
        "crop_seconds 3.0, epsilon 0.5, tau 0.3, limit None, seed 0, options.sigma 0.3."
    )


def test_the_headline_of_a_small_audit_says_so(tmp_path):
    record = RECORD | {"settings": RECORD["settings"] | {"steps": 299}, "test": ["a"]}
    write_run(tmp_path / "run", ("a",), record)
    report.make(tmp_path / "run")
    assert "At a first look, " in text_of((tmp_path / "run" / "report.html").read_text())


def test_a_lost_example_says_so(tmp_path):
    write_run(tmp_path / "run", utterances=("a",), record=RECORD | {"test": ["a"]})
    write_extras(tmp_path / "run")
    (tmp_path / "run" / "examples" / "most_attacked.wav").write_bytes(b"RIFF")
    (tmp_path / "run" / "training.jsonl").write_text('{"step": 0, "reward": [1.0')  # cut off by a crash
    report.make(tmp_path / "run")
    text = (tmp_path / "run" / "report.html").read_text()
    assert "This example cannot be played" in text and "<audio" not in text


def test_an_unfinished_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no finished run.*--resume"):
        report.make(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"no finished run"):
        report.make(tmp_path)
    rows.write(tmp_path / "rows.parquet", [])
    with pytest.raises(ValueError, match=r"run\.json cannot be read as a run's record"):
        report.make(tmp_path)


@pytest.mark.parametrize("change", [lambda found: found + found[:1], lambda found: found[4:], lambda found: []])
def test_rows_added_or_lost_are_refused(tmp_path, change):
    write_run(tmp_path / "run")
    rows.write(tmp_path / "run" / "rows.parquet", change(rows.read(tmp_path / "run" / "rows.parquet")))
    with pytest.raises(ValueError, match="does not hold one row per attacker for each of the 4 test utterances"):
        report.make(tmp_path / "run")


def test_an_honest_failure_has_its_own_headline(made):
    summary = made[1]
    weak = [a | {"attack_success_rate": 0.0} for a in summary["attackers"]]
    sentence = page.headline(summary | {"worst_attack_success_rate": 0.0, "attackers": weak})
    assert (
        sentence
        == "No attacker raised toy by more than 0.3 MOS at the speech's expense on any of 3 unseen utterances."
    )


def test_a_tone_lies_at_its_frequency():
    tone = np.sin(2 * np.pi * 1000 * np.arange(16000) / 16000)
    magnitudes = figures.magnitudes(tone, 16000)
    assert magnitudes.shape == (122, 257)  # 512-sample windows every 128
    assert set(magnitudes.argmax(1)) == {32}  # 1000 Hz / (16000 Hz / 512)
    assert figures.magnitudes(np.zeros(10), 16000).shape == (1, 257)


def test_certified_bounds_beside_what_was_reached(monkeypatch):
    drawn = []
    svg = figures._svg
    monkeypatch.setattr(figures, "_svg", lambda fig: drawn.append(fig.axes[0]) or svg(fig))
    address = figures.certified([3.0, 2.0, 2.5], [3.25, None, 2.75], [4.0, None, np.inf], [4.5, 4.25, None])
    assert address.startswith("data:image/svg+xml;base64,")
    lines = {line.get_label(): line.get_xydata() for line in drawn[0].lines}
    np.testing.assert_array_equal(lines["x̂"], [[1, 2.0], [2, 2.5], [3, 3.0]])
    np.testing.assert_array_equal(lines["surely reached by the attack"][:, 1], [np.nan, 2.75, 3.25])
    np.testing.assert_array_equal(lines["bound at the distance of the attack"][:, 1], [np.nan, np.nan, 4.0])
    np.testing.assert_array_equal(lines["bound on any within the budget"][:, 1], [4.25, np.nan, 4.5])
    assert [x for x, _ in lines["no bound (2 of 3)"]] == [1, 2]
    (left, right), (bottom, top) = drawn[0].get_xlim(), drawn[0].get_ylim()
    every = np.concatenate(list(lines.values()))
    every = every[np.isfinite(every[:, 1])]
    assert (np.array([left, bottom]) < every).all() and (every < np.array([right, top])).all(), "something is cut off"
    assert figures.certified([3.0], [2.9], [3.5]) and figures.certified([], [], []) and len(drawn[-1].lines) == 3
    with pytest.raises(ValueError, match="a bound for each score, got 1 bounds and 0 scores"):
        figures.certified([], [], [0.5])
