"""A run's folder: what is in it, when it may be reused, and what is written down about how it came to be."""

import errno
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from typing import Any

RECORD = "run.json"
PACKAGES = ("jaxhack", "jax", "jaxlib", "flax", "optax", "numpy", "onnxruntime")
OWN = (
    *("rows.parquet", "summary.json", "table.csv", "report.html", "training.jsonl", "inputs.json"),
    *("transcripts.jsonl", "recordings.jsonl", "statistics.npz", "certificates.json", "certificates.jsonl"),
    *("parts", "checkpoints", "examples", "pairs", "rounds", "patched"),
    RECORD,  # last: a folder without it is nobody's run
)
NAMES = ("settings.profile", "demo")  # of a record: they say where its values came from, and change no row
LATER = ("recordings", "decided.")  # what older versions did not record: names, or their beginnings


class Transcripts(dict[str, str]):
    """Audio hash -> text, kept in a run's ``transcripts.jsonl``: what is set is stored at once."""

    def __init__(self, path: Path):
        """Takes up what `path` holds; a line that a crash cut off is dropped."""
        super().__init__()
        self.path = path
        for line in path.read_bytes().splitlines() if path.exists() else []:  # of bytes: not within a text
            try:
                super().__setitem__(*(json.loads(line)[key] for key in ("audio", "text")))
            except (ValueError, KeyError, TypeError, RecursionError):
                part = path.with_name(path.name + ".part")
                part.write_text("".join(self._line(*item) for item in self.items()), encoding="utf-8")
                os.replace(part, path)
                break

    def __setitem__(self, audio: str, text: str) -> None:
        """Stores a transcript."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(self._line(audio, text))
        super().__setitem__(audio, text)

    @staticmethod
    def _line(audio: str, text: str) -> str:
        return json.dumps({"audio": audio, "text": text}, ensure_ascii=False) + "\n"


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Makes a run's folder, and keeps other processes out of it until the block ends, however it ends.

    Raises:
      ValueError: if another process is at work in `out`, or `out` is a file.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ValueError(f"{out} is a file: give --out a folder.") from None
    if sys.platform == "win32":  # has no lock on folders
        yield
        return
    import fcntl

    handle = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            os.close(handle)
            raise ValueError(f"Another process is at work in {out}: wait for it, or name another folder.") from None
        # else a file system without locks
    try:
        yield
    finally:
        os.close(handle)


def open_run(
    out: Path,
    record: Mapping[str, Any],
    *,
    resume: bool = False,
    overwrite: bool = False,
    needed: Iterable[str | os.PathLike[str] | None] = (),
) -> Path:
    """Makes the folder of a new run, or re-enters that of an interrupted one.

    Args:
      out: the folder.
      record: what the run is a function of (configuration, inputs, weights); JSON-able. Kept in ``run.json``.
      resume: continue the run found in `out`; it must have the same record.
      overwrite: throw away the run found in `out`. Files that no run writes are left alone.
      needed: files and folders that the caller reads, which must not be thrown away; None is passed over. Those that
        a predictor's name leads to are :func:`jaxhack.registry.places` of it.

    Raises:
      ValueError: if `out` holds something and neither was asked for, another run than `record`, or what is needed.
    """
    if resume and overwrite:
        raise ValueError("--resume and --overwrite exclude each other: give one.")
    out = Path(out)
    record = json.loads(json.dumps(record))
    found = out / RECORD
    begun = f"{RECORD}.part"  # all that a crash at the very start leaves
    if out.exists() and any(path.name != begun for path in out.iterdir()):
        if not (resume or overwrite):
            raise ValueError(
                f"{out} is not empty: continue it with --resume, replace it with --overwrite, or name another "
                "with --out."
            )
        if not found.exists():
            raise ValueError(
                f"{out} holds files but no run ({RECORD}): nothing in it was touched; delete it or name another."
            )
        if resume:
            _check_same(found, record)
            return out
        doomed = [out / name for name in (*_parts(found), *OWN)]
        _spare(out, doomed, needed)
        for path in doomed:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            if path.parent != out and not any(path.parent.iterdir()):
                path.parent.rmdir()
    out.mkdir(parents=True, exist_ok=True)
    write_json(found, {"record": record, "versions": versions()})
    return out


def _spare(out: Path, doomed: Iterable[Path], needed: Iterable[str | os.PathLike[str] | None]) -> None:
    """Refuses to delete what is needed."""
    places = {path.resolve() for path in doomed}
    for path in needed:
        if path is not None and os.path.lexists(path) and places & {(real := Path(path).resolve()), *real.parents}:
            raise ValueError(
                f"{path} is part of the run in {out} that --overwrite would delete: give --out another folder."
            )


def _parts(found: Path) -> list[str]:
    """The folders of a suite's audits, of those that it made; none of a single audit."""
    try:
        named = read(found)["record"].get("legs", ())
    except ValueError:
        return []
    return [name for name in named if (found.parent / name / RECORD).is_file()]


