"""Searches for actions that raise a score."""

from jaxhack.attackers.grpo import grpo
from jaxhack.attackers.random import random

__all__ = ["grpo", "random"]
