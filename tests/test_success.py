import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from audit_rows import RULES, failed, row

from jaxhack import detect, rows
from jaxhack.measures import default_panel, evaluate
from jaxhack.stats import clopper_pearson, per_attacker, summary, tau_sweep


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (0, 10, 0.0, 0.308497),
        (8, 10, 0.443905, 0.974789),
        (10, 10, 0.691503, 1.0),
        (1, 1, 0.025, 1.0),
        (0, 0, 0.0, 1.0),
    ],
)
def test_clopper_pearson(successes, n, low, high):
    assert clopper_pearson(successes, n) == pytest.approx((low, high), abs=1e-6)
    assert all(isinstance(bound, float) for bound in clopper_pearson(successes, n))


def test_clopper_pearson_level_and_refusals():
    assert clopper_pearson(8, 10, 0.9) == pytest.approx((0.493099, 0.963229), abs=1e-6)
    for arguments in ((3, 2), (-1, 2), (1, 2, 1.0), (1, 2, math.nan)):
        with pytest.raises(ValueError, match="must lie between"):
            clopper_pearson(*arguments)


def restarts():
    """Two attackers, each successful on another half of ten utterances, and a baseline that hacks one."""
    made = []
    for i in range(10):
        for seed in (0, 1):
            made.append(row(f"{i}.wav", seed=seed, gain=1.0 if (i < 5) == (seed == 0) else 0.0))
        made.append(row(f"{i}.wav", "random", gain=1.0 if i == 0 else -0.2, worse=i < 8))
    return made


def test_restarts_each_half_together_all():
    found = summary(restarts(), 0.3, RULES)
    assert [a["attack_success_rate"] for a in found["attackers"]] == [0.5, 0.5, 0.1]
    assert found["any_attacker_success_rate"] == 1.0 and found["any_attacker_n"] == 10
    assert found["worst_attack_success_rate"] == found["mean_attack_success_rate"] == 0.5
    assert found["attack_success_rate_sd"] == 0.0
    assert found["degraded_rate"] == 1.0 and found["degraded_rate_baseline"] == pytest.approx(0.8)


def test_noise_is_the_deviation_of_two_scores_of_one_audio():
    given = [row(f"{i}.wav", a, score_repeat=3.1 + d) for i, d in enumerate((0.1, -0.3)) for a in ("grpo", "random")]
    given += [failed("f.wav"), row("silent.wav", score_repeat=9.0, status="silent")]
    assert summary(given, 0.3, RULES)["repeat_sd"] == pytest.approx(math.sqrt((0.01 + 0.09) / 2 / 2))
    assert summary([row("a.wav", score_repeat=3.1)], 0.3, RULES)["repeat_sd"] == 0.0
    assert summary([row("a.wav")], 0.3, RULES)["repeat_sd"] is None  # from before it was stored


def test_every_figure_of_one_attacker():
    given = [
        row("a.wav", gain=1.0),
        row("b.wav", gain=0.5, worse=False),
        row("c.wav", gain=0.25),  # naive gain 0.35: a hack only against x
        row("d.wav", gain=-0.75),
        row("e.wav", gain=9.0, estoi_attacked=math.nan, status="undefined"),
        failed("f.wav"),
    ]
    (entry,) = per_attacker(given, 0.3, RULES)
    low, high = entry.pop("interval")
    assert (low, high) == pytest.approx(clopper_pearson(1, 4))
    change = entry.pop("mean_change")
    assert change == pytest.approx({"estoi": -0.075, "si_sdr": 0.0})
    assert entry == pytest.approx(
        {
            "attacker": "grpo", "seed": 0, "baseline": False, "attack_success_rate": 0.25,
            "attack_success_rate_naive": 0.5, "mean_gain": 0.25, "gain_p90": 0.85, "mean_gain_naive": 0.35,
            "degraded_rate": 0.75, "n": 4, "n_naive": 4, "n_undetermined": 1, "n_failed": 1, "queries": 100,
            "gradients": 0, "void_rate": 0.0, "attack_success_rate_void": 0.25,
        }
    )  # fmt: skip
    assert summary(given, 0.3, RULES)["offset"] == pytest.approx(0.1)


def test_spread_and_worst_of_three_leave_the_baseline_out():
    given = [row(f"{i}.wav", seed=s, gain=float(i < n)) for s, n in ((0, 1), (1, 3), (2, 2)) for i in range(4)]
    given += [row(f"{i}.wav", "random_best") for i in range(4)]
    found = summary(given, 0.3, RULES)
    assert (found["worst_attack_success_rate"], found["mean_attack_success_rate"]) == (0.75, 0.5)
    assert found["any_attacker_success_rate"] == 0.75
    assert found["attack_success_rate_sd"] == pytest.approx(0.25)
    assert found["n_utterances"] == 4


