"""Actions in [-1, 1]: by whose bounds, what is refused, and that the policy undoes the mapping."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import tiny_fields
from hypothesis import given, strategies as st

from mildly.action_space import ActionSpace
from mildly.algorithms import ALGORITHMS
from mildly.data.actions import scale_actions
from mildly.data.dataset import Meta
from mildly.data.findings import Remark
from mildly.data.options import ImportOptions
from mildly.data.registry import load_dataset
from mildly.errors import MildlyError
from mildly.policy import load_policy
from mildly.training.offline import train

REPLAY = Path(__file__).resolve().parents[3] / "shared" / "data" / "pendulum" / "pendulum_replay_v1.1.0.npz"

DOOR = REPLAY.parents[1] / "adroit_human" / "door-human-dapg.npz"
KEPT = (
    "Actions lie within [-1, 1] and were kept. If their bounds are others, give them with --action-low and "
    "--action-high."
)


def scaled(
    values: Any, options: ImportOptions | None = None, *, known: bool = False, refuse: bool = True, **meta: Any
) -> tuple[np.ndarray, Meta, list[str]]:
    """The mapped actions, the description and the notes."""
    actions, notes = np.array(values, dtype=np.float32), []
    found = scale_actions(
        actions,
        Meta("log", **meta),
        options or ImportOptions(),
        notes,
        where="log.csv",
        scaled=known,
        refuse=refuse,
    )
    return actions, found, notes


def bounds(low: float | tuple[float, ...], high: float | tuple[float, ...], **more: Any) -> ImportOptions:
    return ImportOptions(action_low=tuple(np.atleast_1d(low)), action_high=tuple(np.atleast_1d(high)), **more)


# Whose bounds


def test_given_bounds_are_mapped_to_minus_one_and_one() -> None:
    actions, meta, notes = scaled([[-3.0, 10.0], [5.0, 30.0], [1.0, 20.0]], bounds((-3, 10), (5, 30)))
    assert actions.tolist() == [[-1, -1], [1, 1], [0, 0]]
    assert meta.action_space == ActionSpace((-3, 10), (5, 30))
    assert notes == ["Actions were mapped to [-1, 1] from the bounds of the options: -3 to 5, 10 to 30."]


def test_one_bound_is_meant_for_all_columns() -> None:
    actions, meta, _ = scaled([[-4.0, 4.0], [2.0, 0.0]], bounds(-4, 4))
    assert actions.tolist() == [[-1, 1], [0.5, 0]]
    assert meta.action_space == ActionSpace((-4, -4), (4, 4))


def test_the_log_s_own_bounds_come_before_the_environment_s() -> None:
    actions, meta, notes = scaled([[-4.0], [2.0]], env_id="Pendulum-v1", action_space=ActionSpace((-4.0,), (4.0,)))
    assert actions.tolist() == [[-1], [0.5]]
    assert meta.action_space == ActionSpace((-4.0,), (4.0,))
    assert "the bounds of the log" in notes[0]


def test_the_environment_s_bounds_are_used_where_nobody_gives_any() -> None:
    actions, meta, notes = scaled([[-2.0], [1.5], [0.0]], env_id="Pendulum-v1")
    assert actions.tolist() == [[-1], [0.75], [0]]
    assert meta.action_space == ActionSpace((-2.0,), (2.0,))
    assert notes == ["Actions were mapped to [-1, 1] from the bounds of the environment: -2 to 2."]


def test_an_environment_that_is_not_installed_matters_only_if_the_user_names_it() -> None:
    actions, _, notes = scaled([[-0.5], [0.7]], env_id="NoSuchRobot-v0")
    assert actions.tolist() == np.float32([[-0.5], [0.7]]).tolist()
    assert notes == [KEPT]
    with pytest.raises(MildlyError, match="NoSuchRobot-v0"):
        scaled([[-0.5], [0.7]], ImportOptions(env="NoSuchRobot-v0"), env_id="NoSuchRobot-v0")


def test_an_environment_with_another_number_of_actions_is_refused() -> None:
    with pytest.raises(MildlyError, match="actions of size 2, but environment 'Pendulum-v1' of 1"):
        scaled([[0.0, 5.0]], env_id="Pendulum-v1")


def test_bounds_are_found_in_the_data_and_the_note_says_so() -> None:
    actions, meta, notes = scaled([[-3.0], [1.0], [5.0]])
    assert actions.tolist() == [[-1], [0], [1]]
    assert meta.action_space == ActionSpace((-3.0,), (5.0,))
    assert "found in the data: -3 to 5" in notes[0]
    assert "--action-low and --action-high" in notes[0]


def test_columns_that_use_both_signs_within_one_are_left_alone() -> None:
    values = np.float32([[-0.3, 0.9], [0.2, -0.1]])
    actions, meta, notes = scaled(values)
    assert actions.tolist() == values.tolist()
    assert (meta.action_space, notes) == (None, [KEPT])


@pytest.mark.parametrize("second", [[-0.5, 0.5, 0.1], [-0.5, -0.1, -0.2], [-1.0004, 0.0, 0.0]])
def test_a_one_sided_column_is_kept_where_others_show_that_the_actions_are_scaled(second: list[float]) -> None:
    values = np.float32([[0.0, 0.25, 0.5], second]).T
    actions, meta, notes = scaled(values)
    assert actions.tolist() == values.tolist()
    assert (meta.action_space, notes) == (None, [KEPT])


def test_one_column_beyond_the_range_has_all_columns_mapped_from_what_they_show() -> None:
    actions, meta, _ = scaled([[0.0, -0.5, -3.0], [0.25, 0.5, 1.0], [1.0, 0.0, 5.0]])
    assert actions.tolist() == [[-1, -1, -1], [-0.5, 1, 0], [1, 0, 1]]
    assert meta.action_space == ActionSpace((0, -0.5, -3), (1, 0.5, 5))


def test_one_sided_actions_are_mapped_even_within_the_range() -> None:
    actions, meta, _ = scaled([[0.0], [0.25], [1.0]])
    assert actions[:, 0].tolist() == [-1, -0.5, 1]
    assert meta.action_space == ActionSpace((0,), (1,))


def test_long_lists_of_bounds_are_shortened() -> None:
    _, _, notes = scaled([np.arange(28.0), -np.arange(28.0)])
    assert "found in the data: 28 columns, from -27 to 27." in notes[0]


def test_the_real_door_demonstrations_are_kept_as_they_are() -> None:
    if not DOOR.is_file():
        pytest.skip("the door demonstrations are not here (looked in ../shared/data of the project's root)")
    dataset = load_dataset(DOOR)
    with np.load(DOOR) as raw:
        low, high = raw["actions"].min(axis=0), raw["actions"].max(axis=0)
    np.testing.assert_allclose(dataset.actions.min(axis=0), low, atol=0.2)
    np.testing.assert_allclose(dataset.actions.max(axis=0), high, atol=0.2)
    assert (dataset.meta.action_space, KEPT in dataset.meta.notes) == (None, True)


def test_a_constant_column_becomes_zero_and_can_be_undone() -> None:
    actions, meta, _ = scaled([[7.0, -3.0], [7.0, 3.0]])
    assert actions.tolist() == [[0, -1], [0, 1]]
    assert meta.action_space == ActionSpace((6, -3), (8, 3))


def valve(rows: int = 1000) -> np.ndarray:
    """Positions between 0 and 100, and a second column that is nearly always closed."""
    random = np.random.default_rng(0)
    seldom = np.where(random.random(rows) < 0.005, 80.0, 0.0)
    seldom[7] = 80.0
    return np.stack([random.uniform(0, 100, rows), seldom], axis=1)


@pytest.mark.parametrize("refuse", [True, False])
def test_bounds_found_in_the_data_ignore_isolated_outliers_and_say_so(refuse: bool) -> None:
    values = valve()
    values[17, 0], values[500, 0], values[800, 0] = -999, 65535, np.nan
    actions, meta, notes = scaled(values, refuse=refuse)
    assert meta.action_space is not None
    assert 0 <= meta.action_space.low[0] < 1
    assert 99 < meta.action_space.high[0] <= 100
    assert meta.action_space.high[1] == 80  # an actuator that is seldom used
    assert actions[17, 0] == -1
    assert actions[500, 0] == 1
    found = Remark.of(notes[0])
    assert (found.severity, found.code) == ("warning", "action-outliers")
    assert found.evidence == "2 values: -999 in row 17, column 0; 65535 in row 500, column 0."


def test_an_outlier_among_scaled_actions_is_clipped_and_the_others_are_kept() -> None:
    values = np.random.default_rng(0).uniform(-1, 1, (1000, 2))
    expected = np.float32(values)
    values[3, 1], expected[3, 1] = 9999, 1
    actions, meta, notes = scaled(values)
    assert (meta.action_space, notes[1]) == (None, KEPT)
    np.testing.assert_array_equal(actions, expected)


@pytest.mark.parametrize("rows", [10, 199])
def test_of_few_values_none_is_an_outlier(rows: int) -> None:
    values = valve(rows)
    values[5, 0] = 9999
    _, meta, notes = scaled(values)
    assert meta.action_space is not None
    assert meta.action_space.high[0] == 9999
    assert len(notes) == 1


@pytest.mark.parametrize("kind", ["normal", "laplace", "uniform", "exponential", "bang-bang", 0.004, 0.006, 0.06])
def test_no_value_of_a_usual_distribution_is_an_outlier(kind: str | float) -> None:
    random = np.random.default_rng(1)
    if kind == "bang-bang":
        values = random.choice([0.0, 5.0], (20_000, 3))
    elif isinstance(kind, float):  # used as often as that
        values = random.uniform(0, 80, (20_000, 3)) * (random.random((20_000, 3)) < kind)
    else:
        values = 10 * getattr(random, kind)(size=(20_000, 3))
    assert len(scaled(values)[2]) == 1


def test_bounds_that_are_given_know_no_outliers() -> None:
    values = valve()
    values[17, 0] = -999
    with pytest.raises(MildlyError, match="row 17, column 0 is -999"):
        scaled(values, bounds(0, 100))


def test_bounds_are_found_over_all_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mildly.data.content.BLOCK", 2)
    actions, meta, _ = scaled([[0.0], [4.0], [8.0], [-2.0], [3.0]])
    assert meta.action_space == ActionSpace((-2,), (8,))
    assert actions[:, 0].tolist() == np.float32([-0.6, 0.2, 1, -1, 0]).tolist()


@given(st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3), min_size=1, max_size=20))
def test_found_bounds_always_lead_into_the_range_and_back(values: list[list[float]]) -> None:
    given_actions = np.array(values, dtype=np.float32)
    actions, meta, _ = scaled(given_actions)
    assert np.abs(actions).max() <= 1 + 1e-3
    space = meta.action_space or ActionSpace.unit(3)
    np.testing.assert_allclose(space.from_unit(actions.astype(np.float64)), given_actions, atol=1e-3, rtol=1e-5)


# Already scaled


def test_scaled_actions_are_left_alone_and_bounds_say_what_they_mean() -> None:
    values = [[-1.0], [0.5]]
    actions, meta, notes = scaled(values, bounds(-3, 5, scaled=True))
    assert actions.tolist() == values
    assert meta.action_space == ActionSpace((-3.0,), (5.0,))
    assert notes == ["The actions are in [-1, 1] already; -1 and +1 now mean -3 to 5."]
    actions, meta, _ = scaled([[0.2], [0.9]], known=True)  # one-sided, and yet not looked at
    assert actions.tolist() == np.float32([[0.2], [0.9]]).tolist()
    assert meta.action_space is None


def test_scaled_actions_need_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mildly.environments.make_env", lambda env_id: pytest.fail("was made"))
    assert scaled([[0.5]], ImportOptions(scaled=True), env_id="Pendulum-v1")[0].tolist() == [[0.5]]


@pytest.mark.parametrize(("largest", "guess"), [(0.99, True), (1.0, True), (1.3, False), (0.5, False)])
def test_actions_that_fill_the_range_where_the_environment_allows_more_are_taken_for_scaled(
    largest: float, guess: bool
) -> None:
    actions, meta, notes = scaled([[-largest], [largest / 2]], env_id="Pendulum-v1")
    assert actions[0, 0] == pytest.approx(-largest if guess else -largest / 2)
    assert ("taken for scaled already" in notes[0]) == guess
    assert meta.action_space == ActionSpace((-2.0,), (2.0,))


def test_the_real_pendulum_replay_is_recognized_as_scaled() -> None:
    if not REPLAY.is_file():
        pytest.skip("the Pendulum replay file is not here (looked in ../shared/data of the project's root)")
    dataset = load_dataset(REPLAY, env="Pendulum-v1")
    with np.load(REPLAY) as raw:
        np.testing.assert_array_equal(dataset.actions, raw["actions"])
    assert dataset.meta.action_space == ActionSpace((-2.0,), (2.0,))
    assert any("taken for scaled already" in note for note in dataset.meta.notes)
    # The environment's own equation, with torque = 2 a, gives the new speed (the file's time-outs have a reset's).
    inside = ~dataset.truncated
    _, sin, speed = dataset.observations[inside].T
    expected = speed + (15 * sin + 3 * 2 * dataset.actions[inside, 0]) * 0.05
    np.testing.assert_allclose(dataset.next_observations[inside, 2], expected.clip(-8, 8), atol=1e-4)


# Beyond the bounds


def test_an_action_beyond_the_bounds_is_refused_with_place_bounds_and_remedy() -> None:
    with pytest.raises(MildlyError) as caught:
        scaled([[0.0, 0.0], [1.0, -3.5]], bounds(-3, 5))
    message = str(caught.value)
    for words in ("log.csv: ", "between -3 and 5", "row 1, column 1 is -3.5", "--action-low", "--clip-actions"):
        assert words in message


def test_the_row_named_is_the_log_s_own_in_a_later_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mildly.data.content.BLOCK", 2)
    with pytest.raises(MildlyError, match="row 4, column 0 is 9"):
        scaled([[0.0], [1.0], [2.0], [3.0], [9.0]], bounds(-3, 5))


def test_clipping_is_done_and_told() -> None:
    actions, _, notes = scaled([[0.0], [1.0], [-9.0], [5.5]], bounds(-3, 5, clip_actions=True))
    assert actions[:, 0].tolist() == [-0.25, 0, -1, 1]
    assert "Actions beyond the bounds were clipped in 2 rows." in notes


def test_without_refusal_all_stays_as_it_is() -> None:
    actions, meta, _ = scaled([[-3.0], [np.nan], [9.0], [np.inf]], bounds(-3, 5), refuse=False)
    assert actions[[0, 2], 0].tolist() == [-1, 2]
    assert np.isnan(actions[1, 0])
    assert np.isinf(actions[3, 0])
    assert meta.action_space == ActionSpace((-3.0,), (5.0,))


def test_bounds_are_found_around_nan_and_infinities() -> None:
    actions, meta, _ = scaled([[-3.0, np.nan], [np.nan, np.nan], [5.0, np.inf]], refuse=False)
    assert meta.action_space == ActionSpace((-3, -1), (5, 1))
    assert actions[[0, 2], 0].tolist() == [-1, 1]


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        ((-1, -1, -1), (1, 1, 1), r"log\.csv: action-low: 3 given for 2 action columns; give one, or one for each"),
        ((-1, 2), (1, 2), "action-low and action-high: .* the lower below the upper, got -1 to 1, 2 to 2"),
        ((3,), (-3,), "action-low and action-high: .* the lower below the upper"),
        ((-np.inf,), (np.inf,), "action-low and action-high: .* the lower below the upper"),
        ((np.nan,), (1.0,), "action-low and action-high: .* the lower below the upper"),
    ],
)
def test_wrong_bounds_are_refused(low: tuple[float, ...], high: tuple[float, ...], words: str) -> None:
    with pytest.raises(MildlyError, match=words):
        scaled([[0.0, 0.0]], bounds(low, high))


def test_a_log_whose_own_bounds_are_too_few_is_refused() -> None:
    with pytest.raises(MildlyError, match=r"log\.csv: states 1 action bound for 2 action column"):
        scaled([[0.0, 0.0]], action_space=ActionSpace.unit(1))


def test_a_constant_too_large_to_have_bounds_around_it_is_refused() -> None:
    with pytest.raises(MildlyError, match=r"log\.csv: the bounds found in its actions cannot be used"):
        scaled([[1e30], [1e30]])


# The way back


def test_the_policy_undoes_the_mapping(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = 400
    observations = random.normal(size=(rows, 3))
    torques = np.where(observations[:, :1] > 0, 4.5, -2.5)  # in the log's own units
    np.savez(tmp_path / "log.npz", obs=observations, actions=torques, rewards=np.zeros(rows))
    dataset = load_dataset(tmp_path / "log.npz", action_low=-3, action_high=5)
    np.testing.assert_allclose(np.unique(dataset.actions), [-0.875, 0.875])
    fields = {**tiny_fields(ALGORITHMS["bc"]), "batch_size": 64, "actor_lr": 0.01, "steps": 300}
    run = train("bc", dataset=dataset, **fields, out=tmp_path / "run")
    policy = load_policy(run.path)
    assert policy.action_space == ActionSpace((-3.0,), (5.0,))
    far = policy.act(random.normal(size=(200, 3)) * 1e4)
    assert far.min() >= -3
    assert far.max() <= 5
    one_side, other = policy.act(np.array([[2.0, 0, 0], [-2.0, 0, 0]]))
    assert one_side[0] > 2.5
    assert other[0] < -0.5
    raw = dataclasses.replace(policy, action_space=None)
    seen = np.asarray(dataset.observations[:50])
    np.testing.assert_allclose(policy.act(seen), 1 + 4 * raw.act(seen), atol=1e-5)  # the mapping's inverse


def test_mapping_and_policy_are_inverse_to_each_other() -> None:
    values = np.random.default_rng(1).uniform(-3, 5, (50, 1)).astype(np.float32)
    actions, meta, _ = scaled(values, bounds(-3, 5))
    assert meta.action_space is not None
    np.testing.assert_allclose(meta.action_space.from_unit(actions), values, atol=1e-6)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_clipping_does_not_hide_an_action_that_is_not_finite(tmp_path: Path, value: float) -> None:
    lines = [f"{i},{value if i == 3 else 0.5 - i},1.0,0" for i in range(6)]
    (tmp_path / "log.csv").write_text("\n".join(["obs_0,action_0,reward,episode", *lines]) + "\n")
    with pytest.raises(MildlyError, match="NaN or infinite"):
        load_dataset(tmp_path / "log.csv", action_low=-1, action_high=1, clip_actions=True)
