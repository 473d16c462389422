"""The result of an audit: ``rows.parquet``, one row per utterance × attacker.

Everything that is reported is a function of these rows. Rows are dicts from column to value, in input order;
``None`` stands for a number that is undefined, on the way in (as NaN may) and on the way out.
"""

import math
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Row = dict[str, Any]

# The columns around the panel's, in order. Every row needs the `_REQUIRED`, one whose status is "ok" all.
_BEFORE = {
    "utterance": pa.string(),
    "predictor": pa.string(),
    "space": pa.string(),
    "epsilon": pa.float64(),  # the budget, in the space's unit
    "attacker": pa.string(),
    "seed": pa.int64(),
    "baseline": pa.bool_(),
    "score_input": pa.float64(),
    "score_reference": pa.float64(),
    "score_attacked": pa.float64(),
    "score_attacked_unrounded": pa.float64(),
    "score_repeat": pa.float64(),  # of x̂, asked a second time
    "gain": pa.float64(),
    "gain_naive": pa.float64(),
}
_AFTER = {
    "verdict": pa.string(),
    "verdict_naive": pa.string(),
    "votes": pa.string(),  # measures that call y worse, void votes left out
    "void": pa.string(),  # measures that would, against a reference too good, or too poor, to judge from
    "queries": pa.int64(),  # forward scores per utterance, the training's share included
    "gradients": pa.int64(),  # the same for forward and backward passes
    "slope": pa.float64(),  # RMS over the perturbation of the score's gradient at x̂, where gradients are asked for
    "seconds": pa.float64(),
    "source_rate": pa.int64(),  # Hz, of the file
    "resampled": pa.string(),  # what was done to get to the working rate
    "clipped_samples": pa.int64(),
    "achieved_size": pa.float64(),  # of the perturbation, in the unit of epsilon
    "status": pa.string(),  # "ok", "too_short", "silent", "unreadable", "failed", …
    "reason": pa.string(),
}
_ALWAYS = "utterance predictor space epsilon attacker seed baseline verdict verdict_naive queries gradients status"
_REQUIRED = frozenset([*_ALWAYS.split(), "reason"])
_LATER = ("score_repeat", "slope")  # what older versions did not store; undefined there
_SIDES = ("reference", "attacked")
_PART = re.compile(r"part-(\d{6,})\.parquet")


def measures(columns: Iterable[str]) -> tuple[str, ...]:
    """The measures that a row's columns tell of, in order.

    Raises:
      ValueError: a column is neither one of the schema's nor a measure's, or a measure lacks one of its two.
    """
    found: dict[str, set[str]] = {}
    for column in columns:
        if column in _BEFORE or column in _AFTER:
            continue
        name, _, side = column.rpartition("_")
        if not name or side not in _SIDES:
            raise ValueError(f"rows have no column {column!r}; a measure's columns end in _reference, _attacked")
        found.setdefault(name, set()).add(side)
    for name, sides in found.items():
        if len(sides) < 2:
            raise ValueError(f"measure {name!r} needs both {name}_reference and {name}_attacked")
    return tuple(found)