def _check_same(found: Path, record: Mapping[str, Any]) -> None:
    stored = read(found)["record"]
    there, here = _kind(stored), _kind(record)
    if there != here:
        raise ValueError(f"{found.parent} holds {there}, and this is {here}: repeat its options or name another.")
    before, now = _flat(stored), _flat(record)
    changed = [
        f"{k}: {before.get(k)!r} then, {now.get(k)!r} now"
        for k in {**before, **now}
        if k not in NAMES and before.get(k) != now.get(k) and not (k.startswith(LATER) and k not in before)
    ]
    if changed and all(line.startswith("recordings:") for line in changed):
        raise ValueError(f"The recordings of {found.parent} have changed: put them back or name another folder.")
    if changed:
        raise ValueError(
            f"{found.parent} is another run ({'; '.join(changed[:3])}): repeat its options or name another folder."
        )


NUMBER = (int, float)
MAYBE = (*NUMBER, None)
_PREDICTOR = {"name": str, "sample_rate": int, "weights": {...: str}}
_SETTINGS: dict[str, Any] = {
    "space": str,
    "attacker": str,
    "seeds": int,
    "epsilon": NUMBER,
    "tau": NUMBER,
    "seed": int,
    "options": dict,
}
_RULE = {"margin": NUMBER, "saturation": MAYBE, "higher_is_better": bool, ...: ()}  # nothing else
_PANEL = {...: (_RULE, _RULE | {"floor": MAYBE})}
# What the record of a run holds, by what it is a run of; as of `fits`.
KINDS: dict[str, dict[str, Any]] = {
    "a suite of audits": {"predictor": str, "legs": {...: dict}, "left_out": {...: str}, "validation": [str]},
    "a patching": {
        "predictor": _PREDICTOR,
        "recipe": {"source": str, "rounds": int},
        "sources": {...: _SETTINGS},
        "panel": _PANEL,
        "train": [str],
    },
    "a single audit": {
        "settings": _SETTINGS,
        "predictor": _PREDICTOR,
        "space": _PREDICTOR,
        "panel": _PANEL,
        "train": [str],
        "test": [str],
    },
}


def _kind(record: Mapping[str, Any]) -> str:
    marks = {"legs": "a suite of audits", "recipe": "a patching"}
    return next((kind for mark, kind in marks.items() if mark in record), "a single audit")


