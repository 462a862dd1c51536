"""Passes what actors print from a pipe to the learner's stderr; runs in the helper process.

Descriptors 1 and 2 of an actor are the write end of a pipe. The helper drains the pipe, whatever
the actor and the learner do: output does not block an actor for long, and takes no disk space. The
last line is shown even if the actor is killed. Lines beyond a rate are counted, not shown. Does not
know what the lines mean.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

_MOST_LINES = 100
_MOST_REPEATS = 5
_WINDOW_S = 60.0
"""Window of the limits per actor: number of lines shown, and repetitions of the same text."""

_MOST_EXAMINED = 1000
"""Lines per window that are compared with earlier ones; further lines are only counted."""

_LAST_LINES = 20
"""Hidden lines that are shown if the actor fails: they may say why."""

_MOST_CHARS = 2000
_MOST_PARTIAL_BYTES = 8192
_PIPE_BYTES = 1 << 18
_READ_BYTES = 1 << 16
_MOST_READS = 16
"""Maximum reads of one pipe before other descriptors are checked."""

_PAUSE_S = 0.01
"""Pause between two reads, so that many short lines are read at once."""

CONTROLS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Colours, cursor movements and other control codes; the live view is on the same terminal."""


class Lines:
    """Splits one actor's output into lines, and selects those that are shown."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._partial = b""
        self._began = -_WINDOW_S
        self._examined = 0
        self._shown = 0
        self._seen: Counter[str] = Counter()
        self._hidden = 0
        self._last: deque[bytes] = deque(maxlen=_LAST_LINES)

    def feed(self, data: bytes) -> list[str]:
        """Return the lines to show, preceded by a note about hidden lines if a window is over."""
        lines = (self._partial + data).replace(b"\r", b"\n").split(b"\n")
        self._partial = lines.pop()
        if len(self._partial) > _MOST_PARTIAL_BYTES:
            lines.append(self._partial)
            self._partial = b""
        shown = self.tick()
        for i, line in enumerate(lines):
            if self._shown == _MOST_LINES or self._examined == _MOST_EXAMINED:
                self.hide(lines[i:])
                break
            if text := _text(line):
                self._examined += 1
                self._seen[text] += 1
                if self._seen[text] > _MOST_REPEATS:
                    self.hide([line])
                else:
                    self._shown += 1
                    shown.append(text)
        return shown

    def tick(self) -> list[str]:
        """Return a note if a window with hidden lines is over."""
        if self._clock() - self._began < _WINDOW_S:
            return []
        note = [f"[{self._hidden:,} more lines within a minute]"] if self._hidden else []
        self._began = self._clock()
        self._examined = self._shown = self._hidden = 0
        self._seen.clear()
        self._last.clear()
        return note

    def end(self, *, failed: bool) -> list[str]:
        """Return the remaining lines: the last one and, after a failure, the last hidden ones."""
        shown = self.feed(b"\n")
        if self._hidden:
            last = list(filter(None, map(_text, dict.fromkeys(self._last)))) if failed else []
            shown += [f"[{self._hidden:,} more lines{', the last ones:' if last else ''}]", *last]
        return shown

    def hide(self, lines: Sequence[bytes]) -> None:
        """Count lines instead of showing them."""
        self._hidden += len(lines)
        self._last.extend(lines[-_LAST_LINES:])


def _text(line: bytes) -> str:
    text = CONTROLS.sub("", line.decode("utf-8", "backslashreplace")).rstrip()
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}..."


class Outputs:
    """The output pipes of all running actors, by name."""

    def __init__(self, poll: select.poll, clock: Callable[[], float] = time.monotonic) -> None:
        self._poll = poll
        self._clock = clock
        self._lines: dict[str, Lines] = {}
        self._readers: dict[str, int] = {}
        self._paused_until = 0.0
        """When the pipes are polled again; 0 while they are polled."""

    def open(self, name: str) -> int:
        """Return the write end of a new pipe, for descriptors 1 and 2 of an actor."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        if sys.platform == "linux":
            with suppress(OSError):  # a user's pipes have a limit; a small one will do
                fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._readers[name], self._lines[name] = reader, Lines(self._clock)
        if not self._paused_until:
            self._poll.register(reader, select.POLLIN)
        return writer

    def readers(self) -> list[int]:
        """Return the read ends, which a forked actor closes."""
        return [*self._readers.values()]

    @property
    def wait_s(self) -> float:
        """Return how long the pipes need not be checked."""
        return max(0.0, self._paused_until - self._clock()) if self._paused_until else _WINDOW_S

    def look(self, ready: dict[int, int]) -> Iterator[tuple[str, str]]:
        """Yield names and lines to show; `ready` is what the poll returned."""
        found = [name for name, reader in self._readers.items() if reader in ready]
        for name in found:
            for line in self._read(name):
                yield name, line
        for name, lines in self._lines.items():
            for line in lines.tick():
                yield name, line
        if found:
            self._pause()
        elif self._paused_until and self._clock() >= self._paused_until:
            self._paused_until = 0.0
            for reader in self._readers.values():
                self._poll.register(reader, select.POLLIN)

    def hide(self, name: str, line: str) -> None:
        """Count a line that could not be passed on."""
        if name in self._lines:
            self._lines[name].hide([line.encode()])

    def end(self, name: str, *, failed: bool) -> list[str]:
        """Return the last lines of an actor that has exited, and close its pipe."""
        shown = self._read(name) if name in self._readers else []
        self._close(name)
        return shown + self._lines.pop(name).end(failed=failed)

    def _pause(self) -> None:
        if not self._paused_until:
            for reader in self._readers.values():
                self._poll.unregister(reader)
        self._paused_until = self._clock() + _PAUSE_S

    def _read(self, name: str) -> list[str]:
        shown: list[str] = []
        for _ in range(_MOST_READS):
            try:
                data = os.read(self._readers[name], _READ_BYTES)
            except BlockingIOError:
                break
            if not data:  # the actor has closed its end
                self._close(name)
                break
            shown += self._lines[name].feed(data)
        return shown

    def _close(self, name: str) -> None:
        if name in self._readers:
            reader = self._readers.pop(name)
            if not self._paused_until:
                self._poll.unregister(reader)
            os.close(reader)
