"""Whole runs whose actors are on hosts that join: normal ends, losses, returns."""

from __future__ import annotations

import logging
import re
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asyncrl.core.agent import AgentConfig
from asyncrl.core.env import MakeBatchEnv
from asyncrl.core.errors import ConfigError, Refused
from asyncrl.core.interrupter import Interrupter
from asyncrl.fleet.config import HostsConfig
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.learner.replay_buffer_proxy import ReplayBufferProxy
from asyncrl.learner.stop_conditions import MaxOptSteps, MaxSeconds
from asyncrl.learner.train_result import TrainResult
from asyncrl.run.join import join_run
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import build_trainer
from asyncrl.transport.zeromq import Curve, ZmqTransportConfig
from asyncrl.transport.zeromq_hosts import HostMailbox, ZmqHostLine
from benchmarks.proxy import Proxy
from tests.integration.test_train_async import Loop, config
from tests.support import warm
from tests.support.fakes import ConstantConfig, CountingBatch
from tests.support.helpers import wait_until
from tests.support.leftovers import children

pytestmark = pytest.mark.processes

DEADLINE_S = 60.0

CONFIG: RunConfig = config(
    launcher="hosts",
    hosts=HostsConfig(min_actors=0, host_timeout_s=60.0),
    transport=ZmqTransportConfig(bind="tcp://127.0.0.1"),
    evaluate=EvaluationConfig(where="off"),
)

UNLIMITED = replace(CONFIG, limiter=replace(CONFIG.limiter, samples_per_insert=0.0))
"""What actors send is stored while the learner waits."""

JOINS = """
import sys
from tests.integration.test_hosts import CONFIG, join_run
from tests.support.fakes import ConstantConfig, CountingBatch
join_run(sys.argv[1], ConstantConfig(), CountingBatch, CONFIG, actors=2)
"""


class Hosts:
    """Hosts in threads of this process, and how they ended."""

    def __init__(self, key: Path) -> None:
        self.key = key
        self.ended: list[Any] = []
        self._threads: list[tuple[threading.Thread, Interrupter]] = []

    def join(self, cfg: RunConfig = CONFIG, *, actors: int = 2) -> Interrupter:
        interrupter = Interrupter()
        thread = threading.Thread(target=self._serve, args=(cfg, actors, interrupter))
        thread.start()
        self._threads.append((thread, interrupter))
        return interrupter

    def close(self) -> None:
        for thread, interrupter in self._threads:
            thread.join(20.0)
            interrupter.stop("the test ends")
            thread.join(DEADLINE_S)

    def _serve(self, cfg: RunConfig, actors: int, interrupter: Interrupter) -> None:
        try:
            more: Any = {"actors": actors, "interrupter": interrupter}
            join_run(self.key, ConstantConfig(), CountingBatch, cfg, **more)
            self.ended.append("ended")
        except Exception as error:
            self.ended.append(error)


@contextmanager
def hosts_of(key: Path) -> Iterator[Hosts]:
    hosts = Hosts(key)
    try:
        yield hosts
    finally:
        hosts.close()


def built(
    key: Path,
    cfg: RunConfig = CONFIG,
    *,
    before: Callable[[AsyncTrainer], None] | None = None,
    opt_steps: int = 300,
    agent: AgentConfig = ConstantConfig(),  # noqa: B008  # frozen
    make_env: MakeBatchEnv = CountingBatch,
    **parts: Any,
) -> AsyncTrainer:
    strategy = Loop(before) if before else None
    stop = MaxOptSteps(opt_steps) | MaxSeconds(60)
    return build_trainer(
        cfg, agent=agent, env=make_env, stop=stop, strategy=strategy, join_key=key, **parts
    )


def check(result: TrainResult) -> None:
    ledger = result.ledger
    assert result.opt_steps == 300
    assert ledger["in_flight"] == 0
    assert ledger["produced"] == ledger["stored"] + ledger["dropped"] + ledger["lost"]


def lose_the_silent(trainer: AsyncTrainer, log: pytest.LogCaptureFixture) -> None:
    """Let a long time pass for the launcher's hosts, until it has lost those that are silent."""
    launcher: Any = trainer.source.manager._launcher

    def lost() -> bool:
        for host in list(launcher._hosts.values()):
            host.silent_s = 2 * CONFIG.hosts.host_timeout_s
        return "was not heard" in log.text

    wait_until(lost, DEADLINE_S, "the loss")


