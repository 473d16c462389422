"""Fits a predictor to people's ratings, as SSL-MOS is trained."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from jaxhack import crops
from jaxhack.patch import losses
from jaxhack.patch.clips import Clips
from jaxhack.patch.fitting import Term, adamw, fit
from jaxhack.scoring import score_waveforms
from jaxhack.types import Predictor, PyTree


def train(
    predictor: Predictor,
    training: Clips,
    validation: Sequence[tuple[np.ndarray, float]] = (),
    *,
    folder: Path,
    steps: int = 8000,
    batch: int = 8,
    crop_seconds: float = 6.0,
    learning_rate: float = 2e-5,
    head: Sequence[str] = (),
    head_learning_rate: float = 1e-3,
    seed: int = 0,
    save_every: int = 25,
    validate_every: int = 100,
    observe: Callable[[int, dict[str, float]], None] = lambda step, metrics: None,
) -> Predictor:
    """Minimises the squared error of scores on random cuts; of all steps the best on whole other recordings stays.

    The defaults are the paper's for SSL-MOS, whose `head` is ``("output/",)``. Ports have no dropout, so that
    training is without.

    Args:
      predictor: with the weights to start from; it must have gradients.
      training: rated recordings at the predictor's rate.
      validation: waveforms ``[T] float32`` at the predictor's rate, with their MOS; none: the last step stays.
      folder: where checkpoints and the log live; one that holds a checkpoint is continued.
      steps: how many in all.
      batch: cuts of one step.
      crop_seconds: the length of a cut.
      learning_rate: of AdamW.
      head: beginnings of the names of weights that learn at `head_learning_rate`.
      head_learning_rate: see there.
      seed: of the cuts.
      save_every: steps between checkpoints.
      validate_every: steps between looks at `validation`.
      observe: as of :func:`~jaxhack.patch.fitting.fit`.

    Returns:
      The predictor with the weights found.

    Raises:
      ValueError: a black box, a cut too short to be scored, or a loss that is no longer finite.

    Source: *How Hackable Is Your Speech Quality Metric?*, section IV.
    """
    needs_weights(predictor)
    samples = crops.samples(predictor, "crop_seconds", crop_seconds)
    wavs, targets = [wav for wav, _ in validation], [mos for _, mos in validation]
    found = fit(
        predictor.params,
        [Term("regression", losses.regression(predictor, predictor.sample_rate))],
        lambda step: {"regression": training.take(step, batch=batch, samples=samples, seed=seed)},
        adamw(predictor.params, learning_rate, head=head, head_learning_rate=head_learning_rate),
        steps=steps,
        folder=folder,
        trainable=predictor.trainable,
        save_every=save_every,
        validate=(lambda params: mean_squared_error(predictor, params, wavs, targets)) if validation else None,
        validate_every=validate_every,
        observe=observe,
    )
    return predictor._replace(params=found)


def mean_squared_error(
    predictor: Predictor, params: PyTree, wavs: Iterable[np.ndarray], targets: Sequence[float] | np.ndarray
) -> float:
    """Of the scores of whole waveforms ``[T] float32`` against targets ``[n]`` (MOS); NaN where one has no score."""
    rows = score_waveforms(predictor._replace(params=params), (("", wav) for wav in wavs))
    scores = np.array([np.nan if row["score"] is None else row["score"] for row in rows])
    return float(np.mean(np.square(scores - np.asarray(targets, np.float64))))


def needs_weights(predictor: Predictor) -> None:
    """Refuses what cannot be trained."""
    if not predictor.differentiable:
        raise ValueError(f"{predictor.name} is a black box: it has no weights that could be trained.")
