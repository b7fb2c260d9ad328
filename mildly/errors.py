"""The one exception that speaks to users: what is wrong, where, and what to do about it; text fit for a terminal."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterable
from difflib import get_close_matches

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

_LONGEST = 4000  # letters of a message, which may quote a file


def printable(text: object) -> str:
    """Text without what a terminal would obey: control characters (except ends of lines and tabs), turned directions.

    Names in files are other people's words, and must not move the cursor, color the screen or set its title.
    """
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", str(text))


def tell(text: object) -> None:
    """A line on standard error, fit for a terminal; the middle of an endless one is left out."""
    said = printable(text)
    if len(said) > _LONGEST:
        said = f"{said[: 3 * _LONGEST // 4]} ... {said[-_LONGEST // 4 :]}"
    print(said, file=sys.stderr, flush=True)


class MildlyError(Exception):
    """A mistake the user can mend. The command prints its text alone and exits with code 2."""


class Stopped(Exception):
    """The run was asked to stop (Ctrl-C, SIGTERM) and has written a checkpoint."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number

    @classmethod
    def retold(cls, stopped: Stopped | KeyboardInterrupt, message: str) -> Stopped:
        """The same stop in other words."""
        return cls(message, stopped.signal_number if isinstance(stopped, Stopped) else signal.SIGINT)


def unknown_name(kind: str, name: str, known: Iterable[str], listing: str = "") -> MildlyError:
    """An error for a name that does not exist, with the nearest one that does.

    The names that exist are listed, unless there is a command, `listing`, that shows them.
    """
    names = sorted(known)
    bare = {known_name.lstrip("-"): known_name for known_name in names}  # dashes that all have make all look alike
    near = [bare[found] for found in get_close_matches(name.lstrip("-"), bare, n=1)]
    hint = f" Did you mean '{near[0]}'?" if near else ""
    known_ones = f"'{listing}' shows them all." if listing else f"Known: {', '.join(names)}."
    return MildlyError(f"unknown {kind} '{name}'.{hint} {known_ones}")
