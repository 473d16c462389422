"""Training crops as points of a space, encoded once and kept on disk."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxhack.types import Point, Predictor, PyTree

ENCODE_BATCH = 32  # crops encoded at once


def samples(predictor: Predictor, setting: str, seconds: float) -> int:
    """How many samples of a predictor's rate a crop of so many seconds has.

    Raises:
      ValueError: the predictor has no score of so few; `setting` is what the sentence calls them.
    """
    size, shortest = round(seconds * predictor.sample_rate), max(predictor.min_samples, 1)
    if size < shortest:
        raise ValueError(
            f"{setting} must be at least {shortest / predictor.sample_rate:g}, the shortest that {predictor.name} "
            f"scores, got {seconds:g}."
        )
    return size


def windows(wav: np.ndarray, size: int) -> list[np.ndarray]:
    """Cuts ``wav [T]`` into windows of `size` samples; the last ends with the clip, a short clip stays short."""
    starts = list(range(0, max(len(wav) - size, 0) + 1, size))
    if starts[-1] + size < len(wav):
        starts.append(len(wav) - size)
    return [wav[s : s + size] for s in starts]


def batches(
    wavs: Iterable[np.ndarray], size: int, batch: int = ENCODE_BATCH
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields ``(wav [batch, size] float32, length [batch] int32)``; the last batch is filled up with length 0."""
    held: list[np.ndarray] = []

    def pack():
        wav, length = np.zeros((batch, size), np.float32), np.zeros(batch, np.int32)
        for i, crop in enumerate(held):
            wav[i, : len(crop)], length[i] = crop, len(crop)
        return wav, length

    for clip in wavs:
        for crop in windows(clip, size):
            held.append(crop)
            if len(held) == batch:
                yield pack()
                held.clear()
    if held:
        yield pack()


class Crops:
    """Points ``[n]`` on disk, read back a batch at a time, so that memory does not grow with the training set."""

    def __init__(self, folder: Path):
        """Opens an empty store in `folder`, which is created."""
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._files: list = []
        self._leaves: list[np.ndarray] = []
        self._tree: PyTree = None
        self.size = 0

    def fill(self, encode: Callable, wavs: Iterable[tuple[np.ndarray, np.ndarray]]) -> "Crops":
        """Encodes batches ``(wav [B, T], length [B])`` with a batched `encode` and stores the points with audio."""
        shapes: list[tuple] = []
        for wav, length in wavs:
            keep = length > 0
            leaves, self._tree = jax.tree.flatten(jax.device_get(encode(jnp.asarray(wav), jnp.asarray(length))))
            if not self._files:
                self._files = [(self._folder / f"{i}.bin").open("wb") for i in range(len(leaves))]
            shapes = [(leaf.shape[1:], leaf.dtype) for leaf in leaves]
            for file, leaf in zip(self._files, leaves, strict=True):
                file.write(np.ascontiguousarray(leaf[keep]).tobytes())
            self.size += int(keep.sum())
        for file in self._files:
            file.close()
        self._leaves = [
            np.memmap(self._folder / f"{i}.bin", dtype, "r", shape=(self.size, *shape))
            for i, (shape, dtype) in enumerate(shapes)
        ]
        return self

    def take(self, index: np.ndarray) -> Point:
        """Points ``[*index.shape]`` by number."""
        return jax.tree.unflatten(self._tree, [np.asarray(leaf[index]) for leaf in self._leaves])
