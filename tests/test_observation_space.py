"""A policy that knows its log: observations by name, guards against what the data do not cover, and their files."""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from conftest import Refused, make_dataset, unsealed

from mildly.action_space import ActionSpace
from mildly.actors import TanhGaussianActor
from mildly.data.convert import convert
from mildly.data.dataset import Dataset
from mildly.data.normalize import Normalizer
from mildly.errors import MildlyError
from mildly.observation_space import QUANTILES, ObservationSpace, Unseen, UnseenError, UnseenWarning
from mildly.policy import Policy, load_policy
from mildly.training.offline import train

NAMES, UNITS = ("room", "setpoint", "sun"), ("degC", "degC", "")
LOG = np.random.default_rng(0).uniform((15, 21, 0), (25, 21, 500), (1000, 3)).astype(np.float32)
"""A room between 15 and 25 degrees whose setpoint was never changed."""
SPACE = ObservationSpace.of(LOG, NAMES, UNITS)
USUAL = {"room": 20.0, "setpoint": 21.0, "sun": 100.0}
ROW = np.array([20.0, 21.0, 100.0], np.float32)


@pytest.fixture
def policy() -> Policy:
    torch.manual_seed(1)
    mean, std = torch.tensor(LOG.mean(0)), torch.tensor([3.0, torch.inf, 150.0])
    return Policy(
        TanhGaussianActor(3, 2, (6,)),
        Normalizer(mean, std),
        ActionSpace((0.0, 0.0), (100.0, 1.0)),
        observation_space=SPACE,
        action_names=("valve", "fan"),
        action_units=("%", ""),
    )


def test_a_policy_shows_itself_in_a_line(policy: Policy) -> None:
    assert repr(policy) == "<Policy, tanh-gaussian: observation 3 (room, setpoint, sun), action 2 (valve, fan)>"
    assert repr(Policy(TanhGaussianActor(3, 2, (6,)))) == "<Policy, tanh-gaussian: observation 3, action 2>"


# By name


def structured(rows: np.ndarray) -> np.ndarray:
    made = np.zeros(len(rows), [(name, np.float64) for name in reversed(NAMES)])
    for i, name in enumerate(NAMES):
        made[name] = rows[:, i]
    return made


class Frame:
    """What of a pandas table a policy needs: its names by `keys`, its columns by name."""

    def __init__(self, columns: dict[Any, Any]) -> None:
        self.columns = columns

    def keys(self) -> list[Any]:
        return list(self.columns)

    def __getitem__(self, name: Any) -> Any:
        return self.columns[name]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.stack(list(self.columns.values()), axis=1).astype(dtype)


def by_column(rows: np.ndarray) -> dict[str, np.ndarray]:
    """In another order than the log's."""
    return {name: rows[:, i] for i, name in reversed(list(enumerate(NAMES)))}


@pytest.mark.parametrize(
    "table",
    [
        by_column,
        lambda rows: {name: column.tolist() for name, column in by_column(rows).items()},
        lambda rows: pyarrow.table(by_column(rows)),
        lambda rows: pyarrow.table(by_column(rows)).to_batches()[0],
        lambda rows: Frame(by_column(rows)),
        lambda rows: Polars(by_column(rows)),
        structured,
    ],
    ids=["mapping", "lists", "pyarrow", "batch", "pandas", "polars", "structured"],
)
def test_tables_of_any_kind_are_read_by_name_not_by_order(policy: Policy, table: Callable[..., Any]) -> None:
    assert np.array_equal(policy.act(table(LOG[:7])), policy.act(LOG[:7]))


class Polars(SimpleNamespace):
    """What of a polars table a policy needs: `columns` is a list of names."""

    def __init__(self, content: dict[str, Any]) -> None:
        super().__init__(content=content, columns=list(content))

    def __getitem__(self, name: str) -> Any:
        return self.content[name]


