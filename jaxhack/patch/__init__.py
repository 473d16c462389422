"""Mends predictors: pairs x̂ ≻ y in a replay buffer, and gradient steps on them beside what people said.

The loop is :func:`patch` with a :class:`Recipe`; :func:`train` fits a predictor to ratings alone.
"""

from jaxhack.patch.clips import Clips, Labelled, store
from jaxhack.patch.fitting import Term, adamw, fit
from jaxhack.patch.loop import patch
from jaxhack.patch.regression import train
from jaxhack.settings import Recipe

__all__ = ["Clips", "Labelled", "Recipe", "Term", "adamw", "fit", "patch", "store", "train"]
