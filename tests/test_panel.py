"""The panel by name, and its members that a model or a package makes: known values, undefined cases, padding."""

import json
import sys
import types
from importlib import metadata

import jax
import numpy as np
import pytest
import toys

import jaxhack as jh
from jaxhack import audio, detect, judgement, measures, registry, rows, run
from jaxhack.measures import evaluate, make_panel, matched_precision, pesq_measure, word_error_rate
from jaxhack.measures.pesq import pesq
from jaxhack.types import Measure, Recogniser

RATE = 16000
X = toys.speechlike(1.0, 0)
Y = (X + toys.speechlike(1.0, 1) / 10).astype(np.float32)


def fake_recogniser(heard):
    """Says how often the sign changes, in tens; keeps what it was asked."""

    def transcribe(wav):
        heard.append(len(wav))
        level = "quiet" if np.abs(wav).mean() < 500 else "loud"
        return f"Some {level} words, {np.sum(np.diff(np.sign(wav)) != 0) // 10}!"

    return Recogniser("fake", RATE, transcribe, {"version": "1"})


# By name


def test_names_and_margins(monkeypatch):
    entry = registry.Entry("codec", "toys:listed_codec", "toys:NO_WEIGHTS", "for tests")
    monkeypatch.setitem(registry.ENTRIES, "toy", entry)
    panel = make_panel(" estoi , si_sdr=2,speech_bert_score_toy=0", RATE)
    assert [m.name for m in panel] == ["estoi", "si_sdr", "speech_bert_score_toy"]
    assert [m.rule.margin for m in panel] == [0.02, 2.0, 0.0]
    assert make_panel([panel[0], "si_sdr"], RATE)[0] is panel[0]
    assert [m.name for m in measures.default_panel(RATE)] == ["estoi", "si_sdr"]
    assert {"pesq", "wer", "speaker_similarity", "speech_bert_score_lyra", "dnsmos"} < set(measures.kinds())


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("estoi,sisdr", "Unknown measure 'sisdr'; did you mean si_sdr"),
        ("", "at least one measure"),
        ("estoi=big", "margin of estoi must be a finite number ≥ 0, got 'big'"),
        ("estoi=-0.1", "got '-0.1'"),
        ("estoi=nan", "got 'nan'"),
        ("estoi=", "got ''"),
        ("estoi,estoi=0.1", "different names"),
        ([], "at least one measure"),
    ],
)
def test_what_no_panel_is(text, match):
    with pytest.raises(ValueError, match=match):
        make_panel(text, RATE)


def test_a_floor_makes_votes_void_as_a_cap_does():
    rule = {"wer": detect.Rule(0.1, higher_is_better=False, floor=0.5)}
    said = detect.votes({"wer": [0.0, 0.4, 0.6]}, {"wer": [0.2, 0.4, 0.9]}, rule)
    assert said.worse.tolist() == [[True, False, True]] and said.void.tolist() == [[False, False, True]]


# By a model


def test_matched_precision_by_hand():
    reference, estimate = np.float32([[1, 0], [0, 2], [9, 9]]), np.float32([[3, 4], [0, -1], [7, 1]])
    assert matched_precision(reference, estimate, 2) == pytest.approx((0.8 + 0.0) / 2)
    assert matched_precision(reference, reference * 3, 3) == pytest.approx(1)
    assert matched_precision(reference, 0 * estimate, 2) == 0 and np.isnan(matched_precision(reference, estimate, 0))


def panel_of_toys(rate=RATE):
    return (
        measures.speaker_similarity(toys.embedder(), rate),
        measures.speech_bert_score(toys.encoder(), rate),
        measures.no_reference(toys.predictor(), rate),
    )


def test_measures_by_models():
    panel, same = panel_of_toys(), {}
    run = jax.jit(lambda x, y, n: evaluate(panel, x, y, n))
    same, worse = run(X, X, RATE), run(X, Y, RATE)
    assert list(same) == ["speaker_similarity", "speech_bert_score_toy", "toy"]
    predictor = toys.predictor()
    for values, wav in ((same, X), (worse, Y)):
        assert values["toy"] == pytest.approx(float(predictor.score(predictor.params, wav, RATE)), abs=1e-5)
    for name in ("speaker_similarity", "speech_bert_score_toy"):
        assert same[name] == pytest.approx(1, abs=1e-5) and worse[name] < 0.9999
    padded = [np.concatenate([wav, np.full(4000, fill, np.float32)]) for wav, fill in ((X, 2.0), (Y, -3.0))]
    for name, value in run(*padded, RATE).items():
        assert value == pytest.approx(float(worse[name]), abs=1e-5), f"the padding of {name} was read"
    assert all(np.isnan(value) for value in run(X, Y, toys.HOP - 1).values())
    assert [m.about.get("weights") for m in panel] == [{}, {"encoder.bin": "1" * 64}, {}]