def test_one_observation_by_name_gives_one_action(policy: Policy) -> None:
    expected = policy.act(ROW)
    assert np.array_equal(policy.act(USUAL), expected)
    assert np.array_equal(policy.act(structured(ROW[None])[0]), expected)
    assert np.array_equal(policy.start(1).act(USUAL), expected)


def test_one_number_may_stand_for_all_rows(policy: Policy) -> None:
    given = {"room": [19.0, 20.0], "setpoint": 21.0, "sun": [0.0, 10.0]}
    assert np.array_equal(policy.act(given), policy.act([[19, 21, 0], [20, 21, 10]]))


def test_a_table_with_numbered_columns_is_taken_in_its_order(policy: Policy) -> None:
    frame = Frame(dict(enumerate(LOG[:4].T)))
    assert np.array_equal(policy.act(frame), policy.act(LOG[:4]))


def test_a_missing_and_an_unknown_name_are_refused_with_the_nearest(policy: Policy, refused: Refused) -> None:
    refused(lambda: policy.act({"room": 20.0, "sun": 0.0}), "lack 'setpoint'", "3 columns")
    wrong = {"room": 20.0, "set_point": 21.0, "sun": 0.0}
    refused(lambda: policy.act(wrong), "unknown observation column 'set_point'", "Did you mean 'setpoint'?")
    refused(lambda: policy.act({**USUAL, "door": 1.0}), "unknown observation column 'door'", "room, setpoint, sun")
    refused(lambda: policy.act({0: 20.0, 1: 21.0, 2: 0.0}), "unknown observation column '0'")


def test_what_is_no_number_is_refused_by_name(policy: Policy, refused: Refused) -> None:
    refused(lambda: policy.act({**USUAL, "sun": "bright"}), "'sun' holds something else than numbers")
    refused(lambda: policy.act({**USUAL, "sun": None}), "NaN or infinite values, in sun")
    lengths = {"room": [1.0, 2.0], "setpoint": [1.0, 2.0, 3.0], "sun": 0.0}
    refused(lambda: policy.act(lengths), "columns of different lengths", "'room' (2,)", "'setpoint' (3,)")


def test_a_policy_without_names_takes_no_mapping(policy: Policy, refused: Refused) -> None:
    nameless = dataclasses.replace(policy, observation_space=None, action_names=())
    for each in (nameless, dataclasses.replace(policy, observation_space=ObservationSpace.of(LOG))):
        refused(lambda each=each: each.act(USUAL), "knows no names", "give an array")
    assert np.array_equal(nameless.act(Frame(dict(zip(NAMES, LOG[:2].T, strict=True)))), policy.act(LOG[:2]))
    refused(lambda: nameless.named(np.zeros(2)), "knows no names of actions")


def test_actions_go_by_the_names_of_the_log(policy: Policy) -> None:
    one, many = policy.act(ROW), policy.act(LOG[:3])
    assert policy.named(one) == {"valve": one[0], "fan": one[1]}
    assert {name: column.tolist() for name, column in policy.named(many).items()} == {
        "valve": many[:, 0].tolist(),
        "fan": many[:, 1].tolist(),
    }


# Guards


def test_the_space_of_data_holds_their_range_and_quantiles() -> None:
    data = np.stack([np.arange(101.0), np.full(101, 7.0)], axis=1)
    space = ObservationSpace.of(data)
    assert (space.low, space.high) == ((0.0, 7.0), (100.0, 7.0))
    assert [row[0] for row in space.quantiles] == [100 * q for q in QUANTILES]
    assert space.constant.tolist() == [1]
    lower, upper = space.limits  # a tenth of 98, the spread between 1 and 99, beyond the range
    np.testing.assert_allclose((lower[0], upper[0]), (-9.8, 109.8), rtol=1e-6)


def test_a_single_outlier_in_the_data_does_not_widen_the_margin() -> None:
    data = np.arange(1001.0)[:, None]
    data[500] = 1e6
    assert ObservationSpace.of(data).limits[1][0] == pytest.approx(1e6 + 98, abs=2)


