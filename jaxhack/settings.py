"""The settings of audits and patches, checked before anything is computed.

Nothing heavy is imported before it is needed: the command line's help reads this module.
"""

import inspect
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

DEFAULT_PREDICTOR = "dnsmos-p808"
DEFAULT_CODEC = "mini"
DEFAULT_PANEL = "estoi,si_sdr"

# Named sizes: what each sets in place of the paper's.
PROFILES: dict[str, dict[str, Any]] = {
    "quick": {"seeds": 2, "steps": 25, "batch": 4, "crop_seconds": 2.0},
    "standard": {"seeds": 3, "steps": 300, "batch": 4, "crop_seconds": 3.0},
    "paper": {},
}

BLIND = ("noise", "pgd", "random")  # sources of pairs that no detector looks at


@dataclass(frozen=True)
class Recipe:
    """How a predictor is trained against pairs; every default is the paper's."""

    source: str = "hacks"  # of the pairs: what the detector calls hacks, or one of BLIND
    rounds: int = 3
    fit_steps: int = 1500  # of each round
    fit_batch: int = 8  # labelled clips of a step, and as many pairs
    fit_seconds: float = 6.0  # the longest cut of a clip or a pair
    learning_rate: float = 2e-5
    margin: float = 0.5  # MOS
    weight: float = 1.0  # of the margin ranking loss
    consistency: float = 0.0  # weight of the squared difference of a pair's scores
    gradient_norm: float = 0.0  # weight of the score's gradient norm
    prefer_input: bool = False  # x ≻ y in place of x̂ ≻ y: the paper's ablation
    capacity: int = 20_000  # pairs that the replay buffer holds

    def __post_init__(self):
        """Refuses what cannot be run."""
        from jaxhack import registry

        if self.source not in ("hacks", *BLIND):
            raise ValueError(registry.unknown("source of pairs", self.source, ("hacks", *BLIND)))
        for name in ("rounds", "fit_steps", "fit_batch", "capacity"):
            if isinstance(getattr(self, name), bool) or not isinstance(getattr(self, name), int):
                raise ValueError(f"{name} must be a whole number, got {getattr(self, name)!r}.")
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        for name in ("fit_seconds", "learning_rate"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a finite number above 0, got {getattr(self, name)}.")
        for name in ("margin", "weight", "consistency", "gradient_norm"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a finite number ≥ 0, got {getattr(self, name)}.")


MAX_SECONDS = 30.0  # of a longer utterance the beginning is attacked, so that memory stays bounded


@dataclass(frozen=True)
class Settings:
    """What a user may set; every default is the paper's."""

    profile: str = "paper"  # the preset these settings started from, whatever was set beside it
    space: str = "latent"  # a kind, of jaxhack.spaces.KINDS
    attacker: str = "grpo"  # of jaxhack.attackers.KINDS
    seeds: int = 5  # attackers k that differ only in their seed
    steps: int = 2000  # optimisation steps of each
    batch: int = 8  # crops a step
    group: int = 8  # draws a crop
    crop_seconds: float = 3.0
    epsilon: float | None = None  # the budget, in the space's unit; None: the space's own default
    tau: float = 0.3  # MOS; a hack gains more than this
    limit: int | None = None  # utterances used in all
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)  # further options of the attacker

    @classmethod
    def of(cls, profile: str, **given: Any) -> Self:
        """A profile's settings, save those given; one given as None is the profile's.

        Raises:
          ValueError: an unknown profile, or settings out of range.
        """
        if profile not in PROFILES:
            from jaxhack import registry

            raise ValueError(registry.unknown("profile", profile, PROFILES))
        return cls(profile=profile, **PROFILES[profile] | {k: v for k, v in given.items() if v is not None})

    def __post_init__(self):
        """Refuses what cannot be run."""
        from jaxhack import attackers, registry, spaces

        for what, name, known in (("space", self.space, spaces.KINDS), ("attacker", self.attacker, attackers.KINDS)):
            if name not in known:
                raise ValueError(registry.unknown(what, name, known))
        epsilon = spaces.KINDS[self.space].epsilon if self.epsilon is None else self.epsilon
        object.__setattr__(self, "epsilon", epsilon)
        for name in ("seeds", "steps", "batch", "group", "seed", *(["limit"] if self.limit is not None else [])):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"{name} must be a whole number, got {value!r}.")
        for name, low in {"seeds": 1, "steps": 1, "batch": 1, "group": 2}.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name} must be at least {low}, got {getattr(self, name)}.")
        if self.limit is not None and self.limit < 2:
            raise ValueError(
                f"limit must leave 2 utterances or more, one to train on and one to test, got {self.limit}."
            )
        if not (math.isfinite(epsilon) and epsilon >= 0):
            unit = spaces.KINDS[self.space].unit
            raise ValueError(f"epsilon must be a finite number ≥ 0 ({unit}), got {epsilon}.")
        if not math.isfinite(self.tau):
            raise ValueError(f"tau must be a finite number (MOS), got {self.tau}.")
        if spaces.KINDS[self.space].whole and epsilon != round(epsilon):
            raise ValueError(
                f"epsilon must be a whole number in the space {self.space} ({spaces.KINDS[self.space].unit}), got "
                f"{epsilon:g}: leave that space out, or name a budget for it alone."
            )
        if not 0 < self.crop_seconds <= MAX_SECONDS:
            raise ValueError(f"crop_seconds must be above 0 and at most {MAX_SECONDS:g}, got {self.crop_seconds}.")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be a whole number from 0 to 2**32 - 1, got {self.seed}.")
        self._check_options()

    def _check_options(self) -> None:
        """Refuses options that the attacker does not have, or values of another kind than their defaults."""
        from jaxhack import attackers, registry

        kind = attackers.KINDS[self.attacker]
        known = list(inspect.signature(kind.make).parameters.values())[1:]
        defaults = {p.name: p.default for p in known if p.name not in kind.sizes}
        for name, value in self.options.items():
            if name not in defaults:
                raise ValueError(registry.unknown(f"option of {self.attacker}", name, defaults))
            default = defaults[name]
            if isinstance(default, bool):
                what, fits = "true or false", isinstance(value, bool)
            elif isinstance(default, int):
                what, fits = "a whole number", isinstance(value, int) and not isinstance(value, bool)
            else:
                what = "a finite number"
                fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not fits:
                raise ValueError(f"The option {name} of {self.attacker} must be {what}, got {value!r}.")


