"""What holds for every agent: how it acts, hands its model over, learns, and goes on from a state.

A case is a config and the spaces it is for; to test an agent of your own, add one.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from asyncrl.agents.awac import AWACConfig
from asyncrl.agents.bc import BCConfig
from asyncrl.agents.c51 import C51Config
from asyncrl.agents.crossq import CrossQAgent, CrossQConfig
from asyncrl.agents.discrete_sac import DiscreteSACConfig
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.impala import IMPALAConfig
from asyncrl.agents.iql import IQLConfig
from asyncrl.agents.iqn import IQNConfig
from asyncrl.agents.parts import updates as accumulation
from asyncrl.agents.parts.exploration import EpsilonGreedy, Softmax
from asyncrl.agents.parts.schedules import Schedule
from asyncrl.agents.parts.torch_config import TorchConfig
from asyncrl.agents.ppo import PPOConfig
from asyncrl.agents.r2d2 import R2D2Config
from asyncrl.agents.rainbow import RainbowConfig
from asyncrl.agents.sac import SACConfig
from asyncrl.agents.td3 import TD3Config
from asyncrl.core.agent import (
    Agent,
    AgentConfig,
    Policy,
    PolicyContext,
    ReusesMemory,
    evaluation_mode,
    forget,
)
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.settings import from_plain, to_plain
from asyncrl.core.types import Array, Columns, Params
from tests.support.fakes import ConstantConfig

OBSERVATION = BoxSpec((3,), "float32", np.full(3, -np.inf), np.full(3, np.inf))
CHOICES = EnvSpec(OBSERVATION, DiscreteSpec(4))
CONTINUOUS = EnvSpec(
    OBSERVATION,
    BoxSpec((2,), "float32", np.array([-1.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32)),
)
CONTEXT = PolicyContext(seed=5, n_envs=6)


@dataclass(frozen=True)
class Case:
    """An agent, and where it acts."""

    config: AgentConfig
    spec: EnvSpec
    other: AgentConfig | None = None
    """Of the same algorithm, with other networks; None for what has none."""

    explores: bool = True

    trajectories: bool = False
    """Whether it learns from trajectories instead of single transitions."""

    sequences: bool = False
    """Whether it learns from sequences of one episode each."""

    start_columns: tuple[str, ...] = ()
    """Its own columns of which a trajectory has those of the first row alone."""

    def build(self, seed: int = 5) -> Agent:
        return self.config.build(self.spec, dataclasses.replace(CONTEXT, seed=seed))

    def build_policy(self, seed: int = 5) -> Policy:
        return self.config.build_policy(self.spec, dataclasses.replace(CONTEXT, seed=seed))


_DQN = DQNConfig(
    hidden=(16, 16),
    device="cpu",
    exploration=EpsilonGreedy(epsilon=Schedule.linear(1.0, 0.05, 500)),
)
_SAC = SACConfig(hidden=(16, 16), device="cpu")
_DISCRETE_SAC = DiscreteSACConfig(hidden=(16, 16), device="cpu", random_env_steps=60)
_CROSSQ = CrossQConfig(hidden=(16, 16), critic_hidden=(16, 16), device="cpu")
_R2D2 = R2D2Config(
    hidden=(), encoder_hidden=(16,), memory_units=16, device="cpu", burn_in=2, tau=0.1
)
_TD3 = TD3Config(hidden=(16, 16), device="cpu", random_env_steps=0)
_C51 = C51Config(hidden=(16, 16), device="cpu", n_atoms=11)
_RAINBOW = RainbowConfig(hidden=(16, 16), device="cpu", n_atoms=11)
_IQN = IQNConfig(hidden=(16, 16), device="cpu")
_PPO = PPOConfig(hidden=(16, 16), device="cpu", epochs=2, minibatches=2)
_IMPALA = IMPALAConfig(hidden=(16, 16), device="cpu")
_BC = BCConfig(hidden=(16, 16), device="cpu")
_AWAC = AWACConfig(hidden=(16, 16), device="cpu")
_IQL = IQLConfig(hidden=(16, 16), device="cpu")
_OTHER_DQN = dataclasses.replace(_DQN, hidden=(16, 8))
_NORMALIZED: dict[str, Any] = {"normalize_obs": True, "normalize_reward": True}
CASES = {
    "dqn": Case(_DQN, CHOICES, _OTHER_DQN),
    "dqn-ladder": Case(
        DQNConfig(hidden=(16,), device="cpu", tau=0.0, target_interval_opt_steps=2),
        CHOICES,
        _OTHER_DQN,
    ),
    "dqn-softmax": Case(
        dataclasses.replace(_DQN, exploration=Softmax(temperature=2.0), dueling=True),
        CHOICES,
        _OTHER_DQN,
    ),
    "dqn-normalized": Case(
        dataclasses.replace(_DQN, **_NORMALIZED, actor_priorities=True), CHOICES, _OTHER_DQN
    ),
    "dqn-noisy": Case(
        dataclasses.replace(_DQN, noisy=True, exploration=None),
        CHOICES,
        dataclasses.replace(_OTHER_DQN, noisy=True),
    ),
    "c51": Case(_C51, CHOICES, dataclasses.replace(_C51, n_atoms=5)),
    "rainbow": Case(_RAINBOW, CHOICES, dataclasses.replace(_RAINBOW, n_atoms=5)),
    "rainbow-normalized": Case(
        dataclasses.replace(_RAINBOW, **_NORMALIZED, tau=0.0, target_interval_opt_steps=2),
        CHOICES,
        _RAINBOW,
    ),
    "iqn": Case(_IQN, CHOICES, dataclasses.replace(_IQN, hidden=(16, 8))),
    "iqn-noisy": Case(
        dataclasses.replace(_IQN, **_NORMALIZED, noisy=True, dueling=True, exploration=None),
        CHOICES,
        _IQN,
    ),
    "r2d2": Case(
        _R2D2,
        CHOICES,
        dataclasses.replace(_R2D2, hidden=(8,)),
        sequences=True,
        start_columns=("memory",),
    ),
    "r2d2-gru-normalized": Case(
        dataclasses.replace(_R2D2, **_NORMALIZED, memory="gru", noisy=True, burn_in=0),
        CHOICES,
        dataclasses.replace(_R2D2, memory_units=8),
        sequences=True,
        start_columns=("memory",),
    ),
    "sac-normalized": Case(dataclasses.replace(_SAC, **_NORMALIZED), CONTINUOUS, _SAC),
    "sac": Case(_SAC, CONTINUOUS, dataclasses.replace(_SAC, hidden=(16, 8))),
    "discrete-sac": Case(
        _DISCRETE_SAC, CHOICES, dataclasses.replace(_DISCRETE_SAC, hidden=(16, 8))
    ),
    "discrete-sac-normalized": Case(
        dataclasses.replace(_DISCRETE_SAC, **_NORMALIZED, clip_change=0.5, n_critics=3),
        CHOICES,
        _DISCRETE_SAC,
    ),
    "crossq": Case(_CROSSQ, CONTINUOUS, dataclasses.replace(_CROSSQ, hidden=(16, 8))),
    "crossq-normalized": Case(dataclasses.replace(_CROSSQ, **_NORMALIZED), CONTINUOUS, _CROSSQ),
    "td3": Case(_TD3, CONTINUOUS, dataclasses.replace(_TD3, hidden=(16, 8))),
    "td3-ladder": Case(
        dataclasses.replace(_TD3, **_NORMALIZED, noise_ladder=4.0, noise_correlation_env_steps=5.0),
        CONTINUOUS,
        _TD3,
    ),
    "ppo": Case(_PPO, CHOICES, dataclasses.replace(_PPO, hidden=(16, 8)), trajectories=True),
    "ppo-vtrace-normalized": Case(
        dataclasses.replace(_PPO, **_NORMALIZED, correction="vtrace", dual_clip=3.0),
        CONTINUOUS,
        _PPO,
        trajectories=True,
    ),
    "ppo-lstm": Case(
        dataclasses.replace(_PPO, memory="lstm", shared_torso=True),
        CONTINUOUS,
        _PPO,
        trajectories=True,
        start_columns=("memory",),
    ),
    "impala": Case(
        _IMPALA, CHOICES, dataclasses.replace(_IMPALA, hidden=(16, 8)), trajectories=True
    ),
    "impala-rmsprop-normalized": Case(
        dataclasses.replace(_IMPALA, **_NORMALIZED, optimizer="rmsprop"),
        CONTINUOUS,
        _IMPALA,
        trajectories=True,
    ),
    "impala-gru": Case(
        dataclasses.replace(_IMPALA, memory="gru"),
        CHOICES,
        _IMPALA,
        trajectories=True,
        start_columns=("memory",),
    ),
    "bc": Case(_BC, CHOICES, dataclasses.replace(_BC, hidden=(16, 8))),
    "bc-normalized": Case(dataclasses.replace(_BC, **_NORMALIZED, state_std=True), CONTINUOUS, _BC),
    "awac": Case(_AWAC, CHOICES, dataclasses.replace(_AWAC, hidden=(16, 8))),
    "awac-normalized": Case(dataclasses.replace(_AWAC, **_NORMALIZED), CONTINUOUS, _AWAC),
    "iql": Case(_IQL, CONTINUOUS, dataclasses.replace(_IQL, hidden=(16, 8))),
    "iql-normalized": Case(dataclasses.replace(_IQL, **_NORMALIZED), CHOICES, _IQL),
    "constant": Case(ConstantConfig(action=2), CHOICES, explores=False),
}
EXPLORING = {name: case for name, case in CASES.items() if case.explores}
WITH_NETWORKS = {name: case for name, case in CASES.items() if case.other}
REMEMBERING = {name: case for name, case in CASES.items() if "memory" in case.start_columns}

IN_PARTS = {
    name: case
    for name, case in CASES.items()
    if isinstance(case.config, TorchConfig) and case.config.can_accumulate
}

every_agent = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
every_exploring_agent = pytest.mark.parametrize("case", EXPLORING.values(), ids=EXPLORING)
every_agent_with_networks = pytest.mark.parametrize(
    "case", WITH_NETWORKS.values(), ids=WITH_NETWORKS
)


def observations(count: int = 6, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)


def batch_for(case: Case, seed: int, size: int = 32) -> Columns:
    """Make what a replay buffer would hand over."""
    random = np.random.default_rng(seed)
    if case.trajectories:
        return trajectories_for(case, random, seed)
    if case.sequences:
        return sequences_for(case, random, seed)
    return {
        "obs": observations(size, seed),
        "next_obs": observations(size, seed + 1000),
        "action": actions_for(case, random, size),
        "reward": random.normal(size=size).astype(np.float32),
        "discount": np.where(random.random(size) < 0.1, 0.0, 0.99).astype(np.float32),
        "model_version": np.zeros(size, np.int64),
        "discounted_return": random.normal(size=size).astype(np.float32),
    }


def trajectories_for(
    case: Case, random: np.random.Generator, seed: int, n: int = 4, length: int = 8
) -> Columns:
    """Make what `TrajectoryQueue` would hand over, of actions that the policy has chosen."""
    obs = observations(n * (length + 1), seed).reshape(n, length + 1, 3)
    context = dataclasses.replace(CONTEXT, seed=seed, n_envs=n * length)
    act = case.config.build_policy(case.spec, context).act(obs[:, :-1].reshape(-1, 3))
    own = {
        name: column.reshape(n, length, *column.shape[1:])
        for name, column in {**act.extras, "action": act.action}.items()
    }
    mask = random.random((n, length)) < 0.9
    return {
        **{name: c[:, 0] if name in case.start_columns else c for name, c in own.items()},
        "obs": obs,
        "reward": mask * random.normal(size=mask.shape).astype(np.float32),
        "discount": mask * np.where(random.random(mask.shape) < 0.1, 0.0, 0.99).astype(np.float32),
        "mask": mask,
        "model_version": np.zeros(mask.shape, np.int64),
        "discounted_return": random.normal(size=mask.shape).astype(np.float32),
    }


def sequences_for(case: Case, random: np.random.Generator, seed: int) -> Columns:
    """Make what `SequenceReplay` would hand over, of episodes that may end in the second half."""
    batch = trajectories_for(case, random, seed)
    goes_on = np.where(np.arange(8) < 4, np.True_, batch["mask"])
    mask = np.logical_and.accumulate(goes_on, axis=1)
    return {
        **batch,
        "reward": mask * batch["reward"],
        "discount": mask * batch["discount"],
        "mask": mask,
        "bootstrap": np.arange(8) + mask,
    }


def actions_for(case: Case, random: np.random.Generator, size: int) -> Array:
    action = case.spec.action
    if isinstance(action, DiscreteSpec):
        return random.integers(action.n, size=size)
    return random.uniform(action.low, action.high, (size, *action.shape)).astype(action.dtype)


def learn(agent: Agent, case: Case, seeds: range) -> None:
    for seed in seeds:
        agent.opt(batch_for(case, seed))


def greedy(policy: Policy, obs: Array) -> Array:
    """Return what a policy does at the beginning of episodes when it does not explore."""
    with evaluation_mode(policy):
        forget(policy, np.ones(len(obs), np.bool_))
        return policy.act(obs).action


def copied(params: Params) -> dict[str, Array]:
    return {name: value.copy() for name, value in params.items()}


def same(a: Params, b: Params) -> bool:
    return set(a) == set(b) and all(np.array_equal(a[name], b[name]) for name in a)


def modes(agent: Any) -> dict[str, set[tuple[bool, bool]]]:
    """Note, of each network in an agent's state, in which mode it is called and with gradients."""
    networks = {name: part for name, part in agent.parts.items() if isinstance(part, nn.Module)}
    called: dict[str, set[tuple[bool, bool]]] = {name: set() for name in networks}

    def note(name: str, module: nn.Module) -> None:
        called[name].add((module.training, torch.is_grad_enabled()))

    for name, network in networks.items():
        for module in network.modules():
            if any(True for _ in module.parameters()):
                module.register_forward_pre_hook(lambda module, _, name=name: note(name, module))
    return called


