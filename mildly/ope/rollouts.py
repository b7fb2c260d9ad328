"""Rollouts in a learned model: what a policy would earn from the data's starts, if the model were the world.

Each member k of a dynamics ensemble is a world of its own. From a start s_0, with a_t ~ pi(.|s_t),

    s_t+1, r_t ~ N_k(s_t, a_t)          held within the range of the data: the reward's own, the states' a quarter wider
    V_k(s_0)   = sum_t<T gamma^t r_t    T: where the episode ends, by the task's rule or as learned from the data

An episode that does not end is followed to where the discount leaves next to nothing, and goes on as before from there,
which divides its sum by 1 - gamma^T. No time limit ends it, since none ends a value.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mildly.data.dataset import Array, Dataset, blocks
from mildly.dynamics import DynamicsConfig, DynamicsEnsemble
from mildly.networks import normal
from mildly.ope.importance import Floats, horizon
from mildly.ope.judged import Judged
from mildly.state import stream_seed

_MEMBERS = 5
_ROLLOUTS = 200  # of each member, about
_WIDER = 0.25  # of a column's range on both sides
_PATIENCE = 1_000  # steps without an improvement after which a fit ends, or five epochs of large data


class Rollouts(NamedTuple):
    """What a policy earned in each member of a model."""

    episodes: Array
    """The episodes whose starts were rolled out from, by their numbers."""
    values: Floats
    """Discounted returns, (members, those episodes)."""
    left: float
    """Share of the rollouts that left the range of the data's states, and had to be held."""


def model_config(rows: int, hidden_dims: tuple[int, ...], steps: int) -> DynamicsConfig:
    """A model for so many rows: every member is rolled out, and none looks at another to be an elite."""
    fields = DynamicsConfig(hidden_dims=hidden_dims, members=_MEMBERS, elites=_MEMBERS, max_steps=steps)
    patience = max(fields.patience, math.ceil(_PATIENCE * fields.batch_size / rows))
    return DynamicsConfig(**{**vars(fields), "scale_targets": True, "patience": patience})


@torch.no_grad()
def roll_out(model: DynamicsEnsemble, judged: Judged, data: Dataset, gamma: float, seed: int) -> Rollouts:
    """A policy in every member of a model, from the starts of the data's episodes, or of some of very many."""
    device = model.elites.device
    chosen, repeats = _starts(len(data.episode_ends()), seed)
    first = np.array([episode.start for episode in data.episodes()])
    states = torch.tensor(data.observations[first[np.repeat(chosen, repeats)]], device=device).expand(
        model.members, -1, -1
    )
    low, high = _box(data, device)
    lowest, highest = _range(data, "rewards")
    generator = torch.Generator(device=device).manual_seed(stream_seed(seed, "rollouts"))
    total = torch.zeros(states.shape[:2], dtype=torch.float64, device=device)
    going, left = torch.ones_like(total, dtype=torch.bool), torch.zeros_like(total, dtype=torch.bool)
    steps = horizon(gamma)
    for t in range(steps):
        actions = _actions(judged, states, stream_seed(seed, f"rollouts {t}"))
        means, stds = model.predict(states, actions)
        drawn = means + stds * normal(means.shape, means, generator)
        following, rewards = drawn[..., :-1], drawn[..., -1].clamp(float(lowest), float(highest))
        total += gamma**t * (going * rewards)
        left |= going & ((following < low) | (following > high)).any(dim=-1)
        before, done, after = (part.flatten(0, 1) for part in (states, actions, following))
        going &= ~model.terminated(before, done, after, generator).view_as(going)
        if not going.any():
            break
        states = following.clamp(low, high)
    total[going] /= 1 - gamma**steps
    values = total.view(model.members, len(chosen), repeats).mean(dim=-1)
    return Rollouts(chosen, values.cpu().numpy(), float(left.double().mean()))


def _starts(episodes: int, seed: int) -> tuple[Array, int]:
    """Whose starts to take, and how often each: some of many episodes, and few ones several times."""
    random = np.random.default_rng(stream_seed(seed, "rollouts"))
    chosen = np.sort(random.permutation(episodes)[:_ROLLOUTS])
    return chosen, math.ceil(_ROLLOUTS / len(chosen))


def _actions(judged: Judged, states: Tensor, seed: int) -> Tensor:
    """One action in each state, (members, n, a): of a stochastic policy, one of its draws."""
    found = judged.actions(states.flatten(0, 1).cpu().numpy(), seed)  # (members n, draws, a)
    picked = np.random.default_rng(seed).integers(found.shape[1], size=len(found))
    actions = torch.as_tensor(found[np.arange(len(found)), picked], dtype=torch.float32, device=states.device)
    return actions.view(*states.shape[:2], -1)


def _box(data: Dataset, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where rollouts are held, (o,) each."""
    before, after = _range(data, "observations"), _range(data, "next_observations")
    low, high = np.minimum(before[0], after[0]), np.maximum(before[1], after[1])
    wider = _WIDER * (high - low)
    return torch.tensor(low - wider, device=device), torch.tensor(high + wider, device=device)


def _range(data: Dataset, column: str) -> tuple[Array, Array]:
    """The lowest and the highest of a column's numbers."""
    parts = [np.asarray(getattr(data, column)[rows], np.float32) for rows in blocks(len(data))]
    return np.min([part.min(axis=0) for part in parts], axis=0), np.max([part.max(axis=0) for part in parts], axis=0)
