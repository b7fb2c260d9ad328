"""Checks of a data set before anybody trains on it: what is wrong, how that is seen, and what to do."""

from mildly.data.check.look import Finding
from mildly.data.check.table import check

__all__ = ["Finding", "check"]
