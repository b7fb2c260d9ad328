"""The clock of a table: which column it is, and what it says of the rows' order, of gaps, and of uneven steps.

The start of the table tells whether a column runs like a clock, and its median step. An episode breaks where the clock
pauses for longer than `max_gap`, and where it goes back: what stands on both sides is no transition. Two neighbors that
stand in each other's place change places first. All of it is reported.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mildly.data.dataset import Array
from mildly.data.findings import Remark
from mildly.data.formats import cells
from mildly.data.formats.columns import clock_names, counts_steps, episode_column, may_be_sensor, plain
from mildly.data.formats.lines import Spots
from mildly.data.formats.table_file import TableFile
from mildly.data.options import ImportOptions
from mildly.data.origin import Places
from mildly.data.steps import Steps
from mildly.errors import MildlyError
from mildly.words import counted

_GAP = 10  # median steps after which an episode breaks by default
_EVEN = 0.5  # of a median step: what differs by more is irregular
_MANY = 0.05  # of the steps
_COARSE = 0.1  # of the steps with the time of the row before: such a clock counts in units larger than a step
_DAY = 86_400.0
_ENOUGH = 10  # steps that show what a column is; with fewer its name does
_HEAD = 1000  # rows that show what a column is
_HELD = 3  # rows that wait for what follows
_UNITS = {"ms": 1e-3, "millis": 1e-3, "us": 1e-6, "ns": 1e-9}
_SINCE_1970 = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))  # numbers so large count parts of a second


@dataclass(frozen=True)
class Clock:
    """A column that tells the time."""

    name: str
    unit: float = 1.0
    """Seconds of one; or 1 if it counts steps."""
    counts: bool = False
    """Whether it counts steps."""
    daily: bool = False
    """Whether it begins anew at midnight."""
    step: float = np.nan
    """The median step, in seconds; NaN if there is none."""
    max_gap: float = np.inf
    given: bool = False
    """Whether the user has said how long a gap may be."""

    def words(self) -> str:
        """What is expected of it, a sentence."""
        if not np.isfinite(self.max_gap):
            return f"'{self.name}' is the clock: its median step is {self.span(self.step)}."
        times = "" if self.given else f", {_GAP} times as long"
        return (
            f"'{self.name}' is the clock: its median step is {self.span(self.step)}, and an episode breaks where it "
            f"pauses for more than {self.span(self.max_gap)}{times} (--max-gap changes it)."
        )

    def span(self, length: float) -> str:
        """A length of time for people."""
        if self.counts:
            return f"{length:g} step{'' if length == 1 else 's'}"
        for size, unit in ((_DAY, "days"), (3600.0, "h"), (60.0, "min")):
            if abs(length) >= 3 * size:
                return f"{length / size:.4g} {unit}"
        return f"{length:.4g} s"


@dataclass(frozen=True)
class Search:
    """What was found on the way to a clock."""

    clock: Clock | None
    sensors: tuple[str, ...] = ()
    """Columns with a clock's name that are none, and may be observations."""
    remarks: tuple[Remark, ...] = ()


def find_clock(sheet: TableFile, numeric: Sequence[str], options: ImportOptions, where: str) -> Search:
    """Look for the column that tells the time, and at how it begins."""
    sensors: list[str] = []
    remarks: list[Remark] = []
    episode = episode_column(sheet.names, options, where)
    for name in clock_names(sheet.names, options, where):
        twice = sheet.names.count(name) > 1  # which is told when columns are chosen
        if name == episode or twice or not _can_be_read(name, sheet, numeric, options):
            continue
        head, same = _head(sheet, name, episode)
        clock = _described(name, head, sheet)
        steps = np.diff(head * clock.unit)[same]
        steps = steps[np.isfinite(steps)]
        if options.time is None and name not in sheet.times and _is_no_clock(steps, head):
            sensors += [name] if may_be_sensor(name) else []
            remarks.append(_no_clock(name))
            continue
        forward = steps[steps > 0]
        step = float(np.median(forward)) if len(forward) else np.nan
        gap = options.max_gap if options.max_gap is not None else _GAP * step if len(forward) else np.inf
        given = options.max_gap is not None
        found = Clock(name, clock.unit, clock.counts, clock.daily, step, gap, given)
        return Search(found, tuple(sensors), tuple(remarks))
    if options.max_gap is not None:
        raise MildlyError(
            f"{where}: no column is a clock, so that --max-gap would have no effect. Name the column with --time."
        )
    return Search(None, tuple(sensors), tuple(remarks))


