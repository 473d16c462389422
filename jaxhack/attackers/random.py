"""Random actions: the control that every other attacker must beat."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxhack.types import Array, Attacker, Objective, Point, Queries

CHUNK = 8  # draws scored at once, so that memory does not grow with their number


def random(objective: Objective, *, draws: int = 1) -> Attacker:
    """Draws actions at random, as the space samples them, and keeps the best of `draws` for each utterance.

    Args:
      objective: what is attacked.
      draws: actions tried per utterance. 1 is a single blind draw that asks nothing of the predictor; n > 1 is
        the best of n, n forward scores at test time.

    Returns:
      A baseline :class:`~jaxhack.types.Attacker`. ``step`` learns nothing.

    Raises:
      ValueError: if `draws` < 1.
    """
    if draws < 1:
        raise ValueError(f"A random attacker needs at least 1 draw per utterance, got {draws}.")

    def init(key: Array) -> None:
        del key

    def step(state: None, key: Array, points: Point):
        del key, points
        return state, {}

    def act(state: None, key: Array, point: Point) -> Array:
        del state
        sample = objective.space.sample
        if draws == 1:
            return sample(key, point)
        return best_of(objective, point, draws, lambda i: sample(jax.random.fold_in(key, i), point))

    name = "random" if draws == 1 else "random_best"
    return Attacker(name, True, init, step, act, Queries(), Queries(scores=0 if draws == 1 else draws))


def best_of(objective: Objective, point: Point, draws: int, draw: Callable[[Array], Array]) -> Array:
    """The action of best score among ``draw(0) … draw(draws - 1)``; the first if none has a score."""
    points = jax.tree.map(lambda x: x[None], point)

    def best_of_chunk(best, chunk):
        numbers = chunk * CHUNK + jnp.arange(CHUNK)
        actions = jax.vmap(draw)(numbers)
        scores = objective.rewards(points, actions[None])[0]
        # A draw beyond the number asked for, or without a score, never wins.
        scores = jnp.where((numbers < draws) & jnp.isfinite(scores), scores, -jnp.inf)
        top = jnp.argmax(scores)
        better = scores[top] > best[0]
        return (jnp.where(better, scores[top], best[0]), jnp.where(better, actions[top], best[1])), None

    start = jnp.float32(-jnp.inf), draw(jnp.int32(0))
    (_, action), _ = jax.lax.scan(best_of_chunk, start, jnp.arange(-(-draws // CHUNK)))
    return action
