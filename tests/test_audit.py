"""The whole job on a toy codec and a toy predictor: rows, resume, budget, bad inputs."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

import jaxhack as jh
from jaxhack import attack, audio, crops, examples, inputs, judgement, objective, registry, rows, training
from jaxhack.measures import default_panel
from jaxhack.settings import Settings

pytestmark = pytest.mark.standard_promotion  # optax and orbax

SETTINGS = {"seeds": 2, "steps": 12, "batch": 2, "group": 4, "crop_seconds": 0.5, "epsilon": 0.5}
ARMS = [("grpo", 0), ("grpo", 1), ("random", 0), ("random_best", 0)]


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> Path:
    """Eight clips of four speakers, 0.9 to 1.6 s."""
    folder = tmp_path_factory.mktemp("clips")
    names = [f"{speaker}{i}.wav" for speaker in "abcd" for i in (1, 2)]
    for i, name in enumerate(names):
        audio.write(folder / name, toys.speechlike(0.9 + 0.1 * i, i), toys.RATE)
    (folder / "manifest.csv").write_text("file,speaker\n" + "".join(f"{n},{n[0]}\n" for n in names))
    return folder


def run(paths, out, **more):
    options = {"predictor": toys.predictor(), "codec": toys.codec(), "out": out} | SETTINGS | more
    return jh.audit([paths] if paths else (), **options)


@pytest.fixture(scope="module")
def done(clips, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "out"
    return out, run(clips, out), rows.read(out / "rows.parquet")


def same_rows(a, b, tolerance=0.0):
    assert [(r["utterance"], r["attacker"], r["seed"]) for r in a] == [
        (r["utterance"], r["attacker"], r["seed"]) for r in b
    ]
    for x, y in zip(a, b, strict=True):
        for name, value in x.items():
            if isinstance(value, float):
                assert value == pytest.approx(y[name], abs=tolerance), name
            else:
                assert value == y[name], name


def test_one_row_per_utterance_and_attacker_in_input_order(done):
    out, _, found = done
    record = json.loads((out / "run.json").read_text())["record"]
    assert len(record["train"]) + len(record["test"]) == 8
    assert not {name[0] for name in record["train"]} & {name[0] for name in record["test"]}
    assert [(r["utterance"], r["attacker"], r["seed"]) for r in found] == [
        (u, *arm) for u in record["test"] for arm in ARMS
    ]
    for row in found:
        assert row["status"] == "ok" and row["reason"] == "" and row["source_rate"] == 16000
        assert row["gain"] == pytest.approx(row["score_attacked"] - row["score_reference"])
        assert row["gain_naive"] == pytest.approx(row["score_attacked"] - row["score_input"])
        assert row["achieved_size"] <= 0.5 * (1 + 1e-6) and row["achieved_size"] == pytest.approx(0.5, rel=1e-5)
        assert row["verdict"] in ("hack", "no_hack")
    queries = {row["attacker"]: row["queries"] for row in found}
    share = -(-12 * 2 * 4 // len(record["test"]))
    assert queries == {"grpo": share, "random": 0, "random_best": share}


def test_the_summary_is_what_the_rows_say(done):
    out, summary, found = done
    assert summary == json.loads((out / "summary.json").read_text())
    for entry in summary["attackers"]:
        own = [r for r in found if (r["attacker"], r["seed"]) == (entry["attacker"], entry["seed"])]
        hacks = sum(r["verdict"] == "hack" for r in own)
        assert entry["attack_success_rate"] == pytest.approx(hacks / len(own)) and entry["n"] == len(own)
        assert entry["mean_gain"] == pytest.approx(np.mean([r["gain"] for r in own]))
        low, high = entry["interval"]
        assert 0 <= low <= entry["attack_success_rate"] <= high <= 1
    trained = [e["attack_success_rate"] for e in summary["attackers"] if not e["baseline"]]
    assert summary["worst_attack_success_rate"] == max(trained)
    assert summary["mean_attack_success_rate"] == pytest.approx(np.mean(trained))
    again = jh.report.make(out)
    assert again == summary


def test_attackers_beat_a_blind_direction(done):
    gains = {e["attacker"]: e["mean_gain"] for e in done[1]["attackers"]}
    assert gains["grpo"] > gains["random"] + 0.1


def test_examples_are_what_was_judged(done):
    """Read back from disk, the attacked example scores what its row says: nothing lost, shifted or wrapped."""
    out, _, found = done
    listed = json.loads((out / "examples" / "examples.json").read_text())
    assert [e["label"] for e in listed] == ["largest gain", "median gain", "smallest gain"]
    predictor = toys.predictor()
    for entry in listed:
        row = next(r for r in found if all(r[k] == entry[k] for k in ("utterance", "attacker", "seed")))
        for part, column in {
            "x": "score_input",
            "reference": "score_reference",
            "attacked": "score_attacked",
        }.items():
            wav = audio.read(out / "examples" / entry["files"][part]).wav
            score = predictor.score(predictor.params, jnp.asarray(wav), jnp.int32(len(wav)))
            assert float(score) == pytest.approx(row[column], abs=1e-4)
            assert len(wav) / toys.RATE == pytest.approx(row["seconds"])


def test_fewer_utterances_than_labels():
    row = {"baseline": False, "status": "ok", "seed": 0, "verdict": "hack", "gain": 1.0}
    assert [label for label, _ in examples.choose([row])] == ["median gain"]
    assert examples.choose([row | {"status": "unreadable"}]) == []


class Stop(Exception):
    """Stands for Ctrl-C or a crash."""


@pytest.mark.parametrize("stage,count", [("train", 1), ("attack", 1)])
def test_resume_ends_with_the_rows_of_an_unbroken_run(clips, done, tmp_path, stage, count):
    seen = []

    def interrupt(at, finished, total, metrics):
        seen.extend([at] if finished or at == "start" else [])
        if seen.count(stage) == count and at == stage:
            raise Stop

    with pytest.raises(Stop):
        run(clips, tmp_path / "out", observe=interrupt)
    assert not (tmp_path / "out" / "rows.parquet").exists()
    run(clips, tmp_path / "out", resume=True)
    same_rows(rows.read(tmp_path / "out" / "rows.parquet"), done[2])
    assert (tmp_path / "out" / "training.jsonl").read_text() == (done[0] / "training.jsonl").read_text()


def test_a_killed_process_is_continued_on_another_number_of_devices(clips, done, killable, tmp_path):
    """`kill -9` in the middle of training on one device; resumed here on eight: the same rows."""
    code = f"""
