"""Lyra V2 (SoundStream), Google's speech codec at 16 kHz: encoder, residual vector quantiser and decoder.

A re-implementation in Flax of the three TensorFlow Lite graphs of github.com/google/lyra (Apache-2.0), whose
architecture follows Zeghidour et al., *SoundStream: An End-to-End Neural Audio Codec*, arXiv 2107.03312.

The original graphs take 20 ms at a time, carry their convolutions' state, and compute the middle layers in
8 bits. Here a whole utterance goes through at once (state is zero padding on the left), in float32 and with
gradients: close to the original, not bit for bit.

Every kernel of the codec is a whole number of strides long, so each convolution, transposed ones included,
is a matrix product over frames of ``stride`` samples and the ``taps − 1`` frames before. Matrix products and
shifted additions are much faster than XLA's convolutions on a CPU, and so are their gradients.
"""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxhack.types import Array, Codec, Weight
from ports.latents import check_latent, check_stages, check_wav, looked_up
from ports.tflite_weights import Operator, read_tflite
from ports.transformer import dot
from ports.weight_file import weight_file

HOP = 320  # samples
CHANNELS = 64
STAGES = (16, 30, 46)  # 64, 120 and 184 bits a frame: 3.2, 6 and 9.2 kb/s
ENTRIES = 16  # of a stage's codebook: 4 bits

_COMMIT = "47698dadf0010abff6a848e02642f55f806d4842"
_FILES = {
    "soundstream_encoder.tflite": (
        1779200,
        "237da0b16226fb0a68d49551c81bebf614e42142af72764448359f68581e88f1",
    ),
    "lyragan.tflite": (1475160, "50e7839cda4f30599a3a34cfaddcd9c98449b049eee884e1a74295780448ad06"),
    "quantizer.tflite": (329012, "841ee05989687d32d1f616a8ad1419fc7eda37599d3c05c7cf5a0d60ccf8ac5c"),
}
LYRA_WEIGHTS: tuple[Weight, ...] = tuple(
    Weight(
        file=file,
        folder="lyra_v2",
        sha256=sha256,
        size=size,
        source=f"https://github.com/google/lyra/raw/{_COMMIT}/lyra/model_coeffs/{file}",
        licence="Apache-2.0",
        origin=f"google/lyra {_COMMIT[:7]}",
    )
    for file, (size, sha256) in _FILES.items()
)


def lyra(paths: Mapping[str, Path], *, dtype: Any = jnp.float32) -> Codec:
    """The codec with the published weights.

    Args:
      paths: file name -> path of the three files that ``LYRA_WEIGHTS`` lists.
      dtype: of the products' factors in encoder and decoder; sums, depthwise convolutions and the quantiser are
        float32. On speech ``jnp.bfloat16`` moves the latent by up to 4.1 % (RMS), the audio of one latent by −36 dB,
        and 5 to 14 % of the codes of 16 stages.

    Returns:
      A codec of 16 kHz, 320 samples a frame and 64 channels, whose latent is the encoder's continuous output.
      ``encode`` pads with zeros on the right to whole frames.

    Raises:
      ValueError: a file is missing, damaged, or not what the architecture expects, down to a tensor's name.
    """
    found = {file: weight_file("lyra", file, paths) for file in _FILES}
    params = {
        "encoder": _load(found["soundstream_encoder.tflite"][0], Encoder(), (HOP,)),
        "decoder": _load(found["lyragan.tflite"][0], Decoder(), (1, CHANNELS)),
        "codebooks": _load_codebooks(found["quantizer.tflite"][0]),
    }
    return Codec(
        name="lyra",
        sample_rate=16000,
        hop=HOP,
        channels=CHANNELS,
        params=params,
        encode=functools.partial(encode, dtype=dtype),
        decode=functools.partial(decode, dtype=dtype),
        delay=0,
        codes=codes,
        dequantise=dequantise,
        codebook_size=ENTRIES,
        stages=STAGES,
        weights={file: digest for file, (_, digest) in found.items()},
    )


def encode(params: Any, wav: Array, *, dtype: Any = jnp.float32) -> Array:
    """``wav [T]`` float32, −1..1, 16 kHz -> latent ``[ceil(T / 320), 64]``; differentiable."""
    check_wav(wav)
    wav = jnp.pad(wav, (0, -wav.shape[0] % HOP))
    return jnp.asarray(Encoder(dtype).apply({"params": params["encoder"]}, wav))


