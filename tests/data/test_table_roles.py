"""Tables as other libraries and laboratories write them: marks of episodes, packed columns, rewards of all kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Refused
from hypothesis import given, strategies as st

from mildly.data.check import check
from mildly.data.convert import convert
from mildly.data.dataset import Dataset
from mildly.data.findings import Remark, lacks_reward, no_reward
from mildly.data.formats import table_file
from mildly.data.registry import load_dataset


def table(path: Path, **columns: Any) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    else:
        rows = zip(*columns.values(), strict=True)
        path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def lengths(data: Dataset) -> list[int]:
    return [rows.stop - rows.start for rows in data.episodes()]


ROWS: dict[str, Any] = {"x": list(range(9)), "u": [i % 3 - 1 for i in range(9)], "r": [1.0] * 9}


# Marks


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("name", ["episode_starts", "is_first"])
@pytest.mark.parametrize("size", [30, 1000])
def test_a_mark_of_the_first_row_opens_an_episode(tmp_path: Path, ending: str, name: str, size: int) -> None:
    path = table(tmp_path / f"log.{ending}", **ROWS, **{name: [1, 0, 0, 0, 1, 0, 1, 0, 0]})
    with mock.patch.object(table_file, "_CSV_BLOCK", size), mock.patch.object(table_file, "_PARQUET_BLOCK", size // 15):
        data = load_dataset(path)
    assert lengths(data) == [3, 1, 2]
    assert not data.terminated.any()
    assert data.observations[:, 0].tolist() == [0, 1, 2, 4, 6, 7]


@pytest.mark.parametrize("name", ["episode_terminals", "is_last", "done"])
def test_a_mark_of_the_last_row_closes_an_episode_that_need_not_have_ended_for_good(tmp_path: Path, name: str) -> None:
    marks = {name: [0, 0, 0, 1, 0, 1, 0, 0, 1], "terminal": [0, 0, 0, 1, 0, 0, 0, 0, 0]}
    data = load_dataset(table(tmp_path / "log.csv", **ROWS, **marks))
    assert lengths(data) == [4, 1, 2]
    assert np.flatnonzero(data.terminated).tolist() == [3]


def test_done_beside_a_mark_of_the_last_row_ends_for_good(tmp_path: Path) -> None:
    marks = {"is_last": [0, 0, 0, 1, 0, 1, 0, 0, 1], "done": [0, 0, 0, 1, 0, 0, 0, 0, 0]}
    data = load_dataset(table(tmp_path / "log.csv", **ROWS, **marks))
    assert np.flatnonzero(data.terminated).tolist() == [3]
    assert lengths(data) == [4, 1, 2]


# RLlib


def rllib(path: Path, **changes: Any) -> Path:
    """A table as RLlib's recording runners write it, without packed columns."""
    obs = [[float(i), -float(i)] for i in range(8)]
    columns: dict[str, Any] = {
        "eps_id": ["b7f1"] * 4 + ["03aa"] * 4,
        "agent_id": [None] * 8,
        "module_id": ["default_policy"] * 8,
        "obs": obs,
        "actions": [[i / 4 - 1] for i in range(8)],
        "rewards": [float(i) for i in range(8)],
        "new_obs": [[i + 1.0, -i - 1.0] for i in range(8)],
        "terminateds": [False] * 3 + [True] + [False] * 4,
        "truncateds": [False] * 7 + [True],
        "action_logp": [-0.5] * 8,
        "action_dist_inputs": [[0.0, 1.0]] * 8,
        "weights_seq_no": [3] * 8,
    }
    return table(path, **(columns | changes))


def test_a_table_of_rllib_is_read_without_an_option(tmp_path: Path) -> None:
    data = load_dataset(rllib(tmp_path / "run.parquet"))
    assert (len(data), data.observation_size, data.action_size, lengths(data)) == (8, 2, 1, [4, 4])
    assert data.actions[:, 0].tolist() == [i / 4 - 1 for i in range(8)]
    assert np.flatnonzero(data.terminated).tolist() == [3]
    assert np.flatnonzero(data.truncated).tolist() == [7]
    assert "not used = agent_id, module_id, action_logp, action_dist_inputs, weights_seq_no." in data.meta.notes[0]


def test_packed_columns_of_rllib_are_refused_with_what_to_do(tmp_path: Path, refused: Refused) -> None:
    path = rllib(tmp_path / "run.parquet", obs=["BCJNGGRAk5NUMPY"] * 8)
    refused.dataset(path, "column 'obs' does not hold numbers", "output_compress_columns")
    refused.dataset(table(tmp_path / "packed.parquet", item=[b"\x80\x04"] * 3), "RLlib's packed episodes")


