import hashlib
import inspect
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import fakes
import jax.numpy as jnp
import numpy as np
import pytest
import toys

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


@pytest.mark.parametrize("use", [registry.predictor, registry.places, registry.listed, registry.smoothing])
def test_names_that_nest_without_end_are_refused(use):
    with pytest.raises(ValueError, match="nested too deep"):
        use("smoothed(" * 5000 + "nisqa" + ")" * 5000)


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
        assert weight.licence and weight.origin
        if weight.sha256 is None:
            assert weight.size is None and weight.source is None
        else:
            assert len(weight.sha256) == 64 and weight.size > 0
            assert weight.source.startswith(("https://", "pypi:", "bundled:"))


@pytest.mark.parametrize("name", list(registry.ENTRIES))
def test_every_port_asks_for_its_files_alike(name, tmp_path):
    make, files = registry._load(registry.ENTRIES[name].make), [w.file for w in registry.weights_of(name)]
    with pytest.raises(
        ValueError, match=rf"^{name} needs the file {re.escape(files[0])}, .* names only \['other'\]\.$"
    ):
        make({"other": tmp_path})
    with pytest.raises(ValueError, match=rf"^{name} needs the file {re.escape(files[0])}, and '.*' is not a file\.$"):
        make({file: tmp_path / file for file in files})


@pytest.mark.parametrize("name", [name for name in registry.ENTRIES if "onnx" not in name and name != "plcmos"])
def test_every_port_in_flax_takes_a_dtype(name):
    dtype = inspect.signature(registry._load(registry.ENTRIES[name].make)).parameters["dtype"]
    assert dtype.kind is dtype.KEYWORD_ONLY and dtype.default is jnp.float32


def test_a_dtype_reaches_the_port(listed, monkeypatch):
    seen = []
    monkeypatch.setattr(fakes, "level", lambda paths, *, dtype=jnp.float32: seen.append(dtype))
    for dtype in (None, jnp.float32, jnp.bfloat16):
        with pytest.raises(AttributeError):  # nothing was made
            registry.predictor("level", models=listed, sample_rate=8000, dtype=dtype)
    assert seen == [jnp.float32, jnp.float32, jnp.bfloat16]
    with pytest.raises(ValueError, match=r"float32 or jnp\.bfloat16; got .*float16"):
        registry.predictor("level", models=listed, dtype=jnp.float16)


@pytest.mark.parametrize(
    ("make", "name", "said"),
    [
        (registry.predictor, "plcmos", "plcmos"),
        (registry.predictor, "dnsmos-onnx", "dnsmos-onnx"),
        (registry.predictor, "a/b.onnx", r"a/b\.onnx"),
        (registry.predictor, "package.module:score", "package.module:score"),
        (registry.predictor, np.mean, "mean"),
        (registry.predictor, fakes.level(), "level"),
        (registry.codec, fakes.delayed_codec(), "delayed"),
        (registry.embedder, toys.embedder(), "toy"),
    ],
)
def test_a_dtype_is_refused_where_it_means_nothing(make, name, said):
    with pytest.raises(ValueError, match=rf"^{said} takes no dtype here; only a port in Flax does"):
        make(name, dtype=jnp.bfloat16)


def test_what_its_user_brings(tmp_path, monkeypatch):
    """Its hash is stated as it is, and none is expected."""
    monkeypatch.setattr(fakes, "WEIGHTS", fakes.TO_BRING)
    monkeypatch.setitem(registry.ENTRIES, "own", registry.Entry("codec", "fakes:brought", "fakes:WEIGHTS", ""))
    with pytest.raises(
        ValueError, match=r"^own needs own\.bin, .* no hash of it is confirmed: get it from own v1, put it"
    ):
        registry.codec("own", models=tmp_path)
    for content in (b"one", b"other"):
        (tmp_path / "own").mkdir(exist_ok=True)
        (tmp_path / "own" / "own.bin").write_bytes(content)
        made = registry.codec("own", models=tmp_path)
        assert made.weights == {"own.bin": hashlib.sha256(content).hexdigest()}


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
