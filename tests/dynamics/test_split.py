"""What is learned from and what is held out, and every member's own resample."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from systems import EPISODE, pushed, tiny_learner

from mildly.data.dataset import Dataset
from mildly.dynamics.split import Bootstraps, Split, moments

DATA = pushed(1000)


def test_rows_have_one_use_each_and_test_episodes_are_whole() -> None:
    split = Split.of(DATA, 0.1)
    tested = np.concatenate([np.arange(DATA.rewards.size)[episode] for episode in split.test])
    everything = np.concatenate([split.train, split.validation, tested])
    assert sorted(everything.tolist()) == list(range(1000))
    assert len(split.test) == 4
    assert all(episode in DATA.episodes() for episode in split.test)
    assert len(split.validation) == (1000 - 4 * EPISODE) // 5


def test_the_same_data_are_split_alike_and_the_hold_out_has_the_authors_size() -> None:
    assert all(np.array_equal(a, b) for a, b in zip(Split.of(DATA, 0.1)[:2], Split.of(DATA, 0.1)[:2], strict=True))
    assert len(Split.of(DATA, 0.0).validation) == 200
    assert Split.of(DATA, 0.0).test == []
    assert len(Split.of(pushed(6000), 0.0).validation) == 1000


def test_an_only_episode_is_learned_from() -> None:
    one = pushed(EPISODE)
    assert Split.of(one, 0.5).test == []
    assert len(Split.of(one, 0.5).train) == 20


def bootstraps(rows: int, members: int) -> Bootstraps:
    keys = torch.randint(-(2**62), 2**62, (members, 1), generator=torch.Generator().manual_seed(3))
    return Bootstraps(DATA, np.arange(rows), 8, torch.device("cpu"), lambda: keys)


def test_a_resample_is_always_the_same_and_holds_two_thirds_of_the_rows() -> None:
    sampler = bootstraps(1000, 7)
    draws = torch.arange(1000).expand(7, 1000)
    resamples = sampler.resampled(draws)
    assert torch.equal(resamples, sampler.resampled(draws))
    assert resamples.min() >= 0
    assert resamples.max() < 1000
    for member in resamples:
        assert abs(len(member.unique()) / 1000 - (1 - np.exp(-1))) < 0.04
        assert abs(member.double().mean() - 499.5) < 30
    assert all(len((a == b).nonzero()) < 20 for a, b in pairwise(resamples))


def test_each_member_gets_rows_of_its_own_in_the_units_of_the_data() -> None:
    sampler, random = bootstraps(50, 3), torch.Generator().manual_seed(0)
    batch = sampler.sample(random)
    assert batch.observations.shape == (3, 8, 2)
    assert batch.rewards.shape == (3, 8)
    logged = {tuple(row): i for i, row in enumerate(DATA.observations[:50].tolist())}
    rows = [logged[tuple(row)] for row in batch.observations.flatten(0, 1).tolist()]
    np.testing.assert_array_equal(batch.actions.flatten(0, 1), DATA.actions[rows])
    np.testing.assert_array_equal(batch.next_observations.flatten(0, 1), DATA.next_observations[rows])
    np.testing.assert_array_equal(batch.rewards.flatten(), DATA.rewards[rows])
    assert rows[:8] != rows[8:16]


def test_moments_are_those_of_the_rows_and_a_constant_column_is_left_alone() -> None:
    arrays = {name: np.array(getattr(DATA, name)) for name in ("observations", "actions", "next_observations")}
    arrays["observations"][:, 1] = arrays["next_observations"][:, 1] = 21.7
    data = Dataset.from_arrays(
        **arrays, rewards=DATA.rewards, terminated=DATA.terminated, truncated=DATA.truncated, meta=DATA.meta
    )
    rows = np.arange(0, 1000, 3)
    found = moments(data, rows)
    inputs = np.concatenate([data.observations, data.actions], axis=1)[rows].astype(np.float64)
    targets = np.concatenate([data.next_observations - data.observations, data.rewards[:, None]], axis=1)[rows]
    np.testing.assert_allclose(found["input_mean"], inputs.mean(0), rtol=1e-5)
    np.testing.assert_allclose(found["target_mean"], targets.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["input_std"], [inputs[:, 0].std(), 1.0, inputs[:, 2].std()], rtol=1e-6)
    np.testing.assert_allclose(found["target_std"], [targets[:, 0].std(), 1.0, targets[:, 2].std()], rtol=1e-4)


def test_an_epoch_is_as_many_steps_as_see_all_rows_once() -> None:
    learner = tiny_learner(DATA, test_episodes=0.1)
    assert learner.steps_per_epoch == int(np.ceil((900 - 180) / 16))
