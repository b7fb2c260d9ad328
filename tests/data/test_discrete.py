"""Discrete actions: which numbers are choices, what is noted of them, and how a person says that they are amounts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Refused, train_tiny
from hypothesis import given, strategies as st

from mildly.data.check import check
from mildly.data.convert import convert
from mildly.data.dataset import Dataset
from mildly.data.formats.discrete import FEW, Watch, discrete, watched
from mildly.data.options import ImportOptions
from mildly.data.registry import load_dataset
from mildly.data.steps import Steps

ROWS = 200


def save(folder: Path, actions: Any, **more: Any) -> Path:
    """A log with these actions, four episodes of which the state tells the action."""
    actions = np.asarray(actions)
    rows = len(actions)
    observations = np.random.default_rng(0).normal(size=(rows, 2))
    columns = {"observations": observations, "actions": actions, "rewards": np.random.default_rng(1).normal(size=rows)}
    np.savez(folder / "log.npz", **columns, timeouts=np.arange(rows) % 50 == 49, **more)
    return folder / "log.npz"


def codes(data: Dataset) -> dict[str, str]:
    return {finding.code: finding.severity for finding in check(data)}


@pytest.mark.parametrize(
    "values",
    [[0, 1], [0, 1, 2, 3], [-1, 0, 1], [10, 20, 30], [True, False], list(range(FEW))],
    ids=str,
)
@pytest.mark.parametrize("dtype", [np.int64, np.uint8])
def test_integers_of_few_values_are_choices(tmp_path: Path, values: list[int], dtype: Any) -> None:
    actions = np.tile(values, ROWS)[:ROWS].astype(bool if values[0] is True else dtype)
    words = discrete("actions", actions)
    assert words is not None
    assert words.startswith(f"'actions' holds {len(values)} whole numbers")
    assert codes(load_dataset(save(tmp_path, actions)))["action-discrete"] == "error"


@pytest.mark.parametrize(
    "actions",
    [
        np.tile([-1.0, 1.0], ROWS // 2),  # a bang-bang controller's
        np.arange(ROWS) % (FEW + 1),  # a percentage, say
        np.zeros(ROWS, np.int64),  # nothing to choose
        np.array([-2, 4, 0, -2, 3, 1]),  # too few rows to tell
    ],
    ids=["floats", "many", "one", "few rows"],
)
def test_other_numbers_are_amounts(tmp_path: Path, actions: Any) -> None:
    assert "action-discrete" not in codes(load_dataset(save(tmp_path, actions)))


def test_one_column_of_choices_beside_amounts_is_named(tmp_path: Path) -> None:
    amounts = np.random.default_rng(0).integers(0, 1000, ROWS)
    data = load_dataset(save(tmp_path, np.stack([amounts, amounts % 2], axis=1)))
    (note,) = [note for note in data.meta.notes if "action-discrete" in note]
    assert "['actions[1]' holds 2 whole numbers (0, 1).]" in note


def test_an_index_beside_what_it_stands_for_can_be_left_out() -> None:
    index = np.arange(ROWS) % 3
    decoded = np.array([[0.5, -1.0], [0.0, 0.0], [0.25, 1.0]])[index]
    watch = Watch(["action", "steer", "gas"], [True, False, False])
    for rows in (slice(0, 7), slice(7, ROWS)):
        watch.see(np.column_stack([index, decoded])[rows])
    assert watch.words() == (
        "'action' holds 3 whole numbers (0, 1, 2), the number of a choice that steer,gas spell out: where these are "
        "amounts, leave it out with --action 'steer,gas'"
    )
    decoded[100, 1] += 1e-3
    other = Watch(["action", "steer", "gas"], [True, False, False])
    other.see(np.column_stack([index, decoded]))
    assert other.words() == "'action' holds 3 whole numbers (0, 1, 2)"


@given(st.lists(st.integers(-3, 40), min_size=1, max_size=300), st.integers(1, 50))
def test_the_blocks_make_no_difference(values: list[int], size: int) -> None:
    whole, parts = Watch(["u"], [True]), Watch(["u"], [True])
    whole.see(np.array(values)[:, None])
    for start in range(0, len(values), size):
        parts.see(np.array(values[start : start + size])[:, None])
    assert whole.words() == parts.words() == discrete("u", np.array(values))
    assert (whole.words() is not None) == (1 < len(set(values)) <= min(FEW, len(values) / 3))


def test_numbers_that_turn_out_to_have_fractions_are_amounts() -> None:
    watch = Watch(["u"], [True])
    watch.see(np.array([[0], [1]] * 10))
    assert watch.words() is not None
    watch.see(np.array([[0.5], [np.nan]]))
    assert watch.words() is None


@pytest.mark.parametrize(
    ("names", "integer", "width", "words"),
    [
        (("gear", "gas"), (True, False), 2, "['gear' holds 2 whole numbers (0, 1).]"),
        (("gear", "gas"), (False, False), 2, None),
        (("u",), (True,), 2, "['u[0]' holds 2 whole numbers (0, 1); 'u[1]' holds 2 whole numbers (0, 1).]"),
        (("u", "v"), (True, False), 4, None),  # lists of which some are amounts
    ],
)
def test_a_reader_may_know_which_columns_are_integers(
    names: tuple[str, ...], integer: tuple[bool, ...], width: int, words: str | None
) -> None:
    actions = np.tile([[0.0], [1.0]], (10, width))
    actions[:10, 1] = 1 - actions[:10, 1]  # which the first column does not tell
    block = Steps(actions, actions, actions[:, 0], actions[:, 0] > 2, actions[:, 0] > 2)
    notes: list[str] = []
    assert list(watched(iter([block]), names, ImportOptions(), notes, integer=integer)) == [block]
    assert len(notes) == (words is not None)
    assert words is None or words in notes[0]


def test_a_file_may_say_what_its_actions_are(tmp_path: Path) -> None:
    amounts, choices = np.random.default_rng(0).uniform(size=(ROWS, 1)), np.arange(ROWS) % 4
    assert "action-discrete" in codes(load_dataset(save(tmp_path, amounts, discrete_action=np.array(True))))
    assert "action-discrete" not in codes(load_dataset(save(tmp_path, choices, discrete_action=np.array(False))))


def test_who_gives_bounds_means_amounts(tmp_path: Path, refused: Refused) -> None:
    path = save(tmp_path, np.arange(ROWS) % 4)
    refused(train_tiny, "discrete", algorithm="bc", out=tmp_path / "run", dataset=str(path))
    convert(path, tmp_path / "choices")
    assert "action-discrete" in codes(load_dataset(tmp_path / "choices"))
    for source in (path, tmp_path / "choices"):  # the note of a folder goes as well
        target = tmp_path / f"amounts-{source.stem}"
        bounds = {"action_low": 0, "action_high": 3}
        assert "action-discrete" not in codes(load_dataset(source, **bounds))
        load_dataset(source, **bounds).save(target)
        train_tiny("bc", tmp_path / f"run-{source.stem}", dataset=str(target), steps=2, eval_every=0)


def test_choices_bring_no_advice_for_amounts(tmp_path: Path) -> None:
    rows = 4000
    observations = np.random.default_rng(0).normal(size=(rows, 2))
    actions = (observations[:, 0] > 0).astype(np.int64)
    found = {}
    for name, values in (("choices", actions), ("amounts", actions.astype(float))):
        np.savez(
            tmp_path / f"{name}.npz",
            observations=observations,
            actions=values,
            rewards=observations[:, 1],
            timeouts=np.arange(rows) % 50 == 49,
        )
        found[name] = codes(load_dataset(tmp_path / f"{name}.npz"))
    assert {"action-saturated", "deterministic-behavior"} <= found["amounts"].keys()
    assert not {"action-saturated", "deterministic-behavior"} & found["choices"].keys()


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_integers_of_few_values_in_a_table_are_choices(tmp_path: Path, ending: str, refused: Refused) -> None:
    import pyarrow as arrow
    import pyarrow.csv
    import pyarrow.parquet

    path = tmp_path / f"log.{ending}"
    write = arrow.csv.write_csv if ending == "csv" else arrow.parquet.write_table
    rows = np.arange(60)
    columns = {"temp": np.sin(rows), "heater": rows % 3, "valve": np.cos(rows), "reward": rows / 7}
    write(arrow.table(columns), path)
    told = "'heater' holds 3 whole numbers (0, 1, 2)"
    assert told in str(load_dataset(path, action="heater").meta.notes)
    assert told in str(load_dataset(path, action="heater,valve").meta.notes)
    words = "The actions are discrete", "not supported yet", told
    reading = ImportOptions(action="heater")
    refused(train_tiny, *words, algorithm="bc", out=tmp_path / "run", dataset=str(path), reading=reading)
    amounts = load_dataset(path, action="heater", action_low=0, action_high=2)
    assert "discrete" not in str(amounts.meta.notes)
    assert "discrete" not in str(load_dataset(path, action="valve").meta.notes)
