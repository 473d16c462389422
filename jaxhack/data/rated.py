"""Recordings that people rated, and how their audio is come by.

Every reader gives a list of :class:`Rated` in the order of the release's own lists. Keys of `meta` that mean the same
in every set: ``speaker``, and ``original``, a name that all recordings made from one share (a clean file, a noisy
input, a sentence).
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jaxhack import audio, inputs

_MAGIC = ((b"RIFF", ".wav"), (b"fLaC", ".flac"), (b"OggS", ".ogg"), (b"ID3", ".mp3"), (b"\xff\xfb", ".mp3"))


class Embedded(NamedTuple):
    """A recording inside a Parquet file."""

    file: Path
    row: int  # from 0, over the whole file
    column: str  # a struct with a field ``bytes``: an audio file's content

    def __str__(self) -> str:
        """What a sentence calls it."""
        return f"{self.file} row {self.row + 1}"


class Rated(NamedTuple):
    """One rated recording of a data set."""

    id: str  # unique in its set
    audio: Path | Embedded  # a file, or where in a Parquet file the bytes stand
    system: str | None  # what produced it; None: the set has no system level for it
    mos: float | None  # mean of the listeners' ratings, 1..5 (or the set's own scale); None: not rated
    listeners: int | None  # ratings behind the mean; None: not published
    split: str  # "train", "validation" or "test"
    meta: Mapping[str, str] = {}


def load(rated: Rated, sample_rate: int | None = None) -> np.ndarray:
    """The audio: ``wav [T]`` float32, −1..1, mono, at `sample_rate` Hz (None: its own).

    Nothing is read before it is asked for; recordings in a Parquet file are quickest in their order.

    Raises:
      AudioError: it is missing, or not usable audio.
    """
    return audio.read(source(rated), sample_rate=sample_rate).wav


def source(rated: Rated) -> audio.Source:
    """What :func:`jaxhack.audio.read` takes."""
    where = rated.audio
    return where if isinstance(where, Path) else audio.Bytes(_embedded(where), str(where))


def content(rated: Rated) -> bytes:
    """The audio file as it was published, byte by byte.

    Raises:
      AudioError: it is missing, or no audio.
    """
    found = source(rated)
    audio.probe(found)
    return found.data if isinstance(found, audio.Bytes) else Path(found).read_bytes()


def extract(rated: Iterable[Rated], folder: str | os.PathLike[str]) -> list[Rated]:
    """Writes what is embedded into files, as it was published; recordings that are files stay where they are.

    Args:
      rated: recordings, in the order of the result.
      folder: where the files go, each named after its id; one that is there already with the same content is kept.

    Raises:
      AudioError: one is no audio, or in none of the formats WAV, FLAC, Ogg and MP3.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return [one if isinstance(one.audio, Path) else one._replace(audio=_written(one, folder)) for one in rated]


def utterances(rated: Sequence[Rated]) -> list[inputs.Utterance]:
    """What the rest of the library takes, ids and order kept; `meta` says who speaks and what a split must not part.

    Raises:
      ValueError: audio inside a Parquet file, which an utterance cannot name: :func:`extract` it first.
    """
    return inputs.named((one.id, _file(one), _grouping(one.meta)) for one in rated)


def _file(rated: Rated) -> Path:
    if isinstance(rated.audio, Path):
        return rated.audio
    raise ValueError(
        f"{rated.id!r} lies inside {str(rated.audio.file)!r}, and an utterance is a file: "
        "jaxhack.data.extract(rated, folder) writes such recordings as files."
    )


def _grouping(meta: Mapping[str, str]) -> Mapping[str, str]:
    """What a manifest would say, so that recordings made from one stay together."""
    return {"clean_file": meta["original"], **meta} if "original" in meta else meta


def _written(rated: Rated, folder: Path) -> Path:
    data = content(rated)
    suffix = next((suffix for magic, suffix in _MAGIC if data.startswith(magic)), None)
    if suffix is None:
        raise audio.AudioError(f"{rated.id!r} is neither WAV, FLAC, Ogg nor MP3.")
    path = folder / f"{quote(rated.id, safe=' ')}{suffix}"
    if not path.is_file() or path.read_bytes() != data:
        part = path.with_name(f"{path.name}.part")
        part.write_bytes(data)
        os.replace(part, path)
    return path


def _embedded(where: Embedded) -> bytes:
    """The bytes of one recording; the row group around it, which is read as a whole, is kept for the next."""
    try:
        status = os.stat(where.file)
        file = _opened(where.file, status.st_mtime_ns, status.st_size)
        row, group = where.row, 0
        while row >= (rows := file.metadata.row_group(group).num_rows):
            row, group = row - rows, group + 1
        found = _group(where.file, status.st_mtime_ns, status.st_size, group, where.column)[row].as_py()
    except (pa.ArrowException, OSError, RuntimeError, KeyError) as error:
        raise audio.AudioError(f"{str(where)!r} cannot be read: {' '.join(str(error).split())}") from error
    if found is None or found["bytes"] is None:
        raise audio.AudioError(f"{str(where)!r} holds no audio.")
    return found["bytes"]


@lru_cache(maxsize=1)
def _opened(file: Path, changed: int, size: int) -> pq.ParquetFile:
    return pq.ParquetFile(file)


@lru_cache(maxsize=1)
def _group(file: Path, changed: int, size: int, group: int, column: str) -> pa.ChunkedArray:
    return _opened(file, changed, size).read_row_group(group, columns=[f"{column}.bytes"])[column]
