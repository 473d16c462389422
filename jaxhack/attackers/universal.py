"""One perturbation for every utterance, learned from slopes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxhack.attackers.geometry import (
    held_limit,
    needs_at_least,
    needs_gradients,
    needs_positive,
    needs_real_actions,
)
from jaxhack.types import Array, Attacker, Objective, Point, Queries


class State(NamedTuple):
    """A perturbation in training."""

    action: Array  # [*action_shape], multiples of ε
    direction: Array  # running mean of slopes


def universal(objective: Objective, *, batch: int = 8, step_size: float = 0.1, momentum: float = 0.9) -> Attacker:
    r"""Learns one held action that raises the mean score: in a latent one vector, in a waveform a tile that repeats.

    .. math:: m \leftarrow \mu m + (1 - \mu) \, \overline{\nabla_a R}, \qquad
              a \leftarrow P_\epsilon\big(a + \alpha \epsilon \, u(m)\big)

    with the mean slope over a batch and the projected steps of :func:`~jaxhack.attackers.pgd`. Slopes that are not
    finite count as zero. Its counterpart from scores alone is ``grpo(universal=True)``.

    Args:
      objective: what is attacked; its predictor must have gradients, its space real actions.
      batch: utterances B of one step, used to state the number of queries.
      step_size: α, a multiple of ε.
      momentum: μ.

    Returns:
      An :class:`~jaxhack.types.Attacker` whose ``act`` looks at nothing. ``step`` reports ``reward``, and as
      ``groups_broken`` the share of utterances without a score.

    Raises:
      ValueError: an option is out of range, or there is no gradient.

    Source: Moosavi-Dezfooli et al., arXiv 1610.08401; by gradient, Shafahi et al., arXiv 1811.11304.
    """
    needs_at_least("universal", 1, batch=batch)
    needs_positive("universal", step_size=step_size)
    if not 0 <= momentum < 1:
        raise ValueError(f"The momentum of universal must be at least 0 and below 1, got {momentum}.")
    space = objective.space
    needs_real_actions(space, "universal")
    needs_gradients(objective)

    def init(key: Array) -> State:
        action = held_limit(space, jax.random.normal(key, space.action_shape))
        return State(action, jnp.zeros_like(action))

    def step(state: State, key: Array, points: Point) -> tuple[State, dict[str, Array]]:
        del key
        count = points.length.shape[0]
        actions = jnp.broadcast_to(space.epsilon * state.action, (count, 1, *space.action_shape))
        scores, slopes = objective.gradients(points, actions)
        scored = jnp.isfinite(scores)
        slope = jnp.mean(jnp.where(jnp.isfinite(slopes), slopes, 0.0), (0, 1))
        direction = momentum * state.direction + (1 - momentum) * slope
        ascent = jnp.sign(direction) if space.norm == "linf" else held_limit(space, direction)
        metrics = {
            "reward": jnp.sum(jnp.where(scored, scores, 0.0)) / jnp.sum(scored, dtype=scores.dtype),
            "groups_broken": jnp.mean(~scored, dtype=scores.dtype),
        }
        return State(held_limit(space, state.action + step_size * ascent), direction), metrics

    def act(state: State, key: Array, point: Point) -> Array:
        del key, point
        return space.epsilon * state.action

    return Attacker("universal", False, init, step, act, Queries(gradients=batch), Queries())
