"""The learner's side of hosts on Ray: its process, which a fake Ray in it disturbs."""

from __future__ import annotations

import importlib.util
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from asyncrl.core.errors import ConfigError, TransportError
from asyncrl.fleet.config import HostsConfig
from asyncrl.fleet.ray import RayConfig, RayHosts
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.learner.stop_conditions import MaxOptSteps, MaxSeconds
from asyncrl.run.join_key import JoinKey
from asyncrl.run.train import train_async
from asyncrl.transport.zeromq import ZmqTransportConfig
from tests.contracts.test_launcher import alive
from tests.integration.test_hosts import CONFIG, check, once
from tests.integration.test_train_async import Loop
from tests.support.fakes import ConstantConfig, CountingBatch
from tests.support.helpers import wait_until

pytestmark = pytest.mark.processes

FAKE = Path(__file__).parents[1] / "support" / "fake_ray"
DEADLINE_S = 60.0
LOST = r"connection to the Ray cluster is lost: .* has ended.*resume the run"


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Iterator[RayConfig]:
    """What connects to the fake; it is not loaded here."""
    monkeypatch.syspath_prepend(FAKE)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield RayConfig(address=f"127.0.0.1:{listener.getsockname()[1]}")


def waits(_: int) -> None:
    """Stand for a host that runs on."""
    threading.Event().wait(DEADLINE_S)


def fails(_: int) -> None:
    raise ConfigError("this host wants nothing")


def test_a_run_on_ray_ends_with_its_hosts_and_leaves_this_process_alone(
    config: RayConfig, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    done: list[Any] = []
    serve, served = RayHosts.serve, list[JoinKey]()

    def spied(places: RayHosts, run: Any, **options: Any) -> None:
        served.append(run.args[0])
        serve(places, run, **options)

    monkeypatch.setattr(RayHosts, "serve", spied)

    def before(trainer: AsyncTrainer) -> None:
        if once(trainer, 100, done):
            secret = served[0].curve.secret.decode()
            for child in psutil.Process().children():
                with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                    assert secret not in " ".join([*child.cmdline(), *child.environ().values()])

    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    result = train_async(
        ConstantConfig(),
        CountingBatch,
        replace(CONFIG, launcher="process", transport=ZmqTransportConfig(), hosts=HostsConfig()),
        stop=MaxOptSteps(300) | MaxSeconds(60),
        strategy=Loop(before),
        launcher=replace(config, hosts=1),
    )
    check(result)
    assert done
    assert {*result.actors} == {"0", "1"}
    assert [host["started"] for host in result.hosts.values()] == [2]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert "ray" not in sys.modules
    assert "raylet" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("body", "lost", "words"),
    [
        (waits, "after", LOST),
        (fails, "", "failed 3 times in a row, at last: ConfigError: this host wants nothing"),
    ],
)
def test_a_run_fails_once_if_no_host_can_start_any_more(
    config: RayConfig, body: Any, lost: str, words: str
) -> None:
    failed: queue.Queue[Exception] = queue.Queue()
    places = RayHosts(config, actors=2)
    try:
        places.serve(body, on_lost=lambda *_: None, on_failed=failed.put)
        if lost:
            places._process.kill()
        error = failed.get(timeout=DEADLINE_S)
    finally:
        places.close()
    assert isinstance(error, TransportError if lost else ConfigError)
    assert re.search(words, str(error))
    assert failed.empty()


@pytest.mark.skipif(bool(importlib.util.find_spec("ray")), reason="Ray is installed here")
def test_without_ray_a_sentence_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r"pip install 'asyncrl\[ray\]'"):
        RayHosts(RayConfig(), actors=2)


@pytest.mark.parametrize("where", ["RAY_AUTH_TOKEN", "HOME", "nowhere"])
def test_the_token_of_a_cluster_is_used_where_there_is_one(
    where: str, config: RayConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / ".ray" / "auth_token"
    file.parent.mkdir()
    if where == "HOME":
        file.write_text("token")
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TOKEN_OF_CLUSTER", "yes")
    monkeypatch.setenv("HOME", str(tmp_path))
    if where.startswith("RAY"):
        monkeypatch.setenv(where, str(file))
    if where == "nowhere":
        with pytest.raises(ConfigError, match="RAY_AUTH_MODE=token"):
            RayHosts(config, actors=2)
    else:
        RayHosts(config, actors=2).close()


def test_hosts_end_with_a_learner_that_is_killed(config: RayConfig) -> None:
    code = (
        "import sys, os; from asyncrl.fleet.ray import *; "
        f"p = RayHosts(RayConfig(address={config.address!r}), actors=2); "
        "print(p._process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(FAKE), *sys.path])}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False
    )
    pid = int(ended.stdout)
    wait_until(lambda: not alive(pid), DEADLINE_S, "the end of the process that speaks to Ray")
