"""NISQA: equal to the official implementation, whatever the padding; strict about its weights."""

import warnings

import jax
import jax.numpy as jnp
import librosa
import numpy as np
import pytest
import soundfile
import soxr
from parity import largest

from benchmarks import official as published
from ports import nisqa as port
from ports.nisqa import NISQA_TTS_WEIGHTS, NISQA_WEIGHTS, nisqa, nisqa_tts
from ports.nisqa_model import log_mel

CLIPS = (  # clean, noisy and coded speech
    "speech/en_010_vctk_p232_p232_015.flac",
    "speech/en_011_vctk_p232_p232_015_noisy.flac",
    "speech/de_524_uh_de_0.flac",
    "degraded/de_229_pv_leopard_de_test_de__noise_5dB.flac",
    "degraded/en_183_ljspeech_LJ001_0006__opus_6.flac",
    "degraded/en_215_ps_cards_005__codec2_1600.flac",
)
BUCKET = 48000  # samples at 16 kHz that test clips are padded to: one compilation
FRAMES = 110  # of every call that isn't jitted: its operations are compiled once


@pytest.fixture(scope="module")
def paths(shared):
    return {file: shared / "models/nisqa" / file for file in ("nisqa.tar", "nisqa_tts.tar", "nisqa_mos_only.tar")}


@pytest.fixture(scope="module")
def predictor(paths):
    return nisqa(paths)


@pytest.fixture(scope="module")
def score(predictor):
    """Heads of a clip [T] at 16 kHz, padded to one length."""
    return scorer(predictor)


def scorer(predictor):
    run = jax.jit(predictor.heads)
    return lambda wav: np.asarray(run(predictor.params, pad(wav, BUCKET), jnp.int32(len(wav))))


def pad(wav, size):
    return jnp.asarray(np.pad(wav, (0, size - len(wav))), jnp.float32)


def read(path, seconds=2.9):
    return soundfile.read(path, dtype="float32")[0][8000:][: int(16000 * seconds)]


def write(path, wav, rate=16000):
    soundfile.write(path, wav, rate, subtype="FLOAT")
    return path


@pytest.fixture(scope="module")
def official():
    """The published package: checkpoint -> (files -> heads)."""
    pytest.importorskip("torch")
    pytest.importorskip("nisqa", reason="needs the official package: pip install nisqa")
    return published.nisqa


# Parity


@pytest.mark.parametrize("factory", [nisqa, nisqa_tts])
@pytest.mark.filterwarnings("ignore:Empty filters")
def test_equals_the_official_scores_at_16_khz(factory, paths, shared, official, tmp_path, parity):
    ours, theirs = scorer(factory(paths)), official(paths[f"{factory.__name__}.tar"])
    seen = []
    for clip in CLIPS:
        wav = read(shared / clip, seconds=2.9 if factory is nisqa else 1.4)
        expected = theirs([write(tmp_path / "clip.wav", wav)])[0]
        got = ours(wav)
        parity(factory.__name__.replace("_", "-"), "every head, 16 kHz", largest(got, expected), 1e-4, "MOS")
        seen.append(float(expected[0]))
    assert max(seen) - min(seen) > 1.0  # the clips span qualities


@pytest.mark.parametrize("factory", [nisqa, nisqa_tts])
@pytest.mark.filterwarnings("ignore:Empty filters")
def test_equals_the_official_scores_at_other_rates(factory, paths, shared, official, tmp_path, parity):
    theirs = official(paths[f"{factory.__name__}.tar"])
    rates = (8000, 22050, 24000, 44100, 48000) if factory is nisqa else (8000, 48000)
    for rate, clip in zip(rates, CLIPS[1:], strict=False):
        predictor = factory(paths).at_rate(rate)
        assert predictor.sample_rate == rate
        wav = soxr.resample(read(shared / clip, seconds=1.0), 16000, rate)
        expected = theirs([write(tmp_path / "clip.wav", wav, rate)])[0]
        # Not jitted: with the same number of frames all rates share their compiled operations.
        got = predictor.heads(predictor.params, pad(wav, FRAMES * int(rate * 0.01)), jnp.int32(len(wav)))
        parity(
            factory.__name__.replace("_", "-"),
            f"every head, {rate / 1000:g} kHz",
            largest(got, expected),
            1e-4,
            "MOS",
        )


def test_spectrogram_equals_librosa(shared):
    wav = read(shared / CLIPS[3])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Empty filters")
        mel = librosa.feature.melspectrogram(
            y=wav, sr=16000, n_fft=4096, hop_length=160, win_length=320, pad_mode="reflect", power=1.0,
            n_mels=48, fmax=20000,
        )  # fmt: skip
    expected = librosa.amplitude_to_db(mel, ref=1.0, amin=1e-4, top_db=80.0).T
    got = log_mel(pad(wav, BUCKET), jnp.int32(len(wav)), sample_rate=16000, fmax=20000.0)
    np.testing.assert_allclose(got[: len(expected)], expected, atol=2e-3)  # dB
    assert (expected[:, 38:] == expected.min()).all()  # the bands above 8 kHz lie on the floor


def test_known_scores(shared, score):
    """Scores of the official package, so that the port is held to them where the package is absent."""
    np.testing.assert_allclose(score(read(shared / CLIPS[3])), KNOWN, atol=1e-3)


KNOWN = [2.4571, 1.7755, 3.9431, 3.1957, 3.1856]

# One utterance, any padding