def decode(params: Any, z: Array, *, dtype: Any = jnp.float32) -> Array:
    """Latent ``z [N, 64]`` float32 -> waveform ``[N · 320]``, not clipped; differentiable."""
    check_latent("decode", z, CHANNELS)
    return jnp.asarray(Decoder(dtype).apply({"params": params["decoder"]}, z))


def codes(params: Any, z: Array, stages: int) -> Array:
    """The transmitted numbers of latent ``z [N, 64]``: ``[N, stages]`` int32, 0..15; 4 bits each.

    ``stages`` is 16, 30 or 46 in Lyra; any number from 1 to 46 works.
    """
    check_latent("codes", z, CHANNELS)
    books = params["codebooks"]
    check_stages(stages, books.shape[0], STAGES)

    def stage(rest: Array, book: Array) -> tuple[Array, Array]:
        index = jnp.argmin(jnp.sum(jnp.square(rest[:, None] - book), axis=-1), axis=-1)
        entry = book[index]
        # Not rest − entry: the original's straight-through form rounds differently, and codes depend on it.
        return rest - (rest + (entry - rest)), index.astype(jnp.int32)

    return lax.scan(stage, z, books[:stages])[1].T


def dequantise(params: Any, codes: Array) -> Array:
    """Latent ``[N, 64]`` of ``codes [N, S]``."""
    return looked_up(params["codebooks"], codes)


# --- architecture; modules carry the names of the original's layers ---


def _leaky(x: Array) -> Array:
    return jnp.where(x > 0, x, 0.3 * x)


_kernel_init = nn.initializers.normal(0.05)


class Down(nn.Module):
    """Causal convolution ``[N, C] -> [N / stride, features]``, kernel ``taps · stride`` long, in groups."""

    features: int
    taps: int = 1
    stride: int = 1
    groups: int = 1
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """See the class."""
        n, size = x.shape[0] // self.stride, x.shape[1] // self.groups
        width, out = self.stride * size, self.features // self.groups
        kernel = self.param("kernel", _kernel_init, (self.groups, self.taps, width, out))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        parts = []
        for group in range(self.groups):
            frames = x[:, group * size : (group + 1) * size].reshape(n, width)
            past = jnp.pad(frames, ((self.taps - 1, 0), (0, 0)))
            window = jnp.concatenate([past[tap : tap + n] for tap in range(self.taps)], axis=1)
            parts.append(dot(window, kernel[group].reshape(self.taps * width, out), self.dtype))
        return jnp.concatenate(parts, axis=1) + bias


class Up(nn.Module):
    """Causal transposed convolution ``[N, C] -> [N · stride, features]``, kernel ``taps · stride`` long."""

    features: int
    taps: int
    stride: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """See the class."""
        n, width = x.shape[0], self.stride * self.features
        kernel = self.param("kernel", _kernel_init, (self.taps, x.shape[1], width))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        # One product for all taps; then each tap's share moves on by as many frames.
        shares = dot(x, kernel.transpose(1, 0, 2).reshape(x.shape[1], self.taps * width), self.dtype)
        past = jnp.pad(shares, ((self.taps - 1, 0), (0, 0)))
        late = [past[self.taps - 1 - tap :][:n, tap * width : (tap + 1) * width] for tap in range(self.taps)]
        return functools.reduce(jnp.add, late).reshape(n * self.stride, self.features) + bias


class Depthwise(nn.Module):
    """Causal depthwise convolution of three taps, ``dilation`` steps apart, as shifted additions."""

    dilation: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """See the class."""
        kernel = self.param("kernel", _kernel_init, (3, x.shape[1]))
        bias = self.param("bias", nn.initializers.zeros, (x.shape[1],))
        n, d = x.shape[0], self.dilation
        past = jnp.pad(x, ((2 * d, 0), (0, 0)))
        return past[:n] * kernel[0] + past[d : d + n] * kernel[1] + x * kernel[2] + bias


