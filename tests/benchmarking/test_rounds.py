"""Measuring in turns, rates of repeated work, growth of counts: all on a clock of the test's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from asyncrl.benchmarking import rounds
from asyncrl.benchmarking.rounds import Rounds, growth_rate, repeat_rate, wait_until_going
from asyncrl.errors import AsyncRLError
from tests.benchmarking.sample_results import MACHINE, FakeStage, a_quantity


class Clock:
    """Time passes only when somebody sleeps or works."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    hand = Clock()
    fake = SimpleNamespace(
        sleep=hand.pass_s, monotonic=lambda: hand.now_s, perf_counter=lambda: hand.now_s
    )
    monkeypatch.setattr(rounds, "time", fake)
    return hand


def measured(stage: FakeStage, repeats: int) -> Rounds:
    taken = Rounds(stage, seconds=1.0, machine=MACHINE)
    taken.run(repeats, lambda _number, _what: None)
    return taken


def test_value_and_limit_are_measured_in_turns_and_swap_places() -> None:
    stage = FakeStage([[1.0], [2.0], [3.0]], [[4.0], [4.0], [4.0]])
    measured(stage, 3)
    assert stage.asked == ["value", "limit", "limit", "value", "value", "limit"]


def test_each_round_pairs_its_own_value_and_limit() -> None:
    (result,) = measured(FakeStage([[1.0], [2.0]], [[4.0], [16.0]]), 2).results()
    assert [r["ratio"] for r in result.repeats] == [0.25, 0.125]
    assert result.machine == MACHINE


def test_somebody_hears_which_round_it_is() -> None:
    heard: list[tuple[int, str]] = []
    stage = FakeStage([[1.0], [1.0]], [[1.0], [1.0]])
    taken = Rounds(stage, seconds=1.0, machine=MACHINE)
    taken.run(2, lambda number, what: heard.append((number, what)))
    assert heard == [(1, "value"), (1, "limit"), (2, "limit"), (2, "value")]


def test_each_quantity_has_its_own_result() -> None:
    quantities = [a_quantity(case="push"), a_quantity(case="sample")]
    stage = FakeStage([[1.0, 30.0]], [[2.0, 40.0]], quantities)
    push, sample = measured(stage, 1).results()
    assert (push.case, push.value, push.limit) == ("push", 1.0, 2.0)
    assert (sample.case, sample.value, sample.limit) == ("sample", 30.0, 40.0)


def test_complete_rounds_count_though_the_last_one_was_interrupted() -> None:
    taken = Rounds(FakeStage([[1.0]], [[2.0], [2.0]]), seconds=1.0, machine=MACHINE)
    with pytest.raises(KeyboardInterrupt):
        taken.run(3, lambda _number, _what: None)
    (result,) = taken.results()
    assert result.repeats == [{"value": 1.0, "limit": 2.0, "ratio": 0.5}]


def test_there_is_no_result_before_the_first_round_is_complete() -> None:
    taken = Rounds(FakeStage([[1.0]], []), seconds=1.0, machine=MACHINE)
    with pytest.raises(KeyboardInterrupt):
        taken.run(1, lambda _number, _what: None)
    assert taken.results() == []


def test_nothing_counted_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(AsyncRLError, match="sample: nothing was counted in 1 s; give a larger"):
        measured(FakeStage([[0.0]], [[1.0]]), 1)


def test_repeated_work_is_counted_per_second(clock: Clock) -> None:
    calls_at: list[float] = []

    def work() -> int:
        calls_at.append(clock.now_s)
        clock.pass_s(0.004)
        return 3

    rate = repeat_rate(work, seconds=2.0, warm_up_seconds=1.0)
    assert rate == pytest.approx(3 / 0.004)
    assert clock.now_s == pytest.approx(3.0, abs=0.1)


def test_warm_up_does_not_count(clock: Clock) -> None:
    def work() -> int:
        clock.pass_s(0.1 if clock.now_s < 1.0 else 0.01)
        return 1

    assert repeat_rate(work, seconds=1.0, warm_up_seconds=1.0) == pytest.approx(100.0)


def test_quick_work_is_done_many_times_between_two_looks_at_the_clock(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def look() -> float:
        nonlocal looks
        looks += 1
        return clock.now_s

    monkeypatch.setattr(rounds, "time", SimpleNamespace(perf_counter=look))
    calls = 0

    def work() -> int:
        nonlocal calls
        calls += 1
        clock.pass_s(0.0001)
        return 1

    repeat_rate(work, seconds=1.0, warm_up_seconds=1.0)
    assert calls == pytest.approx(20_000, rel=0.1)
    assert looks < calls / 25


def test_what_was_only_ordered_is_waited_for(clock: Clock) -> None:
    def work() -> int:
        clock.pass_s(0.01)
        return 1

    rate = repeat_rate(work, seconds=1.0, warm_up_seconds=0.1, settle=lambda: clock.pass_s(1.0))
    assert rate == pytest.approx(100 / 2.0, rel=0.02)


def test_growth_is_measured_from_lump_to_lump(clock: Clock) -> None:
    """Lumps of 600 come every 1.5 s, which is 400 a second; 4 s hold two of them or three."""
    rate = growth_rate(lambda: (600 * int(clock.now_s / 1.5), 1), 4.0)
    assert rate == pytest.approx(400.0, rel=0.01)


def test_growth_of_a_steady_count(clock: Clock) -> None:
    assert growth_rate(lambda: (int(50_000 * clock.now_s), 1), 2.0) == pytest.approx(
        50_000.0, rel=0.02
    )


@pytest.mark.usefixtures("clock")
def test_a_count_that_stands_still_ends_the_measurement() -> None:
    with pytest.raises(AsyncRLError, match="nothing was counted in 120 s"):
        growth_rate(lambda: (7, 1), 1.0)


def test_processes_that_have_started_are_waited_for(clock: Clock) -> None:
    wait_until_going(lambda: (0, 2 if clock.now_s > 10 else 1), 2, "actors")
    assert clock.now_s == pytest.approx(10.0, abs=0.1)


@pytest.mark.usefixtures("clock")
def test_processes_that_never_start_end_the_measurement() -> None:
    with pytest.raises(AsyncRLError, match="only 1 of 2 bare loops got going in 120 s"):
        wait_until_going(lambda: (0, 1), 2, "bare loops")
