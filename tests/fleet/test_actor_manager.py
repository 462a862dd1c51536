"""Supervision with a launcher and a clock of the test's own: no process, no waiting."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from asyncrl.core.errors import ActorFailed, ConfigError
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.launcher import ActorExit, Place, ProgressReport, Spec
from asyncrl.core.messages import Peer
from asyncrl.core.types import ActorId
from asyncrl.fleet import restart_policy
from asyncrl.fleet.actor_manager import ActorManager
from asyncrl.fleet.config import ActorManagerConfig, RestartPolicyConfig
from tests.fleet.bodies import Runs
from tests.support.fakes import NoProgress
from tests.support.helpers import wait_until
from tests.support.sample_messages import make_peer as peer

DEADLINE_S = 30.0
KILLED, TERMINATED, RAISED = -9, -15, 1


class FakeLauncher:
    """Does what it is asked at once, and lets the test end actors.

    The manager's thread calls the contract's methods, the test the others.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.left_s = 0.0
        self.launched: list[Peer] = []
        self.alive: list[Peer] = []
        self.asked: list[Peer] = []
        self.killed: list[tuple[Peer, bool]] = []
        self.stopped: set[Peer] = set()
        self.memory: dict[Peer, int] = {}
        self.closed = 0
        self.rounds = 0
        self.dies_of_kill = True
        self.without_room: set[ActorId] = set()
        self.error: Exception | None = None
        self._changed = threading.Condition()
        self._ended: list[ActorExit] = []
        self._reports: dict[Peer, ProgressReport] = {}

    def has_room(self, actor_id: ActorId, actors: int) -> bool:
        return actor_id not in self.without_room

    def launch(self, peer: Peer, spec: Spec) -> None:
        spec.run(peer, NoProgress())
        self.launched.append(peer)
        self._reports[peer] = ProgressReport(0, 0, waiting=False)
        self.alive.append(peer)

    def exits(self, timeout_s: float) -> list[ActorExit]:
        step_s = min(1.0, self.left_s)
        self.clock.now += step_s
        self.left_s -= step_s
        with self._changed:
            self.rounds += 1
            self._changed.wait_for(lambda: self._ended or self.error, min(timeout_s, 0.001))
            if self.error:
                raise self.error
            ended, self._ended = self._ended, []
        return ended

    def progress(self, peer: Peer) -> ProgressReport:
        assert peer in self.alive, "a launcher knows the progress of living actors only"
        report = self._reports[peer]
        says_so = report.waiting and peer not in self.stopped
        return replace(report, waits=self.rounds) if says_so else report

    def memory_bytes(self, peer: Peer) -> int:
        assert peer in self.alive, "a launcher knows the memory of living actors only"
        return self.memory.get(peer, 0)

    def place(self, peer: Peer) -> Place:
        return Place("here", 100 + peer.actor_id)

    def finish(self, peer: Peer) -> None:
        assert peer in self.alive, "only living actors can be asked"
        self.asked.append(peer)

    def kill(self, peer: Peer, *, with_stacks: bool = False) -> None:
        self.killed.append((peer, with_stacks))
        if self.dies_of_kill:
            self.end(peer, KILLED, text="its stacks" if with_stacks else "")

    def close(self) -> None:
        self.closed += 1

    def end(self, *peers: Peer | int, text: str = "", error: str = "", gone: str = "") -> None:
        """Let actors end at the same moment; a number among them is their exit code."""
        code = next((given for given in peers if isinstance(given, int)), 0)
        with self._changed:
            for peer in peers:
                if isinstance(peer, Peer):
                    self.alive.remove(peer)
                    last = self._reports[peer]
                    self._ended.append(
                        ActorExit(
                            peer=peer, code=code, text=text, error=error, last=last, gone=gone
                        )
                    )
            self._changed.notify_all()

    def works(
        self, peer: Peer, turns: int, *, waiting: bool = False, produced: int | None = None
    ) -> None:
        """Let an actor leave word of its progress."""
        made = 10 * turns if produced is None else produced
        self._reports[peer] = ProgressReport(turns, made, waiting=waiting)

    def watch_for(self, seconds: float) -> None:
        """Let the manager see so much time pass."""
        self.left_s = seconds
        wait_until(lambda: not self.left_s, DEADLINE_S, "the time to pass")
        self.wait_rounds()

    def wait_rounds(self, count: int = 3) -> None:
        """Return when the manager has seen everything that is there now."""
        target = self.rounds + count
        wait_until(lambda: self.rounds >= target, DEADLINE_S, "the manager to look again")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Stage:
    """A manager with its arguments, and what it has reported."""

    def __init__(
        self, n_actors: int, config: ActorManagerConfig, names: dict[ActorId, str] | None = None
    ) -> None:
        self.clock = Clock()
        self.launcher = FakeLauncher(self.clock)
        self.interrupter = Interrupter()
        self.ran: list[Peer] = []
        self.exits: list[ActorExit] = []
        self.restarts: list[ActorId] = []
        self.memory_restarts: list[ActorId] = []
        self.drops: list[ActorId] = []
        self.manager = ActorManager(
            self.launcher,
            {ActorId(i): self._make_spec for i in range(n_actors)},
            config,
            self.interrupter,
            names=names,
            on_exit=self.exits.append,
            on_restart=self._on_restart,
            on_drop=self.drops.append,
            clock=self.clock,
        )

    def _on_restart(self, actor_id: ActorId, at_memory_limit: bool) -> None:
        (self.memory_restarts if at_memory_limit else self.restarts).append(actor_id)

    def _make_spec(self, peer: Peer) -> Spec:
        return Runs(lambda _: self.ran.append(peer))

    def failure(self) -> str:
        """Return why the run has failed, once it has."""
        wait_until(lambda: self.interrupter.error, DEADLINE_S, "the run to fail")
        assert isinstance(self.interrupter.error, ActorFailed)
        return str(self.interrupter.error)

    def end(self, *peers: Peer | int, **how: str) -> None:
        """Let actors end, and the manager see it."""
        self.launcher.end(*peers, **how)
        self.launcher.wait_rounds()

    def passes(self, seconds: float) -> None:
        """Let time pass that the manager does not see pass."""
        self.clock.now += seconds
        self.launcher.wait_rounds()

    def wait_for(self, *peers: Peer) -> None:
        wait_until(lambda: {*peers} <= {*self.launcher.alive}, DEADLINE_S, f"{peers} to live")

    def all_work(self) -> None:
        for one in list(self.launcher.alive):
            self.launcher.works(one, turns=1)
        self.launcher.wait_rounds()


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart_policy, "_JITTER", 0.0)


