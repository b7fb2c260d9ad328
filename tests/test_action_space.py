"""The action space: values worked out by hand, the way there and back, the present bits, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mildly import ActionSpace, MildlyError
from mildly.action_space import UNKNOWN

SPACE = ActionSpace((-3.0, 10.0), (5.0, 30.0))


@st.composite
def spaces(draw: st.DrawFn) -> ActionSpace:
    """Spaces of up to four dimensions, as wide as environments and logs have them."""
    pairs = st.tuples(st.floats(-1e3, 1e3), st.floats(1e-2, 1e3))
    drawn = draw(st.lists(pairs, min_size=1, max_size=4))
    return ActionSpace(tuple(low for low, _ in drawn), tuple(low + width for low, width in drawn))


def unit_actions(space: ActionSpace, dtype: Any) -> np.ndarray:
    """Both bounds, the middle, and random actions, some of them tiny."""
    random = np.random.default_rng(0).uniform(-1, 1, (60, space.size))
    random[:20] **= 9
    return np.concatenate([random, [[-1.0] * space.size], [[1.0] * space.size], [[0.0] * space.size]]).astype(dtype)


# By hand


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_bounds_and_what_lies_between_them(dtype: Any) -> None:
    unit = np.array([[-1, -1], [1, 1], [0, 0], [0.5, -0.25]], dtype)
    own = np.array([[-3, 10], [5, 30], [1, 20], [3, 17.5]], dtype)
    np.testing.assert_array_equal(SPACE.from_unit(unit), own)
    np.testing.assert_array_equal(SPACE.to_unit(own), unit)
    assert SPACE.from_unit(unit).dtype == dtype


def test_one_action_is_mapped_as_a_batch_is() -> None:
    assert SPACE.from_unit(np.array([0.5, -0.25])).tolist() == [3, 17.5]
    assert SPACE.to_unit(np.array([3, 17.5])).tolist() == [0.5, -0.25]


def test_whole_numbers_are_not_rounded() -> None:
    space = ActionSpace((-0.5,), (0.5,))
    assert space.from_unit(np.array([1])).tolist() == [0.5]
    assert space.to_unit(np.array([1])).tolist() == [2.0]
    assert space.clip(np.array([1])).tolist() == [0.5]


def test_what_lies_beyond_the_bounds_stays_beyond_until_it_is_clipped() -> None:
    assert SPACE.to_unit(np.array([9.0, 0.0])).tolist() == [2, -2]
    assert SPACE.clip(np.array([9.0, 0.0])).tolist() == [5, 10]
    assert SPACE.clip(np.float32([2, 11])).dtype == np.float32


def test_the_unit_space() -> None:
    unit = ActionSpace.unit(3)
    assert (unit.low, unit.high, unit.size, unit.is_unit) == ((-1, -1, -1), (1, 1, 1), 3, True)
    assert (SPACE.size, SPACE.is_unit) == (2, False)
    actions = unit_actions(unit, np.float64)
    np.testing.assert_array_equal(unit.to_unit(actions), actions)


def test_arrays_and_whole_numbers_make_the_same_space_as_tuples() -> None:
    assert ActionSpace.of(np.float32([-3, 10]), np.float32([5, 30])) == ActionSpace((-3, 10), (5, 30)) == SPACE
    assert len({SPACE, ActionSpace((-3, 10), (5, 30))}) == 1


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (ActionSpace.unit(6), "-1 to 1"),
        (SPACE, "-3 to 5, 10 to 30"),
        (ActionSpace((-1, -2, -3, -4, -5), (1, 2, 3, 4, 5)), "5 columns, from -5 to 5"),
    ],
)
def test_in_words(space: ActionSpace, words: str) -> None:
    assert str(space) == words


# There and back


@given(spaces())
def test_there_and_back_in_float64(space: ActionSpace) -> None:
    unit = unit_actions(space, np.float64)
    own = space.from_unit(unit)
    scale = np.maximum(np.abs(space.low), np.abs(space.high))
    np.testing.assert_allclose(space.to_unit(own), unit, atol=1e-10)
    assert (np.abs(space.clip(own) - own) <= 1e-14 * scale).all()
    assert (np.diff(space.from_unit(np.sort(unit, axis=0)), axis=0) >= 0).all()


@given(spaces())
def test_there_and_back_in_float32(space: ActionSpace) -> None:
    unit = unit_actions(space, np.float32)
    own = space.clip(space.from_unit(unit))
    half = (np.array(space.high) - space.low) / 2
    scale = np.maximum(np.abs(space.low), np.abs(space.high))
    assert own.dtype == np.float32
    assert (np.abs(space.to_unit(own) - unit) <= 1e-6 * (1 + scale / half)).all()
    assert (own >= np.float32(space.low)).all()
    assert (own <= np.float32(space.high)).all()


# The bits that policies, collected sets and imports have had from the start


@given(spaces())
def test_the_order_of_operations_stays(space: ActionSpace) -> None:
    low, high = np.array(space.low, np.float32), np.array(space.high, np.float32)
    actions = unit_actions(space, np.float32)
    np.testing.assert_array_equal(space.from_unit(actions), low + (actions + 1) * (high - low) / 2)
    low, high = np.array(space.low), np.array(space.high)
    middle, half = (high + low) / 2, (high - low) / 2
    own = np.random.default_rng(1).uniform(low, high, (50, space.size)).astype(np.float32)
    np.testing.assert_array_equal(space.to_unit(own), (own - middle) / half)
    actions = actions.astype(np.float64)
    np.testing.assert_array_equal(space.from_unit(actions), middle + actions * half)


# Files


@given(spaces())
def test_a_space_comes_back_from_json(space: ActionSpace) -> None:
    assert ActionSpace.from_json(json.loads(json.dumps(space.to_json()))) == space


def test_the_files_keep_their_two_keys() -> None:
    assert SPACE.to_json() == {"action_low": [-3.0, 10.0], "action_high": [5.0, 30.0]}
    assert ActionSpace.from_json(UNKNOWN) is None
    assert ActionSpace.from_json({**SPACE.to_json(), "action_kind": "continuous", "more": 3}) == SPACE


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"action_low": [1.0], "action_high": None}, "go together"),
        ({"action_low": None, "action_high": [1.0]}, "go together"),
        ({"action_low": [1.0], "action_high": [1.0, 2.0]}, "1 and 2"),
        ({"action_low": [1.0], "action_high": [1.0]}, "1 to 1"),
        ({"action_low": [float("-inf")], "action_high": [1.0]}, "finite"),
        ({"action_low": ["one"], "action_high": [1.0]}, "one"),
        ({**UNKNOWN, "action_kind": "discrete"}, "'discrete'; this version of mildly reads 'continuous'"),
    ],
)
def test_damaged_json_is_a_value_error(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ActionSpace.from_json(values)


def test_json_without_its_keys_or_of_other_types_is_damaged() -> None:
    with pytest.raises(KeyError, match="action_high"):
        ActionSpace.from_json({"action_low": [1.0]})
    with pytest.raises(TypeError):
        ActionSpace.from_json({"action_low": 3, "action_high": 4})


# Refused


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        ((), (), "as many lower as upper bounds, got 0 and 0"),
        ((-1.0,), (1.0, 1.0), "as many lower as upper bounds, got 1 and 2"),
        ((-1.0, 2.0), (1.0, 2.0), "the lower below the upper, got -1 to 1, 2 to 2"),
        ((3.0,), (-3.0,), "the lower below the upper, got 3 to -3"),
        ((-np.inf,), (1.0,), "finite bounds"),
        ((-1.0,), (np.inf,), "finite bounds"),
        ((np.nan,), (1.0,), "finite bounds"),
    ],
)
def test_bounds_that_are_none(low: tuple[float, ...], high: tuple[float, ...], words: str) -> None:
    with pytest.raises(MildlyError, match=words):
        ActionSpace(low, high)
