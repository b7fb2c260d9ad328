"""What actor-critic methods have in common: two critics with targets, their update, and what they learn from returns.

The data show what each action was followed by, its discounted return G. By default only its rewards are used. With
`level_start` the critics begin at the mean of G, so that they need not first climb there from 0, one reward at a time:
another origin of the rewards, and nothing else where a method does not look at the size of values, as TD3+BC's weight,
a floor or a ceiling do. With `return_mix` = k the critics learn from G itself:

    critics   minimize mean (Q_j(s, a) - [(1 - k) y + k G])^2,  y the method's own target

which is y of the policy for about 1 / k steps and of the data's own actions from then on (Geng et al. 2024, "Improving
Offline RL by Blending Heuristics"). A fall far ahead is then known at once, and not after hundreds of sweeps.

In the first `cloning_steps` the actor clones the data's actions, so that it begins to climb when the critics know a
slope.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from mildly.actors import Actor
from mildly.algorithms.base import Algorithm, AlgorithmConfig, Metrics, require
from mildly.data.dataset import Dataset
from mildly.data.replay import Batch
from mildly.data.returns import Returns
from mildly.networks import Critics, polyak_update
from mildly.optimizer import minimize


@dataclass(frozen=True)
class ActorCriticConfig(AlgorithmConfig):
    """Hyperparameters of all actor-critic methods; the defaults are those of the MCQ paper."""

    hidden: tuple[int, ...] = (400, 400)
    """Widths of the hidden layers of actor and critics."""
    gamma: float = 0.99
    """Discount factor."""
    tau: float = 0.005
    """Rate at which the target networks follow the networks."""
    actor_lr: float = 3e-4
    """Learning rate of the actor."""
    critic_lr: float = 3e-4
    """Learning rate of the critics."""
    layer_norm: bool = False
    """Normalize the critics' hidden layers, which holds back the values of actions far from the data."""
    level_start: bool = False
    """Start the critics' values at the data's mean discounted return instead of about 0."""
    return_mix: float = 0.0
    """Weight of the data's own discounted returns in the critics' targets, from 0 (none) to 1 (nothing else). 0.1 suits
    data of one policy, or of a few."""
    cloning_steps: int = 0
    """First steps, in which the actor clones the data's actions instead of climbing the critics' values."""
    cloning_weight: float = 0.0
    """After the cloning steps, weight of that loss within the actor's, in units of the critics' own error: an anchor
    that yields where a gain stands out from that error. 0.5 is a light one."""
    policy_ema: float | None = None
    """If given, the policy that acts is a running average of the actor, which follows it at this rate; in the first
    1 / policy_ema steps it is their mean."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(all(width >= 1 for width in self.hidden), "hidden", "positive widths", self.hidden)
        require(0 <= self.gamma < 1, "gamma", "in [0, 1)", self.gamma)
        require(0 < self.tau <= 1, "tau", "in (0, 1]", self.tau)
        for name in ("actor_lr", "critic_lr"):
            require(getattr(self, name) > 0, name, "positive", getattr(self, name))
        require(0 <= self.return_mix <= 1, "return_mix", "in [0, 1]", self.return_mix)
        for name in ("cloning_steps", "cloning_weight"):
            require(getattr(self, name) >= 0, name, "at least 0", getattr(self, name))
        average = self.policy_ema
        require(average is None or 0 < average <= 1, "policy_ema", "in (0, 1]", average)


class ActorCritic(Algorithm):
    """Two critics and whatever actor a subclass builds."""

    Config = ActorCriticConfig
    config: ActorCriticConfig
    pi: Actor

    def build(self, seed: int) -> None:
        """The actor, two critics with targets, and their optimizers."""
        c = self.config
        self.pi = self.build_actor()
        self.average_pi = None if c.policy_ema is None else copy.deepcopy(self.pi).requires_grad_(False)
        self.critics = self.build_critics().to(self.device)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self.pi_optimizer = self.adam(self.pi, lr=c.actor_lr)
        self.critic_optimizer = self.adam(self.critics, lr=c.critic_lr)
        self.error = torch.zeros((), device=self.device)
        """The critics' last temporal-difference error, as a root mean square, where an anchor asks for it."""
        self.updates = 0
        self.returns: Returns | None = None

    def build_critics(self) -> Critics:
        """Two critics."""
        c = self.config
        return Critics(self.observation_size, self.action_size, c.hidden, layer_norm=c.layer_norm)

    def prepare(self, dataset: Dataset) -> None:
        """Besides the scaling, the returns if anything is to be learned from them."""
        super().prepare(dataset)
        c = self.config
        if c.level_start or c.return_mix:
            self.returns = Returns.of(dataset, c.gamma, self.device)
        if c.level_start and self.returns is not None:
            self.start_at(self.returns.level())

    def start_at(self, level: Tensor) -> None:
        """Bring all values to a level; what is left to learn is their shape."""
        for critics in (self.critics, self.target_critics):
            critics.biases[-1].data.fill_(level)

    def skip_start(self) -> None:
        """Go to the end of the cloning."""
        self.updates = self.config.cloning_steps

    def update(self, batch: Batch) -> Metrics:
        """One step of the method, and of the average of its actors."""
        self.updates += 1
        metrics = self.learn(batch)
        if self.average_pi is not None and self.config.policy_ema is not None:
            polyak_update(self.average_pi, self.pi, max(self.config.policy_ema, 1 / self.updates))  # at first the mean
        return metrics

    def actor(self) -> Actor:
        """The actor, or its average."""
        return self.pi if self.average_pi is None else self.average_pi

    @property
    def cloning(self) -> bool:
        """Whether the actor still clones."""
        return self.updates <= self.config.cloning_steps

    def clone(self, batch: Batch) -> Metrics:
        """One step of the actor towards the data's actions."""
        loss = self.cloning_loss(batch)
        minimize(loss, self.pi_optimizer)
        return {"loss_cloning": loss.detach()}

    def anchored(self, loss: Tensor, batch: Batch, scale: float | Tensor = 1.0) -> Tensor:
        """An actor's loss, with the cloning loss beside it if asked for.

        `scale` is what the values are multiplied with in that loss, if with anything.
        """
        weight = self.config.cloning_weight
        return loss + weight * scale * self.error * self.cloning_loss(batch) if weight else loss

    def update_critics(self, batch: Batch) -> Metrics:
        """One step of both critics; they share no weights, so one backward pass serves both."""
        loss, metrics = self.critic_loss(batch)
        minimize(loss, self.critic_optimizer)
        if self.config.cloning_weight:
            self.error.copy_((metrics["loss_td"] / self.critics.ensemble).sqrt())
        return metrics | {"loss_critic": loss.detach()}

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """What the critics minimize: here, the temporal-difference error."""
        return self.td_loss(batch)

    def td_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """The temporal-difference error, averaged over the batch and summed over critics."""
        target = self.mixed_target(batch)
        values = self.critics(batch.observations, batch.actions)  # (critics, batch)
        loss = (values - target).square().mean(dim=-1).sum()
        return loss, {
            "loss_td": loss.detach(),
            "q_data": values.detach().mean(),
            "q_target": target.mean(),
        }

    def mixed_target(self, batch: Batch) -> Tensor:
        """The method's target, mixed with the data's return as far as the data show it, if asked for."""
        target, mix = self.td_target(batch), self.config.return_mix
        if not mix or self.returns is None or not len(batch.rows):
            return target
        value, shown = (column.index_select(0, batch.rows) for column in (self.returns.value, self.returns.weight))
        return torch.lerp(target, value, mix * shown)

    @abstractmethod
    def build_actor(self) -> Actor:
        """The actor's network, on the device."""

    @abstractmethod
    def learn(self, batch: Batch) -> Metrics:
        """One step of the method."""

    @abstractmethod
    def td_target(self, batch: Batch) -> Tensor:
        """y, what the value of (s, a) is trained towards; without gradients."""

    @abstractmethod
    def cloning_loss(self, batch: Batch) -> Tensor:
        """How far the actor is from the data's actions."""

    @abstractmethod
    def policy_actions(self, states: Tensor, n: int, generator: torch.Generator) -> Tensor:
        """N of the policy's actions in each state, (states, n, a), without gradients; one if it is deterministic."""
