"""Many audits of one predictor, and the worst case over them."""

import json
from functools import partial

import numpy as np
import pytest
import toys
from audit_rows import RULES, row
from rich.console import Console

from jaxhack import attackers, rows, spaces, suites
from jaxhack.report import suite as report
from jaxhack.stats import choose_epsilon, summary, worst_case

pytestmark = [
    pytest.mark.standard_promotion,
    pytest.mark.quick_compilation,
    pytest.mark.usefixtures("one_device", "no_examples"),
]

SETTINGS = {"seeds": 1, "steps": 2, "batch": 2, "group": 2, "crop_seconds": 0.5, "profile": "standard"}
PGD = {"pgd": {"steps": 3}}
OPTIONS = PGD | {"grpo": {"hidden": 8}}


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    return toys.listed_clips(tmp_path_factory.mktemp("clips"), "aabbccddee")


run = partial(suites.suite, predictor=toys.predictor(), codec=toys.codec(), options=OPTIONS, **SETTINGS)


def test_two_halves_make_a_whole():
    """Each attack hacks another half: one attack 50 %, any attack 100 %."""
    audits = {
        name: [row(f"{i}.wav", space=name, gain=1.0 if (i < 5) == first else 0.0) for i in range(10)]
        + [row(f"{i}.wav", "random", space=name, gain=5.0) for i in range(10)]
        for name, first in (("latent", True), ("waveform", False))
    }
    found = worst_case(audits, 0.3, RULES)
    assert found["any_attack_success_rate"] == 1.0 and found["any_attack_n"] == 10
    assert found["worst_attack_success_rate"] == 0.5 and found["worst_attack"] == "latent"
    assert found["mean_best_gain"] == 1.0  # the baselines do not count
    with pytest.raises(ValueError, match="at least one audit"):
        worst_case({}, 0.3, RULES)


def test_an_utterance_that_nothing_judged_counts_neither_way():
    audits = {"latent": [row("a.wav"), row("b.wav", estoi_attacked=float("nan"), status="undefined")]}
    found = worst_case(audits, 0.3, RULES)
    assert found["any_attack_success_rate"] == 1.0 and found["any_attack_n"] == 1
    assert found["worst_attack_success_rate"] == 1.0


@pytest.mark.parametrize(("harm", "chosen"), [((0.1, 0.5, 0.9), 0.3), ((0.6, 0.7, 0.9), 0.1), ((0, 0, 0.5), 0.5)])
def test_the_largest_budget_that_does_not_harm_by_itself(harm, chosen):
    summaries = {
        epsilon: summary(
            [row(f"{i}.wav", "random", epsilon=epsilon, worse=i < 10 * share) for i in range(10)], 0.3, RULES
        )
        for epsilon, share in zip((0.1, 0.3, 0.5), harm, strict=True)
    }
    assert choose_epsilon(summaries) == chosen


def test_every_combination_and_what_is_left_out(clips, tmp_path):
    predictor = toys.predictor(differentiable=False)
    found = run([clips], predictor=predictor, spaces=["latent", "waveform"], attackers=["grpo", "pgd"], out=tmp_path)
    assert [line["audit"] for line in found["lines"]] == ["latent/grpo", "waveform/grpo"]
    assert set(found["left_out"]) == {"latent/pgd", "waveform/pgd"}
    assert all("black box" in reason for reason in found["left_out"].values())
    with pytest.raises(ValueError, match="black box"):
        run([clips], predictor=predictor, spaces=["latent"], attackers=["pgd"], options=PGD, out=tmp_path / "none")
    assert not (tmp_path / "none" / "run.json").exists()


def test_an_attacker_of_one_space_alone(clips, tmp_path):
    """Named with its space it works there alone, whatever the spaces of the others are."""
    made = suites.combinations(["latent", "waveform"], ["grpo", "waveform/pgd", "waveform/grpo"])
    assert made == {"latent": ["grpo"], "waveform": ["grpo", "pgd"]}
    assert suites.combinations(["latent"], ["waveform/pgd"]) == {"waveform": ["pgd"]}
    assert suites.combinations(["latent"], ["grpo", "waveform/pgd"]) == {"latent": ["grpo"], "waveform": ["pgd"]}
    assert suites.combinations("latent", "waveform/all")["waveform"] == list(attackers.KINDS)
    assert suites.combinations(["all"], "all") == {space: list(attackers.KINDS) for space in spaces.KINDS}
    for where, which, message in (
        ([], [], "at least one attacker"),
        (["latent"], ["wavefrom/pgd"], "did you mean waveform"),
        (["latent"], ["latent/pdg"], "did you mean pgd"),
        (["lattent"], "all", "did you mean latent"),
    ):
        with pytest.raises(ValueError, match=message):
            run([clips], spaces=where, attackers=which, options={}, out=tmp_path / "out")


