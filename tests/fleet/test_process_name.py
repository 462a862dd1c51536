"""What `ps` and `top` show of a run's processes."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from asyncrl.core.types import ActorId
from asyncrl.fleet.local import LocalLauncher
from tests.contracts.test_launcher import DEADLINE_S, runs
from tests.fleet import bodies
from tests.support.helpers import wait_until
from tests.support.leftovers import children
from tests.support.sample_messages import make_peer as peer

pytestmark = [
    pytest.mark.processes,
    pytest.mark.usefixtures("fresh_helpers"),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process name itself so"),
]


def shown(process: psutil.Process) -> tuple[str, str]:
    """Return what `ps -e` and `ps -ef` show."""
    place = Path(f"/proc/{process.pid}")
    name, title = (place / "comm").read_text(), (place / "cmdline").read_text()
    return name.rstrip("\n"), title.rstrip("\0")


def test_processes_are_distinguished() -> None:
    with LocalLauncher(names={ActorId(4): "evaluator"}) as launcher:
        (helper,) = children()
        peers = [peer(3), peer(4), peer(12), peer(123)]
        for each in peers:
            launcher.launch(each, bodies.Runs(bodies.reports_and_waits))
        wait_until(
            lambda: launcher.exits(0.0) == [] and all(runs(launcher, each) for each in peers),
            DEADLINE_S,
            "all of them",
        )
        assert shown(helper) == ("asyncrl-helper", "asyncrl helper")
        assert {shown(child) for child in helper.children()} == {
            ("asyncrl-actor-3", "asyncrl actor 3"),
            ("asyncrl-evaluat", "asyncrl evaluator"),
            ("asyncrl-acto-12", "asyncrl actor 12"),
            ("asyncrl-act-123", "asyncrl actor 123"),
        }
