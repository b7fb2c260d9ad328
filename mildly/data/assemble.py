"""From rows as somebody logged them to transitions in the schema, block by block: a log may be larger than memory.

Every reader gives a `Log`: rows in order, with or without next observations, actions in whatever units. The stages here
are the same for all of them:

1. a known time limit corrects the flags of the episodes it ended,
2. next observations come from the following row where the log has none,
3. rows with NaN are left out, if that was asked for,
4. actions are mapped to [-1, 1] by bounds that are given, known from the environment, or found in the data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from mildly.data.actions import scale_actions
from mildly.data.dataset import DTYPES, FIELDS, Array, Dataset, Meta
from mildly.data.options import ImportOptions
from mildly.errors import MildlyError

_SHIFT_HOLDS = 2  # rows whose fate depends on rows to come


class Steps(NamedTuple):
    """Consecutive rows of a log. The last row of an episode is terminated or truncated."""

    observations: Array
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array
    next_observations: Array | None = None

    def part(self, rows: slice | Array) -> Steps:
        """Some of the rows."""
        following = None if self.next_observations is None else self.next_observations[rows]
        return Steps(*(column[rows] for column in self[:5]))._replace(next_observations=following)

    @staticmethod
    def join(first: Steps | None, second: Steps) -> Steps:
        """The rows of one behind those of the other."""
        if first is None:
            return second
        joined = Steps(*(np.concatenate(pair) for pair in zip(first[:5], second[:5], strict=True)))
        if first.next_observations is None or second.next_observations is None:
            return joined
        return joined._replace(next_observations=np.concatenate([first.next_observations, second.next_observations]))


@dataclass
class Log:
    """What a reader found."""

    meta: Meta
    steps: Iterator[Steps]
    where: str
    """The file or folder, for messages."""
    scaled: bool = False
    """Whether the actions are known to be in [-1, 1]."""
    notes: list[str] = field(default_factory=list)
    """What the user should know; readers may add to it until the last row is read."""


class Sink(Protocol):
    """Where transitions go: memory or a folder."""

    def append(self, columns: Mapping[str, Array]) -> None:
        """Take a block of transitions."""
        ...

    def arrays(self) -> dict[str, Array]:
        """All transitions so far, as arrays that may be changed."""
        ...


class Memory:
    """Transitions kept in memory."""

    def __init__(self) -> None:
        self.blocks: list[dict[str, Array]] = []

    def append(self, columns: Mapping[str, Array]) -> None:
        """Keep a copy of a block, in the schema's types."""
        self.blocks.append({name: np.array(columns[name], dtype=DTYPES[name], order="C") for name in FIELDS})

    def arrays(self) -> dict[str, Array]:
        """One array a field; the blocks are let go field by field, so that no more than one is held twice."""
        return {name: np.concatenate([block.pop(name) for block in self.blocks]) for name in FIELDS}


def assemble(log: Log, options: ImportOptions, sink: Sink, *, verify: bool = True) -> Dataset:
    """Run all stages into a sink; the data set holds the sink's arrays."""
    meta = _described(log, options)
    steps = log.steps
    if options.time_limit is not None:
        steps = limited(steps, options.time_limit, ends_value=False)
    transitions = _with_next(steps, log.notes)
    if options.drop_bad_rows:
        transitions = _without_bad_rows(transitions, log.notes)
    rows = 0
    with np.errstate(over="ignore", invalid="ignore"):  # what is too large for float32 becomes infinite, and is told
        for block in transitions:
            if len(block.rewards):
                sink.append(block._asdict())
                rows += len(block.rewards)
    if rows == 0:
        raise MildlyError(f"{log.where}: no row has a next observation, so there is nothing to learn from.")
    arrays = sink.arrays()
    meta = scale_actions(arrays["actions"], meta, options, log.notes, where=log.where, scaled=log.scaled, refuse=verify)
    return Dataset.adopt(arrays, dataclasses.replace(meta, notes=tuple(log.notes)), log.where, verify=verify)


def _described(log: Log, options: ImportOptions) -> Meta:
    """The log's own description, with what the user says on top."""
    said = {
        "name": options.name,
        "env_id": options.env,
        "reference_min": options.reference_min,
        "reference_max": options.reference_max,
    }
    return dataclasses.replace(log.meta, **{key: value for key, value in said.items() if value is not None})  # type: ignore[arg-type]


