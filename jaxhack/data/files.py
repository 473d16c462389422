"""What all readers share: label files line by line, and the checks of what they list."""

import csv
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxhack import inputs
from jaxhack.data.rated import Rated

SKIP = "In Python, jaxhack.data.read(…, missing='skip') goes on with what is there."
_SHOWN = 3  # missing files that a sentence names


class Line(NamedTuple):
    """A line of a label file."""

    where: str  # what a sentence calls it
    cells: Mapping[str, str]  # by column


def inside(folder: Path, *names: str) -> Path:
    """The first of some folders below `folder`, as archives bring them along, else `folder` itself."""
    return next((folder / name for name in names if (folder / name).is_dir()), folder)


def there(paths: Sequence[Path], missing: str) -> list[Path]:
    """Those of a set's parts that exist.

    Raises:
      ValueError: one does not, and `missing` is "error"; or none does.
    """
    absent = [path for path in paths if not path.exists()]
    if absent:
        named = ", ".join(repr(str(path)) for path in absent)
        _absent(f"expected {named}, which is not there.", missing, len(absent) == len(paths))
    return [path for path in paths if path.exists()]


def table(path: Path, columns: Sequence[str], *, header: bool = True, more: bool = False) -> Iterator[Line]:
    """The lines of a CSV file that are not blank.

    Args:
      path: the file, UTF-8.
      columns: those it must have; without a header, what its first ones are.
      header: whether its first line names the columns.
      more: whether a line may have further cells, which are passed over.

    Raises:
      ValueError: it is missing, empty or no such table, lacks a column, or a line has not as many cells as columns
        (a decimal comma splits a number), or a quotation mark is never closed.
    """
    reader = csv.reader(inputs.text_lines(path), strict=True)
    names = None if header else list(columns)
    count = 0
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            where = f"{str(path)!r} line {reader.line_num}"
            if names is None:
                names = [cell.strip() for cell in cells]
                if absent := [column for column in columns if column not in names]:
                    raise ValueError(f"{where}: expected a column {', '.join(absent)}, got {', '.join(names)}.")
                continue
            if len(cells) < len(names) or (len(cells) > len(names) and not more):
                raise ValueError(f"{where}: expected {len(names)} cells ({', '.join(names)}), got {len(cells)}.")
            count += 1
            yield Line(where, dict(zip(names, map(str.strip, cells), strict=False)))
    except csv.Error as error:
        raise ValueError(f"{str(path)!r} line {reader.line_num} is not CSV: {error}.") from error
    if not count:
        raise ValueError(f"{str(path)!r} lists nothing.")


def rating(given: str | float, where: str, scale: tuple[float, float] = (1.0, 5.0)) -> float:
    """A rating, or a mean of some.

    Raises:
      ValueError: it is no number, or not on the scale.
    """
    try:
        value = float(given)
    except (TypeError, ValueError):
        value = float("nan")
    low, high = scale
    if not low <= value <= high:
        raise ValueError(f"{where}: expected a MOS from {low:g} to {high:g}, got {given!r}.")
    return value


def wav(name: str) -> str:
    """A name as its file has it: some lists leave ``.wav`` out, for some of their lines."""
    return name if name.lower().endswith(".wav") else f"{name}.wav"


def settled(found: Iterable[tuple[str, Rated]], missing: str, hint: str = "") -> list[Rated]:
    """The recordings of a set, once every id is unique and every audio file is there.

    Args:
      found: where each is listed, for sentences, and what it is.
      missing: "error" refuses a set with audio files missing; "skip" leaves those recordings out, with a warning.
      hint: a sentence on why audio may be missing from this set.

    Raises:
      ValueError: an id given twice, audio files missing (all of them, if `missing` is "skip").
    """
    listed: dict[str, str] = {}
    rated = []
    for where, one in found:
        if one.id in listed:
            raise ValueError(f"{where}: {one.id!r} is listed twice, first in {listed[one.id]}.")
        listed[one.id] = where
        rated.append(one)
    gone = {one.id: one.audio for one in rated if isinstance(one.audio, Path) and not os.path.isfile(one.audio)}
    if gone:
        named = ", ".join(repr(str(path)) for path in list(gone.values())[:_SHOWN])
        more = ", …" if len(gone) > _SHOWN else ""
        sentence = f"{len(gone)} of {len(rated)} audio files are missing: {named}{more}."
        _absent(f"{sentence} {hint}".rstrip(), missing, len(gone) == len(rated))
    return [one for one in rated if one.id not in gone]


def _absent(sentence: str, missing: str, everything: bool) -> None:
    if everything:
        raise ValueError(sentence)
    if missing == "error":
        raise ValueError(f"{sentence} {SKIP}")
    warnings.warn(f"Left out: {sentence}", stacklevel=4)
