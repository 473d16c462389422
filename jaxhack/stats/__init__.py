"""Statistics of stored rows."""

from jaxhack.stats.intervals import clopper_pearson
from jaxhack.stats.success import per_attacker, summary, tau_sweep
from jaxhack.stats.worst import choose_epsilon, worst_case

__all__ = ["choose_epsilon", "clopper_pearson", "per_attacker", "summary", "tau_sweep", "worst_case"]
