"""A finished run's certificates: what its attacks reached beside their bounds, resumed, refused, in its report."""

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import toys
from click.testing import CliRunner

import jaxhack as jh
from jaxhack import audio, certifying, registry, rows, run
from jaxhack.cli import main
from jaxhack.report import certificate as part
from jaxhack.stats import certificate, lower_bound

pytestmark = [
    pytest.mark.standard_promotion,
    pytest.mark.quick_compilation,
    pytest.mark.usefixtures("one_device"),
]

ENTRIES = {"toy": ("predictor", "toys:listed"), "delayed": ("codec", "fakes:delayed_codec")}
SIGMA, EPSILON = 0.02, 0.0002
PREDICTOR = f"smoothed(toy,waveform={SIGMA},draws=3)"
SETTINGS = {"seeds": 2, "attacker": "pgd", "options": {"steps": 1}, "space": "waveform", "epsilon": EPSILON}
DRAWS = ["--draws", "128", "--alpha", "0.01"]


@pytest.fixture(scope="module", autouse=True)
def listed():
    with pytest.MonkeyPatch.context() as patch:
        for name, (kind, make) in ENTRIES.items():
            patch.setitem(registry.ENTRIES, name, registry.Entry(kind, make, "toys:NO_WEIGHTS", ""))
        yield


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> Path:
    return toys.listed_clips(tmp_path_factory.mktemp("clips"), "abcdef")


@pytest.fixture(scope="module")
def finished(clips, tmp_path_factory, no_examples) -> Path:
    out = tmp_path_factory.mktemp("runs") / "smoothed"
    jh.audit([clips], predictor=PREDICTOR, out=out, panel="si_sdr", **SETTINGS)
    return out


def copied(finished, tmp_path, predictor=PREDICTOR) -> Path:
    """The run again, as if it had attacked another predictor."""
    copy = Path(shutil.copytree(finished, tmp_path / "copy"))
    (copy / "run.json").write_text((copy / "run.json").read_text().replace(PREDICTOR, predictor))
    return copy


def command(*args, status=0):
    result = CliRunner().invoke(main, ["certify", *map(str, args)])
    assert result.exit_code == status, result.output
    return result


@pytest.fixture(scope="module")
def certified(finished, tmp_path_factory):
    """(folder, what was printed)."""
    folder = copied(finished, tmp_path_factory.mktemp("certified"))
    return folder, command(folder, *DRAWS).stdout


def lines_of(folder):
    return [json.loads(line) for line in (folder / part.LINES).read_text().splitlines()]


def text_of(folder):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", (folder / "report.html").read_text()))


def test_each_attack_stands_beside_its_bound(certified):
    folder, _ = certified
    gains = {(r["utterance"], r["seed"]): r["gain"] for r in rows.read(folder / "rows.parquet") if not r["baseline"]}
    lines = lines_of(folder)
    assert [line["utterance"] for line in lines] == run.read(folder / run.RECORD)["record"]["test"]
    slope = 40 * float(np.linalg.norm(toys.TARGET)) / math.sqrt(900)  # of 0.9 s, by the waveform in ℓ2
    for line in lines:
        assert line["budget"]["radius"] == pytest.approx(7 / 32768 * math.sqrt(14400))
        for i, attack in enumerate(line["attacks"]):
            # Of a linear score noise leaves every difference as it is: these are the outputs that the run judged.
            gain = attack["score"] - line["score"]
            assert gain == pytest.approx(gains[line["utterance"], i], abs=1e-4) and gain > 0.04
            assert 0.6 * line["budget"]["radius"] < attack["radius"] <= line["budget"]["radius"]
            assert attack["lower"] < attack["score"] < line["score"] + slope * attack["radius"] < attack["upper"]
            assert attack["upper"] <= line["budget"]["upper"] < line["score"] + slope * (attack["radius"] + 2 * SIGMA)
            assert attack["lower"] > line["score"] and not attack["crossed"] and not attack["reason"]