def _can_be_read(name: str, sheet: TableFile, numeric: Sequence[str], options: ImportOptions) -> bool:
    """Whether a column holds times or numbers. What the user names is read in any case, or the error tells why not."""
    if name in numeric or name in sheet.times or options.time is not None:
        return name not in sheet.lists
    if sheet.dialect is not None or name in sheet.empty:  # texts whose dates can be read are known by now
        return False
    try:
        _head(sheet, name, None)
    except MildlyError:
        return False
    return True


def _head(sheet: TableFile, name: str, episode: str | None) -> tuple[Array, Array]:
    """The first times, and for each but the first whether its row is of the episode of the row before."""
    labels = [episode] if episode is not None else []
    times, new = [np.empty(0)], [np.empty(0, dtype=bool)]
    last: Any = None
    for batch in sheet.batches([], [], labels, name):
        if batch.num_rows:
            times.append(cells.seconds(batch, name, sheet.path))
            new.append(np.zeros(batch.num_rows, dtype=bool))
            if episode is not None and not cells.column(batch, episode).null_count:
                ids = cells.column(batch, episode)
                new[-1], last = cells.changes(ids, last), ids[len(ids) - 1].as_py()
        if sum(map(len, times)) >= _HEAD:
            break
    return np.concatenate(times), ~np.concatenate(new)[1:]


def _described(name: str, head: Array, sheet: TableFile) -> Clock:
    """The unit that a column of numbers has, by its name or by how large they are."""
    if name in sheet.times:
        return Clock(name, daily=str(sheet.times[name]).startswith("time64"))
    whole = head[np.isfinite(head)]
    if counts_steps(name) and len(whole) and (whole == np.round(whole)).all():
        return Clock(name, counts=True)
    written = re.search(r"(ms|millis|us|ns)[\])]?$", plain(name))
    if written:
        return Clock(name, _UNITS[written[1]])
    size = float(np.median(np.abs(whole))) if len(whole) else 0.0
    return Clock(name, next((unit for least, unit in _SINCE_1970 if size > least), 1.0))


def _is_no_clock(steps: Array, head: Array) -> bool:
    """Whether a column goes down too often for a clock, and not because the rows of one were shuffled."""
    up, down = int((steps > 0).sum()), int((steps < 0).sum())
    if len(steps) < _ENOUGH or 0 < up >= 3 * down:
        return False
    spread = np.diff(np.sort(head[np.isfinite(head)]))
    evenly = bool(len(spread) > 1 and spread.min() > 0 and np.ptp(spread) <= 1e-6 * spread.max())
    return not evenly


def _no_clock(name: str) -> Remark:
    return Remark(
        "info",
        "no-clock",
        f"Column '{name}' goes up and down, so that it is no clock"
        + (" and may be an observation." if may_be_sensor(name) else "; it is not used."),
        advice=f'If it is the time, give --time "{name}".',
    )


class Timed(NamedTuple):
    """Rows of a table, with where an episode begins, as far as its number and marks tell, and with their times."""

    steps: Steps
    starts: Array
    times: Array

    def part(self, rows: slice) -> Timed:
        """Some of the rows."""
        return Timed(self.steps.part(rows), self.starts[rows], self.times[rows])

    def followed_by(self, other: Timed) -> Timed:
        """These rows and others."""
        arrays = (np.concatenate(pair) for pair in ((self.starts, other.starts), (self.times, other.times)))
        return Timed(Steps.join(self.steps, other.steps), *arrays)


