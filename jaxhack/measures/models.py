"""Measures that a published model makes: speaker similarity, SpeechBERTScore, and predictors as judges.

The models are the caller's, by contract; their weights are parameters of the measure and its `about` names them.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxhack import dsp
from jaxhack.detect import Rule
from jaxhack.objective import listener
from jaxhack.types import Array, Codec, Embedder, Encoder, Measure, Predictor, PyTree

SATURATION = 0.99  # of SpeechBERTScore: no codec gets there; above it noise that nobody hears costs the margin


def speaker_similarity(embedder: Embedder, sample_rate: int, *, margin: float = 0.05) -> Measure:
    """The cosine between the speaker embeddings of reference and estimate, −1 … 1; NaN where one is undefined.

    Args:
      embedder: a speaker encoder.
      sample_rate: Hz, of the waveforms that are compared.
      margin: worse by more than this counts as degraded; ours, no published one is known.
    """
    heard = _heard(sample_rate, embedder.sample_rate)

    def fn(params: PyTree, reference: Array, estimate: Array, length: Array) -> Array:
        first, second = (embedder.embed(params, *heard(wav, length)) for wav in (reference, estimate))
        return jnp.dot(first, second)

    return Measure(
        "speaker_similarity", Rule(margin), _least(embedder, sample_rate), fn, embedder.params, about=_about(embedder)
    )


def speech_bert_score(encoder: Encoder, sample_rate: int, *, margin: float = 0.05) -> Measure:
    """SpeechBERTScore over an encoder's frames, −1 … 1; its name in rows is ``speech_bert_score_<encoder>``.

    T. Saeki et al., "SpeechBERTScore", Interspeech 2024: the precision, as the authors' package reports it. See
    :func:`matched_precision`. Scores over different encoders do not compare.

    Args:
      encoder: a frame encoder.
      sample_rate: Hz, of the waveforms that are compared.
      margin: worse by more than this counts as degraded, unless x̂ is above `SATURATION`: then the vote is void. Ours:
        over the encoders here, white noise at 40 dB costs 0.02–0.06, Opus at 16 kb/s 0.06–0.16.
    """
    heard = _heard(sample_rate, encoder.sample_rate)

    def fn(params: PyTree, reference: Array, estimate: Array, length: Array) -> Array:
        (wanted, frames), (made, _) = (encoder.features(params, *heard(wav, length)) for wav in (reference, estimate))
        return matched_precision(wanted, made, frames)

    name = f"speech_bert_score_{encoder.name}"
    rule = Rule(margin, saturation=SATURATION)
    return Measure(name, rule, _least(encoder, sample_rate), fn, encoder.params, about=_about(encoder))


def matched_precision(reference: Array, estimate: Array, frames: Array) -> Array:
    """The mean over the frames of the estimate of the highest cosine with any frame of the reference.

    Args:
      reference: ``[N, D]`` float32.
      estimate: ``[N, D]`` float32.
      frames: ``[]`` int32, rows of both that count.

    Returns:
      ``[]``, NaN without a frame. A frame of zeros has a cosine of 0 with every other.
    """
    valid = jnp.arange(reference.shape[0]) < frames
    reference, estimate = _unit(reference), _unit(estimate)
    cosines = jnp.matmul(estimate, reference.T, precision=jax.lax.Precision.HIGHEST)
    best = jnp.max(jnp.where(valid, cosines, -1.0), axis=1)
    mean = jnp.sum(jnp.where(valid, best, 0.0)) / jnp.maximum(frames, 1).astype(jnp.float32)
    return jnp.where(frames > 0, mean, jnp.nan)


def latent_encoder(codec: Codec) -> Encoder:
    """A codec's continuous latent as frame features; of whole frames alone."""

    def features(params: PyTree, wav: Array, length: Array) -> tuple[Array, Array]:
        return codec.encode(params, dsp.masked(wav, length)), length // codec.hop

    return Encoder(
        codec.name, codec.sample_rate, codec.channels, codec.params, features, codec.hop, weights=codec.weights
    )


def no_reference(predictor: Predictor, sample_rate: int, *, margin: float = 0.3) -> Measure:
    """A predictor as a judge of the estimate alone, under its own name.

    Args:
      predictor: not the one under attack.
      sample_rate: Hz, of the waveforms that are judged.
      margin: a score lower by more than this counts as degraded; ours, the gain τ that a hack exceeds.
    """

    def fn(params: PyTree, reference: Array, estimate: Array, length: Array) -> Array:
        return listener(predictor._replace(params=params), sample_rate)(dsp.masked(estimate, length), length)

    return Measure(
        predictor.name, Rule(margin), _least(predictor, sample_rate), fn, predictor.params, about=_about(predictor)
    )


def _heard(sample_rate: int, model_rate: int) -> Callable[[Array, Array], tuple[Array, Array]]:
    """``(wav [T], length []) -> wav, length`` at the model's rate, zero from its length on."""

    def heard(wav: Array, length: Array) -> tuple[Array, Array]:
        length = jnp.asarray(length, jnp.int32)
        wav = dsp.resample(wav, sample_rate, model_rate, length=length)
        return wav, dsp.resampled_length(length, sample_rate, model_rate)

    return heard


def _least(model: Predictor | Embedder | Encoder, sample_rate: int) -> int:
    """The model's shortest input, in samples at `sample_rate`."""
    return math.ceil(model.min_samples * sample_rate / model.sample_rate)


def _about(model: Predictor | Embedder | Encoder) -> dict[str, Any]:
    return {"model": model.name, "sample_rate": model.sample_rate, "weights": dict(model.weights)}


def _unit(x: Array) -> Array:
    """The rows of ``x [N, D]`` scaled to unit length; zeros stay zeros, with a finite gradient."""
    return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(jnp.square(x), axis=1, keepdims=True), 1e-24))
