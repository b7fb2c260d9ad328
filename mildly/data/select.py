"""Pick whole episodes of a data set."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mildly.data.dataset import FIELDS, Array, Dataset
from mildly.errors import MildlyError


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
    return dataclasses.replace(dataset, **columns, meta=meta, gaps=gaps, origin=None)


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