import os, toys, jaxhack as jh
def observe(stage, done, total, metrics):
    if stage == "train" and done:
        os.kill(os.getpid(), 9)
jh.audit([{str(clips)!r}], predictor=toys.predictor(), codec=toys.codec(), out={str(tmp_path / "out")!r},
         observe=observe, **{SETTINGS!r})
"""
    environment = killable | {"XLA_FLAGS": ""}
    killed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    assert len((tmp_path / "out" / "training.jsonl").read_text().splitlines()) == 4
    run(clips, tmp_path / "out", resume=True)
    same_rows(rows.read(tmp_path / "out" / "rows.parquet"), done[2], 1e-3)


def test_an_attacker_is_the_same_alone_and_beside_others(tmp_path):
    """Training k attackers gives the states of those that train alone."""
    space = jh.spaces.latent(toys.codec(), epsilon=0.5)
    wavs = np.stack([toys.speechlike(0.3, i) for i in range(4)])
    encode = jax.jit(lambda wav, length: jax.vmap(space.encode)(wav, length))
    points = crops.Crops(tmp_path / "points").fill(encode, [(wavs, np.full(4, wavs.shape[1], np.int32))])
    target = objective.objective(toys.predictor(), space)
    states = [
        training.train(
            lambda _: jh.attackers.grpo(target, batch=2, group=4, hidden=8),
            None,
            points,
            seed=0,
            attackers=k,
            steps=3,
            batch=2,
            folder=tmp_path / str(k),
        )
        for k in (1, 2)
    ]
    for alone, beside in zip(*(jax.tree.leaves(s.params) for s in states), strict=True):
        np.testing.assert_allclose(alone[0], beside[0], atol=1e-4)
        assert alone.std() == 0 or not np.array_equal(beside[0], beside[1])


def test_no_budget_no_gain(clips, tmp_path):
    """At ε = 0 every output is x̂ to the bit, whatever an attacker wants."""
    settings = Settings(seeds=1, batch=2, group=2, epsilon=0.0, options={"hidden": 8})
    setup = attack.Setup(toys.predictor(), toys.codec(), toys.RATE, default_panel(toys.RATE), settings, 3)
    wav = toys.speechlike(1.0, 0)[None]
    statistics = jh.spaces.latent_statistics(setup.codec, [(wav, np.full(1, wav.shape[1], np.int32))])
    weights = setup.untrained()._replace(statistics=statistics)
    states = jax.jit(jax.vmap(setup.attacker(weights).init))(jax.random.split(jax.random.key(0), 1))
    test = inputs.collect([clips])[: judgement.BATCH]
    judgement.attack_test_set(setup, weights, states, test, tmp_path, lambda *_: None)
    found = rows.read(tmp_path / "rows.parquet")
    assert len(found) == 3 * judgement.BATCH
    for row in found:
        assert row["gain"] == 0.0 and row["achieved_size"] == 0.0 and row["verdict"] == "no_hack"
        assert row["estoi_attacked"] == row["estoi_reference"] and row["si_sdr_attacked"] == row["si_sdr_reference"]


def test_a_folder_with_everything_in_it(clips, tmp_path):
    """A broken file, a text file, silence and 40 ms cost their own rows and no other's."""
    test = tmp_path / "test"
    test.mkdir()
    audio.write(test / "good 'name\".wav", toys.speechlike(1.0, 3), toys.RATE)
    audio.write(test / "short.wav", toys.speechlike(0.04, 4), toys.RATE)
    audio.write(test / "silent.wav", np.zeros(16000, np.float32), toys.RATE)
    (test / "empty.wav").write_bytes(b"")
    (test / "text.wav").write_text("not audio")
    (test / "cut.wav").write_bytes((clips / "a1.wav").read_bytes()[:3000])
    summary = run(None, tmp_path / "out", train_paths=[clips], test_paths=[test])
    found = rows.read(tmp_path / "out" / "rows.parquet")
    status = {row["utterance"]: row["status"] for row in found}
    assert status == {
        "good 'name\".wav": "ok",
        "short.wav": "too_short",
        "silent.wav": "silent",
        "empty.wav": "unreadable",
        "text.wav": "unreadable",
        "cut.wav": "unreadable",
    }
    for row in found:
        undecided = row["status"] != "ok"
        assert (row["verdict"] == "undetermined") == undecided and bool(row["reason"]) == undecided
    assert all(entry["n"] == 1 and entry["n_failed"] + entry["n_undetermined"] == 5 for entry in summary["attackers"])


