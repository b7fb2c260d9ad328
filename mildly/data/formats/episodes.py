"""Where episodes end: the flags of a log and its episode numbers, which may contradict each other, brought together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from mildly.data.assemble import Steps
from mildly.data.dataset import Array
from mildly.data.findings import Remark
from mildly.data.formats.lines import Spots
from mildly.data.origin import Places
from mildly.words import counted

DONE = ("done", "dones", "next_done", "next_dones")
"""Flags that often mean no more than that the episode is over, for whatever reason."""

FIRST = ("episode_starts", "episode_start", "is_first", "is_start")
"""Marks of the first row of an episode."""

LAST = ("episode_terminals", "episode_ends", "episode_end", "is_last", "is_end")
"""Marks of the last row of an episode, for whatever reason."""


def with_ends(
    rows: Iterable[tuple[Steps, Array | None]],
    notes: list[str],
    *,
    done: str | None = None,
    episode: str | None = None,
    flags: Sequence[str] = (),
    keep_both: bool = False,
    places: Places | None = None,
) -> Iterator[Steps]:
    """Rows with flags that agree.

    Args:
        rows: blocks, each with where the episode's number is a new one (true in the very first row); None without
            numbers. A row before such a one is the last of its episode.
        notes: gets what was contradictory.
        done: the terminal flag, if it is one of `DONE` beside a flag of cut-offs: a row that has both is cut off.
            Otherwise it is terminal.
        episode: the column of the numbers, for the notes.
        flags: the columns of the flags, for the notes.
        keep_both: leave rows with both flags as they are, as D4RL's rules need them.
        places: where the rows stand, for the notes.
    """
    both, inside = 0, Spots()
    held: Steps | None = None  # the last row, until it is known whether its episode goes on
    for raw, starts in rows:
        steps = raw if keep_both else _agreeing(raw, over=done is not None)
        both += int((raw.terminated & raw.truncated).sum())
        if starts is None:
            yield steps
            continue
        starts = starts[1:] if held is None else starts
        steps = Steps.join(held, steps)
        within = np.flatnonzero((steps.terminated | steps.truncated)[:-1] & ~starts)
        inside.add(within if steps.numbers is None else steps.numbers[within])
        steps = steps._replace(truncated=steps.truncated.copy())
        steps.truncated[:-1] |= starts & ~steps.terminated[:-1]
        yield steps.part(slice(0, -1))
        held = steps.part(slice(-1, None))
    if held is not None:
        yield held._replace(truncated=held.truncated | ~held.terminated)
    if both and done is not None:
        notes.append(
            f"Both {done} and cut off: {counted(both, 'row')}. '{done}' is taken to mean that the episode is over, so "
            "that they were cut off."
        )
    if inside.count and episode is not None:
        notes.append(_inside(inside, episode, flags, places).note())


def _inside(found: Spots, episode: str, flags: Sequence[str], places: Places | None) -> Remark:
    where = f": {found.words(places)}" if places is not None else ""
    by = " or ".join(f"'{name}'" for name in flags) or "a flag"
    return Remark(
        "warning",
        "flag-inside-episode",
        f"Rows are flagged as an episode's last, but by '{episode}' the episode goes on. What follows is taken for an "
        "episode of its own.",
        f"{counted(found.count, 'row')}, flagged by {by}{where}.",
        f"Remove flags that were set by mistake: each makes two episodes of one. If '{episode}' counts something else "
        "than episodes, nothing is to be done.",
    )


def _agreeing(steps: Steps, *, over: bool) -> Steps:
    """No row has both flags."""
    if over:
        return steps._replace(terminated=steps.terminated & ~steps.truncated)
    return steps._replace(truncated=steps.truncated & ~steps.terminated)
