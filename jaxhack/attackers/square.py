"""Random search with shrinking patches, for one utterance at a time, from scores only."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxhack.attackers.geometry import at_test_time, geometry, needs_at_least, needs_real_actions, whole_shape
from jaxhack.types import Array, Attacker, Objective, Point, Queries

# The patch is halved when these shares of the queries are spent.
HALVINGS = np.array([0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8])


def square(objective: Objective, *, queries: int = 500, patch: float = 0.8, held: bool = False) -> Attacker:
    """Overwrites a random patch of the action at a time and keeps what scores better (Square Attack).

    What is a square of an image there is here a patch of time and frequency. In a latent: a stretch of frames in a
    random set of channels, each at a value of its own. In a waveform: a stretch of samples, filled with a square wave
    of random period. Values are ±ε if the budget is a maximum norm; else Gaussian, and the action is scaled back.

    Args:
      objective: what is attacked; only forward scores are used, so a black box works.
      queries: scores asked for per utterance. The first action fills all of it.
      patch: share of the entries that a patch covers at first; it is halved nine times on the way.
      held: one vector for the whole utterance, in place of a perturbation of its own shape.

    Returns:
      An :class:`~jaxhack.types.Attacker` that learns nothing before the test.

    Raises:
      ValueError: an option is out of range, or the space's actions are whole numbers.

    Source: Andriushchenko et al., arXiv 1912.00049.
    """
    needs_at_least("square", 1, queries=queries)
    if not 0 < patch <= 1:
        raise ValueError(f"The patch of square must be above 0 and at most 1 (a share of the entries), got {patch}.")
    space = objective.space
    needs_real_actions(space, "square")
    tries = np.arange(queries)
    shares = np.where(tries == 0, 1.0, patch / 2.0 ** np.searchsorted(HALVINGS, tries / queries, side="right"))

    def act(state: None, key: Array, point: Point) -> Array:
        del state
        points, ground = jax.tree.map(lambda x: x[None], point), geometry(space, point, held)
        draw = _waves if len(whole_shape(space, point)) == 1 else _frames

        def propose(action: Array, key: Array, share: Array) -> Array:
            where, how = jax.random.split(key)
            mask, signs, levels = draw(where, ground.valid, share)
            level = ground.unit if space.norm == "linf" else ground.unit * jax.random.normal(how, levels)
            return ground.limit(jnp.where(mask, level * signs, action))

        def attempt(best: tuple[Array, Array], x: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
            number, share = x
            action, highest = best
            tried = propose(action, jax.random.fold_in(key, number), share)
            score = objective.rewards(points, tried[None, None])[0, 0]
            better = jnp.isfinite(score) & (score > highest)
            return (jnp.where(better, tried, action), jnp.where(better, score, highest)), None

        start = jnp.zeros(ground.shape), jnp.float32(-jnp.inf)
        (action, _), _ = jax.lax.scan(attempt, start, (jnp.asarray(tries), jnp.asarray(shares, jnp.float32)))
        return action

    asked = Queries(scores=queries)
    return at_test_time("square", act, asked)


def _frames(key: Array, valid: Array, share: Array) -> tuple[Array, Array, tuple[int, ...]]:
    """A patch of a latent, ``valid [N, C]`` or, held, ``[C]``; its signs, and the shape of the levels they go with.

    A share of frames by a share of channels, which have no order; both are equal where there are frames.
    """
    place, choice, sign = jax.random.split(key, 3)
    channels = valid.shape[-1]
    stretch = _stretch(place, valid[:, 0], jnp.sqrt(share))[:, None] if valid.ndim == 2 else jnp.bool_(True)
    share = jnp.sqrt(share) if valid.ndim == 2 else share
    order = jnp.argsort(jnp.argsort(jax.random.uniform(choice, (channels,))))
    chosen = order < jnp.maximum(jnp.round(share * channels), 1.0)
    return stretch & chosen, jax.random.rademacher(sign, (channels,), jnp.float32), (channels,)


def _waves(key: Array, valid: Array, share: Array) -> tuple[Array, Array, tuple[int, ...]]:
    """As :func:`_frames`, of a waveform ``valid [T]``: a stretch of it, and a square wave of one level.

    Its period is anything from two samples to twice the stretch, at which it is constant.
    """
    place, period, phase = jax.random.split(key, 3)
    stretch = _stretch(place, valid, share)
    octaves = jnp.log2(jnp.sum(stretch, dtype=jnp.float32)) * jax.random.uniform(period)
    turns = jnp.arange(valid.shape[0], dtype=jnp.float32) / (2.0 * 2.0**octaves) + jax.random.uniform(phase)
    return stretch, jnp.where(turns % 1.0 < 0.5, 1.0, -1.0), ()


def _stretch(key: Array, valid: Array, share: Array) -> Array:
    """A random stretch ``[N]`` of the first entries, those that are valid."""
    count = jnp.sum(valid, dtype=jnp.int32)
    size = jnp.clip(jnp.round(share * count.astype(jnp.float32)).astype(jnp.int32), 1, jnp.maximum(count, 1))
    first = jax.random.randint(key, (), 0, jnp.maximum(count - size, 0) + 1)
    index = jnp.arange(valid.shape[0])
    return (index >= first) & (index < first + size)
