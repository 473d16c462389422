"""Searches for actions that raise a score."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from jaxhack.attackers.codes_search import codes_search
from jaxhack.attackers.grpo import group_advantages, grpo
from jaxhack.attackers.nes import nes
from jaxhack.attackers.pgd import pgd
from jaxhack.attackers.random import random
from jaxhack.attackers.square import square
from jaxhack.attackers.universal import universal
from jaxhack.types import Attacker


class Kind(NamedTuple):
    """A kind of attacker as an audit makes it."""

    make: Callable[..., Attacker]  # (objective, **options), and those of the settings that `sizes` names
    sizes: tuple[str, ...] = ()  # settings of its training; none: it learns nothing before it meets the test

    @property
    def trained(self) -> bool:
        """Whether it learns on the training half, before it meets the test."""
        return bool(self.sizes)


KINDS: dict[str, Kind] = {
    "grpo": Kind(grpo, ("batch", "group")),
    "grpo-literal": Kind(partial(grpo, normalise_mean=False), ("batch", "group")),  # to the letter, which drifts
    "universal-grpo": Kind(partial(grpo, universal=True), ("batch", "group")),
    "universal": Kind(universal, ("batch",)),
    "pgd": Kind(pgd),
    "apgd": Kind(partial(pgd, adaptive=True)),
    "nes": Kind(nes),
    "square": Kind(square),
    "codes-search": Kind(codes_search),
}

__all__ = ["KINDS", "Kind", "codes_search", "group_advantages", "grpo", "nes", "pgd", "random", "square", "universal"]