def _residuals(x: Array, scope: str, dtype: Any) -> Array:
    """Three residual units over ``[N, C]``; the last product of each works in groups of 64 channels."""
    size = x.shape[1]
    for unit in range(3):
        name = f"{scope}.resnet_{unit}"
        h = Depthwise(3**unit, name=f"{name}adepthwise_conv")(_leaky(x))
        h = Down(size, dtype=dtype, name=f"{name}apointwise_conv")(h)
        x = x + Down(size, groups=size // 64, dtype=dtype, name=f"{name}bconv")(_leaky(h))
    return x


class Encoder(nn.Module):
    """Waveform ``[N · 320]`` -> latent ``[N, 64]``."""

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, wav: Array) -> Array:
        """See the class."""
        down = functools.partial(Down, dtype=self.dtype)
        x = down(64, taps=4, stride=16, name="first_layerconv")(wav[:, None])
        x = _residuals(x, "encoder_0", self.dtype)
        x = down(128, taps=2, stride=5, name="encoder_0.simpleconv")(_leaky(x))
        x = _residuals(x, "encoder_1", self.dtype)
        x = down(256, taps=2, stride=2, groups=2, name="encoder_1.simpleconv")(_leaky(x))
        x = _residuals(x, "encoder_2", self.dtype)
        x = down(512, taps=2, stride=2, groups=4, name="encoder_2.simpleconv")(_leaky(x))
        return down(CHANNELS, taps=3, groups=4, name="bottleneck_1.simpleconv")(_leaky(x))


class Decoder(nn.Module):
    """Latent ``[N, 64]`` -> waveform ``[N · 320]``."""

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, z: Array) -> Array:
        """See the class."""
        up = functools.partial(Up, dtype=self.dtype)
        x = Down(512, taps=3, groups=4, dtype=self.dtype, name="bottleneck_2.simpleconv")(z)
        for stage, groups in enumerate((4, 2)):
            parts = jnp.split(_leaky(x), groups, axis=1)
            ups = [up(64, taps=2, stride=2, name=f"decoder_{stage}.simple_g{g}") for g in range(groups)]
            x = jnp.concatenate([each(part) for each, part in zip(ups, parts, strict=True)], axis=1)
            x = _residuals(x, f"decoder_{stage}", self.dtype)
        x = up(64, taps=2, stride=5, name="decoder_2.simple")(_leaky(x))
        x = _residuals(x, "decoder_2", self.dtype)
        return up(1, taps=4, stride=16, name="last_layer")(_leaky(x))[:, 0]


# --- weights ---


def _load(path: Path, module: nn.Module, example: tuple[int, ...]) -> dict[str, dict[str, Array]]:
    """The parameters of ``module`` from a graph whose layers bear its layers' names, strict both ways."""
    loaded, wrong = _layers(path)
    shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros(example, jnp.float32))["params"]
    expected = {f"{scope}.{leaf}": s.shape for scope, leaves in shapes.items() for leaf, s in leaves.items()}
    wrong += [f"{name} {list(expected[name])} is missing" for name in expected if name not in loaded]
    wrong += [f"{name} {list(loaded[name].shape)} is left over" for name in loaded if name not in expected]
    wrong += [
        f"{name} has shape {list(loaded[name].shape)}, expected {list(shape)}"
        for name, shape in expected.items()
        if name in loaded and loaded[name].shape != shape
    ]
    _refuse(path, wrong)
    return {
        scope: {leaf: jnp.asarray(loaded[f"{scope}.{leaf}"]) for leaf in leaves} for scope, leaves in shapes.items()
    }


def _layers(path: Path) -> tuple[dict[str, np.ndarray], list[str]]:
    """Constants of a graph in this module's layout, by layer; and what contradicts the architecture."""
    loaded: dict[str, np.ndarray] = {}
    wrong = []
    for operator in read_tflite(path).get("main", ()):
        scope = _scope(operator.name)
        if operator.kind not in _LAYOUTS:
            if not _is_state(operator, loaded.get(f"{scope}.bias")):
                wrong.append(f"{operator.constants[0].name} ({operator.kind}) is left over")
            continue
        if f"{scope}.kernel" in loaded:
            wrong.append(f"{scope} is there twice")
        try:
            loaded[f"{scope}.kernel"], loaded[f"{scope}.bias"] = _LAYOUTS[operator.kind](operator)
        except ValueError as error:
            wrong.append(f"{scope}: {error}")
        unit = re.search(r"resnet_(\d)adepthwise", scope)
        dilation = (3 ** int(unit[1]) if unit else 1, 1)
        if operator.dilation != dilation:
            wrong.append(f"{scope} has dilation {operator.dilation}, expected {dilation}")
    return loaded, wrong


def _scope(name: str) -> str:
    """A layer's name: ``model_48/quant_decoder_0/simple_g0/conv2d_104/…`` -> ``decoder_0.simple_g0``."""
    parts = name.split(";")[0].split("/")[1:]
    layers = [part for part in parts if not re.match("conv2d|depthwise|BiasAdd|sub$|concat$", part)]
    return ".".join(layers).removeprefix("quant_")


