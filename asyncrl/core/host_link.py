"""The contract between a learner and the hosts that run its actors on other machines.

A host is the process that starts actors on one machine. Messages are bytes; `fleet/` knows
what they say, `transport/` how they are sent. Any message may be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class StartedHosts(Protocol):
    """Places for hosts on other machines, and later the hosts there."""

    address: str
    """This machine's address, as those machines reach it."""

    def start(self, run: Callable[..., object], fail: Callable[[Exception], object]) -> None:
        """Start the hosts, each of which runs this with its number of `actors`.

        `fail` may be called by another thread, once, if they cannot run any more.
        """
        ...

    def close(self) -> None:
        """End the hosts that still run, and give their places back; may be called again."""
        ...


class HostPort(Protocol):
    """The learner's end: the messages of all hosts."""

    @property
    def reads(self) -> int:
        """How often the socket was read: while this does not change, no host can be heard."""
        ...

    def receive(self, timeout_s: float) -> list[tuple[bytes, bytes]]:
        """Return the messages that have arrived, each with its host; wait for one at most this."""
        ...

    def send(self, host: bytes, data: bytes) -> None:
        """Send a message to a host that has sent one."""
        ...


class HostLine(Protocol):
    """A host's end. Must be used by one thread."""

    def receive(self, timeout_s: float) -> list[bytes]:
        """Return the messages that have arrived; wait for one at most `timeout_s`."""
        ...

    def send(self, data: bytes) -> None:
        """Send a message, or drop it if none can be sent now."""
        ...

    def why_silent(self) -> str:
        """Return the likely reason why the learner does not answer; continues a sentence."""
        ...
