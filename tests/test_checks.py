"""Every warning once where it belongs, and none where nothing is amiss."""

import copy

import pytest

from jaxhack import checks

STEPS = 100


def entry(attacker="grpo", seed=0, baseline=False, **changes):
    return {
        "attacker": attacker,
        "seed": seed,
        "baseline": baseline,
        "attack_success_rate": 0.8,
        "attack_success_rate_naive": 0.79,
        "interval": [0.72, 0.87],
        "mean_gain": 1.1,
        "mean_gain_naive": 1.15,
        "degraded_rate": 0.9,
        "attack_success_rate_void": 0.8,
        "void_rate": 0.0,
        "n": 100,
        "n_undetermined": 0,
        "n_failed": 0,
        "queries": 65,
    } | changes


def random(**changes):
    numbers = {"attack_success_rate": 0.1, "mean_gain": -0.1, "degraded_rate": 0.5, "queries": 0}
    return entry("random", 0, True, **(numbers | changes))


def random_best(**changes):
    return entry("random_best", 0, True, **({"attack_success_rate": 0.4, "mean_gain": 0.3} | changes))


RECORD = {
    "settings": {
        "attacker": "grpo",
        "epsilon": 0.5,
        "tau": 0.3,
        "seeds": 2,
        "steps": 300,
        "batch": 4,
        "group": 8,
        "options": {},
    },
    "predictor": {"name": "p", "scale": [1.0, 5.0]},
    "test": ["a"] * 100,
}
ROW = {
    "score_input": 3.0,
    "score_reference": 3.1,
    "score_attacked": 4.0,
    "score_attacked_unrounded": 4.01,
    "achieved_size": 0.5,
    "clipped_samples": 0,
}
LINE = {
    "reward": [3.5, 3.5],
    "reward_sd": [0.3, 0.3],
    "mu_rms": [50.0, 50.0],  # the raw length of a normalised mean drifts and means nothing
    "sigma": [1.0, 1.0],
    "log_ratio_sd": [0.2, 0.2],
    "clip_fraction": [0.2, 0.2],
    "groups_equal": [0.0, 0.0],
    "groups_broken": [0.0, 0.0],
}


def run(record=None, rows=None, summary=None, training=None, attackers=None, recordings=()):
    attackers = [entry(), entry(seed=1), random(), random_best()] if attackers is None else attackers
    return checks.warnings(
        RECORD if record is None else record,
        [ROW, ROW] if rows is None else rows,
        {"offset": 0.05, "attackers": attackers} | (summary or {}),
        [LINE | {"step": i} for i in range(STEPS)] if training is None else training,
        recordings,
    )


def curves(**values):
    """A log whose metrics follow ``function(share of the training done)`` for attacker 1."""
    return [
        LINE | {"step": i} | {k: [LINE[k][0], f(i / (STEPS - 1))] for k, f in values.items()} for i in range(STEPS)
    ]


def test_a_healthy_run_has_no_warnings():
    assert run() == []


def test_settings_are_changed_by_no_check():
    record, rows = copy.deepcopy(RECORD), copy.deepcopy([ROW])
    run(record=record, rows=rows)
    assert record == RECORD and rows == [ROW]


def climbing(*slopes):
    """Rows of an attacker that asks for gradients, each utterance with two arms."""
    asked = ROW | {"status": "ok", "gradients": 50}
    scored = spoken(*(2 + 0.05 * i for i in range(len(slopes))))
    return [asked | score | {"slope": slope} for score, slope in zip(scored, slopes, strict=True) for _ in range(2)]


def spoken(*scores):
    """Rows of recordings that score so."""
    return [ROW | {"utterance": str(i), "score_input": score} for i, score in enumerate(scores)]


def heard(train, test):
    """What was noted of recordings with these digests."""
    halves = {"train": train, "test": test}
    return [{"id": f"{h}{i}", "half": h, "digest": d} for h, ds in halves.items() for i, d in enumerate(ds)]


def settings(**changes):
    return RECORD | {"settings": RECORD["settings"] | changes}


