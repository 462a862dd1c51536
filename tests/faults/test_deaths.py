"""Actors that die, fail or hang in every way: they come back, and the user reads why."""

from __future__ import annotations

import re
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest

from asyncrl.core.launcher import ActorExit, Progress
from asyncrl.fleet.config import ActorManagerConfig, RestartPolicyConfig
from asyncrl.fleet.local import LocalLauncher
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.learner.stop_conditions import MaxSeconds
from asyncrl.run.run_config import EvaluationConfig
from tests.faults.runs import CameBack, adds_up, until, with_restarts
from tests.faults.worlds import DEADLINE_S, FALLS, Falling, FallsInActors, Leaking, SlowInOne
from tests.fleet.bodies import Runs
from tests.integration.test_train_async import config, run
from tests.support.sample_messages import PEER

pytestmark = pytest.mark.processes


def end_of(body: Callable[[Progress], None]) -> ActorExit:
    with LocalLauncher() as launcher:
        launcher.launch(PEER, Runs(body))
        (ended,) = launcher.exits(DEADLINE_S)
        return ended


# --- unexpected exits ----------------------------------------------------------------------------

ENDS = {
    "segfault": r"actor \d was killed by SIGSEGV after \d+ steps \(a crash in native code\)",
    "abort": r"actor \d was killed by SIGABRT after \d+ steps \(a crash in native code\)",
    "exit-0": r"actor \d exited after \d+ steps without being asked to",
    "exit-3": r"actor \d exited with code 3 after \d+ steps",
    "sys-exit": r"actor \d failed: SystemExit: 0",
}


