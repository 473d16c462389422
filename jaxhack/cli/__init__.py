"""The command line."""

from jaxhack.cli.commands import main

__all__ = ["main"]
