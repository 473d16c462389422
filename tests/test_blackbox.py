"""Black boxes: ONNX files and Python callables as predictors."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from jax.sharding import Mesh, PartitionSpec
from onnx import TensorProto, helper

import jaxhack as jh
from ports.blackbox import callable_predictor, host_predictor, onnx_predictor
from ports.dnsmos import DNSMOS_P808_WEIGHTS, DNSMOS_WEIGHTS, dnsmos, dnsmos_p808
from ports.dnsmos_onnx import dnsmos_onnx, dnsmos_p808_onnx

WAVS = np.random.default_rng(0).normal(0, 0.1, (4, 800)).astype(np.float32)
LENGTHS = np.array([800, 500, 800, 301], np.int32)
PEAKS = np.array([np.abs(wav[:length]).max() for wav, length in zip(WAVS, LENGTHS, strict=True)])


def tensor(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def reduce(operator, source, target, axes, keep=0):
    return helper.make_node(operator, [source], [target], axes=axes, keepdims=keep)


def save(path, nodes, inputs, outputs, constants=()):
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(constants))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=8)
    onnx.save(model, path)
    return path


def peak_model(path, shape, out=None, axes=None):
    """max |wav|: what it gives shows which samples it heard."""
    axes = [len(shape) - 1] if axes is None else axes
    nodes = [helper.make_node("Abs", ["wav"], ["a"]), reduce("ReduceMax", "a", "mos", axes)]
    return save(path, nodes, [tensor("wav", shape)], [tensor("mos", out)])


def by_map(model):
    return jax.jit(lambda wavs, lengths: jax.lax.map(lambda pair: model.score({}, *pair), (wavs, lengths)))


@pytest.mark.parametrize("shape", [["T"], ["B", "T"], [1, "T"], ["B", 1, "T"]], ids=str)
def test_scores_of_every_layout_under_vmap_and_map(tmp_path, shape):
    model = onnx_predictor(peak_model(tmp_path / "peak.onnx", shape))
    assert (model.name, model.sample_rate, model.differentiable) == ("peak", 16_000, False)
    assert list(model.weights) == ["peak.onnx"]
    loud_padding = np.where(np.arange(800) < LENGTHS[:, None], WAVS, 9.0).astype(np.float32)
    np.testing.assert_array_equal(jax.jit(jax.vmap(model.score, (None, 0, 0)))({}, loud_padding, LENGTHS), PEAKS)
    np.testing.assert_array_equal(by_map(model)(loud_padding, LENGTHS), PEAKS)
    assert np.isnan(model.score({}, WAVS[0], 0)) and np.isnan(model.score({}, WAVS[0][:0], 0))


def test_long_clips_on_eight_devices_do_not_hang():
    model = host_predictor("last", lambda clips: clips[:, -1:].copy(), sample_rate=16_000, head_names=("last",))
    wavs = np.random.default_rng(1).normal(size=(16, 400_000)).astype(np.float32)
    lengths = np.arange(1, 17, dtype=np.int32) * 25_000
    spec = PartitionSpec("d")
    sharded = jax.shard_map(
        lambda wavs, lengths: jax.lax.map(lambda pair: model.score({}, *pair), (wavs, lengths)),
        mesh=Mesh(np.array(jax.devices()), "d"),
        in_specs=spec,
        out_specs=spec,
        check_vma=False,
    )
    for _ in range(3):
        np.testing.assert_array_equal(jax.jit(sharded)(wavs, lengths), wavs[np.arange(16), lengths - 1])


def test_a_model_that_mixes_its_batch_is_fed_one_clip_at_a_time(tmp_path):
    nodes = [reduce("ReduceMax", "wav", "top", [0, 1], 1), reduce("ReduceMax", "wav", "own", [1], 1)]
    nodes += [helper.make_node("Add", ["top", "own"], ["mos"])]
    path = save(tmp_path / "mix.onnx", nodes, [tensor("wav", ["B", "T"])], [tensor("mos", None)])
    model = onnx_predictor(path)
    scores = jax.vmap(model.score, (None, 0, None))({}, WAVS, 800)
    np.testing.assert_allclose(scores, 2 * WAVS.max(axis=1), rtol=1e-6)


def test_a_fixed_length_model_hears_windows(tmp_path):
    model = onnx_predictor(peak_model(tmp_path / "peak.onnx", ["B", 300]))
    ramp = np.arange(1, 801, dtype=np.float32)
    assert float(model.score({}, ramp, 800)) == pytest.approx((300 + 600 + 800) / 3)
    assert float(model.score({}, ramp, 600)) == pytest.approx(450)
    assert float(model.score({}, ramp, 70)) == 70


def test_further_scalar_outputs_are_heads(tmp_path):
    nodes = [
        reduce("ReduceMin", "x", "noise", [1]),
        reduce("ReduceMax", "x", "mos", [1]),
        helper.make_node("Abs", ["x"], ["frames"]),
    ]
    outputs = [tensor("noise", ["B"]), tensor("frames", ["B", "T"]), tensor("mos", ["B"])]
    path = save(tmp_path / "m.onnx", nodes, [tensor("x", ["B", "T"])], outputs)
    model = onnx_predictor(path, name="many")
    assert (model.name, model.head_names) == ("many", ("mos", "noise"))
    np.testing.assert_array_equal(model.heads({}, WAVS[0], 800), [WAVS[0].max(), WAVS[0].min()])


def test_length_and_rate_inputs_are_fed(tmp_path):
    nodes = [
        helper.make_node("Cast", ["lengths"], ["l"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["sr"], ["r"], to=TensorProto.FLOAT),
        reduce("ReduceMax", "wav", "top", [1]),
        helper.make_node("Mul", ["top", "zero"], ["z"]),
        helper.make_node("Add", ["l", "z"], ["s"]),
        helper.make_node("Add", ["s", "r"], ["mos"]),
    ]
    inputs = [
        tensor("wav", ["B", "T"]),
        tensor("lengths", ["B"], TensorProto.INT64),
        tensor("sr", [], TensorProto.INT64),
    ]
    zero = onnx.numpy_helper.from_array(np.zeros(1, np.float32), "zero")
    path = save(tmp_path / "fed.onnx", nodes, inputs, [tensor("mos", ["B"])], [zero])
    assert float(onnx_predictor(path, sample_rate=8000).score({}, WAVS[0], 500)) == 8500


def test_unclear_models_are_refused_with_their_interface(tmp_path):
    top = [reduce("ReduceMax", "x", "y", [1])]
    path = save(tmp_path / "two.onnx", top, [tensor("x", ["B", "T"]), tensor("z", ["B", "T"])], [tensor("y", ["B"])])
    with pytest.raises(ValueError, match=r"one audio input.*x float\['B', 'T'\], z float.*outputs y"):
        onnx_predictor(path)
    path = save(tmp_path / "mel.onnx", top, [tensor("x", ["B", 900, 120])], [tensor("y", ["B", 120])])
    with pytest.raises(ValueError, match="one audio input"):
        onnx_predictor(path)
    path = save(
        tmp_path / "frames.onnx",
        [helper.make_node("Abs", ["x"], ["y"])],
        [tensor("x", ["B", "T"])],
        [tensor("y", ["B", "T"])],
    )
    with pytest.raises(ValueError, match=r"candidates are none; its inputs are x"):
        onnx_predictor(path)
    nodes = [reduce("ReduceMin", "x", "a", [1]), reduce("ReduceMax", "x", "b", [1])]
    path = save(tmp_path / "ab.onnx", nodes, [tensor("x", ["B", "T"])], [tensor("a", ["B"]), tensor("b", ["B"])])
    with pytest.raises(ValueError, match="candidates are a, b"):
        onnx_predictor(path)
    assert onnx_predictor(path, output="b").head_names == ("b", "a")
    with pytest.raises(ValueError, match="none is called 'c'"):
        onnx_predictor(path, output="c")


def test_files_that_are_no_model(tmp_path):
    whole = peak_model(tmp_path / "peak.onnx", ["B", "T"]).read_bytes()
    for content in (b"", b"RIFF0000WAVE", whole[: len(whole) // 2]):
        (tmp_path / "bad.onnx").write_bytes(content)
        with pytest.raises(ValueError, match="not an ONNX model that onnxruntime can run"):
            onnx_predictor(tmp_path / "bad.onnx")
    with pytest.raises(ValueError, match="no such file"):
        onnx_predictor(tmp_path / "absent.onnx")


def test_gradient_is_refused_in_one_sentence(tmp_path):
    model = onnx_predictor(peak_model(tmp_path / "peak.onnx", ["B", "T"]))
    for gradient in (jax.grad(model.score, 1), jax.jit(jax.grad(model.score, 1))):
        with pytest.raises(ValueError, match=r"^peak is a black box: it has scores but no gradient"):
            gradient({}, WAVS[0], 800)


def test_a_clip_the_model_cannot_take_is_nan_with_a_reason():
    def picky(clips):
        if clips.shape[1] < 400:
            raise RuntimeError("too short for me")
        return clips.max(axis=1, keepdims=True)

    model = host_predictor("picky", picky, sample_rate=16_000, head_names=("score",))
    with pytest.warns(UserWarning, match="picky gave no score to 301 samples: RuntimeError: too short for me"):
        scores = jax.jit(jax.vmap(model.score, (None, 0, 0)))({}, WAVS, LENGTHS)
        assert np.isnan(scores).tolist() == [False, False, False, True]


# -------------------------------------------------------------------------------------------------- callables

MODULE = """
import numpy as np
def peak(wav, sample_rate):
    assert wav.dtype == np.float32
    return np.abs(wav).max(axis=1) * sample_rate