def test_the_summary_the_table_and_the_page(certified, finished):
    folder, printed = certified
    summary = json.loads((folder / "summary.json").read_text())
    found, lines = summary["certificate"], lines_of(folder)
    assert (found["utterances"], found["test"], found["bounds"], found["finite"]) == (3, 3, 6, 6)
    assert found["crossed"] == [] and found["expected"] == pytest.approx(2 * 0.01 * 6) and found["failed"] == []
    assert (found["place"], found["sigma"], found["known_draws"], found["draws"]) == ("waveform", SIGMA, 3, 128)
    assert [(e["attacker"], e["seed"], e["n"]) for e in found["attackers"]] == [("pgd", 0, 3), ("pgd", 1, 3)]
    assert found["attackers"][0]["upper"] == sorted(line["attacks"][0]["upper"] for line in lines)[1]
    left = [line["budget"]["upper"] - line["lower"] for line in lines]
    assert found["budget"]["no_hack"] == sum(value <= 0.3 for value in left) == 3
    assert jh.report.make(folder) == summary
    (row,) = [line.split() for line in printed.splitlines() if line.startswith("pgd 1")]
    assert row[-4:] == ["3", "of", "3", "0"] and "any, ε = 0.0002" in printed
    assert max(map(len, printed.splitlines()[:-1])) <= 80
    page = text_of(folder)
    assert "Certificate" in page and "6 of 6 bounds are finite" in page and "No attack is above its bound" in page
    assert "On 3 of 3 utterances none of them, by whatever attack, gains more than τ = 0.3 MOS" in page
    assert "the 3 fixed draws that the attackers knew" in page
    assert "Certificate" not in text_of(finished)
    assert "certificate" not in json.loads((finished / "summary.json").read_text())
    assert {part.RECORD, part.LINES} <= set(run.OWN)


def test_an_interruption_resumes_to_the_same_file(certified, finished, tmp_path):
    folder, copy = certified[0], copied(finished, tmp_path)

    def stop(stage, done, total, figures):
        if done:
            raise KeyboardInterrupt

    options = {"draws": 128, "alpha": 0.01}
    with pytest.raises(KeyboardInterrupt):
        jh.certify_run(copy, observe=stop, **options)
    (first,) = lines_of(copy)
    whole = (folder / part.LINES).read_text()
    with (copy / part.LINES).open("a") as file:
        file.write(whole.splitlines()[2][:50])
    seen = []
    found = jh.certify_run(copy, resume=True, observe=lambda *args: seen.append(args[:3]), **options)
    assert seen == [("certify", 1, 3), ("certify", 2, 3), ("certify", 3, 3)] and lines_of(copy)[0] == first
    assert (copy / part.LINES).read_text() == whole
    assert found == json.loads((folder / "summary.json").read_text())["certificate"]


def test_a_wrong_bound_is_found_out(finished, tmp_path, monkeypatch):
    def wrong(scores, *, radius, **options):
        return certificate(scores, radius=0.0 * radius, **options)

    monkeypatch.setattr(certifying, "certificate", wrong)
    copy = copied(finished, tmp_path)
    printed = " ".join(command(copy, *DRAWS, "--limit", "1").stdout.split())
    found = json.loads((copy / "summary.json").read_text())
    assert len(found["certificate"]["crossed"]) == 2
    assert "2 of 2 attacks surely reached more than their certificate allows" in found["warnings"][-1]
    assert found["warnings"][-1] in printed and "2 attacks are above the bound" in text_of(copy)


@pytest.mark.parametrize("right", [True, False])
def test_attacks_are_above_their_bound_as_rarely_as_stated(right):
    """The worst attack on a linear score, which the theorem is tight for, on 400 utterances."""
    n, radius, alpha, trials = 1000, 1.5, 0.05, 400
    scores = np.random.default_rng(2).normal(size=(trials, n))
    stated = radius if right else 0.85 * radius
    crossed = [
        lower_bound(row + radius, alpha=alpha) > certificate(row, radius=stated, sigma=1.0, alpha=alpha).upper
        for row in scores
    ]
    assert np.mean(crossed) <= 2 * alpha if right else np.mean(crossed) > 4 * alpha


