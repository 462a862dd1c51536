"""Workloads small enough to be measured in a test, and an environment that fails."""

from __future__ import annotations

from typing import Any

import gymnasium

from asyncrl.agents.dqn import DQNConfig
from asyncrl.core.agent import Act, PolicyContext
from asyncrl.core.env import EnvSpec
from asyncrl.core.inference import Inference
from asyncrl.core.types import Array, Columns
from asyncrl.tools.bench.workload import Workload
from tests.support.fakes import ConstantAgent


def tiny(**changes: Any) -> Workload:
    known: dict[str, Any] = {
        "actors": 1,
        "envs_per_actor": 4,
        "segment_length": 8,
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


class Slow:
    def __call__(self, _: Columns) -> Columns:
        raise RuntimeError("too slow")

    def fast(self, *, one_thread: bool) -> Inference:
        assert one_thread
        return lambda _: {}


class OnlyFast(ConstantAgent):
    """Its network is computed fast or not at all."""

    inference_inputs = ()
    inference: Inference = Slow()

    def act(self, obs: Array) -> Act:
        self.inference({})
        return super().act(obs)


class OnlyFastConfig(DQNConfig):
    def build_policy(self, spec: EnvSpec, context: PolicyContext) -> Any:
        return OnlyFast()