@contextmanager
def started(n_actors: int = 2, **settings: Any) -> Iterator[Stage]:
    names = settings.pop("names", {})
    restart = {"backoff_s": 1.0, "max_restarts": 2}
    restart |= {k: settings.pop(k) for k in [*settings] if hasattr(RestartPolicyConfig, k)}
    settings = {"step_timeout_s": 0.0} | settings
    config = ActorManagerConfig(restart=RestartPolicyConfig(**restart), **settings)
    stage = Stage(n_actors, config, names)
    stage.manager.start()
    try:
        stage.wait_for(*(peer(i) for i in range(n_actors)))
        yield stage
    finally:
        for one in list(stage.launcher.alive):
            stage.launcher.end(one)
        stage.manager.stop(timeout_s=DEADLINE_S)


@pytest.mark.fault("F1")
def test_actor_that_died_is_started_again_after_a_while() -> None:
    with started() as stage:
        stage.all_work()
        stage.end(peer(1), KILLED)
        assert stage.manager.alive == 1
        assert [ended.peer for ended in stage.exits] == [peer(1)]
        stage.passes(0.9)
        assert stage.launcher.launched == [peer(0), peer(1)], "back-off is not over"
        stage.clock.now += 0.1
        stage.wait_for(peer(1, 1))
        assert stage.ran[-1] == peer(1, 1)
        stage.launcher.wait_rounds()
        assert stage.restarts == [1]
        assert stage.manager.alive == 2
        assert not stage.interrupter.is_set


