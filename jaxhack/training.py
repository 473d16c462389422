"""Trains k attackers together: scanned on the device, logged and saved on the host."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from jaxhack.crops import Crops
from jaxhack.run import write_text
from jaxhack.types import Array, Attacker, PyTree

HOST_STEP = 5  # steps between two visits of the host: what a crash can lose


def host_step_size(steps: int) -> int:
    """The largest number up to :data:`HOST_STEP` that divides `steps`, so that one program serves them all."""
    return next(n for n in range(min(HOST_STEP, steps), 0, -1) if steps % n == 0)


def train(
    build: Callable[[PyTree], Attacker],
    weights: PyTree,
    crops: Crops,
    *,
    seed: int,
    attackers: int,
    steps: int,
    batch: int,
    folder: Path,
    observe: Callable[[int, dict[str, np.ndarray]], None] = lambda step, metrics: None,
) -> PyTree:
    """Trains k attackers, each on its own random batches, all in one program.

    Every host step writes a checkpoint and a line per step to ``training.jsonl``. A folder that holds a checkpoint is
    continued from it and ends where an unbroken run would have ended.

    Args:
      build: weights -> Attacker; called inside the compiled program, so that weights are its arguments.
      weights: of codec and predictor.
      crops: training points.
      seed: of the run; attacker i draws from (seed, i), however many train beside it.
      attackers: their number k.
      steps: optimisation steps.
      batch: crops B of one step.
      folder: where checkpoints and ``training.jsonl`` live.
      observe: called before the first host step and after every one, with the number of steps done and the metrics
        ``[n, k]`` of that one.

    Returns:
      The trained states, leading axis k.
    """
    init_keys, step_keys = _keys(seed, attackers)
    states = _initial(build, weights, init_keys)
    span = host_step_size(steps)

    @jax.jit
    def advance(weights, states, first, points):
        attacker = build(weights)

        def body(states, x):
            step, points = x
            now = jax.vmap(jax.random.fold_in, (0, None))(step_keys, step)
            return jax.vmap(attacker.step)(states, now, points)

        return jax.lax.scan(body, states, (first + jnp.arange(span), points))

    with checkpoints(folder) as manager:
        done = manager.latest_step() or 0
        if done:
            states = restore(manager, done, states)
        log = folder / "training.jsonl"
        keep_lines(log, done)
        observe(done, {})
        for first in range(done, steps, span):
            points = crops.take(_indices(seed, attackers, range(first, first + span), batch, crops.size))
            states, metrics = jax.device_get(advance(weights, states, jnp.int32(first), points))
            metrics = {name: np.asarray(value) for name, value in metrics.items()}
            with log.open("a") as f:
                for i in range(span):
                    f.write(json.dumps({"step": first + i} | _jsonable(metrics, i)) + "\n")
            manager.save(first + span, args=ocp.args.StandardSave(states))
            observe(first + span, metrics)
    return states


def trained(
    build: Callable[[PyTree], Attacker], weights: PyTree, *, seed: int, attackers: int, steps: int, folder: Path
) -> PyTree:
    """The states that :func:`train` returned, from the checkpoints in `folder`; arguments as there.

    Raises:
      ValueError: the training is not there or was not finished, or the checkpoint is damaged.
    """
    stored = (folder / "checkpoints").absolute()
    states = _initial(build, weights, _keys(seed, attackers)[0])
    if not stored.is_dir():
        raise ValueError(f"{folder} holds no attackers (checkpoints).")
    options = ocp.CheckpointManagerOptions(create=False)  # orbax warns of one that is read_only
    with ocp.CheckpointManager(stored, options=options) as manager:
        done = manager.latest_step() or 0
        if done != steps:
            raise ValueError(
                f"{folder} holds attackers trained for {done} of {steps} steps: finish it with --resume."
            )
        return restore(manager, done, states)


def checkpoints(folder: Path) -> ocp.CheckpointManager:
    """What keeps the newest two checkpoints of a training in a run's folder."""
    options = ocp.CheckpointManagerOptions(
        max_to_keep=2, enable_async_checkpointing=False, cleanup_tmp_directories=True
    )
    return ocp.CheckpointManager((folder / "checkpoints").absolute(), options=options)


def _keys(seed: int, attackers: int) -> tuple[Array, Array]:
    """Of each attacker's initial state and of its steps."""
    keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(seed)))(jnp.arange(attackers))
    init_keys, step_keys = (jax.vmap(partial(jax.random.fold_in, data=i))(keys) for i in range(2))
    return init_keys, step_keys


def _initial(build: Callable[[PyTree], Attacker], weights: PyTree, keys: Array) -> PyTree:
    return jax.device_get(jax.jit(lambda w, k: jax.vmap(build(w).init)(k))(weights, keys))


def restore(manager: ocp.CheckpointManager, step: int, states: PyTree) -> PyTree:
    """What was saved at `step`, shaped like `states`.

    Raises:
      ValueError: the checkpoint is damaged.
    """
    try:
        return manager.restore(step, args=ocp.args.StandardRestore(states))
    except Exception as error:  # a damaged file shows in many ways
        folder = Path(manager.directory) / str(step)
        raise ValueError(
            f"The checkpoint {folder} cannot be read: delete it, and --resume goes on from the one before."
        ) from error


def _indices(seed: int, attackers: int, steps: range, batch: int, size: int) -> np.ndarray:
    """Crops of every step and attacker: ``[steps, k, batch]``; repeats within a batch only when there are too few."""

    def draw(attacker: int, step: int) -> np.ndarray:
        return np.random.default_rng((seed, attacker, step)).choice(size, batch, replace=size < batch)

    return np.stack([[draw(attacker, step) for attacker in range(attackers)] for step in steps])


def _jsonable(metrics: dict[str, np.ndarray], i: int) -> dict[str, list[float | None]]:
    return {k: [round(float(x), 6) if np.isfinite(x) else None for x in v[i]] for k, v in metrics.items()}


def keep_lines(log: Path, count: int) -> None:
    """Drops what was logged after the last checkpoint."""
    lines = log.read_text().splitlines(keepends=True)[:count] if log.exists() else []
    write_text(log, "".join(lines))
