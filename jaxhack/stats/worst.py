"""The worst case over several audits of one predictor: functions of their rows alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxhack.detect import Rule
from jaxhack.stats.intervals import clopper_pearson
from jaxhack.stats.success import judgements, summary

Rows = Sequence[Mapping[str, Any]]

RANDOM_MAY_HARM = 0.5  # share of random actions that the panel may call worse at an ε that is chosen


def worst_case(audits: Mapping[str, Rows], tau: float, rules: Mapping[str, Rule]) -> dict[str, Any]:
    """What the attackers of several audits do together; each audit is of one space, budget and kind of attacker.

    Two numbers that are easily confused: ``worst_attack_success_rate`` is that of the best single attacker of all;
    ``any_attack_success_rate`` is the share of utterances that at least one attacker in one of the spaces hacks. Both
    leave the random baselines out.

    Args:
      audits: name -> rows, as :func:`jaxhack.rows.read` gives them, of one predictor and one set of utterances.
      tau: a hack gains more than this (MOS).
      rules: the panel.

    Returns:
      ``audits``: name -> :func:`~jaxhack.stats.success.summary`; ``any_attack_success_rate``, its ``_interval``
      (Clopper-Pearson, 95 %) and ``any_attack_n``, utterances on which at least one attacker is judged;
      ``worst_attack_success_rate`` with ``worst_attack``, the name of its audit; ``mean_best_gain``, the mean over
      utterances of the highest gain, hack or not (MOS). None where undefined.

    Raises:
      ValueError: no audits; or as :func:`~jaxhack.stats.success.summary`.
    """
    if not audits:
        raise ValueError("a worst case needs at least one audit, got none")
    summaries = {name: summary(rows, tau, rules) for name, rows in audits.items()}
    hacked: dict[str, bool] = {}
    gains: dict[str, float] = {}
    for rows in audits.values():
        for row, judged, hack in zip(rows, *judgements(rows, tau, rules), strict=True):
            if judged and not row["baseline"]:
                name = row["utterance"]
                hacked[name] = hacked.get(name, False) or bool(hack)
                gains[name] = max(gains.get(name, -np.inf), row["gain"])
    rates = {name: s["worst_attack_success_rate"] for name, s in summaries.items()}
    known = {name: rate for name, rate in rates.items() if rate is not None}
    worst = max(known, key=lambda name: known[name]) if known else None
    n = len(hacked)
    return {
        "tau": float(tau),
        "any_attack_success_rate": sum(hacked.values()) / n if n else None,
        "any_attack_interval": list(clopper_pearson(sum(hacked.values()), n)),
        "any_attack_n": n,
        "worst_attack": worst,
        "worst_attack_success_rate": known.get(worst) if worst else None,
        "mean_best_gain": float(np.mean(list(gains.values()))) if gains else None,
        "audits": summaries,
    }


def choose_epsilon(summaries: Mapping[float, Mapping[str, Any]]) -> float:
    """The largest budget at which the panel still tells attacks from chance; the smallest where it never does.

    Args:
      summaries: ε -> :func:`~jaxhack.stats.success.summary` of a *validation* set, one kind of space.

    Returns:
      The largest ε at which the panel calls at most half of the random actions worse than x̂.
    """
    if not summaries:
        raise ValueError("there is no budget to choose from")
    harm = {
        epsilon: max((a["degraded_rate"] or 0.0 for a in s["attackers"] if a["attacker"] == "random"), default=0.0)
        for epsilon, s in summaries.items()
    }
    fair = [epsilon for epsilon, share in harm.items() if share <= RANDOM_MAY_HARM]
    return max(fair) if fair else min(harm)
