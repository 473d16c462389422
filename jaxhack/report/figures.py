"""The report's figures: stored numbers in, a self-contained image address (``data:image/…``) out.

No pyplot and no global state; the same numbers give the same bytes. Colours are Okabe and Ito's, which readers with
any colour vision tell apart; line style or marker says the same once more. Figures stand on white, in dark pages too.
"""

import base64
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jaxhack.checks import column, kind, known

BLUE, ORANGE, GREEN, GREY, BLACK = "#0072B2", "#D55E00", "#009E73", "#767676", "#000000"
ATTACKERS = (BLUE, ORANGE, GREEN, "#CC79A7", "#56B4E9", "#E69F00", BLACK)
STYLES = ("-", "--", "-.", ":")
MARKERS = "osD^vP"
LOSSES = {
    "regression": "regression (MOS²)",
    "ranking": "ranking (MOS)",
    "consistency": "consistency (MOS²)",
    "gradient_norm": "gradient norm",
}
WIDTH = 5.6  # inches of a figure that stands alone
STYLE: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same on every machine
    "font.size": 9.5,
    "axes.labelsize": 9.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "axes.edgecolor": "#555555",
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.5,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "jaxhack",
    "svg.fonttype": "path",
    "axes.unicode_minus": True,
}
OPEN: Any = {"mfc": "white", "mec": GREY, "mew": 1.2, "ls": "", "ms": 5.5}  # markers of what has no end
FLOOR = -80.0  # dB, of a spectrogram
FRAME, HOP = 0.032, 0.008  # s


def rates(entries: Sequence[Mapping[str, Any]]) -> str:
    """Success rate of every attacker, corrected with its interval and naive.

    Args:
      entries: the summary's attackers, baselines among them, in the order to draw.

    Returns:
      An SVG's address.
    """
    with _figure(0.9 + 0.29 * max(2, len(entries))) as fig:
        axes = fig.subplots()
        for y, entry in enumerate(entries):
            colour = GREY if entry["baseline"] else BLUE
            rate, naive, (low, high) = (
                entry["attack_success_rate"],
                entry["attack_success_rate_naive"],
                _interval(entry),
            )
            if known(low) and known(high):
                axes.hlines(y - 0.1, low, high, color=colour, lw=2, zorder=2)
            if known(naive):
                axes.plot(naive, y + 0.24, "D", mfc="white", mec=ORANGE, mew=1.2, ms=4.5, zorder=3)
            if known(rate):
                axes.plot(rate, y - 0.1, "o", color=colour, ms=6, zorder=4)
        axes.set_yticks(range(len(entries)), [name(e) for e in entries])
        axes.set_ylim(len(entries) - 0.5, -0.5)
        axes.set_xlim(-0.02, 1.02)
        axes.set_xlabel("attack success rate")
        axes.grid(axis="y", visible=False)
        axes.plot([], [], "o-", color=BLUE, label="trained, corrected")
        axes.plot([], [], "o-", color=GREY, label="random, corrected")
        axes.plot([], [], "D", mfc="white", mec=ORANGE, mew=1.2, ms=4.5, label="naive")
        fig.legend(loc="outside upper right", ncols=3, handletextpad=0.4, columnspacing=1.2)
        return _svg(fig)


def gains(rows: Sequence[Mapping[str, Any]], tau: float) -> str:
    """Distribution of the gain: all trained attackers together, and each random baseline.

    Args:
      rows: one per utterance × attacker.
      tau: the gain that a hack exceeds (MOS).

    Returns:
      An SVG's address.
    """
    groups = {
        "trained": column([r for r in rows if not r["baseline"]], "gain"),
        "random action": column([r for r in rows if r["baseline"] and r["attacker"] == "random"], "gain"),
        "best random action": column(
            [r for r in rows if r["baseline"] and kind(r["attacker"]) == "random_best"], "gain"
        ),
    }
    pooled = [g for group in groups.values() for g in group] or [0.0]
    low, high = min(*pooled, 0.0), max(*pooled, tau)
    step = next(s for s in (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, np.inf) if (high - low) / s <= 40)
    step = step if np.isfinite(step) else (high - low) / 40
    edges = np.arange(np.floor(low / step), np.ceil(high / step) + 1.5) * step
    with _figure(2.9) as fig:
        axes = fig.subplots()
        looks: tuple[dict[str, Any], ...] = (
            {"histtype": "stepfilled", "color": BLUE, "alpha": 0.55},
            {"histtype": "step", "color": GREY, "lw": 1.6, "ls": "--"},
            {"histtype": "step", "color": BLACK, "lw": 1.6},
        )
        for (label, values), look in zip(groups.items(), looks, strict=True):
            if values:
                axes.hist(values, list(edges), weights=np.full(len(values), 1 / len(values)), label=label, **look)
        axes.axvline(0.0, color="#999999", lw=0.8)
        axes.axvline(tau, color=ORANGE, lw=1.3, ls=":", label=f"τ = {tau:g} MOS")
        axes.set_xlabel("gain R(y) − R(x̂) (MOS)")
        axes.set_ylabel("share of outputs")
        fig.legend(loc="outside upper right", ncols=4, columnspacing=1.0, handlelength=1.6)
        return _svg(fig)


