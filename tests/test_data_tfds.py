"""Data sets packed by TFDS and read back, without TensorFlow."""

import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from data_sets import SETS, level

import jaxhack
from jaxhack import data

tfds = pytest.importorskip("jaxhack.data.tfds", reason="needs the extra tfds", exc_type=ImportError)


def back(builder) -> list[data.Rated]:
    """Examples as recordings again, in the order of the data set's splits."""
    return [
        data.Rated(
            example["id"].decode(),
            example["audio"],
            example["system"].decode() or None,
            None if math.isnan(example["mos"]) else float(example["mos"]),
            None if example["listeners"] < 0 else int(example["listeners"]),
            split,
            json.loads(example["meta"]),
        )
        for split in builder.info.splits
        for example in builder.as_data_source(split)
    ]


@pytest.mark.parametrize("kind", SETS)
def test_what_is_packed_is_what_is_read(tmp_path, kind):
    folder = tmp_path / kind
    SETS[kind].make(folder)
    builder = tfds.prepare(kind, folder, tmp_path / "packed")
    rated = [
        one._replace(audio=data.content(one), mos=None if one.mos is None else float(np.float32(one.mos)))
        for one in data.read(kind, folder)
    ]
    assert back(builder) == sorted(rated, key=lambda one: ("train", "validation", "test").index(one.split))
    files = list((tmp_path / "packed").rglob("*.array_record-*"))
    assert len(files) == len({one.split for one in rated}) and "tensorflow" not in sys.modules


def test_a_partial_set_has_a_name_of_its_own(tmp_path):
    SETS["csv"].make(tmp_path / "own")
    (tmp_path / "own/one.wav").unlink()
    with pytest.raises(ValueError, match="1 of 3 audio files are missing"):
        tfds.prepare("csv", tmp_path / "own", tmp_path / "packed")
    with pytest.warns(UserWarning, match="Left out: 1 of 3 audio files"):
        builder = tfds.prepare("csv", tmp_path / "own", tmp_path / "packed", missing="skip")
    assert builder.builder_config.name == "csv-partial" and list(builder.info.splits) == ["validation", "test"]
    wav = tfds.load(builder.as_data_source("test")[0], 8000)
    assert wav.shape == (160,) and wav.dtype == np.float32 and wav[80] == pytest.approx(level("three"), abs=1e-3)


def test_what_cannot_be_packed_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"Unknown data set 'bvc'; did you mean bvcc"):
        tfds.prepare("bvc", tmp_path, tmp_path)
    with pytest.raises(ValueError, match=r"absent' is no folder: it is to hold csv's labels.csv"):
        tfds.prepare("csv", tmp_path / "absent", tmp_path)
    SETS["csv"].make(tmp_path / "own")
    (tmp_path / "own/one.wav").write_text("no audio")
    with pytest.raises(ValueError, match=r"one.wav' is not audio"):
        tfds.prepare("csv", tmp_path / "own", tmp_path / "packed")


def test_nothing_else_needs_tfds():
    package = Path(jaxhack.__file__).parent
    needing = [
        path.name for path in package.rglob("*.py") if re.search(r"import (tensorflow|tfds)", path.read_text())
    ]
    assert needing == ["tfds.py"]
