"""Trains one algorithm on one task with one seed, and prints what `runs.py` keeps.

    python -m benchmarks.learning.training ALGORITHM/TASK --mode async --seed 0

Training ends with two evaluations in a row at the bar. Such scores are biased upwards,
so the best model is scored again, on other episodes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.actor.evaluator import EpisodeEvaluator
from asyncrl.checkpoint.checkpoint import Checkpoint, Checkpointer
from asyncrl.core.evaluator import Evaluation
from asyncrl.core.recorder import Record
from asyncrl.core.settings import to_plain
from asyncrl.learner.run_services import RecordConfig
from asyncrl.learner.stop_conditions import AnyOf, StopCondition
from asyncrl.learner.train_result import TrainResult
from asyncrl.recorders.memory import MemoryRecorder
from asyncrl.run.run_config import Mode, RunConfig
from asyncrl.run.saved_model import policy_of
from asyncrl.run.train import train as train_run
from benchmarks.learning.runs import Point
from benchmarks.learning.tasks import CASES, EQUAL, OURS, TASKS, Case, case_of
from benchmarks.peers.equal import FINAL_SEED

_MAX_POINTS = 200


def train(case: Case, mode: str, seed: int, max_env_steps: int = 0) -> dict[str, Any]:
    """Train, score the best model, and return fields of `Run`.

    Args:
        case: What to train on what.
        mode: One of `MODES`.
        seed: Of the run.
        max_env_steps: A smaller budget than the task's.
    """
    config, recorder = case.config(seed, max_env_steps), MemoryRecorder()
    with tempfile.TemporaryDirectory() as directory:
        result = MODES[mode](config, recorder, Path(directory))
        scores = scored(config, result, Path(directory), TASKS[case.task].episodes)
    return {
        **scores,
        "lag_opt_steps": _median(recorder, "lag/versions_mean"),
        "lag_s": _median(recorder, "lag/seconds_mean"),
        "curve": _curve(recorder),
    }


def scored(
    config: RunConfig, result: TrainResult, directory: Path, episodes: int
) -> dict[str, Any]:
    """Score the best model of a run on episodes that training has not seen."""
    score, record = _evaluated(config, best(directory), episodes)
    bar_s = result.seconds_to_stop_bar
    return {
        "score": score,
        "score_std": record["eval/return_std"],
        "reached": bar_s is not None,
        "wall_s": result.wall_s if bar_s is None else bar_s,
        "env_steps": result.env_steps,
        "opt_steps": result.opt_steps,
        "stop_reason": result.stop_reason,
    }


def best(directory: Path) -> Checkpoint:
    """Load the best model of a run; the last one if none was evaluated."""
    checkpointer = Checkpointer(directory)
    found = "best" in checkpointer.names()
    return checkpointer.load("best") if found else checkpointer.load_latest()


def settings_of(config: RunConfig, mode: str) -> dict[str, Any]:
    """Return what a run depends on, as plain values that JSON keeps."""
    settings: dict[str, Any] = json.loads(json.dumps({**to_plain(config), "mode": mode}))
    return settings


def _evaluated(config: RunConfig, checkpoint: Checkpoint, episodes: int) -> Evaluation:
    env = config.env_config().build_for(episodes)()
    try:
        source = "of this case"
        policy = policy_of(checkpoint, config.agent, env.spec, seed=0, source=source)
        play = replace(config.evaluate.play, episodes=episodes)
        return EpisodeEvaluator(env, play, FINAL_SEED).evaluate(policy)
    finally:
        env.close()


def recorded_with_evaluations(config: RunConfig) -> RunConfig:
    """Return settings of a run that records as often as it evaluates."""
    every = max(1, config.evaluate.interval_opt_steps)
    return replace(config, record=RecordConfig(interval_s=0.0, interval_opt_steps=every))


class ConsecutiveEvaluations:
    """Stops once several evaluations in a row are at a bar."""

    def __init__(self, bar: float, times: int = 2) -> None:
        self._bar, self._times, self._count = bar, times, 0

    def update(self, record: Record) -> str | None:
        """Check evaluations."""
        if "eval_reward" in record:
            self._count = self._count + 1 if record["eval_reward"] >= self._bar else 0
        done = self._count >= self._times
        return f"{self._times} evaluations in a row reached {self._bar:g}" if done else None

    def reset(self) -> None:
        """Forget all records."""
        self._count = 0

    def limits(self) -> Mapping[str, float]:
        """Return no state."""
        return {}


def _stop(config: RunConfig) -> StopCondition:
    limits = replace(config, stop_at_return=None).stop_condition()
    assert limits is not None
    if config.stop_at_return is None:
        return limits
    return AnyOf(ConsecutiveEvaluations(config.stop_at_return), limits)


def _train(mode: Mode, config: RunConfig, recorder: MemoryRecorder, directory: Path) -> TrainResult:
    if mode == "sync":
        config = recorded_with_evaluations(config)
    stop = _stop(config)
    return train_run(
        replace(config, mode=mode), stop=stop, recorder=recorder, checkpoint_dir=directory
    )


MODES: dict[str, Callable[[RunConfig, MemoryRecorder, Path], TrainResult]] = {
    "async": partial(_train, "async"),
    "sync": partial(_train, "sync"),
    OURS: partial(_train, "async"),
}
"""`asyncrl` trains for a number of environment steps, without evaluations, as peers do."""


def _median(recorder: MemoryRecorder, name: str) -> float | None:
    values = [record[name] for record in recorder.records if name in record]
    return statistics.median(values) if values else None


def _curve(recorder: MemoryRecorder) -> list[Point]:
    """Return the scores; a background evaluation is of an earlier model."""
    records = recorder.records
    env_steps = [record["env_steps"] for record in records]
    opt_steps = [record["opt_steps"] for record in records]
    points = [
        (
            round(np.interp(record["eval/model_version"], opt_steps, env_steps)),
            round(record["wall_s"], 3),
            round(record["eval_reward"], 3),
        )
        for record in records
        if "eval_reward" in record
    ]
    return _thinned(points)


def _thinned(points: Sequence[Point]) -> list[Point]:
    if len(points) <= _MAX_POINTS:
        return [*points]
    which = np.linspace(0, len(points) - 1, _MAX_POINTS).round().astype(int)
    return [points[i] for i in which]


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("case", metavar="ALGORITHM/TASK")
    parser.add_argument("--mode", choices=sorted(MODES), default="async")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-env-steps", type=int, default=0, help="0: the task's own")
    args = parser.parse_args()
    case = case_of(args.case, EQUAL if args.mode == OURS else CASES)
    run = train(case, args.mode, args.seed, args.max_env_steps)
    print(json.dumps(run, allow_nan=False), flush=True)


if __name__ == "__main__":
    main()