@pytest.mark.fault("F1")
def test_actor_lost_with_its_host_starts_again_as_soon_as_there_is_room() -> None:
    with started(max_restarts=0) as stage:
        stage.all_work()
        for incarnation in range(3):
            stage.wait_for(peer(1, incarnation))
            stage.launcher.without_room.add(ActorId(1))
            stage.end(peer(1, incarnation), 1, gone="its host was not heard")
            assert peer(1, incarnation + 1) not in stage.ran, "there is no room"
            stage.launcher.without_room.clear()
        stage.wait_for(peer(1, 3))
        stage.launcher.wait_rounds()
        assert stage.restarts == [1, 1, 1]
        assert not stage.interrupter.is_set, "it uses up no restarts"


@pytest.mark.fault("F7")
def test_run_fails_when_the_budget_of_restarts_is_spent() -> None:
    with started(max_restarts=2) as stage:
        stage.all_work()
        for death in range(3):
            stage.wait_for(peer(0, death))
            stage.end(peer(0, death), KILLED, text="where it stood")
            stage.clock.now += 5.0
        error = stage.failure()
        assert "actor 0 was killed by SIGKILL" in error
        assert "max_restarts is 2" in error
        assert error.endswith("\n\nwhere it stood")
        stage.launcher.wait_rounds()
        assert peer(0, 3) not in stage.launcher.launched


@pytest.mark.fault("F4")
def test_exception_in_an_actor_fails_the_run_with_the_actors_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with started() as stage:
        stage.all_work()
        text = "Traceback (most recent call last):\n  ...\nValueError: no such joint"
        stage.launcher.end(peer(1), RAISED, text=text, error="ValueError: no such joint")
        error = stage.failure()
        assert error.startswith("actor 1 failed: ValueError: no such joint; the run ends.")
        assert "supervision.restart.on_exception" in error
        assert error.endswith(text)
        stage.passes(100.0)
        assert stage.launcher.launched == [peer(0), peer(1)], "a failed run starts no actor"
        stage.manager.expect_ends()
        stage.launcher.end(peer(0), RAISED, text=text, error="ValueError: no such joint")
        wait_until(lambda: caplog.messages, DEADLINE_S, "the other actor's failure")
        assert "actor 0 failed: ValueError: no such joint" in caplog.text
        assert "Traceback" not in caplog.text, "it would hide the first error"


@pytest.mark.behaviour(number=38)
@pytest.mark.fault("F4")
def test_actors_that_fail_are_dropped_down_to_the_fewest(caplog: pytest.LogCaptureFixture) -> None:
    evaluator = {ActorId(3): "the evaluator"}
    with started(4, on_exception="drop_actor", min_actors=2, names=evaluator) as stage:
        stage.all_work()
        stage.launcher.end(peer(1), RAISED, text="its traceback", error="ValueError: no joint")
        wait_until(lambda: stage.drops, DEADLINE_S, "actor 1 to be dropped")
        stage.end(peer(3), RAISED, text="another", error="ValueError: no joint")
        stage.clock.now += 100.0
        stage.wait_for(peer(3, 1))
        assert stage.drops == [1]
        assert peer(1, 1) not in stage.launcher.launched
        assert stage.manager.alive == 3
        assert stage.interrupter.error is None
        assert "actor 1 failed: ValueError: no joint; the run continues without it" in caplog.text
        assert "its traceback" in caplog.text
        stage.end(peer(0), KILLED)
        stage.launcher.end(peer(2), RAISED, text="the last straw", error="ValueError: no joint")
        error = stage.failure()
        assert "1 would be left, and supervision.restart.min_actors is 2; the run ends." in error
        assert error.endswith("\n\nthe last straw")


