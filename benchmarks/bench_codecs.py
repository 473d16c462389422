"""How fast the codecs are, in seconds of audio per second, beside the original run by its own interpreter.

python -m benchmarks.bench_codecs --models ../shared/models --speech ../shared/speech --out codecs.json
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from jax import lax

from benchmarks import timing
from jaxhack import registry
from jaxhack.types import Codec

TASKS = ("encode", "decode", "round trip")


def jax_side(codec: Codec, wavs: np.ndarray) -> dict[str, tuple[Callable[[], Any], float]]:
    """Task -> (a call over all clips, clip by clip; seconds it took to compile)."""
    encode, decode, side = codec.encode, codec.decode, {}

    def add(task: str, function: Callable, x: Any) -> Callable[[], Any]:
        run, seconds = timing.compiled(lambda params, x: lax.map(partial(function, params), x), codec.params, x)
        side[task] = (partial(run, codec.params, x), seconds)
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
    found, least = {}, 0.98
    for task in ("encode", "round trip"):
        a, b = (np.asarray(side[task][0]()).ravel() for side in (ours, theirs))
        found[f"{task} (correlation)"] = r = float(np.corrcoef(a, b)[0, 1])
        if not r >= least:
            raise ValueError(f"The sides do not agree, so timing them says nothing: {task} {r:.3f}.")
    return found


def bench(codec: Codec, folder: Path | None, wavs: np.ndarray, repeats: int) -> dict[str, Any]:
    """Measure one codec on ``wavs [n, T]``; `folder` holds the original's files, None leaves the original out."""
    wavs = wavs[:, : wavs.shape[1] // codec.hop * codec.hop]  # whole frames
    seconds = wavs.shape[1] / codec.sample_rate
    result: dict[str, Any] = {"clips": len(wavs), "seconds": seconds, "repeats": repeats, "rows": [], "notes": []}
    sides = {"jax": jax_side(codec, wavs)}
    theirs = interpreter_side(folder, wavs) if folder is not None else None
    if theirs is not None:
        result["agreement"] = agreement(sides["jax"], theirs)
        sides["tflite"] = theirs
    else:
        result["notes"].append("the original's interpreter or files are absent, agreement not checked")
    for task in TASKS:
        spent = timing.in_turns({side: tasks[task][0] for side, tasks in sides.items()}, repeats)
        for side, row in spent.items():
            row = {"codec": codec.name, "task": task, "side": side, "compile_s": sides[side][task][1], **row}
            result["rows"].append(row | {"audio_s_per_s": len(wavs) * seconds / row["median_s"]})
    return result


@click.command(help=__doc__.splitlines()[0])
@timing.options
def main(models: Path, speech: Path, tiny: bool, repeats: int | None, out: Path | None) -> None:
    codec = registry.codec("lyra", models=models)
    wavs = timing.recordings(speech, *((2, 0.2) if tiny else (8, 3.0)), codec.sample_rate)
    result = bench(codec, models / "lyra_v2", wavs, repeats or (1 if tiny else 9))
    columns = {"codec": "", "task": "", "side": "", "audio_s_per_s": ".0f", "median_s": ".4f", "min_s": ".4f"}
    columns |= {"max_s": ".4f", "compile_s": ".1f"}
    title = f"{result['clips']} clips of {result['seconds']:g} s, median of {result['repeats']}"
    timing.publish(result, title, columns, out)


if __name__ == "__main__":
    main()
