"""The Mimi port against Hugging Face's ``MimiModel`` with random weights, which come through its checkpoints.

The model that runs is narrow; the full-size one shows the names and shapes of the published file.
"""

import functools
import hashlib
import re

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
from ports import mimi as port

transformers = pytest.importorskip("transformers", reason="the official model")

pytestmark = pytest.mark.quick_compilation

CONFIG = port.Config(
    filters=4,
    ratios=(32, 5),
    dimension=16,
    layers=3,
    heads=2,
    feed_forward=24,
    window=12,
    codebooks=5,
    entries=32,
    codebook_dimension=6,
    stages=(3, 5),
)
HOP = 320
FRAMES = 50  # 100 rows, far more than a window; as long as what the contract runs, so that it is compiled once


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mimi")


@pytest.fixture(scope="module")
def model(folder):
    return made(CONFIG, folder)


def made(config, folder):
    """The official model, every tensor drawn at random, saved as the published one was."""
    model = official.mimi(config)
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def params(model, folder):
    return port.load(folder / port.FILE, CONFIG)


@functools.cache
def jitted(function, **static):
    return jax.jit(functools.partial(function, config=CONFIG, **static))


def quantise(params, z, *, stages, config):
    return port.codec(params, config).quantise(params, z, stages)


@pytest.fixture(scope="module")
def reference(model):
    """What the original makes of a clip at each stage, rows first; from ``embedding`` on, spread over more codes."""
    with torch.no_grad():
        encoded = model.encoder(torch.tensor(bursts(FRAMES * HOP))[None, None]).latents
        embedding = 4 * (encoded - encoded.mean(2, keepdim=True))
        codes = model.quantizer.encode(embedding).transpose(0, 1)
        return {
            "encoded": encoded[0].T.numpy(),
            "projected": official.mimi_projected(model, encoded),
            "embedding": embedding,
            "z": official.mimi_projected(model, embedding),
            "codes": codes[0].T.numpy(),
            "quantised": model.quantizer.decode(codes)[0].T.numpy(),
            "audio": model.decode(codes).audio_values[0, 0].numpy(),
        }


def test_the_latent_is_the_original_s(params, reference, parity):
    wav = bursts(FRAMES * HOP)

    @jax.jit
    def run(params, wav):
        return port.Encoder(CONFIG).apply({"params": params["encoder"]}, wav)

    parity("mimi", "encoder, small", relative(run(params, wav), reference["encoded"]), 1e-5, "relative")
    z = jitted(port.encode)(params, wav)
    parity("mimi", "latent, small", relative(z, reference["projected"]), 1e-5, "relative")


def test_codes_and_audio_are_the_original_s(params, reference, parity):
    z = reference["z"]
    codes = jitted(port.codes, stages=5)(params, z)
    parity("mimi", "codes, share that differs", differing(codes, reference["codes"]), 0.0)
    assert min(len(set(codes)) for codes in reference["codes"].T) > 8, "few entries in use show little"
    z_q = jitted(quantise, stages=5)(params, z)
    quantised, audio = port.combined(params, z_q), jitted(port.decode)(params, z_q)
    parity("mimi", "quantised latent, small", relative(quantised, reference["quantised"]), 1e-5, "relative")
    parity("mimi", "audio, small", relative(audio, reference["audio"]), 1e-5, "relative")


@pytest.mark.parametrize("stages", [1, 3])
def test_fewer_codebooks(model, params, reference, stages, parity):
    z = reference["z"]
    with torch.no_grad():
        codes = model.quantizer.encode(reference["embedding"], stages).transpose(0, 1)
        summed = model.quantizer.decode(codes)[0].T
    found = jitted(port.codes, stages=stages)(params, z)
    parity("mimi", "codes, share that differs", differing(found, codes[0].T), 0.0)
    z_q, back = jax.vjp(functools.partial(jitted(quantise, stages=stages), params), z)
    error = relative(port.combined(params, z_q), summed)
    parity("mimi", "quantised latent, small", error, 1e-5, "relative")
    np.testing.assert_array_equal(back(jnp.full(z.shape, 3.0))[0], np.full(z.shape, 3.0))


