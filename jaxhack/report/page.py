"""The HTML page: stored numbers arranged for a reader. Everything a file name may hold is escaped."""

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import soundfile

from jaxhack import detect, spaces
from jaxhack.checks import kind, known, percent
from jaxhack.measures import kinds
from jaxhack.report import figures
from jaxhack.settings import first_look, learns

SIGNALS = (("x", "x, the input"), ("reference", "x̂, the round trip"), ("attacked", "y, attacked"))

Entry = dict[str, Any]


def html(
    summary: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    training: Sequence[Mapping[str, Any]],
    examples: Sequence[Mapping[str, Any]],
    certified: Mapping[str, str] | None = None,
) -> str:
    """One self-contained page.

    Args:
      summary: what ``summary.json`` holds.
      rows: one per utterance × attacker.
      training: lines of ``training.jsonl``; may be empty.
      examples: as :func:`examples` makes them; may be empty.
      certified: the figure of the certificates in `summary`; None: there are none.

    Returns:
      The page's text; nothing in it is fetched from anywhere.
    """
    configuration = summary["configuration"]
    top, trained, baselines = blocks(summary)
    return render(
        "page.html",
        s=summary,
        c=configuration,
        settings=configuration["settings"],
        predictor=configuration["predictor"]["name"],
        attacked=configuration.get("target", configuration["predictor"])["name"],
        decided=configuration.get("decided"),
        headline=headline(summary),
        learned=learns(configuration["settings"]),
        budget=spaces.KINDS[configuration["settings"]["space"]].unit,
        top=top,
        blocks=[top, trained, baselines],
        random={kind(e["attacker"]): e for e in baselines},
        figures=list(_figures(summary, rows, training)),
        examples=examples,
        bounds=summary.get("certificate"),
        certified=certified,
        unjudged=unjudged(rows),
        everything=list(flat({k: v for k, v in configuration.items() if k != "weights"})),
    )


def render(template: str, **values: Any) -> str:
    """A template of this package filled in; names that files and users bring are escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("jaxhack", "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "percent": percent, "measure": measure, "unit": unit}
    return environment.get_template(template).render(**values)


def settings(summary: Mapping[str, Any]) -> str:
    """Every setting as one sentence: ``Settings: profile quick, attacker grpo, seeds 2, … .``"""
    made = summary["configuration"]["settings"]
    unused = () if learns(made) else ("steps", "batch", "group", "crop_seconds")
    return f"Settings: {', '.join(f'{k} {v}' for k, v in flat(made) if k not in unused)}."


def headline(summary: Mapping[str, Any]) -> str:
    """The result as one sentence."""
    settings, name = summary["configuration"]["settings"], summary["configuration"]["predictor"]["name"]
    worst, entry = summary["worst_attack_success_rate"], _worst(summary)
    tau = f"{settings['tau']:g} MOS"
    if not known(worst) or entry is None:
        return (
            f"Nothing can be said about {name}: none of {summary['inputs']['test']} test utterances could be judged."
        )
    heard = "training" if summary["inputs"]["both"] else "unseen"
    count = f"{entry['n']} {heard} utterance{'s' if entry['n'] != 1 else ''}"
    target = summary["configuration"].get("target")
    of = f" of {target['name']}" if target else ""
    if worst == 0:
        sentence = f"No attacker{of} raised {name} by more than {tau} at the speech's expense on any of {count}."
    else:
        sentence = (
            f"An {'attacker' if target else 'optimiser'}{of} raised {name} by more than {tau} on {percent(worst)} of "
            f"{count} while the panel found the speech worse, not better."
        )
    return f"At a first look, {sentence[0].lower()}{sentence[1:]}" if first_look(settings) else sentence


def blocks(summary: Mapping[str, Any]) -> list[list[Entry]]:
    """The table's three blocks: over all attackers, one row per attacker, baselines. Every row has the same keys."""
    trained = [a for a in summary["attackers"] if not a["baseline"]]
    baselines = [a for a in summary["attackers"] if a["baseline"]]
    worst = _worst(summary)
    top = [
        _entry("worst attacker", worst or {}),
        _entry("mean of attackers", _mean(summary, trained)),
        _entry(
            "any attacker (per-utterance worst case)",
            {
                "attack_success_rate": summary["any_attacker_success_rate"],
                "attack_success_rate_naive": summary["any_attacker_success_rate_naive"],
                "interval": summary["any_attacker_interval"],
                "n": summary["any_attacker_n"],
            },
        ),
    ]
    return [
        top,
        [_entry("attacker", a, figures.name(a)) for a in trained],
        [_entry("baseline", a, figures.name(a)) for a in baselines],
    ]


