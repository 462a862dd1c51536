"""Serves the page of an active run on the loopback address.

Open pages are updated by server-sent events. Only reads files of the run, and serves nothing but
its page. A request must have the token of the address that was printed, and must come from a page
under this address: other users of the machine do not know the token, and pages of other sites are
refused by the headers that browsers send.

A page is built at most once a second, and in at most 1 % of the time, however many clients there
are.
"""

from __future__ import annotations

import errno
import hmac
import logging
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from urllib.parse import parse_qs, urlsplit

from asyncrl.core.errors import AsyncRLError, ConfigError
from asyncrl.core.interrupter import start_thread
from asyncrl.tools.report.curves import AXES, GrowingFile
from asyncrl.tools.report.one_run import page_of_run
from asyncrl.tools.report.page import Charts, Page
from asyncrl.tools.report.run_files import RECORDS, RunFiles

logger = logging.getLogger(__name__)

_HOST = "127.0.0.1"
_NAMES = {_HOST, "localhost"}
"""Under these a browser reaches the loopback address, also at the other end of an ssh tunnel."""

_EVENTS = "/events"
_MOST_CLIENTS = 16
_CLIENT_TIMEOUT_S = 10.0
_CLOSE_S = 2.0
"""Timeout for clients to take the last state of the page."""

_INTERVAL_S = 1.0
_SHARE = 0.005
"""Share of the time that may go into building pages; sending takes about half as much again."""

_LONGEST_PAUSE_S = 60.0

_ACCEPT_POLL_S = 0.1
_ACTIVE = {"running", "elsewhere"}

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",  # besides that of the page itself
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address has the token
    "X-Content-Type-Options": "nosniff",
}


class LiveReport:
    """Serves the page of a run from `serve` to `close`."""

    def __init__(self, run_dir: Path, port: int = 0) -> None:
        """Take the port, or a free one for 0; raise `ConfigError` if it is taken."""
        self._source = _Source(run_dir)
        self._run_dir = run_dir
        try:
            self._server = _Server(port, self._source)
        except OSError as error:
            raise ConfigError(_no_port(port, error)) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            args=(_ACCEPT_POLL_S,),
            name="asyncrl-live-report",
            daemon=True,
        )
        self._serves = False

    @property
    def url(self) -> str:
        """The address to open, with its token."""
        port = self._server.server_address[1]
        return f"http://{_HOST}:{port}/?token={self._server.token}"

    def serve(self) -> None:
        """Start serving, in threads that end with the process at the latest."""
        start_thread(self._thread)
        self._serves = True

    def until_ended(self) -> None:
        """Wait until the run is no longer active."""
        while RunFiles(self._run_dir).state in _ACTIVE:
            self._source.ending.wait(_INTERVAL_S)

    def close(self) -> None:
        """Show clients the last state, and end all threads."""
        self._source.ending.set()
        if self._serves:
            self._server.shutdown()
        self._server.server_close()
        self._server.end_clients()


def check_active(run: RunFiles) -> None:
    """Raise `ConfigError` if a run has no later states to be shown."""
    if run.state not in _ACTIVE:
        raise ConfigError(
            f"{run.path} is not active: its state is {run.state}; asyncrl report {run.path}, "
            "without --live, writes its page"
        )


