"""The panel of independent witnesses: a tuple of measures, evaluated together."""

from collections.abc import Sequence

import jax.numpy as jnp

from jaxhack.detect import Rule
from jaxhack.measures.estoi import estoi_measure
from jaxhack.measures.si_sdr import si_sdr_measure
from jaxhack.types import Array, Measure


def default_panel(sample_rate: int) -> tuple[Measure, ...]:
    """The measures every audit has, for audio at `sample_rate` Hz. Further ones are appended to the tuple."""
    return estoi_measure(sample_rate), si_sdr_measure()


def rules(panel: Sequence[Measure]) -> dict[str, Rule]:
    """Name to rule, as :mod:`jaxhack.detect` takes them."""
    return {measure.name: measure.rule for measure in panel}


def evaluate(panel: Sequence[Measure], reference: Array, estimate: Array, length: Array) -> dict[str, Array]:
    """Every measure of the panel on one pair: ``reference [T], estimate [T], length [] -> {name: []}``.

    A measure is NaN where it is undefined, so also below its own `min_samples`.

    Raises:
      ValueError: not two waveforms of one length, or two measures share a name.
    """
    if jnp.ndim(reference) != 1 or jnp.shape(reference) != jnp.shape(estimate):
        raise ValueError(
            "evaluate takes two waveforms [T] of one length, "
            f"got {jnp.shape(reference)} and {jnp.shape(estimate)}; vmap over a batch"
        )
    names = [measure.name for measure in panel]
    if len(set(names)) < len(names):
        raise ValueError(f"the measures of a panel need different names, got {names}")
    return {
        measure.name: jnp.where(length >= measure.min_samples, measure.fn(reference, estimate, length), jnp.nan)
        for measure in panel
    }
