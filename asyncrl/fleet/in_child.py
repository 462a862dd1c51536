"""Runs one function in a child process; returns its result, or reports how the child ended.

For user code that may do anything to its process, above all constructors of environments. A
launcher starts the child, as it starts actors: processes that it starts are killed with it, its log
and stacks reach the parent, and it cannot outlive the parent. The result is JSON in a file of the
launcher's private directory; it is not unpickled. Does not know what the function does.
"""

from __future__ import annotations

import json
import logging
import math
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.core import errors
from asyncrl.core.errors import ActorFailed, AsyncRLError, describe_error
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.launcher import ActorExit, Progress, Spec
from asyncrl.core.messages import Peer
from asyncrl.core.types import ActorId
from asyncrl.fleet.local import LocalLauncher
from asyncrl.fleet.restart_policy import SEE_STACKS, cause_of

logger = logging.getLogger(__name__)

CHILD_ID = ActorId(-1)
"""Not the number of any actor."""

_CHILD = Peer(actor_id=CHILD_ID, incarnation=0)

_POLL_S = 0.05
_KILL_S = 10.0
_FIRST_REPORT_S = 2.0
_MOST_ANSWER_BYTES = 64 << 20
_ANSWER = "answer"


def run_in_child(
    body: Callable[[], Any],
    *,
    what: str,
    timeout_s: float = math.inf,
    timeout_setting: str = "",
    launcher: LocalLauncher | None = None,
    preload: Sequence[str] = (),
    interrupter: Interrupter | None = None,
) -> Any:  # noqa: ANN401  # whatever JSON can represent
    """Run a function in a child process and return its result.

    Args:
        body: The function. It is pickled by cloudpickle, and returns what JSON can represent.
        what: What it does, for messages: "building the environment".
        timeout_s: Seconds after which the child is killed and the stacks of its threads are shown.
        timeout_setting: The setting of this timeout, for messages.
        launcher: Starts the child before all its modules are preloaded. None makes one, and closes
            it at the end.
        preload: Modules for a launcher that is made here.
        interrupter: Of the run, whose end is not to wait for the child.

    An `AsyncRLError` of the child is raised here with the same class. Any other end without a
    result raises `ActorFailed`, with the child's traceback or stacks.
    """
    with ExitStack() as undo:
        early = launcher is not None
        launcher = launcher or undo.enter_context(
            LocalLauncher(preload=preload, names={CHILD_ID: "environment"})
        )
        path = launcher.directory / _ANSWER
        undo.callback(path.unlink, missing_ok=True)
        launcher.launch(_CHILD, _Question(body, path), early=early)
        interrupter = interrupter or Interrupter()
        ended = _until_ended(launcher, what, timeout_s, timeout_setting, interrupter)
        return _read(path, ended, what)


def _until_ended(
    launcher: LocalLauncher, what: str, limit_s: float, setting: str, interrupter: Interrupter
) -> ActorExit:
    """Return how the child exited; log the wait at intervals, and kill it after the limit."""
    began, next_word_s = time.monotonic(), _FIRST_REPORT_S
    while not (ends := launcher.exits(_POLL_S)):
        passed_s = time.monotonic() - began
        if interrupter.is_set:
            launcher.kill(_CHILD)
            raise ActorFailed(f"{what} was not finished, since the run ends")
        if passed_s > limit_s:
            raise _timed_out(launcher, what, limit_s, setting)
        if passed_s > next_word_s:
            limit = f", timeout {limit_s:g} s" if limit_s < math.inf else ""
            logger.info("%s in a separate process, %.0f s so far%s", what, passed_s, limit)
            next_word_s = 2 * passed_s
    return ends[0]


def _timed_out(launcher: LocalLauncher, what: str, limit_s: float, setting: str) -> ActorFailed:
    """Kill the child, and return an error with the stacks of its threads."""
    launcher.kill(_CHILD, with_stacks=True)
    stacks = "".join(ended.text for ended in launcher.exits(_KILL_S))
    return ActorFailed(
        f"{what} took more than {limit_s:g} s, and its process was killed. If it "
        f"needs more time, raise {setting}; else {SEE_STACKS}" + (f"\n\n{stacks}" if stacks else "")
    )


@dataclass(frozen=True, slots=True)
class _Question(Spec):
    """A function, and the file for its result."""

    body: Callable[[], Any]
    path: Path

    def run(self, peer: Peer, progress: Progress) -> None:
        """Run the body; write its result, or what it raised, to the file."""
        try:
            answer = {"answer": self.body()}
        except Exception as error:
            answer = {
                "error": describe_error(error),
                "ours": next(_ours_of(error), ""),
                "message": str(error) if isinstance(error, AsyncRLError) else "",
                "notes": list(getattr(error, "__notes__", ())),
                "text": traceback.format_exc(),
            }
        draft = self.path.with_name(f".{self.path.name}")
        draft.write_bytes(json.dumps(answer).encode())
        draft.chmod(0o600)  # whatever umask the body has set
        draft.rename(self.path)


def _ours_of(error: Exception) -> Iterator[str]:
    """Yield asyncrl's classes of an exception, the most specific first."""
    for kind in type(error).__mro__:
        if kind.__module__ == errors.__name__:
            yield kind.__name__


def _read(path: Path, ended: ActorExit, what: str) -> Any:  # noqa: ANN401
    """Return the result; raise what the child raised, or how it exited without a result."""
    if not path.is_file():
        how, advice, _ = cause_of(ended)
        if ended.code == 0:
            how = "exited with code 0 before it was done"
        text = f"\n\n{ended.text}" if ended.text else ""
        raise ActorFailed(f"{what} failed: its process {how}. {advice}{text}")
    size = path.stat().st_size
    if size > _MOST_ANSWER_BYTES:
        raise ActorFailed(
            f"{what} failed: its result has {size} bytes, more than the limit of "
            f"{_MOST_ANSWER_BYTES}"
        )
    answer = json.loads(path.read_bytes())
    if "error" in answer:
        raise _error_of(answer, what)
    return answer["answer"]


def _error_of(reply: dict[str, Any], what: str) -> AsyncRLError:
    if reply["ours"]:
        error: AsyncRLError = getattr(errors, reply["ours"])(reply["message"])
        error.add_note(f"{what}, in a separate process:\n{reply['text']}")
        for note in reply["notes"]:
            error.add_note(note)
        return error
    return ActorFailed(f"{what} failed: {reply['error'].rstrip('.')}\n\n{reply['text']}")
