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
from pathlib import Path
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
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
            try:
                super().__setitem__(*(json.loads(line)[key] for key in ("audio", "text")))
            except (ValueError, KeyError, TypeError):
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


# What the record of a run holds, by what it is a run of.
KINDS: dict[str, dict[str, type]] = {
    "a suite of audits": {"predictor": str, "legs": dict, "left_out": dict, "validation": list},
    "a patching": {"predictor": dict, "recipe": dict, "sources": dict, "train": list},
    "a single audit": {
        "settings": dict,
        "predictor": dict,
        "space": dict,
        "panel": dict,
        "train": list,
        "test": list,
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
    try:
        stored = json.loads(found.read_text(encoding="utf-8"))
        kinds = KINDS[_kind(stored["record"])]
        whole = all(isinstance(stored["record"][key], kind) for key, kind in kinds.items())
        if whole and isinstance(stored["versions"], dict):
            return stored
    except (ValueError, KeyError, TypeError):
        pass
    raise ValueError(f"{found} cannot be read as a run's record: delete the folder {found.parent} and run it anew.")


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


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSON-lines file, none where there is no file; a last one that a crash cut off is left out."""
    made = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        try:
            made.append(json.loads(line))
        except ValueError:
            break
    return made
