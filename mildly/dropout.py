"""Critics that know how sure they are: dropout that is never switched off, and weights of bounded size (UWAC).

Every hidden unit is dropped with probability p at each evaluation, so that a value is random. Its mean and variance
over many passes are the value and the uncertainty of a pair (s, a) (Gal and Ghahramani 2016). Spectral normalization
divides each weight matrix by its largest singular value, which bounds how fast values change with the action:

    W / sigma,   sigma = u . W v,   v <- W' u / |W' u|,   u <- W v / |W v|       (one such step at each use in training)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from mildly.networks import ROWS_AT_ONCE, Critics

Layer = tuple[Tensor, Tensor]


class Moments(NamedTuple):
    """Of a value over dropout; both (critics, S) or (critics, S, n)."""

    mean: Tensor
    variance: Tensor


class Passes(NamedTuple):
    """How the moments of a value are estimated."""

    number: int = 100
    """Stochastic passes, at least 2."""
    exact_last: bool = False
    """Average over the last hidden layer's dropout in closed form instead of drawing it. Mean and variance have the
    same expectation and less noise, so that fewer passes do."""
    shared: bool = False
    """The same units are dropped for all pairs in a call. Each pair's moments are distributed as before; differences
    between pairs have less noise."""


class DropoutCritics(Critics):
    """Critics with dropout after every hidden layer, always, and spectral normalization of every weight matrix."""

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden_dims: Sequence[int],
        ensemble: int = 2,
        dropout: float = 0.1,
        spectral_norm: bool = True,
    ) -> None:
        super().__init__(observation_size, action_size, hidden_dims, ensemble)
        self.dropout, self.spectral_norm = dropout, spectral_norm
        for i, weight in enumerate(self.weights):  # first guesses of the singular vectors
            for name, size in (("left", weight.shape[1]), ("right", weight.shape[2])):
                self.register_buffer(f"{name}_{i}", normalize(torch.randn(ensemble, size), dim=-1))
        self.power_iteration()

    @torch.no_grad()
    def power_iteration(self) -> None:
        """One step of every matrix's singular vectors towards those of the largest singular value."""
        for i, weight in enumerate(self.weights if self.spectral_norm else ()):
            left, right = self.get_buffer(f"left_{i}"), self.get_buffer(f"right_{i}")
            left.copy_(normalize((weight @ right.unsqueeze(-1)).squeeze(-1), dim=-1))
            right.copy_(normalize((left.unsqueeze(-2) @ weight).squeeze(-2), dim=-1))

    def layers(self, freeze: bool) -> list[tuple[Tensor, Tensor]]:
        """As of other critics, with normalized weights, and divided by the share of units that dropout keeps."""
        made = []
        for i, (weight, bias) in enumerate(super().layers(freeze)):
            scale: float | Tensor = 1.0 if i == 0 else 1 / (1 - self.dropout)  # inputs are not dropped
            if self.spectral_norm:  # clones, since the next iteration writes over them
                left, right = (self.get_buffer(f"{name}_{i}").clone() for name in ("left", "right"))
                scale = scale / (left.unsqueeze(-2) @ weight @ right.unsqueeze(-1))  # (critics, 1, 1)
            made.append((weight * scale, bias))
        return made

    def forward(
        self, observations: Tensor, actions: Tensor, freeze: bool = False, generator: torch.Generator | None = None
    ) -> Tensor:
        """Values of one pass, with units of its own dropped for each pair."""
        first, *others = self.layers(freeze)
        x = self._first(self._inputs(observations, actions), first)
        values = self._outputs(x, others, self._masks(x.shape[1], 1, x, generator))
        return values.view(self.ensemble, *self._shape(actions))

    def moments(
        self,
        observations: Tensor,
        actions: Tensor,
        passes: Passes,
        generator: torch.Generator | None,
        freeze: bool = False,
    ) -> Moments:
        """Mean and unbiased variance of every critic's values over several passes.

        The first layer's outputs are the same in all passes, and computed once. Then some pairs at a time go through
        all passes in one product, as many as stay in a processor's cache.
        """
        first, *others = self.layers(freeze)
        x = self._first(self._inputs(observations, actions), first)  # (critics, rows, units)
        at_once = max(1, ROWS_AT_ONCE // passes.number) if x.device.type == "cpu" else x.shape[1]
        shared = list(self._masks(1, passes.number, x, generator)) if passes.shared else None
        found = []
        for rows in torch.split(x, at_once, dim=1):
            masks = self._masks(rows.shape[1], passes.number, x, generator) if shared is None else iter(shared)
            if passes.exact_last:
                found.append(self._exact_last(rows, others, masks))
            else:
                values = self._outputs(rows, others, masks)
                found.append((values.mean(dim=-1), values.var(dim=-1)))
        shape = self.ensemble, *self._shape(actions)
        mean, variance = (torch.cat(part, dim=1).view(shape) for part in zip(*found, strict=True))
        return Moments(mean, variance)

    def _masks(self, rows: int, passes: int, like: Tensor, generator: torch.Generator | None) -> Iterator[Tensor]:
        """For each hidden layer in turn which units are kept, (critics, rows, passes, units)."""
        device = like.device if generator is None else generator.device
        for units in self.hidden_dims:
            kept = torch.empty(self.ensemble, rows, passes, units, device=device, dtype=like.dtype)
            yield kept.bernoulli_(1 - self.dropout, generator=generator).to(like.device)

    def _first(self, x: Tensor, layer: Layer) -> Tensor:
        """What the first layer makes of the inputs, (critics, rows, units)."""
        weight, bias = layer
        return torch.baddbmm(bias, x, weight).relu_()

    def _hidden(self, x: Tensor, layers: list[Layer], masks: Iterator[Tensor]) -> Tensor:
        """From the first hidden layer, (critics, rows, units), to the last, (critics, rows, passes, units)."""
        x = x.unsqueeze(2)
        for weight, bias in layers:
            kept = x * next(masks)
            outputs = torch.baddbmm(bias, kept.flatten(1, 2), weight).relu_()
            x = outputs.view(*kept.shape[:-1], -1)
        return x

    def _outputs(self, x: Tensor, layers: list[Layer], masks: Iterator[Tensor]) -> Tensor:
        """Values of every pass, (critics, rows, passes)."""
        *hidden, (weight, bias) = layers
        kept = self._hidden(x, hidden, masks) * next(masks)
        return torch.baddbmm(bias, kept.flatten(1, 2), weight).view(kept.shape[:-1])

    def _exact_last(self, x: Tensor, layers: list[Layer], masks: Iterator[Tensor]) -> tuple[Tensor, Tensor]:
        """Moments, (critics, rows), by the last layer's own mean and variance in every pass and their spread over them.

        Var[Q] = E[Var[Q | the other layers]] + Var[E[Q | the other layers]]; a unit that is kept with probability k
        has mean k and variance k (1 - k).
        """
        *hidden, (weight, bias) = layers
        terms = self._hidden(x, hidden, masks) * weight.view(self.ensemble, 1, 1, -1)
        kept = 1 - self.dropout
        means = kept * terms.sum(dim=-1) + bias  # (critics, rows, passes)
        own = kept * self.dropout * terms.square().sum(dim=-1).mean(dim=-1)
        spread = means.var(dim=-1) if hidden else 0.0
        return means.mean(dim=-1), own + spread
