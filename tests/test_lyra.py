"""The Lyra port: layers against plain loops, strict loading, padding, delay, gradients.

Random weights in the layout of the originals prove the core where the published files are absent.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import soundfile
from parity import differing
from rounding import moved
from tflite_writer import layer, random_lyra, write_tflite

from ports import lyra as module
from ports.lyra import LYRA_WEIGHTS, codes, decode, encode, lyra
from ports.tflite_weights import Constant, Operator, read_tflite


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return random_lyra(tmp_path_factory.mktemp("lyra"))


@pytest.fixture(scope="module")
def codec(files):
    return lyra(files)


@pytest.fixture(scope="module")
def published(shared):
    return lyra({weight.file: shared / "models" / weight.folder / weight.file for weight in LYRA_WEIGHTS})


# Compiling is what costs here, so the tests share few lengths: 10 000 and 1280 samples, 32 and 4 frames.
ENCODE, DECODE = jax.jit(encode), jax.jit(decode)
CODES = jax.jit(codes, static_argnums=2)


def quantise(codec, z, stages):
    return jax.jit(lambda params, z: codec.quantise(params, z, stages))(codec.params, z)


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def convolved(x, operator):
    """What TensorFlow Lite computes for a convolution of ``x [N, C]``, its state zero, in plain loops."""
    w, bias = (c.value.astype(np.float64) for c in operator.constants)
    stride, dilation = operator.stride[0], operator.dilation[0]
    if operator.kind == "TRANSPOSE_CONV":  # add each step's kernel from its place on, drop the overhang
        y = np.zeros((len(x) * stride + w.shape[1], w.shape[0]))
        for t, step in enumerate(x):
            y[t * stride : t * stride + w.shape[1]] += np.einsum("oki,i->ko", w[:, :, 0], step)
        return y[: len(x) * stride] + bias
    length = w.shape[1]
    past = np.concatenate([np.zeros(((length - 1) * dilation + 1 - stride, x.shape[1])), x])
    y = []
    for t in range(0, len(x), stride):
        window = past[t : t + (length - 1) * dilation + 1 : dilation]
        if operator.kind == "DEPTHWISE_CONV_2D":
            y.append((w[0, :, 0] * window).sum(0))
            continue
        out, size = w.shape[0], w.shape[3]
        share = out * size // x.shape[1]  # outputs of a group
        start = [o // share * size for o in range(out)]
        y.append([(w[o, :, 0] * window[:, s : s + size]).sum() for o, s in enumerate(start)])
    return np.array(y) + bias


@pytest.mark.parametrize(
    ("kind", "shape", "size", "stride", "dilation", "made"),
    [
        ("CONV_2D", (6, 8, 1, 3), 3, 4, 1, module.Down(6, taps=2, stride=4)),
        ("CONV_2D", (6, 4, 1, 2), 4, 2, 1, module.Down(6, taps=2, stride=2, groups=2)),
        ("CONV_2D", (8, 3, 1, 1), 4, 1, 1, module.Down(8, taps=3, groups=4)),
        ("TRANSPOSE_CONV", (3, 8, 1, 5), 5, 2, 1, module.Up(3, taps=4, stride=2)),
        ("TRANSPOSE_CONV", (1, 10, 1, 4), 4, 5, 1, module.Up(1, taps=2, stride=5)),
        ("DEPTHWISE_CONV_2D", (1, 3, 1, 4), 4, 1, 9, module.Depthwise(9)),
        ("DEPTHWISE_CONV_2D", (1, 3, 1, 4), 4, 1, 1, module.Depthwise(1)),
    ],
)
def test_a_layer_equals_plain_loops(kind, shape, size, stride, dilation, made):
    operator = layer(np.random.default_rng(3), kind, "x", shape, size, stride, dilation)
    kernel, bias = module._LAYOUTS[kind](operator)
    x = normal(4, 24, size)
    y = made.apply({"params": {"kernel": jnp.asarray(kernel), "bias": jnp.asarray(bias)}}, x)
    np.testing.assert_allclose(y, convolved(x, operator), atol=2e-6)


def test_the_whole_decoder_equals_plain_loops(files, codec):
    """The wiring too: groups, activations, residuals, their order."""
    operators = {module._scope(o.name): o for o in read_tflite(files["lyragan.tflite"])["main"]}
    leaky = lambda x: np.maximum(x, 0.3 * x)  # noqa: E731

    def units(x, scope):
        for unit in (f"{scope}.resnet_{i}" for i in range(3)):
            h = convolved(leaky(x), operators[f"{unit}adepthwise_conv"])
            h = convolved(h, operators[f"{unit}apointwise_conv"])
            x = x + convolved(leaky(h), operators[f"{unit}bconv"])
        return x

    z = normal(5, 4, 64)
    x = convolved(z, operators["bottleneck_2.simpleconv"])
    for stage, groups in ((0, 4), (1, 2)):
        parts = np.split(leaky(x), groups, axis=1)
        x = [convolved(part, operators[f"decoder_{stage}.simple_g{g}"]) for g, part in enumerate(parts)]
        x = units(np.concatenate(x, axis=1), f"decoder_{stage}")
    x = units(convolved(leaky(x), operators["decoder_2.simple"]), "decoder_2")
    wav = convolved(leaky(x), operators["last_layer"])[:, 0]
    np.testing.assert_allclose(DECODE(codec.params, z), wav, atol=1e-4 * np.abs(wav).max())


def test_the_codec_says_what_it_is(codec):
    assert (codec.name, codec.sample_rate, codec.hop, codec.channels) == ("lyra", 16000, 320, 64)
    assert (codec.delay, codec.stages) == (0, (16, 30, 46))
    assert sorted(codec.weights) == ["lyragan.tflite", "quantizer.tflite", "soundstream_encoder.tflite"]
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in codec.weights.values())
    assert codec.weights["lyragan.tflite"] != LYRA_WEIGHTS[1].sha256  # random weights do not pose as Lyra's


def test_whole_frames(codec):
    z = ENCODE(codec.params, 0.1 * normal(6, 10_000))
    assert (z.shape, z.dtype) == ((32, 64), jnp.float32)
    wav = DECODE(codec.params, z)
    assert (wav.shape, wav.dtype) == ((10_240,), jnp.float32)
    for length, frames in ((1, 1), (320, 1), (321, 2)):
        assert jax.eval_shape(encode, codec.params, np.zeros(length, np.float32)).shape == (frames, 64)


def test_zeros_on_the_right_change_nothing_before(codec):
    wav = 0.1 * normal(7, 1280)
    z = ENCODE(codec.params, wav)
    longer = ENCODE(codec.params, np.pad(wav, (0, 8720)))
    np.testing.assert_allclose(longer[:4], z, atol=1e-5 * np.abs(z).max())
    y = DECODE(codec.params, z)
    longer = DECODE(codec.params, np.pad(z, ((0, 28), (0, 0))))
    np.testing.assert_allclose(longer[:1280], y, atol=1e-5 * np.abs(y).max())


def test_one_utterance_of_a_batch_is_itself(codec):
    wavs = 0.1 * normal(8, 2, 1280)
    wavs[1] *= 5
    batch = jax.jit(jax.vmap(encode, (None, 0)))(codec.params, wavs)
    for wav, z in zip(wavs, batch, strict=True):
        np.testing.assert_allclose(ENCODE(codec.params, wav), z, atol=1e-5 * np.abs(z).max())


def test_gradients_equal_differences(codec):
    wav = 0.1 * normal(9, 1280)

    def loss(wav, encode=encode, decode=decode):
        return jnp.mean(jnp.square(decode(codec.params, encode(codec.params, wav))))

    gradient = np.asarray(jax.jit(jax.grad(loss))(wav))
    slope = np.linalg.norm(gradient)
    step = gradient / slope * np.float32(0.01 * np.linalg.norm(wav))
    up, down = (float(loss(wav + sign * step, ENCODE, DECODE)) for sign in (np.float32(1), np.float32(-1)))
    np.testing.assert_allclose((up - down) / (2 * np.linalg.norm(step)), slope, rtol=0.02)


def test_codes_are_the_nearest_entries(codec):
    z = 2 * normal(11, 5, 64)
    books = np.asarray(codec.params["codebooks"], np.float64)
    rest, expected = z.astype(np.float64), []
    for book in books[:16]:
        expected.append(np.argmin(((rest[:, None] - book) ** 2).sum(-1), -1))
        rest = rest - book[expected[-1]]
    found = CODES(codec.params, z, 16)
    assert (found.shape, found.dtype) == ((5, 16), jnp.int32)
    np.testing.assert_array_equal(found, np.stack(expected, 1))
    np.testing.assert_allclose(quantise(codec, z, 16), z - rest, atol=1e-5)


def test_quantising_passes_gradients_straight_through(codec):
    z, weight = 2 * normal(12, 5, 64), normal(13, 5, 64)
    gradient = jax.grad(lambda z: jnp.sum(weight * codec.quantise(codec.params, z, 30)))(z)
    np.testing.assert_array_equal(gradient, weight)


def test_more_stages_come_closer(codec):
    z = 2 * normal(14, 5, 64)
    errors = [float(jnp.mean(jnp.square(quantise(codec, z, n) - z))) for n in (16, 30, 46)]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.9 * errors[0]


@pytest.mark.parametrize("stages", [0, 47, -1])
def test_unknown_number_of_stages(codec, stages):
    with pytest.raises(ValueError, match=f"stages is a number from 1 to 46 .*got {stages}"):
        codec.quantise(codec.params, np.zeros((2, 64), np.float32), stages)


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (encode, np.zeros((2, 320), np.float32)),
        (encode, np.zeros(0, np.float32)),
        (encode, np.zeros(320, np.int16)),
        (decode, np.zeros((64, 3), np.float32)),
        (decode, np.zeros((0, 64), np.float32)),
        (decode, np.zeros(64, np.float32)),
    ],
)
def test_wrong_input(codec, call, value):
    with pytest.raises(ValueError, match=f"{call.__name__} takes .* got"):
        call(codec.params, value)


# --- strict loading ---


def test_exchanged_files(files):
    exchanged = files | {"soundstream_encoder.tflite": files["lyragan.tflite"]}
    with pytest.raises(
        ValueError, match=r"lyragan\.tflite does not hold .*: bottleneck_1\.simpleconv\.bias \[64\] is"
    ):
        lyra(exchanged)


def edited(files, tmp_path, file, graph, edit):
    graphs = {name: list(operators) for name, operators in read_tflite(files[file]).items()}
    graphs[graph] = edit(graphs[graph])
    return files | {file: write_tflite(tmp_path / file, graphs)}


def replaced(operators, name, **fields):
    assert any(name in o.name for o in operators)
    return [o._replace(**fields) if name in o.name else o for o in operators]


extra = layer(np.random.default_rng(0), "CONV_2D", "decoder_3/simpleconv", (4, 1, 1, 4), 4)
gain = Operator("MUL", "model/gain/mul", (Constant("gain/factor", np.float32([2])),), (1, 1))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda o: [x for x in o if "last_layer" not in x.name],
            r"last_layer\.kernel \[4, 64, 16\] is missing",
        ),
        (lambda o: [*o, extra], r"decoder_3\.simpleconv\.kernel \[1, 1, 4, 4\] is left over"),
        (lambda o: [*o, gain], r"gain/factor \(MUL\) is left over"),
        (lambda o: [*o, o[0]], r"bottleneck_2\.simpleconv is there twice"),
        (
            lambda o: replaced(o, "last_layer", stride=(32, 1)),
            r"last_layer\.kernel has shape \[2, 64, 32\], expected \[4, 64, 16\]",
        ),
        (
            lambda o: replaced(o, "decoder_2/resnet_1adepthwise", dilation=(2, 1)),
            r"decoder_2\.resnet_1adepthwise_conv has dilation \(2, 1\), expected \(3, 1\)",
        ),
        (
            lambda o: replaced(o, "decoder_2/simple", constants=o[-1].constants[:1]),
            r"decoder_2\.simple: constants of shapes .*expected a kernel of four axes and a bias",
        ),
    ],
)
def test_strict_loading(files, tmp_path, edit, message):
    with pytest.raises(ValueError, match=message):
        lyra(edited(files, tmp_path, "lyragan.tflite", "main", edit))


def test_strict_loading_of_codebooks(files, tmp_path):
    for edit, message in (
        (lambda o: o[:-1], "45 decoder look-up tables, expected 46"),
        (
            lambda o: replaced(o, "decoded_7", constants=(Constant("transpose_7", normal(0, 16, 64)),)),
            r"stage 7: transpose_7 differs from vector_quantizer_ema_7/ExpandDims",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            lyra(edited(files, tmp_path, "quantizer.tflite", "decode", edit))


# --- the published weights ---


def test_published_files_are_those_listed(published):
    assert published.weights == {weight.file: weight.sha256 for weight in LYRA_WEIGHTS}


def test_bfloat16_is_near(shared, published):
    """Over five clips the latent is off by 4.1 % (RMS) at most, audio of one latent by −36 dB, codes by 5 to 14 %."""
    paths = {w.file: shared / "models" / w.folder / w.file for w in LYRA_WEIGHTS}
    wav = soundfile.read(shared / "speech/de_229_pv_leopard_de_test_de.flac", dtype="float32")[0][:10_240]
    rounded = lyra(paths, dtype=jnp.bfloat16)
    latent, audio = moved(published, rounded, wav)
    assert 1e-3 < latent < 0.08 and 30 < audio < 60
    z, near = (jax.jit(codec.encode)(codec.params, wav) for codec in (published, rounded))
    assert 0 < differing(CODES(published.params, near, 16), CODES(published.params, z, 16)) < 0.25


def test_delay_is_zero(shared, published):
    """Case 12: 10 000 samples in, 10 000 out after cutting, and the lag of the output is measured."""
    for clip in ("en_000_vctk_p232_p232_003", "de_229_pv_leopard_de_test_de"):
        wav, rate = soundfile.read(shared / f"speech/{clip}.flac", dtype="float32")
        wav = wav[rate : rate + 10_000]
        out = DECODE(published.params, ENCODE(published.params, wav))[: len(wav)]
        assert out.shape == (10_000,)
        lags = range(-400, 401)
        inner = np.asarray(out, np.float64)[400:-400]
        found = [wav[400 - lag : len(wav) - 400 - lag].astype(np.float64) @ inner for lag in lags]
        assert lags[int(np.argmax(found))] == published.delay == 0