@every_agent_with_networks
@pytest.mark.parametrize("training", [True, False])
def test_networks_act_in_evaluation_mode(case: Case, training: bool) -> None:
    agent: Any = case.build()
    agent.random_env_steps = agent.env_steps = 1000
    called = modes(agent)
    for opt_steps in (0, 3):
        learn(agent, case, range(opt_steps))
        called["model"].clear()
        agent.train(training)
        agent.act(observations())
        assert called["model"] == {(False, False)}


@every_agent_with_networks
def test_what_is_learned_through_is_in_training_mode_and_slow_copies_are_not(case: Case) -> None:
    agent: Any = case.build()
    called = modes(agent)
    learn(agent, case, range(3))
    slow = {name for name in called if name.startswith(("target", "slow"))}
    assert all(called[name] == {(False, False)} for name in slow)
    if not isinstance(agent, CrossQAgent):  # twins of its networks learn
        learned = set(called) - slow - {"value_norm"}
        assert all((True, True) in called[name] for name in learned)
        assert all((False, True) not in called[name] for name in learned)


@every_agent
@pytest.mark.parametrize("side", [Case.build, Case.build_policy], ids=["agent", "policy"])
@pytest.mark.parametrize("training", [True, False])
def test_actions_belong_to_the_space(
    case: Case, side: Callable[[Case], Policy], training: bool
) -> None:
    policy = side(case)
    policy.train(training)
    assert policy.training is training
    actions = policy.act(observations()).action
    assert actions.shape == (6, *case.spec.action.shape)
    assert actions.dtype == case.spec.action.dtype
    if isinstance(case.spec.action, DiscreteSpec):
        assert ((actions >= 0) & (actions < case.spec.action.n)).all()
    else:
        assert ((actions >= case.spec.action.low) & (actions <= case.spec.action.high)).all()


