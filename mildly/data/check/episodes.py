"""Checks of how the rows form episodes, and of what ends them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mildly.data.check.inspection import Finding, Inspection, counted, first_rows, named, percent
from mildly.data.dataset import Array
from mildly.data.tasks import task_of

_SAME_LENGTH = 0.9  # of the terminated episodes
_ENOUGH = 3  # episodes that show a pattern; with fewer, equal lengths may be chance
_SHORT = 10  # steps; so short a horizon may well be the task's own
_PILE, _PILE_EPISODES = 10.0, 5
_CLOCK = 5  # steps at the end of an episode
_ROUNDING = 1e-5
_FEW_EPISODES, _FEW_ROWS = 10, 1_000


def time_limit_as_terminal(inspection: Inspection) -> Iterator[Finding]:
    """Time limits stored as terminals: terminated episodes that all last equally long, which is the longest there is.

    Such a flag teaches that states are worth nothing merely because a clock that the policy cannot see ran out.
    """
    terminated = inspection.data.terminated[inspection.ends]
    lengths, limit = inspection.lengths[terminated], int(inspection.lengths.max())
    reached = int((lengths == limit).sum())
    knows_limits = bool((inspection.lengths[~terminated] == limit).any())  # then the log tells limits from real ends
    if reached < 2 or limit == 1 or knows_limits:
        return
    task = task_of(inspection.data.meta.name)
    known = task is not None and task.horizon == limit
    same = reached >= _ENOUGH and reached >= _SAME_LENGTH * len(lengths)
    if not (known or same or _piled_up(lengths, limit)) or _tells_time(
        inspection, inspection.ends[inspection.lengths == limit]
    ):
        return
    certain = known or (same and limit >= _SHORT)
    horizon = f" It is the horizon of {inspection.data.meta.name}'s task." if known else ""
    yield Finding(
        "error" if certain else "warning",
        "time-limit-as-terminal",
        f"Episodes seem to be stored as terminated where only a time limit of {limit:,} steps cut them off; values "
        "would be learned to end there."
        if certain
        else f"Some episodes stored as terminated may only have been cut off by a time limit of {limit:,} steps.",
        f"{reached:,} of {counted(len(lengths), 'terminated episode')} last exactly {limit:,} steps, and none lasts "
        f"longer.{horizon}",
        f"Mark them as cut off: `mildly data convert SRC DST --time-limit {limit}`. Leave it as it is only if the task "
        f"itself is over after {limit:,} steps.",
    )


def _piled_up(lengths: Array, limit: int) -> bool:
    """Whether far more episodes have the longest length than any other, and than lengths near it would suggest."""
    counts = np.bincount(lengths)
    reached, others = counts[limit], counts[:limit]
    near = others[limit // 2 :].mean()
    return bool(
        limit >= 2 * _SHORT
        and reached >= max(_PILE_EPISODES, 0.02 * len(lengths))
        and reached >= _PILE * near
        and reached >= _PILE_EPISODES * others.max()
    )


def _tells_time(inspection: Inspection, ends: Array) -> bool:
    """Whether a column of the observation is a clock: it runs through the same values towards all these ends."""
    steps = np.arange(min(int(inspection.lengths.max()), _CLOCK))
    last = inspection.data.observations[ends[:1000, None] - steps].astype(np.float64)  # (episode, step, column)
    same = (last == last[0]).all(axis=(0, 1))
    moves = np.diff(last[0], axis=0)
    return bool((same & ((moves > 0).all(axis=0) | (moves < 0).all(axis=0))).any())


def next_observations(inspection: Inspection) -> Iterator[Finding]:
    """Inside an episode, the next observation of a row is the observation of the row below."""
    pairs, jumps, still, rows = _compare_rows(inspection)
    if jumps == 0:
        return
    share = jumps / pairs
    evidence = (
        f"In {jumps:,} of {pairs:,} steps inside episodes ({percent(share)}) the next observation is not the "
        f"observation of the row below, first in {named('row', rows, jumps)}."
    )
    if still > 0.9 * jumps and share > 0.5:
        yield Finding(
            "error",
            "next-is-observation",
            "The next observation is the observation itself, so nothing that an action does can be learned.",
            evidence,
            "Name the right columns with `mildly data convert SRC DST --next-obs ...`, or leave them out: then they "
            "are taken from the following row.",
        )
    elif share > 0.5:
        yield Finding(
            "warning",
            "rows-shuffled",
            "Rows look shuffled: they do not follow each other in time.",
            evidence,
            "Training on single transitions still works, but episode returns and lengths mean nothing. If the log has "
            "an episode number, give it: `mildly data convert SRC DST --episode COLUMN`.",
        )
    else:
        yield Finding(
            "warning",
            "episode-jumps",
            "Some rows do not continue their episode: ends of episodes are missing, or rows are.",
            evidence,
            "Each transition is right by itself; episode returns and lengths may not be. Mark the ends with "
            "`mildly data convert SRC DST --episode COLUMN` or `--truncated COLUMN`.",
        )


def _compare_rows(inspection: Inspection) -> tuple[int, int, int, list[int]]:
    """Steps inside episodes, those that jump, those of them that stay where they are, and the first rows."""
    data = inspection.data
    facts = inspection.observations
    tolerance = _ROUNDING * np.nan_to_num(np.maximum(np.abs(facts.low), np.abs(facts.high)), posinf=0.0)
    pairs = jumps = still = 0
    rows: list[int] = []
    for piece in inspection.pieces(data.observation_size):
        stop = min(piece.stop, len(data) - 1)
        inside = ~(data.terminated[piece.start : stop] | data.truncated[piece.start : stop])
        following = data.next_observations[piece.start : stop]
        jump = inside & (np.abs(following - data.observations[piece.start + 1 : stop + 1]) > tolerance).any(axis=1)
        pairs += int(inside.sum())
        jumps += int(jump.sum())
        still += int((jump & (following == data.observations[piece.start : stop]).all(axis=1)).sum())
        first_rows(rows, jump, piece.start)
    return pairs, jumps, still, rows


def episode_ends(inspection: Inspection) -> Iterator[Finding]:
    """Logs in which nothing ends: no terminal, or only one episode."""
    task = task_of(inspection.data.meta.name)
    if len(inspection.ends) == 1 and len(inspection.data) > 1:
        endless = task is not None and not task.terminates
        yield Finding(
            "info" if endless else "warning",
            "one-episode",
            "The whole log is one long episode: no row but the last ends one.",
            f"{counted(len(inspection.data), 'row')}.",
            "Right where one process was watched without a pause. Otherwise tell where episodes begin, or the last row "
            "of one would lead into the next: `mildly data convert SRC DST --episode COLUMN`.",
        )
    elif not inspection.data.terminated[inspection.ends].any():
        yield Finding(
            "info",
            "no-terminals",
            "No episode is terminated; all are cut off, and their values go on.",
            f"{counted(len(inspection.ends), 'episode')}, 0 of them terminated.",
            "Right for tasks that never end by themselves, such as Pendulum and HalfCheetah. If yours can end (a fall, "
            "a goal), name the flag: `mildly data convert SRC DST --terminated COLUMN`.",
        )


def single_steps(inspection: Inspection) -> Iterator[Finding]:
    """Episodes of one step. The last one may simply be where the log stops."""
    number = int((inspection.lengths[:-1] == 1).sum())
    if number == 0:
        return
    if (inspection.lengths == 1).all():
        yield Finding(
            "info",
            "single-steps",
            "Every episode has one step: a bandit, where an action has no consequences beyond its reward.",
            f"{counted(len(inspection.lengths), 'episode')}.",
            "Right if that is the task. Otherwise the column that ends episodes, or their number, was misread.",
        )
    else:
        at = inspection.ends[:-1][inspection.lengths[:-1] == 1]
        yield Finding(
            "warning",
            "single-steps",
            "Some episodes have one step only.",
            f"{number:,} of {counted(len(inspection.lengths), 'episode')}, at {named('row', at)}.",
            "Look at those rows: flags may be set twice at the end of an episode, or rows of the log may be missing.",
        )


def few(inspection: Inspection) -> Iterator[Finding]:
    """Too little data to learn much from."""
    rows, episodes = len(inspection.data), len(inspection.ends)
    if rows < _FEW_ROWS or 1 < episodes < _FEW_EPISODES:
        yield Finding(
            "warning",
            "little-data",
            "There is little data; what is learned from it will not carry far.",
            f"{counted(rows, 'transition')} in {counted(episodes, 'episode')}.",
            f"Collect more: {_FEW_EPISODES} episodes and {_FEW_ROWS:,} transitions are a bare minimum, 100 times as "
            "much is common.",
        )
