"""Bad tables, of text and of Parquet: one clear error or a good data set, as for all bad files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attempts import attempt, attempt_bytes
from conftest import Refused
from hypothesis import HealthCheck, given, settings, strategies as st

pytestmark = pytest.mark.timeout(60)

GOOD = "obs_0,action,reward,done\n1,-1,1,0\n2,1,1,0\n3,1,1,1\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"obs\n1\n2\n", "cannot tell which columns are the action"),
        (b"obs_0,action,reward\n", "has no rows"),
        (b"obs_0,action,reward", "has no rows"),
        (b"", "is empty"),
        (b"\n\n\n", "is empty"),
        (b"# made by hand\n\n", "holds nothing but comments"),
        (GOOD.replace("2,1,1,0", "2,1,1").encode(), "cannot be read as a table (line 3: Expected 4 columns, got 3"),
        (GOOD.replace("2,1,1,0", "2,1,1,0,9").encode(), "Expected 4 columns"),
        (GOOD.replace("2,1,1,0", "2,1,\x00,0").encode(), "column 'reward'"),
        (GOOD.replace("obs_0", "reward").encode(), "two columns are called 'reward'"),
        (GOOD.replace("2,1,1,0", f"2,1,{'7x' * 50_000},0").encode(), "column 'reward' holds '7x7x"),
        (GOOD.replace("2,1,1,0", "2,1,1,0" * 20_000).encode(), "Expected 4 columns"),
        (GOOD.replace("3,1,1,1", "3,1,high,1").encode(), "column 'reward' holds 'high' in line 4"),
        (GOOD.replace("3,1,1,1", "3,1,1,maybe").encode(), "column 'done' holds 'maybe'"),
        (GOOD.replace("2,1,1,0", "2,1,\xff,0").encode("latin-1"), "reward"),
        (b"\xff\xfe\xfd", "begins like UTF-16, but is none"),
        (b"\xff\xfe\xfd,action,reward\n1,1,1\n2,1,1\n", ""),
        (GOOD.replace("2,1,1,0", '2,1,"1,0').encode(), ""),
        (",".join(f"obs_{i}" for i in range(3000)).encode() + b"\n1\n", "Expected 3000 columns, got 1"),
        (GOOD.replace("2,1,1,0", "2,1,1e400,0").encode(), "'rewards' has NaN or infinite"),
        (GOOD.replace("2,1,1,0", "inf,1,1,0").encode(), "'observations' has NaN or infinite"),
    ],
)
def test_a_bad_table_of_text_is_told_in_a_few_words(
    tmp_path: Path, content: bytes, words: str, refused: Refused
) -> None:
    (tmp_path / "log.csv").write_bytes(content)
    refused.dataset(tmp_path / "log.csv", words)


cells = st.one_of(
    st.sampled_from(["", "nan", "1", "-0.5", "true", "1e9", '"', ",", ";", "\t", "\n", "\r\n", "\x00", "é", "x"]),
    st.text(max_size=4),
)


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(cells, max_size=6), max_size=8), st.sampled_from(["csv", "tsv"]), st.booleans())
def test_any_text_is_a_table_or_an_error(lines: list[list[str]], ending: str, header: bool) -> None:
    sign = "," if ending == "csv" else "\t"
    start = ["obs_0,action,reward,done".replace(",", sign)] if header else []
    text = "\n".join([*start, *(sign.join(line) for line in lines)])
    attempt_bytes(f"log.{ending}", text.encode("utf-8", errors="surrogatepass"))


@settings(max_examples=80)
@given(
    st.dictionaries(
        st.sampled_from(["obs_0", "obs_1", "action", "reward", "done", "episode", "next_obs_0"]),
        st.sampled_from(
            [
                *([1, 2, 3], [1.5, None, 2.0], [True, False, True], ["a", "b", "a"], [None] * 3, [[1.0], [2.0], [3.0]]),
                *([[1.0], [], [2.0]], [[[1.0]]] * 3, [b"x"] * 3, [{"x": 1}] * 3, [0, 0, 1], [float("inf")] * 3),
            ]
        ),
    )
)
def test_parquet_columns_of_any_type_are_a_log_or_an_error(columns: dict[str, Any]) -> None:
    good = {"obs_0": [1.0, 2.0, 3.0], "action": [-0.5, 0.5, 0.5], "reward": [1.0, 1.0, 1.0]}
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.table({**good, **columns}), Path(folder) / "log.parquet")
        attempt(Path(folder) / "log.parquet")
