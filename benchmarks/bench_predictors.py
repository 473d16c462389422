"""Scoring speed of the ports beside the published implementations, in seconds of audio per second.

Both sides go from the same files to scores. Agreement is checked before anything is timed; calls block; the
first call of each side is a warm-up; repeats of the two sides alternate, so that a busy machine slows both;
the median counts and compilation is reported apart.

    python -m benchmarks.bench_predictors --shared ../shared --out speed.json
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import soundfile

from benchmarks import official
from jaxhack.types import Predictor
from ports.nisqa import nisqa, nisqa_tts


class Case(NamedTuple):
    """One predictor to time: how to make it, the published one, and how far they may differ."""

    port: Callable[[Path], Predictor]  # models directory -> predictor at 16 kHz
    official: Callable[[Path], official.Scorer]  # models directory -> scorer; ImportError where absent
    tolerance: float  # largest accepted |Δ| on any head


CASES: dict[str, Case] = {
    "nisqa": Case(
        lambda models: nisqa({"nisqa.tar": models / "nisqa/nisqa.tar"}),
        lambda models: official.nisqa(models / "nisqa/nisqa.tar"),
        1e-3,
    ),
    "nisqa_tts": Case(
        lambda models: nisqa_tts({"nisqa_tts.tar": models / "nisqa/nisqa_tts.tar"}),
        lambda models: official.nisqa(models / "nisqa/nisqa_tts.tar"),
        1e-3,
    ),
}


class Size(NamedTuple):
    clips: int
    seconds: float
    repeats: int


FULL, TINY = Size(32, 3.0, 7), Size(2, 1.0, 1)


def crops(speech: Path, folder: Path, size: Size) -> list[Path]:
    """Equally long crops of recordings spread over ``speech``, as 16-bit files at 16 kHz."""
    samples = int(16000 * size.seconds)
    long = [f for f in sorted(speech.glob("*.flac")) if soundfile.info(f).frames >= samples]
    if len(long) < size.clips:
        raise ValueError(f"{speech} holds {len(long)} recordings of {size.seconds} s; needs {size.clips}.")
    files = []
    for source in long[:: len(long) // size.clips][: size.clips]:
        wav, rate = soundfile.read(source, frames=samples)
        files.append(folder / f"{source.stem}.wav")
        soundfile.write(files[-1], wav, rate)
    return files


def port_scorer(predictor: Predictor, files: Sequence[Path]) -> tuple[official.Scorer, float]:
    """The port over files of one length, clip by clip on a CPU, else in one batch; seconds to compile."""

    def batch(params, wavs, lengths):
        if jax.default_backend() != "cpu":
            return jax.vmap(predictor.heads, (None, 0, 0))(params, wavs, lengths)
        return jax.lax.map(lambda clip: predictor.heads(params, *clip), (wavs, lengths))

    def load(files):
        wavs = np.stack([soundfile.read(file, dtype="float32")[0] for file in files])
        return jnp.asarray(wavs), jnp.full(len(files), wavs.shape[1], jnp.int32)

    start = time.perf_counter()
    run = jax.jit(batch).lower(predictor.params, *load(files)).compile()
    seconds = time.perf_counter() - start
    return lambda files: np.asarray(run(predictor.params, *load(files))), seconds


def measure(case: Case, models: Path, files: Sequence[Path], size: Size) -> dict:
    """Agreement, then the rates of both sides."""
    ours, compile_s = port_scorer(case.port(models), files)
    sides, scores = {"port": ours}, {"port": ours(files)}
    try:
        sides["official"] = case.official(models)
        scores["official"] = sides["official"](files)
    except ImportError as error:
        print(f"official implementation absent ({error}); timing the port alone, agreement not checked")
    row: dict = {"compile_s": round(compile_s, 2)}
    if "official" in scores:
        row["max_difference"] = float(np.abs(scores["port"] - scores["official"]).max())
        if not row["max_difference"] <= case.tolerance:
            raise ValueError(f"the sides differ by {row['max_difference']}, expected ≤ {case.tolerance}")
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(size.repeats):
        for name, score in sides.items():
            start = time.perf_counter()
            score(files)
            seconds[name].append(time.perf_counter() - start)
    for name, taken in seconds.items():
        rates = sorted(len(files) * size.seconds / s for s in taken)
        row[name] = {"median": statistics.median(rates), "min": rates[0], "max": rates[-1]}
    if "official" in row:
        row["ratio"] = row["port"]["median"] / row["official"]["median"]
    return row


def show(rows: dict[str, dict]) -> None:
    """Print one line a predictor."""
    titles = ("port", "range", "official", "ratio", "max |Δ|", "compile s")
    print("predictor   " + "".join(f"{title:>11}" for title in titles))
    for name, row in rows.items():
        port, other = row["port"], row.get("official", {}).get("median", float("nan"))
        spread = f"{port['min']:.0f}–{port['max']:.0f}"
        print(
            f"{name:12}{port['median']:11.1f}{spread:>11}{other:11.1f}{row.get('ratio', float('nan')):11.2f}"
            f"{row.get('max_difference', float('nan')):11.1e}{row['compile_s']:11.1f}"
        )


def main(argv: Sequence[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--shared", type=Path, default=Path("../shared"), help="holds models/ and speech/")
    parser.add_argument("--tiny", action="store_true", help="two short clips, one repeat")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    args = parser.parse_args(argv)
    size = TINY if args.tiny else FULL
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Empty filters")
        files = crops(args.shared / "speech", Path(folder), size)
        rows = {name: measure(CASES[name], args.shared / "models", files, size) for name in args.case}
    result = {
        "unit": "audio-seconds per second",
        **size._asdict(),
        "device": jax.devices()[0].device_kind,
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "jax": jax.__version__,
        "predictors": rows,
    }
    print(f"{size.clips} clips of {size.seconds} s on {result['device']}, {result['cores']} cores; audio-s/s")
    show(rows)
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n")
    return result


if __name__ == "__main__":
    main()
