"""What must be equal at a learner and its hosts, and in which words a difference is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asyncrl.actor.step_processor import OneStep
from asyncrl.core.errors import ConfigError
from asyncrl.core.messages import SOFTWARE
from asyncrl.core.settings import from_plain
from asyncrl.fleet.config import HostsConfig
from asyncrl.learner.stop_conditions import MaxOptSteps
from asyncrl.run.hosted import objection_to
from asyncrl.run.join import facts_of
from asyncrl.run.join_key import JoinKey
from asyncrl.run.presets import preset
from asyncrl.run.run_config import RunConfig
from asyncrl.run.train import build_trainer
from asyncrl.transport.zeromq import ZmqTransportConfig
from tests.support.fakes import ConstantConfig, CountingBatch

CONFIG = RunConfig(launcher="hosts", transport=ZmqTransportConfig(bind="tcp://127.0.0.1"))
OURS = facts_of(CONFIG, None, "abc")


def test_equal_sides_agree_wherever_they_are() -> None:
    elsewhere = replace(CONFIG, transport=ZmqTransportConfig(bind="tcp://10.0.0.1", advertise="a"))
    theirs = {**facts_of(elsewhere, None, "abc"), "host": "n1", "room": 3}
    assert objection_to(OURS, theirs) == ""


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (
            {"software": "asyncrl 0.0.1 on Python 3.9"},
            "the host runs 'asyncrl 0.0.1 on Python 3.9', the learner runs "
            f"{SOFTWARE!r}: install the same versions on all machines",
        ),
        (
            {"schema": "xyz"},
            "the host would send segments of schema 'xyz', the learner stores 'abc': their "
            "environments differ",
        ),
        (
            {"settings": {**OURS["settings"], "seed": 7}},
            "seed is 7 at the host and 0 at the learner: join with the settings of the run",
        ),
        ({"settings": "none"}, "'none' at the host"),
        ({"software": None}, "the host runs None"),
    ],
)
def test_a_difference_is_said_in_the_words_of_both(theirs: dict[str, Any], words: str) -> None:
    assert words in objection_to(OURS, {**OURS, **theirs})


def test_a_run_needs_a_file_for_the_key() -> None:
    with pytest.raises(ConfigError, match="join_key=PATH"):
        build_trainer(CONFIG, agent=ConstantConfig(), env=CountingBatch)


@pytest.mark.processes
def test_settings_of_hosts_stand_for_a_launcher(tmp_path: Path) -> None:
    config = replace(preset("dqn"), transport=CONFIG.transport)
    hosts = HostsConfig(min_actors=0)
    key = tmp_path / "join.key"
    trainer = build_trainer(
        config, stop=MaxOptSteps(1), launcher=hosts, join_key=key, make_processor=OneStep
    )
    try:
        saved = JoinKey.load(key)
    finally:
        trainer.close()
    assert saved.plan is None, "rows may not be made as usual"
    assert saved.settings is not None
    assert from_plain(RunConfig, saved.settings) == replace(config, launcher="hosts", hosts=hosts)


@pytest.mark.parametrize(
    ("changes", "parts", "words"),
    [
        ({"mode": "sync"}, {"launcher": HostsConfig()}, "launcher has no effect with mode=sync"),
        ({"mode": "offline", "data": Path("x")}, {}, "join_key has no effect with mode=offline"),
        ({"launcher": "process"}, {}, "join_key has no effect with launcher=process"),
    ],
)
def test_a_run_that_no_host_can_join_is_refused(
    changes: dict[str, Any], parts: dict[str, Any], words: str, tmp_path: Path
) -> None:
    parts = parts or {"join_key": tmp_path / "join.key"}
    with pytest.raises(ConfigError, match=words):
        build_trainer(replace(preset("dqn"), **changes), **parts)


@pytest.mark.parametrize("launcher", ["ray", RunConfig()])
def test_what_is_no_launcher_is_refused(launcher: Any) -> None:
    with pytest.raises(ConfigError, match=r"must be HostsConfig\(...\), got"):
        build_trainer(CONFIG, agent=ConstantConfig(), env=CountingBatch, launcher=launcher)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"transport": ZmqTransportConfig()}, "--listen tcp://ADDRESS"),
        (
            {"transport": ZmqTransportConfig(bind="tcp://0.0.0.0", bind_every_interface=True)},
            "set transport.advertise",
        ),
        ({"inference": "server"}, "leave it at actor"),
        ({"launcher": "ray", "inference": "server"}, "with launcher=ray each actor .* leave it at"),
        (
            {"launcher": "process", "hosts": HostsConfig(min_actors=1)},
            "launcher=process starts all actors itself; leave it out, or let hosts join: --listen",
        ),
        ({"hosts": HostsConfig(min_actors=3)}, "hosts.min_actors is 3, but there are only 2"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(CONFIG, **changes)