def test_a_flag_that_was_rarely_set_was_seen() -> None:
    data = np.zeros((1000, 1))
    data[3] = 1.0
    space = ObservationSpace.of(data)
    assert space.unseen(np.array([[0.0], [1.0], [1.05]])) == []
    assert [each.value for each in space.unseen(np.array([[0.5], [2.0], [-1.0]]))] == [2.0, -1.0]


def test_unseen_tells_row_column_value_and_range(policy: Policy) -> None:
    rows = np.array([[20, 21, 100], [500, 21, 100], [20, 22, -200]])
    room, setpoint, sun = policy.unseen(rows)
    assert room == Unseen(1, "room", 500.0, SPACE.low[0], SPACE.high[0], "degC")
    assert (setpoint.row, setpoint.column, setpoint.value, setpoint.low, setpoint.high) == (2, "setpoint", 22, 21, 21)
    assert (sun.row, sun.column, sun.value) == (2, "sun", -200.0)
    assert str(setpoint) == "setpoint is 22 degC (in the training data always 21 degC)"
    assert str(room) == f"room is 500 degC (in the training data {SPACE.low[0]:g} to {SPACE.high[0]:g} degC)"
    assert policy.unseen(USUAL) == policy.unseen(LOG) == []
    assert [each.row for each in policy.unseen({**USUAL, "room": 500.0})] == [0]


def test_what_lies_a_little_beyond_the_range_is_ordinary(policy: Policy) -> None:
    spread = SPACE.quantiles[-1][0] - SPACE.quantiles[0][0]
    inside, outside = SPACE.high[0] + 0.09 * spread, SPACE.high[0] + 0.11 * spread
    assert policy.unseen({**USUAL, "room": inside}) == []
    assert len(policy.unseen({**USUAL, "room": outside})) == 1


def test_a_warning_comes_once_for_a_column_and_a_policy(policy: Policy) -> None:
    with pytest.warns(UnseenWarning, match=r"room is 500 degC .*15.* to 2.* degC\)\.$") as caught:
        policy.act({**USUAL, "room": 500.0})
    assert caught[0].filename == __file__  # the warning shows the line that acted
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy.act({**USUAL, "room": 501.0})
        policy.act(USUAL)
    with pytest.warns(UnseenWarning, match="sun is 900") as caught:
        policy.start(1).act({**USUAL, "room": 500.0, "sun": 900.0})
    assert caught[0].filename == __file__
    with pytest.warns(UnseenWarning, match="room is 500"):
        dataclasses.replace(policy).act({**USUAL, "room": 500.0})


def test_raise_stops_and_tells_what_it_was(policy: Policy) -> None:
    with pytest.raises(UnseenError, match=r"unlike the training data: room is 500 degC") as caught:
        policy.act([[500, 21, 0], [501, 21, 0], [20, 21, 0]], unseen="raise")
    assert isinstance(caught.value, MildlyError)
    assert [(each.row, each.column) for each in caught.value.unseen] == [(0, "room"), (1, "room")]
    assert np.array_equal(policy.act(LOG, unseen="raise"), policy.act(LOG, unseen="ignore"))


