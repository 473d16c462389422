"""What a predictor is trained on: to say what people said, and to rank x̂ above the y that hacked it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxhack import dsp
from jaxhack.objective import listener
from jaxhack.patch.replay import Pairs
from jaxhack.types import Array, Predictor, PyTree

Loss = Callable[[PyTree, PyTree], Array]  # (params, one example) -> []


def regression(predictor: Predictor, sample_rate: int) -> Loss:
    """Squared error of the score of a labelled clip ``(wav [T] int16, length [], mos [])``."""

    def loss(params: PyTree, example: tuple[Array, Array, Array]) -> Array:
        wav, length, mos = example
        heard = listener(predictor._replace(params=params), sample_rate)
        return jnp.square(heard(dsp.from_pcm16(wav), length) - mos)

    return loss


def ranking(predictor: Predictor, sample_rate: int, margin: float = 0.5) -> Loss:
    r"""Margin ranking loss of one pair, :math:`\max(0, m - (R(\hat x) - R(y)))`.

    Args:
      predictor: R.
      sample_rate: Hz, of the pairs.
      margin: m, MOS.

    Source: *How Hackable Is Your Speech Quality Metric?*, section III.
    """

    def loss(params: PyTree, pair: Pairs) -> Array:
        preferred, rejected = _scores(predictor._replace(params=params), sample_rate, pair)
        return jnp.maximum(0.0, margin - (preferred - rejected))

    return loss


def consistency(predictor: Predictor, sample_rate: int) -> Loss:
    r"""Of one pair, :math:`(R(y) - R(\hat x))^2`: the score shall not move at all.

    Source: as adversarial training with a consistency term, Zhang et al. (TRADES), arXiv 1901.08573; for a
    regression the squared difference stands where they have a divergence of class probabilities.
    """

    def loss(params: PyTree, pair: Pairs) -> Array:
        preferred, rejected = _scores(predictor._replace(params=params), sample_rate, pair)
        return jnp.square(rejected - preferred)

    return loss


def gradient_norm(predictor: Predictor, sample_rate: int) -> Loss:
    r"""Of one labelled clip, :math:`\lVert \nabla_x R(x) \rVert_1`: what a small step in the waveform could gain.

    The norm is the one dual to ‖δ‖∞ ≤ ε, so that ε times it is the gain to first order.

    Source: Liu et al., *Defense Against Adversarial Attacks on No-Reference Image Quality Models with Gradient Norm
    Regularization*, CVPR 2024.
    """

    def loss(params: PyTree, example: tuple[Array, Array, Array]) -> Array:
        wav, length, _ = example
        heard = listener(predictor._replace(params=params), sample_rate)
        return jnp.sum(jnp.abs(jax.grad(heard)(dsp.from_pcm16(wav), length)))

    return loss


def _scores(predictor: Predictor, sample_rate: int, pair: Pairs) -> tuple[Array, Array]:
    """R of a pair's preferred and rejected signal."""
    heard, length = listener(predictor, sample_rate), jnp.asarray(pair.length)
    return heard(dsp.from_pcm16(pair.preferred), length), heard(dsp.from_pcm16(pair.rejected), length)
