"""`mildly model`: fit a model of the environment, and look how good it is. One file an action."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from mildly.errors import unknown_name

ACTIONS = {
    "fit": "learn from a set what follows a state and an action",
    "check": "how good a model is on episodes that it has not seen",
}

_USAGE = f"""usage: mildly model ACTION ...

{chr(10).join(f"  {name:<6} {text}" for name, text in ACTIONS.items())}

'mildly model ACTION --help' explains an action. 'mildly train mopo --model DIR' learns a policy in a model.
"""


def main(args: Sequence[str]) -> int:
    """Dispatch to an action."""
    if not args or args[0] in ("-h", "--help"):
        print(_USAGE, end="")
        return 0 if args else 2
    if args[0] not in ACTIONS:
        raise unknown_name("model command", args[0], ACTIONS)
    return int(import_module(f"mildly.cli.model.{args[0]}").main(args[1:]))
