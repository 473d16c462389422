"""Local search over the indices of a codec's codebooks, for one utterance at a time, from scores only."""

import jax
import jax.numpy as jnp

from jaxhack.attackers.geometry import at_test_time, needs_at_least
from jaxhack.types import Array, Attacker, Objective, Point, Queries, Unsuited


def codes_search(objective: Objective, *, queries: int = 500, candidates: int = 16) -> Attacker:
    """Tries other indices at one random place at a time and keeps the best of them, if it scores better.

    A place is a frame and a stage; coarse stages, which move more, come up more often: stage s about as often as
    1 / s. Once the budget of changes is spent, a new change takes the place of a random one of the old.

    Args:
      objective: what is attacked; only forward scores are used, so a black box works. Its space's actions must be
        whole numbers.
      queries: scores asked for per utterance, at most: one of no change, and as many whole batches as fit.
      candidates: indices tried at a place, scored in one batch: all others where a codebook has no more, else as many
        at random.

    Returns:
      An :class:`~jaxhack.types.Attacker` that learns nothing before the test.

    Raises:
      ValueError: an option is out of range, or the space's actions are real numbers.
    """
    space = objective.space
    if space.norm != "count":
        raise Unsuited(
            f"codes-search needs actions that are whole numbers, and those of {space.name} are real: "
            "choose it in the space codes."
        )
    needs_at_least("codes-search", 1, candidates=candidates)
    tried = min(candidates, space.levels - 1)
    needs_at_least("codes-search", 1 + tried, queries=queries)
    places = (queries - 1) // tried

    def act(state: None, key: Array, point: Point) -> Array:
        del state
        points = jax.tree.map(lambda x: x[None], point)

        def attempt(best: tuple[Array, Array], number: Array) -> tuple[tuple[Array, Array], None]:
            action, highest = best
            when, depth, which, out = jax.random.split(jax.random.fold_in(key, number), 4)
            frame = jax.random.randint(when, (), 0, jnp.maximum(point.frames, 1))
            stages = action.shape[1]
            stage = jnp.floor((stages + 1.0) ** jax.random.uniform(depth) - 1.0).astype(jnp.int32)
            stage = jnp.minimum(stage, stages - 1)
            full = (jnp.sum(action != 0) >= round(space.epsilon)) & (action[frame, stage] == 0)
            victim = jnp.argmax(jnp.where(action != 0, jax.random.uniform(out, action.shape), -1.0))
            freed = jnp.where(jnp.arange(action.size).reshape(action.shape) == victim, 0, action)
            base = jnp.where(full, freed, action)
            shifts = action[frame, stage] + jax.random.choice(which, space.levels - 1, (tried,), replace=False) + 1
            new = jax.vmap(lambda shift: base.at[frame, stage].set(shift % space.levels))(shifts)
            scores = objective.rewards(points, new[None])[0]
            top = jnp.argmax(jnp.where(jnp.isfinite(scores), scores, -jnp.inf))
            better = jnp.isfinite(scores[top]) & (scores[top] > highest)
            return (jnp.where(better, new[top], action), jnp.where(better, scores[top], highest)), None

        none = space.expand(point, jnp.zeros(space.action_shape, jnp.int32))
        score = objective.rewards(points, none[None, None])[0, 0]
        start = none, jnp.where(jnp.isfinite(score), score, -jnp.inf)
        return jax.lax.scan(attempt, start, jnp.arange(places))[0][0]

    asked = Queries(scores=1 + places * tried)
    return at_test_time("codes-search", act, asked)
