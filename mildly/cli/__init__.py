"""The command `mildly`: finds the sub-command, loads only what that needs, and turns errors into one clear line."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module

from mildly.errors import MildlyError, Stopped, tell, unknown_name
from mildly.training.signals import stop_signals

COMMANDS = {
    "solve": "from a log to a verdict in one command: check, train, choose, a model card",
    "train": "train a policy on logged data, or resume a training",
    "finetune": "go on with a trained run: online, or with further logs",
    "sweep": "train every combination that a file lists, on all cores or a cluster",
    "evaluate": "run a trained policy in its environment",
    "ope": "estimate from logged data what a policy would earn, and grade the estimators",
    "choose": "rank policies by logged data, against what the log did; ends in a verdict",
    "data": "list, look at, check, convert and collect data sets",
    "model": "fit a model of the environment, and look how good it is",
    "report": "compare runs on one page: scores, curves, intervals, cost",
    "paper": "the paper's tables and figures: run them, see our numbers beside its own",
    "theory": "check the paper's propositions on random processes, draw the figures",
    "bench": "measure the speed and memory of a gradient step",
}

_TRUST = "MILDLY_TRUST_ENV"  # as mildly.environments has it, which would load numpy
_HELP = f"""usage: mildly COMMAND ...

Offline reinforcement learning: give it logged data, get a policy you can trust.

commands:
{chr(10).join(f"  {name:<10} {text}" for name, text in COMMANDS.items())}

'mildly COMMAND --help' explains a command; 'mildly train mcq --help' shows every hyperparameter.
'--debug' anywhere shows the whole traceback of an error; '--version' the version.
'--trust-env' anywhere lets files name environments as module:Id, which imports that module.

First steps:
  mildly data list
  mildly train mcq --dataset pendulum-mixed --preset small --steps 6000 --out runs/first
  mildly evaluate runs/first
"""


@contextmanager
def _ending_tidily() -> Iterator[None]:
    """SIGTERM and its like unwind the program as Ctrl-C does, so that nothing half-written stays behind."""

    def end(number: int, frame: object) -> None:
        tell("terminated")
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in stop_signals() if number != signal.SIGINT}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _trusting_environments(trusting: bool) -> Iterator[None]:
    """With `--trust-env` files may name environments that import code, here and in the processes of a sweep."""
    before = os.environ.get(_TRUST)
    if trusting:
        os.environ[_TRUST] = "1"
    try:
        yield
    finally:
        if trusting and before is None:
            del os.environ[_TRUST]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code: 0 done, 2 a mistake the user can mend, 130 or 143 stopped by a signal."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args
    trusting = "--trust-env" in args
    args = [arg for arg in args if arg not in ("--debug", "--trust-env")]
    if not args or args[0] in ("-h", "--help", "help"):
        print(_HELP, end="")
        return 0
    if args[0] == "--version":
        from mildly import __version__

        print(f"mildly {__version__}")
        return 0
    try:
        if args[0] not in COMMANDS:
            raise unknown_name("command", args[0], COMMANDS)
        with _ending_tidily(), _trusting_environments(trusting):
            return int(import_module(f"mildly.cli.{args[0]}").main(args[1:]))
    except Stopped as stopped:
        tell(stopped)
        return stopped.exit_code
    except MildlyError as error:
        if debug:
            raise
        tell(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        tell("interrupted")
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as in `mildly data list | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a folder that may not be read
        if debug:
            raise
        tell(f"error: {error}")
        return 2
