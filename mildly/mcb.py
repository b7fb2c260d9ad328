"""The heart of MCQ: the mildly conservative Bellman (MCB) operator with function approximation.

Out-of-distribution (OOD) actions are neither forbidden nor punished: they are trained towards a pseudo target,
the best value among N actions that the data's own policy could have taken in that state (the paper's Eq. 13):

    y'(s) = min_j max_{i=1..N} Q_j(s, b_i),    b_i ~ mu_hat(.|s)

and the critics' loss gains the term (Eq. 11)

    mean over states and OOD actions u ~ pi(.|s) of (Q_j(s, u) - y'(s))^2.

Nothing here knows of SAC or TD3. `critics` is any callable that maps observations (S, o) and actions (S, n, a) to
values (K, S, n) of K critics; add `ood_loss` to your own critics' loss with a weight and you have MCQ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

CriticFunction = Callable[[Tensor, Tensor], Tensor]


@torch.no_grad()
def pseudo_target(
    critics: CriticFunction,
    observations: Tensor,
    behavior_actions: Tensor,
    *,
    floor: float | None = None,
    reduction: Literal["min", "mean"] = "min",
) -> Tensor:
    """y'(s), shape (S,): the best of the behavior actions for each critic, then the lowest critic.

    Args:
        critics: the online critics, (S, o) and (S, n, a) to (K, S, n).
        observations: (S, o).
        behavior_actions: draws from the behavior model, (S, n, a), or (K, S, n, a) for a set for each critic.
        floor: lower bound of each critic's best value. The official code uses 0; harmful where values are negative.
        reduction: how critics are combined; the paper found little difference.
    """
    best = critics(observations, behavior_actions).amax(dim=-1)  # (critics, S)
    if floor is not None:
        best = best.clamp_min(floor)
    return best.amin(dim=0) if reduction == "min" else best.mean(dim=0)


def ood_loss(
    values: Tensor,
    target: Tensor,
    *,
    delta: float | Tensor = 0.0,
    one_sided: bool = False,
    mask: Tensor | None = None,
) -> Tensor:
    """The OOD term of each critic's loss, shape (K,).

    Args:
        values: Q_j(s, u), (K, S, n), for OOD actions u drawn from the learned policy without gradients.
        target: y'(s), (S,).
        delta: how far below the pseudo target OOD values should lie (the MCB operator's delta).
        one_sided: penalize only values above the target.
        mask: which actions count, (S, n) or (K, S, n); the mean still divides by all of them.
    """
    deviation = values - (target.detach() - delta).unsqueeze(-1)
    if one_sided:
        deviation = deviation.clamp_min(0)
    squared = deviation.square()
    if mask is not None:
        squared = squared * mask
    return squared.mean(dim=(-2, -1))


def far_from_behavior(ood_actions: Tensor, behavior_actions: Tensor, distance_min: float) -> Tensor:
    """1 where the k-th OOD action lies at least `distance_min` (squared) from the k-th behavior action, else 0."""
    distance = (ood_actions - behavior_actions[..., : ood_actions.shape[-2], :]).square().sum(-1)
    return (distance >= distance_min).to(ood_actions.dtype)
