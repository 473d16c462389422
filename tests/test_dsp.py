import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.signal import resample_poly

from jaxhack import dsp

RATES = [(16000, 10000), (44100, 16000), (16000, 48000), (48000, 16000), (24000, 10000), (22050, 24000)]


def noise(samples, seed=0):
    return (0.1 * np.random.default_rng(seed).standard_normal(samples)).astype(np.float32)


@pytest.mark.parametrize("samples", [1, 100, 5003])
@pytest.mark.parametrize("rates", RATES)
def test_resample_is_scipys_polyphase_filter(rates, samples):
    wav = noise(samples)
    up, down = dsp.ratio(*rates)
    expected = resample_poly(wav.astype(np.float64), up, down)
    got = jax.jit(dsp.resample, static_argnums=(1, 2))(wav, *rates)
    assert got.shape == expected.shape and got.dtype == jnp.float32
    np.testing.assert_allclose(got, expected, atol=5e-7)


def test_own_filter_and_equal_rates():
    wav = noise(3000)
    taps = dsp.octave_filter(16000, 10000)
    np.testing.assert_allclose(
        dsp.resample(wav, 16000, 10000, window=taps),
        resample_poly(wav.astype(np.float64), 5, 8, window=taps),
        atol=5e-7,
    )
    assert dsp.resample(wav, 16000, 16000) is wav


def test_octave_filter_is_the_one_estoi_is_defined_with():
    utils = pytest.importorskip("pystoi.utils")
    wav = noise(8000)
    for rate in (8000, 16000, 44100):
        np.testing.assert_allclose(
            dsp.resample(wav, rate, 10000, window=dsp.octave_filter(rate, 10000)),
            utils.resample_oct(wav.astype(np.float64), 10000, rate),
            atol=5e-7,
        )


@pytest.mark.parametrize("rates", RATES[:2])
def test_length_makes_padding_harmless(rates):
    alone = dsp.resample(noise(3001), *rates)
    padded = np.full(5000, 9.0, np.float32)  # what lies after `length` isn't read
    padded[:3001] = noise(3001)
    batch = jnp.stack([jnp.asarray(padded), jnp.asarray(noise(5000, 1))])
    got = jax.vmap(lambda wav, n: dsp.resample(wav, *rates, length=n))(batch, jnp.array([3001, 5000]))[0]
    assert int(dsp.resampled_length(3001, *rates)) == len(alone)
    np.testing.assert_allclose(got[: len(alone)], alone, atol=1e-6)
    assert not np.any(got[len(alone) :])


def test_resampled_length_of_a_long_file():
    assert int(dsp.resampled_length(2_000_000_000, 48000, 44100)) == 1_837_500_000


def test_resampling_is_linear_so_its_gradient_is_its_transpose():
    wav, probe = noise(700), noise(438, 1)
    gradient = jax.grad(lambda x: jnp.vdot(dsp.resample(x, 16000, 10000), probe))(wav)
    assert float(jnp.vdot(gradient, wav)) == pytest.approx(
        float(jnp.vdot(dsp.resample(wav, 16000, 10000), probe)), rel=1e-4
    )


@pytest.mark.parametrize("rates", [(0, 16000), (16000, -1), (16000.5, 8000), (True, 8000)])
def test_refuses_impossible_rates(rates):
    with pytest.raises(ValueError, match="positive whole number"):
        dsp.resample(noise(100), *rates)


def test_refuses_batches_and_ratios_too_fine_to_compile():
    with pytest.raises(ValueError, match="one waveform"):
        dsp.resample(np.zeros((2, 100), np.float32), 16000, 8000)
    with pytest.raises(ValueError, match="too fine"):
        dsp.resample(noise(100), 16000, 15999)


def test_as_saved_rounds_clips_and_never_wraps():
    step = 1 / 32768
    wav = np.array([0.0, 0.4 * step, 0.6 * step, -0.6 * step, 0.9999, 1.0, 7.0, -1.0, -7.0], np.float32)
    expected = np.array([0, 0, 1, -1, 32765, 32767, 32767, -32768, -32768]) / 32768
    np.testing.assert_array_equal(dsp.as_saved(wav), expected.astype(np.float32))
    inside = np.clip(noise(20000) * 4, -1, 1 - step)
    assert np.abs(np.asarray(dsp.as_saved(inside)) - inside).max() <= 0.5 * step
    np.testing.assert_array_equal(dsp.as_saved(dsp.as_saved(inside)), dsp.as_saved(inside))
    assert np.isnan(dsp.as_saved(jnp.array([jnp.nan]))[0])


def test_as_saved_is_what_a_file_gives_back(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    wav = noise(4000) * 5
    pcm = np.asarray(dsp.as_saved(wav) * 32768).astype(np.int16)
    soundfile.write(tmp_path / "a.wav", pcm, 16000, subtype="PCM_16")
    np.testing.assert_array_equal(soundfile.read(tmp_path / "a.wav", dtype="float32")[0], dsp.as_saved(wav))
