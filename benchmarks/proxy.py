"""A TCP proxy that does to connections what networks do: delay, stall, cut, swallow."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque


class Proxy:
    """Forwards connections to its `port` to a server on this host."""

    def __init__(self, server_port: int = 0, *, delay_s: float = 0.0) -> None:
        """Listen on a separate port. Each byte passes `delay_s` after it came."""
        self.server_port = server_port
        """Must be set before connections arrive."""
        self._delay_s = delay_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._due: deque[tuple[float, socket.socket, bytes]] = deque()
        self._lock = threading.Lock()
        self.stalled = threading.Event()
        """While set, nothing is read and no error is reported; buffers fill up."""
        self.swallowing = threading.Event()
        """While set, what comes is thrown away, as by a network that is gone."""
        self.cuts = 0
        self.given_up_at: list[float] = []
        """When one of the two sides closed a connection, by the monotonic clock."""
        self._cut_after: int | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self, after_bytes: int = 0) -> None:
        """Break all connections after this number of further bytes in any direction."""
        with self._lock:
            self._cut_after = after_bytes
            if not after_bytes:
                self._break_all()

    def close(self) -> None:
        """Break all connections and accept no more."""
        self._closed.set()
        self._thread.join(10)
        with self._lock:
            self._break_all()
        self._listener.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            with self._lock:
                ends = [] if self.stalled.is_set() else list(self._pairs)
                wait_s = self._due[0][0] - time.monotonic() if self._due else 0.01
            try:
                ready, _, _ = select.select(
                    [self._listener, *ends], [], [], max(0.0, min(wait_s, 0.01))
                )
            except (OSError, ValueError):  # one of them was broken from another thread meanwhile
                continue
            with self._lock:
                for end in ready:
                    self._serve(end)
                self._deliver()

    def _serve(self, end: socket.socket) -> None:
        if end is self._listener:
            client, _ = end.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self.server_port))
            except OSError:
                client.close()
                return
            for one, other in ((client, server), (server, client)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._pairs[one] = other
        elif end in self._pairs:
            self._take(end, self._pairs[end])

    def _take(self, end: socket.socket, other: socket.socket) -> None:
        """Keep what has come from one end until it is due at the other."""
        if self._cut_after == 0:
            return
        try:
            data = end.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._give_up(end)
        elif not self.swallowing.is_set():
            if self._cut_after is not None:
                data = data[: self._cut_after]
                self._cut_after -= len(data)
            self._due.append((time.monotonic() + self._delay_s, other, data))

    def _deliver(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic():
            _, end, data = self._due.popleft()
            if end in self._pairs:
                try:
                    end.sendall(data)
                except OSError:
                    self._give_up(end)
        if self._cut_after == 0:
            self._break_all()

    def _give_up(self, end: socket.socket) -> None:
        self.given_up_at.append(time.monotonic())
        self._break(end)

    def _break(self, end: socket.socket) -> None:
        other = self._pairs.pop(end)
        del self._pairs[other]
        end.close()
        other.close()

    def _break_all(self) -> None:
        self._cut_after = None
        self.cuts += len(self._pairs) // 2
        for end in list(self._pairs):
            if end in self._pairs:
                self._break(end)
