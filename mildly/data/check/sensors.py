"""Columns that stop telling what they told before: a sensor that is stuck, a unit that changes halfway."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from mildly.data.check.inspection import Finding, Inspection, sentence
from mildly.data.check.values import odd_rows, usual
from mildly.data.dataset import Array

_LONG, _SHORT = 20, 5  # rows in a row of a stuck column, at least; rows that a value may always stay
_TIMES = 3.0  # as long as the longest usual run
_USUAL_RUNS = 0.99  # share of the runs that are usual
_RUNS, _FEW = 1_000, 0.001  # runs that show what is usual; share of them that may be stuck
_MOVES = 0.5  # share of the rows in which another column must move meanwhile
_PLACES = 5
_PARTS, _SIDE = 60, 3  # of the log; on either side of a change, at least
_FEW_ROWS = 1_000
_ROWS = 300  # of a part, that show its level
_RANGE = (5, 50, 95)  # percent of the values of a part
_STEADY = 1.5  # times as far as the level moves on either side
_CONVERSIONS = (
    ("degrees Celsius and Fahrenheit", 1.8, 32.0),
    ("degrees Celsius and kelvins", 1.0, 273.15),
    *((f"a factor of {factor:g}", factor, 0.0) for factor in (10.0, 100.0, 1e3, 1e6, 3.6, 60.0, 3600.0)),
)
_NEAR = 0.05  # of the change


class Run(NamedTuple):
    """Rows in a row with one value."""

    start: int
    length: int
    value: float


def stuck(inspection: Inspection) -> Iterator[Finding]:
    """Columns that keep one value for very long, measured by how long they usually do: setpoints and flags may."""
    places = []
    for field in ("observations", "actions", "rewards"):
        for column, runs in _stuck_runs(inspection, field):
            name = inspection.column_name(column, field)
            shown = ", ".join(
                f"{run.length:,} rows from {inspection.place(run.start)} on at {run.value:.5g}"
                for run in runs[:_PLACES]
            )
            places.append(f"{name}: {shown}" + (f" and {len(runs) - _PLACES} more" if len(runs) > _PLACES else ""))
    if places:
        text = "; ".join(places[:_PLACES]) + (f"; and {len(places) - _PLACES} more" if len(places) > _PLACES else "")
        yield Finding(
            "warning",
            "stuck",
            "A column that otherwise moves keeps one value for long: a sensor was stuck, or the log repeats its last "
            "value.",
            f"{sentence(text)} ({inspection.of_rows}).",
            "A policy would learn from numbers that were not measured: leave those rows out of the log, or make the "
            "cells empty (NaN) and convert with `mildly data convert SRC DST --drop-bad-rows`.",
        )


def _stuck_runs(inspection: Inspection, field: str) -> Iterator[tuple[int, list[Run]]]:
    """Columns with runs that are no usual ones."""
    for column, (range_, counts, runs) in enumerate(
        zip(inspection.once(usual, field), *_runs(inspection, field), strict=True)
    ):
        odd = _unusual(counts, runs[:, 1])
        if not range_.filled or not odd.any():
            continue
        settled = _settled(inspection, field, column, runs[:, 2])
        found = [Run(int(start), int(length), value) for start, length, value in runs[odd] if value not in settled]
        found = [run for run in found if _others_move(inspection, field, column, run)]
        if found:
            yield column, found


def _runs(inspection: Inspection, field: str) -> tuple[list[Array], list[Array]]:
    """Of each column, how many runs of each length there are (the last counts all longer ones), and those not short.

    A run that is not short is a row (start, length, value).
    """
    width = inspection.logged(field, slice(1)).shape[1]
    counts, kept = np.zeros((width, _LONG), np.int64), [[np.empty((0, 3))] for _ in range(width)]
    begun, values, stop = np.zeros(width, np.int64), np.full(width, np.nan), -1
    pieces = list(inspection.pieces(width))
    for piece in pieces:
        block = inspection.logged(field, piece)
        if piece.start != stop:  # a new stretch of the sample
            begun[:], values[:] = piece.start, block[0]
        changes = np.concatenate([[values], block[:-1]]) != block
        for column in range(width):
            edges = np.append(begun[column], piece.start + np.flatnonzero(changes[:, column]))
            edges = np.append(edges, piece.stop) if piece is pieces[-1] else edges
            starts, lengths = edges[:-1], np.diff(edges)
            counts[column] += np.bincount(lengths.clip(max=_LONG - 1), minlength=_LONG)
            starts, lengths = starts[lengths >= _SHORT], lengths[lengths >= _SHORT]
            value = np.where(starts < piece.start, values[column], block[(starts - piece.start).clip(0), column])
            kept[column].append(np.stack([starts, lengths, value], axis=1))
            begun[column] = edges[-1]
        values, stop = block[-1], piece.stop
    return list(counts), [np.concatenate(some) for some in kept]


def _unusual(counts: Array, lengths: Array) -> Array:
    """Which of the runs that are not short are longer than all usual ones by far; none if there are many."""
    total = int(counts.sum())
    longest = max(int(np.searchsorted(np.cumsum(counts), _USUAL_RUNS * total)), _SHORT)
    known = np.sort(np.append(longest, lengths[lengths > longest]))
    gaps = np.flatnonzero(known[1:] > _TIMES * known[:-1])
    longest = known[gaps[0]] if len(gaps) else known[-1]
    odd = np.asarray(lengths >= max(_LONG, _TIMES * longest))
    return odd & (total >= _RUNS and odd.sum() <= max(3, _FEW * total))


def _settled(inspection: Inspection, field: str, column: int, stays: Array) -> set[float]:
    """Values at which a column may well stay: zero, where its range ends, and where it stays more than once."""
    rows = np.setdiff1d(inspection.typical_rows, odd_rows(inspection, field, column))
    values = inspection.logged(field, rows)[:, column]
    values = values[np.isfinite(values)]
    at, times = np.unique(stays, return_counts=True)
    return {0.0, float(values.min()), float(values.max()), *at[times > 1].tolist()}


def _others_move(inspection: Inspection, field: str, column: int, run: Run) -> bool:
    """Whether another observation moves meanwhile; where there is no other, actions. A plant may stand still."""
    rows = slice(run.start, run.start + run.length)
    block = inspection.logged("observations", rows)
    others = np.delete(block, column, axis=1) if field == "observations" else block
    others = others if others.shape[1] else inspection.logged("actions", rows)
    return bool(((np.diff(others, axis=0) != 0).mean(axis=0) > _MOVES).any())


def unit_change(inspection: Inspection) -> Iterator[Finding]:
    """Observations whose level moves once, for good, by more than it ever does before and after."""
    places = []
    parts = _parts(inspection)
    for column, found in _levels(inspection, parts) if len(inspection.data) >= _FEW_ROWS else ():
        before, after, part = found
        near = slice(parts[part].start, parts[part + 2].stop)
        row = _first_row(inspection, column, near, (before + after) / 2, rises=after > before)
        places.append(
            f"{inspection.column_name(column)}: about {before:.4g} up to {inspection.place(row - 1)}, about "
            f"{after:.4g} from {inspection.place(row)} on{_conversion(before, after)}"
        )
    if places:
        text = "; ".join(places[:_PLACES]) + (f"; and {len(places) - _PLACES} more" if len(places) > _PLACES else "")
        yield Finding(
            "warning",
            "unit-change",
            "The level of a column changes once and for good, as if its unit, or its sensor, had changed.",
            f"{sentence(text)}.",
            "Bring both parts to one unit in the log. If the plant itself changed, train on one of the parts.",
        )


def _parts(inspection: Inspection) -> list[slice]:
    """The log in parts of equal size."""
    edges = np.linspace(0, len(inspection.data), _PARTS + 1).astype(int)
    return [slice(int(start), int(stop)) for start, stop in pairwise(edges)]


def _levels(inspection: Inspection, parts: list[slice]) -> Iterator[tuple[int, tuple[float, float, int]]]:
    """Columns that move from one level to another, with both levels and the last part of the first."""
    quantiles = []
    for part in parts:
        step = max(1, (part.stop - part.start) // _ROWS)
        columns = inspection.logged("observations", np.arange(part.start, part.stop, step)).T
        known = [column[np.isfinite(column)] for column in columns]
        quantiles.append([np.percentile(column, _RANGE) if len(column) else [np.nan] * 3 for column in known])
    low, middle, high = np.moveaxis(np.array(quantiles), 2, 0)  # each (part, column)
    for column, range_ in enumerate(inspection.once(usual, "observations")):
        if not range_.filled or not np.isfinite(middle[:, column]).all():
            continue
        for floor, top in ((low[:, column], high[:, column]), (-high[:, column], -low[:, column])):  # rises, or falls
            gaps = np.minimum.accumulate(floor[::-1])[::-1][2:] - np.maximum.accumulate(top)[:-2]
            at = int(np.argmax(gaps))  # the change may lie anywhere in the part after this one
            sides = middle[: at + 1, column], middle[at + 2 :, column]
            step = abs(float(np.median(sides[0]) - np.median(sides[1])))
            steady = step > _STEADY * max(float(np.ptp(side)) for side in sides)
            if gaps[at] > 0 and steady and min(map(len, sides)) >= _SIDE:
                yield column, (float(np.median(sides[0])), float(np.median(sides[1])), at)


def _first_row(inspection: Inspection, column: int, rows: slice, middle: float, *, rises: bool) -> int:
    """The row at which the column passes from one side of the middle to the other."""
    values = inspection.logged("observations", rows)[:, column]
    second = (values > middle) == rises
    wrong = np.concatenate([[0], np.cumsum(second)]) + np.concatenate([np.cumsum(~second[::-1])[::-1], [0]])
    return int(rows.start + np.argmin(wrong))


def _conversion(before: float, after: float) -> str:
    """What units the two levels may be in."""
    for name, factor, offset in _CONVERSIONS:
        for first, second in ((before, after), (after, before)):
            if abs(factor * first + offset - second) <= _NEAR * abs(second - first):
                return f" ({name}?)"
    return ""
