"""A predictor with other weights than those published: a folder that is accepted wherever a predictor is named."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxhack import run
from jaxhack.arrays import read_npz
from jaxhack.patch.fitting import weight_name
from jaxhack.types import Predictor, PyTree
from jaxhack.weights import sha256

FOLDER = "patched"  # in a patching's folder, and in that of a round
RECORD, PARAMS = "patched.json", "params.npz"


def save(folder: Path, predictor: Predictor, parent: Predictor, lineage: Mapping[str, Any]) -> Predictor:
    """Writes a patched predictor to `folder`.

    Args:
      folder: made where it is missing.
      predictor: with the weights to keep.
      parent: the predictor with the weights that it started from; its name leads to it.
      lineage: how the weights came to be; JSON-able.

    Returns:
      The predictor as :func:`load` will give it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    part, arrays = folder / (PARAMS + ".part"), _named(jax.device_get(predictor.params))
    with part.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # its other argument has a default
    os.replace(part, folder / PARAMS)
    digest = sha256(folder / PARAMS)
    record = {
        "name": _name(parent.name, digest),
        "parent": parent.name,
        "parent_weights": dict(parent.weights),
        "params": digest,
        "lineage": dict(lineage),
    }
    run.write_json(folder / RECORD, record)
    return _renewed(parent, predictor.params, record)


def load(folder: Path, parent: Predictor) -> Predictor:
    """The patched predictor in `folder`, made of its `parent`.

    Raises:
      ValueError: the parent's weights or the patched ones are not those of the record, or damaged.
    """
    record = read(folder)
    if dict(parent.weights) != record["parent_weights"]:
        raise ValueError(f"{folder} was patched from other weights of {parent.name} than those found.")
    if not (folder / PARAMS).is_file() or sha256(folder / PARAMS) != record["params"]:
        raise ValueError(f"{folder / PARAMS} is not what {RECORD} says: copy the folder anew, or patch again.")
    wanted = {name: (leaf.shape, leaf.dtype) for name, leaf in _named(parent.params).items()}
    remedy = f"it does not hold weights of {parent.name}; patch again"  # though its hash fits
    found = read_npz(folder / PARAMS, wanted, remedy)
    broken = [name for name, leaf in found.items() if leaf.dtype.kind == "f" and not np.isfinite(leaf).all()]
    if broken:
        raise ValueError(f"{folder / PARAMS} holds weights that are not finite, such as {broken[0]!r}: patch again.")
    leaves = [jnp.asarray(found[name]) for name in wanted]
    return _renewed(parent, jax.tree.unflatten(jax.tree.structure(parent.params), leaves), record)


def read(folder: Path) -> dict[str, Any]:
    """What `folder` says of its predictor: ``name``, ``parent``, ``parent_weights``, ``params``, ``lineage``.

    Raises:
      ValueError: if it is damaged.
    """
    kinds = {"name": str, "parent": str, "parent_weights": dict, "params": str, "lineage": dict}
    record = run.read_json(folder / RECORD, kinds, "a patched predictor's record", "patch again")
    if record["name"] != _name(record["parent"], record["params"]):
        raise ValueError(
            f"{folder / RECORD} calls its predictor {record['name']!r}, and "
            f"{_name(record['parent'], record['params'])!r} is its name: copy the folder anew, or patch again."
        )
    return record


def _name(parent: str, params: str) -> str:
    return f"{parent}-patched-{params[:6]}"


def _renewed(parent: Predictor, params: PyTree, record: Mapping[str, Any]) -> Predictor:
    """The parent with other weights, at every rate that it takes."""
    change = parent.at_rate
    return parent._replace(
        name=record["name"],
        params=params,
        weights={**parent.weights, PARAMS: record["params"]},
        at_rate=None if change is None else lambda hz: _renewed(change(hz), params, record),
    )


def _named(params: PyTree) -> dict[str, np.ndarray]:
    """Weight name -> its values."""
    paths = jax.tree_util.tree_flatten_with_path(params)[0]
    return {weight_name(path): np.asarray(leaf) for path, leaf in paths}
