"""Write small .tflite files for tests: the inverse of ``ports.tflite_weights``, and no more than it reads."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import flatbuffers
import numpy as np
import tflite

from ports.tflite_weights import Constant, Operator

TYPES = {"<f4": "FLOAT32", "|i1": "INT8", "<i4": "INT32", "<f2": "FLOAT16", "<i8": "INT64"}
Scales = Mapping[str, tuple[Sequence[float], Sequence[int], int]]  # constant -> scales, zero points, axis


def write_tflite(path: Path, graphs: Mapping[str, Sequence[Operator]], scales: Scales | None = None) -> Path:
    """Write operators and their constants; a constant named in ``scales`` is stored as quantised."""
    b = flatbuffers.Builder(0)
    buffers = [_buffer(b, b"")]
    kinds = sorted({operator.kind for operators in graphs.values() for operator in operators})
    subgraphs = [_graph(b, name, graphs[name], kinds, buffers, scales or {}) for name in graphs]
    codes = []
    for kind in kinds:
        number = getattr(tflite.BuiltinOperator, kind)
        tflite.OperatorCodeStart(b)
        tflite.OperatorCodeAddDeprecatedBuiltinCode(b, min(number, 127))
        tflite.OperatorCodeAddBuiltinCode(b, number)
        codes.append(tflite.OperatorCodeEnd(b))
    fields = [
        _vector(b, tflite.ModelStartOperatorCodesVector, codes),
        _vector(b, tflite.ModelStartSubgraphsVector, subgraphs),
        _vector(b, tflite.ModelStartBuffersVector, buffers),
    ]
    tflite.ModelStart(b)
    tflite.ModelAddVersion(b, 3)
    tflite.ModelAddOperatorCodes(b, fields[0])
    tflite.ModelAddSubgraphs(b, fields[1])
    tflite.ModelAddBuffers(b, fields[2])
    b.Finish(tflite.ModelEnd(b), file_identifier=b"TFL3")
    path.write_bytes(bytes(b.Output()))
    return path


def _vector(b, start, offsets):
    start(b, len(offsets))
    for offset in reversed(offsets):
        b.PrependUOffsetTRelative(offset)
    return b.EndVector()


def _buffer(b, data: bytes):
    vector = b.CreateByteVector(data) if data else None
    tflite.BufferStart(b)
    if vector is not None:
        tflite.BufferAddData(b, vector)
    return tflite.BufferEnd(b)


def _tensor(b, name: str, shape, dtype: str, buffer: int, quantisation=None):
    name, dims = b.CreateString(name), b.CreateNumpyVector(np.array(shape, np.int32))
    if quantisation is not None:
        scale = b.CreateNumpyVector(np.array(quantisation[0], np.float32))
        zero = b.CreateNumpyVector(np.array(quantisation[1], np.int64))
        tflite.QuantizationParametersStart(b)
        tflite.QuantizationParametersAddScale(b, scale)
        tflite.QuantizationParametersAddZeroPoint(b, zero)
        tflite.QuantizationParametersAddQuantizedDimension(b, quantisation[2])
        quantisation = tflite.QuantizationParametersEnd(b)
    tflite.TensorStart(b)
    tflite.TensorAddShape(b, dims)
    tflite.TensorAddType(b, getattr(tflite.TensorType, TYPES[dtype]))
    tflite.TensorAddBuffer(b, buffer)
    tflite.TensorAddName(b, name)
    if quantisation is not None:
        tflite.TensorAddQuantization(b, quantisation)
    return tflite.TensorEnd(b)


def _options(b, operator: Operator):
    """Stride and dilation of a convolution; (offset, type of the union)."""
    kinds = {"CONV_2D": "Conv2D", "DEPTHWISE_CONV_2D": "DepthwiseConv2D", "TRANSPOSE_CONV": "TransposeConv"}
    if operator.kind not in kinds:
        return None
    name = kinds[operator.kind] + "Options"
    call = lambda what, *args: getattr(tflite, name + what)(b, *args)  # noqa: E731
    call("Start")
    call("AddStrideH", operator.stride[0])
    call("AddStrideW", operator.stride[1])
    if operator.kind != "TRANSPOSE_CONV":
        call("AddDilationHFactor", operator.dilation[0])
        call("AddDilationWFactor", operator.dilation[1])
    return call("End"), getattr(tflite.BuiltinOptions, name)


def _graph(b, name: str, operators: Sequence[Operator], kinds, buffers: list, scales: Scales):
    tensors, written = [], []
    for operator in operators:
        inputs = []
        if operator.in_shape:
            inputs.append(len(tensors))
            tensors.append(_tensor(b, "input", operator.in_shape, "<f4", 0))
        for constant in operator.constants:
            inputs.append(len(tensors))
            tensors.append(
                _tensor(
                    b,
                    constant.name,
                    constant.value.shape,
                    constant.value.dtype.str,
                    len(buffers),
                    scales.get(constant.name),
                )
            )
            buffers.append(_buffer(b, constant.value.tobytes()))
        outputs = [len(tensors)]
        tensors.append(_tensor(b, operator.name, (1,), "<f4", 0))
        written.append(_operator(b, operator, kinds.index(operator.kind), inputs, outputs))
    fields = [
        b.CreateString(name),
        _vector(b, tflite.SubGraphStartTensorsVector, tensors),
        _vector(b, tflite.SubGraphStartOperatorsVector, written),
    ]
    tflite.SubGraphStart(b)
    tflite.SubGraphAddName(b, fields[0])
    tflite.SubGraphAddTensors(b, fields[1])
    tflite.SubGraphAddOperators(b, fields[2])
    return tflite.SubGraphEnd(b)


def _operator(b, operator: Operator, code: int, inputs: list[int], outputs: list[int]):
    options = _options(b, operator)
    inputs = b.CreateNumpyVector(np.array(inputs, np.int32))
    outputs = b.CreateNumpyVector(np.array(outputs, np.int32))
    tflite.OperatorStart(b)
    tflite.OperatorAddOpcodeIndex(b, code)
    tflite.OperatorAddInputs(b, inputs)
    tflite.OperatorAddOutputs(b, outputs)
    if options is not None:
        tflite.OperatorAddBuiltinOptionsType(b, options[1])
        tflite.OperatorAddBuiltinOptions(b, options[0])
    return tflite.OperatorEnd(b)


def random_lyra(folder: Path, seed: int = 0) -> dict[str, Path]:
    """Lyra's three files with random weights, under the names and in the layout of the originals."""
    random = np.random.default_rng(seed)
    files = {
        "soundstream_encoder.tflite": {"main": _encoder(random)},
        "lyragan.tflite": {"main": _decoder(random)},
        "quantizer.tflite": _quantiser(random),
    }
    return {name: write_tflite(folder / name, graphs) for name, graphs in files.items()}


