"""Recordings that people rated."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Embedded(NamedTuple):
    """A recording inside a Parquet file."""

    path: Path
    row: int


class Rated(NamedTuple):
    """One rated recording of a data set."""

    id: str  # unique in its set
    audio: Path | Embedded  # a file, or where in a Parquet file the bytes stand
    system: str | None  # what produced it; None: the set has no system level for it
    mos: float | None  # mean of the listeners' ratings, 1..5 (or the set's own scale); None: not rated
    listeners: int | None  # ratings behind the mean; None: not published
    split: str  # "train", "validation" or "test"
    meta: Mapping[str, str] = {}
