"""Success rates: functions of the stored rows alone, for any τ and any rules, with nothing run again.

`rows` is a list of dicts as :func:`jaxhack.rows.read` gives it, of one predictor in one space at one budget. Every
result is safe for JSON: a number that is undefined is None.

A row is *judged* when its status is "ok" and its verdict is determined. Rates and means are over judged rows
and `n` counts them. The others are counted apart: `n_undetermined` where the attack ran but a score or a
measure is undefined, `n_failed` where the input was at fault (unreadable, silent, too short, …).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxhack import detect
from jaxhack.stats.intervals import clopper_pearson

_RAN = ("ok", "undefined")  # statuses of an attack that ran


class _Columns(NamedTuple):
    """The rows turned round: arrays over the R rows."""

    attackers: list[tuple[str, int, bool]]  # (name, seed, baseline), in order of appearance
    attacker: np.ndarray  # [R] int, index into `attackers`
    baseline: np.ndarray  # [R] bool
    utterance: np.ndarray  # [R] int
    ok: np.ndarray  # [R] bool
    ran: np.ndarray  # [R] bool
    queries: np.ndarray  # [R] float
    gradients: np.ndarray  # [R] float
    numbers: dict[str, np.ndarray]  # column -> [R] float64, NaN where undefined


class _Verdicts(NamedTuple):
    """What τ and the rules make of the rows; each ``[R]`` bool."""

    judged: np.ndarray
    judged_naive: np.ndarray
    hack: np.ndarray
    hack_naive: np.ndarray
    hack_void: np.ndarray  # with void votes counted
    void: np.ndarray  # a vote of the panel is void
    degraded: np.ndarray


def _columns(rows: Sequence[Mapping[str, Any]], rules: Mapping[str, detect.Rule]) -> _Columns:
    for name in ("predictor", "space", "epsilon"):
        kinds = [str(kind) for kind in sorted({row[name] for row in rows})]
        if len(kinds) > 1:
            raise ValueError(f"rows of one {name} make one summary, got {', '.join(kinds)}: filter them first")
    attackers = list(dict.fromkeys((row["attacker"], row["seed"], row["baseline"]) for row in rows))
    utterances = {name: i for i, name in enumerate(dict.fromkeys(row["utterance"] for row in rows))}
    names = ["score_input", "score_reference", "gain", "gain_naive"]
    names += [f"{name}_{side}" for name in rules for side in ("reference", "attacked")]
    missing = [name for name in names if any(row["status"] == "ok" and name not in row for row in rows)]
    if missing:
        raise ValueError(f"the rows lack the columns {', '.join(missing)}: were they written with this panel?")
    index = {key: i for i, key in enumerate(attackers)}
    return _Columns(
        attackers,
        np.array([index[row["attacker"], row["seed"], row["baseline"]] for row in rows], int),
        np.array([row["baseline"] for row in rows], bool),
        np.array([utterances[row["utterance"]] for row in rows], int),
        np.array([row["status"] == "ok" for row in rows], bool),
        np.array([row["status"] in _RAN for row in rows], bool),
        np.array([row["queries"] for row in rows], float),
        np.array([row["gradients"] for row in rows], float),
        {name: np.array([row.get(name) for row in rows], np.float64) for name in [*names, "score_repeat"]},
    )


def _verdicts(columns: _Columns, tau: float, rules: Mapping[str, detect.Rule]) -> _Verdicts:
    found = detect.verdicts(columns.numbers, rules, tau)
    corrected, naive = found["verdict"], found["verdict_naive"]
    judged = columns.ok & (corrected != detect.UNDETERMINED)
    judged_naive = columns.ok & (naive != detect.UNDETERMINED)
    sides = detect.panel_columns(columns.numbers, rules)
    panel, void = detect.degraded(*sides, rules), np.any(detect.votes(*sides, rules).void, axis=0)
    with_void = detect.verdict(columns.numbers["gain"], *sides, rules, tau, void_votes=True)
    return _Verdicts(
        judged,
        judged_naive,
        judged & (corrected == detect.HACK),
        judged_naive & (naive == detect.HACK),
        judged & (with_void == detect.HACK),
        judged & void,
        judged & (panel == detect.DEGRADED),
    )


def _mean(values: np.ndarray | Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _entry(columns: _Columns, v: _Verdicts, i: int, rules: Mapping[str, detect.Rule]) -> dict[str, Any]:
    """One attacker's figures."""
    mine = columns.attacker == i
    judged, judged_naive = mine & v.judged, mine & v.judged_naive
    name, seed, baseline = columns.attackers[i]
    n, numbers = int(judged.sum()), columns.numbers
    return {
        "attacker": name,
        "seed": int(seed),
        "baseline": bool(baseline),
        "attack_success_rate": _mean(v.hack[judged]),
        "attack_success_rate_naive": _mean(v.hack_naive[judged_naive]),
        "attack_success_rate_void": _mean(v.hack_void[judged]),
        "interval": list(clopper_pearson(int(v.hack[mine].sum()), n)),
        "mean_gain": _mean(numbers["gain"][judged]),
        "gain_p90": float(np.percentile(numbers["gain"][judged], 90)) if n else None,
        "mean_gain_naive": _mean(numbers["gain_naive"][judged_naive]),
        "degraded_rate": _mean(v.degraded[judged]),
        "void_rate": _mean(v.void[judged]),
        "n": n,
        "n_naive": int(judged_naive.sum()),
        "n_undetermined": int((mine & columns.ran & ~v.judged).sum()),
        "n_failed": int((mine & ~columns.ran).sum()),
        "mean_change": {m: _mean((numbers[f"{m}_attacked"] - numbers[f"{m}_reference"])[judged]) for m in rules},
        "queries": round(float(columns.queries[mine].mean())),
        "gradients": round(float(columns.gradients[mine].mean())),
    }


