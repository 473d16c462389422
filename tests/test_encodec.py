"""The EnCodec ports against the official package with random weights, which come through its checkpoints.

Most tests run narrow models; the full-size one shows the names and shapes of the published files.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from parity import differing, largest, relative
from rounding import moved
from test_contracts import test_codec as keeps_the_contract
from toys import bursts

from benchmarks import official
from ports import encodec as port

pytestmark = pytest.mark.quick_compilation

SMALL = {"filters": 4, "ratios": (64, 5), "dimension": 16, "entries": 32}
CAUSAL = port.ENCODEC_24KHZ._replace(**SMALL)
STEREO = port.ENCODEC_48KHZ._replace(**SMALL, segment=50)
HOP = 320
LONG = 75  # frames, one and a half segments; compiling is what costs, so nearly all is as long


@pytest.fixture(scope="module")
def library():
    try:
        return official.encodec_library()
    except ImportError:
        pytest.skip("needs the official package: pip install --no-deps encodec")


def made(config, folder):
    model = official.encodec(config)
    torch.save(model.state_dict(), folder / "model.th")
    return model, port.load(folder / "model.th", config)


@pytest.fixture(scope="module")
def causal(library, tmp_path_factory):
    return made(CAUSAL, tmp_path_factory.mktemp("causal"))


@pytest.fixture(scope="module")
def stereo(library, tmp_path_factory):
    return made(STEREO, tmp_path_factory.mktemp("stereo"))


@functools.cache
def jitted(function, config, **static):
    return jax.jit(functools.partial(function, config=config, **static))


def quantise(params, z, *, stages, config):
    return port.codec(params, config).quantise(params, z, stages)


def reference(model, wav):
    """Latent with loudness [N, C], and what the original decodes of it [T], of one mono segment."""
    z = official.encodec_encode(model, wav)
    return z, official.encodec_decode(model, z)


def test_the_causal_model_is_the_original(causal, parity):
    model, params = causal
    wav = bursts(40 * HOP)
    z, out = reference(model, wav)
    for stage, run, given, expected in (("latent", port.encode, wav, z), ("audio", port.decode, z, out)):
        error = relative(jitted(run, CAUSAL)(params, given), expected)
        parity("encodec, 24 kHz", f"{stage}, small", error, 1e-5, "relative")


def test_codes_at_each_bandwidth_are_the_original_s(causal, parity):
    model, params = causal
    z, _ = reference(model, bursts(40 * HOP))
    z /= z.std()
    ours = jitted(port.codes, CAUSAL, stages=32)(params, z)  # those of fewer codebooks come first
    for stages in CAUSAL.stages:
        with torch.no_grad():
            theirs = model.quantizer.vq.encode(torch.tensor(z.T[None]), stages)
        different = differing(ours[:, :stages], theirs[:, 0].T)
        parity("encodec, 24 kHz", f"codes of {stages} codebooks, share that differs", different, 0.0)
    with torch.no_grad():
        summed = [model.quantizer.decode(theirs[:stages])[0].T for stages in (2, 32)]
    fewer = jitted(quantise, CAUSAL, stages=2)(params, z)
    z_q, back = jax.vjp(functools.partial(jitted(quantise, CAUSAL, stages=32), params), z)
    for found, expected in ((fewer, summed[0]), (z_q, summed[1])):
        parity("encodec, 24 kHz", "quantised latent, small", largest(found, expected), 1e-5)
    np.testing.assert_array_equal(back(jnp.full(z.shape, 3.0))[0], np.full(z.shape, 3.0))


@pytest.mark.parametrize("samples", [50 * HOP, 40 * HOP - 100, 3 * HOP, HOP + 1, 2])
def test_the_non_causal_model_is_the_original_wherever_the_signal_ends(stereo, samples, parity):
    """Padded with zeros all of them, so that one compiled program serves."""
    model, params = stereo
    wav = bursts(samples)
    z, out = reference(model, wav)
    padded = jitted(port.encode, STEREO)(params, np.pad(wav, (0, LONG * HOP - samples)))
    parity("encodec, 48 kHz", "latent, small", relative(padded[: len(z)], z), 1e-4, "relative")
    assert not np.any(padded[len(z) :])
    audio = jitted(port.decode, STEREO)(params, np.pad(z, ((0, LONG - len(z)), (0, 0))))
    parity("encodec, 48 kHz", "audio, small", relative(audio[: len(out)], out), 1e-4, "relative")
    assert not np.any(audio[len(out) :])


def test_segments_are_coded_apart(stereo, parity):
    model, params = stereo
    wav = bursts(LONG * HOP - 7)
    parts = [reference(model, wav[: 50 * HOP]), reference(model, wav[50 * HOP :])]
    z = jitted(port.encode, STEREO)(params, np.pad(wav, (0, 7)))
    latent, audio = (np.concatenate([part[i] for part in parts]) for i in range(2))
    parity("encodec, 48 kHz", "latent, small", relative(z, latent), 1e-4, "relative")
    out = jitted(port.decode, STEREO)(params, z)
    parity("encodec, 48 kHz", "audio, small", relative(out, audio), 1e-4, "relative")
    silent = jitted(port.encode, STEREO)(params, 0 * wav)
    assert not np.any(silent) and not np.any(jitted(port.decode, STEREO)(params, silent))


def test_official_codes_of_a_second(stereo, parity):
    """The whole chain of the original's public interface: normalised, encoded, quantised, decoded."""
    model, params = stereo
    wav = bursts(40 * HOP)
    model.bandwidth = None
    with torch.no_grad():
        ((theirs, scale),) = model.encode(torch.tensor(wav).expand(2, -1)[None])
        out = model.decode([(theirs, scale)])[0].mean(0)
    z = jitted(port.encode, STEREO)(params, np.pad(wav, (0, (LONG - 40) * HOP)))
    ours = jitted(port.codes, STEREO, stages=16)(params, z)[:40]
    parity("encodec, 48 kHz", "codes, share that differs", differing(ours, theirs[0].T), 0.001)
    z_q = jitted(quantise, STEREO, stages=16)(params, z)
    np.testing.assert_array_equal(z_q[:, -1], z[:, -1])
    assert not np.any(z_q[40:])
    if np.array_equal(ours, theirs[0].T):
        found = jitted(port.decode, STEREO)(params, z_q)[: len(out)]
        parity("encodec, 48 kHz", "audio of quantised latent, small", relative(found, out), 1e-4, "relative")


