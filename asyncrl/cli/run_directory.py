"""The files in a run's directory other than checkpoints and records."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path

from asyncrl.checkpoint.directory import make_directory, sync
from asyncrl.core.errors import ConfigError
from asyncrl.core.recorder import CLOCK_TIME
from asyncrl.learner.train_result import TrainResult
from asyncrl.metrics.machine import machine
from asyncrl.run.run_config import RunConfig
from asyncrl.run.yaml_file import save_yaml
from asyncrl.tools.report.run_files import RunFiles

_log = logging.getLogger(__name__)

_GIT_S = 2.0
"""Timeout for git, which takes milliseconds to name the commit."""


@contextmanager
def run_dir_made(run_dir: Path, *, numbered: bool = False) -> Iterator[Path]:
    """Create a directory with mode 0700 and yield its path; reject one that already holds a run.

    A `numbered` directory is always new: if the name exists, it becomes `NAME-2`, `NAME-3` and so
    on, so that every run gets its own.

    If nothing was written into it, it is removed again, with the parents created here.
    """
    if not numbered and (run_dir / "config.yaml").exists():
        if RunFiles(run_dir).state == "running":
            held, other = ", which is active", f"watch it: asyncrl report {run_dir} --live"
        else:
            held, other = "", f"resume the run: asyncrl resume {run_dir}"
        raise ConfigError(
            f"{run_dir} already holds a run{held}; choose another --run-dir, or {other}"
        )
    numbers = count(2) if numbered else ()
    for path in chain([run_dir], (run_dir.with_name(f"{run_dir.name}-{n}") for n in numbers)):
        above_all = (path.absolute(), *path.absolute().parents)
        missing = [above for above in above_all if not above.exists()]
        try:
            make_directory(path, new=numbered)
        except OSError as error:
            if not (numbered and isinstance(error, FileExistsError)):
                raise ConfigError(
                    f"cannot make the run directory {path}: {error.strerror}"
                ) from error
        else:
            break
    try:
        yield path
    finally:
        with suppress(OSError):  # the first that is not empty
            for above in missing:
                above.rmdir()


def save_config(config: RunConfig, run_dir: Path) -> None:
    """Write the settings, in place of those from before a resume."""
    with _whole(run_dir / "config.yaml") as draft:
        save_yaml(config, draft)


def keep_config(config: RunConfig, run_dir: Path) -> None:
    """Write the settings again if they are missing."""
    if not (run_dir / "config.yaml").exists():
        save_config(config, run_dir)


def a_start(agent: str, command: str) -> dict[str, object]:
    """Return facts about this process and its machine, as plain values."""
    return {
        "time": time.strftime(CLOCK_TIME),
        "agent": agent,
        "command": command,
        "directory": _working_directory(),
        "commit": _commit(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "machine": machine(),
    }


def _working_directory() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109  # as plain text
    except OSError:  # it has been removed
        return None


def _commit() -> str | None:
    """Return the commit of the working directory if it is in a git repository."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],  # noqa: S607  # the user's own git
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def load_starts(run_dir: Path) -> list[object]:
    """Return the earlier starts of a run; this one is added later."""
    return [*RunFiles(run_dir).starts]


def save_starts(starts: Sequence[object], run_dir: Path) -> None:
    """Write when, how and where each part of a run was started."""
    with _whole(run_dir / "run.json") as draft:
        draft.write_text(json.dumps({"starts": starts}, indent=2) + "\n", encoding="utf-8")


def save_error(error: Exception, run_dir: Path) -> None:
    """Write the traceback to a file atomically, and name the file in a note of the error."""
    path = run_dir / "error.txt"
    text = "".join(traceback.format_exception(error))
    with contextlib.suppress(OSError):  # a full disk may be the error itself
        with _whole(path) as draft:
            draft.write_text(text, encoding="utf-8", errors="backslashreplace")
        error.add_note(f"asyncrl: the traceback is in {path}")


def save_summary(result: TrainResult, run_dir: Path, starts: Sequence[object]) -> None:
    """Write the summary as JSON in place of an earlier one, with null for NaN and infinity."""
    values = {**result.summary(), "starts": starts}
    summary = json.loads(json.dumps(values), parse_constant=lambda _: None)
    with _whole(run_dir / "summary.json") as draft:
        draft.write_text(json.dumps(summary, indent=2) + "\n")


def has_summary(run_dir: Path, opt_steps: int) -> bool:
    """Whether a summary exists that covers the run up to this optimisation step.

    A run that was killed has none, or one of an earlier part.
    """
    try:
        summary = json.loads((run_dir / "summary.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(summary, dict) and summary.get("opt_steps") == opt_steps


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path, which is renamed to `path` after it was synced to disk."""
    make_directory(path.parent)  # it may have been removed during the run
    draft = path.with_name(f".{path.name}")
    try:
        yield draft
        sync(draft)
        draft.replace(path)
        sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def keeping_warnings(run_dir: Path) -> Iterator[Callable[[], None]]:
    """Append warnings and errors to `warnings.log` in a run's directory, beside standard error.

    Those from before the yielded function is called are kept until then: a run that is not
    continued leaves its directory as it is.
    """
    handler = _WarningsFile(run_dir / "warnings.log")
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", CLOCK_TIME)
    )
    logger = logging.getLogger("asyncrl")
    logger.addHandler(handler)
    try:
        yield handler.begin
    finally:
        logger.removeHandler(handler)
        handler.close()


class _WarningsFile(logging.Handler):
    """Appends to a file, which it opens for each warning: it may be removed or renamed meanwhile.

    A warning that cannot be written is dropped: the disk is full, or the directory gone. A warning
    of just that must not end the run, and standard error has it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(logging.WARNING)
        self._path = path
        self._early: list[str] | None = []

    def begin(self) -> None:
        """Write what has been kept so far."""
        early, self._early = self._early or [], None
        for line in early:
            self._append(line)

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record) + "\n"
        if self._early is None:
            self._append(line)
        else:
            self._early.append(line)

    def _append(self, line: str) -> None:
        data = line.encode(errors="backslashreplace")
        with suppress(OSError), self._path.open("ab") as file:
            file.write(data)


def check_run_dir(run_dir: Path) -> None:
    """Raise `ConfigError` unless this is the directory of a run."""
    config = run_dir / "config.yaml"
    if config.is_file() and config.stat().st_size:
        return
    if config.is_file():
        found = "its config.yaml is empty"
    elif not run_dir.exists():
        found = "it does not exist"
    elif not run_dir.is_dir():
        found = "it is a file"
    else:
        found = "it has no config.yaml"
    raise ConfigError(
        f"{run_dir} is not a run directory: {found}; name the --run-dir of asyncrl train, or a "
        "directory in runs/, which contains checkpoints/"
    )


def runs_in(run_dirs: Sequence[Path]) -> list[RunFiles]:
    """Return the runs in these directories; raise `ConfigError` if one holds none."""
    for path in run_dirs:
        check_run_dir(path)
    return [RunFiles(path) for path in run_dirs]