def test_where_few_draws_certify_nothing(finished, tmp_path):
    copy = copied(finished, tmp_path)
    printed = command(copy, "--draws", "5", "--limit", "1").stdout
    (line,) = lines_of(copy)
    assert line["budget"]["upper"] is None and "needs at least" in line["budget"]["reason"] and line["lower"] is None
    found = json.loads((copy / "summary.json").read_text())["certificate"]
    assert (found["finite"], found["utterances"], found["attackers"][0]["upper"]) == (0, 1, None)
    assert "0 of 1" in printed and "0 of 2 bounds are finite" in text_of(copy)


def test_recordings_without_a_verdict_have_no_certificate(finished, tmp_path):
    copy = copied(finished, tmp_path)
    stored = rows.read(copy / "rows.parquet")
    silent = {"status": "silent", "reason": "every sample is zero"}
    first = stored[0]["utterance"]
    rows.write(copy / "rows.parquet", [row | (silent if row["utterance"] == first else {}) for row in stored])
    ended = command(copy, "--draws", "5", status=1)
    assert "1 recordings have no certificate" in ended.stderr
    (line,) = [line for line in lines_of(copy) if line["status"] != "ok"]
    assert line == {"utterance": first} | silent
    found = json.loads((copy / "summary.json").read_text())["certificate"]
    assert found["failed"] == [first] and found["utterances"] == len(lines_of(copy)) - 1 > 0


def test_noise_in_a_latent_measures_distance_there(finished, tmp_path):
    out = copied(finished, tmp_path, "smoothed(toy,delayed=0.5,draws=3)")
    found = jh.certify_run(out, draws=64, alpha=0.01, limit=1)
    assert found["place"] == "delayed" and found["budget"] is None and found["finite"] == 2
    noise = registry.smoothing("smoothed(toy,delayed=0.5)").noise
    most = 7 / 32768 * math.sqrt(90) * np.linalg.norm(1 / np.asarray(noise.statistics.scale))
    for line in lines_of(out):
        assert all(0.5 * most < attack["radius"] <= most for attack in line["attacks"])
    assert "by whatever attack" not in text_of(out) and "delayed’s latent" in text_of(out)


def test_no_perturbation_of_the_budget_is_farther_than_its_radius():
    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, 2000).astype(np.float32)
    saved = lambda wav: audio.pcm16(wav).astype(np.float64) / 32768  # noqa: E731
    for epsilon in (0.4 / 32768, 3 / 32768, 0.0003):
        delta = np.float32(epsilon) * random.choice([-1, 1], 2000).astype(np.float32)
        far = np.abs(saved(np.clip(x + delta, -1, 1)) - saved(x)).max() * math.sqrt(2000)
        assert far <= certifying.reach("waveform", epsilon, x) * (1 + 1e-12) <= far + math.sqrt(2000) / 32768 + 1e-9
    noise = random.normal(size=2000)
    noise *= 0.003 * np.linalg.norm(x) / np.linalg.norm(noise)
    far = np.linalg.norm(saved(x + noise) - saved(x))
    assert far <= certifying.reach("noise", 0.003, x) < 1.1 * far
    assert certifying.reach("latent", 0.5, x) is None


def refused(*args):
    return " ".join(command(*args, status=2).stderr.split())


