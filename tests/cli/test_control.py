"""The socket in a run directory: who is answered, and what is left."""

from __future__ import annotations

import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asyncrl.cli import control
from asyncrl.cli.control import SOCKET, ControlSocket, ask
from asyncrl.core.errors import ConfigError


def answer(request: Any) -> Any:
    if "wrong" in request:
        raise ConfigError("that is wrong")
    return {"got": request}


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    deep = tmp_path / ("a" * 120)  # longer than the path of a socket may be
    deep.mkdir()
    (deep / SOCKET).touch()  # left by a learner that was killed
    served = ControlSocket(deep, answer)
    yield deep
    served.close()
    served.close()
    assert not (deep / SOCKET).exists()
    assert "asyncrl-control" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(OSError):  # noqa: PT011  # as without any file
        ask(deep, {})


def test_requests_are_answered_one_after_the_other(run_dir: Path) -> None:
    assert stat.S_IMODE((run_dir / SOCKET).stat().st_mode) == 0o600
    assert ask(run_dir, {"number": 1}) == {"got": {"number": 1}}
    with pytest.raises(ConfigError, match="that is wrong"):
        ask(run_dir, {"wrong": 1})
    assert ask(run_dir, {"number": 2}) == {"got": {"number": 2}}


@pytest.mark.parametrize("sent", [b"", b"no JSON\n", b"[1]\n", b"{", b"[" * 200_000 + b"\n"])
def test_a_client_that_sends_no_request_is_disconnected(run_dir: Path, sent: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        with control._short(run_dir) as path:
            client.connect(path)
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        client.settimeout(30.0)
        assert client.recv(1) == b"", "it is disconnected without an answer"
    assert ask(run_dir, {}) == {"got": {}}


def test_other_users_are_not_answered(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "is_own", lambda _: False)
    with pytest.raises(PermissionError, match="belongs to another user"):
        ask(run_dir, {})
