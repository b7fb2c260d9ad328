"""Maximum mean discrepancy: how far apart two sets of draws are, seen through a kernel.

    MMD(x, y) = sqrt(mean k(x, x') + mean k(y, y') - 2 mean k(x, y) + 1e-6)

    gaussian    k(a, b) = exp(-|a - b|_2^2 / (2 sigma))
    laplacian   k(a, b) = exp(-|a - b|_1 / (2 sigma))

as BEAR's authors compute it: sigma is not squared, and the pairs of a draw with itself count.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Kernel = Literal["gaussian", "laplacian"]
KERNELS: tuple[Kernel, ...] = ("gaussian", "laplacian")


def mmd(x: Tensor, y: Tensor, kernel: Kernel, sigma: float) -> Tensor:
    """The discrepancy in each state, (batch,), of draws (batch, n, a) and (batch, m, a)."""
    draws = torch.cat([x, y], dim=1)
    differences = draws.unsqueeze(2) - draws.unsqueeze(1)  # (batch, n + m, n + m, a)
    distances = differences.square().sum(-1) if kernel == "gaussian" else differences.abs().sum(-1)
    n, m = x.shape[1], y.shape[1]
    weights = torch.cat([draws.new_full((n,), 1 / n), draws.new_full((m,), -1 / m)])
    signed = torch.exp(distances / (-2 * sigma)) * weights * weights.unsqueeze(1)  # one sum holds all three means
    return (signed.sum(dim=(1, 2)) + 1e-6).sqrt()
