"""DT: Decision Transformer (Chen et al. 2021), which learns no values: it predicts actions from what they brought.

One step on windows of K consecutive steps of an episode, with R_t = r_t + r_{t+1} + ... to the episode's end:

    tokens    R_1, s_1, a_1, ..., R_K, s_K, a_K, each embedded and added to a learned embedding of its timestep
    actions   b_t = tanh(W x_t), x_t what a causal transformer makes of s_t: it sees R_1, s_1, a_1, ..., R_t, s_t
    loss      minimize the mean of (b_t - a_t)^2 over action dimensions and the steps that the episode still has
    rate      grows linearly to its full value over the first updates; the gradient's norm is clipped; AdamW

Acting, R_1 is the return to aim at, and every reward is subtracted from it: R_{t+1} = R_t - r_t. The policy acts on the
last K steps of its episode, see `mildly/transformer.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from mildly.algorithms.base import Algorithm, Metrics
from mildly.algorithms.config import AlgorithmConfig, require, require_at_least, require_widths
from mildly.data.batches import Sampler, WindowBatch, Windows
from mildly.data.dataset import Dataset
from mildly.data.tasks import base_name
from mildly.optimizer import minimize_clipped
from mildly.transformer import DecisionTransformerActor, Drop, dropout, keep

_RETURN_RANGE = 10.0  # what the largest return of new data is scaled to; the authors' targets are 3.6 to 12
_MOST_STEPS = 100_000  # of a context, or of an episode with timesteps of its own
_AUTHORS: dict[str, dict[str, float]] = {
    robot: {"target_return": target, "return_scale": 1000.0}
    for robot, target in (("halfcheetah", 12_000.0), ("hopper", 3600.0), ("walker2d", 5000.0))
}
_CORL = _AUTHORS | {
    task: {"target_return": target, "return_scale": 1.0}
    for task, target in (
        ("maze2d", 280.0),
        ("pen", 3100.0),
        ("door", 2900.0),
        ("hammer", 12_800.0),
        ("relocate", 4300.0),
    )
}


@dataclass(frozen=True)
class DecisionTransformerConfig(AlgorithmConfig):
    """Hyperparameters of the Decision Transformer; the defaults are its authors' for the MuJoCo data sets."""

    batch_size: int = 64
    """Windows in a minibatch."""
    normalize_observations: bool = True
    """Normalize observations to zero mean and unit variance. The policy keeps the normalization."""
    context: int = 20
    """K: how many steps the policy looks back, its own included; also the length of training windows."""
    target_return: float | None = None
    """The return that the policy aims at, in the data's units, unless it is told another one. By default the highest
    return of an episode in the data."""
    return_scale: float | None = None
    """What returns are divided by before the network sees them. By default a tenth of the largest absolute return of
    an episode in the data."""
    width: int = 128
    """Numbers in a token; the hidden layer of each block has four times as many."""
    layers: int = 3
    """Blocks of attention and a network."""
    heads: int = 1
    """Heads of attention; the width is divided among them."""
    activation: Literal["relu", "gelu"] = "relu"
    """Between the layers of a block's network."""
    dropout: float = 0.1
    """Share of embeddings, of attention weights and of what blocks add that is left out in each training step."""
    max_timesteps: int = 1000
    """Steps of an episode that have a timestep of their own; later ones share the last."""
    timestep_std: float = 1.0
    """Standard deviation of the timesteps' embeddings before training. Large ones drown what tokens say at first."""
    actor_lr: float = 1e-4
    """Learning rate after the warm-up."""
    lr_warmup_steps: int = 10_000
    """Updates over which the learning rate grows linearly from 0."""
    weight_decay: float = 1e-4
    """What all weights shrink by in an update, as a share and times the learning rate (AdamW)."""
    max_gradient_norm: float = 0.25
    """Longer gradients are scaled down to this norm."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, context=1, layers=1, heads=1, lr_warmup_steps=0, weight_decay=0)
        require_widths("width and layers", (self.width,) * min(self.layers, _MOST_STEPS))
        require(self.width % self.heads == 0, "heads", f"a divisor of width {self.width}", self.heads)
        require(
            self.context <= self.max_timesteps, "context", f"at most max_timesteps {self.max_timesteps}", self.context
        )
        require(self.max_timesteps <= _MOST_STEPS, "max_timesteps", f"at most {_MOST_STEPS:,}", self.max_timesteps)
        require(0 <= self.dropout < 1, "dropout", "in [0, 1)", self.dropout)
        for name in ("actor_lr", "max_gradient_norm", "timestep_std"):
            require(getattr(self, name) > 0, name, "positive", getattr(self, name))
        require(self.return_scale is None or self.return_scale > 0, "return_scale", "positive", self.return_scale)


class DecisionTransformer(Algorithm):
    """A transformer that clones actions, given the return that followed them."""

    Config = DecisionTransformerConfig
    config: DecisionTransformerConfig
    actor: DecisionTransformerActor
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {"actor_lr": 5e-4, "lr_warmup_steps": 1000, "timestep_std": 0.02},
        "paper": {},
        "corl": {"batch_size": 4096, "actor_lr": 8e-4, "activation": "gelu", "timestep_std": 0.02},
        "small": {
            "width": 64,
            "layers": 2,
            "context": 10,
            "actor_lr": 1e-3,
            "lr_warmup_steps": 500,
            "timestep_std": 0.02,
        },
    }
    PRESET_NOTES: ClassVar[Mapping[str, str]] = {**Algorithm.PRESET_NOTES, "corl": "as in CORL, with larger batches"}
    PRESET_STEPS: ClassVar[Mapping[str, int]] = {"default": 20_000, "paper": 100_000, "corl": 100_000, "small": 6_000}
    KEY_FIELDS = ("target_return", "context", "width", "layers", "batch_size", "actor_lr", "dropout")
    OFFLINE_ONLY = (
        "it imitates what its data show, and the returns of episodes under way are not known. Train it anew on all logs"
    )
    TARGETS: ClassVar[Mapping[str, Mapping[str, Mapping[str, float]]]] = {"paper": _AUTHORS, "corl": _CORL}
    """By preset and task, what to aim at and what to divide returns by."""

    @classmethod
    def for_dataset(cls, name: str, preset: str) -> dict[str, Any]:
        """The published target and scale of a benchmark task."""
        task = base_name(name).split("-")[0]
        return dict(cls.TARGETS.get(preset, {}).get(task, {}))

    def build(self, seed: int) -> None:
        c = self.config
        self.actor = DecisionTransformerActor(
            self.observation_size,
            self.action_size,
            c.width,
            c.layers,
            c.heads,
            c.context,
            c.max_timesteps,
            c.activation,
        ).to(self.device)
        self.actor.embed_timestep.weight.data.mul_(c.timestep_std)
        self.actor_optimizer = self.adam(self.actor, lr=c.actor_lr, weight_decay=c.weight_decay, decoupled=True)
        self.updates = 0

    def batches(self, dataset: Dataset) -> Sampler:
        """Windows of episodes, every row being as likely a first one as any other."""
        self.preprocessing = self.preprocess(dataset)
        self.actor.aim(*target_and_scale(dataset, self.config))
        longest = int(dataset.episode_lengths().max())
        if longest > self.config.max_timesteps:
            known = f"{self.config.max_timesteps:,}"
            self.notes = (f"episodes have up to {longest:,} steps, timesteps end at {known} (--max-timesteps)",)
        return Windows(dataset, self.config.batch_size, self.config.context, self.device, self.preprocessing)

    def update(self, batch: WindowBatch) -> Metrics:
        """One step towards the actions that led to the returns."""
        self.warm_learning_rate()
        loss = self.actor_loss(batch, dropout(self.config.dropout, self.generator))
        norm = minimize_clipped(loss, self.actor_optimizer, self.config.max_gradient_norm)
        return {"loss_actor": loss.detach(), "gradient_norm": norm}

    def warm_learning_rate(self) -> None:
        """The learning rate on its way up, one update further."""
        self.updates += 1
        grown = min(self.updates / max(self.config.lr_warmup_steps, 1), 1.0)
        self.actor_optimizer.param_groups[0]["lr"] = self.config.actor_lr * grown

    def actor_loss(self, batch: WindowBatch, drop: Drop = keep) -> Tensor:
        """The mean squared error of the predicted actions, over the steps that windows have."""
        predicted = self.actor(batch.observations, batch.actions, batch.returns_to_go, batch.timesteps, drop)
        errors = (predicted - batch.actions).square().mean(dim=-1)  # (batch, length)
        loss: Tensor = (batch.mask * errors).sum() / batch.mask.sum()
        return loss


def target_and_scale(dataset: Dataset, config: DecisionTransformerConfig) -> tuple[float, float]:
    """The return to aim at and what returns are divided by: the config's, or what the data's episodes brought."""
    returns = dataset.known_returns()
    if not np.isfinite(returns).all():  # every episode has a gap: what is logged of it must do
        returns = np.array([np.asarray(dataset.rewards[rows], np.float64).sum() for rows in dataset.episodes()])
    target = float(returns.max()) if config.target_return is None else config.target_return
    scale = float(np.abs(returns).max()) / _RETURN_RANGE or 1.0
    return target, scale if config.return_scale is None else config.return_scale