def thresholds(sweep: Sequence[Mapping[str, Any]], tau: float) -> str:
    """Success rate against τ.

    Args:
      sweep: one mapping per τ: ``tau, worst, mean, random, random_best`` (rates or None).
      tau: the one used (MOS).

    Returns:
      An SVG's address.
    """
    lines = (
        ("worst", "worst attacker", BLUE, "-", "o"),
        ("mean", "mean of attackers", BLUE, "--", "s"),
        ("random_best", "best random action", BLACK, "-", "^"),
        ("random", "random action", GREY, "--", "v"),
    )
    with _figure(2.9) as fig:
        axes = fig.subplots()
        for key, label, colour, style, marker in lines:
            points = [(s["tau"], s[key]) for s in sweep if known(s[key])]
            if points:
                axes.plot(*zip(*points, strict=True), style, marker=marker, ms=4, color=colour, label=label)
        axes.axvline(tau, color=ORANGE, lw=1.3, ls=":", label=f"τ = {tau:g} MOS")
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel("τ (MOS)")
        axes.set_ylabel("attack success rate")
        fig.legend(loc="outside upper right", ncols=3, columnspacing=1.0, handlelength=2.2)
        return _svg(fig)


def certified(
    scores: Sequence[float],
    reached: Sequence[float | None],
    bounds: Sequence[float | None],
    budget: Sequence[float | None] | None = None,
) -> str:
    """What an attack surely reached on each utterance, beside what no perturbation of its size exceeds.

    Args:
      scores: at x̂, utterance by utterance (MOS).
      reached: lower bounds on the score at y; None: unknown.
      bounds: certified; None or infinite: nothing is.
      budget: certified for every perturbation within the run's budget; None: there is no such radius.

    Returns:
      An SVG's address.

    Raises:
      ValueError: not as many bounds as scores.
    """
    if not len(scores) == len(reached) == len(bounds) == len(scores if budget is None else budget):
        raise ValueError(f"Expected a bound for each score, got {len(bounds)} bounds and {len(scores)} scores.")
    order = np.argsort(scores, kind="stable")
    here, low, high, all_of_it = (
        np.array([value if known(value) else np.nan for value in values], float)[order]
        for values in (scores, reached, bounds, budget or [None] * len(scores))
    )
    number, open_ended = np.arange(1, len(order) + 1), ~np.isfinite(high)
    drawn = np.concatenate([here, low, high, all_of_it])
    drawn = drawn[np.isfinite(drawn)] if np.isfinite(drawn).any() else np.array([1.0, 5.0])
    span = max(np.ptp(drawn), 0.1)
    bottom, top = drawn.min() - 0.06 * span, drawn.max() + (0.16 if open_ended.any() else 0.06) * span
    small = 1.0 if len(number) <= 40 else 0.6
    with _figure(3.3) as fig:
        axes = fig.subplots()
        axes.vlines(number, here, np.where(open_ended, top, high), color="#bbbbbb", lw=1.0, zorder=2)
        if budget is not None:
            label = "bound on any within the budget"
            axes.plot(number, all_of_it, "_", color=BLACK, ms=11 * small, mew=1.4, label=label, zorder=5)
        axes.plot(
            number, high, "v", color=ORANGE, ms=5.5 * small, label="bound at the distance of the attack", zorder=4
        )
        axes.plot(number, low, "o", color=BLUE, ms=4.5 * small, label="surely reached by the attack", zorder=4)
        axes.plot(number, here, "o", label="x̂", zorder=3, **(OPEN | {"ms": 8 * small}))
        if open_ended.any():
            where = np.full(np.sum(open_ended), top - 0.04 * span)
            label = f"no bound ({np.sum(open_ended)} of {len(number)})"
            axes.plot(number[open_ended], where, "^", label=label, zorder=3, **OPEN)
        axes.set_ylim(bottom, top)
        beside = max(0.5, 0.02 * len(number))
        axes.set_xlim(1 - beside, max(len(number), 1) + beside)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("utterance, by its score at x̂")
        axes.set_ylabel("smoothed score (MOS)")
        fig.legend(loc="outside upper right", ncols=2, columnspacing=1.2, handletextpad=0.4)
        return _svg(fig)


