"""Statistics of stored rows."""

from jaxhack.stats.intervals import clopper_pearson
from jaxhack.stats.success import per_attacker, summary, tau_sweep

__all__ = ["clopper_pearson", "per_attacker", "summary", "tau_sweep"]
