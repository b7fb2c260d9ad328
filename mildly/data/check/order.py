"""Checks of what follows on what: next observations, rows out of order or there twice, ends that are none."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mildly.data.check.inspection import Finding, Inspection, hashes, percent, sentence
from mildly.data.check.values import usual
from mildly.data.dataset import Array
from mildly.words import counted

_ROUNDING = 1e-5
_PAIRS = 5  # named in a text
_REPEATED = 0.01  # of the rows
_ENDS, _STEPS = 5, 100  # that show what is usual
_USUAL_STEP = 0.99
_SHIFTS = 200  # other episodes that an end is compared with
_CHANCE = 0.03
_CONTINUE = 0.2  # share of the ends that may be wrong
_EPISODES = 3  # that show that a counter starts anew, at least
_COUNTED = 10  # steps that it counts, at least


def next_observations(inspection: Inspection) -> Iterator[Finding]:
    """Inside an episode, the next observation of a row is the observation of the row below."""
    jumps = _jumps(inspection)
    if not len(jumps.rows):
        return
    share = len(jumps.rows) / jumps.pairs
    evidence = (
        f"In {len(jumps.rows):,} of {jumps.pairs:,} steps inside episodes ({percent(share)}) the next observation is "
        f"not the observation of the row below, first in {inspection.places(jumps.rows)}."
    )
    if jumps.still > 0.9 * len(jumps.rows) and share > 0.5:
        yield Finding(
            "error",
            "next-is-observation",
            "The next observation is the observation itself, so nothing that an action does can be learned.",
            evidence,
            "Name the right columns with `mildly data convert SRC DST --next-obs ...`, or leave them out: then they "
            "are taken from the following row.",
        )
    elif share > 0.5:
        yield _shuffled(inspection, evidence)
    else:
        yield from _broken(inspection, jumps)


class _Jumps(NamedTuple):
    pairs: int
    """Steps inside episodes that were looked at."""
    rows: Array
    """Those of them whose next observation is another one than that of the row below."""
    still: int
    """How many of these do not leave their own observation."""


def _jumps(inspection: Inspection) -> _Jumps:
    data = inspection.data
    pairs = still = 0
    rows = [np.empty(0, np.int64)]
    for piece in inspection.pieces(data.observation_size):
        here = np.arange(piece.start, min(piece.stop, len(data) - 1))
        here = here[~inspection.closes(here)]
        pairs += len(here)
        rows.append(here[~_same(inspection, data.next_observations[here], data.observations[here + 1]).all(axis=1)])
        still += int((data.next_observations[rows[-1]] == data.observations[rows[-1]]).all(axis=1).sum())
    return _Jumps(pairs, np.concatenate(rows), still)


def _same(inspection: Inspection, first: Array, second: Array) -> Array:
    """Where observations agree, but for rounding; NaN agrees with anything."""
    ranges = inspection.once(usual, "observations")
    size = np.array([abs(column.center) + column.reach if np.isfinite(column.reach) else 0.0 for column in ranges])
    return np.asarray(~(np.abs(first - second) > _ROUNDING * np.maximum(size, np.abs(second))))


def _shuffled(inspection: Inspection, evidence: str) -> Finding:
    """Rows out of order. If most next observations are found in another row, sorting brings the episodes back."""
    data = inspection.data
    have = np.concatenate([hashes(data.observations[piece]) for piece in inspection.pieces(data.observation_size)])
    found = float(np.isin(hashes(data.next_observations[inspection.typical_rows]), have).mean())
    helps = (
        f"For {percent(found)} of the rows the next observation is the observation of another row: sort the log by "
        "episode and step; if it has an episode number, give it with `mildly data convert SRC DST --episode COLUMN`."
        if found > 0.5
        else "The rows between are not in the log, so that sorting would not help."
    )
    return Finding(
        "warning",
        "rows-shuffled",
        "Rows look shuffled: they do not follow each other in time.",
        evidence,
        f"Training on single transitions works, but episode returns and lengths mean nothing. {helps}",
    )


def _broken(inspection: Inspection, jumps: _Jumps) -> Iterator[Finding]:
    """What single jumps are: a row that repeats is told elsewhere, two may be swapped, or one cell be wrong."""
    data, size = inspection.data, inspection.data.observation_size
    rows = jumps.rows[~_repeats(inspection, jumps.rows)]
    swapped = rows[rows < len(data) - 2]
    for row, leads_to in ((0, 2), (2, 1)):  # the row after the next is the right one, and leads to the next
        following, there = data.next_observations[swapped + row], data.observations[swapped + leads_to]
        swapped = swapped[_same(inspection, following, there).all(axis=1)]
    if len(swapped):
        pairs = ", ".join(inspection.places([row + 1, row + 2]) for row in swapped[:_PAIRS])
        yield Finding(
            "warning",
            "rows-swapped",
            "Some rows stand in the wrong order.",
            f"In {pairs}" + (f" and {len(swapped) - _PAIRS:,} more pairs" if len(swapped) > _PAIRS else "") + ".",
            "Sort the log by time. Each transition is right by itself; only what follows on what is not.",
        )
    rows = np.setdiff1d(rows, swapped[:, None] + np.arange(3))
    wrong = ~_same(inspection, data.next_observations[rows], data.observations[rows + 1])
    cells = (wrong.sum(axis=1) <= size // 2) if size > 1 else np.zeros(len(rows), bool)
    if cells.any():
        columns = np.flatnonzero(wrong[cells].any(axis=0))
        yield Finding(
            "warning",
            "next-observation-wrong",
            "Some next observations contradict the row below in a few columns, and agree in the others.",
            f"{sentence(inspection.column_names(columns))} in {inspection.places(rows[cells])}, of {jumps.pairs:,} "
            "steps inside episodes.",
            "Leave the columns of the next observation out of the log, so that the following row is taken, or repair "
            "them.",
        )
    rows = rows[~cells]
    if len(rows):
        yield Finding(
            "warning",
            "episode-jumps",
            "Some rows do not continue their episode: ends of episodes are missing, or rows are.",
            f"In {len(rows):,} of {jumps.pairs:,} steps inside episodes ({percent(len(rows) / jumps.pairs)}) the next "
            f"observation is not the observation of the row below, first in {inspection.places(rows)}.",
            "Each transition is right by itself; episode returns and lengths may not be. Mark the ends with "
            "`mildly data convert SRC DST --episode COLUMN` or `--truncated COLUMN`.",
        )


def repeated_rows(inspection: Inspection) -> Iterator[Finding]:
    """Rows that are the row above once more."""
    data = inspection.data
    found = [np.empty(0, np.int64)]
    for piece in inspection.pieces(data.observation_size):
        rows = np.arange(piece.start, min(piece.stop, len(data) - 1))
        found.append(rows[_repeats(inspection, rows)])
    rows = np.concatenate(found) + 1
    if 0 < len(rows) <= _REPEATED * inspection.looked_at:  # of more, the world may stand still
        yield Finding(
            "warning",
            "row-repeated",
            "Some rows are copies of the row above: the log holds them twice.",
            f"{counted(len(rows), 'copy', 'copies')} in {inspection.places(rows)} ({inspection.of_rows}).",
            "Remove the copies: as they stand, they teach that an action did nothing.",
        )


def _repeats(inspection: Inspection, rows: Array) -> Array:
    """Whether the row below each of these goes on in its episode with the same observation, action and reward."""
    data = inspection.data
    same = ~inspection.closes(rows) & (data.rewards[rows] == data.rewards[rows + 1])
    for field in (data.observations, data.actions):
        same &= (field[rows] == field[rows + 1]).all(axis=1)
    return np.asarray(same)


def ends_that_continue(inspection: Inspection) -> Iterator[Finding]:
    """Flags that end nothing: the row below goes on from there."""
    ends = inspection.ends[(inspection.ends < len(inspection.data) - 1) & (inspection.lengths > 1)]
    if len(ends) < _ENDS:
        return
    wrong = np.union1d(_lead_to_the_next(inspection, ends), _straight_on(inspection, ends))
    if 0 < len(wrong) <= _CONTINUE * len(ends):
        yield Finding(
            "warning",
            "end-continues",
            "Some rows are marked as the end of an episode, but the row below goes on from there.",
            f"In {inspection.places(wrong)}{_flags(inspection, wrong)}, of {counted(len(ends), 'end')}; at the others "
            "the observation jumps.",
            "Look at the flags of those rows: one that is set by mistake makes two episodes of one, and, where it "
            "says terminated, teaches that the value ends there.",
        )


def _flags(inspection: Inspection, rows: Array) -> str:
    """By which of the log's columns rows are marked, where they have names."""
    if inspection.data.origin is None:
        return ""
    marks = {name: getattr(inspection.data, name)[rows] for name in ("terminated", "truncated")}
    names = [inspection.flag_name(name, "") for name, mark in marks.items() if mark.any()]
    known = " or ".join(f"'{name}'" for name in names if name)
    return f", marked by {known}" if known else ""


