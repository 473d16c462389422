"""Which recordings a run uses: files, folders, manifests and Kaldi lists become utterances; and their splits.

Utterances that share a speaker, or come from one clean recording, share a `group`; splits never part a group.
"""

import csv
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from jaxhack import audio
from jaxhack.audio import SUFFIXES
from jaxhack.run import RECORD

DEMO = Path(__file__).parent / "demo" / "manifest.csv"  # what an audit without recordings is of
PATH_COLUMNS = ("path", "file", "filename", "audio", "wav")  # the first that a manifest has names the audio
ID_COLUMNS = ("id", "utterance")
SAID = ("mos", "system", "speaker")  # of a recording; a run takes one value of each
_BEGINNING = 2**20  # bytes of a file that its fingerprint reads
_HEARD = 30.0  # s of a recording that its digest reads

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]  # one alone, or many


class Utterance(NamedTuple):
    """One recording of a run."""

    id: str  # unique in its run: the path as given or relative to its folder, or the id a list gives
    path: Path
    speaker: str | None
    group: str  # what a split must not part
    meta: Mapping[str, str] = {}  # further columns of a manifest


class _Found(NamedTuple):
    """An utterance before names and groups are settled."""

    path: Path
    names: tuple[str, ...]  # ids to try, shortest first; one that a list gave stands alone
    meta: Mapping[str, str]


def several(given: Any) -> list[Any]:
    """What a caller names where there may be many: one path, predictor or codec alone is a list of one."""
    alone = isinstance(given, str | os.PathLike) or callable(given) or hasattr(given, "_fields")
    return [given] if alone else list(given)


def collect(paths: Paths) -> list[Utterance]:
    """Lists the utterances of files, folders, manifests (.csv, .jsonl) and Kaldi lists (.scp), in order.

    A folder is walked to its end in sorted order, without hidden names and without folders that an audit wrote. A
    `manifest.csv` beside audio, with a column `path` or `file`, adds its columns to the files it names. A manifest's
    paths are relative to the manifest. Nothing is opened but lists: a file that is not audio is listed, and reading
    it says why not.

    Raises:
      ValueError: a path that does not exist, no audio at all, a broken list, an id used twice, or a file named twice
        with another rating, system or speaker.
    """
    beside = lru_cache(maxsize=None)(_beside)  # for this call alone: folders change
    found: list[_Found] = []
    known: list[Mapping[str, str]] = []  # every manifest row seen: they say who spoke in a clean file
    paths = several(paths)
    for given in paths:
        if not os.fspath(given):
            raise ValueError("A path is empty: name a file or folder, '.' for the current one.")
        path = Path(given)
        if os.path.isdir(path):
            new, rows = _walk(path, beside)
        elif path.suffix.lower() in (".csv", ".jsonl"):
            new = list(_manifest(path))
            rows = [item.meta for item in new]
        elif path.suffix.lower() == ".scp":
            new, rows = list(_kaldi(path)), []
        elif os.path.lexists(path):
            meta = beside(path.parent)
            new = [_Found(path, (path.name, str(path)), meta.get(os.path.abspath(path), {}))]
            rows = list(meta.values())
        else:
            raise ValueError(f"{str(path)!r} does not exist.")
        found += new
        known += rows
    found = _once(found)
    if not found:
        shown = ", ".join(repr(os.fspath(p)) for p in paths) or "nothing"
        raise ValueError(f"No audio in {shown}: expected files ending in {' '.join(sorted(SUFFIXES))}.")
    return _settled(found, known)


def split(
    utterances: Sequence[Utterance], *, test_fraction: float = 0.5, seed: int = 0
) -> tuple[list[Utterance], list[Utterance]]:
    """Parts utterances into train and test so that no group is on both sides; the same every time.

    Args:
      utterances: what to part; each side keeps their order.
      test_fraction: the share of utterances wanted in the test set, above 0 and below 1; met as closely as
        whole groups allow.
      seed: another one gives another split.

    Raises:
      ValueError: a fraction out of range, or fewer than two groups.
    """
    if not 0 < test_fraction < 1:
        raise ValueError(f"Expected a test fraction above 0 and below 1, got {test_fraction}.")
    groups = _grouped(utterances, seed)
    if len(groups) < 2:
        raise ValueError(
            f"Expected utterances of at least two speakers (or sources) to split, got {len(groups)}: add some, "
            "or give the test set yourself."
        )
    wanted = test_fraction * len(utterances)
    test: set[str] = set()
    count = 0
    for group, members in groups.items():
        closer = abs(count + len(members) - wanted) < abs(count - wanted)
        if closer and len(test) < len(groups) - 1:
            test.add(group)
            count += len(members)
    test = test or {min(groups, key=lambda group: len(groups[group]))}
    return [u for u in utterances if u.group not in test], [u for u in utterances if u.group in test]