def test_the_worst_case_its_files_and_resume(clips, tmp_path):
    out = tmp_path / "out"
    options = {"spaces": ["latent", "waveform"], "attackers": ["pgd"], "options": PGD, "out": out}
    found = run([clips], **options)
    assert found == json.loads((out / "summary.json").read_text()) == report.make(out)
    stored = rows.read(out / "rows.parquet")
    assert {(r["space"], r["attacker"]) for r in stored} == {
        (space, attacker) for space in ("latent-toy", "waveform") for attacker in ("pgd", "random", "random_best")
    }
    best = {}
    for r in stored:
        if not r["baseline"]:
            best[r["utterance"]] = max(best.get(r["utterance"], -np.inf), r["gain"])
    assert found["mean_best_gain"] == pytest.approx(np.mean(list(best.values())))
    assert found["any_attack_success_rate"] >= found["worst_attack_success_rate"]
    page = (out / "report.html").read_text()
    assert 'href="latent/pgd/report.html"' in page and "any attack" in page
    console = Console(width=80, record=True)
    console.print(report.table(found))
    printed = console.export_text()
    assert "latent-toy" in printed and "any space" in printed and max(map(len, printed.splitlines())) <= 80

    with pytest.raises(ValueError, match="--resume"):
        run([clips], **options)
    with pytest.raises(ValueError, match="another run"):
        run([clips], resume=True, tau=0.4, **options)
    before = (out / "rows.parquet").read_bytes()
    for name in ("rows.parquet", "summary.json"):
        (out / "waveform" / "pgd" / name).unlink()
    partial = report.make(out)
    assert partial["unfinished"] == ["waveform/pgd"] and "1 of 2 audits are unfinished" in partial["warnings"][0]
    assert [line["audit"] for line in partial["lines"]] == ["latent/pgd"]
    assert run([clips], resume=True, **options) == found
    assert (out / "rows.parquet").read_bytes() == before
    (out / "mine.txt").write_text("not a run's")
    run([clips], overwrite=True, **options | {"spaces": ["waveform"]})
    assert (out / "mine.txt").exists() and not (out / "latent").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": {"pgd": {"steps": 0}}}, "steps of pgd must be at least 1"),  # no reason to leave it out
        ({"options": {"pgd": {"steps": 1.5}}}, "steps of pgd must be a whole number, got 1.5"),
        ({"options": {"pgd": {"held": 1}}}, "held of pgd must be true or false"),
        ({"options": {"grpo": {"hidden": 8}}}, "grpo has options, and is not among the attackers"),
        ({"spaces": ["waveform", "codes"], "epsilons": [0.1, 0.2]}, "whole number in the space codes"),
        ({"epsilons": [0.1, 0.2], "limit": 2}, "two speakers or more"),
    ],
)
def test_faults_are_found_before_anything_is_computed(clips, tmp_path, changes, message):
    given = {"spaces": ["waveform"], "attackers": ["pgd"], "options": {}, "out": tmp_path / "out"} | changes
    with pytest.raises(ValueError, match=message):
        run([clips], **given)
    assert not (tmp_path / "out" / "run.json").exists()


def test_budgets_that_print_alike_have_folders_of_their_own():
    assert len({suites._suffix(e) for e in (None, 0.001, 0.0010000001, 1e-30, 16.0)}) == 5
    assert suites._suffix(16.0) == "-16" and suites._suffix(0.1) == "-0.1"


def test_a_budget_is_chosen_on_other_utterances_than_it_is_judged_on(clips, tmp_path):
    found = run([clips], spaces=["waveform"], attackers=["pgd"], options=PGD, epsilons=[0.0, 0.05], out=tmp_path)
    names = ["waveform-0/pgd", "waveform-0.05/pgd"]
    assert [line["audit"] for line in found["lines"]] == names
    record = json.loads((tmp_path / "run.json").read_text())["record"]
    test = {r["utterance"] for r in rows.read(tmp_path / names[0] / "rows.parquet")}
    assert set(record["validation"]) < test
    assert {u[0] for u in record["validation"]}.isdisjoint(u[0] for u in test - set(record["validation"]))
    assert found["any_attack_n"] == len(test) - len(record["validation"]) and found["validation"] > 0
    counted = [line["epsilon"] for line in found["lines"] if line["counted"]]
    assert counted == [found["chosen_epsilon"]["waveform"]]
    assert "were chosen on" in (tmp_path / "report.html").read_text()
