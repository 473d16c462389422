"""Seconds of one GRPO step, beside the same step in eager PyTorch.

    python -m benchmarks.bench_grpo --models ../shared/models --speech ../shared/speech --out grpo.json

NISQA attacked through Lyra by one attacker. Both sides get the same points and weights and, for the check of
agreement, the same policy and noise. A step is draws, rendering, scoring and two epochs of Adam.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import timing
from jaxhack import crops, registry
from jaxhack.attack import Setup, Weights
from jaxhack.attackers.grpo import group_advantages
from jaxhack.objective import heard
from jaxhack.parallel import mapped
from jaxhack.settings import Settings
from jaxhack.spaces import latent_statistics
from jaxhack.types import Codec, Point, Predictor


class Size(NamedTuple):
    batch: int
    group: int
    seconds: float
    repeats: int


FULL, TINY = Size(8, 8, 3.0, 5), Size(2, 2, 0.5, 1)


class Job(NamedTuple):
    """What is trained, on which points."""

    setup: Setup
    weights: Weights
    points: Point  # [n], n >= batch

    def arguments(self, attackers: int) -> tuple:
        """What a step of k attackers takes: weights, states ``[k]``, keys ``[k]``, points ``[k, B]``."""
        keys = jax.random.split(jax.random.key(1), attackers)
        states = jax.jit(lambda w, keys: jax.vmap(self.setup.attacker(w).init)(keys))(self.weights, keys)
        batch, size = self.setup.settings.batch, len(self.points.length)
        index = (np.arange(batch) + np.arange(attackers)[:, None]) % size
        return self.weights, states, keys, jax.tree.map(lambda x: jnp.asarray(x[index]), self.points)

    def step(self, weights: Weights, states: Any, keys: Any, points: Point) -> Any:
        """One step of all attackers, as training takes it."""
        return jax.vmap(self.setup.attacker(weights).step)(states, keys, points)


def prepare(predictor: Predictor, codec: Codec, wavs: np.ndarray, size: Size) -> Job:
    """Encodes ``wavs [n, T]`` as training does; the predictor must take the codec's rate."""
    setup = Setup(predictor, codec, codec.sample_rate, (), Settings(batch=size.batch, group=size.group), 1)
    batches = partial(crops.batches, wavs, wavs.shape[1], batch=len(wavs))
    weights = Weights(codec.params, predictor.params, latent_statistics(codec, batches()))
    encode = jax.jit(lambda w, wav, length: mapped(setup.space(w).encode)(wav, length))
    with tempfile.TemporaryDirectory() as folder:
        points = crops.Crops(Path(folder)).fill(partial(encode, weights), batches())
        return Job(setup, weights, points.take(np.arange(points.size)))


def plain_side(job: Job, states: Any, points: Point, checkpoint: Path) -> tuple[Any, tuple]:
    """The PyTorch side with the parameters of attacker 0, and what its step takes besides noise."""
    from benchmarks import grpo_torch

    policy = jax.tree.map(lambda x: x[0], states.params)["params"]
    plain = grpo_torch.Plain(job.weights.codec["decoder"], checkpoint, policy, job.setup.settings.epsilon)
    z, scale = points.content
    return plain, tuple(grpo_torch.tensor(x[0]) for x in (points.features, z, scale))


