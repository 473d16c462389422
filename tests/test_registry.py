import subprocess
import sys
import tomllib
import types
from pathlib import Path

import fakes
import numpy as np
import pytest

import jaxhack
from jaxhack import registry
from jaxhack.settings import DEFAULT_PREDICTOR


@pytest.fixture
def listed(monkeypatch, tmp_path):
    """The fakes under names of their own, and their weights in a folder."""
    monkeypatch.setitem(
        registry.ENTRIES, "level", registry.Entry("predictor", "fakes:level", "fakes:WEIGHTS", "for tests")
    )
    monkeypatch.setitem(
        registry.ENTRIES, "delayed", registry.Entry("codec", "fakes:delayed_codec", "fakes:WEIGHTS", "for tests")
    )
    (tmp_path / "fake.bin").write_bytes(b"fake")
    return tmp_path


def test_names_are_made_with_their_weights(listed, monkeypatch):
    seen, made = {}, fakes.level_16k()
    monkeypatch.setattr(fakes, "level", lambda paths: seen.update(paths) or made)
    assert registry.predictor("level", models=listed).name == "level"
    assert seen == {"fake.bin": listed / "fake.bin"}
    assert registry.codec("delayed", models=listed).hop == 160
    assert registry.weights_of("level") == fakes.WEIGHTS
    assert "level" in registry.names("predictor") and "delayed" not in registry.names("predictor")


@pytest.mark.parametrize(
    ("make", "name", "reason"),
    [
        (registry.predictor, "niska", "Unknown predictor 'niska'; did you mean nisqa"),
        (registry.predictor, "DNSMOS", "did you mean dnsmos"),
        (registry.predictor, "zzzzzz", "known: nisqa, nisqa-tts, dnsmos, dnsmos-p808"),
        (registry.predictor, "lyra", "'lyra' is a codec, not a predictor"),
        (registry.codec, "nisqa", "'nisqa' is a predictor, not a codec; known: mini, lyra"),
        (registry.codec, "lira", "did you mean lyra"),
    ],
)
def test_unknown_names_are_answered_with_near_ones(make, name, reason):
    with pytest.raises(ValueError, match=reason):
        make(name)


def test_rates(listed):
    assert registry.predictor("level", models=listed, sample_rate=48000).min_samples == 9600
    fixed = fakes.level_16k()
    assert registry.predictor(fixed, sample_rate=16000) is fixed
    with pytest.raises(ValueError, match="16000 Hz only, not 8000 Hz"):
        registry.predictor(fixed, sample_rate=8000)


def test_black_boxes(monkeypatch):
    calls = []
    fake = types.ModuleType("ports.blackbox")
    fake.onnx_predictor = lambda path, *, sample_rate: calls.append(("onnx", path, sample_rate))
    fake.callable_predictor = lambda what, *, sample_rate: calls.append(("call", what, sample_rate))
    monkeypatch.setitem(sys.modules, "ports.blackbox", fake)
    registry.predictor("some/Model.ONNX")
    registry.predictor("my.package:score", sample_rate=8000)
    registry.predictor(np.mean)
    assert calls == [("onnx", "some/Model.ONNX", 16000), ("call", "my.package:score", 8000), ("call", np.mean, 16000)]


@pytest.mark.parametrize("name", list(registry.ENTRIES))
def test_every_entry_that_is_here_leads_somewhere(name):
    entry = registry.ENTRIES[name]
    pytest.importorskip(entry.make.partition(":")[0], exc_type=ModuleNotFoundError)
    assert callable(registry._load(entry.make))
    for weight in registry.weights_of(name):
        assert len(weight.sha256) == 64 and weight.size > 0 and weight.licence and weight.origin
        assert weight.source.startswith(("https://", "pypi:", "bundled:"))


def test_what_the_default_audit_needs_is_installed_with_it():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    for weight in registry.weights_of(DEFAULT_PREDICTOR):
        kind, requirement = weight.source.split(":")[:2]
        assert kind == "pypi" and requirement.replace("==", ">=") in project["project"]["dependencies"]
    assert "*.msgpack" in project["tool"]["setuptools"]["package-data"]["ports"]


def test_imports_are_quick():
    code = "import sys, jaxhack, jaxhack.cli; print('jax' in sys.modules, 'soundfile' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "False"]


def test_public_names():
    assert jaxhack.predictor is registry.predictor and jaxhack.audio.read
    assert {"predictor", "codec", "audio", "weights", "score_files"} <= set(dir(jaxhack))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = jaxhack.nothing
