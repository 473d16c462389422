import math

import jax.numpy as jnp
import numpy as np
import pyarrow.parquet as pq
import pytest
from audit_rows import failed, row

from jaxhack import rows

COLUMNS = [
    "utterance", "predictor", "space", "epsilon", "attacker",
    "seed", "baseline", "score_input", "score_reference",
    "score_attacked", "score_attacked_unrounded", "score_repeat", "gain", "gain_naive",
    "estoi_reference", "estoi_attacked", "si_sdr_reference", "si_sdr_attacked",
    "verdict", "verdict_naive", "votes", "void",
    "queries", "gradients", "slope", "seconds",
    "source_rate", "resampled", "clipped_samples", "achieved_size",
    "status", "reason",
]  # fmt: skip


def test_columns_order_and_types(tmp_path):
    rows.write(tmp_path / "rows.parquet", [row(), failed()])
    table = pq.read_table(tmp_path / "rows.parquet")
    assert table.column_names == COLUMNS
    types = {name: str(kind) for name, kind in zip(table.column_names, table.schema.types, strict=True)}
    assert types["seed"] == types["source_rate"] == types["clipped_samples"] == "int64"
    assert types["gain"] == types["estoi_attacked"] == "double" and types["baseline"] == "bool"


def test_round_trip_in_order_with_nan_as_null(tmp_path):
    first = row("naïve “x”\n.wav", gain=0.1 + 0.2)
    second = row(
        "b.wav",
        estoi_attacked=math.nan,
        score_attacked=np.float32(3.5),
        queries=np.int64(7),
        status="undefined",
    )
    third = row("c.wav", gain=jnp.float32(0.5), clipped_samples=jnp.int32(3), baseline=np.bool_(True))
    rows.write(tmp_path / "r.parquet", [first, second, failed("d.wav"), third])
    found = rows.read(tmp_path / "r.parquet")
    assert [r["utterance"] for r in found] == ["naïve “x”\n.wav", "b.wav", "d.wav", "c.wav"]
    assert found[0] == {name: first.get(name) for name in COLUMNS}
    assert found[1]["estoi_attacked"] is None and found[1]["score_attacked"] == 3.5
    assert found[2]["status"] == "unreadable" and found[2]["reason"] == "not audio"
    assert found[2]["source_rate"] is None and found[2]["gain"] is None and found[2]["estoi_reference"] is None
    assert found[3]["baseline"] is True and found[3]["clipped_samples"] == 3
    assert pq.read_table(tmp_path / "r.parquet")["estoi_attacked"].null_count == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gian": 0.5}, "no column 'gian'"),
        ({"wer_reference": 0.5}, "both wer_reference and wer_attacked"),
        ({"seed": 0.5}, "column 'seed' holds int64, got 0.5"),
        ({"gain": "1.0"}, "column 'gain' holds double, got '1.0'"),
        ({"baseline": 1}, "column 'baseline' holds bool"),
        ({"utterance": 3}, "column 'utterance' holds string"),
        ({"verdict": None}, "column 'verdict' can't be empty"),
    ],
)
def test_refuses_wrong_columns_and_leaves_the_old_file(tmp_path, change, message):
    path = tmp_path / "r.parquet"
    rows.write(path, [row()])
    with pytest.raises(ValueError, match=message):
        rows.write(path, [row(), row() | change])
    assert len(rows.read(path)) == 1 and list(tmp_path.iterdir()) == [path]


def test_only_a_row_that_is_not_ok_may_leave_figures_out(tmp_path):
    incomplete = row()
    del incomplete["achieved_size"], incomplete["score_input"]
    with pytest.raises(ValueError, match="status ok, but no score_input, achieved_size"):
        rows.write(tmp_path / "r.parquet", [incomplete])
    rows.write(tmp_path / "r.parquet", [incomplete | {"status": "failed"}])


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "r.parquet"
    rows.write(path, [row()])

    def half(table, file):
        file.write(b"PAR1 half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(rows.pq, "write_table", half)
    with pytest.raises(KeyboardInterrupt):
        rows.write(path, [row(), row()])
    assert len(rows.read(path)) == 1 and list(tmp_path.iterdir()) == [path]


def test_refuses_foreign_and_truncated_files(tmp_path):
    path = tmp_path / "r.parquet"
    rows.write(path, [row()])
    whole, table = path.read_bytes(), pq.read_table(path)
    for damaged in (whole[:-20], whole[: len(whole) // 2], b""):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"r\.parquet is truncated"):
            rows.read(path)
    for foreign, message in (
        (table.drop_columns(["gain"]), "another type: gain"),
        (table.select(COLUMNS[::-1]), "out of order"),
        (table.append_column("extra", table["gain"]), "no column 'extra'"),
    ):
        pq.write_table(foreign, path)
        with pytest.raises(ValueError, match=message):
            rows.read(path)
    with pytest.raises(FileNotFoundError):
        rows.read(tmp_path / "none.parquet")


def test_rows_from_before_a_column_was_stored(tmp_path):
    path = tmp_path / "r.parquet"
    rows.write(path, [row() | {"slope": 0.5, "score_repeat": 3.0}])
    pq.write_table(pq.read_table(path).drop_columns(["slope", "score_repeat"]), path)
    (found,) = rows.read(path)
    assert list(found) == COLUMNS and found["slope"] is None and found["score_repeat"] is None


def test_parts_merge_in_order_and_go(tmp_path):
    folder = tmp_path / "parts"
    assert not rows.has_part(folder, 0, ["a.wav"])
    rows.write_part(folder, 10, [row("z.wav")])
    rows.write_part(folder, 2, [failed("broken.wav")])  # a part in which no measure was ever computed
    rows.write_part(folder, 0, [row("b.wav"), row("a.wav")])
    (folder / ".part-000003.parquet.1.tmp").write_bytes(b"left by a crash")
    assert rows.has_part(folder, 2, ["broken.wav"]) and not rows.has_part(folder, 3, ["broken.wav"])
    assert not rows.has_part(folder, 2, ["broken.wav", "a.wav"])
    assert [r["utterance"] for r in rows.merge(folder, 2)] == ["b.wav", "a.wav", "broken.wav"]
    merged = rows.merge(folder)
    assert [r["utterance"] for r in merged] == ["b.wav", "a.wav", "broken.wav", "z.wav"]
    assert all(list(r) == COLUMNS for r in merged)
    rows.write(tmp_path / "rows.parquet", merged)
    assert rows.read(tmp_path / "rows.parquet") == merged
    rows.drop_parts(folder)
    assert rows.merge(folder) == [] and not rows.has_part(folder, 0, ["a.wav", "b.wav"])


def test_a_truncated_part_is_named(tmp_path):
    for i in range(3):
        rows.write_part(tmp_path, i, [row(f"{i}.wav")])
    path = rows.part_path(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:-9])
    assert not rows.has_part(tmp_path, 1, ["1.wav"])
    with pytest.raises(ValueError, match=r"part-000001\.parquet is truncated.*delete it"):
        rows.merge(tmp_path)
    path.unlink()
    assert [r["utterance"] for r in rows.merge(tmp_path)] == ["0.wav", "2.wav"]


def test_no_rows_at_all(tmp_path):
    rows.write(tmp_path / "r.parquet", [])
    assert rows.read(tmp_path / "r.parquet") == []
