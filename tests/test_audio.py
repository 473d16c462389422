import os

import numpy as np
import pytest
import soundfile
import soxr
from fakes import speechlike

from jaxhack import audio
from jaxhack.audio import AudioError

RATES = (8000, 16000, 24000, 44100, 48000)
SUBTYPES = ("PCM_16", "PCM_24", "PCM_32", "FLOAT")


@pytest.mark.parametrize("rate", RATES)
def test_formats_agree_whatever_the_rate_and_width(tmp_path, rate):
    wav = speechlike(4, rate)
    expected = speechlike(4, 16000)
    for subtype in SUBTYPES:
        for channels, policy, gain in (
            ([wav], "mono", 1),
            ([wav, wav], "2 channels, averaged", 1),
            ([wav, 0 * wav], "2 channels, averaged", 0.5),
        ):
            path = tmp_path / f"{subtype}{len(channels)}.wav"
            soundfile.write(path, np.stack(channels, 1), rate, subtype=subtype)
            clip = audio.read(path, sample_rate=16000)
            assert (clip.sample_rate, clip.source_rate, clip.channels) == (16000, rate, policy)
            assert clip.resampled == ("" if rate == 16000 else f"{rate}->16000 Hz, soxr VHQ")
            assert clip.wav.dtype == np.float32 and clip.seconds == 4.0 and clip.clipped == 0
            np.testing.assert_allclose(clip.wav[800:-800], gain * expected[800:-800], atol=1e-3)


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg", "a.mp3"])
def test_reads_every_container(tmp_path, name):
    soundfile.write(tmp_path / name, speechlike(2), 16000)
    clip = audio.read(tmp_path / name)
    assert len(clip.wav) == 32000 and clip.source_rate == 16000
    assert np.corrcoef(clip.wav, speechlike(2))[0, 1] > 0.95


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg", "a.mp3"])
def test_bytes_are_read_as_their_file_is(tmp_path, name):
    soundfile.write(tmp_path / name, speechlike(2), 24000)
    inside = audio.Bytes((tmp_path / name).read_bytes(), "shard row 1")
    for longest in (None, 0.5):
        there = audio.read(tmp_path / name, sample_rate=16000, longest=longest)
        clip = audio.read(inside, sample_rate=16000, longest=longest)
        np.testing.assert_array_equal(clip.wav, there.wav)
        assert clip._replace(wav=None) == there._replace(wav=None)


@pytest.mark.parametrize(
    ("part", "reason"),
    [(slice(0), "is empty"), (slice(-100), "is cut short"), (slice(8, None), "is not audio that can be read")],
)
def test_bytes_that_are_no_audio_are_one_sentence(tmp_path, part, reason):
    soundfile.write(tmp_path / "a.wav", speechlike(1), 16000)
    with pytest.raises(AudioError, match=f"^'shard row 1' {reason}") as error:
        audio.read(audio.Bytes((tmp_path / "a.wav").read_bytes()[part], "shard row 1"))
    assert "BytesIO" not in str(error.value)


def test_a_contradicted_rate_is_an_error(tmp_path):
    soundfile.write(tmp_path / "a.wav", speechlike(1), 16000)
    assert audio.read(tmp_path / "a.wav", stated_rate=16000).sample_rate == 16000
    with pytest.raises(AudioError, match="has 16000 Hz but 8000 Hz was stated"):
        audio.read(tmp_path / "a.wav", stated_rate=8000)


def test_blocks_are_the_whole_file_in_parts(tmp_path, monkeypatch):
    """The resampler's state is carried: no seams."""
    wav = speechlike(5, 44100)
    soundfile.write(tmp_path / "a.wav", wav, 44100, subtype="FLOAT")
    monkeypatch.setattr(audio, "BLOCK", 10007)
    info = audio.probe(tmp_path / "a.wav")
    parts = [part for part, _ in audio.blocks(tmp_path / "a.wav", info, sample_rate=16000, size=30000)]
    assert [len(part) for part in parts] == [30000, 30000, 20000]
    np.testing.assert_allclose(np.concatenate(parts), soxr.resample(wav, 44100, 16000, "VHQ"), atol=1e-6)
    assert audio.resampled_length(len(wav), 44100, 16000) == 80000


