"""The rules by which a log becomes transitions, once more and slowly: a row at a time, lists instead of arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

from mildly.data.assemble import Steps
from mildly.data.dataset import FIELDS, Dataset

WIDTH, ACTIONS = 2, 2


@dataclass
class Row:
    """One row of a log."""

    obs: list[float]
    action: list[float]
    reward: float
    terminated: bool = False
    truncated: bool = False
    next_obs: list[float] | None = None

    @property
    def ends(self) -> bool:
        return self.terminated or self.truncated

    @property
    def bad(self) -> bool:
        return not all(map(math.isfinite, [*self.obs, *self.action, self.reward, *(self.next_obs or [])]))

    @property
    def is_final_observation(self) -> bool:
        return self.ends and not any(map(math.isfinite, self.action))


def transitions(rows: list[Row], time_limit: int | None = None, drop_bad_rows: bool = False) -> list[Row]:
    """What `assemble` must make of the rows."""
    rows = [replace(row) for row in rows]
    if time_limit is not None:
        _end_by_time_limit(rows, time_limit)
    made = [_kept(row) for row in rows] if rows[0].next_obs is not None else _shift(rows)
    if drop_bad_rows:
        for row in made:
            if row.terminated and not all(map(math.isfinite, row.next_obs or [])):
                row.next_obs = row.obs  # which is never used
        for row, following in pairwise(made):
            if following.bad and not row.terminated:
                row.truncated = True
        made = [row for row in made if not row.bad]
    if made and not made[-1].terminated:
        made[-1].truncated = True
    return made


def _end_by_time_limit(rows: list[Row], limit: int) -> None:
    step = 0
    for row in rows:
        if row.next_obs is not None or not row.is_final_observation:
            step += 1
        if row.ends:
            if step == limit:
                row.terminated, row.truncated = False, True
            step = 0


def _kept(row: Row) -> Row:
    return replace(row, truncated=row.truncated and not row.terminated)


def _shift(rows: list[Row]) -> list[Row]:
    if not rows[-1].terminated:
        rows[-1].truncated = True
    made = []
    for i, row in enumerate(rows):
        if row.truncated or row.is_final_observation:
            continue
        following = rows[i + 1] if i + 1 < len(rows) else None
        terminated, truncated = row.terminated, False
        if following is not None and following.is_final_observation and following.terminated:
            terminated = True
        if following is not None and not terminated:
            truncated = following.truncated or following.is_final_observation
        after = row.obs if following is None else following.obs
        made.append(replace(row, terminated=terminated, truncated=truncated, next_obs=after))
    return made


def ended_by_ids(rows: list[Row], ids: list[Any]) -> list[Row]:
    """Rows whose episode's number is another one in the next row are cut-offs, unless they are terminal."""
    changes = [a != b for a, b in pairwise(ids)] + [False]
    return [
        replace(row, truncated=row.truncated or (change and not row.terminated))
        for row, change in zip(rows, changes, strict=True)
    ]


def steps_of(rows: list[Row]) -> Steps:
    """The same rows as arrays."""
    stored = rows[0].next_obs is not None
    return Steps(
        np.array([row.obs for row in rows], np.float32),
        np.array([row.action for row in rows], np.float32),
        np.array([row.reward for row in rows], np.float32),
        np.array([row.terminated for row in rows]),
        np.array([row.truncated for row in rows]),
        np.array([row.next_obs for row in rows], np.float32) if stored else None,
    )


def assert_same(dataset: Dataset, made: list[Row]) -> None:
    """A data set holds these transitions and no others."""
    expected = steps_of(made)
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(dataset, name), getattr(expected, name), err_msg=name)


@st.composite
def logs(draw: st.DrawFn, *, stored_next: bool | None = None, bad: bool = True, both: bool = True) -> list[Row]:
    """Logs with flags anywhere, final-observation rows and NaN."""
    stored = draw(st.booleans()) if stored_next is None else stored_next
    kinds = ["step"] * 8 + ["terminal"] * 2 + ["cut"] * 2 + (["both"] if both else [])
    kinds += ["empty terminal", "empty cut", "bad", "bad"] if bad else []
    rows = []
    for i, kind in enumerate(draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=14))):
        row = Row([float(i), -float(i)], [i / 20, -i / 20], float(i))
        row.terminated = "terminal" in kind or kind == "both"
        row.truncated = "cut" in kind or kind == "both"
        row.next_obs = [i + 0.5, -i - 0.5] if stored else None
        if stored and bad and row.terminated and draw(st.booleans()):
            row.next_obs = [math.nan, -i - 0.5]
        if kind.startswith("empty"):
            row.action = [math.nan] * ACTIONS
        if kind == "bad":
            place = draw(st.sampled_from(["obs", "action", "reward"]))
            value = draw(st.sampled_from([math.nan, math.inf]))
            if place == "reward":
                row.reward = value
            else:
                getattr(row, place)[draw(st.integers(0, 1))] = value
        rows.append(row)
    return rows
