"""Pick whole episodes of a data set."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mildly.data.dataset import FIELDS, Array, Dataset
from mildly.errors import MildlyError
from mildly.state import stream_seed


def best_episodes(dataset: Dataset, share: float) -> Dataset:
    """The given share of the episodes (rounded down, but at least one), those with the highest returns, in their order.

    Of equal returns the earlier episode is taken, so that the same data always give the same choice. An episode whose
    return is not known, because rewards are missing, is taken only where there are too few others.
    """
    episodes, returns = dataset.episodes(), dataset.episode_returns()
    count = max(1, int(share * len(episodes) + 1e-9))  # 0.29 of 100 are 29, which 0.29 * 100 falls short of
    if count == len(episodes):
        return dataset
    best = np.sort(np.argsort(-returns, kind="stable")[:count])  # NaN comes last
    rows = sum(episodes[i].stop - episodes[i].start for i in best)
    unknown = int(np.isnan(returns).sum())
    notes = [
        f"Only the {count:,} best of {len(episodes):,} episodes by return, {rows:,} of {len(dataset):,} transitions."
    ]
    notes += [f"The returns of {unknown:,} episodes are not known, since rewards are missing."] if unknown else []
    return pick_episodes(dataset, best, notes)


def held_out(dataset: Dataset, share: float, seed: int) -> list[int]:
    """The numbers of a share of the episodes, drawn at random, to be kept out of a training; none for a share of 0."""
    if not 0 <= share < 1:
        raise MildlyError(f"holdout must be in [0, 1), such as 0.2; got {share}.")
    if not share:
        return []
    episodes = len(dataset.episode_ends())
    if episodes < 2:
        raise MildlyError(
            f"'{dataset.meta.name}' is one single episode, of which nothing can be held out. Say where episodes begin: "
            "--episode COLUMN."
        )
    count = min(max(1, round(share * episodes)), episodes - 1)
    drawn = np.random.default_rng(stream_seed(seed, "holdout")).permutation(episodes)[:count]
    return sorted(drawn.tolist())


def without_episodes(dataset: Dataset, held: Sequence[int]) -> Dataset:
    """The data without some episodes, by their numbers."""
    if not held:
        return dataset
    episodes = len(dataset.episode_ends())
    if not set(held) < set(range(episodes)):
        raise MildlyError(f"{dataset.meta.name}: has {episodes:,} episodes, and not those that were held out.")
    notes = [f"{len(held):,} of {episodes:,} episodes are held out of the training, for 'mildly choose'."]
    return pick_episodes(dataset, np.setdiff1d(np.arange(episodes), held), notes)


def pick_episodes(dataset: Dataset, chosen: npt.NDArray[np.int64], notes: Sequence[str] = ()) -> Dataset:
    """Some episodes, by their numbers in rising order; the notes tell of it."""
    episodes = dataset.episodes()
    meta = dataclasses.replace(dataset.meta, notes=(*dataset.meta.notes, *notes), fingerprint="")
    gaps = None if dataset.gaps is None else dataset.gaps.part(chosen)
    try:
        columns = {name: _pick(getattr(dataset, name), [episodes[i] for i in chosen]) for name in FIELDS}
    except OSError as error:
        where = tempfile.gettempdir()
        raise MildlyError(f"{dataset.meta.name}: its episodes cannot be copied to {where} ({error}).") from error
    picked = dataclasses.replace(dataset, **columns, meta=meta, gaps=gaps, origin=None)
    return picked.examined() if dataset.meta.fingerprint else picked


def _pick(column: Array, episodes: Sequence[slice]) -> Array:
    """The rows of some episodes. Of a mapped column, mapped too: it may be larger than memory."""
    if not isinstance(column, np.memmap):
        return np.concatenate([column[rows] for rows in episodes])
    size = sum(rows.stop - rows.start for rows in episodes)
    with tempfile.TemporaryFile() as file:  # the map keeps it, nameless, for as long as it is used
        for rows in episodes:
            file.write(np.ascontiguousarray(column[rows]).data)
        file.flush()
        return np.memmap(file, dtype=column.dtype, mode="r", shape=(size, *column.shape[1:]))
