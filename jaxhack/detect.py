"""What counts as a hack: two rules, three answers.

A hack gains more than τ *and* has a witness: an independent measure says that the attacked waveform y is
worse than the reference x̂ by more than its margin. Where a score or a measure is undefined there is no
verdict.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

HACK = "hack"
NO_HACK = "no_hack"
DEGRADED = "degraded"
NOT_DEGRADED = "not_degraded"
UNDETERMINED = "undetermined"


class Rule(NamedTuple):
    """When one measure votes that y is worse than x̂."""

    margin: float  # ≥ 0: worse by more than this
    saturation: float | None = None  # the vote is void on an x̂ better than this, which is x but for rounding
    higher_is_better: bool = True
    floor: float | None = None  # the vote is void on an x̂ worse than this, which the measure does not follow


class Votes(NamedTuple):
    """What the M measures of a panel say of outputs ``[...]``."""

    worse: np.ndarray  # [M, ...] bool
    void: np.ndarray  # [M, ...] bool: the reference is saturated, or below the floor
    defined: np.ndarray  # [...] bool: every measure is finite on both sides

    @property
    def counted(self) -> np.ndarray:
        """``[M, ...]``: votes that are not void."""
        return self.worse & ~self.void


def votes(reference: Mapping[str, Any], attacked: Mapping[str, Any], rules: Mapping[str, Rule]) -> Votes:
    """What each measure says.

    Args:
      reference: measure name to ``[...]``, the panel on (x, x̂); None counts as NaN.
      attacked: the same on (x, y).
      rules: measure name to rule: the panel, no name of which may be missing.

    Raises:
      ValueError: an empty panel, a measure without values, a negative margin.
    """
    if not rules:
        raise ValueError("a verdict needs at least one measure as a witness, got an empty panel")
    for side, values in (("reference", reference), ("attacked", attacked)):
        missing = [name for name in rules if name not in values]
        if missing:
            raise ValueError(f"the panel has {list(rules)}, but the {side} values lack {missing}")
    wrong = {name: rule.margin for name, rule in rules.items() if not rule.margin >= 0}
    if wrong:
        raise ValueError(f"margins must be numbers ≥ 0, got {wrong}")
    before = np.stack([_number(reference[name]) for name in rules])
    after = np.stack([_number(attacked[name]) for name in rules])
    margin, saturation, floor, sign = (
        np.reshape(values, (-1,) + (1,) * (before.ndim - 1))
        for values in zip(*map(_signed, rules.values()), strict=True)
    )
    with np.errstate(invalid="ignore"):
        worse, void = sign * (before - after) > margin, (sign * before > saturation) | (sign * before < floor)
    return Votes(worse, worse & void, np.all(np.isfinite(before) & np.isfinite(after), axis=0))


def _signed(rule: Rule) -> tuple[float, float, float, float]:
    sign = 1.0 if rule.higher_is_better else -1.0
    best, worst = (
        otherwise if limit is None else sign * limit
        for limit, otherwise in ((rule.saturation, math.inf), (rule.floor, -math.inf))
    )
    return rule.margin, best, worst, sign


def _number(value: Any) -> np.ndarray:
    return np.asarray(value, np.float64)  # None, as stored rows have it, becomes NaN


def verdict(
    gain: Any,
    reference: Mapping[str, Any],
    attacked: Mapping[str, Any],
    rules: Mapping[str, Rule],
    tau: float,
    *,
    void_votes: bool = False,
) -> np.ndarray:
    """The verdict on each attacked output.

    Args:
      gain: ``[...]`` R(y) − R(x̂), or R(y) − R(x) for the naive verdict; in units of the score.
      reference: as in :func:`votes`, like `attacked` and `rules`.
      attacked: the panel on (x, y).
      rules: the panel.
      tau: a hack gains more than this.
      void_votes: count those too.

    Returns:
      ``[...]`` of `HACK`, `NO_HACK` and `UNDETERMINED`. Undetermined when the gain or *any* measure of the
      panel isn't finite (None counts as NaN): then it is neither a success nor a failure.

    Raises:
      ValueError: as in :func:`votes`, or a `tau` that isn't finite.
    """
    if not np.isfinite(tau):
        raise ValueError(f"tau must be a finite number, got {tau}")
    said = votes(reference, attacked, rules)
    worse = np.any(said.worse if void_votes else said.counted, axis=0)
    gain = _number(gain)
    return np.where(said.defined & np.isfinite(gain), np.where((gain > tau) & worse, HACK, NO_HACK), UNDETERMINED)


def degraded(reference: Mapping[str, Any], attacked: Mapping[str, Any], rules: Mapping[str, Rule]) -> np.ndarray:
    """The panel's rule alone, whatever the score did: `DEGRADED`, `NOT_DEGRADED` or `UNDETERMINED` ``[...]``.

    Arguments and errors as in :func:`votes`; void votes do not count.
    """
    said = votes(reference, attacked, rules)
    return np.where(said.defined, np.where(np.any(said.counted, axis=0), DEGRADED, NOT_DEGRADED), UNDETERMINED)


def verdicts(row: Mapping[str, Any], rules: Mapping[str, Rule], tau: float) -> dict[str, Any]:
    """The columns ``verdict`` and ``verdict_naive`` of a row, or of a table given as columns.

    Args:
      row: has ``gain``, ``gain_naive`` and, for every measure, ``<measure>_reference`` and ``_attacked``;
        scalars give strings, arrays ``[R]`` give arrays.
      rules: as in :func:`votes`.
      tau: as in :func:`verdict`.
    """
    sides = panel_columns(row, rules)
    found = {f"verdict{kind}": verdict(row[f"gain{kind}"], *sides, rules, tau) for kind in ("", "_naive")}
    return {name: value.item() if value.ndim == 0 else value for name, value in found.items()}


def vote_columns(row: Mapping[str, Any], rules: Mapping[str, Rule]) -> dict[str, str]:
    """The columns ``votes`` and ``void`` of one row: names of measures, with a comma between."""
    said = votes(*panel_columns(row, rules), rules)
    chosen = {"votes": said.counted, "void": said.void}
    return {column: ",".join(np.array(list(rules))[vote]) for column, vote in chosen.items()}


def panel_columns(row: Mapping[str, Any], rules: Mapping[str, Rule]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The panel's values of a row, ``(reference, attacked)``, as :func:`verdict` takes them."""
    reference, attacked = (
        {name: row[f"{name}_{side}"] for name in rules if f"{name}_{side}" in row}
        for side in ("reference", "attacked")
    )
    return reference, attacked
