"""SSL-MOS: a fine-tuned wav2vec 2.0 base, the mean of its last layer over time, and a linear map.

E. Cooper, W.-C. Huang, T. Toda, J. Yamagishi, "Generalization Ability of MOS Prediction Networks", ICASSP 2022;
github.com/nii-yamagishilab/mos-finetune-ssl, whose published checkpoint is ``ckpt_w2vsmall`` in
zenodo.org/record/6785056 (BSD-3-Clause, derived from fairseq's wav2vec 2.0, MIT).

No hash of that file is public, and nothing is fetched that cannot be checked: whoever has it brings it. The
checkpoint's names follow from the authors' code and fairseq's; the file itself was not at hand when this was written.

The authors' code gives the network no lengths, so in a batch its scores depend on the padding; here they are those
of each clip alone, as the authors' inference scripts compute them. The waveform is taken as it is; the authors level
theirs beforehand (sv56).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from jaxhack.types import Array, Predictor, PyTree, Weight
from ports.checkpoint import read_torch
from ports.transformer import dot
from ports.wav2vec2 import SAMPLE_RATE, WAV2VEC2_BASE, Config, Encoder, load, mean_over_frames, min_samples
from ports.weight_file import weight_file

FILE = "ckpt_w2vsmall"
SSL_MOS_WEIGHTS = (
    Weight(FILE, "ssl_mos", None, None, None, "BSD-3-Clause", "zenodo.org/record/6785056, ckpt_w2vsmall.tar.gz"),
)


def ssl_mos(paths: Mapping[str, Path], *, config: Config = WAV2VEC2_BASE, dtype: Any = jnp.float32) -> Predictor:
    """SSL-MOS: one head, mos, of ``wav [T]`` at 16 kHz, −1 … 1; unbounded.

    Args:
        paths: where ``ckpt_w2vsmall`` is, or another checkpoint of the authors' code under that name.
        config: the encoder's architecture: ``wav2vec2.WAV2VEC2_LARGE_LV60`` for one of theirs on XLSR-53.
        dtype: of the products' factors, see :class:`ports.wav2vec2.Encoder`.

    Returns:
        A differentiable predictor; NaN below 400 samples, the encoder's first frame.

    Raises:
        ValueError: no such file, not this model's weights, down to a tensor's name; or a value is not finite.
    """
    path, digest = weight_file("ssl-mos", FILE, paths)
    net, shortest = Encoder(config, dtype), min_samples(config)
    shapes = {"output_layer.weight": (1, config.channels), "output_layer.bias": (1,)}
    encoder, output = load(read_torch(path), config, prefix="ssl_model.", also=shapes)
    kernel, bias = (jnp.asarray(output[name]) for name in shapes)

    def heads(params: PyTree, wav: Array, length: Array) -> Array:
        last = jnp.asarray(net.apply({"params": params["encoder"]}, wav, length))[-1]
        score = dot(mean_over_frames(config, last, length), params["output"]["kernel"]) + params["output"]["bias"]
        return jnp.where(length >= shortest, score, jnp.nan)

    return Predictor(
        name="ssl-mos",
        sample_rate=SAMPLE_RATE,
        params={"encoder": encoder, "output": {"kernel": kernel.T, "bias": bias}},
        heads=heads,
        head_names=("mos",),
        scale=(1.0, 5.0),
        differentiable=True,
        min_samples=shortest,
        weights={FILE: digest},
    )
