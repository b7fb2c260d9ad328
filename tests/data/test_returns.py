"""Returns of logged transitions: against a slow sum, and by formulas where there are some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from mildly.data.dataset import Dataset, Meta
from mildly.data.returns import Returns, discounted_returns, pieces

CPU = torch.device("cpu")


def dataset(episodes: list[tuple[list[float], str]]) -> Dataset:
    """Episodes of given rewards, each with the way it ends: terminated, truncated or both."""
    rewards = [reward for rewards, _ in episodes for reward in rewards]
    flags: dict[str, list[bool]] = {"terminated": [], "truncated": []}
    for own, end in episodes:
        for name, column in flags.items():
            column += [False] * (len(own) - 1) + [end in (name, "both")]
    zeros = np.zeros((len(rewards), 1))
    return Dataset.from_arrays(
        zeros, zeros, np.array(rewards), zeros, *(np.array(column) for column in flags.values()), meta=Meta("some")
    )


def slow_return(data: Dataset, row: int, gamma: float) -> tuple[float, float]:
    """Value and weight of one transition: walk on from it until its episode ends."""
    total, factor, k = 0.0, 1.0, 0
    while True:
        total += factor * float(data.rewards[row + k])
        factor *= gamma
        k += 1
        if data.terminated[row + k - 1]:
            return total, 1.0
        if data.truncated[row + k - 1]:
            shown = (1 - gamma) * sum(gamma**i for i in range(k))  # = 1 - gamma^k
            return total / shown, shown


ends = st.sampled_from(["terminated", "truncated", "both"])
rewards = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=12)
logs = st.lists(st.tuples(rewards, ends), min_size=1, max_size=6)
gammas = st.sampled_from([0.0, 0.5, 0.9, 0.99, 0.999])


@given(logs, gammas)
def test_every_return_and_weight_equals_a_slow_sum(episodes: Any, gamma: float) -> None:
    data = dataset(episodes)
    value, weight = discounted_returns(data, gamma)
    expected = np.array([slow_return(data, row, gamma) for row in range(len(data))])
    np.testing.assert_allclose(weight, expected[:, 1], rtol=1e-9)
    np.testing.assert_allclose(value, expected[:, 0], rtol=1e-9, atol=1e-9)


@given(st.integers(1, 40), st.floats(-50, 50, width=32), gammas)
def test_a_constant_reward_is_completed_to_its_whole_return_in_every_row(
    rows: int, reward: float, gamma: float
) -> None:
    value, weight = discounted_returns(dataset([([reward] * rows, "truncated")]), gamma)
    np.testing.assert_allclose(value, reward / (1 - gamma), rtol=1e-9, atol=1e-12)
    to_go = rows - np.arange(rows)
    np.testing.assert_allclose(weight, 1 - gamma**to_go, rtol=1e-9)


@given(st.integers(1, 40), st.floats(-50, 50, width=32), gammas)
def test_a_constant_reward_up_to_a_terminal_state_is_only_what_was_collected(
    rows: int, reward: float, gamma: float
) -> None:
    value, weight = discounted_returns(dataset([([reward] * rows, "terminated")]), gamma)
    to_go = rows - np.arange(rows)
    np.testing.assert_allclose(value, reward * (1 - gamma**to_go) / (1 - gamma), rtol=1e-9, atol=1e-12)
    assert (weight == 1).all()


@given(logs)
def test_without_a_future_the_return_is_the_reward(episodes: Any) -> None:
    data = dataset(episodes)
    value, weight = discounted_returns(data, 0.0)
    np.testing.assert_array_equal(value, data.rewards.astype(np.float64))
    assert (weight == 1).all()


@given(logs, gammas)
def test_weights_lie_in_0_to_1_and_grow_with_what_the_log_still_shows(episodes: Any, gamma: float) -> None:
    data = dataset(episodes)
    weight = discounted_returns(data, gamma)[1]
    assert (weight > 0).all()
    assert (weight <= 1).all()
    for episode in data.episodes():
        assert (np.diff(weight[episode]) <= 0).all()


def test_by_hand() -> None:
    """Two rewards until a terminal state; two until a time-out; one that both ends and is cut off."""
    data = dataset([([1.0, 2.0], "terminated"), ([4.0, 6.0], "truncated"), ([3.0], "both")])
    value, weight = discounted_returns(data, 0.5)
    assert value.tolist() == [2.0, 2.0, 7.0 / 0.75, 12.0, 3.0]
    assert weight.tolist() == [1.0, 1.0, 0.75, 0.5, 1.0]


@given(logs, gammas, st.floats(-3, 3, width=32))
def test_returns_scale_with_the_rewards(episodes: Any, gamma: float, factor: float) -> None:
    scaled = [([factor * reward for reward in own], end) for own, end in episodes]
    one, other = (discounted_returns(dataset(log), gamma)[0] for log in (episodes, scaled))
    np.testing.assert_allclose(other, factor * one, rtol=1e-5, atol=1e-3)


def test_returns_are_single_precision_on_the_device_also_of_a_mapped_set(tmp_path: Path) -> None:
    data = dataset([([1.0, 2.0, 3.0], "truncated"), ([1.5] * 4, "terminated")])
    mapped = Dataset.load(data.save(tmp_path / "set"))
    assert isinstance(mapped.rewards, np.memmap)
    value, weight = discounted_returns(data, 0.9)
    for source in (data, mapped):
        returns = Returns.of(source, 0.9, CPU)
        ended = np.array([0, 0, 0, 1, 1, 1, 1])
        for column, right in zip(returns, (value, weight, ended), strict=True):
            assert column.dtype == torch.float32
            assert column.device == CPU
            np.testing.assert_allclose(column, right, rtol=1e-6)
        assert returns.level().item() == pytest.approx(np.average(value, weights=weight), rel=1e-6)


@pytest.mark.parametrize("gamma", [0.5, 0.99])
def test_an_estimate_from_a_cut_off_log_is_right_on_average_where_rewards_do_not_depend_on_time(gamma: float) -> None:
    random = np.random.default_rng(0)
    cut = [(random.normal(2.0, 1.0, 30).tolist(), "truncated") for _ in range(400)]
    value, _ = discounted_returns(dataset(cut), gamma)
    assert value.reshape(400, 30).mean(axis=0) == pytest.approx(np.full(30, 2 / (1 - gamma)), rel=0.08)


# Returns mixed into the targets


def test_a_mixed_target_by_hand() -> None:
    """k is 0.5 of a whole return, 0.25 of one of which half is shown, and 0.5 of that of a terminal step."""
    returns = Returns(torch.tensor([10.0, 10.0, 3.0]), torch.tensor([1.0, 0.5, 1.0]), torch.tensor([1.0, 0.0, 1.0]))
    rewards, ends = torch.tensor([2.0, 2.0, 3.0]), torch.tensor([0.0, 0.0, 1.0])
    mixed = returns.mixed(rewards, ends, mix=0.5)
    assert mixed["rewards"].tolist() == [6.0, 4.0, 3.0]
    assert mixed["terminated"].tolist() == [0.5, 0.25, 1.0]
    assert mixed.keys() == {"rewards", "terminated"}
    exact = returns.mixed(rewards, ends, mix=0.5, terminated_only=True)
    assert exact["rewards"].tolist() == [6.0, 2.0, 3.0]
    assert exact["terminated"].tolist() == [0.5, 0.0, 1.0]


def columns_of(data: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(data.rewards), torch.from_numpy(data.terminated.astype(np.float32))


@given(logs, gammas, st.floats(0, 1, width=32), st.floats(-100, 100, width=32))
def test_a_target_of_mixed_columns_is_the_mix_of_target_and_return(
    episodes: Any, gamma: float, mix: float, value: float
) -> None:
    """r' + gamma (1 - d') V = (1 - k) y + k G, in double precision."""
    data = dataset(episodes)
    value_weight = discounted_returns(data, gamma)
    returns = Returns(*(torch.from_numpy(column) for column in (*value_weight, np.ones(len(data)))))
    rewards, ends = (column.double() for column in columns_of(data))
    mixed = returns.mixed(rewards, ends, mix)
    got = mixed["rewards"] + gamma * (1 - mixed["terminated"]) * value
    for row in range(len(data)):
        k = mix * returns.weight[row].item()
        y = rewards[row].item() + gamma * (1 - ends[row].item()) * value
        assert got[row].item() == pytest.approx((1 - k) * y + k * returns.value[row].item(), rel=1e-9, abs=1e-9)


@given(logs, gammas, st.floats(0, 1, width=32))
def test_mixed_ends_lie_between_the_datas_own_and_1(episodes: Any, gamma: float, mix: float) -> None:
    data = dataset(episodes)
    rewards, ends = columns_of(data)
    mixed = Returns.of(data, gamma, CPU).mixed(rewards, ends, mix)
    assert mixed["rewards"].dtype == mixed["terminated"].dtype == torch.float32
    assert (mixed["terminated"] >= ends).all()
    assert (mixed["terminated"] <= 1).all()
    assert (mixed["terminated"][ends == 1] == 1).all()


@given(logs, gammas)
def test_a_mix_of_nothing_leaves_the_data_and_a_whole_one_leaves_the_return(episodes: Any, gamma: float) -> None:
    data = dataset(episodes)
    rewards, ends = columns_of(data)
    before = rewards.clone(), ends.clone()
    returns = Returns.of(data, gamma, CPU)
    none, whole = (returns.mixed(rewards, ends, mix) for mix in (0.0, 1.0))
    assert torch.equal(none["rewards"], rewards)
    assert torch.equal(none["terminated"], ends)
    exact = returns.weight == 1
    assert torch.equal(whole["rewards"][exact], returns.value[exact])
    assert (whole["terminated"][exact] == 1).all()
    assert torch.equal(rewards, before[0])
    assert torch.equal(ends, before[1])


# How much pieces of the data differ


def test_the_spread_between_episodes_by_hand() -> None:
    """Terminated episodes of returns 4, 2 and 9 in gamma 0: means 3 of two rows and 9 of one, around 5."""
    data = dataset([([4.0, 2.0], "terminated"), ([9.0], "terminated")])
    returns = Returns.of(data, 0.0, CPU)
    assert returns.spread(pieces(data, 1000)).item() == pytest.approx(np.sqrt((2 * 2.0**2 + 4.0**2) / 3))
    assert returns.of_pieces(pieces(data, 1000)).tolist() == pytest.approx([3, 3, 9])


def test_a_long_episode_counts_as_several_pieces_of_equal_length() -> None:
    data = dataset([([1.0] * 7, "truncated"), ([1.0] * 3, "terminated")])
    assert pieces(data, 3).tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3, 3]
    assert pieces(data, 7).tolist() == [0] * 7 + [1] * 3


@given(logs, st.integers(1, 20))
def test_pieces_are_numbered_without_holes_and_never_span_two_episodes(episodes: Any, longest: int) -> None:
    data = dataset(episodes)
    numbers = pieces(data, longest)
    assert set(np.diff(numbers, prepend=-1)) <= {0, 1}
    assert np.bincount(numbers).max() <= longest
    inside = [set(numbers[episode]) for episode in data.episodes()]
    assert sum(map(len, inside)) == numbers[-1] + 1


def test_episodes_that_return_alike_have_no_spread() -> None:
    data = dataset([([1.0] * 5, "terminated")] * 4)
    assert Returns.of(data, 0.9, CPU).spread(pieces(data, 1000)).item() == pytest.approx(0.0, abs=1e-6)


# How returns rise


def slow_rise(data: Dataset, row: int, gamma: float, steps: int) -> float:
    """Walk on for so many steps, or until the log of the episode ends."""
    now = slow_return(data, row, gamma)[0]
    for step in range(steps):
        if data.terminated[row + step]:
            return -now
        if data.truncated[row + step]:
            return slow_return(data, row + step, gamma)[0] - now
    return slow_return(data, row + steps, gamma)[0] - now


@given(logs, gammas, st.integers(1, 15))
def test_a_rise_equals_that_of_a_slow_walk(episodes: Any, gamma: float, steps: int) -> None:
    data = dataset(episodes)
    expected = [slow_rise(data, row, gamma, steps) for row in range(len(data))]
    np.testing.assert_allclose(Returns.of(data, gamma, CPU).rise(data, steps), expected, rtol=1e-4, atol=1e-2)


def test_rises_by_hand() -> None:
    """Of returns 1, 4, 2 to a terminal state and 5, 6 to a time-out, two steps later; gamma 0 makes rewards returns."""
    data = dataset([([1.0, 4.0, 2.0], "terminated"), ([5.0, 6.0], "truncated")])
    assert Returns.of(data, 0.0, CPU).rise(data, 2).tolist() == [1.0, -4.0, -2.0, 1.0, 0.0]
