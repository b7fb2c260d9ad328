"""BEAR: Bootstrapping Error Accumulation Reduction (Kumar et al., NeurIPS 2019), a policy held in the data's support.

One step on a batch (s, a, r, s', d), d marking terminal states only:

    behavior   train a CVAE on (s, a); its draws decode latents z ~ N(0, I), clipped to +-0.5
    target     y = r + gamma (1 - d) max_k [lam min_j Q'_j(s', a_k) + (1 - lam) max_j Q'_j(s', a_k)],
               a_1..a_n ~ pi(.|s')
    critics    minimize mean (Q_j(s, a) - y)^2
    distance   M(s) = MMD(b_1..b_m, u_1..u_m) before tanh, b_i of the CVAE and u_i ~ pi(.|s)
    actor      minimize mean e^v (M(s) - threshold) - min_j Q_j(s, tanh u_1)
    dual       maximize mean e^v (M(s) - threshold) over v, held in [-5, 10]
    targets    theta' <- tau theta + (1 - tau) theta', for the critics

All losses are computed before the steps of critics, actor and dual variable. In a warm-up before the main steps the
actor's loss is the constraint alone. The policy draws 100 actions and takes the one with the highest Q_1.

With `behavior.cache` the CVAE is trained before all else, and n draws in each state of the data are kept: b_1..b_m are
m of those in s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mildly.actors import Actor, TanhGaussian, TanhGaussianActor
from mildly.algorithms.advantage import family, require_log_std
from mildly.algorithms.base import Metrics, Phase
from mildly.algorithms.config import DEFAULT, KEYS, SMALL, require, require_at_least
from mildly.algorithms.dual import DualVariable
from mildly.algorithms.mmd import KERNELS, Kernel, mmd
from mildly.algorithms.support import KEPT_DRAWS, SupportConfig, SupportConstrained
from mildly.behavior import BehaviorConfig
from mildly.candidates import BestOfPolicy, best_of_target
from mildly.data.batches import Batch
from mildly.data.tasks import base_name
from mildly.networks import Critics, frozen_copy, normal, polyak_update, td_loss
from mildly.optimizer import minimize


@dataclass(frozen=True)
class BEARConfig(SupportConfig):
    """Hyperparameters of BEAR; the defaults are its authors' on halfcheetah."""

    hidden_dims: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    actor_lr: float = 1e-4
    """Learning rate of the actor."""
    log_std_min: float = -5.0
    """Lower bound of the policy's log standard deviation."""
    log_std_max: float = 2.0
    """Upper bound of the policy's log standard deviation."""
    kernel: Kernel = "gaussian"
    """The kernel through which draws of policy and CVAE are compared."""
    kernel_width: float = 20.0
    """sigma of the kernel."""
    mmd_actions: int = 4
    """m: draws of the policy and of the CVAE that are compared in each state."""
    mmd_threshold: float = 0.05
    """How far the two may lie apart."""
    dual_lr: float = 1e-3
    """Learning rate of the dual variable, which weighs that constraint."""
    log_dual_min: float = -5.0
    """Lower bound of the dual variable's logarithm."""
    log_dual_max: float = 10.0
    """Upper bound of the dual variable's logarithm."""
    warmup_steps: int = 40_000
    """Steps before the main ones in which the actor looks at the constraint alone, while the critics learn."""
    behavior: BehaviorConfig = BehaviorConfig(hidden_dims=(750, 750), lr=3e-4, kl_weight=0.25)
    """The model of the data's policy; the weight is BCQ's in sums over dimensions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_log_std(self.log_std_min, self.log_std_max)
        require(self.kernel in KERNELS, "kernel", " or ".join(map(repr, KERNELS)), self.kernel)
        require_at_least(self, mmd_actions=1, mmd_threshold=0, warmup_steps=0)
        for name in ("kernel_width", "dual_lr"):
            require(getattr(self, name) > 0, name, "positive", getattr(self, name))
        ordered = self.log_dual_min <= 0 <= self.log_dual_max
        require(ordered, "log_dual_min", "at most 0, and log_dual_max at least 0", self.log_dual_min)


class BEAR(SupportConstrained):
    """A policy that climbs the lower of two critics as far as its distance to a CVAE of the data allows."""

    Config = BEARConfig
    config: BEARConfig
    actor: TanhGaussianActor
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {**DEFAULT, "behavior.hidden_dims": (256, 256), "warmup_steps": 4_000},
        "paper": {},
        "fast": {**DEFAULT, "behavior.hidden_dims": (256, 256), "warmup_steps": 4_000, **KEPT_DRAWS},
        "small": {**SMALL, "behavior.hidden_dims": (128, 128), "behavior.lr": 1e-3, "warmup_steps": 0},
    }
    PRESET_NOTES: ClassVar[Mapping[str, str]] = {
        **SupportConstrained.PRESET_NOTES,
        "paper": "as published, with a warm-up of 40,000 steps",
    }
    KEY_FIELDS = ("mmd_threshold", "kernel", "kernel_width", "candidates", *KEYS)
    TASKS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "hopper": {"kernel": "laplacian"},
        "walker2d": {"kernel": "laplacian"},
    }
    """Config fields on D4RL's data sets of a task."""

    @classmethod
    def for_dataset(cls, name: str, preset: str) -> dict[str, Any]:
        """The authors' values on D4RL's locomotion sets."""
        return dict(cls.TASKS.get(base_name(name).split("-")[0], {})) if family(name) == "mujoco" else {}

    def build(self, seed: int) -> None:
        super().build(seed)
        self.behavior.draw = self.cvae.sample_before_tanh  # the distance is of these
        c, sizes = self.config, (self.observation_size, self.action_size)
        self.actor = TanhGaussianActor(*sizes, c.hidden_dims, c.log_std_min, c.log_std_max).to(self.device)
        self.critics = self.make_critics().to(self.device)
        self.target_critics = frozen_copy(self.critics)
        self.dual = DualVariable(c.dual_lr, c.log_dual_min, c.log_dual_max, self.device)
        self.actor_optimizer = self.adam(self.actor, lr=c.actor_lr)
        self.critic_optimizer = self.adam(self.critics, lr=c.critic_lr)

    def make_critics(self) -> Critics:
        """Two critics with new weights."""
        c = self.config
        return Critics(self.observation_size, self.action_size, c.hidden_dims, layer_norm=c.layer_norm)

    def acting(self) -> Actor:
        """The best of the policy's draws."""
        return BestOfPolicy.holding(self.actor, self.critics, self.config.candidates)

    def draws_per_state(self) -> int:
        """As many as the target draws, or as the distance compares where those are more."""
        return max(self.config.num_actions, self.config.mmd_actions)

    def phases(self) -> list[Phase]:
        """The CVAE if it has steps of its own, then the warm-up."""
        steps = self.config.warmup_steps
        warm_up = [Phase("mmd warm-up", steps, self.warm_up, "warmup_steps")] if steps else []
        return super().phases() + warm_up

    def update(self, batch: Batch) -> Metrics:
        """One step of everything."""
        return self.update_all(batch, climb=True)

    def warm_up(self, batch: Batch) -> Metrics:
        """The same, with an actor that does not look at values."""
        return self.update_all(batch, climb=False)

    def update_all(self, batch: Batch, climb: bool) -> Metrics:
        """One step of everything: the losses of critics and actor first, then their steps."""
        c = self.config
        metrics = self.update_behavior(batch)
        critic_loss, critic_metrics = self.critic_loss(batch)
        actor_loss, distance, actor_metrics = self.actor_loss(batch, climb)
        self.actor_optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(actor_loss)  # before the critics' step, which writes over the weights it goes through
        minimize(critic_loss, self.critic_optimizer)
        self.actor_optimizer.step()
        self.dual.update(distance - c.mmd_threshold)
        polyak_update(self.target_critics, self.critics, c.tau)
        return metrics | critic_metrics | {"loss_critic": critic_loss.detach()} | actor_metrics

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Mean (Q_j(s, a) - y)^2, summed over critics."""
        return td_loss(self.critics, batch, self.td_target(batch))

    @torch.no_grad()
    def td_target(self, batch: Batch) -> Tensor:
        """y, by the best of n draws of the policy in s'."""
        c, states = self.config, batch.next_observations
        drawn = self.actor(states).sample(c.num_actions, self.generator)  # (batch, n, a)
        return best_of_target(batch, self.target_critics(states, drawn), c.gamma, c.min_weight)

    def actor_loss(self, batch: Batch, climb: bool) -> tuple[Tensor, Tensor, Metrics]:
        """Mean e^v (M(s) - threshold) - min_j Q_j(s, tanh u_1), and M(s); without the values unless it shall climb."""
        c, states = self.config, batch.observations
        of_data = self.behavior.actions_in(states, batch.rows, c.mmd_actions, successors=False)  # b, (batch, m, a)
        pi: TanhGaussian = self.actor(states)
        own = pi.before_tanh(normal(of_data.shape, of_data, self.generator))  # u
        distance = mmd(of_data, own, c.kernel, c.kernel_width)  # (batch,)
        loss = self.dual.value * (distance - c.mmd_threshold).mean()
        action = own[:, 0].tanh()
        metrics = {"mmd": distance.detach().mean(), "dual": self.dual.value}
        metrics["policy_distance"] = (action.detach() - batch.actions).square().sum(-1).mean()
        if climb:
            gain = self.gain(states, action)
            loss = loss - gain.mean()
            metrics["q_ood"] = gain.detach().mean()
        return loss, distance.detach(), metrics | {"loss_actor": loss.detach()}

    def gain(self, observations: Tensor, actions: Tensor) -> Tensor:
        """What the actor climbs, (batch,): min_j Q_j(s, a). The critics' weights receive no gradient."""
        values: Tensor = self.critics(observations, actions, freeze=True)
        return values.amin(dim=0)
