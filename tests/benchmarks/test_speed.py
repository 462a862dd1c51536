from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from asyncrl.metrics.machine import machine
from benchmarks.common import Comparison, compare, keep
from benchmarks.make_table import load
from benchmarks.speed import learner, replay, sampling

ORIGIN = {"date": "2030-01-02", "commit": "abc1234", "load_before": 0.25, "machine": machine()}


Runs = Callable[..., dict[str, Any]]


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Runs:
    """Run a script in this process and return its result, which is also kept."""

    def run(script: ModuleType, *arguments: object) -> dict[str, Any]:
        given = ["script", "--results", str(tmp_path), *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", given)
        threads = torch.get_num_threads()
        try:
            script.main()
        finally:
            torch.set_num_threads(threads)
        printed: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert json.loads((tmp_path / f"{printed['name']}.json").read_text()) == printed
        return printed

    return run


def a_comparison(*ratios: float | None) -> Comparison:
    return Comparison(
        what="a / b", unit="s", ours=1.5, other=None, ratio=ratios[0], ratios=[*ratios]
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "paired", "expected"),
    [
        # The median of the ratios, and not the ratio of the medians, unless asked for.
        ([1.0, 10.0, 4.0], [1.0, 40.0, 2.0], True, (4.0, 2.0, 1.0, [1.0, 0.25, 2.0])),
        ([1.0, 10.0, 4.0], [1.0, 40.0, 2.0], False, (4.0, 2.0, 2.0, [1.0, 0.25, 2.0])),
        # A round that never got there counts as the worst.
        ([math.inf, 2.0, 3.0], [1.0, 1.0, 1.0], True, (3.0, 1.0, 3.0, [None, 2.0, 3.0])),
        (
            [math.inf, math.inf, 3.0],
            [math.inf, 1.0, 1.0],
            True,
            (None, 1.0, None, [None, None, 3.0]),
        ),
    ],
)
def test_ratio_of_rounds(
    ours: list[float], theirs: list[float], paired: bool, expected: tuple[object, ...]
) -> None:
    compared = compare({"a": ours, "b": theirs}, "a", "b", what="a / b", unit="s", paired=paired)
    assert (compared.ours, compared.other, compared.ratio, compared.ratios) == expected


def test_sampling_is_compared_with_the_bare_loop(
    run: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the stage measures, `tests/bench` shows."""
    stage = SimpleNamespace(limit=lambda: [2.0], value=lambda: [3.0])
    monkeypatch.setattr(sampling, "sample_stage", lambda _: stage)
    result = run(sampling, "--cases", "native", "--envs-per-actor", 4, "--repeats", 1)
    assert [(c["what"], c["ratio"]) for c in result["comparisons"]] == [
        ("2 actors of 4 native CartPoles / bare loop on 2 processes", 1.5)
    ]


def test_a_result_that_is_replaced_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = argparse.Namespace(results=tmp_path, repeats=1)
    for date, ratio in (("2030-01-02", 0.5), ("2030-02-03", 0.25)):
        keep(args, "x", "?", [a_comparison(ratio)], origin={**ORIGIN, "date": date})
    read = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert json.loads((tmp_path / "x.json").read_text()) == read[1]
    older = tmp_path / "replaced" / "x_2030-01-02_abc1234.json"
    assert json.loads(older.read_text()) == read[0]
    assert load(tmp_path) == [read[1]]
    machine = {**read[0]["machine"], "processor": "another processor"}
    older.write_text(json.dumps({**read[0], "machine": machine}))
    assert [r["date"] for r in load(tmp_path)] == ["2030-02-03", "2030-01-02"], "one of each"
    (tmp_path / "x.json").unlink()
    assert load(tmp_path) == [], "what is no longer measured is no longer shown"


def test_replay_is_compared_with_bare_selection(run: Runs) -> None:
    small = ["--rows", 512, "--frames", 64, "--batch-size", 8, "--seconds", 0.01, "--repeats", 2]
    result = run(replay, *small)
    assert [c["what"] for c in result["comparisons"]] == [
        "sample 8 of 512 transitions / torch.index_select of as many bytes",
        "sample 8 of 64 frames / torch.index_select of as many bytes",
        "90 % of samples of 8 transitions beside a pushing thread / at rest",
        "90 % of samples of 8 frames beside a pushing thread / at rest",
        "sample 8 of 512 transitions with hindsight / uniformly",
    ]
    assert all(len(c["ratios"]) == 2 and c["ratio"] > 0 for c in result["comparisons"])


def test_learner_is_compared_with_its_limit_and_its_variants(
    run: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(learner.CASES["dqn"], replay_rows=2000)
    monkeypatch.setattr(learner, "CASES", {"dqn": small})
    arguments = ["--cases", "dqn", "--variants", "bfloat16", "--seconds", 0.02, "--repeats", 1]
    result = run(learner, *arguments)
    words = learner.CASES["dqn"].words
    shown = [c["what"] for c in result["comparisons"] if c["other"] != 0]
    assert f"{words}: {learner.SAMPLED} / {learner.FIXED}" in shown
    assert f"{words}: {learner.FIXED} / {learner.PRODUCTS}" in shown
    assert f"{words}: bfloat16 / {learner.SAMPLED}" in shown


@pytest.mark.gpu
def test_learner_is_measured_on_a_gpu(run: Runs) -> None:
    small = ["--cases", "dqn", "--variants", "graphs", "--seconds", 0.2, "--repeats", 1]
    result = run(learner, "--device", "cuda", *small)
    assert {c["unit"] for c in result["comparisons"]} == {"opt steps/s", "batches/s"}
    apart = result["details"]["dqn: largest relative difference from plain updates"]
    assert apart["graphs"][0] < 1e-3
