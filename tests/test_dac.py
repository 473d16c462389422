"""The DAC ports against the official package with random weights, which come through its checkpoints.

Most tests run narrow models; the full-size ones show the names and shapes of the published files.
"""

import functools
import hashlib
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from parity import differing, relative
from rounding import moved
from test_contracts import test_codec as keeps_the_contract
from toys import bursts

import jaxhack as jh
from benchmarks import official
from ports import dac as port

pytestmark = pytest.mark.quick_compilation

SMALL = {"encoder_dim": 4, "decoder_dim": 16, "latent_dim": 12, "n_codebooks": 4, "codebook_size": 32}
ODD = port.DAC_16KHZ._replace(**SMALL, encoder_rates=(8, 5, 8), decoder_rates=(8, 5, 8))
EVEN = port.DAC_44KHZ._replace(**SMALL, encoder_rates=(16, 32), decoder_rates=(32, 16))
LONG = 75  # frames; compiling is what costs, so nearly all is as long


@pytest.fixture(scope="module")
def library():
    try:
        return official.dac_library()
    except ImportError:
        pytest.skip("needs the official package: pip install --no-deps descript-audio-codec")


def saved(model, config, path, **edits):
    torch.save(
        {"state_dict": model.state_dict() | edits, "metadata": {"kwargs": official.dac_settings(config)}}, path
    )
    return path


@pytest.fixture(scope="module", params=["odd", "even"])
def pair(request, library, tmp_path_factory):
    """Config, official model, our parameters."""
    config = {"odd": ODD, "even": EVEN}[request.param]
    model = official.dac(config)
    return config, model, port.load(saved(model, config, tmp_path_factory.mktemp("dac") / "model.pth"), config)


@functools.cache
def jitted(function, config, **static):
    return jax.jit(functools.partial(function, config=config, **static))


def quantise(params, z, *, stages, config):
    return port.codec(params, config).quantise(params, z, stages)


def reference(model, wav):
    """Latent [N, C], and what the original decodes of it [T]."""
    z = official.dac_encode(model, wav)
    return z, official.dac_decode(model, z)


@pytest.mark.parametrize("frames", [LONG, 40 - 1 / 3, 2, 1 / 100])
def test_it_is_the_original_wherever_the_signal_ends(pair, frames, parity):
    """Padded with zeros all of them, so that one compiled program serves."""
    config, model, params = pair
    wav = bursts(int(frames * config.hop))
    z, out = reference(model, wav)
    padded = jitted(port.encode, config)(params, np.pad(wav, (0, LONG * config.hop - len(wav))))
    parity("dac", "latent, small", relative(padded[: len(z)], z), 1e-5, "relative")
    assert not np.any(padded[len(z) :])
    audio = jitted(port.decode, config)(params, np.pad(z, ((0, LONG - len(z)), (0, 0))))
    assert audio.shape == (LONG * config.hop,)
    parity("dac", "audio, small", relative(audio[: len(out)], out), 1e-5, "relative")
    assert not np.any(audio[len(out) :])


def test_quantiser(pair, parity):
    config, model, params = pair
    z, _ = reference(model, bursts(LONG * config.hop))
    z /= z.std()
    with torch.no_grad():
        summed, codes, *_ = model.quantizer(torch.tensor(z.T[None]))
        fewer = model.quantizer(torch.tensor(z.T[None]), 2)[0]
    found = jitted(port.codes, config, stages=4)(params, z)
    parity("dac", "codes, share that differs", differing(found, codes[0].T), 0.0)
    whole = jitted(quantise, config, stages=4)
    for found, expected in ((whole, summed), (jitted(quantise, config, stages=2), fewer)):
        parity("dac", "quantised latent, small", relative(found(params, z), expected[0].T), 1e-5, "relative")
    z[-3:] = 0
    z_q, back = jax.vjp(functools.partial(whole, params), z)
    assert not np.any(z_q[-3:])
    np.testing.assert_array_equal(back(jnp.full(z.shape, 3.0))[0], np.full(z.shape, 3.0))


def test_the_contract_is_kept(pair):
    config, _, params = pair
    codec = port.codec(params, config)
    assert (codec.hop, codec.delay, codec.stages) == (config.hop, 0, (4,))
    if config is ODD:
        keeps_the_contract(codec)