def layer(random, kind: str, name: str, shape, size: int, stride: int = 1, dilation: int = 1) -> Operator:
    """A convolution of ``size`` input channels with kernel ``shape`` and its bias, at a healthy gain."""
    fan = shape[1] if kind == "DEPTHWISE_CONV_2D" else np.prod(shape[1:])
    w = random.normal(0, fan**-0.5, shape).astype(np.float32)
    bias = random.normal(0, 0.1, shape[3] if kind == "DEPTHWISE_CONV_2D" else shape[0]).astype(np.float32)
    constants = (Constant(f"{name}/kernel", w), Constant(f"{name}/bias", bias))
    return Operator(kind, f"model/{name}/BiasAdd", constants, (1, 1, 1, size), (stride, 1), (dilation, 1))


def _units(random, scope: str, size: int) -> list[Operator]:
    made = []
    for unit in range(3):
        name = f"{scope}/resnet_{unit}"
        made += [
            layer(random, "DEPTHWISE_CONV_2D", f"{name}adepthwise_conv", (1, 3, 1, size), size, 1, 3**unit),
            layer(random, "CONV_2D", f"{name}apointwise_conv", (size, 1, 1, size), size),
            layer(random, "CONV_2D", f"{name}bconv", (size, 1, 1, 64), size),
        ]
    return made


def _encoder(random) -> list[Operator]:
    conv = lambda *args: layer(random, "CONV_2D", *args)  # noqa: E731
    return [
        conv("first_layerconv", (64, 64, 1, 1), 1, 16),
        *_units(random, "encoder_0", 64),
        conv("encoder_0/simpleconv", (128, 10, 1, 64), 64, 5),
        *_units(random, "encoder_1", 128),
        conv("encoder_1/simpleconv", (256, 4, 1, 64), 128, 2),
        *_units(random, "quant_encoder_2", 256),
        conv("quant_encoder_2/simpleconv", (512, 4, 1, 64), 256, 2),
        conv("quant_bottleneck_1/simpleconv", (64, 3, 1, 128), 512),
    ]


def _decoder(random) -> list[Operator]:
    up = lambda *args: layer(random, "TRANSPOSE_CONV", *args)  # noqa: E731
    return [
        layer(random, "CONV_2D", "bottleneck_2/simpleconv", (512, 3, 1, 16), 64),
        *[up(f"quant_decoder_0/simple_g{g}", (64, 4, 1, 128), 128, 2) for g in range(4)],
        *_units(random, "quant_decoder_0", 256),
        *[up(f"quant_decoder_1/simple_g{g}", (64, 4, 1, 128), 128, 2) for g in range(2)],
        *_units(random, "decoder_1", 128),
        up("decoder_2/simple", (64, 10, 1, 128), 128, 5),
        *_units(random, "decoder_2", 64),
        up("last_layer", (1, 64, 1, 64), 64, 16),
    ]


def _quantiser(random) -> dict[str, list[Operator]]:
    books = [random.normal(0, 0.9**i, (16, 64)).astype(np.float32) for i in range(46)]
    encode, decode = [], []
    for i, book in enumerate(books):
        distance = Constant(f"vector_quantizer_ema_{i}/ExpandDims", book[None])
        encode.append(Operator("SQUARED_DIFFERENCE", f"distance_{i}", (distance,), (1, 1, 64)))
        if i < 45:
            entry = Constant(f"vector_quantizer_ema_{i}/transpose", book)
            encode.append(Operator("GATHER", f"entry_{i}", (entry,), (1,)))
        copy = Constant(f"transpose_{i}" if i else "transpose", book)
        decode.append(Operator("GATHER", f"decoded_{i}", (copy,), (1,)))
    return {"encode": encode, "decode": sorted(decode, key=lambda o: o.constants[0].name)}
