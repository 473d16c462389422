"""Warnings that an audit looks wrong, or says less than its headline: one sentence each, with its numbers.

Every check is a pure function of what a run stored, so that old runs gain new checks. A check that lacks what it
needs (no training log, no baseline, no judged utterance) says nothing.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import stdev, variance
from typing import Any, NamedTuple, TypeGuard

from jaxhack.settings import PROFILES, first_look, sizes

Row = Mapping[str, Any]

ALIKE = 0.1  # of τ: a spread of the recordings' scores (sd) below which the predictor tells them apart no more
PANEL_SAYS_NOTHING = 0.95  # share of outputs called worse, random ones included
EXPLORATION_DIES = 0.1  # of the early peak of the in-group standard deviation
CLIP_FRACTION = 0.6
LOG_RATIO_SD = 1.0  # healthy runs stay near 0.2; one step then moves μ by much less than σ
MEAN_OVER_SIGMA = 10.0  # RMS of μ over σ: above it the draws of a group point one way
EQUAL_GROUPS = 0.25
NOT_JUDGED = 0.05
HALF_WIDTH = 0.1
SPREAD = 0.2
NAIVE_DIFFERENCE = 0.05
BUDGET_TOLERANCE = 1e-6
VANISHED = 0.05  # share of utterances without a gradient to climb
NO_SLOPE = 1e-12
REPEATABLE = 1e-4  # repeat sd (score) up to which a predictor counts as deterministic
STILL_IMPROVING = 3.0  # standard errors by which the last fifth of a training beats the one before
SHORTEST_RISE = 25  # steps below which fifths say nothing
FEW = 30  # judged utterances
FEW_PAIRS = 100  # held at the end: the paper's buffers hold thousands
DEMO_SPEECH = (
    "The recordings are the synthetic demo clips that ship with jaxhack: the numbers say nothing about real speech; "
    "audit recordings of your own."
)
SHORTEST_LOG = 10  # steps below which a training curve says nothing


class Run(NamedTuple):
    """What a run stored, as every check takes it."""

    record: Mapping[str, Any]  # run.json's "record"
    rows: Sequence[Row]
    summary: Mapping[str, Any]  # of jaxhack.stats.success.summary
    training: Sequence[Mapping[str, Any]]  # lines of training.jsonl
    recordings: Sequence[Mapping[str, Any]]  # lines of recordings.jsonl

    @property
    def tau(self) -> float:
        """The gain that a hack exceeds (MOS)."""
        return self.record["settings"]["tau"]

    def trained(self) -> list[Mapping[str, Any]]:
        """The summary's entries of trained attackers that judged something."""
        return [a for a in self.summary["attackers"] if not a["baseline"] and known(a["attack_success_rate"])]

    def baseline(self, name: str) -> Mapping[str, Any] | None:
        """The summary's entry of a baseline, if it judged something."""
        found = [a for a in self.summary["attackers"] if a["baseline"] and kind(a["attacker"]) == name]
        return found[0] if found and known(found[0]["attack_success_rate"]) else None


def warnings(
    record: Mapping[str, Any],
    rows: Sequence[Row],
    summary: Mapping[str, Any],
    training: Sequence[Mapping[str, Any]],
    recordings: Sequence[Mapping[str, Any]] = (),
) -> list[str]:
    """What a reader must know before trusting an audit's numbers.

    Args:
      record: the run's configuration, ``run.json``'s ``"record"``.
      rows: one per utterance × attacker.
      summary: of those rows, see :func:`jaxhack.stats.success.summary`.
      training: one mapping per optimisation step, metric -> one value per attacker; empty if there is none.
      recordings: one mapping per recording with ``id``, ``half`` and ``digest``; empty if nothing was noted.

    Returns:
      Sentences, the gravest kind first; empty when nothing looks wrong.
    """
    run = Run(record, rows, summary, training, recordings)
    return [sentence for check in CHECKS for sentence in check(run)]


