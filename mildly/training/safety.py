"""The safety net of fine-tuning: evaluations beside that of the policy it began with, and the best policy kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from mildly.evaluation.rollout import Evaluation
from mildly.policy import Policy, load_policy
from mildly.run import Run
from mildly.stage import Stage

_FIRST = 5
"""Evaluations after the start that are compared with it aloud."""
_ERRORS = 2.0  # standard errors by which a mean must be lower to be called so


class SafetyNet:
    """Knows the evaluation that fine-tuning began with and the best one since, both in the environment of now.

    The folder of the best policy belongs to one environment: what was best before another one took it is gone.
    """

    def __init__(self, run: Run, stages: Sequence[Stage], env_id: str) -> None:
        self.run, self.stop_below, start = run, stages[-1].stop_below, stages[-1].start
        since = [line for line in run.evaluations() if line["step"] >= stages[0].start]
        lines = [*takewhile(lambda line: line["env_id"] == env_id, reversed(since))][::-1]
        self.best: Mapping[str, Any] | None = max(lines, key=lambda line: line["mean_return"], default=None)
        self.first: Mapping[str, Any] | None = next((line for line in lines if line["step"] == start), None)
        self.count = sum(line["step"] > start for line in lines)
        self.fallen = ""
        """Why it was stopped, in words."""

    @property
    def folder(self) -> Path:
        """Where the best policy is kept."""
        return self.run.path / "best"

    def judge(self, step: int, result: Evaluation, policy: Policy) -> str:
        """Take a new evaluation, keep its policy if it is the best so far; what there is to say."""
        line = {"step": step, **result.to_json()}
        if self.best is None or result.mean_return > self.best["mean_return"]:
            self.best = line
            policy.save(self.folder)
        if self.first is None:
            self.first = line
            return ""
        self.count += 1
        value = result.mean_return if result.score is None else result.score
        if self.stop_below is not None and value < self.stop_below:
            self.fallen = f"step {step:,}: {_words(line)}, below {self.stop_below:g}"
        elif self.count <= _FIRST and _lower(line, self.first):
            return (
                f"warning: step {step:,}: {_words(line)}, less than the {_words(self.first)} it began with; the best "
                f"policy so far, of step {self.best['step']:,}, is in {self.folder}"
            )
        return ""

    def summary(self) -> list[str]:
        """What it began with, and the best since."""
        if self.first is None or self.best is None:
            return []
        return [
            f"before fine-tuning: {_words(self.first)}; best policy since, of step {self.best['step']:,}: "
            f"{_words(self.best)}, in {self.folder}"
        ]

    def roll_back(self) -> str:
        """Put the best policy in the place of the last; what was done."""
        assert self.best is not None
        load_policy(self.folder).save(self.run.path / "policy")
        return (
            f"stopped at {self.fallen}; {self.run.path / 'policy'} is the best policy again, of step "
            f"{self.best['step']:,} ({_words(self.best)}). The training itself stands at the last step."
        )


def _words(line: Mapping[str, Any]) -> str:
    score = line.get("score")
    return f"return {line['mean_return']:.1f}" if score is None else f"score {score:.1f}"


def _lower(line: Mapping[str, Any], first: Mapping[str, Any]) -> bool:
    """Whether a mean is lower by more than chance: episodes differ, and two means of ten of them do, too."""
    spread = [np.var(each["returns"], ddof=1) / len(each["returns"]) for each in (line, first) if _several(each)]
    return bool(line["mean_return"] < first["mean_return"] - _ERRORS * math.sqrt(sum(spread)))


def _several(line: Mapping[str, Any]) -> bool:
    return len(line["returns"]) > 1
