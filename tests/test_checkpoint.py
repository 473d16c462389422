"""Checkpoints from strangers: read exactly, or refused with the reason, and never executed."""

import io
import json
import os
import pickle
import zipfile
from collections import OrderedDict

import numpy as np
import pytest

from ports.checkpoint import check_finite, read_safetensors, read_torch, strict_load


def archive(path, pickled: bytes, records=(), *, prefix="archive/", method=zipfile.ZIP_STORED):
    """Write a file laid out as torch.save lays it out."""
    with zipfile.ZipFile(path, "w", method) as out:
        out.writestr(f"{prefix}data.pkl", pickled)
        for name, content in records:
            out.writestr(f"{prefix}{name}", content)
    return path


def tensor_pickle(dtype="FloatStorage", *, numel=6, offset=0, size=(2, 3), stride=(3, 1), key="0"):
    """The pickle of {"w": tensor}, spelt in opcodes: no torch is needed to write it."""

    def put(value):
        return pickle.dumps(value, 2)[2:-1]  # without the protocol header and the final STOP

    storage = b"(" + put("storage") + f"ctorch\n{dtype}\n".encode() + put(key) + put("cpu") + put(numel) + b"tQ"
    rebuilt = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + put(offset) + put(size) + put(stride)
    rebuilt += put(False) + b"ccollections\nOrderedDict\n)RtR"
    return b"\x80\x02}" + put("w") + rebuilt + b"s."


SIX = np.arange(6, dtype=np.float32)


@pytest.mark.parametrize("prefix", ["archive/", "utmos_state/", ""])
def test_reads_a_tensor_under_any_prefix(tmp_path, prefix):
    path = archive(tmp_path / "a.pt", tensor_pickle(), [("data/0", SIX.tobytes())], prefix=prefix)
    np.testing.assert_array_equal(read_torch(path)["w"], [[0, 1, 2], [3, 4, 5]])


def test_strides_and_offset(tmp_path):
    path = archive(
        tmp_path / "a.pt", tensor_pickle(size=(2, 2), stride=(1, 2), offset=1), [("data/0", SIX.tobytes())]
    )
    np.testing.assert_array_equal(read_torch(path)["w"], [[1, 3], [2, 4]])


@pytest.mark.parametrize("zipped", [True, False])
def test_every_dtype_as_torch_reads_it(tmp_path, zipped):
    torch = pytest.importorskip("torch")
    kinds = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool")
    saved = {kind: torch.tensor([0, 1, 2, 200]).to(getattr(torch, kind)) for kind in kinds}
    saved |= {
        "transposed": torch.arange(6.0).reshape(2, 3).T,
        "scalar": torch.tensor(3),
        "empty": torch.zeros(0, 2),
    }
    saved["slice"] = torch.arange(10.0)[2:9:3]
    path = tmp_path / "kinds.pt"
    torch.save(
        {"args": {"pool": [24, 7], "kernel": (3, 3)}, "state": OrderedDict(saved)},
        path,
        _use_new_zipfile_serialization=zipped,
    )
    read = read_torch(path)
    assert read["args"] == {"pool": [24, 7], "kernel": (3, 3)}
    assert list(read["state"]) == list(saved)
    for name, tensor in saved.items():
        assert str(read["state"][name].dtype) == str(tensor.dtype).removeprefix("torch.")
        assert read["state"][name].shape == tuple(tensor.shape)
        np.testing.assert_array_equal(read["state"][name].astype(np.float64), tensor.double().numpy())


def legacy(path, pickled: bytes, storages, *, keys=None, protocol=1001, little=True):
    """Write a file laid out as torch.save laid it out before PyTorch 1.6."""
    head = (
        0x1950A86A20F9469CFC6C,
        protocol,
        {"protocol_version": protocol, "little_endian": little, "type_sizes": {}},
    )
    content = b"".join(pickle.dumps(value, 2) for value in head) + pickled
    content += pickle.dumps(sorted(storages) if keys is None else keys, 2)
    path.write_bytes(content + b"".join(len(x).to_bytes(8, "little") + x.tobytes() for x in storages.values()))
    return path