def _once(columns: _Columns, after: str, before: str, statistic: Callable[[np.ndarray], Any]) -> float | None:
    """A statistic of the difference of two columns that no attacker touches, every utterance once."""
    difference = columns.numbers[after] - columns.numbers[before]
    known = columns.ok & np.isfinite(difference)
    _, first = np.unique(columns.utterance[known], return_index=True)
    return float(statistic(difference[known][first])) if len(first) else None


def _any_attacker(columns: _Columns, judged: np.ndarray, hack: np.ndarray) -> tuple[int, int]:
    """Utterances that at least one trained attacker hacks, of those that at least one is judged on."""
    judged = judged & ~columns.baseline
    return len(np.unique(columns.utterance[judged & hack])), len(np.unique(columns.utterance[judged]))


def _summary(columns: _Columns, tau: float, rules: Mapping[str, detect.Rule]) -> dict[str, Any]:
    v = _verdicts(columns, tau, rules)
    entries = [_entry(columns, v, i, rules) for i in range(len(columns.attackers))]
    trained = [entry for entry in entries if not entry["baseline"]]
    rates = _known(entry["attack_success_rate"] for entry in trained)
    naive = _known(entry["attack_success_rate_naive"] for entry in trained)
    hacked, n = _any_attacker(columns, v.judged, v.hack)
    hacked_naive, n_naive = _any_attacker(columns, v.judged_naive, v.hack_naive)
    return {
        "tau": float(tau),
        "offset": _once(columns, "score_reference", "score_input", np.mean),
        "repeat_sd": _once(columns, "score_repeat", "score_reference", lambda d: np.sqrt(np.mean(np.square(d)) / 2)),
        "n_utterances": len(np.unique(columns.utterance)),
        "attackers": entries,
        "worst_attack_success_rate": max(rates, default=None),
        "mean_attack_success_rate": _mean(rates),
        "attack_success_rate_sd": float(np.std(rates, ddof=1)) if len(rates) > 1 else None,
        "worst_attack_success_rate_naive": max(naive, default=None),
        "mean_attack_success_rate_naive": _mean(naive),
        "any_attacker_success_rate": hacked / n if n else None,
        "any_attacker_success_rate_naive": hacked_naive / n_naive if n_naive else None,
        "any_attacker_interval": list(clopper_pearson(hacked, n)),
        "any_attacker_n": n,
        "degraded_rate": _mean(v.degraded[v.judged & ~columns.baseline]),
        "degraded_rate_baseline": _mean(v.degraded[v.judged & columns.baseline]),
    }


