"""The rated speech of the URGENT challenges, 2024 and 2025: Parquet files with the audio inside."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from jaxhack.data.files import rating, settled, there
from jaxhack.data.rated import Embedded, Rated

_OF = re.compile(r"(.*-)\d{5}(-of-(\d{5})\.parquet)")  # test-00000-of-00003.parquet


def urgent2024(folder: Path, *, missing: str = "error") -> list[Rated]:
    """URGENT 2024: the Parquet files of ``urgent2024_mos``, split test, or ``urgent2024-sqa``, split blind_test_mos.

    `folder` holds them, at any depth. Ids are ``Pxxx-fileid_n``. The system is the column ``system_id`` where that is
    something else than the id, else what stands before the first ``-`` of the id; 23 systems, one of them the noisy
    input, have the same inputs, and `original` names the input. ``raw_ratings`` are counted, where they are
    published.
    """
    return _read(folder, ("test", "blind_test_mos"), missing)


def urgent2025(folder: Path, *, missing: str = "error") -> list[Rated]:
    """URGENT 2025: the Parquet files of the split ``blind_test_mos`` of the repository ``urgent2025-sqa``.

    As :func:`urgent2024`. Unconfirmed: how many systems and listeners there are, and whether ``raw_ratings`` are
    published; without them listeners are not counted. A recording whose ``mos`` is null is not rated. Other splits
    have no ratings and are not read.
    """
    return _read(folder, ("blind_test_mos",), missing)


def _read(folder: Path, splits: Sequence[str], missing: str) -> list[Rated]:
    shards = {split: sorted(folder.rglob(f"{split}-*.parquet")) for split in splits}
    found = [split for split in splits if shards[split]]
    if len(found) != 1:
        expected = " or ".join(f"{split}-00000-of-….parquet" for split in splits)
        raise ValueError(f"expected {expected}, found {'both' if found else 'no such file'}.")
    files = [place for shard in shards[found[0]] for place in _complete(shard)]
    return settled((item for file in there(list(dict.fromkeys(files)), missing) for item in _listed(file)), missing)


def _complete(shard: Path) -> list[Path]:
    """All shards that the name of one tells of."""
    match = _OF.fullmatch(shard.name)
    count = int(match[3]) if match else 1
    return [shard.with_name(f"{match[1]}{i:05d}{match[2]}") for i in range(count)] if match else [shard]


def _listed(file: Path) -> Iterator[tuple[str, Rated]]:
    rows = _rows(file)
    recover = all(row["system_id"] in (None, row["id"]) for row in rows)
    for number, row in enumerate(rows):
        where = f"{str(file)!r} row {number + 1}"
        name, system = row["id"], row["system_id"]
        if recover:
            system, dash, _ = name.partition("-")
            if not dash:
                raise ValueError(f"{where}: there is no system_id, and no system before a '-' in the id {name!r}.")
        mos = None if row["mos"] is None else rating(row["mos"], where)
        ratings = row["raw_ratings"]
        listeners = None if ratings is None else len(ratings)
        meta = {"original": "_".join(name.rpartition("-")[2].split("_")[-2:])}
        yield (
            where,
            Rated(name, Embedded(file, number, "audio"), system, mos, listeners, "test", meta),
        )


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_null(kind)


def _rows(file: Path) -> list[Mapping[str, Any]]:
    """All columns but the audio."""
    try:
        with pq.ParquetFile(file) as parquet:
            schema = parquet.schema_arrow
            name = "id" if "id" in schema.names else "sample_id"
            if absent := [column for column in (name, "audio", "mos") if column not in schema.names]:
                raise ValueError(
                    f"{str(file)!r}: expected a column {', '.join(absent)}, got {', '.join(schema.names)}."
                )
            audio = schema.field("audio").type
            if not pa.types.is_struct(audio) or audio.get_field_index("bytes") < 0:
                raise ValueError(f"{str(file)!r}: expected audio as a struct with the field bytes, got {audio}.")
            if "raw_ratings" in schema.names and not _is_list(schema.field("raw_ratings").type):
                raise ValueError(
                    f"{str(file)!r}: expected raw_ratings as lists, got {schema.field('raw_ratings').type}."
                )
            wanted = [name, "mos", *(c for c in ("system_id", "raw_ratings") if c in schema.names)]
            rows = parquet.read(columns=wanted).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{str(file)!r} is truncated or not a Parquet file.") from error
    return [{"system_id": None, "raw_ratings": None, **row, "id": str(row[name])} for row in rows]
