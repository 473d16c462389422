"""Searches for actions that raise a score."""

from collections.abc import Callable
from functools import partial

from jaxhack.attackers.grpo import group_advantages, grpo
from jaxhack.attackers.random import random
from jaxhack.types import Attacker

# name -> factory (objective, *, batch, group, **options) of the attackers that an audit can train.
TRAINABLE: dict[str, Callable[..., Attacker]] = {
    "grpo": grpo,
    "grpo-literal": partial(grpo, normalise_mean=False),  # the recipe to the letter, which drifts
}

__all__ = ["TRAINABLE", "group_advantages", "grpo", "random"]