def test_legacy_files_are_read_or_refused_with_the_reason(tmp_path):
    path, marker = tmp_path / "a.pt", tmp_path / "executed"
    whole = legacy(path, tensor_pickle(), {"0": SIX}).read_bytes()
    np.testing.assert_array_equal(read_torch(path)["w"], [[0, 1, 2], [3, 4, 5]])
    with pytest.raises(ValueError, match="more than max_bytes=100"):
        read_torch(path, max_bytes=100)
    for keep in range(15, len(whole)):
        path.write_bytes(whole[:keep])
        with pytest.raises(ValueError, match=r"truncated|malformed|beyond the end"):
            read_torch(path)
    path.write_bytes(whole.replace((6).to_bytes(8, "little"), b"\xff" * 8))
    with pytest.raises(ValueError, match="truncated"):
        read_torch(path)
    evil = b"\x80\x02}" + pickle.dumps("w", 2)[2:-1] + pickle.dumps(Malice(marker), 2)[2:-1] + b"s."
    for change, reason in (
        ({"pickled": evil}, r"asks for (posix|nt)\.system.*nothing was executed"),
        ({"keys": ["0", "1"]}, "other storages"),
        ({"keys": 5}, "other storages"),
        ({"protocol": 1000}, "protocol 1001"),
        ({"little": False}, "little-endian"),
        ({"pickled": pickle.dumps([1], 2), "storages": {}}, "holds a list"),
    ):
        legacy(path, **({"pickled": tensor_pickle(), "storages": {"0": SIX}} | change))
        with pytest.raises(ValueError, match=reason):
            read_torch(path)
    assert not marker.exists()


class Malice:
    def __init__(self, marker):
        self.command = f"touch {marker}"

    def __reduce__(self):
        return os.system, (self.command,)


def test_a_pickle_that_calls_the_shell_is_refused_by_name_and_not_run(tmp_path):
    marker = tmp_path / "executed"
    path = archive(tmp_path / "evil.pt", pickle.dumps({"w": Malice(marker)}))
    with pytest.raises(ValueError, match=r"asks for (posix|nt)\.system.*nothing was executed"):
        read_torch(path)
    assert not marker.exists()
    pickle.loads(pickle.dumps(Malice(marker)))  # the payload is real: an ordinary unpickler runs it
    assert marker.exists()


@pytest.mark.parametrize(
    "name", ["builtins eval", "builtins getattr", "torch load", "torch._utils _rebuild_parameter"]
)
def test_other_globals_are_refused_by_name(tmp_path, name):
    path = archive(tmp_path / "a.pt", b"\x80\x02c" + name.replace(" ", "\n").encode() + b"\n.")
    with pytest.raises(ValueError, match=name.replace(" ", r"\.")):
        read_torch(path)


def test_attributes_set_on_a_dictionary_are_dropped(tmp_path):
    shadowed = OrderedDict(a=1)
    shadowed.get = "not a method"
    assert read_torch(archive(tmp_path / "a.pt", pickle.dumps(shadowed, 2))).get("a") == 1


def test_zip_bomb(tmp_path):
    bomb = archive(tmp_path / "bomb.pt", b"\0" * 50_000_000, method=zipfile.ZIP_DEFLATED)
    assert bomb.stat().st_size < 60_000
    with pytest.raises(ValueError, match="zip bomb"):
        read_torch(bomb)
    with pytest.raises(ValueError, match="unpacks to 50000000 bytes, more than max_bytes=1000000"):
        read_torch(bomb, max_bytes=1_000_000)


def test_a_stride_of_zero_cannot_build_more_than_max_bytes(tmp_path):
    huge = tensor_pickle(size=(10**6, 10**6), stride=(0, 0))
    with pytest.raises(ValueError, match="more arrays than max_bytes"):
        read_torch(archive(tmp_path / "a.pt", huge, [("data/0", SIX.tobytes())]))


