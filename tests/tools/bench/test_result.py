"""Medians and spread of rounds, and results as JSON and back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from asyncrl.core.errors import ConfigError
from asyncrl.tools.bench.result import load_results, save_results
from tests.tools.bench.sample_results import a_result


def test_a_result_has_the_medians_and_the_spread() -> None:
    result = a_result((1.0, 1.0), (10.0, 40.0), (4.0, 2.0), frame_skip=4)
    assert (result.value, result.limit, result.frames_per_s) == (4.0, 2.0, 16.0)
    assert result.ratio == 1.0, "the median of the ratios; the ratio of the medians would be 2"
    assert json.loads(json.dumps(dataclasses.asdict(result)))["spread"] == {
        "value": [1.0, 10.0],
        "limit": [1.0, 40.0],
        "ratio": [0.25, 2.0],
    }


def test_saved_results_come_back_from_a_file_and_from_lines(tmp_path: Path) -> None:
    results = [a_result((3.0, 4.0), (1.0, 2.0)), a_result(stage="env", unit_bytes=3)]
    save_results(results, tmp_path / "x.json")
    assert load_results(tmp_path / "x.json") == results
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    lines = [json.dumps(dataclasses.asdict(result)) for result in results]
    (tmp_path / "lines").write_text("\n".join([*lines, ""]))
    assert load_results(tmp_path / "lines") == results


@pytest.mark.parametrize("text", ["{", "[3]", '{"stage": "env"}'])
def test_what_is_no_file_of_results_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(ConfigError, match=r"holds no results of `asyncrl bench`.*--save"):
        load_results(tmp_path / "x")