@pytest.mark.fault("F5")
def test_death_before_anybody_has_made_a_step_fails_the_run() -> None:
    with started() as stage:
        stage.launcher.end(peer(0), KILLED)
        assert "a restart would not help" in stage.failure()


# --- actors that hang ----------------------------------------------------------------------------


@pytest.mark.fault("F6")
def test_actor_that_hangs_is_killed_with_its_stacks_and_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with started(step_timeout_s=60.0) as stage:
        stage.all_work()
        stage.launcher.watch_for(59.0)
        stage.launcher.works(peer(0), turns=2)
        stage.launcher.wait_rounds()
        assert stage.launcher.killed == []
        stage.launcher.watch_for(2.0)
        stage.clock.now += 1.0
        stage.wait_for(peer(1, 1))
        assert stage.launcher.killed == [(peer(1), True)]
        assert stage.exits[0].text == "its stacks"
        (message,) = caplog.messages
        assert message.startswith("actor 1 made no step for 61 s and was killed; it is restarted")
        assert "supervision.step_timeout_s, now 60" in message
        assert message.endswith("its stacks")
        assert stage.interrupter.error is None


@pytest.mark.fault("F16", "F30")
def test_actor_that_waits_for_the_learner_does_not_hang() -> None:
    with started(1, step_timeout_s=60.0) as stage:
        stage.launcher.works(peer(0), turns=5, waiting=True)
        stage.launcher.watch_for(200.0)
        stage.launcher.works(peer(0), turns=5, waiting=False)
        stage.launcher.watch_for(59.0)
        assert stage.launcher.killed == [], "time counts from the end of its wait"
        stage.launcher.watch_for(2.0)
        assert stage.launcher.killed, "after all"


@pytest.mark.fault("F6")
def test_actor_that_is_stopped_while_it_waits_hangs() -> None:
    with started(1, step_timeout_s=60.0) as stage:
        stage.launcher.works(peer(0), turns=5, waiting=True)
        stage.launcher.watch_for(100.0)
        assert stage.launcher.killed == []
        stage.launcher.stopped.add(peer(0))
        stage.launcher.dies_of_kill = False
        stage.launcher.wait_rounds()
        stage.launcher.watch_for(61.0)
        stage.launcher.wait_rounds(10)
        assert stage.launcher.killed == [(peer(0), True)], "not each round"


@pytest.mark.fault("F5", "F6")
def test_start_has_a_separate_timeout() -> None:
    with started(1, step_timeout_s=1.0, start_timeout_s=60.0) as stage:
        stage.launcher.watch_for(59.0)
        assert stage.launcher.killed == []
        stage.launcher.watch_for(2.0)
        assert stage.launcher.killed == [(peer(0), True)]
        error = stage.failure()
        assert "actor 0 made no first step for 61 s and was killed; no actor had made" in error
        assert "raise supervision.start_timeout_s, now 60" in error


@pytest.mark.fault("F16", "F33")
@pytest.mark.parametrize("starting", [False, True])
def test_time_without_supervision_is_no_hang(starting: bool) -> None:
    """As after a learner, or the whole machine, was stopped and went on."""
    with started(step_timeout_s=60.0, start_timeout_s=60.0) as stage:
        if not starting:
            stage.all_work()
        for _ in range(20):
            stage.passes(1e6)
        assert stage.launcher.killed == []


def test_new_incarnation_has_all_the_time_again() -> None:
    with started(step_timeout_s=60.0) as stage:
        stage.launcher.works(peer(1), turns=7, waiting=True)
        stage.launcher.end(peer(1), KILLED)
        stage.launcher.watch_for(50.0)
        stage.wait_for(peer(1, 1))
        stage.launcher.works(peer(1, 1), turns=1, waiting=True)
        stage.launcher.end(peer(0), KILLED)  # which has never made a step
        stage.launcher.watch_for(50.0)
        stage.wait_for(peer(0, 1))
        stage.launcher.wait_rounds()
        assert stage.launcher.killed == []


