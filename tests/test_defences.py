"""Predictors behind noise and behind a codec: what they hear, what they keep of a predictor, and their names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_contracts
import toys

from jaxhack import dsp, registry
from jaxhack.defences import Noise, demo_statistics, denoised, noisy, smoothed
from jaxhack.objective import listener
from jaxhack.spaces import Statistics
from ports.blackbox import callable_predictor

pytestmark = pytest.mark.usefixtures("one_device")
WAV = jnp.asarray(toys.speechlike(0.1, 3))
LENGTH = jnp.int32(len(WAV))
UNIT = Statistics(jnp.zeros(toys.CHANNELS), jnp.linspace(0.05, 0.2, toys.CHANNELS))


def two_heads():
    """The toy's score, and its negative squared, so that their orders differ."""
    toy = toys.predictor()

    def heads(params, wav, length):
        score = toy.heads(params, wav, length)[0]
        return jnp.stack([score, -jnp.square(score)])

    return toy._replace(heads=heads, head_names=("score", "other"))


def loudness(clips: np.ndarray, rate: int) -> np.ndarray:
    return np.abs(clips).mean(1)


DEFENDED = {
    "quantised": lambda: denoised(toys.predictor(), toys.codec(), quantised=True),
    "waveform": lambda: smoothed(two_heads(), Noise(0.01), draws=3),
    "latent": lambda: smoothed(toys.predictor(), Noise(0.5, toys.codec(), UNIT), draws=3),
    "black box": lambda: smoothed(
        callable_predictor(loudness)._replace(min_samples=16), Noise(0.01), draws=3, percentile=0.9
    ),
}


@pytest.mark.quick_compilation
@pytest.mark.parametrize("name", DEFENDED)
def test_they_keep_the_contract_of_predictors(name):
    made = DEFENDED[name]()
    if name != "black box":  # whose shortest input is its host's affair
        test_contracts.test_predictor(made)
    test_contracts.test_predictor_gradient(made)


def drawn(predictor, draws: int, seed: int):
    """Heads under each of the draws of a smoothed predictor, ``(i, wav) -> [H]``, and all of them ``[n, H]``."""
    through = noisy(predictor, Noise(0.05))

    def draw(i, wav):
        return through.heads(through.params, wav, LENGTH, jax.random.fold_in(jax.random.key(seed), i))

    return draw, np.asarray(jax.jit(jax.vmap(draw, (0, None)))(jnp.arange(draws), WAV))


def test_each_head_is_the_percentile_of_its_draws_and_has_the_slope_of_that_draw():
    toy = two_heads()._replace(params=2 * toys.TARGET)
    made = smoothed(toy, Noise(0.05), draws=8, percentile=0.75, seed=4)
    draw, draws = drawn(toy, 8, 4)
    order = np.argsort(draws, axis=0)[5]
    assert order[0] != order[1] and draws.std(0).min() > 0.01

    @jax.jit
    def both(wav):
        value, pull = jax.vjp(lambda p, w: made.heads(p, w, LENGTH), made.params, wav)
        own = jax.vmap(jax.jacrev(draw, 1), (0, None))(jnp.asarray(order), wav)
        return value, jax.vmap(pull)(jnp.eye(2)), own[jnp.arange(2), jnp.arange(2)]

    value, (by_params, by_wav), own = both(WAV)
    np.testing.assert_allclose(value, [draws[order[0], 0], draws[order[1], 1]], rtol=1e-6)
    np.testing.assert_allclose(by_wav, own, rtol=1e-5, atol=1e-7)
    assert np.abs(by_params).max() > 0


def test_a_draw_without_a_score_counts_as_the_highest():
    toy = toys.predictor()
    scores = np.sort(drawn(toy, 9, 0)[1][:, 0])
    cut = (scores[2] + scores[3]) / 2  # three of nine have no score any more

    def heads(params, wav, length):
        score = toy.heads(params, wav, length)
        return jnp.where(score < cut, jnp.nan, score)

    made = [smoothed(toy._replace(heads=heads), Noise(0.05), draws=9, percentile=k / 9) for k in (6, 7)]
    found = jax.jit(lambda w: [m.heads(m.params, w, LENGTH)[0] for m in made])(WAV)
    np.testing.assert_allclose(found, [scores[8], np.nan], rtol=1e-6)


