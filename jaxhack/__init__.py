"""Measure how hackable a speech quality predictor is.

The names below are imported when they are first used, so that ``import jaxhack`` is quick.
"""

import importlib
from typing import Any

_MODULES = ("audio", "inputs", "parallel", "registry", "scoring", "types", "weights")
_FUNCTIONS = {"predictor": "registry", "codec": "registry", "score_files": "scoring"}

__all__ = [*_FUNCTIONS, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"jaxhack.{name}")
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(f"jaxhack.{_FUNCTIONS[name]}"), name)
    raise AttributeError(f"module 'jaxhack' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
