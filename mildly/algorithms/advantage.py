"""Actors that clone the data's actions, each by how much better it is than what the policy does: IQL and AWAC.

    actor   minimize -mean w(s, a) log pi(a|s),  w growing with the advantage A(s, a)

The actor is never asked for an action that the data do not show. It is a Gaussian around tanh(mean(s)) that is not
squashed; w carries no gradient.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mildly.actors import Gaussian
from mildly.algorithms.base import Metrics
from mildly.algorithms.config import require
from mildly.data.batches import Batch
from mildly.data.tasks import base_name

_FAMILIES = {
    "mujoco": r"(halfcheetah|hopper|walker2d)-(random|medium|medium-replay|medium-expert|expert)",
    "adroit": r"(pen|door|relocate|hammer)-(human|cloned|expert)",
}


def require_log_std(low: float, high: float) -> None:
    """Bounds of a log standard deviation must be in order."""
    require(low < high, "log_std_min", "below log_std_max", low)


def weighted_bc_loss(batch: Batch, distribution: Gaussian, weights: Tensor) -> tuple[Tensor, Metrics]:
    """-mean w log pi(a|s). The effective share is the part of the batch that the weights let speak."""
    loss = -(weights * distribution.log_prob(batch.actions)).mean()
    distance = (distribution.mean.detach() - batch.actions).square().sum(-1).mean()
    share = weights.mean().square() / weights.square().mean()
    return loss, {"loss_actor": loss.detach(), "policy_distance": distance, "effective_share": share}


def family(name: str) -> str | None:
    """The family that a data set of the benchmarks belongs to, if it is one."""
    return next((known for known, names in _FAMILIES.items() if re.fullmatch(names, base_name(name))), None)


def family_fields(families: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any]:
    """An algorithm's values on the family of a data set."""
    return dict(families.get(family(name) or "", {}))


def expectile_loss(difference: Tensor, expectile: float) -> Tensor:
    """Mean |expectile - 1(u < 0)| u^2: above one half, falling short of the target costs more than exceeding it."""
    weight = torch.where(difference < 0, 1 - expectile, expectile)
    return (weight * difference.square()).mean()


def exponential_weights(advantage: Tensor, beta: float, limit: float) -> Tensor:
    """min(exp(beta A), limit)."""
    return (beta * advantage).exp().clamp(max=limit)


def batch_weights(advantage: Tensor, beta: float) -> Tensor:
    """The batch's softmax of A / beta, times the batch's size: weights with a mean of 1."""
    return len(advantage) * torch.softmax(advantage / beta, dim=0)