def learns(settings: Mapping[str, Any]) -> bool:
    """Whether the attackers of a run with these settings learn before they meet the test set."""
    from jaxhack import attackers

    return attackers.KINDS[settings["attacker"]].trained


def first_look(settings: Mapping[str, Any]) -> bool:
    """Whether an attacker of a run with these settings is trained less than one of the standard profile."""
    return learns(settings) and _draws(settings) < _draws(asdict(Settings.of("standard")))


def described(settings: Mapping[str, Any]) -> str:
    """The profile in words, and whether something else was set beside it."""
    preset = asdict(Settings.of(settings["profile"]))
    changed = any(settings[name] != preset[name] for name in ("seeds", "steps", "batch", "group", "crop_seconds"))
    return f"{settings['profile']} profile{' with other sizes' if changed else ''}"


def takes_long(settings: Mapping[str, Any]) -> bool:
    """Whether settings, as a run stores them, train as much as the paper does."""
    return learns(settings) and _draws(settings) >= _draws(asdict(Settings()))


def sizes(settings: Mapping[str, Any]) -> str:
    """How much is trained or, where nothing is, repeated, in the options' own words."""
    form = "seeds {seeds} × steps {steps} × batch {batch}" if learns(settings) else "seeds {seeds}"
    return form.format(**settings)


def _draws(settings: Mapping[str, Any]) -> int:
    """Scores that the training of one attacker asks for."""
    return settings["steps"] * settings["batch"] * settings["group"]
