"""Perceptual evaluation of speech quality, wide band (ITU-T P.862.2), by the PyPI package ``pesq``.

The package is optional: its C sources are compiled when it is installed, and carry the notice of the recommendation's
owners, who restrict their use to understanding and evaluating PESQ; the wrapper around them is under MIT.
"""

from importlib.metadata import version

import numpy as np
import soxr

from jaxhack.audio import QUALITY
from jaxhack.detect import Rule
from jaxhack.types import Array, Measure, PyTree

RATE = 16_000  # Hz, of the wide band
SHORTEST = 0.25  # s
SATURATION = 4.5  # of 4.64: noise 60 dB below the speech gives that; above it x̂ is x, and any change loses 0.1


def pesq(reference: np.ndarray, estimate: np.ndarray, sample_rate: int) -> float:
    """PESQ of an estimate against its reference, about 1 to 4.64 (MOS-LQO); on the host, not a JAX function.

    Args:
      reference: ``[n]`` float, −1..1.
      estimate: ``[n]`` float, aligned to the reference.
      sample_rate: Hz, of both; resampled to 16 kHz where it differs.

    Raises:
      ValueError: it is undefined: under a quarter of a second, a silent side, no utterance found; says which.
    """
    from pesq import PesqError
    from pesq import pesq as compute

    if len(reference) < SHORTEST * sample_rate:
        raise ValueError(f"PESQ needs a quarter of a second, got {len(reference) / sample_rate:.3f} s")
    for side, wav in (("reference", reference), ("estimate", estimate)):
        if not np.any(wav):
            raise ValueError(f"PESQ of a silent {side} is undefined")
    wavs = [np.asarray(wav, np.float32) for wav in (reference, estimate)]
    if sample_rate != RATE:
        wavs = [soxr.resample(wav, sample_rate, RATE, quality=QUALITY) for wav in wavs]
    try:
        return float(compute(RATE, *wavs, "wb"))
    except PesqError as error:
        said = error.args[0] if error.args else error
        raise ValueError(f"PESQ: {said.decode() if isinstance(said, bytes) else said}") from error


def pesq_measure(sample_rate: int, *, margin: float = 0.1) -> Measure:
    """PESQ for the panel at `sample_rate` Hz; worse by more than `margin`, a value of ours, counts as degraded.

    Unless x̂ is above `SATURATION`: then the vote is void.

    Raises:
      ValueError: the package is not installed.
    """
    try:
        import pesq as _  # noqa: F401
    except ImportError:
        raise ValueError("pesq needs the package pesq: pip install 'jaxhack[pesq]' (compiles C).") from None

    def fn(params: PyTree, reference: Array, estimate: Array, length: Array) -> float:
        return pesq(np.asarray(reference)[: int(length)], np.asarray(estimate)[: int(length)], sample_rate)

    about = {"mode": "wb", "sample_rate": RATE, "version": version("pesq")}
    return Measure(
        "pesq", Rule(margin, saturation=SATURATION), round(SHORTEST * sample_rate), fn, host=True, about=about
    )
