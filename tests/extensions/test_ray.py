"""Hosts on Ray: their process, which a fake Ray in it disturbs."""

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
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from asyncrl.cli.main import main
from asyncrl.core.errors import ConfigError, Refused, TransportError
from asyncrl.extensions.ray.driver import reserved, rooms_of, serve
from asyncrl.extensions.ray.hosts import RayHosts, on_ray
from asyncrl.fleet.config import HostsConfig, RayConfig
from asyncrl.fleet.local import packed
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.learner.stop_conditions import MaxOptSteps, MaxSeconds
from asyncrl.run.join_key import JoinKey
from asyncrl.run.run_config import RunConfig
from asyncrl.run.train import build_trainer, train_async
from asyncrl.transport.zeromq import ZmqTransportConfig
from tests.contracts.test_launcher import alive
from tests.integration.test_hosts import CONFIG, check, once
from tests.integration.test_train_async import Loop
from tests.support.fakes import ConstantConfig, CountingBatch
from tests.support.helpers import wait_until

FAKE = Path(__file__).parents[1] / "support" / "fake_ray"
DEADLINE_S = 60.0
LOST = r"connection to the Ray cluster is lost: .* has ended.*resume the run"

without_ray = pytest.mark.skipif(
    bool(importlib.util.find_spec("ray")), reason="Ray is installed here"
)


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunConfig]:
    """What connects to the fake, which has two nodes with two CPUs; it is not loaded here."""
    monkeypatch.syspath_prepend(FAKE)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield RunConfig(ray=RayConfig(address=f"127.0.0.1:{listener.getsockname()[1]}"))


def waits(**_: int) -> None:
    """Stand for a host that runs on."""
    threading.Event().wait(DEADLINE_S)


def fails(actors: int) -> None:
    raise ConfigError(f"{actors} are too many")


@pytest.mark.processes
def test_a_run_on_ray_ends_with_its_hosts_and_leaves_this_process_alone(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    done: list[Any] = []
    start, served = RayHosts.start, list[JoinKey]()

    def spied(places: RayHosts, run: Any, fail: Any) -> None:
        served.append(run.args[0])
        start(places, run, fail)

    monkeypatch.setattr(RayHosts, "start", spied)

    def before(trainer: AsyncTrainer) -> None:
        if once(trainer, 100, done):
            secret = served[0].curve.secret.decode()
            for child in psutil.Process().children():
                with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                    assert secret not in " ".join([*child.cmdline(), *child.environ().values()])

    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    own = {"launcher": "process", "transport": ZmqTransportConfig(), "hosts": HostsConfig()}
    result = train_async(
        ConstantConfig(),
        CountingBatch,
        replace(CONFIG, ray=replace(config.ray, hosts=1), **own),
        stop=MaxOptSteps(300) | MaxSeconds(60),
        strategy=Loop(before),
        start_hosts=on_ray,
    )
    check(result)
    assert done
    assert {*result.actors} == {"0", "1"}
    assert [host["started"] for host in result.hosts.values()] == [2]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert "ray" not in sys.modules
    assert "raylet" not in "".join(capfd.readouterr())


@pytest.mark.processes
@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [(waits, TransportError, LOST), (fails, ConfigError, "hosts on Ray: 1 are too many")],
)
def test_a_run_fails_once_if_its_hosts_cannot_run_any_more(
    config: RunConfig, body: Callable[[int], None], kind: type[Exception], words: str
) -> None:
    failed: queue.Queue[Exception] = queue.Queue()
    places = on_ray(config)
    try:
        places.start(body, failed.put)
        if kind is TransportError:
            places._process.kill()
        error = failed.get(timeout=DEADLINE_S)
    finally:
        places.close()
    assert isinstance(error, kind)
    assert re.search(words, str(error))
    assert failed.empty()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"address": "127.0.0.1:1"}, "hosts on Ray: ConnectionRefusedError"),
        (
            {"cpus_per_actor": 2.5},
            r"2 hosts with 3 \+ 3 CPUs in 30 s: its nodes have 2, 2 CPUs, of which 3 are free.*"
            "ray.cpus_per_actor",
        ),
    ],
)
def test_a_cluster_that_is_out_of_reach_or_too_small_is_described(
    config: RunConfig, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        on_ray(replace(config, ray=replace(config.ray, **changes)))


@pytest.mark.processes
def test_hosts_end_with_a_learner_that_is_killed(config: RunConfig) -> None:
    code = (
        "import os; from asyncrl import RayConfig, RunConfig, on_ray; "
        f"p = on_ray(RunConfig(ray=RayConfig(address={config.ray.address!r}))); "
        "print(p._process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(FAKE), *sys.path])}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False
    )
    pid = int(ended.stdout)
    wait_until(lambda: not alive(pid), DEADLINE_S, "the end of the process that speaks to Ray")


@without_ray
def test_without_ray_a_sentence_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--launcher", "ray", "--run-dir", str(tmp_path / "it")]
    assert main(["train", "dqn", *flags]) != 0
    assert "pip install 'asyncrl[ray]'" in capsys.readouterr().err


def test_python_passes_what_starts_hosts() -> None:
    parts: dict[str, Any] = {"agent": ConstantConfig(), "env": CountingBatch}
    with pytest.raises(ConfigError, match="start_hosts=on_ray"):
        build_trainer(RunConfig(launcher="ray"), **parts)
    with pytest.raises(ConfigError, match="start_hosts has no effect with mode=sync"):
        build_trainer(RunConfig(mode="sync"), start_hosts=on_ray, **parts)


@pytest.mark.parametrize("address", ["ray://head:10001", "local", "", "head"])
def test_an_address_that_cannot_work_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"ray.address must be auto or HOST:PORT.*job submit"):
        RayConfig(address=address)


@pytest.mark.parametrize(
    ("actors", "hosts", "rooms"), [(4, 0, [2, 1, 1]), (2, 9, [1, 1]), (2, 1, [2])]
)
def test_hosts_share_the_actors(actors: int, hosts: int, rooms: list[int]) -> None:
    able = {"Alive": True, "Resources": {"CPU": 8.0}}
    nodes: list[dict[str, Any]] = [{**able, "Alive": False}, {"Alive": True, "Resources": {}}]
    assert rooms_of(actors, RayConfig(hosts=hosts), nodes + [able] * 3) == rooms


def test_ray_places_a_lost_host_again_where_there_is_room() -> None:
    bundles: list[Any] = []

    def reserve(wanted: list[dict[str, int]], *, strategy: str) -> Any:
        bundles.extend([*wanted, strategy])
        return SimpleNamespace(wait=lambda timeout_s: timeout_s == 7.0)

    places = SimpleNamespace(
        PlacementGroupSchedulingStrategy=lambda _, placement_group_bundle_index: (
            placement_group_bundle_index
        )
    )
    ray: Any = SimpleNamespace(
        util=SimpleNamespace(placement_group=reserve, scheduling_strategies=places)
    )
    options = reserved(ray, [2, 1], RayConfig(timeout_s=7.0, placement="pack"))
    assert bundles == [{"CPU": 2}, {"CPU": 1}, "PACK"]
    assert [(one["num_cpus"], one["scheduling_strategy"]) for one in options] == [(2, 0), (1, 1)]
    assert [one["max_retries"] for one in options] == [100, 100]


def test_a_host_that_is_refused_is_not_tried_again() -> None:
    retried = (OSError, TransportError)

    def refused(**_: int) -> None:
        raise Refused("other versions")

    with pytest.raises(ConfigError, match="other versions") as caught:
        serve(packed(refused), 1)
    assert not isinstance(caught.value, retried)
