"""Measure how hackable a speech quality predictor is.

The names below are imported when they are first used, so that ``import jaxhack`` is quick.
"""

import importlib
from typing import Any

_MODULES = (
    *("agreement", "attackers", "audio", "checks", "data", "defences", "detect", "dsp", "inputs", "measures"),
    *("objective", "parallel", "patch", "registry", "report", "rows", "scoring", "spaces", "stats", "types"),
    "weights",
)
_FUNCTIONS = {
    **{
        "agree": "agreement",
        "audit": "auditing",
        "probe": "probing",
        "suite": "suites",
        "transfer": "transferring",
        "score_files": "scoring",
        "certify": "certifying",
        "certify_run": "certifying",
    },
    **dict.fromkeys(("predictor", "codec", "embedder", "encoder"), "registry"),
}

__all__ = [*_FUNCTIONS, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(f"jaxhack.{_FUNCTIONS[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"jaxhack.{name}")
    raise AttributeError(f"module 'jaxhack' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