def test_the_causal_model_does_not_look_ahead(causal):
    """Frames are those of any longer signal, padded or not, but for the first six, which see up to the seventh."""
    _, params = causal
    encode, decode = jitted(port.encode, CAUSAL), jitted(port.decode, CAUSAL)
    wav = bursts(40 * HOP)
    z = encode(params, wav)
    for other in (wav[: 20 * HOP], np.pad(wav[: 20 * HOP], (0, 20 * HOP))):
        np.testing.assert_allclose(encode(params, other)[:20], z[:20], atol=1e-5)
    out = decode(params, z)
    np.testing.assert_allclose(decode(params, z.at[20:].set(1.0))[: 20 * HOP], out[: 20 * HOP], atol=1e-5)
    short = bursts(100)
    padded = encode(params, np.pad(short, (0, 20 * HOP - 100)))
    np.testing.assert_allclose(encode(params, short), padded[:1], atol=1e-5)


@pytest.mark.parametrize("name", ["causal", "stereo"])
def test_the_contract_is_kept(name, request):
    config = {"causal": CAUSAL, "stereo": STEREO}[name]
    codec = port.codec(request.getfixturevalue(name)[1], config)
    assert (codec.hop, codec.delay, codec.stages) == (HOP, 0, config.stages)
    keeps_the_contract(codec)


