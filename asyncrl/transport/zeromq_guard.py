"""Who may connect over TCP, and what is known of those who tried.

libzmq asks a `Gatekeeper` about every key before it lets a message of its owner through, and tells
a `ConnectionLog` what became of each connection. Both belong to the thread that owns the socket,
but for `admit` and `revoke`.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from asyncrl.transport.zeromq_socket import ZAP_DOMAIN, Curve, is_readable, open_gate, open_monitor

_log = logging.getLogger(__name__)
# So that messages are not kept waiting by a flood of connections.
_MOST_AT_ONCE = 256
# Connections beyond those of known actors, from which on it is a flood.
_MANY_STRANGERS = 32
_LOG_INTERVAL_S = 10.0
_VERSION = b"1.0"
_EVENTS = {
    int(zmq.EVENT_CONNECTED): "connected",
    int(zmq.EVENT_ACCEPTED): "accepted",
    int(zmq.EVENT_DISCONNECTED): "disconnected",
    int(zmq.EVENT_HANDSHAKE_SUCCEEDED): "agreed",
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): "denied",
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): "failed",
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): "failed",
}


class Complaints:
    """Counts what was not accepted, and logs one line of a flood, not one for each.

    Each reason has lines of its own, so that none hides another behind it.
    """

    def __init__(self, counters: Counter[str], clock: Callable[[], float]) -> None:
        self._counters = counters
        self._clock = clock
        self._log_after: dict[str, float] = {}

    def note(self, reason: str, what: str, times: int = 1) -> None:
        """Count something, and log it unless its reason has been just before."""
        self._counters[reason] += times
        if (now := self._clock()) >= self._log_after.get(reason, 0.0):
            self._log_after[reason] = now + _LOG_INTERVAL_S
            count = self._counters[reason]
            _log.warning("did not accept, %s number %d: %s", reason, count, what)


class Gatekeeper:
    """Answers libzmq's question whether the owner of a key may connect (ZAP).

    Whoever it does not answer in time is not let in, and neither is anybody once it is closed.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], server: bytes) -> None:
        self._server = server
        self.socket = open_gate(context)
        """Readable when there is somebody at the gate."""
        self._lock = threading.Lock()
        self._users: dict[bytes, str] = {}

    def admit(self, user: str) -> Curve:
        """Make a key for a user, in place of any it had. Any thread."""
        curve = Curve.make(self._server)
        with self._lock:
            self._forget(user)
            self._users[curve.public] = user
        return curve

    def revoke(self, user: str) -> None:
        """Let nobody in with the key of this user any more. Any thread."""
        with self._lock:
            self._forget(user)

    def answer(self) -> None:
        """Answer those who are at the gate."""
        for _ in range(_MOST_AT_ONCE):
            if not is_readable(self.socket):
                return
            request = self.socket.recv_multipart(zmq.NOBLOCK)
            user = self._user_of(request)
            verdict = [b"200", b"OK", user.encode()] if user else [b"400", b"not admitted", b""]
            self.socket.send_multipart([*request[:2], _VERSION, request[3], *verdict, b""])

    def close(self) -> None:
        """Answer nobody any more, so that nobody is let in."""
        self.socket.close(0)

    def _user_of(self, request: list[bytes]) -> str | None:
        """Return whose key it is that somebody has shown, if it is one of ours."""
        match request:
            case [_, _, version, _, domain, _, _, b"CURVE", key]:
                if version == _VERSION and domain == ZAP_DOMAIN and len(key) == 32:
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
        """Readable when there is something to count."""
        self.counts: Counter[str] = Counter()
        """`connected`, `accepted`, `agreed`, `denied`, `failed`, `disconnected`."""
        self._open: set[int] = set()

    @property
    def open(self) -> int:
        """Connections that have been accepted and not ended, whether they have said who they are.

        Told apart by their descriptors, of which an ended connection may be told late.
        """
        return len(self._open)

    def read(self) -> Counter[str]:
        """Count what has happened since the last call, and return that."""
        news: Counter[str] = Counter()
        for _ in range(_MOST_AT_ONCE):
            if not is_readable(self.socket):
                break
            event = parse_monitor_message(self.socket.recv_multipart(zmq.NOBLOCK))
            name = _EVENTS.get(int(event["event"]), "other")
            news[name] += 1
            if name == "accepted":
                self._open.add(event["value"])
            elif name == "disconnected":
                self._open.discard(event["value"])
        self.counts.update(news)
        return news

    def complaints(self, known: int) -> Iterator[tuple[str, int, str]]:
        """Count what has happened; yield what, how often and why is wrong with it.

        `known` are the connections that there should be.
        """
        news = self.read()
        if failed := news["denied"] + news["failed"]:
            yield "handshake_failed", failed, "a connection without the right key, or broken off"
        strangers = self.open - known
        if news["accepted"] and strangers > _MANY_STRANGERS:
            yield "flood", news["accepted"], f"{strangers} connections that no actor has"

    def close(self) -> None:
        """Look no longer; before the watched socket is closed. May be called again."""
        if not self.socket.closed:
            self.read()
            self._watched.disable_monitor()
            self.socket.close(0)
