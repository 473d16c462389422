"""The weight file that a port asks for: there, or refused in one sentence."""

import hashlib
from collections.abc import Mapping
from pathlib import Path


def weight_file(port: str, file: str, paths: Mapping[str, Path]) -> tuple[Path, str]:
    """The path of `file`, which the model `port` needs, and the SHA-256 of what lies there.

    Args:
        port: the model's name.
        file: a file's name.
        paths: file name -> path.

    Raises:
        ValueError: `paths` does not name the file, or it is not there.
    """
    if file not in paths:
        raise ValueError(f"{port} needs the file {file}, and paths names only {sorted(paths)}.")
    path = Path(paths[file])
    if not path.is_file():
        raise ValueError(f"{port} needs the file {file}, and {str(path)!r} is not a file.")
    with path.open("rb") as content:
        return path, hashlib.file_digest(content, "sha256").hexdigest()
