"""How far a codec whose factors of products are bfloat16 is from the same one in float32."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxhack.types import Codec


def moved(exact: Codec, rounded: Codec, wav: np.ndarray) -> tuple[float, float]:
    """The latent's RMS error over its RMS, and the SI-SDR (dB) of what is decoded of one latent; all float32."""
    z, near = (jax.jit(codec.encode)(codec.params, wav) for codec in (exact, rounded))
    out, other = (jax.jit(codec.decode)(codec.params, z) for codec in (exact, rounded))
    assert near.dtype == other.dtype == jnp.float32
    error = np.sqrt(np.mean(np.square(near - z)) / np.mean(np.square(z)))
    return float(error), si_sdr(out, other)


def si_sdr(reference, estimate) -> float:
    """Energy of the estimate along the reference over that of the rest, dB; infinite where there is no rest."""
    x, y = np.asarray(reference, np.float64), np.asarray(estimate, np.float64)
    target = (x @ y) / (x @ x) * x
    with np.errstate(divide="ignore"):
        return float(10 * np.log10(target @ target / np.sum(np.square(target - y))))
