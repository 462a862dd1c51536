"""Ctrl-C and SIGTERM at random moments of a run whose state is 100 MB.

The command line in a terminal: the first signal ends the run cleanly, with a valid checkpoint and
the conventional exit code; a second Ctrl-C ends it immediately. Children print nothing, and no
process remains.
"""

from __future__ import annotations

import os
import pty
import random
import secrets
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.core.errors import CheckpointError
from benchmarks.chaos.figures import percentile
from benchmarks.chaos.finding import Finding, Size
from benchmarks.chaos.learner import wait_until
from benchmarks.chaos.stage import DEADLINE_S
from benchmarks.common import ASYNCRL, ROOT, note
from benchmarks.machines import MARK, marked

_CTRL_C = b"\x03"


class Terminal:
    """One command line in a separate terminal; it has ended after the block in any case."""

    def __init__(self, arguments: Sequence[str], directory: Path) -> None:
        """Start `asyncrl` with these arguments in a directory."""
        self.mark = secrets.token_hex(8)
        self.code: int | None = None
        self._said = bytearray()
        environment = {**os.environ, MARK: self.mark, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
        self.pid, self._end = pty.fork()
        if not self.pid:
            # What a script starts with `&` has these ignored; what a terminal starts has not.
            for number in (signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            os.chdir(directory)
            os.execve(ASYNCRL[0], [*ASYNCRL, *arguments], environment)  # noqa: S606  # our own module
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def press_ctrl_c(self) -> None:
        """Send SIGINT as a terminal does: to every process in its foreground."""
        os.write(self._end, _CTRL_C)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the command's own process."""
        os.kill(self.pid, number)

    @property
    def has_ended(self) -> bool:
        """Whether it has ended; its exit code is then in `code`, as in shells."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status)
            self.code = (code if code >= 0 else 128 - code) if pid else None
        return self.code is not None

    def wait(self, timeout_s: float) -> float:
        """Wait for its end; return how long that took."""
        began = time.monotonic()
        wait_until(lambda: self.has_ended, timeout_s, "the command to end")
        took_s = time.monotonic() - began
        self._reader.join(timeout_s)
        return took_s

    @property
    def said(self) -> str:
        """Everything it has written so far."""
        return self._said.decode(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in marked(self.mark):
            process.kill()
        if not self.has_ended:
            os.waitpid(self.pid, 0)
        os.close(self._end)

    def _read(self) -> None:
        with suppress(OSError):  # the other end is closed
            while data := os.read(self._end, 4096):
                self._said += data


_ARGUMENTS = """train dqn --quiet --run-dir run --actors 2 --envs-per-actor 2 --limiter.min-size 64
    --trainer.batch-size 16 --record.interval-s 0.1 --evaluate.where off
    --replay.capacity 5000 --agent.device cpu --agent.hidden 2200 2200""".split()
"""Networks whose parameters, targets and moments are 100 MB."""

_MOMENTS_S = 1.5
"""Signals come at any time in the first seconds of learning."""

_SECOND_AFTER_S = 0.01, 0.5
"""Some come while the first is not answered yet, some when the run has ended already."""


@dataclass(frozen=True, slots=True)
class End:
    """The outcome of one run."""

    code: int
    seconds: float
    checkpoint_bytes: int
    """0 if no checkpoint is valid."""

    tracebacks: int
    left: int


def measure(size: Size, directory: Path) -> list[Finding]:
    """End runs with each signal, and look."""
    count = 2 if size == "small" else 100
    draw = random.Random(0)  # noqa: S311  # no secret
    ends: dict[str, list[End]] = {"Ctrl-C": [], "SIGTERM": [], "Ctrl-C twice": []}
    for number in range(count):
        for how, found in ends.items():
            moments = draw.uniform(0, _MOMENTS_S), draw.uniform(*_SECOND_AFTER_S)
            found.append(_end(how, directory / f"{how} {number}", *moments))
            note(f"{how}, {number + 1} of {count}: {found[-1]}")
    return [
        _ended(9, "Ctrl-C", 130, ends["Ctrl-C"]),
        _in_time(9, "Ctrl-C", ends["Ctrl-C"], percent=95, promised_s=2.0),
        _ended(10, "SIGTERM", 143, ends["SIGTERM"]),
        _in_time(10, "SIGTERM", ends["SIGTERM"], percent=100, promised_s=5.0),
        _ended(9, "a second Ctrl-C", 130, ends["Ctrl-C twice"], with_checkpoint=False),
        _in_time(9, "a second Ctrl-C", ends["Ctrl-C twice"], percent=100, promised_s=0.5),
    ]


def _end(how: str, directory: Path, after_s: float, second_after_s: float) -> End:
    """Start a run, send it a signal after a while, and look at what is there."""
    directory.mkdir()
    metrics = directory / "run" / "metrics.jsonl"
    with Terminal(_ARGUMENTS, directory) as terminal:
        wait_until(lambda: terminal.has_ended or _learns(metrics), DEADLINE_S, "a run that learns")
        time.sleep(after_s)
        if how == "SIGTERM":
            terminal.send(signal.SIGTERM)
        else:
            terminal.press_ctrl_c()
        if how == "Ctrl-C twice":
            time.sleep(second_after_s)
            terminal.press_ctrl_c()
        seconds = terminal.wait(DEADLINE_S)
        left = len(marked(terminal.mark))
    return End(
        code=terminal.code or 0,
        seconds=seconds,
        checkpoint_bytes=_checkpoint_bytes(directory / "run" / "checkpoints"),
        tracebacks=terminal.said.count("Traceback"),
        left=left,
    )


def _learns(metrics: Path) -> bool:
    return metrics.exists() and '"agent/loss"' in metrics.read_text(encoding="utf-8")


def _checkpoint_bytes(directory: Path) -> int:
    """Return the size of the newest checkpoint; 0 if it does not load."""
    try:
        groups = Checkpointer(directory).load_latest().groups
    except CheckpointError:
        return 0
    return sum(array.nbytes for name in ("agent", "model") for array in groups[name].values())


def _ended(
    target: int, what: str, code: int, ends: list[End], *, with_checkpoint: bool = True
) -> Finding:
    """Say whether all ended as they should."""
    codes = sum(end.code == code for end in ends)
    loaded = sum(end.checkpoint_bytes > 0 for end in ends)
    tracebacks, left = sum(end.tracebacks for end in ends), sum(end.left for end in ends)
    megabytes = max(end.checkpoint_bytes for end in ends) / 1e6
    saved = f", {loaded} with a checkpoint of {megabytes:.0f} MB that loads"
    good = codes == len(ends) and not tracebacks and not left
    return Finding(
        target=target,
        what=f"{what} at {len(ends)} random moments",
        measured=f"{codes} ended with {code}{saved if with_checkpoint else ''}; {tracebacks} "
        f"tracebacks, {left} processes left",
        promised=f"all{', all' if with_checkpoint else ''}; 0, 0",
        passed=good and (loaded == len(ends) or not with_checkpoint),
        numbers={"codes": codes, "loaded": loaded, "tracebacks": tracebacks, "left": left},
    )


def _in_time(
    target: int, what: str, ends: list[End], *, percent: float, promised_s: float
) -> Finding:
    times = [end.seconds for end in ends]
    reached = percentile(times, percent)
    name = "longest" if percent == 100 else f"p{percent:g}"
    return Finding(
        target=target,
        what=f"{what}: until the command has ended",
        measured=f"{name} {reached:.2f} s, median {percentile(times, 50):.2f} s",
        promised=f"{name} <= {promised_s:g} s",
        passed=reached <= promised_s,
        timed=True,
        numbers={"reached_s": reached, "longest_s": max(times)},
    )