def wait_for_restarts(trainer: AsyncTrainer, count: int) -> None:
    rows = trainer.proxy.actors.rows
    wait_until(lambda: sum(r.restarts for r in rows().values()) == count, DEADLINE_S, "restarts")


def restarts(result: TrainResult) -> float:
    return sum(row["restarts"] for row in result.actors.values())


def once(trainer: AsyncTrainer, opt_steps: int, done: list[Any]) -> bool:
    """Whether it is time for something that is done once."""
    if done or trainer.services.counts.opt_steps < opt_steps:
        return False
    done.append(1)
    return True


def test_the_secret_of_an_actor_never_leaves_the_machine_where_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, done, said = tmp_path / "join.key", list[Any](), list[bytes]()
    made: dict[str, list[Curve]] = {}
    make = Curve.make

    def remember(server: bytes = b"") -> Curve:
        curve = make(server)
        made.setdefault(threading.current_thread().name, []).append(curve)
        return curve

    for line in (HostMailbox, ZmqHostLine):

        def spied(line: Any, *args: Any, send: Any = line.send) -> None:
            said.append(args[-1])
            send(line, *args)

        monkeypatch.setattr(line, "send", spied)
    monkeypatch.setattr(Curve, "make", remember)

    def before(trainer: AsyncTrainer) -> None:
        if once(trainer, 100, done):
            (first,) = (p for p in children(recursive=True) if p.name() == "asyncrl-actor-0")
            first.kill()
            wait_for_restarts(trainer, 1)

    trainer = built(key, before=before)
    with hosts_of(key) as hosts:
        hosts.join()
        check(trainer.train())
    here = made.pop(threading.current_thread().name)
    assert len(here) == 2, "the learner's and the joining key"
    (there,) = made.values()
    assert len(there) >= 3, "three lives"
    words = b" ".join(said).decode()
    assert sum(curve.public.decode() in words for curve in there) == len(there)
    assert not [curve for curve in here + there if curve.secret.decode() in words]


def test_a_host_with_other_settings_is_refused_in_the_words_of_both(tmp_path: Path) -> None:
    key, done = tmp_path / "join.key", list[Any]()

    def before(trainer: AsyncTrainer) -> None:
        if hosts.ended and once(trainer, 0, done):
            hosts.join()

    trainer = built(key, before=before)
    with hosts_of(key) as hosts:
        hosts.join(replace(CONFIG, seed=5))
        check(trainer.train())
    refused, ended = hosts.ended
    assert isinstance(refused, Refused)
    assert str(refused) == (
        "seed is 5 at the host and 0 at the learner: join with the settings of the run"
    )
    assert ended == "ended"


def test_a_host_may_leave_during_the_run(tmp_path: Path) -> None:
    key, done = tmp_path / "join.key", list[Any]()

    def before(trainer: AsyncTrainer) -> None:
        if once(trainer, 100, done):
            first.stop("the test asks it to leave")
            wait_until(lambda: hosts.ended, DEADLINE_S, "the first host to have left")
            hosts.join(UNLIMITED)
            wait_for_restarts(trainer, 2)  # on the second host

    trainer = built(key, UNLIMITED, before=before)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    with hosts_of(key) as hosts:
        first = hosts.join(UNLIMITED)
        result = trainer.train()
    check(result)
    assert hosts.ended == ["ended", "ended"]
    assert result.ledger["lost"] == 0, "its actors have sent what they had"
    assert restarts(result) == 2
    hosts_of_run = result.hosts.values()
    assert [(host["started"], host["lost"]) for host in hosts_of_run] == [(2, 0), (2, 0)]
    assert sum(host["traffic_bytes"] for host in hosts_of_run) > 0
    assert not key.exists(), "it opens nothing any more"


@pytest.mark.fault("F1", "F6")
def test_a_host_that_hangs_is_replaced_and_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key, done, back = tmp_path / "join.key", list[Any](), list[Any]()

    def before(trainer: AsyncTrainer) -> None:
        if once(trainer, 100, done):
            process.send_signal(signal.SIGSTOP)
            lose_the_silent(trainer, caplog)
            hosts.join()
        if once(trainer, 200, back):
            joined = re.compile(rf"host \S*/{process.pid}\S* has joined")
            times = len(joined.findall(caplog.text))
            process.send_signal(signal.SIGCONT)
            wait_until(
                lambda: len(joined.findall(caplog.text)) > times, DEADLINE_S, "it to join again"
            )

    caplog.set_level(logging.INFO, "asyncrl.fleet.host_launcher")
    trainer = built(key, before=before)
    with hosts_of(key) as hosts, warm.started("code", [JOINS, str(key)], cwd=Path.cwd()) as process:
        result = trainer.train()
        process.wait(DEADLINE_S)
    check(result)


