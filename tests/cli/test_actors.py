"""`asyncrl actors`: lists, adds and removes actors of a run in another process."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from asyncrl.cli import actors, control
from asyncrl.cli.control import SOCKET
from asyncrl.cli.main import main
from tests.cli.console import TINY, started
from tests.support.helpers import wait_until

DEADLINE_S = 60.0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "name a run, and what to do"),
        (["run", "+1", "+2"], "name a run, and what to do"),
        (["run", "two"], "'two' is neither list nor a number of actors"),
        (["run", "+-2"], "'+-2' is neither list nor a number of actors"),
        (["run", "+2", "--json"], "--json has an effect on the list only"),
        (["nowhere"], "nowhere is not a run directory: it does not exist"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    words: list[str], expected: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["actors", *words]) == 2
    assert expected in capfd.readouterr().err


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "does not run"),
        ({"summary.json": {"starts": [{}]}}, "has ended"),
        ({"run.json": {"starts": [{"host": "another"}]}}, "was started on another machine"),
    ],
)
def test_a_run_that_is_not_active_is_named(
    files: dict[str, Any], expected: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text("mode: async\n")
    for name, content in {"run.json": {"starts": [{}]}, **files}.items():
        (tmp_path / name).write_text(json.dumps(content))
    with socket.socket(socket.AF_UNIX) as left_behind, control._short(tmp_path) as path:
        left_behind.bind(path)
    assert main(["actors", str(tmp_path), "+1"]) == 2
    assert expected in capfd.readouterr().err


def fleet(run_dir: Path, capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capfd.readouterr()
    assert main(["actors", str(run_dir), "--json"]) == 0
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


@pytest.mark.processes
def test_the_actors_of_a_run_in_another_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with started("train", "dqn", *TINY, "--run-dir", "run", "--quiet", cwd=tmp_path) as process:
        run_dir = tmp_path / "run"
        wait_until((run_dir / SOCKET).exists, DEADLINE_S, "the run to begin")

        def states() -> list[str]:
            return [row["state"] for row in fleet(run_dir, capfd)]

        def active(*wanted: bool) -> bool:
            return [state in {"running", "waiting"} for state in states()] == list(wanted)

        assert main(["actors", str(run_dir), "+2"]) == 0
        assert "1 -> 3 actors; the others are started" in capfd.readouterr().out
        wait_until(lambda: active(True, True, True), DEADLINE_S, "all to act")
        assert main(["actors", str(run_dir), "-3"]) == 2
        assert "a run must keep at least 1 actor, got 0" in capfd.readouterr().err
        assert main(["actors", str(run_dir), "1"]) == 0
        wait_until(lambda: states()[1:] == ["left", "left"], DEADLINE_S, "two to leave")
        (one, *_) = fleet(run_dir, capfd)
        assert one["pid"] > 0
        assert (one["actor"], one["incarnation"], one["restarts"]) == (0, 0, 0)
        assert main(["actors", str(run_dir)]) == 0
        assert "incarnation" in capfd.readouterr().out
        process.send_signal(signal.SIGTERM)
        process.communicate(DEADLINE_S)
        assert process.returncode == 143
    summary = json.loads((run_dir / "summary.json").read_text())
    ledger = summary["ledger"]
    assert ledger["produced"] == ledger["stored"] + ledger["dropped"] + ledger["lost"]
    assert summary["setup"]["actors"] == 1
    assert [summary["actors"][i]["left"] for i in "012"] == [0, 1, 1]
    assert not (run_dir / SOCKET).exists()


def test_the_change_is_said_in_a_sentence() -> None:
    assert actors._change_text(3, 3) == "the run has 3 actors already"
    assert actors._change_text(3, 1) == "3 -> 1 actors; those that leave send what they have first"
