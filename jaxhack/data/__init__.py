"""Rated speech."""

from jaxhack.data.rated import Embedded, Rated

__all__ = ["Embedded", "Rated"]