def examples(folder: Path, listed: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Listening examples with their audio and spectrograms; one that cannot be read says so.

    Args:
      folder: where the wav files lie.
      listed: entries of ``examples.json``.
    """
    made = []
    for item in listed:
        example = dict(item) | {"signals": [], "problem": None, "difference": None}
        try:
            files = {key: folder / Path(item["files"][key]).name for key, _ in SIGNALS}
            wavs = {key: soundfile.read(path, dtype="float32")[0] for key, path in files.items()}
            rate = soundfile.info(files["x"]).samplerate
        except (OSError, KeyError, TypeError, soundfile.SoundFileError) as error:
            made.append(example | {"problem": f"cannot be played: {type(error).__name__}"})
            continue
        peak = max(float(figures.magnitudes(w, rate).max()) for w in wavs.values())
        for key, title in SIGNALS:
            audio = base64.b64encode(files[key].read_bytes()).decode()
            example["signals"].append(
                {
                    "title": title,
                    "score": item.get({"x": "score_input"}.get(key, f"score_{key}")),
                    "audio": f"data:audio/wav;base64,{audio}",
                    "image": figures.spectrogram(wavs[key], rate, peak),
                }
            )
        n = min(len(wavs["attacked"]), len(wavs["reference"]))
        difference = wavs["attacked"][:n] - wavs["reference"][:n]
        example["difference"] = figures.spectrogram(difference, rate, peak)
        example["snr"] = _decibel(wavs["reference"][:n], difference)
        made.append(example)
    return made


def unjudged(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What has no verdict and why: one entry per utterance and reason, with the attackers concerned."""
    total = len({(r["attacker"], r["seed"]) for r in rows})
    found: dict[tuple[Any, ...], list[str]] = {}
    for row in rows:
        if row["status"] != "ok" or row["verdict"] == detect.UNDETERMINED:
            key = (row["utterance"], row["status"], row["reason"])
            found.setdefault(key, []).append(figures.name(row))
    return [
        {
            "utterance": utterance,
            "status": "undetermined" if status == "ok" else status.replace("_", " "),
            "reason": reason or "a measure or score is undefined",
            "attackers": "all" if len(names) == total else ", ".join(names),
        }
        for (utterance, status, reason), names in found.items()
    ]


def plain(value: Any) -> Any:
    """The same with JSON's own types: numbers that are not finite become None, tuples and arrays lists."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def number(value: float | int | None, fmt: str) -> str:
    """A number as text with a true minus, or a dash where it is undefined."""
    return format(value, fmt).replace("-", "−") if known(value) else "–"


def measure(name: str) -> str:
    """A panel measure's written name."""
    found = kinds().get(name)
    return found.title if found else name


def unit(name: str) -> str:
    """A panel measure's unit, with the space before it."""
    found = kinds().get(name)
    return found.unit if found else ""


def flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as (dotted name, text)."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key != "weights":
                yield from flat(inner, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _figures(
    summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], training: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, str]]:
    """Each figure's address, caption and alternative text."""
    tau, entries = summary["configuration"]["settings"]["tau"], summary["attackers"]
    values = [(figures.name(e), e["attack_success_rate"], e["attack_success_rate_naive"]) for e in entries]
    yield {
        "src": figures.rates(entries),
        "caption": "Success rate of each attacker against the round trip x̂ (corrected, with its 95 % interval) and "
        "against the raw input x (naive).",
        "alt": "Success rates, corrected and naive: "
        + "; ".join(f"{n} {number(c, '.2f')} and {number(v, '.2f')}" for n, c, v in values),
    }
    yield {
        "src": figures.gains(rows, tau),
        "caption": f"Gain over the round trip, all trained attackers together. Right of τ = {tau:g} MOS the gain "
        "counts as a hack if the panel calls the output worse.",
        "alt": "Histogram of gains. Mean gains: "
        + "; ".join(f"{figures.name(e)} {number(e['mean_gain'], '+.2f')} MOS" for e in entries),
    }
    sweep = summary["tau_sweep"]
    yield {
        "src": figures.thresholds(sweep, tau),
        "caption": "Success rate against the threshold τ, from the same stored rows.",
        "alt": "Worst attacker's success rate by τ: "
        + "; ".join(f"{s['tau']:g} MOS {number(s['worst'], '.2f')}" for s in sweep),
    }
    if training:
        yield {
            "src": figures.training(training),
            "caption": "Training, one line per attacker: mean reward, its standard deviation within a group (0: "
            "exploration has died) and the share of clipped ratios.",
            "alt": f"Training curves of the attackers over {len(training)} steps.",
        }


def _worst(summary: Mapping[str, Any]) -> Mapping[str, Any] | None:
    judged = [a for a in summary["attackers"] if not a["baseline"] and known(a["attack_success_rate"])]
    return max(judged, key=lambda a: a["attack_success_rate"], default=None)


def _mean(summary: Mapping[str, Any], trained: Sequence[Mapping[str, Any]]) -> Entry:
    keys = ("mean_gain", "gain_p90", "mean_gain_naive", "degraded_rate")
    entry = {key: _average(a.get(key) for a in trained) for key in keys}
    changes = {key: _average(a["mean_change"].get(key) for a in trained) for key in summary["configuration"]["panel"]}
    return entry | {
        "attack_success_rate": summary["mean_attack_success_rate"],
        "attack_success_rate_naive": summary["mean_attack_success_rate_naive"],
        "sd": summary["attack_success_rate_sd"],
        "mean_change": changes,
    }


def _average(values: Any) -> float | None:
    found = [v for v in values if known(v)]
    return sum(found) / len(found) if found else None


def _entry(role: str, source: Mapping[str, Any], label: str | None = None) -> Entry:
    rates = ("attack_success_rate", "attack_success_rate_naive", "mean_gain", "mean_gain_naive", "degraded_rate")
    keys = (*rates, "gain_p90", "n", "n_undetermined", "n_failed", "queries", "gradients", "sd", "attacker", "seed")
    return {key: source.get(key) for key in keys} | {
        "role": role,
        "label": label or role,
        "interval": list(source["interval"]) if source.get("interval") and source.get("n") else [None, None],
        "mean_change": dict(source.get("mean_change") or {}),
    }


def _decibel(signal: np.ndarray, noise: np.ndarray) -> float | None:
    """Energy ratio in dB; None where one side is silent."""
    ours, theirs = (float(np.sum(np.square(w, dtype=np.float64))) for w in (signal, noise))
    return 10 * float(np.log10(ours / theirs)) if ours > 0 and theirs > 0 else None
