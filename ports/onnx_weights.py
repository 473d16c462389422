"""The initialisers of an ONNX file as Flax parameters, strictly in both directions."""

from collections.abc import Mapping
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import onnx
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxhack.types import PyTree


def read_model(path: Path) -> onnx.ModelProto:
    """Parse an ONNX file; ``ValueError`` when it is missing, truncated, or something else."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"expected an ONNX model at {path}, but there is no such file")
    try:
        model = onnx.load(path, load_external_data=False)
        onnx.checker.check_model(model)
    except Exception as error:  # protobuf and the checker each raise their own kinds
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(f"{path} is not a whole ONNX model: {reason[0]}") from error
    return model


def _as_flax(arrays: list[np.ndarray]) -> np.ndarray:
    """ONNX layout to Flax's: OIHW -> HWIO, [O, I, 1] -> [I, O]; several are joined along the output."""
    moved = []
    for array in arrays:
        if array.ndim == 4:
            array = array.transpose(2, 3, 1, 0)
        elif array.ndim == 3:
            array = array[..., 0].T
        moved.append(array)
    return np.concatenate(moved, axis=-1) if len(moved) > 1 else moved[0]


def load_params(path: Path, names: Mapping[str, tuple[str, ...]], shapes: PyTree) -> PyTree:
    """Float32 parameters for a Flax module.

    Args:
        path: the ONNX file.
        names: ``"layer/part"`` under ``params`` -> the initialisers it is made of.
        shapes: the module's variables as ``jax.eval_shape`` gives them.

    Returns:
        Variables shaped like ``shapes``.

    Raises:
        ValueError: not an ONNX file, or an initialiser is missing, left over, misshapen or not finite; the
            message names it. Scalars and integers are constants of the graph, not weights.
    """
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in read_model(path).graph.initializer}
    stored = {name: array for name, array in stored.items() if array.ndim and array.dtype.kind == "f"}
    wanted = {name for group in names.values() for name in group}
    if missing := sorted(wanted - set(stored)):
        raise ValueError(f"{path} lacks the weights {', '.join(missing)}; is it another model's file?")
    if extra := sorted(set(stored) - wanted):
        raise ValueError(f"{path} holds weights nobody asked for: {', '.join(extra)}; is it another model's file?")
    if broken := sorted(name for name, array in stored.items() if not np.isfinite(array).all()):
        raise ValueError(f"{path} holds NaN or infinite weights: {', '.join(broken)}")
    params = {}
    for target, struct in flatten_dict(shapes["params"], sep="/").items():
        array = _as_flax([stored[name] for name in names[target]])
        if array.shape != struct.shape:
            raise ValueError(
                f"{path}: {', '.join(names[target])} should give shape {struct.shape}, got {array.shape}"
            )
        params[target] = jnp.asarray(array, jnp.float32)
    return {"params": unflatten_dict(params, sep="/")}
