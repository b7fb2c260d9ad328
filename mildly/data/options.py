"""What a person can say about a file of logs that does not say it itself."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from mildly.data.memory import checked_megabytes
from mildly.errors import MildlyError

COLUMN_OPTIONS = ("obs", "action", "reward", "next_obs", "episode", "terminated", "truncated")
"""Options that name columns or arrays."""

TABLE_OPTIONS = ("cost", "time", "max_gap")
"""Options that only tables know."""

_JSON_TYPES = {"str": (str,), "bool": (bool,), "int": (int,), "float": (int, float), "tuple[float, ...]": (int, float)}

NO_REWARD = "none"
"""What stands in place of a reward's name where there is none."""


@dataclass(frozen=True)
class ImportOptions:
    """How to read a file of logs. What is not given is taken from the file, or guessed with an explanation.

    The first ones name columns of a table (CSV, Parquet), or arrays of a file (.npz, .npy, HDF5). Several names are
    separated by commas, and `*` stands for any text: `"sensor_*,speed"`. In a table without names, columns are counted
    from 0: `"0-7,9"`. Cost, time and max-gap are for tables alone.
    """

    obs: str | None = None
    """Columns of the observation."""
    action: str | None = None
    """Columns of the action."""
    reward: str | None = None
    """Column of the reward, or a formula: "-power - 10 * abs(temp - 21)". With "none" there is none; bc needs none."""
    cost: str | None = None
    """Column, or formula, of what should be small: the reward is minus the cost."""
    next_obs: str | None = None
    """Columns of the next observation. Without them it is the following row of the episode."""
    episode: str | None = None
    """Column that tells which episode a row belongs to; a new value starts a new episode."""
    terminated: str | None = None
    """Column that is true where the episode ended for good (fell, arrived, crashed)."""
    truncated: str | None = None
    """Column that is true where the episode was only cut off (time limit, end of the log)."""
    time: str | None = None
    """Column of the time, in seconds or as date and time, by which order, gaps and steps are checked."""
    max_gap: float | None = None
    """Seconds (or steps, if the clock counts those) after which an episode breaks; by default 10 median steps."""
    name: str | None = None
    """What to call the data set; by default the file's name."""
    env: str | None = None
    """The gymnasium environment that the data come from, to evaluate in; gives the action bounds, too."""
    action_low: tuple[float, ...] | None = None
    """Lower bounds of the actions in the log, one number or one for each column; mapped to -1."""
    action_high: tuple[float, ...] | None = None
    """Upper bounds of the actions in the log; mapped to +1."""
    scaled: bool = False
    """The actions in the log are in [-1, 1] already; bounds only tell what -1 and +1 mean."""
    clip_actions: bool = False
    """Clip actions that lie beyond the bounds, as most environments do, instead of refusing them."""
    time_limit: int | None = None
    """Episodes that end after exactly this many steps ended by a time limit, whatever the log says."""
    drop_bad_rows: bool = False
    """Leave out rows with NaN or infinite values. Their episodes go on behind them."""
    missing: str | None = None
    """Numbers that stand for a missing value, such as -999: of all columns, or by name, as in "-999,co2=65535"."""
    fill: str | None = None
    """Fill missing cells of observations and actions: previous, interpolate or a number, for all columns or by name, as
    in "temperature=interpolate,valve*=previous,0"."""
    max_fill: int | None = None
    """Rows of the longest gap that is filled, 5 by default. Longer gaps stay."""
    reference_min: float | None = None
    """The return that scores 0, such as a random policy's."""
    reference_max: float | None = None
    """The return that scores 100, such as an expert's."""
    max_memory: float | None = None
    """Megabytes that the data may take in memory, and what must be read at once; half of the machine's by default."""

    def __post_init__(self) -> None:
        if self.time_limit is not None and self.time_limit < 1:
            raise MildlyError(f"time-limit must be at least 1, got {self.time_limit}.")
        if self.reward is not None and self.cost is not None:
            raise MildlyError("reward and cost exclude each other: give one of them.")
        if self.max_gap is not None and not self.max_gap > 0:
            raise MildlyError(f"max-gap must be positive, got {self.max_gap:g}.")
        if self.max_memory is not None:
            checked_megabytes(self.max_memory, "max-memory")
        if (self.action_low is None) != (self.action_high is None):
            raise MildlyError("action-low and action-high go together: give both.")
        if (self.reference_min is None) != (self.reference_max is None):
            raise MildlyError("reference-min and reference-max go together: give both.")
        if self.reference_min is not None and self.reference_min == self.reference_max:
            raise MildlyError("reference-min and reference-max must differ.")

    def to_json(self) -> dict[str, Any]:
        """What is not as by default; the limit of memory is no property of the data."""
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "max_memory"}
        said = {name: value for name, value in given.items() if value != getattr(type(self), name)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in said.items()}

    def words(self) -> str:
        """The flags that say the same, for a shell."""
        parts = []
        for name, value in self.to_json().items():
            values = [] if value is True else value if isinstance(value, list) else [value]
            parts += [option_name(name), *(shlex.quote(str(one)) for one in values)]
        return " ".join(parts)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ImportOptions:
        """What `to_json` gave, from a file that may hold anything.

        Raises:
            ValueError or TypeError: it is not that.
        """
        kinds = {field.name: str(field.type).removesuffix(" | None") for field in fields(cls)}
        given: dict[str, Any] = {}
        for name, value in values.items():
            kind = kinds.get(name, "")
            several = kind.startswith("tuple") and isinstance(value, list)
            if any(type(one) not in _JSON_TYPES.get(kind, ()) for one in (value if several else [value])):
                raise TypeError(f"{name} is {value!r}")
            given[name] = tuple(value) if several else value
        try:
            return cls(**given)
        except MildlyError as error:
            raise ValueError(str(error)) from error


def option_name(field: str) -> str:
    """`--max-gap`."""
    return f"--{field.replace('_', '-')}"


def refuse(options: ImportOptions, names: Sequence[str], where: str, why: str) -> None:
    """Raise where options are given that would have no effect.

    Args:
        options: what the user says.
        names: the fields that have no effect here.
        where: the file or set, for messages.
        why: a sentence that says why not; it stands between the file's name and theirs.
    """
    given = [option_name(name) for name in names if getattr(options, name) is not None]
    if given:
        raise MildlyError(f"{where}: {why} {', '.join(given)} would have no effect. Leave it out.")
