import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxhack import parallel
from jaxhack.parallel import mapped

WEIGHT = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)


def one(x, y):
    return {"a": jnp.tanh(WEIGHT @ x), "b": jnp.sum(x) + y}


def batch(n):
    rng = np.random.default_rng(n)
    return jnp.asarray(rng.normal(size=(n, 16)), jnp.float32), jnp.arange(n, dtype=jnp.float32)


@pytest.mark.parametrize("n", [1, 3, 8, 13])
@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("jit", [False, True])
def test_equals_a_loop(n, chunk, jit):
    x, y = batch(n)
    run = mapped(one, chunk=chunk)
    out = (jax.jit(run) if jit else run)(x, y)
    for i in range(n):
        want = one(x[i], y[i])
        np.testing.assert_allclose(out["a"][i], want["a"], atol=1e-5)
        np.testing.assert_allclose(out["b"][i], want["b"], atol=1e-5)


def test_outer_vmaps_join_one_axis_in_any_order():
    x, y = batch(5)
    xs = jnp.stack([x, 2 * x, x + 1])
    run = mapped(one)
    inner = jax.jit(jax.vmap(run, (0, None)))(xs, y)["b"]
    np.testing.assert_allclose(inner, xs.sum(-1) + y, atol=1e-4)
    outer = jax.jit(jax.vmap(run, (1, None), 1))(xs, jnp.arange(3.0))["b"]
    np.testing.assert_allclose(outer, xs.sum(-1) + jnp.arange(3.0)[:, None], atol=1e-4)
    twice = jax.jit(jax.vmap(jax.vmap(run, (0, None)), (None, 0)))(xs, jnp.stack([y, -y]))["b"]
    np.testing.assert_allclose(twice[1], xs.sum(-1) - y, atol=1e-4)


def test_every_device_takes_part_and_none_changes_a_bit():
    assert jax.device_count() == 8
    x, y = batch(13)
    out = jax.jit(mapped(one))(x, y)
    alone = jax.jit(lambda x, y: jax.lax.map(lambda v: one(*v), (x, y)))(x, y)
    np.testing.assert_array_equal(out["a"], alone["a"])
    padded = jax.jit(mapped(one))(x[:8], y[:8])
    assert len(padded["a"].sharding.device_set) == 8


def test_weights_may_be_arguments_of_the_program():
    x, y = batch(4)
    run = jax.jit(lambda w, x, y: jax.vmap(mapped(lambda a, b: w @ a + b), (0, None))(x[None], y))
    np.testing.assert_allclose(run(WEIGHT, x, y)[0], x @ WEIGHT.T + y[:, None], rtol=1e-5, atol=1e-5)


def test_gradients_inside_the_mapped_function():
    x, y = batch(4)
    grad = jax.jit(mapped(jax.grad(lambda a, b: jnp.sum(a**2) * b)))(x, y)
    np.testing.assert_allclose(grad, 2 * x * y[:, None], rtol=1e-6)


def test_a_loop_inside_a_vmap_may_call_it():
    x, y = batch(4)

    def program(w, x):
        run = mapped(lambda a, b: w @ a + b)

        def total(row):
            return jax.lax.scan(lambda c, s: (c + run(s * row[None], y[:1])[0], None), row, jnp.arange(1.0, 4.0))[0]

        return jax.vmap(total)(x)

    np.testing.assert_allclose(jax.jit(program)(WEIGHT, x), x + 6 * x @ WEIGHT.T + 3 * y[0], rtol=1e-4, atol=1e-4)


def test_as_many_functions_as_batch_members():
    x, y = batch(4)
    weights = jnp.stack([WEIGHT, 2 * WEIGHT])
    out = jax.jit(jax.vmap(lambda w: mapped(lambda a, b: w @ a + b)(x, y)))(weights)
    np.testing.assert_allclose(out[1], 2 * x @ WEIGHT.T + y[:, None], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n", [1, 5, 8, 13])
@pytest.mark.parametrize("chunk", [1, 2])
def test_mean_gradients_are_those_of_the_mean(n, chunk, monkeypatch):
    monkeypatch.setattr(parallel, "_chunk", lambda given: chunk)
    x, y = batch(n)

    def loss(params, example):
        return jnp.sum(jnp.tanh(params["w"] @ example[0])) * example[1] + params["b"]

    params = {"w": jnp.asarray(WEIGHT), "b": jnp.float32(2)}
    value, slopes = jax.jit(parallel.mean_gradients(loss))(params, (x, y))
    want, wanted = jax.value_and_grad(lambda p: jnp.mean(jax.vmap(loss, (None, 0))(p, (x, y))))(params)
    np.testing.assert_allclose(value, want, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), slopes, wanted)