class Timeline:
    """Follows a clock from row to row."""

    def __init__(self, clock: Clock, places: Places, *, episodes: bool) -> None:
        """`episodes`: whether anything else than the clock tells where an episode begins."""
        self.clock, self.places, self.episodes = clock, places, episodes
        self.steps = 0
        self.back, self.anew, self.same, self.swaps = Spots(), Spots(), Spots(), Spots()
        self.gaps, self.uneven, self.missing = Spots(), Spots(), Spots()
        self.longest = 0.0
        self.open()

    def open(self) -> None:
        """Begin a file."""
        self.last = self.start = np.nan  # of the last row that has a time; of the stretch that it is in
        self.length = 0  # rows of that stretch
        self.midnights, self.before = 0, np.nan  # the time of day in the last row

    def put_in_order(self, blocks: Iterator[Timed]) -> Iterator[Timed]:
        """Rows of a file with their times, in which two that stand in each other's place have changed places."""
        held: Timed | None = None
        begins = True  # whether nothing has been handed over
        for block in itertools.chain(blocks, [None]):
            rows = block if held is None else held if block is None else held.followed_by(block)
            if rows is None:
                return
            end = len(rows.times) if block is None else max(len(rows.times) - _HELD, 0)
            rows = self._in_order(rows, begins=begins, ends=block is None)
            if end:
                yield rows.part(slice(0, end))
                begins = False
            held = rows.part(slice(end, None))

    def _in_order(self, rows: Timed, *, begins: bool, ends: bool) -> Timed:
        """`begins`, `ends`: whether no row comes before these, and none behind."""
        times = rows.times
        flagged = rows.steps.terminated | rows.steps.truncated
        first = rows.starts.copy()  # of an episode
        first[0] |= begins
        first[1:] |= flagged[:-1]
        last = np.append(first[1:], ends)
        here = np.flatnonzero((times[1:] < times[:-1]) & ~first[1:] & ~flagged[1:]) + 1  # the second of two
        here = here[times[here - 1] - times[here] <= (1 + _EVEN) * self.clock.step]
        before, after = times[(here - 2).clip(0)], times[(here + 1).clip(max=len(times) - 1)]
        here = here[(first[here - 1] | (before < times[here])) & (last[here] | (times[here - 1] < after))]
        if not len(here):
            return rows
        assert rows.steps.numbers is not None
        self.swaps.add(rows.steps.numbers[here])
        turned = np.arange(len(times))
        turned[here - 1], turned[here] = here, here - 1
        return Timed(rows.steps.part(turned), rows.starts, times[turned])

    def breaks(self, times: Array, numbers: Array, goes_on: Array) -> Array:
        """Where the rows before and after do not belong together, though by all else the episode goes on."""
        known = np.isfinite(times)
        latest = np.maximum.accumulate(np.where(known, np.arange(len(times)), -1))
        filled = np.where(latest >= 0, times[latest], self.last)
        before = np.concatenate([[self.last], filled[:-1]])
        beside = np.concatenate([[np.isfinite(self.last)], known[:-1]])  # a time in the row right before
        step = np.where(goes_on, times - before, np.nan)
        back, gap = step < 0, step > self.clock.max_gap
        anew = self._anew(times, before, back, ~goes_on | back | gap)
        apart = np.abs(step - self.clock.step) > _EVEN * self.clock.step
        uneven = apart & (step > 0) & ~gap & beside
        self.steps += int(np.isfinite(step).sum())
        for spots, found in (
            (self.back, back & ~anew),
            (self.anew, anew),
            (self.same, step == 0),
            (self.gaps, gap),
            (self.uneven, uneven),
            (self.missing, ~known),
        ):
            spots.add(numbers[found], step[found])
        self.longest = max(self.longest, float(np.max(step, where=gap, initial=0.0)))
        self.last = float(filled[-1])
        broken: Array = back | gap
        return broken

    def times(self, batch: Any, sheet: TableFile) -> Array:
        """The times of some rows, in seconds; a clock that begins anew at midnight goes on."""
        times = self.clock.unit * cells.seconds(batch, self.clock.name, sheet.path)
        if not self.clock.daily:
            return times
        finite = np.where(np.isfinite(times), times, -np.inf)
        before = np.concatenate([[self.before], finite[:-1]])
        passed = self.midnights + np.cumsum(times - before < -_DAY / 2)
        self.midnights, self.before = int(passed[-1]), float(finite[-1])
        shifted: Array = times + _DAY * passed
        return shifted

    def _anew(self, times: Array, before: Array, back: Array, begins: Array) -> Array:
        """Where a clock goes back to where it began, if nothing else tells the episodes apart: so one begins."""
        rows = np.arange(len(times))
        own = np.maximum.accumulate(np.where(begins, rows, -1))
        starts = np.where(own >= 0, times[own], self.start)
        length = np.where(own >= 0, rows - own + 1, self.length + rows + 1)
        start = np.concatenate([[self.start], starts[:-1]])
        rows_before = np.concatenate([[self.length], length[:-1]])
        self.start, self.length = float(starts[-1]), int(length[-1])
        if self.episodes:
            return np.zeros_like(back)
        slack = np.nan_to_num(self.clock.step)
        found: Array = back & (times <= start + slack) & (rows_before > 2)
        return found

    def remarks(self) -> Iterator[Remark]:
        """What was found, once all rows are read."""
        name, clock = self.clock.name, self.clock
        if self.anew.count:
            yield Remark(
                "info",
                "time-starts-anew",
                f"The clock starts anew, and an episode is taken to begin there: {self.anew.count + 1:,} episodes.",
                f"'{name}' goes back to its beginning at {self.anew.words(self.places)}.",
                "If an episode begins elsewhere, name the column that tells them apart with --episode.",
            )
        if self.swaps.count:
            yield self._swapped()
        if self.back.count:
            yield self._order()
        if self.same.count:
            yield self._repeated()
        if self.gaps.count:
            lost = median = ""
            if np.isfinite(clock.step):
                median = f", its median step being {clock.span(clock.step)}"
                lost = f"; about {self.longest / clock.step - 1:,.0f} rows are missing in the longest"
            yield Remark(
                "warning",
                "time-gaps",
                "There are gaps in time. An episode breaks at a gap.",
                f"'{name}' pauses {counted(self.gaps.count, 'time')} for more than {clock.span(clock.max_gap)}{median}"
                f": {self.gaps.words(self.places, clock.span, gap=True)}{lost}.",
                "Find out why rows are missing. --max-gap sets another limit (inf for none).",
            )
        if self.uneven.count:
            yield Remark(
                "warning",
                "time-uneven",
                "Steps are not equally long: rows may be missing or doubled, or the log is not sampled evenly.",
                f"{self.uneven.count:,} of {self.steps:,} steps of '{name}' differ from the median of "
                f"{clock.span(clock.step)} by more than half of it: before "
                f"{self.uneven.words(self.places, clock.span)}.",
                "Training takes all steps for equally long. A few such steps do little harm; resample the log if there "
                "are many.",
            )
        if self.missing.count:
            yield Remark(
                "warning",
                "time-missing",
                "Some rows have no time.",
                f"'{name}' is empty {counted(self.missing.count, 'time')}: {self.missing.words(self.places)}.",
                "Such rows are taken to be where they stand.",
            )

    def _swapped(self) -> Remark:
        pairs = [
            f"{here.file} {here.kind}s {before.number} and {here.number}".strip()
            for before, here in zip(
                *(self.places([row + shift for row, _ in self.swaps.first]) for shift in (-1, 0)), strict=True
            )
        ]
        more = self.swaps.count - len(pairs)
        return Remark(
            "warning",
            "rows-swapped",
            f"Rows stand in each other's place, and were put in the order of '{self.clock.name}'.",
            f"By '{self.clock.name}': {', '.join(pairs)}" + (f" and {more:,} more pairs." if more else "."),
            "Find out why the log has rows in the wrong order. Nothing else needs to be done.",
        )

    def _order(self) -> Remark:
        share = self.back.count / max(self.steps, 1)
        return Remark(
            "error" if share > _MANY else "warning",
            "time-goes-back",
            "Rows are out of order: time goes back. An episode breaks there.",
            f"'{self.clock.name}' goes back {counted(self.back.count, 'time')} in {self.steps:,} steps: "
            f"at {self.back.words(self.places, lambda step: f'by {self.clock.span(-step)}')}.",
            f"Sort the rows by '{self.clock.name}', within their episode if there are several.",
        )

    def _repeated(self) -> Remark:
        share, name = self.same.count / max(self.steps, 1), self.clock.name
        evidence = f"{self.same.count:,} of {self.steps:,} rows have the time of the row before in '{name}'"
        if share > _COARSE:
            return Remark(
                "info",
                "time-coarse",
                "The clock is coarser than the steps, so that their order and gaps shorter than its unit are unknown.",
                f"{evidence}.",
            )
        return Remark(
            "warning",
            "time-repeats",
            "Some rows have the same time as the row before: they may have been logged twice.",
            f"{evidence}: {self.same.words(self.places)}.",
            "Remove rows that were logged twice: they teach that an action changes nothing.",
        )
