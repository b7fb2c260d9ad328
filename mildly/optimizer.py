"""Adam with nothing around its kernel, and one step of it down a loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import compress
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor


class _Slots(NamedTuple):
    """Parameters that step together, and what the kernel is called with besides."""

    parameters: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]
    counts: list[Tensor]
    """Steps that each has taken; those that always step together share one."""
    distinct: list[Tensor]
    """The counts without repetition."""


class Adam(torch.optim.Adam):
    """torch's fused Adam or AdamW, to the bit.

    torch's own `step` sorts its tensors by device anew each time and counts for each of them, which with small networks
    takes longer than the kernel. Here lists are kept, and parameters that always step together have one count.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = False,
    ) -> None:
        """As torch's. With `decoupled` weights decay by themselves instead of by their gradient: AdamW."""
        super().__init__(parameters, lr, betas, eps, weight_decay, fused=True, decoupled_weight_decay=decoupled)
        self._kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
        self._parts: dict[tuple[bool, ...], _Slots] = {}
        """By which parameters have a gradient."""

    def state_dict(self) -> dict[str, Any]:
        """As torch's: a count for every parameter."""
        state = super().state_dict()
        return state | {"state": {i: kept | {"step": kept["step"].clone()} for i, kept in state["state"].items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, but that equal counts are one again."""
        super().load_state_dict(state_dict)
        self._parts = {}
        shared: dict[float, Tensor] = {}
        for kept in self.state.values():
            kept["step"] = shared.setdefault(kept["step"].item(), kept["step"])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step of all parameters that have a gradient."""
        if closure is not None or len(self.param_groups) != 1:
            raise NotImplementedError("one group of parameters, and no closure")
        (group,) = self.param_groups
        gradients = [parameter.grad for parameter in group["params"]]
        moving = tuple(gradient is not None for gradient in gradients)
        if not any(moving):
            return None
        slots = self._parts.get(moving) or self._open(moving)
        for count in slots.distinct:
            count.add_(1)
        self._kernel(
            slots.parameters,
            [gradient for gradient in gradients if gradient is not None],
            slots.means,
            slots.squares,
            [],
            slots.counts,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )
        return None

    def _open(self, moving: tuple[bool, ...]) -> _Slots:
        """The state of the parameters that move, made at their first step as torch makes it, as lists."""
        parameters: list[Tensor] = list(compress(self.param_groups[0]["params"], moving))
        start = torch.zeros((), device=parameters[0].device)
        for parameter in parameters:
            if parameter not in self.state:
                zeros = {slot: torch.zeros_like(parameter) for slot in ("exp_avg", "exp_avg_sq")}
                self.state[parameter] = {"step": start, **zeros}
        resting = set(self.state) - set(parameters)
        kept = {id(self.state[parameter]["step"]) for parameter in resting}
        own: dict[int, Tensor] = {}
        states = [self.state[parameter] for parameter in parameters]
        for state in states:
            count = state["step"]
            if id(count) in kept:  # from now on these are counted apart from those that rest
                state["step"] = own.setdefault(id(count), count.clone())
        if own:
            self._parts.clear()
        means, squares, counts = ([state[slot] for state in states] for slot in ("exp_avg", "exp_avg_sq", "step"))
        distinct = list({id(count): count for count in counts}.values())
        self._parts[moving] = _Slots(parameters, means, squares, counts, distinct)
        return self._parts[moving]


def decay_cosine(optimizer: torch.optim.Optimizer, lr: float, done: float) -> None:
    """Bring the learning rate to where half a cosine from `lr` to 0 is at this share of its way."""
    optimizer.param_groups[0]["lr"] = lr * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def minimize(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step of an optimizer down a loss."""
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    optimizer.step()


def minimize_clipped(loss: Tensor, optimizer: torch.optim.Optimizer, limit: float) -> Tensor:
    """The same, with a gradient whose norm over all parameters is at most the limit; gives the norm it had before."""
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    norm: Tensor = torch.nn.utils.clip_grad_norm_(parameters, limit)
    optimizer.step()
    return norm