class _Source:
    """The newest state of the page, for any thread."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._file = GrowingFile(run_dir / RECORDS)
        self._lock = threading.Lock()
        self._page: Page | None = None
        self._state = ""
        self._next_at = 0.0
        self.ending = threading.Event()

    def page(self) -> Page:
        """Return the newest page; it is the same object as long as nothing changes."""
        with self._lock:
            if self._page is None or self.ending.is_set() or time.monotonic() >= self._next_at:
                is_first, before = self._page is None, time.thread_time()
                self._page = self._built()
                # What the first one reads and loads is not needed again.
                spent_s = 0.0 if is_first else time.thread_time() - before
                pause_s = min(max(_INTERVAL_S, spent_s / _SHARE), _LONGEST_PAUSE_S)
                self._next_at = time.monotonic() + pause_s
            return self._page

    def _built(self) -> Page:
        run = RunFiles(self._run_dir)
        try:
            is_new = self._file.read() or run.state != self._state
            if self._page is not None and not is_new:
                return self._page
            page, self._state = page_of_run(run, self._file.curves), run.state
        except (OSError, AsyncRLError) as error:  # the directory was moved or removed
            return self._page or Page("asyncrl", escape(str(error)), Charts(AXES).data)
        return page


class _Server(ThreadingMixIn, TCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int, source: _Source) -> None:
        super().__init__((_HOST, port), _Client)
        self.source = source
        self.token = secrets.token_urlsafe(16)
        self._clients: dict[threading.Thread, socket.socket] = {}

    def verify_request(self, request: object, client_address: object) -> bool:
        return len(self._clients) < _MOST_CLIENTS

    def process_request_thread(self, request: Any, client_address: object) -> None:  # noqa: ANN401
        me = threading.current_thread()
        self._clients[me] = request
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self._clients[me]

    def handle_error(self, request: object, client_address: object) -> None:
        """Log what failed, unless it is the client, who may hang up at any time."""
        error = sys.exception()
        if not isinstance(error, OSError):
            logger.warning("the live report failed: %s", error, exc_info=error)

    def end_clients(self) -> None:
        """Wait for the threads of clients; those that are late lose their connection."""
        clients = list(self._clients.items())
        for how in (socket.SHUT_RD, socket.SHUT_RDWR):  # who has asked for nothing ends at once
            deadline = time.monotonic() + _CLOSE_S
            for _, connection in clients:
                with suppress(OSError):  # it is closed already
                    connection.shutdown(how)
            for thread, _ in clients:
                thread.join(max(deadline - time.monotonic(), 0.0))


class _Client(BaseHTTPRequestHandler):
    """Answers one request. All methods but GET are unknown."""

    server: _Server
    timeout = _CLIENT_TIMEOUT_S

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        answers: dict[str, Callable[[], None]] = {"/": self._show, _EVENTS: self._follow}
        if refusal := self._refusal(asked.query):
            self.send_error(HTTPStatus.FORBIDDEN, refusal)
        elif asked.path not in answers:
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            answers[asked.path]()

    def _refusal(self, query: str) -> str:
        """Return why a request is refused, if it is."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if host.rpartition(":")[0] not in _NAMES:
            return "unknown host"  # a name of another site, which leads to this address
        if origin is not None and origin != f"http://{host}":
            return "unknown origin"
        given = parse_qs(query).get("token", [""])[-1]
        if not hmac.compare_digest(given.encode(), self.server.token.encode()):
            return "wrong token"
        return ""

    def _show(self) -> None:
        html = self.server.source.page().html(updates=f"{_EVENTS}?token={self.server.token}")
        body = html.encode(errors="backslashreplace")
        self._begin("text/html; charset=utf-8")
        self.wfile.write(body)

    def _follow(self) -> None:
        """Send each new state of the page, and end with the run."""
        self._begin("text/event-stream")
        source, shown = self.server.source, None
        while True:
            last = source.ending.is_set()
            page = source.page()
            text = f"data: {page.update()}\n\n" if page is not shown else ":\n\n"
            self.wfile.write(text.encode(errors="backslashreplace"))
            shown = page
            if last:
                self.wfile.write(b"event: end\ndata:\n\n")
                return
            source.ending.wait(_INTERVAL_S)

    def _begin(self, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.end_headers()

    def end_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def version_string(self) -> str:
        return "asyncrl"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name there
        """Log no requests."""


def _no_port(port: int, error: OSError) -> str:
    why = "another program uses it" if error.errno == errno.EADDRINUSE else error
    return f"port {port} cannot be used: {why}; choose another, or 0 for a free one"