@contextmanager
def detour(
    key: Path, before: Callable[[AsyncTrainer], None], cfg: RunConfig = CONFIG
) -> Iterator[tuple[AsyncTrainer, Any]]:
    """Build a run whose hosts connect through a proxy."""
    proxy = Proxy()
    transport = replace(cfg.transport, advertise=f"127.0.0.1:{proxy.port}")
    trainer: Any = built(key, replace(cfg, transport=transport), before=before)
    proxy.server_port = int(trainer.source._link.address.endpoint.rpartition(":")[2])
    try:
        yield trainer, proxy
    finally:
        proxy.close()


@pytest.mark.fault("F28", "F32")
def test_connections_that_break_cost_their_actors_a_restart_and_no_host(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key, done = tmp_path / "join.key", list[Any]()

    def before(trainer: AsyncTrainer) -> None:
        if once(trainer, 100, done):
            rows = trainer.proxy.actors.rows
            wait_until(
                lambda: sum(r.env_steps > 0 for r in rows().values()) == 2, DEADLINE_S, "two"
            )
            proxy.cut()
            wait_for_restarts(trainer, 2)

    with detour(key, before, UNLIMITED) as (trainer, proxy), hosts_of(key) as hosts:
        hosts.join(UNLIMITED)
        result = trainer.train()
    check(result)
    assert restarts(result) == 2
    assert [(host["started"], host["lost"]) for host in result.hosts.values()] == [(4, 0)]
    assert caplog.text.count("lost its connection to the learner") == 2
    assert "Traceback" not in caplog.text


@pytest.mark.fault("F28")
def test_a_partition_loses_and_doubles_nothing_unsaid(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key, done = tmp_path / "join.key", list[Any]()

    def before(trainer: AsyncTrainer) -> None:
        if once(trainer, 100, done):
            proxy.stalled.set()
            lose_the_silent(trainer, caplog)
            lost_at.append(trainer.proxy.ledger.balance())
            proxy.stalled.clear()

    lost_at: list[Any] = []
    with detour(key, before) as (trainer, proxy), hosts_of(key) as hosts:
        hosts.join()
        result = trainer.train()
    check(result)
    assert restarts(result) >= 2
    assert "joins again" in caplog.text
    assert lost_at, "the loss was seen"


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "join.key"
    trainer = built(key)
    try:
        key.chmod(0o644)
        with pytest.raises(ConfigError, match=r"can be read by others .*chmod 600"):
            join_run(key, ConstantConfig(), CountingBatch, CONFIG, actors=1)
    finally:
        trainer.close()
    with pytest.raises(ConfigError, match="there is no join key"):
        join_run(key, ConstantConfig(), CountingBatch, CONFIG, actors=1)


@pytest.mark.fault("F21")
def test_hosts_join_a_resumed_run_with_its_new_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, kept = tmp_path / "join.key", tmp_path / "of_the_first_part.key"
    restore = ReplayBufferProxy.restore

    def spied(proxy: ReplayBufferProxy, *args: Any, **options: Any) -> None:
        assert not key.exists(), "hosts would wait for answers while a checkpoint is loaded"
        restore(proxy, *args, **options)

    monkeypatch.setattr(ReplayBufferProxy, "restore", spied)
    with hosts_of(key) as hosts:
        trainer = built(key, opt_steps=100, checkpoint_dir=tmp_path / "checkpoints")
        kept.write_bytes(key.read_bytes())
        hosts.join()
        first = trainer.train()
    assert first.opt_steps == 100
    assert not key.exists(), "it is void"
    trainer = built(key, checkpoint_dir=tmp_path / "checkpoints", resume=True)
    assert key.read_bytes() != kept.read_bytes()
    with hosts_of(key) as hosts:
        hosts.join()
        second = trainer.train()
    check(second)
    assert hosts.ended == ["ended"]
    assert second.env_steps > first.env_steps
    assert second.ledger["stored"] > first.ledger["stored"]
