"""Workloads small enough to be measured in a test, and an environment that fails."""

from __future__ import annotations

from typing import Any

import gymnasium

from asyncrl.bench.workload import Workload


def tiny(**changes: Any) -> Workload:
    known: dict[str, Any] = {
        "actors": 1,
        "envs_per_actor": 4,
        "segment_length": 8,
        "segments_per_message": 2,
        "hidden": (8,),
        "capacity": 2000,
        "batch_size": 16,
        "seconds": 0.1,
        "warm_up_seconds": 0.05,
    }
    return Workload(**{**known, **changes})


class Falls(gymnasium.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        raise RuntimeError("the robot fell off the table")


def make_failing() -> gymnasium.Env[Any, Any]:
    return Falls(gymnasium.make("CartPole-v1"))
