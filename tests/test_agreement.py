"""Agreement with ratings: the statistics against SciPy, intervals against a known truth, and the command."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
import toys
from click.testing import CliRunner

import jaxhack as jh
from jaxhack import agreement
from jaxhack.cli import main
from jaxhack.data import Embedded, Rated
from jaxhack.stats import agreement as ag


def rate_level(wav, rate):
    """A predictor of the command line: the level, on a scale near 1 to 5."""
    return 6 + np.log10(np.mean(wav**2, axis=-1) + 1e-12)


def rate_peak(wav, rate):
    """Another: the peak, undefined for silence."""
    peak = np.abs(wav).max(axis=-1)
    return np.where(peak > 0, 5 * peak, np.nan)


def ratings(mos, systems=None) -> list[Rated]:
    systems = systems or [None] * len(mos)
    return [
        Rated(f"{i:05}", Path(f"{i}.wav"), s, None if m is None else float(m), None, "test")
        for i, (m, s) in enumerate(zip(mos, systems, strict=True))
    ]


def clustered(rng, systems, each, spread=(0.8, 0.35, 0.5)):
    """Scores and MOS ``[S, n]`` whose systems differ in quality, and in what the predictor makes of them."""
    between, bias, within = spread
    quality, inner = rng.normal(3, between, (systems, 1)), rng.normal(0, within, (systems, each))
    mos = quality + inner + rng.normal(0, 0.3, inner.shape)
    score = 3 + 0.8 * (quality - 3) + rng.normal(0, bias, quality.shape) + 0.6 * inner
    return score + rng.normal(0, 0.4, inner.shape), mos


def judged(scores, mos, resamples=400, seed=0, **further):
    """The summary of ``[S, n]`` arrays."""
    systems = [f"s{s}" for s in range(len(mos)) for _ in mos[s]]
    given = {"a": scores, **further}
    given = {name: np.ravel(values) for name, values in given.items()}
    return agreement.summarise(ratings(np.ravel(mos), systems), given, resamples=resamples, seed=seed)


def value(summary, level="utterance", name="a"):
    return {key: entry["value"] for key, entry in summary[level]["predictors"][name].items()}


def test_statistics_are_what_their_names_say():
    x, y = [1.0, 2.0, 3.0, 4.0, 4.0], [2.0, 1.0, 4.0, 3.0, 5.0]
    # By hand: ranks of x 1, 2, 3, 4.5, 4.5; seven pairs in the same order, two in the other, one a tie.
    expected = [7 / np.sqrt(9.5 * 10), 6 / np.sqrt(6.8 * 10), 5 / np.sqrt(9 * 10), 1.0]
    np.testing.assert_allclose(ag.statistics(x, y), expected)
    perfect = np.exp(np.arange(5.0))
    np.testing.assert_allclose(ag.statistics(perfect, np.arange(5.0))[[0, 2]], [1.0, 1.0])
    np.testing.assert_allclose(ag.statistics(100 * np.array(y), y)[:3], 1.0)
    assert ag.statistics(100 * np.array(y), y)[3] == pytest.approx(99**2 * 11), "the error is of raw scores"


@pytest.mark.parametrize(("points", "units"), [(60, 7), (40, 40), (300, 30)])
def test_a_resample_is_the_data_drawn(points, units, monkeypatch):
    """Ties, systems of unequal size: what SciPy says of data in which points stand repeatedly."""
    monkeypatch.setattr(ag, "_AT_ONCE", 7)
    monkeypatch.setattr(ag, "_ELEMENTS", 700)
    rng = np.random.default_rng(0)
    unit = rng.permutation(np.concatenate([np.arange(units), rng.integers(units, size=points - units)]))
    mos = np.round(2 * rng.normal(3, 1, points)) / 2
    scores = np.stack([mos + rng.normal(size=points), np.round(rng.normal(size=points)), 1e3 + 1e-3 * mos])
    counts = ag.draw(units, 20, 3)
    assert (counts.sum(axis=1) == units).all()
    found = ag.resampled(scores, mos, unit, counts)
    for r, chosen in enumerate(counts):
        again = np.repeat(np.arange(points), chosen[unit].astype(int))
        for p, of in enumerate(scores):
            np.testing.assert_allclose(found[p, :, r], ag.statistics(of[again], mos[again]), rtol=1e-6, atol=1e-6)


def test_a_system_is_the_mean_of_its_utterances():
    rng = np.random.default_rng(1)
    score, mos = clustered(rng, 30, 5)
    found = judged(score, mos)
    assert (found["systems"], found["system"]["n"], found["utterance"]["n"]) == (30, 30, 150)
    assert list(value(found).values()) == pytest.approx(ag.statistics(score.ravel(), mos.ravel()))
    assert list(value(found, "system").values()) == pytest.approx(ag.statistics(score.mean(1), mos.mean(1)))
    tied = ag.system_means(np.array([3.1, 3.2, 3.3, 3.3, 3.2, 3.1]), np.repeat([0, 1], 3))
    assert tied[0] == tied[1], "means that are equal on paper"


def test_intervals_cover_and_those_of_drawn_utterances_do_not():
    """80 data sets of 24 alike systems of 12; the truth is that of a very large one."""
    rng = np.random.default_rng(2)
    large = clustered(rng, 40_000, 12)
    truth = {
        "utterance": ag.statistics(*(v[:4000].ravel() for v in large)),
        "system": ag.statistics(*(v.mean(1) for v in large)),
    }
    covered = {"utterance": 0.0, "system": 0.0, "drawn utterances": 0.0}
    counts, naive = ag.draw(24, 200, 0), ag.draw(24 * 12, 200, 0)
    repeats = 80
    for _ in range(repeats):
        score, mos = clustered(rng, 24, 12)
        flat = score.reshape(1, -1), mos.ravel()
        for level, draws, units in (
            ("utterance", ag.resampled(*flat, np.repeat(np.arange(24), 12), counts), 24),
            ("system", ag.resampled(score.mean(1)[None], mos.mean(1), np.arange(24), counts), 24),
            ("drawn utterances", ag.resampled(*flat, np.arange(24 * 12), naive), 24 * 12),
        ):
            bounds = np.array([ag.interval(of, units) for of in draws[0]])
            true = truth[level if level in truth else "utterance"]
            covered[level] += np.mean((bounds[:, 0] <= true) & (true <= bounds[:, 1])) / repeats
    assert 0.90 < covered["utterance"] < 0.99 and 0.90 < covered["system"] < 0.99, covered
    assert covered["drawn utterances"] < 0.80, covered


def test_the_interval_of_a_mean_of_squares_is_students():
    """Of normal draws, the expanded percentiles are the mean -/+ t·s/√n with s of n − 1."""
    rng = np.random.default_rng(3)
    for n, t in ((4, 3.182446), (10, 2.262157), (1000, 1.962339)):
        low, high = ag.interval(rng.normal(0, np.sqrt((n - 1) / n), 400_000), n)
        assert high == pytest.approx(t, rel=0.02) and low == pytest.approx(-t, rel=0.02)


def test_differences_are_paired():
    rng = np.random.default_rng(4)
    score, mos = clustered(rng, 40, 6)
    near = score + rng.normal(0, 0.1, score.shape)
    found = judged(score, mos, b=near, same=score)

    def width(entry):
        return entry["interval"][1] - entry["interval"][0]

    for level in agreement.LEVELS:
        assert list(found[level]["differences"]) == ["b", "same"]
        for key in ag.STATISTICS:
            a, b = (found[level]["predictors"][name][key] for name in "ab")
            difference = found[level]["differences"]["b"][key]
            assert difference["value"] == pytest.approx(b["value"] - a["value"])
            assert width(difference) < 0.4 * np.hypot(width(a), width(b))
            assert found[level]["differences"]["same"][key] == {"value": 0, "interval": [0, 0], "undefined": 0}
    assert judged(score, mos)["utterance"]["predictors"]["a"] == found["utterance"]["predictors"]["a"]


def test_order_and_what_is_not_rated_change_nothing():
    rng = np.random.default_rng(5)
    score, mos = (v.ravel() for v in clustered(rng, 12, 4))
    rated = ratings(mos, [f"s{i // 4}" for i in range(48)])
    found = agreement.summarise(rated, {"a": score}, resamples=100)
    assert agreement.summarise(rated, {"a": score}, resamples=100) == found
    assert agreement.summarise(rated, {"a": score}, resamples=100, seed=1) != found
    order = rng.permutation(48)
    assert agreement.summarise([rated[i] for i in order], {"a": score[order]}, resamples=100) == found
    more = [*rated, *(one._replace(id=f"x{one.id}", mos=None) for one in rated[:3])]
    again = agreement.summarise(more, {"a": [*score, 9.0, 9.0, np.nan]}, resamples=100)
    assert again.pop("unrated") == 3 and again.pop("recordings") == 51
    assert again == {key: entry for key, entry in found.items() if key not in ("unrated", "recordings")}


def test_scores_that_are_missing_are_counted_and_leave_out_the_recording_for_all():
    rng = np.random.default_rng(6)
    score, mos = (v.ravel() for v in clustered(rng, 10, 4))
    a, b = score.copy(), score[::-1].copy()
    a[0], b[5], b[6] = np.nan, np.inf, np.nan
    found = agreement.summarise(ratings(mos), {"a": a, "b": b}, resamples=50)
    assert found["unscored"] == {"a": 1, "b": 2} and found["used"] == 37
    rest = np.delete(np.arange(40), [0, 5, 6])
    assert list(value(found).values()) == pytest.approx(ag.statistics(a[rest], mos[rest]))
    assert "Rated recordings without a score: a 1, b 2 of 40" in found["warnings"][0]


def test_what_is_undefined_is_empty_and_said():
    def of(scores, mos, systems=None):
        found = agreement.summarise(ratings(mos, systems), {"a": scores}, resamples=50)
        json.dumps(found, allow_nan=False)
        return found, " ".join(found["warnings"])

    nothing = {"srcc": None, "lcc": None, "ktau": None}
    found, said = of([2.0] * 5, [1, 2, 3, 4, 5])
    assert value(found) == nothing | {"mse": 3.0} and "correlation of a is undefined" in said
    assert found["utterance"]["predictors"]["a"]["srcc"] == {"value": None, "interval": [None, None], "undefined": 50}
    assert value(of([1, 2, 3, 4, 5], [2] * 5)[0]) == nothing | {"mse": 3.0}
    for n in (1, 2):
        found, said = of([1.0, 2.0][:n], [2.0, 3.0][:n])
        assert (
            value(found) == nothing | {"mse": 1.0}
            and f"By utterance there are {n} points only" in said
            and "no intervals" in said
        )
        assert found["utterance"]["predictors"]["a"]["mse"]["interval"] == [None, None]
    found, said = of([np.nan, 1.0], [2.0, None])
    assert value(found) == nothing | {"mse": None} and "No recording is both rated and scored" in said


def test_one_system_has_no_system_level_and_its_utterances_are_drawn():
    rng = np.random.default_rng(7)
    score, mos = rng.normal(size=40), rng.normal(size=40)
    one = agreement.summarise(ratings(mos, ["s"] * 40), {"a": score}, resamples=50)
    none = agreement.summarise(ratings(mos), {"a": score}, resamples=50)
    assert one["utterance"] == none["utterance"] and one["utterance"]["drawn"] == "utterances"
    assert (
        one["system"]["n"] == 1 and value(one, "system")["srcc"] is None and value(one, "system")["mse"] is not None
    )
    assert "By system there are 1 points only" in " ".join(one["warnings"])
    assert none["system"]["n"] == 0 and none["warnings"] == [], "a set without systems is no mistake"


def test_some_have_no_system():
    rng = np.random.default_rng(8)
    score, mos = (v.ravel() for v in clustered(rng, 6, 5))
    systems = [None if i < 10 else f"s{i // 5}" for i in range(30)]
    found = agreement.summarise(ratings(mos, systems), {"a": score}, resamples=50)
    assert (found["without_system"], found["systems"], found["utterance"]["units"]) == (10, 4, 14)
    assert found["utterance"]["n"] == 30 and found["system"]["n"] == 4
    means = ag.statistics(score[10:].reshape(4, 5).mean(1), mos[10:].reshape(4, 5).mean(1))
    assert list(value(found, "system").values()) == pytest.approx(means)
    assert "10 of 30 recordings have no system" in " ".join(found["warnings"])


def test_resamples_without_a_correlation_are_counted():
    """One system of seven is unlike the others: a third of the resamples miss it, and have one value only."""
    score, mos = np.array([[1.2]] * 6 + [[2.3]]), np.arange(7.0)[:, None]
    found = judged(score, mos, 2000)["system"]["predictors"]["a"]
    assert 0.25 < found["srcc"]["undefined"] / 2000 < 0.40 and found["srcc"]["value"] is not None
    assert len({found[key]["undefined"] for key in ("srcc", "lcc", "ktau")}) == 1
    assert found["srcc"]["interval"] == [None, None] and found["mse"]["undefined"] == 0
    draws = np.concatenate([np.full(4, np.nan), np.linspace(0, 1, 96)])
    assert (
        np.isfinite(ag.interval(draws, 50)).all() and np.isnan(ag.interval(np.append(draws, [np.nan] * 2), 50)).all()
    )


def test_refusals():
    rated = ratings([1, 2, 3])
    for scores, options, reason in (
        ({}, {}, "at least one predictor"),
        ({"a": [1.0]}, {}, "for each of 3 recordings, got 1"),
        ({"a": [1, 2, 3]}, {"resamples": 0}, "at least 1 resample"),
    ):
        with pytest.raises(ValueError, match=reason):
            agreement.summarise(rated, scores, **options)
    inside = rated[0]._replace(audio=Embedded(Path("set.parquet"), 3, "audio"))
    with pytest.raises(ValueError, match="inside"):
        agreement.gather([inside], predictors=[toys.predictor()])


def test_a_set_is_named_with_its_folder_and_its_test_split_counts(tmp_path):
    lines = ["file,mos,split"]
    for i, split in enumerate(["train", "test", "test"]):
        soundfile.write(tmp_path / f"{i}.wav", toys.speechlike(0.3, i), toys.RATE)
        lines.append(f"{i}.wav,{i + 1},{split}")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    assert [one.mos for one in agreement.read([f"csv:{tmp_path}"])] == [2.0, 3.0]
    assert jh.agree([f"csv:{tmp_path}"], predictors=[toys.predictor()], resamples=5)["used"] == 2


@pytest.fixture
def labelled(tmp_path):
    """Twenty clips of four systems, louder ones rated better; one is not rated."""
    lines = ["file,mos,system"]
    for i in range(20):
        soundfile.write(tmp_path / f"{i}.wav", (0.2 + i / 25) * toys.speechlike(0.3, i), toys.RATE)
        lines.append(f"{i}.wav,{'' if i == 7 else 1 + i / 5},s{i % 4}")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    return tmp_path


def run(*args, status=0):
    result = CliRunner().invoke(main, [str(a) for a in args])
    assert result.exit_code == status, result.output
    return result


LEVEL, PEAK = f"{__name__}:rate_level", f"{__name__}:rate_peak"


def test_the_command(labelled):
    out = labelled / "out"
    done = run("agreement", labelled / "labels.csv", "--predictor", LEVEL, "--predictor", PEAK, "--out", out,
               "--resamples", 200)  # fmt: skip
    assert max(len(line) for line in done.stdout.splitlines() if not line.startswith("Table: ")) <= 80
    summary = json.loads((out / "agreement.json").read_text())
    first, second = summary["utterance"]["predictors"]
    assert (summary["recordings"], summary["unrated"], summary["used"], summary["systems"]) == (20, 1, 19, 4)
    srcc = summary["utterance"]["predictors"][first]["srcc"]
    assert srcc["value"] > 0.6 and f"{srcc['value']:.3f}" in done.stdout
    assert list(summary["utterance"]["differences"]) == [second]
    rows = list(csv.DictReader((out / "agreement.csv").open()))
    assert len(rows) == 20 and rows[7]["reason"] == "not rated" and rows[7]["mos"] == rows[7][f"score_{first}"] == ""
    used = [row for row in rows if row["mos"]]
    again = ag.statistics(*([float(row[key]) for row in used] for key in (f"score_{first}", "mos")))
    assert again[0] == pytest.approx(srcc["value"])
    found = jh.agree([labelled / "labels.csv"], predictors=[LEVEL, PEAK], resamples=200)
    assert found == summary


def test_the_command_takes_scores_that_are_there(labelled):
    run("score", labelled / "labels.csv", "--predictor", LEVEL, "--out", labelled / "stored.csv")
    (labelled / "copies").mkdir()
    (labelled / "copies" / "labels.csv").write_text((labelled / "labels.csv").read_text())  # its audio is elsewhere
    found = jh.agree([labelled / "copies" / "labels.csv"], scores=[labelled / "stored.csv"], resamples=50)
    other = jh.agree([labelled / "labels.csv"], predictors=[LEVEL], resamples=50)
    assert list(found["utterance"]["predictors"]) == ["stored"]
    assert value(found, name="stored")["lcc"] == pytest.approx(
        value(other, name=rate_level_name(other))["lcc"], abs=1e-5
    )
    lines = (labelled / "stored.csv").read_text().splitlines()
    (labelled / "fewer.csv").write_text("\n".join(lines[:-2]))
    done = run("agreement", labelled / "labels.csv", "--scores", labelled / "fewer.csv", "--resamples", 50, status=1)
    assert "fewer 2 of 19" in " ".join(done.stdout.split()) and "2 rated recordings have no score" in done.stderr


def rate_level_name(summary):
    return next(iter(summary["utterance"]["predictors"]))


def test_a_recording_that_cannot_be_scored(labelled):
    (labelled / "3.wav").write_text("no audio")
    out = labelled / "out"
    done = run("agreement", labelled / "labels.csv", "--predictor", LEVEL, "--out", out, "--resamples", 50, status=1)
    assert "1 rated recordings have no score: the rows say why" in done.stderr
    rows = list(csv.DictReader((out / "agreement.csv").open()))
    assert "not audio" in rows[3]["reason"] and rows[4]["reason"] == ""


def test_ratings_on_another_scale(labelled):
    text = (labelled / "labels.csv").read_text().replace(",1.0,", ",40,")
    (labelled / "labels.csv").write_text(text)
    found = jh.agree([labelled / "labels.csv"], predictors=[toys.predictor()], resamples=20)
    assert "not on the scale of toy, 1 to 5: its MSE says nothing" in " ".join(found["warnings"])


def test_mistakes_get_one_sentence(labelled):
    labels, level = labelled / "labels.csv", ("--predictor", LEVEL)
    (labelled / "bare.csv").write_text("file\n0.wav")
    (labelled / "words.csv").write_text("file,mos\n0.wav,good")
    (labelled / "other.csv").write_text("file,score\nelse.wav,1")
    (labelled / "twice.csv").write_text("file,score\n0.wav,1\n0.wav,2")
    for args, reason in (
        ((labels,), "name a predictor"),
        ((labels, *level, *level), "Two predictors are called"),
        ((labelled / "bare.csv", *level), "with a column mos; the columns are file"),
        ((labelled / "words.csv", *level), "expected numbers as mos and listeners, got 'good'"),
        ((labels, "--scores", labelled / "other.csv"), "names 'else.wav', the list '0.wav'"),
        ((labels, "--scores", labelled / "twice.csv"), "lists '0.wav' twice"),
        ((labels, "--scores", labels), "holds no scores"),
        ((labels, "--predictor", "nisqua"), "did you mean nisqa"),
        ((labels, *level, "--out", labelled), "not an empty folder"),
    ):
        error = " ".join(run("agreement", *args, status=2).stderr.split())
        assert reason in error and "Traceback" not in error