def named(recordings: Iterable[tuple[str, Path, Mapping[str, str]]]) -> list[Utterance]:
    """Utterances of recordings that have their ids: ``(id, path, meta)``, `meta` as a manifest's further columns.

    Raises:
      ValueError: an id used twice.
    """
    return _settled([_Found(path, (name,), meta) for name, path, meta in recordings], [])


def check_speakers(utterances: Sequence[Utterance]) -> str | None:
    """A warning where a split may part a voice, because nothing says who speaks, else None."""
    unknown = [u for u in utterances if u.speaker is None]
    if not unknown:
        return None
    return (
        f"Nothing says who speaks in {len(unknown)} of {len(utterances)} recordings, such as {unknown[0].id!r}: "
        "a voice may be both in training and in test. A .csv with the columns file and speaker keeps voices apart."
    )


def is_demo(utterance: Utterance) -> bool:
    """Whether this is a clip of the demo speech that ships with the package, however it was named."""
    return os.path.realpath(utterance.path.parent) == os.path.realpath(DEMO.parent)


def fingerprint(utterances: Sequence[Utterance]) -> str:
    """A digest of ids, sizes and beginnings of files: other recordings under the same names have another one."""
    digest = hashlib.sha256()
    for utterance in utterances:
        digest.update(f"{utterance.id}\n".encode("utf-8", "surrogateescape"))
        try:
            with open(utterance.path, "rb") as file:
                digest.update(f"{os.fstat(file.fileno()).st_size}\n".encode())
                digest.update(file.read(_BEGINNING))
        except OSError:
            digest.update(b"unreadable\n")
    return digest.hexdigest()


def digest(utterance: Utterance) -> str | None:
    """A digest of the samples of the first 30 s, whatever the file's name, form or tags; None: it cannot be read."""
    try:
        clip = audio.read(utterance.path, longest=_HEARD)
    except audio.AudioError:
        return None
    return hashlib.sha256(f"{clip.sample_rate}\n".encode() + audio.pcm16(clip.wav).tobytes()).hexdigest()


def listed(utterances: Sequence[Utterance], half: str) -> list[dict[str, str | None]]:
    """Entries of a list that :func:`collect` reads, if one a line in a ``.jsonl`` file, with each one's digest."""
    return [
        {"id": u.id, "path": os.path.abspath(u.path), "speaker": u.speaker, "half": half, "digest": digest(u)}
        for u in utterances
    ]


def check_disjoint(train: Sequence[Utterance], test: Sequence[Utterance]) -> str | None:
    """Checks sets that the user chose; returns a warning where both hold a speaker (or source), else None.

    Raises:
      ValueError: one file in both.
    """
    files = {os.path.realpath(u.path) for u in train}
    both = [u.id for u in test if os.path.realpath(u.path) in files]
    if both:
        raise ValueError(f"{len(both)} file(s) are in both the train and the test set, such as {both[0]!r}.")
    shared = sorted({u.group for u in train} & {u.group for u in test})
    if not shared:
        return None
    return f"Train and test set share {len(shared)} speaker(s) or source(s), such as {shared[0]!r}."


def limit(utterances: Sequence[Utterance], count: int | None, seed: int = 0) -> list[Utterance]:
    """At most `count` utterances, spread evenly over the groups, in their order; the same every time."""
    if count is None:
        return list(utterances)
    if count < 1:
        raise ValueError(f"Expected a limit of at least 1 utterance, got {count}.")
    queues = list(_grouped(utterances, seed).values())
    rounds = [queue[i] for i in range(max(map(len, queues), default=0)) for queue in queues if i < len(queue)]
    chosen = {u.id for u in rounds[:count]}
    return [u for u in utterances if u.id in chosen]


