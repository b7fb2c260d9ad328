"""Discrete actions: whole numbers that name a choice instead of measuring an amount.

Policies here are continuous, and between choice 1 and choice 2 there is no action 1.5. A reader therefore watches the
actions that it reads. What it finds is a note of the data set: `mildly data info` shows it, `mildly data check` makes a
finding of it, and training refuses it. Only numbers that are stored as integers count: a bang-bang controller's -1.0
and 1.0 are amounts. Who gives bounds (`--action-low`, `--action-high`) or an environment (`--env`, which must have a
Box), or says that they are in [-1, 1] (`--scaled`), has said that the actions are amounts, and nothing is noted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from mildly.data.dataset import Array
from mildly.data.findings import Remark
from mildly.data.options import ImportOptions
from mildly.data.steps import Steps

FEW = 32
"""The most values that a column of choices has."""
_ROWS_EACH = 3  # on average; fewer rows do not tell choices from amounts
_SHOWN = 8  # values quoted one by one
CODE = "action-discrete"
"""What the finding is called."""


def discrete(name: str, values: Array) -> str | None:
    """Whether a column (n,) of integers holds choices: why, in words, or None where it holds amounts."""
    watch = Watch([name], [True])
    watch.see(np.asarray(values).reshape(-1, 1))
    return watch.words()


class Watch:
    """Looks at actions block by block.

    Args:
        names: what the columns are called.
        integer: which of them are stored as integers (or as true and false).
    """

    def __init__(self, names: Sequence[str], integer: Sequence[bool]) -> None:
        self.names = tuple(names)
        self.seen: dict[int, _Values] = {column: _Values() for column, whole in enumerate(integer) if whole}
        self.others = [column for column, whole in enumerate(integer) if not whole]

    def see(self, actions: Array) -> None:
        """Take a block (n, a)."""
        for column, values in self.seen.items():
            values.see(actions[:, column], actions[:, self.others])

    def words(self) -> str | None:
        """Which columns hold choices, so far; None if none does."""
        told = []
        for column, values in self.seen.items():
            if not values.few:
                continue
            words = f"'{self.names[column]}' holds {len(values.rows_of)} whole numbers ({values.shown()})"
            if values.decodes:
                decoded = ",".join(self.names[other] for other in self.others)
                words += (
                    f", the number of a choice that {decoded} spell out: where these are amounts, leave it out with "
                    f"--action '{decoded}'"
                )
            told.append(words)
        return "; ".join(told) or None


class _Values:
    """What is known of one column: its values as long as they are few, and what the other columns are at each."""

    def __init__(self) -> None:
        self.rows = 0
        self.rows_of: dict[float, Array] = {}  # by value, the other columns where it was first seen
        self.many = False
        self.follow = True  # whether the others are the same wherever the value is

    def see(self, column: Array, others: Array) -> None:
        column = np.asarray(column)
        if column.dtype.kind == "f":  # a number is missing in a table, or other rows are no integers
            others, column = others[np.isfinite(column)], column[np.isfinite(column)]
            self.many = self.many or bool((column % 1 != 0).any())
        self.rows += len(column)
        if self.many or not len(column):
            return
        values, firsts = np.unique(column, return_index=True)
        for value, first in zip(values.tolist(), firsts, strict=True):
            known = self.rows_of.setdefault(value, others[first])
            if len(self.rows_of) > FEW:
                self.many = True
                return
            if len(known) and self.follow:
                self.follow = bool((others[column == value] == known).all())

    @property
    def few(self) -> bool:
        """Few values, and more than one: a column that never changes says nothing."""
        return not self.many and 1 < len(self.rows_of) <= self.rows / _ROWS_EACH

    @property
    def decodes(self) -> bool:
        """Whether the other columns follow from the value, and differ between values."""
        different = {tuple(row.tolist()) for row in self.rows_of.values()}
        return self.follow and len(different) == len(self.rows_of) and () not in different

    def shown(self) -> str:
        values = sorted(self.rows_of)
        if len(values) <= _SHOWN:
            return ", ".join(f"{value:g}" for value in values)
        return f"from {values[0]:g} to {values[-1]:g}"


def watched(
    steps: Iterator[Steps],
    name: str | Sequence[str],
    options: ImportOptions,
    notes: list[str],
    *,
    integer: Sequence[bool] | None = None,
    stated: str | None = None,
) -> Iterator[Steps]:
    """Blocks as they are, with a note behind the last if their actions are choices.

    Args:
        steps: the blocks.
        name: what the actions are called, or each of their columns; columns of one array are `name[0]`, `name[1]`, ...
        options: what the user says.
        notes: gets the note.
        integer: which of the names are stored as integers; by default this is seen by the type of the actions.
        stated: what in the file says that its actions are discrete, in words.
    """
    watch: Watch | None = None
    for block in steps:
        if watch is None:
            width, whole = block.actions.shape[1], block.actions.dtype.kind in "biu"
            names = [name] if isinstance(name, str) else list(name)
            kinds = [whole] * len(names) if integer is None else list(integer)
            if len(names) != width:  # lists in the cells of one column, or of several
                names, kinds = [f"{', '.join(names)}[{i}]" for i in range(width)], [all(kinds)] * width
            watch = Watch(names, kinds)
        watch.see(block.actions)
        yield block
    words = stated or (watch.words() if watch is not None else None)
    if words is not None and not settled(options):
        notes.append(remark(words).note())


def settled(options: ImportOptions) -> bool:
    """Whether the user has said that the actions are amounts."""
    return options.action_low is not None or options.env is not None or options.scaled


def remark(words: str) -> Remark:
    """What is noted of a data set whose actions are choices, with what `Watch.words` says."""
    return Remark(
        "error",
        CODE,
        "The actions are discrete: they name a choice, and a continuous policy would answer with numbers between two "
        "choices. Training on choices is not supported yet.",
        f"{words[0].upper()}{words[1:]}.",
        "If the numbers are amounts, say so by giving their bounds: --action-low LOW --action-high HIGH (or --env ID, "
        "which knows them).",
    )


def without(notes: Iterable[str]) -> list[str]:
    """Notes without that of discrete actions."""
    return [note for note in notes if Remark.of(note).code != CODE]