def test_truncated_at_any_point(tmp_path):
    whole = archive(tmp_path / "a.pt", tensor_pickle(), [("data/0", SIX.tobytes())]).read_bytes()
    for keep in (5, len(whole) // 2, len(whole) - 1):
        cut = tmp_path / "cut.pt"
        cut.write_bytes(whole[:keep])
        with pytest.raises(ValueError, match="truncated"):
            read_torch(cut)


def test_a_flipped_byte_is_noticed(tmp_path):
    path = archive(tmp_path / "a.pt", tensor_pickle(), [("data/0", SIX.tobytes())])
    content = path.read_bytes()
    assert content.count(SIX.tobytes()) == 1
    path.write_bytes(content.replace(SIX.tobytes(), SIX.tobytes()[:-1] + b"\x01"))
    with pytest.raises(ValueError, match="damaged"):
        read_torch(path)


@pytest.mark.parametrize(
    ("pickled", "records", "reason"),
    [
        (tensor_pickle(), [], "lacks its record data/0"),
        (tensor_pickle(), [("data/0", SIX[:5].tobytes())], r"shape \(2, 3\) beyond the end"),
        (tensor_pickle(), [("data/0", b"123")], "malformed"),
        (tensor_pickle(offset=-1), [("data/0", SIX.tobytes())], "without a valid storage, size or stride"),
        (
            tensor_pickle(stride=(3, -1)),
            [("data/0", SIX.tobytes())],
            "without a valid storage, size or stride",
        ),
        (tensor_pickle()[:-20], [("data/0", SIX.tobytes())], "malformed"),
        (b"", [], "malformed"),
        (pickle.dumps([1, 2]), [], "holds a list; expected a dictionary"),
    ],
)
def test_bad_content_gets_its_reason(tmp_path, pickled, records, reason):
    with pytest.raises(ValueError, match=reason):
        read_torch(archive(tmp_path / "a.pt", pickled, records))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (pickle.dumps({"w": 1}), "is a bare pickle"),
        (b"RIFF....WAVE", "not a PyTorch checkpoint"),
        (b"", "not a PyTorch checkpoint"),
    ],
)
def test_files_that_are_no_zip(tmp_path, content, reason):
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(ValueError, match=reason):
        read_torch(tmp_path / "a.pt")


def test_a_zip_of_something_else_and_no_file(tmp_path):
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as out:
        out.writestr("readme.txt", "hello")
    (tmp_path / "a.pt").write_bytes(other.getvalue())
    with pytest.raises(ValueError, match=r"0 records data\.pkl"):
        read_torch(tmp_path / "a.pt")
    with pytest.raises(ValueError, match="is not a file"):
        read_torch(tmp_path / "absent.pt")


# --- safetensors ---


def safetensors(path, header, data=b""):
    """Write a file laid out as safetensors lays it out; the header may be anything."""
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + data)
    return path


def entry(shape=(2, 3), first=0, last=24, dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [first, last]}


def test_safetensors_of_every_dtype_as_written(tmp_path):
    library = pytest.importorskip("safetensors.torch", reason="the reference writer")
    import torch

    kinds = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
    saved = {kind: torch.tensor([[0, 1, 2], [3, 100, 5]]).to(getattr(torch, kind)) for kind in kinds}
    saved |= {"scalar": torch.tensor(3.0), "empty": torch.zeros(0, 2)}
    library.save_file(saved, tmp_path / "a.safetensors", metadata={"format": "pt"})
    read = read_safetensors(tmp_path / "a.safetensors")
    assert set(read) == set(saved)
    for name, tensor in saved.items():
        assert str(read[name].dtype) == str(tensor.dtype).removeprefix("torch.")
        assert read[name].shape == tuple(tensor.shape)
        np.testing.assert_array_equal(read[name].astype(np.float64), tensor.double().numpy())


