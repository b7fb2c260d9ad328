"""`mildly data`: list data sets, look into one, check it, convert it, make one. One file an action."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from mildly.errors import unknown_name

ACTIONS = {
    "list": "every data set with a name: built-in ones, and D4RL's",
    "info": "what is in a set; --plot draws it",
    "check": "what is wrong with a set, and what to do about it",
    "convert": "from and to CSV, Parquet, HDF5 (D4RL), Minari, .npz, .npy and the native folder",
    "collect": "make a set by running policies in an environment",
}

_USAGE = f"""usage: mildly data ACTION ...

{chr(10).join(f"  {name:<8} {text}" for name, text in ACTIONS.items())}

'mildly data ACTION --help' explains an action.
"""


def main(args: Sequence[str]) -> int:
    """Dispatch to an action."""
    if not args or args[0] in ("-h", "--help"):
        print(_USAGE, end="")
        return 0 if args else 2
    if args[0] not in ACTIONS:
        raise unknown_name("data command", args[0], ACTIONS)
    return int(import_module(f"mildly.cli.data.{args[0]}").main(args[1:]))
