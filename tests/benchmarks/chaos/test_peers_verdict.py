from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.chaos.peers.scene import CAUSE, Beat, Claim
from benchmarks.chaos.peers.verdict import Seen, Strength, judge, shorten

FAULT_AT = 100.0


def progress(at: float, received: int, **values: Any) -> Mapping[str, Any]:
    return {
        "event": "progress",
        "at": at,
        "made": received + 10,
        "received": received,
        "bad_rows": 0,
        "bad_params": False,
        **values,
    }


CALM = Seen(
    fault="kill",
    claim=Claim(pid=1, at=FAULT_AT, steps=500),
    until=120.0,
    ended=False,
    exit_code=0,
    full_since=102.5,
    working=2,
    made=2000,
    notes=[progress(at, 100 * i) for i, at in enumerate((97.0, 98.0, 99.0, 101.0, 104.0, 119.0))],
    said="",
)


def test_full_strength_begins_when_the_second_process_works():
    strength = Strength(FAULT_AT)
    assert strength.look({1: Beat(99.9, 5), 2: Beat(100.1, 5)}, 100.2) == 1
    assert strength.full_since is None
    assert strength.look({1: Beat(99.9, 5), 2: Beat(101.0, 9), 3: Beat(100.9, 1)}, 101.1) == 2
    assert strength.full_since == 100.9


def test_steps_before_the_fault_are_no_work():
    strength = Strength(FAULT_AT)
    assert strength.look({1: Beat(99.9, 5), 2: Beat(99.9, 5)}, 100.1) == 0


def test_a_process_that_falls_silent_ends_the_stretch_at_full_strength():
    strength = Strength(FAULT_AT)
    strength.look({1: Beat(100.1, 5), 2: Beat(100.2, 5)}, 100.3)
    assert strength.full_since == 100.2
    assert strength.look({1: Beat(100.1, 5), 2: Beat(109.9, 5)}, 110.0) == 1
    assert strength.full_since is None
    strength.look({1: Beat(112.0, 6), 2: Beat(112.1, 9)}, 112.2)
    assert strength.full_since == 112.0


def test_a_run_at_full_strength_has_recovered():
    finding = judge(CALM)
    assert (finding.outcome, finding.after_s, finding.exit_code) == ("recovered", 2.5, 0)
    assert (finding.pause_s, finding.bad_rows, finding.bad_params) == (15.0, 0, False)


@pytest.mark.parametrize(
    ("last", "outcome"),
    [
        ({"bad_rows": 3}, "learned"),
        ({"bad_params": True}, "learned"),
        ({"bad_rows": 0, "bad_params": False}, "recovered"),
    ],
)
def test_a_run_that_used_bad_numbers_has_not_recovered(last: dict[str, Any], outcome: str):
    notes = [*CALM.notes, progress(119.5, 900, **last)]
    assert judge(replace(CALM, notes=notes)).outcome == outcome


def test_a_run_with_too_few_actors_goes_on_short_only_if_it_learns():
    short = replace(CALM, full_since=None, working=1)
    assert judge(short).outcome == "short"
    early = [note for note in CALM.notes if note["at"] < 105.0]
    stuck = [*early, progress(119.0, early[-1]["received"])]  # turns, but nothing new
    assert judge(replace(short, notes=stuck)).outcome == "hung"
    assert judge(replace(short, notes=stuck)).after_s == 20.0


def test_a_run_that_raised_is_over_when_the_caller_knows():
    error = {"event": "error", "at": 103.0, "type": "EOFError", "message": ""}
    over = replace(CALM, ended=True, exit_code=1, notes=[*CALM.notes, error])
    finding = judge(over)
    assert (finding.outcome, finding.after_s, finding.told) == ("ended", 3.0, "EOFError")
    assert finding.lost == CALM.made - CALM.notes[-1]["received"]


def test_a_run_that_vanished_without_an_error_is_over_when_it_was_seen_to_be():
    finding = judge(replace(CALM, ended=True, exit_code=-9))
    assert (finding.outcome, finding.after_s, finding.told) == ("ended", 20.0, "")


def test_what_is_lost_is_what_made_and_received_steps_drift_apart_by():
    before = [progress(90.0 + i, 100 * i, made=100 * i + 64) for i in range(5)]
    after = [progress(110.0 + i, 1000 + 100 * i, made=1000 + 100 * i + 96) for i in range(5)]
    assert judge(replace(CALM, notes=[*before, *after])).lost == 32
    nearer = [{**note, "made": note["received"] + 3} for note in after]
    assert judge(replace(CALM, notes=[*before, *nearer])).lost == 0


def test_a_run_that_counts_its_losses_is_believed():
    notes = [*CALM.notes, progress(119.5, 900, lost=17)]
    assert judge(replace(CALM, notes=notes)).lost == 17


def test_the_user_is_told_the_first_line_that_has_to_do_with_it():
    said = (
        "    raise RuntimeError(CAUSE)\n\x1b[33m(raylet) A worker died\x1b[0m\nRuntimeError: late\n"
    )
    assert judge(replace(CALM, said="progress 1\n" + said)).told == "(raylet) A worker died"
    assert judge(replace(CALM, said="progress 1\nprogress 2\n")).told == ""


def test_who_says_something_when_and_where_is_left_out():
    said = "(Runner pid=7)     raise RuntimeError\n(Runner pid=7) ERROR x.py:1 -- \n"
    said += "(Runner pid=7) 2030-01-02 03:04:05,678 ERROR x.py:1 -- Stepping failed\n"
    assert judge(replace(CALM, said=said)).told == "Stepping failed"


@pytest.mark.parametrize(
    ("message", "said", "cause"),
    [(CAUSE, CAUSE, "error"), ("a pipe", CAUSE, "screen"), ("a pipe", "", "")],
)
def test_the_cause_may_be_in_the_error_or_on_the_screen(message: str, said: str, cause: str):
    error = {"event": "error", "at": 101.0, "type": "EOFError", "message": message}
    assert judge(replace(CALM, ended=True, notes=[error], said=said)).cause == cause


def test_an_error_is_shown_by_its_type_and_first_line():
    note = {"event": "error", "at": 101.0, "type": "ActorFailed", "message": "\nactor 0\n  trace"}
    assert judge(replace(CALM, ended=True, notes=[note])).told == "ActorFailed: actor 0"


def test_long_lines_are_cut():
    assert shorten("a  b\nc") == "a b"
    assert shorten("\n \n") == ""
    assert shorten("x" * 20, longest=10) == "xxxxxxx..."