@pytest.mark.behaviour(number=37)
@pytest.mark.fault("F1", "F2")
def test_actors_that_end_in_any_way_come_back_and_the_log_says_how(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result, trainer = run(
        with_restarts(2),
        make_env=FallsInActors(tmp_path, tuple(ENDS)),
        strategy=until(CameBack(len(ENDS))),
        stop=MaxSeconds(DEADLINE_S),
    )
    assert result.stop_reason == "seen"
    assert adds_up(trainer)
    for words in ENDS.values():
        assert re.search(words, caplog.text), words
    crashes = [message for message in caplog.messages if "native code" in message]
    assert len(crashes) == 2
    assert all("worlds.py" in m and "in step" in m for m in crashes), (
        "the environment they stood in"
    )


# --- exceptions ----------------------------------------------------------------------------------

ERRORS = {
    "two lines": "ValueError: the wheel came off",
    "two arguments": "TwoArguments: rust at the hub",
    "base": "KeyboardInterrupt: no one's",
    "speechless": "_Speechless",
    "deadly": "_Deadly",
    "group": "ExceptionGroup: both (2 sub-exceptions)",
    "raise-lost": "ValueError: half a \udcff letter",
}


@pytest.mark.fault("F4")
@pytest.mark.parametrize("way", ERRORS)
def test_exception_of_any_kind_is_reported_by_class_message_and_traceback(way: str) -> None:
    ended = end_of(partial(falls, way))
    assert ended.code == 1
    assert ended.error.partition(" (at ")[0] == ERRORS[way]
    assert "Traceback" in ended.text
    assert "in _raises" in ended.text or "in fail" in ended.text


@pytest.mark.fault("F4")
def test_episode_that_an_exception_cut_off_never_counts_as_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    result, trainer = run(
        with_restarts(2),
        make_env=partial(Falling, "two arguments", after=40, length=10**9),
        strategy=until(CameBack(2)),
        stop=MaxSeconds(DEADLINE_S),
    )
    assert result.stop_reason == "seen"
    assert "failed: TwoArguments: rust at the hub" in caplog.text
    assert sum(actor["episodes"] for actor in result.actors.values()) == 0
    assert adds_up(trainer)
    batch = trainer.proxy.buffer.sample(1000)
    assert np.all(batch["discount"] > 0), "nowhere in replay did an episode end"
    steps_apart = batch["next_obs"][:, 1] - batch["obs"][:, 1]
    assert set(steps_apart) <= {1, 2}, "and no transition spans two incarnations"


@pytest.mark.behaviour(number=39)
@pytest.mark.fault("F4")
def test_environments_are_rebuilt_in_actors_that_live_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ways = ("two arguments", "sys-exit", "speechless")

    def went_on(trainer: AsyncTrainer) -> bool:
        rows = trainer.proxy.actors.rows().values()
        renewed = sum(row.policy.get("env_restarts", 0) for row in rows)
        return renewed == len(ways) and trainer.services.counts.opt_steps > 50

    result, trainer = run(
        with_restarts(2, on_exception="restart_env"),
        make_env=FallsInActors(tmp_path, ways),
        strategy=until(went_on),
        stop=MaxSeconds(DEADLINE_S),
    )
    assert result.stop_reason == "seen"
    assert adds_up(trainer)
    assert trainer.proxy.ledger.balance().lost == 0
    assert [actor["restarts"] for actor in result.actors.values()] == [0, 0]
    (text,) = [message for message in caplog.messages if "TwoArguments" in message]
    assert re.match(r"actor \d: the environments failed: TwoArguments: rust at the hub \(at ", text)
    assert "in _raises" in text, "the traceback"


# --- memory --------------------------------------------------------------------------------------


def falls(way: str, _: Progress) -> None:
    FALLS[way]()


def eats(megabytes: int) -> list[bytes]:
    return [b"x" * (1 << 20) for _ in range(megabytes)]


def eats_within_its_limit(_: Progress) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    eats(2000)


@pytest.mark.fault("F3")
def test_actor_without_memory_ends_with_an_error() -> None:
    ended = end_of(eats_within_its_limit)
    assert ended.code == 1
    assert ended.error.startswith("MemoryError")
    assert "in eats" in ended.text


def holds(progress: Progress) -> None:
    progress.turn(psutil.Process().memory_info().rss)


@pytest.mark.fault("F3")
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_environment_that_leaks_trains_on_without_a_death_or_a_loss() -> None:
    def replaced(trainer: AsyncTrainer) -> bool:
        rows = trainer.proxy.actors.rows().values()
        return sum(row.memory_restarts for row in rows) >= 3

    limit_bytes = end_of(holds).last.produced + (100 << 20)
    supervision = ActorManagerConfig(
        memory_limit_bytes=limit_bytes, restart=RestartPolicyConfig(max_restarts=0)
    )
    result, trainer = run(
        config(supervision=supervision, evaluate=EvaluationConfig(where="off")),
        make_env=Leaking,
        strategy=until(replaced),
        stop=MaxSeconds(DEADLINE_S),
    )
    assert result.stop_reason == "seen"
    assert adds_up(trainer)
    balance = trainer.proxy.ledger.balance()
    assert (balance.lost, balance.dropped) == (0, 0)
    assert balance.produced == balance.stored == result.env_steps
    assert not any(actor["restarts"] for actor in result.actors.values())
    assert not any(name.startswith("link/") for name in trainer.proxy.record()), (
        "nothing is sent to those that have left"
    )


# --- hangs and stragglers ------------------------------------------------------------------------


@pytest.mark.behaviour(number=39)
@pytest.mark.fault("F6")
def test_actors_that_hang_in_any_way_are_replaced_and_their_stacks_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ways = {
        "sleep": r"made no step for \d+ s and was killed.*\n(.*\n)+.* in wait\n",
        "hold": r"made no step for \d+ s and was killed.*\n(.*\n)+.* in match\n",
        "stop": r"made no step for \d+ s and was killed; it is restarted .* still write them\.$",
    }
    came_back = CameBack(len(ways))

    def all_reported(trainer: AsyncTrainer) -> bool:
        reported = [any(re.search(words, m) for m in caplog.messages) for words in ways.values()]
        return all(reported) and came_back(trainer)

    result, trainer = run(
        with_restarts(len(ways), step_timeout_s=3.0),
        make_env=FallsInActors(tmp_path, tuple(ways)),
        strategy=until(all_reported),
        stop=MaxSeconds(DEADLINE_S),
    )
    assert result.stop_reason == "seen", caplog.text
    assert adds_up(trainer)


@pytest.mark.fault("F29")
def test_slow_actor_delays_no_other_actor(tmp_path: Path) -> None:
    seen: list[int] = []

    def others_went_on(trainer: AsyncTrainer) -> bool:
        """Let the slow one go when the other has made thousands of steps in the meantime."""
        if not (tmp_path / "slow").exists():
            return False
        rows = trainer.proxy.actors.rows()
        steps = max((row.env_steps for row in rows.values()), default=0)
        seen[:] = seen or [steps, trainer.services.counts.opt_steps]
        went_on = steps > seen[0] + 2000 and trainer.services.counts.opt_steps > seen[1] + 100
        if went_on:
            (tmp_path / "release").touch()
        return went_on

    result, trainer = run(
        with_restarts(2),
        make_env=SlowInOne(tmp_path),
        strategy=until(others_went_on),
        stop=MaxSeconds(DEADLINE_S),
    )
    assert result.stop_reason == "seen"
    assert adds_up(trainer)
    assert trainer.proxy.ledger.balance().lost == 0, "the slow one ends well, too"
    assert not any(actor["restarts"] for actor in result.actors.values())