def column(wav, sample_rate): return wav[:, :1]
def broken(wav, sample_rate): raise KeyError("weights")
number = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "my_metric.py").write_text(MODULE)
    (tmp_path / "my_fault.py").write_text("import a_package_nobody_has")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    yield
    __import__("sys").modules.pop("my_metric", None)


def test_a_callable_of_the_current_directory(module):
    model = callable_predictor("my_metric:peak", sample_rate=8000)
    assert (model.name, model.sample_rate, model.differentiable) == ("my_metric:peak", 8000, False)
    np.testing.assert_allclose(by_map(model)(WAVS, LENGTHS), PEAKS * 8000, rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(model.score, (None, 0, 0))({}, WAVS, LENGTHS), PEAKS * 8000, rtol=1e-6)


def test_a_callable_as_it_is():
    """A function, a method's and an object's call: each a predictor by `jh.predictor`."""

    def peak(wavs, rate):
        return np.abs(wavs).max(1)

    class Peak:
        __call__ = staticmethod(peak)

    for given, name in ((peak, "peak"), (Peak(), "Peak"), (Peak().__call__, "peak")):
        model = jh.predictor(given)
        assert name in model.name and model.sample_rate == 16000 and not model.differentiable
        assert model.score(model.params, jnp.array([0.1, -0.5, 0.25]), jnp.int32(3)) == 0.5
    with pytest.raises(ValueError, match="expected scores"):
        jh.predictor(lambda wavs, rate: 1.0)


