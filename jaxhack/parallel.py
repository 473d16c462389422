"""The one place that decides how a batch runs.

A function of one utterance becomes a function of many with :func:`mapped`. On an accelerator that is ``vmap`` in
chunks; on a CPU it is a loop, one utterance at a time, because XLA's CPU kernels gain nothing from a batch axis
and lose their cache to it. With more than one device the batch is split over all of them.

An outer ``vmap`` adds to the mapped axis instead of nesting inside it, so "attackers × clips × group" is one flat
axis whatever the order in which the axes were written.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.sharding import Mesh, PartitionSpec

PyTree = Any

_WHOLE, _SPLIT = PartitionSpec(), PartitionSpec("batch")
ACCELERATOR_CHUNK = 256  # utterances in flight at once on one accelerator


def mapped(fn: Callable, *, chunk: int | None = None) -> Callable:
    """Maps a function of one example over the leading axis of every argument.

    Args:
      fn: pure function of arrays (or pytrees) of one example. What is the same for all examples is closed over.
      chunk: examples that one device computes at once; default 1 on a CPU (a loop), 256 on an accelerator.

    Returns:
      A function of the same arguments with a leading axis N on every leaf. Under ``vmap`` its batch axis joins N.
      Not reverse-differentiable through ``vmap``; take gradients inside `fn`.
    """

    def batched(*args):
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x)[1:], jnp.result_type(x)), args)
        closed, out = jax.make_jaxpr(fn, return_shape=True)(*shapes)
        run = _joining(closed.jaxpr, jax.tree.structure(out), chunk)
        return run(tuple(closed.consts), tuple(jax.tree.leaves(args)))

    return batched


def mean_gradients(fn: Callable) -> Callable:
    """The mean of a function of weights and one example, and its gradient by the weights, over many examples.

    Args:
      fn: ``(params, example) -> []``.

    Returns:
      ``(params, examples [N]) -> ([], gradients like params)``. Gradients are summed as they are made, so that memory
      does not grow with N on a CPU, nor beyond a chunk on an accelerator.
    """

    def run(params, examples):
        size, devices = jax.tree.leaves(examples)[0].shape[0], jax.devices()
        chunk = min(_chunk(None) or 1, size)
        examples = _filled(examples, len(devices) * chunk)
        counted = jnp.arange(jax.tree.leaves(examples)[0].shape[0]) < size

        def values(params, part):
            if chunk > 1:
                return jax.vmap(fn, (None, 0))(params, part)
            return fn(params, jax.tree.map(lambda x: x[0], part))[None]

        def total(params, part, counted):
            return jnp.sum(jnp.where(counted, values(params, part), 0.0))

        def sums(params, examples, counted):
            def add(so_far, part):
                return jax.tree.map(jnp.add, so_far, jax.value_and_grad(total)(params, *part)), None

            parts = jax.tree.map(lambda x: x.reshape(-1, chunk, *x.shape[1:]), (examples, counted))
            none = (jnp.float32(0), jax.tree.map(jnp.zeros_like, params))
            made, _ = jax.lax.scan(add, none, parts)
            return made if len(devices) == 1 else jax.lax.psum(made, "batch")

        if len(devices) > 1:
            sums = _over_devices(sums, (_WHOLE, _SPLIT, _SPLIT), _WHOLE)
        return jax.tree.map(lambda x: x / size, sums(params, examples, counted))

    return run


def _joining(jaxpr: Any, out: Any, chunk: int | None) -> Callable:
    """``(shared, args [N]) -> out [N]``, whose ``vmap`` joins N.

    What `fn` closed over comes as `shared`: a batching rule runs again inside loops, where what it closes over would
    be out of reach.
    """

    @custom_vmap
    def run(shared, args):
        def one(leaves):
            return jax.tree.unflatten(out, jaxpr_as_fun(ClosedJaxpr(jaxpr, shared))(*leaves))

        return _run(one, args, chunk)

    @run.def_vmap
    def _(axis_size, in_batched, shared, args):
        shared_batched, args_batched = in_batched
        args = tuple(x if b else _repeat(x, axis_size) for x, b in zip(args, args_batched, strict=True))
        if any(shared_batched):  # as many functions as batch members: nothing to join
            shared = tuple(x if b else _repeat(x, axis_size) for x, b in zip(shared, shared_batched, strict=True))
            made = jax.lax.map(lambda pair: run(*pair), (shared, args))
        else:
            made = run(shared, tuple(x.reshape(-1, *x.shape[2:]) for x in args))
            made = jax.tree.map(lambda x: x.reshape(axis_size, -1, *x.shape[1:]), made)
        return made, jax.tree.map(lambda _: True, made)

    return run


def _repeat(x: jax.Array, times: int) -> jax.Array:
    return jnp.broadcast_to(x[None], (times, *x.shape))


def _run(fn: Callable[[tuple], PyTree], args: tuple, chunk: int | None) -> PyTree:
    """Splits the leading axis over the devices, pads what does not divide, loops in chunks on each."""
    size = jax.tree.leaves(args)[0].shape[0]
    devices = jax.devices()
    loop = partial(jax.lax.map, fn, batch_size=_chunk(chunk))
    if len(devices) == 1:
        return loop(args)
    out = _over_devices(loop, (_SPLIT,), _SPLIT)(_filled(args, len(devices)))
    return jax.tree.map(lambda x: x[:size], out)


def _filled(args: PyTree, multiple: int) -> PyTree:
    """Leading axes made a multiple of `multiple` long, by the last example."""

    def fill(x: jax.Array) -> jax.Array:
        return jnp.concatenate([x, _repeat(x[-1], -x.shape[0] % multiple)])

    return jax.tree.map(fill, args)


def _over_devices(fn: Callable, in_specs: tuple[PartitionSpec, ...], out_specs: PartitionSpec) -> Callable:
    """`fn` on each device, of its part of what is split."""
    mesh = Mesh(np.array(jax.devices()), ("batch",))
    # check_vma off: what `fn` closes over (weights) is replicated, and loops inside it start from constants.
    return jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def _chunk(chunk: int | None) -> int | None:
    if chunk is not None:
        return chunk
    return None if jax.default_backend() == "cpu" else ACCELERATOR_CHUNK
