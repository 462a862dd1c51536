"""What got worse than a baseline, and what cannot be compared."""

from __future__ import annotations

import pytest

from asyncrl.bench.report import compare
from tests.bench.sample_results import MACHINE, a_result


def test_the_same_results_are_fine() -> None:
    found = compare([a_result()], [a_result()], tolerance=0.0)
    assert (found.exit_code, found.worse, found.judged) == (0, (), 1)
    assert found.lines == (
        "sample, CartPole-v1, agent steps/s    80.0% ->   80.0%    +0.0%  ok",
        "nothing got worse by more than 0% (1 compared)",
    )


@pytest.mark.parametrize(("value", "code"), [(73.0, 0), (71.0, 1), (500.0, 0)])
def test_a_ratio_may_fall_by_the_tolerance_and_rise_at_will(value: float, code: int) -> None:
    found = compare([a_result((value, 100.0))], [a_result((80.0, 100.0))], tolerance=0.1)
    assert found.exit_code == code


def test_what_got_worse_is_named() -> None:
    now = [a_result((40.0, 100.0)), a_result((99.0, 100.0), stage="env")]
    before = [a_result((80.0, 100.0)), a_result((99.0, 100.0), stage="env")]
    found = compare(now, before, tolerance=0.1)
    assert found.worse == ("sample, CartPole-v1, agent steps/s",)
    assert found.lines == (
        "sample, CartPole-v1, agent steps/s    80.0% ->   40.0%   -50.0%  WORSE",
        "env, CartPole-v1, agent steps/s       99.0% ->   99.0%    +0.0%  ok",
        "worse by more than 10%: sample, CartPole-v1, agent steps/s",
    )


def test_speeds_may_differ_as_long_as_the_ratio_stays() -> None:
    found = compare([a_result((8.0, 10.0))], [a_result((80.0, 100.0))], tolerance=0.01)
    assert found.exit_code == 0


def test_stages_missing_now_are_listed() -> None:
    before = [a_result(), a_result(stage="replay", case="uniform push", unit="transitions/s")]
    found = compare([a_result()], before, tolerance=0.1)
    assert found.exit_code == 0
    assert (
        "missing: replay uniform push, CartPole-v1, transitions/s was not measured this time"
        in (found.lines)
    )


def test_stages_missing_in_the_baseline_are_listed() -> None:
    found = compare([a_result(), a_result(stage="env")], [a_result()], tolerance=0.1)
    assert (found.exit_code, found.judged) == (0, 1)
    assert "new: env, CartPole-v1, agent steps/s is not in the baseline" in found.lines


def test_numbers_of_other_settings_are_not_compared() -> None:
    now = [a_result((1.0, 100.0), settings={"actors": 4, "window": 8}), a_result(stage="env")]
    before = [a_result(settings={"actors": 2, "window": 8}), a_result(stage="env")]
    found = compare(now, before, tolerance=0.1)
    assert (found.exit_code, found.judged) == (0, 1)
    assert (
        "not compared: sample, CartPole-v1, agent steps/s, other settings: actors 2 -> 4"
        in found.lines
    )


def test_of_several_in_the_baseline_the_one_of_the_same_settings_counts() -> None:
    before = [a_result((99.0, 100.0)), a_result((10.0, 100.0), settings={"actors": 9})]
    found = compare([a_result((98.0, 100.0))], before, tolerance=0.1)
    assert (found.exit_code, found.judged, len(found.lines)) == (0, 1, 2)


def test_nothing_to_compare_is_no_success() -> None:
    found = compare([a_result(stage="env")], [a_result()], tolerance=0.1)
    assert (found.exit_code, found.worse, found.judged) == (1, (), 0)
    assert "nothing could be compared" in found.lines[-1]


def test_baseline_of_another_machine_is_noted_once_and_still_judged() -> None:
    other = {**MACHINE, "cores": 64, "torch": "3"}
    before = [a_result(machine=other), a_result(machine=other, stage="env")]
    found = compare([a_result(), a_result(stage="env")], before, tolerance=0.1)
    assert (found.exit_code, found.judged) == (0, 2)
    said = [line for line in found.lines if "machine" in line]
    assert said == ["the baseline is from another machine: cores 64 -> 8; torch 3 -> 2"]


def test_other_versions_on_the_same_machine_are_noted() -> None:
    before = [a_result(machine={**MACHINE, "torch": "1"})]
    found = compare([a_result()], before, tolerance=0.1)
    assert "same machine, other versions: torch 1 -> 2" in found.lines
