"""One perturbation for every utterance, learned from slopes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxhack.attackers.geometry import (
    held_limit,
    needs_at_least,
    needs_gradients,
    needs_positive,
    needs_real_actions,
)
from jaxhack.types import Array, Attacker, Objective, Point, PyTree, Queries


class State(NamedTuple):
    """A perturbation in training."""

    action: Array  # [*action_shape], multiples of ε
    opt_state: PyTree


def universal(
    objective: Objective, *, batch: int = 8, learning_rate: float = 0.03, momentum: float = 0.9
) -> Attacker:
    """Learns one held action that raises the mean score: in a latent one vector, in a waveform a tile that repeats.

    Adam climbs the mean slope over a batch; after each step the action is brought back to the budget. Slopes that
    are not finite count as zero. Its counterpart from scores alone is ``grpo(universal=True)``.

    Args:
      objective: what is attacked; its predictor must have gradients, its space real actions.
      batch: utterances B of one step, used to state the number of queries.
      learning_rate: Adam's, a multiple of ε.
      momentum: Adam's, of the running mean of slopes.

    Returns:
      An :class:`~jaxhack.types.Attacker` whose ``act`` looks at nothing. ``step`` reports ``reward``, and as
      ``groups_broken`` the share of utterances without a score.

    Raises:
      ValueError: an option is out of range, or there is no gradient.

    Source: Moosavi-Dezfooli et al., arXiv 1610.08401; by gradient, Shafahi et al., arXiv 1811.11304.
    """
    needs_at_least("universal", 1, batch=batch)
    needs_positive("universal", learning_rate=learning_rate)
    if not 0 <= momentum < 1:
        raise ValueError(f"The momentum of universal must be at least 0 and below 1, got {momentum}.")
    space = objective.space
    needs_real_actions(space, "universal")
    needs_gradients(objective)
    optimiser = optax.adam(learning_rate, b1=momentum)

    def init(key: Array) -> State:
        action = held_limit(space, jax.random.normal(key, space.action_shape))
        return State(action, optimiser.init(action))

    def step(state: State, key: Array, points: Point) -> tuple[State, dict[str, Array]]:
        del key
        count = points.length.shape[0]
        actions = jnp.broadcast_to(space.epsilon * state.action, (count, 1, *space.action_shape))
        scores, slopes = objective.gradients(points, actions)
        scored = jnp.isfinite(scores)
        slope = jnp.mean(jnp.where(jnp.isfinite(slopes), slopes, 0.0), (0, 1))
        updates, opt_state = optimiser.update(-slope, state.opt_state, state.action)
        metrics = {
            "reward": jnp.sum(jnp.where(scored, scores, 0.0)) / jnp.sum(scored, dtype=scores.dtype),
            "groups_broken": jnp.mean(~scored, dtype=scores.dtype),
        }
        return State(held_limit(space, optax.apply_updates(state.action, updates)), opt_state), metrics

    def act(state: State, key: Array, point: Point) -> Array:
        del key, point
        return space.epsilon * state.action

    return Attacker("universal", False, init, step, act, Queries(gradients=batch), Queries())
