"""VoiceMOS Challenge 2022: BVCC, its main track, and the out-of-domain track, Blizzard 2019's Mandarin."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from jaxhack.data.files import inside, rating, settled, table, there, wav
from jaxhack.data.rated import Rated

_SPLITS = {"train": ("train_mos_list.txt", "TRAINSET"), "validation": ("val_mos_list.txt", "DEVSET")}
_SPLITS["test"] = ("test_mos_list.txt", "TESTSET")


def bvcc(folder: Path, *, missing: str = "error") -> list[Rated]:
    """BVCC: ``main.tar.gz`` of the record, extracted, and what its scripts add.

    `folder` holds ``main``, or is ``main`` or ``main/DATA``. Means are those of ``sets/*_mos_list.txt``,
    listener counts the number of lines of ``sets/{TRAINSET,DEVSET,TESTSET}``, where these exist. A file's system is
    what stands before the first ``-`` of its name. The archive holds no audio of the Blizzard challenges.
    """
    hint = (
        "The Blizzard samples are not in the archive: 01_get.py, 02_gather.py and 03_preprocess.py in main/ add them."
    )
    return _read(folder, "main", missing, hint)


def ood(folder: Path, *, missing: str = "error") -> list[Rated]:
    """The out-of-domain track: ``ood.tar.gz`` of the record, extracted, and what its scripts add.

    As :func:`bvcc`, below ``ood/DATA``. Some of its lists leave ``.wav`` out. The archive holds labels alone: all
    audio is Blizzard's. The recordings of the unlabelled set are not read: they are there to train without labels.
    """
    hint = "No audio of this track is in the archive, for all is Blizzard's: the scripts of the release add it."
    return _read(folder, "ood", missing, hint)


def _read(folder: Path, name: str, missing: str, hint: str) -> list[Rated]:
    root = inside(folder, f"{name}/DATA", "DATA")
    lists = {root / "sets" / means: split for split, (means, _) in _SPLITS.items()}
    found = (item for path in there(list(lists), missing) for item in _listed(root, path, lists[path]))
    return settled(found, missing, hint)


def _listed(root: Path, path: Path, split: str) -> Iterator[tuple[str, Rated]]:
    ratings = _ratings(root / "sets" / _SPLITS[split][1])
    for where, cells in table(path, ("file", "mos"), header=False):
        name = wav(cells["file"])
        mos = rating(cells["mos"], where)
        system, dash, _ = name.partition("-")
        if not dash:
            raise ValueError(f"{where}: expected a name of the form system-utterance.wav, got {name!r}.")
        count = len(ratings[name]) if name in ratings else None
        yield where, Rated(name[: -len(".wav")], root / "wav" / name, system, mos, count, split)


def _ratings(path: Path) -> dict[str, list[float]]:
    """File -> its ratings; a release without the single ratings has its means all the same."""
    ratings: dict[str, list[float]] = defaultdict(list)
    if path.exists():
        for where, cells in table(path, ("system", "file", "rating"), header=False, more=True):
            ratings[wav(cells["file"])].append(rating(cells["rating"], where))
    return ratings
