"""Experiments at their smallest size: the main job on real weights and real speech; the training of `mini`."""

import json

import av
import numpy as np
import pytest
import soundfile
import toys

import jaxhack as jh
from experiments.certificate import run as certificate
from experiments.table1_predictors import run as table1
from experiments.train_mini_codec import data as mini_data
from experiments.train_mini_codec import evaluate as mini_evaluate
from experiments.train_mini_codec import train as mini_train
from jaxhack import registry, rows
from ports import mini

pytestmark = pytest.mark.standard_promotion  # optax and orbax


@pytest.mark.quick_compilation
def test_table1(shared, tmp_path, capsys):
    arguments = ["--shared", shared, "--work", tmp_path / "work", "--results", tmp_path / "results"]
    table1.main([str(a) for a in arguments] + ["--only", "nisqa_0.5", "--tiny"])
    assert "| nisqa | 0.5 | 1 | 2 |" in capsys.readouterr().out
    found = rows.read(tmp_path / "results" / "tiny" / "nisqa_0.5" / "rows.parquet")
    assert [r["attacker"] for r in found] == ["grpo", "random", "random_best"] * 2
    assert all(1 < r["score_reference"] < 6 and r["status"] == "ok" for r in found)
    summary = json.loads((tmp_path / "work" / "tiny" / "nisqa_0.5" / "summary.json").read_text())
    assert set(summary["weights"]) == {
        "nisqa.tar",
        "soundstream_encoder.tflite",
        "lyragan.tflite",
        "quantizer.tflite",
    }
    page = (tmp_path / "work" / "tiny" / "nisqa_0.5" / "report.html").read_text()
    assert page.count("<audio") == 6  # x, x̂ and y of two utterances


def test_the_committed_results_make_the_table_of_the_readme():
    printed = table1.table(table1.HERE / "results")
    assert printed in (table1.HERE / "README.md").read_text()


@pytest.mark.quick_compilation
@pytest.mark.usefixtures("no_examples", "one_device")
def test_certificate(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(registry.ENTRIES, "toy", registry.Entry("predictor", "toys:listed", "toys:NO_WEIGHTS", ""))
    monkeypatch.setattr(certificate, "RUNS", {"toy": certificate.Case("toy", "waveform=0.05", "waveform", 1e-4, 9)})
    monkeypatch.setattr(certificate, "SECONDS", (0.5, 1.0))
    arguments = [
        "--shared",
        toys.shared(tmp_path / "shared"),
        "--work",
        tmp_path / "work",
        "--results",
        tmp_path / "results",
    ]
    certificate.main([str(a) for a in [*arguments, "--tiny"]])
    assert "| smoothed(toy,waveform=0.05) | waveform | 0.0001 | 1 |" in capsys.readouterr().out
    assert (tmp_path / "results" / "tiny" / "toy" / "certificates.jsonl").read_text().count("\n") == 1


def test_the_committed_results_make_the_table_of_certificates():
    printed = certificate.table(certificate.HERE / "results")
    assert printed in (certificate.HERE / "README.md").read_text()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A work folder whose training speech is there, made of toys in place of packages."""
    work = tmp_path_factory.mktemp("mini")
    for i, source in enumerate(mini_data.SOURCES):
        file = work / "packages" / source.package / source.files.replace("**", "some").replace("*", "toy")
        file.parent.mkdir(parents=True)
        wav = toys.speechlike(1.0, i)
        if file.suffix == ".g722":
            _write_g722(file, wav)
        else:
            soundfile.write(file, wav, 16000)
    mini_data.prepare(work)
    return work


def _write_g722(file, wav):
    codec = av.CodecContext.create("g722", "w")
    codec.sample_rate, codec.layout, codec.format = 16000, "mono", "s16"
    frame = av.AudioFrame.from_ndarray(jh.audio.pcm16(wav)[None], format="s16", layout="mono")
    frame.sample_rate = 16000
    file.write_bytes(b"".join(bytes(packet) for packet in [*codec.encode(frame), *codec.encode(None)]))


def test_training_speech_of_mini(prepared):
    """Every package gives every speed, one clip after the other, and no clip is silent or too loud."""
    found = json.loads((prepared / "clips.json").read_text())
    assert set(found["seconds"]) == {source.package for source in mini_data.SOURCES}
    lengths = np.diff(found["starts"]) / 16000
    speeds = np.tile(1 / np.array(mini_data.SPEEDS), len(mini_data.SOURCES))
    np.testing.assert_allclose(lengths, speeds, atol=0.03)
    speech = mini_data.Speech(prepared)
    batch = speech.batch(np.random.default_rng(0), 32, 4000)
    assert batch.dtype == np.float32 and batch.shape == (32, 4000)
    assert np.abs(batch).max() <= 0.99 and (np.abs(batch).max(axis=1) > 0).all()
    np.testing.assert_array_equal(batch, speech.batch(np.random.default_rng(0), 32, 4000))


@pytest.mark.quick_compilation
def test_training_of_mini_resumes(prepared, capsys):
    """Interrupted after the first checkpoint, it ends with the weights of an unbroken training."""
    whole = mini_train.train(prepared, mini_train.TINY)
    written = (prepared / "mini.msgpack").read_bytes()
    (prepared / "checkpoint.msgpack").unlink()
    mini_train.train(prepared, mini_train.TINY, until=mini_train.TINY.every)
    assert (prepared / "mini.msgpack").read_bytes() != written
    mini_train.train(prepared, mini_train.TINY)
    assert (prepared / "mini.msgpack").read_bytes() == written == mini.pack(whole)
    loaded = mini.unpack(prepared / "mini.msgpack")
    assert np.abs(loaded["codebooks"]).max() > 0
    steps = [json.loads(line)["step"] for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert steps == [2, 4, 2, 4]


def test_the_committed_results_make_the_table_of_mini():
    results = json.loads((mini_evaluate.HERE / "results.json").read_text())
    assert mini_evaluate.table(results) in (mini_evaluate.HERE / "README.md").read_text()
    assert mini_evaluate.missed(results) == []