def schema(measures: Sequence[str]) -> pa.Schema:
    """The columns of ``rows.parquet`` in order, with `measures` as the panel."""
    panel = {f"{name}_{side}": pa.float64() for name in measures for side in _SIDES}
    columns = {**_BEFORE, **panel, **_AFTER}
    return pa.schema([pa.field(name, kind, name not in _REQUIRED) for name, kind in columns.items()])


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not text")
    return str(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError("not a truth value")
    return bool(value)


def _number(value: Any) -> float:
    if isinstance(value, str):
        raise TypeError("not a number")
    return float(value)


_CONVERT: dict[pa.DataType, Callable[[Any], Any]] = {
    pa.string(): _text,
    pa.int64(): operator.index,
    pa.bool_(): _flag,
    pa.float64(): _number,
}


def _value(row: Mapping[str, Any], field: pa.Field) -> Any:
    value = row.get(field.name)
    if value is not None:
        try:
            value = _CONVERT[field.type](value)
        except (TypeError, ValueError):
            raise ValueError(
                f"column {field.name!r} holds {field.type}, got {value!r} (row of {row.get('utterance')!r})"
            ) from None
    if isinstance(value, float) and not math.isfinite(value):
        value = None
    if value is None and not field.nullable:
        raise ValueError(f"column {field.name!r} can't be empty (row of {row.get('utterance')!r})")
    return value


def _table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The rows under their schema, every value checked."""
    layout = schema(measures(dict.fromkeys(column for row in rows for column in row)))
    for row in rows:
        missing = [name for name in layout.names if name not in row and name not in _LATER]
        if missing and row.get("status") == "ok":
            raise ValueError(f"the row of {row.get('utterance')!r} has status ok, but no {', '.join(missing)}")
    columns = [pa.array([_value(row, field) for row in rows], field.type) for field in layout]
    return pa.Table.from_arrays(columns, schema=layout)


def write(path: str | Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows to `path`, whole or not at all: an interruption leaves what was there before.

    A row whose status is not "ok" may leave out what was never computed. What is not finite is stored as null.

    Raises:
      ValueError: a column is unknown, missing or of the wrong type; the sentence names it.
    """
    path = Path(path)
    table = _table(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")  # one name: what a crash leaves is overwritten
    try:
        with open(temporary, "wb") as file:
            pq.write_table(table, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: str | Path) -> list[Row]:
    """The rows in `path`, in their order, numbers in float64, ``None`` where one is undefined.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is truncated or no Parquet file, or its columns are not those of an audit.
    """
    path = Path(path)
    try:
        with open(path, "rb") as file:
            table = pq.read_table(file)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{path} is truncated or not a Parquet file: delete it and compute it again") from error
    try:
        expected = schema(measures(table.column_names))
    except ValueError as error:
        raise ValueError(f"{path} does not hold an audit's rows: {error}") from None
    for name in _LATER:
        if name not in table.column_names:
            table = table.add_column(expected.get_field_index(name), name, pa.nulls(len(table), pa.float64()))
    found = dict(zip(table.schema.names, table.schema.types, strict=True))
    wrong = [field.name for field in expected if found.get(field.name) != field.type]
    if wrong or table.column_names != expected.names:
        problem = f"columns missing or of another type: {', '.join(wrong)}" if wrong else "columns out of order"
        raise ValueError(f"{path} does not hold an audit's rows: {problem}")
    return table.to_pylist()


def part_path(folder: str | Path, index: int) -> Path:
    """Where part `index` of an unfinished run lies."""
    return Path(folder) / f"part-{operator.index(index):06d}.parquet"


def has_part(folder: str | Path, index: int, utterances: Iterable[str]) -> bool:
    """Whether part `index` is there, can be read, and tells of just these utterances: if not, it is to be made anew.

    Which recordings share a part follows from what they hold, and they may have changed since it was written.
    """
    try:
        found = read(part_path(folder, index))
    except (FileNotFoundError, ValueError):
        return False
    return {row["utterance"] for row in found} == set(utterances)


def write_part(folder: str | Path, index: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """Stores the rows of one batch, so that an interruption costs no more than the batch in progress.

    Errors as in :func:`write`.
    """
    write(part_path(folder, index), rows)


def _parts(folder: str | Path) -> list[Path]:
    folder = Path(folder)
    found = [(int(match[1]), path) for path in folder.glob("*") if (match := _PART.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def merge(folder: str | Path, count: int | None = None) -> list[Row]:
    """The rows of the first `count` parts in `folder`, or of all, by part number, each with the columns of all.

    Raises:
      ValueError: a part is damaged; the sentence names it, and deleting it has a resumed run repeat it alone.
    """
    rows = [row for path in _parts(folder)[:count] for row in read(path)]
    layout = schema(measures(dict.fromkeys(column for row in rows for column in row)))
    return [{name: row.get(name) for name in layout.names} for row in rows]


def drop_parts(folder: str | Path) -> None:
    """Removes the parts, once their rows are stored together; the folder too, if nothing else is in it."""
    folder = Path(folder)
    for path in _parts(folder):
        path.unlink()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
