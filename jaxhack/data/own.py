"""A user's own ratings: a folder of audio with a list."""

from collections.abc import Iterator
from pathlib import Path

from jaxhack.data.files import rating, settled, table
from jaxhack.data.rated import Rated
from jaxhack.inputs import ID_COLUMNS, PATH_COLUMNS

LIST = "labels.csv"
_SPLITS = {"": "test", "val": "validation", "valid": "validation", "dev": "validation"}
_SPLITS |= {split: split for split in ("train", "validation", "test")}
_OWN = ("mos", "system", "listeners", "split")


def csv(folder: Path, *, missing: str = "error", scale: tuple[float, float] = (1.0, 5.0)) -> list[Rated]:
    """Ratings of one's own: ``labels.csv`` in `folder`, its only CSV file under another name, or such a file itself.

    It has a column ``mos``, empty where a recording is not rated, and one that names the audio, relative to the list
    (``file``, or as a manifest may call it). It may have ``id``, ``system``, ``listeners`` (how many ratings the mean
    is of), ``split`` (train, validation or test; test where it is empty), ``speaker`` and others, which go to `meta`.
    Each recording is listed once, with its mean.

    Args:
      folder: where the list lies, or the list.
      missing: see :func:`jaxhack.data.read`.
      scale: the lowest and the highest rating there can be.
    """
    path = _list(folder)
    return settled(_listed(path, scale), missing)


def _list(folder: Path) -> Path:
    if not folder.is_dir():
        return folder
    lists = sorted(folder.glob("*.csv"))
    if (folder / LIST).exists():
        return folder / LIST
    if len(lists) != 1:
        raise ValueError(f"expected {LIST!r} or one other CSV file, found {len(lists)}.")
    return lists[0]


def _listed(path: Path, scale: tuple[float, float]) -> Iterator[tuple[str, Rated]]:
    for where, cells in table(path, ("mos",)):
        column = next((name for name in PATH_COLUMNS if cells.get(name)), None)
        if column is None:
            raise ValueError(f"{where} names no audio: expected a value in a column {', '.join(PATH_COLUMNS)}.")
        name = next((cells[key] for key in ID_COLUMNS if cells.get(key)), cells[column])
        mos = rating(cells["mos"], where, scale) if cells["mos"] else None
        count = cells.get("listeners") or None
        if count is not None and not count.isdecimal():
            raise ValueError(f"{where}: expected listeners, a whole number, got {count!r}.")
        split = _SPLITS.get(cells.get("split", ""))
        if split is None:
            raise ValueError(f"{where}: expected a split train, validation or test, got {cells['split']!r}.")
        meta = {key: value for key, value in cells.items() if value and key not in (*_OWN, *ID_COLUMNS, column)}
        if "clean_file" in meta:
            meta["original"] = meta.pop("clean_file")
        system = cells.get("system") or None
        listeners = None if count is None else int(count)
        yield where, Rated(name, path.parent / cells[column], system, mos, listeners, split, meta)
