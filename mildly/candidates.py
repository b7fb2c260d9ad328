"""The best of n candidates: targets and policies that choose among actions which a generative model or a policy draws.

BCQ, BEAR, UWAC and CDC share it. Several critics are one number by a mixture of the lowest and the highest of them,

    Q(s, a) = lam min_j Q_j(s, a) + (1 - lam) max_j Q_j(s, a),    lam being `min_weight`, 0.75 in all four,

their target is y = r + gamma (1 - d) max_k Q'(s', a_k), and they act by the best of many candidates. Such a policy
carries what draws and what values its candidates, so that a loaded one acts as in training. Asked for its
deterministic action it draws the same noise for every state and at every call: the action is a function of the
observation, whatever else is in the batch. Asked for a draw, it draws its candidates anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from mildly.actors import Actor, TanhGaussian, TanhGaussianActor
from mildly.behavior.cvae import CVAE
from mildly.data.batches import Batch
from mildly.dropout import DropoutCritics, Passes
from mildly.networks import Critics, mlp, normal

MOST_DRAWS = 10_000
_SEED = 0  # of the noise behind deterministic actions


def mixture(values: Tensor, min_weight: float) -> Tensor:
    """lam min_j Q_j + (1 - lam) max_j Q_j, from (critics, ...) to (...)."""
    return min_weight * values.amin(dim=0) + (1 - min_weight) * values.amax(dim=0)


def best_of_target(batch: Batch, values: Tensor, gamma: float, min_weight: float) -> Tensor:
    """y = r + gamma (1 - d) max_k [lam min_j Q'_j(s', a_k) + (1 - lam) max_j Q'_j(s', a_k)], (batch,).

    Args:
        batch: for its rewards and ends.
        values: Q'_j(s', a_k), (critics, batch, n).
        gamma: the discount factor.
        min_weight: lam.
    """
    best = mixture(values, min_weight).amax(dim=-1)
    return batch.rewards + gamma * (1 - batch.terminated) * best


class BestOf(Actor):
    """Draws candidates in each state and takes the one with the highest value."""

    critics: Critics
    policy: TanhGaussianActor
    """Whose draws the candidates are, unless a kind proposes others."""

    def __init__(
        self, observation_size: int, action_size: int, hidden_dims: Sequence[int], candidates: int, **more: Any
    ) -> None:
        _require_count("candidates", candidates, 1)
        super().__init__(observation_size, action_size, hidden_dims, candidates=candidates, **more)
        self.candidates = candidates

    def noise_size(self) -> int:
        """How many normal numbers a candidate needs."""
        return int(self.spec["action_size"])

    def propose(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Candidates, (batch, n, a), from noise, (batch or 1, n, numbers); here the policy's draws."""
        pi: TanhGaussian = self.policy(observations)
        return pi.before_tanh(noise).tanh()

    def value(self, observations: Tensor, candidates: Tensor, generator: torch.Generator | None) -> Tensor:
        """What decides, (batch, n); here the first critic. A critic that is random draws from the generator."""
        values: Tensor = self.critics(observations, candidates)[0]
        return values

    def act(self, observations: Tensor, deterministic: bool, generator: torch.Generator | None = None) -> Tensor:
        """The best candidate in each state, of the same noise for all states and calls, or of new noise for each."""
        shape = 1 if deterministic else len(observations), self.candidates, self.noise_size()
        if deterministic:
            generator = torch.Generator().manual_seed(_SEED)  # on the host: the same on every device
            noise = torch.randn(shape, generator=generator).to(observations)
        else:
            noise = normal(shape, observations, generator)
        candidates = self.propose(observations, noise)
        best = self.value(observations, candidates, generator).argmax(dim=-1)
        return candidates[torch.arange(len(candidates), device=candidates.device), best]


class BestOfPolicy(BestOf):
    """The best of n draws of a tanh-Gaussian policy, by one critic, or with a `min_weight` by a mixture of several."""

    kind = "best-of-policy"

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden_dims: Sequence[int],
        critic_hidden_dims: Sequence[int] = (256, 256),
        candidates: int = 10,
        min_weight: float | None = None,
        log_std_min: float = -5.0,
        log_std_max: float = 2.0,
        ensemble: int = 1,
        layer_norm: bool = False,
    ) -> None:
        super().__init__(**_arguments(locals()))
        sizes = observation_size, action_size
        self.min_weight = min_weight
        self.policy = TanhGaussianActor(*sizes, hidden_dims, log_std_min, log_std_max)
        self.critics = Critics(*sizes, critic_hidden_dims, ensemble, layer_norm)

    @classmethod
    def holding(
        cls, policy: TanhGaussianActor, critics: Critics, candidates: int, min_weight: float | None = None
    ) -> Self:
        """With these very networks, which may go on learning; of the critics, with those that decide."""
        critics = critics.first() if min_weight is None else critics
        with torch.device("meta"):  # what is built is replaced
            made = cls(
                **policy.spec,
                critic_hidden_dims=critics.hidden_dims,
                candidates=candidates,
                min_weight=min_weight,
                ensemble=critics.ensemble,
                layer_norm=critics.layer_norm,
            )
        made.policy, made.critics = policy, critics
        return made

    def value(self, observations: Tensor, candidates: Tensor, generator: torch.Generator | None) -> Tensor:
        if self.min_weight is None:
            return super().value(observations, candidates, generator)
        return mixture(self.critics(observations, candidates), self.min_weight)


