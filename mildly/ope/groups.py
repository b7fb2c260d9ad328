"""Groups of a log's episodes that may have had policies of their own: by time, by what they do, or by a column."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mildly.data import formats
from mildly.data.dataset import Array, Dataset
from mildly.data.options import ImportOptions
from mildly.data.registry import find, is_raw_log, load_dataset
from mildly.errors import MildlyError

LEAST = 3
"""Groups without which nothing can be ranked."""
_EPISODES = 2  # of a group at least
_ROUNDS, _STARTS = 30, 10  # of the search for clusters
_MOST = 20  # values of a column that are groups


class Group(NamedTuple):
    """Some episodes, by their numbers."""

    name: str
    episodes: npt.NDArray[np.int64]


def group(data: Dataset, by: str, count: int, seed: int = 0, labels: Array | None = None) -> list[Group]:
    """The episodes in groups.

    Args:
        data: the log.
        by: `time`, `cluster`, or what the labels are called.
        count: how many groups of time or clusters.
        seed: of the search for clusters.
        labels: a value for each episode, where groups are those of equal ones; a number, or a text that may be empty.
    """
    if count < LEAST:
        raise MildlyError(f"--groups must be at least {LEAST}, so that something can be ranked; got {count}.")
    episodes = len(data.episode_ends())
    if labels is not None:
        values = [value for value in np.unique(labels).tolist() if value != ""]
        if len(values) > _MOST:
            raise MildlyError(f"'{by}' has {len(values)} values, too many for groups (at most {_MOST}).")
        words = [value if isinstance(value, str) else f"{value:g}" for value in values]
        made = [Group(f"{by} {word}", np.flatnonzero(labels == v)) for word, v in zip(words, values, strict=True)]
    elif by == "time":
        parts = np.array_split(np.arange(episodes), count)
        made = [Group(f"time {i + 1}", part) for i, part in enumerate(parts)]
    elif by != "cluster":
        raise MildlyError(f"groups by '{by}' need labels, a value for each episode. Without them: time or cluster.")
    else:
        nearest = clusters(habits(data), count, np.random.default_rng(seed))
        made = [Group(f"cluster {i + 1}", np.flatnonzero(nearest == i)) for i in range(count)]
    found = [each for each in made if len(each.episodes) >= _EPISODES]
    if len(found) < LEAST:
        raise MildlyError(
            f"'{data.meta.name}' has {episodes:,} episodes, which make {len(found)} groups of two or more by {by}; "
            f"grading needs {LEAST}. Group them otherwise (--by), or use a longer log."
        )
    return found


def labels_of(
    source: str | None, reading: ImportOptions, by: str, data: Dataset, data_dir: str | None = None
) -> Array | None:
    """A value for each episode, where they are grouped by a column; None where by time or by what they do."""
    return None if by in ("time", "cluster") else column_labels(source, reading, by, data, data_dir)


def column_labels(
    source: str | None, reading: ImportOptions, name: str, data: Dataset, data_dir: str | None = None
) -> Array:
    """The value that a column has at the start of each episode: one of the observation, or any of a raw log.

    In a table it may be a text, such as an operator's name.
    A set that is no raw log, or is in memory alone (`source` is None), has no other columns than its observations'.
    """
    starts, known = [episode.start for episode in data.episodes()], data.meta.observation_names
    if name in known:
        return np.asarray(data.observations[starts, known.index(name)])
    if source is None or not is_raw_log(source, data_dir):
        *others, last = ("time", "cluster", *known)
        raise MildlyError(
            f"'{data.meta.name}' has no column '{name}' to group by. --by can be {', '.join(others)} or {last}."
        )
    if data.origin is not None:
        texts = formats.texts(find(source, data_dir), name, data.origin.rows(starts))
        if texts is not None:
            return np.array(texts)
    try:
        again = load_dataset(source, dataclasses.replace(reading, obs=name), data_dir=data_dir, verify=False)
    except MildlyError as error:  # which knows the column as one of the observation
        raise MildlyError(f"--by {name}: {error}") from error
    if len(again) != len(data):
        raise MildlyError(f"{source}: '{name}' is missing in some rows, so that it cannot tell groups apart.")
    return np.asarray(again.observations[starts, 0])


def habits(data: Dataset) -> npt.NDArray[np.float64]:
    """What tells one policy's episodes from another's: its mean action, and that beyond what the state explains.

    What an episode earned is not in it. Groups by returns would be of lucky and unlucky episodes, and no policy's.
    """
    observations = np.asarray(data.observations, np.float64)
    actions = np.asarray(data.actions, np.float64)
    inputs = np.concatenate([observations, np.ones((len(data), 1))], axis=1)
    rest = actions - inputs @ np.linalg.lstsq(inputs, actions, rcond=None)[0]
    both = np.concatenate([rest, actions], axis=1)
    table = np.stack([both[episode].mean(axis=0) for episode in data.episodes()])
    return np.asarray((table - table.mean(axis=0)) / np.maximum(table.std(axis=0), 1e-9))


def clusters(points: npt.NDArray[np.float64], count: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """The number of the cluster of each point: the tightest that k-means finds from several starts."""
    found = [_clusters(points, count, random) for _ in range(_STARTS)]
    return min(found, key=lambda each: each[0])[1]


def _clusters(
    points: npt.NDArray[np.float64], count: int, random: np.random.Generator
) -> tuple[float, npt.NDArray[np.int64]]:
    """K-means from centers far apart: the sum of squared distances, and the clusters."""
    centers = points[[random.integers(len(points))]]
    while len(centers) < min(count, len(points)):
        apart = _apart(points, centers).min(axis=1)
        chance = apart / apart.sum() if apart.any() else None
        centers = np.concatenate([centers, points[[random.choice(len(points), p=chance)]]])
    for _ in range(_ROUNDS):
        nearest = _apart(points, centers).argmin(axis=1)
        centers = np.stack(
            [points[nearest == i].mean(axis=0) if (nearest == i).any() else c for i, c in enumerate(centers)]
        )
    apart = _apart(points, centers)
    return float(apart.min(axis=1).sum()), apart.argmin(axis=1)


def _apart(points: npt.NDArray[np.float64], centers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.stack([((points - center) ** 2).sum(axis=1) for center in centers], axis=1)
