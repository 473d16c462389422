"""The NISQA Corpus."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from jaxhack.data.files import Line, inside, rating, settled, table, there
from jaxhack.data.rated import Rated

_META = ("lang", "con_description", "source", "noi", "col", "dis", "loud", "mos_std")
_UNKNOWN = ("", "nan")


def _read(folder: Path, *, sets: dict[str, str], missing: str = "error") -> list[Rated]:
    """Some sets of the NISQA Corpus: ``NISQA_Corpus.zip``, extracted.

    `folder` is ``NISQA_Corpus``, or holds it. Each set's list is ``<SET>/<SET>_file.csv``; means, votes and the
    ratings of the four dimensions (in `meta`, as written) are its own. A system is a condition (``con``) of its set;
    where every recording has a condition of its own, as in simulated training data, there is no system level.
    `original` is the reference file. The language is what the list says: for LIVETALK some say Dutch, some German.
    """
    root = inside(folder, "NISQA_Corpus")
    lists = {root / name / f"{name}_file.csv": split for name, split in sets.items()}
    found = (item for path in there(list(lists), missing) for item in _listed(path, lists[path]))
    return settled(found, missing)


def _listed(path: Path, split: str) -> Iterator[tuple[str, Rated]]:
    name = path.parent.name
    lines = list(table(path, ("con", "filename_deg", "mos", "votes")))
    repeated = max(Counter(line.cells["con"] for line in lines).values()) > 1
    for line in lines:
        cells = line.cells
        file = cells["filename_deg"]
        meta = {key: cells[key] for key in _META if cells.get(key, "").lower() not in _UNKNOWN}
        if (reference := cells.get("filename_ref", "")).lower() not in _UNKNOWN:
            meta["original"] = reference
        yield (
            line.where,
            Rated(
                f"{name}/{file.removesuffix('.wav')}",
                path.parent / "deg" / file,
                f"{name}/{cells['con']}" if repeated else None,
                rating(cells["mos"], line.where),
                _votes(line),
                split,
                meta,
            ),
        )


def _votes(line: Line) -> int | None:
    text = line.cells["votes"].removesuffix(".0")
    if text.lower() in _UNKNOWN:
        return None
    if not text.isdecimal():
        raise ValueError(f"{line.where}: expected a number of votes, got {text!r}.")
    return int(text)


training = partial(
    _read,
    sets={
        "NISQA_TRAIN_SIM": "train",
        "NISQA_TRAIN_LIVE": "train",
        "NISQA_VAL_SIM": "validation",
        "NISQA_VAL_LIVE": "validation",
    },
)
test_for = partial(_read, sets={"NISQA_TEST_FOR": "test"})
test_livetalk = partial(_read, sets={"NISQA_TEST_LIVETALK": "test"})
test_p501 = partial(_read, sets={"NISQA_TEST_P501": "test"})
