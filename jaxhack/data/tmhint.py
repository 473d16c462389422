"""TMHINT-QI, Mandarin speech in noise and enhanced."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from jaxhack.data.files import Line, inside, rating, settled, table, there, wav
from jaxhack.data.rated import Rated


def tmhint_qi(folder: Path, *, missing: str = "error") -> list[Rated]:
    """TMHINT-QI: ``TMHINTQI.zip``, extracted.

    `folder` is ``TMHINTQI``, or holds it. ``raw_data.csv`` has one line for each rating, some without a quality
    score: the mean is over those that have one, and a recording without any is kept, not rated. A recording is of the
    split whose folder, ``train`` or ``test``, holds it; there is no official validation split. Recordings are in the
    order of their first lines. A system is ``method-SNR<snr>-<noise>``.
    """
    root = inside(folder, "TMHINTQI")
    splits = {part: part.name for part in there([root / "train", root / "test"], missing)}
    return settled(_listed(root / "raw_data.csv", splits), missing)


def _listed(path: Path, splits: dict[Path, str]) -> Iterator[tuple[str, Rated]]:
    columns = ("method", "snr", "noise", "quality_score", "file_name")
    held = {part: {file.name for file in part.iterdir()} for part in splits}
    ratings: dict[str, list[float]] = defaultdict(list)
    lines: dict[str, Line] = {}
    for line in table(path, columns):
        name = wav(line.cells["file_name"])
        first_line = lines.setdefault(name, line)
        if _system(first_line) != _system(line):
            raise ValueError(
                f"{line.where}: {name!r} is of the system {_system(line)}, but of {_system(first_line)} in "
                f"{first_line.where}."
            )
        if score := line.cells["quality_score"]:
            ratings[name].append(rating(score, line.where))
    for name, line in lines.items():
        parts = [part for part in splits if name in held[part]] or list(splits)[:1]
        if len(parts) > 1:
            raise ValueError(f"{line.where}: {name!r} is in {' and in '.join(map(repr, map(str, parts)))}.")
        scores = ratings[name]
        mos = sum(scores) / len(scores) if scores else None
        meta = {"original": line.cells["uttr"]} if line.cells.get("uttr") else {}
        system, split = _system(line), splits[parts[0]]
        yield line.where, Rated(name.removesuffix(".wav"), parts[0] / name, system, mos, len(scores), split, meta)


def _system(line: Line) -> str:
    return f"{line.cells['method']}-SNR{line.cells['snr']}-{line.cells['noise']}"
