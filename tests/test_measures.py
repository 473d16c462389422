"""ESTOI, SI-SDR and the panel: parity, edge cases, padding, batching, gradients."""

import csv
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxhack import dsp
from jaxhack.detect import Rule
from jaxhack.measures import default_panel, estoi, evaluate, rules, si_sdr
from jaxhack.measures.si_sdr import CAP

RATE = 16000
ESTOI = jax.jit(estoi, static_argnames="sample_rate")
SI_SDR = jax.jit(si_sdr, static_argnames="zero_mean")
PANEL = default_panel(RATE)
EVALUATE = jax.jit(functools.partial(evaluate, PANEL))
BUCKET = 8 * RATE
GRADIENTS = [
    jax.jit(jax.grad(functools.partial(fn, **options), (0, 1)))
    for fn, options in (
        (estoi, {"sample_rate": RATE}),
        (si_sdr, {}),
        (si_sdr, {"zero_mean": True}),
    )
]


def noise(samples, seed=0):
    return (0.1 * np.random.default_rng(seed).standard_normal(samples)).astype(np.float32)


def padded(wav, samples=BUCKET, fill=0.0):
    return np.concatenate([wav, np.full(samples - len(wav), fill, np.float32)])


@pytest.fixture(scope="module")
def pairs(shared):
    """Real (reference, estimate) pairs: every condition that is sample-aligned, several speakers."""
    soundfile = pytest.importorskip("soundfile")
    with open(shared / "degraded" / "manifest.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["condition"] != "codec2_1600"]
    found = []
    for row in rows[::14]:
        clean = soundfile.read(shared / "speech" / row["clean_file"], dtype="float32")[0]
        degraded = soundfile.read(shared / "degraded" / row["file"], dtype="float32")[0]
        length = min(len(clean), len(degraded), BUCKET)
        found.append((clean[:length], degraded[:length]))
    assert len(found) >= 10
    return found


# Parity


def test_estoi_is_pystois_on_real_speech(pairs):
    pystoi = pytest.importorskip("pystoi")
    for reference, estimate in pairs:
        expected = pystoi.stoi(reference.astype(float), estimate.astype(float), RATE, extended=True)
        got = ESTOI(padded(reference), padded(estimate), len(reference), sample_rate=RATE)
        assert 0.2 < expected < 1
        assert float(got) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("rate", [8000, 10000, 44100])
def test_estoi_is_pystois_at_other_rates(pairs, rate):
    pystoi = pytest.importorskip("pystoi")
    reference, estimate = (np.asarray(dsp.resample(wav[: 2 * RATE], RATE, rate)) for wav in pairs[0])
    expected = pystoi.stoi(reference.astype(float), estimate.astype(float), rate, extended=True)
    got = ESTOI(reference, estimate, len(reference), sample_rate=rate)
    assert float(got) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("zero_mean", [False, True])
def test_si_sdr_is_the_textbooks_on_real_speech(pairs, zero_mean):
    for reference, estimate in pairs:
        t, p = reference.astype(np.float64), estimate.astype(np.float64) + 0.01
        if zero_mean:
            t, p = t - t.mean(), p - p.mean()
        target = (p @ t) / (t @ t) * t
        expected = 10 * np.log10((target @ target) / ((target - p) @ (target - p)))
        got = SI_SDR(padded(reference), padded(estimate + np.float32(0.01)), len(reference), zero_mean=zero_mean)
        assert float(got) == pytest.approx(expected, abs=1e-3)


def test_estoi_falls_with_noise_and_ignores_level(pairs):
    clean = padded(pairs[0][0])
    scores = [float(ESTOI(clean, clean + g * noise(BUCKET), BUCKET, sample_rate=RATE)) for g in (0.0, 0.03, 0.3)]
    assert scores[0] == pytest.approx(1, abs=1e-5) and scores[0] > scores[1] + 0.02 > scores[2] + 0.1
    quiet = ESTOI(clean * 1e-3, clean * 1e-4, len(pairs[0][0]), sample_rate=RATE)
    assert float(quiet) == pytest.approx(1, abs=1e-5)


# Undefined is NaN


@pytest.mark.parametrize("samples", [0, 1, 100, 743, 3200, 6080, 6553, 6554, 6720, 32000])
def test_short_clips_are_undefined_below_the_stated_minimum(samples):
    wav = noise(samples)
    in_bucket = EVALUATE(padded(wav), padded(wav), samples)
    alone = EVALUATE(wav, wav, samples) if samples < 6600 else in_bucket
    for name, minimum in (("estoi", 6554), ("si_sdr", 2)):
        assert [m.min_samples for m in PANEL if m.name == name] == [minimum]
        assert np.isfinite(alone[name]) == np.isfinite(in_bucket[name]) == (samples >= minimum)
    if samples >= 6554:
        assert float(alone["estoi"]) == pytest.approx(1, abs=1e-5)


def test_too_little_speech_in_a_long_clip_is_undefined():
    wav = np.zeros(BUCKET, np.float32)
    wav[:6000] = noise(6000)  # silence after it isn't padding, but it is dropped all the same
    assert np.isnan(ESTOI(wav, wav, BUCKET, sample_rate=RATE))


def test_silence_is_undefined():
    wav, zeros = noise(BUCKET), np.zeros(BUCKET, np.float32)
    for reference, estimate in ((zeros, wav), (wav, zeros), (zeros, zeros)):
        values = EVALUATE(reference, estimate, BUCKET)
        assert np.isnan(values["estoi"]) and np.isnan(values["si_sdr"])


def test_a_dropout_in_the_estimate_is_defined_and_repeatable(pairs):
    reference, estimate = (padded(wav) for wav in pairs[0])
    estimate[16000:32000] = 0
    first, second = (float(ESTOI(reference, estimate, len(pairs[0][0]), sample_rate=RATE)) for _ in "ab")
    assert first == second and 0 < first < 0.95


def test_si_sdr_of_degenerate_ratios():
    x, zeros = noise(RATE), np.zeros(RATE, np.float32)
    for estimate in (x, 2 * x, -x):
        assert float(SI_SDR(x, estimate, RATE)) == CAP
    assert np.isnan(SI_SDR(zeros, x, RATE)) and np.isnan(SI_SDR(x, zeros, RATE))
    assert float(SI_SDR(x, x + 0.05, RATE)) == pytest.approx(6.0, abs=0.1)
    assert float(SI_SDR(x, x + 0.05, RATE, zero_mean=True)) == CAP
    assert np.isnan(SI_SDR(zeros + 0.1, x, RATE, zero_mean=True))
    orthogonal = np.tile(np.float32([1, 0]), 8), np.tile(np.float32([0, 1]), 8)
    assert float(SI_SDR(*orthogonal, 16)) == -CAP


# Padding, batches, gradients


def test_padding_is_never_read(pairs):
    for reference, estimate in pairs[:2]:
        length = len(reference)
        alone = EVALUATE(reference, estimate, length)
        bucketed = EVALUATE(padded(reference, fill=3.0), padded(estimate, fill=-2.0), length)
        for name in alone:
            assert float(bucketed[name]) == pytest.approx(float(alone[name]), abs=1e-4)


def test_a_batch_is_its_members_one_by_one(pairs):
    chosen = [*pairs[:3], (np.zeros(BUCKET, np.float32), noise(BUCKET))]
    references, estimates = (jnp.stack([padded(pair[i]) for pair in chosen]) for i in (0, 1))
    lengths = jnp.array([len(pair[0]) for pair in chosen])
    batch = jax.jit(jax.vmap(functools.partial(evaluate, PANEL)))(references, estimates, lengths)
    for i in range(4):
        single = EVALUATE(references[i], estimates[i], lengths[i])
        for name in single:
            np.testing.assert_allclose(batch[name][i], single[name], atol=1e-4)
    assert np.isnan(batch["estoi"][3]) and np.isfinite(batch["estoi"][:3]).all()


def test_segments_in_chunks_are_the_same_segments(pairs):
    """Beyond 26 s the segments go through in chunks; the mean over them must not notice."""
    pystoi = pytest.importorskip("pystoi")
    reference, estimate = (np.tile(wav, 30)[: 30 * RATE] for wav in pairs[1])
    assert len(reference) == 30 * RATE
    expected = pystoi.stoi(reference.astype(float), estimate.astype(float), RATE, extended=True)
    got = ESTOI(reference, estimate, len(reference), sample_rate=RATE)
    assert float(got) == pytest.approx(expected, abs=1e-5)


def gradient_cases():
    x, zeros = noise(BUCKET), np.zeros(BUCKET, np.float32)
    dropout, half = noise(BUCKET, 1), x.copy()
    dropout[20000:60000] = 0
    half[: BUCKET // 2] = 0
    constant = zeros + np.float32(0.1)
    return {
        "noise": (x, noise(BUCKET, 1)), "copy": (x, x), "negative": (x, -x), "dropout": (x, dropout),
        "half": (half, x), "silent reference": (zeros, x), "silent estimate": (x, zeros),
        "constant": (x, constant), "constant reference": (constant, x),
    }  # fmt: skip


@pytest.mark.parametrize("name", gradient_cases())
def test_gradients_are_finite(name):
    reference, estimate = gradient_cases()[name]
    for gradient in GRADIENTS:
        for length in (BUCKET, 0):
            for side in gradient(reference, estimate, length):
                assert np.isfinite(side).all()


def test_gradients_climb(pairs):
    """Following its gradient raises each measure, by what the gradient promises."""
    reference, estimate = (jnp.asarray(padded(wav)) for wav in pairs[0])
    length = len(pairs[0][0])
    for fn, gradients in zip((functools.partial(ESTOI, sample_rate=RATE), SI_SDR), GRADIENTS, strict=False):
        value, gradient = fn(reference, estimate, length), gradients(reference, estimate, length)[1]
        step = 1e-3 / jnp.linalg.norm(gradient) * (0.05 * jnp.linalg.norm(estimate))
        moved = fn(reference, estimate + step * gradient, length) - value
        promised = float(step * jnp.sum(gradient**2))
        assert float(moved) == pytest.approx(promised, rel=0.2) and promised > 1e-5
        assert not np.any(gradient[length:])


# The panel


def test_panel_names_rules_and_refusals():
    assert rules(PANEL) == {"estoi": Rule(0.02), "si_sdr": Rule(1.0, saturation=40.0)}
    assert default_panel(24000)[0].min_samples == 9831
    wav = noise(8000)
    with pytest.raises(ValueError, match="of one length"):
        evaluate(PANEL, wav, wav[:-1], 8000)
    with pytest.raises(ValueError, match="different names"):
        evaluate((PANEL[0], PANEL[0]), wav, wav, 8000)
