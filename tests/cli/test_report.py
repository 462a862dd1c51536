"""`asyncrl report --live` and `train --dashboard`: the page of an active run."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import pytest

from asyncrl.cli.main import main
from asyncrl.core.recorder import CLOCK_TIME
from asyncrl.run.run_config import RunConfig
from tests.cli.console import SLOW, started
from tests.support.helpers import wait_until
from tests.tools.report.runs import made_run

SUMMARY = {"best_score": 10.0, "opt_steps": 1000, "wall_s": 5.0}


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program uses."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def address_in(text: str) -> str:
    return next(word for word in text.split() if word.startswith("http://127.0.0.1:"))


@pytest.mark.processes
def test_dashboard_follows_a_run_to_its_end(tmp_path: Path) -> None:
    flags = [*SLOW, "--dashboard", "--quiet", "--run-dir", "x"]
    with started("train", "dqn", *flags, cwd=tmp_path) as process:
        assert process.stdout is not None
        address = address_in(process.stdout.readline())
        with urlopen(address, timeout=60) as page:
            assert b"<h1>x</h1>" in page.read()
        with urlopen(address.replace("/?", "/events?"), timeout=60) as events:
            assert json.loads(events.readline().partition(b":")[2])["body"]
            process.send_signal(signal.SIGINT)
            lines = [line for line in events.read().split(b"\n") if len(line) > 1]
        _, err = process.communicate(timeout=60)
    assert err == ""
    assert process.returncode == 128 + signal.SIGINT
    assert lines[-2:] == [b"event: end", b"data:"]
    last = json.loads(lines[-3].partition(b":")[2])
    assert "Ended because interrupted by SIGINT." in last["body"]


def test_live_report_ends_with_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.strftime(CLOCK_TIME)
    run = made_run(tmp_path / "mine", RunConfig(), host="another", began=began)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(main, ["report", str(run), "--live"])
        said: list[str] = []

        def address_was_said() -> bool:
            said.append(capsys.readouterr().out)
            return "http" in "".join(said)

        wait_until(address_was_said, 60.0, "the address")
        with closing(urlopen(address_in("".join(said)), timeout=60)) as page:
            assert b"<h1>mine</h1>" in page.read()
        start = json.loads((run / "run.json").read_text())
        (run / "summary.json").write_text(json.dumps({**SUMMARY, **start}))
        assert done.result(60) == 0
    assert capsys.readouterr().out.endswith("the run has ended\n")


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("report {run} --live", "{run} is not active: its state is ended; asyncrl report"),
        ("report {run} {run} --live", "--live shows one run and writes no file"),
        ("report {active} --live --port {port}", "port {port} cannot be used: another program"),
        ("report {active} --live --port 65536", "--port must lie in [0, 65535]"),
        ("train dqn --dashboard-port 1", "--dashboard-port has no effect without --dashboard"),
        (
            "train dqn --mode sync --run-dir {new} --dashboard --dashboard-port {port}",
            "port {port} cannot be used: another program uses it; choose another, or 0 for a free",
        ),
    ],
)
def test_what_cannot_be_served_is_refused(
    command: str, error: str, taken: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {
        "run": made_run(tmp_path / "run", RunConfig(), summary=SUMMARY),
        "active": made_run(tmp_path / "active", RunConfig(), host="another"),
        "new": tmp_path / "new",
        "port": taken,
    }
    assert main(command.format(**names).split()) == 2
    assert error.format(**names) in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_long_reading_shows_its_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at = [dict.fromkeys(("env_steps", "opt_steps", "wall_s", "eval_reward"), k) for k in (1.0, 2.0)]
    run = made_run(tmp_path / "mine", RunConfig(), records=at)
    assert main(["report", str(run)]) == 0
    assert not capsys.readouterr().err
    monkeypatch.setattr("asyncrl.tools.report.curves._PROGRESS_S", -1.0)
    for command in ("report", "plot"):
        assert main([command, str(run), "-o", str(tmp_path / f"{command}.svg")]) == 0
        first, second = capsys.readouterr().err.splitlines()[:2]
        assert first == f"read 0 % of {run}/metrics.jsonl"
        assert second.split()[1] > "0"
    assert main(["runs", str(tmp_path)]) == 0
    assert not capsys.readouterr().err


def test_offline_runs_are_drawn_over_optimisation_steps(tmp_path: Path) -> None:
    records = [
        {"env_steps": 0.0, "opt_steps": 10.0 * k, "wall_s": k, "eval_reward": k} for k in (1.0, 2.0)
    ]
    config = RunConfig(mode="offline", data=tmp_path)
    runs = [str(made_run(tmp_path / name, config, records=records)) for name in ("a", "b")]
    picture, page = tmp_path / "curves.svg", tmp_path / "page.html"
    assert main(["plot", *runs, "-o", str(picture)]) == 0
    assert "<!-- optimisation steps -->" in picture.read_text()
    for shown in (runs, runs[:1]):
        assert main(["report", *shown, "-o", str(page)]) == 0
        assert 'value="opt_steps" checked' in page.read_text()
