"""The EnCodec ports against the official package with random weights, which come through its checkpoints.

Most tests run narrow models; the full-size one shows the names and shapes of the published files.
"""

import functools
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from ports import encodec as port

pytestmark = pytest.mark.quick_compilation

SMALL = {"filters": 4, "dimension": 16, "entries": 32}
CAUSAL = port.ENCODEC_24KHZ._replace(**SMALL)
STEREO = port.ENCODEC_48KHZ._replace(**SMALL)
HOP = 320


@pytest.fixture(scope="module")
def official():
    """The official package, whose import of torchaudio only serves resampling."""
    pytest.importorskip("einops")
    with pytest.MonkeyPatch.context() as patch:
        if "torchaudio" not in sys.modules:
            patch.setitem(sys.modules, "torchaudio", types.ModuleType("torchaudio"))
        return pytest.importorskip("encodec", reason="needs the official package: pip install --no-deps encodec")


def build(official, config, seed=0):
    """The official model of a config, weights from a fixed seed."""
    norm = "weight_norm" if config.causal else "time_group_norm"
    shared = {
        "channels": config.audio,
        "norm": norm,
        "causal": config.causal,
        "dimension": config.dimension,
        "n_filters": config.filters,
    }
    torch.manual_seed(seed)
    quantizer = official.quantization.ResidualVectorQuantizer(config.dimension, max(config.stages), config.entries)
    model = official.EncodecModel(
        official.modules.SEANetEncoder(**shared),
        official.modules.SEANetDecoder(**shared),
        quantizer,
        [1.0],
        config.sample_rate,
        config.audio,
        normalize=not config.causal,
        segment=1.0 if config.segment else None,
    ).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("embed"):
                tensor.normal_(std=0.1)
            elif name.endswith(("weight_g", "norm.weight")):
                tensor.mul_(torch.rand_like(tensor) + 0.8)
            elif name.endswith("bias"):
                tensor.normal_(std=0.1)
    return model


def made(official, config, folder):
    model = build(official, config)
    torch.save(model.state_dict(), folder / "model.th")
    return model, port.load(folder / "model.th", config)


@pytest.fixture(scope="module")
def causal(official, tmp_path_factory):
    return made(official, CAUSAL, tmp_path_factory.mktemp("causal"))


@pytest.fixture(scope="module")
def stereo(official, tmp_path_factory):
    return made(official, STEREO, tmp_path_factory.mktemp("stereo"))


@functools.cache
def jitted(function, config):
    return jax.jit(functools.partial(function, config=config), static_argnums=2 if function is port.codes else ())


def speech(samples, seed=0):
    """Noise with a slow envelope."""
    random = np.random.default_rng(seed)
    knots = random.normal(size=samples // 400 + 2)
    envelope = np.abs(np.interp(np.arange(samples), 400 * np.arange(len(knots)), knots))
    return (0.1 * envelope * random.normal(size=samples)).astype(np.float32)


def close(ours, theirs, tolerance):
    theirs = np.asarray(theirs)
    assert np.abs(ours - theirs).max() < tolerance * np.abs(theirs).max()


@torch.no_grad()
def reference(model, wav):
    """Latent with loudness [N, C], and what the original decodes of it [T], of one mono segment."""
    x = torch.tensor(wav).expand(model.channels, -1)[None]
    scale = 1e-8 + x.mean(1).square().mean().sqrt() if model.normalize else torch.ones(())
    z = model.encoder(x / scale)
    out = model.decoder(z)[0] * scale
    z = z[0].T
    if model.normalize:
        z = torch.cat([z, scale.expand(len(z), 1)], 1)
    return z.numpy(), out.mean(0).numpy()


def test_the_causal_model_is_the_original(causal):
    model, params = causal
    wav = speech(40 * HOP)
    z, out = reference(model, wav)
    close(jitted(port.encode, CAUSAL)(params, wav), z, 1e-5)
    close(jitted(port.decode, CAUSAL)(params, z), out, 1e-5)


def test_codes_at_each_bandwidth_are_the_original_s(causal):
    model, params = causal
    z, _ = reference(model, speech(40 * HOP))
    z /= z.std()
    for stages in CAUSAL.stages:
        with torch.no_grad():
            theirs = model.quantizer.vq.encode(torch.tensor(z.T[None]), stages)
            summed = model.quantizer.decode(theirs)[0].T
        np.testing.assert_array_equal(port.codes(params, z, stages, config=CAUSAL), theirs[:, 0].T)
        np.testing.assert_allclose(port.quantise(params, z, stages, config=CAUSAL), summed, atol=1e-5)
    slope = jax.grad(lambda z: jnp.sum(3 * port.quantise(params, z, 4, config=CAUSAL)))(jnp.asarray(z))
    np.testing.assert_array_equal(slope, np.full(z.shape, 3.0))


@pytest.mark.parametrize("samples", [40 * HOP, 40 * HOP - 100, 7 * HOP, 3 * HOP, HOP + 1, 2])
def test_the_non_causal_model_is_the_original_wherever_the_signal_ends(stereo, samples):
    """Padded with zeros all of them, so that one compiled program serves."""
    model, params = stereo
    wav = speech(samples)
    z, out = reference(model, wav)
    padded = jitted(port.encode, STEREO)(params, np.pad(wav, (0, 50 * HOP - samples)))
    close(padded[: len(z)], z, 1e-4)
    assert not np.any(padded[len(z) :])
    audio = jitted(port.decode, STEREO)(params, np.pad(z, ((0, 50 - len(z)), (0, 0))))
    close(audio[: len(out)], out, 1e-4)
    assert not np.any(audio[len(out) :])


def test_seconds_are_coded_apart(stereo):
    model, params = stereo
    config = STEREO._replace(segment=40)
    wav = speech(60 * HOP - 7)
    parts = [reference(model, wav[: 40 * HOP]), reference(model, wav[40 * HOP :])]
    z = port.encode(params, wav, config=config)
    assert z.shape == (60, 17)
    close(z, np.concatenate([p[0] for p in parts]), 1e-4)
    close(port.decode(params, z, config=config), np.concatenate([p[1] for p in parts]), 1e-4)


def test_official_codes_of_a_second(official, stereo):
    """The whole chain of the original's public interface: normalised, encoded, quantised, decoded."""
    model, params = stereo
    wav = speech(40 * HOP)
    model.bandwidth = None
    with torch.no_grad():
        ((theirs, scale),) = model.encode(torch.tensor(wav).expand(2, -1)[None])
        out = model.decode([(theirs, scale)])[0].mean(0)
    z = jitted(port.encode, STEREO)(params, np.pad(wav, (0, 10 * HOP)))
    ours = port.codes(params, z, 16, config=STEREO)[:40]
    assert np.mean(ours == np.asarray(theirs[0].T)) > 0.999
    z_q = port.quantise(params, z, 16, config=STEREO)
    np.testing.assert_array_equal(z_q[:, -1], z[:, -1])
    assert not np.any(z_q[40:])
    if np.array_equal(ours, theirs[0].T):
        close(jitted(port.decode, STEREO)(params, z_q)[: len(out)], out, 1e-4)
