"""Scoring speed of the ports beside the published implementations, in seconds of audio per second.

    python -m benchmarks.bench_predictors --models ../shared/models --speech ../shared/speech --out speed.json

Both sides go from the same files to scores. ``--gradient`` adds the gradient of the score by the waveform.
"""

import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import jax
import jax.numpy as jnp
import numpy as np
import soundfile

from benchmarks import official, timing
from jaxhack import audio, registry
from jaxhack.parallel import mapped
from jaxhack.types import Predictor

TOLERANCE = 1e-3  # MOS, of every head


class Size(NamedTuple):
    clips: int
    seconds: float
    repeats: int


FULL, TINY = Size(32, 3.0, 7), Size(2, 1.0, 1)

# Name -> the published implementation of it, from the folder of weights; ImportError where it is absent.
CASES: dict[str, Callable[[Path], official.Scorer]] = {
    "nisqa": lambda models: official.nisqa(models / "nisqa/nisqa.tar"),
    "nisqa-tts": lambda models: official.nisqa(models / "nisqa/nisqa_tts.tar"),
    "dnsmos": lambda models: official.dnsmos("ovrl_mos", "sig_mos", "bak_mos"),
    "dnsmos-p808": lambda models: official.dnsmos("p808_mos"),
}


def port_sides(
    predictor: Predictor, files: Sequence[Path], gradient: bool
) -> dict[str, tuple[official.Scorer, float]]:
    """Side -> (a call over files of one length, seconds to compile)."""

    def load(files):
        wavs = np.stack([soundfile.read(file, dtype="float32")[0] for file in files])
        return jnp.asarray(wavs), jnp.full(len(files), wavs.shape[1], jnp.int32)

    def side(function):
        batch = lambda params, *clips: mapped(lambda wav, length: function(params, wav, length))(*clips)  # noqa: E731
        run, seconds = timing.compiled(batch, predictor.params, *load(files))
        return lambda files: np.asarray(run(predictor.params, *load(files))), seconds

    sides = {"port": side(predictor.heads)}
    if gradient:
        sides["port, gradient"] = side(jax.grad(predictor.score, 1))
    return sides


def bench(
    predictor: Predictor,
    published: Callable[[], official.Scorer],
    files: Sequence[Path],
    size: Size,
    gradient: bool = False,
) -> dict[str, Any]:
    """Agreement, then the rates of all sides over `files`; `published` makes the other side or raises ImportError."""
    result: dict[str, Any] = {"rows": [], "agreement": {}, "notes": []}
    sides = port_sides(predictor, files, gradient)
    try:
        sides["published"] = published(), 0.0
    except ImportError as error:
        result["notes"].append(f"{predictor.name}: the published side is absent ({error}), agreement not checked")
    else:
        scores = [sides[side][0](files) for side in ("port", "published")]
        result["agreement"][predictor.name] = timing.agree(f"{predictor.name} (MOS)", *scores, TOLERANCE)
    calls = {side: lambda call=call: call(files) for side, (call, _) in sides.items()}
    for side, seconds in timing.in_turns(calls, size.repeats).items():
        row = {"predictor": predictor.name, "side": side, "compile_s": sides[side][1], **seconds}
        result["rows"].append(row | {"audio_s_per_s": len(files) * size.seconds / seconds["median_s"]})
    rates = {row["side"]: row["audio_s_per_s"] for row in result["rows"]}
    if "published" in rates:
        result["rows"][0]["times_published"] = rates["port"] / rates["published"]
    return result


@click.command(help=__doc__.splitlines()[0])
@timing.options
@click.option("--case", "cases", multiple=True, type=click.Choice(list(CASES)), help="Only these predictors.")
@click.option("--seconds", type=float, help="Length of the clips.")
@click.option("--gradient", is_flag=True, help="Time the gradient too.")
def main(
    models: Path, speech: Path, tiny: bool, repeats: int | None, out: Path | None, cases, seconds, gradient
) -> None:
    size = TINY if tiny else FULL
    size = size._replace(repeats=repeats or size.repeats, seconds=seconds or size.seconds)
    result: dict[str, Any] = {**size._asdict(), "rows": [], "agreement": {}, "notes": []}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Empty filters")
        files = []
        for i, wav in enumerate(timing.recordings(speech, size.clips, size.seconds)):
            files.append(Path(folder) / f"{i}.wav")
            audio.write(files[-1], wav, 16000)
        for name in cases or CASES:
            predictor = registry.predictor(name, models=models)
            one = bench(predictor, lambda name=name: CASES[name](models), files, size, gradient)
            result["agreement"] |= one["agreement"]
            result["rows"] += one["rows"]
            result["notes"] += one["notes"]
    columns = {"predictor": "", "side": "", "audio_s_per_s": ".1f", "median_s": ".3f", "min_s": ".3f", "max_s": ".3f"}
    columns |= {"times_published": ".2f", "compile_s": ".1f"}
    timing.publish(result, f"{size.clips} clips of {size.seconds:g} s, median of {size.repeats}", columns, out)


if __name__ == "__main__":
    main()
