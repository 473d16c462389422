"""What the benchmarks share: calls take turns and the first is not counted; recordings; what is written down."""

import json
import math

import numpy as np
import pytest
import soundfile

from benchmarks import timing


def test_calls_take_turns_and_the_first_is_not_counted():
    order = []
    spent = timing.in_turns({name: lambda name=name: order.append(name) for name in "ab"}, 3)
    assert order == list("abababab")
    assert list(spent) == ["a", "b"]
    assert all(0 < s["min_s"] <= s["median_s"] <= s["max_s"] for s in spent.values())


def test_compiling_stands_apart():
    run, seconds = timing.compiled(lambda x: x + 1.0, np.float32(2))
    assert run(np.float32(2)) == 3.0 and seconds > 0


def test_agreement():
    assert timing.agree("x", [1.0, 2.0], [1.0, 2.25], 0.25) == 0.25
    for theirs in ([1.0, 2.5], [1.0, math.nan]):
        with pytest.raises(ValueError, match=r"do not agree.*x .* > 0\.25"):
            timing.agree("x", [1.0, 2.0], theirs, 0.25)


def test_recordings_are_spread_over_the_folder(tmp_path):
    for i in range(5):
        soundfile.write(tmp_path / f"{i}.flac", np.full(8000 if i else 100, i / 8), 16000)
    wavs = timing.recordings(tmp_path, 2, 0.25)
    np.testing.assert_array_equal(wavs, np.array([[1 / 8], [3 / 8]]) * np.ones((1, 4000)))
    assert wavs.dtype == np.float32
    with pytest.raises(ValueError, match=r"holds 4 FLAC recordings longer than 0\.25 s; 5 are needed"):
        timing.recordings(tmp_path, 5, 0.25)


def test_what_is_written_down(tmp_path, capsys):
    out = tmp_path / "x.json"
    result = {"rows": [{"side": "a", "s": 0.123}, {"side": "b"}], "agreement": {"scores": 1e-5}, "notes": ["so"]}
    written = timing.publish(result, "title", {"side": "", "s": ".1f"}, out)
    assert json.loads(out.read_text()) == written
    assert written["rows"] == result["rows"] and written["peak_memory_mb"] > 1
    assert {"cpu", "cores", "load", "device", "jax"} <= set(written["machine"])
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("title", "0.1", "agreement, scores: 1e-05", "so", "peak memory"))
