"""Values that no rewards allow end a training, with its last sound checkpoint; ordinary trainings are left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import train_tiny

from mildly.actors import TanhGaussianActor
from mildly.algorithms import ALGORITHMS
from mildly.algorithms.config import make_config
from mildly.errors import MildlyError
from mildly.policy import Policy
from mildly.run import Run, flatten
from mildly.training import checkpoint
from mildly.training.divergence import ValueWatch
from mildly.training.offline import resume
from mildly.training.trainer import Diverged


def test_five_lines_outside_that_come_no_nearer_are_divergence() -> None:
    watch = ValueWatch(-1.0, 2.0, 0.9)  # values from -10 to 20, widened by 30
    assert (watch.low, watch.high) == pytest.approx((-40, 50))
    assert [bool(watch.diverged({"q_data": value})) for value in (60, 70, 80, 90, 100)] == [False] * 4 + [True]
    watch.restore([])
    assert not any(watch.diverged({"q_data": value}) for value in (60, 70, 80, 90, 49, 60, 70, 80, 90))
    assert watch.suspicious
    watch.restore([])
    assert not any(watch.diverged({"q_data": value}) for value in range(200, 51, -10)), "on the way back"
    watch.restore([{"q_data": -50.0}] * 4)
    assert "outside [-40, 50]" in watch.diverged({"q_data": -50.0})
    watch.restore([])
    assert not any(watch.diverged({"q_data": 90.0, "alpha": 2.0, "entropy": -3.0}) for _ in range(9)), "entropy's part"


def test_rewards_that_are_all_zero_leave_room_for_the_networks_first_values() -> None:
    watch = ValueWatch(0.0, 0.0, 0.99)
    assert not any(watch.diverged({"q_data": 0.5}) for _ in range(9))


def test_a_training_whose_values_run_away_ends_and_keeps_its_last_sound_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From step 31 on the values double with every step; lines come every 5 steps, checkpoints every 20."""
    kind, steps = ALGORITHMS["td3-bc"], 0
    sound = kind.update

    def running_away(learner: Any, batch: Any) -> Any:
        nonlocal steps
        steps += 1
        metrics = sound(learner, batch)
        return metrics | {"q_data": metrics["q_data"] - 1e4 * 1.2 ** (steps - 30)} if steps > 30 else metrics

    monkeypatch.setattr(kind, "update", running_away)
    with pytest.raises(Diverged, match=r"q_data is .*outside \[.*\] for 5 lines.*rewards from .*last good checkpoint"):
        train_tiny("td3-bc", tmp_path / "run", eval_every=0)
    run = Run(tmp_path / "run")
    assert run.metrics()[-1]["step"] == 55
    assert checkpoint.load(run.checkpoint)[1]["step"] == 20, "that of step 40 was put off"
    monkeypatch.setattr(kind, "update", sound)
    assert resume(run.path, steps=100).metrics()[-1]["step"] == 100
    monkeypatch.setattr(kind, "update", running_away)
    with pytest.raises(Diverged, match="no-watch-values goes on all the same"):
        resume(run.path, steps=200)
    assert resume(run.path, steps=200, watch_values=False).metrics()[-1]["step"] == 200
    assert run.plan().watch_values is False
    steps = 0
    unwatched = train_tiny("td3-bc", tmp_path / "unwatched", eval_every=0, watch_values=False)
    assert abs(unwatched.metrics()[-1]["q_data"]) > 1e4


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
@pytest.mark.parametrize("dataset", ["pendulum-mixed", "hopper-mixed"])
def test_no_algorithm_is_stopped_in_an_ordinary_training(tmp_path: Path, algorithm: str, dataset: str) -> None:
    run = train_tiny(algorithm, tmp_path / "run", dataset=dataset, eval_every=0, steps=200)
    assert run.metrics()[-1]["step"] == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "preset"), [(name, preset) for name, kind in sorted(ALGORITHMS.items()) for preset in kind.PRESETS]
)
def test_no_preset_is_stopped_in_an_ordinary_training(tmp_path: Path, algorithm: str, preset: str) -> None:
    from mildly.training.offline import train

    options: dict[str, Any] = {"steps": 1500, "eval_every": 0, "log_every": 20, "threads": 1, "batch_size": 64}
    config = flatten(make_config(ALGORITHMS[algorithm], preset, "", {}))
    smaller = {"hidden_dims": (64, 64), "width": 64}  # a transformer has the latter
    options |= {name: size for name, size in smaller.items() if name in config}
    few = {name: 500 for name in config if name.endswith("warmup_steps") and config[name] > 500}  # 40,000 take minutes
    few |= {"passes": 10} if config.get("passes", 0) > 10 else {}  # UWAC's 100 take hours
    few |= {"dynamics.max_steps": 500} if "dynamics.max_steps" in config else {}
    dataset = "pendulum-mixed" if config.get("value_ceiling") == 0 else "hopper-mixed"  # no reward above that ceiling
    run = train(algorithm, dataset, preset=preset, out=tmp_path / "run", **options, **few)
    assert run.metrics()[-1]["step"] == 1500


def test_a_policy_whose_answer_is_not_finite_refuses() -> None:
    torch.manual_seed(0)
    policy = Policy(TanhGaussianActor(3, 2, (6,)))
    with torch.no_grad():
        policy.actor.net[0].weight.fill_(1e30)
        policy.actor.net[2].weight[0] = 1e30
        policy.actor.net[2].weight[1] = torch.tensor([1e30, -1e30] * 3)
    with pytest.raises(MildlyError, match="not finite"):
        policy.act(np.full(3, 1e10, np.float32))
