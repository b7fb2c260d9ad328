"""The actors, policies as networks, and the distributions of the actions that they take."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from mildly.errors import MildlyError
from mildly.networks import mlp, normal, with_dropout

_LOG_2PI = math.log(2 * math.pi)
BOUND_MARGIN = 0.05
"""How near a bound actions are cloned by a squashed policy, which reaches +-1 at infinity alone: actions that were
clipped there would outweigh all others in its likelihood."""


class RSample(NamedTuple):
    """Actions drawn from a policy, differentiable in its parameters, with their log-probabilities."""

    actions: Tensor
    log_prob: Tensor


class TanhGaussian(NamedTuple):
    """The distribution of tanh(z), z ~ N(mean, exp(log_std)^2), independently in each dimension."""

    mean: Tensor
    log_std: Tensor

    def rsample(self, generator: torch.Generator | None) -> RSample:
        """One action per state, differentiable in the parameters, with its log-probability."""
        noise = normal(self.mean.shape, self.mean, generator)
        z = self.mean + self.log_std.exp() * noise
        return RSample(torch.tanh(z), self._log_prob(z, noise))

    def sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        """N actions per state, (batch, n, action), without gradients."""
        with torch.no_grad():
            noise = normal((self.mean.shape[0], n, self.mean.shape[1]), self.mean, generator)
            return self.before_tanh(noise).tanh_()

    def before_tanh(self, noise: Tensor) -> Tensor:
        """mean + std * noise, (batch, n, a), for given noise, (batch or 1, n, a): draws that tanh has yet to squash."""
        return torch.addcmul(self.mean.unsqueeze(1), self.log_std.exp().unsqueeze(1), noise)

    def log_prob(self, actions: Tensor, margin: float = 1e-6) -> Tensor:
        """Log-density of given actions in [-1, 1]; 1 + a and 1 - a are floored at a margin, so that +-1 is finite."""
        z = 0.5 * (torch.log((1 + actions).clamp_min(margin)) - torch.log((1 - actions).clamp_min(margin)))
        return self._log_prob(z, (z - self.mean) * torch.exp(-self.log_std))

    def _log_prob(self, z: Tensor, noise: Tensor) -> Tensor:
        """Sum over dimensions of log N(z) - log(1 - tanh(z)^2 + 1e-6).

        1 - tanh(z)^2 is computed as 4 e / (1 + e)^2 with e = exp(-2|z|), which keeps its digits where
        tanh(z) rounds to one.
        """
        e = torch.exp(-2 * z.abs())
        squash = torch.log(4 * e / (1 + e).square() + 1e-6)
        return (-0.5 * noise.square() - self.log_std - 0.5 * _LOG_2PI - squash).sum(-1)


class Gaussian(NamedTuple):
    """N(mean, exp(log_std)^2), independently in each dimension. Nothing squashes it: a draw may leave [-1, 1]."""

    mean: Tensor
    log_std: Tensor

    def sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        """N actions per state, (batch, n, action), without gradients."""
        with torch.no_grad():
            noise = normal((self.mean.shape[0], n, self.mean.shape[1]), self.mean, generator)
            std = self.log_std.exp().expand_as(self.mean)  # one for all observations, or one each
            return torch.addcmul(self.mean.unsqueeze(1), std.unsqueeze(1), noise)

    def act(self, deterministic: bool, generator: torch.Generator | None) -> Tensor:
        """One action per state to take: the mean, or a draw; both end at the bounds."""
        return (self.mean if deterministic else self.sample(1, generator)[:, 0]).clamp(-1, 1)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-density of given actions."""
        noise = (actions - self.mean) * torch.exp(-self.log_std)
        return (-0.5 * noise.square() - self.log_std - 0.5 * _LOG_2PI).sum(-1)


class Memory(ABC):
    """What an actor remembers of n episodes side by side. `rows` are the numbers of those that are meant."""

    @abstractmethod
    def act(
        self, observations: Tensor, rows: Sequence[int], deterministic: bool, generator: torch.Generator | None
    ) -> Tensor:
        """Actions to take, (rows, a), for the newest observations of these episodes, (rows, o)."""

    @abstractmethod
    def observe(self, rewards: Tensor, rows: Sequence[int]) -> None:
        """The rewards that followed."""

    @abstractmethod
    def reset(self, rows: Sequence[int]) -> None:
        """These episodes begin anew."""


class Actor(nn.Module):
    """A policy's network. `kind` and `spec` are what a saved policy needs to build it again."""

    kind: ClassVar[str]

    def __init__(
        self, observation_size: int, action_size: int, hidden_dims: Sequence[int] | None = None, **more: Any
    ) -> None:
        super().__init__()
        sizes: dict[str, Any] = {"observation_size": observation_size, "action_size": action_size}
        sizes |= {} if hidden_dims is None else {"hidden_dims": list(hidden_dims)}
        self.spec: dict[str, Any] = {**sizes, **more}

    def act(self, observations: Tensor, deterministic: bool, generator: torch.Generator | None = None) -> Tensor:
        """Actions to take, (batch, a): the policy's best guess, or a draw. Not for actors with a memory."""
        raise MildlyError("this policy remembers its episode, so it cannot act on an observation alone: start() it.")

    def start(self, episodes: int, **conditions: float) -> Memory | None:
        """What the actor remembers of episodes that begin now; None, as here, if it acts on the observation alone.

        Conditions, such as a target return, are the actor's own.
        """
        if conditions:
            raise MildlyError(f"this policy knows no {', '.join(conditions)}.")
        return None


