"""Skill is told from luck: rarely seen in noise, seen where policies differ; and findings about learning agree."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from checked import changed, codes, found, made, problem

from mildly.data.check import check
from mildly.data.check.inspection import Inspection
from mildly.data.check.luck import LuckTest, luck_test
from mildly.data.dataset import Array, Dataset
from mildly.data.registry import load_dataset

Noise = Callable[[np.random.Generator, int], Array]


def correlated(random: np.random.Generator, steps: int, memory: float = 0.8) -> Array:
    values = random.normal(size=steps)
    values[0] /= np.sqrt(1 - memory**2)
    for step in range(1, steps):
        values[step] += memory * values[step - 1]
    return values


NOISE: dict[str, Noise] = {
    "independent": lambda random, steps: random.normal(size=steps),
    "correlated": correlated,
    "slow": lambda random, steps: correlated(random, steps, 0.95),
    "heavy": lambda random, steps: random.standard_t(2, size=steps),
    "rising": lambda random, steps: random.normal(size=steps) + np.arange(steps) / 20,
    "alive": lambda random, steps: 1 + 0.1 * random.normal(size=steps),
}
UNEQUAL = ("rising", "alive")


def logged(noise: str, seed: int, skill: float = 0.0, episodes: int = 0) -> Dataset:
    """Episodes of pure noise; with skill, every third is better and every third worse, in random order."""
    random = np.random.default_rng([seed, sorted(NOISE).index(noise)])
    episodes, length = episodes or int(random.choice([12, 30, 100, 300])), int(random.choice([20, 50, 200]))
    lengths = np.maximum(6, random.geometric(1 / length, episodes)) if noise in UNEQUAL else [length] * episodes
    level = skill * (random.permutation(episodes) % 3 - 1)
    rewards = [NOISE[noise](random, int(steps)) + level[i] for i, steps in enumerate(lengths)]
    return changed(made(lengths, seed=seed), rewards=np.concatenate(rewards).astype(np.float32))


def outcome(data: Dataset) -> LuckTest:
    with np.errstate(all="ignore"):
        return luck_test(Inspection(data, thorough=False))


def false_alarms(noise: str, sets: int, episodes: int = 0) -> float:
    tests = [outcome(logged(noise, seed, episodes=episodes)) for seed in range(sets)]
    return float(np.mean([test.skill or test.unexplained for test in tests]))


def test_noise_is_rarely_taken_for_skill() -> None:
    assert np.mean([false_alarms(noise, 5, episodes=30) for noise in NOISE]) <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISE)
def test_noise_is_taken_for_skill_in_few_of_two_hundred_sets(noise: str) -> None:
    assert false_alarms(noise, 200) <= 0.04


@pytest.mark.parametrize("noise", ["independent", "correlated", "heavy"])
def test_episodes_that_are_better_throughout_are_told_though_they_are_in_no_order(noise: str) -> None:
    for seed in range(3):
        test = outcome(logged(noise, seed, skill=1.0, episodes=100))
        assert test.halves is None or test.skill


def test_the_size_of_luck_is_what_one_policy_makes() -> None:
    """Of independent noise the returns' deviation is the root of the length, whatever the skill."""
    for skill in (0.0, 2.0):
        data = changed(
            made([100] * 200),
            rewards=np.random.default_rng(1).normal(size=20_000) + skill * np.repeat(np.arange(200) % 3, 100),
        )
        test = outcome(data)
        assert test.luck == pytest.approx(10.0, rel=0.1)
        assert test.spread == pytest.approx(np.hypot(10.0, skill * 100 * np.sqrt(2 / 3)), rel=0.1)


def of_operators(who: Array) -> Dataset:
    """Episodes that return 1000 or 1200; the state tells who acts, so that halves tell nothing more."""
    data, acting = made([50] * len(who)), np.repeat(who, 50)[:, None].astype(np.float32)
    rewards = 20 + 4 * acting[:, 0] + 4 * np.random.default_rng(2).normal(size=len(data))
    return changed(data, rewards=rewards.astype(np.float32), observations=acting, next_observations=acting)


def test_episodes_that_take_turns_in_being_good_differ_by_more_than_luck() -> None:
    finding = problem(of_operators(np.arange(60) % 2), "returns-differ")
    assert "does not predict what it earns late" in finding.evidence
    assert "Good and bad episodes take turns in the log (rank correlation -0." in finding.evidence
    assert "p < 0.001 of neighbors" in finding.evidence


def test_a_spread_far_above_luck_is_not_called_luck_though_no_test_sees_a_pattern() -> None:
    data = of_operators(np.random.default_rng(0).permutation(np.arange(60) % 2))
    test = outcome(data)
    assert not test.skill
    assert test.spread > 3 * test.luck
    finding = problem(data, "returns-unexplained")
    assert "cannot tell whether the better ones were acted better" in finding.what
    assert "Find out what sets the best episodes apart" in finding.advice
    assert found(data, "returns-luck") is None


@pytest.mark.parametrize("name", ["pendulum-mixed", "hopper-mixed"])
def test_policies_of_the_built_in_sets_differ_by_more_than_luck(name: str) -> None:
    finding = problem(load_dataset(name), "returns-differ")
    assert "Good and bad episodes stand together in the log" in finding.evidence
    assert "p < 0.001" in finding.evidence


def test_what_cannot_be_told_from_luck_is_said_to_be_so() -> None:
    finding = problem(logged("independent", 1, episodes=100), "returns-luck")
    assert finding.severity == "info"
    assert "cannot be told from luck" in finding.what
    assert "does not predict what it earns late (rank correlation" in finding.evidence
    assert "Luck alone would spread returns by about" in finding.evidence
    assert "Do not pick episodes by their return (`mildly train bc --best-episodes`)" in finding.advice


def policy(data: Dataset) -> Dataset:
    """The same data with the actions of one deterministic policy."""
    smooth = np.tanh(data.observations[:, :2] @ np.array([[1.0, -0.5], [0.4, 1.2]]))
    return changed(data, actions=smooth.astype(np.float32))


def test_findings_about_learning_agree() -> None:
    """Nobody is told to expect no more than imitation and to learn something beyond it."""
    skilled = policy(made([40] * 200))
    words = [f"{finding.what} {finding.advice}" for finding in check(skilled)]
    assert {"deterministic-behavior", "returns-differ"} <= codes(skilled, "warning", "info")
    assert not any("no more than imitation" in text or "beyond imitation" in text for text in words)
    assert sum("--best-episodes 0.1" in text for text in words) == 2
    lucky = policy(logged("independent", 1, episodes=100))
    assert "no more than imitation" in problem(lucky, "deterministic-behavior").advice
    assert found(lucky, "returns-differ") is None