def limited(steps: Iterator[Steps], limit: int, *, ends_value: bool = True) -> Iterator[Steps]:
    """Mark the rows at which an episode reaches `limit` steps as truncated.

    Args:
        steps: rows; any flag ends an episode.
        limit: steps of an episode.
        ends_value: whether a row that is also terminal stays so; otherwise the time limit was all that ended it.
    """
    before = 0  # steps of the running episode in earlier blocks
    for block in steps:
        rows = np.arange(len(block.rewards))
        ends = block.terminated | block.truncated
        start = np.maximum.accumulate(np.concatenate([[-before], np.where(ends, rows + 1, -before)[:-1]]))
        position = rows - start + 1
        reached = position % limit == 0
        if len(rows):
            before = 0 if ends[-1] else int(position[-1])
        terminated = block.terminated if ends_value else block.terminated & ~reached
        yield block._replace(terminated=terminated, truncated=block.truncated | reached)


def _with_next(steps: Iterator[Steps], notes: list[str]) -> Iterator[Steps]:
    """Blocks in which every row has a next observation."""
    held: Steps | None = None
    dropped = 0
    for block in steps:
        if block.next_observations is not None:
            yield block._replace(truncated=block.truncated & ~block.terminated)
            continue
        held = Steps.join(held, block)
        if len(held.rewards) > _SHIFT_HOLDS:
            ready, gone = _shifted(held)
            dropped += gone
            yield ready
            held = held.part(slice(-_SHIFT_HOLDS, None))
    if held is not None and len(held.rewards):
        held.truncated[-1] |= not held.terminated[-1]
        ready, gone = _shifted(Steps.join(held, held.part(slice(-1, None))), end=True)
        dropped += gone
        yield ready
    if dropped:
        notes.append(
            f"{dropped:,} row(s) at the end of an episode have no next observation and were left out; "
            "where their observation is the next one of the row before, it was used."
        )


def _shifted(steps: Steps, *, end: bool = False) -> tuple[Steps, int]:
    """All rows whose fate is known, with the following row's observation as the next one; and how many have none.

    A row without an action is the final observation of its episode, a row of its own in some logs. A terminal row keeps
    its place whatever follows, since its next observation is never used.
    """
    empty = ~np.isfinite(steps.actions.astype(np.float64)).any(axis=1)
    final = empty & (steps.terminated | steps.truncated)
    gone = steps.truncated | final
    known = slice(0, len(gone) - (1 if end else _SHIFT_HOLDS))
    following = slice(known.start + 1, known.stop + 1)
    terminated = steps.terminated.copy()
    terminated[:-1] |= final[1:] & steps.terminated[1:] & ~gone[:-1]
    cut = gone.copy()
    cut[:-1] = gone[1:] & ~terminated[:-1]
    ready = Steps(
        steps.observations[known],
        steps.actions[known],
        steps.rewards[known],
        terminated[known],
        cut[known],
        steps.observations[following],
    )
    return ready.part(~gone[known]), int(gone[known].sum())


def _without_bad_rows(transitions: Iterator[Steps], notes: list[str]) -> Iterator[Steps]:
    """Leave out rows with NaN or infinite values; the row before one is the last of its episode."""
    held: Steps | None = None
    dropped = 0
    for block in transitions:
        held = Steps.join(held, block)
        ready, gone = _good_rows(held, len(held.rewards) - 1)
        dropped += gone
        yield ready
        held = held.part(slice(-1, None))
    if held is not None:
        ready, gone = _good_rows(held, len(held.rewards))
        dropped += gone
        yield ready
    if dropped:
        notes.append(f"{dropped:,} row(s) with NaN or infinite values were left out.")


def _good_rows(steps: Steps, known: int) -> tuple[Steps, int]:
    columns = (steps.observations, steps.actions, steps.rewards[:, None], steps.next_observations)
    bad = np.zeros(len(steps.rewards), dtype=bool)
    for column in columns:
        assert column is not None
        bad |= ~np.isfinite(column.astype(np.float32)).all(axis=1)
    truncated = steps.truncated.copy()
    truncated[:-1] |= bad[1:] & ~steps.terminated[:-1]
    good = steps._replace(truncated=truncated).part(slice(0, known))
    return good.part(~bad[:known]), int(bad[:known].sum())