@every_agent
def test_evaluated_policy_takes_any_number_of_rows_and_repeats_itself(case: Case) -> None:
    policy = case.build_policy()
    obs = observations(9)
    together = greedy(policy, obs)
    assert np.array_equal(together, greedy(policy, obs))
    one_by_one = np.concatenate([greedy(policy, row[None]) for row in obs])
    assert np.allclose(together, one_by_one, atol=1e-5)


@pytest.mark.parametrize("case", REMEMBERING.values(), ids=REMEMBERING)
def test_policy_that_remembers_repeats_itself_once_it_has_forgotten(case: Case) -> None:
    policy = case.build_policy()
    obs = observations(200)
    first = greedy(policy, obs)
    with evaluation_mode(policy):
        assert not np.array_equal(policy.act(obs).action, first)
    assert np.array_equal(greedy(policy, obs), first)


@every_agent
def test_evaluation_in_the_middle_of_episodes_changes_nothing_in_them(case: Case) -> None:
    model = case.build().model_info()

    def play(evaluated: bool) -> list[bytes]:
        policy = case.build_policy()
        policy.sync_model(model)
        actions = []
        for step in range(10):
            actions.append(policy.act(observations(seed=step)).action.tobytes())
            if evaluated:
                greedy(policy, observations(9, seed=step + 100))
        return actions

    assert play(evaluated=True) == play(evaluated=False)


