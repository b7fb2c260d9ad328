"""The versions that a result depends on."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("mildly", "torch", "numpy", "gymnasium", "mujoco")


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    commit = _commit()
    return found | ({"commit": commit} if commit else {})


def _commit() -> str | None:
    """The commit of a source checkout; None where the package was installed without one."""
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        return None
    try:
        asked = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True)
    except OSError:
        return None
    return asked.stdout.strip() or None