def test_episodes_in_pieces_are_told_where_each_row_has_its_next_observation(tmp_path: Path, refused: Refused) -> None:
    ids = ["a", "a", "b", "b", "a", "a", "b", "b"]
    data = load_dataset(rllib(tmp_path / "run.parquet", eps_id=ids))
    found = next(Remark.of(note) for note in data.meta.notes if "in-pieces" in note)
    assert found.severity == "warning"
    assert "an episode goes on after others began 2 times" in found.evidence
    assert len(data) == 8
    without = table(tmp_path / "log.csv", run=ids, step=[0, 1, 0, 1, 2, 3, 2, 3], **{k: v[:8] for k, v in ROWS.items()})
    refused.dataset(without, "goes on in line 6", "Sort the rows by 'run' and 'step' first")


def test_rows_that_do_not_continue_are_counted_by_the_check(tmp_path: Path) -> None:
    following = [[i + 1.0, -i - 1.0] for i in range(8)]
    following[1] = [9.0, 9.0]
    data = load_dataset(rllib(tmp_path / "run.parquet", new_obs=following), verify=False)
    found = {finding.code: finding for finding in check(data)}
    assert found["episode-jumps"].evidence.startswith("In 1 of 6 steps inside episodes")


# Rewards


def test_a_reward_is_computed_from_columns(tmp_path: Path) -> None:
    path = table(tmp_path / "log.csv", power=[1, 2, 3, 4], temp=[20, 21, 22.5, 21], u=[-1, 0, 1, 1])
    data = load_dataset(path, reward="-power - 10*abs(temp - 21)")
    assert data.rewards.tolist() == [-11, -2, -18]
    assert "reward = -power - 10*abs(temp - 21)" in data.meta.notes[0]
    assert data.observation_size == 2


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_cost_is_a_reward_with_the_other_sign(tmp_path: Path, ending: str) -> None:
    path = table(tmp_path / f"log.{ending}", x=[1, 2, 3, 4], cost=[3, 1, 2, 4], u=[-1, 0, 1, 1])
    data = load_dataset(path, cost="cost")
    assert data.rewards.tolist() == [-3, -1, -2]
    assert data.observation_size == 1
    assert load_dataset(path, cost="cost / 2 + 1").rewards.tolist() == [-2.5, -1.5, -2]


def test_what_cannot_be_computed_is_a_bad_row(tmp_path: Path, refused: Refused) -> None:
    path = table(tmp_path / "log.csv", x=[1, -2, 3, 4, 5], u=[-1, 0, 1, 1, 0])
    refused(load_dataset, "'rewards' has NaN", source=path, reward="log(x)")
    assert len(load_dataset(path, reward="log(x)", drop_bad_rows=True)) == 3


def test_mistakes_in_a_formula_begin_with_the_file_and_the_option(tmp_path: Path, refused: Refused) -> None:
    path = table(tmp_path / "log.csv", power=[1, 2], temp=[1, 2], u=[0, 1])
    refused.dataset(path, "--reward '-powr': there is no column 'powr'. Did you mean 'power'?", reward="-powr")
    refused.dataset(path, "--cost 'temp -': is no formula", cost="temp -")
    refused.dataset(path, "no column fits --reward 'price'", reward="price")
    refused(load_dataset, "reward and cost exclude each other", source=path, reward="u", cost="temp")


def test_a_log_without_a_reward_is_read_if_asked_for_and_says_so_ever_after(tmp_path: Path, refused: Refused) -> None:
    path = table(tmp_path / "log.csv", x=[1, 2, 3, 4], u=[-1, 0, 1, 1])
    refused.dataset(path, "cannot tell which column is the reward", "--reward none", "bc")
    data = load_dataset(path, reward="none")
    assert data.rewards.tolist() == [0, 0, 0]
    assert lacks_reward(data.meta.notes)
    convert(path, tmp_path / "set", reading_of(reward="none"))
    assert lacks_reward(load_dataset(tmp_path / "set").meta.notes)
    assert not lacks_reward(load_dataset(path, reward="-x").meta.notes)


def reading_of(**given: Any) -> Any:
    from mildly.data.options import ImportOptions

    return ImportOptions(**given)


# Remarks


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="[]>"), max_size=30)


@given(st.sampled_from(["error", "warning", "info"]), st.from_regex(r"[a-z][a-z-]{0,9}", fullmatch=True), texts, texts)
def test_a_remark_can_be_read_back_from_its_note(severity: Any, code: str, evidence: str, advice: str) -> None:
    remark = Remark(severity, code, "Something is wrong.", evidence, advice)
    assert Remark.of(remark.note()) == remark


@given(st.text(max_size=30))
def test_any_note_is_a_remark(note: str) -> None:
    assert Remark.of(note).severity in ("error", "warning", "info")


def test_brackets_and_arrows_in_evidence_stay_there() -> None:
    remark = Remark("warning", "odd", "Odd.", "'obs[3]' goes from [1] to [2].", "Look at `obs[3]`.")
    assert Remark.of(remark.note()) == remark
    assert Remark.of("Columns: x -> y [z].") == Remark("info", "import", "Columns: x -> y [z].")
    assert Remark.of(no_reward().note()) == no_reward()
