"""What a codec transmits: the indices of its codebooks, some of them changed."""

import math

import jax
import jax.numpy as jnp

from jaxhack.spaces.latent import Statistics, standardised
from jaxhack.types import Array, Codec, Point, Space, Unsuited


def codes(codec: Codec, *, epsilon: float = 16, statistics: Statistics | None = None) -> Space:
    """Changes at most ε of the indices that a codec transmits, with all its published stages.

    An action is a whole number per frame and stage ``[N, S]`` int32, added to the index modulo the size of a
    codebook; 0 leaves it as it is. Of an action that changes more than ε, the first in time order count.

    Args:
      codec: a codec that has a quantiser; x̂ = Dec(z_q).
      epsilon: indices that may change, a whole number. 0 gives x̂ to the bit.
      statistics: of the quantised latent, as for :func:`~jaxhack.spaces.quantised`.

    Returns:
      A :class:`~jaxhack.types.Space` with actions ``[S]`` or ``[N, S]`` and features ``[N, C]``, the standardised
      quantised latent. A random action changes ε indices.

    Raises:
      ValueError: if `epsilon` is no whole number ≥ 0, or `codec` has no quantiser.
    """
    if not (math.isfinite(epsilon) and epsilon >= 0 and epsilon == round(epsilon)):
        raise ValueError(f"epsilon must be a whole number ≥ 0 (codes changed), got {epsilon}.")
    if codec.codes is None or codec.dequantise is None:
        raise Unsuited(f"{codec.name} has no quantiser: attack its continuous latent, or take another codec.")
    encode_codes, dequantise = codec.codes, codec.dequantise
    stages, levels, budget = max(codec.stages), codec.codebook_size, round(epsilon)

    def encode(wav: Array, length: Array) -> Point:
        z = codec.encode(codec.params, wav)
        frames = -(-length // codec.hop)
        z_q = codec.quantise(codec.params, z, stages)
        features = standardised(z_q, frames, *(statistics or ()))
        return Point(features, (z_q, encode_codes(codec.params, z, stages)), frames, length)

    def expand(point: Point, action: Array) -> Array:
        index = point.content[1]
        return jnp.where(_valid(point), jnp.broadcast_to(action, index.shape), 0)

    def sample(key: Array, point: Point) -> Array:
        where, what = jax.random.split(key)
        shape = point.content[1].shape
        order = jnp.where(_valid(point), jax.random.uniform(where, shape), -1.0).ravel()
        _, chosen = jax.lax.top_k(order, min(budget, order.size))
        changed = jnp.zeros(order.shape, bool).at[chosen].set(True).reshape(shape)
        return jnp.where(changed & _valid(point), jax.random.randint(what, shape, 1, levels), 0)

    def project(point: Point, action: Array) -> Array:
        shifts = expand(point, action) % levels
        nth = jnp.cumsum((shifts != 0).ravel()).reshape(shifts.shape)
        return jnp.where(nth <= budget, shifts, 0)

    def render(point: Point, delta: Array) -> Array:
        z_q, index = point.content
        new = dequantise(codec.params, (index + delta) % levels)
        new = jnp.concatenate([new, z_q[:, new.shape[1] :]], 1)  # what the codes do not say stays
        changed = jnp.any(delta % levels != 0, 1, keepdims=True)
        return codec.decode(codec.params, jnp.where(changed, new, z_q))

    def size(point: Point, delta: Array) -> Array:
        return jnp.sum(expand(point, delta) % levels != 0, dtype=jnp.float32)

    return Space(
        name=f"codes-{codec.name}",
        sample_rate=codec.sample_rate,
        epsilon=float(epsilon),
        norm="count",
        action_shape=(stages,),
        feature_size=codec.channels,
        encode=encode,
        expand=expand,
        sample=sample,
        project=project,
        render=render,
        size=size,
        levels=levels,
        weights=codec.weights,
    )


def _valid(point: Point) -> Array:
    return (jnp.arange(point.features.shape[0]) < point.frames)[:, None]
