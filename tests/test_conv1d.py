"""Convolutions over time against PyTorch's, gradients included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from parity import relative

from ports.conv1d import conv1d, fold_weight_norm, from_torch, kept, torch_shape, transposed1d, used

pytestmark = pytest.mark.quick_compilation


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    ("size", "features", "taps", "stride", "dilation"),
    [(1, 4, 7, 1, 1), (4, 1, 7, 1, 1), (3, 5, 3, 1, 9), (3, 5, 1, 1, 1), (2, 3, 10, 5, 1), (1, 1, 4, 2, 1)],
)
def test_convolution(size, features, taps, stride, dilation):
    x, kernel = normal(0, 40, size), normal(1, taps, size, features)

    def loss(x, kernel):
        y = conv1d(x, kernel, stride=stride, dilation=dilation)
        return jnp.sum(jnp.sin(y)), y

    (by_x, by_kernel), y = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(x, kernel)
    tx = torch.tensor(x.T[None], requires_grad=True)
    weight = torch.tensor(kernel.transpose(2, 1, 0), requires_grad=True)
    assert tuple(weight.shape) == torch_shape(kernel.shape)
    ty = torch.nn.functional.conv1d(tx, weight, stride=stride, dilation=dilation)
    torch.sin(ty).sum().backward()
    np.testing.assert_allclose(y, ty[0].T.detach(), atol=1e-5)
    np.testing.assert_allclose(by_x, tx.grad[0].T, atol=1e-5)
    np.testing.assert_allclose(by_kernel, from_torch(weight.grad.numpy()), atol=1e-4)


@pytest.mark.parametrize(("size", "features", "stride"), [(1, 4, 1), (4, 1, 1), (3, 5, 1), (3, 5, 2)])
def test_factors_in_bfloat16(size, features, stride):
    """Values and both gradients are near, and float32; those of a single channel are the same."""
    x, kernel = normal(0, 40, size), normal(1, 4, size, features)

    def all_of(dtype):
        y, back = jax.vjp(lambda x, kernel: conv1d(x, kernel, stride=stride, dtype=dtype), x, kernel)
        return y, *back(y)

    for exact, near in zip(all_of(jnp.float32), all_of(jnp.bfloat16), strict=True):
        assert near.dtype == jnp.float32
        error = relative(near, exact)
        assert error < 0.02 and (error > 0 or (size == 1 and stride == 1))
    exact, near = (transposed1d(x, kernel, stride=stride, dtype=dtype) for dtype in (jnp.float32, jnp.bfloat16))
    assert near.dtype == jnp.float32 and 0 < relative(near, exact) < 0.02


@pytest.mark.parametrize(("taps", "stride"), [(4, 2), (10, 5), (6, 2)])
def test_transposed_convolution(taps, stride):
    x, kernel = normal(2, 9, 3), normal(3, taps, 3, 4)
    weight = torch.tensor(kernel.transpose(1, 2, 0))
    assert tuple(weight.shape) == torch_shape(kernel.shape, transposed=True)
    np.testing.assert_array_equal(from_torch(weight.numpy(), transposed=True), kernel)
    y = torch.nn.functional.conv_transpose1d(torch.tensor(x.T[None]), weight, stride=stride)
    np.testing.assert_allclose(transposed1d(x, kernel, stride=stride), y[0].T, atol=1e-5)


def test_weight_norm():
    layer = torch.nn.utils.weight_norm(torch.nn.ConvTranspose1d(3, 4, 6))
    with torch.no_grad():
        layer.weight_g *= 3
    layer(torch.zeros(1, 3, 5))
    folded = fold_weight_norm(layer.weight_g.detach().numpy(), layer.weight_v.detach().numpy())
    np.testing.assert_allclose(folded, layer.weight.detach(), rtol=1e-5)


def test_a_signal_ends_where_only_zeros_follow():
    x = jnp.array([0.0, 0.1, 0.0, -2.0, 0.0, 0.0])
    assert int(used(x)) == 4 and int(used(x[:, None])) == 4 and int(used(jnp.zeros(3))) == 0
    np.testing.assert_array_equal(kept(jnp.ones((4, 1)), 3)[:, 0], [1, 1, 1, 0])
