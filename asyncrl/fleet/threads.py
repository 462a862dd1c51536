"""Actors as threads of this process: for a debugger, a notebook, or a Python without a GIL.

Threads give up what processes have. An actor that crashes in native code ends the run's process,
and so does `os._exit`. An actor that hangs in native code cannot be ended: it is abandoned, another
one takes its place, and it ends when that code returns. Processes that an actor has started are not
ended with it. The memory of one actor is not known. Without a free-threaded Python, actors and
learner take turns. Does not know what actors do.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from queue import Empty, Queue

from asyncrl.core.errors import describe_error
from asyncrl.core.interrupter import start_thread
from asyncrl.core.launcher import ActorExit, Killed, Place, ProgressReport, Spec
from asyncrl.core.messages import Peer
from asyncrl.core.torch_threads import share_torch_threads
from asyncrl.core.types import ActorId
from asyncrl.fleet.local_files import HereLauncher, ProgressBoard

_logger = logging.getLogger(__name__)

_CLOSE_S = 2.0
"""Seconds for killed threads to end before they are abandoned."""


ThreadProgress = ProgressBoard
"""Without a file, its numbers are shared by threads."""


@dataclass(slots=True)
class _Running:
    thread: threading.Thread
    progress: ThreadProgress
    lock: threading.Lock = field(default_factory=threading.Lock)
    ended: bool = False


class ThreadLauncher(HereLauncher):
    """Starts actors as threads."""

    def __init__(self, names: Mapping[ActorId, str] | None = None) -> None:
        """`names` are those of threads that are not actors."""
        super().__init__(names)
        self._running: dict[Peer, _Running] = {}
        self._exits: Queue[ActorExit] = Queue()

    def launch(self, peer: Peer, spec: Spec) -> None:
        """Start an actor and return at once."""
        if peer in self._running:
            raise ValueError(f"{peer} is running already")
        name = f"asyncrl {self._name(peer.actor_id)}"
        thread = threading.Thread(target=self._run, args=(peer, spec), name=name, daemon=True)
        self._running[peer] = _Running(thread, ThreadProgress())
        try:
            start_thread(thread)
        except RuntimeError as error:  # the system has no thread left
            why = describe_error(error)
            self._exits.put(ActorExit(peer=peer, code=1, error=why, began=False))

    def exits(self, timeout_s: float) -> list[ActorExit]:
        """Return the actors that have exited, each once; wait at most `timeout_s` for one."""
        ended: list[ActorExit] = []
        try:
            ended.append(self._exits.get(timeout=max(0.0, timeout_s)))
            while True:
                ended.append(self._exits.get_nowait())
        except Empty:
            pass
        for one in ended:
            self._running.pop(one.peer, None)
        return ended

    def progress(self, peer: Peer) -> ProgressReport:
        """Return the heartbeats of a running actor."""
        return self._running[peer].progress.read()

    def memory_bytes(self, peer: Peer) -> int:
        """Return 0: threads share their memory."""
        return 0

    def place(self, peer: Peer) -> Place:
        """Return this process: actors are threads of it."""
        return Place(platform.node(), os.getpid())

    def finish(self, peer: Peer) -> None:
        """Ask a running actor to send what it has and end; do not wait for it."""
        self._running[peer].progress.finish()

    def kill(self, peer: Peer, *, with_stacks: bool = False) -> None:
        """End an actor in its next instruction of Python, or abandon it in native code."""
        running = self._running.get(peer)
        if running is not None:
            text = _stack_of(running.thread) if with_stacks else ""
            self._end(peer, running, -signal.SIGKILL, text)
            _raise_in(running.thread)

    def close(self) -> None:
        """Kill what still runs and release everything; may be called again."""
        running = list(self._running.items())
        for peer, _ in running:
            self.kill(peer)
        deadline = time.monotonic() + _CLOSE_S
        for peer, each in running:
            each.thread.join(max(0.0, deadline - time.monotonic()))
            if each.thread.is_alive():
                _logger.warning(
                    "the thread of actor %d does not end, and is abandoned: it is in native code, "
                    "or catches every exception",
                    peer.actor_id,
                )
        self._running.clear()
        self._remove_directory()

    def _run(self, peer: Peer, spec: Spec) -> None:
        running = self._running[peer]
        share_torch_threads()
        try:
            spec.run(peer, running.progress)
        except BaseException as error:
            # BaseException: `sys.exit` in an environment must be reported, too.
            self._end(peer, running, 1, traceback.format_exc(), describe_error(error))
        else:
            self._end(peer, running, 0)

    def _end(
        self, peer: Peer, running: _Running, code: int, text: str = "", error: str = ""
    ) -> None:
        """Note the end of an actor, unless it was noted before."""
        with running.lock:
            first, running.ended = not running.ended, True
        if first:
            last = running.progress.read()
            self._exits.put(ActorExit(peer=peer, code=code, text=text, error=error, last=last))


def _stack_of(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001  # the only way
    return "".join(traceback.format_stack(frame)) if frame else ""


def _raise_in(thread: threading.Thread) -> None:
    """Raise `Killed` in another thread; it has no effect on one that has ended."""
    if thread.ident is not None and thread.is_alive():
        ident, kind = ctypes.c_ulong(thread.ident), ctypes.py_object(Killed)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, kind)