def test_offset_counts_an_utterance_once():
    given = [row("a.wav", seed=s, score_reference=4.0) for s in range(3)] + [row("b.wav", score_reference=3.0)]
    assert summary(given, 0.3, RULES)["offset"] == pytest.approx(0.5)


def test_undetermined_is_neither_success_nor_failure():
    given = [row("a.wav"), row("b.wav", gain=math.inf), row("c.wav", si_sdr_reference=None)]
    found = summary(given, 0.3, RULES)
    assert found["any_attacker_success_rate"] == 1.0 and found["any_attacker_n"] == 1
    (entry,) = found["attackers"]
    assert (entry["attack_success_rate"], entry["n"], entry["n_undetermined"]) == (1.0, 1, 2)
    blind = row("a.wav", score_input=None, gain_naive=None)  # R(x) is missing: only the naive figure suffers
    (entry,) = per_attacker([blind], 0.3, RULES)
    assert (entry["n"], entry["n_naive"], entry["attack_success_rate_naive"]) == (1, 0, None)
    (entry,) = per_attacker([row("a.wav") | {"status": "too_short"}], 0.3, RULES)
    assert (entry["n"], entry["n_failed"]) == (0, 1)


def test_tau_sweep_is_a_function_of_the_stored_rows(tmp_path):
    given = [row(f"{i}.wav", seed=s, gain=0.1 * i + 0.05) for i in range(10) for s in (0, 1)]
    rows.write(tmp_path / "rows.parquet", given)
    stored = rows.read(tmp_path / "rows.parquet")
    swept = tau_sweep(stored, [0.0, 0.5, 2.0], RULES)
    assert [s["tau"] for s in swept] == [0.0, 0.5, 2.0]
    assert [s["worst_attack_success_rate"] for s in swept] == [1.0, 0.5, 0.0]
    assert [s["attackers"][1]["attack_success_rate_naive"] for s in swept] == [1.0, 0.6, 0.0]
    assert swept[1] == summary(given, 0.5, RULES)
    wide = summary(stored, 0.0, RULES | {"estoi": detect.Rule(0.2)})  # other rules, the same rows
    assert wide["worst_attack_success_rate"] == 0.0


def test_the_default_threshold_gives_the_stored_verdicts():
    given = restarts()
    found = summary(given, 0.3, RULES)
    stored = [r["verdict"] == "hack" for r in given if r["attacker"] == "grpo" and r["seed"] == 0]
    assert found["attackers"][0]["attack_success_rate"] == np.mean(stored) == 0.5


def test_json_safe_even_of_nothing():
    for given in ([], [failed("a.wav") | dict.fromkeys(set(row()) - set(failed()))]):
        found = summary(given, 0.3, RULES)
        json.loads(json.dumps(found, allow_nan=False))
        assert found["worst_attack_success_rate"] is None and found["offset"] is None
        assert found["any_attacker_interval"] == [0.0, 1.0]
    json.dumps(tau_sweep(restarts(), [0.1], RULES), allow_nan=False)


def test_refuses_mixed_rows_and_unknown_measures():
    with pytest.raises(ValueError, match="one predictor make one summary, got dnsmos, nisqa"):
        summary([row(), row(predictor="dnsmos")], 0.3, RULES)
    with pytest.raises(ValueError, match="lack the columns wer_reference"):
        summary([row()], 0.3, RULES | {"wer": 0.1})


def test_a_silent_member_of_a_batch(tmp_path):
    """Three 2 s pairs, the second reference silent: three rows in order, two of them judged."""
    noise = 0.1 * np.random.default_rng(0).standard_normal((2, 3, 32000)).astype(np.float32)
    x, y = noise[0], noise[0] + noise[1]
    x[1] = 0
    panel = jax.jit(jax.vmap(functools.partial(evaluate, default_panel(16000))))
    length = jnp.full(3, 32000)
    before, after = panel(x, x, length), panel(x, y, length)
    made = []
    for i in range(3):
        values = {f"{m}_reference": v[i] for m, v in before.items()}
        values |= {f"{m}_attacked": v[i] for m, v in after.items()}
        silent = not x[i].any()
        note = {"status": "silent", "reason": "every sample is zero"} if silent else {}
        made.append(row(f"{i}.wav", **{k: float(v) for k, v in values.items()}, **note))
    rows.write(tmp_path / "rows.parquet", made)
    stored = rows.read(tmp_path / "rows.parquet")
    assert [r["utterance"] for r in stored] == ["0.wav", "1.wav", "2.wav"]
    assert [r["verdict"] for r in stored] == ["hack", "undetermined", "hack"]
    assert stored[1]["estoi_reference"] is stored[1]["si_sdr_attacked"] is None and stored[1]["reason"]
    (entry,) = per_attacker(stored, 0.3, RULES)
    assert (entry["n"], entry["n_undetermined"], entry["n_failed"]) == (2, 0, 1)
    assert entry["mean_change"]["si_sdr"] < -70
