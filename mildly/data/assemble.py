"""From rows as somebody logged them to transitions in the schema, block by block: a log may be larger than memory.

Every reader gives a `Log`: rows in order, with or without next observations, actions in whatever units. The stages here
are the same for all of them:

1. codes that stand for a missing value become NaN, and short gaps are filled, if that was asked for (`fill.py`),
2. a known time limit corrects the flags of the episodes it ended,
3. next observations come from the following row where the log has none,
4. rows with NaN are left out, if that was asked for; an episode remains one (`gaps.py`),
5. actions are mapped to [-1, 1] by bounds that are given, known from the environment, or found in the data.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np

from mildly.data.actions import scale_actions
from mildly.data.dataset import DTYPES, FIELDS, Array, Dataset, Meta
from mildly.data.fill import REWARD, Codes, filled, parse_fill, without_codes
from mildly.data.gaps import GapCounter
from mildly.data.memory import Limit
from mildly.data.options import ImportOptions
from mildly.data.steps import Log as Log, Steps as Steps
from mildly.errors import MildlyError
from mildly.words import counted

_SHIFT_HOLDS = 2  # rows whose fate depends on rows to come


class Sink(Protocol):
    """Where transitions go: memory or a folder."""

    def append(self, columns: Mapping[str, Array]) -> None:
        """Take a block of transitions."""
        ...

    def arrays(self) -> dict[str, Array]:
        """All transitions so far, as arrays that may be changed."""
        ...


class Memory:
    """Transitions kept in memory, as many as the limit allows."""

    def __init__(self, limit: Limit | None = None, where: str = "") -> None:
        self.limit, self.where = limit, where
        self.held = 0  # bytes
        self.blocks: list[dict[str, Array]] = []

    def append(self, columns: Mapping[str, Array]) -> None:
        """Keep a copy of a block, in the schema's types."""
        self.held += sum(columns[name].size * DTYPES[name].itemsize for name in FIELDS)
        if self.limit is not None:
            self.limit.check_whole(self.where, self.held)
        self.blocks.append({name: np.array(columns[name], dtype=DTYPES[name], order="C") for name in FIELDS})

    def arrays(self) -> dict[str, Array]:
        """One array a field; the blocks are let go field by field, so that no more than one is held twice."""
        return {name: np.concatenate([block.pop(name) for block in self.blocks]) for name in FIELDS}


def assemble(log: Log, options: ImportOptions, sink: Sink, *, verify: bool = True) -> Dataset:
    """Run all stages into a sink; the data set holds the sink's arrays."""
    meta = _described(log, options)
    steps = log.steps
    if options.missing is not None or options.fill is not None:
        steps = _repaired(steps, options, log)
    if options.time_limit is not None:
        steps = _without_time_limit(steps, options.time_limit, log.notes)
    transitions, counter = _with_next(steps, log.notes), GapCounter(log.gaps)
    if options.drop_bad_rows:
        transitions = _without_bad_rows(transitions, log.notes, counter)
    rows = 0
    with np.errstate(over="ignore", invalid="ignore"):  # what is too large for float32 becomes infinite, and is told
        for block in transitions:
            if len(block.rewards):
                sink.append(block._asdict())
                rows += len(block.rewards)
                if log.origin is not None and block.numbers is not None:
                    log.origin.add(block.numbers)
    if rows == 0:
        raise MildlyError(f"{log.where}: no row has a next observation, so there is nothing to learn from.")
    arrays = sink.arrays()
    origin = log.origin if log.origin is not None and log.origin.count == rows else None
    meta = _with_fitting_names(meta, arrays["observations"].shape[1], arrays["actions"].shape[1])
    meta = scale_actions(
        arrays["actions"],
        meta,
        options,
        log.notes,
        where=log.where,
        scaled=log.scaled,
        refuse=verify,
        origin=origin,
    )
    meta = dataclasses.replace(meta, notes=tuple(log.notes))
    gaps = counter.gaps() if options.drop_bad_rows else log.gaps
    return Dataset.adopt(arrays, meta, log.where, gaps=gaps, origin=origin, verify=verify)


def _repaired(steps: Iterator[Steps], options: ImportOptions, log: Log) -> Iterator[Steps]:
    """The rows without codes and with short gaps filled, by the names of their columns, or else by their numbers."""
    first = next(steps, None)
    if first is None:
        return
    sizes = first.observations.shape[1], first.actions.shape[1]
    meta = _with_fitting_names(log.meta, *sizes)
    observations = meta.observation_names or tuple(f"obs_{i}" for i in range(sizes[0]))
    actions = meta.action_names or tuple(f"action_{i}" for i in range(sizes[1]))
    steps = itertools.chain([first], steps)
    if options.missing is not None:
        names = [*observations, *actions, REWARD]
        known = log.codes is not None and log.codes.numbers.keys() >= {*names}  # a column of lists has several names
        codes = log.codes if known and log.codes else Codes(options.missing, names, log.where)
        steps = without_codes(steps, codes, observations, actions, log.notes)
    if options.fill is not None:
        plan = parse_fill(options.fill, options.max_fill, observations, actions, log.where)
        steps = filled(steps, plan, log.notes)
    yield from steps