def listing(path: str | os.PathLike[str]) -> list[dict[str, str]]:
    """Rows of a list (.csv, .jsonl) that names recordings, every value a string.

    Raises:
      ValueError: there is no such list, it is broken, or a row names no audio.
    """
    return _rows(Path(path), strict=True)


def _grouped(utterances: Sequence[Utterance], seed: int) -> dict[str, list[Utterance]]:
    """Groups and their members in an order that depends on seed and names alone, so more files shift little."""

    def draw(name: str) -> bytes:
        return hashlib.sha256(f"{seed}/{name}".encode()).digest()

    groups: dict[str, list[Utterance]] = {}
    for group in sorted({u.group for u in utterances}, key=draw):
        groups[group] = []
    for utterance in sorted(utterances, key=lambda u: draw(u.id)):
        groups[utterance.group].append(utterance)
    return groups


def _walk(folder: Path, beside: Callable) -> tuple[list[_Found], list[Mapping[str, str]]]:
    """Audio below a folder; a link to a folder already seen is not followed, so loops end."""
    seen: set[tuple[int, int]] = set()
    found: list[_Found] = []
    meta: dict[str, Mapping[str, str]] = {}
    label = Path(os.path.abspath(folder)).name
    for top, folders, files in os.walk(folder, followlinks=True, onerror=_refuse):
        status = os.stat(top)
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(
            name for name in folders if not (name.startswith(".") or Path(top, name, RECORD).exists())
        )
        meta.update(beside(Path(top)))
        for name in files:
            path = Path(top, name)
            if not name.startswith(".") and path.suffix.lower() in SUFFIXES:
                relative = path.relative_to(folder).as_posix()
                found.append(_Found(path, (relative, f"{label}/{relative}", str(path)), {}))
    found.sort(key=lambda item: item.names[0])
    return [item._replace(meta=meta.get(os.path.abspath(item.path), {})) for item in found], list(meta.values())


def _refuse(error: OSError) -> None:
    raise ValueError(f"{error.filename!r} cannot be listed: {error.strerror}.") from error


def _beside(folder: Path) -> dict[str, Mapping[str, str]]:
    """Absolute path of a file -> its row in the folder's `manifest.csv`, if there is one."""
    path = folder / "manifest.csv"
    if not path.is_file():
        return {}
    return {os.path.abspath(folder / row[_path_column(row)]): row for row in _rows(path, strict=False)}


def _manifest(path: Path) -> Iterator[_Found]:
    for row in _rows(path, strict=True):
        written = row[_path_column(row)]
        given = next((row[key] for key in ID_COLUMNS if row.get(key)), "")
        yield _Found(path.parent / written, (given,) if given else (written, str(path.parent / written)), row)


def _kaldi(path: Path) -> Iterator[_Found]:
    """``wav.scp``: "id path" a line, relative to the list or else to the working directory; ``utt2spk`` beside it."""
    pairs = text_lines(path.parent / "utt2spk", missing_ok=True)
    speakers = dict(line.split(maxsplit=1) for line in pairs if len(line.split()) > 1)
    for number, line in enumerate(text_lines(path), 1):
        name, _, written = line.strip().partition(" " if " " in line.strip() else "\t")
        written = written.strip()
        if not name:
            continue
        if written.endswith("|") or written.startswith("|"):
            raise ValueError(
                f"{str(path)!r} line {number} is a command, which is never run: write its audio to a file."
            )
        if not written or written == "-" or ".ark:" in written:
            raise ValueError(
                f"{str(path)!r} line {number}: expected 'id path-of-an-audio-file', got {line.strip()!r}."
            )
        beside = path.parent / written
        target = beside if os.path.lexists(beside) or not os.path.lexists(written) else Path(written)
        yield _Found(target, (name,), {"speaker": speakers[name].strip()} if name in speakers else {})


def _rows(path: Path, *, strict: bool) -> list[dict[str, str]]:
    """Rows of a manifest, every value a string; without `strict` one that names no audio is nobody's manifest."""
    if path.suffix.lower() == ".jsonl":
        rows = [_json_row(path, number, line) for number, line in enumerate(text_lines(path), 1) if line.strip()]
    else:
        try:
            rows = [
                {key: value or "" for key, value in row.items() if isinstance(key, str)}
                for row in csv.DictReader(text_lines(path))
            ]
        except csv.Error as error:
            raise ValueError(f"{str(path)!r} is not a CSV table: {error}.") from error
    if not strict:
        return [row for row in rows if _path_column(row)]
    for number, row in enumerate(rows, 1):
        if not _path_column(row):
            raise ValueError(
                f"{str(path)!r} row {number} names no audio: expected a value in one of the columns "
                f"{', '.join(PATH_COLUMNS)}; the columns are {', '.join(row) or 'none'}."
            )
    return rows


