"""Checks of a data set before anybody trains on it: what is wrong, how that is seen, and what to do."""

from mildly.data.check.checks import check
from mildly.data.check.inspection import Finding

__all__ = ["Finding", "check"]
