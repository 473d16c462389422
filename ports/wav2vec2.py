"""wav2vec 2.0, HuBERT and WavLM: the self-supervised speech encoders that quality predictors stand on.

A. Baevski et al., "wav2vec 2.0", NeurIPS 2020; W.-N. Hsu et al., "HuBERT", 2021; S. Chen et al., "WavLM", 2022.
One network with options (:class:`Config`), after fairseq's and Hugging Face's implementations, whose checkpoints load
under the names of either. The weights are their owners': wav2vec 2.0 and HuBERT under MIT (fairseq), WavLM under
the terms of github.com/microsoft/unilm; none comes with this package.

**Padding.** A padded clip gives the numbers of the clip alone. With ``conv_norm="layer"`` so do the originals when
told the lengths; with ``"group"`` they do not: their group norm averages over the padding too, so that every frame of
a padded clip changes. Here it averages over the frames that count. Without padding both agree.
"""

import functools
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxhack.types import Array, PyTree
from ports.checkpoint import strict_load
from ports.transformer import Dense, dot, layer_norm, stack
from ports.two_ways import two_ways

SAMPLE_RATE = 16_000  # Hz, of every published model


class Config(NamedTuple):
    """The architecture; the defaults are the base models of wav2vec 2.0 and HuBERT."""

    channels: int = 768
    layers: int = 12
    heads: int = 12
    feed_forward: int = 3072
    conv_channels: int = 512
    conv: tuple[tuple[int, int], ...] = ((10, 5), *4 * ((3, 2),), *2 * ((2, 2),))  # kernel and stride of each
    conv_norm: str = "group"  # "group": the first convolution's channels over time; "layer": every frame of every one
    conv_bias: bool = False
    norm_first: bool = False  # "stable layer norm"
    position_kernel: int = 128  # frames
    position_groups: int = 16
    buckets: int = 0  # of WavLM's relative position bias; 0: there is none
    max_distance: int = 800  # frames, beyond which all distances share a bucket


WAV2VEC2_BASE = HUBERT_BASE = Config()
WAVLM_BASE = Config(buckets=320)  # base+ too
WAV2VEC2_LARGE = Config(channels=1024, layers=24, heads=16, feed_forward=4096)
WAV2VEC2_LARGE_LV60 = WAV2VEC2_LARGE._replace(conv_norm="layer", conv_bias=True, norm_first=True)  # XLS-R 300M too


def min_samples(config: Config) -> int:
    """The shortest waveform with a frame: 400 samples in every published model."""
    return functools.reduce(lambda n, conv: (n - 1) * conv[1] + conv[0], reversed(config.conv), 1)


