"""What all benchmarks share: how a call is timed, on which recordings and machine, and how numbers are given out.

Sides are checked to agree before they are timed. Every call is waited for, the first one is not counted, sides take
turns so that a busy machine slows all alike, the median counts, and compiling stands apart.
"""

import json
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click
import jax
import numpy as np
import soundfile
from rich.console import Console
from rich.table import Table

from jaxhack import audio


def options(command: Callable) -> Callable:
    """The options of every benchmark."""
    kinds = {"type": click.Path(path_type=Path), "show_default": True}
    for add in (
        click.option("--out", **kinds, help="Write the numbers to this JSON file."),
        click.option("--repeats", type=click.IntRange(1), help="Timed calls of each side."),
        click.option("--tiny", is_flag=True, help="The smallest size that runs everything."),
        click.option("--speech", **kinds, default="../shared/speech", help="Folder of recordings."),
        click.option("--models", **kinds, default="../shared/models", help="Folder of weight files."),
    ):
        command = add(command)
    return command


def recordings(folder: Path, count: int, seconds: float, sample_rate: int = 16000) -> np.ndarray:
    """The beginnings of `count` recordings spread over `folder`: ``[count, T]`` float32.

    Raises:
      ValueError: fewer are long enough.
    """
    files = [path for path in sorted(folder.glob("*.flac")) if soundfile.info(path).duration > seconds]
    if len(files) < count:
        raise ValueError(
            f"{folder} holds {len(files)} FLAC recordings longer than {seconds:g} s; {count} are needed."
        )
    chosen = files[:: len(files) // count][:count]
    size = round(seconds * sample_rate)
    return np.stack([audio.read(path, sample_rate=sample_rate).wav[:size] for path in chosen])


def compiled(function: Callable, *arguments: Any) -> tuple[Callable, float]:
    """`function` compiled for these arguments, and the seconds it took."""
    start = time.perf_counter()
    run = jax.jit(function).lower(*arguments).compile()
    return run, time.perf_counter() - start


def in_turns(calls: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, dict[str, float]]:
    """Seconds of each call: median, least and most of `repeats` after one that is not counted."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            if turn:
                spent[name].append(time.perf_counter() - start)
    return {name: {"median_s": median(s), "min_s": min(s), "max_s": max(s)} for name, s in spent.items()}


def agree(what: str, ours: Any, theirs: Any, tolerance: float) -> float:
    """The largest difference of two arrays. Raises ValueError where it exceeds `tolerance` or is not a number."""
    found = float(np.max(np.abs(np.asarray(ours, np.float64) - np.asarray(theirs, np.float64))))
    if not found <= tolerance:
        raise ValueError(f"The sides do not agree, so timing them says nothing: {what} {found:.2g} > {tolerance:g}.")
    return found


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],  # of other work too: it slows what is measured
        "device": f"{jax.devices()[0].platform} {jax.devices()[0].device_kind}",
        "jax": jax.__version__,
    }


def peak_memory_mb() -> float:
    """The most memory that this process has held so far, in MB; a device's own memory is not in it."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1e6 if sys.platform == "darwin" else 1e3), 1)


def publish(result: dict[str, Any], title: str, columns: Mapping[str, str], out: Path | None) -> dict[str, Any]:
    """Prints ``result["rows"]`` and writes everything to `out`.

    Args:
      result: gets `machine` and `peak_memory_mb`.
      title: of the table.
      columns: heading -> format of the field of that name; an absent field leaves its cell empty.
      out: a JSON file, or None.
    """
    result = {"machine": machine(), "peak_memory_mb": peak_memory_mb()} | result
    on, console = result["machine"], Console(width=118)
    console.print(f"{on['cpu']}, {on['cores']} cores, load {on['load'][0]}; {on['device']}, jax {on['jax']}")
    for note in [*result.get("notes", ()), *_agreement(result), f"peak memory {result['peak_memory_mb']:.0f} MB"]:
        console.print(note, highlight=False)
    table = Table(*columns, title=title)
    for row in result["rows"]:
        table.add_row(*(format(row[name], style) if name in row else "" for name, style in columns.items()))
    console.print(table)
    if out is not None:
        out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    return result


def _agreement(result: dict[str, Any]) -> Sequence[str]:
    return [f"agreement, {what}: {value:.3g}" for what, value in result.get("agreement", {}).items()]
