"""A conditional generative adversarial network of the data's actions, the paper's other suggestion.

A generator turns noise into actions, G(s, e) = tanh(g(s, e)), and a discriminator D tells them from the data's:

    discriminator   minimize [BCE(D(s, atanh a), y) + BCE(D(s~, g(s~, e)), 0)] / 2,  y ~ U[0.8, 1)
    generator       minimize BCE(D(s~, g(s~, e)), 1), in every second step

with s~ the state with a little noise. The paper has no code for it and names Yang et al. (ICML 2022), whose sizes,
rates and labels these are. One draw costs one pass through narrow layers, and actions are sharp where the CVAE's are
blurred. But nothing makes it cover the data: where actions lie at their bounds, as a switching controller's do, it
lost one of two modes in every run (`docs/behavior.md`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import binary_cross_entropy_with_logits

from mildly.behavior.base import BehaviorModel
from mildly.networks import mlp, normal

_SLOPE = 0.01  # of the leaky ReLUs
_NOISE_CLIP = 3.0
_LABELS = (0.8, 1.0)  # of the data's actions: a discriminator that is never quite sure keeps teaching
_STATE_NOISE, _STATE_NOISE_CLIP = 3e-4, 0.05
_GENERATOR_EVERY = 2  # steps


class CGAN(BehaviorModel):
    """Generator g(s, e) -> action before tanh; discriminator D(s, action before tanh) -> logit of being the data's."""

    HIDDEN_DIMS = (400, 300)
    ADAM = {"lr": 2e-4, "betas": (0.4, 0.999)}

    def __init__(self, observation_size: int, action_size: int, hidden_dims: Sequence[int] = HIDDEN_DIMS) -> None:
        super().__init__()
        self.noise_size = max(1, min(10, observation_size // 2))
        self.generator_net = mlp((observation_size + self.noise_size, *hidden_dims, action_size), _SLOPE)
        self.discriminator = mlp((observation_size + action_size, *hidden_dims, 1), _SLOPE)

    def loss(
        self, observations: Tensor, actions: Tensor, generator: torch.Generator | None = None, step: int = 0
    ) -> Tensor:
        """The discriminator's loss, and in every second step the generator's on top; neither reaches the other."""
        noise = _STATE_NOISE * normal(observations.shape, observations, generator)
        nearby = observations + noise.clamp(-_STATE_NOISE_CLIP, _STATE_NOISE_CLIP)
        generating = step % _GENERATOR_EVERY == 0
        with torch.set_grad_enabled(generating and torch.is_grad_enabled()):
            made = self.generate(nearby, self._noise(nearby, generator))
        loss = self.discriminator_loss(observations, actions, nearby, made.detach(), generator)
        # Without its term the generator's gradients stay None, and Adam leaves it as it is.
        return loss + self.generator_loss(nearby, made) if generating else loss

    def discriminator_loss(
        self, observations: Tensor, actions: Tensor, nearby: Tensor, made: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """How badly the data's actions (1, or a little less) and the generator's (0) are told apart."""
        real = self.discriminator(torch.cat([observations, _atanh(actions)], dim=-1))
        fake = self.discriminator(torch.cat([nearby, made], dim=-1))
        low, high = _LABELS
        labels = low + (high - low) * torch.rand(real.shape, generator=generator, device=real.device, dtype=real.dtype)
        told = binary_cross_entropy_with_logits(real, labels)
        return 0.5 * (told + binary_cross_entropy_with_logits(fake, torch.zeros_like(fake)))

    def generator_loss(self, nearby: Tensor, made: Tensor) -> Tensor:
        """How badly made actions pass for the data's, before a discriminator that does not learn from it."""
        frozen = {name: parameter.detach() for name, parameter in self.discriminator.named_parameters()}
        logits: Tensor = functional_call(self.discriminator, frozen, torch.cat([nearby, made], dim=-1))
        return binary_cross_entropy_with_logits(logits, torch.ones_like(logits))

    def generate(self, observations: Tensor, noise: Tensor) -> Tensor:
        """g(s, e), an action before tanh."""
        made: Tensor = self.generator_net(torch.cat([observations, noise], dim=-1))
        return made

    @torch.no_grad()
    def sample(self, observations: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
        """N actions for each state, (batch, n, action), without gradients."""
        observations = observations.unsqueeze(1).expand(-1, n, -1)
        return self.generate(observations, self._noise(observations, generator)).tanh_()

    def _noise(self, observations: Tensor, generator: torch.Generator | None) -> Tensor:
        """One noise vector for each state."""
        noise = normal((*observations.shape[:-1], self.noise_size), observations, generator)
        return noise.clamp_(-_NOISE_CLIP, _NOISE_CLIP)


def _atanh(actions: Tensor) -> Tensor:
    """The inverse of tanh; 1 + a and 1 - a are floored at 1e-6, so that +-1 is finite."""
    return 0.5 * (torch.log((1 + actions).clamp_min(1e-6)) - torch.log((1 - actions).clamp_min(1e-6)))
