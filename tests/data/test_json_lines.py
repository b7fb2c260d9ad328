"""JSON lines: batches and single steps, fragments of episodes by turns, and what is wrong with a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attempts import attempt_bytes
from conftest import Refused
from hypothesis import given, settings, strategies as st

from mildly.data.dataset import Dataset
from mildly.data.formats import fragments, json_lines
from mildly.data.registry import load_dataset

STEP = {"obs": [0.5, 1.0], "actions": [0.25], "rewards": 1.0, "terminateds": False, "truncateds": False}
BATCH = {name: [value, value] for name, value in STEP.items()} | {"new_obs": [[1.0, 2.0], [3.0, 4.0]]}


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def steps(count: int, **more: Any) -> list[dict[str, Any]]:
    """Lines of one episode, a step each."""
    return [
        STEP | {"obs": [float(i), 1.0], "rewards": float(i), "terminateds": i == count - 1} | more for i in range(count)
    ]


def multiset(data: Dataset) -> list[tuple[float, ...]]:
    fields = data.observations, data.actions, data.rewards[:, None], data.next_observations, data.terminated[:, None]
    return sorted(map(tuple, np.concatenate(fields, axis=1).tolist()))


def test_a_step_a_line(tmp_path: Path) -> None:
    data = load_dataset(write(tmp_path / "log.jsonl", [*steps(3), "", *steps(4)]))
    assert [rows.stop - rows.start for rows in data.episodes()] == [3, 4]
    assert data.rewards.tolist() == [0, 1, 2, 0, 1, 2, 3]
    assert data.next_observations[:2, 0].tolist() == [1, 2]
    assert data.meta.name == "log"


@pytest.mark.parametrize("rows", [1, 3, 4096])
@given(seed=st.integers(0, 1000))
@settings(max_examples=15)
def test_fragments_by_turns_are_put_together(tmp_path_factory: pytest.TempPathFactory, rows: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths, width = random.integers(1, 9, 5), 2
    episodes = []
    for number, length in enumerate(lengths):
        seen = random.normal(size=(length + 1, width)).tolist()
        ends = [[False] * (length - 1) + [bool(flag)] for flag in (number % 2, number % 3 == 0 and not number % 2)]
        rows_of = zip(seen[:-1], seen[1:], *ends, strict=True)
        episodes.append(
            [
                {"obs": o, "new_obs": n, "actions": [0.5, -0.5], "rewards": 1.0, "terminateds": t, "truncateds": u}
                | {"eps_id": int(10**18 + number)}
                for o, n, t, u in rows_of
            ]
        )
    left, by_turns = [list(episode) for episode in episodes], []
    while any(left):
        number = int(random.choice([i for i, part in enumerate(left) if part]))
        count = int(random.integers(1, 4))
        part, left[number] = left[number][:count], left[number][count:]
        by_turns.append({name: [row[name] for row in part] for name in part[0]} | {"type": "SampleBatch"})
    folder = tmp_path_factory.mktemp("fragments")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fragments, "_ROWS", rows)
        data = load_dataset(write(folder / "log.json", by_turns))
    assert sorted(rows.stop - rows.start for rows in data.episodes()) == sorted(lengths.tolist())
    for slice_ in data.episodes():
        inner = slice(slice_.start, slice_.stop - 1)
        np.testing.assert_array_equal(data.next_observations[inner], data.observations[slice_][1:])
    whole = load_dataset(write(folder / "whole.json", [row for episode in episodes for row in episode]))
    assert multiset(whole) == multiset(data)


def test_only_rllibs_files_of_a_folder_are_read(tmp_path: Path) -> None:
    write(tmp_path / "params.json", [{"lr": 1e-3}])
    for number in (10, 2):
        write(tmp_path / f"output-2026_worker-0_{number}.json", steps(number))
    assert [rows.stop - rows.start for rows in load_dataset(tmp_path).episodes()] == [2, 10]


WRONG: dict[str, tuple[list[Any], str]] = {
    "nothing": ([], "is empty"),
    "no object": ([[1, 2]], "line 1 holds no JSON object"),
    "pretty": (["{", '"obs": []', "}"], "line 1 is no JSON"),
    "cut short": ([STEP, '{"obs": [0.5'], "line 2 is no JSON"),
    "deep": (["[" * 100 + "]" * 100], "nested deeper than"),
    "no rewards": ([{"obs": [1.0], "actions": [1.0]}], "lacks rewards"),
    "a column less": ([STEP, {"obs": [1.0, 2.0], "rewards": 1.0}], "line 2 lacks 'actions'"),
    "ragged": ([BATCH | {"obs": [[1.0], [1.0, 2.0]]}], "line 1: the rows of 'obs' are no numbers, or differ"),
    "width": ([BATCH, BATCH | {"actions": [[1.0, 2.0]] * 2}], "line 2: 'actions' has 2 columns, unlike elsewhere"),
    "next": ([BATCH | {"new_obs": [[1.0]] * 2}], "line 1: 'new_obs' has 1 columns, unlike elsewhere"),
    "rows": ([BATCH | {"actions": [[1.0]]}], "line 1: 'actions' has 1 rows"),
    "pictures": ([BATCH | {"obs": np.zeros((2, 3, 3, 3)).tolist()}], "'obs' has shape (2, 3, 3, 3)"),
    "flags": ([BATCH | {"terminateds": [0, 2]}], "'terminateds' holds 2, expected true or false"),
    "objects": ([BATCH | {"rewards": [{}, {}]}], "the rows of 'rewards' are no numbers"),
    "texts": ([BATCH | {"rewards": ["a", "b"]}], "'rewards' holds <U1, expected numbers"),
    "packed rows": ([BATCH | {"obs": ["BCJNGGhA", "BCJNGGhA"]}], "column 'obs' is packed"),
    "agents": (
        [{"type": "MultiAgentBatch", "policy_batches": {"one": BATCH, "two": BATCH}}],
        "the batches of several policies (one, two)",
    ),
    "ids": ([BATCH | {"eps_id": [[1], [2]]}], "'eps_id' must hold a number or a name a row"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_with_a_line_is_told(tmp_path: Path, wrong: str, refused: Refused) -> None:
    lines, words = WRONG[wrong]
    refused.dataset(write(tmp_path / "log.json", lines), words)


def test_null_is_a_missing_number(tmp_path: Path) -> None:
    path = write(tmp_path / "log.json", [BATCH | {"rewards": [None, 2.0]}, BATCH])
    assert load_dataset(path, drop_bad_rows=True).rewards.tolist() == [2, 1, 1]


def test_a_line_and_what_is_held_are_limited(tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    many = {name: values * 2000 for name, values in BATCH.items()} | {"eps_id": list(range(4000))}
    path = write(tmp_path / "log.json", [many])
    refused(load_dataset, "line 1 can only be read at once", "--max-memory", source=path, max_memory=0.5)
    path = write(tmp_path / "log.json", [BATCH | {"eps_id": [i, i]} for i in range(9000)])
    refused(load_dataset, "what has no end yet of 6,144 episodes", source=path, max_memory=0.5)
    monkeypatch.setattr(json_lines, "_LINE_BYTES", 100)
    refused(load_dataset, "line 1 is longer than", source=path)


def test_json_is_no_target(tmp_path: Path, refused: Refused) -> None:
    from mildly.data.convert import convert, export

    refused(convert, "cannot write .json files", source="pendulum-mixed", target=tmp_path / "log.json")
    refused(export, "Known endings are .hdf5", data=load_dataset("pendulum-mixed"), target=tmp_path / "log.json")


@settings(max_examples=40)
@given(changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4), keep=st.floats(0, 2))
def test_damage_is_told(changes: list[tuple[float, int]], keep: float) -> None:
    content = bytearray("\n".join(json.dumps(line) for line in steps(6, eps_id=3)).encode())
    for place, byte in changes:
        content[int(place * (len(content) - 1))] = byte
    attempt_bytes("log.json", bytes(content[: int(min(keep, 1) * len(content))]))
