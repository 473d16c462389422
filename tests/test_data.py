"""Data sets in the layout of their releases."""

import re
import shutil
import warnings
from pathlib import Path

import data_sets
import numpy as np
import pytest
import soundfile
from data_sets import SETS, embedded, level, shard, text

from jaxhack import data, inputs
from jaxhack.audio import AudioError

NAMES = list(SETS)


@pytest.fixture
def made(tmp_path):
    """Makes a set in a folder of its own."""

    def make(kind: str) -> Path:
        SETS[kind].make(tmp_path / kind)
        return tmp_path / kind

    return make


def shown(rated) -> list[tuple]:
    return [(r.id, r.system, r.mos, r.listeners, r.split) for r in rated]


def stem(rated: data.Rated) -> str:
    return rated.audio.stem if isinstance(rated.audio, Path) else rated.id


def test_every_set_has_a_fixture():
    assert list(data.KINDS) == NAMES
    assert all(kind.summary and kind.published and kind.holds and kind.licence for kind in data.KINDS.values())


@pytest.mark.parametrize("kind", NAMES)
def test_official_layout(made, kind):
    folder = made(kind)
    rated = data.read(kind, folder)
    assert shown(rated) == SETS[kind].rows
    assert rated[0].meta == SETS[kind].meta
    for inner in ("", *SETS[kind].inner):
        assert data.read(f"{kind}:{folder / inner}") == rated
    for one in rated:
        wav = data.load(one, 8000)
        assert wav.dtype == np.float32 and wav.shape == (160,)
        assert data.load(one)[160] == pytest.approx(level(stem(one)), abs=1e-4)


@pytest.mark.parametrize("kind", [kind for kind in NAMES if "urgent" not in kind])
def test_missing_audio(made, kind):
    folder = made(kind)
    rated = data.read(kind, folder)
    rated[0].audio.unlink()
    count = f"1 of {len(rated)} audio files are missing: {str(rated[0].audio)!r}."
    with pytest.raises(ValueError, match=re.escape(count)) as error:
        data.read(kind, folder)
    assert str(error.value).startswith(f"{kind} cannot be read from {str(folder)!r}, which is to hold ")
    assert str(error.value).endswith("In Python, jaxhack.data.read(…, missing='skip') goes on with what is there.")
    assert ("Blizzard" in str(error.value)) == (kind in ("bvcc", "voicemos2022-ood"))
    with pytest.warns(UserWarning, match=re.escape(f"Left out: {count}")):
        assert data.read(kind, folder, missing="skip") == rated[1:]
    for one in rated[1:]:
        one.audio.unlink()
    if kind != "voicebank-demand":  # nothing lists what a complete one is
        with pytest.raises(ValueError, match=f"{len(rated)} of {len(rated)} audio files are missing"):
            data.read(kind, folder, missing="skip")


def test_many_missing_files_are_counted(made):
    folder = made("bvcc")
    shutil.rmtree(folder / "main/DATA/wav")
    with pytest.raises(ValueError, match=r"4 of 4 audio files are missing: '[^']*utt1.wav', '[^']*', '[^']*', …"):
        data.read("bvcc", folder)


@pytest.mark.parametrize("kind", NAMES)
def test_missing_labels(made, tmp_path, kind):
    folder = made(kind)
    path = folder / SETS[kind].labels
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(ValueError, match=path.name.partition("-")[0]):
        data.read(kind, folder)
    with pytest.raises(ValueError, match=r"does not exist: it is to hold"):
        data.read(kind, tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="which is to hold"):
        data.read(kind, tmp_path / "empty", missing="skip")


@pytest.mark.parametrize(
    ("kind", "part", "left"),
    [
        ("bvcc", "main/DATA/sets/train_mos_list.txt", slice(2, None)),
        ("nisqa", "NISQA_Corpus/NISQA_TRAIN_SIM", slice(2, None)),
        ("somos", "training_files/split1/clean/test_mos_list.txt", slice(0, 3)),
        ("urgent2024", "data/test-00001-of-00002.parquet", slice(0, 3)),
    ],
)
def test_a_partial_set_can_be_gone_on_with(made, kind, part, left):
    folder = made(kind)
    path = folder / part
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(ValueError, match=re.escape(str(path))):
        data.read(kind, folder)
    with pytest.warns(UserWarning, match="Left out: expected"):
        assert shown(data.read(kind, folder, missing="skip")) == SETS[kind].rows[left]


def test_nothing_is_warned_of_a_complete_set(made):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in ("bvcc", "urgent2024", "voicebank-demand"):
            assert data.read(kind, made(kind), missing="skip")


