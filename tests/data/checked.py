"""Healthy data, and the findings about what is done to them."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np

from mildly.data.check import Finding, check
from mildly.data.dataset import Dataset, Meta


def made(lengths: Any = (40,) * 50, *, terminated: Any = False, seed: int = 0, meta: Meta | None = None) -> Dataset:
    """Healthy episodes of given lengths: states that drift, actions of all sizes, rewards that differ."""
    random = np.random.default_rng(seed)
    lengths = np.asarray(lengths)
    rows = int(lengths.sum())
    ends = np.zeros(rows, bool)
    ends[np.cumsum(lengths) - 1] = True
    falls = np.zeros(rows, bool)
    falls[ends] = terminated
    following = random.normal(size=(rows, 4)).astype(np.float32)
    observations = np.concatenate([random.normal(size=(1, 4)), following[:-1]]).astype(np.float32)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    observations[starts] = random.normal(size=(len(lengths), 4))
    goodness = np.repeat(random.normal(size=len(lengths)), lengths)
    return Dataset(
        observations=observations,
        actions=random.uniform(-0.95, 0.95, (rows, 2)).astype(np.float32),
        rewards=(random.normal(size=rows) + goodness).astype(np.float32),
        next_observations=following,
        terminated=falls,
        truncated=ends & ~falls,
        meta=meta or Meta("made"),
    )


def changed(data: Dataset, **arrays: Any) -> Dataset:
    return dataclasses.replace(data, **arrays)


def found(data: Dataset, code: str, **options: Any) -> Finding | None:
    """The finding with a code, if there is one. Nothing may be said by numpy's warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        findings = check(data, **options)
    assert all(finding.what.endswith(".") and "nan" not in finding.evidence.split() for finding in findings)
    return next((finding for finding in findings if finding.code == code), None)


def problem(data: Dataset, code: str, **options: Any) -> Finding:
    finding = found(data, code, **options)
    assert finding is not None, code
    return finding


def codes(data: Dataset, *severities: str, thorough: bool = True) -> set[str]:
    return {finding.code for finding in check(data, thorough=thorough) if finding.severity in severities}
