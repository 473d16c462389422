"""Rated speech: readers of published listening tests, and of a user's own.

    rated = data.read("somos", "/path/to/somos")
    wav = data.load(rated[0], sample_rate=16000)

``data.KINDS`` lists the sets; :mod:`jaxhack.data.tfds` packs them for TFDS.
"""

from jaxhack.data.kinds import KINDS, Kind, read
from jaxhack.data.rated import Embedded, Rated, content, extract, load, utterances

__all__ = ["KINDS", "Embedded", "Kind", "Rated", "content", "extract", "load", "read", "utterances"]
