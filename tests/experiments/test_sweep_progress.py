"""Progress of a sweep, as the run folders show it."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from mildly.experiments.process import WorkerTask, last_line
from mildly.experiments.progress import Counts, SweepProgress


def test_progress_shows_step_score_and_counts_from_the_run_s_files(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 5}\n{"step": 10}\n{"st')
    (folder / "evaluations.jsonl").write_text('{"step": 10, "score": 42.123, "mean_return": 1.0}\n')
    task = WorkerTask("a/b", str(folder), "bc", "", "", "", 0, steps=20, threads=1, options={})
    for terminal in (True, False):
        text = io.StringIO()
        progress = SweepProgress(Counts(4, 1, 1), Console(file=text, force_terminal=terminal, width=100))
        with progress:
            progress.refresh([task])
            assert "10/20" not in text.getvalue(), "shown too soon"
            progress.shown -= 60
            progress.refresh([task])
        for part in ("a/b", "10/20", "score 42.1", "1 of 4 jobs done, 1 failed, 1 running, 1 waiting"):
            assert part in text.getvalue()


def test_a_job_in_a_phase_is_at_step_0_and_its_speed_is_that_of_the_main_steps_alone(tmp_path: Path) -> None:
    folder, text = tmp_path / "run", io.StringIO()
    folder.mkdir()
    task = WorkerTask("a/b", str(folder), "mcq", "", "", "", 0, steps=20, threads=1, options={})
    progress = SweepProgress(Counts(1), Console(file=text, width=200))

    def shown(line: str, seconds: float) -> str:
        """What is shown of the job so many seconds later, with one more line of metrics."""
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(line + "\n")
        progress.shown -= 60  # long enough ago to be shown again
        progress.first = {name: (began - seconds, step) for name, (began, step) in progress.first.items()}
        text.seek(0)
        text.truncate()
        progress.refresh([task])
        return text.getvalue().strip()

    ahead = "0 of 1 jobs done, 1 running, 0 waiting: a/b"
    assert shown('{"phase": "behavior model", "step": 5}', 0) == f"{ahead} 0/20 (behavior model)"
    assert shown('{"phase": "behavior model", "step": 5000}', 1000) == f"{ahead} 0/20 (behavior model)"
    assert shown('{"phase": "bc warm-up", "step": 5}', 1000) == f"{ahead} 0/20 (bc warm-up)"
    assert shown('{"step": 10}', 100) == f"{ahead} 10/20, 0.1 steps/s, 0:01:40 left"


def test_the_last_line_of_a_file_is_found_whatever_state_it_is_in(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    assert last_line(path) == {}
    for text, step in (("", None), ('{"step": 1', None), ('{"step": 1}\n', 1), ('{"x": 0}\n{"step": 2}\n{"s', 2)):
        path.write_text(text)
        assert last_line(path).get("step") == step
