import json

import numpy as np
import pytest
import toys

from jaxhack import audio, run
from jaxhack.inputs import (
    DEMO,
    Utterance,
    check_disjoint,
    check_speakers,
    collect,
    digest,
    fingerprint,
    is_demo,
    limit,
    listed,
    named,
    split,
)


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def ids(paths):
    return [utterance.id for utterance in collect(paths)]


def test_a_folder_with_everything_in_it(tmp_path):
    odd = ["a.wav", "a.flac", "b c.wav", 'it\'s "q".wav', "речь.wav", "new\nline.wav", "sub/a.wav", "UPPER.WAV"]
    touch(tmp_path, *odd, ".hidden.wav", ".git/x.wav", "notes.txt")
    (tmp_path / "sub" / "loop").symlink_to(tmp_path)
    (tmp_path / "self.wav").symlink_to("self.wav")
    assert ids([tmp_path]) == sorted([*odd, "self.wav"])
    for utterance in collect([tmp_path]):
        assert utterance.path == tmp_path / utterance.id and utterance.group == utterance.id


def test_ids_stay_apart_and_a_file_counts_once(tmp_path):
    touch(tmp_path, "one/a.wav", "two/a.wav", "two/b.wav")
    one, two = tmp_path / "one", tmp_path / "two"
    assert ids([one, two]) == ["one/a.wav", "two/a.wav", "b.wav"]
    assert ids([two, two / "a.wav", two / "." / "b.wav"]) == ["a.wav", "b.wav"]
    assert ids([one / "a.wav"]) == ["a.wav"]
    assert ids([one / "a.wav", two / "a.wav"]) == [str(one / "a.wav"), str(two / "a.wav")]


@pytest.mark.parametrize("column", ["mos", "system", "speaker"])
def test_lines_of_one_file_that_disagree_are_refused_and_others_are_joined(tmp_path, column):
    (tmp_path / "a.wav").touch()
    raw, more = tmp_path / "raw.csv", tmp_path / "more.csv"
    raw.write_text(f"file,{column}\na.wav,1\na.wav,2\n")
    with pytest.raises(ValueError, match=f"a.wav' is listed twice, with {column} '1' and with {column} '2'"):
        collect([raw])
    raw.write_text(f"file,{column}\na.wav,\na.wav, 4\n./a.wav,4\n")
    more.write_text("file,note\na.wav,loud\n")
    for order in ([raw, more], [more, raw]):
        (found,) = collect([tmp_path / "a.wav", *order])
        said = found.speaker if column == "speaker" else found.meta[column]
        assert said.strip() == "4" and found.meta["note"] == "loud"


def test_a_name_that_is_not_utf8_is_printable(tmp_path):
    name = b"caf\xe9.wav"
    try:
        open(bytes(tmp_path) + b"/" + name, "wb").close()
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    (utterance,) = collect([tmp_path])
    assert utterance.id == "caf\\xe9.wav" and utterance.path.exists()


@pytest.mark.parametrize("paths", [[], ["."]])
def test_no_audio_is_one_sentence(tmp_path, monkeypatch, paths):
    monkeypatch.chdir(tmp_path)
    touch(tmp_path, "notes.txt")
    with pytest.raises(ValueError, match="No audio in"):
        collect(paths)
    with pytest.raises(ValueError, match="'absent' does not exist"):
        collect(["absent"])


def test_a_folders_manifest_is_joined(tmp_path):
    touch(tmp_path, "a.wav", "sub/b.wav", "c.wav")
    (tmp_path / "manifest.csv").write_text(
        '\ufefffile,speaker,transcript\na.wav,ann,"hello, you"\nsub/b.wav,bob,\ngone.wav,eve,\n', encoding="utf-8"
    )
    a, c, b = collect([tmp_path])
    assert (a.speaker, a.group, a.meta["transcript"]) == ("ann", "ann", "hello, you")
    assert (b.id, b.speaker) == ("sub/b.wav", "bob") and (c.speaker, c.group) == (None, "c.wav")
    assert collect([tmp_path / "a.wav"])[0].speaker == "ann"  # as when a shell lists the files


def test_recordings_that_have_their_ids(tmp_path):
    given = [("x/1", tmp_path / "a.wav", {"clean_file": "c.wav", "speaker": ""}), ("x/2", tmp_path / "a.wav", {})]
    assert [u[:4] for u in named(given)] == [
        ("x/1", tmp_path / "a.wav", None, "c"),
        ("x/2", tmp_path / "a.wav", None, "x/2"),
    ]
    with pytest.raises(ValueError, match="'x/1' is given twice"):
        named([given[0], given[0]])


