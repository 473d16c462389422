"""What commands print and write: rows as they come, tables, warnings, a bar for who watches."""

import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import click


def print_summary(summary: dict[str, Any], out: str) -> None:
    """A run's table, warnings and page, whatever kind of run."""
    from jaxhack import report as work
    from jaxhack.report import patching, suite

    console = make_console()
    kind = patching if "rounds" in summary else suite if "lines" in summary else work
    console.print(kind.table(summary))
    print_warnings(console, summary["warnings"])
    console.print(f"Report: {Path(out) / 'report.html'}", markup=False, highlight=False, soft_wrap=True)


def make_console():
    """A console of the terminal's width, 80 columns where there is none."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 80)


def print_warnings(console, warnings: Iterable[str]) -> None:
    """Each warning on a line of its own."""
    for warning in warnings:
        console.print(f"Warning: {warning}", markup=False, highlight=False, style="yellow")


def empty_folder(out: str) -> Path:
    """A folder that is new or empty."""
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{out!r} exists and is not an empty folder: choose another.")
    return folder


@contextmanager
def output_of(out: str | None) -> Iterator[TextIO]:
    """A new file to write to, or standard output."""
    if out is None:
        yield sys.stdout
        return
    if os.path.isfile(out):
        raise ValueError(f"{out!r} exists: remove it or choose another name.")
    try:
        stream = open(out, "w", encoding="utf-8", newline="")  # noqa: SIM115  # closed below; only opening is judged
    except OSError as error:
        raise ValueError(f"{out!r} cannot be written: {error.strerror}.") from error
    with stream:
        yield stream


def write(
    rows: Iterable[dict[str, Any]], columns: Sequence[str], form: str, stream: TextIO, total: int
) -> tuple[int, int]:
    """Writes rows as they come; returns how many are ok, and how many there are."""
    states = [row["status"] for row in written(rows, columns, form, stream, total)]
    return states.count("ok"), len(states)


def written(
    rows: Iterable[dict[str, Any]], columns: Sequence[str], form: str, stream: TextIO, total: int
) -> Iterator[dict[str, Any]]:
    """Passes rows on as they come, each written first."""
    table = csv.DictWriter(stream, columns, lineterminator="\n")
    if form == "csv":
        table.writeheader()
    with bar(0 if stream.isatty() else total) as advance:  # a terminal that shows the rows needs no bar as well
        for row in rows:
            short = {key: round(value, 6) if isinstance(value, float) else value for key, value in row.items()}
            if form == "csv":
                table.writerow(short)
            else:
                stream.write(json.dumps(short, ensure_ascii=False) + "\n")
            stream.flush()
            advance(row)
            yield row


@contextmanager
def bar(total: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Takes each row that is done; what a person at a terminal sees of it: nothing of a total of 0."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(
        console=Console(stderr=True), transient=True, disable=not (total and sys.stderr.isatty())
    ) as progress:
        task = progress.add_task("rows", total=total)
        yield lambda row: progress.advance(task)


def finish(counts: tuple[int, int]) -> None:
    """Says how many of how many are ok, and ends with status 1 unless all are."""
    ok, done = counts
    click.echo(f"{ok} of {done} done" + ("" if ok == done else f", {done - ok} not: see their reason"), err=True)
    if ok < done:
        sys.exit(1)
