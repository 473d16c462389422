"""Audio files and arrays on the host: read, write, resample, pad to a few lengths.

A waveform is ``wav [T]``, float32, −1..1, mono. Channels are averaged; samples beyond ±1 are cut and counted; a
file that is empty, cut short or not audio is refused with one sentence that names it.
"""

import io
import math
import os
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile
import soxr

SUFFIXES = frozenset(
    {".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".au", ".m4a", ".aac", ".wma"}
)
QUALITY = "VHQ"  # soxr's best preset
BLOCK = 1 << 18  # source frames read at once
INTEGER_SCALED = 16.0  # a float peak above it is an integer scale by mistake, not a hot recording
_STREAMED = 0x7FFF0000  # a RIFF size from here on means "unknown", as written by pipes
_MP3_SHORTFALL = 0.02  # the frame count of an MP3 header is an estimate

PathLike = str | os.PathLike[str]


class Bytes(NamedTuple):
    """A file that lies in memory."""

    data: bytes  # all of it, header included
    name: str  # what a sentence calls it


Source = PathLike | Bytes


class AudioError(ValueError):
    """An input that is not usable audio, and why."""


class Info(NamedTuple):
    """What a file's header says."""

    source_rate: int  # Hz
    frames: int  # samples a channel
    channels: int

    @property
    def seconds(self) -> float:
        """Duration."""
        return self.frames / self.source_rate

    @property
    def channel_policy(self) -> str:
        """How the channels became one."""
        return "mono" if self.channels == 1 else f"{self.channels} channels, averaged"


class Clip(NamedTuple):
    """One recording, ready to be scored."""

    wav: np.ndarray  # [T] float32, −1..1, mono
    sample_rate: int  # Hz, of `wav`
    source_rate: int  # Hz, of the file or array it came from
    seconds: float
    channels: str  # "mono", or how several became one
    resampled: str  # "48000->16000 Hz, soxr VHQ", or ""
    clipped: int  # samples beyond ±1 that were cut, in the source or after resampling


def read(
    path: Source, *, sample_rate: int | None = None, stated_rate: int | None = None, longest: float | None = None
) -> Clip:
    """Reads a file: WAV, FLAC, Ogg or MP3; integer or float; any number of channels.

    Args:
      path: the file, or its bytes.
      sample_rate: Hz to resample to; None keeps the file's own.
      stated_rate: Hz that someone said the file has; checked against the file.
      longest: seconds from the beginning that are wanted; what follows is not read. None reads the whole file.

    Raises:
      AudioError: a missing, empty, cut-short or non-audio file, a non-finite sample, a contradicted rate.
    """
    info = probe(path, stated_rate=stated_rate)
    rate = _rate(sample_rate or info.source_rate)
    size = BLOCK if longest is None else math.ceil(longest * rate)
    parts = list(islice(blocks(path, info, sample_rate=rate, size=size), None if longest is None else 1))
    wav = np.concatenate([wav for wav, _ in parts]) if parts else np.zeros(0, np.float32)
    if not len(wav):
        raise AudioError(f"{_show(path)} holds no samples at {rate} Hz.")
    return Clip(
        wav=wav,
        sample_rate=rate,
        source_rate=info.source_rate,
        seconds=info.seconds,
        channels=info.channel_policy,
        resampled=resampled_note(info.source_rate, rate),
        clipped=sum(cut for _, cut in parts),
    )


def as_clip(wav: Any, sample_rate: int | None = None) -> Clip:
    """An array as a clip: ``wav [T]``, floating point, −1..1; `sample_rate` in Hz is required.

    Raises:
      AudioError: no rate, wrong rank or dtype, no samples, or a non-finite sample.
    """
    wav = np.asarray(wav)
    if sample_rate is None:
        raise AudioError("An array does not know its sample rate: pass sample_rate in Hz.")
    rate = _rate(sample_rate)
    if wav.ndim != 1:
        raise AudioError(f"Expected wav [T], one mono utterance; got shape {wav.shape}: average the channels.")
    if not np.issubdtype(wav.dtype, np.floating):
        raise AudioError(f"Expected floating-point samples in -1..1, got {wav.dtype}: divide 16-bit ones by 32768.")
    if not len(wav):
        raise AudioError("Expected at least one sample, got an empty array.")
    mono, clipped = _checked(wav.astype(np.float32)[:, None], "The array")
    return Clip(mono, rate, rate, len(mono) / rate, "mono", "", clipped)


def pcm16(wav: np.ndarray) -> np.ndarray:
    """16-bit samples: round(32768 · wav), ties to even, cut to −32768..32767; ``[...] -> [...] int16``.

    Dividing by 32768 gives back what a reader will see.
    """
    scaled = np.rint(np.asarray(wav, np.float64) * 32768.0)
    return np.clip(scaled, -32768, 32767).astype(np.int16)


def write(path: PathLike, wav: np.ndarray, sample_rate: int) -> int:
    """Writes ``wav [T]`` as 16-bit PCM (.wav or .flac), complete or not at all.

    Returns:
      Samples beyond ±1 that were cut.

    Raises:
      AudioError: wrong rank, dtype or suffix, no samples, or a non-finite sample.
    """
    formats = {".wav": "WAV", ".flac": "FLAC"}
    path = Path(path)
    if path.suffix.lower() not in formats:
        raise AudioError(f"Expected a name ending in .wav or .flac, got {_show(path)}.")
    wav = np.asarray(wav)
    clipped = as_clip(wav, sample_rate).clipped
    # Integers, because libsndfile scales floats by 32767; a second name, so that no half file is left behind.
    part = path.with_name(f"{path.name}.part")
    try:
        soundfile.write(
            os.fsencode(part), pcm16(wav), sample_rate, subtype="PCM_16", format=formats[path.suffix.lower()]
        )
        os.replace(part, path)
    except (soundfile.SoundFileError, OSError) as error:
        part.unlink(missing_ok=True)
        raise AudioError(f"{_show(path)} cannot be written: {_sentence(error)}") from error
    return clipped


def probe(path: Source, *, stated_rate: int | None = None) -> Info:
    """Reads a file's header and refuses what cannot be audio; see :func:`read`."""
    size = _regular_size(path)
    try:
        with io.BytesIO(path.data) if isinstance(path, Bytes) else open(path, "rb") as file:
            cut = _is_cut_riff(file, size)
        with soundfile.SoundFile(_readable(path)) as sound:
            info = Info(sound.samplerate, sound.frames, sound.channels)
    except OSError as error:
        raise AudioError(f"{_show(path)} cannot be opened: {_sentence(error)}") from error
    except (soundfile.SoundFileError, TypeError, ValueError) as error:
        raise AudioError(f"{_show(path)} is not audio that can be read: {_sentence(error)}") from error
    if cut:
        raise AudioError(f"{_show(path)} is cut short: its header promises more bytes than the file has.")
    if info.frames <= 0:
        raise AudioError(f"{_show(path)} holds no samples.")
    if info.frames > 1 << 48:
        raise AudioError(f"{_show(path)} does not say how long it is: write it again with its length.")
    if stated_rate is not None and int(stated_rate) != info.source_rate:
        raise AudioError(
            f"{_show(path)} has {info.source_rate} Hz but {stated_rate} Hz was stated: correct one of them."
        )
    return info


def blocks(path: Source, info: Info, *, sample_rate: int, size: int) -> Iterator[tuple[np.ndarray, int]]:
    """Reads a file in bounded memory.

    Args:
      path: the file.
      info: its :func:`probe`.
      sample_rate: Hz of what is yielded. The resampler carries its state over blocks: together they are what
        one piece would have been.
      size: samples in a block; the last one may be shorter.

    Yields:
      ``(wav [<= size], clipped)``; `clipped` counts samples beyond ±1 since the block before.
    """
    held: list[np.ndarray] = []
    clipped = count = 0
    for wav, cut in _resampled(_decoded(path, info), info.source_rate, sample_rate):
        clipped += cut
        held.append(wav)
        count += len(wav)
        if count < size:
            continue
        joined = np.concatenate(held)
        whole = len(joined) // size * size
        for start in range(0, whole, size):
            yield joined[start : start + size], clipped
            clipped = 0
        held, count = [joined[whole:]], len(joined) - whole
    if count:
        yield np.concatenate(held), clipped


def resampled_length(frames: int, source_rate: int, sample_rate: int) -> int:
    """Samples that `frames` become at another rate."""
    return frames if source_rate == sample_rate else round(frames * sample_rate / source_rate)


def resampled_note(source_rate: int, sample_rate: int) -> str:
    """How the rate was changed, in words; "" if it was not."""
    return "" if source_rate == sample_rate else f"{source_rate}->{sample_rate} Hz, soxr {QUALITY}"


def bucket_length(samples: int, sample_rate: int, longest: int | None = None) -> int:
    """The padded length of a clip: 2, 3, 4.5, 6.75, … s, so that few lengths are ever compiled.

    Args:
      samples: length of the clip.
      sample_rate: Hz.
      longest: samples that a predictor takes at most; a rung above it is lowered to it.
    """
    if samples < 0 or sample_rate <= 0:
        raise ValueError(f"Expected samples >= 0 and a rate > 0 Hz, got {samples} and {sample_rate}.")
    seconds = 2.0
    while math.ceil(seconds * sample_rate) < samples:
        seconds *= 1.5
    rung = math.ceil(seconds * sample_rate)
    return rung if longest is None else max(samples, min(rung, longest))


def pad(wav: np.ndarray, length: int) -> np.ndarray:
    """Zeros after ``wav [T]`` up to `length` samples."""
    if len(wav) > length:
        raise ValueError(f"Expected at most {length} samples, got {len(wav)}.")
    return np.pad(wav, (0, length - len(wav)))


def _decoded(path: Source, info: Info) -> Iterator[tuple[np.ndarray, int]]:
    """Blocks of mono at the file's own rate, and the samples cut in each."""
    done = 0
    try:
        with soundfile.SoundFile(_readable(path)) as sound:
            is_mp3 = sound.subtype.startswith("MPEG_LAYER")
            while len(frames := sound.read(BLOCK, dtype="float32", always_2d=True)):
                done += len(frames)
                yield _checked(frames, _show(path))
    except (soundfile.SoundFileError, OSError) as error:
        raise AudioError(
            f"{_show(path)} breaks off after about {done / info.source_rate:.1f} s: {_sentence(error)}"
        ) from error
    if done < info.frames * (1 - _MP3_SHORTFALL if is_mp3 else 1):
        raise AudioError(f"{_show(path)} is cut short: {done} of the {info.frames} samples it promises.")


def _resampled(
    source: Iterator[tuple[np.ndarray, int]], source_rate: int, sample_rate: int
) -> Iterator[tuple[np.ndarray, int]]:
    if source_rate == sample_rate:
        yield from source
        return
    stream = soxr.ResampleStream(source_rate, sample_rate, 1, dtype="float32", quality=QUALITY)
    for wav, cut in source:
        out, overshoot = _cut(stream.resample_chunk(wav))
        yield out, cut + overshoot
    yield _cut(stream.resample_chunk(np.zeros(0, np.float32), last=True))


def _checked(frames: np.ndarray, what: str) -> tuple[np.ndarray, int]:
    """``frames [T, channels] -> (mono [T], samples cut)``."""
    if not np.isfinite(frames).all():
        raise AudioError(f"{what} has samples that are not finite (NaN or infinity).")
    peak = float(np.abs(frames).max())
    if peak > INTEGER_SCALED:
        raise AudioError(f"{what} reaches {peak:g} where -1..1 is expected: divide by its full scale first.")
    frames, cut = _cut(frames)
    return frames.mean(axis=1, dtype=np.float32), cut


def _cut(wav: np.ndarray) -> tuple[np.ndarray, int]:
    return np.clip(wav, -1, 1), int((np.abs(wav) > 1).sum())


def _is_cut_riff(file, size: int) -> bool:
    """Whether a WAV's data chunk ends behind the end of the file, which libsndfile passes over in silence."""
    head = file.read(12)
    if head[:4] != b"RIFF" or head[8:] != b"WAVE":
        return False
    while len(chunk := file.read(8)) == 8:
        length = int.from_bytes(chunk[4:], "little")
        if chunk[:4] == b"data":
            return length < _STREAMED and file.tell() + length > size
        file.seek(length + length % 2, os.SEEK_CUR)
    return False


def _readable(path: Source) -> Any:
    """What libsndfile opens."""
    return io.BytesIO(path.data) if isinstance(path, Bytes) else os.fsencode(path)


def _regular_size(path: Source) -> int:
    """Bytes of a regular file; anything else is refused before it can block (a pipe) or surprise."""
    if isinstance(path, Bytes):
        if not path.data:
            raise AudioError(f"{_show(path)} is empty (0 bytes).")
        return len(path.data)
    try:
        status = os.stat(path)
    except FileNotFoundError as error:
        raise AudioError(f"{_show(path)} does not exist.") from error
    except (OSError, ValueError) as error:
        raise AudioError(f"{_show(path)} cannot be opened: {_sentence(error)}") from error
    if stat.S_ISDIR(status.st_mode):
        raise AudioError(f"{_show(path)} is a directory, not an audio file.")
    if not stat.S_ISREG(status.st_mode):
        raise AudioError(f"{_show(path)} is not a regular file.")
    if not status.st_size:
        raise AudioError(f"{_show(path)} is empty (0 bytes).")
    return status.st_size


def _rate(value: int) -> int:
    if int(value) != value or value <= 0:
        raise AudioError(f"Expected a sample rate in Hz, a whole number above 0, got {value}.")
    return int(value)


def _show(path: Source) -> str:
    """A path in a sentence: quoted, on one line, whatever its name holds."""
    return repr(path.name if isinstance(path, Bytes) else os.fspath(path))


def _sentence(error: Exception) -> str:
    """What went wrong, without the path that the message already names."""
    text = getattr(error, "strerror", None) or getattr(error, "error_string", None) or str(error)
    return " ".join(str(text).split()).rstrip(".") + "."