def frame_count(config: Config, length: Array, convolutions: int | None = None) -> Array:
    """Frames of a clip of ``length []`` samples after all convolutions, or the first few: [] int32, 0 or more."""
    for kernel, stride in config.conv[:convolutions]:
        length = jnp.maximum((length - kernel) // stride + 1, 0)
    return length


def mean_over_frames(config: Config, x: Array, length: Array) -> Array:
    """The mean of ``x [F, C]`` over the frames of a clip of ``length []`` samples: [C]; zeros where there is none."""
    count = frame_count(config, length)
    valid = jnp.arange(x.shape[0]) < count
    return jnp.sum(jnp.where(valid[:, None], x, 0.0), axis=0) / jnp.maximum(count, 1).astype(x.dtype)


class Encoder(nn.Module):
    """``wav [T]``, ``length []`` -> every hidden state ``[layers + 1, F, channels]`` float32.

    The waveform (16 kHz) is taken as it is. Some models, those of ``conv_norm="layer"`` among them, were trained on
    clips of zero mean and unit variance; that is the caller's business. State 0 is what the first layer takes; the
    last one is the encoder's output, after its norm where ``norm_first`` is set. A clip of ``length`` samples fills
    the first ``frame_count(config, length)`` frames; the others mean nothing.
    """

    config: Config = WAV2VEC2_BASE
    dtype: Any = jnp.float32  # of the products' factors; sums, norms and softmax are float32

    @nn.compact
    def __call__(self, wav: Array, length: Array) -> Array:
        """See the class."""
        config = self.config
        x = self._features(jnp.pad(wav, (0, max(0, min_samples(config) - wav.shape[0]))), length)
        valid = jnp.arange(x.shape[0]) < frame_count(config, length)
        x = Dense(config.channels, self.dtype, name="projection")(layer_norm("projection_norm")(x))
        x = jnp.where(valid[:, None], x, 0.0)
        position = PositionConv(config.position_kernel, config.position_groups, self.dtype, name="position")
        x = x + _gelu(position(x))
        norm = layer_norm("norm")
        if not config.norm_first:
            x = norm(x)
        bias = None
        if config.buckets:
            table = self.param("position_bias", nn.initializers.normal(), (config.buckets, config.heads))
            bias = _relative(table, x.shape[0], config)
        layers = stack(
            config.layers,
            heads=config.heads,
            feed_forward=config.feed_forward,
            activation=_gelu,
            norm_first=config.norm_first,
            gated=bool(config.buckets),
            dtype=self.dtype,
            name="layers",
        )
        last, states = layers(x, valid, bias)
        if config.norm_first:
            states = jnp.concatenate([states[:-1], norm(last)[None]])
        return jnp.concatenate([x[None], states])

    def _features(self, wav: Array, length: Array) -> Array:
        """The convolutions over the waveform: [T] -> [F, conv_channels]."""
        config, x = self.config, wav[:, None]
        for i, (kernel, stride) in enumerate(config.conv):
            x = StridedConv(config.conv_channels, kernel, stride, config.conv_bias, self.dtype, name=f"conv{i}")(x)
            if config.conv_norm == "layer":
                x = layer_norm(f"conv_norm{i}")(x)
            elif i == 0:
                x = ChannelNorm(name="conv_norm0")(x, frame_count(config, length, 1))
            x = _gelu(x)
        return x


class StridedConv(nn.Module):
    """A convolution without padding, [N, C] -> [(N − kernel) // stride + 1, features]."""

    features: int
    kernel: int
    stride: int
    use_bias: bool
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """See the class."""
        shape = (self.kernel * x.shape[1], self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        x = two_ways(self._convolution, self._products)(x, kernel)
        return x + self.param("bias", nn.initializers.zeros, (self.features,)) if self.use_bias else x

    def _convolution(self, x: Array, kernel: Array) -> Array:
        return lax.conv_general_dilated(
            x[None].astype(self.dtype),
            kernel.reshape(self.kernel, x.shape[1], -1).astype(self.dtype),
            (self.stride,),
            "VALID",
            dimension_numbers=("NWC", "WIO", "NWC"),
            precision=lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )[0]

    def _products(self, x: Array, kernel: Array) -> Array:
        """Products of frames of ``stride`` samples and the frames after."""
        n, channels = (x.shape[0] - self.kernel) // self.stride + 1, x.shape[1]
        width, spans = self.stride * channels, -(-self.kernel // self.stride)
        rows = (n + spans - 1) * self.stride
        blocks = lax.pad(x, jnp.zeros((), x.dtype), ((0, rows - x.shape[0], 0), (0, 0, 0))).reshape(-1, width)
        parts = [kernel[i * width : (i + 1) * width] for i in range(spans)]
        return jnp.asarray(sum(dot(blocks[i : i + n, : len(part)], part, self.dtype) for i, part in enumerate(parts)))


class ChannelNorm(nn.Module):
    """Each channel of ``x [F, C]`` to zero mean and unit variance over the first ``count []`` frames, then affine."""

    @nn.compact
    def __call__(self, x: Array, count: Array) -> Array:
        """See the class."""
        valid = (jnp.arange(x.shape[0]) < count)[:, None]
        frames = jnp.maximum(count, 1).astype(x.dtype)
        x = x - jnp.sum(jnp.where(valid, x, 0.0), axis=0) / frames
        variance = jnp.sum(jnp.where(valid, jnp.square(x), 0.0), axis=0) / frames
        scale = self.param("scale", nn.initializers.ones, (x.shape[1],))
        bias = self.param("bias", nn.initializers.zeros, (x.shape[1],))
        return x * (lax.rsqrt(variance + 1e-5) * scale) + bias


class PositionConv(nn.Module):
    """A convolution in groups over the ``kernel`` frames around each, zeros beyond the edges: [F, C] -> [F, C]."""

    kernel: int
    groups: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """See the class."""
        size = x.shape[1] // self.groups
        shape = (self.groups, self.kernel * size, size)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        bias = self.param("bias", nn.initializers.zeros, (x.shape[1],))
        return two_ways(self._convolution, self._products)(x, kernel) + bias

    def _convolution(self, x: Array, kernel: Array) -> Array:
        size = kernel.shape[2]
        kernel = kernel.reshape(self.groups, self.kernel, size, size).transpose(1, 2, 0, 3)
        return lax.conv_general_dilated(
            x[None].astype(self.dtype),
            kernel.reshape(self.kernel, size, -1).astype(self.dtype),
            (1,),
            ((self.kernel // 2, (self.kernel - 1) // 2),),
            dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=self.groups,
            precision=lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )[0]

    def _products(self, x: Array, kernel: Array) -> Array:
        """Eight taps are gathered before a product; all of them at once would take much memory."""
        frames, size, taps = x.shape[0], kernel.shape[2], math.gcd(self.kernel, 8)
        x = jnp.pad(x, ((self.kernel // 2, self.kernel // 2), (0, 0)))
        x = x.reshape(-1, self.groups, size).transpose(1, 0, 2)
        rows = frames + self.kernel - taps
        gathered = jnp.concatenate([x[:, i : i + rows] for i in range(taps)], axis=-1)
        out = sum(
            dot(gathered[:, i : i + frames], kernel[:, i * size : (i + taps) * size], self.dtype)
            for i in range(0, self.kernel, taps)
        )
        return jnp.asarray(out).transpose(1, 0, 2).reshape(frames, -1)


def _gelu(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=False)


def _relative(table: Array, frames: int, config: Config) -> Array:
    """WavLM's position bias: ``table [buckets, H]`` -> [H, query F, key F]."""
    offsets = jnp.arange(frames)[None, :] - jnp.arange(frames)[:, None] + frames - 1
    return table[_buckets(frames, config)].T[:, offsets]


def _buckets(frames: int, config: Config) -> np.ndarray:
    """The bucket of each distance (key − query) from −(F − 1) to F − 1: exact when near, logarithmic farther off."""
    distance = np.arange(1 - frames, frames)
    half = config.buckets // 2
    exact = half // 2
    ratio = np.log(np.maximum(np.abs(distance), 1).astype(np.float32) / np.float32(exact))
    far = exact + (ratio / np.float32(math.log(config.max_distance / exact)) * np.float32(half - exact)).astype(int)
    return half * (distance > 0) + np.where(np.abs(distance) < exact, np.abs(distance), np.minimum(far, half - 1))


# Loading

_UNUSED = (  # what pre-training leaves in a checkpoint
    "mask_emb",
    "masked_spec_embed",
    "label_embs_concat",
    "quantizer.vars",
    "quantizer.codevectors",
    *(f"{name}.{x}" for name in ("quantizer.weight_proj", "project_q", "project_hid", "final_proj")
      for x in ("weight", "bias")),
)  # fmt: skip
_FAIRSEQ = (  # Hugging Face's names as fairseq's, in this order
    (r"^feature_projection\.layer_norm\.", "layer_norm."),
    (r"^feature_projection\.projection\.", "post_extract_proj."),
    (r"conv_layers\.(\d+)\.conv\.", r"conv_layers.\1.0."),
    (r"\.pos_conv_embed\.conv\.", ".pos_conv.0."),
    (r"(encoder\.layers\.\d+)\.layer_norm\.", r"\1.self_attn_layer_norm."),
    (r"\.feed_forward\.intermediate_dense\.", ".fc1."),
    (r"\.feed_forward\.output_dense\.", ".fc2."),
    (r"\.gru_rel_pos_linear\.", ".grep_linear."),
    (r"\.gru_rel_pos_const$", ".grep_a"),
    (r"\.rel_attn_embed\.", ".relative_attention_bias."),
    (r"\.attention\.", ".self_attn."),
)


def load(
    tensors: Mapping[str, np.ndarray],
    config: Config = WAV2VEC2_BASE,
    *,
    prefix: str = "",
    also: Mapping[str, tuple[int, ...]] | None = None,
) -> tuple[PyTree, dict[str, np.ndarray]]:
    """The parameters of :class:`Encoder` from a checkpoint under fairseq's or Hugging Face's names.

    Args:
        tensors: name -> array, the whole state dict, as :func:`ports.checkpoint.read_torch` reads it.
        config: the architecture.
        prefix: what the encoder's names begin with, such as ``"wav2vec2."``.
        also: further tensors of the checkpoint, full name -> shape.

    Returns:
        The parameters, with the positional convolution's weight norm folded, and the further tensors.

    Raises:
        ValueError: a name is missing, left over or misshapen, each named as the checkpoint would name it; or a value
            is not finite. Only what pre-training leaves behind is passed over.
    """
    shapes, also = _shapes(config), also or {}
    names = {name: prefix + _name_in(tensors, prefix, name, config) for name in shapes}
    wanted = {names[name]: shape for name, shape in shapes.items()} | dict(also)
    found = strict_load(tensors, wanted, ignore=[prefix + name for name in _UNUSED])
    ours = _params({name: found[names[name]] for name in shapes}, config)
    return jax.tree.map(jnp.asarray, ours), {name: found[name] for name in also}


def _name_in(tensors: Mapping[str, np.ndarray], prefix: str, name: str, config: Config) -> str:
    """The name of a tensor in this checkpoint, the prefix left off."""
    if f"{prefix}encoder.pos_conv.0.bias" in tensors:
        for pattern, replacement in _FAIRSEQ:
            name = re.sub(pattern, replacement, name)
        norm = "2.1" if config.conv_norm == "layer" else "2"
        name = re.sub(r"conv_layers\.(\d+)\.layer_norm\.", rf"conv_layers.\1.{norm}.", name)
    for i, part in enumerate(("weight_g", "weight_v")):
        newer = name.replace(part, f"parametrizations.weight.original{i}")
        name = newer if prefix + newer in tensors else name
    return name


def _shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Every tensor that the encoder needs, under Hugging Face's names."""
    shapes: dict[str, tuple[int, ...]] = {}
    width, channels, heads = config.conv_channels, config.channels, config.heads

    def linear(name: str, inputs: int, outputs: int) -> None:
        shapes.update({f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)})

    def norm(name: str, size: int) -> None:
        shapes.update({f"{name}.weight": (size,), f"{name}.bias": (size,)})

    for i, (kernel, _) in enumerate(config.conv):
        layer = f"feature_extractor.conv_layers.{i}"
        shapes[f"{layer}.conv.weight"] = (width, width if i else 1, kernel)
        if config.conv_bias:
            shapes[f"{layer}.conv.bias"] = (width,)
        if i == 0 or config.conv_norm == "layer":
            norm(f"{layer}.layer_norm", width)
    norm("feature_projection.layer_norm", width)
    linear("feature_projection.projection", width, channels)
    position = "encoder.pos_conv_embed.conv"
    shapes[f"{position}.weight_g"] = (1, 1, config.position_kernel)
    shapes[f"{position}.weight_v"] = (channels, channels // config.position_groups, config.position_kernel)
    shapes[f"{position}.bias"] = (channels,)
    norm("encoder.layer_norm", channels)
    if config.buckets:
        shapes["encoder.layers.0.attention.rel_attn_embed.weight"] = (config.buckets, heads)
    for i in range(config.layers):
        layer = f"encoder.layers.{i}"
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            linear(f"{layer}.attention.{name}", channels, channels)
        if config.buckets:
            linear(f"{layer}.attention.gru_rel_pos_linear", channels // heads, 8)
            shapes[f"{layer}.attention.gru_rel_pos_const"] = (1, heads, 1, 1)
        norm(f"{layer}.layer_norm", channels)
        linear(f"{layer}.feed_forward.intermediate_dense", channels, config.feed_forward)
        linear(f"{layer}.feed_forward.output_dense", config.feed_forward, channels)
        norm(f"{layer}.final_layer_norm", channels)
    return shapes


def _params(tensors: Mapping[str, np.ndarray], config: Config) -> PyTree:
    """Tensors under Hugging Face's names as the parameters of :class:`Encoder`."""

    def linear(*names: str) -> dict[str, np.ndarray]:
        kernels = [tensors[f"{name}.weight"].T for name in names]
        return {
            "kernel": np.concatenate(kernels, axis=1),
            "bias": np.concatenate([tensors[f"{name}.bias"] for name in names]),
        }

    def norm(name: str) -> dict[str, np.ndarray]:
        return {"scale": tensors[f"{name}.weight"], "bias": tensors[f"{name}.bias"]}

    def layer(i: int) -> PyTree:
        scope = f"encoder.layers.{i}"
        attention = f"{scope}.attention"
        made: dict[str, PyTree] = {
            "qkv": linear(*(f"{attention}.{x}_proj" for x in "qkv")),
            "out": linear(f"{attention}.out_proj"),
            "norm1": norm(f"{scope}.layer_norm"),
            "linear1": linear(f"{scope}.feed_forward.intermediate_dense"),
            "linear2": linear(f"{scope}.feed_forward.output_dense"),
            "norm2": norm(f"{scope}.final_layer_norm"),
        }
        if config.buckets:  # the original adds up four outputs for each of two gates
            gate = linear(f"{attention}.gru_rel_pos_linear")
            made["gate"] = {name: x.reshape(*x.shape[:-1], 2, 4).sum(-1) for name, x in gate.items()}
            made["gate_scale"] = tensors[f"{attention}.gru_rel_pos_const"].reshape(-1)
        return made

    params: dict[str, PyTree] = {
        "projection_norm": norm("feature_projection.layer_norm"),
        "projection": linear("feature_projection.projection"),
        "position": _position(tensors, config),
        "norm": norm("encoder.layer_norm"),
        "layers": jax.tree.map(lambda *x: np.stack(x), *(layer(i) for i in range(config.layers))),
    }
    for i in range(len(config.conv)):
        scope = f"feature_extractor.conv_layers.{i}"
        kernel = tensors[f"{scope}.conv.weight"].transpose(2, 1, 0)
        params[f"conv{i}"] = {"kernel": kernel.reshape(-1, config.conv_channels)}
        if config.conv_bias:
            params[f"conv{i}"]["bias"] = tensors[f"{scope}.conv.bias"]
        if i == 0 or config.conv_norm == "layer":
            params[f"conv_norm{i}"] = norm(f"{scope}.layer_norm")
    if config.buckets:
        params["position_bias"] = tensors["encoder.layers.0.attention.rel_attn_embed.weight"]
    return params


def _position(tensors: Mapping[str, np.ndarray], config: Config) -> dict[str, np.ndarray]:
    """The positional convolution; its weight norm is over the first two axes: one gain a tap."""
    scope, groups = "encoder.pos_conv_embed.conv", config.position_groups
    direction = tensors[f"{scope}.weight_v"].astype(np.float64)
    weight = tensors[f"{scope}.weight_g"] * direction / np.sqrt(np.sum(direction**2, axis=(0, 1)))
    size = config.channels // groups
    kernel = weight.reshape(groups, size, size, -1).transpose(0, 3, 2, 1)  # group, tap, in, out
    return {
        "kernel": kernel.reshape(groups, -1, size).astype(np.float32),
        "bias": tensors[f"{scope}.bias"],
    }
