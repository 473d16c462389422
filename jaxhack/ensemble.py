"""Several predictors as one: an attack on their minimum or mean must please them all."""

from collections.abc import Callable, Sequence

import jax.numpy as jnp

from jaxhack.objective import listener
from jaxhack.types import Array, Predictor, PyTree

REDUCE: dict[str, Callable[..., Array]] = {"min": jnp.min, "mean": jnp.mean}


def ensemble(predictors: Sequence[Predictor], how: str = "min", *, sample_rate: int | None = None) -> Predictor:
    """One predictor whose score is the minimum or the mean of several.

    Head 0 is the score, one head per member follows, in their order. An input without a score from one has none.

    Args:
      predictors: two or more; of one scale, or a minimum and a mean mean nothing.
      how: "min" or "mean".
      sample_rate: Hz at which it listens, None the highest of the members' rates; a member of another resamples.

    Returns:
      A predictor named like ``min(nisqa,dnsmos)``; it has gradients if every member has. At another rate, members
      that have rates of their own change theirs.

    Raises:
      ValueError: fewer than two predictors, another `how`, or unequal scales.
    """
    members = tuple(predictors)
    if how not in REDUCE:
        raise ValueError(f"Predictors are joined by {' or '.join(REDUCE)}, not by {how!r}.")
    if len(members) < 2:
        raise ValueError(f"An ensemble needs at least two predictors, got {len(members)}.")
    if len({m.scale for m in members}) > 1:
        scales = ", ".join(f"{m.name} {m.scale[0]:g}–{m.scale[1]:g}" for m in members)
        raise ValueError(f"The scales of an ensemble must be equal, got {scales}.")
    rate = sample_rate or max(m.sample_rate for m in members)

    def heads(params: PyTree, wav: Array, length: Array) -> Array:
        scores = jnp.stack(
            [listener(m._replace(params=p), rate)(wav, length) for m, p in zip(members, params, strict=True)]
        )
        return jnp.concatenate([REDUCE[how](scores)[None], scores])

    def at_rate(hz: int) -> Predictor:
        return ensemble([m.at_rate(hz) if m.at_rate else m for m in members], how, sample_rate=hz)

    def samples(m: Predictor, count: int) -> int:
        return -(-count * rate // m.sample_rate)

    longest = [samples(m, m.max_samples) for m in members if m.max_samples is not None]
    return Predictor(
        name=f"{how}({','.join(m.name for m in members)})",
        sample_rate=rate,
        params=tuple(m.params for m in members),
        heads=heads,
        head_names=(how, *(m.name for m in members)),
        scale=members[0].scale,
        differentiable=all(m.differentiable for m in members),
        min_samples=max(samples(m, m.min_samples) for m in members),
        max_samples=min(longest, default=None),
        at_rate=at_rate,
        weights={file: digest for m in members for file, digest in m.weights.items()},
        trainable=tuple(m.trainable for m in members),
    )
