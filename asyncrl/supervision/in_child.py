"""Runs one function in a child process and returns its answer, or says how the child ended.

For code of the user's that may do anything to its process: constructors of environments, above
all. The child is a launcher's, as actors are: what it starts is killed with it, its log and its
stacks reach the parent, and it cannot outlive the parent. The answer is JSON in a file of the
launcher's private directory, and nothing of it is unpickled.
"""

from __future__ import annotations

import json
import logging
import math
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from asyncrl.core import errors
from asyncrl.core.errors import ActorFailed, AsyncRLError, describe_error
from asyncrl.core.launcher import ActorExit, Progress
from asyncrl.core.messages import Peer
from asyncrl.core.types import ActorId
from asyncrl.supervision.local import LocalLauncher
from asyncrl.supervision.restart_policy import SEE_STACKS, cause_of

logger = logging.getLogger(__name__)

CHILD_ID = ActorId(-1)
"""No actor has this number."""

_CHILD = Peer(actor_id=CHILD_ID, incarnation=0)

_POLL_S = 0.05
_KILL_S = 10.0
_FIRST_WORD_S = 2.0
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
) -> Any:  # noqa: ANN401  # whatever JSON can hold
    """Run a function in a child process, and return what it returns.

    Args:
        body: What runs. It is pickled by cloudpickle. It returns what JSON can hold.
        what: What it does, for messages: "building the environment".
        timeout_s: Seconds after which the child is killed, with the stacks of its threads shown.
        timeout_setting: The setting that holds this timeout, for messages.
        launcher: Starts the child before its preloaded modules are all there. By default one is
            made, and closed at the end.
        preload: Modules for a launcher that is made.

    An `AsyncRLError` of the child is raised here, as the same class. Any other end without an
    answer raises `ActorFailed`, with the child's traceback or stacks.
    """
    with ExitStack() as undo:
        early = launcher is not None
        launcher = launcher or undo.enter_context(
            LocalLauncher(preload=preload, names={CHILD_ID: "environment"})
        )
        path = launcher.directory / _ANSWER
        undo.callback(path.unlink, missing_ok=True)
        launcher.launch(_CHILD, partial(_answer, body, path), early=early)
        ended = _Wait(launcher, what, timeout_s, timeout_setting).until_ended()
        return _read(path, ended, what)


class _Wait:
    """Waits for the end of the child, says so from time to time, and kills it when it is late."""

    def __init__(
        self, launcher: LocalLauncher, what: str, timeout_s: float, timeout_setting: str
    ) -> None:
        self._launcher = launcher
        self._what = what
        self._timeout_s = timeout_s
        self._setting = timeout_setting

    def until_ended(self) -> ActorExit:
        """Return how the child ended by itself."""
        began, next_word_s = time.monotonic(), _FIRST_WORD_S
        while not (ends := self._launcher.exits(_POLL_S)):
            passed_s = time.monotonic() - began
            if passed_s > self._timeout_s:
                self._give_up()
            if passed_s > next_word_s:
                limit = f", timeout {self._timeout_s:g} s" if self._timeout_s < math.inf else ""
                logger.info(
                    "%s in a separate process, %.0f s so far%s", self._what, passed_s, limit
                )
                next_word_s = 2 * passed_s
        return ends[0]

    def _give_up(self) -> NoReturn:
        """Kill the child, and say where its threads stood."""
        self._launcher.kill(_CHILD, with_stacks=True)
        stacks = "".join(ended.text for ended in self._launcher.exits(_KILL_S))
        raise ActorFailed(
            f"{self._what} took more than {self._timeout_s:g} s, and its process was killed. If it "
            f"may take so long, raise {self._setting}; else {SEE_STACKS}"
            + (f"\n\n{stacks}" if stacks else "")
        )


def _answer(body: Callable[[], Any], path: Path, _: Progress) -> None:
    """Run in the child, and leave the answer, or what was raised, in a file."""
    try:
        answer = {"answer": body()}
    except Exception as error:
        answer = {
            "error": describe_error(error),
            "ours": next(_ours_of(error), ""),
            "message": str(error) if isinstance(error, AsyncRLError) else "",
            "notes": list(getattr(error, "__notes__", ())),
            "text": traceback.format_exc(),
        }
    data = json.dumps(answer).encode()
    draft = path.with_name(f".{path.name}")
    draft.write_bytes(data)
    draft.chmod(0o600)  # whatever umask the body has left
    draft.rename(path)


def _ours_of(error: Exception) -> Iterator[str]:
    """Yield our own classes of an exception, the nearest first."""
    for kind in type(error).__mro__:
        if kind.__module__ == errors.__name__:
            yield kind.__name__


def _read(path: Path, ended: ActorExit, what: str) -> Any:  # noqa: ANN401
    """Return the answer, or raise what the child raised, or how it ended without an answer."""
    if not path.is_file():
        how, advice, _ = cause_of(ended)
        if ended.code == 0:
            how = "ended with exit code 0 before it was done"
        text = f"\n\n{ended.text}" if ended.text else ""
        raise ActorFailed(f"{what} failed: its process {how}. {advice}{text}")
    size = path.stat().st_size
    if size > _MOST_ANSWER_BYTES:
        raise ActorFailed(
            f"{what} failed: its answer has {size} bytes, and {_MOST_ANSWER_BYTES} are allowed"
        )
    answer = json.loads(path.read_bytes())
    if "error" in answer:
        raise _error_of(answer, what)
    return answer["answer"]


def _error_of(told: dict[str, Any], what: str) -> AsyncRLError:
    error: AsyncRLError
    if told["ours"]:
        error = getattr(errors, told["ours"])(told["message"])
        error.add_note(f"{what}, in a separate process:\n{told['text']}")
    else:
        error = ActorFailed(f"{what} failed: {told['error'].rstrip('.')}\n\n{told['text']}")
    for note in told["notes"]:
        error.add_note(note)
    return error
