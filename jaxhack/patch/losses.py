"""What a predictor is trained on: to say what people said, and to rank x̂ above the y that hacked it."""

from collections.abc import Callable

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
        heard = listener(predictor._replace(params=params), sample_rate)
        preferred, rejected = (heard(dsp.from_pcm16(wav), pair.length) for wav in (pair.preferred, pair.rejected))
        return jnp.maximum(0.0, margin - (preferred - rejected))

    return loss
