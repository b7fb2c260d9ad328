"""The networks: a plain MLP, an ensemble of critics evaluated as one, and the actors."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

_LOG_2PI = math.log(2 * math.pi)


def mlp(sizes: Sequence[int], slope: float = 0.0) -> nn.Sequential:
    """Linear layers of the given sizes with ReLU (leaky, with a slope) between them; the last layer is linear."""
    layers: list[nn.Module] = []
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        if i:
            layers.append(nn.LeakyReLU(slope, inplace=True) if slope else nn.ReLU(inplace=True))
        layers.append(nn.Linear(inputs, outputs))
    return nn.Sequential(*layers)


def normal(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers from an explicit generator, so that runs can be repeated to the bit."""
    return torch.randn(tuple(shape), generator=generator, device=like.device, dtype=like.dtype)


class Critics(nn.Module):
    """An ensemble of Q-functions Q_1 ... Q_K, whose weights are stacked so that one product serves them all.

    Called with states (S, o) and actions (S, a) it gives values (K, S); with n actions a state, (S, n, a), it
    gives (K, S, n). Actions with a further leading dimension of K are one set for each critic.

    With `layer_norm` every hidden layer's output is brought to zero mean and unit variance before its ReLU, which
    keeps the values of actions far from the data from growing with their distance. With a `ceiling` no value
    exceeds it.
    """

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden: Sequence[int],
        ensemble: int = 2,
        layer_norm: bool = False,
        ceiling: float | None = None,
    ) -> None:
        super().__init__()
        self.layer_norm, self.ceiling = layer_norm, ceiling
        sizes = (observation_size + action_size, *hidden, 1)
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for inputs, outputs in pairwise(sizes):
            bound = 1 / math.sqrt(inputs)  # nn.Linear's own initial distribution, for each member
            self.weights.append(nn.Parameter(torch.empty(ensemble, inputs, outputs).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.empty(ensemble, 1, outputs).uniform_(-bound, bound)))

    @property
    def ensemble(self) -> int:
        """K, the number of critics."""
        return int(self.weights[0].shape[0])

    def forward(self, states: Tensor, actions: Tensor, freeze: bool = False) -> Tensor:
        """Values of every critic. With `freeze` gradients reach the actions but not the weights."""
        many = actions.ndim > 2
        if many:
            states = states.unsqueeze(-2).expand(*actions.shape[:-1], states.shape[-1])
        x = torch.cat([states, actions], dim=-1)
        if actions.ndim < 4:
            x = x.expand(self.ensemble, *x.shape)
        x = x.reshape(self.ensemble, -1, x.shape[-1])  # (critics, states * n, o + a)
        last = len(self.weights) - 1
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if freeze:
                weight, bias = weight.detach(), bias.detach()
            x = torch.baddbmm(bias, x, weight)
            if i < last:
                if self.layer_norm:
                    x = nn.functional.layer_norm(x, x.shape[-1:])
                x = x.relu_()
        if self.ceiling is not None:
            x = x.clamp(max=self.ceiling)
        shape = actions.shape[-3:-1] if many else actions.shape[:1]
        return x.view(self.ensemble, *shape)


