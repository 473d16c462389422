"""The quality of `mini` beside Lyra and Opus, on clean recordings of speakers that it was never trained on.

    python -m experiments.train_mini_codec.evaluate --shared ../shared [--weights mini.msgpack]

``README.md``'s table is what ``--table`` prints from ``results.json``.
"""

import argparse
import csv
import hashlib
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import soundfile

import jaxhack as jh
from experiments.files import markdown
from jaxhack import audio, dsp
from jaxhack.measures import estoi, si_sdr
from jaxhack.reconstruct import round_trip
from jaxhack.types import Codec
from jaxhack.weights import locate
from ports import mini

HERE = Path(__file__).parent
RATE = 16000
CLEAN = 3.0  # DNSMOS OVRL from which a recording counts as clean
TRAINED_ON = ("asterisk-core-sounds", "unknown-horizons")  # their speakers are left out
GATES = {"mini, continuous": (-0.3, 0.90), "mini, 64 stages": (-0.6, 0.80)}  # P.808 change, ESTOI


def clips(shared: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Name and waveform of every clean recording of an unseen speaker."""
    with open(shared / "speech" / "manifest.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if float(row["dnsmos_ovrl"]) >= CLEAN and not row["source"].startswith(TRAINED_ON):
                yield row["file"], audio.read(shared / "speech" / row["file"], sample_rate=RATE).wav


def conditions(shared: Path, weights: Path | None) -> dict[str, tuple[float | None, Callable]]:
    """Name -> bit rate (kb/s; None: not quantised) and what it makes of a waveform."""
    ours = mini.codec(mini.unpack(weights)) if weights else jh.codec("mini")
    lyra = jh.codec("lyra", models=shared / "models")
    made: dict[str, tuple[float | None, Callable]] = {"original": (None, lambda wav: wav)}
    for codec, bits in ((ours, 6), (lyra, 4)):
        made[f"{codec.name}, continuous"] = (None, round_trip(codec))
        for stages in reversed(codec.stages):
            rate = stages * bits * codec.sample_rate / codec.hop / 1000
            made[f"{codec.name}, {stages} stages"] = (rate, round_trip(quantising(codec, stages)))
    return made | {f"Opus {rate} kb/s": (float(rate), partial(opus, rate)) for rate in (9, 6)}


def quantising(codec: Codec, stages: int) -> Codec:
    """The codec as its receiver hears it."""
    return codec._replace(encode=lambda params, wav: codec.quantise(params, codec.encode(params, wav), stages))


def opus(rate: int, wav: np.ndarray) -> np.ndarray:
    """Through Opus at a nominal rate (kb/s), aligned and as long as before."""
    file = io.BytesIO()
    share = (rate - 6) / 250  # libsndfile: 0 is 6 kb/s, 1 is 256 kb/s
    soundfile.write(file, wav, RATE, format="OGG", subtype="OPUS", compression_level=1 - share)
    file.seek(0)
    return soundfile.read(file, dtype="float32")[0][: len(wav)]


def measure(shared: Path, weights: Path | None) -> dict:
    """Means over the clips, condition by condition."""
    predictor = jh.predictor("dnsmos-p808", models=shared / "models")

    @jax.jit
    def figures(x, y, length):
        p808 = predictor.score(predictor.params, y, length)
        return (
            p808,
            estoi(x, y, length, sample_rate=RATE),
            si_sdr(x, y, length),
            jnp.max(jnp.abs(y)) / jnp.max(jnp.abs(x)),
        )

    recordings = list(clips(shared))
    found = {}
    for name, (rate, apply) in conditions(shared, weights).items():
        values = []
        for _, wav in recordings:
            size = audio.bucket_length(len(wav), RATE)
            both = [audio.pad(w, size) for w in (wav, np.asarray(dsp.as_saved(apply(wav))))]
            values.append([float(v) for v in figures(*both, jnp.int32(len(wav)))])
        p808, intelligible, distortion, peak = np.array(values).T
        found[name] = {
            "kbps": rate,
            "p808": round(float(p808.mean()), 3),
            "p808_deviation": round(float(p808.std(ddof=1)), 3),
            "estoi": round(float(intelligible.mean()), 3),
            "estoi_lowest": round(float(intelligible.min()), 3),
            "si_sdr": None if name == "original" else round(float(np.median(distortion)), 1),
            "peak_ratio": [round(float(peak.min()), 2), round(float(peak.max()), 2)],
        }
        print(name, found[name], file=sys.stderr, flush=True)
    file = weights or locate("mini", mini.MINI_WEIGHTS)[mini.MINI_WEIGHTS[0].file]
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return {"weights": digest, "clips": len(recordings), "conditions": found}


def table(results: dict) -> str:
    """The results as Markdown."""
    found = results["conditions"]
    heads = ("codec", "kb/s", "P.808", "change", "ESTOI", "lowest", "SI-SDR, dB", "peak / original's")
    lines = []
    for name, r in found.items():
        change = r["p808"] - found["original"]["p808"]
        low, high = r["peak_ratio"]
        cells = [name, "–" if r["kbps"] is None else f"{r['kbps']:.1f}", f"{r['p808']:.2f}", f"{change:+.2f}"]
        cells += [f"{r['estoi']:.3f}", f"{r['estoi_lowest']:.3f}"]
        cells += ["–" if r["si_sdr"] is None else f"{r['si_sdr']:.1f}", f"{low:.2f}–{high:.2f}"]
        lines.append(cells)
    return markdown(heads, lines)


def missed(results: dict) -> list[str]:
    """The quality gates that the results do not meet."""
    found = results["conditions"]
    return [
        f"{name}: P.808 {found[name]['p808'] - found['original']['p808']:+.2f}, ESTOI {found[name]['estoi']:.3f}; "
        f"wanted {change:+.1f} and {intelligible:.2f}"
        for name, (change, intelligible) in GATES.items()
        if not (found[name]["p808"] - found["original"]["p808"] >= change and found[name]["estoi"] >= intelligible)
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path("../shared"), help="holds speech/ and models/")
    parser.add_argument("--weights", type=Path, help="of a training; default: the shipped ones")
    parser.add_argument("--results", type=Path, help="where the figures go; default: here, or beside --weights")
    parser.add_argument("--table", action="store_true", help="print what is there, and measure nothing")
    args = parser.parse_args(argv)
    file = args.results or (args.weights.with_suffix(".json") if args.weights else HERE / "results.json")
    if not args.table:
        if not args.shared.is_dir():
            parser.error(f"{str(args.shared)!r} does not exist: --shared names a folder with speech/ and models/.")
        file.write_text(json.dumps(measure(args.shared, args.weights), indent=1) + "\n")
    results = json.loads(file.read_text())
    print(table(results))
    sys.exit("\n".join(missed(results)) or None)


if __name__ == "__main__":
    main()
