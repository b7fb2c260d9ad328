"""BCQ, BEAR, UWAC and DT beside their authors' code: its weights after some updates, recorded once, must be ours too.

A file of `golden/` holds what went into the authors' code in double precision with tiny networks (weights, batches, and
every random number in the order in which it was drawn) and the weights that came out. `docs/baselines.md` says how.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from authors import below, recorded
from torch import Tensor

from mildly import actors, dropout
from mildly.algorithms import ALGORITHMS, bear
from mildly.algorithms.config import build_config
from mildly.behavior import cvae
from mildly.data.batches import Batch, WindowBatch

CASES = {
    "bcq": ("bcq", {"hidden_dims": (8, 6)}, 0),
    "bear_gaussian": ("bear", {"hidden_dims": (8, 8), "kernel": "gaussian"}, 2),
    "bear_laplacian": ("bear", {"hidden_dims": (8, 8), "kernel": "laplacian"}, 2),
    "uwac": ("uwac", {"hidden_dims": (8, 8), "passes": 6}, 2),
}
"""Algorithm, config fields, and how many of the four updates are of the warm-up."""
UNUSED = 4 * 8 * 6 * 8  # masks of a warm-up step in which the authors' code values actions that it does not use


@pytest.fixture
def doubles() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Recorded:
    """Random numbers that were drawn before, handed out in their order."""

    def __init__(self, numbers: np.ndarray) -> None:
        self.numbers, self.used = numbers, 0

    def take(self, *shape: int) -> Tensor:
        size = int(np.prod(shape))
        self.used += size
        return torch.as_tensor(self.numbers[self.used - size : self.used], dtype=torch.float64).reshape(shape).clone()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("doubles")
def test_updates_end_with_the_weights_of_the_authors_code(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, fields, warm_up = CASES[case]
    with np.load(Path(__file__).parent / "golden" / f"{case}.npz", allow_pickle=False) as file:
        golden = {key: file[key] for key in file.files}
    draws = Recorded(golden["draws"])
    masks = Recorded(np.unpackbits(golden.get("masks", np.zeros(0, np.uint8))))
    for module in (actors, bear, cvae):
        monkeypatch.setattr(module, "normal", lambda shape, _like, _generator: draws.take(*shape))
    monkeypatch.setattr(dropout, "ROWS_AT_ONCE", 10**6)

    def masks_of(critics: Any, rows: int, passes: int, *_: Any) -> Iterator[Tensor]:
        of_each = [[masks.take(rows, passes, units) for units in critics.hidden_dims] for _ in range(critics.ensemble)]
        return (torch.stack(layer) for layer in zip(*of_each, strict=True))

    monkeypatch.setattr(dropout.DropoutCritics, "_masks", masks_of)
    kind = ALGORITHMS[name]
    batches = [golden[key] for key in ("observations", "actions", "rewards", "next_observations", "terminals")]
    learner: Any = kind(build_config(kind, {**fields, "behavior.hidden_dims": (9, 9)}), 3, 2)
    before = {key.removeprefix("before."): value for key, value in golden.items() if key.startswith("before.")}
    learner.load_state_dict({**learner.state_dict(), **{k: torch.as_tensor(v).double() for k, v in before.items()}})
    # their CVAE's loss is a mean over the action's dimensions, ours a sum: the same to Adam but for its epsilon
    learner.behavior.optimizer.param_groups[0]["eps"] = 1e-8 * 2
    for step in range(len(batches[0])):
        batch = Batch(*(torch.as_tensor(column[step], dtype=torch.float64) for column in batches))
        (learner.warm_up if step < warm_up else learner.update)(batch)
        if name == "uwac" and step < warm_up:
            masks.take(UNUSED)
    assert draws.used == len(draws.numbers)
    assert 0 <= len(masks.numbers) - masks.used < 8
    state = learner.state_dict()
    for key, start in before.items():
        a_sign = "right" in key and start.shape[-1] == 1  # the singular vector of a row's only output
        assert a_sign or np.abs(golden[f"after.{key}"] - start).max() > 1e-5, key
        np.testing.assert_allclose(state[key].numpy(), golden[f"after.{key}"], rtol=0, atol=1e-12, err_msg=key)


@pytest.mark.usefixtures("doubles")
def test_losses_gradients_and_updates_of_the_decision_transformer_are_those_of_the_authors_code() -> None:
    """Theirs had windows padded in front, with actions of -10 there; dropout is off in both."""
    arrays = recorded("decision_transformer")
    shape = {"width": 8, "layers": 2, "heads": 2, "context": 4, "max_timesteps": 12, "dropout": 0.0}
    rates = {"actor_lr": 1e-2, "weight_decay": 1e-2, "lr_warmup_steps": 4}
    kind = ALGORITHMS["decision-transformer"]
    learner: Any = kind(build_config(kind, {**shape, **rates}), 3, 2)
    learner.load_state_dict({**learner.state_dict(), **below(arrays, "before.")})
    batches = [WindowBatch(rewards=torch.zeros(6, 4), **below(arrays, f"batch.{update}.")) for update in range(5)]
    assert any((batch.mask == 0).any() for batch in batches)
    learner.actor_loss(batches[0]).backward()
    for name, parameter in learner.actor.named_parameters():
        torch.testing.assert_close(parameter.grad, arrays[f"gradient.actor.{name}"], rtol=0, atol=1e-13, msg=name)
    for update, batch in enumerate(batches):
        metrics = learner.update(batch)
        assert metrics["loss_actor"].item() == pytest.approx(arrays["losses"][update].item(), rel=1e-12)
        assert metrics["gradient_norm"].item() == pytest.approx(arrays["norms"][update].item(), rel=1e-12)
    state = learner.state_dict()
    for name, theirs in below(arrays, "after.").items():
        assert (theirs - arrays[f"before.{name}"]).abs().max() > 1e-4
        ours = state[name]
        if ".attention.bias" in name:  # a key's offset changes no attention: rounding alone moves that third
            torch.testing.assert_close(ours[8:16], theirs[8:16], rtol=0, atol=1e-9, msg=name)
            ours, theirs = (torch.cat([both[:8], both[16:]]) for both in (ours, theirs))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12, msg=name)
