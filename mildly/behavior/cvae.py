"""A conditional variational auto-encoder of the data's actions: the paper's behavior model (Eq. 10).

    loss = mean over (s, a) of |a - D(s, z)|^2 + KL(E(s, a), N(0, I)),    z ~ E(s, a)

with both terms summed over dimensions. Behavior actions are D(s, z) with z ~ N(0, I), clipped.

With equal weights on the two terms a latent pays for itself only where it explains more than about half a unit of
squared action error. Narrower data (and all of [-1, 1] is narrow, uniform actions having variance 1/3) are modelled by
little more than their mean action; `kl_weight` below 1 loosens this. The metric `behavior_spread` shows it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mildly.behavior.base import BehaviorModel
from mildly.networks import mlp, normal


class CVAE(BehaviorModel):
    """Encoder E(s, a) -> N(mean, std) over latents; decoder D(s, z) -> action in [-1, 1]."""

    HIDDEN_DIMS = (750, 750)
    ADAM = {"lr": 1e-3}

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden_dims: Sequence[int] = HIDDEN_DIMS,
        latent_size: int | None = None,
        latent_clip: float | None = 0.5,
        log_std_min: float = -4.0,
        log_std_max: float = 15.0,
        kl_weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.latent_size = 2 * action_size if latent_size is None else latent_size
        self.latent_clip = latent_clip
        self.log_std_range = log_std_min, log_std_max
        self.kl_weight = kl_weight
        self.encoder = mlp((observation_size + action_size, *hidden_dims, 2 * self.latent_size))
        self.decoder = mlp((observation_size + self.latent_size, *hidden_dims, action_size))

    def loss(
        self, observations: Tensor, actions: Tensor, generator: torch.Generator | None = None, step: int = 0
    ) -> Tensor:
        """The negative evidence bound, averaged over the batch."""
        mean, log_std = self.encoder(torch.cat([observations, actions], dim=-1)).chunk(2, dim=-1)
        log_std = log_std.clamp(*self.log_std_range)
        latents = mean + log_std.exp() * normal(mean.shape, mean, generator)
        reconstruction = (actions - self.decode(observations, latents)).square().sum(-1)
        divergence = 0.5 * (mean.square() + (2 * log_std).exp() - 1 - 2 * log_std).sum(-1)
        loss: Tensor = (reconstruction + self.kl_weight * divergence).mean()
        return loss

    def decode(self, observations: Tensor, latents: Tensor) -> Tensor:
        """D(s, z)."""
        return torch.tanh(self.before_tanh(observations, latents))

    def before_tanh(self, observations: Tensor, latents: Tensor) -> Tensor:
        """D(s, z) before it is squashed into [-1, 1]."""
        raw: Tensor = self.decoder(torch.cat([observations, latents], dim=-1))
        return raw

    @torch.no_grad()
    def sample(self, observations: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
        """N actions for each state, (batch, n, action), without gradients."""
        return self.sample_before_tanh(observations, n, generator).tanh_()

    @torch.no_grad()
    def sample_before_tanh(self, observations: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
        """The same before they are squashed."""
        latents = normal((observations.shape[0], n, self.latent_size), observations, generator)
        if self.latent_clip is not None:
            latents.clamp_(-self.latent_clip, self.latent_clip)
        return self.before_tanh(observations.unsqueeze(1).expand(-1, n, -1), latents)
