"""Small spaces with batches for them, and a row of states whose values are known by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from asyncrl.actor.step_processor import OneStep
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.core.segment import END, TERMINATED, make_schema
from asyncrl.core.types import Columns
from asyncrl.replay.prioritized import PrioritizedReplay, PrioritizedReplayConfig
from asyncrl.replay.uniform import UniformReplay, UniformReplayConfig


def spec(shape: tuple[int, ...], n_actions: int, dtype: str = "float32") -> EnvSpec:
    high = np.full(shape, 255 if dtype == "uint8" else 1, dtype)
    return EnvSpec(BoxSpec(shape, dtype, np.zeros(shape, dtype), high), DiscreteSpec(n_actions))


TWO_STATES = spec((2,), 2)
IMAGES = spec((3, 36, 36), 4, "uint8")


def random_batch(of: EnvSpec = TWO_STATES, seed: int = 0, size: int = 8) -> Columns:
    assert isinstance(of.action, DiscreteSpec)
    random = np.random.default_rng(seed)
    shape = (size, *of.observation.shape)
    return {
        "obs": (255 * random.random(shape)).astype(of.observation.dtype),
        "next_obs": (255 * random.random(shape)).astype(of.observation.dtype),
        "action": random.integers(of.action.n, size=size),
        "reward": random.normal(size=size).astype(np.float32),
        "discount": np.full(size, 0.9, np.float32),
    }


# Five states in a row, 0 to 4. Action 1 steps right, action 0 steps left (or stays in state 0).
# Stepping right from state 4 pays 1 and terminates. With gamma = 0.9, by hand:
#   Q*(s, right) = 0.9^(4 - s),   Q*(s, left) = 0.9 * max Q*(s - 1) = 0.9^(6 - s), at s = 0: 0.9^5.
CHAIN = spec((5,), 2)
CHAIN_Q = np.array([[0.9 ** (6 - s) if s else 0.9**5, 0.9 ** (4 - s)] for s in range(5)])


def chain_replay(
    config: UniformReplayConfig | PrioritizedReplayConfig | None = None,
) -> UniformReplay | PrioritizedReplay:
    """Return a replay buffer that holds each action in each state once."""
    config = config or UniformReplayConfig(capacity=10, gamma=0.9)
    schema = make_schema(OneStep().columns(CHAIN, ()), length=1, lookahead=1)
    state, action = np.divmod(np.arange(10), 2)
    ends = (state == 4) & (action == 1)
    after = np.clip(state + 2 * action - 1, 0, 4)
    columns = {c.name: np.zeros((10, 2, *c.shape), c.dtype) for c in schema.columns}
    columns["obs"][:, 0] = np.eye(5)[state]
    columns["obs"][:, 1] = np.eye(5)[after]
    columns["action"][:, 0] = action
    columns["reward"][:, 0] = ends
    columns["flags"][:, 0] = ends * TERMINATED
    columns["flags"][:, 1] = END
    replay = config.build(schema, seed=1)
    assert replay.push(columns, np.full(10, 2)) == 10
    return replay


def check_chain(agent: Any, abs: float) -> None:  # noqa: A002  # as `approx` calls it
    """Check that an agent knows the values of the chain, and goes right wherever it is."""
    with torch.no_grad():
        q = agent.model(torch.eye(5)).numpy()
    assert q == pytest.approx(CHAIN_Q, abs=abs)
    assert agent.train(False).act(np.eye(5, dtype=np.float32)).action.tolist() == [1] * 5