@pytest.mark.parametrize(
    ("kind", "old", "new", "sentence"),
    [
        ("bvcc", "sysa-utt1.wav,3.5", "sysa-utt1.wav,good", "line 1: expected a MOS from 1 to 5, got 'good'"),
        ("bvcc", "utt3.wav,2.0", "utt3.wav,nan", "line 3: expected a MOS from 1 to 5, got 'nan'"),
        ("bvcc", "utt3.wav,2.0", "utt3.wav,0", "line 3: expected a MOS from 1 to 5, got '0'"),
        ("bvcc", "sysb-utt3.wav,2.0", "sysa-utt1.wav,2.0", "line 3: 'sysa-utt1' is listed twice, first in .* line 1"),
        ("bvcc", "sysb-utt3.wav,2.0", "sysb-utt3.wav", r"line 3: expected 2 cells \(file, mos\), got 1"),
        ("bvcc", "sysb-utt3.wav", "utt3.wav", "line 3: expected a name of the form system-utterance.wav, got 'utt3"),
        ("voicemos2022-ood", "sysc-utt1.wav,3.5", "", "train_mos_list.txt' lists nothing"),
        ("nisqa-for", "filename_deg,", "filename,", "line 1: expected a column filename_deg, got db, con"),
        ("nisqa-for", ",en,30,3.5", ",en,many,3.5", "line 2: expected a number of votes, got 'many'"),
        ("nisqa-for", ",en,30,3.5", ",en,30,", "line 2: expected a MOS from 1 to 5, got ''"),
        ("nisqa-for", "c01_2.wav,r2", "c01_1.wav,r2", "line 3: 'NISQA_TEST_FOR/c01_1' is listed twice"),
        ("somos", "news_2_000,4.5", "news,4.5", "line 3: expected a name of the form sentence_system.wav, got 'news"),
        ("somos", "news_2_000,4.5", "news_1_015,4.5", "line 3: 'news_1_015' is listed twice, first in .* line 2"),
        ("tmhint-qi", "babble,4,", "babble,6,", "line 5: expected a MOS from 1 to 5, got '6'"),
        ("tmhint-qi", "3,FCN", "3,DDAE", "line 5: 'b_1.wav' is of the system DDAE.*, but of FCN.* in .* line 2"),
        (
            "voicemos2023-1a",
            "A-AD_test",
            "A-XY_test",
            "line 1: expected an id of track 1, got 'VoiceMOS2023Track1-A-XY",
        ),
        ("voicemos2023-2", "Track2-SOU-SF1-SF1", "Track2-SOU-SF1", "line 2: expected an id of track 2"),
        ("voicemos2023-3", "Track3-clean", "Track2-clean", "line 3: expected an id of track 3"),
        ("csv", ",mos,", ",score,", "line 1: expected a column mos, got file, score"),
        ("csv", "three.wav,1,", "three.wav,1.0.0,", "line 4: expected a MOS from 1 to 5, got '1.0.0'"),
        ("csv", "three.wav,1,", "one.wav,1,", "line 4: 'one.wav' is listed twice, first in .* line 2"),
        ("csv", "three.wav,1,", ",1,", "line 4 names no audio: expected a value in a column path, file"),
        ("csv", "tts-b,3,", "tts-b,3.5,", "line 4: expected listeners, a whole number, got '3.5'"),
        ("csv", "dev", "later", "line 3: expected a split train, validation or test, got 'later'"),
        ("csv", '"well, yes"', '"well, yes', "labels.csv' line 4 is not CSV: unexpected end of data"),
        ("csv", "three.wav,1,", "three.wav,3,5,", r"line 4: expected 7 cells \(file, mos, .*\), got 8"),
        ("voicemos2022-ood", "utt1.wav,3.5", "utt1.wav,3,5", r"line 1: expected 2 cells \(file, mos\), got 3"),
    ],
)
def test_a_line_that_is_not_right_is_one_sentence(made, kind, old, new, sentence):
    folder = made(kind)
    path = folder / SETS[kind].labels
    before = path.read_text(encoding="utf-8")
    assert old in before
    path.write_text(before.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ValueError, match=sentence) as error:
        data.read(kind, folder)
    assert "\n" not in str(error.value) and path.name in str(error.value)


def test_labels_that_are_not_text(made):
    folder = made("somos")
    (folder / SETS["somos"].labels).write_bytes(b"utteranceId,mean\n\xff\xfe,3\n")
    with pytest.raises(ValueError, match=r"train_mos_list.txt' cannot be read as UTF-8 text"):
        data.read("somos", folder)


def test_single_ratings_are_checked_too(made):
    folder = made("bvcc")
    text(folder / "main/DATA/sets/TRAINSET", "sysa,sysa-utt1.wav,x,w,l")
    with pytest.raises(ValueError, match="TRAINSET' line 1: expected a MOS from 1 to 5, got 'x'"):
        data.read("bvcc", folder)


