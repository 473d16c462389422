"""Certificates of a smoothed predictor, one an utterance; the theorem is in :mod:`jaxhack.stats.certificate`."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxhack import audio
from jaxhack.defences import Noise, noisy
from jaxhack.parallel import mapped
from jaxhack.stats.certificate import Bound, certificate, l2_radius, rank
from jaxhack.types import Predictor

BATCH = 8  # draws a device, in one call


class Certified(NamedTuple):
    """What is certified of one utterance."""

    utterance: str
    score: float  # percentile of `scores`: an estimate of the smoothed score
    bounds: tuple[Bound, ...]  # one an epsilon
    scores: np.ndarray  # [n] of the draws


def certify(
    predictor: Predictor,
    noise: Noise,
    utterances: Iterable[tuple[str, np.ndarray]],
    *,
    epsilons: Sequence[float],
    draws: int = 1000,
    percentile: float = 0.5,
    alpha: float = 0.001,
    seed: int = 0,
    sample_rate: int | None = None,
) -> Iterator[Certified]:
    r"""Bounds from above what any perturbation can make of the smoothed score of utterances.

    In the waveform a bound is on every :math:`y = x + \delta` with :math:`\|\delta\|_2 \le \epsilon \sqrt{T}`, among
    them all with :math:`\|\delta\|_\infty \le \epsilon`; x and y are what the predictor is given, 16-bit rounding
    included. In a codec's latent it is on every y whose latent :math:`\mathrm{Enc}(y)` lies within
    :math:`\epsilon \sqrt{N C}` of :math:`\mathrm{Enc}(x)` in the units of `noise`. An attack that adds δ to a latent
    and decodes it is heard through the encoder again: its distance is that of the two latents, not the size of δ.

    Args:
      predictor: R, white-box or black-box.
      noise: what it is smoothed over, as in :func:`jaxhack.defences.smoothed`.
      utterances: ``(name, wav [T])`` at `sample_rate`; may be a generator.
      epsilons: sizes of a perturbation per entry: an RMS, or a largest entry. 0 bounds the smoothed score itself.
      draws: n, of the noise, for each utterance. The largest radius that they can certify is
        :math:`\sigma (\Phi^{-1}(\alpha^{1/n}) - \Phi^{-1}(p))`, for 1000 draws 2.5 σ.
      percentile: p of the smoothed score.
      alpha: probability that a bound is wrong, for each utterance and epsilon by itself.
      seed: of the draws, others than those of a smoothed predictor of the same seed.
      sample_rate: Hz at which it listens, None the predictor's rate, or the codec's.

    Yields:
      One :class:`Certified` an utterance, in their order.

    Raises:
      ValueError: as :func:`jaxhack.defences.smoothed` and :func:`jaxhack.stats.certificate.certificate`.
    """
    if not (isinstance(draws, int) and draws >= 1):
        raise ValueError(f"A certificate needs a whole number of at least 1 draw, got {draws}.")
    if not 0 <= seed < 2**32:
        raise ValueError(f"The seed of a certificate is a whole number from 0 to 2**32 - 1, got {seed}.")
    through = noisy(predictor, noise, sample_rate=sample_rate)
    batch = BATCH * jax.device_count()

    # Not the draws of a smoothed predictor, which an attack may have fitted.
    root = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), 2**32 - 1)

    @jax.jit
    def run(params, wav, length, number, start):
        own = jax.random.fold_in(root, number)
        keys = jax.vmap(lambda i: jax.random.fold_in(own, i))(start + jnp.arange(batch))
        return mapped(lambda key: through.heads(params, wav, length, key)[0])(keys)

    for number, (name, wav) in enumerate(utterances):
        padded = audio.pad(wav, audio.bucket_length(len(wav), through.sample_rate, through.max_samples))
        here = through.params, padded, np.int32(len(wav)), np.int32(number)
        scores = [np.asarray(run(*here, np.int32(start))) for start in range(0, draws, batch)]
        found = np.concatenate(scores)[:draws].astype(np.float64)
        entries = through.entries(len(wav))
        bounds = tuple(
            certificate(found, radius=l2_radius(e, entries), sigma=noise.sigma, percentile=percentile, alpha=alpha)
            for e in epsilons
        )
        ordered = np.sort(found)  # NaN comes last, as it does in the predictor
        yield Certified(name, float(ordered[rank(percentile, draws) - 1]), bounds, found)
