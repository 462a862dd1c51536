"""How many threads the learner takes, on a simulated machine and clock."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from asyncrl.core.messages import ModelInfo
from asyncrl.core.types import Columns, Params
from asyncrl.learner import thread_tuner
from asyncrl.learner.thread_tuner import Room, RoomMeter, ThreadTuner, alike, most_threads
from asyncrl.metrics.stopwatch import Stopwatch

SPIN = 5.0
"""Factor by which a step is slower where a thread waits for a core, as measured."""


@dataclass
class Machine:
    """Steps of a learner whose threads share cores with others."""

    cores: int = 2
    busy: float = 0.0
    serial_s: float = 0.003
    parallel_s: float = 0.004
    waits: float = 0.0
    now: float = 0.0
    threads: int = 1
    noise: float = 0.05
    stalls_every: int = 0
    """Steps between two that take ten times as long, as on a machine of many guests."""

    seen: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.tuner = ThreadTuner(self.cores, self.room, self.apply, lambda: self.now)

    def room(self) -> Room:
        return Room(self.cores - self.busy, self.waits)

    def apply(self, count: int) -> None:
        self.threads = count

    @property
    def step_s(self) -> float:
        took = self.serial_s + self.parallel_s / self.threads
        crowded = self.threads > 1 and self.threads > self.cores - round(self.busy)
        return took * (SPIN if crowded else 1.0)

    def run(self, seconds: float) -> int:
        """Learn for a while; return the number of steps."""
        steps, end = 0, self.now + seconds
        while self.now < end:
            took_s = self.step_s * (1 + self.noise * self.random.random())
            steps += 1
            if self.stalls_every and steps % self.stalls_every == 0:
                took_s *= 10.0
            self.now += took_s
            self.seen.append(self.threads)
            self.tuner.step(took_s)
        return steps


def test_idle_cores_are_taken_within_seconds() -> None:
    machine = Machine()
    machine.run(3.0)
    assert machine.tuner.count == 2
    assert machine.tuner.record() == {"learner/threads": 2.0}
    machine.run(57.0)
    assert np.mean(machine.seen) > 1.9


def test_single_steps_that_stall_cost_no_threads() -> None:
    machine = Machine(stalls_every=40)
    machine.run(60.0)
    assert np.mean(machine.seen) > 1.85


def test_many_cores_are_taken_as_far_as_they_make_steps_shorter() -> None:
    machine = Machine(cores=16, serial_s=0.003, parallel_s=0.005)
    machine.run(60.0)
    assert machine.tuner.count == 8  # 16 would be less than a tenth faster


def test_small_networks_keep_one_thread_and_tries_become_rare() -> None:
    machine = Machine(serial_s=0.0005, parallel_s=0.0)
    machine.run(120.0)
    assert machine.tuner.count == 1
    tries = np.flatnonzero(np.diff(machine.seen) == 1)
    assert 2 <= len(tries) / 3 < 12  # of three turns each


def test_busy_cores_are_never_tried() -> None:
    machine = Machine(busy=1.0)
    machine.run(30.0)
    assert set(machine.seen) == {1}


def test_cores_that_others_need_are_given_back_at_once() -> None:
    machine = Machine()
    machine.run(20.0)
    machine.busy = 1.0
    before = len(machine.seen)
    machine.run(2.0)
    assert machine.tuner.count == 1
    assert np.count_nonzero(np.array(machine.seen[before:]) == 2) < 40
    machine.busy = 0.0
    machine.run(40.0)
    assert machine.tuner.count == 2


def test_room_that_is_wrong_costs_little() -> None:
    """As where an actor has just begun: it was idle when the cores were read."""
    machine = Machine()
    machine.room = lambda: Room(2.0, 0.0)  # type: ignore[method-assign]
    machine.tuner = ThreadTuner(2, machine.room, machine.apply, lambda: machine.now)
    machine.busy = 1.0
    steps = machine.run(60.0)
    assert machine.tuner.count == 1
    assert steps > 0.96 * 60.0 / (1.025 * 0.007)


def test_learner_that_waits_gives_threads_back() -> None:
    machine = Machine()
    machine.run(5.0)
    machine.waits = 0.5
    machine.run(20.0)
    assert machine.tuner.count == 1
    machine.run(20.0)
    assert set(machine.seen[-1000:]) == {1}


def test_one_core_is_never_exceeded_and_the_end_gives_all_back() -> None:
    alone = Machine(cores=1)
    alone.run(5.0)
    assert set(alone.seen) == {1}
    machine = Machine()
    machine.run(5.0)
    machine.tuner.close()
    assert machine.threads == 1


def test_room_is_what_others_leave_idle() -> None:
    watch = Stopwatch()
    meter = RoomMeter(watch)
    x = 0
    for i in range(2_000_000):  # busy, by this process: it is no part of what others take
        x += i
    watch.lap("wait")
    room = meter()
    assert room.cores > 0.0
    assert room.waits == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize(("omp", "expected"), [(None, 8), ("3", 3), ("all", 8), ("1", 1), ("0", 1)])
def test_most_threads_keeps_to_cores_and_to_what_the_user_has_set(
    omp: str | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if omp:
        monkeypatch.setenv("OMP_NUM_THREADS", omp)
    monkeypatch.setattr(thread_tuner, "Cores", lambda: type("Eight", (), {"count": 8}))
    monkeypatch.setattr(thread_tuner.limits, "tasks", lambda: None)
    assert most_threads(actors=2) == expected


def test_most_threads_leaves_actors_their_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(thread_tuner, "Cores", lambda: type("Eight", (), {"count": 8}))
    need = thread_tuner.limits.TASKS.of(2)
    for left, expected in ((need + 3, 4), (need, 1), (0, 1)):
        room = thread_tuner.limits.Room(100, left, "pids.max")
        monkeypatch.setattr(thread_tuner.limits, "tasks", lambda room=room: room)
        assert most_threads(actors=2) == expected


class Adds:
    """An agent whose sums depend on how many parts they are computed in, from `unlike` on."""

    def __init__(self, unlike: int, parts: list[int]) -> None:
        self.total, self.unlike, self.parts = 0.0, unlike, parts

    def opt(self, batch: Columns) -> dict[str, float]:
        self.total += 1e-16 if self.parts[-1] < self.unlike else 1.0
        return {}

    def state(self) -> Params:
        return {"total": np.array(self.total)}

    def load_state(self, state: Params) -> None:
        self.total = float(state["total"])

    def model_info(self) -> ModelInfo:
        raise NotImplementedError("this agent only learns: nothing publishes its model")


@pytest.mark.parametrize(("unlike", "expected"), [(2, 1), (3, 2), (8, 6), (9, 6)])
def test_only_threads_that_compute_the_same_bits_are_allowed(
    unlike: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [1]
    monkeypatch.setattr(thread_tuner, "set_torch_threads", parts.append)
    agent = Adds(unlike, parts)
    agent.total = 0.5
    assert alike(agent, {}, 6) == expected  # type: ignore[arg-type]
    assert agent.total == 0.5
    assert parts[-1] == 1
