"""What counts as shown to others."""

from __future__ import annotations

import base64
import socket
from pathlib import Path

import psutil
import zmq
from zmq.utils import z85

from benchmarks.chaos import exposure
from benchmarks.chaos.exposure import Exposed, encodings, open_to_others


def test_what_others_can_open_is_found_unless_a_directory_shuts_them_out(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "hidden").mkdir(parents=True)
    for name in ("open", "closed", "hidden/open"):
        (run / name).touch()
    (run / "link").symlink_to("closed")
    for name, mode in {"closed": 0o600, "open": 0o644, "hidden/open": 0o666}.items():
        (run / name).chmod(mode)
    (run / "hidden").chmod(0o700)
    run.chmod(0o755)
    assert open_to_others(run) == ["0755 run", "0644 open"]
    run.chmod(0o700)
    assert open_to_others(run) == []


def test_a_key_is_found_in_each_of_its_forms() -> None:
    _, secret = zmq.curve_keypair()
    raw = z85.decode(secret)
    needles = encodings(secret)
    found = Exposed()
    for text in (secret, raw, raw.hex().encode(), base64.b64encode(raw)):
        exposure._look_in("a log", b"before" + text + b"after", needles, found)
    exposure._look_in("another log", b"nothing", needles, found)
    assert found.secrets == ["a log"] * 4
    assert found.looked_at == 5


def test_listening_sockets_are_found() -> None:
    me = psutil.Process()
    assert exposure._shown_sockets(me, has_keys=False) == []
    with socket.create_server(("127.0.0.1", 0)):
        assert len(exposure._shown_sockets(me, has_keys=False)) == 1
        assert exposure._shown_sockets(me, has_keys=True) == []
    with socket.create_server(("0.0.0.0", 0)):
        assert "listens on 0.0.0.0" in exposure._shown_sockets(me, has_keys=True)[0]
    with socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0abstract-socket-of-a-test")
        assert "abstract" in exposure._shown_sockets(me, has_keys=True)[0]


def test_findings_tell_what_was_shown() -> None:
    quiet = exposure._findings(Exposed(keys=4, looked_at=9))
    assert [finding.verdict for finding in quiet] == ["kept"] * 4
    loud = Exposed(sockets=["a"], private=["b"], results=["0644 c"], secrets=["d"], keys=4)
    assert [finding.verdict for finding in exposure._findings(loud)] == ["broken"] * 4
    assert exposure._findings(loud)[2].measured == "1, as 0644 c"
    assert exposure._findings(Exposed(keys=0))[3].verdict == "broken", "no key, nothing shown"
