"""The reader of .tflite constants: literal values, and refusals of files that are not what they seem."""

import numpy as np
import pytest
from tflite_writer import layer, write_tflite

from ports.tflite_weights import Constant, Operator, read_tflite


def conv(*constants: Constant) -> Operator:
    return Operator("CONV_2D", "model/first/BiasAdd", constants, (1, 8, 1, 2), (2, 1), (3, 1))


def test_values_per_tensor_and_per_channel(tmp_path):
    weight = np.array([[-128, 127], [4, -4]], np.int8).reshape(2, 1, 1, 2)
    bias = np.array([2**30 + 1, -3], np.int32)
    table = np.array([[10, 20, 30]], np.int8)
    shape = np.array([1, -1], np.int32)
    operators = [
        conv(Constant("w", weight), Constant("b", bias)),
        Operator("GATHER", "looked_up", (Constant("table", table),), (1,)),
        Operator("RESHAPE", "flat", (Constant("shape", shape),), (1, 2)),
        Operator("LEAKY_RELU", "active", (), (1, 2)),
    ]
    scales = {"w": ([0.5, 0.25], [0, 0], 0), "b": ([2**-10, 1.0], [0, 0], 0), "table": ([0.1], [10], 0)}
    read = read_tflite(write_tflite(tmp_path / "a.tflite", {"main": operators}, scales))
    assert list(read) == ["main"]
    first, gather, reshape, leaky = read["main"]
    assert (first.kind, first.name, first.in_shape) == ("CONV_2D", "model/first/BiasAdd", (1, 8, 1, 2))
    assert (first.stride, first.dilation) == ((2, 1), (3, 1))
    assert [c.name for c in first.constants] == ["w", "b"]
    np.testing.assert_array_equal(first.constants[0].value.ravel(), np.float32([-64, 63.5, 1, -1]))
    np.testing.assert_array_equal(first.constants[1].value, np.float32([2**20 + 2**-10, -3]))
    np.testing.assert_allclose(gather.constants[0].value, [[0, 1, 2]], atol=1e-6)
    assert first.constants[0].value.dtype == gather.constants[0].value.dtype == np.float32
    np.testing.assert_array_equal(reshape.constants[0].value, shape)
    assert reshape.constants[0].value.dtype == np.int32
    assert leaky.constants == ()


def small(path):
    random = np.random.default_rng(0)
    operators = [
        layer(random, "CONV_2D", "a", (4, 2, 1, 2), 2),
        layer(random, "TRANSPOSE_CONV", "b", (2, 4, 1, 4), 4, 2),
    ]
    return write_tflite(path, {"main": operators}).read_bytes()


def test_truncated_anywhere_is_refused(tmp_path):
    path = tmp_path / "a.tflite"
    data = small(path)
    assert len(read_tflite(path)["main"]) == 2
    for length in range(0, len(data) - 4, 5):
        path.write_bytes(data[:length])
        with pytest.raises(ValueError, match=r"a\.tflite"):
            read_tflite(path)


def test_damage_is_refused_or_harmless(tmp_path):
    """No damage may escape as anything but a ValueError, nor loop for long."""
    path, random = tmp_path / "a.tflite", np.random.default_rng(1)
    data, refused = small(path), 0
    for _ in range(400):
        damaged = bytearray(data)
        for place in random.integers(8, len(data), 4):
            damaged[place] = random.integers(256)
        path.write_bytes(bytes(damaged))
        try:
            read_tflite(path)
        except ValueError as error:
            refused += 1
            assert str(error).count("\n") == 0 and "a.tflite" in str(error)
    assert refused > 100


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04" + bytes(100), b"RIFF\x24\x08\x00\x00WAVEfmt ", b"\x80\x04K\x01."]
)
def test_foreign_file(tmp_path, content):
    path = tmp_path / "a.tflite"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not a TensorFlow Lite file"):
        read_tflite(path)


def test_not_finite(tmp_path):
    operators = [conv(Constant("w", np.float32([[1, np.nan]])))]
    with pytest.raises(ValueError, match=r"constant 'w' has values that are not finite"):
        read_tflite(write_tflite(tmp_path / "a.tflite", {"main": operators}))


def test_scales_that_do_not_fit(tmp_path):
    operators = [conv(Constant("w", np.zeros((3, 2), np.int8)))]
    with pytest.raises(ValueError, match=r"constant 'w' of shape \(3, 2\) has 2 scales on axis 0"):
        read_tflite(write_tflite(tmp_path / "a.tflite", {"main": operators}, {"w": ([1, 2], [0, 0], 0)}))


def test_published_files(shared):
    folder = shared / "models/lyra_v2"
    counts = {}
    for file in ("soundstream_encoder", "lyragan", "quantizer"):
        graphs = read_tflite(folder / f"{file}.tflite")
        counts[file] = {name: len(operators) for name, operators in graphs.items()}
    assert counts == {
        "soundstream_encoder": {"main": 152, "NoOp": 28},
        "lyragan": {"main": 207, "NoOp": 36},
        "quantizer": {"decode": 233, "encode": 555},
    }


def test_published_file_cut_short(shared, tmp_path):
    data = (shared / "models/lyra_v2/lyragan.tflite").read_bytes()
    path = tmp_path / "lyragan.tflite"
    for length in (100, 10_000, len(data) // 2, len(data) - 1000):
        path.write_bytes(data[:length])
        with pytest.raises(ValueError, match=r"lyragan\.tflite (is truncated|cannot be used)"):
            read_tflite(path)