@every_exploring_agent
def test_training_policy_explores(case: Case) -> None:
    policy = case.build_policy()
    obs = observations()
    assert len({policy.act(obs).action.tobytes() for _ in range(20)}) > 1


@every_exploring_agent
def test_exploration_repeats_itself_for_a_seed_and_only_then(case: Case) -> None:
    model = case.build().model_info()

    def play(seed: int) -> list[bytes]:
        policy = case.build_policy(seed)
        policy.sync_model(model)
        return [policy.act(observations()).action.tobytes() for _ in range(20)]

    assert play(1) == play(1)
    assert play(1) != play(2)


@every_agent
def test_evaluation_mode_leaves_the_mode_as_it_was(case: Case) -> None:
    for before in (True, False):
        agent = case.build()
        agent.train(before)
        with evaluation_mode(agent):
            assert not agent.training
        assert agent.training is before


@every_agent
def test_record_holds_finite_numbers(case: Case) -> None:
    for policy in (case.build(), case.build_policy()):
        policy.act(observations())
        assert all(np.isfinite(float(value)) for value in policy.record().values())


@every_agent
def test_extra_columns_are_what_act_adds(case: Case) -> None:
    extras = case.build_policy().act(observations()).extras
    columns = {c.name: (c.dtype, c.shape) for c in case.config.extra_columns(case.spec)}
    columns.pop("discounted_return", None)  # the step processor fills it
    assert {name: (str(v.dtype), v.shape[1:]) for name, v in extras.items()} == columns