def test_measures_resample_for_their_models():
    def values(rate, *wavs):
        return jax.jit(lambda x, y: evaluate(panel_of_toys(rate), x, y, len(x)))(*wavs)

    low, high = values(RATE, X, Y), values(32000, *(np.asarray(jh.dsp.resample(w, RATE, 32000)) for w in (X, Y)))
    for name in low:
        assert high[name] == pytest.approx(float(low[name]), abs=2e-2)
    assert [m.min_samples for m in panel_of_toys(32000)] == [2 * toys.HOP] * 3


def test_gradients_of_measures_by_models_are_finite():
    silent = np.zeros(RATE, np.float32)
    for measure in panel_of_toys()[:2]:
        slope = jax.jit(jax.grad(lambda x, y, m=measure: m.fn(m.params, x, y, RATE), 1))
        assert (
            np.abs(slope(X, Y)).max() > 0 and np.isfinite(slope(X, Y)).all() and np.isfinite(slope(X, silent)).all()
        )


def test_weights_of_a_measure_are_arguments():
    """Other parameters in the same compiled program give other values."""
    panel = panel_of_toys()

    @jax.jit
    def judge(params, x, y):
        return evaluate([m._replace(params=p) for m, p in zip(panel, params, strict=True)], x, y, RATE)

    params = tuple(m.params for m in panel)
    ours, moved = judge(params, X, Y), judge(tuple(p + 1 for p in params), X, Y)
    assert all(abs(ours[name] - moved[name]) > 1e-6 for name in ours)


REAL = ["speaker_similarity", "speech_bert_score_distillmos-frames", "speech_bert_score_mini", "dnsmos-p808"]


@pytest.mark.quick_compilation
@pytest.mark.parametrize("name", REAL)
def test_real_models_hear_noise(name, shared):
    """On real speech: clean against itself, and against noise at 5 dB."""
    needs = {"speaker_similarity": "ge2e", "dnsmos-p808": "dnsmos-p808", "speech_bert_score_mini": "mini"}
    needs = needs.get(name, "distillmos-frames")
    absent = [w.file for w in registry.weights_of(needs) if not jh.weights.find(w, shared / "models")]
    if absent:
        pytest.skip(f"needs the weights {', '.join(absent)}, which are absent")
    stem = "en_010_vctk_p232_p232_015"
    files = shared / "speech" / f"{stem}.flac", shared / "degraded" / f"{stem}__noise_5dB.flac"
    clean, noisy = (audio.read(file, sample_rate=RATE).wav[:32000] for file in files)
    (measure,) = make_panel(name, RATE, models=shared / "models")
    run = jax.jit(lambda p, x, y, n: evaluate([measure._replace(params=p)], x, y, n)[name])
    same, worse = (float(run(measure.params, clean, wav, 32000)) for wav in (clean, noisy))
    assert same - worse > measure.rule.margin
    assert name == "dnsmos-p808" or same == pytest.approx(1, abs=1e-4)


# On the host


@pytest.mark.parametrize(
    ("reference", "hypothesis", "rate"),
    [
        ("", "", 0),
        ("", "a b", 2),
        ("a b", "", 1),
        ("The cat.", "the cat", 0),
        ("don't stop – well-known", "Dont stop well known", 0),
        ("a b c d", "a x c", 0.5),
        ("a b", "b c d e", 2),
        ("a b", "x a b", 0.5),
    ],
)
def test_word_errors(reference, hypothesis, rate):
    assert word_error_rate(reference, hypothesis) == rate


