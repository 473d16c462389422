import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import CHANNELS, HOP, codec, speechlike

from jaxhack.spaces import latent, latent_statistics

STATISTICS = latent_statistics(
    codec(), [(np.stack([speechlike(1.0, i) for i in range(3)]), np.array([16000, 12000, 0], np.int32))]
)


def point(space, seconds=0.5, padded=16000, seed=9):
    wav = speechlike(seconds, seed)
    return space.encode(jnp.pad(jnp.asarray(wav), (0, padded - len(wav))), jnp.int32(len(wav))), wav


def test_statistics_are_those_of_the_valid_frames():
    frames = np.concatenate([speechlike(1.0, 0), speechlike(1.0, 1)[:12000]]).reshape(-1, HOP)[:, :CHANNELS] * 2.0
    np.testing.assert_allclose(STATISTICS.mean, frames.mean(0), atol=1e-6)
    np.testing.assert_allclose(STATISTICS.scale, frames.std(0), rtol=1e-5)


def test_statistics_need_audio():
    with pytest.raises(ValueError, match="at least one training clip"):
        latent_statistics(codec(), [])


@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 0.002, 0.5, 3.0])
@pytest.mark.parametrize("action", ["normal", "tiny", "huge", "per frame", "one channel"])
def test_the_space_keeps_the_budget(epsilon, action):
    space = latent(codec(), epsilon=epsilon, statistics=STATISTICS)
    p, _ = point(space)
    a = np.random.default_rng(1).normal(size=CHANNELS).astype(np.float32)
    a = {
        "normal": a,
        "tiny": a * 1e-9,
        "huge": a * 1e20,
        "one channel": np.eye(CHANNELS, dtype=np.float32)[3],
        "per frame": np.random.default_rng(2).normal(size=(1000, CHANNELS)).astype(np.float32),
    }[action]
    delta = np.asarray(space.project(p, jnp.asarray(a)), np.float64)
    frames = int(p.frames)
    achieved = np.sqrt(np.mean(delta[:frames] ** 2))
    assert achieved <= epsilon * (1 + 1e-6)
    np.testing.assert_allclose(achieved, epsilon, rtol=1e-5)
    np.testing.assert_allclose(space.size(p, jnp.asarray(delta, jnp.float32)), epsilon, rtol=1e-5)
    assert not delta[frames:].any()


@pytest.mark.parametrize("epsilon", [-0.1, float("nan"), float("inf")])
def test_a_budget_out_of_range_is_refused(epsilon):
    with pytest.raises(ValueError, match="epsilon must be a finite number ≥ 0"):
        latent(codec(), epsilon=epsilon)


def test_zero_budget_and_zero_action_are_the_round_trip_to_the_bit():
    toy = codec()
    space = latent(toy, epsilon=0.5, statistics=STATISTICS)
    p, wav = point(space)
    trip = toy.decode(toy.params, toy.encode(toy.params, jnp.pad(jnp.asarray(wav), (0, 8000))))
    render = jax.jit(lambda s, a: space.render(p, s * space.project(p, a)))
    np.testing.assert_array_equal(render(jnp.float32(1.0), jnp.zeros(CHANNELS)), trip)
    np.testing.assert_array_equal(render(jnp.float32(0.0), jnp.ones(CHANNELS)), trip)


def test_the_perturbation_is_in_units_of_the_training_deviation():
    toy = codec()
    space = latent(toy, epsilon=0.5, statistics=STATISTICS)
    p, _ = point(space)
    delta = space.project(p, jnp.ones(CHANNELS))
    moved = toy.encode(toy.params, space.render(p, delta)) - p.content[0]
    np.testing.assert_allclose(moved[: int(p.frames)] / STATISTICS.scale, 0.5, rtol=1e-4)


def test_padding_changes_nothing():
    space = latent(codec(), epsilon=0.5, statistics=STATISTICS)
    short, _ = point(space, padded=8000)
    long, _ = point(space, padded=16000)
    a = jnp.arange(1.0, CHANNELS + 1)
    y_short = space.render(short, space.project(short, a))[:8000]
    y_long = space.render(long, space.project(long, a))[:8000]
    np.testing.assert_allclose(y_short, y_long, atol=1e-6)


def test_without_statistics_each_utterance_has_its_own():
    space = latent(codec(), epsilon=0.5)
    p, _ = point(space)
    valid = np.asarray(p.features)[: int(p.frames)]
    np.testing.assert_allclose(valid.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(valid.std(0), 1, rtol=1e-4)
