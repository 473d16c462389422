"""The data sets for TFDS: one builder, a configuration for each reader. Needs the extra ``tfds``, not TensorFlow.

    builder = tfds.prepare("somos", "/path/to/somos", "/path/to/tfds")
    test = builder.as_data_source("test")
    wav = tfds.load(test[0], sample_rate=16000)

Nothing else in the package imports this module.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxhack import audio
from jaxhack.data import rated
from jaxhack.data.kinds import KINDS, read
from jaxhack.data.rated import Rated
from jaxhack.registry import unknown

try:
    import tensorflow_datasets as tfds
except ImportError as error:
    raise ImportError("jaxhack.data.tfds needs tensorflow-datasets: pip install 'jaxhack[tfds]'.") from error

_ORDER = ("train", "validation", "test")
_PARTIAL = "-partial"


class RatedSpeech(tfds.core.GeneratorBasedBuilder):
    """A data set of :data:`jaxhack.data.KINDS`, read from the manual folder, in the order of its lists.

    A configuration has its name; ``<name>-partial`` leaves out what is missing (``missing="skip"``). Each example
    holds the audio file as it was published, byte by byte: :func:`load` decodes it. What is not there is ``""``, NaN
    or −1.
    """

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [  # noqa: RUF012, as TFDS has it
        tfds.core.BuilderConfig(name=f"{name}{suffix}", description=f"{kind.summary}; {kind.published}")
        for name, kind in KINDS.items()
        for suffix in ("", _PARTIAL)
    ]
    MANUAL_DOWNLOAD_INSTRUCTIONS = "\n".join(f"{name}: {k.published}, {k.holds}" for name, k in KINDS.items())

    def __init__(self, *, file_format: Any = "array_record", **options: Any):
        """Writes array_record, which needs no TensorFlow, where TFDS itself would write what does."""
        super().__init__(file_format=file_format, **options)

    def _info(self) -> Any:
        features = tfds.features.FeaturesDict(
            {
                "id": tfds.features.Text(),
                "audio": tfds.features.Tensor(shape=(), dtype=np.object_),  # bytes
                "system": tfds.features.Text(),
                "mos": np.float32,  # what TFDS stores of any floating-point number
                "listeners": np.int64,
                "meta": tfds.features.Text(),  # JSON
            }
        )
        description = self.builder_config.description
        return tfds.core.DatasetInfo(builder=self, description=description, features=features, disable_shuffling=True)

    def _split_generators(self, manager: Any) -> dict[str, Iterator]:
        name = self.builder_config.name
        missing = "skip" if name.endswith(_PARTIAL) else "error"
        found = read(name.removesuffix(_PARTIAL), Path(manager.manual_dir), missing=missing)
        by_split = {split: [one for one in found if one.split == split] for split in _ORDER}
        return {split: self._generate_examples(some) for split, some in by_split.items() if some}

    def _generate_examples(self, some: Sequence[Rated]) -> Iterator[tuple[str, dict[str, Any]]]:
        for one in some:
            yield (
                one.id,
                {
                    "id": one.id,
                    "audio": rated.content(one),
                    "system": one.system or "",
                    "mos": math.nan if one.mos is None else one.mos,
                    "listeners": -1 if one.listeners is None else one.listeners,
                    "meta": json.dumps(dict(one.meta)),
                },
            )


def prepare(
    kind: str, folder: str | os.PathLike[str], data_dir: str | os.PathLike[str], *, missing: str = "error"
) -> RatedSpeech:
    """Packs a data set; one that `data_dir` has already stays as it is, and `folder` is not looked at.

    Args:
      kind: a name in :data:`jaxhack.data.KINDS`.
      folder: where the official release lies.
      data_dir: where TFDS keeps data sets; read again by ``tfds.builder(f"rated_speech/{kind}", data_dir=…)``.
      missing: see :func:`jaxhack.data.read`.

    Returns:
      The builder: ``.as_data_source(split)`` has random access to the examples.

    Raises:
      ValueError: as by :func:`jaxhack.data.read`; AudioError: a recording that is no audio.
    """
    if kind not in KINDS:
        raise ValueError(unknown("data set", kind, KINDS))
    if not Path(folder).is_dir():
        raise ValueError(f"{os.fspath(folder)!r} is no folder: it is to hold {kind}'s {KINDS[kind].holds}.")
    config = f"{kind}{_PARTIAL if missing == 'skip' else ''}"
    builder = RatedSpeech(config=config, data_dir=os.fspath(data_dir))
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(manual_dir=os.fspath(folder)))
    return builder


def load(example: Mapping[str, Any], sample_rate: int | None = None) -> np.ndarray:
    """The audio of an example, as :func:`jaxhack.data.load` gives it: ``wav [T]`` float32, −1..1."""
    return audio.read(audio.Bytes(example["audio"], example["id"].decode()), sample_rate=sample_rate).wav
