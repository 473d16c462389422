"""The command line of an experiment that consists of named runs."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def command(
    what: str,
    here: Path,
    names: Iterable[str],
    run: Callable[..., object],
    table: Callable[[Path], str],
    argv: Sequence[str] | None,
    options: Mapping[str, Mapping[str, Any]] = {},
) -> Path:
    """Runs what is asked for and prints the table of what is there.

    Args:
      what: the experiment in a sentence.
      here: its folder.
      names: of its runs.
      run: called with a name and the folders shared, work and results, and ``tiny=``.
      table: of the results' folder.
      argv: the arguments; None: those of the process.
      options: flag -> what `argparse` takes of it; `run` gets their values by name.

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
    further = [add(flag, **more).dest for flag, more in options.items()]
    args = parser.parse_args(argv)
    if args.tiny:  # beside the real runs, never among them
        args.work, args.results = args.work / "tiny", args.results / "tiny"
    if not args.table:
        if not args.shared.is_dir():
            parser.error(f"{str(args.shared)!r} does not exist: --shared names a folder with speech/ and models/.")
        for name in args.only:
            given = {dest: getattr(args, dest) for dest in further}
            run(name, args.shared, args.work, args.results, tiny=args.tiny, **given)
    print(table(args.results))
    return args.results
