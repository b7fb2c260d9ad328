"""A dynamics model in training: its optimizer, and the rule by which it ends.

An epoch is as many steps as it takes to see as many transitions as there are. After each, the members' errors on rows
that were held out are looked at. A member whose error is more than 1 % below its best so far is kept as it is now; when
none was for `patience` epochs, training ends. The model is the best of every member.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from mildly.data.batches import Batch
from mildly.data.dataset import Array, Dataset, Meta
from mildly.dynamics.config import DynamicsConfig
from mildly.dynamics.ensemble import DynamicsEnsemble, DynamicsNetworks
from mildly.dynamics.split import Bootstraps, Split, moments
from mildly.dynamics.termination import LEARNED, rule_for
from mildly.networks import frozen_copy
from mildly.optimizer import Adam, minimize
from mildly.state import Stateful

_IMPROVEMENT = 0.01
_WORST = 1e10  # a best error so far that any is below


class DynamicsLearner(Stateful):
    """The networks, the best of them so far, and what training remembers. It has no random numbers of its own."""

    DERIVED: ClassVar = frozenset({"config", "meta", "rule", "sampler", "validation", "steps_per_epoch", "scales"})

    def __init__(self, config: DynamicsConfig, observation_size: int, action_size: int, device: torch.device) -> None:
        self.config = config
        self.keys = torch.randint(-(2**62), 2**62, (config.members, 1)).to(device)
        sizes = observation_size, action_size, config.hidden_dims, config.members
        self.networks = DynamicsNetworks(*sizes).to(device)
        self.best = frozen_copy(self.networks)
        self.optimizer = Adam(self.networks.gaussians.parameters(), lr=config.lr)
        self.end_optimizer = Adam(self.networks.ends.parameters(), lr=config.lr)
        self.best_errors = torch.full((config.members,), _WORST, device=device)
        self.errors = torch.zeros(config.members, device=device)
        """On held-out rows, when they were last looked at."""
        self.stale = torch.zeros((), dtype=torch.int64, device=device)
        """Epochs without an improvement."""
        self.updates = 0
        self.meta, self.rule = Meta(""), LEARNED
        self.sampler: Bootstraps | None = None
        self.validation: Batch | None = None
        self.steps_per_epoch = 1
        self.scales: Mapping[str, Array] = {}

    def start(self, data: Dataset, device: torch.device) -> Bootstraps:
        """What to learn from; the rest is held out. Nothing is learned yet."""
        c, split = self.config, Split.of(data, self.config.test_episodes)
        self.meta, self.rule = data.meta, rule_for(data)
        self.sampler = Bootstraps(data, split.train, c.batch_size, device, lambda: self.keys)
        held_out = torch.from_numpy(split.validation).to(device)
        self.validation = self.sampler.gather(held_out) if len(held_out) else None
        self.steps_per_epoch = math.ceil(len(split.train) / c.batch_size)
        self.scales = moments(data, split.train)
        return self.sampler

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One step of all members, each on its own rows, (members, n, ...), or all on the same, (n, ...)."""
        held_out = self.validation or batch
        if self.updates == 0:
            self.set_scales()
            self.errors = self.error_on(held_out)
        net = self.networks.gaussians
        inputs, targets = self.pairs(batch)
        loss, error = net.loss(inputs, targets, self.config.layer_decays())
        minimize(loss, self.optimizer)
        metrics = {"loss_dynamics": loss.detach(), "error": error} | self.update_ends(batch)
        self.updates += 1
        if self.updates % self.steps_per_epoch == 0:
            self.end_epoch(held_out)
        return metrics | {"held_out_error": self.errors.sort().values[: self.config.elites].mean()}

    def pairs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the networks."""
        net = self.networks.gaussians
        inputs = net.inputs(batch.observations, batch.actions)
        return inputs, net.targets(batch.observations, batch.next_observations, batch.rewards)

    def error_on(self, batch: Batch) -> Tensor:
        """Each member's mean squared error."""
        return self.networks.gaussians.errors(*self.pairs(batch))

    def update_ends(self, batch: Batch) -> dict[str, Tensor]:
        """One step of the network that tells where episodes end, where no rule is known, on the rows of all members."""
        if self.rule != LEARNED:
            return {}
        logits = self.networks.end_logits(batch.observations, batch.actions)
        loss = binary_cross_entropy_with_logits(logits, batch.terminated)
        minimize(loss, self.end_optimizer)
        return {"loss_ends": loss.detach()}

    @torch.no_grad()
    def end_epoch(self, held_out: Batch) -> None:
        """Keep the members that have improved, and count the epochs in which none has. No number leaves the device."""
        self.errors = self.error_on(held_out)
        improved = (self.best_errors - self.errors) / self.best_errors > _IMPROVEMENT
        self.best.gaussians.take_over(self.networks.gaussians, improved)
        self.best.ends.load_state_dict(self.networks.ends.state_dict())
        self.best_errors = torch.where(improved, self.errors, self.best_errors)
        self.stale = torch.where(improved.any(), torch.zeros_like(self.stale), self.stale + 1)

    def finished(self) -> bool:
        """Whether training ends here. The device is waited for once in an epoch."""
        return self.updates % self.steps_per_epoch == 0 and int(self.stale) >= self.config.patience

    def set_scales(self) -> None:
        """Standardize inputs, and targets if asked for, with the moments of the data. From now on it is state."""
        net = self.networks.gaussians
        for name, values in self.scales.items():
            if name.startswith("input") or self.config.scale_targets:
                getattr(net, name).copy_(torch.as_tensor(values, dtype=net.input_mean.dtype))

    def adopt(self, model: DynamicsEnsemble) -> None:
        """Take over a fitted model of the same config."""
        for networks in (self.networks, self.best):
            networks.load_state_dict(model.networks.state_dict())
        self.errors, self.best_errors = (model.held_out_errors.to(self.errors.device, copy=True) for _ in range(2))
        self.meta, self.rule = model.meta, model.rule

    def ensemble(self) -> DynamicsEnsemble:
        """The best of every member, or where no epoch has ended yet, all as they are."""
        ended = self.updates >= self.steps_per_epoch
        networks, errors = (self.best, self.best_errors) if ended else (self.networks, self.errors)
        elites = errors.argsort(stable=True)[: self.config.elites]
        return DynamicsEnsemble(networks, elites, errors, self.rule, self.meta, self.config)
