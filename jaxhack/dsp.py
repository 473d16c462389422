"""Signal processing inside compiled chains."""

import jax.numpy as jnp


def as_saved(wav):
    return jnp.clip(jnp.round(wav * 32768), -32768, 32767) / 32768
