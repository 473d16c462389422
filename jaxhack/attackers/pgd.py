"""Projected gradient ascent: a white-box attack on each utterance, in any space that has gradients."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxhack.attackers.geometry import (
    Geometry,
    at_test_time,
    geometry,
    needs_at_least,
    needs_gradients,
    needs_positive,
    needs_real_actions,
)
from jaxhack.types import Array, Attacker, Objective, Point, Queries

GAINED = 0.75  # share of the steps since the last check that must have gained for an adaptive step to stay as it is
INERTIA = 0.25  # share of the last move in the next one, of an adaptive step


class Search(NamedTuple):
    """A search in progress."""

    action: Array
    before: Array  # the action one step ago
    direction: Array  # running sum of slopes
    score: Array  # [] of the action one step ago
    best: Array
    best_score: Array  # []
    best_slope: Array
    step_size: Array  # [] multiple of ε
    gains: Array  # [] steps since the last check that gained
    steps: Array  # [] steps since the last check
    checked: tuple[Array, Array]  # step size and best score when the last check came


def pgd(
    objective: Objective,
    *,
    steps: int = 50,
    step_size: float | None = None,
    momentum: float = 0.0,
    adaptive: bool = False,
    restarts: int = 1,
    random_start: bool = True,
    held: bool = False,
) -> Attacker:
    r"""Climbs the score of each utterance by projected gradient steps and keeps the best iterate.

    .. math:: m \leftarrow \mu m + \nabla_a R / \|\nabla_a R\|_1, \qquad
              a \leftarrow P_\epsilon\big(a + \alpha \epsilon \, u(m)\big)

    where :math:`u` is the sign if the budget is a maximum norm, else the direction of RMS 1. A slope that is not
    finite counts as zero.

    Args:
      objective: what is attacked; its predictor must have gradients, its space real actions.
      steps: gradient steps.
      step_size: α, a multiple of ε; None is 2.5 / steps, or at first 2 where it adapts.
      momentum: μ of the running direction (Dong et al., arXiv 1710.06081); not with `adaptive`, which has its own.
      adaptive: the schedule of Auto-PGD (Croce and Hein, arXiv 2003.01690): wherever too few steps gained since the
        last check, the step is halved and the search goes on from the best iterate.
      restarts: independent searches; the best counts.
      random_start: each search starts from a random action within the budget; else the first starts from none.
      held: one vector for the whole utterance, in place of a perturbation of its own shape.

    Returns:
      An :class:`~jaxhack.types.Attacker` that learns nothing before the test.

    Raises:
      ValueError: an option is out of range, or there is no gradient.

    Source: Madry et al., arXiv 1706.06083.
    """
    name = "apgd" if adaptive else "pgd"
    needs_at_least(name, 1, steps=steps, restarts=restarts)
    first_size = (2.0 if adaptive else 2.5 / steps) if step_size is None else step_size
    needs_positive(name, step_size=first_size)
    if not 0 <= momentum <= 1 or (momentum and adaptive):
        raise ValueError(f"The momentum of {name} must be from 0 to 1, and 0 where the step adapts, got {momentum}.")
    needs_real_actions(objective.space, name)
    needs_gradients(objective)
    checks = _checkpoints(steps)
    move = _adaptive if adaptive else _steady(momentum)

    def act(state: None, key: Array, point: Point) -> Array:
        del state
        points, ground = jax.tree.map(lambda x: x[None], point), geometry(objective.space, point, held)

        def step(s: Search, check: Array) -> tuple[Search, None]:
            score, slope = (x[0, 0] for x in objective.gradients(points, s.action[None, None]))
            slope = jnp.where(jnp.isfinite(slope), slope, 0.0)
            score = jnp.where(jnp.isfinite(score), score, -jnp.inf)
            better = score > s.best_score
            s = s._replace(
                best=jnp.where(better, s.action, s.best),
                best_score=jnp.where(better, score, s.best_score),
                best_slope=jnp.where(better, slope, s.best_slope),
                gains=s.gains + (score > s.score).astype(jnp.int32),
                steps=s.steps + 1,
                score=score,
            )
            return move(ground, s, slope, check), None

        def search(key: Array, number: Array) -> tuple[Array, Array]:
            start = ground.start(key)
            if not random_start:
                start = jnp.where(number == 0, 0.0, start)
            none, low, size = jnp.zeros_like(start), jnp.float32(-jnp.inf), jnp.float32(first_size)
            no_step = jnp.int32(-1)  # the start is the first to be scored, and no step led to it
            s = Search(start, start, none, low, start, low, none, size, no_step, no_step, (size, low))
            s, _ = jax.lax.scan(step, s, jnp.asarray(checks))
            last = objective.rewards(points, s.action[None, None])[0, 0]
            better = jnp.isfinite(last) & (last > s.best_score)
            return jnp.where(better, last, s.best_score), jnp.where(better, s.action, s.best)

        numbers = jnp.arange(restarts)
        scores, actions = jax.vmap(search)(jax.vmap(lambda i: jax.random.fold_in(key, i))(numbers), numbers)
        return actions[jnp.argmax(scores)]

    per_act = Queries(scores=restarts, gradients=restarts * steps)
    return at_test_time(name, act, per_act)


def _steady(momentum: float) -> Callable[[Geometry, Search, Array, Array], Search]:
    def move(ground: Geometry, s: Search, slope: Array, check: Array) -> Search:
        del check
        length = jnp.sum(jnp.abs(slope))
        direction = momentum * s.direction + slope / jnp.where(length > 0, length, 1.0)
        action = ground.limit(s.action + s.step_size * ground.ascent(direction))
        return s._replace(action=action, before=s.action, direction=direction)

    return move


def _adaptive(ground: Geometry, s: Search, slope: Array, check: Array) -> Search:
    """A step of Auto-PGD; at a `check` it looks back first."""
    size, best = s.checked
    # Too few steps gained; or the best has not moved although the last check left the step as it was.
    stuck = (s.gains < GAINED * s.steps) | ((s.step_size == size) & (s.best_score == best))
    back = check & stuck
    action = jnp.where(back, s.best, s.action)
    before = jnp.where(back, s.best, s.before)
    slope = jnp.where(back, s.best_slope, slope)
    step_size = jnp.where(back, s.step_size / 2, s.step_size)
    target = ground.limit(action + step_size * ground.ascent(slope))
    # Neither the first step nor one from the best iterate has a last move to go on with: it is taken whole.
    inertia = jnp.where(jnp.all(action == before), 0.0, INERTIA)
    moved = ground.limit(action + (1 - inertia) * (target - action) + inertia * (action - before))
    return s._replace(
        action=moved,
        before=action,
        step_size=step_size,
        gains=jnp.where(check, 0, s.gains),
        steps=jnp.where(check, 0, s.steps),
        checked=(jnp.where(check, s.step_size, size), jnp.where(check, s.best_score, best)),
    )


def _checkpoints(steps: int) -> np.ndarray:
    """Auto-PGD's checks, ``[steps]`` bool: at 22 % of the steps, and then at intervals that shrink to 6 %."""
    shares, interval = [22], 22  # whole per cent, which round as they should
    while shares[-1] < 100:
        interval = max(interval - 3, 6)
        shares.append(shares[-1] + interval)
    return np.isin(np.arange(steps), [-(-share * steps // 100) for share in shares])
