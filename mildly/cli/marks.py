"""Marks on the fields of a command's options, given as `Annotated[type, mark, ...]`."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Mark(Enum):
    """How a field becomes a flag, where it is not `--name VALUE`."""

    POSITIONAL = "the value stands alone"
    REPEATED = "the flag is given once for each value"
    NO_NEGATIVE = "a switch that is off unless given, without a --no- form"
    NO_PREFIX = "a group whose flags do not have its name before a dot"


class Arg(NamedTuple):
    """What help calls the value, and other spellings of the flag."""

    metavar: str | None = None
    aliases: tuple[str, ...] = ()
