"""`asyncrl COMMAND`: dispatches to the command and prints errors as sentences.

A command is a module with `parse`, which reads its arguments, and `run`, which executes it.

Exit codes: 0 done, 1 failed, 2 wrong arguments, 128 plus the number of the signal that ended it.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import gc
import importlib
import io
import logging
import os
import signal
import stat
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

from asyncrl.cli.output import (
    complain,
    open_closed_streams,
    results_alone,
    show,
    take_standard_output,
)
from asyncrl.cli.signals import end_at_signals, raise_again, raise_at_signals
from asyncrl.core.errors import AsyncRLError, ConfigError, places_of
from asyncrl.core.recorder import CLOCK_TIME
from asyncrl.fleet.process_name import set_name

if TYPE_CHECKING:
    from asyncrl.run.launchers import RunLauncher

_USAGE = """\
usage: asyncrl COMMAND [OPTIONS]

  asyncrl train [PRESET|MODULE:CONFIG] [--env ID] [--actors N] [--config FILE] ...
      train an agent with actor processes; train --help lists presets and settings; with --env
      alone it takes the preset that suits the environment, and says which
  asyncrl resume RUN_DIR [OPTIONS OF train]
      resume a run from its newest valid checkpoint
  asyncrl join RUN_DIR/join.key [--actors N] ...
      run actors on this machine for a run of train --listen, which may be elsewhere
  asyncrl replay RUN_DIR [--until OPT_STEPS] [--pdb]
      compute a run of train --record-order again, bit for bit, in one process
  asyncrl eval RUN_DIR [--episodes N] [--stochastic] [--env-kwargs NAME VALUE ...] [--json]
      score the best model of a run, or --all-checkpoints; --video FILE.mp4 films it
  asyncrl play RUN_DIR [--episodes N] [--checkpoint best|newest|N] [--all-checkpoints]
      watch it in a window
  asyncrl export RUN_DIR [--to policy.npz|policy.onnx] [--checkpoint best|newest|N]
      write its policy as a file that acts with numpy alone, or as an ONNX model
  asyncrl runs [DIR ...] [--env TEXT] [--agent TEXT] [--state S] [--sort score] [--json]
      list runs: agent, environment, state, score, steps and time
  asyncrl compare RUN_DIR RUN_DIR ... [--json]
      show runs side by side, and the settings in which they differ
  asyncrl report RUN_DIR ... [-o report.html]
      write a page with the curves and tables of a run, or of several; --live serves an active run's
  asyncrl plot RUN_DIR ... [-o curves.png|svg|pdf] [--axis env_steps|opt_steps|wall_s]
      draw the evaluations of runs, with intervals where seeds were repeated
  asyncrl bench env|sample|learner|train|all [--env ID] [--quick] [--json] ...
      measure throughput, each stage against its own limit; --save and --compare find regressions
  asyncrl bench tune [PRESET|MODULE:CONFIG] [--env ID] [--config FILE] [--seconds S] ...
      find the fastest numbers of actors and environments; train --actors auto does it too
  asyncrl doctor [ENV] [--agent MODULE:CONFIG] [--preset NAME|--config FILE] [--json] ...
      check whether this machine, an environment or an agent is ready for training

  --version prints the version; --debug shows the traceback of an error;
  COMMAND --help shows all options\