def _described(log: Log, options: ImportOptions) -> Meta:
    """The log's own description, with what the user says on top."""
    said = {
        "name": options.name,
        "env_id": options.env,
        "reference_min": options.reference_min,
        "reference_max": options.reference_max,
    }
    return dataclasses.replace(log.meta, **{key: value for key, value in said.items() if value is not None})  # type: ignore[arg-type]


def _with_fitting_names(meta: Meta, observations: int, actions: int) -> Meta:
    """Names and units of columns as far as there is one for every number: a column of lists has several."""
    sizes = {"observation": observations, "action": actions}
    given = {f"{of}_{told}": size for of, size in sizes.items() for told in ("names", "units")}
    return dataclasses.replace(meta, **{name: () for name, size in given.items() if len(getattr(meta, name)) != size})  # type: ignore[arg-type]


def limited(steps: Iterator[Steps], horizon: int) -> Iterator[Steps]:
    """Cut episodes at every `horizon` steps, where a log marks no time-outs. Terminal rows stay terminal."""
    for block, count in _counted(steps):
        yield block._replace(truncated=block.truncated | (count % horizon == 0))


def _without_time_limit(steps: Iterator[Steps], limit: int, notes: list[str]) -> Iterator[Steps]:
    """Episodes that end after exactly `limit` steps were only cut off; others are left alone."""
    changed = 0
    for block, count in _counted(steps):
        final = _is_final(block) if block.next_observations is None else False
        cut = (count - final == limit) & (block.terminated | block.truncated)
        changed += int((cut & block.terminated).sum())
        yield block._replace(terminated=block.terminated & ~cut, truncated=block.truncated | cut)
    if changed:
        notes.append(
            f"Taken for cut off: {counted(changed, 'episode')} that ended for good after exactly {limit:,} steps."
        )


def _counted(steps: Iterator[Steps]) -> Iterator[tuple[Steps, Array]]:
    """Blocks, and for each row how many rows of its episode there are up to it. Any flag ends an episode."""
    before = 0  # rows of the running episode in earlier blocks
    for block in steps:
        rows = np.arange(len(block.rewards))
        ends = block.terminated | block.truncated
        start = np.maximum.accumulate(np.concatenate([[-before], np.where(ends, rows + 1, -before)[:-1]]))
        count = rows - start[: len(rows)] + 1
        if len(rows):
            before = 0 if ends[-1] else int(count[-1])
        yield block, count


def _is_final(steps: Steps) -> Array:
    """Whether a row is but the final observation of its episode, a row of its own in some logs: it has no action."""
    has_action: Array = np.asarray(np.isfinite(steps.actions.astype(np.float64)).any(axis=1))
    return ~has_action & (steps.terminated | steps.truncated)


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
            f"The last row of {counted(dropped, 'episode')} has no next observation. It is used only as the next "
            "observation of the row before it, if there is one."
        )


def _shifted(steps: Steps, *, end: bool = False) -> tuple[Steps, int]:
    """All rows whose fate is known, with the following row's observation as the next one; and how many have none.

    A terminal row keeps its place whatever follows, since its next observation is never used.
    """
    final = _is_final(steps)
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
        None if steps.numbers is None else steps.numbers[known],
    )
    return ready.part(~gone[known]), int(gone[known].sum())


def _without_bad_rows(transitions: Iterator[Steps], notes: list[str], counter: GapCounter) -> Iterator[Steps]:
    """Leave out rows with NaN or infinite values. The row before one is truncated, but its episode goes on behind it.

    The next observation of a terminal row is never used, so where it is bad the row's own stands in for it.
    """
    held: Steps | None = None
    dropped = 0
    for block in itertools.chain(transitions, [None]):
        rows = held if block is None else Steps.join(held, block)
        if rows is None:
            return
        known = len(rows.rewards) - (0 if block is None else 1)
        good, bad = _good_rows(rows, known)
        counter.add(bad, rows.rewards[:known], (rows.terminated | rows.truncated)[:known])
        dropped += int(bad.sum())
        yield good
        held = rows.part(slice(known, None))
    if dropped:
        notes.append(
            f"Left out: {counted(dropped, 'row')} with NaN or infinite values. Episodes go on behind such rows."
        )
    if counter.episodes_lost:
        notes.append(f"No row is left of {counted(counter.episodes_lost, 'episode')}.")


def _good_rows(steps: Steps, known: int) -> tuple[Steps, Array]:
    """The good ones of the first rows, and which are bad; the rows behind only tell what follows."""
    assert steps.next_observations is not None
    unused = steps.terminated & ~_finite(steps.next_observations)
    following = np.where(unused[:, None], steps.observations, steps.next_observations)
    bad = ~(_finite(steps.observations) & _finite(steps.actions) & _finite(steps.rewards[:, None]) & _finite(following))
    truncated = steps.truncated.copy()
    truncated[:-1] |= bad[1:] & ~steps.terminated[:-1]
    good = steps._replace(truncated=truncated, next_observations=following).part(slice(0, known))
    return good.part(~bad[:known]), bad[:known]


def _finite(column: Array) -> Array:
    """Which rows have finite numbers only, once they are float32."""
    return np.asarray(np.isfinite(column.astype(np.float32)).all(axis=1))
