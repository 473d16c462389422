"""A predictor with other weights than those published: a folder that is accepted wherever a predictor is named."""

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxhack import run
from jaxhack.patch.fitting import weight_name
from jaxhack.types import Predictor, PyTree
from jaxhack.weights import sha256

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
        "name": f"{parent.name}-patched-{digest[:6]}",
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
    try:
        with np.load(folder / PARAMS, allow_pickle=False) as stored:
            found = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, zipfile.BadZipFile):  # whose hash fits all the same
        found = {}
    wanted = {name: (leaf.shape, leaf.dtype) for name, leaf in _named(parent.params).items()}
    if {name: (leaf.shape, leaf.dtype) for name, leaf in found.items()} != wanted:
        raise ValueError(f"{folder / PARAMS} does not hold the weights of {parent.name}.")
    leaves = [jnp.asarray(found[name]) for name in wanted]
    return _renewed(parent, jax.tree.unflatten(jax.tree.structure(parent.params), leaves), record)


def read(folder: Path) -> dict[str, Any]:
    """What `folder` says of its predictor: ``name``, ``parent``, ``parent_weights``, ``params``, ``lineage``.

    Raises:
      ValueError: if it is damaged.
    """
    kinds = {"name": str, "parent": str, "parent_weights": dict, "params": str, "lineage": dict}
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        if all(isinstance(record[key], kind) for key, kind in kinds.items()):
            return record
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise ValueError(f"{folder / RECORD} cannot be read as a patched predictor's record: patch again.")


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
