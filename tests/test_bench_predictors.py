"""The predictor benchmark runs at a tiny size, checks agreement before it times, and writes its numbers."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
import soundfile
from click.testing import CliRunner

from benchmarks import bench_predictors
from jaxhack import registry
from jaxhack.types import Predictor


@pytest.mark.parametrize("name, packages", [("nisqa", ("torch", "nisqa")), ("dnsmos-p808", ("speechmos",))])
def test_tiny_run(name, packages, shared, tmp_path):
    for package in packages:
        pytest.importorskip(package)
    out = tmp_path / "speed.json"
    arguments = ["--tiny", "--case", name, "--models", shared / "models", "--speech", shared / "speech", "--out", out]
    run = CliRunner().invoke(bench_predictors.main, [str(a) for a in arguments], catch_exceptions=False)
    assert run.exit_code == 0
    result = json.loads(out.read_text())
    assert next(iter(result["agreement"].values())) < 1e-3
    assert [row["side"] for row in result["rows"]] == ["port", "published"]
    assert all(row["audio_s_per_s"] > 0 for row in result["rows"])
    assert result["rows"][0]["times_published"] > 0


def test_every_case_is_a_registered_predictor():
    for name in bench_predictors.CASES:
        assert registry.entry(name).kind == "predictor"


@pytest.fixture
def stub():
    def heads(params, wav, length):
        return jnp.stack([1.0 + jnp.sum(wav), 2.0])

    return Predictor("stub", 16000, {}, heads, ("a", "b"), (1.0, 5.0), True, 1)


@pytest.fixture
def file(tmp_path):
    soundfile.write(tmp_path / "silence.wav", np.zeros(16000), 16000)
    return tmp_path / "silence.wav"


def test_sides_that_differ_are_not_timed(stub, file):
    with pytest.raises(ValueError, match=r"do not agree.*stub \(MOS\) 0\.5 > 0\.001"):
        bench_predictors.bench(stub, lambda: lambda files: np.array([[1.0, 2.5]]), [file], bench_predictors.TINY)


def test_gradient_and_absence(stub, file):
    def published():
        raise ImportError("no such package")

    result = bench_predictors.bench(stub, published, [file], bench_predictors.TINY, gradient=True)
    assert [row["side"] for row in result["rows"]] == ["port", "port, gradient"]
    assert "agreement not checked" in result["notes"][0] and not result["agreement"]
    _, (gradient, _) = bench_predictors.port_sides(stub, [file], gradient=True).values()
    np.testing.assert_array_equal(gradient([file]), np.ones((1, 16000)))
