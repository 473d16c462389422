"""Functions written twice: both ways are equal, and the derivatives are those of the convolution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ports.distillmos import Conv
from ports.two_ways import two_ways
from ports.wav2vec2 import PositionConv, StridedConv

pytestmark = pytest.mark.quick_compilation


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (Conv(5, 2, 2), (9, 8, 3)),
        (Conv(5, 1, 1), (6, 7, 2)),
        (StridedConv(4, 10, 5, False), (43, 1)),
        (StridedConv(4, 3, 2, False), (12, 3)),
        (PositionConv(16, 2), (21, 6)),
        (PositionConv(5, 3), (9, 6)),
    ],
)
def test_both_ways_are_equal(module, shape):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    kernel = module.init(jax.random.key(1), x)["params"]["kernel"]
    y, back = jax.vjp(module._convolution, x, kernel)
    g = jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape)
    found, found_back = jax.vjp(two_ways(module._convolution, module._products), x, kernel)
    np.testing.assert_allclose(module._products(x, kernel), y, atol=1e-5)
    np.testing.assert_array_equal(found, y)
    for ours, expected in zip(found_back(g), back(g), strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-5)
