"""What the data let an algorithm learn, and what is known about how they came here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mildly.data.check.inspection import Finding, Inspection, counted, figure, percent
from mildly.data.dataset import normalized_score

_STATES, _QUERIES = 10_000, 1_000
_EXPLAINED = 0.95
_MANY_EPISODES, _ALIKE = 10, 0.05
_HASHED = 2_000_000
_DUPLICATED = 0.1


def return_spread(inspection: Inspection) -> Iterator[Finding]:
    """How much better the best episodes are than the mean, which is what learning can hope to gain."""
    returns = inspection.returns
    if len(returns) < _MANY_EPISODES or inspection.rewards.low[0] == inspection.rewards.high[0]:
        return
    best = np.sort(returns)[-max(1, len(returns) // 10) :].mean()
    mean = returns.mean()
    evidence = f"The best tenth of {len(returns):,} episodes return {figure(best)} on average, all {figure(mean)}"
    scores = normalized_score(np.array([best, mean]), inspection.data.meta)
    if scores is None:
        gain = (best - mean) / max(abs(mean), 1e-12)
    else:
        evidence += f" (normalized score {scores[0]:.1f} against {scores[1]:.1f})"
        gain = (scores[0] - scores[1]) / 100
    if gain <= _ALIKE:
        yield Finding(
            "info",
            "returns-alike",
            "All episodes are about equally good, so imitation will be hard to beat.",
            f"{evidence}.",
            "Compare with `mildly train bc`.",
        )
    else:
        yield Finding(
            "info",
            "returns-differ",
            "Episodes differ in how good they are, so there should be something to learn beyond imitation.",
            f"{evidence}.",
            "A good policy should return at least about what the best tenth does.",
        )


def deterministic_behavior(inspection: Inspection) -> Iterator[Finding]:
    """Whether the same state always saw the same action.

    For each of a thousand states we look up the most similar state of another episode. If actions varied at random
    around a function of the state, the mean of half the squared difference of the two actions would be that variation
    (plus what the function changes in between, so that we never see less than there is). Compared with the variance of
    all actions, it tells what share of their variance the state explains, at least.
    """
    data = inspection.data
    if len(data) < _QUERIES or len(inspection.ends) < 2:
        return
    random = np.random.default_rng(0)
    rows = np.sort(random.choice(len(data), min(_STATES, len(data)), replace=False))
    states, actions = data.observations[rows].astype(np.float64), data.actions[rows].astype(np.float64)
    usable = np.isfinite(states).all(axis=1) & np.isfinite(actions).all(axis=1)
    rows, states, actions = rows[usable], states[usable], actions[usable]
    variance = actions.var(axis=0)
    if len(rows) < _QUERIES or not variance.any():
        return
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
        return
    left = np.square(actions[queries] - actions[nearest])[found].mean(axis=0) / 2
    explained = 1.0 - left.sum() / variance.sum()
    if explained > _EXPLAINED:
        yield Finding(
            "warning",
            "deterministic-behavior",
            "The behavior is nearly deterministic: the data hardly show what other actions would have done.",
            f"The state explains at least {percent(explained)} of the actions' variance; around what it explains they "
            f"vary by {np.sqrt(left.mean()):.2g} (standard deviation, of a range from -1 to 1). Seen in "
            f"{int(found.sum()):,} states, each beside the most similar one of another episode.",
            "Expect no more than imitation (`mildly train bc`), or log some episodes with noise on the actions.",
        )


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
    width = sum(field.shape[1] for field in fields)
    factors = np.random.default_rng(0).integers(1 << 63, size=width, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    part = np.uint64(-(-len(data) // _HASHED))
    kept = []
    for piece in inspection.pieces(width):
        numbers = np.concatenate([field[piece] for field in fields], axis=1).view(np.uint32)
        hashes = (numbers * factors).sum(axis=1, dtype=np.uint64)
        kept.append(hashes[(hashes >> np.uint64(32)) % part == 0])
    return np.concatenate(kept)


def notes(inspection: Inspection) -> Iterator[Finding]:
    """What was done to the data when they were read."""
    for note in inspection.data.meta.notes:
        yield Finding("info", "import", note, "", "")
