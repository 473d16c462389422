"""Activations against JAX's own, derivatives included."""

import jax
import jax.numpy as jnp
import numpy as np

from ports.activations import elu, snake

X = np.concatenate([np.linspace(-30, 30, 4001), np.linspace(-1e-3, 1e-3, 101), [-1e4, 1234.5, 29999.0]])
X = X.astype(np.float32)


def test_elu():
    np.testing.assert_allclose(elu(X), jax.nn.elu(X), atol=1e-7)
    np.testing.assert_allclose(jax.vmap(jax.grad(elu))(X), jax.vmap(jax.grad(jax.nn.elu))(X), atol=1e-6)
    assert jax.grad(elu)(0.0) == 1.0 and jax.grad(elu)(1e4) == 1.0


def test_snake():
    for alpha in np.array([0.03, 0.7, 1.0, 5.0], np.float32):
        angle = np.float64(alpha * X)
        expected = X + np.sin(angle) ** 2 / (np.float64(alpha) + 1e-9)
        np.testing.assert_allclose(snake(X, alpha), expected, rtol=3e-7, atol=3e-7 / alpha)
        slope = jax.vmap(jax.grad(snake), (0, None))(X, jnp.asarray(alpha))
        np.testing.assert_allclose(slope, 1 + np.sin(2 * angle), atol=5e-6)
