"""VoiceMOS Challenge 2023: test sets of four tracks, whose labels were published apart from the audio."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from jaxhack.data.files import inside, rating, settled, table
from jaxhack.data.rated import Rated


def _read(folder: Path, *, track: str, speaker: str = "", missing: str = "error") -> list[Rated]:
    """A track: its archive, extracted, and ``track<n>_answer.txt`` of github.com/unilight/sheet, egs/vmc23/answers.

    `folder` holds the answers and the archive's own folder, or the wavs without that folder. The ids tell the system:
    ``VoiceMOS2023Track1-A-AD_test_0026`` is of A-AD, ``…Track2-B01-SF1-CDF1-30001`` of B01, and
    ``…Track3-Noisy_snr5_white_TMHINT_g4_32_03`` of Noisy_snr5_white_TMHINT. Track 1's answers are of both its parts,
    1a (NEB) and 1b (AD). Those of track 3 have 255 lines of the bare system TMHINT, which belong to no condition and
    are left out, as by the recipe of those who published them. The answers do not say how many listened.
    """
    wavs = inside(folder, f"VoiceMOS2023Track{track}", f"VoiceMOS_2023_track{track}")
    return settled(_listed(folder / f"track{track}_answer.txt", wavs, track, speaker), missing)


def _listed(answers: Path, wavs: Path, track: str, speaker: str) -> Iterator[tuple[str, Rated]]:
    for where, cells in table(answers, ("id", "mos"), header=False):
        name = cells["id"].removesuffix(".wav")
        mos = rating(cells["mos"], where)
        told = _told(name, track)
        if told is None:
            raise ValueError(f"{where}: expected an id of track {track}, got {name!r}.")
        system, meta = told
        if system != "TMHINT" and speaker in ("", meta.get("speaker")):
            yield where, Rated(name, wavs / f"{name}.wav", system, mos, None, "test", meta)


def _told(name: str, track: str) -> tuple[str, dict[str, str]] | None:
    """The system of an id and what else it tells; None: it is not of this track."""
    prefix, _, rest = name.partition("-")
    if prefix != f"VoiceMOS2023Track{track}":
        return None
    if track == "1":
        system = rest.split("_")[0]
        speaker = system.rpartition("-")[2]
        return (system, {"speaker": speaker}) if speaker in ("NEB", "AD") else None
    if track == "2":
        fields = rest.split("-")
        return (fields[0], {"source": fields[1], "speaker": fields[2]}) if len(fields) == 4 else None
    parts = rest.rsplit("_", 3)
    return (parts[0], {"original": "_".join(parts[1:])}) if len(parts) == 4 else None


track1a = partial(_read, track="1", speaker="NEB")
track1b = partial(_read, track="1", speaker="AD")
track2 = partial(_read, track="2")
track3 = partial(_read, track="3")