def test_somos_has_two_subsets(made):
    folder = made("somos")
    assert [r.mos for r in data.read("somos", folder, subset="full")] == [3.0, 4.5, 2.0, 5.0]
    with pytest.raises(ValueError, match="Unknown subset 'ful'; did you mean full"):
        data.read("somos", folder, subset="ful")


def test_one_recording_on_both_sides_of_tmhint(made):
    folder = made("tmhint-qi")
    data_sets.audio(folder / "TMHINTQI/test", "b_1.wav")
    with pytest.raises(ValueError, match=r"line 2: 'b_1.wav' is in '.*train' and in '.*test'"):
        data.read("tmhint-qi", folder)


def test_a_voicebank_recording_without_its_pair(made):
    folder = made("voicebank-demand")
    (folder / "clean_testset_wav/p232_001.wav").unlink()
    with pytest.raises(ValueError, match=r"1 of 6 audio files are missing: '.*clean_testset_wav/p232_001.wav'"):
        data.read("voicebank-demand", folder)
    shutil.rmtree(folder / "clean_trainset_28spk_wav")
    shutil.rmtree(folder / "noisy_trainset_28spk_wav")
    with (
        pytest.warns(UserWarning, match="Left out: expected .*noisy_trainset_28spk_wav"),
        pytest.warns(UserWarning, match="Left out: 1 of 2 audio files"),
    ):
        rated = data.read("voicebank-demand", folder, missing="skip")
    assert shown(rated) == [("noisy/p232_001", "noisy", None, None, "test")]


def urgent_rows(**columns) -> list[dict]:
    return [embedded("P1-f_1", **{"id": "P1-f_1", "mos": 3.0, **columns})]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (urgent_rows(mos=float("nan")), r"row 1: expected a MOS from 1 to 5, got nan"),
        (urgent_rows(raw_ratings="3,4,5"), r"expected raw_ratings as lists, got string"),
        (urgent_rows(mos=5.5), r"row 1: expected a MOS from 1 to 5, got 5.5"),
        (urgent_rows() * 2, r"row 2: 'P1-f_1' is listed twice, first in .* row 1"),
        (urgent_rows(id="P1_f_1"), r"row 1: there is no system_id, and no system before a '-' in the id 'P1_f_1'"),
        ([{"id": "P1-f_1", "audio": urgent_rows()[0]["audio"]}], r"expected a column mos, got id, audio"),
        (
            [{"id": "P1-f_1", "mos": 3.0, "audio": "a.wav"}],
            r"expected audio as a struct with the field bytes",
        ),
    ],
)
def test_parquet_that_is_not_right_is_one_sentence(tmp_path, rows, sentence):
    shard(tmp_path / "test-00000-of-00001.parquet", rows)
    with pytest.raises(ValueError, match=sentence):
        data.read("urgent2024", tmp_path)


def test_a_name_that_tells_of_too_many_shards(tmp_path):
    text(tmp_path / "test-00000-of-99999999.parquet", "")
    with pytest.raises(ValueError, match="is truncated or not a Parquet file"):
        data.read("urgent2024", tmp_path)


