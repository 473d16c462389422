"""VoiceBank-DEMAND, 28 speakers: noisy speech and the clean speech it was made from. Nobody rated it."""

from collections.abc import Iterator
from pathlib import Path

from jaxhack.data.files import settled, there
from jaxhack.data.rated import Rated

_SPLITS = {"train": "trainset_28spk_wav", "test": "testset_wav"}


def voicebank_demand(folder: Path, *, missing: str = "error") -> list[Rated]:
    """VoiceBank-DEMAND: ``{clean,noisy}_{trainset_28spk,testset}_wav.zip``, extracted.

    `folder` holds the four folders. Each file name gives two recordings, ``noisy/p226_001`` and ``clean/p226_001``,
    of the systems noisy and clean; each one's `meta` names the other's id as ``pair``. None is rated. The speaker is
    what stands before the ``_``. No list says what a complete set is: a name in one folder alone is a missing file.
    """
    folders = [folder / f"{side}_{name}" for name in _SPLITS.values() for side in ("noisy", "clean")]
    present = there(folders, missing)
    return settled((item for split in _SPLITS for item in _listed(folder, split, present)), missing)


def _listed(folder: Path, split: str, present: list[Path]) -> Iterator[tuple[str, Rated]]:
    sides = {side: folder / f"{side}_{_SPLITS[split]}" for side in ("noisy", "clean")}
    sides = {side: place for side, place in sides.items() if place in present}
    for name in sorted({path.stem for place in sides.values() for path in place.glob("*.wav")}):
        speaker, _, _ = name.partition("_")
        for side, place in sides.items():
            other = "clean" if side == "noisy" else "noisy"
            meta = {"speaker": speaker, "original": name, "pair": f"{other}/{name}"}
            yield repr(str(place)), Rated(f"{side}/{name}", place / f"{name}.wav", side, None, None, split, meta)
