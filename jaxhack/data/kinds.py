"""The one list of data sets that can be read: name -> reader."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jaxhack.data import nisqa, own, somos, tmhint, urgent, voicebank, voicemos2022, voicemos2023
from jaxhack.data.rated import Rated
from jaxhack.registry import unknown

MISSING = ("error", "skip")


class Kind(NamedTuple):
    """A data set that can be read."""

    reader: Callable[..., list[Rated]]  # (folder, missing=, further options)
    summary: str
    published: str  # by whom it is kept, and under which number or name
    holds: str  # what lies in the folder
    licence: str = "not confirmed: read the release's own"
    options: tuple[str, ...] = ()  # further ones of the reader


_VOICEMOS2022 = "Zenodo, record 6572573"
_NISQA = "DepositOnce, 11303/13012.5; Zenodo, record 4728081"
_NISQA_LICENCE = "differs between its sources: read the release's own"
_CC_BY_NC_SA = "CC BY-NC-SA 4.0: not for commercial use"
_ANSWERS = "the challenge's archive; labels: github.com/unilight/sheet, egs/vmc23/answers"

KINDS: dict[str, Kind] = {
    "bvcc": Kind(
        voicemos2022.bvcc, "BVCC, English synthesis and conversion: VoiceMOS 2022, main track", _VOICEMOS2022, "main/"
    ),
    "voicemos2022-ood": Kind(
        voicemos2022.ood, "Mandarin synthesis, Blizzard 2019: VoiceMOS 2022, out of domain", _VOICEMOS2022, "ood/"
    ),
    "nisqa": Kind(
        nisqa.training,
        "NISQA Corpus, training and validation, simulated and live",
        _NISQA,
        "NISQA_Corpus/",
        _NISQA_LICENCE,
    ),
    "nisqa-for": Kind(nisqa.test_for, "NISQA Corpus, test set FOR", _NISQA, "NISQA_Corpus/", _NISQA_LICENCE),
    "nisqa-livetalk": Kind(
        nisqa.test_livetalk, "NISQA Corpus, test set LIVETALK", _NISQA, "NISQA_Corpus/", _NISQA_LICENCE
    ),
    "nisqa-p501": Kind(nisqa.test_p501, "NISQA Corpus, test set P501", _NISQA, "NISQA_Corpus/", _NISQA_LICENCE),
    "somos": Kind(
        somos.somos,
        "SOMOS, English synthesis of one voice",
        "Zenodo, record 7378801",
        "audios/ and training_files/",
        _CC_BY_NC_SA,
        ("subset",),
    ),
    "tmhint-qi": Kind(
        tmhint.tmhint_qi, "TMHINT-QI, Mandarin in noise and enhanced", "github.com/yuwchen/InQSS", "TMHINTQI/", "MIT"
    ),
    "voicemos2023-1a": Kind(
        voicemos2023.track1a,
        "French synthesis, Blizzard 2023 hub: VoiceMOS 2023, track 1a",
        _ANSWERS,
        "track1_answer.txt and VoiceMOS2023Track1/",
    ),
    "voicemos2023-1b": Kind(
        voicemos2023.track1b,
        "French synthesis, Blizzard 2023 spoke: VoiceMOS 2023, track 1b",
        _ANSWERS,
        "track1_answer.txt and VoiceMOS2023Track1/",
    ),
    "voicemos2023-2": Kind(
        voicemos2023.track2,
        "English singing voice conversion: VoiceMOS 2023, track 2",
        _ANSWERS,
        "track2_answer.txt and VoiceMOS_2023_track2/",
    ),
    "voicemos2023-3": Kind(
        voicemos2023.track3,
        "TMHINT-QI(S), Mandarin in noise and enhanced: VoiceMOS 2023, track 3",
        _ANSWERS,
        "track3_answer.txt and VoiceMOS_2023_track3/",
    ),
    "urgent2024": Kind(
        urgent.urgent2024,
        "URGENT 2024, enhanced speech",
        "Hugging Face, urgent-challenge/urgent2024_mos",
        "test-….parquet",
        _CC_BY_NC_SA,
    ),
    "urgent2025": Kind(
        urgent.urgent2025,
        "URGENT 2025, enhanced speech of several languages",
        "Hugging Face, urgent-challenge/urgent2025-sqa",
        "blind_test_mos-….parquet",
        _CC_BY_NC_SA,
    ),
    "voicebank-demand": Kind(
        voicebank.voicebank_demand,
        "VoiceBank-DEMAND, noisy and clean speech in pairs, not rated",
        "Edinburgh DataShare, doi 10.7488/ds/2117",
        "noisy_testset_wav/ and three more",
        "CC BY 4.0",
    ),
    "csv": Kind(own.csv, "any folder with a list of its own", "yours", "labels.csv", "yours", ("scale",)),
}


def read(
    kind: str, folder: str | os.PathLike[str] | None = None, *, missing: str = "error", **options: Any
) -> list[Rated]:
    """The recordings of a data set, in the order of its own lists; no audio is opened.

    Args:
      kind: a name in :data:`KINDS`, or name and folder in one: ``"bvcc:/path/to/folder"``.
      folder: where the official release lies, as its archives unpack.
      missing: what a file that is listed and not there does: "error"; or "skip", which leaves it out, with a warning.
      **options: further ones of the reader: ``subset`` of somos, ``scale`` of csv.

    Raises:
      ValueError: an unknown name or option; a set that is missing, partial or not what its release is: says what was
        expected where, in which line.
    """
    if folder is None:
        kind, _, folder = kind.partition(":")
    if kind not in KINDS:
        raise ValueError(unknown("data set", kind, KINDS))
    if not os.fspath(folder):
        raise ValueError(f"Expected a folder for the data set {kind}: '{kind}:/path/to/folder'.")
    if missing not in MISSING:
        raise ValueError(f"missing must be 'error' or 'skip', got {missing!r}.")
    found = KINDS[kind]
    for name in options:
        if name not in found.options:
            raise ValueError(unknown(f"option of {kind}", name, ("missing", *found.options)))
    folder = Path(folder)
    if not os.path.exists(folder):
        raise ValueError(f"{str(folder)!r} does not exist: it is to hold {kind}'s {found.holds}.")
    try:
        return found.reader(folder, missing=missing, **options)
    except ValueError as error:
        place = f"{str(folder)!r}, which is to hold {found.holds}"
        raise ValueError(f"{kind} cannot be read from {place}: {error}") from error