def test_parquet_that_is_none(tmp_path):
    text(tmp_path / "test-00000-of-00001.parquet", "version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ValueError, match="is truncated or not a Parquet file"):
        data.read("urgent2024", tmp_path)


def test_urgent2024_by_its_other_name(tmp_path):
    """A system_id that repeats the id says nothing."""
    names = ("P001-fileid_1", "P002-fileid_1")
    rows = [embedded(name, sample_id=name, system_id=name, mos=3.0) for name in names]
    shard(tmp_path / "blind_test_mos-00000-of-00001.parquet", rows)
    rated = data.read("urgent2024", tmp_path)
    assert [(r.id, r.system, r.listeners) for r in rated] == [(names[0], "P001", None), (names[1], "P002", None)]
    shard(tmp_path / "test-00000-of-00001.parquet", urgent_rows())
    with pytest.raises(ValueError, match=r"expected test-00000-of-….parquet or blind_test_mos-.*, found both"):
        data.read("urgent2024", tmp_path)


def test_embedded_audio_follows_its_file(tmp_path):
    path = tmp_path / "test-00000-of-00001.parquet"
    shard(path, urgent_rows())
    (rated,) = data.read("urgent2024", tmp_path)
    assert data.load(rated)[0] == pytest.approx(level("P1-f_1"), abs=1e-4)
    shard(path, [embedded("another", id="P1-f_1", mos=3.0)])
    assert data.load(rated)[0] == pytest.approx(level("another"), abs=1e-4)
    shard(path, [{"id": "P1-f_1", "mos": 3.0, "audio": {"bytes": b"not audio", "path": "x"}}])
    with pytest.raises(AudioError, match=r"parquet row 1' is not audio that can be read"):
        data.load(rated)
    shard(path, [{"id": n, "mos": 3.0, "audio": {"bytes": b, "path": n}} for n, b in (("a-1", None), ("b-1", b"x"))])
    with pytest.raises(AudioError, match=r"parquet row 1' holds no audio"):
        data.load(rated)
    path.unlink()
    with pytest.raises(AudioError, match=r"parquet row 1' cannot be read"):
        data.load(rated)


def test_embedded_audio_is_extracted_as_it_is(made, tmp_path):
    rated = data.read("urgent2024", made("urgent2024"))
    rated[1] = rated[1]._replace(id="odd/../name: 1")
    with pytest.raises(ValueError, match=r"'P001-fileid_1' lies inside .*data.extract\(rated, folder\) writes"):
        data.utterances(rated)
    files = data.extract(rated, tmp_path / "out")
    assert [r.audio.name for r in files[:2]] == ["P001-fileid_1.flac", "odd%2F..%2Fname%3A 1.flac"]
    assert [r.audio.read_bytes() for r in files] == [data.content(r) for r in rated]
    assert [r._replace(audio=None) for r in files] == [r._replace(audio=None) for r in rated]
    assert data.extract(files, tmp_path / "out") == files == data.extract(rated, tmp_path / "out")
    assert len(list((tmp_path / "out").iterdir())) == len(rated)
    assert [u.group for u in data.utterances(files)] == ["fileid_1", "fileid_2", "fileid_1", "fileid_2"]


def test_audio_is_refused_where_it_is_loaded(made):
    folder = made("csv")
    text(folder / "one.wav", "no audio")
    rated = data.read("csv", folder)
    with pytest.raises(AudioError, match=r"one.wav' is not audio"):
        data.load(rated[0])
    with pytest.raises(AudioError, match=r"one.wav' is not audio"):
        data.content(rated[0])


def test_utterances_keep_what_belongs_together(made):
    nisqa = data.utterances(data.read("nisqa-for", made("nisqa-for")))
    assert [u.group for u in nisqa] == ["r1", "r2", "r1", "r2"] and nisqa[0].meta["lang"] == "en"
    assert nisqa[0].path.is_file() and nisqa[0].speaker is None
    voicebank = data.utterances(data.read("voicebank-demand", made("voicebank-demand")))
    assert {(u.speaker, u.group) for u in voicebank} == {(p, p) for p in ("p226", "p227", "p232")}
    rated = data.read("csv", made("csv"))
    assert [(u.id, u.speaker, u.group) for u in data.utterances(rated)] == [
        ("one.wav", "ann", "ann"),
        ("sub/two.wav", None, "sub/two.wav"),
        ("three.wav", "ben", "ben"),
    ]
    train, test = inputs.split(data.utterances(rated))
    assert train and test


def test_own_ratings_on_an_own_scale(tmp_path):
    """Any one CSV file, the columns of a manifest, other scales, 24 kHz."""
    (tmp_path / "clips").mkdir()
    soundfile.write(tmp_path / "clips/a.flac", np.zeros(240), 24000)
    text(tmp_path / "mushra.csv", "id,path,mos,clean_file", "first,clips/a.flac,87.5,a.wav")
    with pytest.raises(ValueError, match=r"line 2: expected a MOS from 1 to 5, got '87.5'"):
        data.read("csv", tmp_path)
    (rated,) = data.read("csv", tmp_path, scale=(0, 100))
    assert rated == data.Rated("first", tmp_path / "clips/a.flac", None, 87.5, None, "test", {"original": "a.wav"})
    assert data.load(rated, 16000).shape == (160,)
    text(tmp_path / "more.csv", "x")
    with pytest.raises(ValueError, match=r"expected 'labels.csv' or one other CSV file, found 2"):
        data.read("csv", tmp_path)
    assert data.read("csv", tmp_path / "mushra.csv", scale=(0, 100)) == [rated]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda f: data.read("bvc", f), r"Unknown data set 'bvc'; did you mean bvcc"),
        (lambda f: data.read(f"urgent24:{f}"), r"did you mean urgent2024 or urgent2025"),
        (lambda f: data.read("bvcc"), r"Expected a folder for the data set bvcc: 'bvcc:/path/to/folder'"),
        (lambda f: data.read("bvcc", f, missing="ignore"), r"missing must be 'error' or 'skip', got 'ignore'"),
        (lambda f: data.read("somos", f, subsets="full"), r"Unknown option of somos 'subsets'; did you mean subset"),
        (lambda f: data.read("bvcc", f, scale=(1, 5)), r"Unknown option of bvcc 'scale'; known: missing"),
    ],
)
def test_names_that_are_not_known(tmp_path, call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call(tmp_path)
