"""Replay, losses, fitting and patched predictors, on a predictor whose best weights are known."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toys

import jaxhack as jh
from jaxhack import audio, defences, registry, spaces
from jaxhack.ensemble import ensemble
from jaxhack.patch import losses, patched, regression, replay
from jaxhack.patch.clips import store
from jaxhack.patch.fitting import LOG, Term, adamw, fit
from jaxhack.patch.replay import Pairs
from jaxhack.weights import sha256

pytestmark = [pytest.mark.standard_promotion, pytest.mark.quick_compilation]  # optax and orbax

# Replay


def pairs(first: int, count: int, samples: int = 4) -> Pairs:
    """Pairs that say their own number."""
    number = np.arange(first, first + count)
    signal = np.repeat(number[:, None], samples, 1).astype(np.int16)
    return Pairs(signal, -signal, np.full(count, samples, np.int32))


@pytest.mark.parametrize("capacity", [1, 3, 5, 40])
def test_the_ring_holds_the_newest(capacity):
    """Against a list, through pushes of every size with gaps in them."""
    rng, ring, held, number = np.random.default_rng(0), replay.empty(capacity, 4), [], 0
    push = jax.jit(replay.push)
    for count in [1, 2, 7, 7, 7, 1]:
        keep = rng.random(count) < 0.6
        ring = push(ring, pairs(number, count), keep)
        held = (held + list(np.arange(number, number + count)[keep]))[-capacity:]
        number += count
        assert int(replay.size(ring)) == len(held)
        stored = np.asarray(ring.pairs.preferred[: len(held), 0])
        assert sorted(stored) == sorted(held)
        np.testing.assert_array_equal(ring.pairs.rejected, -ring.pairs.preferred)


def test_draws_are_of_what_is_held_and_each_as_likely():
    ring = replay.push(replay.empty(10, 4), pairs(1, 4), np.ones(4, bool))
    drawn = replay.sample(ring, jax.random.key(0), 4000)
    counts = np.bincount(np.asarray(drawn.preferred[:, 0]), minlength=5)
    assert counts[0] == 0 and np.all(np.abs(counts[1:] - 1000) < 150)
    np.testing.assert_array_equal(drawn.rejected, -drawn.preferred)


def test_a_buffer_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one pair"):
        replay.empty(0, 10)


# Losses


def clip(seed: int, seconds: float = 0.1) -> np.ndarray:
    return toys.speechlike(seconds, seed)


def test_losses_by_hand():
    predictor = toys.predictor()
    x, y = audio.pcm16(clip(0)), audio.pcm16(clip(1))
    rx, ry = (float(predictor.score(predictor.params, jnp.asarray(w / np.float32(32768)), len(w))) for w in (x, y))
    squared = losses.regression(predictor, toys.RATE)(predictor.params, (x, len(x), 2.0))
    np.testing.assert_allclose(squared, (rx - 2.0) ** 2, rtol=1e-5)
    for margin in (0.5, 5.0):
        got = losses.ranking(predictor, toys.RATE, margin)(predictor.params, Pairs(x, y, len(x)))
        np.testing.assert_allclose(got, max(0, margin - (rx - ry)), rtol=1e-5)


# Fitting


def linear_clips(folder, count: int = 24):
    """Clips whose score is that of a toy with other weights."""
    teacher = toys.predictor()
    wanted = teacher._replace(params=-0.5 * jnp.asarray(toys.TARGET))
    wavs = [clip(i, 0.05 + 0.01 * (i % 5)) for i in range(count)]
    rated = [(w, float(wanted.score(wanted.params, jnp.asarray(w), len(w)))) for w in wavs]
    return teacher, wanted, store(rated, folder / "clips.bin"), rated


def test_cuts_depend_on_the_step_alone(tmp_path):
    _, _, clips, rated = linear_clips(tmp_path)
    one, again, other = (clips.take(step, batch=8, samples=900, seed=0) for step in (3, 3, 4))
    for a, b in zip(one, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(one.wav, other.wav)
    for wav, length, target in zip(*one, strict=True):
        assert 800 <= length <= 900 and not wav[length:].any()
        assert any(np.float32(mos) == target and _within(wav[:length], audio.pcm16(w)) for w, mos in rated)


def _within(cut: np.ndarray, whole: np.ndarray) -> bool:
    views = np.lib.stride_tricks.sliding_window_view(whole, len(cut)) if len(cut) <= len(whole) else []
    return any(np.array_equal(view, cut) for view in views)


def test_no_recordings_or_no_targets_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no labelled recording"):
        store([], tmp_path / "a.bin")
    for bad in [(clip(0), np.nan), (np.zeros(0, np.float32), 3.0)]:
        with pytest.raises(ValueError, match="samples and a finite score"):
            store([bad], tmp_path / "a.bin")


def test_the_known_weights_are_found_and_the_best_step_stays(tmp_path):
    start, wanted, clips, rated = linear_clips(tmp_path)
    options = {"steps": 150, "crop_seconds": 0.1, "learning_rate": 0.05, "validate_every": 10}
    found = regression.train(start, clips, rated, folder=tmp_path / "run", **options)
    wavs, targets = zip(*rated, strict=True)
    error = regression.mean_squared_error(wanted, found.params, wavs, targets)
    before = regression.mean_squared_error(start, start.params, wavs, targets)
    lines = [json.loads(line) for line in (tmp_path / "run" / LOG).read_text().splitlines()]
    values = [line["validation"] for line in lines if "validation" in line]
    assert len(lines) == 150 and len(values) == 15
    assert error == pytest.approx(min(values), rel=1e-5) and error < 0.01 * before


def test_an_interrupted_fit_ends_as_an_unbroken_one(tmp_path):
    start, _, clips, rated = linear_clips(tmp_path)
    options = {"steps": 11, "batch": 4, "crop_seconds": 0.1, "save_every": 3, "validate_every": 4}
    whole = regression.train(start, clips, rated, folder=tmp_path / "whole", **options)

    def stop(step, metrics):
        if step == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        regression.train(start, clips, rated, folder=tmp_path / "broken", observe=stop, **options)
    again = regression.train(start, clips, rated, folder=tmp_path / "broken", **options)
    np.testing.assert_array_equal(again.params, whole.params)
    logs = [(tmp_path / name / LOG).read_text() for name in ("whole", "broken")]
    assert logs[0] == logs[1] and len(logs[0].splitlines()) == 11


def test_a_loss_that_is_not_finite_stops(tmp_path):
    with pytest.raises(ValueError, match="loss of step 2 is not finite"):
        fit(
            jnp.float32(1.0),
            [Term("a", lambda params, x: params * x)],
            lambda step: {"a": np.full(3, np.nan if step == 2 else 1.0, np.float32)},
            optax.sgd(0.1),
            steps=5,
            folder=tmp_path,
        )


@pytest.mark.parametrize(
    ("what", "loss"),
    [("score", lambda params, x: params * jnp.nan), ("gradient", lambda params, x: (0 * params) ** 0.5)],
)
def test_a_predictor_without_a_finite_score_or_gradient_is_named_as_the_cause(what, loss, tmp_path):
    ones = {"a": np.ones(3, np.float32)}
    with pytest.raises(ValueError, match=f"predictor gives no finite {what} for a, before anything was learned"):
        fit(jnp.float32(1.0), [Term("a", loss)], lambda step: ones, optax.sgd(0.1), steps=5, folder=tmp_path)


def test_terms_add_up_with_their_weights(tmp_path):
    """One step of SGD moves by the weighted sum of both means."""
    moved = fit(
        jnp.float32(1.0),
        [Term("a", lambda params, x: params * x), Term("b", lambda params, x: params**2 * x, weight=0.5)],
        lambda step: {"a": np.float32([1, 2, 3]), "b": np.float32([4, 6])},
        optax.sgd(0.1),
        steps=1,
        folder=tmp_path,
    )
    assert float(moved) == pytest.approx(1 - 0.1 * (2 + 0.5 * 2 * 5))


def test_another_rate_for_the_head():
    params = {"body": {"w": jnp.ones(2)}, "output": {"w": jnp.ones(2)}}
    optimiser = adamw(params, 1e-3, head=("output/",), head_learning_rate=1e-1)
    changes, _ = optimiser.update(params, optimiser.init(params), params)
    assert np.allclose(changes["output"]["w"] / changes["body"]["w"], 100, rtol=1e-3)
    with pytest.raises(ValueError, match="begins with outptu/; there are body, output"):
        adamw(params, 1e-3, head=("outptu/",))


def test_a_defence_is_not_trained_only_what_is_behind_it(tmp_path):
    chain, inner = toys.codec(), toys.predictor()
    noise = defences.Noise(0.5, chain, spaces.Statistics(*np.full((2, toys.CHANNELS), 0.25, np.float32)))
    both = [defences.denoised(inner, chain), defences.smoothed(inner, noise, draws=2)]
    defended = ensemble(both, "mean")
    assert registry.at_rate(defended, 2 * toys.RATE).trainable == defended.trainable
    clips = store([(clip(0), 4.5)], tmp_path / "clips.bin")
    rates = {"learning_rate": 0.01, "head": ("0/0",), "head_learning_rate": 0.1}
    sizes = {"steps": 2, "batch": 1, "crop_seconds": 0.02}
    found = regression.train(defended, clips, folder=tmp_path / "fit", **sizes, **rates)
    before, after = jax.device_get((defended.params, found.params))
    for (mine, *fixed), (now, *still), fast in zip(before, after, (True, False), strict=True):
        moved = np.abs(now - mine)
        assert moved.min() > 0 and (moved.max() > 0.05) == fast
        for x, y in zip(jax.tree.leaves(fixed), jax.tree.leaves(still), strict=True):
            assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def test_what_cannot_be_trained(tmp_path):
    _, _, clips, _ = linear_clips(tmp_path, 2)
    with pytest.raises(ValueError, match="toy is a black box"):
        regression.train(toys.predictor(differentiable=False), clips, folder=tmp_path)
    with pytest.raises(ValueError, match="crop_seconds must be at least"):
        regression.train(toys.predictor(), clips, folder=tmp_path, crop_seconds=1e-6)


# Patched predictors


@pytest.fixture
def listed(monkeypatch):
    monkeypatch.setitem(registry.ENTRIES, "toy", registry.Entry("predictor", "toys:listed", "toys:NO_WEIGHTS", ""))


def test_a_patched_predictor_is_named_by_its_folder(listed, tmp_path):
    parent = jh.predictor("toy")
    made = patched.save(tmp_path / "p", parent._replace(params=2 * parent.params), parent, {"seeds": [0]})
    again = jh.predictor(tmp_path / "p")
    assert again.name == made.name == f"toy-patched-{made.weights[patched.PARAMS][:6]}"
    assert again.weights == made.weights != parent.weights
    np.testing.assert_array_equal(again.params, 2 * np.asarray(parent.params))
    joined = jh.predictor(f"min(toy,{tmp_path / 'p'})")
    assert joined.name == f"min(toy,{made.name})"
    once_more = patched.save(tmp_path / "q", again._replace(params=3 * parent.params), parent, {"of": made.name})
    assert once_more.name != again.name


def test_rates_keep_the_patched_weights(shared):
    parent = jh.predictor("nisqa", models=shared / "models")
    record = {"name": "n", "params": "0"}
    made = patched._renewed(parent, jax.tree.map(lambda x: 2 * x, parent.params), record)
    other = made.at_rate(16000).at_rate(8000)
    assert other.sample_rate == 8000 and other.name == "n" and other.weights[patched.PARAMS] == "0"
    np.testing.assert_array_equal(other.params["linear"]["bias"], 2 * parent.params["linear"]["bias"])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / patched.RECORD).write_text("{"), "cannot be read as a patched predictor's record"),
        (lambda f: (f / patched.RECORD).unlink(), "folder without a patched predictor"),
        (lambda f: (f / patched.PARAMS).write_bytes(b"PK"), "is not what"),
        (lambda f: (f / patched.PARAMS).unlink(), "is not what"),
        (lambda f: edit(f, parent_weights={"toy.bin": "1" * 64}), "from other weights of toy"),
        (lambda f: edit(f, parent="toyy"), "Unknown predictor 'toyy'"),
        (lambda f: edit(f, parent="toys:listed"), "patched from: Unknown predictor 'toys:listed'"),
        (lambda f: edit(f, parent=str(f)), "patched from: Unknown predictor"),
        (lambda f: edit(f, name="nisqa"), "calls its predictor 'nisqa', and 'toy-patched-"),
        (lambda f: edit(f, name="../../../x"), "is its name: copy the folder anew"),
        (lambda f: hostile(f, {"": np.array([print], object)}), "'' is object.1., expected float32.8.*: it does not"),
        (lambda f: hostile(f, {"": np.array(["a"] * 8)}), "does not hold weights of toy; patch again"),
        (lambda f: hostile(f, {"": np.full(8, np.nan, np.float32)}), "weights that are not finite, such as ''"),
        (lambda f: hostile(f, {}), "holds nothing, expected ''"),
    ],
)
def test_damaged_folders_are_refused(listed, tmp_path, damage, message):
    parent = jh.predictor("toy")
    patched.save(tmp_path, parent, parent, {})
    damage(tmp_path)
    with pytest.raises(ValueError, match=message):
        jh.predictor(tmp_path)


def edit(folder, **changes):
    record = json.loads((folder / patched.RECORD).read_text())
    record |= changes
    named = {"name": f"{record['parent']}-patched-{record['params'][:6]}"} | changes
    (folder / patched.RECORD).write_text(json.dumps(record | named))


def hostile(folder, arrays):
    """Other arrays under a hash that fits."""
    np.savez(folder / patched.PARAMS, **arrays)
    edit(folder, params=sha256(folder / patched.PARAMS))


def test_names_win_over_folders(listed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy").mkdir()
    assert jh.predictor("toy").name == "toy"
