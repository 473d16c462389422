"""Where a perturbation lives and how its size is fixed."""

from collections.abc import Callable
from typing import NamedTuple

from jaxhack.spaces.codes import codes
from jaxhack.spaces.latent import (
    Statistics,
    latent,
    latent_statistics,
    load_statistics,
    quantised,
    rounding,
    save_statistics,
)
from jaxhack.spaces.waveform import noise, waveform
from jaxhack.types import Codec, Space


class Kind(NamedTuple):
    """A kind of space as an audit makes it."""

    make: Callable[..., Space]  # (codec, epsilon=, statistics=) or, without a chain, (sample_rate, epsilon=)
    epsilon: float  # the budget where none is given
    unit: str  # of the budget
    chain: Callable[[Codec], Codec] | None  # the codec whose latent is perturbed; None: there is no codec
    whole: bool = False  # the budget is a whole number


KINDS: dict[str, Kind] = {
    "latent": Kind(latent, 0.5, "RMS, in standard deviations of the latent", lambda codec: codec),
    "quantised": Kind(quantised, 0.5, "RMS, in standard deviations of the quantised latent", rounding),
    "codes": Kind(codes, 16.0, "indices changed", rounding, whole=True),
    "waveform": Kind(waveform, 0.002, "largest deviation of a sample, full scale 1", None),
    "noise": Kind(noise, 10 ** (-30 / 20), "RMS over that of the speech", None),
}

__all__ = [
    "KINDS",
    "Kind",
    "Statistics",
    "codes",
    "latent",
    "latent_statistics",
    "load_statistics",
    "noise",
    "quantised",
    "rounding",
    "save_statistics",
    "waveform",
]
