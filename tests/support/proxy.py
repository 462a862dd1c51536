"""A network in between that can be cut: forwards connections to a port of this machine."""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import suppress


class Proxy:
    """Forwards bytes both ways until it is frozen; then connections stay open, and are silent."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.to_port = 0
        self._frozen = threading.Event()
        self._ends = threading.Event()
        self._others: dict[socket.socket, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def freeze(self) -> None:
        self._frozen.set()

    def thaw(self) -> None:
        self._frozen.clear()

    def close(self) -> None:
        self._ends.set()
        self._thread.join()
        for one in (*self._others, self._listener):
            one.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._ends.is_set():
            if self._frozen.is_set():
                self._ends.wait(0.01)
                continue
            for key, _ in self._selector.select(0.05):
                if key.fileobj is self._listener:
                    self._connect()
                else:
                    self._forward(key.fileobj)  # type: ignore[arg-type]

    def _connect(self) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", self.to_port))
        except OSError:
            near.close()
            return
        for one, other in ((near, far), (far, near)):
            self._others[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _forward(self, one: socket.socket) -> None:
        other = self._others.get(one)
        if other is None:  # closed in this turn
            return
        with suppress(OSError):
            if data := one.recv(1 << 16):
                other.sendall(data)
                return
        for end in (one, other):
            self._selector.unregister(end)
            del self._others[end]
            end.close()
