"""`jaxhack audit` and `report` met with what should not happen: one sentence, the right status, nothing lost."""

import os
import shutil
from pathlib import Path

import pytest
import toys
from click.testing import CliRunner

from jaxhack import audio, registry
from jaxhack.cli import main

pytestmark = pytest.mark.standard_promotion  # optax and orbax

TINY = [
    "--space",
    "toy_codec",
    "--seeds",
    "1",
    "--steps",
    "2",
    "--batch",
    "2",
    "--group",
    "2",
    "--crop-seconds",
    "0.5",
]
ENTRIES = {"toy": ("predictor", "toys:listed"), "toy_codec": ("codec", "toys:listed_codec")}


@pytest.fixture(scope="module", autouse=True)
def listed():
    with pytest.MonkeyPatch.context() as patch:
        for name, (kind, make) in ENTRIES.items():
            patch.setitem(registry.ENTRIES, name, registry.Entry(kind, make, "toys:NO_WEIGHTS", "for tests"))
        yield


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    for i, name in enumerate(("a", "b", "c", "d")):
        audio.write(folder / f"{name}.wav", toys.speechlike(1.0 + 0.1 * i, i), toys.RATE)
    return folder


def run(*args, status):
    result = CliRunner().invoke(main, [str(a) for a in args])
    assert result.exit_code == status, result.output
    return result


def audit(*args, status, predictor="toy"):
    return run("audit", *args, "--predictor", predictor, *TINY, status=status)


def refused(*args):
    sentence = run(*args, status=2).stderr.splitlines()[-1]
    assert sentence.startswith("Error: ")
    return sentence


@pytest.fixture(scope="module")
def done(clips, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run") / "out"
    audit(clips, "--out", out, status=0)
    return out


@pytest.fixture
def copy(done, tmp_path) -> Path:
    return Path(shutil.copytree(done, tmp_path / "copy"))


@pytest.mark.parametrize("out", ["/proc/no", "{clips}/a.wav/sub", "x" * 300])
def test_a_folder_that_cannot_be_made(clips, out):
    sentence = refused("audit", clips, "--predictor", "toy", *TINY, "--out", out.format(clips=clips))
    assert out.format(clips=clips) in sentence


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk(clips):
    assert "No space left on device" in refused("score", clips, "--predictor", "toy", "--out", "/dev/full")
