"""Checks of how the rows form episodes, and of what ends them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mildly.data.check.inspection import Finding, Inspection, figure
from mildly.data.dataset import Array, Meta, normalized_score
from mildly.data.tasks import task_of, task_of_env
from mildly.environments import registered_time_limit
from mildly.words import counted

_SAME_LENGTH = 0.9  # of the terminated episodes
_ENOUGH = 3  # episodes that show a pattern; with fewer, equal lengths may be chance
_SHORT = 10  # steps; so short a horizon may well be the task's own
_PILE, _PILE_EPISODES = 10.0, 5
_CLOCK = 5  # steps at the end of an episode
_FEW_EPISODES, _FEW_ROWS = 10, 1_000
_TOO_LONG = 3  # times the limit: demonstrations may take somewhat longer
_SCORE = 500.0  # no task's expert is so far below what can be done


def time_limit_as_terminal(inspection: Inspection) -> Iterator[Finding]:
    """Time limits stored as terminals: terminated episodes that all last equally long, which is the longest there is.

    Such a flag teaches that states are worth nothing merely because a clock that the policy cannot see ran out.
    """
    terminated = inspection.data.terminated[inspection.ends]
    lengths, limit = inspection.steps[terminated], int(inspection.steps.max())
    reached = int((lengths == limit).sum())
    knows_limits = bool((inspection.steps[~terminated] == limit).any())  # then the log tells limits from real ends
    told = known_limit(inspection.data.meta)
    known = told is not None and told[0] == limit
    if reached < (1 if known else 2) or limit == 1 or knows_limits:
        return
    same = reached >= _ENOUGH and reached >= _SAME_LENGTH * len(lengths)
    if not (known or same or _piled_up(lengths, limit)) or _tells_time(
        inspection, inspection.ends[inspection.steps == limit]
    ):
        return
    certain = known or (same and limit >= _SHORT)
    horizon = f" It is {told[1]}." if known and told else ""
    yield Finding(
        "error" if certain else "warning",
        "time-limit-as-terminal",
        f"Episodes seem to be stored as terminated where only a time limit of {limit:,} steps cut them off; values "
        "would be learned to end there."
        if certain
        else f"Some episodes stored as terminated may only have been cut off by a time limit of {limit:,} steps.",
        f"{reached:,} of {counted(len(lengths), 'terminated episode')} last{'s' if reached == 1 else ''} exactly "
        f"{limit:,} steps, and none lasts longer.{horizon}",
        f"Mark them as cut off: `mildly data convert SRC DST --time-limit {limit}`. Leave it as it is only if the task "
        f"itself is over after {limit:,} steps.",
    )


def known_limit(meta: Meta) -> tuple[int, str] | None:
    """After how many steps the task or the environment cuts an episode off, and who says so."""
    task = task_of(meta.name)
    if task is not None:
        return task.horizon, f"the horizon of {meta.name}'s task"
    if meta.env_id is None:
        return None
    task = task_of_env(meta.env_id)
    limit = task.horizon if task else registered_time_limit(meta.env_id)
    return None if limit is None else (limit, f"the time limit of {meta.env_id}")


def too_long(inspection: Inspection) -> Iterator[Finding]:
    """Episodes that no environment of this kind can have had, and scores that nobody can have reached."""
    meta, lengths = inspection.data.meta, inspection.steps
    told, task = known_limit(meta), task_of(meta.name)
    scores = normalized_score(inspection.returns, meta)
    endless = task is not None and not task.terminates  # a log of a maze may go on and on
    longer = np.flatnonzero(lengths > _TOO_LONG * told[0]) if told and not endless else np.empty(0, int)
    most = "" if scores is None else f", and scores reach {figure(float(scores.max()))}"
    if told and len(longer):
        yield Finding(
            "warning",
            "episode-too-long",
            f"Episodes last far longer than {told[0]:,} steps, {told[1]}: ends of episodes are missing, and several "
            "are summed up as one.",
            f"{len(longer):,} of {counted(len(lengths), 'episode')}, the longest of {lengths.max():,} steps{most}.",
            "Tell where episodes end: `mildly data convert SRC DST --episode COLUMN` or `--truncated COLUMN`.",
        )
    elif scores is not None and np.abs(scores).max() > _SCORE:
        far = np.flatnonzero(np.abs(scores) > _SCORE)
        yield Finding(
            "warning",
            "score-beyond-sense",
            f"Normalized scores go beyond {_SCORE:,.0f}: 0 is a random policy, 100 an expert.",
            f"{len(far):,} of {counted(len(lengths), 'episode')}, from {figure(float(scores.min()))} to "
            f"{figure(float(scores.max()))}, with {meta.reference_min:.6g} for 0 and {meta.reference_max:.6g} for 100.",
            "Either ends of episodes are missing (`--episode COLUMN`), or the references belong to another task "
            "(`mildly data convert SRC DST --reference-min R --reference-max R`).",
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
            f"{number:,} of {counted(len(inspection.lengths), 'episode')}, at {inspection.places(at)}.",
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
