"""The benchmark of all ports runs, counts what is computed, and refuses to time sides that disagree."""

import importlib.util
import json
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner
from jax import lax

from benchmarks import bench_ports as bench
from jaxhack import registry

pytestmark = pytest.mark.quick_compilation


def run(shared, out, *cases):
    arguments = ["--models", shared / "models", "--speech", shared / "speech", "--tiny", "--out", out]
    arguments += [part for case in cases for part in ("--case", case)]
    done = CliRunner().invoke(bench.main, [str(a) for a in arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return json.loads(out.read_text())


def test_tiny(shared, tmp_path):
    for package in ("torch", "transformers", "encodec", "nisqa"):
        importlib.util.find_spec(package) or pytest.skip(f"needs {package}")
    result = run(shared, tmp_path / "ports.json", "nisqa", "utmos", "encodec-48khz", "mimi", "mini")
    found = [(row["port"], row["task"], row["counted"]) for row in result["rows"]]
    both = [("encode", "torch"), ("decode", "torch")]
    expected = [("nisqa", "score", "torch"), ("utmos", "score", "torch")]
    expected += [(name, *task) for name in ("encodec-48khz", "mimi") for task in both]
    assert found == [*expected, ("mini", "encode", "program"), ("mini", "decode", "program")]
    for row in result["rows"]:
        assert row["share"] > 0 and row["gflop_per_audio_s"] > 0 and row["audio_s_per_s"] > 0
        assert row["port"] == "mini" or row["times_official"] > 0
    assert len(result["agreement"]) == 6 and max(result["agreement"].values()) < 1e-3
    assert set(result["ceiling_gflop_per_s"]) == {"jax", "torch"}


def test_without_torch(shared, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    result = run(shared, tmp_path / "ports.json", "mini", "mimi")
    assert [row["port"] for row in result["rows"]] == ["mini", "mini"]
    assert list(result["ceiling_gflop_per_s"]) == ["jax"]
    assert any("mimi: its random weights come from the official side" in note for note in result["notes"])


def test_all_ports_are_there():
    named = {name.removesuffix("-base") for name in bench.CASES}
    assert set(registry.names()) - named == {"dnsmos-onnx", "dnsmos-p808-onnx", "plcmos"}, "black boxes"


def test_turns_of_loops_are_counted():
    def function(x, kernel):
        step = lambda x, _: (x @ x, None)  # noqa: E731
        y = lax.scan(step, x, None, length=5)[0]
        return lax.conv_general_dilated(y[None], kernel, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))

    flop = 5 * 2 * 8**3 + 2 * 6 * 3 * 8 * 4  # five products; six rows of three taps
    found = bench.counted_in_program(function, jnp.ones((8, 8)), jnp.ones((3, 8, 4)))
    assert found == pytest.approx(flop / 1e9)


def test_lstms_are_counted():
    torch = pytest.importorskip("torch")
    net = torch.nn.LSTM(5, 7, batch_first=True, bidirectional=True).eval()
    with torch.no_grad():
        found = bench.counted_by_torch(lambda: net(torch.zeros(1, 10, 5)))
    assert found == pytest.approx(2 * 2 * 10 * 28 * (5 + 7) / 1e9)


def test_sides_that_disagree_are_not_timed():
    x = np.ones((2, 3), np.float32)
    task = bench.Task("stub", "double", lambda gain, x: gain * x, jnp.float32(2.0), (x,), 1.0, lambda i: 2.1 * x[i])
    with pytest.raises(ValueError, match=r"do not agree.*stub double \(relative\) 0\.048 > 0\.001"):
        bench.measure(task, 1.0, 1)
