"""The networks of a dynamics model: Gaussians whose variance is learned within soft bounds, all in one product.

Of standardized inputs x = (s, a), each member predicts mean m and log-variance v of the targets y = (s' - s, r):

    v      = v_min + softplus(u - v_min),  u = v_max - softplus(v_max - v_raw);  v_max and v_min are learned
    loss   = sum over members of mean (m - y)^2 exp(-v) + mean v
             + 0.01 (sum v_max - sum v_min) + sum over layers of 1/2 decay ||W||^2
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import silu, softplus

_BOUND_WEIGHT = 0.01
_LARGEST_LOG_VAR, _SMALLEST_LOG_VAR = 0.5, -10.0  # where the bounds start


class GaussianEnsemble(nn.Module):
    """K networks whose weights are stacked. They share the bounds and the scales of inputs and targets."""

    input_mean: Tensor
    input_std: Tensor
    target_mean: Tensor
    target_std: Tensor

    def __init__(self, observation_size: int, action_size: int, hidden_dims: Sequence[int], members: int) -> None:
        super().__init__()
        inputs, outputs = observation_size + action_size, observation_size + 1
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for before, after in pairwise((inputs, *hidden_dims, 2 * outputs)):
            weight = nn.init.trunc_normal_(torch.empty(members, before, after), std=1 / (2 * math.sqrt(before)))
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(torch.zeros(members, 1, after)))
        self.max_log_var = nn.Parameter(torch.full((outputs,), _LARGEST_LOG_VAR))
        self.min_log_var = nn.Parameter(torch.full((outputs,), _SMALLEST_LOG_VAR))
        for name, size in (("input", inputs), ("target", outputs)):
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_std", torch.ones(size))

    @property
    def members(self) -> int:
        """K."""
        return int(self.weights[0].shape[0])

    def inputs(self, observations: Tensor, actions: Tensor) -> Tensor:
        """What the networks see of states and actions."""
        return (torch.cat([observations, actions], dim=-1) - self.input_mean) / self.input_std

    def targets(self, observations: Tensor, next_observations: Tensor, rewards: Tensor) -> Tensor:
        """What the networks are to predict: change of state and reward; NaN where it is unknown."""
        change = torch.cat([next_observations - observations, rewards.unsqueeze(-1)], dim=-1)
        return (change - self.target_mean) / self.target_std

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of the scaled targets, (K, rows, o + 1), of (rows, o + a) or (K, rows, o + a)."""
        x = inputs.expand(self.members, *inputs.shape[-2:])
        *hidden, (weight, bias) = zip(self.weights, self.biases, strict=True)
        for inner_weight, inner_bias in hidden:
            x = silu(torch.baddbmm(inner_bias, x, inner_weight))
        mean, raw = torch.baddbmm(bias, x, weight).chunk(2, dim=-1)
        return mean, self.bounded(raw)

    def bounded(self, raw: Tensor) -> Tensor:
        """The log-variance, softly between its bounds."""
        below = self.max_log_var - softplus(self.max_log_var - raw)
        return self.min_log_var + softplus(below - self.min_log_var)

    def loss(self, inputs: Tensor, targets: Tensor, decays: Sequence[float]) -> tuple[Tensor, Tensor]:
        """What training minimizes, and without gradients the mean squared error; unknown targets add 0 to both."""
        mean, log_var = self(inputs)
        errors = _squares(mean, targets)
        surprise = errors * torch.exp(-log_var) + log_var
        likelihood = torch.where(targets.isnan(), 0, surprise).mean(dim=(1, 2)).sum()
        bounds = _BOUND_WEIGHT * (self.max_log_var.sum() - self.min_log_var.sum())
        pairs = zip(decays, self.weights, strict=True)
        decay = torch.stack([0.5 * weight_decay * weight.square().sum() for weight_decay, weight in pairs]).sum()
        return likelihood + bounds + decay, errors.detach().mean()

    @torch.no_grad()
    def errors(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Each member's mean squared error, (K,); that of unknown targets is 0."""
        return _squares(self(inputs)[0], targets).mean(dim=(1, 2))

    @torch.no_grad()
    def take_over(self, other: GaussianEnsemble, chosen: Tensor) -> None:
        """The weights of the chosen members, (K,) of bool, become the other's; bounds and scales do in any case."""
        for ours, theirs in zip((*self.weights, *self.biases), (*other.weights, *other.biases), strict=True):
            ours.copy_(torch.where(chosen.view(-1, 1, 1), theirs, ours))
        shared = ("max_log_var", "min_log_var", "input_mean", "input_std", "target_mean", "target_std")
        for name in shared:
            getattr(self, name).copy_(getattr(other, name))


def _squares(mean: Tensor, targets: Tensor) -> Tensor:
    """Squared errors, 0 where a target is unknown."""
    return (mean - torch.where(targets.isnan(), mean.detach(), targets)).square()
