"""What experiments read and keep: lists of recordings, small files of runs, tables."""

import csv
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path


def write_list(file: Path, found: Iterable[tuple[str, Path, str]]) -> Path:
    """Writes a list of recordings: ``(id, file, speaker)`` each."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(("id", "file", "speaker"))
        writer.writerows((name, path.resolve(), speaker) for name, path, speaker in found)
    return file


def keep(folder: Path, kept: Path, names: Sequence[str]) -> None:
    """Copies those of the files that are there, each complete or not at all."""
    for name in names:
        if (folder / name).exists():
            kept.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, kept / f"{name}.part")
            os.replace(kept / f"{name}.part", kept / name)


def markdown(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, ["---"] * len(heads), *lines))