def test_a_black_box_is_attacked_like_any_other(clips, tmp_path):
    summary = run(clips, tmp_path / "out", predictor=toys.predictor(differentiable=False), seeds=1, steps=1)
    assert summary["attackers"][0]["n"] > 0


@pytest.mark.parametrize(
    "options,sentence",
    [
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"group": 1}, "group must be at least 2"),
        ({"epsilon": -0.1}, "epsilon must be a finite number"),
        ({"epsilon": float("nan")}, "epsilon must be a finite number"),
        ({"tau": float("inf")}, "tau must be a finite number"),
        ({"crop_seconds": 0.0}, "crop_seconds must be above 0"),
        ({"crop_seconds": 1e9}, "at most 30"),
        ({"crop_seconds": 1e-9}, "crop_seconds must be at least 0.001, the shortest that toy scores"),
        ({"seed": -1}, "seed must be a whole number from 0"),
        ({"seed": 2**70}, "seed must be a whole number from 0"),
        ({"limit": 1}, "limit must leave 2 utterances"),
        ({"attacker": "gppo"}, "grpo"),
        ({"profile": "quik"}, "Unknown profile 'quik'; did you mean quick"),
        ({"profile": "quick", "steps": 0}, "steps must be at least 1"),
        ({"sample_rate": 8000}, "takes 16000 Hz only"),
        ({"train_paths": ["x"]}, "go together"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(clips, tmp_path, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        run(clips, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_recordings_are_audited_at_the_papers_size(done):
    record = json.loads((done[0] / "run.json").read_text())["record"]
    assert record["demo"] is False
    assert record["settings"] == asdict(Settings(**SETTINGS)) and record["settings"]["profile"] == "paper"


def test_nothing_named_is_the_default_pair_on_the_demo_speech(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(registry, "codec", lambda name, **_: asked.append(name) or toys.codec())
    monkeypatch.setattr(registry, "predictor", lambda name, **_: asked.append(name) or toys.predictor())
    monkeypatch.setattr(inputs, "DEMO", tmp_path / "demo.csv")
    with pytest.raises(ValueError, match=r"demo\.csv' does not exist"):
        jh.audit(out=tmp_path / "out")
    assert asked == ["mini", "dnsmos-p808"]
    with pytest.raises(ValueError, match="Give either PATH"):  # a pattern that matched nothing is no wish for a demo
        jh.audit([], out=tmp_path / "out")


def test_an_existing_run_is_kept_unless_told_otherwise(clips, done, tmp_path):
    out, _, _ = done
    before = (out / "rows.parquet").read_bytes()
    for options, sentence in [
        ({}, "--resume"),
        ({"resume": True, "tau": 0.4}, "another run"),
        ({"resume": True, "overwrite": True}, "exclude"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            run(clips, out, **options)
    assert (out / "rows.parquet").read_bytes() == before
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="no run"):
        run(clips, other, overwrite=True)
    assert (other / "thesis.txt").read_text() == "mine"


def test_training_and_test_files_must_differ(clips, tmp_path):
    with pytest.raises(ValueError):
        run(None, tmp_path / "out", train_paths=[clips], test_paths=[clips])
    with pytest.raises(ValueError, match="at least two speakers"):
        run(clips / "a1.wav", tmp_path / "out")


def test_a_long_recording_is_attacked_for_its_first_half_minute(tmp_path):
    wav = toys.speechlike(40, 1)
    audio.write(tmp_path / "long.wav", wav, toys.RATE)
    (batch,) = judgement.batches(inputs.collect([tmp_path / "long.wav"]), toys.RATE)
    loaded = judgement.load(batch, toys.RATE, jax.random.key(0))
    assert loaded.wav.shape == (judgement.BATCH, 480000) and loaded.length.tolist() == [480000] + [0] * (
        judgement.BATCH - 1
    )
    (clip,) = loaded.clips
    assert len(clip.wav) == 480000 and clip.seconds == 40.0
    np.testing.assert_allclose(loaded.wav[0], wav[:480000], atol=1e-4)


@pytest.mark.parametrize("rate", [8000, 48000, 44100])
def test_a_predictor_at_another_rate_is_told_the_length_of_a_long_clip(rate):
    def heads(params, wav, length):
        return jnp.stack([length.astype(jnp.float32)])

    predictor = toys.predictor()._replace(sample_rate=rate, heads=heads)
    score = objective.listener(predictor, 16000)(jnp.zeros(480000), jnp.int32(480000))
    assert float(score) == 30 * rate
