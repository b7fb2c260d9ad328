"""Which device to compute on."""

from __future__ import annotations

import torch

from mildly.errors import MildlyError


def usable_device(name: str) -> str:
    """The device's name, `auto` being a GPU where there is one; an unusable one is an error now, not a crash later."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = str(error).split("\n")[0]
        raise MildlyError(f"device '{name}' cannot be used here: {first}") from error
    return name