def test_safetensors_without_the_library(tmp_path):
    header = {"b": entry((2,), 24, 32), "__metadata__": {"format": "pt"}, "a": entry(), "none": entry((0,), 24, 24)}
    read = read_safetensors(safetensors(tmp_path / "a", header, SIX.tobytes() + SIX[:2].tobytes()))
    assert list(read) == ["b", "a", "none"]
    np.testing.assert_array_equal(read["a"], [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(read["b"], [0, 1])
    assert read_safetensors(safetensors(tmp_path / "a", {})) == {}


def test_safetensors_truncated_at_any_byte(tmp_path):
    whole = safetensors(tmp_path / "a", {"a": entry()}, SIX.tobytes()).read_bytes()
    for keep in range(len(whole)):
        (tmp_path / "cut").write_bytes(whole[:keep])
        with pytest.raises(ValueError, match="fetch it again"):
            read_safetensors(tmp_path / "cut")


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"a": entry(dtype="F8_E4M3")}, "tensor a has dtype 'F8_E4M3'; expected one of F64, F32"),
        ({"a": entry(dtype=["F32"])}, "tensor a has dtype"),
        ({"a": entry(), "b": entry((2,), 16, 24)}, "tensor b begins at byte 16, expected 24: a gap or an overlap"),
        ({"a": entry(), "b": entry()}, "tensor b begins at byte 0, expected 24: a gap or an overlap"),
        ({"a": entry((2, 2), 8, 24)}, "tensor a begins at byte 8, expected 0: a gap or an overlap"),
        ({"a": entry((2, 2), 0, 16)}, "has 24 bytes of tensors and its header describes 16"),
        ({"a": entry((10**9,), 0, 4 * 10**9)}, "has 24 bytes of tensors and its header describes 4000000000"),
        ({"a": entry((2, 2))}, r"shape \[2, 2\], does not fill its bytes \[0, 24\]"),
        ({"a": entry(first=24, last=0)}, r"does not fill its bytes \[24, 0\]"),
        ({"a": entry((0, 2**62), 0, 0)}, "impossible shape"),
        ({"a": entry((2**40, 2**40))}, "impossible shape"),
        ({"a": entry((1,) * 40, 0, 4)}, "not lists of sizes"),
        ({"a": entry((-2, -3))}, "not lists of sizes"),
        ({"a": entry((2.0, 3))}, "not lists of sizes"),
        ({"a": entry((True, 6))}, "not lists of sizes"),
        ({"a": entry() | {"data_offsets": [0, 12, 24]}}, "not lists of sizes"),
        ({"a": entry() | {"shape": "23"}}, "not lists of sizes"),
        ({"a": {"dtype": "F32", "shape": [6]}}, "not described by dtype, shape and data_offsets"),
        ({"a": [0, 24]}, "not described by dtype, shape and data_offsets"),
        ([entry()], "header that is a list"),
        (b'{"a": 1, "a": 1}', "a name occurs twice"),
        (b'{"a": ', "no readable header"),
        (b"\xff\xfe", "no readable header"),
        (b"[" * 100_000, "no readable header"),
    ],
)
def test_hostile_safetensors_get_their_reason(tmp_path, header, reason):
    with pytest.raises(ValueError, match=reason):
        read_safetensors(safetensors(tmp_path / "a", header, SIX.tobytes()))


def test_safetensors_that_are_none(tmp_path):
    (tmp_path / "a").write_bytes(b"\xff" * 100)  # a header of 2⁶⁴ bytes
    with pytest.raises(ValueError, match="ends before its header does"):
        read_safetensors(tmp_path / "a")
    with pytest.raises(ValueError, match="has 100 bytes, more than max_bytes=99"):
        read_safetensors(tmp_path / "a", max_bytes=99)
    with pytest.raises(ValueError, match="is not a file"):
        read_safetensors(tmp_path / "absent")


# --- what was read ---


def test_strict_load_names_every_difference():
    tensors = {"a": np.zeros((2, 3)), "b": np.zeros(4), "extra": np.zeros(1), "steps": np.array(7)}
    shapes = {"a": (3, 2), "b": (4,), "c": (1,)}
    with pytest.raises(ValueError, match=r"missing c; left over extra; misshapen a \(2, 3\), expected \(3, 2\)"):
        strict_load(tensors, shapes, ignore=("steps",))
    loaded = strict_load({"b": np.ones(4), "steps": np.array(7)}, {"b": (4,)}, ignore=("steps",))
    assert list(loaded) == ["b"] and loaded["b"].dtype == np.float32


def test_weights_that_are_not_finite_are_named():
    with pytest.raises(ValueError, match="not finite in b, c;"):
        check_finite({"a": np.zeros(2), "b": np.array([0, np.nan]), "c": np.array([np.inf])})
    with pytest.raises(ValueError, match="not finite in b"):
        strict_load({"b": np.array([np.nan])}, {"b": (1,)})
