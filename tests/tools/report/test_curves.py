from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from asyncrl.tools.report.curves import AXES, Curves, GrowingFile


def at(step: int) -> dict[str, float]:
    return {"env_steps": 16.0 * step, "opt_steps": float(step), "wall_s": step / 10}


def test_short_run_keeps_every_value_at_its_place() -> None:
    curves = Curves()
    for step, loss in enumerate([3.0, 1.0, 2.0]):
        curves.add({**at(step), "agent/loss": loss})
    assert curves.points("agent/loss") == [3.0, 1.0, 2.0]
    assert curves.axis("env_steps") == [0.0, 16.0, 32.0]
    assert curves.last("agent/loss") == 2.0
    assert set(curves.names()) == {*AXES, "agent/loss"}


@pytest.mark.parametrize("n", [11, 4000])
def test_long_run_keeps_peaks_in_few_points(n: int) -> None:
    """Whatever the length, and wherever the peaks are."""
    for peak in (0, n // 3, n - 1):
        curves = Curves(most_stretches=5)
        for step in range(n):
            curves.add({**at(step), "x": 100.0 if step == peak else -100.0 * (step == n // 2)})
        values = [value for value in curves.points("x") if value is not None]
        assert max(values) == 100.0
        assert min(values) == (0.0 if peak == n // 2 else -100.0)
        assert len(curves.axis("opt_steps")) == len(curves.points("x")) <= 20
        assert curves.axis("opt_steps")[0] == 0.0
        assert curves.axis("opt_steps")[-1] == n - 1


def test_missing_and_infinite_values_are_gaps() -> None:
    curves = Curves()
    curves.add({**at(0), "x": 1.0})
    curves.add({**at(1), "x": None})
    curves.add({**at(2), "x": math.inf})
    curves.add({**at(3)})
    assert curves.points("x") == [1.0, None, None, None]
    assert curves.last("x") == 1.0


def test_restarts_are_noted_where_they_happened() -> None:
    curves = Curves()
    for step, restarts in enumerate([0.0, 0.0, 1.0, 1.0, 3.0]):
        curves.add({**at(step), "actor/0/restarts": restarts, "actor/1/restarts": 0.0})
    assert [(r.actor, r.at["opt_steps"]) for r in curves.restarts] == [("0", 2.0), ("0", 4.0)]


def test_file_of_a_killed_run_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert Curves.of_file(path).names() == []
    lines = [json.dumps({**at(0), "x": 1}), "not a record", "[1]", '{"x": 2}', '{"x": ']
    path.write_text("\n".join(lines))
    assert Curves.of_file(path).points("x") == [1.0]


def test_file_that_grows_is_read_on(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = GrowingFile(path)
    assert not file.read()
    first, second = (json.dumps({**at(step), "x": step}) + "\n" for step in (0, 1))
    path.write_text(first + second[:9])
    assert file.read()
    assert not file.read()  # a line is being written
    path.write_text(first + second)
    assert file.read()
    assert file.curves.points("x") == [0.0, 1.0]
    path.write_text(first)  # the run was resumed before the second
    file.read()
    assert file.curves.points("x") == [0.0]
