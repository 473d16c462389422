"""Certificates of a smoothed predictor, one an utterance; the theorem is in :mod:`jaxhack.stats.certificate`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxhack import audio
from jaxhack.defences import Noise, Noisy, noisy
from jaxhack.parallel import mapped
from jaxhack.stats.certificate import Bound, certificate, l2_radius, rank
from jaxhack.types import Predictor, PyTree

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
    through = noisy(predictor, noise, sample_rate=sample_rate)
    draw = sampler(through, draws, seed)
    for number, (name, wav) in enumerate(utterances):
        padded = audio.pad(wav, audio.bucket_length(len(wav), through.sample_rate, through.max_samples))
        (found,) = draw(through.params, padded[None], len(wav), number)
        entries = through.entries(len(wav))
        bounds = tuple(
            certificate(found, radius=l2_radius(e, entries), sigma=noise.sigma, percentile=percentile, alpha=alpha)
            for e in epsilons
        )
        yield Certified(name, estimate(found, percentile), bounds, found)


def sampler(through: Noisy, draws: int, seed: int) -> Callable[[PyTree, np.ndarray, int, int], np.ndarray]:
    """Draws scores that no attack has seen: others than those of a smoothed predictor of the same seed.

    Args:
      through: what hears each draw.
      draws: n, of each signal.
      seed: of the draws.

    Returns:
      ``(params, wavs [S, T], length, number) -> [S, n]`` float64: the scores of S signals of `length` samples under
      the same draws, which are those of utterance `number`, whatever was asked of others.

    Raises:
      ValueError: no draws, or a seed out of range.
    """
    if not (isinstance(draws, int) and draws >= 1):
        raise ValueError(f"A certificate needs a whole number of at least 1 draw, got {draws}.")
    if not 0 <= seed < 2**32:
        raise ValueError(f"The seed of a certificate is a whole number from 0 to 2**32 - 1, got {seed}.")
    root = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), 2**32 - 1)
    batch = min(BATCH * jax.device_count(), draws)

    @jax.jit
    def run(params, wavs, length, number, start):
        own = jax.random.fold_in(root, number)
        keys = jax.vmap(lambda i: jax.random.fold_in(own, i))(start + jnp.arange(batch))
        score = mapped(lambda wav, key: through.heads(params, wav, length, key)[0])
        return jax.vmap(lambda wav: score(jnp.broadcast_to(wav, (batch, *wav.shape)), keys))(wavs)

    def draw(params: PyTree, wavs: np.ndarray, length: int, number: int) -> np.ndarray:
        here = params, wavs, np.int32(length), np.int32(number)
        scores = [np.asarray(run(*here, np.int32(start))) for start in range(0, draws, batch)]
        return np.concatenate(scores, axis=1)[:, :draws].astype(np.float64)

    return draw


def estimate(scores: np.ndarray, percentile: float) -> float:
    """The percentile of ``scores [n]`` as a smoothed predictor takes it: what is not a number comes last."""
    return float(np.sort(scores)[rank(percentile, len(scores)) - 1])