def test_clip_acts_as_at_the_edge_of_the_data(policy: Policy) -> None:
    edge = {**USUAL, "room": SPACE.high[0]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clipped = policy.act({**USUAL, "room": 500.0}, unseen="clip")
        ignored = policy.act({**USUAL, "room": 500.0}, unseen="ignore")
    assert np.array_equal(clipped, policy.act(edge))
    assert not np.array_equal(clipped, ignored)
    started = policy.start(1, unseen="clip").act({**USUAL, "room": 500.0})
    assert np.array_equal(started, clipped)


@pytest.mark.parametrize("normalize", [True, False])
def test_a_column_that_was_constant_never_has_a_say(policy: Policy, normalize: bool) -> None:
    policy = policy if normalize else dataclasses.replace(policy, normalizer=None)
    changed = np.array([20, 22, 100])
    assert np.array_equal(policy.act(changed, unseen="ignore"), policy.act(ROW))
    with pytest.warns(UnseenWarning, match="setpoint is 22 degC"):
        assert np.array_equal(policy.act(changed), policy.act(ROW))
    with pytest.raises(UnseenError, match="setpoint"):
        policy.act(changed, unseen="raise")
    assert changed[1] == 22  # what was given stays as it was


def test_another_word_for_unseen_is_refused(policy: Policy, refused: Refused) -> None:
    refused(lambda: policy.act(ROW, unseen="warm"), "Did you mean 'warn'?")  # type: ignore[arg-type]


def test_many_columns_are_told_in_a_few_words() -> None:
    space = ObservationSpace.of(np.zeros((10, 9)))
    error = UnseenError(space.unseen(np.ones((2, 9))))
    assert str(error).count("in the training data") == 3
    assert str(error).endswith("and 6 more columns.")
    assert "obs_0 is 1" in str(error)


def test_names_cannot_move_the_cursor() -> None:
    space = ObservationSpace.of(np.zeros((2, 1)), ["\x1b[2Jroom"])
    assert "\x1b" not in str(UnseenError(space.unseen(np.ones(1))))


# From a log to a policy


def test_names_and_units_travel_from_the_log_through_the_data_set_to_the_policy(tmp_path: Any) -> None:
    random = np.random.default_rng(0)
    rows = [f"{i // 20},{15 + 10 * random.random():.2f},21,{random.uniform(0, 100):.1f},{random.normal():.3f}"
            for i in range(200)]  # fmt: skip
    header = ["episode,room,setpoint,action_valve,reward", "-,degC,degC,%,EUR"]
    (tmp_path / "log.csv").write_text("\n".join([*header, *rows]) + "\n")
    data = convert(tmp_path / "log.csv", tmp_path / "set")
    meta = Dataset.load(tmp_path / "set").meta
    assert (meta.observation_names, meta.observation_units) == (("room", "setpoint"), ("degC", "degC"))
    assert (meta.action_names, meta.action_units) == (("action_valve",), ("%",))
    sizes: dict[str, Any] = {"hidden_dims": (4,), "batch_size": 8, "steps": 2, "eval_every": 0}
    policy = load_policy(train("bc", tmp_path / "set", out=tmp_path / "run", **sizes).path)
    assert policy.observation_space == ObservationSpace.of(data.observations, ("room", "setpoint"), ("degC", "degC"))
    assert (policy.action_names, policy.action_units) == (("action_valve",), ("%",))
    action = policy.act({"setpoint": 21.0, "room": 20.0})
    assert 0 <= policy.named(action)["action_valve"] <= 100
    with pytest.raises(UnseenError, match="setpoint is 22 degC"):
        policy.act({"setpoint": 22.0, "room": 20.0}, unseen="raise")


def test_a_policy_of_the_best_episodes_knows_their_range_only(tmp_path: Any) -> None:
    data = make_dataset(rows=100)
    returns = data.episode_returns()
    best = data.episodes()[int(np.argmax(returns))]
    sizes: dict[str, Any] = {"hidden_dims": (4,), "batch_size": 8, "steps": 2, "eval_every": 0, "check": False}
    policy = load_policy(train("bc", data, out=tmp_path / "run", best_episodes=0.1, **sizes).path)
    assert policy.observation_space is not None
    assert policy.observation_space.high == tuple(data.observations[best].max(axis=0).tolist())


# Files


def test_a_saved_policy_knows_its_log_again(policy: Policy, tmp_path: Any) -> None:
    loaded = load_policy(policy.save(tmp_path))
    assert loaded.observation_space == SPACE
    assert (loaded.action_names, loaded.action_units) == (("valve", "fan"), ("%", ""))
    assert np.array_equal(loaded.act(by_column(LOG)), policy.act(LOG))
    assert loaded.normalizer is not None
    assert loaded.normalizer.std[1] == torch.inf
    assert loaded.unseen([500, 22, 0]) == policy.unseen([500, 22, 0])
    text = (tmp_path / "policy.json").read_text()
    assert "Infinity" not in text
    assert "NaN" not in text


def test_a_policy_of_before_has_no_guards_and_acts_as_it_did(policy: Policy, tmp_path: Any) -> None:
    path = policy.save(tmp_path) / "policy.json"
    kept = {"observation_mean", "observation_std", "action_low", "action_high"}
    new = ("observation_", "action_")
    old = {key: value for key, value in unsealed(path).items() if key in kept or not key.startswith(new)}
    path.write_text(json.dumps(old))
    loaded = load_policy(tmp_path)
    assert (loaded.observation_space, loaded.action_names) == (None, ())
    assert np.array_equal(loaded.act([500, 21, 0]), policy.act([500, 21, 0], unseen="ignore"))
    assert loaded.unseen([500, 21, 0]) == []


LEVELS = [list(row) for row in SPACE.quantiles]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("observation_low", [0.0, 0.0]),
        ("observation_low", [0.0] * 4),
        ("observation_low", [0.0, 0.0, float("nan")]),
        ("observation_low", [0.0, 0.0, 1e9]),
        ("observation_low", 3),
        ("observation_high", [0.0, 0.0, 0.0]),
        ("observation_high", [1e3, 1e3, float("inf")]),
        ("observation_high", None),
        ("observation_quantiles", LEVELS[:-1]),
        ("observation_quantiles", LEVELS[::-1]),
        ("observation_quantiles", [*LEVELS[:-1], [25.0]]),
        ("observation_quantiles", "many"),
        ("observation_names", ["room"]),
        ("observation_names", "rss"),
        ("observation_names", [1, 2, 3]),
        ("observation_names", ["room", "sun", "x" * 1001]),
        ("observation_units", {"room": "degC"}),
        ("action_names", ["valve"]),
        ("action_units", [None, None]),
        ("action_names", ["valve", "f" * 1001]),
        ("observation_mean", [0.0, 0.0, float("nan")]),
        ("observation_std", [1.0, 1.0, -1.0]),
        ("observation_std", [1.0, 1.0, float("inf")]),
    ],
)
def test_a_damaged_description_of_the_log_is_an_error(policy: Policy, tmp_path: Any, key: str, value: Any) -> None:
    path = policy.save(tmp_path) / "policy.json"
    path.write_text(json.dumps({**unsealed(path), key: value}))
    with pytest.raises(MildlyError, match="damaged"):
        load_policy(tmp_path)


# Cost


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 17])
def test_guards_cost_less_than_a_third_of_acting(size: int) -> None:
    """Processor time by turns, one observation at a time, with the default network."""
    random = np.random.default_rng(0)
    data = random.normal(size=(1000, size)).astype(np.float32)
    data[:, 0] = 1.0  # constant: the guard has most to do
    bare = Policy(TanhGaussianActor(size, 6, (256, 256)), action_space=ActionSpace((-2.0,) * 6, (2.0,) * 6))
    guarded = dataclasses.replace(bare, observation_space=ObservationSpace.of(data, [f"x{i}" for i in range(size)]))
    times = []
    for _ in range(41):
        turn = []
        for each in (bare, guarded):
            start = time.process_time()
            for row in data[:100]:
                each.act(row)
            turn.append(time.process_time() - start)
        times.append(turn)
    ratio = statistics.median(after / before for before, after in times)
    milliseconds = [10 * statistics.median(column) for column in zip(*times, strict=True)]
    print(f"{size} columns: {milliseconds[0]:.4f} ms without, {milliseconds[1]:.4f} ms with guards, {ratio:.3f} times")
    assert ratio < 1.3
