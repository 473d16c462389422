"""What every registered predictor, codec, embedder and encoder must keep, whoever wrote it.

The same for attackers is in test_attackers, for spaces in test_latent.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

import jaxhack as jh
from jaxhack.parallel import mapped

pytestmark = pytest.mark.quick_compilation

# Samples; of lengths that DNSMOS repeats to one window each.
SHORT, LONG, PADDED = 10240, 10880, 12800


@pytest.fixture(scope="module")
def made(request, shared):
    """A registered thing with its real weights, or a toy."""
    kind, name = request.param
    if name == "toy":
        return getattr(toys, kind)()
    absent = [w.file for w in jh.registry.weights_of(name) if not jh.weights.find(w, shared / "models")]
    if absent:
        pytest.skip(f"needs the weights {', '.join(absent)}, which are absent")
    thing = getattr(jh, kind)(name, models=shared / "models")
    assert thing.name == name, "rows would not say what to ask for"
    return thing


def everything(kind: str):
    names = ["toy", *jh.registry.names(kind)]
    made = [pytest.param((kind, name), id=name) for name in names]
    return pytest.mark.parametrize("made", made, indirect=True)


def clips() -> tuple[np.ndarray, np.ndarray]:
    """Four clips in one padded batch, ``[4, PADDED], [4]``: short, long, silent, and one sample."""
    wav = np.zeros((4, PADDED), np.float32)
    length = np.array([SHORT, LONG, SHORT, 1], np.int32)
    for i in (0, 1, 3):
        wav[i, : length[i]] = toys.speechlike(length[i] / 16000, i)
    return wav, length


@everything("predictor")
def test_predictor(made):
    predictor = made.at_rate(16000) if made.at_rate else made
    assert predictor.sample_rate == 16000
    wav, length = clips()
    traces = []

    def heads(wav, length):
        traces.append(wav.shape)
        return predictor.heads(predictor.params, wav, length)

    run = jax.jit(mapped(heads))
    batch = np.asarray(run(wav, length))
    assert batch.shape == (4, len(predictor.head_names)) and batch.dtype == np.float32
    assert np.isfinite(batch[:3]).all() and np.isnan(batch[3]).all()
    broken = wav.copy()
    broken[0, 100], broken[1, 100], broken[2, SHORT] = np.nan, np.inf, np.nan
    heard = np.asarray(run(broken, length))
    assert not np.isfinite(heard[:2]).any(), "audio that is not finite has a score"
    np.testing.assert_allclose(heard[2], batch[2], atol=1e-4, err_msg="the padding was read")
    first = len(traces)
    again = np.asarray(run(wav[::-1].copy(), length[::-1].copy()))
    assert len(traces) == first, "a second batch of the same bucket was traced again"
    np.testing.assert_allclose(again[::-1], batch, atol=1e-4)
    alone = jax.jit(predictor.heads)(predictor.params, wav[0, :SHORT], length[0])
    np.testing.assert_allclose(alone, batch[0], atol=1e-4, err_msg="padding changed the score")


@everything("predictor")
def test_predictor_gradient(made):
    predictor = made.at_rate(16000) if made.at_rate else made
    wav, length = clips()
    wav[0, 4000:8000] = 0.0  # silent frames among others
    slope = jax.grad(lambda w: predictor.score(predictor.params, w, length[0]))
    if not predictor.differentiable:
        with pytest.raises(ValueError, match="gradient"):
            slope(jnp.asarray(wav[0]))
        return
    speech, silence = np.asarray(jax.jit(mapped(slope))(wav[::2]))
    assert np.isfinite(speech).all() and np.abs(speech[:SHORT]).max() > 0
    assert not np.any(speech[SHORT:]), "padding has a say"
    assert np.isfinite(silence).all(), "a gradient on digital silence is not finite"


@everything("codec")
def test_codec(made):
    codec = made
    wav = clips()[0][:2]
    z = np.asarray(jax.jit(mapped(lambda w: codec.encode(codec.params, w)))(wav))
    frames = -(-PADDED // codec.hop)
    assert z.shape == (2, frames, codec.channels) and z.dtype == np.float32 and np.isfinite(z).all()
    out = np.asarray(jax.jit(mapped(lambda z: codec.decode(codec.params, z)))(z))
    assert out.shape == (2, frames * codec.hop) and np.isfinite(out).all()
    short = np.asarray(jax.jit(codec.encode)(codec.params, wav[0, :SHORT]))
    np.testing.assert_allclose(z[0, : SHORT // codec.hop], short, rtol=1e-4, atol=1e-4)
    alone = np.asarray(jax.jit(codec.decode)(codec.params, short))
    np.testing.assert_allclose(out[0, : len(alone)], alone, atol=1e-4, err_msg="padding changed the audio")
    slope = jax.jit(jax.grad(lambda z: jnp.sum(codec.decode(codec.params, z) ** 2)))(jnp.asarray(short))
    assert np.isfinite(slope).all() and np.abs(slope).max() > 0


@everything("codec")
def test_codes_stand_for_the_quantised_latent(made):
    codec, stages = made, made.stages[0]
    z = jnp.asarray(np.random.default_rng(0).normal(size=(6, codec.channels)), jnp.float32)
    index = np.asarray(jax.jit(lambda p, z: codec.codes(p, z, stages))(codec.params, z))
    assert index.shape == (6, stages) and index.dtype == np.int32
    assert index.min() >= 0 and index.max() < codec.codebook_size
    z_q, back = jax.vjp(jax.jit(lambda z: codec.quantise(codec.params, z, stages)), z)
    found = np.asarray(jax.jit(codec.dequantise)(codec.params, index))
    np.testing.assert_allclose(z_q[:, : found.shape[1]], found, atol=1e-5)
    np.testing.assert_array_equal(z_q[:, found.shape[1] :], z[:, found.shape[1] :])
    np.testing.assert_array_equal(back(z)[0], z, err_msg="the gradient does not pass straight through")
    highest = jnp.full((6, stages), codec.codebook_size - 1)
    assert np.isfinite(codec.dequantise(codec.params, highest)).all()


@everything("codec")
def test_codec_is_aligned(made):
    """The delay that the codec states is the lag of the best cross-correlation."""
    codec = made
    wav = jnp.asarray(toys.speechlike(2.0, 3)) if codec.name == "toy" else _speech(codec.sample_rate)
    out = np.asarray(jax.jit(lambda p, w: codec.decode(p, codec.encode(p, w)))(codec.params, wav))[: len(wav)]
    lags = range(-40, 41)
    inner = slice(100, len(wav) - 100)
    scores = [float(np.dot(np.roll(out, -lag)[inner], np.asarray(wav)[inner])) for lag in lags]
    assert list(lags)[int(np.argmax(scores))] == codec.delay


@everything("embedder")
def test_embedder(made):
    embedder = made
    wav, length = clips()
    wav = np.pad(wav, ((0, 0), (0, PADDED)))  # an encoder may hear seconds at a time
    batch = np.asarray(jax.jit(mapped(lambda w, n: embedder.embed(embedder.params, w, n)))(wav, length))
    assert batch.shape == (4, embedder.size) and batch.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(batch[:3], axis=1), 1.0, atol=1e-5)
    assert np.isnan(batch[3]).all(), "one sample has an embedding"
    alone = jax.jit(embedder.embed)(embedder.params, wav[0, :SHORT], length[0])
    np.testing.assert_allclose(alone, batch[0], atol=1e-5, err_msg="padding changed the embedding")
    first = batch[0]
    slope = jax.jit(mapped(jax.grad(lambda w: jnp.dot(embedder.embed(embedder.params, w, SHORT), 1.0 - first))))
    speech, silence = np.asarray(slope(wav[::2, :SHORT]))
    assert np.isfinite(speech).all() and np.abs(speech).max() > 0
    assert np.isfinite(silence).all(), "a gradient on digital silence is not finite"


@everything("encoder")
def test_encoder(made):
    encoder = made
    wav, length = clips()
    batch, frames = jax.jit(mapped(lambda w, n: encoder.features(encoder.params, w, n)))(wav, length)
    assert batch.shape[0] == 4 and batch.shape[2] == encoder.size and batch.dtype == np.float32
    assert np.isfinite(np.asarray(batch[:3])).all() and batch.shape[1] >= frames[1] > frames[0] == frames[2] > 0
    assert frames[3] == 0, "one sample has a frame"
    alone, count = jax.jit(encoder.features)(encoder.params, wav[0, :SHORT], length[0])
    assert count == frames[0]
    np.testing.assert_allclose(alone[:count], batch[0, :count], atol=1e-4, err_msg="padding changed the frames")

    if encoder.name.removesuffix("-frames") in jh.registry.names("predictor"):
        return  # its gradients are those of the predictor that pools the frames

    def mean(w):
        x, n = encoder.features(encoder.params, w, SHORT)
        return jnp.mean(x[: SHORT // encoder.min_samples, 0]) + 0.0 * n

    speech, silence = np.asarray(jax.jit(mapped(jax.grad(mean)))(wav[::2, :SHORT]))
    assert np.isfinite(speech).all() and np.abs(speech).max() > 0
    assert np.isfinite(silence).all(), "a gradient on digital silence is not finite"


def _speech(rate: int) -> jnp.ndarray:
    from conftest import SHARED

    file = SHARED / "speech" / "de_229_pv_leopard_de_test_de.flac"
    return jnp.asarray(jh.audio.read(file, sample_rate=rate).wav[: 2 * rate])
