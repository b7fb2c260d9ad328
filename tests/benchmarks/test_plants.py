"""The plants of the messy logs as judges, and guards in plants where they matter."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mildly.observation_space import UnseenError, UnseenWarning
from mildly.policy import Policy, load_policy
from mildly.training.offline import train

pytestmark = pytest.mark.filterwarnings("ignore::mildly.observation_space.UnseenWarning")
ROOT = Path(__file__).parents[2]


def loaded(path: str) -> Any:
    """A script of the repository as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[Path(path).stem] = module
    spec.loader.exec_module(module)
    return module


recipe = loaded("recipes/messy_logs.py")
own_logs = loaded("benchmarks/own_logs.py")
SIZES: dict[str, Any] = {"preset": "small", "hidden_dims": (32, 32), "steps": 800, "eval_every": 0, "threads": 1}


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Policies that imitate the operators of two clean logs; the building's has a column that never changes."""
    folder = tmp_path_factory.mktemp("plants")
    doors = [fault for fault in recipe.FAULTS if fault.log == "building" and fault.kind == "constant column"]
    runs = {}
    for log, faults in (("building", doors), ("tank", ())):
        path, _ = recipe.write(log, folder, faults)
        runs[log] = train("bc", path, out=folder / f"run-{log}", **SIZES).path
    return runs


Change = Callable[[dict[str, Any], int], None]


def acts(policy: Policy, change: Change, **options: Any) -> Any:
    """A policy in the building's plant with something changed on the way from the sensors to it, by the step."""
    step = iter(range(10**9))

    def act(seen: Mapping[str, Any]) -> Mapping[str, Any]:
        shown = {**seen, "obs_door": 1.0}
        change(shown, next(step))
        return policy.named(policy.act(shown, **options))

    return act


def nothing(shown: dict[str, Any], step: int) -> None:
    pass


def fails_high(shown: dict[str, Any], step: int) -> None:
    """The thermometer breaks."""
    if step >= 40:
        shown["obs_room"] = 500.0


def warmer(shown: dict[str, Any], step: int) -> None:
    """Somebody turns the setpoint to what nobody has tried."""
    shown["obs_setpoint"] = 25.0


def door_opens(shown: dict[str, Any], step: int) -> None:
    shown["obs_door"] = 0.0


def test_names_and_units_reach_the_policy(policies: dict[str, Path]) -> None:
    policy = load_policy(policies["building"])
    assert policy.observation_names == (*(f"obs_{name}" for name in recipe.Building.sensors), "obs_door")
    assert policy.action_names == ("action_valve", "action_fan")


def test_everyday_noise_of_the_plant_is_no_news(policies: dict[str, Path]) -> None:
    """The operators' own episodes, other weather than the log's: hardly a step is beyond it."""
    policy = load_policy(policies["tank"])
    rows = []
    for seed in range(20):
        plant = recipe.Tank(np.random.default_rng(seed + 50))
        plant.begin()
        for _ in range(plant.limit):
            rows.append(plant.look())
            if plant.step(*plant.operate(plant.skills[seed % 3]))[1]:
                break
    assert len({each.row for each in policy.unseen(np.array(rows))}) < 0.005 * len(rows)


def test_a_sensor_that_fails_high_is_named_and_raise_stops_it(policies: dict[str, Path]) -> None:
    judge = recipe.Judge("building")
    policy = load_policy(policies["building"])
    (sound,) = judge.returns(acts(policy, nothing, unseen="ignore"), 1)
    (broken,) = judge.returns(acts(policy, fails_high, unseen="ignore"), 1)
    assert broken < 1.5 * sound  # it matters: returns are negative
    with pytest.warns(UnseenWarning, match="obs_room is 500") as told:
        judge.returns(acts(policy, fails_high), 1)
    assert sum("obs_room" in str(each.message) for each in told) == 1
    steps: list[int] = []
    with pytest.raises(UnseenError, match="obs_room is 500"):
        judge.returns(acts(policy, lambda shown, step: (steps.append(step), fails_high(shown, step))[1],
                           unseen="raise"), 1)  # fmt: skip
    assert steps[-1] == 40


def test_a_setpoint_outside_the_log_is_named_and_raise_stops_it(policies: dict[str, Path]) -> None:
    judge, policy = recipe.Judge("building"), load_policy(policies["building"])
    with pytest.raises(UnseenError, match=r"obs_setpoint is 25 \(in the training data 17 to 21\)"):
        judge.returns(acts(policy, warmer, unseen="raise"), 1)
    with pytest.warns(UnseenWarning, match="obs_setpoint is 25"):
        judge.returns(acts(policy, warmer), 1)


def test_clip_takes_a_setpoint_outside_the_log_for_the_highest_in_it(policies: dict[str, Path]) -> None:
    judge, policy = recipe.Judge("building"), load_policy(policies["building"])

    def highest(shown: dict[str, Any], step: int) -> None:
        shown["obs_setpoint"] = 21.0

    clipped, usual = (judge.returns(acts(policy, change, unseen="clip"), 1) for change in (warmer, highest))
    assert clipped == usual


def test_a_column_that_never_changed_in_the_log_is_named_and_moves_nothing(policies: dict[str, Path]) -> None:
    judge, policy = recipe.Judge("building"), load_policy(policies["building"])
    (sound,) = judge.returns(acts(policy, nothing, unseen="ignore"), 1)
    with pytest.warns(UnseenWarning, match=r"obs_door is 0 \(in the training data always 1\)"):
        (opened,) = judge.returns(acts(policy, door_opens), 1)
    assert opened == sound
    with pytest.raises(UnseenError, match="obs_door is 0"):
        judge.returns(acts(policy, door_opens, unseen="raise"), 1)


def test_a_swapped_pair_of_columns_is_named_and_cannot_happen_by_name(policies: dict[str, Path]) -> None:
    policy = load_policy(policies["tank"])
    plant = recipe.Tank(np.random.default_rng(3))
    plant.begin()
    seen = plant.look()
    swapped = [seen[1], seen[0], *seen[2:]]  # level and temperature
    with pytest.raises(UnseenError) as caught:
        policy.act(swapped, unseen="raise")
    assert [each.column for each in caught.value.unseen] == ["obs_level", "obs_temperature"]
    with pytest.warns(UnseenWarning, match="obs_level is .*obs_temperature is "):
        assert not np.allclose(policy.act(swapped), policy.act(seen), atol=0.05)  # it matters
    by_name = dict(zip([policy.observation_names[i] for i in (1, 0, 2, 3, 4, 5)], swapped, strict=True))
    assert np.array_equal(policy.act(by_name), policy.act(seen))


@pytest.mark.parametrize("log", recipe.PLANTS)
def test_a_judge_repeats_itself_and_ranks_the_operators_by_their_skill(log: str) -> None:
    judge = recipe.Judge(log)
    returns = judge.operators(6)
    assert returns == judge.operators(6)
    assert np.mean(returns[2]) < min(np.mean(returns[0]), np.mean(returns[1]))


@pytest.mark.parametrize("log", recipe.PLANTS)
def test_messy_logs_are_repaired_as_the_messages_say(log: str, tmp_path: Path) -> None:
    facts = own_logs.prepare(log, tmp_path)
    assert facts["check_before"] in (1, 2)
    assert facts["faults"] == len([fault for fault in recipe.FAULTS if fault.log == log])


def test_evaluating_in_a_simulator_warns_of_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnseenWarning)
        sizes = {**SIZES, "steps": 20, "eval_every": 10}
        train("td3-bc", "pendulum-mixed", out=tmp_path / "run", episodes=1, **sizes)