@pytest.mark.parametrize("column", ["path", "file", "filename", "audio", "wav"])
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_manifests(tmp_path, column, form):
    rows = [{column: "clips/a.wav", "speaker": "ann", "id": "u1"}, {column: "gone.wav", "speaker": "", "id": ""}]
    path = tmp_path / f"list.{form}"
    if form == "csv":
        path.write_text(f"{column},speaker,id\nclips/a.wav,ann,u1\ngone.wav,,\n")
    else:
        path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    first, second = collect([path])
    assert first[:4] == ("u1", tmp_path / "clips" / "a.wav", "ann", "ann")
    assert second[:4] == ("gone.wav", tmp_path / "gone.wav", None, "gone.wav")


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("m.csv", "name,speaker\na,b\n", "row 1 names no audio.*path, file"),
        ("m.csv", "file,id\na.wav,x\nb.wav,x\n", "'x' is given twice"),
        ("m.csv", "", "No audio"),
        ("m.jsonl", '{"file": "a.wav"}\n{broken\n', "line 2 is not JSON"),
        ("m.jsonl", "[1]\n", "expected a JSON object"),
        ("m.jsonl", "[" * 200_000, "line 1 is not JSON"),
        ("wav.scp", "u1 sox a.wav -t wav - |\n", "line 1 is a command, which is never run"),
        ("wav.scp", "u1 feats.ark:12\n", "line 1: expected 'id path"),
        ("wav.scp", "u1\n", "line 1: expected 'id path"),
    ],
)
def test_a_broken_list_says_where(tmp_path, name, text, reason):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=reason):
        collect([tmp_path / name])


def test_kaldi_lists(tmp_path):
    touch(tmp_path, "two words.wav")
    (tmp_path / "wav.scp").write_text("u1 two words.wav\nu2\t/data/b.wav\n\n")
    (tmp_path / "utt2spk").write_text("u1 ann\n")
    first, second = collect([tmp_path / "wav.scp"])
    assert first[:4] == ("u1", tmp_path / "two words.wav", "ann", "ann")
    assert second[:4] == ("u2", tmp_path.__class__("/data/b.wav"), None, "u2")


def test_a_copy_belongs_to_the_speaker_of_its_clean_source(tmp_path):
    touch(tmp_path, "clean/a.wav", "clean/z.wav", "bad/a_x.wav", "bad/z_x.wav", "bad/y_x.wav", "bad/y_y.wav")
    (tmp_path / "clean/manifest.csv").write_text("file,speaker\na.wav,ann\n")
    (tmp_path / "bad/manifest.csv").write_text(
        "file,clean_file\na_x.wav,a.wav\nz_x.wav,z.wav\ny_x.wav,y.wav\ny_y.wav,y.wav\n"
    )
    by_id = {u.id: u for u in collect([tmp_path / "clean", tmp_path / "bad"])}
    assert {name: (u.speaker, u.group) for name, u in by_id.items()} == {
        "a.wav": ("ann", "ann"),
        "a_x.wav": ("ann", "ann"),
        "z.wav": (None, "z"),
        "z_x.wav": (None, "z"),
        "y_x.wav": (None, "y"),
        "y_y.wav": (None, "y"),
    }


def some(*sizes):
    return [
        Utterance(f"{group}{i}.wav", f"/x/{group}{i}.wav", None, f"g{group}")
        for group, size in enumerate(sizes)
        for i in range(size)
    ]


def test_splits_keep_groups_whole():
    utterances = some(5, 1, 3, 2, 4, 5)
    for seed in range(10):
        train, test = split(utterances, seed=seed)
        assert sorted(train + test) == sorted(utterances) and 8 <= len(test) <= 12
        assert not {u.group for u in train} & {u.group for u in test}
        assert split(utterances[::-1], seed=seed)[1] == test[::-1]
        assert check_disjoint(train, test) is None
    assert len({tuple(u.id for u in split(utterances, seed=seed)[1]) for seed in range(10)}) > 1
    assert len(split(some(9, 9), test_fraction=0.01)[1]) == 9
    assert len(split(some(9, 9), test_fraction=0.99)[0]) == 9
    with pytest.raises(ValueError, match="at least two speakers"):
        split(some(9))
    with pytest.raises(ValueError, match="above 0 and below 1"):
        split(utterances, test_fraction=1.0)


