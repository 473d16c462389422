"""Defences that need no training: a predictor behind noise or behind a codec, as a predictor like any other.

An audit attacks what these return as it attacks what they are made of, and an attack that knows them goes through
them: they are differentiable where their predictor is.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxhack import audio, crops, dsp, inputs
from jaxhack.spaces.latent import Statistics, latent_statistics, rounding
from jaxhack.stats.certificate import rank
from jaxhack.types import Array, Codec, Predictor, PyTree

MEASURED = 3.0  # s of the windows over which a latent's scale is measured


class Noise(NamedTuple):
    """Where white Gaussian noise is added on the way to a predictor, and how much."""

    sigma: float  # standard deviation: of a sample, full scale 1; or in standardised units of a latent
    codec: Codec | None = None  # whose latent is noisy; None: the waveform
    # The unit of that latent, s_z. Fixed, never the utterance's own: an attack would move it.
    statistics: Statistics | None = None


class Smoothing(NamedTuple):
    """What :func:`smoothed` is given."""

    predictor: Predictor
    noise: Noise
    draws: int = 31
    percentile: float = 0.5
    seed: int = 0


class Noisy(NamedTuple):
    """A predictor that hears an utterance through one draw of noise."""

    sample_rate: int  # Hz
    params: PyTree
    heads: Callable[[PyTree, Array, Array, Array], Array]  # (params, wav [T], length [], key) -> [H]
    # (params, wav [T], length []) -> what noise is added to, in the unit of σ; all that the heads depend on.
    carrier: Callable[[PyTree, Array, Array], Array]
    entries: Callable[[int], int]  # numbers that have noise of their own, in an utterance of so many samples
    max_samples: int | None  # the longest input judged in one piece; None: any


class Chain(NamedTuple):
    """A predictor that hears what a codec makes of a waveform."""

    predictor: Predictor  # at the codec's rate if it has that
    codec: Codec
    sample_rate: int  # Hz, of the waveform

    def heads(self, params: tuple, wav: Array, length: Array, change: Callable[[Array, Array], Array]) -> Array:
        """Its heads ``[H]``, of ``wav [T]``, its latent changed by ``(z [N, C], frames []) -> z``."""
        mine, chain = params
        x, count, frames = self.heard(wav, length)
        y = self.codec.decode(chain, change(self.codec.encode(chain, x), frames))
        y = dsp.resample(y, self.codec.sample_rate, self.predictor.sample_rate, length=count)
        count = dsp.resampled_length(count, self.codec.sample_rate, self.predictor.sample_rate)
        # A quantiser would make speech of what is not a number.
        return jnp.where(jnp.all(jnp.isfinite(x)), self.predictor.heads(mine, y, count), jnp.nan)

    def heard(self, wav: Array, length: Array) -> tuple[Array, Array, Array]:
        """What the codec gets of ``wav [T]``: at its rate ``[T']``, of so many samples and frames that count."""
        x = dsp.resample(wav, self.sample_rate, self.codec.sample_rate, length=length)
        count = dsp.resampled_length(length, self.sample_rate, self.codec.sample_rate)
        return x, count, -(-count // self.codec.hop)

    @property
    def max_samples(self) -> int | None:
        """The longest input judged in one piece."""
        longest = self.predictor.max_samples
        return None if longest is None else longest * self.sample_rate // self.predictor.sample_rate

    def made(self, name: str, heads: Callable, params: tuple, at_rate: Callable[[int], Predictor]) -> Predictor:
        """The predictor with these heads."""
        p, rate = self.predictor, self.sample_rate
        return p._replace(
            name=name,
            sample_rate=rate,
            params=params,
            heads=heads,
            min_samples=-(-p.min_samples * rate // p.sample_rate),
            max_samples=self.max_samples,
            at_rate=at_rate,
            weights={**p.weights, **self.codec.weights},
            trainable=(p.trainable, *[False] * (len(params) - 1)),  # the codec and its latent's scale stay
        )


def denoised(
    predictor: Predictor, codec: Codec, *, quantised: bool = False, sample_rate: int | None = None
) -> Predictor:
    """A predictor that hears the codec's round trip of its input: what the codec cannot say does not reach it.

    Args:
      predictor: R, at the codec's rate if it has that, else it gets the round trip resampled.
      codec: any. Its delay stays.
      quantised: through the codec's quantiser, with all its published stages; the gradient passes straight through.
      sample_rate: Hz at which it listens, None the codec's; another is resampled.

    Returns:
      A predictor named like ``denoised(nisqa,lyra)``, with the same heads.

    Raises:
      ValueError: `quantised`, and the codec has no quantiser.
    """
    chain = _chain(predictor, rounding(codec) if quantised else codec, sample_rate)

    def heads(params: PyTree, wav: Array, length: Array) -> Array:
        return chain.heads(params, wav, length, lambda z, frames: z)

    def at_rate(hz: int) -> Predictor:
        return denoised(predictor, codec, quantised=quantised, sample_rate=hz)

    name = f"denoised({predictor.name},{codec.name}{',quantised=true' if quantised else ''})"
    return chain.made(name, heads, (chain.predictor.params, codec.params), at_rate)


def smoothed(
    predictor: Predictor,
    noise: Noise,
    *,
    draws: int = 31,
    percentile: float = 0.5,
    seed: int = 0,
    sample_rate: int | None = None,
) -> Predictor:
    """A predictor whose score is a percentile, by default the median, of its scores under Gaussian noise.

    The draws are fixed by `seed`: the same input has the same score, and an attack may know them. Each head is
    smoothed by itself, over the same draws; its gradient is that of the one draw that it is the score of. A draw
    without a score counts as the highest. :func:`jaxhack.certify` bounds the exact percentile, not that of few draws.

    Args:
      predictor: R, white-box or black-box; it is asked `draws` times.
      noise: in the waveform, at the rate of the predictor; or in a codec's latent, the round trip included.
      draws: of the noise.
      percentile: in (0, 1); of `draws` scores in ascending order, the first with that share at or below it.
      seed: of the noise.
      sample_rate: Hz at which it listens, None the predictor's rate or the codec's.

    Returns:
      A predictor named like ``smoothed(nisqa,waveform=0.01,draws=31)`` or ``smoothed(nisqa,lyra=0.5,draws=31)``, with
      the same heads.

    Raises:
      ValueError: noise without a size, or in a latent without its statistics; no draws; a percentile outside (0, 1).

    Source: Chiang et al., "Detection as Regression: Certified Object Detection by Median Smoothing", NeurIPS 2020.
    """
    if not (isinstance(draws, int) and draws >= 1):
        raise ValueError(f"A smoothed predictor needs a whole number of at least 1 draw, got {draws}.")
    if not 0 <= seed < 2**32:
        raise ValueError(f"The seed of a smoothed predictor is a whole number from 0 to 2**32 - 1, got {seed}.")
    if not 0 < percentile < 1:
        raise ValueError(f"The percentile of a smoothed predictor lies between 0 and 1, got {percentile}.")
    through, chosen = noisy(predictor, noise, sample_rate=sample_rate), rank(percentile, draws) - 1
    key = jax.random.key(seed, impl="threefry2x32")

    def draw(params: PyTree, wav: Array, length: Array, i: Array) -> Array:
        return through.heads(params, wav, length, jax.random.fold_in(key, i))

    def chosen_draws(params: PyTree, wav: Array, length: Array) -> tuple[Array, Array]:
        """The heads ``[H]``, and of which draw each is."""
        # A loop: the callers' utterances fill the device already.
        scores = jax.lax.map(lambda i: draw(params, wav, length, i), jnp.arange(draws))
        order = jnp.argsort(scores, axis=0)[chosen]  # NaN comes last
        return jnp.take_along_axis(scores, order[None], axis=0)[0], order

    @jax.custom_jvp
    def heads(params: PyTree, wav: Array, length: Array) -> Array:
        return chosen_draws(params, wav, length)[0]

    @heads.defjvp
    def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
        (params, wav, length), (by_params, by_wav, _) = primals, tangents
        value, order = chosen_draws(params, wav, length)

        def slope(pair: tuple[Array, Array]) -> Array:
            i, head = pair
            own = jax.jvp(lambda p, w: draw(p, w, length, i), (params, wav), (by_params, by_wav))[1]
            return own[head]

        return value, jax.lax.map(slope, (order, jnp.arange(len(order))))

    def at_rate(hz: int) -> Predictor:
        given = predictor.at_rate(hz) if noise.codec is None and predictor.at_rate else predictor
        return smoothed(given, noise, draws=draws, percentile=percentile, seed=seed, sample_rate=hz)

    where = "waveform" if noise.codec is None else noise.codec.name
    name = f"smoothed({predictor.name},{where}={float(noise.sigma)},draws={draws}"
    name += f",percentile={float(percentile)}" if percentile != 0.5 else ""
    name += f",seed={seed})" if seed else ")"
    if noise.codec is None:
        return predictor._replace(
            name=name, params=through.params, heads=heads, at_rate=predictor.at_rate and at_rate
        )
    return _chain(predictor, noise.codec, sample_rate).made(name, heads, through.params, at_rate)


def noisy(predictor: Predictor, noise: Noise, *, sample_rate: int | None = None) -> Noisy:
    """What :func:`smoothed` takes percentiles of; errors as there.

    A draw depends on neither padding nor batch.
    """
    if not (math.isfinite(noise.sigma) and noise.sigma > 0):
        raise ValueError(f"The sigma of noise must be a positive number, got {noise.sigma}.")
    sigma = float(noise.sigma)
    if noise.codec is None:
        if sample_rate not in (None, predictor.sample_rate):
            raise ValueError(f"{predictor.name} takes {predictor.sample_rate} Hz, not {sample_rate} Hz.")

        def heard(params: PyTree, wav: Array, length: Array, key: Array) -> Array:
            drawn = sigma * _normal(key, *wav.shape)
            return predictor.heads(params, dsp.masked(wav + drawn, length), length)

        return Noisy(
            sample_rate=predictor.sample_rate,
            params=predictor.params,
            heads=heard,
            carrier=lambda params, wav, length: dsp.masked(wav, length),
            entries=lambda samples: samples,
            max_samples=predictor.max_samples,
        )
    if noise.statistics is None:
        raise ValueError(
            f"Noise in the latent of {noise.codec.name} needs its statistics, the unit of each channel: "
            "take jaxhack.spaces.latent_statistics, or jaxhack.defences.demo_statistics."
        )
    chain = _chain(predictor, noise.codec, sample_rate)

    def through(params: PyTree, wav: Array, length: Array, key: Array) -> Array:
        *mine, scale = params

        def change(z: Array, frames: Array) -> Array:
            # What follows the last frame has no noise: it is not heard, lest a perturbation hide there.
            return jnp.where(_valid(z, frames), z + sigma * scale * _normal(key, *z.shape), 0.0)

        return chain.heads(tuple(mine), wav, length, change)

    def carrier(params: PyTree, wav: Array, length: Array) -> Array:
        _, mine, scale = params
        x, _, frames = chain.heard(wav, length)
        z = chain.codec.encode(mine, x)
        return jnp.where(_valid(z, frames), z / scale, 0.0)

    def entries(samples: int) -> int:
        count = -(-samples * chain.codec.sample_rate // chain.sample_rate)
        return -(-count // chain.codec.hop) * chain.codec.channels

    scale = jnp.asarray(noise.statistics.scale, jnp.float32)
    return Noisy(
        sample_rate=chain.sample_rate,
        params=(chain.predictor.params, noise.codec.params, scale),
        heads=through,
        carrier=carrier,
        entries=entries,
        max_samples=chain.max_samples,
    )


def demo_statistics(codec: Codec) -> Statistics:
    """A latent's statistics over the demo speech that comes with the package: a unit that is at hand everywhere."""
    rate = codec.sample_rate
    clips = (audio.read(u.path, sample_rate=rate).wav for u in inputs.collect([inputs.DEMO]))
    return latent_statistics(codec, crops.batches(clips, round(MEASURED * rate)))


def _chain(predictor: Predictor, codec: Codec, sample_rate: int | None) -> Chain:
    inner = predictor.at_rate(codec.sample_rate) if predictor.at_rate else predictor
    return Chain(inner, codec, sample_rate or codec.sample_rate)


def _valid(z: Array, frames: Array) -> Array:
    return (jnp.arange(z.shape[0]) < frames)[:, None]


def _normal(key: Array, *shape: int) -> Array:
    """Standard normal ``[*shape]``; a row is the same however many follow it, which holds of partitionable keys."""
    with jax.threefry_partitionable(True):
        return jax.random.normal(key, shape, jnp.float32)
