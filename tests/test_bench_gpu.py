"""What the benchmark of GPUs does without one: its sides, its comparisons, and what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.bench_gpu import (
    MOVING,
    compare_updates,
    largest_difference,
    measure_moving,
    measure_parity,
    updates_of,
)
from benchmarks.bench_learner import CASES, Case, full_replay
from benchmarks.common import ROOT

ON_CPU = ["eager", "eager, bfloat16"]
DEADLINE_S = 500


def small(name: str) -> Case:
    return replace(CASES[name], replay_rows=2000)


@pytest.mark.parametrize("name", ["sac", "dqn"])
def test_all_sides_are_rates(name: str) -> None:
    case = small(name)
    replay = full_replay(case)
    measures = updates_of(case, replay, ON_CPU, "cpu", 0.01)
    pair = replay, full_replay(case, device="cpu")
    measures |= measure_moving(case, pair, "cpu", 0.01)
    assert list(measures)[-2:] == list(MOVING)
    assert all(measure() > 0.0 for measure in measures.values())


def test_both_replays_give_the_same_batches() -> None:
    case = small("dqn")
    here, there = (full_replay(case, device=device).sample(8) for device in ("host", "cpu"))
    assert isinstance(there["obs"], torch.Tensor)
    assert all(np.array_equal(here[name], there[name]) for name in here)


def test_variants_are_compared_with_eager_and_with_their_limits() -> None:
    rounds = {
        "eager": [100.0],
        "eager, one fixed batch": [200.0],
        "graphs": [300.0],
        "graphs, one fixed batch": [400.0],
    }
    ratios = {c.what: c.ratio for c in compare_updates("SAC", rounds)}
    assert ratios == {
        "GPU, SAC: graphs / eager": 3.0,
        "GPU, SAC: eager / eager, one fixed batch": 0.5,
        "GPU, SAC: graphs / graphs, one fixed batch": 0.75,
    }


def test_parity_is_nothing_between_the_same_and_something_between_precisions() -> None:
    case = small("dqn")
    replay = full_replay(case)
    assert measure_parity(case, replay, ("eager", "eager"), "cpu", 3) == 0.0
    assert measure_parity(case, replay, ("eager", "eager, bfloat16"), "cpu", 3) > 0.0


def test_difference_is_relative_to_each_array() -> None:
    first = {"a": np.array([100.0, 1.0]), "b": np.array([0.5, 0.25])}
    second = {"a": np.array([100.0, 2.0]), "b": np.array([0.5, 0.5])}
    assert largest_difference(first, second) == 0.5
    with pytest.raises(ValueError, match=r"differ in \['c'\]"):
        largest_difference(first, {**first, "c": first["a"]})


def run_benchmark(*arguments: object) -> str:
    command = [sys.executable, "-m", "benchmarks.bench_gpu", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_sentence_says_so(tmp_path: Path) -> None:
    assert run_benchmark("--results", tmp_path).endswith(
        "sees no GPU here, so nothing was measured.\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("device", "variants"),
    [
        ("cpu", ["eager"]),
        pytest.param(
            "cuda",
            ["eager", "graphs"],
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
            ],
        ),
    ],
)
def test_one_command_measures_everything(device: str, variants: list[str], tmp_path: Path) -> None:
    options = ("--cases", "dqn", "--seconds", 0.2, "--repeats", 1, "--opt-steps", 20)
    where = ("--results", tmp_path, "--device", device, "--variants", *variants)
    told = json.loads(run_benchmark(*where, *options))["details"]["dqn"]
    assert list(told["largest_relative_difference_from_eager"]) == variants
    assert max(told["largest_relative_difference_from_eager"].values()) < 1e-3
    assert all(min(pair) > 0 for pair in told["runs_opt_steps_per_s_and_env_steps_per_s"].values())
