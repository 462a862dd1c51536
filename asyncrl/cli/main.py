"""`asyncrl train | eval | bench`: picks the command, turns errors into sentences and exit codes.

Exit codes: 0 done, 1 failed, 2 wrong arguments, 130 or 143 interrupted after a checkpoint.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

from asyncrl.errors import AsyncRLError

__all__ = ["main"]

_USAGE = """\
usage: asyncrl COMMAND [OPTIONS]

  asyncrl train dqn|sac|MODULE:CONFIG [--env ID] [--actors N] [--run-dir DIR] [--config FILE] ...
      train an agent with actor processes; any setting can be given, see --help
  asyncrl eval RUN_DIR [--episodes N] [--json]
      score the best model of a run
  asyncrl bench sample [--env ID] [--actors N] [--seconds S] [--json]
      measure sampling throughput against the bare loop on as many processes

  --debug shows the traceback of an error; COMMAND --help shows all options\
"""

_COMMANDS = {
    "train": "asyncrl.cli.train_command",
    "eval": "asyncrl.cli.eval_command",
    "bench": "asyncrl.cli.bench_command",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args
    if debug:
        args.remove("--debug")
    if not args or args[0] in {"-h", "--help"}:
        print(_USAGE)
        return 0 if args else 2
    if args[0] not in _COMMANDS:
        print(f"asyncrl: unknown command {args[0]!r}\n\n{_USAGE}", file=sys.stderr)
        return 2
    logging.basicConfig(
        level=logging.WARNING,
        format="%(levelname)s %(name)s: %(message)s",
        handlers=[_StderrHandler()],
    )
    if "" not in sys.path:
        sys.path.insert(0, "")  # so that MODULE:NAME finds modules in the current directory
    command: Callable[[list[str]], int] = importlib.import_module(_COMMANDS[args[0]]).run
    try:
        return command(args[1:])
    except AsyncRLError as error:
        if debug:
            raise
        print(f"asyncrl: error: {error}", file=sys.stderr)
        return 1


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to whatever `sys.stderr` is at the time: the live view puts its own there."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, _: TextIO) -> None:
        """Stay with `sys.stderr`."""


if __name__ == "__main__":
    sys.exit(main())
