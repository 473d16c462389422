"""Files of a run's folder that were damaged, or written by somebody else: one sentence, and no code of theirs."""

import io
import json
import zipfile

import numpy as np
import pytest

from jaxhack import run
from jaxhack.arrays import read_npz
from jaxhack.report import terminal

DEEP = "[" * 200_000
FLOATS = ((None, 2), np.dtype(np.float32))


def packed(array, compression=zipfile.ZIP_STORED, name="a.npy", change=bytes):
    """A file of one array, its bytes changed before they are packed."""
    member, made = io.BytesIO(), io.BytesIO()
    np.save(member, array)
    with zipfile.ZipFile(made, "w", compression) as archive:
        archive.writestr(name, change(member.getvalue()))
    return made.getvalue()


def boasting(member):
    return member.replace(b"(3, 2), }".ljust(17), b"(99999999, 2), }".ljust(17))


WHOLE = packed(np.ones((3, 2), np.float32))
FOREIGN = {
    "missing": (None, "No such file"),
    "empty": (b"", "File is not a zip file"),
    "truncated": (WHOLE[: len(WHOLE) * 2 // 3], "not a zip file"),
    "no zip": (b"\x80\xff", "not a zip file"),
    "an entry cut short": (
        packed(np.ones((3, 2), np.float32), change=lambda member: member[:-4]),
        "'a' is truncated",
    ),
    "other bytes": (WHOLE.replace(np.float32(1).tobytes(), np.float32(2).tobytes(), 1), "Bad CRC-32"),
    "another name": (packed(np.ones((3, 2), np.float32), name="b.npy"), "it holds 'b', expected 'a'"),
    "another shape": (packed(np.ones((3, 3), np.float32)), r"'a' is float32\[3, 3\], expected float32\[any, 2\]"),
    "another dtype": (packed(np.ones((3, 2))), r"'a' is float64\[3, 2\]"),
    "objects": (packed(np.array([[print, 1]], object)), r"'a' is object\[1, 2\]"),
    "a packed one": (packed(np.ones((3, 2), np.float32), zipfile.ZIP_DEFLATED), "'a' is packed"),
    "a bomb": (packed(np.zeros((10**6, 2), np.float32), zipfile.ZIP_DEFLATED), "'a' is packed"),
    "a header that boasts": (packed(np.ones((3, 2), np.float32), change=boasting), "'a' is truncated"),
}


@pytest.mark.parametrize("content,why", FOREIGN.values(), ids=FOREIGN)
def test_arrays_are_refused_before_they_are_read(tmp_path, monkeypatch, content, why):
    path = tmp_path / "a.npz"
    if content is not None:
        path.write_bytes(content)
    if "CRC" not in why:
        monkeypatch.setattr(np.lib.format, "read_array", None)
    with pytest.raises(ValueError, match=rf"a\.npz cannot be read \(.*{why}.*\): mend it\."):
        read_npz(path, {"a": FLOATS}, "mend it")


def test_arrays_come_back_as_they_were_saved(tmp_path):
    made = {"a": np.arange(6, dtype=np.float32).reshape(3, 2), "": np.array(7, np.int16)}
    np.savez(tmp_path / "a.npz", **made)
    found = read_npz(tmp_path / "a.npz", {"a": FLOATS, "": ((), np.dtype(np.int16))}, "mend it")
    for name in made:
        np.testing.assert_array_equal(found[name], made[name])


KINDS = {"a": int, "b": ("x", None), "c": {...: [run.MAYBE]}}
GOOD = {"a": 1, "b": "x", "c": {"d": [1, 2.5, None]}, "more": "whatever"}
BAD = {
    "empty": "",
    "no JSON": "{",
    "a list": "[]",
    "null": "null",
    "a number": "5",
    "no UTF-8": b"\x80",
    "deep": DEEP,
    "too little": '{"a": 1}',
    "another type": json.dumps(GOOD | {"a": "1"}),
    "a truth value": json.dumps(GOOD | {"a": True}),
    "another text": json.dumps(GOOD | {"b": "y"}),
    "another type inside": json.dumps(GOOD | {"c": {"d": [1, "2"]}}),
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_json_of_other_kinds_is_refused(tmp_path, content):
    content = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.json cannot be read as a thing: mend it\."):
        run.read_json(tmp_path / "x.json", KINDS, "a thing", "mend it")
    (tmp_path / "x.jsonl").write_bytes(json.dumps(GOOD).encode() + b"\n" + content + b"\n")
    with pytest.raises(ValueError, match=r"x\.jsonl cannot be read as a thing, for its line 2: mend it\."):
        run.read_lines(tmp_path / "x.jsonl", KINDS, "a thing", "mend it")


def test_what_fits_is_read_and_a_line_that_a_crash_cut_off_is_left_out(tmp_path):
    path = tmp_path / "x.jsonl"
    assert run.read_lines(path, KINDS, "", "") == []
    line = json.dumps(GOOD | {"more": "ü\u2028"}, ensure_ascii=False).encode()
    path.write_bytes(line + b"\n" + line)
    assert run.read_lines(path, KINDS, "", "") == 2 * [json.loads(line)]
    for cut in (1, 3, len(line) - 3):
        path.write_bytes(line + b"\n" + line[:-cut])
        assert run.read_lines(path, KINDS, "", "") == [json.loads(line)]
    path.write_bytes(line + b"\n\x80")
    with pytest.raises(ValueError, match="for its line 2"):
        run.read_lines(path, KINDS, "", "")
    path.write_bytes(line)
    assert run.read_json(path, KINDS, "", "") == json.loads(line)


def test_recordings_are_those_of_the_record(tmp_path):
    record = {"train": ["a"], "test": ["b", "c"]}
    entries = [
        {"id": name, "path": name, "speaker": None, "half": half, "digest": None}
        for half in record
        for name in record[half]
    ]
    assert run.recordings(tmp_path, record) == []
    run.write_lines(tmp_path / "recordings.jsonl", entries)
    assert run.recordings(tmp_path, record) == entries
    for lost in range(3):
        run.write_lines(tmp_path / "recordings.jsonl", entries[:lost] + entries[lost + 1 :])
        with pytest.raises(ValueError, match=r"does not list the (train|test) recordings that .*run\.json names"):
            run.recordings(tmp_path, record)


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/tmp", ".", ""])
def test_a_part_of_a_run_lies_in_its_folder(tmp_path, name):
    """What --overwrite deletes, and what a transfer reads, goes by these names."""
    record = {"predictor": "toy", "legs": {name: {}}, "left_out": {}, "validation": []}
    (tmp_path / "run.json").write_text(json.dumps({"record": record, "versions": {}}))
    with pytest.raises(ValueError, match="is no folder in it"):
        run.read(tmp_path / "run.json")


@pytest.mark.parametrize("name", ["[/b]", "model[v2].onnx", "[red]x", ":smile:", "a\\"])
def test_a_name_in_a_table_is_no_markup(name):
    from rich.console import Console

    table = terminal.bare_table(f"of {name}.")
    table.add_column("who", min_width=40)
    table.add_row(name, style="bold")
    console = Console(width=80)
    with console.capture() as capture:
        console.print(table)
    assert [line.strip() for line in capture.get().splitlines()] == ["who", name, f"of {name}."]
