"""What got worse than a baseline, and what cannot be compared."""

from __future__ import annotations

import pytest

from asyncrl.tools.bench.report import compare
from tests.tools.bench.sample_results import MACHINE, a_result


@pytest.mark.parametrize(
    ("now", "code"), [((73.0, 100.0), 0), ((71.0, 100.0), 1), ((500.0, 100.0), 0), ((8.0, 10.0), 0)]
)
def test_a_ratio_may_fall_by_the_tolerance_and_rise_at_will(
    now: tuple[float, float], code: int
) -> None:
    assert compare([a_result(now)], [a_result()], tolerance=0.1).exit_code == code


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


def test_stages_missing_on_either_side_are_listed() -> None:
    now = [a_result(), a_result(stage="env")]
    before = [a_result(), a_result(stage="replay", case="uniform push", unit="transitions/s")]
    found = compare(now, before, tolerance=0.1)
    assert (found.exit_code, found.judged) == (0, 1)
    assert "new: env, CartPole-v1, agent steps/s is not in the baseline" in found.lines
    missing = "missing: replay uniform push, CartPole-v1, transitions/s was not measured this time"
    assert missing in found.lines


def test_numbers_of_other_settings_are_not_compared() -> None:
    now = [a_result((1.0, 100.0), settings={"actors": 4, "window": 8}), a_result(stage="env")]
    before = [a_result(settings={"actors": 2, "window": 8}), a_result(stage="env")]
    found = compare(now, before, tolerance=0.1)
    assert (found.exit_code, found.judged) == (0, 1)
    assert (
        "not compared: sample, CartPole-v1, agent steps/s, other settings: actors 2 -> 4"
        in found.lines
    )


def test_nothing_to_compare_is_no_success() -> None:
    found = compare([a_result(stage="env")], [a_result()], tolerance=0.1)
    assert (found.exit_code, found.worse, found.judged) == (1, (), 0)
    assert "nothing could be compared" in found.lines[-1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"torch": "3", "cores": 64, "gpus": ["a GPU"]},
            "the baseline is from another machine: cores 64 -> 8; gpus a GPU -> none; torch 3 -> 2",
        ),
        ({"torch": "1"}, "same machine, other versions: torch 1 -> 2"),
    ],
)
def test_baseline_of_another_machine_is_noted_once_and_still_judged(
    changes: dict[str, object], said: str
) -> None:
    other = {**MACHINE, **changes}
    before = [a_result(machine=other), a_result(machine=other, stage="env")]
    found = compare([a_result(), a_result(stage="env")], before, tolerance=0.1)
    assert (found.exit_code, found.judged) == (0, 2)
    assert [line for line in found.lines if "machine" in line] == [said]
