"""An actor's function reaches only that actor: not a file, nor another process's descriptors."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest

from asyncrl.fleet.local import LocalLauncher, StartMethod
from asyncrl.fleet.local_files import make_body, take_body
from tests.contracts.test_launcher import DEADLINE_S, runs
from tests.fleet import bodies
from tests.fleet.test_local import its_server
from tests.support.helpers import wait_until
from tests.support.sample_messages import make_peer as peer

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows descriptors in /proc"),
]


def held(pid: int) -> list[str]:
    """Return the bodies that a process holds."""
    return [link for link in bodies.descriptors(pid) if "asyncrl-body" in link]


def everyone() -> list[int]:
    server = its_server()
    return [os.getpid(), server.pid, *(actor.pid for actor in server.children(recursive=True))]


def test_it_arrives_whole_and_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(tmp_path))
    data = os.urandom(8 << 20)
    for system in ("linux", "darwin"):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "platform", system)
            body = make_body(data)
        assert list(tmp_path.iterdir()) == []
        assert os.fstat(body).st_nlink == 0, "it has no name"
        assert not os.get_inheritable(body)
        assert take_body(body) == data
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(body)


def test_each_incarnation_gets_a_new_key_and_none_keeps_one() -> None:
    with LocalLauncher() as launcher:
        for incarnation in range(2):
            its_server().suspend()  # so that they all come at once
            numbers = {peer(i, incarnation): 10 * incarnation + i for i in range(4)}
            for who, number in numbers.items():
                launcher.launch(who, bodies.Runs(partial(bodies.reports_and_waits, number=number)))
            assert held(os.getpid()) == []
            its_server().resume()
            for who, number in numbers.items():
                wait_until(partial(runs, launcher, who), DEADLINE_S, f"{who}")
                assert launcher.progress(who).produced == number
            assert len(everyone()) == 2 + len(numbers)
            assert not any(held(pid) for pid in everyone())
            for who in numbers:
                launcher.kill(who)
            while numbers:
                for ended in launcher.exits(DEADLINE_S):
                    del numbers[ended.peer]


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_an_actor_has_closed_it_before_it_runs_a_line_of_the_users(
    tmp_path: Path, start_method: StartMethod
) -> None:
    with LocalLauncher(start_method=start_method) as launcher:
        launcher.launch(peer(), bodies.Runs(bodies.LooksWhileUnpickled(tmp_path / "notes")))
        (ended,) = launcher.exits(DEADLINE_S)
    assert ended.code == 0, ended.text
    links = json.loads((tmp_path / "notes").read_text())
    assert links
    assert not any("asyncrl-body" in link for link in links)
