"""How good a dynamics model is: errors and calibration of single steps, and how errors grow over many.

All on episodes that the model has not seen. An error is that of the elites' mean prediction. It stands beside that of
saying "nothing changes" (of the reward: "it is as ever", its mean), which a model must be better than.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mildly.data.batches import COLUMNS, Batch
from mildly.data.dataset import Array, Dataset
from mildly.dynamics.ensemble import DynamicsEnsemble
from mildly.dynamics.split import Split, unknown_ends
from mildly.errors import MildlyError

LEVELS = tuple(round(0.1 * i, 1) for i in range(1, 10))
"""Central intervals whose coverage is measured."""
_ROWS, _STARTS = 50_000, 2_000  # looked at, at most
_HORIZONS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


@dataclass(frozen=True)
class ColumnCheck:
    """One predicted number, in its own unit."""

    name: str
    error: float
    """Root mean square."""
    no_change: float
    """The same of predicting no change, or of the reward its mean."""
    coverage: tuple[float, ...]
    """Share of what happened inside the members' central intervals of each level."""


@dataclass(frozen=True)
class Growth:
    """Errors of states after some steps with the logged actions, in standard deviations of the data."""

    steps: int
    error: float
    """Root mean square over columns and starts."""
    median: float
    """Of starts: the root mean square over columns."""
    no_change: float


@dataclass(frozen=True)
class ModelCheck:
    """What a check has found."""

    data: str
    episodes: int
    transitions: int
    columns: tuple[ColumnCheck, ...]
    growth: tuple[Growth, ...]
    ends: int
    """Terminal transitions in the log."""
    ends_told: int
    """Of these, how many the model ends as well."""
    false_ends: int
    """Transitions that the model ends and the log does not."""

    def to_json(self) -> dict[str, Any]:
        """As a plain dictionary."""
        return {"levels": LEVELS, **dataclasses.asdict(self)}


def check_model(
    model: DynamicsEnsemble, data: Dataset, *, horizon: int = 50, generator: torch.Generator | None = None
) -> ModelCheck:
    """Compare a model with what happened in episodes that it has not seen.

    Args:
        model: a fitted model.
        data: the set it was fitted on, of which its test episodes are taken, or another one, of which all are.
        horizon: the longest rollouts, in steps; episodes may allow less.
        generator: decides which rows and starts of large data are looked at.
    """
    if (data.observation_size, data.action_size) != model.sizes:
        raise MildlyError(
            f"'{data.meta.name}' has {data.observation_size} observations and {data.action_size} actions, the model "
            f"{model.sizes[0]} and {model.sizes[1]}."
        )
    episodes = unseen_episodes(model, data)
    segments = [s for s in data.segments() if any(e.start <= s.start < e.stop for e in episodes)]
    rows = np.concatenate([np.arange(segment.start, segment.stop) for segment in segments])
    random = generator or torch.Generator().manual_seed(0)
    looked = _some(rows, _ROWS, random)
    batch = Batch(**{name: _rows(getattr(data, name), looked) for name in COLUMNS})
    unknown = unknown_ends(data)
    told = model.terminated(batch.observations, batch.actions, batch.next_observations, random)
    return ModelCheck(
        data=data.meta.name,
        episodes=len(episodes),
        transitions=len(rows),
        columns=tuple(_one_step(model, data, batch, torch.from_numpy(np.isin(looked, unknown)))),
        growth=tuple(_growths(model, data, _known(segments, unknown), horizon, random)),
        ends=int(batch.terminated.sum()),
        ends_told=int((told & batch.terminated).sum()),
        false_ends=int((told & ~batch.terminated).sum()),
    )


def unseen_episodes(model: DynamicsEnsemble, data: Dataset) -> list[slice]:
    """The test episodes of the model's own data, or all of other data."""
    if data.meta.fingerprint != model.meta.fingerprint:
        return data.episodes()
    test = Split.of(data, model.config.test_episodes).test
    if not test:
        raise MildlyError(
            f"the model has seen all episodes of '{data.meta.name}'. Fit one with --test-episodes 0.05 (for mopo "
            "--dynamics.test-episodes), or check it on other data with --dataset."
        )
    return test


@torch.no_grad()
def _one_step(model: DynamicsEnsemble, data: Dataset, batch: Batch, unknown: Tensor) -> list[ColumnCheck]:
    """Errors and coverage; of rows whose next observation is unknown, those of the reward."""
    means, stds = (part[model.elites] for part in model.predict(batch.observations, batch.actions))
    rewards = batch.rewards.unsqueeze(-1)
    happened = torch.cat([batch.next_observations.masked_fill(unknown.unsqueeze(-1), math.nan), rewards], dim=-1)
    naive = torch.cat([batch.observations, rewards.mean().expand_as(rewards)], dim=-1)
    error, no_change = (_rms(guess - happened, 0) for guess in (means.mean(dim=0), naive))
    away = (happened - means).abs() / stds
    among = [torch.where(away.isnan(), away, (away <= _quantile(level)).float()) for level in LEVELS]
    inside = torch.stack([each.nanmean(dim=(0, 1)) for each in among])  # (levels, columns)
    names = [*(data.column_name(i) for i in range(data.observation_size)), "reward"]
    rows = zip(names, error.tolist(), no_change.tolist(), inside.T.tolist(), strict=True)
    return [ColumnCheck(name, own, naive_error, tuple(coverage)) for name, own, naive_error, coverage in rows]


def _known(segments: Sequence[slice], unknown: Array) -> list[slice]:
    """Segments without a last row whose next observation is unknown."""
    ends = set(unknown.tolist())
    return [s for s in (slice(s.start, s.stop - (s.stop - 1 in ends)) for s in segments) if s.start < s.stop]


@torch.no_grad()
def _growths(
    model: DynamicsEnsemble, data: Dataset, segments: Sequence[slice], horizon: int, random: torch.Generator
) -> list[Growth]:
    """Roll the elites' mean forward with logged actions, from starts that are followed by enough of them."""
    horizon = min(horizon, max((segment.stop - segment.start for segment in segments), default=0))
    if not horizon:
        return []
    long = [segment for segment in segments if segment.stop - segment.start >= horizon]
    possible = np.concatenate([np.arange(segment.start, segment.stop - horizon + 1) for segment in long])
    starts = _some(possible, _STARTS, random)
    scale = model.networks.gaussians.input_std[: data.observation_size]
    first = states = _rows(data.observations, starts)
    found = []
    for step in range(horizon):
        means = model.predict(states, _rows(data.actions, starts + step)).means[model.elites]
        states = means.mean(dim=0)[:, :-1]
        if step + 1 in _HORIZONS or step + 1 == horizon:
            happened = _rows(data.next_observations, starts + step)
            errors, still = ((guess - happened) / scale for guess in (states, first))
            median = float(_rms(errors, 1).median())
            found.append(Growth(step + 1, float(_rms(errors)), median, float(_rms(still))))
    return found


def _rms(errors: Tensor, dim: int | None = None) -> Tensor:
    squares = errors.double().square()
    return (squares.mean() if dim is None else squares.nanmean(dim=dim)).sqrt()


def _quantile(level: float) -> float:
    """How many standard deviations a central interval of a Gaussian reaches."""
    return math.sqrt(2) * float(torch.erfinv(torch.tensor(level, dtype=torch.float64)))


def _some(rows: Array, most: int, random: torch.Generator) -> Array:
    """At most so many of the rows, in order."""
    if len(rows) <= most:
        return rows
    chosen: Array = np.sort(rows[torch.randperm(len(rows), generator=random)[:most].numpy()])
    return chosen


def _rows(column: Array, rows: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(column[rows]))
