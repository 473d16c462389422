"""PyTorch and safetensors checkpoints as NumPy arrays: without running anything found in the file.

A pickle is a program that names functions to call. The reader here knows four names, the ones that rebuild a
plain tensor in an ordered dictionary, and refuses a file that asks for any other. A safetensors file is a table in
JSON and the tensors behind it; the reader here takes it only if each byte belongs to exactly one tensor.
"""

import io
import json
import math
import pickle
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

_DTYPES = {
    "FloatStorage": np.dtype(np.float32),
    "DoubleStorage": np.dtype(np.float64),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype(np.int64),
    "IntStorage": np.dtype(np.int32),
    "ByteStorage": np.dtype(np.uint8),
    "BoolStorage": np.dtype(np.bool_),
}

_SAFE_DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_MOST_AXES = 32  # of a tensor

_RATIO = 200  # a deflated record that unpacks to more than this many times its size is a bomb; torch stores


class _StorageType(NamedTuple):
    """Stands for ``torch.FloatStorage`` and its like: data, nothing that can be called or altered."""

    name: str


_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # two pickles before that of the tensors, in the older format


class _OrderedDict(dict):
    """Stands for ``collections.OrderedDict``, keeps order and drops attributes a pickle would set on it."""

    def __setstate__(self, state: Any) -> None:
        """Forget ``state``: torch keeps version numbers there, a stranger could shadow methods."""


def read_torch(path: str | Path, *, max_bytes: int = 2**31) -> dict[str, Any]:
    """Read a PyTorch checkpoint (``torch.save``): a zip file since PyTorch 1.6, a row of pickles before.

    Args:
        path: the file, whatever its name ends in.
        max_bytes: the most bytes that its records, and the arrays built from them, may take.

    Returns:
        The saved dictionary; tensors are NumPy arrays, which may be read-only.

    Raises:
        ValueError: not such a file, truncated, larger than ``max_bytes`` when unpacked, a record is missing,
            or its pickle names anything but plain tensors. Nothing in the file is executed in any case.
    """
    path = Path(path)
    value = _read_legacy(path, max_bytes) if _is_legacy(path) else _read_zip(path, max_bytes)
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}; expected a dictionary of tensors.")
    return value


def _read_zip(path: Path, max_bytes: int) -> Any:
    with _open(path) as archive:
        try:
            prefix = _prefix(path, archive.namelist())
            _check_sizes(path, archive.infolist(), max_bytes)
            if archive.NameToInfo.get(f"{prefix}byteorder") and archive.read(f"{prefix}byteorder") != b"little":
                raise ValueError(f"{path} is saved big-endian; save it on a little-endian machine.")
            pickled = io.BytesIO(archive.read(f"{prefix}data.pkl"))
            return _Reader(path, pickled, lambda key: archive.read(f"{prefix}data/{key}"), max_bytes).load()
        except (
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            NotImplementedError,
            RuntimeError,
            OSError,
        ) as error:
            raise ValueError(f"{path} is damaged or truncated ({error}); fetch it again.") from error


def _is_legacy(path: Path) -> bool:
    """Whether a file begins with the pickle of the older format's magic number."""
    start = pickle.dumps(_MAGIC, 2)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(start)) == start


def _read_legacy(path: Path, max_bytes: int) -> Any:
    """The older format: pickles of magic number, protocol, machine, tensors and storage names, then the storages.

    A storage is its number of elements and these, without their type, which the tensors name. So the pickle of the
    tensors is read twice, first for the types.
    """
    if path.stat().st_size > max_bytes:
        raise ValueError(f"{path} has {path.stat().st_size} bytes, more than max_bytes={max_bytes}.")
    file = io.BytesIO(path.read_bytes())

    storages: dict[str, bytes] = {}

    def reader() -> _Reader:
        return _Reader(path, file, storages.__getitem__, max_bytes)

    _, protocol, machine = reader().load(), reader().load(), reader().load()
    if protocol != _PROTOCOL or not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise ValueError(f"{path} is not of protocol {_PROTOCOL} and little-endian; load and torch.save it again.")
    tensors, survey = file.tell(), _Survey(path, file, storages.__getitem__, max_bytes)
    survey.load()
    keys = reader().load()
    if not isinstance(keys, list) or keys != sorted(survey.types):
        raise ValueError(f"{path} lists other storages than its tensors name; fetch it again.")
    for key in keys:
        size = int.from_bytes(file.read(8), "little") * survey.types[key].itemsize
        if size > path.stat().st_size - file.tell():
            raise ValueError(f"{path} is truncated: it ends before its storage {key}; fetch it again.")
        storages[key] = file.read(size)
    file.seek(tensors)
    return reader().load()


