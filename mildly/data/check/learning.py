"""What the data let an algorithm learn, and what is known about how they came here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from mildly.data.check.inspection import Finding, Inspection, figure, hashes, percent
from mildly.data.check.luck import LuckTest, luck_test
from mildly.data.dataset import normalized_score
from mildly.data.findings import Remark
from mildly.words import counted

_STATES, _QUERIES = 10_000, 1_000
_EXPLAINED = 0.95
_MANY_EPISODES, _ALIKE = 10, 0.05
_HASHED = 2_000_000
_DUPLICATED = 0.1

Verdict = Literal["alike", "luck", "open", "skill"]


def return_spread(inspection: Inspection) -> Iterator[Finding]:
    """How much better the best episodes are than the mean, and whether that is skill: it is what learning may gain."""
    outlook = inspection.once(prospects)
    if outlook is None:
        return
    if outlook.verdict == "alike":
        yield Finding(
            "info",
            "returns-alike",
            "All episodes are about equally good, so imitation will be hard to beat.",
            f"{outlook.evidence}.",
            "Compare with `mildly train bc`.",
        )
    elif outlook.verdict == "luck":
        yield Finding(
            "info",
            "returns-luck",
            "Episodes differ in what they return, but which of them are better cannot be told from luck.",
            f"{outlook.evidence}. {outlook.test.words()}",
            "Do not pick episodes by their return (`mildly train bc --best-episodes`): they may have been lucky. "
            "Single actions may still be better than others: compare `mildly train mcq` with `mildly train bc`.",
        )
    elif outlook.verdict == "open":
        yield Finding(
            "info",
            "returns-unexplained",
            "Episodes differ by far more than luck within them makes, but these tests cannot tell whether the better "
            "ones were acted better or had better conditions.",
            f"{outlook.evidence}. {outlook.test.words()}",
            "Find out what sets the best episodes apart. If it is who acted, imitate them (`mildly train bc "
            "--best-episodes 0.1`); if it is the conditions, give these to the policy as observations.",
        )
    elif inspection.thorough and (found := inspection.once(explained_actions)) and found.share > _EXPLAINED:
        yield Finding(
            "info",
            "returns-differ",
            "Episodes differ in how good they are, by more than luck, though not much in what is done in a state.",
            f"{outlook.evidence}. {outlook.test.words()}",
            "Imitate the better ones (`mildly train bc --best-episodes 0.1`), and compare.",
        )
    else:
        yield Finding(
            "info",
            "returns-differ",
            "Episodes differ in how good they are, by more than luck, so there should be something to learn beyond "
            "imitation.",
            f"{outlook.evidence}. {outlook.test.words()}",
            "A good policy should return at least about what the best tenth does.",
        )


class Prospects(NamedTuple):
    """What the returns promise."""

    verdict: Verdict
    evidence: str
    test: LuckTest


def prospects(inspection: Inspection) -> Prospects | None:
    """Compare the best tenth with all, and both with luck; None where there is nothing to compare."""
    returns = inspection.returns
    if len(returns) < _MANY_EPISODES or inspection.rewards.low[0] == inspection.rewards.high[0]:
        return None
    best = np.sort(returns)[-max(1, len(returns) // 10) :].mean()
    mean = returns.mean()
    evidence = f"Mean return: {figure(best)} of the best tenth, {figure(mean)} of all {len(returns):,} episodes"
    scores = normalized_score(np.array([best, mean]), inspection.data.meta)
    if scores is None:
        gain = (best - mean) / max(abs(mean), 1e-12)
    else:
        evidence += f" (normalized score {scores[0]:.1f} against {scores[1]:.1f})"
        gain = (scores[0] - scores[1]) / 100
    test = luck_test(inspection)
    verdict: Verdict = "skill" if test.skill else "open" if test.unexplained else "luck"
    return Prospects("alike" if gain <= _ALIKE else verdict, evidence, test)


def deterministic_behavior(inspection: Inspection) -> Iterator[Finding]:
    """Whether the same state always saw the same action."""
    explained, outlook = inspection.once(explained_actions), inspection.once(prospects)
    if explained is None or explained.share <= _EXPLAINED:
        return
    imitation = (
        "Imitating the better episodes is what can be hoped for (`mildly train bc --best-episodes 0.1`)"
        if outlook is not None and outlook.verdict == "skill"
        else "Expect no more than imitation (`mildly train bc`)"
    )
    yield Finding(
        "warning",
        "deterministic-behavior",
        "The behavior is nearly deterministic: the data hardly show what other actions would have done.",
        f"The state explains at least {percent(explained.share)} of the actions' variance; around what it explains "
        f"they vary by {explained.around:.2g} (standard deviation, of a range from -1 to 1). Seen in "
        f"{explained.states:,} states, each beside the most similar one of another episode.",
        f"{imitation}, or log some episodes with noise on the actions.",
    )


class Explained(NamedTuple):
    """How far states explain actions."""

    share: float
    """Of the actions' variance, at least."""
    around: float
    """Standard deviation of what is left."""
    states: int
    """How many were looked at."""


