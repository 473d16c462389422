"""How fast the codecs are, in seconds of audio per second, beside the original run by its own interpreter.

    python benchmarks/bench_codecs.py --models ../shared/models --out codecs.json

Both sides are checked to agree before either is timed. Every call is waited for; the first one is not
counted; the median of the others is reported, and compiling stands apart.
"""

import json
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import jax
import numpy as np
from jax import lax
from rich.console import Console
from rich.table import Table

from jaxhack.types import Codec
from ports.lyra import LYRA_WEIGHTS, lyra

TASKS = ("encode", "decode", "round trip")


def clips(count: int, samples: int) -> np.ndarray:
    """Clips ``[count, samples]`` that resemble voiced speech: gliding harmonics, syllables, some noise."""
    random = np.random.default_rng(0)
    time_ = np.arange(samples) / 16000
    made = []
    for _ in range(count):
        pitch = random.uniform(90, 220) * (1 + 0.1 * np.sin(2 * np.pi * random.uniform(0.3, 1) * time_))
        phase = 2 * np.pi * np.cumsum(pitch) / 16000
        voice = sum(np.sin(k * phase + random.uniform(0, 6)) / k for k in range(1, 20))
        syllables = np.clip(np.sin(2 * np.pi * random.uniform(2, 4) * time_) + 0.5, 0, 1)
        made.append(0.1 * voice * syllables + 0.002 * random.normal(size=samples))
    return np.array(made, np.float32)


def jax_side(codec: Codec, wavs: np.ndarray) -> dict[str, tuple[Callable[[], Any], float]]:
    """Task -> (a call over all clips, clip by clip; seconds it took to compile)."""
    encode, decode, side = codec.encode, codec.decode, {}

    def add(task: str, function: Callable, x: Any) -> Callable[[], Any]:
        mapped = jax.jit(lambda params, x: lax.map(partial(function, params), x))
        start = time.perf_counter()
        compiled = mapped.lower(codec.params, x).compile()
        side[task] = (partial(compiled, codec.params, x), time.perf_counter() - start)
        return side[task][0]

    z = add("encode", encode, wavs)()
    add("decode", decode, z)
    add("round trip", lambda params, wav: decode(params, encode(params, wav)), wavs)
    return side


def interpreter_side(folder: Path, wavs: np.ndarray) -> dict[str, tuple[Callable[[], Any], float]] | None:
    """The same for the TensorFlow Lite interpreter, a new one for each clip; None where it is absent."""
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:
        return None

    def run(file: str, frames: np.ndarray) -> np.ndarray:
        graph = Interpreter(str(folder / file), num_threads=os.cpu_count())
        graph.allocate_tensors()
        source, sink = graph.get_input_details()[0], graph.get_output_details()[0]["index"]
        out = []
        for frame in frames:
            graph.set_tensor(source["index"], frame.reshape(source["shape"]))
            graph.invoke()
            out.append(graph.get_tensor(sink).ravel())
        return np.array(out)

    encode = partial(run, "soundstream_encoder.tflite")
    decode = partial(run, "lyragan.tflite")
    frames = wavs.reshape(len(wavs), -1, 320)
    z = [encode(clip) for clip in frames]
    return {
        "encode": (lambda: np.array([encode(clip) for clip in frames]), 0.0),
        "decode": (lambda: np.array([decode(clip).ravel() for clip in z]), 0.0),
        "round trip": (lambda: np.array([decode(encode(clip)).ravel() for clip in frames]), 0.0),
    }


def agreement(ours: dict, theirs: dict) -> dict[str, float]:
    """Correlation of all latents and of all round trips. Raises ValueError where the two sides differ."""
    found = {}
    for task, least in (("encode", 0.98), ("round trip", 0.98)):
        a, b = (np.asarray(side[task][0]()).ravel() for side in (ours, theirs))
        found[task] = float(np.corrcoef(a, b)[0, 1])
        if not found[task] >= least:
            raise ValueError(f"The two sides do not agree, so timing them says nothing: {task} {found[task]:.3f}.")
    return found


def timed(call: Callable[[], Any], repeats: int) -> list[float]:
    """Seconds of each of ``repeats`` calls after one that is not counted."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),  # of other work too: above 0 the numbers are too low
        "device": f"{jax.devices()[0].platform} {jax.devices()[0].device_kind}",
        "jax": jax.__version__,
    }


def bench(codec: Codec, folder: Path | None, seconds: float, count: int, repeats: int) -> dict[str, Any]:
    """Measure one codec; ``folder`` holds the original's files, None leaves the original out."""
    result: dict[str, Any] = {"machine": machine()}
    wavs = clips(count, int(seconds * codec.sample_rate) // codec.hop * codec.hop)
    audio = wavs.size / codec.sample_rate
    sides = {"jax": jax_side(codec, wavs)}
    theirs = interpreter_side(folder, wavs) if folder is not None else None
    if theirs is not None:
        result["agreement"] = agreement(sides["jax"], theirs)
        sides["tflite"] = theirs
    result |= {"clips": count, "seconds": wavs.shape[1] / codec.sample_rate, "repeats": repeats, "rows": []}
    for side, tasks in sides.items():
        for task in TASKS:
            call, compile_s = tasks[task]
            spent = timed(call, repeats)
            row = {"codec": codec.name, "side": side, "task": task, "compile_s": compile_s}
            row |= {"median_s": median(spent), "audio_s_per_s": audio / median(spent)}
            result["rows"].append(row)
    return result


def show(result: dict[str, Any], console: Console) -> None:
    """Print a result as a table."""
    on = result["machine"]
    console.print(f"{on['cpu']}, {on['cores']} cores, load {on['load']}; {on['device']}, jax {on['jax']}")
    for task, value in result.get("agreement", {}).items():
        console.print(f"agreement, {task}: correlation {value:.4f}")
    table = Table(title=f"{result['clips']} clips of {result['seconds']:g} s, median of {result['repeats']}")
    for name in ("codec", "side", "task", "audio-s/s", "ms", "compile s"):
        table.add_column(name, justify="left" if name in ("codec", "side", "task") else "right")
    for row in result["rows"]:
        numbers = (f"{row['audio_s_per_s']:.0f}", f"{1e3 * row['median_s']:.1f}", f"{row['compile_s']:.1f}")
        table.add_row(row["codec"], row["side"], row["task"], *numbers)
    console.print(table)


@click.command()
@click.option("--models", type=click.Path(path_type=Path), required=True, help="Folder that holds lyra_v2/.")
@click.option("--tiny", is_flag=True, help="The smallest size that runs everything.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the numbers to this JSON file.")
def main(models: Path, tiny: bool, out: Path | None) -> None:
    """Time the codecs."""
    paths = {weight.file: models / weight.folder / weight.file for weight in LYRA_WEIGHTS}
    absent = [str(path) for path in paths.values() if not path.is_file()]
    if absent:
        raise click.UsageError(f"--models {models} lacks {', '.join(absent)}.")
    size = {"seconds": 0.2, "count": 2, "repeats": 1} if tiny else {"seconds": 3.0, "count": 8, "repeats": 9}
    result = bench(lyra(paths), models / "lyra_v2", **size)
    show(result, Console())
    if out is not None:
        out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