def _lead_to_the_next(inspection: Inspection, ends: Array) -> Array:
    """Ends whose next observation is the row below's, if few are so: a log may have no other to give."""
    data = inspection.data
    found = []
    for flag in (data.terminated, data.truncated):
        some = ends[flag[ends]]
        same = (data.next_observations[some] == data.observations[some + 1]).all(axis=1)
        found.append(some[same] if same.sum() <= _CONTINUE * len(some) else some[:0])
    return np.concatenate(found)


def _straight_on(inspection: Inspection, ends: Array) -> Array:
    """Ends from which the row below goes on as inside an episode, if rows of other episodes would not by chance."""
    rows = inspection.typical_rows
    rows = rows[(rows > 0) & (rows < len(inspection.data) - 1)]
    rows = rows[~inspection.closes(rows) & ~inspection.closes(rows - 1)]
    if len(rows) < _STEPS:
        return ends[:0]
    errors = np.abs(inspection.logged("observations", rows + 1) - _ahead(inspection, rows))
    known = [column[np.isfinite(column)] for column in errors.T]
    usual_error = np.array([np.quantile(column, _USUAL_STEP) if len(column) else 0.0 for column in known])
    ahead, below = _ahead(inspection, ends), inspection.logged("observations", ends + 1)

    def fit(below: Array) -> Array:
        return np.asarray((np.abs(below - ahead) <= usual_error)[:, usual_error > 0].all(axis=1))

    others = [int(fit(np.roll(below, shift, axis=0)).sum()) for shift in range(1, min(len(ends), _SHIFTS + 1))]
    wrong = ends[fit(below)]
    by_chance = (1 + sum(number >= len(wrong) for number in others)) / (1 + len(others))
    return wrong if by_chance < _CHANCE else ends[:0]