def test_noise_has_the_size_that_is_asked_for():
    def power(params, wav, length):
        """Mean square of what each channel of the toy codec would see."""
        return jnp.mean(jnp.square(wav.reshape(-1, toys.HOP)[:, : toys.CHANNELS] * params), 0)

    toy = toys.predictor()._replace(heads=power, head_names=tuple("abcdefgh"), params=jnp.float32(2.0))
    silence, key = jnp.zeros(16000), jax.random.key(0)
    for noise, expected in ((Noise(0.1), 0.2), (Noise(0.5, toys.codec(), UNIT), 0.5 * UNIT.scale)):
        through = noisy(toy, noise)
        heard = jax.jit(through.heads)(through.params, silence, jnp.int32(16000), key)
        np.testing.assert_allclose(jnp.sqrt(heard), np.broadcast_to(expected, 8), rtol=0.08)
    assert noisy(toy, Noise(0.1)).entries(1601) == 1601
    assert through.entries(1601) == 101 * toys.CHANNELS


def test_what_follows_the_last_frame_hides_no_perturbation():
    """A codec that looks ahead: its last frames, which have no noise, move nothing."""

    def behind(level):
        def encode(params, wav):
            z = toys.codec().encode(params, wav)
            return jnp.where((jnp.arange(z.shape[0]) < 50)[:, None], z, level)

        def decode(params, z):
            return toys.codec().decode(params, z + jnp.roll(z, -1, axis=0))

        return toys.codec()._replace(encode=encode, decode=decode)

    through = [noisy(toys.predictor(), Noise(0.5, behind(level), UNIT)) for level in (0.0, 5.0)]
    key, length = jax.random.key(0), jnp.int32(50 * toys.HOP)
    scores = [t.heads(t.params, WAV, length, key)[0] for t in through]
    assert scores[0] == scores[1]
    carriers = [np.asarray(t.carrier(t.params, WAV, length)) for t in through]
    np.testing.assert_array_equal(*carriers)
    z = toys.codec().encode(toys.codec().params, WAV)
    np.testing.assert_allclose(carriers[0][:50], z[:50] / UNIT.scale, rtol=1e-6)
    assert not carriers[0][50:].any()
    plain = noisy(toys.predictor(), Noise(0.1))
    np.testing.assert_array_equal(plain.carrier(plain.params, WAV, length), dsp.masked(WAV, length))


def test_denoised_hears_the_round_trip_at_any_rate():
    toy, codec = toys.predictor(), toys.codec()
    made = denoised(toy, codec)
    # A predictor of 8 kHz behind a codec of 16 kHz, asked at 24 kHz.
    low = toy._replace(sample_rate=8000, min_samples=100, max_samples=8000)
    other = registry.at_rate(denoised(low, codec), 24000)
    assert (other.sample_rate, other.min_samples, other.max_samples) == (24000, 300, 24000)

    def trip(wav):
        return codec.decode(codec.params, codec.encode(codec.params, wav))

    @jax.jit
    def both(wav, wide):
        heard = trip(dsp.resample(wide, 24000, 16000, length=2400))
        return (
            (made.score(made.params, wav, LENGTH), other.score(other.params, wide, jnp.int32(2400))),
            (toy.score(toy.params, trip(wav), LENGTH), listener(low, 16000)(heard, LENGTH)),
        )

    found, expected = both(WAV, jnp.asarray(toys.speechlike(0.1, 3, 24000)))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_smoothing_follows_the_rate():
    own = toys.predictor()._replace(at_rate=lambda hz: toys.predictor()._replace(sample_rate=hz))
    made = registry.at_rate(smoothed(own, Noise(0.01), draws=3), 24000)
    assert (made.sample_rate, made.name) == (24000, "smoothed(toy,waveform=0.01,draws=3)")
    assert smoothed(toys.predictor(), Noise(0.01)).at_rate is None
    latent = smoothed(own, Noise(0.5, toys.codec(), UNIT), draws=3)
    assert (latent.sample_rate, registry.at_rate(latent, 24000).sample_rate) == (16000, 24000)


