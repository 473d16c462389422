"""Statistics of stored rows."""

from jaxhack.stats.certificate import Bound, certificate, fresh_percentile, l2_radius, lower_bound
from jaxhack.stats.intervals import clopper_pearson
from jaxhack.stats.success import per_attacker, summary, tau_sweep
from jaxhack.stats.worst import choose_epsilon, worst_case

__all__ = [
    "Bound",
    "certificate",
    "choose_epsilon",
    "clopper_pearson",
    "fresh_percentile",
    "l2_radius",
    "lower_bound",
    "per_attacker",
    "summary",
    "tau_sweep",
    "worst_case",
]
