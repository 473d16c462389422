"""Gradient ascent without gradients: slopes estimated from scores, for one utterance at a time."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxhack.attackers.geometry import at_test_time, geometry, needs_at_least, needs_positive, needs_real_actions
from jaxhack.types import Array, Attacker, Objective, Point, Queries


class Search(NamedTuple):
    """A search in progress."""

    action: Array
    direction: Array  # running mean of estimated slopes
    best: Array
    best_score: Array  # []


def nes(
    objective: Objective,
    *,
    queries: int = 500,
    pairs: int = 12,
    spread: float = 0.5,
    step_size: float | None = None,
    momentum: float = 0.5,
    spsa: bool = False,
    held: bool = False,
) -> Attacker:
    r"""Climbs an estimate of the slope from antithetic pairs of scores, and keeps the best action of all it tried.

    .. math:: g = \sum_i \big(R(a + s \epsilon u_i) - R(a - s \epsilon u_i)\big) u_i, \qquad
              m \leftarrow \mu m + (1 - \mu) g, \qquad a \leftarrow P_\epsilon\big(a + \alpha \epsilon \, u(m)\big)

    with the projected steps of :func:`~jaxhack.attackers.pgd`.

    Args:
      objective: what is attacked; only forward scores are used, so a black box works.
      queries: scores asked for per utterance, at most: as many whole steps of 2 · `pairs` + 1 as fit, and one more.
      pairs: directions u of one step.
      spread: s, a multiple of ε.
      step_size: α, a multiple of ε; None is 2.5 / steps.
      momentum: μ of the running direction.
      spsa: directions of random signs (SPSA; Uesato et al., arXiv 1802.05666) in place of Gaussian ones.
      held: one vector for the whole utterance, in place of a perturbation of its own shape, which has so many entries
        that a few hundred scores say little of its slope.

    Returns:
      An :class:`~jaxhack.types.Attacker` that learns nothing before the test.

    Raises:
      ValueError: an option is out of range, or the space's actions are whole numbers.

    Source: Ilyas et al., arXiv 1804.08598.
    """
    needs_at_least("nes", 1, pairs=pairs)
    needs_at_least("nes", 2 * pairs + 2, queries=queries)
    steps = (queries - 1) // (2 * pairs + 1)
    size = 2.5 / steps if step_size is None else step_size
    needs_positive("nes", spread=spread, step_size=size)
    if not 0 <= momentum < 1:
        raise ValueError(f"The momentum of nes must be at least 0 and below 1, got {momentum}.")
    needs_real_actions(objective.space, "nes")

    def act(state: None, key: Array, point: Point) -> Array:
        del state
        points, ground = jax.tree.map(lambda x: x[None], point), geometry(objective.space, point, held)
        draw = jax.random.rademacher if spsa else jax.random.normal

        def keep(s: Search, actions: Array, scores: Array) -> Search:
            top = jnp.argmax(jnp.where(jnp.isfinite(scores), scores, -jnp.inf))
            better = jnp.isfinite(scores[top]) & (scores[top] > s.best_score)
            return s._replace(
                best=jnp.where(better, actions[top], s.best),
                best_score=jnp.where(better, scores[top], s.best_score),
            )

        def step(s: Search, key: Array) -> tuple[Search, None]:
            ways = jax.vmap(lambda i: draw(jax.random.fold_in(key, i), ground.shape, jnp.float32))(jnp.arange(pairs))
            far = spread * ground.unit * ways
            tried = jnp.concatenate([s.action[None], s.action + far, s.action - far])
            scores = objective.rewards(points, tried[None])[0]
            s = keep(s, tried, scores)
            rise = scores[1 : pairs + 1] - scores[pairs + 1 :]
            slope = jnp.tensordot(jnp.where(jnp.isfinite(rise), rise, 0.0), ways, 1)
            direction = momentum * s.direction + (1 - momentum) * slope
            return s._replace(
                action=ground.limit(s.action + size * ground.ascent(direction)), direction=direction
            ), None

        start = ground.start(jax.random.fold_in(key, steps))
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(steps))
        s = Search(start, jnp.zeros_like(start), jnp.zeros_like(start), jnp.float32(-jnp.inf))
        s, _ = jax.lax.scan(step, s, keys)
        return keep(s, s.action[None], objective.rewards(points, s.action[None, None])[0]).best

    asked = Queries(scores=steps * (2 * pairs + 1) + 1)
    return at_test_time("nes", act, asked)
