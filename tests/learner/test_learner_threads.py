"""How many threads the learner takes, on a simulated machine and clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from asyncrl.core.messages import ModelInfo
from asyncrl.core.types import Columns, Params
from asyncrl.learner import learner_threads
from asyncrl.learner.learner_threads import LearnerThreads, Room, RoomMeter, alike, most_threads


@dataclass
class Machine:
    """Steps of a learner that shares cores with others."""

    cores: int = 2
    busy: float = 0.0
    step_s: float = 0.007
    waits: float = 0.0
    now: float = 0.0
    applied: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.threads = LearnerThreads(self.cores, self.room, self.applied.append, lambda: self.now)

    def room(self) -> Room:
        return Room(self.cores - self.busy, self.waits)

    def threads_with(self, busy: float = 0.0, waits: float = 0.0) -> int:
        """Learn for a while under this load; return the number of threads at the end."""
        self.busy, self.waits = busy, waits
        end = self.now + 2.0
        while self.now < end:
            took_s = self.step_s / self.threads.count
            self.now += took_s
            self.threads.step(took_s)
        return self.threads.count


def test_cores_that_others_leave_free_are_taken_and_returned() -> None:
    machine = Machine(cores=8, step_s=0.02)
    assert [machine.threads_with(busy=busy) for busy in (0.0, 5.0, 7.0, 0.0)] == [8, 3, 1, 8]
    assert machine.threads.record() == {"learner/threads": 8.0}
    assert machine.applied == [8, 3, 1, 8], "set when it changes, and only then"


def test_a_core_that_is_nearly_free_counts_and_one_in_use_is_kept_a_little_longer() -> None:
    machine = Machine()
    assert [machine.threads_with(busy=busy) for busy in (0.5, 0.35, 0.5, 0.65)] == [1, 2, 2, 1]


@pytest.mark.parametrize(("step_s", "expected"), [(0.0009, 1), (0.0031, 3), (0.02, 8)])
def test_short_steps_get_few_threads(step_s: float, expected: int) -> None:
    assert Machine(cores=8, step_s=step_s).threads_with() == expected


def test_learner_that_waits_takes_no_more_threads_or_returns_them() -> None:
    machine = Machine()
    assert [machine.threads_with(waits=waits) for waits in (0.2, 0.0, 0.2, 0.5)] == [1, 2, 2, 1]


def test_room_is_the_machine_without_what_others_use(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.0])
    busy_s, own_s = iter([100.0, 103.0]), iter([50.0, 52.0])
    cores = SimpleNamespace(share=2.0, times=lambda _: SimpleNamespace(busy_s=next(busy_s)))
    monkeypatch.setattr(learner_threads, "Cores", lambda: cores)
    monkeypatch.setattr(learner_threads.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(learner_threads.time, "process_time", lambda: next(own_s))
    waited_s = iter([0.0, 0.5])
    meter = RoomMeter(SimpleNamespace(totals=lambda: {"wait": next(waited_s)}))  # type: ignore[arg-type]
    assert meter() == Room(cores=1.5, waits=0.25)


@pytest.mark.parametrize(
    ("omp", "left", "expected"),
    [
        *((omp, None, n) for omp, n in {"": 8, "3": 3, "all": 8, "0": 1}.items()),
        *(("", left, n) for left, n in ((learner_threads.limits.TASKS.of(2) + 3, 4), (0, 1))),
    ],
)
def test_most_threads_keeps_to_cores_to_what_the_user_has_set_and_to_what_actors_leave(
    omp: str, left: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if omp:
        monkeypatch.setenv("OMP_NUM_THREADS", omp)
    monkeypatch.setattr(learner_threads, "Cores", lambda: type("Eight", (), {"count": 8}))
    room = None if left is None else learner_threads.limits.Room(100, left, "pids.max")
    monkeypatch.setattr(learner_threads.limits, "tasks", lambda: room)
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
    monkeypatch.setattr(learner_threads, "set_torch_threads", parts.append)
    agent = Adds(unlike, parts)
    agent.total = 0.5
    assert alike(agent, {}, 6) == expected  # type: ignore[arg-type]
    assert agent.total == 0.5
    assert parts[-1] == 1
