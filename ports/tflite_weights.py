"""Read the constants of a TensorFlow Lite file, dequantised, with just enough of the graph to place them.

Only the flatbuffer schema (PyPI ``tflite``) is used; nothing is interpreted or executed. The format's source:
``schema.fbs`` of TensorFlow Lite, version 3.
"""

import math
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tflite

# What the accessors of a flatbuffer raise when offsets lead nowhere.
_DAMAGE = (struct.error, AttributeError, IndexError, MemoryError, OverflowError, TypeError, ValueError)
_NAMES: dict[int, str] = {
    getattr(tflite.BuiltinOperator, name): name
    for name in vars(tflite.BuiltinOperator)
    if not name.startswith("_")
}
_DTYPES: dict[int, np.dtype[Any]] = {
    tflite.TensorType.FLOAT32: np.dtype("<f4"),
    tflite.TensorType.FLOAT16: np.dtype("<f2"),
    tflite.TensorType.FLOAT64: np.dtype("<f8"),
    tflite.TensorType.INT8: np.dtype("i1"),
    tflite.TensorType.UINT8: np.dtype("u1"),
    tflite.TensorType.INT16: np.dtype("<i2"),
    tflite.TensorType.INT32: np.dtype("<i4"),
    tflite.TensorType.INT64: np.dtype("<i8"),
    tflite.TensorType.BOOL: np.dtype("?"),
}
_OPTIONS: dict[int, Any] = {  # operators with a stride, and the class of their options
    tflite.BuiltinOperator.CONV_2D: tflite.Conv2DOptions,
    tflite.BuiltinOperator.DEPTHWISE_CONV_2D: tflite.DepthwiseConv2DOptions,
    tflite.BuiltinOperator.TRANSPOSE_CONV: tflite.TransposeConvOptions,
}


class Constant(NamedTuple):
    """A constant tensor: float32 where it holds real numbers, as stored where it is a shape or an index."""

    name: str
    value: np.ndarray


class Operator(NamedTuple):
    """One operator of a graph and the constants that it reads, in the order of its inputs."""

    kind: str  # "CONV_2D", as the schema spells it
    name: str  # of its first output: carries the layer's name scope
    constants: tuple[Constant, ...]
    in_shape: tuple[int, ...]  # of the first input that is not constant; () if there is none
    stride: tuple[int, int] = (1, 1)  # height, width
    dilation: tuple[int, int] = (1, 1)


class _Damaged(Exception):
    """A reason to refuse the file."""


def read_tflite(path: Path) -> dict[str, tuple[Operator, ...]]:
    """Read a .tflite file: subgraph name -> its operators in execution order.

    Integer tensors with a scale become ``(q − zero point) · scale``, per tensor or per channel, in float32.

    Raises:
      ValueError: the file is foreign, truncated, damaged, or has a constant that is not finite.
    """
    data = Path(path).read_bytes()
    if len(data) < 8 or data[4:8] != b"TFL3":
        raise ValueError(
            f"{path} is not a TensorFlow Lite file: expected 'TFL3' at byte 4, got {data[4:8]!r}."
        )
    try:
        return _read(data)
    except _Damaged as reason:
        raise ValueError(f"{path} cannot be used: {reason}; fetch it again.") from None
    except _DAMAGE:
        raise ValueError(f"{path} is truncated or damaged ({len(data)} bytes); fetch it again.") from None


def _read(data: bytes) -> dict[str, tuple[Operator, ...]]:
    model = tflite.Model.GetRootAsModel(data, 0)
    graphs = {}
    for index in range(_count(model.SubgraphsLength(), data)):
        graph = model.Subgraphs(index)
        count = _count(graph.OperatorsLength(), data)
        cache: dict[int, Constant | None] = {}
        operators = tuple(_operator(data, model, graph, i, cache) for i in range(count))
        name = _text(graph.Name()) or f"subgraph_{index}"
        if name in graphs:
            raise _Damaged(f"it has two subgraphs called {name!r}")
        graphs[name] = operators
    if not graphs:
        raise _Damaged("it holds no graph")
    return graphs