@every_agent
def test_opt_tells_numbers_and_counts_versions(case: Case) -> None:
    agent = case.build()
    assert agent.model_info().version == 0
    for done in (1, 2, 3):
        record = agent.opt(batch_for(case, done))
        assert "loss" in " ".join(record)
        assert all(np.isfinite(float(value)) for value in record.values())
        assert agent.model_info().version == done


@every_agent
def test_opt_changes_the_model_but_no_snapshot_and_no_batch(case: Case) -> None:
    agent, batch = case.build(), batch_for(case, 1)
    info, batch_before = agent.model_info(), copied(batch)
    before = copied(info.params)
    agent.opt(batch)
    assert same(info.params, before)
    assert same(batch, batch_before)
    assert not same(agent.model_info().params, before)


def test_all_take_batches_in_parts_but_those_that_normalise_them() -> None:
    whole = {name for name, case in CASES.items() if name not in IN_PARTS}
    assert whole == {"constant", "crossq", "crossq-normalized"}
    for name in whole - {"constant"}:
        with pytest.raises(
            ConfigError, match=r"agent\.accumulate=3 .*normalise a batch by its own"
        ):
            dataclasses.replace(CASES[name].config, accumulate=3)  # type: ignore[type-var]


@pytest.mark.parametrize("case", IN_PARTS.values(), ids=IN_PARTS)
def test_batches_in_parts_teach_what_whole_ones_do(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = []

    def counting(*args: Any, **kwargs: Any) -> Any:
        passes.append(args)
        return checkpoint(*args, **kwargs)

    monkeypatch.setattr(accumulation, "checkpoint", counting)
    config = dataclasses.replace(case.config, accumulate=3)  # type: ignore[type-var]
    whole, parts = case.build(), dataclasses.replace(case, config=config).build()
    for seed in range(3):
        batch = batch_for(case, seed)
        expected = {name: float(value) for name, value in whole.opt(batch).items()}
        told = {name: float(value) for name, value in parts.opt(batch).items()}
        assert told == pytest.approx(expected, rel=1e-3, abs=1e-5)
    expected_state = whole.state()
    for name, value in parts.state().items():
        np.testing.assert_allclose(value, expected_state[name], rtol=2e-3, atol=2e-5, err_msg=name)
    assert len(passes) >= 3 * 3, "each step passes at least one network in three parts"


@every_agent_with_networks
def test_learning_rates_that_change_are_told(case: Case) -> None:
    names = ("learning_rate", "actor_learning_rate", "critic_learning_rate")
    rates = {name: Schedule.linear(1e-3, 0.0, 100) for name in names if hasattr(case.config, name)}
    assert rates
    config = dataclasses.replace(case.config, **rates)  # type: ignore[type-var]
    agent: Any = dataclasses.replace(case, config=config).build()
    for env_steps in (0, 50, 100):
        agent.env_steps = env_steps
        told = agent.opt(batch_for(case, env_steps))
        expected = pytest.approx(1e-3 * (1 - env_steps / 100))
        assert {name: float(told[name]) for name in rates} == dict.fromkeys(rates, expected)


@every_agent
def test_policies_with_the_same_model_act_alike(case: Case) -> None:
    agent, policy = case.build(seed=1), case.build_policy(seed=2)
    learn(agent, case, range(3))
    info = agent.model_info()
    assert info.version == 3
    policy.sync_model(info)
    obs = observations(200)
    assert np.array_equal(greedy(agent, obs), greedy(policy, obs))
    assert same(policy.model_info().params, info.params)


@every_agent
def test_synced_policy_does_not_share_memory_with_the_snapshot(case: Case) -> None:
    source, taker = case.build(seed=1), case.build(seed=2)
    info = source.model_info()
    before = copied(info.params)
    taker.sync_model(info)
    learn(taker, case, range(2))
    assert same(info.params, before)


@every_agent_with_networks
def test_model_that_does_not_fit_changes_nothing(case: Case) -> None:
    assert case.other is not None
    policy = case.build_policy()
    before = policy.model_info()
    fitting = case.build(seed=9).model_info()
    some = max(fitting.params)
    wrong = {
        "other shapes": case.other.build(case.spec, CONTEXT).model_info().params,
        "one missing": {name: v for name, v in fitting.params.items() if name != some},
        "one more": {**fitting.params, "strange": np.zeros(3, np.float32)},
        "one misshapen": {**fitting.params, some: np.zeros(99, np.float32)},
    }
    for params in wrong.values():
        with pytest.raises(ConfigError, match="does not fit"):
            policy.sync_model(dataclasses.replace(fitting, params=params))
        assert same(policy.model_info().params, before.params)
        assert policy.model_info().version == before.version


@every_agent
@pytest.mark.parametrize("opt_steps", [0, 7])
def test_agent_goes_on_from_a_state_with_the_same_bits(case: Case, opt_steps: int) -> None:
    first, second = case.build(seed=1), case.build(seed=2)
    learn(first, case, range(opt_steps))
    second.opt(batch_for(case, 99))
    second.load_state(first.state())
    obs = observations()
    for agent in (first, second):
        learn(agent, case, range(100, 105))
    for _ in range(5):
        assert first.act(obs).action.tobytes() == second.act(obs).action.tobytes()
    assert same(first.state(), second.state())
    assert first.model_info().version == second.model_info().version == opt_steps + 5


@every_agent
def test_state_is_a_copy_of_plain_numbers(case: Case) -> None:
    agent = case.build()
    agent.opt(batch_for(case, 0))
    state = agent.state()
    before = copied(state)
    learn(agent, case, range(3))
    agent.act(observations())
    assert same(state, before)
    assert not any(np.asarray(value).dtype.hasobject for value in state.values())


@every_agent_with_networks
def test_state_takes_the_place_of_an_older_one(case: Case) -> None:
    agent = case.build()
    assert isinstance(agent, ReusesMemory)
    agent.opt(batch_for(case, 0))
    old = agent.state()
    learn(agent, case, range(3))
    expected = agent.state()
    agent.spare = old
    state = agent.state()
    assert same(state, expected)
    assert any(state[name] is old[name] for name in old)
    assert not agent.spare
    assert agent.state() is not state


@every_agent_with_networks
def test_state_that_does_not_fit_changes_nothing(case: Case) -> None:
    assert case.other is not None
    agent, other = case.build(), case.other.build(case.spec, CONTEXT)
    learn(agent, case, range(2))
    learn(other, case, range(2))
    mine = agent.state()
    states = [
        other.state(),
        {},
        {**mine, "strange": np.zeros(3, np.float32)},
        ConstantConfig().build(case.spec, CONTEXT).state(),
        *({key: v for key, v in mine.items() if key != name} for name in _always_there(case)),
    ]
    for state in states:
        with pytest.raises(CheckpointError):
            agent.load_state(state)
        assert same(agent.state(), mine)


def _always_there(case: Case) -> list[str]:
    """Return what a state holds from the start, unlike the moments of an optimizer."""
    return list(case.build().state())


LEARN_ALL = """
import sys
from tests.contracts.test_agent import CASES, learn, observations
for name, case in CASES.items():
    agent = case.build()
    learn(agent, case, range(2))
    agent.load_state(agent.state())
    learn(agent, case, range(2))
    agent.act(observations())
    assert "torch._dynamo" not in sys.modules, name
"""


def test_nobody_who_compiles_nothing_loads_a_compiler() -> None:
    # It takes as long as loading torch does, once more, and 70 MB.
    done = subprocess.run(
        [sys.executable, "-c", LEARN_ALL], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr


@every_agent
def test_config_travels_to_other_processes_and_to_files(case: Case) -> None:
    sent = cloudpickle.loads(cloudpickle.dumps(case.config))
    assert sent == case.config
    assert from_plain(type(case.config), to_plain(case.config)) == case.config


@every_agent
def test_building_leaves_the_global_generators_alone(case: Case) -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    agent = case.build()
    agent.opt(batch_for(case, 0))
    agent.act(observations())
    assert torch.equal(torch.rand(3), expected)
    assert same(case.build(seed=4).state(), case.build(seed=4).state())