def test_what_is_not_audio_says_why(tmp_path):
    soundfile.write(tmp_path / "whole.wav", speechlike(1), 16000)
    soundfile.write(tmp_path / "whole.flac", speechlike(1), 16000)
    soundfile.write(tmp_path / "none.wav", np.zeros(0, np.float32), 16000)
    soundfile.write(tmp_path / "nan.wav", np.array([0, np.nan], np.float32), 16000, subtype="FLOAT")
    soundfile.write(tmp_path / "scaled.wav", np.array([0, 20000], np.float32), 16000, subtype="FLOAT")
    for name in ("whole.wav", "whole.flac"):
        data = (tmp_path / name).read_bytes()
        (tmp_path / f"cut_{name}").write_bytes(data[: len(data) * 2 // 3])
    (tmp_path / "zero.wav").touch()
    (tmp_path / "text.wav").write_text("not audio, and long enough to have held a header " * 3)
    (tmp_path / "folder.wav").mkdir()
    os.mkfifo(tmp_path / "pipe.wav")  # opening it would wait for ever
    (tmp_path / "loop.wav").symlink_to("loop.wav")
    for name, reason in {
        "none.wav": "holds no samples",
        "nan.wav": "not finite",
        "scaled.wav": "reaches 20000",
        "cut_whole.wav": "cut short",
        "cut_whole.flac": "breaks off|cut short",
        "zero.wav": "empty",
        "text.wav": "not audio",
        "folder.wav": "directory",
        "pipe.wav": "not a regular file",
        "loop.wav": "cannot be opened",
        "absent.wav": "does not exist",
        "nul\0.wav": "cannot be opened",
    }.items():
        with pytest.raises(AudioError, match=reason) as refusal:
            audio.read(tmp_path / name)
        assert "\n" not in str(refusal.value)


def test_a_wav_of_unstated_length_is_read(tmp_path):
    """Programs that write to a pipe put 0xFFFFFFFF where the size belongs."""
    soundfile.write(tmp_path / "a.wav", speechlike(1), 16000)
    data = bytearray((tmp_path / "a.wav").read_bytes())
    data[40:44] = b"\xff" * 4
    (tmp_path / "a.wav").write_bytes(data)
    assert len(audio.read(tmp_path / "a.wav").wav) == 16000


def test_save_and_read_back_is_rounding_alone(tmp_path):
    wav = np.array([1.0, -1.0, 0.9999, -0.9999, 0.99999, 1.5, -1.5, 0.5 / 32768, 1.5 / 32768, 0], np.float32)
    expected = np.array([32767, -32768, 32765, -32765, 32767, 32767, -32768, 0, 2, 0])
    np.testing.assert_array_equal(audio.pcm16(wav), expected)
    for name in ("a.wav", "a.flac"):
        assert audio.write(tmp_path / name, wav, 16000) == 2
        assert soundfile.info(tmp_path / name).subtype == "PCM_16"
        np.testing.assert_array_equal(audio.read(tmp_path / name).wav, expected / np.float32(32768))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.flac", "a.wav"]


def test_a_perturbation_grows_by_at_most_half_a_step_when_saved(tmp_path):
    x = audio.pcm16(speechlike(2)) / np.float32(32768)
    x[:4] = [0.9999, -0.9999, 1.0, -1.0]
    y = np.clip(x + np.random.default_rng(0).uniform(-0.002, 0.002, len(x)).astype(np.float32), -1, 1)
    audio.write(tmp_path / "y.wav", y, 16000)
    saved = audio.read(tmp_path / "y.wav").wav
    assert 0.002 < np.abs(saved - x)[4:].max() <= 0.0020153
    assert np.abs(saved - y).max() <= 1 / 32768  # +1.0 has no 16-bit form; nothing wraps round
    soundfile.write(tmp_path / "f.wav", y, 16000, subtype="FLOAT")
    np.testing.assert_array_equal(audio.read(tmp_path / "f.wav").wav, y)


def test_samples_beyond_one_are_cut_and_counted(tmp_path):
    soundfile.write(tmp_path / "hot.wav", np.array([0.5, 1.25, -3, 1], np.float32), 16000, subtype="FLOAT")
    clip = audio.read(tmp_path / "hot.wav")
    np.testing.assert_array_equal(clip.wav, np.array([0.5, 1, -1, 1], np.float32))
    assert clip.clipped == 2


@pytest.mark.parametrize(
    ("wav", "rate", "reason"),
    [
        (np.zeros(10, np.float32), None, "pass sample_rate"),
        (np.zeros((2, 10), np.float32), 16000, r"\(2, 10\)"),
        (np.zeros(10, np.int16), 16000, "int16"),
        (np.zeros(0, np.float32), 16000, "empty"),
        (np.array([np.inf]), 16000, "not finite"),
        (np.zeros(10, np.float32), 0, "above 0"),
    ],
)
def test_arrays_are_checked(wav, rate, reason):
    with pytest.raises(AudioError, match=reason):
        audio.as_clip(wav, rate)


def test_an_array_becomes_a_clip():
    clip = audio.as_clip(np.array([0.25, -2.0]), 8000)
    assert clip.wav.tolist() == [0.25, -1.0] and clip.clipped == 1 and clip.seconds == 2 / 8000


@pytest.mark.parametrize(
    "wav", [np.zeros((2, 10), np.float32), np.array([np.nan], np.float32), np.zeros(0, np.float32)]
)
def test_nothing_unsaveable_is_written(tmp_path, wav):
    with pytest.raises(AudioError):
        audio.write(tmp_path / "a.wav", wav, 16000)
    with pytest.raises(AudioError, match=r"\.wav or \.flac"):
        audio.write(tmp_path / "a.mp3", np.zeros(4, np.float32), 16000)
    with pytest.raises(AudioError, match="cannot be written"):
        audio.write(tmp_path / "no" / "a.wav", np.zeros(4, np.float32), 16000)
    assert not list(tmp_path.iterdir())


def test_few_padded_lengths():
    assert [audio.bucket_length(n, 16000) for n in (1, 32000, 32001, 48001, 72001)] == [
        32000, 32000, 48000, 72000, 108000,
    ]  # fmt: skip
    assert audio.bucket_length(800000, 16000, longest=832000) == 820125
    assert audio.bucket_length(830000, 16000, longest=832000) == 832000
    assert audio.pad(np.ones(2, np.float32), 4).tolist() == [1, 1, 0, 0]
    with pytest.raises(ValueError, match="at most 1"):
        audio.pad(np.ones(2), 1)


def test_real_recordings(shared):
    clip = audio.read(shared / "speech" / "en_178_ljspeech_LJ001_0001.flac", sample_rate=48000)
    assert clip.source_rate == 16000 and len(clip.wav) == round(clip.seconds * 48000)
