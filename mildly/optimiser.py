"""Adam with nothing around its kernel, and one step of it down a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor


class _Slots(NamedTuple):
    """What the kernel is called with, in the order of the parameters."""

    parameters: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]
    taken: Tensor
    """Steps taken; all parameters take every step together, so that one count serves them all."""


class Adam(torch.optim.Adam):
    """torch's fused Adam, to the bit, for parameters that all have a gradient in every step.

    torch's own `step` sorts its tensors by device anew each time and counts for each of them, which with small networks
    takes longer than the kernel.
    """

    def __init__(self, parameters: Iterable[Tensor], **settings: Any) -> None:
        super().__init__(parameters, **settings, fused=True)
        self._slots: _Slots | None = None

    def state_dict(self) -> dict[str, Any]:
        """As torch's: a count for every parameter."""
        state = super().state_dict()
        return state | {"state": {i: kept | {"step": kept["step"].clone()} for i, kept in state["state"].items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's."""
        super().load_state_dict(state_dict)
        self._slots = None

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
        """One step of all parameters."""
        if closure is not None or len(self.param_groups) != 1:
            raise NotImplementedError("one group of parameters, and no closure")
        slots, group = self._slots or self._open(), self.param_groups[0]
        slots.taken.add_(1)
        torch._fused_adam_(
            slots.parameters,
            [parameter.grad for parameter in slots.parameters],  # type: ignore[misc]  # none is None
            slots.means,
            slots.squares,
            [],
            [slots.taken] * len(slots.parameters),
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )
        return None

    def _open(self) -> _Slots:
        """The state, made at the first step as torch makes it, as lists."""
        parameters: list[Tensor] = self.param_groups[0]["params"]
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter] |= {
                    "step": torch.zeros((), device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
        count = self.state[parameters[0]]["step"]
        for parameter in parameters:
            self.state[parameter]["step"] = count
        means, squares = ([self.state[p][slot] for p in parameters] for slot in ("exp_avg", "exp_avg_sq"))
        self._slots = _Slots(parameters, means, squares, taken=count)
        return self._slots


def minimise(loss: Tensor, optimiser: torch.optim.Optimizer) -> None:
    """One step of an optimiser down a loss."""
    optimiser.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    optimiser.step()
