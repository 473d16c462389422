"""DNSMOS P.835 and P.808 against the official code, and the strictness of their weight loading."""

import hashlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
import soundfile as sf
from jax import lax
from parity import largest

from ports.conv3x3 import conv3x3
from ports.dnsmos import (
    DNSMOS_P808_WEIGHTS,
    DNSMOS_WEIGHTS,
    P808,
    P835,
    _p808_names,
    _p835_names,
    counted_windows,
    dnsmos,
    dnsmos_p808,
    window_count,
)

WEIGHTS = (*DNSMOS_WEIGHTS, *DNSMOS_P808_WEIGHTS)


@pytest.fixture(scope="module")
def paths():
    speechmos = pytest.importorskip("speechmos", reason="needs the official speechmos package")
    folder = Path(speechmos.__file__).parent / "dnsmos_models"
    return {weight.file: folder / weight.file for weight in WEIGHTS}


@pytest.fixture(scope="module")
def models(paths):
    """(heads, params) of both ports, compiled once a length."""
    return [(jax.jit(model.heads), model.params) for model in (dnsmos(paths), dnsmos_p808(paths))]


@pytest.fixture(scope="module")
def speech(shared):
    """18 s of real speech, clips of several speakers end to end."""
    files = sorted((shared / "speech").glob("*.flac"))[::40]
    wav = np.concatenate([sf.read(file, dtype="float32")[0] for file in files])
    return wav[: 18 * 16_000]


def both(models, wav, length=None):
    """(ovrl, sig, bak, p808) of one clip."""
    length = len(wav) if length is None else length
    return np.concatenate([np.asarray(heads(params, wav, length)) for heads, params in models])


def test_weights_are_those_of_the_wheel(paths):
    for weight in WEIGHTS:
        content = paths[weight.file].read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (weight.size, weight.sha256)
        assert weight.source == f"pypi:speechmos==0.0.1.1:speechmos/dnsmos_models/{weight.file}"


def test_bfloat16_is_near(paths, models, speech):
    """Largest change of a head over clips of 3 s, clean and noisy: 0.011 MOS over four, P.808 0.0025 over ten."""
    rounded = [
        (jax.jit(model.heads), model.params)
        for model in (dnsmos(paths, dtype=jnp.bfloat16), dnsmos_p808(paths, dtype=jnp.bfloat16))
    ]
    got, expected = both(rounded, speech[:48_000]), both(models, speech[:48_000])
    assert got.dtype == np.float32 and np.all(got != expected) and np.abs(got - expected).max() < 0.03


@pytest.mark.parametrize(
    "samples",
    [48_000, 72_101, 144_160, 18 * 16_000],
    ids=["short, whole seconds", "short", "one window", "the official code skips two windows"],
)
def test_parity_with_the_official_code(models, speech, samples, parity):
    official = pytest.importorskip("speechmos.dnsmos").run(speech[:samples], 16_000)
    expected = [official[key] for key in ("ovrl_mos", "sig_mos", "bak_mos", "p808_mos")]
    found = both(models, speech[:samples])
    parity("dnsmos", "every head", largest(found[:3], expected[:3]), 1e-4, "MOS")
    parity("dnsmos-p808", "score", largest(found[3], expected[3]), 1e-4, "MOS")


@pytest.mark.parametrize(
    "wav, expected",
    [
        (np.zeros(48_000), (1.8399, 2.5136, 3.4724, 2.1468)),
        (0.1 * np.random.RandomState(0).randn(48_000), (1.1032, 1.1348, 1.0924, 2.1032)),
    ],
    ids=["silence", "white noise"],
)
def test_probes_give_the_recorded_scores(models, wav, expected):
    np.testing.assert_allclose(both(models, wav.astype(np.float32)), expected, atol=2e-4)


def test_scores_ignore_padding_whatever_it_holds(models, speech):
    padded = np.concatenate([speech[:32_000], np.ones(16_000, np.float32)])
    silent = np.concatenate([speech[:32_000], np.zeros(16_000, np.float32)])
    np.testing.assert_array_equal(both(models, padded, 32_000), both(models, silent, 32_000))
    heads, params = models[1]
    alone = heads(params, speech[:32_000], 32_000)
    np.testing.assert_allclose(heads(params, padded, 32_000), alone, atol=1e-5)


def test_too_short_is_nan(models):
    for wav, length in (
        (np.zeros(48_000), 319),
        (np.zeros(48_000), 0),
        (np.zeros(100), 100),
        (np.zeros(0), 0),
    ):
        assert np.isnan(both(models, wav.astype(np.float32), length)).all()


def test_a_batch_gives_what_each_clip_gives_alone(paths, speech):
    model = dnsmos_p808(paths)
    wavs = np.stack([speech[:48_000], speech[48_000:96_000]])
    lengths = np.array([48_000, 30_001], np.int32)
    batch = jax.jit(jax.vmap(model.heads, (None, 0, 0)))(model.params, wavs, lengths)
    alone = [jax.jit(model.heads)(model.params, wav, length) for wav, length in zip(wavs, lengths, strict=True)]
    np.testing.assert_allclose(batch, alone, atol=1e-5)