def read_safetensors(path: str | Path, *, max_bytes: int = 2**31) -> dict[str, np.ndarray]:
    """Read a safetensors file: https://github.com/huggingface/safetensors#format.

    Args:
        path: the file, whatever its name ends in.
        max_bytes: the most bytes that it may have.

    Returns:
        Name -> array, read-only, in the order of the header; the metadata is dropped.

    Raises:
        ValueError: not such a file, truncated, larger than ``max_bytes``, a tensor of unknown dtype or whose size is
            not that of its shape, or bytes that belong to two tensors or to none.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} is not a file; expected a safetensors checkpoint.")
    if path.stat().st_size > max_bytes:
        raise ValueError(f"{path} has {path.stat().st_size} bytes, more than max_bytes={max_bytes}.")
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    if len(content) < 8 or start > len(content):
        raise ValueError(f"{path} ends before its header does: truncated, or not a safetensors file; fetch it again.")
    try:
        header = json.loads(content[8:start].decode(), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} has no readable header ({error}); expected a safetensors file.") from error
    if not isinstance(header, dict):
        raise ValueError(f"{path} has a header that is a {type(header).__name__}; expected a table of tensors.")
    header.pop("__metadata__", None)
    spans = {name: _span(path, name, entry) for name, entry in header.items()}
    end = 0
    for name, (_, _, first, last) in sorted(spans.items(), key=lambda item: item[1][2:]):
        if first != end:
            raise ValueError(f"{path}: tensor {name} begins at byte {first}, expected {end}: a gap or an overlap.")
        end = last
    if end != len(content) - start:
        raise ValueError(
            f"{path} has {len(content) - start} bytes of tensors and its header describes {end}; fetch it again."
        )
    return {
        name: np.frombuffer(content, dtype, math.prod(shape), start + first).reshape(shape)
        for name, (dtype, shape, first, _) in spans.items()
    }


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _span(path: Path, name: str, entry: Any) -> tuple[np.dtype, tuple[int, ...], int, int]:
    """Dtype, shape, first byte and the byte after the last one of a tensor, as its header's entry says."""
    try:
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: tensor {name} is not described by dtype, shape and data_offsets.") from error
    if not isinstance(dtype, str) or dtype not in _SAFE_DTYPES:
        raise ValueError(f"{path}: tensor {name} has dtype {dtype!r}; expected one of {', '.join(_SAFE_DTYPES)}.")
    lists = isinstance(shape, list) and isinstance(offsets, list) and len(shape) <= _MOST_AXES and len(offsets) == 2
    if not lists or not all(type(n) is int and n >= 0 for n in shape + offsets):
        raise ValueError(f"{path}: tensor {name} has a shape or data_offsets that are not lists of sizes.")
    itemsize = _SAFE_DTYPES[dtype].itemsize
    if math.prod(max(n, 1) for n in shape) * itemsize >= 2**63:  # more than an array can be, even an empty one
        raise ValueError(f"{path}: tensor {name} has the impossible shape {shape}.")
    if offsets[1] - offsets[0] != math.prod(shape) * itemsize:
        raise ValueError(f"{path}: tensor {name}, {dtype} of shape {shape}, does not fill its bytes {offsets}.")
    return _SAFE_DTYPES[dtype], tuple(shape), offsets[0], offsets[1]


def check_finite(tensors: Mapping[str, np.ndarray]) -> None:
    """Raise ``ValueError`` naming the tensors that hold NaN or infinity."""
    bad = [name for name, x in tensors.items() if not np.all(np.isfinite(np.asarray(x, np.float64)))]
    if bad:
        raise ValueError(f"Weights are not finite in {_names(bad)}; the file is damaged or training diverged.")


def strict_load(
    tensors: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], *, ignore: Collection[str] = ()
) -> dict[str, np.ndarray]:
    """Check that ``tensors`` are exactly those of ``shapes``, and return them as finite float32.

    Args:
        tensors: name -> array, as read from a file.
        shapes: name -> shape: every tensor the model needs.
        ignore: names in ``tensors`` that the model knows of and does not use (``num_batches_tracked``).

    Raises:
        ValueError: a name is missing, left over, or of another shape, each named; or a value is not finite.
    """
    missing = [name for name in shapes if name not in tensors]
    left_over = [name for name in tensors if name not in shapes and name not in ignore]
    wrong = [
        f"{name} {np.shape(tensors[name])}, expected {shape}"
        for name, shape in shapes.items()
        if name in tensors and np.shape(tensors[name]) != shape
    ]
    problems = [
        f"{what} {_names(names)}"
        for what, names in (("missing", missing), ("left over", left_over), ("misshapen", wrong))
        if names
    ]
    if problems:
        raise ValueError(f"These are not the weights of this model: {'; '.join(problems)}.")
    arrays = {name: np.asarray(tensors[name], np.float32) for name in shapes}
    check_finite(arrays)
    return arrays


def _names(names: Iterable[str], most: int = 6) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _open(path: Path) -> zipfile.ZipFile:
    if not path.is_file():
        raise ValueError(f"{path} is not a file; expected a PyTorch checkpoint.")
    with path.open("rb") as file:
        head = file.read(4)
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        if head == b"PK\x03\x04":
            reason = "is a truncated zip file; fetch it again"
        elif head[:1] == b"\x80":
            reason = "is a bare pickle and is not opened; torch.save a dictionary of tensors"
        else:
            reason = "is not a PyTorch checkpoint; expected what torch.save writes"
        raise ValueError(f"{path} {reason}.") from error


