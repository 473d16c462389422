"""Gradient steps on a predictor's weights: logged and saved on the host, exact in resuming."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp

from jaxhack.parallel import mean_gradients
from jaxhack.patch.losses import Loss
from jaxhack.training import checkpoints, keep_lines, restore
from jaxhack.types import Array, PyTree

LOG = "fitting.jsonl"


class Term(NamedTuple):
    """One part of what is minimised: its mean over a batch of its own, weighted."""

    name: str
    loss: Loss
    weight: float = 1.0


class State(NamedTuple):
    """A predictor in training."""

    params: PyTree
    moments: PyTree  # of the optimiser
    best: PyTree  # the params of the least validation value; without validation the last
    least: Array  # [] float32, that value


def fit(
    params: PyTree,
    terms: Sequence[Term],
    batches: Callable[[int], Mapping[str, PyTree]],
    optimiser: optax.GradientTransformation,
    *,
    steps: int,
    folder: Path,
    trainable: PyTree = True,
    save_every: int = 25,
    validate: Callable[[PyTree], float] | None = None,
    validate_every: int = 100,
    observe: Callable[[int, dict[str, float]], None] = lambda step, metrics: None,
) -> PyTree:
    """Minimises ``Σ weight · mean loss`` over the params.

    A folder that holds a checkpoint is continued from it and ends where an unbroken run would have ended, to the bit.

    Args:
      params: to start from.
      terms: what is minimised.
      batches: step -> term's name -> examples ``[B, ...]``; of the step alone, so that a resumed run sees the same.
      optimiser: see :func:`adamw`.
      steps: how many in all.
      folder: where checkpoints and ``fitting.jsonl`` live.
      trainable: bools, a prefix of `params`; where it is False they stay as they are, to the bit.
      save_every: steps between checkpoints: what a crash can lose.
      validate: params -> a value to keep small, such as the error on other recordings.
      validate_every: steps between two of its calls; it is called after the last step too.
      observe: called before the first step and after every one, with the steps done and the losses of that one.

    Returns:
      The params of the least validation value, the earliest of equals; the last without `validate`.

    Raises:
      ValueError: the loss is no longer finite.
    """
    free = jax.tree.map(lambda moves, part: jax.tree.map(lambda _: moves, part), trainable, params)
    if not all(jax.tree.leaves(free)):
        optimiser = optax.masked(optimiser, free)  # no moments of what stays

    @jax.jit
    def advance(state: State, batch: Mapping[str, PyTree]) -> tuple[State, dict[str, Array], dict[str, Array]]:
        losses: dict[str, Array] = {}
        sound: dict[str, Array] = {}  # whether the gradient is finite
        total = jax.tree.map(jnp.zeros_like, state.params)
        for term in terms:
            losses[term.name], slopes = mean_gradients(term.loss)(state.params, batch[term.name])
            kept = [slope for slope, moves in zip(*map(jax.tree.leaves, (slopes, free)), strict=True) if moves]
            sound[term.name] = jnp.all(jnp.stack([jnp.all(jnp.isfinite(slope)) for slope in kept]))
            total = jax.tree.map(lambda sum, slope, weight=term.weight: sum + weight * slope, total, slopes)
        changes, moments = optimiser.update(total, state.moments, state.params)
        moved = optax.apply_updates(state.params, changes)
        moved = jax.tree.map(lambda moves, now, then: now if moves else then, free, moved, state.params)
        return state._replace(params=moved, moments=moments), losses, sound

    state = State(params, jax.jit(optimiser.init)(params), params, jnp.float32(jnp.inf))
    with checkpoints(folder) as manager:
        done = manager.latest_step() or 0
        if done:
            state = restore(manager, done, jax.device_get(state))
        log = folder / LOG
        keep_lines(log, done)
        observe(done, {})
        for step in range(done, steps):
            state, losses, sound = advance(state, batches(step))
            line: dict[str, Any] = {"step": step, **{name: float(value) for name, value in losses.items()}}
            for name in losses:
                what = "gradient" if np.isfinite(line[name]) else "score"
                if what == "gradient" and sound[name]:
                    continue
                if step == 0:
                    raise ValueError(f"The predictor gives no finite {what} for {name}, before anything was learned.")
                raise ValueError(f"The loss of step {step} is not finite ({line}): lower the learning rate.")
            last = step + 1 == steps
            if validate is None:
                state = state._replace(best=state.params)
            elif last or (step + 1) % validate_every == 0:
                line["validation"] = float(validate(state.params))
                if line["validation"] < float(state.least):
                    state = state._replace(best=state.params, least=jnp.float32(line["validation"]))
            with log.open("a") as file:
                file.write(json.dumps(line) + "\n")
            if last or (step + 1) % save_every == 0:
                manager.save(step + 1, args=ocp.args.StandardSave(jax.device_get(state)))
            observe(step + 1, {name: value for name, value in line.items() if name != "step"})
    return state.best


def adamw(
    params: PyTree, learning_rate: float, *, head: Sequence[str] = (), head_learning_rate: float | None = None
) -> optax.GradientTransformation:
    """AdamW, with another rate for the weights whose names begin with one of `head`.

    Args:
      params: of the predictor; a weight's name is its keys joined by "/".
      learning_rate: of everything else.
      head: beginnings of names, ("head/",).
      head_learning_rate: of those.

    Raises:
      ValueError: no weight has such a name.
    """
    if not head:
        return optax.adamw(learning_rate)

    def label(path: Any, leaf: Any) -> str:
        del leaf
        return "head" if weight_name(path).startswith(tuple(head)) else "rest"

    labels = jax.tree_util.tree_map_with_path(label, params)
    if "head" not in jax.tree.leaves(labels):
        paths = jax.tree_util.tree_flatten_with_path(params)[0]
        known = sorted({weight_name(path).rpartition("/")[0] for path, _ in paths})
        raise ValueError(f"No weight's name begins with {' or '.join(head)}; there are {', '.join(known)}.")
    rates = {"head": head_learning_rate or learning_rate, "rest": learning_rate}
    return optax.multi_transform({part: optax.adamw(rate) for part, rate in rates.items()}, labels)


weight_name = partial(jax.tree_util.keystr, simple=True, separator="/")  # of its path in the params
