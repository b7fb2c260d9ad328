"""A quick look at the data before a training begins."""

from __future__ import annotations

import shlex

import numpy as np

from mildly.data.check import check as findings_of
from mildly.data.dataset import Dataset
from mildly.errors import MildlyError


def preflight(data: Dataset, source: str | None, *, check: bool) -> list[str]:
    """Refuse data on which training would go wrong; otherwise what there is to say of them, a line each.

    Args:
        data: what is to be trained on.
        source: the name or path it was loaded from; None for a set that was made in Python.
        check: look for mistakes.
    """
    raw = source is not None and not isinstance(data.rewards, np.memmap)
    said = list(data.meta.notes) if raw else []  # a log read just now: what was guessed must be told
    if not check:
        return said
    findings = findings_of(data, thorough=False)
    errors = [finding for finding in findings if finding.severity == "error"]
    where = source or data.meta.name
    look = f"'mildly data check {shlex.quote(where)}' shows it in full"
    if errors:
        told = " ".join(f"{error.what} {error.evidence} {error.advice}" for error in errors)
        raise MildlyError(f"{where}: training would go wrong. {told} ({look}; --no-check trains all the same.)")
    warnings = [f"warning: {finding.what} ({finding.code})" for finding in findings if finding.severity == "warning"]
    return [*said, *warnings, *([look] if warnings else [])]