CASES = {
    "quick profile": (
        {"record": settings(profile="quick", seeds=2, steps=25, batch=4)},
        "This is the quick profile (seeds 2 × steps 25 × batch 4), a first look: it finds less than the "
        "standard profile (seeds 3 × steps 300 × batch 4)",
    ),
    "small audit": (
        {"record": settings(profile="standard", steps=299)},
        "This is a small audit (seeds 2 × steps 299 × batch 4), a first look: it finds less than the "
        "standard profile (seeds 3 × steps 300 × batch 4)",
    ),
    "many seeds, each trained little": (
        {"record": settings(profile="quick", seeds=900, steps=1)},
        "This is the quick profile (seeds 900 × steps 1 × batch 4), a first look",
    ),
    "demo speech": ({"record": RECORD | {"demo": True}}, "The recordings are the synthetic demo clips"),
    "nothing judged": (
        {"attackers": [entry(n=0, n_failed=100, attack_success_rate=None, mean_gain=None, interval=[None, None])]},
        "None of the 100 test utterances could be judged",
    ),
    "all alike": (
        {"rows": [row for row in spoken(3.92, 3.93, 3.92, 3.91) for _ in range(2)]},
        "p gives 4 recordings all but the same score (sd 0.0082 MOS, τ 0.3): what says the same of everything cannot",
    ),
    "panel": (
        {"attackers": [entry(degraded_rate=0.99), random(degraded_rate=0.96), random_best()]},
        "The panel calls 99 % of the trained attackers' outputs worse than x̂, and 96 % of random actions",
    ),
    "void votes": (
        {
            "attackers": [entry(void_rate=0.98, attack_success_rate_void=1.0), random(), random_best()],
            "rows": [ROW | {"void": "si_sdr"}, ROW | {"void": ""}],
        },
        "In 98 % of the outputs a vote (si_sdr) is void and left out: the reference x̂ is all but x itself, beside "
        "which any change is a loss, or so poor that the measure does not follow it. "
        "With void votes the worst success rate would be 1.00 instead of 0.80.",
    ),
    "weaker gain": (
        {"attackers": [entry(), entry(seed=1, mean_gain=0.25), random(), random_best()]},
        "Attacker 1 of 2 does not beat the best of 65 random actions "
        "(success 0.80 against 0.40, mean gain +0.25 against +0.30 MOS)",
    ),
    "weaker rate": (
        {"attackers": [entry(), entry(seed=1), random(), random_best(attack_success_rate=0.85)]},
        "Attackers 0, 1 of 2 do not beat the best of 65 random actions (success 0.80, 0.80 against 0.85",
    ),
    "exploration": (
        {"training": curves(reward_sd=lambda t: 0.34 * 0.001**t)},
        "Attacker 1 hardly explores any more: the rewards of a group differ by",
    ),
    "clip fraction": (
        {"training": curves(clip_fraction=lambda t: 0.3 + 0.4 * t)},
        "Attacker 1 hardly explores any more: 68 % of its ratios are clipped at the end",
    ),
    "log ratio": ({"training": curves(log_ratio_sd=lambda t: 15 * t)}, "its log-ratio's sd is 14.3 at the end"),
    "sigma": (
        {"training": curves(sigma=lambda t: 1.0 - 0.99 * t)},
        "Attacker 1 hardly explores any more: its mean (RMS 1) drowns its noise (σ 0.055)",
    ),
    "mean": (
        {
            "record": RECORD | {"settings": RECORD["settings"] | {"options": {"normalise_mean": False}}},
            "training": [line | {"mu_rms": [1.0, line["mu_rms"][1]]} for line in curves(mu_rms=lambda t: 137 * t)],
        },
        "Attacker 1 hardly explores any more: its mean (RMS 131) drowns its noise (σ 1)",
    ),
    "broken groups": (
        {"training": curves(groups_broken=lambda t: float(t == 0))},
        "Attacker 1: 1 % of the training groups held a score that was not finite",
    ),
    "equal groups": (
        {"training": curves(groups_equal=lambda t: 0.5)},
        "Attacker 1: 50 % of the training groups had equal rewards",
    ),
    "undetermined": (
        {"attackers": [entry(n=90, n_undetermined=7, n_failed=3), random(), random_best()]},
        "10 % of the test utterances have no verdict (7 undetermined, 3 failed, 90 judged)",
    ),
    "few": (
        {"attackers": [entry(n=20, interval=[0.58, 0.92]), random(), random_best()]},
        "20 judged test utterances are few: the worst attacker's 95 % interval is 0.58–0.92",
    ),
    "spread": (
        {"attackers": [entry(), entry(seed=1, attack_success_rate=0.55, attack_success_rate_naive=0.54), random()]},
        "Attackers that differ only in their seed reach success rates from 0.55 to 0.80",
    ),
    "naive": (
        {"attackers": [entry(attack_success_rate_naive=0.7), random(), random_best()]},
        "Measured against the raw input the mean success rate would be 0.70 instead of 0.80",
    ),
    "offset": ({"summary": {"offset": -0.2}}, "The chain alone moves the score by -0.20 MOS on average"),
    "ceiling": (
        {"rows": [ROW | {"score_reference": 4.8}, ROW | {"score_reference": 4.7}]},
        "The round trips score 4.75 on average where the scale ends at 5",
    ),
    "scale": (
        {"rows": [ROW, ROW | {"score_attacked": 5.2, "score_attacked_unrounded": 5.2}]},
        "1 of 2 rows hold a score outside the predictor's nominal scale 1–5 (lowest 3.00, highest 5.20)",
    ),
    "broken slopes": (
        {"rows": climbing(*[0.1] * 9, None)},
        "The score's gradient at x̂ is not finite on 10 % of 10 utterances",
    ),
    "flat slopes": (
        {"rows": climbing(0.1, 0.0, 0.0, 0.0)},
        "The score's gradient at x̂ is zero on 75 % of 4 utterances",
    ),
    "noise": (
        {"summary": {"repeat_sd": 0.02}},
        "p does not give the same audio the same score (sd 0.02 MOS): a gain is known to 0.028 MOS",
    ),
    "improving": (
        {"training": curves(reward=lambda t: 3.5 + t)},
        "Attacker 1 of 2 still improved when training ended (reward +0.20 MOS over the last fifth)",
    ),
    "overlap": (
        {"recordings": heard("abc", "dea")},
        "1 test recordings, such as 'test2', hold the very audio of a training recording",
    ),
    "fewer than thirty": (
        {
            "attackers": [
                entry(n=29, attack_success_rate=0.0, attack_success_rate_naive=0.0, interval=[0.0, 0.12]),
                random(attack_success_rate=0.0),
                random_best(attack_success_rate=0.0),
            ]
        },
        "29 judged test utterances are few: the worst attacker's 95 % interval is 0.00–0.12, and 30 are the least",
    ),
    "budget": ({"rows": [ROW, ROW | {"achieved_size": 0.500001}]}, "1 of 2 perturbations exceed the budget ε = 0.5"),
    "rounding": (
        {"rows": [ROW, ROW | {"score_attacked_unrounded": 4.04}]},
        "Rounding to 16 bit changes the attacked score by more than τ/10 (0.03 MOS) in 1 of 2 rows (at most 0.04)",
    ),
    "clipping": (
        {"rows": [ROW, ROW | {"clipped_samples": 31}]},
        "1 of 2 attacked signals left ±1 and were clipped (at most 31 samples of one)",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_warning_alone(name):
    changes, expected = CASES[name]
    found = run(**changes)
    assert len(found) == 1, found
    assert found[0].startswith(expected) or expected in found[0]
    assert found[0].endswith(".")


NEAR_MISSES = {
    "quick, but as large as standard": {"record": settings(profile="quick", seeds=2, steps=450, batch=4)},
    "another profile": {"record": settings(profile="standard", seeds=3, steps=300, batch=4)},
    "recordings of one's own": {"record": RECORD | {"demo": False}},
    "nearly alike": {"rows": spoken(3.0, 3.05)},
    "one recording": {"rows": [*spoken(3.0)] * 2},
    "panel, random differs": {"attackers": [entry(degraded_rate=1.0), random(degraded_rate=0.94), random_best()]},
    "same rate, higher gain": {"attackers": [entry(), random(), random_best(attack_success_rate=0.8)]},
    "exploration": {"training": curves(reward_sd=lambda t: 0.3 * 0.2**t)},
    "clip fraction": {"training": curves(clip_fraction=lambda t: 0.59)},
    "a short log": {"training": curves(reward_sd=lambda t: 0.3 * 0.001**t)[:9]},
    "undetermined": {"attackers": [entry(n=95, n_undetermined=5), random(), random_best()]},
    "few": {"attackers": [entry(interval=[0.71, 0.9]), random(), random_best()]},
    "offset": {"summary": {"offset": 0.15}},
    "thirty": {
        "attackers": [
            entry(n=30, attack_success_rate=0.0, attack_success_rate_naive=0.0, interval=[0.0, 0.12]),
            random(attack_success_rate=0.0),
            random_best(attack_success_rate=0.0),
        ]
    },
    "slopes": {"rows": climbing(*[0.1] * 19, 0.0, *[0.1] * 19, None)},
    "no slopes asked for": {"rows": [row | {"gradients": 0} for row in climbing(None, None)]},
    "slopes of unreadable files": {
        "rows": [*climbing(*[0.1] * 9), climbing(None)[0] | {"utterance": "x", "status": "unreadable"}]
    },
    "rounding noise": {"summary": {"repeat_sd": 1e-5}},
    "improving little": {"training": curves(reward=lambda t: 3.5 + 0.14 * t)},
    "improving by luck": {"training": curves(reward=lambda t: 3.5 + 0.3 * t + 0.5 * (round(99 * t) % 2))},
    "improving early": {"training": curves(reward=lambda t: 3.5 + min(t, 0.6))},
    "overlap": {"recordings": heard(["a", "b", "b", None], ["c", "d", None])},
    "no offset": {"summary": {"offset": None}},
    "scale": {"rows": [ROW | {"score_attacked": 5.0, "score_attacked_unrounded": 5.0}]},
    "budget": {"rows": [ROW | {"achieved_size": 0.5 * (1 + 5e-7)}]},
    "no baselines": {"attackers": [entry()]},
    "no training": {"training": []},
    "failed rows": {"rows": [ROW, dict.fromkeys(ROW)]},
    "non-finite numbers": {"rows": [ROW, ROW | {"score_attacked": float("nan"), "score_attacked_unrounded": None}]},
    "unlogged values": {"training": [{"step": i, "reward": [None, None]} for i in range(STEPS)]},
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_no_warning_short_of_the_limit(name):
    assert run(**NEAR_MISSES[name]) == []


def test_shares_are_never_rounded_to_all_or_nothing():
    assert [checks.percent(x) for x in (0.0, 0.001, 0.862, 0.998, 1.0)] == ["0 %", "0.1 %", "86 %", "99.8 %", "100 %"]


def test_a_gain_within_the_noise_is_said_beside_it():
    weak = [entry(mean_gain=0.13), entry(seed=1, mean_gain=0.15), random(mean_gain=-0.1)]
    found = run(attackers=weak, summary={"repeat_sd": 0.1})
    assert found[1] == "Attacker 0 of 2 does not gain more than that noise (mean gain +0.13 MOS against 0.14)."
    assert len(found) == 2


def line(attacker, gain, rate, gradients, space="latent-toy", epsilon=0.5):
    """An audit in a suite, as far as audits are compared."""
    return {
        "audit": attacker,
        "attacker": attacker,
        "space": space,
        "epsilon": epsilon,
        "mean_gain": gain,
        "attack_success_rate": rate,
        "gradients": gradients,
    }


def test_scores_alone_should_not_beat_gradients():
    record = {"demo": False, "legs": dict.fromkeys(("pgd", "grpo"), settings(profile="paper")["settings"])}

    def across(*lines):
        return list(checks.across(record, {"lines": lines, "any_attack_n": 40, "unfinished": []}))

    white, weak = line("pgd", 1.0, 0.8, 50), line("pgd", 0.1, 0.1, 50)
    for black, numbers in (
        (line("grpo", 1.2, 0.7, 0), "mean gain 1.20 against 1.00"),
        (line("grpo", 0.9, 0.9, 0), "success 0.90 against 0.80"),
    ):
        (sentence,) = across(weak, black, white)
        assert sentence.startswith("In latent-toy at ε = 0.5, grpo, which sees scores only, finds more than pgd")
        assert numbers in sentence
        assert across(black) == across(white, weak) == []
        assert across(white, black | {"epsilon": 0.6}) == across(white, black | {"space": "waveform"}) == []
    assert across(white, line("grpo", 1.0, 0.8, 0)) == across(white, line("grpo", None, None, 0)) == []