def test_a_digest_is_of_what_is_heard(tmp_path):
    wav = toys.speechlike(0.5, 0)
    for name, rate, shift in (("a.wav", 16000, 0), ("b.flac", 16000, 0), ("c.wav", 8000, 0), ("d.wav", 16000, 1e-3)):
        audio.write(tmp_path / name, wav + np.float32(shift), rate)
    (tmp_path / "e.wav").write_text("not audio")
    a, b, c, d, e = (digest(u) for u in collect([tmp_path]))
    assert a == b and len({a, c, d}) == 3 and e is None


def test_recordings_are_found_again_by_what_was_listed(tmp_path):
    touch(tmp_path, "new\nline.wav", "sub/речь.wav")
    (tmp_path / "manifest.csv").write_text("file,speaker\nsub/речь.wav,ann\n", encoding="utf-8")
    given = collect([tmp_path])
    (tmp_path / "list").mkdir()
    run.write_lines(tmp_path / "list" / "recordings.jsonl", listed(given, "test"))
    again = collect([tmp_path / "list" / "recordings.jsonl"])
    assert [u[:3] for u in again] == [u[:3] for u in given] and {u.meta["half"] for u in again} == {"test"}


def test_chosen_sets_are_checked(tmp_path):
    touch(tmp_path, "a.wav", "b.wav")
    (tmp_path / "same.wav").symlink_to("a.wav")
    a, b, same = (Utterance(n, tmp_path / n, "s", "s") for n in ("a.wav", "b.wav", "same.wav"))
    assert "share 1 speaker" in check_disjoint([a], [b])
    with pytest.raises(ValueError, match="both the train and the test set, such as 'same"):
        check_disjoint([a], [same])


def test_a_limit_takes_from_every_group():
    utterances = some(9, 1, 9, 9)
    for seed in range(5):
        few = limit(utterances, 7, seed)
        assert len(few) == 7 and [u for u in utterances if u in few] == few
        counts = [sum(u.group == f"g{g}" for u in few) for g in range(4)]
        assert counts == [2, 1, 2, 2]
        assert all(u in few for u in limit(utterances, 6, seed))
    assert limit(utterances, None) == utterances == limit(utterances, 99)
    with pytest.raises(ValueError, match="at least 1"):
        limit(utterances, 0)


def test_the_shared_sets(shared):
    utterances = collect([shared / "speech", shared / "degraded"])
    assert len(utterances) == 206 + 180 and all(u.speaker for u in utterances)
    train, test = split(utterances, seed=0)
    assert not {u.speaker for u in train} & {u.speaker for u in test} and abs(len(test) - 193) < 15
    alone = collect([shared / "degraded"])
    assert len({u.group for u in alone}) == 30
    assert len({u.speaker for u in limit(utterances, 40)}) == 40


def test_an_empty_path_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    touch(tmp_path, "a.wav")
    assert ids(["."]) == ["a.wav"]
    for given in ([""], ["a.wav", ""]):
        with pytest.raises(ValueError, match="A path is empty"):
            collect(given)


def test_what_an_audit_wrote_is_nobodys_recording(tmp_path):
    touch(tmp_path, "a.wav", "runs/one/examples/most_hacked_attacked.wav")
    assert len(ids([tmp_path])) == 2
    touch(tmp_path, "runs/one/run.json")
    assert ids([tmp_path]) == ["a.wav"]


def test_a_fingerprint_tells_recordings_of_one_name_apart(tmp_path):
    touch(tmp_path, "1/a.wav", "2/a.wav")
    one, two = collect([tmp_path / "1"]), collect([tmp_path / "2"])
    assert fingerprint(one) == fingerprint(two) != fingerprint([*one, *two])
    (tmp_path / "2" / "a.wav").write_bytes(b"0")
    assert fingerprint(one) != fingerprint(two)
    (tmp_path / "2" / "a.wav").unlink()
    assert fingerprint(one) != fingerprint(two)


def test_voices_that_nothing_names_are_warned_of(tmp_path):
    touch(tmp_path, "a.wav", "b.wav")
    assert "in 2 of 2 recordings, such as 'a.wav'" in check_speakers(collect([tmp_path]))
    (tmp_path / "manifest.csv").write_text("file,speaker\na.wav,s\nb.wav,t\n")
    assert check_speakers(collect([tmp_path])) is None


def test_demo_speech_is_known_however_it_is_named(tmp_path):
    for given in (DEMO, DEMO.parent, DEMO.parent / "slt_clean.flac"):
        assert all(is_demo(utterance) for utterance in collect([given]))
    touch(tmp_path, "slt_clean.flac")
    assert not is_demo(collect([tmp_path])[0])