def _constants(operator: Operator) -> tuple[np.ndarray, np.ndarray]:
    real = [c.value for c in operator.constants if c.value.dtype == np.float32]
    if [c.ndim for c in real] != [4, 1] or real[0].size == 0 or len(operator.in_shape) != 4:
        shapes = [list(c.shape) for c in real]
        raise ValueError(f"constants of shapes {shapes}, expected a kernel of four axes and a bias")
    return real[0], real[1]


def _taps(operator: Operator, length: int) -> int:
    stride = operator.stride[0]
    if stride < 1 or length % stride or operator.stride[1] != 1:
        raise ValueError(f"{length} taps and strides {operator.stride}, expected whole strides on one axis")
    return length // stride


def _conv(operator: Operator) -> tuple[np.ndarray, np.ndarray]:
    w, bias = _constants(operator)  # [out, time, 1, in a group]
    out, length, _, size = w.shape
    taps, groups = _taps(operator, length), max(operator.in_shape[3] // size, 1)
    kernel = w.reshape(groups, out // groups, taps, -1).transpose(0, 2, 3, 1)
    return kernel, bias


def _transposed(operator: Operator) -> tuple[np.ndarray, np.ndarray]:
    w, bias = _constants(operator)  # [out, time, 1, in]
    out, length, _, size = w.shape
    taps = _taps(operator, length)
    kernel = w.reshape(out, taps, length // taps, size).transpose(1, 3, 2, 0).reshape(taps, size, -1)
    return kernel, bias


def _depthwise(operator: Operator) -> tuple[np.ndarray, np.ndarray]:
    w, bias = _constants(operator)  # [1, time, 1, channels]
    return w.reshape(-1, w.shape[3]), bias


_LAYOUTS = {"CONV_2D": _conv, "TRANSPOSE_CONV": _transposed, "DEPTHWISE_CONV_2D": _depthwise}


def _is_state(operator: Operator, bias: np.ndarray | None) -> bool:
    """Whether the operator's constants only serve streaming: zeros to extend a state, a bias taken off it."""
    real = [c.value for c in operator.constants if c.value.dtype == np.float32]
    if operator.kind == "CONCATENATION":
        return not any(value.any() for value in real)
    if operator.kind == "SUB":
        return (
            len(real) == 1
            and bias is not None
            and real[0].shape == bias.shape
            and np.allclose(real[0], bias, atol=1e-3)
        )
    return not real


def _load_codebooks(path: Path) -> Array:
    """``[46, 16, 64]``, the codebooks of all stages; the file holds up to three copies, which must agree."""
    graphs = read_tflite(path)
    encoder, decoder = graphs.get("encode", ()), graphs.get("decode", ())
    # The encoder works stage by stage, so its order is theirs; the decoder's names have their numbers.
    distances = [o.constants[0] for o in encoder if o.kind == "SQUARED_DIFFERENCE" and o.constants]
    entries = [o.constants[0] for o in encoder if o.kind == "GATHER" and o.constants]
    tables = {o.constants[0].name: o.constants[0] for o in decoder if o.kind == "GATHER" and o.constants}
    stages, shape = STAGES[-1], (1, ENTRIES, CHANNELS)
    wrong = [
        f"{c.name} has shape {list(c.value.shape)}, expected {list(shape)}"
        for c in distances
        if c.value.shape != shape
    ]
    for what, found, number in (
        ("encoder codebooks", distances, stages),
        ("encoder look-up tables", entries, stages - 1),  # nothing is left to subtract from after the last
        ("decoder look-up tables", tables, stages),
    ):
        if len(found) != number:
            wrong.append(f"it has {len(found)} {what}, expected {number}")
    _refuse(path, wrong)
    for stage, book in enumerate(distances):
        copies = [tables.get(f"transpose_{stage}" if stage else "transpose"), *entries[stage : stage + 1]]
        for copy in copies:
            if copy is None or not np.array_equal(copy.value, book.value[0]):
                wrong.append(f"stage {stage}: {copy.name if copy else 'decoder table'} differs from {book.name}")
    _refuse(path, wrong)
    return jnp.asarray(np.concatenate([book.value for book in distances]))


def _refuse(path: Path, wrong: list[str]) -> None:
    if wrong:
        more = f" (and {len(wrong) - 5} more)" if len(wrong) > 5 else ""
        raise ValueError(f"{path} does not hold the expected Lyra V2 weights: {'; '.join(wrong[:5])}{more}.")
