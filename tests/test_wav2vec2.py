"""wav2vec 2.0, HuBERT and WavLM: equal to Hugging Face's modules, whatever the padding; strict about weights."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import official
from ports import wav2vec2 as port
from ports.wav2vec2 import Config, Encoder, frame_count, load, min_samples

SMALL = Config(
    channels=32,
    layers=2,
    heads=4,
    feed_forward=48,
    conv_channels=16,
    conv=((10, 5), (3, 2), (2, 2)),
    position_kernel=16,
    position_groups=4,
)
STABLE = SMALL._replace(conv_norm="layer", conv_bias=True, norm_first=True)
VARIANTS = {  # name -> the module of transformers that it is held against, its configuration
    "wav2vec2": ("Wav2Vec2", SMALL),
    "wav2vec2-stable": ("Wav2Vec2", STABLE),
    "hubert": ("Hubert", SMALL),
    "wavlm": ("WavLM", SMALL._replace(buckets=32, max_distance=20)),
    "wavlm-stable": ("WavLM", STABLE._replace(conv_bias=False, buckets=32, max_distance=20)),
}
SAMPLES, PADDED = 2500, 3000
each = pytest.mark.parametrize("name", VARIANTS)


def state(config):
    """A state dict of random tensors under Hugging Face's names, the same everywhere."""
    random = np.random.default_rng(0)
    made = {}
    for name, shape in port._shapes(config).items():
        centre = 1.0 if "norm.weight" in name or name.endswith(("weight_g", "const")) else 0.0
        made[name] = random.normal(centre, 0.2, shape).astype(np.float32)
    return made


@functools.cache
def params_of(config):
    return load(state(config), config)[0]


@functools.cache
def runner(config, dtype=jnp.float32):
    run = jax.jit(Encoder(config, dtype).apply)
    return lambda wav, length: np.asarray(run({"params": params_of(config)}, wav, jnp.int32(length)))