def _flat(record: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(record, Mapping):
        return {prefix: record}
    return {k: v for name, x in record.items() for k, v in _flat(x, f"{prefix}.{name}" if prefix else name).items()}


def read(found: Path) -> dict[str, Any]:
    """What the ``run.json`` of a run of any kind holds: ``record`` and ``versions``.

    Raises:
      ValueError: if it is damaged.
    """
    what, remedy = "a run's record", f"delete the folder {found.parent} and run it anew"
    stored = read_json(found, {"record": dict, "versions": dict}, what, remedy)
    made = read_json(found, {"record": KINDS[_kind(stored["record"])]}, what, remedy)
    for name in (*made["record"].get("legs", ()), *made["record"].get("sources", ())):  # folders below the run's
        if PurePath(name).is_absolute() or ".." in PurePath(name).parts or PurePath(name) == PurePath():
            raise ValueError(f"{found} cannot be read as {what}, for {name!r} is no folder in it: {remedy}.")
    return made


def versions() -> dict[str, str]:
    """Of the packages that make the numbers, Python and the device."""
    import jax

    found = {"python": platform.python_version(), "device": f"{jax.device_count()} × {jax.devices()[0].device_kind}"}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def folder_name(text: str) -> str:
    """A name that any file system takes."""
    return "".join(c if c.isalnum() or c in "-_.@" else "_" for c in text).strip(".") or "_"


def write_json(path: Path, value: Any) -> None:
    """Writes JSON, complete or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a file, complete or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def write_lines(path: Path, values: Iterable[Any]) -> None:
    """Writes JSON lines, complete or not at all."""
    write_text(path, "".join(json.dumps(value) + "\n" for value in values))


def read_json(path: Path, kinds: Any, what: str, remedy: str) -> Any:
    """What a JSON file holds.

    Args:
      path: the file.
      kinds: what it must hold, as of :func:`fits`.
      what: it should be, for the message: "a round's record".
      remedy: what to do about a file that is not so: "delete it and go on with --resume".

    Raises:
      ValueError: the file is missing, damaged, or holds anything else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if fits(value, kinds):
            return value
    except (OSError, ValueError, RecursionError):
        pass
    raise ValueError(f"{path} cannot be read as {what}: {remedy}.")


def read_lines(path: Path, kinds: Any, what: str, remedy: str) -> list[Any]:
    """What the lines of a JSON-lines file hold, none where there is no file; see :func:`read_json`.

    A last one that a crash cut off is left out.

    Raises:
      ValueError: another line is damaged, or holds anything else.
    """
    *whole, rest = path.read_bytes().split(b"\n") if path.exists() else [b""]
    made = []
    for number, line in enumerate([*whole, *([rest] if rest else [])], 1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            if number > len(whole) and line.startswith(b"{"):
                break
            value = None
        if value is None or not fits(value, kinds):
            raise ValueError(f"{path} cannot be read as {what}, for its line {number}: {remedy}.")
        made.append(value)
    return made


def fits(value: Any, kinds: Any) -> bool:
    """Whether what was read from JSON holds what it must.

    Args:
      value: what was read.
      kinds: a type; a text or None, which it must be; a tuple, of which it must fit one; ``[kinds]``, a list of such
        values; or ``{key: kinds}``, an object with such values, where ``...`` stands for every key not named and
        those that are neither may hold anything.
    """
    if isinstance(kinds, tuple):
        return any(fits(value, kind) for kind in kinds)
    if isinstance(kinds, list):
        return isinstance(value, list) and all(fits(item, kinds[0]) for item in value)
    if isinstance(kinds, Mapping):
        if not isinstance(value, dict) or not all(key in value for key in kinds if key is not ...):
            return False
        named = {key: kinds.get(key, kinds.get(..., object)) for key in value}
        return all(fits(value[key], kind) for key, kind in named.items())
    if isinstance(kinds, type):
        return isinstance(value, kinds) and (kinds is object or not isinstance(value, bool) or kinds is bool)
    return value == kinds


def recordings(folder: Path, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Entries of a run's ``recordings.jsonl``, none where there is no file.

    Raises:
      ValueError: it is damaged, or its recordings are not those of the run's `record`.
    """
    path, maybe = folder / "recordings.jsonl", (str, None)
    kinds = {"id": str, "path": str, "speaker": maybe, "half": ("train", "test"), "digest": maybe}
    remedy = "put it back as it was, or audit again"
    found = read_lines(path, kinds, "the list of a run's recordings", remedy)
    for half in ("train", "test") if path.exists() else ():
        if [entry["id"] for entry in found if entry["half"] == half] != record[half]:
            raise ValueError(f"{path} does not list the {half} recordings that {folder / RECORD} names: {remedy}.")
    return found
