"""A policy to be judged, in the units of the data: its actions in given states, and the density of given actions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from mildly.action_space import ActionSpace
from mildly.actors import BOUND_MARGIN, Gaussian, GaussianActor, SoftGaussianActor, TanhGaussian, TanhGaussianActor
from mildly.data.dataset import Array, Dataset
from mildly.errors import MildlyError
from mildly.policy import Policy

_BLOCK = 8192
_DENSE = (TanhGaussianActor, GaussianActor, SoftGaussianActor)


class NoDensity(MildlyError):
    """Weights of actions were asked of a policy that has no density."""


class Judged(Protocol):
    """Anything that can be judged: it acts on the observation alone, in [-1, 1]."""

    def actions(self, observations: Array, seed: int) -> Array:
        """Actions (rows, n, a) for observations (rows, o): n draws of a stochastic policy, 1 of a deterministic one."""
        ...

    def log_prob(self, observations: Array, actions: Array) -> Array:
        """The log density (rows,) of actions (rows, a); raises `NoDensity` where there is none."""
        ...

    @property
    def density(self) -> str:
        """In words, which density `log_prob` is."""
        ...


@dataclass(frozen=True)
class JudgedPolicy:
    """A saved policy as it will act: by its deterministic action, or by draws.

    A deterministic action has no density. Importance weights then use a normal kernel around it, and so judge the
    policy with that much noise.
    """

    policy: Policy
    action_space: ActionSpace | None = None
    """What -1 and +1 mean in the data."""
    stochastic: bool = False
    """Whether it acts by draws."""
    draws: int = 10
    """Draws for an expectation over a stochastic policy's actions."""
    bandwidth: float = 0.1
    """Standard deviation of the kernel, where -1 and +1 are the actions' bounds."""

    @classmethod
    def of(cls, policy: Policy, data: Dataset, name: str, *, stochastic: bool = False) -> JudgedPolicy:
        """A policy that must fit the data; messages call it by its name."""
        sizes = policy.observation_size, int(policy.actor.spec["action_size"])
        for kind, own, there in zip(
            ("observations", "actions"), sizes, (data.observation_size, data.action_size), strict=True
        ):
            if own != there:
                raise MildlyError(
                    f"{name}: takes {kind} of {own} numbers, but those of '{data.meta.name}' have {there}. Judge it on "
                    "data of the task that it was trained for."
                )
        if policy.actor.start(1) is not None:
            raise MildlyError(
                f"{name}: remembers its episode, and cannot be judged by what it does in single states. Run it in an "
                "environment: mildly evaluate."
            )
        return cls(policy, data.meta.action_space or policy.action_space, stochastic)

    def actions(self, observations: Array, seed: int) -> Array:
        """As `Judged`; the draws of a state depend on the seed and on the state's row."""
        n = self.draws if self.stochastic else 1
        generator = torch.Generator(device=self._device).manual_seed(seed)
        found = np.empty((len(observations), n, int(self.policy.actor.spec["action_size"])), np.float32)
        for rows in _parts(len(observations)):
            given = np.asarray(observations[rows])
            for k in range(n):
                acted = self.policy.act(given, not self.stochastic, generator, unseen="ignore")
                found[rows, k] = acted if self.action_space is None else self.action_space.to_unit(acted)
        return np.clip(found, -1, 1, out=found)

    def log_prob(self, observations: Array, actions: Array) -> Array:
        """As `Judged`."""
        if not self.stochastic:
            return normal_log_prob(actions, self.actions(observations, 0)[:, 0], self.bandwidth)
        if not isinstance(self.policy.actor, _DENSE):
            raise NoDensity(
                f"draws of a '{self.policy.actor.kind}' policy have no density that is known. Judge its deterministic "
                "actions, whose weights come from a kernel, or look at fqe."
            )
        parts = [self._log_prob(states, given) for states, given in self._in_own_units(observations, actions)]
        return np.concatenate(parts) + self._log_scale()

    @property
    def density(self) -> str:
        """As `Judged`."""
        return "its own" if self.stochastic else f"a normal kernel of width {self.bandwidth:g} around its action"

    @torch.inference_mode()
    def _log_prob(self, states: Tensor, actions: Tensor) -> Array:
        distribution: TanhGaussian | Gaussian = self.policy.actor(states)
        if isinstance(distribution, TanhGaussian):
            found = distribution.log_prob(actions, margin=BOUND_MARGIN)
        else:
            found = distribution.log_prob(actions)
        return np.asarray(found.cpu().numpy(), np.float64)

    def _in_own_units(self, observations: Array, actions: Array) -> Iterator[tuple[Tensor, Tensor]]:
        """The policy's own normalized states, and actions in its own [-1, 1]."""
        for rows in _parts(len(observations)):
            states = torch.tensor(observations[rows], dtype=torch.float32, device=self._device)
            given = np.asarray(actions[rows])
            if self.action_space is not None and self.policy.action_space is not None:
                given = self.policy.action_space.to_unit(self.action_space.from_unit(given))
            normalizer = self.policy.normalizer
            own = torch.tensor(given, dtype=torch.float32, device=self._device)
            yield states if normalizer is None else normalizer.apply(states), own

    def _log_scale(self) -> float:
        """The log of how much wider the data's bounds are than the policy's: densities in the data's units."""
        ours, theirs = self.action_space, self.policy.action_space
        if ours is None or theirs is None:
            return 0.0
        widths = (np.subtract(space.high, space.low) for space in (ours, theirs))
        return float(np.log(next(widths) / next(widths)).sum())

    @property
    def _device(self) -> torch.device:
        return next(self.policy.actor.parameters()).device


def _parts(rows: int) -> Iterator[slice]:
    """Some states at a time: a policy may look at a hundred candidates in each."""
    for start in range(0, rows, _BLOCK):
        yield slice(start, min(start + _BLOCK, rows))


def normal_log_prob(actions: Array, means: Array, std: float) -> Array:
    """Log density (rows,) of actions (rows, a) under normal distributions of one width in every dimension."""
    distance = (np.asarray(actions, np.float64) - means) / std
    constant = math.log(std) + 0.5 * math.log(2 * math.pi)
    return np.asarray((-0.5 * distance**2 - constant).sum(axis=-1))