# --- actors that eat -----------------------------------------------------------------------------


LIMIT = 100 << 20


@pytest.mark.fault("F3")
def test_actor_at_its_memory_limit_finishes_and_is_replaced_which_is_no_death(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with started(memory_limit_bytes=LIMIT, max_restarts=0, backoff_s=1000.0) as stage:
        for incarnation in range(4):
            stage.wait_for(peer(1, incarnation))
            stage.launcher.memory |= {peer(0): LIMIT, peer(1, incarnation): 60 << 20}
            stage.all_work()
            stage.launcher.watch_for(60.0)
            stage.launcher.memory[peer(1, incarnation)] = 150 << 20
            wait_until(
                lambda n=incarnation: len(stage.launcher.asked) > n, DEADLINE_S, "it to be asked"
            )
            stage.launcher.wait_rounds()
            assert peer(1, incarnation) in stage.launcher.alive, "it is given time"
            stage.launcher.end(peer(1, incarnation))
        stage.wait_for(peer(1, 4))
        stage.launcher.wait_rounds()
        assert stage.launcher.asked == [peer(1, incarnation) for incarnation in range(4)], (
            "and once each"
        )
        assert stage.launcher.killed == []
        assert (stage.restarts, stage.memory_restarts) == ([], [1, 1, 1, 1])
        assert stage.interrupter.error is None
        (message,) = caplog.messages
        assert "held 150 MiB of memory, more than supervision.memory_limit_bytes allows" in message
        assert "It held 60 MiB at its first step and grew by" in message


@pytest.mark.fault("F3")
@pytest.mark.parametrize("waits", [False, True])
def test_actor_that_is_asked_to_finish_is_killed_without_a_heartbeat(
    caplog: pytest.LogCaptureFixture, *, waits: bool
) -> None:
    with started(memory_limit_bytes=LIMIT, stop_timeout_s=15.0) as stage:
        stage.all_work()
        stage.launcher.memory[peer(1)] = 150 << 20
        stage.launcher.works(peer(1), turns=2, waiting=waits)  # for the learner, with its tail
        wait_until(lambda: stage.launcher.asked, DEADLINE_S, "actor 1 to be asked")
        caplog.clear()
        stage.launcher.watch_for(20.0)
        if waits:
            assert stage.launcher.killed == []
            return
        stage.wait_for(peer(1, 1))
        assert stage.launcher.killed == [(peer(1), True)]
        assert (stage.restarts, stage.memory_restarts) == ([1], [])
        assert re.search(r"did not finish within \d+ s and was killed", caplog.messages[0])
        assert "raise supervision.stop_timeout_s, now 15" in caplog.messages[0]


@pytest.mark.fault("F3", "F5")
def test_limit_below_what_a_new_actor_needs_ends_the_run_at_once() -> None:
    with started(memory_limit_bytes=LIMIT) as stage:
        stage.launcher.memory[peer(0)] = 150 << 20
        error = stage.failure()
        assert "supervision.memory_limit_bytes allows (100 MiB) before its first step" in error
        assert "a restart would not help; the run ends" in error


@pytest.mark.fault("F3", "F7")
def test_leak_that_keeps_an_actor_starting_ends_the_run() -> None:
    with started(1, memory_limit_bytes=LIMIT) as stage:
        for incarnation in range(4):
            stage.wait_for(peer(0, incarnation))
            stage.launcher.watch_for(20.0)  # to start
            stage.launcher.memory[peer(0, incarnation)] = 80 << 20
            stage.launcher.works(peer(0, incarnation), turns=1)
            stage.launcher.watch_for(10.0)
            stage.launcher.memory[peer(0, incarnation)] = 110 << 20
            wait_until(
                lambda n=incarnation: len(stage.launcher.asked) > n or stage.interrupter.error,
                DEADLINE_S,
                "it to be asked",
            )
            if incarnation < 3:
                stage.launcher.end(peer(0, incarnation))
        assert stage.launcher.asked == [peer(0, incarnation) for incarnation in range(3)]
        error = str(stage.interrupter.error)
        assert re.search(r"actor 0 held 110 MiB .* last 3 replacements spent \d+% of their", error)
        assert "held 80 MiB at its first step" in error


# --- the end -------------------------------------------------------------------------------------


def test_ends_that_were_asked_for_are_not_answered(caplog: pytest.LogCaptureFixture) -> None:
    with started(step_timeout_s=60.0) as stage:
        stage.all_work()
        stage.manager.expect_ends()
        stage.launcher.watch_for(61.0)
        assert stage.launcher.killed == [], "that is left to the deadline of stop"
        stage.launcher.end(peer(0))
        stage.launcher.end(peer(1), RAISED, text="a traceback", error="ValueError: late")
        wait_until(lambda: stage.launcher.closed, DEADLINE_S, "the manager to end by itself")
        stage.manager.stop()
        assert stage.launcher.launched == [peer(0), peer(1)]
        assert [ended.peer for ended in stage.exits] == [peer(0), peer(1)]
        assert stage.interrupter.error is None
        (message,) = caplog.messages
        assert "actor 1 failed: ValueError: late, at the end of the run" in message


@pytest.mark.parametrize("urgent", [False, True])
def test_actor_that_dies_at_the_end_comes_back_unless_the_run_ends_in_a_hurry(
    *, urgent: bool
) -> None:
    """As an evaluator does for the last evaluation."""
    with started() as stage:
        stage.all_work()
        stage.interrupter.stop("enough", urgent=urgent)
        stage.end(peer(1), KILLED)
        stage.clock.now += 100.0
        if not urgent:
            stage.wait_for(peer(1, 1))
        stage.launcher.wait_rounds()
        assert (peer(1, 1) in stage.launcher.launched) == (not urgent)


@pytest.mark.fault("F14")
@pytest.mark.parametrize("heard_before", [False, True])
def test_actor_that_a_signal_to_the_whole_job_ended_has_not_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, heard_before: bool
) -> None:
    """Also if it ends before the learner has heard of the signal."""
    monkeypatch.setattr("asyncrl.fleet.actor_manager._SAME_SIGNAL_S", DEADLINE_S)
    with started(max_restarts=0) as stage:
        if heard_before:
            stage.interrupter.stop("interrupted by SIGTERM", urgent=True)
        stage.launcher.end(peer(0), TERMINATED)
        wait_until(lambda: not stage.launcher._ended, DEADLINE_S, "the manager to see it")
        stage.interrupter.stop("interrupted by SIGTERM", urgent=True)
        stage.launcher.wait_rounds()
        assert [ended.peer for ended in stage.exits] == [peer(0)]
        assert stage.interrupter.error is None
        assert not caplog.records


