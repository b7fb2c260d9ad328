"""Verdicts: what a check of a statement found, in numbers.

A claim says 'left <= right'. Its margin in a process is the smallest `right - left` over all states, actions and trials
there: negative means violated, by that much, and `where` says in which process, state and action. Margins of values are
in units of r_max / (1 - gamma), those of contractions in units of ||Q1 - Q2||. A claim holds in a process if the margin
is not below minus the tolerance, which covers rounding and the certified error of fixed points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from mildly.theory.counterexamples import COUNTEREXAMPLES, Counterexample
from mildly.theory.mdp import Array, Bools, Ints, TabularMDP

Kind = Literal["printed", "corrected"]


@dataclass(frozen=True)
class Claim:
    """One statement, checked on one process or several.

    Attributes:
        part: what the statement is about, in a few words; a printed and a corrected claim can share it.
        kind: `printed` in the paper, or `corrected`: what is true instead, or more sharply.
        text: the statement.
        margins: the worst margin in each process (M,); NaN where the statement's conditions are not met.
        tolerances: what rounding can do, for each process (M,).
        places: where the worst margin is: (M, 2), state and action, -1 where there is none.
    """

    part: str
    kind: Kind
    text: str
    margins: Array
    tolerances: Array
    places: Ints

    @property
    def tried(self) -> int:
        """Processes in which the statement says anything."""
        return int((~np.isnan(self.margins)).sum())

    @property
    def failures(self) -> int:
        """Processes in which it is violated."""
        return int((self.margins < -self.tolerances).sum())

    @property
    def holds(self) -> bool:
        """Whether it is violated nowhere."""
        return self.failures == 0

    @property
    def worst(self) -> float:
        """The smallest margin of all; negative is a violation, or rounding. NaN if nothing was tried."""
        return float(np.nanmin(self.margins)) if self.tried else float("nan")

    @property
    def where(self) -> str:
        """The place of the smallest margin, such as 'MDP 3, state 0, action 2'."""
        if not self.tried:
            return "nowhere"
        worst = int(np.nanargmin(self.margins))
        named = zip(("state", "action"), self.places[worst], strict=True)
        return ", ".join([f"MDP {worst}", *(f"{name} {at}" for name, at in named if at >= 0)])


@dataclass(frozen=True)
class Verdict:
    """All claims of one proposition, and a word on where what is printed is loose."""

    number: int
    title: str
    claims: tuple[Claim, ...]
    note: str

    @property
    def counterexamples(self) -> tuple[Counterexample, ...]:
        """The counterexamples that go with the proposition, computed."""
        return tuple(make() for make in COUNTEREXAMPLES[self.number])

    @property
    def as_printed(self) -> bool:
        """Whether every printed claim held wherever it was tried."""
        return all(claim.holds for claim in self.claims if claim.kind == "printed")

    @property
    def as_corrected(self) -> bool:
        """Whether every corrected claim held wherever it was tried."""
        return all(claim.holds for claim in self.claims if claim.kind == "corrected")

    def to_json(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "proposition": self.number,
            "title": self.title,
            "as_printed": self.as_printed,
            "as_corrected": self.as_corrected,
            "note": self.note,
            "claims": [
                {
                    "part": claim.part,
                    "kind": claim.kind,
                    "text": claim.text,
                    "mdps": claim.tried,
                    "failures": claim.failures,
                    "worst_margin": claim.worst if claim.tried else None,
                    "where": claim.where,
                }
                for claim in self.claims
            ],
            "counterexamples": [example.to_json() for example in self.counterexamples],
        }


def claim(
    part: str,
    kind: Kind,
    text: str,
    margins: Array | list[Array],
    mdp: TabularMDP,
    tolerance: Array,
    unit: Array | None = None,
    applies: Bools | None = None,
) -> Claim:
    """A claim from margins (..., S, A), (..., S) or (...,), or a list of trials of such; the worst is kept.

    A margin of infinity marks an entry of which the statement says nothing; `applies` (...,) the processes of which it
    does. Margins and tolerances are divided by `unit` (...,) where that is above zero.
    """
    count = mdp.batch[0] if mdp.batch else 1
    trials = margins if isinstance(margins, list) else [np.asarray(margins)]
    worst, places = np.full(count, np.inf), np.full((count, 2), -1)
    for trial in trials:
        extra = trial.ndim - len(mdp.batch)  # 0: of the process, 1: by state, 2: by state and action
        flat = trial.reshape(count, -1)
        at = flat.argmin(axis=-1)
        value = np.take_along_axis(flat, at[:, None], axis=-1)[:, 0]
        place = np.full((count, 2), -1)
        if extra == 1:
            place[:, 0] = at
        elif extra == 2:
            place[:, 0], place[:, 1] = np.divmod(at, mdp.actions)
        lower = value < worst
        worst, places = np.where(lower, value, worst), np.where(lower[:, None], place, places)
    silent = np.isinf(worst) if applies is None else np.isinf(worst) | ~np.reshape(applies, count).astype(bool)
    size = np.ones(count) if unit is None else np.where(unit > 0, unit, 1.0).reshape(count)
    tolerances = np.broadcast_to(tolerance, (count,)) / size
    return Claim(part, kind, text, np.where(silent, np.nan, worst / size), tolerances, places)


def merge(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdicts of one proposition on several batches as one; processes are numbered on."""
    merged = [
        replace(
            same[0],
            margins=np.concatenate([each.margins for each in same]),
            tolerances=np.concatenate([each.tolerances for each in same]),
            places=np.concatenate([each.places for each in same]),
        )
        for same in zip(*(verdict.claims for verdict in verdicts), strict=True)
    ]
    return replace(verdicts[0], claims=tuple(merged))