def noise(samples=SAMPLES, seed=1):
    wav = np.random.default_rng(seed).normal(0, 0.1, samples).astype(np.float32)
    wav[: samples // 3] *= 0.1  # statistics over time matter
    return wav


def pad(wav, size=PADDED):
    return jnp.asarray(np.pad(wav, (0, size - len(wav))))


def hugging_face(kind, config, tensors=None):
    """Their module in evaluation mode, with ``tensors`` or its own initialisation."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers", reason="needs the official modules: pip install transformers")
    return official.speech_encoder(kind, config, tensors)


def hidden_states(model, wav):
    """Every hidden state; the last one is the module's output."""
    import torch

    with torch.no_grad():
        out = model(torch.tensor(wav)[None], output_hidden_states=True)
    return np.stack([x[0].numpy() for x in (*out.hidden_states[:-1], out.last_hidden_state)])


def difference(got, expected):
    """Largest difference of any hidden state, relative to the largest value in it."""
    assert got.shape == expected.shape
    return max(np.abs(a - b).max() / np.abs(b).max() for a, b in zip(got, expected, strict=True))


# Parity


@each
@pytest.mark.quick_compilation
def test_every_hidden_state_equals_the_official_one(name, parity):
    """Their clip alone, ours padded: parity and independence of padding in one."""
    kind, config = VARIANTS[name]
    wav = noise()
    expected = hidden_states(hugging_face(kind, config, state(config)), wav)
    got = runner(config)(pad(wav), SAMPLES)[:, : expected.shape[1]]
    parity(f"wav2vec2 ({name})", "every hidden state, small", difference(got, expected), 1e-5, "relative")
    assert np.abs(expected[-1] - expected[0]).max() > 0.5  # the layers do something


@each
@pytest.mark.quick_compilation
def test_known_states(name):
    """States of the official modules, so that the port is held to them where they are absent."""
    got = runner(VARIANTS[name][1])(pad(noise()), SAMPLES)
    np.testing.assert_allclose(got[-1, (0, 50, 100), 3], KNOWN[name], rtol=1e-4, atol=1e-5)


KNOWN = {
    "wav2vec2": [-0.268495, 0.794155, 0.580668],
    "wav2vec2-stable": [0.99204, 1.03551, 1.06157],
    "hubert": [-0.268495, 0.794155, 0.580668],
    "wavlm": [-0.595877, 0.305172, -0.0672368],
    "wavlm-stable": [-0.124077, -1.0409, -0.897384],
}


@pytest.mark.parametrize(
    ("kind", "size", "config"),
    [
        ("Wav2Vec2", "base", port.WAV2VEC2_BASE),
        ("Wav2Vec2", "large, norm of every feature", port.WAV2VEC2_LARGE_LV60),
        ("Hubert", "base", port.HUBERT_BASE),
        ("WavLM", "base", port.WAVLM_BASE),
    ],
)
@pytest.mark.quick_compilation
def test_full_size_equals_the_official_one(kind, size, config, parity):
    """With the initialisation of the original."""
    model, wav = hugging_face(kind, config), noise(8000)
    expected = hidden_states(model, wav)
    params, _ = load({k: v.numpy() for k, v in model.state_dict().items()}, config)
    del model  # the largest has 1.3 GB
    got = np.asarray(jax.jit(Encoder(config).apply)({"params": params}, wav, jnp.int32(len(wav))))
    assert got.shape == (config.layers + 1, 24, config.channels)
    error = difference(got, expected)
    parity(f"wav2vec2 ({kind.lower()})", f"every hidden state, {size}", error, 1e-4, "relative")


def test_position_buckets_equal_the_official_ones():
    torch = pytest.importorskip("torch")
    library = pytest.importorskip("transformers.models.wavlm.modeling_wavlm", reason="needs transformers")
    attention = library.WavLMAttention(8, 2)
    expected = attention._relative_positions_bucket(torch.arange(-2999, 3000)).numpy()
    np.testing.assert_array_equal(port._buckets(3000, port.WAVLM_BASE), expected)


@pytest.mark.quick_compilation
def test_bfloat16_is_near():
    """Largest error of a state against its largest value: 1.3 % here; 1.2 % of the base model on 2 s of speech."""
    run, exact = runner(SMALL, jnp.bfloat16), runner(SMALL)
    frames = int(frame_count(SMALL, SAMPLES))
    got, expected = (fn(pad(noise()), SAMPLES)[:, :frames] for fn in (run, exact))
    assert got.dtype == np.float32
    assert 1e-3 < difference(got, expected) < 0.03


# One utterance, any padding


@pytest.mark.parametrize("config", [SMALL, STABLE], ids=["group", "layer"])
@pytest.mark.quick_compilation
def test_padding_changes_nothing(config):
    clips = [noise(), noise(900, seed=2), noise(PADDED, seed=3)]
    lengths = jnp.asarray([len(clip) for clip in clips], jnp.int32)
    run = jax.jit(jax.vmap(lambda wav, n: Encoder(config).apply({"params": params_of(config)}, wav, n)))
    together = run(jnp.stack([pad(clip) for clip in clips]), lengths)
    dirty = run(jnp.stack([jnp.where(pad(clip) == 0, 0.3, pad(clip)) for clip in clips]), lengths)
    for i, clip in enumerate(clips[:2]):
        frames = int(frame_count(config, len(clip)))
        alone = runner(config)(clip, len(clip)) if i == 0 else runner(config)(pad(clip), len(clip))[:, :frames]
        assert alone.shape[1] == frames
        np.testing.assert_allclose(together[i, :, :frames], alone, atol=2e-5)
        np.testing.assert_allclose(dirty[i, :, :frames], alone, atol=2e-5)


def test_frame_counts():
    assert (min_samples(port.WAV2VEC2_BASE), min_samples(SMALL)) == (400, 30)
    counts = [int(frame_count(port.WAV2VEC2_BASE, np.int32(n))) for n in (0, 1, 399, 400, 719, 720, 48000)]
    assert counts == [0, 0, 0, 1, 1, 2, 149]
    for samples in (0, 1, 30, 1000):
        shape = jax.eval_shape(Encoder(SMALL).apply, {"params": params_of(SMALL)}, jnp.zeros(samples), jnp.int32(0))
        assert shape.shape == (3, max(int(frame_count(SMALL, samples)), 1), 32)


@pytest.mark.parametrize("config", [SMALL, VARIANTS["wavlm-stable"][1]], ids=["group", "layer"])
@pytest.mark.quick_compilation
def test_gradient_is_finite_and_ends_with_the_clip(config):
    def loss(wav, length):
        states = Encoder(config).apply({"params": params_of(config)}, wav, length)
        return port.mean_over_frames(config, states[-1] ** 2, length).sum()

    slope = jax.jit(jax.grad(loss))
    for wav, length in ((noise(), 2000), (np.zeros(SAMPLES, np.float32), SAMPLES), (noise(), 29)):
        gradient = slope(jnp.asarray(wav), jnp.int32(length))
        assert np.isfinite(gradient).all() and not np.any(gradient[length:])
        assert np.any(gradient) == (length >= min_samples(config))


# Weights

PAIRS = {  # fairseq's names of an encoder of one layer -> Hugging Face's
    "feature_extractor.conv_layers.0.0.weight": "feature_extractor.conv_layers.0.conv.weight",
    "feature_extractor.conv_layers.0.2.weight": "feature_extractor.conv_layers.0.layer_norm.weight",
    "feature_extractor.conv_layers.0.2.bias": "feature_extractor.conv_layers.0.layer_norm.bias",
    "feature_extractor.conv_layers.1.0.weight": "feature_extractor.conv_layers.1.conv.weight",
    "layer_norm.weight": "feature_projection.layer_norm.weight",
    "layer_norm.bias": "feature_projection.layer_norm.bias",
    "post_extract_proj.weight": "feature_projection.projection.weight",
    "post_extract_proj.bias": "feature_projection.projection.bias",
    "encoder.pos_conv.0.weight_g": "encoder.pos_conv_embed.conv.weight_g",
    "encoder.pos_conv.0.weight_v": "encoder.pos_conv_embed.conv.weight_v",
    "encoder.pos_conv.0.bias": "encoder.pos_conv_embed.conv.bias",
    "encoder.layer_norm.weight": "encoder.layer_norm.weight",
    "encoder.layer_norm.bias": "encoder.layer_norm.bias",
    **{
        f"encoder.layers.0.{theirs}.{x}": f"encoder.layers.0.{ours}.{x}"
        for theirs, ours in (
            ("self_attn.k_proj", "attention.k_proj"),
            ("self_attn.v_proj", "attention.v_proj"),
            ("self_attn.q_proj", "attention.q_proj"),
            ("self_attn.out_proj", "attention.out_proj"),
            ("self_attn.grep_linear", "attention.gru_rel_pos_linear"),
            ("self_attn_layer_norm", "layer_norm"),
            ("fc1", "feed_forward.intermediate_dense"),
            ("fc2", "feed_forward.output_dense"),
            ("final_layer_norm", "final_layer_norm"),
        )
        for x in ("weight", "bias")
    },
    "encoder.layers.0.self_attn.grep_a": "encoder.layers.0.attention.gru_rel_pos_const",
    "encoder.layers.0.self_attn.relative_attention_bias.weight": "encoder.layers.0.attention.rel_attn_embed.weight",
}
ONE = SMALL._replace(layers=1, conv=((10, 5), (3, 2)), buckets=32)


def equal(a, b):
    return jax.tree.all(jax.tree.map(lambda x, y: np.array_equal(x, y), a, b))


def test_the_names_of_both_libraries_load():
    tensors = state(ONE)
    assert sorted(PAIRS.values()) == sorted(tensors)
    expected, _ = load(tensors, ONE)
    fairseq = {f"w2v.{theirs}": tensors[ours] for theirs, ours in PAIRS.items()}
    pretraining = {"w2v.mask_emb": np.zeros(32), "w2v.quantizer.vars": np.zeros((1, 640, 8))}
    got, also = load(fairseq | pretraining | {"top": np.ones(3)}, ONE, prefix="w2v.", also={"top": (3,)})
    assert equal(got, expected) and also["top"].tolist() == [1, 1, 1]
    weights = "encoder.pos_conv_embed.conv.parametrizations.weight.original"
    newer = {k.replace("encoder.pos_conv_embed.conv.weight_g", f"{weights}0"): v for k, v in tensors.items()}
    newer = {k.replace("encoder.pos_conv_embed.conv.weight_v", f"{weights}1"): v for k, v in newer.items()}
    assert equal(load(newer, ONE)[0], expected)
    shapes = jax.eval_shape(Encoder(ONE).init, jax.random.key(0), jnp.zeros(4000), jnp.int32(4000))["params"]
    assert jax.tree.map(jnp.shape, expected) == jax.tree.map(jnp.shape, shapes)
    layered = STABLE._replace(layers=1, conv=ONE.conv)
    renamed = {}
    for ours, x in state(layered).items():
        theirs = {v: k for k, v in PAIRS.items()}.get(ours, ours)
        part = ours.split(".")
        if "conv_layers" in ours:
            inner = "0" if part[3] == "conv" else "2.1"
            theirs = f"feature_extractor.conv_layers.{part[2]}.{inner}.{part[4]}"
        renamed[theirs] = x
    assert equal(load(renamed, layered)[0], load(state(layered), layered)[0])


def test_weights_are_read_strictly():
    good = {theirs: state(ONE)[ours] for theirs, ours in PAIRS.items()}
    bias = "encoder.layers.0.fc1.bias"
    with pytest.raises(ValueError, match=r"missing encoder\.layers\.0\.fc1\.bias\."):
        load({k: v for k, v in good.items() if k != bias}, ONE)
    with pytest.raises(ValueError, match=r"left over encoder\.layers\.1\.fc1\.bias\."):
        load(good | {"encoder.layers.1.fc1.bias": good[bias]}, ONE)
    with pytest.raises(ValueError, match=r"misshapen encoder\.layers\.0\.fc1\.bias \(47,\), expected \(48,\)"):
        load(good | {bias: good[bias][1:]}, ONE)
    with pytest.raises(ValueError, match=r"not finite in encoder\.layers\.0\.fc1\.bias"):
        load(good | {bias: np.full(48, np.nan, np.float32)}, ONE)