def test_wer_recognises_the_same_audio_once_and_never_decides_on_nothing():
    heard, known = [], {}
    measure = measures.wer_measure(fake_recogniser(heard), RATE)
    assert measure.host and not measure.rule.higher_is_better
    assert {"recogniser", "version", "normaliser"} <= set(measure.about)
    assert measure.fn(known, X, X, RATE) == 0 and len(heard) == 1
    padded = [np.concatenate([wav, np.ones(4000, np.float32)]) for wav in (X, Y)]
    assert measure.fn(known, *padded, RATE) == measure.fn(known, X, Y, RATE) == 0.25
    assert heard == [RATE, RATE] and len(known) == 2
    half = measures.wer_measure(fake_recogniser(heard), 8000)
    half.fn({}, X[:8000], X[:8000], 8000)
    assert heard[-1] == RATE, "not resampled"
    deaf = measures.wer_measure(Recogniser("deaf", RATE, lambda wav: "...", {}), RATE)
    with pytest.raises(ValueError, match="deaf recognises nothing in the input"):
        deaf.fn({}, X, X, RATE)
    lost = measures.wer_measure(Recogniser("x", RATE, lambda wav: "a b" if abs(wav[0]) == 1 else "", {}), RATE)
    assert lost.fn({}, np.float32([1 / 32768]), np.float32([0.5]), 1) == 1, "y without words is all wrong"


def test_transcripts_outlive_a_crash(tmp_path):
    path = tmp_path / "transcripts.jsonl"
    kept = run.Transcripts(path)
    kept["a"], kept["b"] = "eins „zwei“", "drei"
    path.write_bytes(path.read_bytes()[:-4])
    again = run.Transcripts(path)
    assert dict(again) == {"a": "eins „zwei“"}
    again["b"] = "vier"
    assert dict(run.Transcripts(path)) == {"a": "eins „zwei“", "b": "vier"}


@pytest.fixture
def speech(shared):
    return [audio.read(f, sample_rate=RATE).wav for f in sorted((shared / "speech").glob("en_*.flac"))[2:5]]


def test_pocketsphinx_hears_every_utterance_as_if_it_were_the_first(speech):
    pytest.importorskip("pocketsphinx")
    transcribe = registry.recogniser().transcribe
    clips = [audio.pcm16(wav[8000:32000]) for wav in speech[:2]]
    first = [transcribe(clip) for clip in clips]
    assert "things" in first[0], first
    assert transcribe(clips[0][:0]) == transcribe(clips[0][:100]) == ""
    assert [transcribe(clip) for clip in reversed(clips)] == first[::-1]


def test_whisper_decodes_without_chance(tmp_path, monkeypatch):
    made, asked = [], []

    class WhisperModel:
        def __init__(self, folder, **options):
            made.append((folder, options))

        def transcribe(self, wav, **options):
            asked.append((wav, options))
            return iter([types.SimpleNamespace(text=" The"), types.SimpleNamespace(text=" cat.")]), None

    monkeypatch.setitem(sys.modules, "faster_whisper", types.SimpleNamespace(WhisperModel=WhisperModel))
    monkeypatch.setattr("ports.recognisers.version", lambda name: "1.0")
    with pytest.raises(ValueError, match=r"no model\.bin"):
        registry.recogniser(tmp_path)
    (tmp_path / "model.bin").write_bytes(b"weights")
    recogniser = registry.recogniser(tmp_path)
    assert recogniser.transcribe(np.int16([0, -16384])) == "The cat." and recogniser.transcribe(np.int16([])) == ""
    assert len(asked) == 1 and asked[0][0].dtype == np.float32 and asked[0][0].tolist() == [0, -0.5]
    assert asked[0][1]["temperature"] == 0.0 and not asked[0][1]["condition_on_previous_text"]
    assert made[0][1]["local_files_only"] and len(recogniser.about["weights"]["model.bin"]) == 64


@pytest.mark.parametrize(("name", "package"), [("pesq", "pesq"), ("wer", "pocketsphinx")])
def test_a_missing_package_is_named(name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=f"{package}.*pip install"):
        make_panel(name, RATE)


def test_pesq_of_known_pairs(speech):
    pytest.importorskip("pesq")
    x = speech[0]
    assert pesq(x, x, RATE) == pytest.approx(4.6439, abs=1e-4)
    noisy = x + 0.02 * np.random.default_rng(0).normal(size=len(x)).astype(np.float32)
    assert 1 < pesq(x, noisy, RATE) < 2
    measure, padding = pesq_measure(RATE), np.ones(4000, np.float32)
    assert measure.fn(None, np.append(x, padding), np.append(noisy, -padding), len(x)) == pesq(x, noisy, RATE)
    twice = [np.asarray(jh.dsp.resample(wav, RATE, 32000)) for wav in (x, noisy)]
    assert pesq(*twice, 32000) == pytest.approx(pesq(x, noisy, RATE), abs=0.05)
    assert measure.about["version"] == metadata.version("pesq") and measure.min_samples == 4000


