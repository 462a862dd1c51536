"""All exceptions that asyncrl raises on purpose, and exceptions as text. Raises none itself.

`AsyncRLError` is the base of all of them:

    ConfigError        a setting that cannot work, a ValueError; raised before anything is started
    EnvironmentFault   an environment broke its contract: NaN, wrong shape, wrong space
    ActorFailed        an actor, or another process of a run, failed; has its traceback
    TransportError     TransportClosed: the link was closed during a call; Refused: the learner
                       refused this actor, and the message says why
    WireError          bytes that are not a valid message
    NonFiniteModel     a parameter became NaN or infinite
    OutOfMemory        the learner's device has no memory for an optimisation step
    RankFailed         another learner of the run failed or is silent
    CheckpointError    a checkpoint could not be written, or is not complete
"""

from __future__ import annotations


def describe_error(error: BaseException) -> str:
    """Return class and message of an exception in one line."""
    try:
        words = f"{type(error).__name__}: {error}"
    except BaseException:  # the `__str__` of a custom class may raise anything
        words = type(error).__name__
    return " ".join(words.split()).removesuffix(":")  # an `AssertionError` often has no message


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