@pytest.mark.quick_compilation
def test_padding_changes_nothing(shared, predictor, score):
    quiet, loud = read(shared / CLIPS[0])[: FRAMES * 160 + 63], read(shared / CLIPS[4])
    batch = jnp.stack([pad(quiet, BUCKET), pad(loud, BUCKET)])
    lengths = jnp.array([len(quiet), len(loud)], jnp.int32)
    together = jax.jit(jax.vmap(predictor.heads, (None, 0, 0)))(predictor.params, batch, lengths)
    np.testing.assert_allclose(together, [score(quiet), score(loud)], atol=1e-5)
    alone = predictor.heads(predictor.params, jnp.asarray(quiet), jnp.int32(len(quiet)))  # without any padding
    np.testing.assert_allclose(together[0], alone, atol=1e-5)
    assert abs(float(together[1, 0] - together[0, 0])) > 0.1


def test_shortest_and_longest(predictor, score):
    assert (predictor.min_samples, predictor.max_samples) == (14 * 160, 5214 * 160 - 1)
    noise = np.random.default_rng(0).normal(0, 0.1, 4000).astype(np.float32)
    assert np.isfinite(score(noise[: predictor.min_samples])).all()
    assert np.isnan(score(noise[: predictor.min_samples - 1])).all()
    assert np.isnan(score(noise[:0])).all()
    for samples in (0, 1, 2240):  # padded no further than the clip
        heads = jax.eval_shape(predictor.heads, predictor.params, noise[:samples], jnp.int32(samples))
        assert heads.shape == (5,)


@pytest.mark.quick_compilation
def test_gradient_is_finite_on_silence_and_on_silent_frames(predictor):
    slope = jax.jit(jax.value_and_grad(lambda wav, n: predictor.score(predictor.params, wav, n)))
    noise = np.random.default_rng(0).normal(0, 0.1, 8000).astype(np.float32)
    noise[2000:6000] = 0
    for wav, length in ((np.zeros(8000), 8000), (noise, 8000), (noise[:5000], 5000), (noise[:100], 100)):
        score, gradient = slope(pad(wav, 8000), jnp.int32(length))
        assert np.isfinite(gradient).all()
        assert np.isfinite(score) == (length >= predictor.min_samples)
        assert np.any(gradient) == (np.any(wav) and np.isfinite(score))
        assert not np.any(gradient[length:])
    # along the waveform itself, the gradient is what a small change of its gain does
    (_, gradient), step = slope(pad(noise, 8000), jnp.int32(8000)), 0.01
    scores = [slope(pad(noise * (1 + h), 8000), jnp.int32(8000))[0] for h in (step, -step)]
    np.testing.assert_allclose(gradient @ noise, (scores[0] - scores[1]) / (2 * step), rtol=0.1)


@pytest.mark.parametrize(("name", "bound"), [("nisqa", 0.05), ("nisqa-tts", 0.05)])
def test_bfloat16_is_near(name, bound, paths, shared):
    """Largest change of a head over ten clips, clean and noisy: 0.018 MOS (of mos: 0.0095), NISQA-TTS 0.0115."""
    factory, wav = {"nisqa": nisqa, "nisqa-tts": nisqa_tts}[name], read(shared / CLIPS[1])
    got, expected = (scorer(factory(paths, dtype=dtype))(wav) for dtype in (jnp.bfloat16, jnp.float32))
    assert got.dtype == np.float32 and 0 < np.abs(got - expected).max() < bound
    assert np.all(got != expected)


# Weights


def test_what_a_predictor_says_of_itself(predictor, paths):
    assert predictor.head_names == ("mos", "noisiness", "discontinuity", "coloration", "loudness")
    assert predictor.weights == {"nisqa.tar": NISQA_WEIGHTS[0].sha256}
    for weight in (*NISQA_WEIGHTS, *NISQA_TTS_WEIGHTS):
        assert paths[weight.file].stat().st_size == weight.size
        assert weight.source.startswith("https://github.com/gabrielmittag/NISQA/raw/")
    with pytest.raises(ValueError, match="sample rate of 8000 to 192000 Hz, got 0"):
        predictor.at_rate(0)


@pytest.mark.parametrize("file", ["nisqa_tts.tar", "nisqa_mos_only.tar"])
def test_a_sibling_is_refused(file, paths):
    with pytest.raises(ValueError, match=rf"{file} is another model.*'NISQA'"):
        nisqa({"nisqa.tar": paths[file]})


def test_random_weights_load_and_score(tmp_path):
    """The loader and the networks, where the published weights are absent."""
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    for factory, shapes, args in (
        (nisqa, port._shapes(), {"model": "NISQA_DIM", "ms_fmax": 20000, "cnn_model": "adapt"}),
        (nisqa_tts, port._shapes_tts(), {"model": "NISQA", "ms_fmax": 8000, "cnn_model": "standard"}),
    ):
        state = {k: torch.tensor(random.uniform(0.0, 0.1, v), dtype=torch.float32) for k, v in shapes.items()}
        state["cnn.model.bn1.num_batches_tracked"] = torch.tensor(3)
        file = f"{factory.__name__}.tar"
        torch.save({"args": args, "model_state_dict": state}, tmp_path / file)
        predictor = factory({file: tmp_path / file})
        heads = predictor.heads(predictor.params, jnp.ones(FRAMES * 160), jnp.int32(FRAMES * 160))
        assert heads.shape == (len(predictor.head_names),) and np.isfinite(heads).all()
        del state["cnn.model.conv6.bias"]
        state["cnn.model.conv2.bias"] = torch.zeros(7)
        torch.save({"args": args, "model_state_dict": state}, tmp_path / file)
        with pytest.raises(
            ValueError, match=r"missing cnn\.model\.conv6\.bias; misshapen cnn\.model\.conv2\.bias \(7,\)"
        ):
            factory({file: tmp_path / file})
