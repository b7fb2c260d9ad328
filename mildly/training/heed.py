"""A quick look at the data before a training begins."""

from __future__ import annotations

import shlex

from mildly.data.check import check
from mildly.data.dataset import Dataset
from mildly.errors import MildlyError


def heed(data: Dataset, source: str) -> list[str]:
    """Refuse data on which training would go wrong; otherwise the warnings, a line each."""
    findings = check(data, thorough=False)
    errors = [finding for finding in findings if finding.severity == "error"]
    look = f"'mildly data check {shlex.quote(source)}' shows it in full"
    if errors:
        told = " ".join(f"{error.what} {error.evidence} {error.advice}" for error in errors)
        raise MildlyError(f"{source}: training would go wrong. {told} ({look}; --no-check trains all the same.)")
    warnings = [f"warning: {finding.what} ({finding.code})" for finding in findings if finding.severity == "warning"]
    return [*warnings, look] if warnings else []
