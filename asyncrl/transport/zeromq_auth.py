"""Decides which peers may connect over TCP, and logs connection attempts.

libzmq asks an `Authenticator` about every key before it passes on its owner's messages, and reports
to a `ConnectionLog` the outcome of each connection. Both belong to the thread that owns the socket,
except for what any thread may call. Does not know what messages contain.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from asyncrl.transport.zeromq_socket import (
    ZAP_DOMAIN,
    is_readable,
    open_monitor,
    open_zap_socket,
)

_log = logging.getLogger(__name__)
# So that a flood of connections does not delay messages.
_MOST_AT_ONCE = 256
# Number of connections beyond those of expected actors that counts as a flood.
_MANY_STRANGERS = 32
_LOG_INTERVAL_S = 10.0
_VERSION = b"1.0"
_KEY_BYTES = 32
_EVENTS = {
    int(zmq.EVENT_CONNECTED): "connected",
    int(zmq.EVENT_ACCEPTED): "accepted",
    int(zmq.EVENT_DISCONNECTED): "disconnected",
    int(zmq.EVENT_HANDSHAKE_SUCCEEDED): "agreed",
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): "denied",
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): "failed",
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): "aborted",
}


class RejectionLog:
    """Counts what was rejected, and logs one line per flood instead of one per event.

    Each reason has its own lines, so that no reason hides another one.
    """

    def __init__(self, counters: Counter[str], clock: Callable[[], float]) -> None:
        self._counters = counters
        self._clock = clock
        self._log_after: dict[str, float] = {}

    def note(self, reason: str, what: str, times: int = 1, level: int = logging.WARNING) -> None:
        """Count a rejection, and log it unless its reason was logged just before."""
        self._counters[reason] += times
        if (now := self._clock()) >= self._log_after.get(reason, 0.0):
            self._log_after[reason] = now + _LOG_INTERVAL_S
            count = self._counters[reason]
            _log.log(level, "rejected, %s number %d: %s", reason, count, what)


class Authenticator:
    """Answers libzmq's question whether the owner of a key may connect (ZAP).

    A peer without an answer in time is not admitted. After `close` no peer is.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], server: bytes) -> None:
        self.server = server
        self.socket = open_zap_socket(context)
        """Readable when a connection waits for an answer."""
        self._lock = threading.Lock()
        self._users: dict[bytes, str] = {}

    def allow(self, key: bytes, user: str) -> None:
        """Let the owner of a public key connect; it replaces any earlier key. Any thread."""
        with self._lock:
            self._forget(user)
            self._users[key] = user

    def objection_to(self, key: str) -> str:
        """Return why a public key cannot be that of a further user, or an empty string. Any thread.

        With `allow`, such a key would take the place of its owner's.
        """
        try:
            is_key = len(z85.decode(key)) == _KEY_BYTES
        except (KeyError, ValueError, struct.error):
            is_key = False
        if not is_key:
            return f"a public key has 40 letters of the encoding Z85, got {key!r:.60}"
        if key.encode() == self.server:
            return f"the public key {key} is the learner's"
        with self._lock:
            taken = key.encode() in self._users
        return f"the public key {key} is that of another peer" if taken else ""

    def revoke(self, user: str) -> None:
        """Stop accepting the key of this user. Any thread."""
        with self._lock:
            self._forget(user)

    def answer(self) -> None:
        """Answer the waiting connections."""
        for _ in range(_MOST_AT_ONCE):
            if not is_readable(self.socket):
                return
            request = self.socket.recv_multipart(zmq.NOBLOCK)
            user = self._user_of(request)
            verdict = [b"200", b"OK", user.encode()] if user else [b"400", b"not admitted", b""]
            self.socket.send_multipart([*request[:2], _VERSION, request[3], *verdict, b""])

    def close(self) -> None:
        """Stop answering, so that no further peer is admitted."""
        self.socket.close(0)

    def _user_of(self, request: list[bytes]) -> str | None:
        """Return the user whose key was presented, if the key is known."""
        match request:
            case [_, _, version, _, domain, _, _, b"CURVE", key]:
                if version == _VERSION and domain == ZAP_DOMAIN and len(key) == _KEY_BYTES:
                    with self._lock:
                        return self._users.get(z85.encode(key))
        return None

    def _forget(self, user: str) -> None:
        for key in [key for key, owner in self._users.items() if owner == user]:
            del self._users[key]


class ConnectionLog:
    """Counts what becomes of a socket's connections."""

    def __init__(self, watched: zmq.Socket[bytes]) -> None:
        self._watched = watched
        self.socket = open_monitor(watched, sum(_EVENTS))
        """Readable when there are events to count."""
        self.counts: Counter[str] = Counter()
        """`connected`, `accepted`, `agreed`, `denied`, `failed`, `aborted`, `disconnected`."""
        self._open: set[int] = set()
        self.is_broken = False
        """Whether a connection has ended after both ends had agreed on it."""

    @property
    def open(self) -> int:
        """Connections that were accepted and have not ended, authenticated or not.

        Identified by file descriptor; the end of a connection may be reported late.
        """
        return len(self._open)

    def read(self) -> Counter[str]:
        """Count the events since the last call, and return the counts."""
        news: Counter[str] = Counter()
        for _ in range(_MOST_AT_ONCE):
            if not is_readable(self.socket):
                break
            event = parse_monitor_message(self.socket.recv_multipart(zmq.NOBLOCK))
            name = _EVENTS.get(int(event["event"]), "other")
            news[name] += 1
            self.counts[name] += 1
            self.is_broken |= name == "disconnected" and self.counts["agreed"] > 0
            if name == "accepted":
                self._open.add(event["value"])
            elif name == "disconnected":
                self._open.discard(event["value"])
        return news

    def why_silent(self) -> str:
        """Return the likely reason why the other end does not answer; continues a sentence."""
        counts = self.counts
        if counts["failed"] or counts["aborted"]:
            return (
                "what listens there does not prove to have this run's key: the run has ended, its "
                "learner is stopped or has not begun to train, or another program listens there"
            )
        if counts["connected"] > counts["disconnected"]:
            return "it is reachable, but busy, stopped, or has too many connections"
        return "no connection is accepted there: the run has ended, or a firewall blocks the port"

    def rejections(self, known: int) -> Iterator[tuple[str, str, int, int]]:
        """Count the events; yield each problem: reason, description, number and log level.

        `known` is the expected number of connections: many actors may connect at once.
        """
        news = self.read()
        if failed := news["denied"] + news["failed"]:
            yield "handshake_failed", "a connection without the right key", failed, logging.WARNING
        if aborted := news["aborted"]:
            # This is also an actor that is killed as it connects, which its launcher reports.
            yield "handshake_aborted", "a connection that ended early", aborted, logging.INFO
        strangers = self.open - known
        if news["accepted"] and strangers > _MANY_STRANGERS:
            words = f"{strangers} connections of no actor"
            yield "flood", words, news["accepted"], logging.WARNING

    def close(self) -> None:
        """Stop watching. Call it before the watched socket is closed. May be called again."""
        if not self.socket.closed:
            self.read()
            self._watched.disable_monitor()
            self.socket.close(0)
