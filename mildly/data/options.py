"""What a person can say about a file of logs that does not say it itself."""

from __future__ import annotations

from dataclasses import dataclass

from mildly.data.memory import checked_megabytes
from mildly.errors import MildlyError

COLUMN_OPTIONS = ("obs", "action", "reward", "next_obs", "episode", "terminated", "truncated")
"""Options that name columns or arrays."""


@dataclass(frozen=True)
class ImportOptions:
    """How to read a file of logs. What is not given is taken from the file, or guessed with an explanation.

    The first seven name columns of a table (CSV, Parquet), or arrays of a file (.npz, .npy, HDF5). Several names are
    separated by commas, and `*` stands for any text: `"sensor_*,speed"`.
    """

    obs: str | None = None
    """Columns of the observation."""
    action: str | None = None
    """Columns of the action."""
    reward: str | None = None
    """Column of the reward."""
    next_obs: str | None = None
    """Columns of the next observation. Without them it is the following row of the episode."""
    episode: str | None = None
    """Column that tells which episode a row belongs to; a new value starts a new episode."""
    terminated: str | None = None
    """Column that is true where the episode ended for good (fell, arrived, crashed)."""
    truncated: str | None = None
    """Column that is true where the episode was only cut off (time limit, end of the log)."""
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
    """Leave out rows with NaN or infinite values; the row before one ends its episode."""
    reference_min: float | None = None
    """The return that scores 0, such as a random policy's."""
    reference_max: float | None = None
    """The return that scores 100, such as an expert's."""
    max_memory: float | None = None
    """Megabytes that the data may take in memory, and what must be read at once; half of the machine's by default."""

    def __post_init__(self) -> None:
        if self.time_limit is not None and self.time_limit < 1:
            raise MildlyError(f"time-limit must be at least 1, got {self.time_limit}.")
        if self.max_memory is not None:
            checked_megabytes(self.max_memory, "max-memory")
        if (self.action_low is None) != (self.action_high is None):
            raise MildlyError("action-low and action-high go together: give both.")
        if (self.reference_min is None) != (self.reference_max is None):
            raise MildlyError("reference-min and reference-max go together: give both.")
        if self.reference_min is not None and self.reference_min == self.reference_max:
            raise MildlyError("reference-min and reference-max must differ.")