def test_pesq_undefined_says_why():
    pytest.importorskip("pesq")
    for x, y, match in (
        (X[:3999], Y[:3999], "a quarter of a second"),
        (0 * X, Y, "silent reference"),
        (X, 0 * Y, "silent estimate"),
        (1e-4 * X, 1e-4 * Y, None),
    ):
        if match:
            with pytest.raises(ValueError, match=match):
                pesq(x, y, RATE)
        else:
            assert 1 <= pesq(x, y, RATE) <= 4.65, "PESQ levels what it hears"


# The whole job


def audit(folder, out, **more):
    options = {"seeds": 1, "steps": 1, "batch": 2, "group": 2, "crop_seconds": 0.5, "profile": "paper"} | more
    return jh.audit([folder], predictor=toys.predictor(), codec=toys.codec(), out=out, **options)


@pytest.mark.standard_promotion
@pytest.mark.quick_compilation
@pytest.mark.usefixtures("one_device", "no_examples")
def test_an_audit_with_measures_of_the_host(tmp_path, monkeypatch):
    """Columns, votes, record and transcripts; a failing one costs its own value; resumed, nothing is decoded."""
    clips, out, heard, asked = tmp_path / "clips", tmp_path / "out", [], []
    clips.mkdir()
    for i, name in enumerate(("a1", "a2", "b1", "b2")):
        audio.write(clips / f"{name}.wav", toys.speechlike(1 + i / 10, i), RATE)
    (clips / "manifest.csv").write_text("file,speaker\n" + "".join(f"{s}{i}.wav,{s}\n" for s in "ab" for i in (1, 2)))
    monkeypatch.setattr(registry, "recogniser", lambda model: fake_recogniser(heard))

    def fragile(params, reference, estimate, length):
        asked.append((reference, estimate))
        if len(asked) == 2:
            raise RuntimeError("the package\nfell over")
        return 0.5

    panel = ["wer=0", Measure("fragile", detect.Rule(0.1), 1, fragile, host=True), panel_of_toys()[1]]
    with pytest.raises(ValueError, match="toy is under attack"):
        audit(clips / "manifest.csv", out, panel=panel_of_toys())
    summary = audit(clips / "manifest.csv", out, panel=panel)
    found = rows.read(out / "rows.parquet")
    record = json.loads((out / "run.json").read_text())["record"]
    assert record["measures"]["wer"]["recogniser"] == "fake" and record["panel"]["wer"]["floor"] == 0.5
    assert summary["weights"]["encoder.bin"] == "1" * 64
    assert [r["status"] for r in found].count("undefined") == 1
    failed = next(r for r in found if r["status"] == "undefined")
    assert "fragile: RuntimeError: the package fell over" in failed["reason"] and failed["verdict"] == "undetermined"
    assert failed["fragile_attacked"] is None and failed["wer_attacked"] is not None
    for reference, estimate in asked:
        assert reference.shape == estimate.shape and len(reference) % 1600 == 0, "padding was passed on"
        assert all(np.array_equal(wav, audio.pcm16(wav) / np.float32(32768)) for wav in (reference, estimate))
    assert all(
        ("wer" in (r["votes"] + r["void"]).split(",")) == (r["wer_attacked"] > r["wer_reference"]) for r in found
    )
    count, stored = len(heard), (out / "transcripts.jsonl").read_text()
    assert count == len(stored.splitlines()) and "wer" in (out / "table.csv").read_text()
    assert "WER" in (out / "report.html").read_text()

    (out / "rows.parquet").unlink()
    asked[:] = [None] * 2
    audit(clips / "manifest.csv", out, panel=panel, resume=True)
    assert len(heard) == count and (out / "transcripts.jsonl").read_text() == stored
    again = rows.read(out / "rows.parquet")
    assert [r["wer_attacked"] for r in again] == [r["wer_attacked"] for r in found]
    assert all(r["status"] == "ok" for r in again)
    with pytest.raises(ValueError, match="another run"):
        audit(clips / "manifest.csv", out, panel=["wer=0.1", *panel[1:]], resume=True)


def test_what_the_host_never_sees():
    """Silence and what is too short have a status already; no package is asked about them."""

    def never(*args):
        raise AssertionError

    panel = (Measure("never", detect.Rule(0.1), 100, never, host=True),)
    for wav in (np.zeros(200, np.float32), X[:99]):
        heard = judgement.on_host(panel, wav, [wav], {})
        assert np.isnan(heard.values["never"]).all() and heard.reasons == {}