def test_bfloat16_is_near(pair):
    """With random weights the latent is off by 1.7 % (RMS) at most, audio of one latent by −40 dB."""
    config, _, params = pair
    exact, rounded = (port.codec(params, config, dtype=dtype) for dtype in (jnp.float32, jnp.bfloat16))
    latent, audio = moved(exact, rounded, bursts(LONG * config.hop))
    assert 1e-3 < latent < 0.04 and 30 < audio < 65


def test_full_size_is_the_original(library, tmp_path, parity):
    """The file where a user would bring it, by the codec's name."""
    model = official.dac(port.DAC_16KHZ)
    (tmp_path / "dac").mkdir()
    path = saved(model, port.DAC_16KHZ, tmp_path / "dac" / port.DAC_16KHZ.file)
    codec, wav = jh.codec("dac-16khz", models=tmp_path), bursts(20 * port.DAC_16KHZ.hop)
    assert codec.weights == {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}
    path.unlink()
    z, out = reference(model, wav)
    for stage, run, given, expected in (("latent", codec.encode, wav, z), ("audio", codec.decode, z, out)):
        found = jax.jit(run)(codec.params, given)[: len(expected)]
        parity("dac", f"{stage}, full size", relative(found, expected), 1e-4, "relative")


@pytest.mark.parametrize("config", [port.DAC_16KHZ, port.DAC_24KHZ, port.DAC_44KHZ, port.DAC_44KHZ_16KBPS])
def test_full_size_names_and_shapes_are_official(library, config):
    with torch.device("meta"), mock.patch("torch.nn.init.trunc_normal_"):
        model = library.DAC(**official.dac_settings(config))
    theirs = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    parts = [part for found in port.official_names(config).values() for part in found]
    assert {name: shape for part in parts for name, shape in part.items()} == theirs
    assert model.hop_length == config.hop
    tag = "44khz" if config.sample_rate == 44100 else f"{config.sample_rate // 1000}khz"
    rate = "16kbps" if config is port.DAC_44KHZ_16KBPS else "8kbps"
    assert library.utils.__MODEL_URLS__[tag, config.tag, rate].endswith(f"/{config.tag}/{config.file}")


# --- strict loading ---


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"encoder.block.1.block.0.block.2.alpha": None}, r"missing encoder\.block\.1\.block\.0\.block\.2\.alpha"),
        ({"extra": torch.zeros(1)}, "left over extra"),
        (
            {"decoder.model.1.block.1.weight_g": torch.ones(8, 1, 1)},
            r"misshapen decoder\.model\.1\.block\.1\.weight_g \(8, 1, 1\), expected \(16, 1, 1\)",
        ),
        (
            {"quantizer.quantizers.2.codebook.weight": torch.full((32, 8), torch.inf)},
            r"not finite in quantizer\.quantizers\.2\.codebook\.weight",
        ),
    ],
)
def test_strict_loading(pair, tmp_path, edits, message):
    config, model, _ = pair
    path = saved(model, config, tmp_path / "model.pth", **edits)
    if None in edits.values():
        tensors = {name: t for name, t in model.state_dict().items() if name not in edits}
        torch.save({"state_dict": tensors, "metadata": {}}, path)
    with pytest.raises(ValueError, match=message):
        port.load(path, config)


def test_another_model(pair, tmp_path):
    config, model, _ = pair
    path = saved(model, config, tmp_path / "model.pth")
    with pytest.raises(ValueError, match=rf"holds a model with sample_rate {config.sample_rate}; .* has 8000"):
        port.load(path, config._replace(sample_rate=8000))
    torch.save(model.state_dict(), path)
    with pytest.raises(ValueError, match="expected state_dict and metadata"):
        port.load(path, config)


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (port.encode, np.zeros((2, 320), np.float32)),
        (port.encode, np.zeros(0, np.float32)),
        (port.decode, np.zeros((12, 3), np.float32)),
        (port.decode, np.zeros((0, 12), np.float32)),
        (functools.partial(port.codes, stages=5), np.zeros((2, 12), np.float32)),
    ],
)
def test_wrong_input(pair, call, value):
    with pytest.raises(ValueError, match="got"):
        call(pair[2], value, config=pair[0])
