"""Cells that are missing: codes that stand for a missing value, and filling, inside episodes and in short gaps only.

    previous       the last value before the gap: what a controller would have seen
    interpolate    a straight line from the value before to the value behind it
    NUMBER         this number

A gap that is longer than the limit, or that lacks the neighbor which its method needs, stays as it is. Rewards are
never filled: a reward that nobody saw is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise

import numpy as np

from mildly.data.dataset import Array
from mildly.data.steps import Steps
from mildly.errors import MildlyError
from mildly.words import counted

Method = str | float
"""`previous`, `interpolate`, or a number."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
REWARD = "reward"
"""What rewards are called, whatever the log says."""
_ROUNDING = 1e-6
LIMIT = 5
"""Rows of the longest gap that is filled, unless told otherwise."""


@dataclass(frozen=True)
class FillPlan:
    """How each column is filled; None leaves it as it is."""

    observations: tuple[Method | None, ...]
    actions: tuple[Method | None, ...]
    limit: int


def parse_fill(
    text: str, limit: int | None, observations: Sequence[str], actions: Sequence[str], where: str
) -> FillPlan:
    """A plan from `previous`, `0`, or `temperature=interpolate,valve*=previous,0`; a method alone is for all others."""
    names = [*observations, *actions]
    rest: Method | None = None
    chosen: dict[str, Method] = {}
    for fitting, method in _parts(text, names, "--fill", where):
        if fitting is None:
            rest = _method(method, where)
        else:
            chosen |= dict.fromkeys(fitting, _method(method, where))
    if limit is not None and limit < 1:
        raise MildlyError(f"max-fill must be at least 1, got {limit}.")
    plan = [chosen.get(name, rest) for name in names]
    return FillPlan(
        tuple(plan[: len(observations)]), tuple(plan[len(observations) :]), LIMIT if limit is None else limit
    )


def _parts(text: str, names: Sequence[str], option: str, where: str) -> Iterator[tuple[list[str] | None, str]]:
    """The columns that each part of an option means, None for all others, and what it says of them."""
    for part in text.split(","):
        column, given, value = (word.strip() for word in part.rpartition("="))
        fitting = [name for name in names if name == column or fnmatchcase(name, column)]
        if given and not fitting:
            raise MildlyError(f"{where}: no column fits {option} '{column}'. Known: {', '.join(names)}.")
        yield fitting if given else None, value


class Codes:
    """Numbers that stand for a missing value, by column."""

    def __init__(self, text: str, names: Sequence[str], where: str) -> None:
        """From `-999`, which is for all columns, or `-999,co2=65535`."""
        self.count = 0  # cells that hold one
        numbers: dict[str, list[float]] = {name: [] for name in names}
        for fitting, value in _parts(text, list(numbers), "--missing", where):
            if not _NUMBER.fullmatch(value):
                raise MildlyError(f"{where}: --missing takes numbers, for all or as NAME=NUMBER, got '{value}'.")
            for name in numbers if fitting is None else fitting:
                numbers[name].append(float(value))
        self.numbers = {name: np.array(some) for name, some in numbers.items()}

    def cleared(self, values: Array, name: str, *, counts: bool = True) -> Array:
        """A column with NaN in place of its codes."""
        coded = np.isclose(values[:, None], self.numbers[name], rtol=_ROUNDING, atol=0.0).any(axis=1)
        self.count += int(coded.sum()) * counts
        return np.where(coded, np.nan, values).astype(np.result_type(values.dtype, np.float32))


def without_codes(
    steps: Iterator[Steps], codes: Codes, observations: Sequence[str], actions: Sequence[str], notes: list[str]
) -> Iterator[Steps]:
    """The rows with NaN in place of codes, by the names of their columns."""

    def cleared(table: Array, names: Sequence[str], *, counts: bool = True) -> Array:
        columns = (codes.cleared(table[:, i], name, counts=counts) for i, name in enumerate(names))
        return np.stack(list(columns), axis=1)

    for block in steps:
        following = block.next_observations
        yield block._replace(
            observations=cleared(block.observations, observations),
            actions=cleared(block.actions, actions),
            rewards=codes.cleared(block.rewards, REWARD),
            next_observations=None if following is None else cleared(following, observations, counts=False),
        )
    notes.append(
        f"A code for a missing value stood in {counted(codes.count, 'cell')}."
        if codes.count
        else "No cell holds one of these codes, so that --missing had no effect."
    )


def _method(text: str, where: str) -> Method:
    if text in ("previous", "interpolate"):
        return text
    if _NUMBER.fullmatch(text):
        return float(text)
    raise MildlyError(f"{where}: --fill takes previous, interpolate or a number, for all or as NAME=..., got '{text}'.")


