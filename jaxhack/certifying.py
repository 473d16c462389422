"""Certificates of a predictor behind noise: of waveforms, and of a finished run's attacks beside what bounds them.

The theorem is in :mod:`jaxhack.stats.certificate`. The predictor of a run is ``smoothed(…)``. What its attacks surely
reach and what no perturbation of their size exceeds are both bounds on its *exact* percentile under noise, from the
same fresh draws, which no attacker has seen; each is wrong with a probability of at most α.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxhack import audio, auditing, defences, dsp, inputs, registry, report, rows, run, transferring
from jaxhack.attack import Setup, by_attackers, render
from jaxhack.judgement import Batch, batches, load, test_key
from jaxhack.parallel import mapped
from jaxhack.report.certificate import LINES, RECORD, read
from jaxhack.report.page import plain
from jaxhack.stats.certificate import Bound, certificate, l2_radius, lower_bound, rank
from jaxhack.types import Predictor, PyTree

BATCH = 8  # draws a device, in one call
STEP = 1 / 32768  # of a 16-bit sample


class Certified(NamedTuple):
    """What is certified of one utterance."""

    utterance: str
    score: float  # percentile of `scores`: an estimate of the smoothed score
    bounds: tuple[Bound, ...]  # one an epsilon
    scores: np.ndarray  # [n] of the draws


def certify(
    predictor: Predictor,
    noise: defences.Noise,
    utterances: Iterable[tuple[str, np.ndarray]],
    *,
    epsilons: Sequence[float],
    draws: int = 1000,
    percentile: float = 0.5,
    alpha: float = 0.001,
    seed: int = 0,
    sample_rate: int | None = None,
) -> Iterator[Certified]:
    r"""Bounds from above what any perturbation can make of the smoothed score of utterances.

    In the waveform a bound is on every :math:`y = x + \delta` with :math:`\|\delta\|_2 \le \epsilon \sqrt{T}`, among
    them all with :math:`\|\delta\|_\infty \le \epsilon`; x and y are what the predictor is given, 16-bit rounding
    included. In a codec's latent it is on every y whose latent :math:`\mathrm{Enc}(y)` lies within
    :math:`\epsilon \sqrt{N C}` of :math:`\mathrm{Enc}(x)` in the units of `noise`. An attack that adds δ to a latent
    and decodes it is heard through the encoder again: its distance is that of the two latents, not the size of δ.

    Args:
      predictor: R, white-box or black-box.
      noise: what it is smoothed over, as in :func:`jaxhack.defences.smoothed`.
      utterances: ``(name, wav [T])`` at `sample_rate`; may be a generator.
      epsilons: sizes of a perturbation per entry: an RMS, or a largest entry. 0 bounds the smoothed score itself.
      draws: n, of the noise, for each utterance. The largest radius that they can certify is
        :math:`\sigma (\Phi^{-1}(\alpha^{1/n}) - \Phi^{-1}(p))`, for 1000 draws 2.5 σ.
      percentile: p of the smoothed score.
      alpha: probability that a bound is wrong, for each utterance and epsilon by itself.
      seed: of the draws, others than those of a smoothed predictor of the same seed.
      sample_rate: Hz at which it listens, None the predictor's rate, or the codec's.

    Yields:
      One :class:`Certified` an utterance, in their order.

    Raises:
      ValueError: as :func:`jaxhack.defences.smoothed` and :func:`jaxhack.stats.certificate.certificate`.
    """
    through = defences.noisy(predictor, noise, sample_rate=sample_rate)
    draw = sampler(through, draws, seed)
    for number, (name, wav) in enumerate(utterances):
        padded = audio.pad(wav, audio.bucket_length(len(wav), through.sample_rate, through.max_samples))
        (found,) = draw(through.params, padded[None], len(wav), number)
        entries = through.entries(len(wav))
        bounds = tuple(
            certificate(found, radius=l2_radius(e, entries), sigma=noise.sigma, percentile=percentile, alpha=alpha)
            for e in epsilons
        )
        yield Certified(name, estimate(found, percentile), bounds, found)


def certify_run(
    folder: str | os.PathLike[str],
    *,
    attacked: str | None = None,
    draws: int = 1000,
    alpha: float = 0.001,
    limit: int | None = None,
    seed: int = 0,
    models: str | os.PathLike[str] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    observe: auditing.Observer = lambda *_: None,
) -> dict[str, Any]:
    """Bounds what the attacks of a finished run on a smoothed predictor did, and what any of their size could do.

    The attackers act as in the run. Where noise is added, y lies at some ℓ2 distance from x̂: of the waveforms as
    saved, or of the latents that the predictor's codec makes of them. No perturbation of that size raises the score
    above the bound at x̂; the attack's own score is bounded from below at y. Where the budget itself is such a
    distance (noise in the waveform, space ``waveform`` or ``noise``), one more bound holds for every attack of it.

    Args:
      folder: of an audit of ``smoothed(…)``; ``certificates.jsonl`` in it gets a line for each utterance at once.
      attacked: the predictor of the run, where its name in the record does not lead to it.
      draws: n, of the noise, for x̂ and each y.
      alpha: probability that a bound is wrong, for each by itself.
      limit: test utterances, spread over their speakers; None: all. A resumed one may have more.
      seed: of the draws.
      models: a folder of weight files, looked in first.
      resume: go on after what is there.
      overwrite: replace what is there.
      observe: as of :func:`jaxhack.audit`.

    Returns:
      The summary's part ``certificate``, see :func:`jaxhack.report.certificate.summary`; the report is made anew.

    Raises:
      ValueError: a run that is unfinished, of a predictor that isn't smoothed outermost, or whose weights or
        recordings are others now; certificates that are there already; or as :func:`jaxhack.certify`.
    """
    folder = Path(folder)
    smoothing, source = _load(folder, attacked, models)
    noise, percentile, rate = smoothing.noise, smoothing.percentile, source.record["space"]["sample_rate"]
    through = _through(smoothing, source.attacked.sample_rate)
    draw, params = sampler(through, draws, seed), source.attacked.params
    lower_bound([0.0], alpha=alpha)  # refuses an α out of range
    setup = Setup(source.attacked, source.chain, rate, source.panel, source.settings, len(source.record["test"]))
    wanted = {utterance.id for utterance in inputs.limit(source.test, limit, source.settings.seed)}
    unjudged = {
        row["utterance"]: {"status": row["status"], "reason": row["reason"]}
        for row in rows.read(folder / "rows.parquet")
        if row["status"] not in ("ok", "undefined")
    }
    transferring.unchanged(source, inputs.listed(source.test, "test"))
    weights, states = transferring.act_again(source, setup)
    epsilon = setup.space(weights).epsilon
    labels = [(setup.named(setup.settings.attacker), i) for i in range(setup.settings.seeds)]

    @jax.jit
    def signals(weights, states, wav, length, keys):
        """``wav [B, T] -> [1 + k, B, T']``: x̂ and every y as saved, at the rate at which the predictor listens."""
        choose = partial(by_attackers, setup, weights, states, keys=keys)
        saved = render(setup.space(weights), choose, wav, length).saved
        if rate == through.sample_rate:
            return saved, length
        given = jax.vmap(lambda w, n: dsp.resample(w, rate, through.sample_rate, length=n))
        return jax.vmap(given, (0, None))(saved, length), dsp.resampled_length(length, rate, through.sample_rate)

    carriers = jax.jit(jax.vmap(through.carrier, (None, 0, None)))

    def certified(wav: np.ndarray, wavs: np.ndarray, length: int, position: int) -> dict[str, Any]:
        """The line of one utterance: x ``wav [T]`` unpadded, x̂ and every y ``wavs [1 + k, T']``."""

        def bounded(radius: float) -> dict[str, Any]:
            bound = certificate(scores[0], radius=radius, sigma=noise.sigma, percentile=percentile, alpha=alpha)
            return {
                "radius": bound.radius,
                "bound_percentile": bound.percentile,
                "upper": bound.upper,
                "reason": bound.reason,
            }

        def reached(found: np.ndarray) -> dict[str, Any]:
            return {
                "score": estimate(found, percentile),
                "lower": lower_bound(found, percentile=percentile, alpha=alpha),
                "failed": int(np.isnan(found).sum()),
            }

        scores = draw(params, wavs, length, position)
        heard = np.asarray(carriers(params, wavs, np.int32(length)), np.float64)
        radii = [float(np.linalg.norm(other - heard[0])) for other in heard[1:]]
        budget = None if noise.codec else reach(setup.settings.space, epsilon, wav)
        attacks = [
            {"attacker": attacker, "seed": i, **bounded(radius), **reached(found)}
            for (attacker, i), radius, found in zip(labels, radii, scores[1:], strict=True)
        ]
        return {
            **reached(scores[0]),
            "budget": None if budget is None else bounded(budget),
            "attacks": [made | {"crossed": made["lower"] > made["upper"]} for made in attacks],
        }

    def lines(batch: Batch) -> Iterator[dict[str, Any]]:
        loaded = load(batch, rate, test_key(setup))
        if loaded.length.any():
            wavs, lengths = map(np.asarray, signals(weights, states, loaded.wav, loaded.length, loaded.keys))
        for b, ((position, utterance), clip) in enumerate(zip(batch.members, loaded.clips, strict=True)):
            if utterance.id not in wanted or utterance.id in done:
                continue
            line: dict[str, Any] = {"utterance": utterance.id}
            if utterance.id in unjudged:
                line |= unjudged[utterance.id]
            elif isinstance(clip, str):
                line |= {"status": "unreadable", "reason": clip}
            else:
                wav = loaded.wav[b, : loaded.length[b]]
                line |= {"status": "ok", "reason": ""} | certified(wav, wavs[:, b], int(lengths[b]), position)
            yield plain(line)

    settings = {
        "predictor": source.attacked.name,
        "place": noise.codec.name if noise.codec else "waveform",
        "sigma": noise.sigma,
        "percentile": percentile,
        "known_draws": smoothing.draws,
        "draws": draws,
        "alpha": alpha,
        "seed": seed,
    }
    with run.alone(folder):
        done = _begin(folder, settings, resume, overwrite, source.record["test"])
        observe("certify", len(done & wanted), len(wanted), {})
        with (folder / LINES).open("a", encoding="utf-8") as file:
            for batch in batches(source.test, rate):
                if not {utterance.id for _, utterance in batch.members} & wanted - done:
                    continue
                for line in lines(batch):
                    file.write(json.dumps(line) + "\n")
                    file.flush()
                    done.add(line["utterance"])
                    observe("certify", len(done & wanted), len(wanted), {})
        if made := read(folder, source.record["test"]):
            place = {utterance.id: i for i, utterance in enumerate(source.test)}
            run.write_lines(folder / LINES, sorted(made[1], key=lambda line: place[line["utterance"]]))
        return report.make(folder)["certificate"]


def sampler(through: defences.Noisy, draws: int, seed: int) -> Callable[[PyTree, np.ndarray, int, int], np.ndarray]:
    """Draws scores that no attack has seen: others than those of a smoothed predictor of the same seed.

    Args:
      through: what hears each draw.
      draws: n, of each signal.
      seed: of the draws.

    Returns:
      ``(params, wavs [S, T], length, number) -> [S, n]`` float64: the scores of S signals of `length` samples under
      the same draws, which are those of utterance `number`, whatever was asked of others.

    Raises:
      ValueError: no draws, or a seed out of range.
    """
    if not (isinstance(draws, int) and draws >= 1):
        raise ValueError(f"A certificate needs a whole number of at least 1 draw, got {draws}.")
    if not 0 <= seed < 2**32:
        raise ValueError(f"The seed of a certificate is a whole number from 0 to 2**32 - 1, got {seed}.")
    root = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), 2**32 - 1)
    batch = min(BATCH * jax.device_count(), draws)

    @jax.jit
    def scored(params, wavs, length, number, start):
        own = jax.random.fold_in(root, number)
        keys = jax.vmap(lambda i: jax.random.fold_in(own, i))(start + jnp.arange(batch))
        score = mapped(lambda wav, key: through.heads(params, wav, length, key)[0])
        return jax.vmap(lambda wav: score(jnp.broadcast_to(wav, (batch, *wav.shape)), keys))(wavs)

    def draw(params: PyTree, wavs: np.ndarray, length: int, number: int) -> np.ndarray:
        here = params, wavs, np.int32(length), np.int32(number)
        scores = [np.asarray(scored(*here, np.int32(start))) for start in range(0, draws, batch)]
        return np.concatenate(scores, axis=1)[:, :draws].astype(np.float64)

    return draw