@pytest.mark.parametrize(
    "spec, message",
    [
        ("my_metric", "expected package.module:function"),
        ("nowhere.at_all:peak", "importing nowhere.at_all failed: ModuleNotFoundError"),
        ("my_fault:peak", "importing my_fault failed: ModuleNotFoundError: No module named 'a_package"),
        ("my_metric:absent", "my_metric has no absent"),
        ("my_metric:number", "expected a callable, got int"),
        ("my_metric:column", r"expected scores \[B\] = \(2,\), got shape \(2, 1\)"),
        ("my_metric:broken", "failed on a trial of wav .*: KeyError: 'weights'"),
    ],
)
def test_faults_of_a_callable(module, spec, message):
    with pytest.raises(ValueError, match=message):
        callable_predictor(spec)


# ----------------------------------------------------------------------------------------- DNSMOS on the host


@pytest.mark.parametrize("port, box", [(dnsmos, dnsmos_onnx), (dnsmos_p808, dnsmos_p808_onnx)], ids=["p835", "p808"])
def test_dnsmos_on_the_host_is_the_port(port, box):
    speechmos = pytest.importorskip("speechmos", reason="needs the official speechmos package")
    folder = Path(speechmos.__file__).parent / "dnsmos_models"
    paths = {weight.file: folder / weight.file for weight in (*DNSMOS_WEIGHTS, *DNSMOS_P808_WEIGHTS)}
    white, black = port(paths), box(paths)
    assert (black.head_names, black.min_samples, black.weights) == (
        white.head_names,
        white.min_samples,
        white.weights,
    )
    wav = jnp.asarray(np.random.default_rng(2).normal(0, 0.05, 80_000), jnp.float32)
    for length in (80_000, 319):
        np.testing.assert_allclose(
            jax.jit(black.heads)({}, wav, length), jax.jit(white.heads)(white.params, wav, length), atol=1e-4
        )
