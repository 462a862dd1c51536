"""What the entries make of what they have seen."""

from __future__ import annotations

from pathlib import Path

from benchmarks.chaos import full_disk, orphans, soak
from benchmarks.chaos.checkpoint_pause import Saves
from benchmarks.chaos.full_disk import Outcome
from benchmarks.chaos.orphans import Left
from benchmarks.chaos.soak import Plan, Sample


def test_gaps_that_touch_a_save_are_distinguished_from_others() -> None:
    saves = Saves(1, Path("x"), spans=[(2.5, 3.5)])
    saving, others = saves.during([0.0, 1.0, 2.0, 3.0, 5.0, 9.0])
    assert (saving, others) == ([1.0, 2.0], [1.0, 1.0, 4.0])


def left(way: str, **changes: object) -> Left:
    values = {"gone_s": 0.1, "actors": 0, "others": 0, "traces": (), "traces_gone_s": 0.2}
    return Left(way=way, **{**values, **changes})  # type: ignore[arg-type]


def test_processes_left_are_reported() -> None:
    well = [left("the learner"), left("its helper first"), left("all at once")]
    assert orphans._processes(well).passed
    assert not orphans._processes([*well, left("its group", others=1)]).passed
    assert orphans._helper_first(well).passed
    assert not orphans._helper_first([left("its helper first", others=1)]).passed
    assert not orphans._helper_first([left("its helper first", actors=1)]).passed
    assert orphans._traces_found(well).passed
    assert not orphans._traces_found([*well, left("the learner", traces=("a file",))]).passed
    assert orphans._in_time([left("its group", gone_s=0.6)]).verdict == "missed"


def outcome(**changes: object) -> Outcome:
    values = {
        "code": 0,
        "said": "No space left on device",
        "full_at": 200,
        "newest": 400,
        "recorded_s": 8.0,
        "broken_lines": 0,
    }
    return Outcome(**{**values, **changes})  # type: ignore[arg-type]


def test_a_full_disk_may_cost_what_came_after_and_no_more() -> None:
    def verdicts(stays_full: bool, **changes: object) -> list[bool]:
        good: dict[str, object] = {"code": int(stays_full), "newest": 200 if stays_full else 300}
        outcomes = [outcome(**good), outcome(**good | changes)]
        return [f.passed for f in full_disk._judge(outcomes, stays_full=stays_full)]

    assert verdicts(False) == [True, True, True]
    assert verdicts(False, newest=200)[0] is False
    assert verdicts(False, said="")[1] is False
    assert verdicts(False, recorded_s=2.0)[2] is False
    assert verdicts(True) == [True, True]
    assert verdicts(True, code=0)[0] is False
    assert verdicts(True, newest=100)[0] is False


def samples(**last: int) -> list[Sample]:
    made = [Sample(60.0 * i, 1000, 20, 5, 100 * i, 10 * i) for i in range(8)]
    changed = {"rss_bytes": 1000, "descriptors": 20, "threads": 5} | last
    return [*made, *(Sample(60.0 * i, env_steps=100 * i, opt_steps=1, **changed) for i in (8, 9))]


def test_growth_and_drift_are_seen() -> None:
    plan = Plan(600.0, 30.0, 1000.0)
    assert soak._growth(plan, samples()).passed
    assert not soak._growth(plan, samples(rss_bytes=9000)).passed
    assert soak._open(samples()).passed
    assert not soak._open(samples(threads=6)).passed
    assert soak._drift(samples()).passed
    slower = [*samples()[:-1], Sample(540.0, 1000, 20, 5, 800, 90)]
    assert soak._drift(slower).verdict == "missed"