class TanhGaussianActor(Actor):
    """pi(.|s): a network gives mean and log standard deviation of a Gaussian, squashed into [-1, 1] by tanh."""

    kind = "tanh-gaussian"

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden_dims: Sequence[int],
        log_std_min: float = -20.0,
        log_std_max: float = 2.0,
    ) -> None:
        super().__init__(observation_size, action_size, hidden_dims, log_std_min=log_std_min, log_std_max=log_std_max)
        self.log_std_min, self.log_std_max = log_std_min, log_std_max
        self.net = mlp((observation_size, *hidden_dims, 2 * action_size))

    def forward(
        self, observations: Tensor, dropout: float = 0.0, generator: torch.Generator | None = None
    ) -> TanhGaussian:
        """The action distribution in each state; with `dropout`, that share of the hidden units is dropped."""
        mean, log_std = with_dropout(self.net, observations, dropout, generator).chunk(2, dim=-1)
        return TanhGaussian(mean, log_std.clamp(self.log_std_min, self.log_std_max))

    def act(self, observations: Tensor, deterministic: bool, generator: torch.Generator | None = None) -> Tensor:
        """Actions to take: tanh(mean), or a draw."""
        distribution = self(observations)
        return torch.tanh(distribution.mean) if deterministic else distribution.sample(1, generator)[:, 0]


class GaussianActor(Actor):
    """pi(.|s): a Gaussian around tanh of a network, with one log standard deviation per dimension for all observations.

    That deviation is a parameter, held within its bounds by clipping (`clip`), or by the path that a sigmoid takes
    from the lower to the upper one (`sigmoid`).
    """

    kind = "gaussian"

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden_dims: Sequence[int],
        log_std_min: float = -5.0,
        log_std_max: float = 2.0,
        log_std_bound: str = "clip",
    ) -> None:
        if log_std_bound not in ("clip", "sigmoid"):
            raise ValueError(f"log_std_bound is {log_std_bound!r}, expected 'clip' or 'sigmoid'")
        bounds = {"log_std_min": log_std_min, "log_std_max": log_std_max, "log_std_bound": log_std_bound}
        super().__init__(observation_size, action_size, hidden_dims, **bounds)
        self.log_std_min, self.log_std_max, self.log_std_bound = log_std_min, log_std_max, log_std_bound
        self.net = mlp((observation_size, *hidden_dims, action_size))
        self.spread = nn.Parameter(torch.zeros(action_size))

    @property
    def log_std(self) -> Tensor:
        """The log standard deviation of each dimension, within its bounds."""
        if self.log_std_bound == "clip":
            return self.spread.clamp(self.log_std_min, self.log_std_max)
        return self.log_std_min + (self.log_std_max - self.log_std_min) * torch.sigmoid(self.spread)

    def forward(self, observations: Tensor, dropout: float = 0.0, generator: torch.Generator | None = None) -> Gaussian:
        """The action distribution in each state; with `dropout`, that share of the hidden units is dropped."""
        return Gaussian(torch.tanh(with_dropout(self.net, observations, dropout, generator)), self.log_std)

    def act(self, observations: Tensor, deterministic: bool, generator: torch.Generator | None = None) -> Tensor:
        """Actions to take: the mean, or a draw, which ends at the bounds."""
        distribution: Gaussian = self(observations)
        return distribution.act(deterministic, generator)


class DeterministicActor(Actor):
    """pi(s): one action per state, squashed into [-1, 1] by tanh."""

    kind = "deterministic"

    def __init__(self, observation_size: int, action_size: int, hidden_dims: Sequence[int]) -> None:
        super().__init__(observation_size, action_size, hidden_dims)
        self.net = mlp((observation_size, *hidden_dims, action_size))

    def forward(self, observations: Tensor) -> Tensor:
        """The action in each state."""
        return torch.tanh(self.net(observations))

    def act(self, observations: Tensor, deterministic: bool, generator: torch.Generator | None = None) -> Tensor:
        """The action in each state, whether a draw is asked for or not."""
        actions: Tensor = self(observations)
        return actions


class SoftGaussianActor(Actor):
    """pi(.|s): a Gaussian that is not squashed, whose bounds of the log standard deviation are soft and learned too."""

    kind = "soft-gaussian"

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden_dims: Sequence[int],
        log_std_min: float = -10.0,
        log_std_max: float = 1.0,
    ) -> None:
        super().__init__(observation_size, action_size, hidden_dims, log_std_min=log_std_min, log_std_max=log_std_max)
        self.log_std_min = nn.Parameter(torch.full((action_size,), float(log_std_min)))
        self.log_std_max = nn.Parameter(torch.full((action_size,), float(log_std_max)))
        self.net = mlp((observation_size, *hidden_dims, 2 * action_size), slope=0.1)

    def forward(self, observations: Tensor) -> Gaussian:
        """The action distribution in each state."""
        mean, log_std = self.net(observations).chunk(2, dim=-1)
        log_std = self.log_std_max - nn.functional.softplus(self.log_std_max - log_std)
        return Gaussian(mean, self.log_std_min + nn.functional.softplus(log_std - self.log_std_min))

    def act(self, observations: Tensor, deterministic: bool, generator: torch.Generator | None = None) -> Tensor:
        """Actions to take: the mean, or a draw, which end at the bounds."""
        distribution: Gaussian = self(observations)
        return distribution.act(deterministic, generator)
