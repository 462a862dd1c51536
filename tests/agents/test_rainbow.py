"""Rainbow: all six parts at once, with the replay that two of them belong to; and its family."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from asyncrl.agents.c51 import C51Agent, C51Config
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.iqn import IQNConfig
from asyncrl.agents.parts.exploration import EpsilonGreedy
from asyncrl.agents.parts.networks import DuelingHead, NoisyLinear
from asyncrl.agents.rainbow import RainbowConfig
from asyncrl.core.agent import Agent, AgentConfig, PolicyContext, evaluation_mode
from asyncrl.core.env import EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array
from tests.agents.chain import TWO_STATES, random_batch, spec

CONTEXT = PolicyContext(seed=0, n_envs=8)
RAINBOW = RainbowConfig(hidden=(16, 16), n_atoms=11, v_min=0.0, v_max=1.0, device="cpu")
FAMILY = {
    "noisy-dqn": DQNConfig(hidden=(16, 16), noisy=True, exploration=None, device="cpu"),
    "c51": C51Config(hidden=(16, 16), n_atoms=11, device="cpu"),
    "rainbow": RAINBOW,
    "iqn": IQNConfig(hidden=(16, 16), n_acting_quantiles=8, device="cpu"),
    "noisy-iqn": IQNConfig(
        hidden=(16, 16), n_acting_quantiles=8, noisy=True, dueling=True, device="cpu"
    ),
}
the_family = pytest.mark.parametrize("config", FAMILY.values(), ids=FAMILY)


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


def test_noise_explores_by_itself_and_with_something_else() -> None:
    obs = np.ones((8, 2), np.float32)
    loud = dataclasses.replace(RAINBOW, noisy_sigma=0.5)
    alone = loud.build_policy(TWO_STATES, CONTEXT)
    assert len({alone.act(obs).action.tobytes() for _ in range(10)}) > 1
    assert alone.record() == {}
    both = dataclasses.replace(RAINBOW, exploration=EpsilonGreedy(epsilon=0.25))
    assert both.build_policy(TWO_STATES, CONTEXT).record() == {"exploration_rate": 0.25}


def silent_network(_: EnvSpec) -> nn.Module:
    return nn.Linear(2, 22)


def test_what_would_not_explore_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"agent\.dueling=True .* build DuelingHead into"):
        dataclasses.replace(RAINBOW, network=silent_network)
    config = dataclasses.replace(RAINBOW, network=silent_network, noisy=False, dueling=False)
    with pytest.raises(ConfigError, match=r"leaves exploration to noisy layers, but .* has none"):
        config.build_policy(TWO_STATES, CONTEXT)


def parameters(agent: Agent) -> Array:
    params = agent.model_info().params
    return np.concatenate([params[name].ravel() for name in sorted(params)])


def learned(config: AgentConfig, opt_steps: int, **changes: Any) -> tuple[Array, list[float]]:
    """Return parameters after some steps, and all metrics and priorities."""
    changed: AgentConfig = dataclasses.replace(config, **changes)  # type: ignore[type-var]
    agent = changed.build(TWO_STATES, CONTEXT)
    metrics: list[float] = []
    for seed in range(opt_steps):
        batch = random_batch(seed=seed, size=16)
        batch |= {name: batch[name] / 255.0 for name in ("obs", "next_obs")}
        weight = np.random.default_rng(seed).random(16).astype(np.float32)
        metrics += map(float, agent.opt(batch | {"weight": weight}).values())
        metrics += agent.priorities().tolist()  # type: ignore[attr-defined]
    with evaluation_mode(agent):
        agent.act(batch["obs"])
    return parameters(agent), metrics


@pytest.mark.behaviour(number=65)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
@the_family
def test_compiled_updates_are_those_of_eager_ones(config: AgentConfig) -> None:
    eager, metrics = learned(config, 6)
    compiled, metrics_compiled = learned(config, 6, accelerate="compile")
    assert compiled == pytest.approx(eager, abs=1e-5)
    assert metrics_compiled == pytest.approx(metrics, rel=1e-4, abs=1e-4)


@pytest.mark.gpu
@the_family
def test_recorded_updates_are_those_of_eager_ones(config: AgentConfig) -> None:
    # Draws of a GPU depend on its generator alone, which both runs start alike.
    eager, metrics = learned(config, 12, device="cuda")
    recorded, metrics_recorded = learned(config, 12, device="cuda", accelerate="graphs")
    assert recorded == pytest.approx(eager, abs=1e-4)
    assert metrics_recorded == pytest.approx(metrics, rel=1e-3, abs=1e-3)


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


def test_identity_is_learned() -> None:
    """The action that equals the state pays 1, and the next state is random."""
    n = 5
    agent = RainbowConfig(v_min=0.0, v_max=100.0, device="cpu").build(spec((n,), n), CONTEXT)
    random, states = np.random.default_rng(0), np.eye(n, dtype=np.float32)
    for _ in range(200):
        state, action, following = random.integers(n, size=(3, 64))
        agent.opt(
            {
                "obs": states[state],
                "next_obs": states[following],
                "action": action,
                "reward": (action == state).astype(np.float32),
                "discount": np.full(64, 0.99, np.float32),
                "weight": np.ones(64, np.float32),
            }
        )
    with evaluation_mode(agent):
        assert agent.act(states).action.tolist() == list(range(n))
