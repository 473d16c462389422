"""The LSTM of all ports: PyTorch's, to rounding, and blind to what does not count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ports.lstm import Lstm, from_torch, torch_shapes

X = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)


@pytest.mark.quick_compilation
@pytest.mark.parametrize("reverse", [False, True])
def test_steps_that_do_not_count(reverse):
    x, lstm = jnp.asarray(X), Lstm(4, reverse=reverse)
    params = lstm.init(jax.random.key(0), x)
    last = 0 if reverse else -1
    states = jax.jit(lambda x, n: lstm.apply(params, x, jnp.arange(7) < n))
    alone = lstm.apply(params, x[:5])
    np.testing.assert_allclose(states(x, 5)[:5], alone, atol=1e-6)
    np.testing.assert_allclose(states(x, 5)[last], alone[last], atol=1e-6)
    slope = jax.jit(jax.jacrev(lambda x, n: states(x, n)[last]))
    assert np.any(slope(x, 5), axis=(0, 2)).tolist() == [True] * 5 + [False] * 2
    assert not np.any(slope(x, 0))


def test_is_that_of_torch():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    theirs = torch.nn.LSTM(3, 4, bidirectional=True)
    tensors = {f"lstm.{name}": tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    expected = theirs(torch.from_numpy(X))[0].detach().numpy()
    shapes = torch_shapes("lstm.", 3, 4, "l0") | torch_shapes("lstm.", 3, 4, "l0_reverse")
    assert shapes == {name: tensor.shape for name, tensor in tensors.items()}
    for i, layer in enumerate(("l0", "l0_reverse")):
        states = Lstm(4, reverse=bool(i)).apply({"params": from_torch(tensors, "lstm.", layer)}, jnp.asarray(X))
        np.testing.assert_allclose(states, expected[:, 4 * i : 4 * i + 4], atol=1e-6)
