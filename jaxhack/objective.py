"""What an attacker plays against: a predictor heard through a space, as forward scores only."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxhack import dsp
from jaxhack.parallel import mapped
from jaxhack.types import Array, Objective, Point, Predictor, Space


def listener(predictor: Predictor, sample_rate: int) -> Callable[[Array, Array], Array]:
    """The score of a waveform at another rate: ``(wav [T], length []) -> []``, resampled where rates differ."""

    def listen(wav: Array, length: Array) -> Array:
        if sample_rate != predictor.sample_rate:
            wav = dsp.resample(wav, sample_rate, predictor.sample_rate, length=length)
            length = dsp.resampled_length(length, sample_rate, predictor.sample_rate)
        return predictor.score(predictor.params, wav, length)

    return listen


def heard(wav: Array, length: Array) -> Array:
    """A rendered waveform as it would be saved: cut at `length`, clipped, rounded to 16-bit PCM."""
    return dsp.as_saved(jnp.where(jnp.arange(wav.shape[0]) < length, wav, 0.0))


def objective(predictor: Predictor, space: Space) -> Objective:
    """Scores actions: ``r = R(saved(render(point, project(point, action))))``.

    Args:
      predictor: the target R, white-box or black-box.
      space: where the perturbation lives; it keeps the budget.

    Returns:
      An :class:`~jaxhack.types.Objective` whose ``rewards`` maps points ``[B]`` and actions ``[B, G, *A]`` to scores
      ``[B, G]``. Every outer ``vmap`` (attackers) joins the same flat axis.
    """
    listen = listener(predictor, space.sample_rate)

    def reward(point: Point, action: Array) -> Array:
        return listen(heard(space.render(point, space.project(point, action)), point.length), point.length)

    score = mapped(reward)

    def rewards(points: Point, actions: Array) -> Array:
        return jax.vmap(score, in_axes=(None, 1), out_axes=1)(points, actions)

    return Objective(space.action_shape, space.feature_size, rewards)
