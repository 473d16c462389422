"""Steps per second of PGD on NISQA in the waveform, beside the same loop in PyTorch.

    python -m benchmarks.bench_pgd --models ../shared/models --speech ../shared/speech --out pgd.json

A batch of recordings, ‖δ‖∞ ≤ 0.002. The other sides call the official module, its spectrograms computed batch-wise in
PyTorch: a plain eager loop, and the PGD of torchattacks, which sees the waveform as an image of one row and the score
as a logit. The gradient of the first step is compared before anything is timed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import official, timing
from jaxhack import attackers, registry, spaces
from jaxhack.objective import objective
from jaxhack.parallel import mapped
from jaxhack.types import Predictor

EPSILON = 0.002
COSINE = 0.999  # least, of the first gradients


class Size(NamedTuple):
    batch: int
    seconds: float
    steps: int
    repeats: int


FULL, TINY = Size(16, 3.0, 10, 3), Size(2, 0.5, 2, 1)


def port_side(predictor: Predictor, wavs: np.ndarray, steps: int) -> tuple[Callable[[], Any], float]:
    """Our attack on ``wavs [n, T]``, all steps one program: the attacked waveforms ``[n, T]``."""
    rate = predictor.sample_rate

    def attack(params, wavs):
        space = spaces.waveform(rate, epsilon=EPSILON)
        attacker = attackers.pgd(objective(predictor._replace(params=params), space), steps=steps)
        points = mapped(space.encode)(wavs, jnp.full(len(wavs), wavs.shape[1], jnp.int32))
        keys = jax.random.split(jax.random.key(0), len(wavs))

        def one(key, point):
            return space.render(point, space.project(point, attacker.act(None, key, point)))

        return jax.vmap(one)(keys, points)

    run, seconds = timing.compiled(attack, predictor.params, wavs)
    return lambda: run(predictor.params, wavs), seconds


def gradient(predictor: Predictor, wavs: np.ndarray) -> np.ndarray:
    """Of the score, by the waveform: ``[n, T]``."""
    slope = jax.grad(lambda wav: predictor.score(predictor.params, wav, jnp.int32(wav.shape[0])))
    return np.asarray(jax.jit(mapped(slope))(wavs))


def eager_side(nisqa: Any, wavs: np.ndarray, steps: int) -> Callable[[], Any]:
    """Sign steps from a random start, as ours."""
    from benchmarks.grpo_torch import tensor, torch

    x, alpha = tensor(wavs), 2.5 * EPSILON / steps

    def attack():
        delta = (2 * torch.rand_like(x) - 1) * EPSILON
        best, best_score = delta, torch.full((len(x),), -torch.inf)
        for _ in range(steps):
            delta.requires_grad_()
            score = nisqa(x + delta)
            (slope,) = torch.autograd.grad(score.sum(), delta)
            with torch.no_grad():
                better = score > best_score
                best = torch.where(better[:, None], delta, best)
                best_score = torch.where(better, score, best_score)
                delta = torch.clamp(delta + alpha * slope.sign(), -EPSILON, EPSILON)
                delta = torch.clamp(x + delta, -1, 1) - x
        return x + best

    return attack


def library_side(nisqa: Any, wavs: np.ndarray, steps: int) -> Callable[[], Any]:
    """PGD of torchattacks; ImportError where it is absent."""
    torchattacks = official.import_without("torchattacks", ("requests", "torchvision"))
    from benchmarks.grpo_torch import tensor, torch

    class Logits(torch.nn.Module):
        """Images ``[n, 1, 1, T]`` of 0..1 -> ``[n, 2]``; raising the loss of class 0 raises the score."""

        def __init__(self):
            super().__init__()
            self.model = nisqa.model

        def forward(self, images):
            score = nisqa(2 * images[:, 0, 0] - 1)
            return torch.stack([torch.zeros_like(score), score], 1)

    attack = torchattacks.PGD(Logits(), eps=EPSILON / 2, alpha=2.5 * EPSILON / 2 / steps, steps=steps)
    images, labels = ((tensor(wavs) + 1) / 2)[:, None, None], torch.zeros(len(wavs), dtype=torch.long)
    return lambda: 2 * attack(images, labels)[:, 0, 0] - 1


def bench(predictor: Predictor, checkpoint: Path | None, wavs: np.ndarray, size: Size) -> dict[str, Any]:
    """Agreement, then the rates; `checkpoint` is NISQA's, None leaves the PyTorch sides out."""
    result: dict[str, Any] = {**size._asdict(), "rows": [], "notes": [], "agreement": {}}
    run, compile_s = port_side(predictor, wavs, size.steps)
    calls = {"jaxhack": run}
    try:
        if checkpoint is None:
            raise ImportError("no checkpoint of NISQA was given")
        from benchmarks.grpo_torch import Nisqa, tensor, torch
    except ImportError as error:
        result["notes"].append(f"the PyTorch sides are absent ({error}), agreement not checked")
    else:
        nisqa = Nisqa(checkpoint)
        torch.manual_seed(0)  # of the random starts
        x = tensor(wavs).requires_grad_()
        (theirs,) = torch.autograd.grad(nisqa(x).sum(), x)
        ours = gradient(predictor, wavs)
        cosines = np.sum(ours * theirs.numpy(), 1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
        if not cosines.min() >= COSINE:
            raise ValueError(f"The sides do not agree, so timing them says nothing: cosine {cosines.min():.4f}.")
        result["agreement"]["first gradient (least cosine)"] = float(cosines.min())
        calls["eager PyTorch"] = eager_side(nisqa, wavs, size.steps)
        try:
            calls["torchattacks"] = library_side(nisqa, wavs, size.steps)
        except ImportError as error:
            result["notes"].append(f"torchattacks is absent ({error})")
    scores = jax.jit(mapped(lambda wav: predictor.score(predictor.params, wav, jnp.int32(wav.shape[0]))))
    before = np.asarray(scores(wavs))
    gains = {side: float(np.mean(np.asarray(scores(np.asarray(call()))) - before)) for side, call in calls.items()}
    spent = timing.in_turns(calls, size.repeats)
    for side, seconds in spent.items():
        row = {"side": side, "compile_s": compile_s if side == "jaxhack" else 0.0, "gain": gains[side], **seconds}
        row |= {"steps_per_s": size.steps / seconds["median_s"]}
        result["rows"].append(row | {"jaxhack_faster": seconds["median_s"] / spent["jaxhack"]["median_s"]})
    return result


@click.command(help=__doc__.splitlines()[0])
@timing.options
def main(models: Path, speech: Path, tiny: bool, repeats: int | None, out: Path | None) -> None:
    size = TINY if tiny else FULL
    size = size._replace(repeats=repeats or size.repeats)
    predictor = registry.predictor("nisqa", models=models, sample_rate=16000)
    wavs = timing.recordings(speech, size.batch, size.seconds)
    result = bench(predictor, models / "nisqa/nisqa.tar", wavs, size)
    columns = {"side": "", "steps_per_s": ".2f", "median_s": ".2f", "min_s": ".2f", "max_s": ".2f"}
    columns |= {"jaxhack_faster": ".2f", "gain": "+.2f", "compile_s": ".1f"}
    title = f"{size.steps} steps of PGD on {size.batch} × {size.seconds:g} s, median of {size.repeats}"
    timing.publish(result, title, columns, out)


if __name__ == "__main__":
    main()