@pytest.mark.parametrize("name", ["causal", "stereo"])
def test_bfloat16_is_near(name, request):
    """With random weights the latent is off by 0.3 % (48 kHz: 0.6 %), audio of one latent by −52 dB (−43 dB)."""
    config, params = {"causal": CAUSAL, "stereo": STEREO}[name], request.getfixturevalue(name)[1]
    exact, rounded = (port.codec(params, config, dtype=dtype) for dtype in (jnp.float32, jnp.bfloat16))
    latent, audio = moved(exact, rounded, bursts(LONG * HOP))
    assert 1e-3 < latent < 0.02 and 35 < audio < 65


def test_full_size_is_the_original(library, tmp_path, parity):
    model, params = made(port.ENCODEC_24KHZ, tmp_path)
    codec, wav = port.codec(params, port.ENCODEC_24KHZ), bursts(30 * HOP)
    z, out = reference(model, wav)
    for stage, run, given, expected in (("latent", codec.encode, wav, z), ("audio", codec.decode, z, out)):
        error = relative(jax.jit(run)(params, given), expected)
        parity("encodec, 24 kHz", f"{stage}, full size", error, 1e-4, "relative")


@pytest.mark.parametrize("config", [port.ENCODEC_24KHZ, port.ENCODEC_48KHZ])
def test_full_size_names_and_shapes_are_official(library, config):
    with torch.device("meta"):
        made = getattr(library.EncodecModel, config.file.split("-")[0].replace("encodec_", "encodec_model_"))
        model = made(pretrained=False)
    theirs = {name: tuple(t.shape) for name, t in model.state_dict().items() if not name.endswith(port._TRAINING)}
    ours = {name: shape for found in port.official_names(config).values() for name, shape in found.items()}
    assert ours == theirs
    assert (model.sample_rate, model.channels, model.segment_length) == (
        config.sample_rate,
        config.audio,
        config.segment * config.hop or None,
    )
    per_book = 10 * model.frame_rate / 1000  # kb/s
    assert tuple(int(kbps / per_book) for kbps in model.target_bandwidths) == config.stages


# --- strict loading ---


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop("encoder.model.7.lstm.bias_hh_l1"), r"missing encoder\.model\.7\.lstm\.bias_hh_l1"),
        (lambda t: t.update(extra=torch.zeros(1)), "left over extra"),
        (
            lambda t: t.update({"decoder.model.3.convtr.convtr.weight_g": torch.ones(1, 8, 1)}),
            r"misshapen decoder\.model\.3\.convtr\.convtr\.weight_g \(1, 8, 1\), expected \(16, 1, 1\)",
        ),
        (
            lambda t: t.update({"quantizer.vq.layers.3._codebook.embed": torch.full((32, 16), torch.nan)}),
            r"not finite in quantizer\.vq\.layers\.3\._codebook\.embed",
        ),
    ],
)
def test_strict_loading(causal, tmp_path, edit, message):
    tensors = causal[0].state_dict()
    edit(tensors)
    torch.save(tensors, tmp_path / "model.th")
    with pytest.raises(ValueError, match=message):
        port.load(tmp_path / "model.th", CAUSAL)


def test_a_file_that_is_not_the_published_one(tmp_path):
    path = tmp_path / "encodec_24khz-d7cc33bc.th"
    path.write_bytes(b"something else")
    with pytest.raises(
        ValueError, match=r"not the published encodec_24khz-d7cc33bc\.th: its SHA-256 is [0-9a-f]{64}"
    ):
        port.encodec_24khz({path.name: path})


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (port.encode, np.zeros((2, 320), np.float32)),
        (port.encode, np.zeros(0, np.float32)),
        (port.encode, np.zeros(320, np.int16)),
        (port.decode, np.zeros((16, 3), np.float32)),
        (port.decode, np.zeros((0, 16), np.float32)),
        (functools.partial(port.codes, stages=33), np.zeros((2, 16), np.float32)),
    ],
)
def test_wrong_input(causal, call, value):
    with pytest.raises(ValueError, match="got"):
        call(causal[1], value, config=CAUSAL)
