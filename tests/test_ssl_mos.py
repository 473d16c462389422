"""SSL-MOS and UTMOS22: equal to a plain PyTorch assembly of the published parts; strict about their weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity import largest
from test_wav2vec2 import PAIRS, SMALL, hidden_states, hugging_face, noise, pad, state

from benchmarks import official
from ports import utmos as utmos_port
from ports.ssl_mos import FILE, ssl_mos
from ports.utmos import UTMOS_WEIGHTS, Lstm, utmos
from ports.wav2vec2 import Encoder

UTMOS_FILE = UTMOS_WEIGHTS[0].file
HIDDEN, PROJECTION = 24, 40
CONFIG = SMALL._replace(layers=1, conv=((10, 5), (3, 2)))
SHORTEST = 20  # samples: the first frame of CONFIG
LENGTH = 2500


def fairseq(prefix):
    """The encoder's random tensors under fairseq's names."""
    theirs = {ours: name for name, ours in PAIRS.items()}
    return {f"{prefix}{theirs[name]}": x for name, x in state(CONFIG).items()}


def random_tensors(shapes):
    random = np.random.default_rng(3)
    return {name: random.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}


SSL_TENSORS = fairseq("ssl_model.") | random_tensors({"output_layer.weight": (1, 32), "output_layer.bias": (1,)})
UTMOS_TENSORS = fairseq("wav2vec2.") | random_tensors(utmos_port._shapes(32, HIDDEN, PROJECTION))
FACTORIES = {
    "ssl-mos": (FILE, SSL_TENSORS, lambda paths, **more: ssl_mos(paths, config=CONFIG, **more)),
    "utmos": (
        UTMOS_FILE,
        UTMOS_TENSORS,
        lambda paths, **more: utmos(paths, config=CONFIG, hidden=HIDDEN, projection=PROJECTION, **more),
    ),
}
each = pytest.mark.parametrize("name", FACTORIES)


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """``(name, altered tensors, options) -> predictor`` from a checkpoint as PyTorch writes it."""
    torch = pytest.importorskip("torch")

    def made(name, tensors=None, **more):
        file, good, factory = FACTORIES[name]
        path = tmp_path_factory.mktemp("weights") / file
        torch.save({k: torch.tensor(v) for k, v in (tensors or good).items()}, path)
        return factory({file: path}, **more)

    return made


@pytest.fixture(scope="module")
def features():
    """The official encoder's last hidden state of the clip alone [1, F, 32], a torch tensor."""
    import torch

    model = hugging_face("Wav2Vec2", CONFIG, state(CONFIG))
    return torch.tensor(hidden_states(model, noise(LENGTH))[-1:])


def score(predictor, wav=None, size=3000, length=LENGTH):
    wav = noise(LENGTH) if wav is None else wav
    return np.asarray(jax.jit(predictor.heads)(predictor.params, pad(wav, size), jnp.int32(length)))


# Parity


@pytest.mark.quick_compilation
def test_ssl_mos_equals_its_parts(make, features, parity):
    import torch

    head = official.ssl_mos_head(32)
    head.load_state_dict({name: torch.tensor(SSL_TENSORS[name]) for name in head.state_dict()})
    parity("ssl-mos", "score, small", largest(score(make("ssl-mos")), head.score(features)), 2e-5, "MOS")