def orthogonal_(network: nn.Module) -> None:
    """Initialise every layer with an orthogonal matrix times sqrt 2, and offsets of 0, in place."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.orthogonal_(module.weight, math.sqrt(2))
            nn.init.zeros_(module.bias)
        elif isinstance(module, Critics):
            for weight, bias in zip(module.weights, module.biases, strict=True):
                for member in weight.data:
                    nn.init.orthogonal_(member, math.sqrt(2))
                nn.init.zeros_(bias)


def polyak_update(targets: nn.Module, online: nn.Module, tau: float) -> None:
    """targets <- tau * online + (1 - tau) * targets, in one fused call."""
    with torch.no_grad():
        torch._foreach_lerp_(list(targets.parameters()), list(online.parameters()), tau)


class Draw(NamedTuple):
    """Actions drawn from a policy with their log-probabilities."""

    actions: Tensor
    log_prob: Tensor


class TanhGaussian(NamedTuple):
    """The distribution of tanh(z), z ~ N(mean, exp(log_std)^2), independently in each dimension."""

    mean: Tensor
    log_std: Tensor

    def draw(self, generator: torch.Generator | None) -> Draw:
        """One action a state, differentiable in the parameters, with its log-probability."""
        noise = normal(self.mean.shape, self.mean, generator)
        z = self.mean + self.log_std.exp() * noise
        return Draw(torch.tanh(z), self._log_prob(z, noise))

    def sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        """N actions a state, (batch, n, action), without gradients."""
        with torch.no_grad():
            noise = normal((self.mean.shape[0], n, self.mean.shape[1]), self.mean, generator)
            return torch.addcmul(self.mean.unsqueeze(1), self.log_std.exp().unsqueeze(1), noise).tanh_()

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-density of given actions in [-1, 1]; 1 + a and 1 - a are floored at 1e-6, so that +-1 is finite."""
        z = 0.5 * (torch.log((1 + actions).clamp_min(1e-6)) - torch.log((1 - actions).clamp_min(1e-6)))
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
        """N actions a state, (batch, n, action), without gradients."""
        with torch.no_grad():
            noise = normal((self.mean.shape[0], n, self.mean.shape[1]), self.mean, generator)
            return torch.addcmul(self.mean.unsqueeze(1), self.log_std.exp(), noise)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-density of given actions."""
        noise = (actions - self.mean) * torch.exp(-self.log_std)
        return (-0.5 * noise.square() - self.log_std - 0.5 * _LOG_2PI).sum(-1)


class Actor(nn.Module):
    """A policy's network. `kind` and `spec` are what a saved policy needs to build it again."""

    kind: ClassVar[str]

    def __init__(self, observation_size: int, action_size: int, hidden: Sequence[int], **more: Any) -> None:
        super().__init__()
        sizes = {"observation_size": observation_size, "action_size": action_size, "hidden": list(hidden)}
        self.spec: dict[str, Any] = {**sizes, **more}

    @abstractmethod
    def act(self, states: Tensor, deterministic: bool, generator: torch.Generator | None = None) -> Tensor:
        """Actions to take, (batch, a): the policy's best guess, or a draw."""


class TanhGaussianActor(Actor):
    """pi(.|s): a network gives mean and log standard deviation of a Gaussian, squashed into [-1, 1] by tanh."""

    kind = "tanh-gaussian"

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden: Sequence[int],
        log_std_min: float = -20.0,
        log_std_max: float = 2.0,
    ) -> None:
        super().__init__(observation_size, action_size, hidden, log_std_min=log_std_min, log_std_max=log_std_max)
        self.log_std_min, self.log_std_max = log_std_min, log_std_max
        self.net = mlp((observation_size, *hidden, 2 * action_size))

    def forward(self, states: Tensor) -> TanhGaussian:
        """The action distribution in each state."""
        mean, log_std = self.net(states).chunk(2, dim=-1)
        return TanhGaussian(mean, log_std.clamp(self.log_std_min, self.log_std_max))

    def act(self, states: Tensor, deterministic: bool, generator: torch.Generator | None = None) -> Tensor:
        """Actions to take: tanh(mean), or a draw."""
        distribution = self(states)
        return torch.tanh(distribution.mean) if deterministic else distribution.sample(1, generator)[:, 0]


