"""The hashes of the default install are complete, and of the versions that are tested."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def pinned(name: str) -> dict[str, tuple[str, list[str]]]:
    """By package: the version, and hashes."""
    text = re.sub(r"\\\n", " ", (ROOT / name).read_text())
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    found = {}
    for first, *rest in lines:
        package, version = first.split("==")
        found[canonicalize_name(package)] = version, [word for word in rest if word.startswith("--hash=")]
    return found


def test_every_package_that_the_default_install_needs_is_listed_with_hashes_and_the_tested_version() -> None:
    from importlib.metadata import distribution

    hashes, tested = pinned("hashes.txt"), pinned("constraints.txt")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting, needed = [Requirement(line) for line in project["dependencies"]], set()
    while waiting:
        name = canonicalize_name(waiting.pop().name)
        if name not in needed:
            needed.add(name)
            asked = [Requirement(line) for line in distribution(name).requires or ()]
            waiting += [each for each in asked if each.marker is None or each.marker.evaluate({"extra": ""})]
    assert needed <= set(hashes)
    for name, (version, known) in hashes.items():
        assert known, name
        assert all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", each) for each in known), name
        assert tested.get(name, (version,))[0] == version, name
    assert needed - set(tested) <= {"setuptools"}  # which pip brings itself
