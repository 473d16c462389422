"""Searches for actions that raise a score."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from jaxhack.attackers.grpo import group_advantages, grpo
from jaxhack.attackers.pgd import pgd
from jaxhack.attackers.random import random
from jaxhack.types import Attacker


class Kind(NamedTuple):
    """A kind of attacker as an audit makes it."""

    make: Callable[..., Attacker]  # (objective, **options), and (batch=, group=) where it is trained
    trained: bool  # on the training half, before it meets the test


KINDS: dict[str, Kind] = {
    "grpo": Kind(grpo, trained=True),
    "grpo-literal": Kind(partial(grpo, normalise_mean=False), trained=True),  # the recipe to the letter, which drifts
    "pgd": Kind(pgd, trained=False),
    "apgd": Kind(partial(pgd, adaptive=True), trained=False),
}

__all__ = ["KINDS", "Kind", "group_advantages", "grpo", "pgd", "random"]