def _prefix(path: Path, names: list[str]) -> str:
    """The folder all records share: ``archive/``, or the name the file had when it was saved."""
    if len(set(names)) != len(names):
        raise ValueError(f"{path} holds two records of one name; expected what torch.save writes.")
    found = [n.removesuffix("data.pkl") for n in names if n == "data.pkl" or n.endswith("/data.pkl")]
    if len(found) != 1:
        raise ValueError(f"{path} holds {len(found)} records data.pkl, expected one: not a torch.save file.")
    return found[0]


def _check_sizes(path: Path, records: list[zipfile.ZipInfo], max_bytes: int) -> None:
    total = sum(record.file_size for record in records)
    if total > max_bytes:
        raise ValueError(f"{path} unpacks to {total} bytes, more than max_bytes={max_bytes}.")
    packed = sum(record.compress_size for record in records)
    if total > _RATIO * max(packed, 1) or packed > path.stat().st_size:
        raise ValueError(f"{path} unpacks {packed} bytes to {total}: a zip bomb, not a checkpoint.")


class _Reader(pickle.Unpickler):
    """An unpickler whose only callables are an ordered dictionary and a tensor over the file's records."""

    def __init__(self, path: Path, file: io.BytesIO, record: Callable[[str], bytes], max_bytes: int):
        super().__init__(file)
        self._path, self._left = path, max_bytes
        self._record = record  # raises KeyError for what is not there
        self._storages: dict[str, np.ndarray] = {}
        self._globals: dict[tuple[str, str], Any] = {
            ("collections", "OrderedDict"): _OrderedDict,
            # A fresh closure, so that a pickle which sets attributes on it spoils nothing beyond this read.
            ("torch._utils", "_rebuild_tensor_v2"): lambda *args: self._tensor(*args),
        }

    def load(self) -> Any:
        """Unpickle; whatever goes wrong inside is the file's fault, in one sentence."""
        try:
            return super().load()
        except _Refused as error:
            raise ValueError(str(error)) from None
        except (zipfile.BadZipFile, zlib.error):
            raise
        except Exception as error:
            raise ValueError(f"{self._path}: its pickle is malformed ({error!r}); fetch it again.") from error

    def find_class(self, module: str, name: str) -> Any:
        """The few names that a dictionary of tensors needs; any other is refused by its name."""
        if module == "torch" and name in _DTYPES:
            return _StorageType(name)
        if (module, name) in self._globals:
            return self._globals[module, name]
        raise _Refused(
            f"{self._path} asks for {module}.{name}, which is not part of a plain tensor; refused, and "
            "nothing was executed: save the state dict alone."
        )

    def persistent_load(self, pid: Any) -> np.ndarray:
        """The flat storage ``("storage", type, key, location, elements)``."""
        key, dtype = self._storage(pid)
        if key not in self._storages:
            try:
                self._storages[key] = np.frombuffer(self._record(key), np.uint8)
            except KeyError:
                raise _Refused(f"{self._path} lacks its record data/{key}; fetch it again.") from None
        return self._storages[key].view(dtype)

    def _storage(self, pid: Any) -> tuple[str, np.dtype]:
        """Name and type of a storage; the older format has a sixth field, for views, which are not made since."""
        kind, storage, key, _, _, *part = pid
        whole = kind == "storage" and part in ([], [None])
        if not whole or not isinstance(storage, _StorageType) or not isinstance(key, str):
            raise _Refused(f"{self._path} refers to {pid!r}; expected a tensor's storage.")
        return key, _DTYPES[storage.name]

    def _tensor(self, storage: np.ndarray, offset: int, size: tuple, stride: tuple, *_: Any) -> np.ndarray:
        whole = all(type(n) is int and n >= 0 for n in (offset, *size, *stride))
        if not isinstance(storage, np.ndarray) or not whole or len(size) != len(stride):
            raise _Refused(f"{self._path} holds a tensor without a valid storage, size or stride.")
        items = math.prod(size)
        last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if items else 0
        if items and last >= storage.size:
            raise _Refused(f"{self._path} holds a tensor of shape {size} beyond the end of its record.")
        self._left -= items * storage.itemsize  # a stride of 0 makes much out of little
        if self._left < 0:
            raise _Refused(f"{self._path} builds more arrays than max_bytes allows.")
        if not items:
            return np.zeros(size, storage.dtype)
        steps = tuple(s * storage.itemsize for s in stride)
        return np.array(np.lib.stride_tricks.as_strided(storage[offset:], size, steps))


class _Survey(_Reader):
    """Reads of what type each storage is, and makes no tensor."""

    types: dict[str, np.dtype]

    def load(self) -> Any:
        """See the class."""
        self.types = {}
        return super().load()

    def persistent_load(self, pid: Any) -> Any:
        """See the class."""
        key, dtype = self._storage(pid)
        self.types[key] = dtype

    def _tensor(self, *_: Any) -> Any:
        return None


class _Refused(pickle.UnpicklingError):
    """A whole sentence for the caller, told apart from what a broken pickle raises by itself."""