def per_attacker(
    rows: Sequence[Mapping[str, Any]], tau: float, rules: Mapping[str, detect.Rule]
) -> list[dict[str, Any]]:
    """One entry per attacker (name, seed), in order of appearance.

    Returns:
      Entries with ``attacker, seed, baseline``; ``attack_success_rate`` and its ``_naive`` twin; ``interval``
      [low, high], Clopper-Pearson 95 % of the former; ``mean_gain``, ``mean_gain_naive``; ``gain_p90``, the gain's
      90th percentile; ``degraded_rate``, the share the panel calls worse whatever the score; ``void_rate``, the share
      with a void vote, and ``attack_success_rate_void``, what the rate would be if those counted; ``mean_change`` by
      measure, y minus x̂; ``n``, ``n_naive``, ``n_undetermined``, ``n_failed``; ``queries`` and ``gradients`` per
      utterance.

    Raises:
      ValueError: rows of several predictors, spaces or budgets, or without the panel's columns; see
        :func:`jaxhack.detect.verdict` for the rest.
    """
    return summary(rows, tau, rules)["attackers"]


def summary(rows: Sequence[Mapping[str, Any]], tau: float, rules: Mapping[str, detect.Rule]) -> dict[str, Any]:
    """What the rows say at `tau`.

    Two worst cases that are easily confused: ``worst_attack_success_rate`` is the highest rate of any *one*
    trained attacker; ``any_attacker_success_rate`` is the share of utterances that *at least one* of them
    hacks, over ``any_attacker_n`` utterances on which at least one is judged (an attack without a verdict
    counts as not made). Both, like mean and sd (n − 1), leave the baselines out.

    Returns:
      ``tau``; ``offset``, the mean of R(x̂) − R(x) over utterances; ``repeat_sd``, the standard deviation of the score
      of the same audio (x̂, asked twice); ``n_utterances``; ``attackers`` as in
      :func:`per_attacker`; ``worst_``, ``mean_attack_success_rate`` and their ``_naive`` twins;
      ``attack_success_rate_sd``; ``any_attacker_success_rate`` (and ``_naive``, ``_interval``, ``_n``);
      ``degraded_rate`` and ``degraded_rate_baseline``, over all judged rows of attackers and of baselines.

    Raises:
      ValueError: as in :func:`per_attacker`.
    """
    return _summary(_columns(rows, rules), tau, rules)


def judgements(
    rows: Sequence[Mapping[str, Any]], tau: float, rules: Mapping[str, detect.Rule], *, void_votes: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Which rows are judged and which are hacks, both ``[R]`` bool. Errors as in :func:`per_attacker`.

    Args:
      rows: see there.
      tau: see there.
      rules: see there.
      void_votes: whether void votes count.
    """
    found = _verdicts(_columns(rows, rules), tau, rules)
    return found.judged, found.hack_void if void_votes else found.hack


def tau_sweep(
    rows: Sequence[Mapping[str, Any]], taus: Iterable[float], rules: Mapping[str, detect.Rule]
) -> list[dict[str, Any]]:
    """:func:`summary` at each of `taus`, from the same rows."""
    columns = _columns(rows, rules)
    return [_summary(columns, tau, rules) for tau in taus]
