"""Where preference pairs come from: hacks that a detector found, or perturbations that nobody looked at."""

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxhack import audio, detect, dsp
from jaxhack.arrays import read_npz
from jaxhack.attack import Setup, Weights, render
from jaxhack.inputs import Utterance
from jaxhack.judgement import Attacked, Keep, batches, load, test_key
from jaxhack.patch.replay import Pairs
from jaxhack.types import Array, Point

Delta = Callable[[Array, Point], Array]  # (key, point) -> delta, within the budget
Perturb = Callable[[Setup, Weights], Delta]

FOLDER = "pairs"  # in a run's folder
SNR = (5.0, 30.0)  # dB, of the paper's noise pairs


class Cut:
    """Brings pairs of a space's rate to the buffer's: resampled, and cut at a place that their names decide."""

    def __init__(self, source_rate: int, sample_rate: int, samples: int, shortest: int = 1):
        """Of ``samples`` at ``sample_rate`` Hz; what is shorter than `shortest`, or silent, is of no use."""
        self.rates = source_rate, sample_rate
        self.samples, self.shortest = samples, shortest
        self._resampled = jax.jit(lambda wav: dsp.resample(wav, source_rate, sample_rate))

    def __call__(self, name: str, preferred: Array | np.ndarray, rejected: Array | np.ndarray) -> Pairs:
        """``[T] float32`` twice to a single pair."""
        if self.rates[0] != self.rates[1]:
            preferred, rejected = (self._resampled(wav) for wav in (preferred, rejected))
        spare = max(len(preferred) - self.samples, 0)
        start = zlib.crc32(name.encode()) % (spare + 1)
        cuts = [audio.pcm16(np.asarray(wav)[start : start + self.samples]) for wav in (preferred, rejected)]
        held = np.zeros((2, self.samples), np.int16)
        held[:, : len(cuts[0])] = cuts
        return Pairs(held[0], held[1], np.array(len(cuts[0]), np.int32))

    def usable(self, found: Sequence[Pairs]) -> list[Pairs]:
        """Those that a predictor has scores of."""
        return [pair for pair in found if pair.length >= self.shortest and np.any(pair.preferred)]


def hacks(setup: Setup, folder: Path, cut: Cut, *, prefer_input: bool = False) -> Keep:
    """Keeps of an audit the pairs x̂ ≻ y that its verdicts call hacks, batch by batch, in ``folder/pairs``.

    Args:
      setup: the audit.
      folder: its folder.
      cut: to the buffer's rate and length.
      prefer_input: x ≻ y instead, as the paper's ablation has it.
    """

    def keep(number: int, attacked: Attacked) -> None:
        found, arms = [], len(attacked.rows) // len(attacked.loaded.clips)
        for i, row in enumerate(attacked.rows):
            if row["verdict"] != detect.HACK or row["baseline"]:
                continue
            assert attacked.judged is not None and attacked.judged.saved is not None  # there is a verdict
            b, a = divmod(i, arms)
            length, saved = attacked.loaded.length[b], attacked.judged.saved
            preferred = attacked.loaded.wav[b] if prefer_input else saved[0, b]
            name = f"{row['utterance']} {row['attacker']} {row['seed']}"
            found.append(cut(name, preferred[:length], saved[a + 1, b, :length]))
        write(folder, number, cut.usable(found), cut.samples)

    return keep


def blind(
    setup: Setup,
    weights: Weights,
    perturb: Perturb,
    wanted: Sequence[Utterance],
    folder: Path,
    cut: Cut,
    *,
    draws: int,
) -> None:
    """Makes pairs x̂ ≻ y of perturbations that no detector looks at, `draws` for each utterance.

    Args:
      setup: the space and its predictor.
      weights: of both.
      perturb: ``(setup, weights) -> (key, point) -> delta``.
      wanted: the utterances.
      folder: where they go, batch by batch; those that are there already are kept.
      cut: to the buffer's rate and length.
      draws: for each utterance.
    """

    @jax.jit
    def make(weights, wav, length, keys):
        delta = perturb(setup, weights)

        def choose(points):
            def one(draw):
                return jax.vmap(delta)(jax.vmap(jax.random.fold_in, (0, None))(keys, draw), points)

            return jax.vmap(one)(jnp.arange(draws))

        return render(setup.space(weights), choose, wav, length).saved

    for number, batch in enumerate(batches(wanted, setup.sample_rate)):
        if (folder / FOLDER / f"{number:06d}.npz").exists():
            continue
        loaded = load(batch, setup.sample_rate, test_key(setup))
        saved = np.asarray(make(weights, loaded.wav, loaded.length, loaded.keys)) if loaded.length.any() else None
        found = [
            cut(f"{utterance.id} {draw}", saved[0, b, :length], saved[draw + 1, b, :length])
            for b, ((_, utterance), length) in enumerate(zip(batch.members, loaded.length, strict=False))
            for draw in range(draws)
            if saved is not None and length
        ]
        write(folder, number, cut.usable(found), cut.samples)


def noise(setup: Setup, weights: Weights) -> Delta:
    """Gaussian noise at a signal-to-noise ratio between those of :data:`SNR`; the space's budget is the loudest."""
    space = setup.space(weights)

    def delta(key: Array, point: Point) -> Array:
        which, how = jax.random.split(key)
        quieter = 10 ** (-jax.random.uniform(how, maxval=SNR[1] - SNR[0]) / 20)
        return quieter * space.project(point, space.sample(which, point))

    return delta


def act(setup: Setup, weights: Weights) -> Delta:
    """What the setup's attacker does, which learns nothing before."""
    space, attacker = setup.space(weights), setup.attacker(weights)
    return lambda key, point: space.project(point, attacker.act(None, key, point))


def random(setup: Setup, weights: Weights) -> Delta:
    """A random action, of the size of the attackers'."""
    space = setup.space(weights)
    return lambda key, point: space.project(point, space.sample(key, point))


def write(folder: Path, number: int, found: Sequence[Pairs], samples: int) -> None:
    """Stores the pairs of batch `number` in a run's folder, complete or not at all."""
    (folder / FOLDER).mkdir(exist_ok=True)
    file = folder / FOLDER / f"{number:06d}.npz"
    empty = np.zeros((0, samples), np.int16)
    stacked = Pairs(*map(np.stack, zip(*found, strict=True))) if found else Pairs(empty, empty, np.zeros(0, np.int32))
    part = file.with_suffix(".part")
    with part.open("wb") as out:
        np.savez(out, **stacked._asdict())
    os.replace(part, file)


def read(folder: Path, samples: int | None = None) -> Iterator[Pairs]:
    """The pairs of a run's folder, batch by batch.

    Args:
      folder: the run's.
      samples: T of each pair; None: any.

    Raises:
      ValueError: a file is damaged, or holds no pairs.
    """
    pcm, count = ((None, samples), np.dtype(np.int16)), ((None,), np.dtype(np.int32))
    for file in sorted((folder / FOLDER).glob("*.npz")):
        remedy = f"delete {folder} and go on with --resume, which makes its pairs again"
        held = Pairs(**read_npz(file, {"preferred": pcm, "rejected": pcm, "length": count}, remedy))
        shape = held.preferred.shape
        inside = np.all((held.length > 0) & (held.length <= shape[1]))
        if not (held.rejected.shape == shape and held.length.shape == shape[:1] and inside):
            raise ValueError(f"{file} holds pairs that do not go together: {remedy}.")
        yield held