def test_what_cannot_be_certified_is_refused_in_one_sentence(certified, finished, clips, tmp_path, monkeypatch):
    folder, _ = certified
    assert "holds certificates: continue them with --resume, or replace" in refused(folder)
    assert "other settings (draws: 128 then, 1000 now; alpha: 0.01 then, 0.001 now)" in refused(folder, "--resume")
    assert "exclude each other" in refused(folder, "--resume", "--overwrite")
    assert "holds no run" in refused(clips.parent)
    copy = copied(finished, tmp_path)
    assert "The alpha must lie between 0 and 1, got 2" in refused(copy, "--alpha", "2")
    assert "at least 1 utterance" in refused(copy, "--limit", "0")
    assert "played against smoothed(toy,waveform=0.02,draws=3), not" in refused(
        copy, "--attacked", "smoothed(toy,waveform=0.03,draws=3)"
    )
    stored = (copy / "run.json").read_text()
    for name in ("toy", "denoised(smoothed(toy,waveform=0.02),delayed)"):
        (copy / "run.json").write_text(stored.replace(PREDICTOR, name))
        assert f"attacked {name}, and only a predictor behind noise has a certificate" in refused(copy)
    for name, given in (
        ("toy-patched-abc123", "audit 'smoothed(DIR/patched,waveform=0.01)' or the like."),
        (
            PREDICTOR.replace("toy", "toy-patched-abc123"),
            f"by --attacked '{PREDICTOR.replace('toy', 'DIR/patched')}'.",
        ),
        ("evil:f", "audit 'smoothed(evil:f,waveform=0.01)' or the like."),
    ):
        (copy / "run.json").write_text(stored.replace(PREDICTOR, name))
        assert refused(copy).endswith(given)
    (copy / "evil.py").write_text("raise SystemExit('it was run')")
    monkeypatch.syspath_prepend(copy)
    for name in ("smoothed(evil:f,waveform=0.02)", "smoothed(mean(toy,evil:f),waveform=0.02)"):
        (copy / "run.json").write_text(stored.replace(PREDICTOR, name))
        assert f"attacked '{name}', whose name alone does not lead to it: give --attacked" in refused(copy)
    suite = {"predictor": "toy", "legs": {"a": {}}, "left_out": {}, "validation": []}
    (copy / "run.json").write_text(json.dumps({"record": suite, "versions": {}}))
    assert "is a suite: name one of its audits" in refused(copy)
    (copy / "run.json").write_text(stored)
    noted = (copy / "recordings.jsonl").read_text()
    (copy / "recordings.jsonl").write_text(noted.replace('"digest": "', '"digest": "0'))
    assert "are not what they were" in refused(copy)
    (copy / "rows.parquet").unlink()
    assert "is no finished run" in refused(copy)
    assert not (copy / part.RECORD).exists()


DAMAGED = {
    "certificates.json": ("[]", "null", "5", "{}", "[" * 200_000),
    "certificates.jsonl": ("{}\n", "5", "[]\n", '{"utterance": "x", "status": "ok", "reason": ""}\n'),
    "recordings.jsonl": ("{}\n", "[]\n", ""),
    "inputs.json": ("[]", "5", "{}"),
}


@pytest.mark.parametrize("name,content", [(name, text) for name, texts in DAMAGED.items() for text in texts])
def test_damaged_files_are_named(certified, tmp_path, name, content):
    copy = Path(shutil.copytree(certified[0], tmp_path / "copy"))
    (copy / name).write_text(content)
    commands = [["report", copy], ["certify", copy, *DRAWS, "--resume"]]
    for arguments in commands[: 1 if name == "inputs.json" else 2]:  # which only reports read
        result = CliRunner().invoke(main, [str(a) for a in arguments])
        assert result.exit_code == 2 and str(copy / name) in result.stderr and "holds files that" not in result.stderr


def test_certificates_of_other_utterances_are_not_believed(certified, tmp_path):
    copy = Path(shutil.copytree(certified[0], tmp_path / "copy"))
    first, *rest = (copy / part.LINES).read_text().splitlines(keepends=True)
    for lines in ([first, first, *rest], [first.replace('"utterance": "', '"utterance": "not-'), *rest]):
        (copy / part.LINES).write_text("".join(lines))
        assert "is not of the test recordings of" in refused(copy, *DRAWS, "--resume")
