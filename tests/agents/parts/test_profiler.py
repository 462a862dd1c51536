"""A few optimisation steps are recorded, once, and nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.parts.torch_config import ProfiledConfig
from asyncrl.core.agent import PolicyContext
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec

SPEC = EnvSpec(BoxSpec((4,), "float32", np.full(4, -9.0), np.full(4, 9.0)), DiscreteSpec(2))
BATCH = {
    "obs": np.ones((8, 4), np.float32),
    "next_obs": np.zeros((8, 4), np.float32),
    "action": np.zeros(8, np.int64),
    "reward": np.ones(8, np.float32),
    "discount": np.full(8, 0.9, np.float32),
    "model_version": np.zeros(8, np.int32),
}


def test_trace_holds_the_steps_asked_for_and_learning_is_the_same(tmp_path: Path) -> None:
    trace, config, context = (
        tmp_path / "profile.json",
        DQNConfig(device="cpu"),
        PolicyContext(seed=0),
    )
    profiled = ProfiledConfig(agent=config, trace=trace, opt_steps=3)
    agent, plain = profiled.build(SPEC, context), config.build(SPEC, context)
    assert profiled.extra_columns(SPEC) == config.extra_columns(SPEC)
    assert type(profiled.build_policy(SPEC, context)) is type(config.build_policy(SPEC, context))
    for _ in range(52):
        agent.opt(BATCH)
    assert not trace.exists(), "the third step to record has not been done"
    for _ in range(4):
        agent.opt(BATCH)
    for _ in range(56):
        plain.opt(BATCH)
    events = json.loads(trace.read_text())["traceEvents"]
    steps = [e for e in events if e.get("name") == "aten::_fused_adam_"]
    assert len(steps) == 3
    for name, value in plain.model_info().params.items():
        np.testing.assert_array_equal(agent.model_info().params[name], value)
