"""SOMOS, synthetic speech of one voice."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from jaxhack.data.files import rating, settled, table, there, wav
from jaxhack.data.rated import Rated
from jaxhack.registry import unknown

SUBSETS = ("clean", "full")
_SPLITS = {"train": ("train_mos_list.txt", "TRAINSET"), "validation": ("valid_mos_list.txt", "VALIDSET")}
_SPLITS["test"] = ("test_mos_list.txt", "TESTSET")


def somos(folder: Path, *, missing: str = "error", subset: str = "clean") -> list[Rated]:
    """SOMOS: ``somos.zip`` of the record, extracted, and ``audios.zip`` inside it as well.

    `folder` holds ``audios`` and ``training_files``. Means are those of the lists ``*_mos_list.txt`` in
    ``training_files/split1/<subset>``, listener counts the number of lines of ``TRAINSET``, ``VALIDSET`` and
    ``TESTSET`` beside them, where these exist. A system is what stands behind the last ``_`` of a name. Some lists
    leave ``.wav`` out. One voice speaks everything.

    Args:
      folder: where the release lies.
      missing: see :func:`jaxhack.data.read`.
      subset: "clean", the release's own selection, which others report on, or "full".
    """
    if subset not in SUBSETS:
        raise ValueError(unknown("subset", subset, SUBSETS))
    root = folder / "training_files" / "split1" / subset
    lists = {root / means: split for split, (means, _) in _SPLITS.items()}
    found = (item for path in there(list(lists), missing) for item in _listed(folder / "audios", path, lists[path]))
    return settled(found, missing, "The audio is in audios.zip, an archive inside the archive.")


def _listed(audios: Path, path: Path, split: str) -> Iterator[tuple[str, Rated]]:
    single = path.with_name(_SPLITS[split][1])
    lines = table(single, ("utteranceId",)) if single.exists() else ()
    counts = Counter(wav(cells["utteranceId"]) for _, cells in lines)
    for where, cells in table(path, ("utteranceId", "mean")):
        name = wav(cells["utteranceId"])
        mos = rating(cells["mean"], where)
        original, _, system = name.removesuffix(".wav").rpartition("_")
        if not original:
            raise ValueError(f"{where}: expected a name of the form sentence_system.wav, got {name!r}.")
        meta = {"speaker": "LJ", "original": original}
        yield where, Rated(f"{original}_{system}", audios / name, system, mos, counts.get(name), split, meta)
