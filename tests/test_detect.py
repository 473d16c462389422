import numpy as np
import pytest

from jaxhack import detect
from jaxhack.detect import HACK, NO_HACK, UNDETERMINED

MARGINS = {"estoi": 0.02, "si_sdr": 1.0}
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
    assert detect.verdict(row[0], *panel(row), MARGINS, 0.3) == row[5]
    assert detect.degraded(*panel(row), MARGINS) == row[6]


def test_verdicts_of_any_shape():
    columns = list(zip(*TABLE, strict=True))
    sides = (
        {"estoi": np.array([columns[1]], float), "si_sdr": np.array([columns[3]], float)},
        {"estoi": np.array([columns[2]], float), "si_sdr": np.array([columns[4]], float)},
    )
    found = detect.verdict(np.array([columns[0]], float), *sides, MARGINS, 0.3)
    assert found.shape == (1, len(TABLE)) and found[0].tolist() == list(columns[5])
    assert detect.degraded(*sides, MARGINS)[0].tolist() == list(columns[6])


def test_both_verdicts_of_a_row():
    row = {"gain": 0.5, "gain_naive": 0.1, "estoi_reference": 0.9, "estoi_attacked": 0.8}
    margins = {"estoi": 0.02}
    assert detect.verdicts(row, margins, 0.3) == {"verdict": "hack", "verdict_naive": "no_hack"}
    columns = {name: np.array([value, None], float) for name, value in row.items()}
    assert detect.verdicts(columns, margins, 0.3)["verdict"].tolist() == ["hack", "undetermined"]


def test_refuses_what_would_decide_in_silence():
    row = TABLE[0]
    with pytest.raises(ValueError, match="empty panel"):
        detect.verdict(0.5, {}, {}, {}, 0.3)
    with pytest.raises(ValueError, match=r"lack \['wer'\]"):
        detect.verdict(0.5, *panel(row), MARGINS | {"wer": 0.1}, 0.3)
    for tau in (NAN, INF):
        with pytest.raises(ValueError, match="tau must be a finite number"):
            detect.verdict(0.5, *panel(row), MARGINS, tau)
    for margin in (-0.1, NAN):
        with pytest.raises(ValueError, match="margins must be"):
            detect.verdict(0.5, *panel(row), {"estoi": margin}, 0.3)
