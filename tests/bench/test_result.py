"""Medians and spread of rounds, and results as JSON and back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from asyncrl.bench.result import Round, load_results, save_results
from asyncrl.core.errors import ConfigError
from tests.bench.sample_results import MACHINE, a_result


def test_the_ratio_is_the_median_of_the_rounds_ratios() -> None:
    result = a_result((1.0, 1.0), (10.0, 40.0), (4.0, 2.0))
    assert result.ratio == 1.0  # the ratio of the medians would be 2
    assert (result.value, result.limit) == (4.0, 2.0)


def test_spread_is_lowest_and_highest() -> None:
    result = a_result((1.0, 1.0), (10.0, 40.0), (4.0, 2.0))
    assert result.spread == {"value": [1.0, 10.0], "limit": [1.0, 40.0], "ratio": [0.25, 2.0]}


def test_every_round_is_kept_in_order() -> None:
    result = a_result((3.0, 4.0), (1.0, 2.0))
    assert result.repeats == [
        {"value": 3.0, "limit": 4.0, "ratio": 0.75},
        {"value": 1.0, "limit": 2.0, "ratio": 0.5},
    ]


def test_frames_are_agent_steps_times_frame_skip() -> None:
    assert a_result((80.0, 100.0), frame_skip=4).frames_per_s == 320.0
    assert a_result((80.0, 100.0)).frames_per_s == 80.0
    assert a_result((80.0, 100.0), unit="opt steps/s").frames_per_s is None


def test_bytes_are_reported_where_bytes_are_moved() -> None:
    assert a_result((80.0, 100.0), unit_bytes=7).bytes_per_s == 560.0
    assert a_result((80.0, 100.0)).bytes_per_s is None


def test_a_round_says_how_much_of_its_limit_it_reaches() -> None:
    assert Round(3.0, 4.0).ratio == 0.75


def test_a_result_is_named_by_stage_and_case() -> None:
    assert a_result().name == "sample"
    assert a_result(stage="replay", case="uniform push").name == "replay uniform push"
    assert a_result().key == ("sample", "", "CartPole-v1", "agent steps/s")


def test_json_has_what_programs_go_by() -> None:
    written = json.loads(json.dumps(dataclasses.asdict(a_result((80.0, 100.0), frame_skip=4))))
    assert written == {
        "stage": "sample",
        "case": "",
        "env": "CartPole-v1",
        "value": 80.0,
        "unit": "agent steps/s",
        "limit": 100.0,
        "limit_is": "bare loop",
        "ratio": 0.8,
        "spread": {"value": [80.0, 80.0], "limit": [100.0, 100.0], "ratio": [0.8, 0.8]},
        "repeats": [{"value": 80.0, "limit": 100.0, "ratio": 0.8}],
        "frame_skip": 4,
        "frames_per_s": 320.0,
        "bytes_per_s": None,
        "seconds": 1.0,
        "load_before": 0.25,
        "settings": {"actors": 2},
        "machine": MACHINE,
    }


def test_saved_results_come_back(tmp_path: Path) -> None:
    results = [a_result((3.0, 4.0), (1.0, 2.0)), a_result(stage="env", unit_bytes=3)]
    save_results(results, tmp_path / "x.json")
    assert load_results(tmp_path / "x.json") == results
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_lines_of_json_are_read_too(tmp_path: Path) -> None:
    results = [a_result(), a_result(stage="env")]
    lines = [json.dumps(dataclasses.asdict(result)) for result in results]
    (tmp_path / "x").write_text("\n".join([*lines, ""]))
    assert load_results(tmp_path / "x") == results


@pytest.mark.parametrize("text", ["{", "[3]", '{"stage": "env"}', "no JSON"])
def test_what_is_no_file_of_results_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(ConfigError, match=r"holds no results of `asyncrl bench`.*--save"):
        load_results(tmp_path / "x")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no-such-file"):
        load_results(tmp_path / "no-such-file")
