"""A ring of preference pairs x̂ ≻ y, all of its state in arrays: once it is full, the oldest make room."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxhack.types import Array


class Pairs(NamedTuple):
    """Signals of which the first should score higher, aligned and padded with zeros."""

    preferred: Array | np.ndarray  # [N, T] int16
    rejected: Array | np.ndarray  # [N, T] int16
    length: Array | np.ndarray  # [N] int32, samples that count


class Replay(NamedTuple):
    """A ring buffer of pairs."""

    pairs: Pairs  # of capacity N
    pushed: Array  # [] int32, pairs that ever came in


def empty(capacity: int, samples: int) -> Replay:
    """A buffer for `capacity` pairs of `samples` samples each.

    Raises:
      ValueError: one of them is below 1.
    """
    if min(capacity, samples) < 1:
        raise ValueError(f"A replay buffer holds at least one pair of one sample, got {capacity} of {samples}.")
    signal = jnp.zeros((capacity, samples), jnp.int16)
    return Replay(Pairs(signal, signal, jnp.zeros(capacity, jnp.int32)), jnp.int32(0))


def push(replay: Replay, pairs: Pairs, keep: Array) -> Replay:
    """Adds those of ``pairs [M]`` that ``keep [M]`` names, in order; of more than N the last N stay."""
    capacity = replay.pairs.length.shape[0]
    count = jnp.sum(keep, dtype=jnp.int32)
    rank = jnp.cumsum(keep, dtype=jnp.int32) - 1
    stays = keep & (rank >= count - capacity)
    slot = jnp.where(stays, (replay.pushed + rank) % capacity, capacity)  # out of bounds: dropped
    held = jax.tree.map(lambda ring, new: ring.at[slot].set(new, mode="drop"), replay.pairs, pairs)
    return Replay(held, replay.pushed + count)


def size(replay: Replay) -> Array:
    """Pairs that the buffer holds: ``[]`` int32."""
    return jnp.minimum(replay.pushed, replay.pairs.length.shape[0])


def sample(replay: Replay, key: Array, batch: int) -> Pairs:
    """Draws ``[batch]`` pairs, each of those held as likely as any other, with replacement; some must be held."""
    index = jax.random.randint(key, (batch,), 0, size(replay))
    return jax.tree.map(lambda ring: ring[index], replay.pairs)
