"""Arrays in ``.npz`` files that anybody may have written: looked at before they are read, and never executed."""

import math
import os
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

Wanted = Mapping[str, tuple[tuple[int | None, ...], np.dtype]]  # name -> shape, None: any; dtype


def read_npz(path: Path, wanted: Wanted, remedy: str) -> dict[str, np.ndarray]:
    """Reads just the arrays that are wanted, as :func:`numpy.savez` writes them.

    Nothing larger than the file is ever in memory: a packed array is refused, and so is one whose header says other
    than what is wanted, before its values are read.

    Args:
      path: the file.
      wanted: every name in it, with its shape, None for an axis of any length, and its dtype.
      remedy: what to do about a file that is not so, for the message: "audit again".

    Raises:
      ValueError: the file is missing, damaged, or holds anything else.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names, found = sorted(archive.namelist()), sorted(f"{name}.npy" for name in wanted)
            if names != found:
                raise ValueError(f"it holds {_some(names)}, expected {_some(found)}")
            for name, (shape, dtype) in wanted.items():
                _check(archive, name, shape, dtype, path.stat().st_size)
            return {name: _values(archive, name) for name in wanted}
    except (OSError, ValueError, EOFError, LookupError, RuntimeError, struct.error, zipfile.BadZipFile) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error or type(error).__name__
        raise ValueError(f"{os.fspath(path)} cannot be read ({why}): {remedy}.") from error


def _check(archive: zipfile.ZipFile, name: str, shape: tuple[int | None, ...], dtype: np.dtype, most: int) -> None:
    """Compares a header, and the number of bytes after it, with what they should be."""
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > most:
        raise ValueError(f"{name!r} is packed")
    with archive.open(info) as file:
        found, kind = _header(file)
        fits = len(found) == len(shape) and all(want in (None, have) for want, have in zip(shape, found, strict=True))
        if not fits or kind != dtype:
            raise ValueError(f"{name!r} is {_described(found, kind)}, expected {_described(shape, dtype)}")
        if file.tell() + math.prod(found) * dtype.itemsize != info.file_size:
            raise ValueError(f"{name!r} is truncated")


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    if npy.read_magic(file) != (1, 0):  # which cannot be longer than 64 kB
        raise ValueError("its format is not numpy's 1.0")
    shape, _, kind = npy.read_array_header_1_0(file)
    return shape, kind


def _values(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(f"{name}.npy") as file:
        return npy.read_array(file, allow_pickle=False)


def _described(shape: tuple[int | None, ...], dtype: np.dtype) -> str:
    return f"{dtype}[{', '.join('any' if size is None else str(size) for size in shape)}]"


def _some(names: list[str]) -> str:
    names = [name.removesuffix(".npy") for name in names]
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "") or "nothing"
