"""`asyncrl join`, and the flags of `asyncrl train` for it."""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from asyncrl.cli import join, train
from asyncrl.cli.main import main
from asyncrl.core.errors import ConfigError
from asyncrl.run.join_key import JoinKey
from asyncrl.transport.zeromq import Curve
from tests.cli import console
from tests.support.helpers import wait_until

DEADLINE_S = 60.0


def test_listen_and_a_range_stand_for_settings() -> None:
    words = ["dqn", "--listen", "tcp://127.0.0.1:7", "--advertise=here", "--actors", "3..9"]
    config = train.parse(words).config
    assert (config.launcher, config.actors, config.hosts.min_actors) == ("hosts", 9, 3)
    assert (config.transport.bind, config.transport.advertise) == ("tcp://127.0.0.1:7", "here")
    config = train.parse(["dqn", "--launcher", "ray", "--listen", "tcp://10.0.0.1:7"]).config
    assert (config.launcher, config.transport.bind) == ("ray", "tcp://10.0.0.1:7")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--listen learner.example.org", "transport.bind must be an IP address of this host"),
        ("--listen tcp://127.0.0.1 --advertise ..here", "transport.advertise must be a host name"),
        ("--listen tcp://0.0.0.0", "transport.bind_every_interface"),
        ("--advertise here", "set transport.bind to tcp://ADDRESS"),
        ("--listen tcp://127.0.0.1 --actors 9..3", "(set by --actors)"),
    ],
)
def test_what_cannot_be_listened_on_is_refused(
    flags: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "dqn", *flags.split()]) == 2
    assert said in capsys.readouterr().err


def test_a_key_without_settings_asks_for_them(tmp_path: Path) -> None:
    key = tmp_path / "join.key"
    curve = Curve(server=b"s" * 40, public=b"p" * 40, secret=b"x" * 40)
    JoinKey(address="tcp://127.0.0.1:1", curve=curve, spaces={}).save(key)
    with pytest.raises(ConfigError, match=r"started from Python: give\s+them by --config"):
        join.run(join.parse([str(key)]))


def test_a_missing_key_is_waited_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "none"
    for wait_s, said in (
        ("0", ""),
        ("0.1", f"there is no {missing} yet; waiting for it, at most 0.1"),
    ):
        with pytest.raises(ConfigError, match="there is no join key"):
            join.run(join.parse([str(missing), "--wait-s", wait_s]))
        out = capfd.readouterr().out
        assert (out.startswith(said), bool(out)) == (True, bool(said))


def first_actor_of(host: int, what: str) -> psutil.Process:
    """Wait for the process of an actor that a host has started."""
    found: list[psutil.Process] = []

    def is_there() -> bool:
        for child in psutil.Process(host).children(recursive=True):
            with suppress(psutil.Error):
                if " ".join(child.cmdline()).startswith("asyncrl actor 0"):
                    found.append(child)
        return bool(found)

    wait_until(is_there, DEADLINE_S, what)
    return found[0]


def has_gone(process: psutil.Process) -> bool:
    """Whether a process has ended; its parent may not have noticed yet."""
    with suppress(psutil.Error):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


@pytest.mark.processes
def test_hosts_wait_for_a_run_leave_it_and_end_with_it(tmp_path: Path) -> None:
    key = tmp_path / "run" / "join.key"
    join = ["join", str(key), "--actors", "1"]
    where = ["--actors", "0..1", "--listen", "tcp://127.0.0.1", "--run-dir", "run"]
    with console.started(*join, cwd=tmp_path) as first:
        wait_until(lambda: console.hears(first.pid, signal.SIGUSR1), DEADLINE_S, "the handler")
        first.send_signal(signal.SIGUSR1)  # schedulers send it to all processes of a job
        with console.started("train", "dqn", *console.SLOW, *where, cwd=tmp_path) as learner:
            actors = [first_actor_of(first.pid, "the first actor")]
            first.send_signal(signal.SIGTERM)
            said, warnings = first.communicate(timeout=DEADLINE_S)
            assert (first.returncode, warnings) == (143, "")
            assert "with room for 1 actors" in said
            assert "left the run" in said
            with console.started(*join, cwd=tmp_path) as second:
                actors.append(first_actor_of(second.pid, "the second actor"))
                learner.send_signal(signal.SIGTERM)
                said, warnings = second.communicate(timeout=DEADLINE_S)
            assert (second.returncode, warnings) == (0, "")
            assert "the run has ended" in said
            assert all(map(has_gone, actors))
            out, err = learner.communicate(timeout=DEADLINE_S)
    assert learner.returncode == 143
    assert f"asyncrl join {key} --actors N" in out
    assert "leaves the run" in err
    assert "was not heard" not in err, "it is not lost"
    hosts = json.loads((tmp_path / "run" / "summary.json").read_text())["hosts"].values()
    assert sorted((h["left"], h["lost"], h["started"]) for h in hosts) == [(0, 0, 1), (1, 0, 1)]
    assert not key.exists()
