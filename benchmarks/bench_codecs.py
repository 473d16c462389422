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

from benchmarks import official, timing
from jaxhack import registry
from jaxhack.types import Codec

Side = dict[str, tuple[Callable[[], Any], float]]  # task -> (a call over all clips, seconds to compile)
TASKS = ("encode", "decode", "round trip")


def jax_side(codec: Codec, wavs: np.ndarray, z: np.ndarray) -> Side:
    """A loop over the clips, compiled. Decoding starts from the latents `z`."""
    encode, decode = codec.encode, codec.decode

    def compiled(function: Callable, x: Any) -> tuple[Callable[[], Any], float]:
        run, seconds = timing.compiled(lambda params, x: lax.map(partial(function, params), x), codec.params, x)
        return partial(run, codec.params, x), seconds

    return {
        "encode": compiled(encode, wavs),
        "decode": compiled(decode, z),
        "round trip": compiled(lambda params, wav: decode(params, encode(params, wav)), wavs),
    }


def interpreter_side(folder: Path, wavs: np.ndarray, z: np.ndarray) -> Side:
    """The same for the TensorFlow Lite interpreter, a new one for each clip; ImportError where it is absent."""
    encode = official.streaming_graph(folder / "soundstream_encoder.tflite", os.cpu_count())
    decode = official.streaming_graph(folder / "lyragan.tflite", os.cpu_count())
    frames = wavs.reshape(len(wavs), -1, 320)
    return {
        "encode": (lambda: np.array([encode(clip) for clip in frames]), 0.0),
        "decode": (lambda: np.array([decode(latent).ravel() for latent in z]), 0.0),
        "round trip": (lambda: np.array([decode(encode(clip)).ravel() for clip in frames]), 0.0),
    }


def agreement(ours: Side, theirs: Side) -> dict[str, float]:
    """Correlation of the latents of one audio, and of the audio of one latent: the originals compute in 8 bits.

    Raises ValueError where the two sides differ.
    """
    found, least = {}, 0.98
    for task in ("encode", "decode"):
        a, b = (np.asarray(side[task][0]()).ravel() for side in (ours, theirs))
        found[f"{task} (correlation)"] = r = float(np.corrcoef(a, b)[0, 1])
        if not r >= least:
            raise ValueError(f"The sides do not agree, so timing them says nothing: {task} {r:.3f}.")
    return found


def bench(codec: Codec, folder: Path, wavs: np.ndarray, repeats: int) -> dict[str, Any]:
    """Measure one codec on ``wavs [n, T]``; `folder` holds the original's files."""
    wavs = wavs[:, : wavs.shape[1] // codec.hop * codec.hop]  # whole frames
    seconds = wavs.shape[1] / codec.sample_rate
    result: dict[str, Any] = {"clips": len(wavs), "seconds": seconds, "repeats": repeats, "rows": [], "notes": []}
    z = np.asarray(lax.map(partial(codec.encode, codec.params), wavs))
    sides = {"jax": jax_side(codec, wavs, z)}
    try:
        sides["tflite"] = interpreter_side(folder, wavs, z)
        result["agreement"] = agreement(sides["jax"], sides["tflite"])
    except ImportError as error:
        result["notes"].append(f"the original's interpreter is absent ({error}), agreement not checked")
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
