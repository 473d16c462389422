"""What attackers of real-valued spaces share: how the actions of one utterance are measured, and what is refused."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxhack.types import Array, Attacker, Objective, Point, Queries, Space, Unsuited


class Geometry(NamedTuple):
    """How actions on one utterance are measured, whatever the norm of their space."""

    shape: tuple[int, ...]
    unit: Array  # [] size of an entry where all are alike and the budget is spent
    valid: Array  # [*shape] bool, entries that reach the utterance
    start: Callable[[Array], Array]  # key -> a random action within the budget
    limit: Callable[[Array], Array]  # action -> the nearest within the budget, or that direction at the budget
    ascent: Callable[[Array], Array]  # slope -> the action of full budget that climbs most


def geometry(space: Space, point: Point, held: bool) -> Geometry:
    """The geometry of actions on `point`: of its own shape, or `held` vectors ``[*action_shape]``."""
    shape = space.action_shape if held else whole_shape(space, point)
    valid = jnp.ones(shape, bool) if held else space.expand(point, jnp.ones(shape)) > 0

    def limit(action: Array) -> Array:
        if not held:
            return space.project(point, action)
        return space.epsilon * held_limit(space, action / (space.epsilon or 1.0))

    def start(key: Array) -> Array:
        direction, spread = jax.random.split(key)
        sample = jax.random.normal(direction, shape) if held else space.expand(point, space.sample(direction, point))
        # Uniform within a maximum norm; an RMS has no inside.
        return limit(limit(sample) * jax.random.uniform(spread, shape))

    def ascent(slope: Array) -> Array:
        return space.epsilon * jnp.sign(slope) if space.norm == "linf" else limit(slope)

    unit = jnp.float32(space.epsilon) if space.norm == "linf" else jnp.max(jnp.abs(limit(jnp.ones(shape))))
    return Geometry(shape, unit, valid, start, limit, ascent)


def held_limit(space: Space, action: Array) -> Array:
    """A held action in multiples of ε, brought to the budget: clipped to ±1, or scaled to an RMS of 1."""
    if space.norm == "linf":
        return jnp.clip(action, -1.0, 1.0)
    return action / jnp.sqrt(jnp.maximum(jnp.mean(jnp.square(action)), 1e-30))


def whole_shape(space: Space, point: Point) -> tuple[int, ...]:
    """The shape of an action that covers the whole utterance."""
    return jax.eval_shape(space.expand, point, jnp.zeros(space.action_shape)).shape


def at_test_time(name: str, act: Callable[[None, Array, Point], Array], asked: Queries) -> Attacker:
    """An attacker that learns nothing before the test, and then asks so much for each utterance."""
    return Attacker(name, False, lambda key: None, lambda state, key, points: (state, {}), act, Queries(), asked)


def needs_real_actions(space: Space, attacker: str) -> None:
    """Raises :class:`~jaxhack.types.Unsuited` where actions are whole numbers."""
    if space.norm == "count":
        raise Unsuited(
            f"{attacker} moves actions by real amounts, and those of {space.name} are whole numbers: "
            "choose codes-search there."
        )


def needs_gradients(objective: Objective) -> None:
    """Raises :class:`~jaxhack.types.Unsuited` where there are none."""
    if objective.blind:
        raise Unsuited(objective.blind)


def needs_at_least(attacker: str, least: float, **options: float) -> None:
    """Raises ``ValueError`` for an option that is too small."""
    for name, value in options.items():
        if not value >= least:
            raise ValueError(f"The {name} of {attacker} must be at least {least}, got {value}.")


def needs_positive(attacker: str, **options: float) -> None:
    """Raises ``ValueError`` for an option that is zero, negative or not a number."""
    for name, value in options.items():
        if not value > 0:
            raise ValueError(f"The {name} of {attacker} must be positive, got {value}.")