def filled(steps: Iterator[Steps], plan: FillPlan, notes: list[str]) -> Iterator[Steps]:
    """The rows with their short gaps filled. Rows wait until it is known how long a gap is."""
    filler = _Filler(plan)
    for block in steps:
        yield from filler.add(block)
    yield from filler.rest()
    if filler.cells or filler.left:
        left = f"; {filler.left:,} in longer gaps, or without a neighbor, were not" if filler.left else ""
        notes.append(
            f"Filled: {counted(filler.cells, 'missing cell')}, in gaps of at most {counted(plan.limit, 'row')}{left}."
        )


class _Filler:
    """Holds the rows of gaps that reach the end of what is known, and one row before them."""

    def __init__(self, plan: FillPlan) -> None:
        self.plan, self.methods = plan, (*plan.observations, *plan.actions)
        self.held: Steps | None = None
        self.open = np.zeros(len(self.methods), dtype=bool)  # columns in which a gap that was not filled goes on
        self.cells = self.left = 0

    def add(self, block: Steps) -> Iterator[Steps]:
        """Take rows; give those whose fate is known."""
        if len(block.rewards):
            yield from self._advance(Steps.join(self.held, block), end=False)

    def rest(self) -> Iterator[Steps]:
        """The rows that are left."""
        if self.held is not None and len(self.held.rewards):
            yield from self._advance(self.held, end=True)

    def _advance(self, rows: Steps, *, end: bool) -> Iterator[Steps]:
        ends = rows.terminated | rows.truncated
        ends[-1] |= end
        cells = np.concatenate([rows.observations, rows.actions], axis=1).astype(np.float64)
        ready = len(cells) if ends[-1] else len(cells) - 1
        width = rows.observations.shape[1]
        same = _same_states(rows, ends)
        for column in range(len(self.methods)):
            ready = min(ready, self._fill(cells[:, column], column, ends))
        rows = rows._replace(
            observations=cells[:, :width].astype(rows.observations.dtype),
            actions=cells[:, width:].astype(rows.actions.dtype),
        )
        if rows.next_observations is not None:
            rows = rows._replace(next_observations=_also_filled(rows.next_observations, rows.observations, same))
        missing = np.isnan(cells)
        if 0 < ready < len(cells):
            self.open = missing[ready - 1] & missing[ready] & ~ends[ready - 1]
        elif ready:
            self.open[:] = False
        self.left += int(missing[:ready].sum())
        self.held = rows.part(slice(ready, None))
        if ready:
            yield rows.part(slice(0, ready))

    def _fill(self, values: Array, column: int, ends: Array) -> int:
        """Fill a column in place; the first row that must wait."""
        method = self.methods[column]
        for start, end in _runs(np.isnan(values)):
            inner = np.flatnonzero(ends[start : end - 1]) + start + 1
            cuts = [start, *inner.tolist(), end]  # a run may cross the end of an episode
            for first, last in pairwise(cuts):
                open_end = last == len(values) and not ends[-1]
                too_long = last - first > self.plan.limit or (first == 0 and self.open[column])
                if open_end and not too_long and method is not None:
                    return max(0, first - 1)
                left = values[first - 1] if first and not ends[first - 1] else np.nan
                right = values[last] if last < len(values) and not ends[last - 1] else np.nan
                if method is not None and not too_long:
                    self._put(values[first:last], left, right, method)
        return len(values)

    def _put(self, gap: Array, left: float, right: float, method: Method) -> None:
        if method == "interpolate":
            gap[:] = np.linspace(left, right, len(gap) + 2)[1:-1]
        else:
            gap[:] = left if method == "previous" else method
        self.cells += int(np.isfinite(gap).sum())


def _same_states(rows: Steps, ends: Array) -> Array:
    """Rows whose next observation is the following row's observation, as far as both are known."""
    if rows.next_observations is None:
        return np.zeros(0, dtype=bool)
    after, following = rows.next_observations[:-1], rows.observations[1:]
    unknown = np.isnan(after) | np.isnan(following)
    return np.append(((after == following) | unknown).all(axis=1) & ~ends[:-1], False)


def _also_filled(after: Array, observations: Array, same: Array) -> Array:
    """What is filled in an observation is filled where it is the next one, too."""
    following = np.concatenate([observations[1:], observations[-1:]])
    return np.where(np.isnan(after) & same[:, None], following, after)


def _runs(missing: Array) -> list[tuple[int, int]]:
    """Stretches of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], missing, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
