"""All exceptions that asyncrl raises on purpose, and exceptions as text. Raises none itself.

`AsyncRLError` is the base of all of them:

    ConfigError        a setting that cannot work, a ValueError; raised before anything is started
    EnvironmentFault   an environment broke its contract: NaN, wrong shape, wrong space
    ActorFailed        an actor, or another process of a run, failed; has its traceback
    TransportError     TransportClosed: the link was closed during a call; Refused: the learner
                       refused this actor, and the message says why; ConnectionLost: an actor's
                       connection broke, and its next incarnation continues
    WireError          bytes that are not a valid message
    NonFiniteModel     a parameter became NaN or infinite
    OutOfMemory        the learner's device has no memory for an optimisation step
    RankFailed         another learner of the run failed or is silent
    CheckpointError    a checkpoint could not be written, or is not complete
"""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from typing import ClassVar

OURS = f"{Path(__file__).parents[1]}/"
"""Prefix of the file names of asyncrl."""

NOT_THEIRS = (
    "<",
    OURS,
    *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
"""Prefixes of file names that are not the user's own code."""


def describe_error(error: BaseException) -> str:
    """Return class and message of an exception in one line, and where user code raised it."""
    try:
        words = f"{type(error).__name__}: {error}"
    except BaseException:  # the `__str__` of a custom class may raise anything
        words = type(error).__name__
    line = " ".join(words.split()).removesuffix(":")  # an `AssertionError` often has no message
    return f"{line} ({'; '.join(where)})" if (where := places_of(error)) else line


def places_of(error: BaseException) -> list[str]:
    """Return asyncrl's notes on an exception, and the line of the user's code that raised it.

    Errors of asyncrl need no line: their message is enough.
    """
    found = [note for note in getattr(error, "__notes__", ()) if note.startswith("asyncrl: ")]
    lines = [] if isinstance(error, AsyncRLError) else lines_of(error)
    theirs = [line for line in lines if not line.startswith(NOT_THEIRS)]
    return [*(note.removeprefix("asyncrl: ") for note in found), *(f"at {x}" for x in theirs[-1:])]


def lines_of(error: BaseException) -> list[str]:
    """Return the frames of a traceback as `file:line in function`; the newest comes last."""
    frames = traceback.walk_tb(error.__traceback__)
    return [f"{f.f_code.co_filename}:{line} in {f.f_code.co_name}" for f, line in frames]


class AsyncRLError(Exception):
    """Base class of all errors that asyncrl raises on purpose."""


class ConfigError(AsyncRLError, ValueError):
    """A setting, or a combination of settings, that cannot work."""


class EnvironmentFault(AsyncRLError):
    """An environment broke its contract: NaN, wrong shape, wrong space."""


class ActorFailed(AsyncRLError):
    """An actor, or a process that builds an environment, failed; contains its traceback."""


class TransportError(AsyncRLError):
    """Messages between actors and learner could not be delivered."""


class TransportClosed(TransportError):
    """The link was closed while it was in use."""


class Refused(TransportError):
    """The learner refused this actor; the message says why."""


class ConnectionLost(TransportError):
    """An actor's connection to the learner broke, so that this incarnation of it ends.

    Its text begins with `START`: the text is what the actor's manager gets.
    """

    START: ClassVar = "the connection to the learner at "


class WireError(AsyncRLError):
    """Bytes that are not a valid message."""


class NonFiniteModel(AsyncRLError):
    """A parameter or a loss became NaN or infinite; nothing of it was published or saved."""


class OutOfMemory(AsyncRLError):
    """The learner's device has no memory left for an optimisation step."""


class RankFailed(AsyncRLError):
    """Another learner of the run failed, ended or is silent; the message says which one."""


class CheckpointError(AsyncRLError):
    """A checkpoint could not be written, or is not complete."""