def test_the_model_does_not_look_ahead(params, reference):
    encode, decode = jitted(port.encode), jitted(port.decode)
    wav = bursts(FRAMES * HOP)
    half = FRAMES // 2 * HOP
    z = encode(params, wav)
    cut = encode(params, np.pad(wav[:half], (0, half)))
    np.testing.assert_allclose(cut[: FRAMES // 2], z[: FRAMES // 2], atol=1e-5)
    out = decode(params, z)
    np.testing.assert_allclose(decode(params, z.at[FRAMES // 2 :].set(1.0))[:half], out[:half], atol=1e-5)
    short = bursts(HOP + 1)
    padded = np.pad(short, (0, FRAMES * HOP - len(short)))
    np.testing.assert_allclose(encode(params, short), encode(params, padded)[:2], atol=1e-5)


def test_the_contract_is_kept(params):
    codec = port.codec(params, CONFIG)
    assert (codec.hop, codec.channels, codec.delay, codec.stages) == (HOP, 12, 0, (3, 5))
    keeps_the_contract(codec)


def test_bfloat16_is_near(params):
    """With random weights the latent is off by 0.5 % (RMS), audio of one latent by −45 dB."""
    exact, rounded = (port.codec(params, CONFIG, dtype=dtype) for dtype in (jnp.float32, jnp.bfloat16))
    latent, audio = moved(exact, rounded, bursts(FRAMES * HOP))
    assert 1e-3 < latent < 0.02 and 35 < audio < 65


def test_full_size_is_the_original(tmp_path, parity):
    """The file where a user would bring it, by the codec's name."""
    model, wav = made(port.MIMI, tmp_path / "mimi"), bursts(8 * port.MIMI.hop)
    codec, file = jh.codec("mimi", models=tmp_path), tmp_path / "mimi" / port.FILE
    assert codec.weights == {port.FILE: hashlib.sha256(file.read_bytes()).hexdigest()}
    file.unlink()
    with torch.no_grad():
        encoded = model.encoder(torch.tensor(wav)[None, None]).latents
        codes = model.quantizer.encode(encoded).transpose(0, 1)
        z, out = official.mimi_projected(model, encoded), model.decode(codes).audio_values[0, 0]
    parity("mimi", "latent, full size", relative(jax.jit(codec.encode)(codec.params, wav), z), 1e-4, "relative")
    audio = jax.jit(codec.decode)(codec.params, codec.quantise(codec.params, z, 32))
    parity("mimi", "audio, full size", relative(audio, out), 1e-4, "relative")


def test_full_size_names_and_shapes_are_official():
    with torch.device("meta"):
        model = transformers.MimiModel(transformers.MimiConfig())
    theirs = {}
    for name, tensor in model.state_dict().items():
        # Since version 5 the halves are modules of their own; files keep the names from before.
        name = re.sub(r"^(?:en|de)coder\.(?=(?:en|de)coder_|upsample|downsample)", "", name)
        name = name.replace("coder_seanet.", "coder.")
        if not name.endswith("initialized"):
            theirs[name] = tuple(tensor.shape)
    ours = {name: shape for parts in port.official_names().values() for part in parts for name, shape in part.items()}
    assert ours == theirs
    theirs = model.config
    assert official.mimi_settings(port.MIMI).to_dict() == theirs.to_dict()
    assert theirs.sampling_rate / theirs.frame_rate == port.MIMI.hop == 1920
    assert theirs.rope_parameters["rope_theta"] == 10_000.0 and theirs.hidden_act == "gelu"


# --- strict loading ---


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop("downsample.conv.weight"), r"missing downsample\.conv\.weight"),
        (lambda t: t.update(extra=torch.zeros(1)), "left over extra"),
        (
            lambda t: t.update({"upsample.conv.weight": torch.ones(16, 16, 4)}),
            r"misshapen upsample\.conv\.weight \(16, 16, 4\), expected \(16, 1, 4\)",
        ),
        (
            lambda t: t["decoder_transformer.layers.2.mlp.fc1.weight"].fill_(torch.nan),
            r"not finite in decoder_transformer\.layers\.2\.mlp\.fc1\.weight",
        ),
    ],
)
def test_strict_loading(model, folder, tmp_path, edit, message):
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / port.FILE)
    edit(tensors)
    save_file(tensors, tmp_path / port.FILE)
    with pytest.raises(ValueError, match=message):
        port.load(tmp_path / port.FILE, CONFIG)


def test_a_model_of_another_size(model, folder):
    with pytest.raises(ValueError, match="not the weights of this model"):
        port.mimi({port.FILE: folder / port.FILE})


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (port.encode, np.zeros((2, 320), np.float32)),
        (port.encode, np.zeros(0, np.float32)),
        (port.encode, np.zeros(320, np.int16)),
        (port.decode, np.zeros((12, 3), np.float32)),
        (port.decode, np.zeros((0, 12), np.float32)),
        (functools.partial(port.codes, stages=6), np.zeros((2, 12), np.float32)),
    ],
)
def test_wrong_input(params, call, value):
    with pytest.raises(ValueError, match="got"):
        call(params, value, config=CONFIG)
