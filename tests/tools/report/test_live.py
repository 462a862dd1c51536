"""The page of an active run: who gets it, what they see of later records, how it ends."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from asyncrl.core.errors import ConfigError
from asyncrl.run.presets import preset
from asyncrl.tools.report import live
from asyncrl.tools.report.live import LiveReport, check_active
from asyncrl.tools.report.run_files import RunFiles
from tests.support.helpers import wait_until
from tests.tools.report.runs import made_run
from tests.tools.report.test_one_run import RECORDS, SUMMARY

TIMEOUT_S = 30.0


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An active run; its page may be built as often as it is asked for."""
    monkeypatch.setattr(live, "_INTERVAL_S", 0.01)
    monkeypatch.setattr(live, "_LONGEST_PAUSE_S", 0.01)
    return made_run(tmp_path / "mine", preset("dqn"), records=RECORDS[:4], host="another")


@pytest.fixture
def served(run: Path) -> Iterator[LiveReport]:
    with closing(LiveReport(run)) as report:
        report.serve()
        yield report


def append(run: Path, record: dict[str, float]) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")


def port_of(report: LiveReport) -> int:
    return int(report.url.split(":")[2].split("/")[0])


@contextmanager
def asked(
    report: LiveReport, path: str, method: str = "GET", **headers: str
) -> Iterator[HTTPResponse]:
    """Send a request; `{port}` in a header, and `{token}` in a path, are those of the page."""
    port, token = port_of(report), report.url.partition("=")[2]
    with closing(HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)) as connection:
        sent = {name: value.format(port=port) for name, value in headers.items()}
        connection.request(method, path.format(token=token), headers=sent)
        with connection.getresponse() as response:
            yield response


def following(report: LiveReport) -> Any:
    return asked(report, "/events?token={token}")


def next_event(response: HTTPResponse) -> tuple[str, Any]:
    """Return the kind and the data of the next event."""
    kind = "message"
    while line := response.readline():
        name, _, value = line.decode().rstrip("\n").partition(":")
        if name == "event":
            kind = value.strip()
        elif name == "data":
            return kind, json.loads(value or "null")
    raise EOFError("the server ended the connection")


def test_page_is_that_of_the_report_and_may_ask_for_updates(served: LiveReport) -> None:
    with asked(served, "/?token={token}") as response:
        html = response.read().decode()
    assert "<h1>mine</h1>" in html
    assert "default-src 'none'; script-src 'sha256-" in html
    assert "connect-src 'self'" in html
    assert f'"updates":"/events?token={served.url.partition("=")[2]}"' in html
    assert response.getheader("Content-Security-Policy") == "frame-ancestors 'none'"
    assert response.getheader("Referrer-Policy") == "no-referrer"
    assert response.getheader("Cache-Control") == "no-store"


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {}, 403),
        ("/?token={token}x", {}, 403),
        ("/events", {}, 403),
        ("/?token={token}", {"Host": "evil.example:{port}"}, 403),
        ("/?token={token}", {"Origin": "http://evil.example"}, 403),
        ("/events?token={token}", {"Origin": "http://evil.example"}, 403),
        ("/metrics.jsonl?token={token}", {}, 404),
        ("/?token={token}", {"Host": "localhost:{port}"}, 200),
        ("/?token={token}", {"Origin": "http://127.0.0.1:{port}"}, 200),
    ],
)
def test_only_who_knows_the_token_and_is_no_other_site_is_answered(
    path: str, headers: dict[str, str], status: int, served: LiveReport
) -> None:
    with asked(served, path, **headers) as response:
        assert response.status == status
        assert ("<h1>mine</h1>" in response.read().decode()) == (status == 200)


def test_all_clients_see_later_records_and_the_end(run: Path, served: LiveReport) -> None:
    with following(served) as one, following(served) as other:
        for response in (one, other):
            kind, shown = next_event(response)
            assert kind == "message"
            assert "<dd>480</dd>" in shown["body"]  # environment steps
        append(run, RECORDS[4])
        for response in (one, other):
            _, shown = next_event(response)
            assert "<dd>640</dd>" in shown["body"]
            assert shown["data"]["xs"][0]["opt_steps"] == [0, 10, 20, 30, 40]
        start = json.loads((run / "run.json").read_text())
        (run / "summary.json").write_text(json.dumps({**SUMMARY, **start}))
        served.close()
        for response in (one, other):
            while (event := next_event(response))[0] != "end":
                shown = event[1]
            assert "Ended because 50 optimisation steps are done" in shown["body"]
            assert not response.read().strip()


def test_idle_connections_are_bounded_and_end_with_the_server(
    served: LiveReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_MOST_CLIENTS", 2)
    before = set(threading.enumerate())
    held = [socket.create_connection(("127.0.0.1", port_of(served))) for _ in range(2)]
    wait_until(lambda: len(served._server._clients) == 2, TIMEOUT_S, "both to be accepted")
    threads = [*served._server._clients, served._thread]
    with socket.create_connection(("127.0.0.1", port_of(served))) as refused:
        refused.settimeout(TIMEOUT_S)
        assert refused.recv(1) == b""
    served.close()
    assert not any(thread.is_alive() for thread in threads)
    assert not set(threading.enumerate()) - before
    for connection in held:
        connection.close()


def test_port_that_is_taken_is_refused(run: Path, served: LiveReport) -> None:
    with pytest.raises(ConfigError) as caught:
        LiveReport(run, port_of(served))
    assert f"port {port_of(served)} cannot be used: another program uses it; cho" in str(
        caught.value
    )


def test_run_that_is_over_has_nothing_to_be_followed(run: Path, tmp_path: Path) -> None:
    check_active(RunFiles(run))
    over = made_run(tmp_path / "over", preset("dqn"), summary=SUMMARY)
    with pytest.raises(ConfigError, match="its state is ended; asyncrl report "):
        check_active(RunFiles(over))
