"""An audit's settings, checked before anything is computed."""

import math
from dataclasses import dataclass, field
from typing import Any

from jaxhack import attackers, registry

MAX_SECONDS = 30.0  # of a longer utterance the beginning is attacked, so that memory stays bounded


@dataclass(frozen=True)
class Settings:
    """What a user may set; every default is the paper's."""

    attacker: str = "grpo"
    seeds: int = 5  # attackers k that differ only in their seed
    steps: int = 2000  # optimisation steps of each
    batch: int = 8  # crops a step
    group: int = 8  # draws a crop
    crop_seconds: float = 3.0
    epsilon: float = 0.5  # RMS, in standardised latent units
    tau: float = 0.3  # MOS; a hack gains more than this
    limit: int | None = None  # utterances used in all
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)  # further options of the attacker

    def __post_init__(self):
        """Refuses what cannot be run."""
        for name, low in {"seeds": 1, "steps": 1, "batch": 1, "group": 2}.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name} must be at least {low}, got {getattr(self, name)}.")
        if self.limit is not None and self.limit < 2:
            raise ValueError(
                f"limit must leave 2 utterances or more, one to train on and one to test, got {self.limit}."
            )
        if not (math.isfinite(self.epsilon) and self.epsilon >= 0):
            raise ValueError(f"epsilon must be a finite number ≥ 0 (RMS in standardised units), got {self.epsilon}.")
        if not math.isfinite(self.tau):
            raise ValueError(f"tau must be a finite number (MOS), got {self.tau}.")
        if not 0 < self.crop_seconds <= MAX_SECONDS:
            raise ValueError(f"crop_seconds must be above 0 and at most {MAX_SECONDS:g}, got {self.crop_seconds}.")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be a whole number from 0 to 2**32 - 1, got {self.seed}.")
        if self.attacker not in attackers.TRAINABLE:
            raise ValueError(registry.unknown("attacker", self.attacker, attackers.TRAINABLE))

    def queries(self, test: int) -> int:
        """Forward scores per test utterance: an attacker's training shared out over them, and one to attack."""
        return math.ceil(self.steps * self.batch * self.group / test) + 1
