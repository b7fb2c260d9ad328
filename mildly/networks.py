"""The networks: a plain MLP and an ensemble of critics evaluated as one, with its loss and its targets."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Self, TypeVar

import torch
from torch import Tensor, nn

from mildly.data.batches import Batch

Module = TypeVar("Module", bound=nn.Module)

ROWS_AT_ONCE = 1024
"""How many rows a processor takes through all layers before the next, so that they stay in its cache."""


def mlp(sizes: Sequence[int], slope: float = 0.0) -> nn.Sequential:
    """Linear layers of the given sizes with ReLU (leaky, with a slope) between them; the last layer is linear."""
    layers: list[nn.Module] = []
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        if i:
            layers.append(nn.LeakyReLU(slope, inplace=True) if slope else nn.ReLU(inplace=True))
        layers.append(nn.Linear(inputs, outputs))
    return nn.Sequential(*layers)


def with_dropout(network: nn.Sequential, x: Tensor, dropout: float, generator: torch.Generator | None) -> Tensor:
    """What an MLP makes of x while that share of its hidden units is dropped, by draws of an explicit generator."""
    for layer in network:
        x = layer(x)
        if dropout and isinstance(layer, nn.ReLU):
            x = x * torch.empty_like(x).bernoulli_(1 - dropout, generator=generator) / (1 - dropout)
    return x


def normal(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers from an explicit generator, so that runs can be repeated to the bit."""
    return torch.randn(tuple(shape), generator=generator, device=like.device, dtype=like.dtype)


class Critics(nn.Module):
    """An ensemble of Q-functions Q_1 ... Q_K, whose weights are stacked so that one product serves them all.

    Called with observations (S, o) and actions (S, a) it gives values (K, S); with n actions per state, (S, n, a), it
    gives (K, S, n). Actions with a further leading dimension of K are one set for each critic.

    With `layer_norm` every hidden layer's output is brought to zero mean and unit variance before its ReLU, which
    keeps the values of actions far from the data from growing with their distance. With a `ceiling` no value
    exceeds it.
    """

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden_dims: Sequence[int],
        ensemble: int = 2,
        layer_norm: bool = False,
        ceiling: float | None = None,
    ) -> None:
        super().__init__()
        self.layer_norm, self.ceiling = layer_norm, ceiling
        sizes = (observation_size + action_size, *hidden_dims, 1)
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

    @property
    def hidden_dims(self) -> list[int]:
        """Widths of the hidden layers."""
        return [int(weight.shape[-1]) for weight in self.weights][:-1]

    def first(self) -> Self:
        """The first critic alone. It shares its weights with this one, and so goes on learning."""
        alone = copy.deepcopy(self)
        tensors = zip((*self.parameters(), *self.buffers()), (*alone.parameters(), *alone.buffers()), strict=True)
        for ours, theirs in tensors:
            theirs.data = ours.data[:1]
        return alone

    def forward(self, observations: Tensor, actions: Tensor, freeze: bool = False) -> Tensor:
        """Values of every critic. With `freeze` gradients reach the actions but not the weights."""
        x, layers = self._inputs(observations, actions), self.layers(freeze)
        at_once = ROWS_AT_ONCE if x.device.type == "cpu" else x.shape[1]
        x = torch.cat([self._through(rows, layers) for rows in torch.split(x, at_once, dim=1)], dim=1)
        if self.ceiling is not None:
            x = x.clamp(max=self.ceiling)
        return x.view(self.ensemble, *self._shape(actions))

    def layers(self, freeze: bool) -> list[tuple[Tensor, Tensor]]:
        """Weights (critics, inputs, outputs) and offsets (critics, 1, outputs) of each layer, as they are applied."""
        pairs = zip(self.weights, self.biases, strict=True)
        return [(w.detach(), b.detach()) if freeze else (w, b) for w, b in pairs]

    def _inputs(self, observations: Tensor, actions: Tensor) -> Tensor:
        """What the first layer takes: (critics, S * n, o + a)."""
        if actions.ndim > 2:
            observations = observations.unsqueeze(-2).expand(*actions.shape[:-1], observations.shape[-1])
        x = torch.cat([observations, actions], dim=-1)
        if actions.ndim < 4:
            x = x.expand(self.ensemble, *x.shape)
        return x.reshape(self.ensemble, -1, x.shape[-1])

    def _shape(self, actions: Tensor) -> torch.Size:
        """The shape of one critic's values: (S,), or (S, n) with n actions per state."""
        return actions.shape[-3:-1] if actions.ndim > 2 else actions.shape[:1]

    def _through(self, x: Tensor, layers: list[tuple[Tensor, Tensor]]) -> Tensor:
        """What the layers make of (critics, rows, o + a): (critics, rows, 1)."""
        *hidden, (weight, bias) = layers
        for inner_weight, inner_bias in hidden:
            x = torch.baddbmm(inner_bias, x, inner_weight)
            if self.layer_norm:
                x = nn.functional.layer_norm(x, x.shape[-1:])
            x = x.relu_()
        values: Tensor = (x * weight.transpose(1, 2)).sum(dim=-1, keepdim=True) + bias  # sooner than a product
        return values


def orthogonal_(network: nn.Module) -> None:
    """Initialize every layer with an orthogonal matrix times sqrt 2, and offsets of 0, in place."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.orthogonal_(module.weight, math.sqrt(2))
            nn.init.zeros_(module.bias)
        elif isinstance(module, Critics):
            for weight, bias in zip(module.weights, module.biases, strict=True):
                for member in weight.data:
                    nn.init.orthogonal_(member, math.sqrt(2))
                nn.init.zeros_(bias)


def td_loss(critics: Critics, batch: Batch, target: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Squared distance of Q_j(s, a) to the target, averaged over the batch and summed over critics."""
    values = critics(batch.observations, batch.actions)  # (critics, batch)
    loss = (values - target).square().mean(dim=-1).sum()
    return loss, {"loss_td": loss.detach(), "q_data": values.detach().mean(), "q_target": target.mean()}


def frozen_copy(network: Module) -> Module:
    """A copy that no gradient reaches: a target network."""
    return copy.deepcopy(network).requires_grad_(False)


def polyak_update(targets: nn.Module, online: nn.Module, tau: float) -> None:
    """targets <- tau * online + (1 - tau) * targets, in one fused call."""
    with torch.no_grad():
        torch._foreach_lerp_(list(targets.parameters()), list(online.parameters()), tau)
