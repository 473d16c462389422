import numpy as np
import pytest

from jaxhack import detect
from jaxhack.detect import HACK, NO_HACK, UNDETERMINED, Rule

RULES = {"estoi": Rule(0.02), "si_sdr": Rule(1.0)}
NAN, INF = float("nan"), float("inf")

# gain, estoi x̂, estoi y, si_sdr x̂, si_sdr y, verdict at tau 0.3, the panel alone
TABLE = [
    (0.5, 0.90, 0.80, 10.0, 10.0, HACK, "degraded"),  # one witness is enough
    (0.5, 0.90, 0.90, 10.0, 8.5, HACK, "degraded"),
    (0.5, 0.90, 0.885, 10.0, 9.5, NO_HACK, "not_degraded"),  # both fell, neither by its margin
    (0.5, 0.80, 0.90, 8.0, 10.0, NO_HACK, "not_degraded"),  # better speech, better score
    (0.3, 0.90, 0.10, 10.0, -5.0, NO_HACK, "degraded"),  # not *more* than tau
    (-1.0, 0.90, 0.10, 10.0, -5.0, NO_HACK, "degraded"),
    (0.5, 0.90, 0.90, 10.0, 9.0, NO_HACK, "not_degraded"),  # not *more* than the margin
    (NAN, 0.90, 0.10, 10.0, -5.0, UNDETERMINED, "degraded"),
    (INF, 0.90, 0.10, 10.0, -5.0, UNDETERMINED, "degraded"),
    (0.5, NAN, 0.10, 10.0, -5.0, UNDETERMINED, "undetermined"),  # even with another witness
    (0.5, 0.90, 0.10, 10.0, None, UNDETERMINED, "undetermined"),
    (-1.0, NAN, NAN, 10.0, 10.0, UNDETERMINED, "undetermined"),  # even without a gain
    (0.5, 0.90, 0.90, 10.0, -INF, UNDETERMINED, "undetermined"),
]


def panel(row):
    return {"estoi": row[1], "si_sdr": row[3]}, {"estoi": row[2], "si_sdr": row[4]}


@pytest.mark.parametrize("row", TABLE)
def test_verdict_of_one(row):
    assert detect.verdict(row[0], *panel(row), RULES, 0.3) == row[5]
    assert detect.degraded(*panel(row), RULES) == row[6]


def test_verdicts_of_any_shape():
    columns = list(zip(*TABLE, strict=True))
    sides = (
        {"estoi": np.array([columns[1]], float), "si_sdr": np.array([columns[3]], float)},
        {"estoi": np.array([columns[2]], float), "si_sdr": np.array([columns[4]], float)},
    )
    found = detect.verdict(np.array([columns[0]], float), *sides, RULES, 0.3)
    assert found.shape == (1, len(TABLE)) and found[0].tolist() == list(columns[5])
    assert detect.degraded(*sides, RULES)[0].tolist() == list(columns[6])


def test_both_verdicts_of_a_row():
    row = {"gain": 0.5, "gain_naive": 0.1, "estoi_reference": 0.9, "estoi_attacked": 0.8}
    rules = {"estoi": Rule(0.02)}
    assert detect.verdicts(row, rules, 0.3) == {"verdict": "hack", "verdict_naive": "no_hack"}
    columns = {name: np.array([value, None], float) for name, value in row.items()}
    assert detect.verdicts(columns, rules, 0.3)["verdict"].tolist() == ["hack", "undetermined"]


def test_refuses_what_would_decide_in_silence():
    row = TABLE[0]
    with pytest.raises(ValueError, match="empty panel"):
        detect.verdict(0.5, {}, {}, {}, 0.3)
    with pytest.raises(ValueError, match=r"lack \['wer'\]"):
        detect.verdict(0.5, *panel(row), RULES | {"wer": Rule(0.1)}, 0.3)
    for tau in (NAN, INF):
        with pytest.raises(ValueError, match="tau must be a finite number"):
            detect.verdict(0.5, *panel(row), RULES, tau)
    for margin in (-0.1, NAN):
        with pytest.raises(ValueError, match="margins must be"):
            detect.verdict(0.5, *panel(row), {"estoi": Rule(margin)}, 0.3)


def test_a_vote_against_a_saturated_reference_is_void():
    """x̂ is x but for rounding: SI-SDR loses tens of dB to any change, and only ESTOI can tell."""
    rules = {"estoi": Rule(0.02), "si_sdr": Rule(1.0, saturation=40.0)}
    reference = {"estoi": np.array([1.0, 1.0, 1.0, 1.0]), "si_sdr": np.array([80.0, 80.0, 40.0, 80.0])}
    attacked = {"estoi": np.array([0.99, 0.9, 0.99, 1.0]), "si_sdr": np.array([20.0, 20.0, 20.0, 80.0])}
    assert detect.verdict(np.ones(4), reference, attacked, rules, 0.3).tolist() == [NO_HACK, HACK, HACK, NO_HACK]
    counted = detect.verdict(np.ones(4), reference, attacked, rules, 0.3, void_votes=True)
    assert counted.tolist() == [HACK, HACK, HACK, NO_HACK]
    assert detect.degraded(reference, attacked, rules).tolist() == [
        "not_degraded", "degraded", "degraded", "not_degraded"
    ]  # fmt: skip
    row = {f"{name}_reference": values[1] for name, values in reference.items()}
    row |= {f"{name}_attacked": values[1] for name, values in attacked.items()}
    assert detect.vote_columns(row, rules) == {"votes": "estoi", "void": "si_sdr"}


def test_a_measure_may_count_errors():
    rules = {"wer": Rule(0.05, saturation=0.0, higher_is_better=False)}
    reference, attacked = {"wer": np.array([0.1, 0.1, 0.3])}, {"wer": np.array([0.2, 0.15, 0.1])}
    assert detect.degraded(reference, attacked, rules).tolist() == ["degraded", "not_degraded", "not_degraded"]
