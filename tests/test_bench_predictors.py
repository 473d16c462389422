"""The benchmark runs at a tiny size, checks agreement before it times, and writes its numbers."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
import soundfile

from benchmarks import bench_predictors
from jaxhack.types import Predictor


def test_tiny_run(shared, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("nisqa")
    out = tmp_path / "speed.json"
    result = bench_predictors.main(["--tiny", "--case", "nisqa", "--shared", str(shared), "--out", str(out)])
    assert json.loads(out.read_text()) == result
    row = result["predictors"]["nisqa"]
    assert row["max_difference"] < 1e-3
    assert row["port"]["median"] > 0 and row["official"]["median"] > 0


def test_sides_that_differ_are_not_timed(tmp_path):
    def heads(params, wav, length):
        return jnp.ones(5)

    stub = Predictor("stub", 16000, {}, heads, tuple("abcde"), (1.0, 5.0), True, 1)
    file = tmp_path / "silence.wav"
    soundfile.write(file, np.zeros(16000), 16000)
    case = bench_predictors.Case(lambda _: stub, lambda _: lambda files: np.full((1, 5), 1.5), 0.4)
    with pytest.raises(ValueError, match=r"the sides differ by 0\.5, expected ≤ 0\.4"):
        bench_predictors.measure(case, tmp_path, [file], bench_predictors.TINY)
    row = bench_predictors.measure(case._replace(tolerance=0.6), tmp_path, [file], bench_predictors.TINY)
    assert row["max_difference"] == 0.5 and row["ratio"] > 0
