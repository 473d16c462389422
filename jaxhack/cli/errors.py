"""How a command ends that cannot go on: one sentence, and an exit status."""

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click


class Refusal(click.ClickException):
    """A mistake of the caller's: one sentence, exit status 2."""

    exit_code = 2


class Stopped(click.ClickException):
    """Ctrl-C; the exit status is what shells give to it."""

    exit_code = 130


class Group(click.Group):
    """Turns every ValueError and what the system refuses (a full disk, a folder that is not ours) into a refusal."""

    def invoke(self, ctx: click.Context) -> Any:
        """As click's, with refusals in place of tracebacks."""
        try:
            return super().invoke(ctx)
        except ValueError as error:
            raise Refusal(" ".join(str(error).split())) from error
        except KeyboardInterrupt as error:
            raise Stopped("Stopped.") from error
        except BrokenPipeError:  # click's to handle: whoever reads our output has seen enough
            raise
        except OSError as error:
            where = f"{error.filename!r}: " if error.filename else ""
            raise Refusal(f"{where}{error.strerror or error}.") from error


@contextmanager
def stoppable() -> Iterator[None]:
    """Ctrl-C ends a run that can be resumed."""
    try:
        yield
    except KeyboardInterrupt as error:
        # A black box may still be at work in a thread, which an orderly end of the interpreter aborts noisily.
        atexit.register(os._exit, Stopped.exit_code)
        raise Stopped("Stopped; what was computed is kept: repeat the command with --resume.") from error