@pytest.fixture
def listed(monkeypatch):
    """The toys under names of their own."""
    entry = registry.ENTRIES["nisqa"]._replace(weights="toys:NO_WEIGHTS")
    monkeypatch.setitem(registry.ENTRIES, "toy", entry._replace(make="toys:listed"))
    monkeypatch.setitem(registry.ENTRIES, "toy-codec", entry._replace(kind="codec", make="toys:listed_codec"))
    monkeypatch.setattr(toys, "listed_codec", lambda paths: toys.codec()._replace(name="toy-codec"))


@pytest.mark.parametrize(
    "name",
    [
        "denoised(toy,toy-codec)",
        "denoised(toy,toy-codec,quantised=true)",
        "smoothed(toy,waveform=0.01,draws=31)",
        "smoothed(toy,waveform=0.01,draws=5,percentile=0.9,seed=2)",
        "min(toy,smoothed(denoised(toy,toy-codec),waveform=1e-05,draws=3))",
        "smoothed(mean(toy,toy),waveform=0.5,draws=7)",
    ],
)
def test_a_name_leads_back_to_what_has_it(listed, name):
    made = registry.predictor(name)
    assert made.name == name
    assert made.weights == ({"toy.bin": "0" * 64} if "codec" in name else {})
    assert registry.predictor(f" {name.replace(',', ' , ')}").name == name


def test_by_name_a_latent_is_measured_on_the_demo_speech(listed):
    made, codec = registry.predictor("smoothed(toy,toy-codec=0.3)"), toys.codec()
    assert made.name == "smoothed(toy,toy-codec=0.3,draws=31)" and made.weights == codec.weights
    np.testing.assert_array_equal(made.params[2], demo_statistics(codec).scale)
    assert 0.01 < np.min(made.params[2]) < np.max(made.params[2]) < 1


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("smothed(toy,waveform=1)", "Unknown way to make a predictor of others 'smothed'; did you mean smoothed"),
        ("smoothed(toy)", r"Expected noise in one place, smoothed\(PREDICTOR,waveform=SIGMA\) or"),
        ("smoothed(toy,waveform=1,toy-codec=1)", "Expected noise in one place"),
        ("smoothed(toy,wavefrom=1)", "Unknown option of smoothed 'wavefrom'; did you mean waveform"),
        ("smoothed(toy,0.1)", "got '0.1' where NAME=VALUE should be"),
        ("smoothed(toy,waveform=loud)", "smoothed takes waveform=a number, got 'loud'"),
        ("smoothed(toy,waveform=1,draws=2.5)", "smoothed takes draws=a whole number, got '2.5'"),
        ("smoothed(toy,waveform=1,waveform=2)", "smoothed is given waveform twice"),
        ("smoothed(toy,waveform=0)", "sigma of noise must be a positive number, got 0"),
        ("smoothed(toy,waveform=1,draws=0)", "at least 1 draw, got 0"),
        ("smoothed(toy,waveform=1,seed=4294967296)", "from 0 to 2\\*\\*32 - 1, got 4294967296"),
        ("smoothed(toy,waveform=1,percentile=50)", "percentile of a smoothed predictor lies between 0 and 1, got 50"),
        ("denoised(toy)", r"Expected denoised\(PREDICTOR,CODEC\) or"),
        ("denoised(toy,toy-codes)", "Unknown codec 'toy-codes'; did you mean toy-codec"),
        ("denoised(toy,toy-codec,quantised=1)", "denoised takes quantised=true or false, got '1'"),
        ("min(toy,)", "has an empty place"),
        ("min(toy),(toy)", "The parentheses of .* do not match"),
        ("min(toy,denoised(toy)", "The parentheses of .* do not match"),
    ],
)
def test_refusals(listed, name, reason):
    with pytest.raises(ValueError, match=reason):
        registry.predictor(name)


def test_noise_in_a_latent_needs_a_fixed_unit():
    with pytest.raises(ValueError, match="latent of toy needs its statistics"):
        smoothed(toys.predictor(), Noise(0.5, toys.codec()))
