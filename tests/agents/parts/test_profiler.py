"""A few optimisation steps are recorded, once, and nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.parts.profiler import Profiler
from asyncrl.core.agent import PolicyContext
from asyncrl.core.replay_buffer import ReplayBuffer
from asyncrl.core.types import Params
from asyncrl.learner.source import DataSource
from asyncrl.learner.stop_conditions import MaxOptSteps
from asyncrl.learner.trainer import Trainer
from tests.agents.chain import TWO_STATES, random_batch


class Same:
    """A buffer of one batch."""

    capacity = 8
    once = False

    def sample(self, batch_size: int) -> dict[str, np.ndarray]:
        return {**random_batch(), "model_version": np.zeros(8, np.int32)}

    def __len__(self) -> int:
        return 8


def train(opt_steps: int, *callbacks: Profiler) -> Params:
    agent = DQNConfig(device="cpu").build(TWO_STATES, PolicyContext(seed=0))
    buffer: ReplayBuffer = Same()  # type: ignore[assignment]
    Trainer(agent, DataSource(buffer), stop=MaxOptSteps(opt_steps), callbacks=callbacks).train()
    return agent.model_info().params


@pytest.mark.parametrize(("opt_steps", "recorded"), [(56, 3), (52, 2)])
def test_trace_holds_the_steps_asked_for_and_learning_is_the_same(
    opt_steps: int, recorded: int, tmp_path: Path
) -> None:
    trace = tmp_path / "profile.json"
    params, plain = train(opt_steps, Profiler(trace, opt_steps=3)), train(opt_steps)
    events = json.loads(trace.read_text())["traceEvents"]
    steps = [e for e in events if e.get("name") == "aten::_fused_adam_"]
    assert len(steps) == recorded
    for name, value in plain.items():
        np.testing.assert_array_equal(params[name], value)