def training(lines: Sequence[Mapping[str, Any]]) -> str:
    """Training curves, one line per attacker: reward, its standard deviation in a group, share of clipped ratios.

    Args:
      lines: of ``training.jsonl``.

    Returns:
      An SVG's address.
    """
    labels = {"reward": "reward (MOS)", "reward_sd": "in-group sd", "clip_fraction": "share clipped"}
    panels = [(k, v) for k, v in labels.items() if any(line.get(k) for line in lines)] or [("reward", "reward (MOS)")]
    with _figure(0.9 + 1.25 * len(panels)) as fig:
        for axes, (key, label) in zip(np.ravel(fig.subplots(len(panels), sharex=True)), panels, strict=True):
            for seed in range(max((len(line.get(key) or ()) for line in lines), default=0)):
                raw = np.array([_at(line.get(key), seed) for line in lines])
                colour, style = ATTACKERS[seed % len(ATTACKERS)], STYLES[seed // len(ATTACKERS) % len(STYLES)]
                step, mean = _thinned([line["step"] for line in lines], _running_mean(raw))
                axes.plot(step, mean, style, color=colour, label=f"attacker {seed}", lw=1.3)
            axes.set_ylabel(label)
            axes.margins(x=0.01)
            if key != "reward":
                axes.set_ylim(bottom=0.0)
        axes.set_xlabel("optimisation step")
        handles = axes.get_legend_handles_labels()
        if handles[0]:
            fig.legend(*handles, loc="outside upper right", ncols=5, columnspacing=0.9, handlelength=1.3)
        fig.align_ylabels()
        return _svg(fig)


def by_round(rounds: Sequence[Mapping[str, Any]]) -> str:
    """Success rate of each attack's fresh attackers in every round of a patching.

    Args:
      rounds: each with ``round`` and ``in_loop``: attack -> ``mean_attack_success_rate`` and the seeds' ``rates``.

    Returns:
      An SVG's address.
    """
    names = list(dict.fromkeys(name for r in rounds for name in r["in_loop"]))
    columns = 2 if max(map(len, names), default=0) > 14 else 3
    with _figure(2.7 + 0.2 * -(-len(names) // columns)) as fig:
        axes = fig.subplots()
        for i, name in enumerate(names):
            aside = min(0.05, 0.4 / len(names)) * (i - (len(names) - 1) / 2)
            colour, style = ATTACKERS[i % len(ATTACKERS)], STYLES[i % len(STYLES)]
            mine = [(r["round"] + aside, r["in_loop"][name]) for r in rounds if name in r["in_loop"]]
            means = [(x, e["mean_attack_success_rate"]) for x, e in mine if known(e["mean_attack_success_rate"])]
            seeds = [(x, rate) for x, e in mine if len(e["rates"]) > 1 for rate in e["rates"] if known(rate)]
            look = {"marker": MARKERS[i % len(MARKERS)], "ms": 5.5, "color": colour, "label": name, "zorder": 4}
            axes.plot(*(zip(*means, strict=True) if means else ([], [])), style, **look)
            if seeds:
                axes.plot(*zip(*seeds, strict=True), ".", color=colour, ms=5, alpha=0.55, zorder=3, clip_on=False)
        axes.set_xlim(0.5, max((r["round"] for r in rounds), default=1) + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel("round")
        axes.set_ylabel("in-loop success rate")
        if names:
            fig.legend(loc="outside upper right", ncols=columns, columnspacing=1.0, handlelength=2.4)
        return _svg(fig)


def fitting(fits: Mapping[int, Sequence[Mapping[str, Any]]]) -> str:
    """Losses of a patching's fits, one panel per part of the loss, one line per round.

    A part that stays above zero and spans more than two decades is drawn on a logarithmic axis.

    Args:
      fits: round -> lines of its ``fitting.jsonl``.

    Returns:
      An SVG's address.
    """
    fits = {number: lines for number, lines in fits.items() if lines}
    found = dict.fromkeys(name for lines in fits.values() for line in lines for name in line if name != "step")
    parts = [*(name for name in LOSSES if name in found), *(name for name in found if name not in LOSSES)]
    with _figure(0.9 + 1.4 * max(1, len(parts))) as fig:
        for axes, part in zip(np.ravel(fig.subplots(max(1, len(parts)), sharex=True)), parts, strict=False):
            drawn = []
            for i, (number, lines) in enumerate(fits.items()):
                raw = np.array([np.nan if line.get(part) is None else line[part] for line in lines], float)
                step, mean = _thinned([line["step"] for line in lines], _running_mean(raw))
                colour, style = ATTACKERS[i % len(ATTACKERS)], STYLES[i // len(ATTACKERS) % len(STYLES)]
                marker = "." if len(step) < 20 else ""
                axes.plot(step, mean, style, marker=marker, color=colour, label=f"round {number}", lw=1.3)
                drawn += [value for value in mean if np.isfinite(value)]
            axes.set_ylabel(LOSSES.get(part, part.replace("_", " ")))
            axes.margins(x=0.01)
            low, high = np.quantile(drawn, (0.05, 0.95)) if drawn else (0.0, 0.0)
            if low > 0 and high > 100 * low:
                axes.set_yscale("log", nonpositive="clip")
                axes.set_ylim(bottom=low / 2)
            else:
                axes.set_ylim(bottom=0.0)
        axes.set_xlabel("step of the round’s fit")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        fig.legend(
            *axes.get_legend_handles_labels(), loc="outside upper right", ncols=5, columnspacing=0.9, handlelength=1.3
        )
        fig.align_ylabels()
        return _svg(fig)


def spectrogram(wav: np.ndarray, rate: int, peak: float) -> str:
    """A spectrogram over 80 dB.

    Args:
      wav: ``[T]`` float, −1..1.
      rate: Hz.
      peak: magnitude that 0 dB stands for, see :func:`magnitudes`; shared by the pictures to be compared.

    Returns:
      A PNG's address.
    """
    level = 20 * np.log10(np.maximum(magnitudes(wav, rate) / max(peak, 1e-12), 1e-9))
    with _figure(1.9, width=2.9, layout=None) as fig:
        axes = fig.add_axes((0.12, 0.23, 0.85, 0.73))
        axes.imshow(
            level.T,
            origin="lower",
            aspect="auto",
            cmap="magma",
            vmin=FLOOR,
            vmax=0.0,
            extent=(0, len(wav) / rate, 0, rate / 2000),
            interpolation="nearest",
        )
        axes.grid(False)
        axes.set_xlabel("s")
        axes.set_ylabel("kHz")
        out = io.BytesIO()
        fig.savefig(out, format="png", dpi=150, metadata={"Software": None})
        return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def magnitudes(wav: np.ndarray, rate: int) -> np.ndarray:
    """Magnitudes ``[frames, bins]`` of ``wav [T]`` in Hann windows of 32 ms every 8 ms; a short wav is padded."""
    size, hop = round(FRAME * rate), round(HOP * rate)
    wav = np.pad(wav, (0, max(0, size - len(wav))))
    frames = np.lib.stride_tricks.sliding_window_view(wav, size)[::hop]
    return np.abs(np.fft.rfft(frames * np.hanning(size)))


def name(entry: Mapping[str, Any]) -> str:
    """How figures and tables call one attacker: ``grpo 0``; baselines by what they are."""
    if not entry["baseline"]:
        return f"{entry['attacker']} {entry['seed']}"
    what, at, whom = entry["attacker"].partition("@")
    if what == "random_best":
        return f"best of {entry['queries']} random{at}{whom}"
    return {"random": "one random action"}.get(entry["attacker"], entry["attacker"])


def _interval(entry: Mapping[str, Any]) -> tuple[float | None, float | None]:
    low, high = entry["interval"] if entry["n"] else (None, None)
    return low, high


def _at(values: Sequence[float | None] | None, i: int) -> float:
    value = values[i] if values and i < len(values) else None
    return np.nan if value is None else value


def _running_mean(values: np.ndarray) -> np.ndarray:
    """Centred mean over a fiftieth of the curve, what is unknown left out."""
    half = len(values) // 100
    if not half:
        return values
    windows = (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    return np.array([_mean(w[np.isfinite(w)]) for w in windows])


def _thinned(step: Sequence[int], values: np.ndarray, most: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """At most about `most` points of a smoothed curve, the last one included."""
    keep = np.unique(np.linspace(0, len(step) - 1, min(len(step), most)).astype(int))
    return np.asarray(step)[keep], values[keep]


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else np.nan


@contextmanager
def _figure(height: float, width: float = WIDTH, layout: Any = "constrained") -> Iterator[Figure]:
    with matplotlib.rc_context(STYLE):
        fig = Figure(figsize=(width, height), layout=layout)
        FigureCanvasAgg(fig)
        yield fig


def _svg(fig: Figure) -> str:
    """An SVG without what varies (date) and what looks like a network address (metadata, document type)."""
    out = io.StringIO()
    fig.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = re.sub(r"<metadata>.*?</metadata>|<!DOCTYPE[^>]*>|<\?xml[^>]*\?>", "", out.getvalue(), flags=re.DOTALL)
    return f"data:image/svg+xml;base64,{base64.b64encode(text.encode()).decode()}"