def _operator(data: bytes, model, graph, index: int, cache: dict[int, Constant | None]) -> Operator:
    operator = graph.Operators(index)
    code_index = operator.OpcodeIndex()
    if not 0 <= code_index < model.OperatorCodesLength():
        raise _Damaged(f"operator {index} has no code")
    code = model.OperatorCodes(code_index)
    builtin = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())  # old files fill only the second
    constants, in_shape = [], None
    for position in range(_count(operator.InputsLength(), data)):
        number = operator.Inputs(position)
        if number < 0:  # an input left out
            continue
        tensor = _tensor(graph, number)
        if number not in cache:
            cache[number] = _constant(data, model, tensor)
        constant = cache[number]
        if constant is not None:
            constants.append(constant)
        elif in_shape is None:
            in_shape = tuple(tensor.Shape(i) for i in range(_count(tensor.ShapeLength(), data)))
    name = _text(_tensor(graph, operator.Outputs(0)).Name()) if operator.OutputsLength() else ""
    stride, dilation = _geometry(operator, builtin)
    return Operator(
        _NAMES.get(builtin, f"OPERATOR_{builtin}"), name, tuple(constants), in_shape or (), stride, dilation
    )


def _geometry(operator, builtin: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Stride and dilation (height, width) of a convolution; 1 for everything else."""
    if builtin not in _OPTIONS:
        return (1, 1), (1, 1)
    table = operator.BuiltinOptions()
    options = _OPTIONS[builtin]()
    options.Init(table.Bytes, table.Pos)
    stride = (options.StrideH(), options.StrideW())
    if builtin == tflite.BuiltinOperator.TRANSPOSE_CONV:
        return stride, (1, 1)
    return stride, (options.DilationHFactor(), options.DilationWFactor())


def _tensor(graph, number: int):
    if not 0 <= number < graph.TensorsLength():
        raise _Damaged(f"an operator asks for tensor {number} of {graph.TensorsLength()}")
    return graph.Tensors(number)


def _constant(data: bytes, model, tensor) -> Constant | None:
    """The tensor's stored value, or None if it is computed at run time."""
    if not 0 <= tensor.Buffer() < model.BuffersLength():
        raise _Damaged(f"tensor {_text(tensor.Name())!r} has no buffer")
    buffer = model.Buffers(tensor.Buffer())
    length = buffer.DataLength()
    if length == 0:
        return None
    name = _text(tensor.Name())
    dtype = _DTYPES.get(tensor.Type())
    if dtype is None:
        raise _Damaged(f"constant {name!r} has type {tensor.Type()}, which is not read")
    shape = tuple(tensor.Shape(i) for i in range(_count(tensor.ShapeLength(), data)))
    size = math.prod(shape) * dtype.itemsize
    if size != length or min(shape, default=0) < 0:
        raise _Damaged(f"constant {name!r} of shape {shape} needs {size} bytes and has {length}")
    raw = np.frombuffer(buffer.DataAsNumpy().tobytes(), dtype).reshape(shape)
    value = _dequantise(raw, tensor.Quantization(), name, data)
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise _Damaged(f"constant {name!r} has values that are not finite")
    return Constant(name, value)


def _dequantise(raw: np.ndarray, quantisation, name: str, data: bytes) -> np.ndarray:
    count = 0 if quantisation is None else _count(quantisation.ScaleLength(), data)
    if count == 0:
        return raw.astype(np.float32) if raw.dtype.kind == "f" else raw.copy()
    axis = quantisation.QuantizedDimension()
    zeros = _count(quantisation.ZeroPointLength(), data)
    if zeros not in (0, count) or (count > 1 and not (0 <= axis < raw.ndim and raw.shape[axis] == count)):
        raise _Damaged(f"constant {name!r} of shape {raw.shape} has {count} scales on axis {axis}")
    scale = np.array([quantisation.Scale(i) for i in range(count)], np.float64)
    zero = np.array([quantisation.ZeroPoint(i) for i in range(count)] if zeros else [0] * count, np.float64)
    if count > 1:
        shape = [1] * raw.ndim
        shape[axis] = count
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    else:
        scale, zero = scale[0], zero[0]
    # float64 because a 32-bit bias does not fit into float32
    return ((raw.astype(np.float64) - zero) * scale).astype(np.float32)


def _count(length: int, data: bytes) -> int:
    """A vector's length, refused where the file cannot hold it: a damaged length would loop for hours."""
    if not 0 <= length <= len(data):
        raise _Damaged("it is truncated or damaged")
    return length


def _text(name: bytes | None) -> str:
    return name.decode("utf-8", "replace") if name else ""