@pytest.mark.parametrize("which", [0, 1], ids=["p835", "p808"])
def test_gradient_is_the_slope_and_finite_on_silence(models, speech, which):
    heads, params = models[which]
    wav = speech[:48_000]
    gradient = jax.jit(jax.grad(lambda wav: heads(params, wav, 48_000)[0]))
    slope = np.asarray(gradient(wav))
    norm = np.linalg.norm(slope)
    unit = slope / norm
    up, down = (float(heads(params, wav + side * 0.001 / norm * unit, 48_000)[0]) for side in (1, -1))
    np.testing.assert_allclose(up - down, 0.002, rtol=0.1)
    assert np.isfinite(gradient(np.zeros_like(wav))).all()


def test_one_utterance_only(paths):
    model = dnsmos_p808(paths)
    with pytest.raises(ValueError, match="use vmap outside"):
        model.heads(model.params, np.zeros((2, 48_000), np.float32), 48_000)


def test_window_rules():
    lengths = (0, 319, 320, 48_000, 144_159, 144_160, 176_000, 288_000)
    assert [int(window_count(jnp.int32(n))) for n in lengths] == [0, 0, 1, 3, 9, 1, 2, 9]
    assert counted_windows(100) == counted_windows(288_000) == tuple(range(7))
    assert counted_windows(35 * 16_000) == (*range(7), 24, 25)


@pytest.mark.parametrize("channels", [1, 3])
def test_convolution_has_the_usual_derivatives(channels):
    rng = np.random.default_rng(0)
    x, kernel, weight = (
        jnp.asarray(rng.normal(size=shape), jnp.float32)
        for shape in ((2, 5, 7, channels), (3, 3, channels, 4), (2, 5, 7, 4))
    )

    def usual(x, kernel):
        return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    got, want = (jax.vjp(conv, x, kernel) for conv in (conv3x3, usual))
    for ours, theirs in zip((got[0], *got[1](weight)), (want[0], *want[1](weight)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


# ------------------------------------------------------------------------------------------- weight loading


def arrays_of(net, example, names, rng):
    """Random initialisers laid out as the published file has them."""
    shapes = jax.eval_shape(net.init, jax.random.key(0), jax.ShapeDtypeStruct(example, jnp.float32))
    arrays = {}
    for target, group in names.items():
        node = shapes["params"]
        for part in target.split("/"):
            node = node[part]
        array = rng.normal(0, 0.05, node.shape).astype(np.float32)
        for name, piece in zip(group, np.split(array, len(group), axis=-1), strict=True):
            piece = piece.transpose(3, 2, 0, 1) if piece.ndim == 4 else piece
            arrays[name] = piece.T[..., None] if len(group) > 1 else piece
    return arrays


def write(path, arrays):
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    nodes = [onnx.helper.make_node("Identity", ["x"], ["y"])]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [value], [out], tensors)), path)
    return path


@pytest.fixture
def random_p808():
    return arrays_of(P808(), (900, 120), _p808_names(), np.random.default_rng(0))


def test_random_weights_through_the_same_loader(tmp_path, random_p808):
    rng = np.random.default_rng(1)
    arrays = arrays_of(P835(), (144_160,), _p835_names(), rng)
    model = dnsmos({"sig_bak_ovr.onnx": write(tmp_path / "sig_bak_ovr.onnx", arrays)})
    kernel = model.params["params"]["conv_1"]["kernel"]
    np.testing.assert_array_equal(kernel, arrays["conv2d_1/kernel:0"].transpose(2, 3, 1, 0))
    np.testing.assert_array_equal(
        model.params["params"]["stft"][:, 161:], arrays["time2freq/stft-imag/kernel:0"][..., 0].T
    )
    model = dnsmos_p808({"model_v8.onnx": write(tmp_path / "model_v8.onnx", random_p808)})
    wav = rng.normal(0, 0.1, 16_000).astype(np.float32)
    assert np.isfinite(jax.jit(model.score)(model.params, wav, 16_000))


def test_every_fault_of_a_weight_file_is_named(tmp_path, random_p808):
    name = "conv2d_6/kernel:0"
    faults = {
        "lacks the weights conv2d_6/kernel:0": {k: v for k, v in random_p808.items() if k != name},
        "nobody asked for: spare": random_p808 | {"spare": np.zeros(3, np.float32)},
        r"conv2d_6/kernel:0 should give shape \(3, 3, 32, 32\)": random_p808 | {name: random_p808[name][:, :31]},
        "infinite weights: conv2d_6/kernel:0": random_p808 | {name: random_p808[name] * np.float32(np.nan)},
    }
    for message, arrays in faults.items():
        with pytest.raises(ValueError, match=message):
            dnsmos_p808({"model_v8.onnx": write(tmp_path / "model_v8.onnx", arrays)})


def test_files_that_are_no_model(tmp_path, random_p808):
    whole = write(tmp_path / "whole.onnx", random_p808).read_bytes()
    for content in (b"", b"not a model", whole[: len(whole) // 2]):
        (tmp_path / "model_v8.onnx").write_bytes(content)
        with pytest.raises(ValueError, match="not a whole ONNX model"):
            dnsmos_p808({"model_v8.onnx": tmp_path / "model_v8.onnx"})