def _ahead(inspection: Inspection, rows: Array) -> Array:
    """Where a row and the one before it lead in a straight line."""
    return 2 * inspection.logged("observations", rows) - inspection.logged("observations", rows - 1)


def counters(inspection: Inspection) -> Iterator[Finding]:
    """Columns of a table that count the rows of every episode: clocks that were taken for sensors."""
    data = inspection.data
    names = data.meta.observation_names if data.origin is not None and data.origin.names else ()
    if not names or len(inspection.ends) < _EPISODES or len(data) - len(inspection.ends) < _COUNTED:
        return
    first = data.observations[0].astype(np.float64)
    low, high, anew = np.full(len(first), np.inf), np.full(len(first), -np.inf), np.ones(len(first), dtype=bool)
    for piece in inspection.pieces(len(first)):
        block, ends = inspection.logged("observations", piece), inspection.closes(piece)[:-1]
        steps = np.diff(block, axis=0)[~ends]
        low, high = np.minimum(low, steps.min(axis=0, initial=np.inf)), np.maximum(high, steps.max(axis=0, initial=0.0))
        anew &= (block[1:][ends] == first).all(axis=0)
    facts = inspection.observations
    rounding = 4 * np.finfo(np.float32).eps * np.maximum(np.abs(facts.low), np.abs(facts.high))
    for column in np.flatnonzero(anew & (low > rounding) & (high - low <= rounding)):
        yield Finding(
            "warning",
            "row-counter",
            f"'{names[column]}' counts the rows of each episode, as a clock does.",
            f"It rises by {low[column]:.4g} from row to row and starts anew at {first[column]:.4g} in each of "
            f"{counted(len(inspection.ends), 'episode')} ({inspection.of_rows}).",
            f"If it is a clock, give `--time {shlex.quote(names[column])}`: it then checks the order of the rows, and "
            "is not learned from. Or leave it out with `--obs`. The policy needs every observation wherever it acts.",
        )
