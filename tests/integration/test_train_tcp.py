"""Whole runs over TCP, and what other hosts, users and files see of a run."""

from __future__ import annotations

import logging
import os
import random
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from zmq.utils import z85

from asyncrl.actor.evaluator import EpisodeEvaluatorConfig
from asyncrl.core.segment import SegmentConfig
from asyncrl.fleet.config import RestartPolicyConfig
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.learner.config import AsyncTrainerConfig
from asyncrl.learner.rate_limiter import RateLimiterConfig
from asyncrl.learner.run_services import RecordConfig, SaveConfig
from asyncrl.learner.stop_conditions import MaxOptSteps, MaxSeconds
from asyncrl.recorders.jsonl import JsonlRecorder
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import build_trainer
from asyncrl.transport.zeromq import ZmqLearnerLink, ZmqTransportConfig
from asyncrl.transport.zeromq_socket import Curve
from tests.fleet.bodies import descriptors
from tests.support.fakes import ConstantConfig, CountingBatch
from tests.support.helpers import wait_until
from tests.support.leftovers import children

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("fresh_helpers")]

CONFIG = RunConfig(
    actors=2,
    segment=SegmentConfig(length=4),
    replay=UniformReplayConfig(capacity=2000),
    limiter=RateLimiterConfig(samples_per_insert=4.0, min_size=50),
    trainer=AsyncTrainerConfig(batch_size=16, sync_interval_opt_steps=5),
    record=RecordConfig(interval_s=0.2),
    save=SaveConfig(interval_opt_steps=50),
    evaluate=EvaluationConfig(play=EpisodeEvaluatorConfig(episodes=2), interval_opt_steps=50),
    transport=ZmqTransportConfig(bind="tcp://127.0.0.1"),
)

RESTARTS = replace(
    CONFIG,
    supervision=replace(
        CONFIG.supervision, restart=RestartPolicyConfig(backoff_s=0.01, backoff_max_s=0.05)
    ),
)


class Watching:
    """A training loop that looks around once, in the middle."""

    def __init__(self, look: Callable[[], None]) -> None:
        self.look = look

    def run(self, trainer: AsyncTrainer) -> None:
        looked = False
        while not trainer.should_stop:
            if trainer.services.counts.opt_steps == 100 and not looked:
                looked = True
                self.look()
            trainer.run_step()


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


def run(config: RunConfig, look: Callable[[], None], **parts: Any) -> AsyncTrainer:
    stop = MaxOptSteps(300) | MaxSeconds(60)
    trainer = build_trainer(
        config,
        agent=ConstantConfig(),
        env=CountingBatch,
        stop=stop,
        strategy=Watching(look),
        **parts,
    )
    result = trainer.train()
    assert result.opt_steps == 300
    ledger = result.ledger
    assert ledger["in_flight"] == 0
    assert ledger["produced"] == ledger["stored"] + ledger["dropped"] + ledger["lost"]
    return trainer


def run_directories() -> list[Path]:
    """Return the private directories that processes of this run belong to."""
    found = {process.environ().get("ASYNCRL_LAUNCHER") for process in family()[1:]}
    return [Path(directory) for directory in found if directory]


def files_below(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_file())


def test_by_default_a_run_opens_nothing_to_other_hosts_or_users() -> None:
    looks: list[int] = []

    def look() -> None:
        assert internet_sockets() == []
        (directory,) = run_directories()
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert directory.stat().st_uid == os.getuid()
        looks.append(1)

    run(replace(CONFIG, transport=ZmqTransportConfig()), look)
    assert looks


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
    run(RESTARTS, look_at_two_lives, recorder=recorder, checkpoint_dir=tmp_path / "checkpoints")
    assert keys[0] == 0, "every process has ended, and its key is void"
    seen.extend(contents(files_below(tmp_path)))
    seen.append("".join(capfd.readouterr()).encode())
    seen.append(caplog.text.encode())
    assert len(secrets) == 5, "the learner's, two actors', the evaluator's and a restarted actor's"
    assert len(seen) > 20
    forms = [form for secret in secrets for form in (secret, z85.decode(secret))]
    assert not [form for form in forms for text in seen if form in text]
