import tracemalloc

import jax.numpy as jnp
import numpy as np
import pytest
import soundfile
from fakes import level, level_16k, speechlike

from jaxhack import audio, scoring
from jaxhack.inputs import Utterance, collect
from jaxhack.scoring import columns, score_files


def write_all(folder, wavs, rate=16000, subtype="FLOAT"):
    for name, wav in wavs.items():
        soundfile.write(folder / f"{name}.wav", wav, rate, subtype=subtype)
    return [Utterance(f"{name}.wav", folder / f"{name}.wav", None, name) for name in wavs]


def score(predictor, utterances, batch=1, **options):
    """One utterance a call, as on a CPU with one device."""
    return score_files(predictor, utterances, batch=batch, **options)


def expected_level(wav):
    return 10 * np.log10(np.mean(wav.astype(np.float64) ** 2))


def test_neighbours_order_and_batch_size_do_not_matter(tmp_path):
    wavs = {f"s{seconds}": speechlike(seconds, seed=seconds) * seconds / 9 for seconds in (1, 2, 5, 9)}
    utterances = write_all(tmp_path, wavs)
    predictor = level_16k()
    alone = {}
    for utterance in utterances:
        (row,) = score(predictor, [utterance], batch=1)
        assert row["score"] == pytest.approx(expected_level(wavs[row["file"][:-4]]), abs=1e-4)
        alone[row["file"]] = row
    order = [utterances[i] for i in (2, 0, 3, 1)]
    for batch in (None, 1, 3):
        for chosen in (utterances, order, order + utterances):
            rows = list(score(predictor, iter(chosen), batch=batch))
            assert [row["file"] for row in rows] == [utterance.id for utterance in chosen]
            for row in rows:
                assert row["score"] == pytest.approx(alone[row["file"]]["score"], abs=1e-4)
                assert row["changes"] == pytest.approx(alone[row["file"]]["changes"], abs=1e-4)


def test_one_compilation_a_padded_length(tmp_path):
    traces = []
    predictor = level()
    counted = predictor._replace(
        heads=lambda params, wav, length: traces.append(wav.shape) or predictor.heads(params, wav, length),
        at_rate=None,
    )
    lengths = (0.5, 1, 1.9, 2, 2.5, 2.9, 6, 5)
    utterances = write_all(tmp_path, {str(i): speechlike(s) for i, s in enumerate(lengths)})
    assert len(list(score(counted, utterances, batch=3))) == 8
    assert set(traces) == {(32000,), (48000,), (108000,)}
    once = len(traces)
    list(score(counted, utterances[::-1], batch=3))
    assert len(traces) == once  # nor is anything compiled again in a later run


@pytest.mark.parametrize("any_rate", [False, True])
def test_rates_and_channels_are_in_every_row(tmp_path, any_rate):
    wavs = {"mono": lambda w: w, "same": lambda w: np.stack([w, w], 1), "right": lambda w: np.stack([w, 0 * w], 1)}
    scores = {}
    for rate in (8000, 16000, 24000, 44100, 48000):
        folder = tmp_path / str(rate)
        folder.mkdir()
        utterances = write_all(folder, {n: f(speechlike(4, rate)) for n, f in wavs.items()}, rate, "PCM_24")
        for row in score(level() if any_rate else level_16k(), utterances):
            assert row["status"] == "ok" and row["seconds"] == 4.0
            assert row["sample_rate"] == (rate if any_rate else 16000)
            resampled = not any_rate and rate != 16000
            notes = [] if row["file"] == "mono.wav" else ["2 channels, averaged"]
            notes += [f"{rate}->16000 Hz, soxr VHQ"] if resampled else []
            assert row["reason"].split("; ") == (notes or [""])
            scores[rate, row["file"]] = row["score"]
    for (_, name), value in scores.items():
        lost = 20 * np.log10(2) if name == "right.wav" else 0
        assert value == pytest.approx(scores[16000, "mono.wav"] - lost, abs=0.01)


def test_a_rate_for_all(tmp_path):
    utterances = write_all(tmp_path, {"a": speechlike(2, 44100)}, 44100)
    (row,) = score(level(), utterances, sample_rate=48000)
    assert row["sample_rate"] == 48000 and "44100->48000 Hz, soxr VHQ" in row["reason"]
    with pytest.raises(ValueError, match="16000 Hz only"):
        next(score(level_16k(), utterances, sample_rate=48000))


def test_a_stated_rate_is_checked(tmp_path):
    (a,) = write_all(tmp_path, {"a": speechlike(1)})
    stated = [a._replace(meta={"sample_rate": rate}) for rate in ("16000", "8000", "fast")]
    rows = list(score(level(), stated))
    assert [row["status"] for row in rows] == ["ok", "unreadable", "unreadable"]
    assert "8000 Hz was stated" in rows[1]["reason"] and "no number" in rows[2]["reason"]


def test_short_clips(tmp_path):
    lengths = (0, 1, 100, 743, 3199, 3200, 6080, 6720, 32000)
    utterances = write_all(tmp_path, {str(n): speechlike(3)[:n] for n in lengths})
    rows = list(score(level(), utterances))
    assert [row["status"] for row in rows] == ["unreadable", *["too_short"] * 4, *["ok"] * 4]
    assert all((row["score"] is None) == (row["status"] != "ok") for row in rows)
    assert rows[4]["reason"] == "0.200 s; level needs 0.200 s." and rows[1]["sample_rate"] == 16000


def test_a_header_that_promises_a_little_more_than_there_is(tmp_path, monkeypatch):
    utterances = write_all(tmp_path, {"a": speechlike(1)[:3200]})
    monkeypatch.setattr(audio, "blocks", lambda *args, **options: [(np.ones(3199, np.float32), 0)])
    (row,) = score(level(), utterances)
    assert (row["status"], row["score"]) == ("too_short", None)


