"""The speaker encoder: equal to the official one, whatever the padding; strict about its weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import soundfile
from parity import largest

import jaxhack as jh
from benchmarks import official
from ports.ge2e import COVERED, GE2E_WEIGHTS, HOP, MIN_SAMPLES, STEP, ge2e

CLIPS = {  # the same voice twice, noisy, and others
    "de_229": "speech/de_229_pv_leopard_de_test_de.flac",
    "noisy": "degraded/de_229_pv_leopard_de_test_de__noise_5dB.flac",
    "en_183": "degraded/en_183_ljspeech_LJ001_0006__opus_6.flac",
    "de_396": "speech/de_396_voxforge_1337ad_de11_034.flac",
    "de_397": "speech/de_397_voxforge_1337ad_de11_035.flac",
}
BUCKET = 64_000  # samples that clips are padded to: one compilation
FILE = GE2E_WEIGHTS[0].file


@pytest.fixture(scope="module")
def path():
    found = jh.weights.find(GE2E_WEIGHTS[0])
    return found or pytest.skip("needs the weights of the package resemblyzer, which are absent")


@pytest.fixture(scope="module")
def embed(path):
    """``wav [L]`` -> its embedding, padded."""
    made = ge2e({FILE: path})
    run = jax.jit(made.embed)
    return lambda wav: np.asarray(run(made.params, np.pad(wav, (0, BUCKET - len(wav))), len(wav)))


@pytest.fixture(scope="module")
def encoder():
    pytest.importorskip("torch")
    try:
        return official.ge2e()
    except ImportError:
        pytest.skip("needs the official resemblyzer package")


def clip(shared, name):
    wav, rate = soundfile.read(shared / CLIPS[name], dtype="float32", frames=BUCKET)
    assert rate == 16000
    return wav


@pytest.mark.parametrize("name", CLIPS)
def test_equals_the_official_embedding_of_speech(embed, encoder, shared, name, parity):
    wav = clip(shared, name)
    parity("ge2e", "embedding of speech", largest(embed(wav), encoder.embed_utterance(wav)), 1e-4)


def test_partial_utterances_are_the_official_ones(encoder):
    for samples in range(1, 400_000, 37):
        ours = 1 + max(samples - COVERED, 0) // (STEP * HOP)
        assert ours == len(encoder.compute_partial_slices(samples, 1.3, 0.75)[0])


def test_equals_the_official_embedding_at_every_edge(embed, encoder, parity):
    noise = np.random.default_rng(0).normal(0, 0.1, BUCKET).astype(np.float32)
    edge = COVERED + STEP * HOP
    lengths = (MIN_SAMPLES, 16_000, 25_600, edge - 1, edge, edge + 6000, BUCKET)
    for wav in (*(noise[:samples] for samples in lengths), np.zeros(16_000, np.float32)):
        parity("ge2e", "embedding of edge cases", largest(embed(wav), encoder.embed_utterance(wav)), 1e-4)
    assert np.isnan(embed(noise[: MIN_SAMPLES - 1])).all()


def test_bfloat16_is_near(embed, path, shared):
    """Over ten clips, clean, noisy and coded, the cosine is below 1 by 3.4e-5 at most."""
    made, wav = ge2e({FILE: path}, dtype=jnp.bfloat16), clip(shared, "noisy")
    got = np.asarray(jax.jit(made.embed)(made.params, np.pad(wav, (0, BUCKET - len(wav))), len(wav)))
    assert got.dtype == np.float32 and largest(got, embed(wav)) > 1e-5 and 1 - got @ embed(wav) < 2e-4


def test_a_voice_is_nearer_to_itself(embed, shared):
    near = embed(clip(shared, "de_396")) @ embed(clip(shared, "de_397"))
    far = max(embed(clip(shared, "de_396")) @ embed(clip(shared, other)) for other in ("de_229", "en_183"))
    assert near > far + 0.1


def test_foreign_files_are_refused(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"weights": torch.zeros(1)}, tmp_path / FILE)
    with pytest.raises(ValueError, match="no 'model_state'"):
        ge2e({FILE: tmp_path / FILE})
    torch.save({"model_state": {"linear.bias": torch.zeros(1)}}, tmp_path / FILE)
    with pytest.raises(ValueError, match=r"missing linear\.weight.*misshapen linear\.bias"):
        ge2e({FILE: tmp_path / FILE})


def test_is_in_the_registry(path):
    made = jh.embedder("ge2e")
    assert (made.name, made.size, made.weights) == ("ge2e", 256, {FILE: GE2E_WEIGHTS[0].sha256})
    assert jh.embedder(made) is made and jh.registry.names("embedder") == ["ge2e"]
    with pytest.raises(ValueError, match="'ge2e' is an embedder, not a predictor"):
        jh.predictor("ge2e")
