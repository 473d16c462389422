"""What an attacker plays against: a predictor heard through a space, as scores and, where it has them, slopes."""

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
      An :class:`~jaxhack.types.Objective`. ``rewards`` maps points ``[B]`` and actions ``[B, G, *A]`` to scores
      ``[B, G]``; ``gradients`` adds slopes ``[B, G, *A]``, taken at the projected action and not through the
      projection, so that they do not vanish at the budget. Every outer ``vmap`` (attackers) joins the same flat axis.
    """
    listen = listener(predictor, space.sample_rate)

    def heard_score(point: Point, delta: Array) -> Array:
        return listen(heard(space.render(point, delta), point.length), point.length)

    def reward(point: Point, action: Array) -> Array:
        return heard_score(point, space.project(point, action))

    def slope(point: Point, action: Array) -> tuple[Array, Array]:
        score, by_delta = jax.value_and_grad(heard_score, 1)(point, space.project(point, action))
        _, pull = jax.vjp(lambda a: space.expand(point, a), action)
        return score, pull(by_delta)[0]

    def over_group(fn):
        batched = mapped(fn)
        return lambda points, actions: jax.vmap(batched, in_axes=(None, 1), out_axes=1)(points, actions)

    blind = ""
    if not predictor.differentiable:
        blind = (
            f"There is no gradient: {predictor.name} is a black box. Choose an attacker that asks for scores only."
        )
    elif space.norm == "count":
        blind = f"There is no gradient in {space.name}, whose actions are whole numbers. Choose another attacker."

    def no_gradients(points: Point, actions: Array) -> tuple[Array, Array]:
        del points, actions
        raise ValueError(blind)

    return Objective(space, over_group(reward), no_gradients if blind else over_group(slope), blind)