def test_degenerate_inputs_have_a_score_or_a_reason(tmp_path):
    seconds, rng = 160000, np.random.default_rng(0)
    click, frame = np.zeros(seconds), rng.standard_normal(320) * 0.1
    click[seconds // 2] = 1
    probes = {
        "zeros": np.zeros(seconds),
        "constant": np.full(seconds, 0.1),
        "click": click,
        "noise": rng.standard_normal(seconds) * 0.1,
        "buzz": np.tile(frame, seconds // 320),
    }
    utterances = write_all(tmp_path, probes)
    rows = {row["file"]: row for row in score(level(), utterances)}
    assert all(np.isfinite(row["score"]) for row in rows.values())
    assert rows["zeros.wav"]["score"] == pytest.approx(-100) and rows["zeros.wav"]["reason"] == "digital silence"
    assert rows["constant.wav"]["score"] == pytest.approx(-20, abs=1e-4)
    predictor = level()
    unguarded = predictor._replace(
        at_rate=None, heads=lambda p, w, n: jnp.log(jnp.zeros(2).at[0].set(jnp.max(jnp.abs(w))))
    )
    rows = list(score(unguarded, utterances))
    assert [row["status"] for row in rows] == ["failed", "ok", "ok", "ok", "ok"]
    assert rows[0]["score"] is None and rows[0]["reason"] == "level gives no finite score."
    assert rows[1]["changes"] is None  # a head may be undefined where the score is not


def test_a_long_file_is_scored_in_pieces(tmp_path):
    wav = speechlike(90) * np.linspace(0.1, 1, 90 * 16000, dtype=np.float32)
    utterances = write_all(tmp_path, {"long": wav, "short": speechlike(2)})
    long, short = score(level(max_samples=52 * 16000), utterances)
    assert long["reason"] == "scored in 2 pieces of 45.0 s, averaged by length" and short["reason"] == ""
    halves = [expected_level(half) for half in (wav[: 45 * 16000], wav[45 * 16000 :])]
    assert long["score"] == pytest.approx(np.mean(halves), abs=1e-3)
    (long,) = score(level(), utterances[:1])  # no limit of its own: at most 60 s
    assert "2 pieces of 45.0 s" in long["reason"]


def test_half_an_hour_in_bounded_memory(tmp_path):
    piece = audio.pcm16(speechlike(10, 8000))
    with soundfile.SoundFile(tmp_path / "long.wav", "w", 8000, 1, "PCM_16") as sound:
        for _ in range(180):
            sound.write(piece)
    utterance = Utterance("long.wav", tmp_path / "long.wav", None, "long")
    tracemalloc.start()
    (row,) = score(level_16k(), [utterance], batch=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (
        row["seconds"] == 1800
        and row["reason"] == "8000->16000 Hz, soxr VHQ; scored in 30 pieces of 60.0 s, averaged by length"
    )
    assert row["score"] == pytest.approx(expected_level(piece / 32768), abs=0.01)
    assert peak < 0.5 * 1800 * 16000 * 4  # the whole, at the predictor's rate, would be 115 MB


def test_a_predictor_that_raises_spares_the_others(tmp_path, monkeypatch):
    def touchy(heads):
        def batched(params, wavs, lengths):
            if (wavs > 0.5).any():
                raise RuntimeError("INTERNAL: callback\nTraceback (most recent call last):\nKeyError: not this one\n")
            return wavs[:, :2]

        return batched

    monkeypatch.setattr(scoring, "_compiled", touchy)
    utterances = write_all(tmp_path, {n: np.full(16000, v) for n, v in {"a": 0.1, "b": 0.9, "c": 0.2}.items()})
    for batch in (1, 2, 3):
        rows = list(score(level(), utterances, batch=batch))
        assert [row["status"] for row in rows] == ["ok", "failed", "ok"]
        assert [row["score"] for row in rows] == [pytest.approx(0.1), None, pytest.approx(0.2)]
        assert rows[1]["reason"] == "level failed: KeyError: not this one"


def test_everything_in_a_folder_gets_a_row(tmp_path):
    write_all(
        tmp_path, {"good": speechlike(1), "a b": speechlike(1), 'it\'s "q"\n': speechlike(1), "речь": speechlike(1)}
    )
    soundfile.write(tmp_path / "good.flac", speechlike(1), 16000)
    (tmp_path / "text.wav").write_text("hello")
    (tmp_path / "zero.wav").touch()
    (tmp_path / "cut.wav").write_bytes((tmp_path / "good.wav").read_bytes()[:20000])
    (tmp_path / "self.wav").symlink_to("self.wav")
    (tmp_path / "sub").symlink_to(tmp_path)
    (tmp_path / ".hidden.wav").write_text("no")
    rows = {row["file"]: row for row in score(level(), collect([tmp_path]))}
    good = {"good.wav", "good.flac", "a b.wav", 'it\'s "q"\n.wav', "речь.wav"}
    bad = {"text.wav", "zero.wav", "cut.wav", "self.wav"}
    assert set(rows) == good | bad
    assert {name for name, row in rows.items() if row["status"] == "ok"} == good
    assert all(rows[name]["status"] == "unreadable" and rows[name]["reason"] for name in bad)
    assert list(rows["good.wav"]) == columns(level())


def test_rows_come_as_they_are_ready(tmp_path):
    """A generator of inputs is not read to its end first."""
    (a,) = write_all(tmp_path, {"a": speechlike(1)})

    def endless():
        while True:
            yield a

    rows = score(level(), endless(), batch=8)
    assert next(rows)["score"] == next(rows)["score"]