class GaussianActor(Actor):
    """pi(.|s): a Gaussian around tanh of a network, with one log standard deviation a dimension for all states.

    That deviation is a parameter, held within its bounds by clipping (`clip`), or by the path that a sigmoid takes
    from the lower to the upper one (`sigmoid`).
    """

    kind = "gaussian"

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden: Sequence[int],
        log_std_min: float = -5.0,
        log_std_max: float = 2.0,
        log_std_bound: str = "clip",
    ) -> None:
        if log_std_bound not in ("clip", "sigmoid"):
            raise ValueError(f"log_std_bound is {log_std_bound!r}, expected 'clip' or 'sigmoid'")
        bounds = {"log_std_min": log_std_min, "log_std_max": log_std_max, "log_std_bound": log_std_bound}
        super().__init__(observation_size, action_size, hidden, **bounds)
        self.log_std_min, self.log_std_max, self.log_std_bound = log_std_min, log_std_max, log_std_bound
        self.net = mlp((observation_size, *hidden, action_size))
        self.spread = nn.Parameter(torch.zeros(action_size))

    @property
    def log_std(self) -> Tensor:
        """The log standard deviation of each dimension, within its bounds."""
        if self.log_std_bound == "clip":
            return self.spread.clamp(self.log_std_min, self.log_std_max)
        return self.log_std_min + (self.log_std_max - self.log_std_min) * torch.sigmoid(self.spread)

    def forward(self, states: Tensor, dropout: float = 0.0, generator: torch.Generator | None = None) -> Gaussian:
        """The action distribution in each state; with `dropout`, that share of the hidden units is left out."""
        x = states
        for layer in self.net:
            x = layer(x)
            if dropout and isinstance(layer, nn.ReLU):
                x = x * torch.empty_like(x).bernoulli_(1 - dropout, generator=generator) / (1 - dropout)
        return Gaussian(torch.tanh(x), self.log_std)

    def act(self, states: Tensor, deterministic: bool, generator: torch.Generator | None = None) -> Tensor:
        """Actions to take: the mean, or a draw, which ends at the bounds."""
        distribution: Gaussian = self(states)
        return distribution.mean if deterministic else distribution.sample(1, generator)[:, 0].clamp(-1, 1)


class DeterministicActor(Actor):
    """pi(s): one action a state, squashed into [-1, 1] by tanh."""

    kind = "deterministic"

    def __init__(self, observation_size: int, action_size: int, hidden: Sequence[int]) -> None:
        super().__init__(observation_size, action_size, hidden)
        self.net = mlp((observation_size, *hidden, action_size))

    def forward(self, states: Tensor) -> Tensor:
        """The action in each state."""
        return torch.tanh(self.net(states))

    def act(self, states: Tensor, deterministic: bool, generator: torch.Generator | None = None) -> Tensor:
        """The action in each state, whether a draw is asked for or not."""
        actions: Tensor = self(states)
        return actions


class SoftGaussianActor(Actor):
    """pi(.|s): a Gaussian that is not squashed, whose bounds of the log standard deviation are soft and learnt too."""

    kind = "soft-gaussian"

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden: Sequence[int],
        log_std_min: float = -10.0,
        log_std_max: float = 1.0,
    ) -> None:
        super().__init__(observation_size, action_size, hidden, log_std_min=log_std_min, log_std_max=log_std_max)
        self.log_std_min = nn.Parameter(torch.full((action_size,), float(log_std_min)))
        self.log_std_max = nn.Parameter(torch.full((action_size,), float(log_std_max)))
        self.net = mlp((observation_size, *hidden, 2 * action_size), slope=0.1)

    def forward(self, states: Tensor) -> Gaussian:
        """The action distribution in each state."""
        mean, log_std = self.net(states).chunk(2, dim=-1)
        log_std = self.log_std_max - nn.functional.softplus(self.log_std_max - log_std)
        return Gaussian(mean, self.log_std_min + nn.functional.softplus(log_std - self.log_std_min))

    def act(self, states: Tensor, deterministic: bool, generator: torch.Generator | None = None) -> Tensor:
        """Actions to take: the mean, or a draw, which end at the bounds."""
        actions, log_std = self(states)
        if not deterministic:
            actions = actions + log_std.exp() * normal(actions.shape, actions, generator)
        return torch.clamp(actions, -1, 1)


ACTORS: dict[str, type[Actor]] = {
    actor.kind: actor for actor in (TanhGaussianActor, GaussianActor, DeterministicActor, SoftGaussianActor)
}
"""The kinds of actor a saved policy can hold."""