def test_actor_that_alone_has_got_a_signal_is_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("asyncrl.fleet.actor_manager._SAME_SIGNAL_S", 0.0)
    with started() as stage:
        stage.all_work()
        stage.end(peer(0), TERMINATED)
        stage.clock.now += 100.0
        stage.wait_for(peer(0, 1))


def test_stop_kills_actors_that_do_not_end_in_time(caplog: pytest.LogCaptureFixture) -> None:
    with started() as stage:
        stage.launcher.end(peer(0))
        stage.manager.stop(timeout_s=0.05)
        assert stage.launcher.killed == [(peer(1), False)]
        assert [ended.peer for ended in stage.exits] == [peer(0), peer(1)]
        assert stage.manager.alive == 0
        assert stage.launcher.closed == 1
        assert "actor 1 did not exit in time and is killed; what it had not sent" in caplog.text
        assert "raise supervision.stop_timeout_s, now " in caplog.text


def test_helpers_have_a_moment_after_the_last_actor(caplog: pytest.LogCaptureFixture) -> None:
    with started(names={ActorId(1): "the evaluator"}) as stage:
        stopping = threading.Thread(target=stage.manager.stop, args=(DEADLINE_S,))
        stopping.start()
        wait_until(stage.manager._finishing.is_set, DEADLINE_S, "the order to finish")
        stage.launcher.watch_for(60.0)
        assert stage.launcher.killed == [], "the actor still sends"
        stage.launcher.end(peer(0))
        stage.launcher.left_s = 3.0
        stopping.join(DEADLINE_S)
        assert stage.launcher.killed == [(peer(1), False)]
        assert not caplog.records, "its evaluation is of no use"


