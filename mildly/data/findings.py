"""What a reader finds wrong with a file, kept as a note: so it travels with the data through every format.

A note is a sentence. A `Remark` is one with parts, in a writing that can be read back:

    Warning (time-goes-back): Rows are out of order. [1 of 300 steps of 'time', at line 17.] -> Sort the rows by 'time'.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

from mildly.errors import MildlyError

Severity = Literal["error", "warning", "info"]

_SEVERITIES: dict[str, Severity] = {"Error": "error", "Warning": "warning", "Note": "info"}
_WRITTEN = re.compile(
    rf"(?P<word>{'|'.join(_SEVERITIES)}) \((?P<code>[a-z-]+)\): (?P<what>.*?)"
    r"(?: \[(?P<evidence>.*)\])?(?: -> (?P<advice>.*))?",
    re.DOTALL,
)


class NoReward(MildlyError):
    """A log in which nothing is the reward."""


class Remark(NamedTuple):
    """The parts of a finding of `mildly data check`, in its order."""

    severity: Severity
    code: str
    what: str
    evidence: str = ""
    advice: str = ""

    def note(self) -> str:
        """The remark in a line."""
        word = next(word for word, severity in _SEVERITIES.items() if severity == self.severity)
        evidence = f" [{self.evidence}]" if self.evidence else ""
        advice = f" -> {self.advice}" if self.advice else ""
        return f"{word} ({self.code}): {self.what}{evidence}{advice}"

    @classmethod
    def of(cls, note: str) -> Remark:
        """The remark that a note holds; any other note is good to know, and has no parts."""
        found = _WRITTEN.fullmatch(note)
        if found is None:
            return cls("info", "import", note)
        parts = found["what"], found["evidence"] or "", found["advice"] or ""
        return cls(_SEVERITIES[found["word"]], found["code"], *parts)


def no_reward() -> Remark:
    """A log that was read without a reward."""
    return Remark(
        "warning",
        "no-reward",
        "The log has no reward, and all are taken for 0: it can be imitated (bc), and nothing else.",
        advice='Name a reward with --reward "NAME", compute one, or name a cost with --cost "NAME".',
    )


def lacks_reward(notes: Iterable[str]) -> bool:
    """Whether notes say that a log was read without a reward."""
    return any(Remark.of(note).code == no_reward().code for note in notes)
