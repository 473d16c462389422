"""Full-reference measures: independent witnesses of whether speech got worse."""

from jaxhack.measures.estoi import estoi, estoi_measure
from jaxhack.measures.panel import default_panel, evaluate, rules
from jaxhack.measures.si_sdr import si_sdr, si_sdr_measure

__all__ = [
    "default_panel",
    "estoi",
    "estoi_measure",
    "evaluate",
    "rules",
    "si_sdr",
    "si_sdr_measure",
]