"""

COMMANDS = {
    "train": "asyncrl.cli.train",
    "resume": "asyncrl.cli.resume",
    "join": "asyncrl.cli.join",
    "replay": "asyncrl.cli.replay",
    "eval": "asyncrl.cli.eval",
    "play": "asyncrl.cli.play",
    "export": "asyncrl.cli.export",
    "runs": "asyncrl.cli.runs",
    "compare": "asyncrl.cli.compare",
    "report": "asyncrl.cli.report",
    "plot": "asyncrl.cli.plot",
    "bench": "asyncrl.cli.bench",
    "bench tune": "asyncrl.cli.tune",
    "doctor": "asyncrl.cli.doctor",
}


_READER_HAS_GONE = {errno.EPIPE, errno.EIO}
"""Errors of writing to an output that is closed: `head` has ended, or the terminal."""

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_LONGEST_END_S = 10.0
"""Timeout for functions registered with `atexit`."""

_START_ACTORS = {"train", "resume"}
_LEARNERS = "--learners"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; without `argv`, the program's own.

    The program itself also handles signals: the first stops it, the second ends it immediately.
    Then this function does not return, so threads that environments have left cannot keep the
    process alive.
    """
    _print_any_text()
    code = 0
    try:
        if argv is None:
            open_closed_streams()
            raise_at_signals()
            take_standard_output()
            set_name(" ".join(["asyncrl", *sys.argv[1:2]]))
        with results_alone():
            code = _main(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt as interrupt:
        heard = (said for said in interrupt.args if isinstance(said, signal.Signals))
        number = next(heard, signal.SIGINT)
        with suppress(OSError):
            complain(f"asyncrl: interrupted by {number.name}")
        code = 128 + number
    except OSError as error:
        if error.errno not in _READER_HAS_GONE | _NO_ROOM:
            raise
        if error.errno in _NO_ROOM and not code:
            why = f"cannot write to standard output: {error.strerror}"
            complain(f"asyncrl: error: {why}")
        # Otherwise Python would report the same error again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or 1
    if argv is None:
        end_at_signals()
        _end(code)
    return code


def _end(code: int) -> NoReturn:
    """Run the functions registered with `atexit`, flush, and end the process.

    The interpreter's own exit would wait for threads and collect garbage, which takes most of a
    second with torch.
    """
    with suppress(RuntimeError):  # no thread can be started
        threading.Thread(target=_end_late, args=(code,), daemon=True).start()
    atexit._run_exitfuncs()  # noqa: SLF001  # there is no public function
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the output is closed
            stream.flush()
    ctypes.CDLL(None).fflush(None)  # output of native code
    os._exit(code)


def _end_late(code: int) -> None:
    time.sleep(_LONGEST_END_S)
    os._exit(code)


def _print_any_text() -> None:
    """Escape characters that the output's encoding lacks, so that printing never raises."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _main(args: list[str]) -> int:
    debug = "--debug" in args
    if debug:
        args.remove("--debug")
    if not args or args[0] in {"-h", "--help"}:
        show(_USAGE)
        return 0 if args else 2
    if args[0] == "--version":
        from importlib.metadata import version  # takes as long as half of the other imports

        show(f"asyncrl {version('asyncrl')}")
        return 0
    if " ".join(args[:2]) in COMMANDS:
        args = [" ".join(args[:2]), *args[2:]]
    if args[0] not in COMMANDS:
        complain(f"asyncrl: unknown command {args[0]!r}\n\n{_USAGE}")
        return 2
    handler = _StderrHandler()
    handler.setLevel(logging.WARNING)  # also for loggers that show more to other handlers
    logging.basicConfig(
        level=logging.WARNING,
        format=("" if _at_terminal() else "%(asctime)s ")
        + _rank()
        + "%(levelname)s %(name)s: %(message)s",
        datefmt=CLOCK_TIME,
        handlers=[handler],
    )
    _add_current_directory()
    return _run(args[0], args[1:], debug=debug)


def _rank() -> str:
    """Return the prefix of what a learner beside the first one prints."""
    rank = os.environ.get("RANK", "0")
    return f"rank {rank}: " if rank.isdecimal() and rank != "0" else ""


def _at_terminal() -> bool:
    """Whether stderr is a terminal; in a log file, lines need clock times."""
    return sys.stderr is not None and sys.stderr.isatty()


def _add_current_directory() -> None:
    """Let MODULE:NAME find modules in the working directory, first or last.

    Later imports search there too. So it comes before installed modules only if no other user can
    write to it; otherwise, as in /tmp, it comes last.
    """
    if "" not in sys.path:
        here = Path().stat()
        foreign = here.st_uid not in {0, os.geteuid()} or here.st_mode & stat.S_IWOTH
        sys.path.insert(len(sys.path) if foreign else 0, "")


def _run(name: str, args: list[str], *, debug: bool) -> int:
    try:
        if name in _START_ACTORS and any(arg.startswith(_LEARNERS) for arg in args):
            from asyncrl.extensions.ranks.launch import learners_in, start_learners

            if (world := learners_in(args)) > 1:
                return start_learners(world, [*(["--debug"] if debug else []), name, *args])
        with ExitStack() as undo:
            undo.callback(gc.enable)  # also if a command cannot be loaded
            gc.disable()  # modules make a million objects, and no garbage: a seventh of the time
            launcher = _early_launcher(undo) if _has_actors(name, args) else ()
            with _naming_what_is_missing(name):
                command = importlib.import_module(COMMANDS[name])
                arguments = command.parse(args)  # loads the agent, and torch with it
            gc.freeze()  # nor will a collection look at them
            gc.enable()
            raise_again()
            return int(command.run(arguments, *launcher))
    except SystemExit as ended:  # the parser has printed help, or what is wrong
        return int(ended.code or 0)
    except BrokenPipeError:
        raise
    except Exception as error:
        if debug:
            traceback.print_exc()
        raise_again()
        # Of --learners, the first one says what is wrong with the command line of all.
        quiet = isinstance(error, ConfigError) and _rank() and "ASYNCRL_RANKS_STORE" in os.environ
        if not debug and not quiet:
            complain(f"asyncrl: {_rank()}error: {_sentence(error)}")
        return 2 if isinstance(error, ConfigError) else 1


@contextmanager
def _naming_what_is_missing(name: str) -> Iterator[None]:
    """Say which package a command needs that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None:  # raised by a package, for a reason that it gives
            raise ConfigError(f"asyncrl {name} cannot be loaded: {error}") from error
        raise ConfigError(
            f"asyncrl {name} needs {error.name}, which is not installed here: pip install asyncrl, "
            "without --no-deps"
        ) from error


def _has_actors(name: str, args: Sequence[str]) -> bool:
    """Whether a command is likely to start actors that load torch."""
    without = {"-h", "--help", "--help-all", "sync", "--mode=sync", "offline", "--mode=offline"}
    without |= {"thread", "--launcher=thread", "server", "--inference=server"}
    without |= {"learner", "--inference=learner"}
    return name in _START_ACTORS and bool(args) and not without & set(args)


def _early_launcher(undo: ExitStack) -> tuple[RunLauncher]:
    """Start the launcher: it loads torch for the actors while this process loads it too."""
    from asyncrl.run.launchers import start_launcher

    launcher = start_launcher()
    undo.callback(launcher.close)
    return (launcher,)


def _sentence(error: Exception) -> str:
    """Return what went wrong and where, without tracebacks, also without the actor's."""
    first, _, more = str(error).partition("\n\n")
    ours = isinstance(error, AsyncRLError)
    details = places_of(error)
    if (more or not ours) and not any("traceback" in detail for detail in details):
        details.append("--debug shows the traceback")
    text = first if ours else f"{type(error).__name__}: {error}"
    return f"{text} ({'; '.join(details)})" if details else text


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`, which the live view replaces."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, _: TextIO) -> None:
        """Keep using `sys.stderr`."""


if __name__ == "__main__":
    sys.exit(main())