def estimate(scores: np.ndarray, percentile: float) -> float:
    """The percentile of ``scores [n]`` as a smoothed predictor takes it: what is not a number comes last."""
    return float(np.sort(scores)[rank(percentile, len(scores)) - 1])


def reach(space: str, epsilon: float, wav: np.ndarray) -> float | None:
    """The ℓ2 distance that no y of a space has from its x̂, both as saved; None: its budget says nothing of that.

    Rounding both to 16 bits moves their difference by less than a step a sample.

    Args:
      space: kind of the space.
      epsilon: its budget.
      wav: ``[T]``, x.
    """
    if space == "waveform":  # a whole number of steps; float32 adds less than a hundredth of one
        return l2_radius(STEP * math.floor(epsilon / STEP + 1.01), len(wav))
    if space == "noise":
        return 1.0001 * epsilon * float(np.linalg.norm(wav.astype(np.float64))) + l2_radius(STEP, len(wav))
    return None


def _load(
    folder: Path, attacked: str | None, models: str | os.PathLike[str] | None
) -> tuple[defences.Smoothing, transferring.Source]:
    """The run, and what its predictor is made of."""
    if not (folder / run.RECORD).is_file():
        raise ValueError(f"{folder} holds no run ({run.RECORD}).")
    record = run.read(folder / run.RECORD)["record"]
    if "legs" in record:
        raise ValueError(f"{folder} is a suite: name one of its audits, such as {folder / min(record['legs'])}.")
    if "recipe" in record:
        audit = folder / "rounds" / "1" / min(record["sources"])
        raise ValueError(f"{folder} is a patching: name one of its audits, such as {audit}.")
    name = attacked or record["predictor"]["name"]
    smoothed = name.strip().startswith("smoothed(")
    if smoothed and not attacked:
        transferring.named_by(folder, name)
    smoothing = registry.smoothing(name, models=models) if smoothed or attacked else None
    if smoothing is None:
        raise ValueError(
            f"{folder} attacked {name}, and only a predictor behind noise has a certificate: audit "
            f"'smoothed({transferring.in_place(name)},waveform=0.01)' or the like."
        )
    given = defences.smoothed(**smoothing._asdict())
    found = transferring.Found(folder.resolve().name, folder, None, 1)
    return smoothing, transferring.load(found, attacked=given, codec=None, models=models)