def across(record: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[str]:
    """What a reader must know before trusting the worst case over several audits.

    Args:
      record: the suite's, ``run.json``'s ``"record"``.
      summary: of :func:`jaxhack.report.suite.make`: its ``lines``, one an audit.
    """
    if summary["unfinished"]:
        yield (
            f"{len(summary['unfinished'])} of {len(record['legs'])} audits are unfinished "
            f"({', '.join(summary['unfinished'])}): the worst case is over the others alone."
        )
    if record["demo"]:
        yield DEMO_SPEECH
    for line in summary["lines"]:
        if first_look(record["legs"][line["audit"]]):
            yield (
                "The trained attackers are a first look, trained less than the standard profile's: their low rates "
                "say nothing yet."
            )
            break
    if 0 < summary["any_attack_n"] < FEW:
        yield f"{summary['any_attack_n']} judged utterances are few to conclude from."
    yield from _black_beats_white(summary["lines"])


def patching(record: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[str]:
    """What a reader must know before trusting what a patching says of itself.

    Args:
      record: its ``run.json``'s ``"record"``.
      summary: of :func:`jaxhack.report.patching.make`, without its warnings.
    """
    recipe = record["recipe"]
    done = [found for found in summary["rounds"] if found["pairs"] is not None]
    if summary["name"] is None:
        yield (
            f"This patching is not finished: {len(done)} of {recipe['rounds']} rounds are. Shown is what is there; "
            "go on with --resume."
        )
    if record.get("demo"):
        yield DEMO_SPEECH
    if record["labels"] != "people":
        yield (
            "No ratings of people were at hand: the predictor was held to its own scores of unattacked speech "
            "(self-distillation), so that it keeps its own mistakes, and nothing here says whether it agrees with "
            "people."
        )
    if recipe["source"] == "hacks" and any(map(first_look, record["sources"].values())):
        yield (
            "The trained attackers are a first look, trained less than the standard profile's: a low rate may be "
            "theirs, not the predictor's."
        )
    if recipe["source"] == "hacks" and len(record["train"]) < FEW:
        yield f"{len(record['train'])} recordings are few to conclude from."
    if unread := summary["unread"]:
        yield f"{len(unread)} recordings gave nothing to learn from, such as {unread[0]}"
    empty = [str(found["round"]) for found in done if not sum(e["found"] for e in found["in_loop"].values())]
    if empty:
        yield (
            f"No pair was found in round{'s' if len(empty) > 1 else ''} {', '.join(empty)}: such a round fits the "
            "pairs of earlier ones again, or nothing."
        )
    if done and 0 < (last := done[-1]["pairs"]) < FEW_PAIRS:
        times = recipe["fit_steps"] * recipe["fit_batch"] / last
        yield (
            f"{last} pairs after round {done[-1]['round']} are few to learn from: its fit drew each about "
            f"{times:.0f} times."
        )
    distances = [(f"after round {found['round']}", found["distance"]) for found in done]
    if record["labels"] == "people":
        distances.insert(0, ("before the first round", summary["distance_before"]))
    distances = [(when, distance) for when, distance in distances if known(distance)]
    if distances and distances[-1][1] > distances[0][1]:
        (early, before), (late, after) = distances[0], distances[-1]
        whom = "what people said" if record["labels"] == "people" else "what they were before patching"
        yield (
            f"The distance grew from {before:.3g} MOS² {early} to {after:.3g} {late}: the scores of unattacked "
            f"speech move away from {whom}."
        )


def _black_beats_white(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """An attacker that sees scores alone finds more than any that sees gradients, in one space at one budget."""
    alike: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
    for line in lines:
        if known(line["mean_gain"]):
            alike.setdefault((line["space"], line["epsilon"]), []).append(line)
    for (space, epsilon), judged in alike.items():
        black, white = ([line for line in judged if bool(line["gradients"]) == sees] for sees in (False, True))
        if not (black and white):
            continue
        for name, what in (("attack_success_rate", "success"), ("mean_gain", "mean gain")):
            ours, theirs = (max(side, key=lambda line: line[name]) for side in (black, white))
            if ours[name] > theirs[name]:
                yield (
                    f"In {space} at ε = {epsilon:.3g}, {ours['attacker']}, which sees scores only, finds more than "
                    f"{theirs['attacker']}, which sees gradients ({what} {ours[name]:.2f} against "
                    f"{theirs[name]:.2f}): the gradient attack is not at its best, and its rate bounds nothing."
                )
                break


def kind(attacker: str) -> str:
    """What an attacker is, without whom it attacked: ``grpo@nisqa -> grpo``."""
    return attacker.partition("@")[0]


def known(value: Any) -> TypeGuard[float]:
    """Whether a stored number is there and finite."""
    return value is not None and math.isfinite(value)


def column(rows: Sequence[Row], name: str) -> list[float]:
    """A column's finite values."""
    return [row[name] for row in rows if known(row.get(name))]


def percent(share: float) -> str:
    """A share as text: ``0.862 -> "86 %"``; what rounds to 0 or 100 without being it keeps a decimal."""
    digits = 1 if 0 < share < 0.005 or 0.995 <= share < 1 else 0
    return f"{100 * share:.{digits}f} %"


def nothing_judged(run: Run) -> Iterator[str]:
    """No row has a verdict."""
    if not run.trained():
        yield (
            f"None of the {len(run.record['test'])} test utterances could be judged: there is no success rate; "
            "the reasons are listed below."
        )


def all_alike(run: Run) -> Iterator[str]:
    """The predictor says the same of every recording."""
    told = {row.get("utterance"): row["score_input"] for row in run.rows if known(row.get("score_input"))}
    if len(told) > 1 and (spread := stdev(told.values())) < ALIKE * run.tau:
        yield (
            f"{run.record['predictor']['name']} gives {len(told)} recordings all but the same score (sd {spread:.2g} "
            f"MOS, τ {run.tau:g}): what says the same of everything cannot be hacked, and a low rate is no merit."
        )


def panel_says_nothing(run: Run) -> Iterator[str]:
    """The panel calls everything worse, random actions too."""
    trained = [a["degraded_rate"] for a in run.trained() if known(a["degraded_rate"])]
    random = run.baseline("random")
    if not trained or random is None or not known(random["degraded_rate"]):
        return
    share = sum(trained) / len(trained)
    if min(share, random["degraded_rate"]) >= PANEL_SAYS_NOTHING:
        yield (
            f"The panel calls {percent(share)} of the trained attackers' outputs worse than x̂, and "
            f"{percent(random['degraded_rate'])} of random actions: it does not discriminate at this ε "
            f"({run.record['settings']['epsilon']:g}), so success is only the share of gains above {run.tau:g} MOS."
        )


def weaker_than_random(run: Run) -> Iterator[str]:
    """A trained attacker finds less than the best of as many random actions."""
    best = run.baseline("random_best")
    if best is None:
        return
    weak = [
        a
        for a in run.trained()
        if a["mean_gain"] <= best["mean_gain"] or a["attack_success_rate"] < best["attack_success_rate"]
    ]
    if weak:
        rates = ", ".join(f"{a['attack_success_rate']:.2f}" for a in weak)
        gains = ", ".join(f"{a['mean_gain']:+.2f}" for a in weak)
        yield (
            f"{_seeds(a['seed'] for a in weak)} of {len(run.trained())} {_do(weak)} not beat the best of "
            f"{best['queries']} random actions (success {rates} against {best['attack_success_rate']:.2f}, mean "
            f"gain {gains} against {best['mean_gain']:+.2f} MOS): a better optimiser may find more."
        )


def gradients(run: Run) -> Iterator[str]:
    """An attacker that climbs gradients stood on flat or broken ground."""
    asked = {row["utterance"]: row.get("slope") for row in run.rows if row.get("gradients") and row["status"] == "ok"}
    broken = sum(not known(slope) for slope in asked.values())
    flat = sum(known(slope) and slope < NO_SLOPE for slope in asked.values())
    for count, what in ((broken, "not finite"), (flat, "zero")):
        if count > VANISHED * len(asked):
            yield (
                f"The score's gradient at x̂ is {what} on {percent(count / len(asked))} of {len(asked)} utterances: "
                "an attack by gradients learns nothing there, and its success rate says little."
            )


def improving(run: Run) -> Iterator[str]:
    """Training stopped while it still paid."""
    rises = {}
    for seed in range(_attackers(run)):
        curve = _curve(run, "reward", seed)
        fifth = len(curve) // 5
        if len(curve) < SHORTEST_RISE:
            continue
        last, before = curve[-fifth:], curve[-2 * fifth : -fifth]
        rise = sum(last) / fifth - sum(before) / fifth
        error = math.sqrt((variance(last) + variance(before)) / fifth)
        if rise > max(run.tau / 10, STILL_IMPROVING * error):
            rises[seed] = rise
    if rises:
        yield (
            f"{_seeds(rises)} of {_attackers(run)} still improved when training ended (reward "
            f"{_range(rises.values(), '{:+.2f}'.format)} MOS over the last fifth): a longer one may find more."
        )


def noise(run: Run) -> Iterator[str]:
    """The predictor contradicts itself, and gains no larger than that."""
    sd = run.summary.get("repeat_sd")
    if not known(sd) or sd <= REPEATABLE:
        return
    yield (
        f"{run.record['predictor']['name']} does not give the same audio the same score (sd {sd:.2g} MOS): a gain is "
        f"known to {math.sqrt(2) * sd:.2g} MOS, and the best of several scores is partly luck."
    )
    small = [a for a in run.trained() if abs(a["mean_gain"]) < math.sqrt(2) * sd]
    if small:
        gains = ", ".join(f"{a['mean_gain']:+.2f}" for a in small)
        yield (
            f"{_seeds(a['seed'] for a in small)} of {len(run.trained())} {_do(small)} not gain more than that noise "
            f"(mean gain {gains} MOS against {math.sqrt(2) * sd:.2g})."
        )


def overlap(run: Run) -> Iterator[str]:
    """The same audio in both halves."""
    seen = {r["digest"] for r in run.recordings if r["half"] == "train" and r["digest"]}
    both = [r["id"] for r in run.recordings if r["half"] == "test" and r["digest"] in seen]
    if both:
        yield (
            f"{len(both)} test recordings, such as {both[0]!r}, hold the very audio of a training recording: they "
            "are not unseen."
        )


def exploration(run: Run) -> Iterator[str]:
    """Draws of one group stopped differing, or the policy leaps."""
    options = run.record["settings"].get("options") or {}
    for seed in range(_attackers(run)):
        signs = []
        sd = _curve(run, "reward_sd", seed)
        if len(sd) >= SHORTEST_LOG:
            peak, last = max(_smooth(sd[: len(sd) // 2 + 1])), _last(sd)
            if last < EXPLORATION_DIES * peak:
                signs.append(f"the rewards of a group differ by {last:.3g} MOS at the end (sd), {peak:.3g} early on")
        for name, limit, text in (
            ("clip_fraction", CLIP_FRACTION, "{:.0%} of its ratios are clipped at the end"),
            ("log_ratio_sd", LOG_RATIO_SD, "its log-ratio's sd is {:.3g} at the end (healthy: about 0.2)"),
        ):
            curve = _curve(run, name, seed)
            if len(curve) >= SHORTEST_LOG and _last(curve) > limit:
                signs.append(text.format(_last(curve)).replace("%", " %"))
        sigma, mean = _curve(run, "sigma", seed), _curve(run, "mu_rms", seed)
        if len(sigma) >= SHORTEST_LOG and len(mean) >= SHORTEST_LOG:
            # A normalised mean has RMS 1 whatever its raw length.
            normalised = options.get("normalise_mean", run.record["settings"]["attacker"] != "grpo-literal")
            length = 1.0 if normalised else _last(mean)
            if length > MEAN_OVER_SIGMA * _last(sigma):
                signs.append(f"its mean (RMS {length:.3g}) drowns its noise (σ {_last(sigma):.3g})")
        if signs:
            yield f"{_seeds([seed])} hardly explores any more: {'; '.join(signs)}."


def groups(run: Run) -> Iterator[str]:
    """Groups that taught nothing: non-finite or equal rewards."""
    for name, limit, what in (
        ("groups_broken", 0.0, "held a score that was not finite and were left out"),
        ("groups_equal", EQUAL_GROUPS, "had equal rewards throughout, which teach nothing"),
    ):
        curves = [_curve(run, name, seed) for seed in range(_attackers(run))]
        shares = {seed: sum(c) / len(c) for seed, c in enumerate(curves) if c}
        bad = {seed: share for seed, share in shares.items() if share > limit}
        if bad:
            yield f"{_seeds(bad)}: {_range(bad.values(), percent)} of the training groups {what}."


def not_judged(run: Run) -> Iterator[str]:
    """Many utterances without a verdict."""
    shares = []
    for a in run.trained():
        missing = a["n_undetermined"] + a["n_failed"]
        shares.append((missing / max(1, missing + a["n"]), a))
    share, a = max(shares, key=lambda x: x[0], default=(0.0, {}))
    if share > NOT_JUDGED:
        yield (
            f"{percent(share)} of the test utterances have no verdict ({a['n_undetermined']} undetermined, "
            f"{a['n_failed']} failed, {a['n']} judged): the rates are those of the judged ones."
        )


def few(run: Run) -> Iterator[str]:
    """An interval too wide to conclude from."""
    if not run.trained():
        return
    worst = max(run.trained(), key=lambda a: a["attack_success_rate"])
    low, high = worst["interval"]
    wide = known(low) and known(high) and high - low > 2 * HALF_WIDTH
    if wide or worst["n"] < FEW:
        why = [f"wider than ±{HALF_WIDTH:.2f}"] if wide else []
        why += [f"and {FEW} are the least to conclude from"] if worst["n"] < FEW else []
        yield (
            f"{worst['n']} judged test utterances are few: the worst attacker's 95 % interval is "
            f"{low:.2f}–{high:.2f}, {', '.join(why)}."
        )


def spread(run: Run) -> Iterator[str]:
    """Attackers that differ only in their seed differ a lot."""
    rates = [a["attack_success_rate"] for a in run.trained()]
    if rates and max(rates) - min(rates) > SPREAD:
        yield (
            f"Attackers that differ only in their seed reach success rates from {min(rates):.2f} to "
            f"{max(rates):.2f}: one attacker is a sample, and more than {len(rates)} may find a worse case."
        )


def naive(run: Run) -> Iterator[str]:
    """The reference matters."""
    pairs = [
        (a["attack_success_rate"], a["attack_success_rate_naive"])
        for a in run.trained()
        if known(a["attack_success_rate_naive"])
    ]
    if not pairs:
        return
    corrected, raw = (sum(x) / len(pairs) for x in zip(*pairs, strict=True))
    if abs(corrected - raw) > NAIVE_DIFFERENCE:
        yield (
            f"Measured against the raw input the mean success rate would be {raw:.2f} instead of {corrected:.2f}: "
            "the chain's own effect on the score would be charged to the attack."
        )


def offset(run: Run) -> Iterator[str]:
    """The chain alone moves the score by much of τ."""
    value = run.summary["offset"]
    if known(value) and run.tau > 0 and abs(value) > run.tau / 2:
        yield (
            f"The chain alone moves the score by {value:+.2f} MOS on average, more than half of τ ({run.tau:g}): "
            "only the corrected rates mean something."
        )


def ceiling(run: Run) -> Iterator[str]:
    """No room to gain."""
    scores, top = column(run.rows, "score_reference"), run.record["predictor"]["scale"][1]
    if scores and known(top) and sum(scores) / len(scores) > top - run.tau:
        yield (
            f"The round trips score {sum(scores) / len(scores):.2f} on average where the scale ends at {top:g}: "
            f"there is little room to gain {run.tau:g} MOS, and a low success rate says little."
        )


def scale(run: Run) -> Iterator[str]:
    """Scores beyond the nominal scale."""
    low, high = run.record["predictor"]["scale"]
    names = ("score_input", "score_reference", "score_attacked")
    outside = [any(known(r.get(n)) and not low <= r[n] <= high for n in names) for r in run.rows]
    if any(outside):
        values = [v for n in names for v in column(run.rows, n)]
        yield (
            f"{sum(outside)} of {len(outside)} rows hold a score outside the predictor's nominal scale "
            f"{low:g}–{high:g} (lowest {min(values):.2f}, highest {max(values):.2f}); they are kept as they are."
        )


def budget(run: Run) -> Iterator[str]:
    """A perturbation larger than allowed: a fault of the space."""
    epsilon = run.record["settings"]["epsilon"]
    sizes = column(run.rows, "achieved_size")
    over = [s for s in sizes if s > epsilon * (1 + BUDGET_TOLERANCE)]
    if over:
        yield (
            f"{len(over)} of {len(sizes)} perturbations exceed the budget ε = {epsilon:g} (largest {max(over):.7g}): "
            "the space did not keep it, and the rates are not comparable."
        )


def void_votes(run: Run) -> Iterator[str]:
    """A measure was not asked, for its reference is the input itself, or is lost on it."""
    trained = run.trained()
    if not any(a["void_rate"] for a in trained):
        return
    void = max(trained, key=lambda a: a["void_rate"])
    worst, counted = (max(a[key] for a in trained) for key in ("attack_success_rate", "attack_success_rate_void"))
    names = dict.fromkeys(name for row in run.rows for name in (row.get("void") or "").split(",") if name)
    changes = f"With void votes the worst success rate would be {counted:.2f} instead of {worst:.2f}"
    if counted == worst:
        changes = f"With void votes the worst success rate would be the same, {worst:.2f}"
    yield (
        f"In {percent(void['void_rate'])} of the outputs a vote ({', '.join(names)}) is void and left out: the "
        "reference x̂ is all but x itself, beside which any change is a loss, or so poor that the measure does not "
        f"follow it. {changes}."
    )


def rounding(run: Run) -> Iterator[str]:
    """Saving to 16 bit changes scores noticeably."""
    both = [r for r in run.rows if known(r.get("score_attacked")) and known(r.get("score_attacked_unrounded"))]
    changes = [abs(r["score_attacked"] - r["score_attacked_unrounded"]) for r in both]
    large = [c for c in changes if c > run.tau / 10]
    if large and run.tau > 0:
        yield (
            f"Rounding to 16 bit changes the attacked score by more than τ/10 ({run.tau / 10:g} MOS) in "
            f"{len(large)} of {len(changes)} rows (at most {max(large):.2f}); the rates are of the rounded audio."
        )


def clipping(run: Run) -> Iterator[str]:
    """Attacked signals beyond full scale."""
    counts = column(run.rows, "clipped_samples")
    clipped = [c for c in counts if c > 0]
    if clipped:
        yield (
            f"{len(clipped)} of {len(counts)} attacked signals left ±1 and were clipped (at most {max(clipped):.0f} "
            "samples of one), which the panel may hear."
        )


def little_training(run: Run) -> Iterator[str]:
    """Attackers trained too little to find what there is."""
    settings = run.record["settings"]
    if first_look(settings):
        what = "the quick profile" if settings.get("profile") == "quick" else "a small audit"
        yield (
            f"This is {what} ({sizes(settings)}), a first look: it finds less than the standard profile "
            f"({sizes(settings | PROFILES['standard'])}), so a low rate says nothing yet."
        )


def demo_speech(run: Run) -> Iterator[str]:
    """Nobody's recordings."""
    if run.record.get("demo"):
        yield DEMO_SPEECH


CHECKS: tuple[Callable[[Run], Iterator[str]], ...] = (
    nothing_judged,
    demo_speech,
    little_training,
    overlap,
    all_alike,
    budget,
    gradients,
    noise,
    void_votes,
    panel_says_nothing,
    weaker_than_random,
    improving,
    exploration,
    groups,
    not_judged,
    few,
    spread,
    naive,
    offset,
    ceiling,
    scale,
    rounding,
    clipping,
)


def _attackers(run: Run) -> int:
    """How many attackers the training log follows."""
    return max((len(v) for line in run.training for v in line.values() if isinstance(v, list)), default=0)


def _curve(run: Run, name: str, seed: int) -> list[float]:
    """One attacker's finite values of a metric, step by step."""
    values = [line[name][seed] for line in run.training if seed < len(line.get(name) or ())]
    return [v for v in values if known(v)]


def _last(curve: Sequence[float]) -> float:
    """Mean of the last tenth."""
    tail = curve[-max(1, len(curve) // 10) :]
    return sum(tail) / len(tail)


def _smooth(curve: Sequence[float], window: int = 5) -> list[float]:
    """Running means, so that one lucky group makes no peak."""
    return [sum(curve[i : i + window]) / window for i in range(len(curve) - window + 1)]


def _seeds(seeds: Any) -> str:
    names = [str(s) for s in seeds]
    return f"Attacker{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _do(items: Sequence[Any]) -> str:
    return "do" if len(items) > 1 else "does"


def _range(values: Any, text: Callable[[float], str]) -> str:
    low, high = min(values), max(values)
    return text(low) if text(low) == text(high) else f"{text(low)} to {text(high)}"