def _json_row(path: Path, number: int, line: str) -> dict[str, str]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} line {number} is not JSON: {error}.") from error
    if not isinstance(row, dict):
        raise ValueError(f"{str(path)!r} line {number}: expected a JSON object, got {line.strip()[:40]!r}.")
    return {key: "" if value is None else str(value) for key, value in row.items()}


def _path_column(row: Mapping[str, str]) -> str:
    return next((key for key in PATH_COLUMNS if row.get(key)), "")


def text_lines(path: Path, *, missing_ok: bool = False) -> list[str]:
    """The lines of a UTF-8 file with their ends, as the :mod:`csv` module takes them.

    Raises:
      ValueError: there is no such file, or it is no such text.
    """
    if missing_ok and not path.exists():
        return []
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return list(file)
    except FileNotFoundError as error:
        raise ValueError(f"{str(path)!r} does not exist.") from error
    except (OSError, UnicodeDecodeError) as error:
        why = (isinstance(error, OSError) and error.strerror) or error
        raise ValueError(f"{str(path)!r} cannot be read as UTF-8 text: {why}.") from error


def _once(found: list[_Found]) -> list[_Found]:
    """Joins what is said of a file that is named again in the same words; a list may still give one file two ids.

    Raises:
      ValueError: two lines say different things of it.
    """
    kept: dict[tuple[str, str], _Found] = {}
    for item in found:
        given = item.names[0] if len(item.names) == 1 else ""
        before = kept.setdefault((os.path.abspath(item.path), given), item)
        for key in SAID:
            first, now = (one.meta.get(key, "").strip() for one in (before, item))
            if first and now and first != now:
                raise ValueError(
                    f"{str(item.path)!r} is listed twice, with {key} {first!r} and with {key} {now!r}: name each "
                    "recording once, with the mean of its ratings."
                )
        said = {key: value for key, value in before.meta.items() if value}
        kept[os.path.abspath(item.path), given] = before._replace(meta={**before.meta, **item.meta, **said})
    return list(kept.values())


def _ids(found: list[_Found]) -> list[str]:
    """The shortest names that tell all utterances apart."""
    depth = [0] * len(found)
    while True:
        ids = [_printable(item.names[level]) for item, level in zip(found, depth, strict=True)]
        counts: dict[str, int] = {}
        for name in ids:
            counts[name] = counts.get(name, 0) + 1
        clashing = [i for i, name in enumerate(ids) if counts[name] > 1]
        if not clashing:
            return ids
        longer = [i for i in clashing if depth[i] < len(found[i].names) - 1]
        if not longer:
            raise ValueError(f"The id {ids[clashing[0]]!r} is given twice: ids must differ.")
        for i in longer:
            depth[i] += 1


def _printable(name: str) -> str:
    """A name that any UTF-8 stream takes: bytes that are not UTF-8 become ``\\xff``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _settled(found: list[_Found], known: list[Mapping[str, str]]) -> list[Utterance]:
    """Ids, speakers and groups: the speaker, else the clean file's speaker, else the clean file, else itself."""
    speakers: dict[str, str] = {}
    for row in [*known, *(item.meta for item in found)]:
        if row.get("speaker") and _path_column(row):
            speakers.setdefault(PurePath(row[_path_column(row)]).name, row["speaker"])
    clean = [PurePath(item.meta.get("clean_file", "")).name for item in found]
    sources = set(clean) - {""}
    utterances = []
    for item, source, name in zip(found, clean, _ids(found), strict=True):
        speaker = item.meta.get("speaker") or speakers.get(source) or None
        own = item.path.name
        group = speaker or (PurePath(source).stem if source else "") or (item.path.stem if own in sources else name)
        meta = {key: value for key, value in item.meta.items() if key != "speaker"}
        utterances.append(Utterance(name, item.path, speaker, group, meta))
    return utterances
