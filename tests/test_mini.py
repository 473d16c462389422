"""The shipped codec: transforms against plain loops, strict loading, causality, quantiser, gradients, quality.

Weights from a fixed key show the mechanics; the last tests need the shipped ones and real speech.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from flax import serialization
from rounding import moved

import jaxhack as jh
from ports import mini

pytestmark = pytest.mark.quick_compilation


@pytest.fixture(scope="module")
def params():
    keys = jax.random.split(jax.random.key(0), 3)
    return {
        "encoder": jax.jit(mini.Encoder().init)(keys[0], jnp.zeros(mini.HOP))["params"],
        "decoder": jax.jit(mini.Decoder().init)(keys[1], jnp.zeros((1, mini.CHANNELS)))["params"],
        "codebooks": jax.random.normal(keys[2], (mini.STAGES[-1], mini.ENTRIES, mini.CHANNELS)) / 4,
    }


@pytest.fixture(scope="module")
def speech():
    return jnp.asarray(toys.speechlike(1.0, 5))


def test_linear_channels_are_a_transform_that_inverts_itself(params, speech):
    """With every coefficient kept, overlapped windows of the transform give the waveform back."""
    time, k = np.arange(mini.WINDOW)[:, None], np.arange(mini.HOP)
    window = np.sin(np.pi * (time + 0.5) / mini.WINDOW)
    basis = np.sqrt(2 / mini.HOP) * window * np.cos(np.pi / mini.HOP * (time + 0.5 + mini.HOP / 2) * (k + 0.5))
    np.testing.assert_allclose(mini._MDCT, basis[:, : mini.LINEAR], atol=1e-6)
    frames = mini._frames(speech, mini.HOP)
    padded = np.pad(speech, (0, mini.WINDOW))
    np.testing.assert_array_equal(frames[7], padded[7 * mini.HOP : 7 * mini.HOP + mini.WINDOW])
    back = mini._overlapped(frames @ basis.astype(np.float32) @ basis.T.astype(np.float32), mini.HOP)
    np.testing.assert_allclose(back[mini.HOP :], speech[mini.HOP :], atol=1e-5)
    z = mini.encode(params, speech)[:, : mini.LINEAR]
    np.testing.assert_allclose(np.sinh(z) * mini.QUIET, frames @ mini._MDCT, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("hop", [mini.HOP, mini.STEP])
def test_overlapping_is_a_plain_sum(hop):
    frames = np.random.default_rng(0).normal(size=(9, mini.WINDOW)).astype(np.float32)
    expected = np.zeros(9 * hop + mini.WINDOW)
    for i, frame in enumerate(frames):
        expected[i * hop : i * hop + mini.WINDOW] += frame
    np.testing.assert_allclose(mini._overlapped(jnp.asarray(frames), hop), expected[: 9 * hop], atol=1e-5)


def test_latent_hears_ahead_only_as_far_as_stated(params, speech):
    """Frame n sees the waveform up to 30 ms after its own 20 ms; waveform frame n is made of latents up to n."""
    at = 20
    end = (at + 1) * mini.HOP + mini.HOP + mini.STEP
    encode, decode = jax.jit(mini.encode), jax.jit(mini.decode)
    z = encode(params, speech)
    later, last = encode(params, speech.at[end:].add(0.3)), encode(params, speech.at[end - 1].add(0.3))
    assert np.abs(later - z)[: at + 1].max() < 1e-5
    assert np.abs(last - z)[at].max() > 1e-6
    moved = decode(params, z.at[at:].add(1.0)) - decode(params, z)
    assert np.abs(moved[: at * mini.HOP]).max() == 0 < np.abs(moved[at * mini.HOP :]).max()


def test_quantiser_takes_the_nearest_entry_of_each_stage(params, speech):
    z = mini.encode(params, speech)
    rest, books = np.asarray(z, np.float64), np.asarray(params["codebooks"], np.float64)
    for stage in range(1, 4):
        nearest = np.argmin(np.sum((rest[:, None] - books[stage - 1]) ** 2, axis=-1), axis=1)
        rest = rest - books[stage - 1][nearest]
        np.testing.assert_allclose(mini.codec(params).quantise(params, z, stage), z - rest, atol=1e-5)
    slope = jax.grad(lambda z: jnp.sum(mini.codec(params).quantise(params, z, 16) * 3))(z)
    np.testing.assert_array_equal(slope, np.full(z.shape, 3.0))


@pytest.mark.parametrize("stages", [0, 65])
def test_quantiser_refuses_other_numbers_of_stages(params, stages):
    with pytest.raises(ValueError, match="from 1 to 64"):
        mini.codec(params).quantise(params, jnp.zeros((2, mini.CHANNELS)), stages)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        ("encode", jnp.zeros((2, 320))),
        ("encode", jnp.zeros(0)),
        ("encode", jnp.zeros(320, jnp.int32)),
        ("decode", jnp.zeros((2, 63))),
        ("decode", jnp.zeros((0, 64))),
        ("decode", jnp.zeros(64)),
    ],
)
def test_wrong_shapes_are_one_sentence(params, call, argument):
    with pytest.raises(ValueError, match=f"{call} takes"):
        getattr(mini, call)(params, argument)


def test_extreme_latents_stay_finite(params):
    """A latent is unbounded: a hundred deviations off, power and gradient are finite."""
    params = params | {"decoder": params["decoder"] | {"deviation": jnp.full(mini.LINEAR, 3.0)}}
    power = jax.jit(jax.value_and_grad(lambda z: jnp.mean(jnp.square(mini.decode(params, z)))))
    for value in (0.0, 10.0, -10.0, 100.0, -100.0):
        wav, slope = power(jnp.full((5, mini.CHANNELS), value))
        assert np.isfinite(wav) and np.isfinite(slope).all()


def test_weights_survive_the_file(params, tmp_path):
    path = tmp_path / "mini.msgpack"
    path.write_bytes(mini.pack(params))
    loaded = mini.unpack(path)
    assert jax.tree.structure(loaded) == jax.tree.structure(params)
    for a, b in zip(jax.tree.leaves(loaded), jax.tree.leaves(params), strict=True):
        assert a.dtype == jnp.float32
        np.testing.assert_array_equal(a, np.asarray(b, np.float16).astype(np.float32))
    made = mini.mini({"mini.msgpack": path})
    assert (made.name, made.sample_rate, made.hop, made.channels, made.delay) == ("mini", 16000, 320, 64, 0)
    assert list(made.weights) == ["mini.msgpack"]


def _spoilt(params, how):
    tree = serialization.msgpack_restore(mini.pack(params))
    if how == "missing":
        del tree["decoder"]["up"]["bias"]
    elif how == "left over":
        tree["decoder"]["extra"] = np.zeros(3, np.float16)
    elif how == "shape":
        tree["encoder"]["in"]["kernel"] = tree["encoder"]["in"]["kernel"][1:]
    elif how == "finite":
        tree["codebooks"] = np.full_like(tree["codebooks"], np.nan)
    elif how == "float64":
        tree["codebooks"] = tree["codebooks"].astype(np.float64)
    elif how == "deviation":
        tree["encoder"]["deviation"] = np.arange(mini.LINEAR, dtype=np.float16)
    elif how == "flat":
        tree |= {f"encoder.{name}": leaf for name, leaf in tree.pop("encoder").items()}
    elif how == "empty":
        tree["decoder"]["nothing"] = {}
    elif how == "no tree":
        tree = [1, 2]
    elif how == "text":
        tree["codebooks"] = "none"
    return serialization.msgpack_serialize(tree)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", r"decoder\.up\.bias \[448\] is missing"),
        ("left over", r"decoder\.extra is left over"),
        ("shape", r"encoder\.in\.kernel has shape \[641, 160\], expected \[642, 160\]"),
        ("finite", "codebooks is not made of finite float16 numbers"),
        ("float64", "codebooks is not made of finite float16 numbers"),
        ("deviation", r"encoder\.deviation is not above zero"),
        ("flat", "nested in another way"),
        ("empty", "nested in another way"),
        ("no tree", "does not hold the expected weights"),
        ("text", "codebooks has shape"),
    ],
)
def test_foreign_weights_are_refused_by_name(params, tmp_path, how, message):
    path = tmp_path / "mini.msgpack"
    path.write_bytes(_spoilt(params, how))
    with pytest.raises(ValueError, match=message):
        mini.unpack(path)


def test_damaged_files_are_refused(params, tmp_path):
    whole = mini.pack(params)
    path = tmp_path / "mini.msgpack"
    for contents in (b"", b"\xc1", whole[:-1], whole[:1000], b"PK\x03\x04" + whole, whole + b"\x00"):
        path.write_bytes(contents)
        with pytest.raises(ValueError, match="mini"):
            mini.unpack(path)


# --- the shipped weights ---


@pytest.fixture(scope="module")
def shipped():
    return jh.codec("mini")


def test_the_shipped_file_is_what_the_list_says(shipped):
    (weight,) = mini.MINI_WEIGHTS
    path = jh.weights.find(weight)
    assert path.stat().st_size == weight.size <= 6_000_000
    assert shipped.weights == {weight.file: weight.sha256}


def test_speech_survives_the_round_trip(shared, shipped):
    """A clip of an unseen speaker, continuous and quantised, against the gates of the mean over many."""
    wav = jh.audio.read(shared / "speech" / "de_229_pv_leopard_de_test_de.flac", sample_rate=16000).wav[:48000]
    z = jax.jit(shipped.encode)(shipped.params, wav)
    for latent, lowest in ((z, 0.90), (shipped.quantise(shipped.params, z, 64), 0.80)):
        out = jax.jit(shipped.decode)(shipped.params, latent)
        assert jh.measures.estoi(wav, out, len(wav), sample_rate=16000) > lowest
        assert 0.5 < np.abs(out).max() / np.abs(wav).max() < 2


def test_bfloat16_is_near(shared, shipped):
    """Over five clips the latent is off by 0.23 % (RMS) at most, the audio of one latent by −54 dB."""
    wav = jh.audio.read(shared / "speech" / "de_229_pv_leopard_de_test_de.flac", sample_rate=16000).wav[:48000]
    latent, audio = moved(shipped, jh.codec("mini", dtype=jnp.bfloat16), wav)
    assert 1e-4 < latent < 0.01 and 45 < audio < 80


def test_silence_stays_silent(shipped):
    out = shipped.decode(shipped.params, shipped.encode(shipped.params, jnp.zeros(16000)))
    assert np.abs(out).max() < 0.003