def explained_actions(inspection: Inspection) -> Explained | None:
    """How far the state explains the action; None where too little is known.

    For each of a thousand states we look up the most similar state of another episode. If actions varied at random
    around a function of the state, the mean of half the squared difference of the two actions would be that variation
    (plus what the function changes in between, so that we never see less than there is). Compared with the variance of
    all actions, it tells what share of their variance the state explains, at least.
    """
    data = inspection.data
    if len(data) < _QUERIES or len(inspection.ends) < 2:
        return None
    random = np.random.default_rng(0)
    rows = np.sort(random.choice(len(data), min(_STATES, len(data)), replace=False))
    states, actions = data.observations[rows].astype(np.float64), data.actions[rows].astype(np.float64)
    usable = np.isfinite(states).all(axis=1) & np.isfinite(actions).all(axis=1)
    rows, states, actions = rows[usable], states[usable], actions[usable]
    variance = actions.var(axis=0)
    if len(rows) < _QUERIES or not variance.any():
        return None
    states = (states - states.mean(axis=0)) / np.maximum(states.std(axis=0), 1e-9)
    states += 1e-4 * random.normal(size=states.shape)  # else all of many equal states would meet the same neighbor
    episode = np.searchsorted(inspection.ends, rows)
    queries = random.choice(len(rows), _QUERIES, replace=False)
    squares = np.square(states).sum(axis=1)
    distance = squares[queries, None] + squares - 2 * states[queries] @ states.T
    distance[episode[queries, None] == episode] = np.inf
    nearest = distance.argmin(axis=1)
    found = np.isfinite(distance[np.arange(_QUERIES), nearest])
    if not found.any():
        return None
    left = np.square(actions[queries] - actions[nearest])[found].mean(axis=0) / 2
    return Explained(float(1.0 - left.sum() / variance.sum()), float(np.sqrt(left.mean())), int(found.sum()))


def duplicated_rows(inspection: Inspection) -> Iterator[Finding]:
    """Transitions that are in the set more than once."""
    seen, copies = np.unique(_hashes(inspection), return_counts=True)
    total = int(copies.sum())
    share = 1.0 - len(seen) / max(total, 1)
    if share > _DUPLICATED:
        some = "" if total == len(inspection.data) else " looked at"
        yield Finding(
            "warning",
            "duplicated-rows",
            "Many transitions are in the data more than once.",
            f"{total - len(seen):,} of {counted(total, 'transition')}{some} ({percent(share)}) repeat another one to "
            f"the bit; the most frequent is there {copies.max():,} times.",
            "Natural in a small world of few states and actions. Otherwise a log was joined twice; remove the copies.",
        )


def _hashes(inspection: Inspection) -> Any:
    """A number for each transition, equal where all of it is equal; of a large set, those of a random part of it.

    The part is chosen by the number itself, so that copies stay together.
    """
    data = inspection.data
    fields = (data.observations, data.actions, data.rewards[:, None], data.next_observations)
    width, part = sum(field.shape[1] for field in fields), np.uint64(-(-len(data) // _HASHED))
    kept = []
    for piece in inspection.pieces(width):
        numbers = hashes(*(field[piece] for field in fields))
        kept.append(numbers[(numbers >> np.uint64(32)) % part == 0])
    return np.concatenate(kept)


def notes(inspection: Inspection) -> Iterator[Finding]:
    """What was done to the data when they were read."""
    for note in inspection.data.meta.notes:
        yield Finding(*Remark.of(note))
