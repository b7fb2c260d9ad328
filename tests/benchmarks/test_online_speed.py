"""What acting costs: both kinds of blocks make the steps that they are to."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from online_speed import block, source_of

from mildly.training.environment import Acting


def test_one_kind_of_block_acts_and_learns_and_the_other_learns_alone() -> None:
    algorithm, source = source_of(Acting(environments=2, updates_per_step=0.5))
    before = algorithm.extras.steps
    assert block(algorithm, source, 4, acts=True) > 0
    assert (len(source.buffer), algorithm.extras.steps - before) == (4, 2)
    assert block(algorithm, source, 3, acts=False) > 0
    assert (len(source.buffer), algorithm.extras.steps - before) == (4, 5)
    source.close()
