"""Whole runs over TCP, and what other hosts, users and files see of a run."""

from __future__ import annotations

import logging
import os
import random
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from zmq.utils import z85

from asyncrl.fleet.config import ActorManagerConfig, RestartPolicyConfig
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.recorders.jsonl import JsonlRecorder
from asyncrl.run.run_config import RunConfig
from asyncrl.transport.zeromq import ZmqLearnerLink, ZmqTransportConfig
from asyncrl.transport.zeromq_socket import Curve
from tests.faults.runs import adds_up
from tests.fleet.bodies import descriptors
from tests.integration.test_train_async import Loop, config, run
from tests.support.helpers import wait_until
from tests.support.leftovers import children

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("fresh_helpers")]


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Collect all secret keys that are made."""
    made: list[bytes] = []
    make = Curve.make

    def remember(server: bytes = b"") -> Curve:
        curve = make(server)
        made.append(curve.secret)
        return curve

    monkeypatch.setattr(Curve, "make", remember)
    return made


def family() -> list[psutil.Process]:
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def actors() -> list[psutil.Process]:
    return [p for helper in children() for p in helper.children()]


def replace_an_actor() -> None:
    before = actors()
    random.Random(0).choice(before).kill()
    wait_until(lambda: {*actors()} - {*before}, 20, "another process in its place")


def bodies_on_their_way() -> list[str]:
    links = [link for process in family() for link in descriptors(process.pid)]
    return [link for link in links if "asyncrl-body" in link]


def open_files(process: psutil.Process) -> Iterator[Path]:
    """Return paths to what a process has open and others could read, with a name or without."""
    return (entry for entry in Path(f"/proc/{process.pid}/fd").iterdir() if entry.is_file())


def contents(paths: Iterator[Path]) -> Iterator[bytes]:
    for path in paths:
        with suppress(FileNotFoundError):  # the run still removes files that it no longer needs
            yield path.read_bytes()


def internet_sockets() -> list[Any]:
    return [c for process in family() for c in process.net_connections(kind="inet")]


def run_and_look(cfg: RunConfig, look: Callable[[], None], **parts: Any) -> None:
    """Train, and look around once, in the middle."""
    looks = [look]

    def before(trainer: AsyncTrainer) -> None:
        if trainer.opt_steps == 100 and looks:
            looks.pop()()

    result, trainer = run(cfg, strategy=Loop(before), **parts)
    assert result.opt_steps == 200
    assert adds_up(trainer)
    assert not looks


def run_directories() -> list[Path]:
    """Return the private directories that processes of this run belong to."""
    found = {process.environ().get("ASYNCRL_LAUNCHER") for process in family()[1:]}
    return [Path(directory) for directory in found if directory]


def files_below(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_file())


def test_by_default_a_run_opens_nothing_to_other_hosts_or_users() -> None:
    def look() -> None:
        assert internet_sockets() == []
        (directory,) = run_directories()
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert directory.stat().st_uid == os.getuid()

    run_and_look(config(), look)


@pytest.mark.fault("F1")
def test_a_run_over_tcp_listens_on_its_address_alone_and_shows_no_secret(
    secrets: list[bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[bytes] = []

    def look() -> None:
        listening = [c.laddr.ip for c in internet_sockets() if c.status == psutil.CONN_LISTEN]
        assert listening == ["127.0.0.1"]
        assert {c.laddr.ip for c in internet_sockets()} == {"127.0.0.1"}
        wait_until(lambda: not bodies_on_their_way(), 20, "actors to receive what they run")
        for process in family():
            seen.append("\0".join(process.cmdline()).encode())
            seen.append("\0".join(process.environ().values()).encode())
            seen.extend(contents(open_files(process)))
        (directory,) = run_directories()
        seen.extend(contents(files_below(directory)))

    def look_at_two_lives() -> None:
        look()
        replace_an_actor()
        look()

    keys: list[int] = []
    close = ZmqLearnerLink.close

    def count_and_close(link: ZmqLearnerLink) -> None:
        if link._auth is not None:
            keys.append(len(link._auth._users))
        close(link)

    monkeypatch.setattr(ZmqLearnerLink, "close", count_and_close)
    recorder = JsonlRecorder(tmp_path / "metrics.jsonl")
    restart = RestartPolicyConfig(backoff_s=0.01, backoff_max_s=0.05)
    over_tcp = ZmqTransportConfig(bind="tcp://127.0.0.1")
    cfg = config(transport=over_tcp, supervision=ActorManagerConfig(restart=restart))
    parts: Any = {"recorder": recorder, "checkpoint_dir": tmp_path / "checkpoints"}
    run_and_look(cfg, look_at_two_lives, **parts)
    assert keys[0] == 0, "every process has ended, and its key is void"
    seen.extend(contents(files_below(tmp_path)))
    seen.append("".join(capfd.readouterr()).encode())
    seen.append(caplog.text.encode())
    assert len(secrets) == 5, "the learner's, two actors', the evaluator's and a restarted actor's"
    assert len(seen) > 20
    forms = [form for secret in secrets for form in (secret, z85.decode(secret))]
    assert not [form for form in forms for text in seen if form in text]
