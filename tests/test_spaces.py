"""The budgets of the spaces beside the latent, on audio that reaches ±1."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from jaxhack import spaces

BUDGETS = [0.0, 1e-6, 0.002, 0.5]


def loud(samples: int = 16000) -> np.ndarray:
    """As a file holds it, −1 and the highest of 16 bits among its samples."""
    steps = np.clip(np.round(toys.speechlike(samples / toys.RATE, 1) * 15 * 32768), -32768, 32767)
    assert steps.min() == -32768 and steps.max() == 32767
    return (steps / 32768).astype(np.float32)


def attacked(space, wav, padding: int = 0, scale: float = 1.0):
    """Point, delta and waveform of a random action."""

    def run(wav, length):
        point = space.encode(wav, length)
        action = space.sample(jax.random.key(1), point)
        delta = space.project(point, action if space.norm == "count" else action * scale)
        return point, delta, space.render(point, delta)

    return jax.device_get(jax.jit(run)(np.pad(wav, (0, padding)), np.int32(len(wav))))


@pytest.mark.parametrize("epsilon", BUDGETS)
@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_a_waveform_keeps_its_budget_and_its_range(epsilon, scale):
    wav = loud()
    point, delta, out = attacked(spaces.waveform(epsilon=epsilon), wav, padding=320, scale=scale)
    largest = np.abs(delta.astype(np.float64)).max()
    assert largest <= epsilon * (1 + 1e-6) and largest >= 0.99 * epsilon
    assert np.abs(out).max() <= 1.0 and not out[len(wav) :].any()
    if epsilon == 0:
        np.testing.assert_array_equal(out[: len(wav)], wav)
    np.testing.assert_allclose(spaces.waveform(epsilon=epsilon).size(point, delta), largest, rtol=1e-6)


@pytest.mark.parametrize("epsilon", BUDGETS)
@pytest.mark.parametrize("samples", [16000, 160000])
def test_noise_has_its_level(epsilon, samples):
    wav = loud(samples)
    space = spaces.noise(epsilon=epsilon)
    point, delta, out = attacked(space, wav, padding=320)
    d, x = delta.astype(np.float64), wav.astype(np.float64)
    ratio = np.sqrt(np.sum(d**2) / np.sum(x**2))
    assert ratio <= epsilon * (1 + 1e-6)
    np.testing.assert_allclose(ratio, epsilon, rtol=1e-6)
    np.testing.assert_allclose(space.size(point, delta), ratio, rtol=1e-5)
    if epsilon == 0:
        np.testing.assert_array_equal(out[: len(wav)], wav)
    else:
        np.testing.assert_allclose(-20 * np.log10(ratio), -20 * np.log10(epsilon), atol=1e-4)


def test_silence_gets_no_noise():
    _, delta, out = attacked(spaces.noise(), np.zeros(1600, np.float32))
    assert not delta.any() and not out.any()


@pytest.mark.parametrize("epsilon", BUDGETS)
def test_the_quantised_latent_keeps_its_budget(epsilon):
    space, codec = spaces.quantised(toys.codec(), epsilon=epsilon), toys.codec()
    point, delta, out = attacked(space, loud())
    achieved = np.sqrt(np.mean(delta.astype(np.float64) ** 2))
    assert achieved <= epsilon * (1 + 1e-6)
    np.testing.assert_allclose(achieved, epsilon, rtol=1e-6)
    z_q = codec.quantise(codec.params, codec.encode(codec.params, jnp.asarray(loud())), 2)
    np.testing.assert_allclose(point.content[0], z_q, atol=1e-6)
    if epsilon == 0:
        np.testing.assert_allclose(out, codec.decode(codec.params, z_q), atol=1e-6)


@pytest.mark.parametrize("epsilon", [0, 1, 16, 3000])
def test_codes_change_as_many_as_they_may(epsilon):
    space, codec, wav = spaces.codes(toys.codec(), epsilon=epsilon), toys.codec(), loud()
    point, delta, out = attacked(space, wav, padding=320)
    assert np.count_nonzero(delta) == min(epsilon, 2 * len(wav) // toys.HOP) == space.size(point, delta)
    assert delta.dtype == np.int32 and delta.min() >= 0 and delta.max() < codec.codebook_size
    z_q, index = point.content
    moved = np.flatnonzero(delta.any(1))
    assert np.all(moved < len(wav) // toys.HOP), "a change of padding is no change"
    changed = codec.dequantise(codec.params, (index + delta) % codec.codebook_size)
    whole = np.array(z_q)
    whole[moved, : changed.shape[1]] = np.asarray(changed)[moved]
    np.testing.assert_allclose(out, codec.decode(codec.params, jnp.asarray(whole)), atol=1e-6)


def test_of_too_many_changes_the_first_count():
    space = spaces.codes(toys.codec(), epsilon=3)
    point = space.encode(jnp.asarray(loud(160)), jnp.int32(160))
    delta = np.asarray(space.project(point, jnp.full((10, 2), 13)))  # 13 is 1 modulo 12
    assert np.argwhere(delta).tolist() == [[0, 0], [0, 1], [1, 0]] and delta.max() == 1
    assert not np.any(space.project(point, jnp.full((10, 2), 12)))


@pytest.mark.parametrize("epsilon", [-0.1, float("nan"), float("inf")])
@pytest.mark.parametrize("name", spaces.KINDS)
def test_a_budget_out_of_range_is_refused(name, epsilon):
    kind = spaces.KINDS[name]
    with pytest.raises(ValueError, match=rf"^epsilon must be a .* ≥ 0 \([^)]*\), got {epsilon}\.$"):
        kind.make(toys.codec() if kind.chain else 16000, epsilon=epsilon)


@pytest.mark.parametrize("epsilon", [1e-6, 0.002, 0.5])
def test_codes_are_counted_in_whole_numbers(epsilon):
    with pytest.raises(ValueError, match="epsilon must be a whole number"):
        spaces.codes(toys.codec(), epsilon=epsilon)


@pytest.mark.parametrize("make", [spaces.quantised, spaces.codes])
def test_a_codec_without_a_quantiser_is_refused(make):
    with pytest.raises(ValueError, match=r"^toy has no quantiser: "):
        make(toys.codec()._replace(codes=None))
