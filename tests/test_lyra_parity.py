"""The Lyra port beside the TensorFlow Lite interpreter running the published files, on real speech.

The originals compute their middle layers in 8 bits and the port does not, so they agree closely, not exactly.
"""

import jax
import numpy as np
import pytest
import soundfile
from parity import differing, largest

from benchmarks import official
from ports.lyra import LYRA_WEIGHTS, codes, lyra

interpreter = pytest.importorskip("ai_edge_litert.interpreter", reason="needs ai-edge-litert")
CLIPS = (
    "en_000_vctk_p232_p232_003",
    "en_001_vctk_p232_p232_003_noisy",
    "de_229_pv_leopard_de_test_de",
    "cs_489_fillets_cs_m_bar_m_zmeni",
)
LENGTH = 48_000  # samples: 150 frames


@pytest.fixture(scope="module")
def folder(shared):
    return shared / "models/lyra_v2"


@pytest.fixture(scope="module")
def codec(folder):
    return lyra({weight.file: folder / weight.file for weight in LYRA_WEIGHTS})


@pytest.fixture(scope="module")
def wavs(shared):
    wavs = [soundfile.read(shared / f"speech/{clip}.flac", dtype="float32")[0][:LENGTH] for clip in CLIPS]
    assert [len(wav) for wav in wavs] == [LENGTH] * len(CLIPS)
    return wavs


@pytest.fixture(scope="module")
def latents(folder, wavs):
    encode = official.streaming_graph(folder / "soundstream_encoder.tflite")
    return [encode(wav.reshape(-1, 320)) for wav in wavs]


@pytest.fixture(scope="module")
def outputs(folder, latents):
    decode = official.streaming_graph(folder / "lyragan.tflite")
    return [decode(z).ravel() for z in latents]


def test_encoder(codec, wavs, latents, parity):
    encode = jax.jit(codec.encode)
    ours = np.concatenate([encode(codec.params, wav) for wav in wavs])
    theirs = np.concatenate(latents)
    correlation = np.array([np.corrcoef(a, b)[0, 1] for a, b in zip(ours.T, theirs.T, strict=True)])
    parity("lyra", "latent, 1 − correlation of the worst channel", 1 - correlation.min(), 0.02)
    assert (correlation >= 0.99).sum() >= 60


def test_decoder(codec, latents, outputs, parity):
    decode = jax.jit(codec.decode)
    for z, theirs in zip(latents, outputs, strict=True):
        ours, theirs = np.asarray(decode(codec.params, z), np.float64), theirs.astype(np.float64)
        target = theirs * (ours @ theirs) / (theirs @ theirs)
        distortion = -10 * np.log10((target @ target) / np.sum((ours - target) ** 2))
        parity("lyra", "audio, −SI-SDR", distortion, -20, "dB")


def test_sound(codec, wavs, outputs, parity):
    """The same quality to a judge's ear: DNSMOS OVRL of both round trips, each repeated to one window."""
    dnsmos = pytest.importorskip("speechmos.dnsmos", reason="needs speechmos")
    round_trip = jax.jit(lambda params, wav: codec.decode(params, codec.encode(params, wav)))
    difference = []
    for wav, theirs in zip(wavs, outputs, strict=True):
        ours = np.asarray(round_trip(codec.params, wav))
        windows = [np.resize(np.clip(y, -1, 1), 144_160) for y in (ours, theirs)]
        scores = [dnsmos.run(window, 16000)["ovrl_mos"] for window in windows]
        difference.append(scores[0] - scores[1])
    parity("lyra", "DNSMOS OVRL of the round trip, mean", abs(np.mean(difference)), 0.05, "MOS")


@pytest.mark.parametrize("stages", [16, 30, 46])
def test_quantiser(codec, folder, latents, stages, parity):
    z = latents[0]
    graph = interpreter.Interpreter(str(folder / "quantizer.tflite"))
    encode, decode = graph.get_signature_runner("encode"), graph.get_signature_runner("decode")
    their_codes = [encode(input_frames=row[None, None], num_quantizers=np.int32(stages))["output_0"] for row in z]
    theirs = np.array([decode(encoding_indices=index)["output_0"].ravel() for index in their_codes])
    their_codes = np.array(their_codes)[:, :, 0, 0]
    ours = np.asarray(jax.jit(codes, static_argnums=2)(codec.params, z, stages))
    assert np.all(their_codes[:, stages:] == -1)
    parity("lyra", "codes, share that differs", differing(ours, their_codes[:, :stages]), 0.001)
    z_q = jax.jit(codec.quantise, static_argnums=2)(codec.params, z, stages)
    same = np.all(ours == their_codes[:, :stages], axis=1)
    parity("lyra", "quantised latent", largest(np.asarray(z_q)[same], theirs[same]), 1e-4)
    assert same.mean() >= 0.99
