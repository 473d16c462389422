"""What counts as a hack: two rules, three answers.

A hack gains more than τ *and* has a witness: an independent measure says that the attacked waveform y is
worse than the reference x̂ by more than its margin. Where a score or a measure is undefined there is no
verdict.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

HACK = "hack"
NO_HACK = "no_hack"
DEGRADED = "degraded"
NOT_DEGRADED = "not_degraded"
UNDETERMINED = "undetermined"


def _panel(
    reference: Mapping[str, Any], attacked: Mapping[str, Any], margins: Mapping[str, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Per output: whether a measure fell by more than its margin, and whether every measure is defined."""
    if not margins:
        raise ValueError("a verdict needs at least one measure as a witness, got an empty panel")
    for side, values in (("reference", reference), ("attacked", attacked)):
        missing = [name for name in margins if name not in values]
        if missing:
            raise ValueError(f"the panel has {list(margins)}, but the {side} values lack {missing}")
    wrong = {name: margin for name, margin in margins.items() if not margin >= 0}
    if wrong:
        raise ValueError(f"margins must be numbers ≥ 0, got {wrong}")
    before = np.stack([_number(reference[name]) for name in margins])
    after = np.stack([_number(attacked[name]) for name in margins])
    defined = np.all(np.isfinite(before) & np.isfinite(after), axis=0)
    limit = np.reshape(list(margins.values()), (-1,) + (1,) * (before.ndim - 1))
    with np.errstate(invalid="ignore"):
        return np.any(before - after > limit, axis=0), defined


def _number(value: Any) -> np.ndarray:
    return np.asarray(value, np.float64)  # None, as stored rows have it, becomes NaN


def verdict(
    gain: Any,
    reference: Mapping[str, Any],
    attacked: Mapping[str, Any],
    margins: Mapping[str, float],
    tau: float,
) -> np.ndarray:
    """The verdict on each attacked output.

    Args:
      gain: ``[...]`` R(y) − R(x̂), or R(y) − R(x) for the naive verdict; in units of the score.
      reference: measure name to ``[...]``, the panel on (x, x̂).
      attacked: the same on (x, y).
      margins: measure name to margin ≥ 0: the panel, no name of which may be missing.
      tau: a hack gains more than this.

    Returns:
      ``[...]`` of `HACK`, `NO_HACK` and `UNDETERMINED`. Undetermined when the gain or *any* measure of the
      panel isn't finite (None counts as NaN): then it is neither a success nor a failure.

    Raises:
      ValueError: an empty panel, a measure without values, a negative margin, a `tau` that isn't finite.
    """
    if not np.isfinite(tau):
        raise ValueError(f"tau must be a finite number, got {tau}")
    worse, defined = _panel(reference, attacked, margins)
    gain = _number(gain)
    return np.where(defined & np.isfinite(gain), np.where((gain > tau) & worse, HACK, NO_HACK), UNDETERMINED)


def degraded(reference: Mapping[str, Any], attacked: Mapping[str, Any], margins: Mapping[str, float]) -> np.ndarray:
    """The panel's rule alone, whatever the score did: `DEGRADED`, `NOT_DEGRADED` or `UNDETERMINED` ``[...]``.

    Arguments and errors as in :func:`verdict`.
    """
    worse, defined = _panel(reference, attacked, margins)
    return np.where(defined, np.where(worse, DEGRADED, NOT_DEGRADED), UNDETERMINED)


def verdicts(row: Mapping[str, Any], margins: Mapping[str, float], tau: float) -> dict[str, Any]:
    """The columns ``verdict`` and ``verdict_naive`` of a row, or of a table given as columns.

    Args:
      row: has ``gain``, ``gain_naive`` and, for every measure, ``<measure>_reference`` and ``_attacked``;
        scalars give strings, arrays ``[R]`` give arrays.
      margins: as in :func:`verdict`.
      tau: as in :func:`verdict`.
    """
    sides = panel_columns(row, margins)
    found = {f"verdict{kind}": verdict(row[f"gain{kind}"], *sides, margins, tau) for kind in ("", "_naive")}
    return {name: value.item() if value.ndim == 0 else value for name, value in found.items()}


def panel_columns(row: Mapping[str, Any], margins: Mapping[str, float]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The panel's values of a row, ``(reference, attacked)``, as :func:`verdict` takes them."""
    reference, attacked = (
        {name: row[f"{name}_{side}"] for name in margins if f"{name}_{side}" in row}
        for side in ("reference", "attacked")
    )
    return reference, attacked
