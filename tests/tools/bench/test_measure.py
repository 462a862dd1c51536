"""Value and limit in turns, round by round, slice by slice."""

from __future__ import annotations

import pytest

from asyncrl.core.errors import AsyncRLError
from asyncrl.tools.bench.measure import Rounds
from tests.tools.bench.sample_results import MACHINE, FakeStage, a_quantity


def measured(stage: FakeStage, repeats: int) -> tuple[Rounds, list[tuple[int, str]]]:
    """Return the rounds, and what was announced."""
    taken, heard = Rounds(stage, seconds=1.0, machine=MACHINE), list[tuple[int, str]]()
    taken.run(repeats, lambda number, what: heard.append((number, what)))
    return taken, heard


def test_value_and_limit_are_measured_in_pairs_and_swap_places() -> None:
    stage = FakeStage([[1.0], [2.0]], [[4.0], [16.0]])
    taken, heard = measured(stage, 2)
    assert stage.asked == ["value", "limit", "limit", "value"]
    assert heard == [(1, "value"), (1, "limit"), (2, "limit"), (2, "value")]
    (result,) = taken.results()
    assert [r["ratio"] for r in result.repeats] == [0.25, 0.125]
    assert result.machine == MACHINE


def test_a_round_of_slices_is_their_mean_and_is_announced_once() -> None:
    values, limits = [[1.0], [5.0], [3.0], [3.0]], [[8.0], [4.0], [1.0], [2.0]]
    stage = FakeStage(values, limits, slices=2)
    taken, heard = measured(stage, 2)
    (result,) = taken.results()
    assert [r["value"] for r in result.repeats] == [3.0, 3.0]
    assert [r["limit"] for r in result.repeats] == [6.0, 1.5]
    first, second = ["value", "limit", "limit", "value"], ["limit", "value", "value", "limit"]
    assert stage.asked == [*first, *second]
    assert heard == [(1, "value and limit"), (2, "value and limit")]


def test_each_quantity_has_its_own_result() -> None:
    quantities = [a_quantity(case="push"), a_quantity(case="sample")]
    stage = FakeStage([[1.0, 30.0]], [[2.0, 40.0]], quantities)
    push, sample = measured(stage, 1)[0].results()
    assert (push.case, push.value, push.limit) == ("push", 1.0, 2.0)
    assert (sample.case, sample.value, sample.limit) == ("sample", 30.0, 40.0)


@pytest.mark.parametrize(
    ("limits", "rounds"), [([[2.0], [2.0]], [{"value": 1.0, "limit": 2.0, "ratio": 0.5}]), ([], [])]
)
def test_complete_rounds_count_though_the_last_one_was_interrupted(
    limits: list[list[float]], rounds: list[dict[str, float]]
) -> None:
    taken = Rounds(FakeStage([[1.0]], limits), seconds=1.0, machine=MACHINE)
    with pytest.raises(KeyboardInterrupt):
        taken.run(3, lambda _number, _what: None)
    assert [one for result in taken.results() for one in result.repeats] == rounds


def test_zero_count_is_an_error_with_advice() -> None:
    with pytest.raises(AsyncRLError, match="sample: nothing was counted in 1 s; give a larger"):
        measured(FakeStage([[0.0]], [[1.0]]), 1)