@pytest.mark.quick_compilation
def test_utmos_equals_its_parts_stage_by_stage(make, features, parity):
    import torch

    head = official.utmos_head(32, HIDDEN, PROJECTION)
    head.load_state_dict({name: torch.tensor(UTMOS_TENSORS[name]) for name in head.state_dict()})
    frames = features.shape[1]
    with torch.no_grad():
        inputs = head.inputs(features)
        states = head.blstm(inputs)[0]
        scores = head.projection(states)

    predictor = make("utmos")
    params, valid = predictor.params, jnp.arange(frames + 7) < frames
    encoded = Encoder(CONFIG).apply({"params": params["encoder"]}, pad(noise(LENGTH), 3000), jnp.int32(LENGTH))
    parity("utmos", "encoder, small", largest(encoded[-1, :frames], features[0]), 2e-5)
    padded = jnp.pad(jnp.asarray(inputs[0].numpy()), ((0, 7), (0, 0)), constant_values=0.5)
    for i, direction in enumerate(("forward", "backward")):
        got = Lstm(HIDDEN, reverse=direction == "backward").apply({"params": params[direction]}, padded, valid)
        expected_states = states[0, :, i * HIDDEN : (i + 1) * HIDDEN]
        parity("utmos", "LSTM, small", largest(got[:frames], expected_states), 1e-5)
    net = utmos_port.Utmos(CONFIG, HIDDEN, PROJECTION)
    got = net.apply({"params": params}, pad(noise(LENGTH), 3000), jnp.int32(LENGTH))
    parity("utmos", "score of every frame, small", largest(got[:frames], scores[0]), 2e-5)
    parity("utmos", "score, small", largest(score(predictor), head.score(features)), 2e-5, "MOS")


@each
@pytest.mark.quick_compilation
def test_bfloat16_is_near(make, name):
    """Change of the score with random weights: 0.005 (SSL-MOS) and 0.0012 (UTMOS)."""
    got, expected = score(make(name, dtype=jnp.bfloat16)), score(make(name))
    assert got.dtype == np.float32
    assert 0 < abs(got[0] - expected[0]) < 0.02


# One utterance, any padding


@each
@pytest.mark.quick_compilation
def test_padding_changes_nothing(make, name):
    predictor = make(name)
    assert (predictor.name, predictor.head_names, predictor.sample_rate) == (name, ("mos",), 16000)
    alone = score(predictor, size=LENGTH)
    batch = jnp.stack([pad(noise(LENGTH), 3000), pad(noise(3000, 5), 3000), pad(noise(SHORTEST - 1), 3000)])
    lengths = jnp.asarray([LENGTH, 3000, SHORTEST - 1], jnp.int32)
    run = jax.jit(jax.vmap(predictor.heads, (None, 0, 0)))
    together = run(predictor.params, batch, lengths)
    np.testing.assert_allclose(together[0], alone, atol=1e-5)
    assert np.isfinite(together[:2]).all() and np.isnan(together[2]).all()
    dirty = run(predictor.params, jnp.where(batch == 0, 0.3, batch), lengths)
    np.testing.assert_allclose(dirty[:2], together[:2], atol=1e-5)
    assert predictor.min_samples == SHORTEST


@each
@pytest.mark.quick_compilation
def test_gradient_is_finite_and_ends_with_the_clip(make, name):
    predictor = make(name)
    slope = jax.jit(jax.grad(predictor.score, argnums=1))
    for wav in (noise(3000), np.zeros(3000, np.float32)):
        gradient = slope(predictor.params, jnp.asarray(wav), jnp.int32(LENGTH))
        assert np.isfinite(gradient).all() and not np.any(gradient[LENGTH:])
        assert np.any(gradient) or not np.any(wav)


# Weights


@each
def test_weights_are_read_strictly(make, name):
    good = FACTORIES[name][1]
    own = "output_layer.bias" if name == "ssl-mos" else "projection.2.bias"
    prefix = "ssl_model." if name == "ssl-mos" else "wav2vec2."
    make(name, good | {f"{prefix}mask_emb": np.zeros(32, np.float32)})
    for absent in (own, f"{prefix}layer_norm.bias"):
        with pytest.raises(ValueError, match=rf"missing {absent}\."):
            make(name, {k: v for k, v in good.items() if k != absent})
    with pytest.raises(ValueError, match=r"left over other\.bias\."):
        make(name, good | {"other.bias": np.zeros(3, np.float32)})
    with pytest.raises(ValueError, match=rf"misshapen {own} \(7,\), expected \(1,\)"):
        make(name, good | {own: np.zeros(7, np.float32)})
