"""Speech recognisers, through the packages that run them: on the host, for transcripts alone.

Neither package is a dependency. Decoding is fixed, and every utterance is decoded as if it were the first: a waveform
gives the same words whatever was heard before.
"""

import hashlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from jaxhack.types import Recogniser

SAMPLE_RATE = 16_000  # Hz, of both


def pocketsphinx() -> Recogniser:
    """PocketSphinx with the model of US English that its wheel ships (BSD).

    Cepstral means are those of the utterance, where the package's default carries them over from the one before.

    Raises:
        ValueError: the package is not installed.
    """
    try:
        from pocketsphinx import Decoder
    except ImportError:
        raise ValueError("wer needs a recogniser, such as pocketsphinx: pip install 'jaxhack[asr]'.") from None
    decoder = Decoder(samprate=SAMPLE_RATE, cmn="batch", loglevel="FATAL")

    def transcribe(wav: np.ndarray) -> str:
        if not len(wav):
            return ""
        decoder.start_utt()
        try:
            decoder.process_raw(wav.tobytes(), full_utt=True)
        finally:
            decoder.end_utt()
        best = decoder.hyp()
        return best.hypstr if best else ""

    about = {"model": "en-us", "version": version("pocketsphinx"), "decoding": {"cmn": "batch"}}
    return Recogniser("pocketsphinx", SAMPLE_RATE, transcribe, about)


# No temperature fallback, whose samples are random, and no text carried over from one window to the next.
DECODING: dict[str, Any] = {"beam_size": 5, "temperature": 0.0, "condition_on_previous_text": False}


def faster_whisper(model: str | Path, *, language: str | None = None) -> Recogniser:
    """A Whisper model in CTranslate2's format, run by ``faster-whisper`` (MIT) in float32 on the CPU.

    Args:
        model: its folder: ``model.bin``, ``config.json``, a tokeniser and a vocabulary. Nothing is downloaded.
        language: such as "en"; None lets the model guess it for every waveform.

    Raises:
        ValueError: no such folder, or the package is not installed.
    """
    folder = Path(model)
    if not (folder / "model.bin").is_file():
        raise ValueError(f"{str(model)!r} is no folder of a Whisper model in CTranslate2's format: no model.bin.")
    try:
        from faster_whisper import WhisperModel
    except ImportError:
        raise ValueError("A Whisper model needs faster-whisper: pip install 'jaxhack[whisper]'.") from None
    net = WhisperModel(str(folder), device="cpu", compute_type="float32", local_files_only=True)

    def transcribe(wav: np.ndarray) -> str:
        if not len(wav):
            return ""
        segments, _ = net.transcribe(wav.astype(np.float32) / 32768, language=language, **DECODING)
        return " ".join(segment.text.strip() for segment in segments)

    about = {
        "model": folder.name,
        "weights": {"model.bin": _sha256(folder / "model.bin")},
        "version": version("faster-whisper"),
        "decoding": DECODING | {"language": language},
    }
    return Recogniser("faster-whisper", SAMPLE_RATE, transcribe, about)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
