"""What callers name: one path alone, names that no file system takes, and what must not be overwritten."""

import io
import itertools
import json
from pathlib import Path

import jax.numpy as jnp
import pytest
import toys
from click.testing import CliRunner

import jaxhack as jh
from jaxhack import inputs, registry, run
from jaxhack.cli import main, output
from jaxhack.patch import patched

pytestmark = [pytest.mark.standard_promotion, pytest.mark.quick_compilation]

TOYS = {"predictor": toys.predictor(), "codec": toys.codec()}
CALLS = {
    "collect": lambda given, out: inputs.collect(given),
    "agree": lambda given, out: jh.agree(given, predictors=toys.predictor()),
    "agree's scores": lambda given, out: jh.agree(out / "list.csv", scores=given),
    "audit": lambda given, out: jh.audit(given, **TOYS, out=out),
    "audit's halves": lambda given, out: jh.audit(train_paths=given, test_paths=given, **TOYS, out=out),
    "suite": lambda given, out: jh.suite(given, **TOYS, spaces="latent", attackers="pgd", out=out),
    "patch": lambda given, out: jh.patch.patch(given, predictor="toy", codecs=toys.codec(), out=out),
    "probe": lambda given, out: jh.probe(given, **TOYS),
    "score_files": lambda given, out: list(jh.score_files(toys.predictor(), given)),
    "transfer": lambda given, out: jh.transfer(given, predictors=toys.predictor(), out=out),
}


@pytest.fixture(autouse=True)
def listed(monkeypatch, tmp_path):
    monkeypatch.setitem(registry.ENTRIES, "toy", registry.Entry("predictor", "toys:listed", "toys:NO_WEIGHTS", ""))
    (tmp_path / "list.csv").write_text("file,mos\na.wav,3.0\nb.wav,4.0\nc.wav,2.0\n")


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", [str, Path])
def test_one_path_alone_is_a_list_of_one(name, kind, tmp_path):
    gone = kind(tmp_path / "gone.csv")
    with pytest.raises(ValueError, match=r"gone\.csv'? (does not exist|holds no run)"):
        CALLS[name](gone, tmp_path)


def test_what_is_alone():
    for given in ("nisqa", Path("a"), toys.predictor(), toys.codec(), len):
        assert inputs.several(given) == [given]
    assert inputs.several(("a", "b")) == inputs.several(iter(["a", "b"])) == ["a", "b"]


LONG = "a" * 300


@pytest.mark.parametrize("name", CALLS)
def test_a_name_that_no_file_system_takes_does_not_exist(name, tmp_path):
    with pytest.raises(
        ValueError, match=r"(a|csv)'? (does not exist|holds no run|cannot be read as UTF-8 text: File name)"
    ):
        CALLS[name](LONG if "scores" not in name else f"{LONG}.csv", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("agreement csv:DIR --predictor toy", "1 of 1 audio files are missing"),
        ("agreement DIR/labels.csv --predictor toy", "1 rated recordings have no score"),
        (f"agreement csv:DIR/{LONG} --predictor toy", "does not exist: it is to hold csv's"),
        (f"score DIR/labels.csv --predictor {LONG}", "Unknown predictor"),
        (f"transfer {LONG} --predictor toy --out DIR/out", "holds no run"),
    ],
)
def test_long_names_at_the_command_line_get_our_own_sentence(arguments, sentence, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "labels.csv").write_text(f"file,mos\n{LONG}.wav,3.0\n")
    result = CliRunner().invoke(main, arguments.replace("DIR", str(tmp_path / "set")).split())
    assert result.exit_code and sentence in " ".join(result.output.split()), result.output


@pytest.fixture
def hardened(tmp_path) -> Path:
    """A run's folder that holds a patched predictor and recordings, some of them its own."""
    out = tmp_path / "out"
    parent = toys.predictor()
    patched.save(out / "patched", parent._replace(params=parent.params + jnp.float32(1)), parent, {})
    run.write_json(out / run.RECORD, {"record": {}, "versions": {}})
    for folder in ("examples", "mine"):
        (out / folder).mkdir()
        toys.listed_clips(out / folder, "aabb")
    return out


@pytest.mark.parametrize(
    ("name", "inside"),
    [
        *itertools.product(["audit", "suite", "patch"], ["predictor", "recordings", "listed"]),
        *itertools.product(["audit", "suite"], ["a part"]),
    ],
)
def test_a_run_is_not_overwritten_by_one_that_needs_it(name, inside, hardened, tmp_path):
    clips = hardened / "mine" / "list.csv"
    if inside == "recordings":
        clips = hardened / "examples"
        (clips / "list.csv").rename(clips / "manifest.csv")
    if inside == "listed":
        clips = tmp_path / "others.csv"
        clips.write_text(
            "".join(f"{u.path},{u.speaker}\n" for u in inputs.collect(hardened / "examples" / "list.csv"))
        )
        clips.write_text("file,speaker\n" + clips.read_text())
    predictor = {"predictor": hardened / "patched", "a part": f"min( {hardened / 'patched'} , toy )"}.get(
        inside, "toy"
    )
    given = {"predictor": predictor, "out": hardened, "overwrite": True, "profile": "quick"}
    chains = {"codecs": toys.codec()} if name == "patch" else {"codec": toys.codec()}
    alone = {"spaces": "latent", "attackers": "pgd"} if name == "suite" else {}
    command = jh.patch.patch if name == "patch" else getattr(jh, name)
    before = sorted(hardened.rglob("*"))
    with pytest.raises(ValueError, match=r"is part of the run in .*out that --overwrite"):
        command([clips], **given, **chains, **alone)
    assert sorted(hardened.rglob("*")) == before


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("out", "min(nisqa,DIR)"),
        ("out", "min( DIR , nisqa )"),
        ("out", "smoothed( DIR , waveform=0.01,draws=2)"),
        ("out", "denoised(mean(nisqa, min(toy,DIR) ),mini)"),
        ("out (copy)", "min(DIR,nisqa)"),
        ("out (copy)", "DIR"),
    ],
)
def test_a_predictor_is_found_in_a_run_however_it_is_named(folder, name, hardened, tmp_path):
    out = hardened.rename(tmp_path / folder)
    found = registry.places(name.replace("DIR", str(out / "patched")), toys.predictor(), len, None, "nisqa", "none")
    assert found == [out / "patched"]
    with pytest.raises(ValueError, match="patched is part of the run"):
        run.open_run(out, {}, overwrite=True, needed=found)


def test_what_no_run_writes_may_lie_in_a_folder_that_is_overwritten(hardened):
    run.open_run(hardened, {"new": 1}, overwrite=True, needed=[hardened / "mine", "nisqa", None])
    assert json.loads((hardened / run.RECORD).read_text())["record"] == {"new": 1}
    assert (hardened / "mine").exists() and not (hardened / "patched").exists()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_that_shows_rows_shows_no_bar(terminal, monkeypatch):
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    bars, stream = [], Screen() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", Screen())
    monkeypatch.setattr("rich.progress.Progress.start", lambda self: bars.append(not self.disable))
    assert list(output.written([{"file": "a", "status": "ok"}], ["file", "status"], "csv", stream, 1))
    assert bars == [not terminal] and stream.getvalue() == "file,status\na,ok\n"