class BestOfUncertain(BestOf):
    """The best of n draws of a tanh-Gaussian policy, by a critic's mean over dropout.

    The same units are dropped for all candidates, so that chance does not favor one of them.
    """

    kind = "best-of-uncertain"
    critics: DropoutCritics

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden_dims: Sequence[int],
        critic_hidden_dims: Sequence[int] = (256, 256),
        candidates: int = 10,
        passes: int = 10,
        exact_last: bool = False,
        dropout: float = 0.1,
        spectral_norm: bool = True,
        log_std_min: float = -5.0,
        log_std_max: float = 2.0,
    ) -> None:
        _require_count("passes", passes, 2)
        super().__init__(**_arguments(locals()))
        sizes = observation_size, action_size
        self.passes = Passes(passes, exact_last, shared=True)
        self.policy = TanhGaussianActor(*sizes, hidden_dims, log_std_min, log_std_max)
        self.critics = DropoutCritics(*sizes, critic_hidden_dims, 1, dropout, spectral_norm)

    @classmethod
    def holding(cls, policy: TanhGaussianActor, critics: DropoutCritics, candidates: int, passes: Passes) -> Self:
        """With these very networks, which may go on learning; of the critics, with the first."""
        with torch.device("meta"):  # what is built is replaced
            made = cls(
                **policy.spec,
                critic_hidden_dims=critics.hidden_dims,
                candidates=candidates,
                passes=passes.number,
                exact_last=passes.exact_last,
                dropout=critics.dropout,
                spectral_norm=critics.spectral_norm,
            )
        made.policy, made.critics = policy, critics.first()
        return made

    def value(self, observations: Tensor, candidates: Tensor, generator: torch.Generator | None) -> Tensor:
        return self.critics.moments(observations, candidates, self.passes, generator).mean[0]


class Perturbation(nn.Module):
    """xi(s, a) = clip(a + reach * tanh(f(s, a)), -1, 1): a small step from an action towards a better one."""

    def __init__(self, observation_size: int, action_size: int, hidden_dims: Sequence[int], reach: float) -> None:
        super().__init__()
        self.sizes, self.hidden_dims, self.reach = (observation_size, action_size), list(hidden_dims), reach
        self.net = mlp((observation_size + action_size, *hidden_dims, action_size))

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Perturbed actions, for (batch, o) and (batch, a), or with a further dimension in both."""
        step = torch.tanh(self.net(torch.cat([observations, actions], dim=-1)))
        return (actions + self.reach * step).clamp(-1, 1)


class BestOfBehavior(BestOf):
    """The best of n actions that a CVAE of the data's policy decodes and a perturbation network shifts."""

    kind = "best-of-behavior"

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden_dims: Sequence[int],
        critic_hidden_dims: Sequence[int] = (400, 300),
        behavior_hidden_dims: Sequence[int] = CVAE.HIDDEN_DIMS,
        candidates: int = 100,
        reach: float = 0.05,
        latent_size: int = 1,
        latent_clip: float | None = 0.5,
        layer_norm: bool = False,
    ) -> None:
        super().__init__(**_arguments(locals()))
        sizes = observation_size, action_size
        self.latent_clip = latent_clip
        self.decoder = mlp((observation_size + latent_size, *behavior_hidden_dims, action_size))
        self.perturbation = Perturbation(*sizes, hidden_dims, reach)
        self.critics = Critics(*sizes, critic_hidden_dims, 1, layer_norm)

    @classmethod
    def holding(cls, behavior: CVAE, perturbation: Perturbation, critics: Critics, candidates: int) -> Self:
        """With these very networks, which may go on learning; of the critics, with the first."""
        layers = [layer for layer in behavior.decoder if isinstance(layer, nn.Linear)]
        with torch.device("meta"):  # what is built is replaced
            made = cls(
                *perturbation.sizes,
                perturbation.hidden_dims,
                critic_hidden_dims=critics.hidden_dims,
                behavior_hidden_dims=[layer.out_features for layer in layers[:-1]],
                candidates=candidates,
                reach=perturbation.reach,
                latent_size=behavior.latent_size,
                latent_clip=behavior.latent_clip,
                layer_norm=critics.layer_norm,
            )
        made.decoder, made.perturbation, made.critics = behavior.decoder, perturbation, critics.first()
        return made

    def noise_size(self) -> int:
        return int(self.spec["latent_size"])

    def propose(self, observations: Tensor, noise: Tensor) -> Tensor:
        latents = noise if self.latent_clip is None else noise.clamp(-self.latent_clip, self.latent_clip)
        states = observations.unsqueeze(1).expand(-1, self.candidates, -1)
        decoded = self.decoder(torch.cat([states, latents.expand(len(states), -1, -1)], dim=-1)).tanh()
        actions: Tensor = self.perturbation(states, decoded)
        return actions


def _arguments(given: dict[str, Any]) -> dict[str, Any]:
    """What a constructor was given, as JSON keeps it: the `locals()` of its first line."""
    arguments = {name: value for name, value in given.items() if name not in ("self", "__class__")}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in arguments.items()}


def _require_count(name: str, value: int, least: int) -> None:
    """A number of draws must be whole, and not absurd, also in a file from elsewhere."""
    if not (isinstance(value, int) and least <= value <= MOST_DRAWS):
        raise ValueError(f"{name} is {value}, expected {least} to {MOST_DRAWS}")