def agreement(job: Job, arguments: tuple, run: Callable, plain: Any, inputs: tuple) -> dict[str, float]:
    """Largest differences of the two sides, stage by stage and after a whole step. ValueError where too large."""
    from benchmarks.grpo_torch import advantages, tensor, torch

    weights, _, keys, points = arguments
    first = jax.tree.map(lambda x: x[0], points)
    batch, group = job.setup.settings.batch, job.setup.settings.group
    space, predictor = job.setup.space(weights), job.setup.predictor
    noise = jax.random.normal(keys[0], (batch, group, *space.action_shape))

    def saved(point, action):
        return heard(space.render(point, space.project(point, action)), point.length)

    ours = jax.jit(mapped(lambda point, actions: jax.lax.map(partial(saved, point), actions)))(first, noise)
    with torch.no_grad():
        theirs = plain.render(*inputs[1:], tensor(noise))
        scores = plain.score(theirs.flatten(0, 1)).unflatten(0, (batch, group))
    listen = mapped(lambda wav: predictor.score(weights.predictor, wav, jnp.int32(wav.shape[0])))
    heard_scores = jax.jit(listen)(jnp.asarray(theirs.flatten(0, 1))).reshape(batch, group)
    (trained, metrics), rewards = run(*arguments), plain.step(*inputs, tensor(noise))
    means = jax.jit(jax.vmap(job.setup.attacker(weights).act, (None, None, 0)))(
        jax.tree.map(lambda x: x[0], trained), keys[0], first
    )
    return {
        "waveforms": timing.agree("waveforms", ours, theirs, 1e-3),
        "scores of the same waveforms": timing.agree("scores", heard_scores, scores, 1e-3),
        "advantages of the same rewards": timing.agree(
            "advantages", group_advantages(jnp.asarray(scores))[0], advantages(scores), 1e-3
        ),
        "mean reward of a step": timing.agree("mean reward", metrics["reward"][0], rewards.mean(), 1e-3),
        "mean action after a step": timing.agree("mean action", means, plain.policy(inputs[0])[0].detach(), 0.05),
    }


def bench(job: Job, checkpoint: Path | None, repeats: int) -> dict[str, Any]:
    """Times a step; `checkpoint` is NISQA's, None leaves the PyTorch side out."""
    arguments = job.arguments(1)
    run, compile_s = timing.compiled(job.step, *arguments)
    calls: dict[str, Callable] = {"jaxhack": lambda: run(*arguments)}
    jax.block_until_ready(calls["jaxhack"]())
    result: dict[str, Any] = {**job.setup.settings.__dict__, "repeats": repeats, "rows": [], "notes": []}
    result["peak_memory_jax_alone_mb"] = timing.peak_memory_mb()
    try:
        if checkpoint is None:
            raise ImportError("no checkpoint of NISQA was given")
        plain, inputs = plain_side(job, arguments[1], arguments[3], checkpoint)
    except ImportError as error:
        result["notes"].append(f"the PyTorch side is absent ({error}), agreement not checked")
    else:
        from benchmarks.grpo_torch import torch

        result["agreement"] = agreement(job, arguments, run, plain, inputs)
        shape = (job.setup.settings.batch, job.setup.settings.group, job.setup.codec.channels)
        calls["eager PyTorch"] = lambda: plain.step(*inputs, torch.randn(shape))
        result |= {"torch": torch.__version__, "torch_threads": torch.get_num_threads()}
        result["notes"].append("the PyTorch side has Lyra's own weights and computes spectrograms batch-wise")
    spent = timing.in_turns(calls, repeats)
    for side, seconds in spent.items():
        result["rows"].append({"side": side, "compile_s": compile_s if side == "jaxhack" else 0.0, **seconds})
    if len(spent) > 1:
        result["rows"][0]["times_faster"] = spent["eager PyTorch"]["median_s"] / spent["jaxhack"]["median_s"]
    return result


def real_job(models: Path, speech: Path, size: Size, clips: int) -> Job:
    """NISQA through Lyra on recordings."""
    predictor, codec = registry.predictor("nisqa", models=models), registry.codec("lyra", models=models)
    return prepare(predictor, codec, timing.recordings(speech, clips, size.seconds, codec.sample_rate), size)


@click.command(help=__doc__.splitlines()[0])
@timing.options
def main(models: Path, speech: Path, tiny: bool, repeats: int | None, out: Path | None) -> None:
    size = TINY if tiny else FULL
    result = bench(real_job(models, speech, size, size.batch), models / "nisqa/nisqa.tar", repeats or size.repeats)
    result["crop_seconds"] = size.seconds
    columns = {
        "side": "",
        "median_s": ".3f",
        "min_s": ".3f",
        "max_s": ".3f",
        "times_faster": ".2f",
        "compile_s": ".1f",
    }
    title = f"one GRPO step: {size.batch} crops × {size.group} draws × {size.seconds:g} s"
    timing.publish(result, f"{title}, median of {result['repeats']}", columns, out)


if __name__ == "__main__":
    main()
