"""What every codec port asks of waveforms and latents, and how a gradient passes its quantiser."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxhack.types import Array


def check_wav(wav: Array) -> None:
    """Raises ``ValueError`` unless `wav` is one waveform ``[T]`` of float32 with a sample or more."""
    if wav.ndim != 1 or wav.shape[0] == 0 or wav.dtype != jnp.float32:
        raise ValueError(f"encode takes one waveform [T] of float32, T > 0; got {wav.dtype}{list(wav.shape)}.")


def check_latent(caller: str, z: Array, channels: int) -> None:
    """Raises ``ValueError`` unless `z` is a latent ``[N, channels]`` of float32 with a frame or more."""
    if z.ndim != 2 or z.shape[0] == 0 or z.shape[1] != channels or z.dtype != jnp.float32:
        raise ValueError(f"{caller} takes a latent [N, {channels}] of float32, N > 0; got {z.dtype}{list(z.shape)}.")


def check_stages(stages: int, most: int, published: tuple[int, ...]) -> None:
    """Raises ``ValueError`` unless a quantiser of `most` stages has that many."""
    if not 1 <= stages <= most:
        raise ValueError(f"stages is a number from 1 to {most} (published: {published}); got {stages}.")


def looked_up(books: Array, codes: Array) -> Array:
    """The sum of the entries ``[N, C]`` that ``codes [N, S]`` name in codebooks ``[S or more, K, C]``."""

    def stage(total: Array, x: tuple[Array, Array]) -> tuple[Array, None]:
        book, index = x
        return total + book[index], None

    start = jnp.zeros((codes.shape[0], books.shape[2]), books.dtype)
    return lax.scan(stage, start, (books[: codes.shape[1]], codes.T))[0]


def leaves(tree: Any) -> dict[str, Any]:
    """``a.b.c`` -> leaf, in the order of the tree."""
    found = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in found}