def _through(smoothing: defences.Smoothing, sample_rate: int) -> defences.Noisy:
    """What hears a draw, at the rate of the run."""
    predictor, noise = smoothing.predictor, smoothing.noise
    if noise.codec is None and predictor.at_rate:
        predictor = predictor.at_rate(sample_rate)
    return defences.noisy(predictor, noise, sample_rate=sample_rate)


def _begin(folder: Path, settings: Mapping[str, Any], resume: bool, overwrite: bool, test: Sequence[str]) -> set[str]:
    """Settles what is to become of the certificates in `folder`; returns the utterances that have theirs."""
    if resume and overwrite:
        raise ValueError("--resume and --overwrite exclude each other: give one.")
    found = None if overwrite else read(folder, test)
    lines: list[dict[str, Any]] = []
    if found and not resume:
        raise ValueError(
            f"{folder} holds certificates: continue them with --resume, or replace them with --overwrite."
        )
    if found and resume:
        before, lines = found
        changed = [f"{k}: {before.get(k)!r} then, {v!r} now" for k, v in settings.items() if before.get(k) != v]
        if changed:
            raise ValueError(
                f"{folder} holds certificates of other settings ({'; '.join(changed[:3])}): repeat their options, "
                "or replace them with --overwrite."
            )
    run.write_lines(folder / LINES, lines)
    run.write_json(folder / RECORD, settings)
    return {line["utterance"] for line in lines}
