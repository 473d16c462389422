"""The command line of an experiment that consists of named runs."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path


def command(
    what: str,
    here: Path,
    names: Iterable[str],
    run: Callable[..., object],
    table: Callable[[Path], str],
    argv: Sequence[str] | None,
) -> Path:
    """Runs what is asked for and prints the table of what is there.

    Args:
      what: the experiment in a sentence.
      here: its folder.
      names: of its runs.
      run: called with a name and the folders shared, work and results, and ``tiny=``.
      table: of the results' folder.
      argv: the arguments; None: those of the process.

    Returns:
      The results' folder.
    """
    parser = argparse.ArgumentParser(description=what)
    add = parser.add_argument
    add("--shared", type=Path, default=Path("../shared"), help="holds speech/, degraded/ and models/")
    add("--work", type=Path, default=Path("runs", here.name), help="where the whole runs go")
    add("--results", type=Path, default=here / "results", help="where their small files go")
    add("--only", nargs="+", choices=list(names), default=list(names))
    add("--tiny", action="store_true", help="one step on four recordings, to see that it works")
    add("--table", action="store_true", help="print and draw what is there, and run nothing")
    args = parser.parse_args(argv)
    if not args.table:
        if not args.shared.is_dir():
            parser.error(f"{str(args.shared)!r} does not exist: --shared names a folder with speech/ and models/.")
        for name in args.only:
            run(name, args.shared, args.work, args.results, tiny=args.tiny)
    print(table(args.results))
    return args.results
