"""Rainbow: all six parts at once, with the replay that two of them belong to."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from asyncrl.agents.c51 import C51Agent
from asyncrl.agents.parts.networks import DuelingHead, NoisyLinear
from asyncrl.agents.rainbow import RainbowConfig
from asyncrl.core.agent import PolicyContext
from tests.agents.chain import TWO_STATES, random_batch

CONTEXT = PolicyContext(seed=0, n_envs=8)
RAINBOW = RainbowConfig(hidden=(16, 16), n_atoms=11, v_min=0.0, v_max=1.0, device="cpu")


def test_all_parts_are_there() -> None:
    agent = RainbowConfig(device="cpu").build(TWO_STATES, CONTEXT)
    assert isinstance(agent, C51Agent)
    assert agent.config.double
    assert agent.config.exploration is None
    linear = [m for m in agent.model.modules() if isinstance(m, nn.Linear)]
    assert all(isinstance(layer, NoisyLinear) for layer in linear)
    assert len(linear) == 5
    assert any(isinstance(m, DuelingHead) for m in agent.model.modules())
    assert agent.net.logits(torch.zeros(3, 2)).shape == (3, 2, 51)


@pytest.mark.parametrize("weighted", [False, True])
def test_replay_without_priorities_is_reported(
    weighted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    agent = RAINBOW.build(TWO_STATES, CONTEXT)
    weight = {"weight": np.ones(8, np.float32)} if weighted else {}
    for seed in range(2):
        agent.opt(random_batch(seed=seed, size=8) | weight)
    warned = ["PrioritizedReplayConfig" in record.getMessage() for record in caplog.records]
    assert warned == [True] * (not weighted)