@pytest.mark.fault("F10")
def test_launcher_that_fails_is_closed_and_fails_the_run() -> None:
    error = ActorFailed("the process that starts actors has exited")
    stage = Stage(1, ActorManagerConfig())
    stage.launcher.error = error
    stage.manager.start()
    wait_until(lambda: stage.launcher.closed, DEADLINE_S, "the launcher to be closed")
    stage.manager.stop()
    assert stage.interrupter.error is error
    assert stage.launcher.closed == 1


def states(stage: Stage) -> list[str]:
    stage.launcher.wait_rounds()
    return [status.state for status in stage.manager.fleet()]


def test_actors_are_added_and_leave_on_request(caplog: pytest.LogCaptureFixture) -> None:
    evaluator = {ActorId(9): "the evaluator"}
    with started(2, names=evaluator) as stage:
        stage.all_work()
        stage.manager.resize(4)
        stage.wait_for(peer(2), peer(3))
        assert states(stage) == ["running", "running", "starting", "starting"]
        stage.manager.resize(1)
        stage.launcher.wait_rounds()
        assert sorted(p.actor_id for p in stage.launcher.asked) == [1, 2, 3], "each once"
        assert states(stage) == ["running", "leaving", "leaving", "leaving"]
        stage.launcher.end(peer(1), peer(3))
        assert states(stage) == ["running", "left", "leaving", "left"]
        stage.manager.resize(3)  # actor 1 comes back, actor 2 has not left yet
        stage.wait_for(peer(1, 1))
        assert states(stage) == ["running", "starting", "leaving", "left"]
        stage.launcher.end(peer(2))
        stage.wait_for(peer(2, 1))
        assert states(stage) == ["running", "starting", "starting", "left"]
        assert stage.manager.next_incarnation == 2
        assert stage.restarts == stage.memory_restarts == stage.drops == []
        assert not stage.interrupter.is_set
        assert not caplog.text


def test_an_actor_that_dies_while_it_leaves_is_not_restarted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with started(4) as stage:
        stage.all_work()
        stage.end(peer(3), KILLED)  # it waits for its restart, and leaves at once
        stage.manager.resize(1)
        stage.launcher.wait_rounds()
        stage.launcher.end(peer(1), KILLED)
        stage.launcher.end(peer(2), 1, gone="its host was not heard")
        assert states(stage) == ["running", "left", "left", "left"]
        stage.passes(100.0)
        assert stage.manager.alive == 1
        assert "while it left the run; what it had not sent is lost" in caplog.text
        assert not stage.interrupter.is_set


def test_a_size_that_is_not_possible_is_refused() -> None:
    with started(2) as stage:
        with pytest.raises(ConfigError, match="at least 1 actor, got 0"):
            stage.manager.resize(0)
        with pytest.raises(ConfigError, match="started for 1 to 4096 actors; 4097 are too many"):
            stage.manager.resize(4097)
        assert stage.manager.size == 2
        stage.launcher.wait_rounds()
        stage.manager.expect_ends()
        with pytest.raises(ConfigError, match="the run is ending"):
            stage.manager.resize(3)
        assert stage.manager.fleet()[1].place == Place("here", 101)
