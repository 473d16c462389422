"""DistillMOS: equal to the official module on real speech, whatever the padding; strict about its weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import soundfile

import jaxhack as jh
from benchmarks.official import distillmos as official_scorer
from ports import distillmos as port
from ports.distillmos import DISTILLMOS_WEIGHTS, HOP, SEGMENT, distillmos, segment_count, segment_start

CLIPS = (  # clean, noisy and coded speech, 16 kHz
    "speech/en_010_vctk_p232_p232_015.flac",
    "degraded/de_229_pv_leopard_de_test_de__noise_5dB.flac",
    "degraded/en_215_ps_cards_005__codec2_1600.flac",
)
LONG = "speech/de_229_pv_leopard_de_test_de.flac", "speech/en_011_vctk_p232_p232_015_noisy.flac"
PADDED = SEGMENT + 2 * HOP  # samples: up to three segments, one compilation


@pytest.fixture(scope="module")
def paths(shared):
    path = jh.weights.find(DISTILLMOS_WEIGHTS[0], shared / "models")
    if path is None:
        pytest.skip("needs DistillMOS's weights: jaxhack models get distillmos")
    return {path.name: path}


@pytest.fixture(scope="module")
def score(paths):
    """The score of a clip [T], padded to one length, with zeros or something else."""
    predictor = distillmos(paths)
    run = jax.jit(predictor.heads)
    return lambda wav, value=0.0: float(run(predictor.params, pad(wav, value=value), jnp.int32(len(wav)))[0])


def pad(wav, size=PADDED, value=0.0):
    return jnp.asarray(np.pad(wav, (0, size - len(wav)), constant_values=value), jnp.float32)


def read(path):
    return soundfile.read(path, dtype="float32")[0]


def read_long(shared):
    """One and a bit more segments, so that two overlap: 8.4 s."""
    return np.concatenate([read(shared / clip) for clip in LONG])[: SEGMENT + 11001]


# Parity


def test_equals_the_official_score(shared, score, parity):
    pytest.importorskip("torch")
    try:
        official = official_scorer()
    except ImportError:
        pytest.skip("needs the official package: pip install --no-deps distillmos xls-r-sqa")
    seen = []
    for wav in (*(read(shared / clip) for clip in CLIPS), read_long(shared)):
        expected = official(wav)
        parity("distillmos", "score", abs(score(wav) - expected), 2e-4, "MOS")
        seen.append(expected)
    assert max(seen) - min(seen) > 1.0  # the clips span qualities


def test_known_scores(shared, score):
    """Scores of the official module, so that the port is held to them where it is absent."""
    assert score(read(shared / CLIPS[1])) == pytest.approx(KNOWN[0], abs=1e-3)
    assert score(read_long(shared)) == pytest.approx(KNOWN[1], abs=1e-3)


KNOWN = [3.0008, 4.3406]


def test_bfloat16_is_near(paths, shared, score):
    """Largest change of the score over six clips, clean, noisy and coded: 0.0023 MOS."""
    predictor, wav = distillmos(paths, dtype=jnp.bfloat16), read(shared / CLIPS[0])
    got = jax.jit(predictor.heads)(predictor.params, wav, jnp.int32(len(wav)))
    assert got.dtype == jnp.float32
    assert 0 < abs(float(got[0]) - score(wav)) < 0.01


# One utterance, any padding


def test_padding_and_level_change_nothing(paths, shared, score):
    predictor, wav = distillmos(paths), read(shared / CLIPS[0])
    alone = jax.jit(predictor.heads)(predictor.params, wav, jnp.int32(len(wav)))
    assert float(alone[0]) == pytest.approx(score(wav), abs=1e-5)
    assert score(wav, value=0.3) == pytest.approx(score(wav), abs=1e-6)
    assert score(wav * 0.5) == pytest.approx(score(wav), abs=1e-5)
    assert np.isnan(score(wav[:319])) and np.isfinite(score(wav[:320]))


def test_segments_are_the_official_ones():
    plan = jax.jit(lambda n: (segment_count(n), segment_start(jnp.arange(600, dtype=jnp.int32), n)))
    for length in (1, SEGMENT, SEGMENT + 1, SEGMENT + HOP, SEGMENT + HOP + 1, 480_000, 479_999, 9_600_000):
        spare = max(length - SEGMENT, 0)
        count = int(np.ceil(spare / HOP)) + 1
        expected = [int(c * spare) for c in np.linspace(0, 1, count)]
        found, starts = plan(jnp.int32(length))
        assert int(found) == count
        assert np.abs(starts[:count] - np.asarray(expected)).max() <= 1 and int(starts[count - 1]) == spare


# Weights


def test_weights_are_read_strictly(tmp_path):
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    good = {k: torch.tensor(random.uniform(0.0, 0.1, v), dtype=torch.float32) for k, v in port._shapes().items()}
    path = tmp_path / "distill_mos_v7.pt"
    bias = "transformer_pool_attn.pool.linear1.bias"

    def made(model):
        torch.save({"model": model, "step": 3}, path)
        return distillmos({path.name: path})

    predictor = made(good | {"transformer_pool_attn.norm_trans.num_batches_tracked": torch.tensor(3)})
    assert predictor.head_names == ("mos",) and predictor.min_samples == 320
    shapes = jax.eval_shape(port.DistillMos().init, jax.random.key(0), jnp.zeros(SEGMENT))["params"]
    assert jax.tree.map(jnp.shape, predictor.params) == jax.tree.map(jnp.shape, shapes)
    with pytest.raises(ValueError, match=rf"missing {bias}\."):
        made({k: v for k, v in good.items() if k != bias})
    with pytest.raises(ValueError, match=r"left over cnn\.cnn\.12\.bias\."):
        made(good | {"cnn.cnn.12.bias": torch.zeros(3)})
    with pytest.raises(ValueError, match=rf"misshapen {bias} \(7,\), expected \(400,\)"):
        made(good | {bias: torch.zeros(7)})
    torch.save(good, path)
    with pytest.raises(ValueError, match="expected DistillMOS's model"):
        distillmos({path.name: path})
