"""Conditional flow matching (Lipman et al., ICLR 2023): noise that a learned current carries to the data's actions.

    x_t = (1 - t) z + t a,   z ~ N(0, I),   t ~ U[0, 1)
    loss = mean over (s, a), z and t of |v(s, x_t, t) - (a - z)|^2

The velocity v that minimizes it carries N(0, I) at time 0 to the data's actions at time 1. A behavior action is
found by following dx/dt = v(s, x, t) from a draw of noise, in a few midpoint steps, and is clipped to [-1, 1].

It has no weights to balance and no contest to lose, and keeps apart modes that the CVAE averages. The price is eight
passes per draw where the CVAE needs one. At its own widths that costs as much as the CVAE's single pass at the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mildly.behavior.base import BehaviorModel
from mildly.networks import mlp, normal

_DRAWS = 4  # of (z, t) for each row of a batch: they cost little and make the gradient less noisy
_STEPS = 4  # of the midpoint rule; fewer leave many actions between modes, more change little
_DENSITY_STEPS = 8  # of the way back, whose error is one of the density


class Flow(BehaviorModel):
    """Velocity v(s, x, t), which carries noise to actions."""

    HIDDEN_DIMS = (192, 192, 192)
    ADAM = {"lr": 1e-3}

    def __init__(self, observation_size: int, action_size: int, hidden_dims: Sequence[int] = HIDDEN_DIMS) -> None:
        super().__init__()
        self.action_size = action_size
        self.velocity = mlp((observation_size + action_size + 1, *hidden_dims, action_size))

    def loss(
        self, observations: Tensor, actions: Tensor, generator: torch.Generator | None = None, step: int = 0
    ) -> Tensor:
        """The velocity's squared error, summed over the action's dimensions, averaged over batch and draws."""
        observations, actions = observations.repeat(_DRAWS, 1), actions.repeat(_DRAWS, 1)
        noise = normal(actions.shape, actions, generator)
        time = torch.rand((len(actions), 1), generator=generator, device=actions.device, dtype=actions.dtype)
        velocity = self.velocity(torch.cat([observations, torch.lerp(noise, actions, time), time], dim=-1))
        loss: Tensor = (velocity - (actions - noise)).square().sum(-1).mean()
        return loss

    @torch.no_grad()
    def sample(self, observations: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
        """N actions for each state, (batch, n, action), without gradients."""
        x = normal((len(observations), n, self.action_size), observations, generator)
        size = 1 / _STEPS
        observations = observations.unsqueeze(1).expand(-1, n, -1)
        for k in range(_STEPS):
            middle = x + size / 2 * self._at(observations, x, k * size)
            x += size * self._at(observations, middle, (k + 0.5) * size)
        return x.clamp_(-1, 1)

    @torch.no_grad()
    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The log density (batch,) of actions (batch, a), before the clip: the current is followed back to its noise.

            log p(a) = log N(z; 0, I) - integral over time of div v(s, x_t, t)

        The divergence is exact, a derivative for each dimension of the action.
        """
        x, spread, size = actions, actions.new_zeros(len(actions)), 1 / _DENSITY_STEPS
        for k in reversed(range(_DENSITY_STEPS)):
            end = self._at(observations, x, (k + 1) * size)
            velocity, divergence = self._with_divergence(observations, x - size / 2 * end, (k + 0.5) * size)
            x, spread = x - size * velocity, spread + size * divergence
        return -0.5 * (x.square() + math.log(2 * math.pi)).sum(-1) - spread

    def _with_divergence(self, observations: Tensor, x: Tensor, time: float) -> tuple[Tensor, Tensor]:
        """v(s, x, t), and the sum of its derivatives, of each dimension by itself."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            velocity = self._at(observations, x, time)
            slopes = [torch.autograd.grad(part.sum(), x, retain_graph=True)[0] for part in velocity.unbind(-1)]
        divergence = sum(slope[:, i] for i, slope in enumerate(slopes))
        assert isinstance(divergence, Tensor)
        return velocity.detach(), divergence

    def _at(self, observations: Tensor, x: Tensor, time: float) -> Tensor:
        """v(s, x, t) at one time for all."""
        velocity: Tensor = self.velocity(torch.cat([observations, x, torch.full_like(x[..., :1], time)], dim=-1))
        return velocity
