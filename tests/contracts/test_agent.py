"""What holds for every agent of ours: the contract, which `asyncrl.testing.check_agent` asks for.

And what the contract leaves open: in which mode networks act and learn, how batches are taken in
parts, what is returned. A case is a config and the spaces it is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
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
from asyncrl.agents.parts import updater as accumulation
from asyncrl.agents.parts.exploration import EpsilonGreedy, Softmax
from asyncrl.agents.parts.optimizers import FastOptimizer
from asyncrl.agents.parts.schedules import Schedule
from asyncrl.agents.parts.torch_agent import TorchConfig
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
    ReturnsPriorities,
    evaluation_mode,
    forget,
)
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.settings import from_plain, to_plain
from asyncrl.core.types import Array, Columns
from asyncrl.tools.doctor.agent import Subject, examine_agent
from tests.support import warm
from tests.support.fakes import ConstantConfig
from tests.support.helpers import copied, same

OBSERVATION = BoxSpec((3,), "float32", np.full(3, -np.inf), np.full(3, np.inf))
IMAGES = BoxSpec((1, 36, 36), "uint8", np.zeros((1, 36, 36)), np.full((1, 36, 36), 255))
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
    explores: bool = True

    @cached_property
    def subject(self) -> Subject:
        """Makes agents, and batches of what they have done."""
        return Subject(self.config, self.spec)

    @cached_property
    def batches(self) -> list[Columns]:
        """The batches that tests have asked for; most ask for few of them."""
        return []

    @cached_property
    def next_batches(self) -> Iterator[Columns]:
        """What a replay samples of ever more experience."""
        return self.subject.sampled(self.subject.replay)

    def build(self, seed: int = 5) -> Agent:
        return self.subject.agent(seed)

    def changed(self, **settings: Any) -> Case:
        """Return the same case with other settings."""
        return replace(self, config=replace(self.config, **settings))  # type: ignore[type-var]

    def build_policy(self, seed: int = 5) -> Policy:
        return self.subject.policy(seed)


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
_NORMALIZED: dict[str, Any] = {"normalize_obs": True, "normalize_reward": True}
_COPIED: dict[str, Any] = {"tau": 0.0, "target_interval_opt_steps": 2}
ALGORITHMS = {
    "dqn": Case(_DQN, CHOICES),
    "c51": Case(_C51, CHOICES),
    "rainbow": Case(_RAINBOW, CHOICES),
    "iqn": Case(_IQN, CHOICES),
    "r2d2": Case(_R2D2, CHOICES),
    "sac": Case(_SAC, CONTINUOUS),
    "discrete-sac": Case(_DISCRETE_SAC, CHOICES),
    "crossq": Case(_CROSSQ, CONTINUOUS),
    "td3": Case(_TD3, CONTINUOUS),
    "ppo": Case(_PPO, CHOICES),
    "impala": Case(_IMPALA, CHOICES),
    "bc": Case(_BC, CHOICES),
    "awac": Case(_AWAC, CHOICES),
    "iql": Case(_IQL, CONTINUOUS),
}
"""Each algorithm with few settings."""

VARIANTS = {
    "dqn-normalized": ALGORITHMS["dqn"].changed(
        **_NORMALIZED,
        **_COPIED,
        actor_priorities=True,
        dueling=True,
        exploration=Softmax(temperature=2.0),
    ),
    "iqn-noisy": ALGORITHMS["iqn"].changed(
        **_NORMALIZED, noisy=True, dueling=True, exploration=None
    ),
    "r2d2-gru-normalized": ALGORITHMS["r2d2"].changed(
        **_NORMALIZED, memory="gru", noisy=True, burn_in=0
    ),
    "discrete-sac-normalized": ALGORITHMS["discrete-sac"].changed(
        **_NORMALIZED, clip_change=0.5, n_critics=3
    ),
    "td3-ladder": ALGORITHMS["td3"].changed(
        **_NORMALIZED, noise_ladder=4.0, noise_correlation_env_steps=5.0
    ),
    "ppo-lstm": Case(_PPO, CONTINUOUS).changed(
        **_NORMALIZED, memory="lstm", shared_torso=True, correction="vtrace", dual_clip=3.0
    ),
    "impala-gru": ALGORITHMS["impala"].changed(memory="gru", optimizer="rmsprop"),
    "awac-normalized": Case(_AWAC, CONTINUOUS).changed(**_NORMALIZED),
}
CASES = {**ALGORITHMS, **VARIANTS, "constant": Case(ConstantConfig(action=2), CHOICES, False)}
EXPLORING = {name: case for name, case in CASES.items() if case.explores}
WITH_NETWORKS = {n: case for n, case in CASES.items() if isinstance(case.config, TorchConfig)}
REMEMBERING = {name: CASES[name] for name in ("r2d2", "ppo-lstm", "impala-gru")}
IN_PARTS = {
    name: case
    for name, case in CASES.items()
    if isinstance(case.config, TorchConfig) and case.config.can_accumulate
} | {"dqn-images": Case(_DQN, EnvSpec(IMAGES, CHOICES.action))}

every_algorithm = pytest.mark.parametrize("case", ALGORITHMS.values(), ids=ALGORITHMS)
every_agent = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
every_exploring_agent = pytest.mark.parametrize("case", EXPLORING.values(), ids=EXPLORING)
every_agent_with_networks = pytest.mark.parametrize(
    "case", WITH_NETWORKS.values(), ids=WITH_NETWORKS
)


def observations(count: int = 6, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)


def batch_for(case: Case, number: int) -> Columns:
    """Return a batch as from a replay, in new arrays."""
    while len(case.batches) <= number:
        case.batches.append(next(case.next_batches))
    return copied(case.batches[number])


def learn(agent: Agent, case: Case, numbers: range) -> None:
    for number in numbers:
        agent.opt(batch_for(case, number))


def greedy(policy: Policy, obs: Array) -> Array:
    """Return what a policy does at the beginning of episodes when it does not explore."""
    with evaluation_mode(policy):
        forget(policy, np.ones(len(obs), np.bool_))
        return policy.act(obs).action


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


@every_agent
def test_keeps_the_contract(case: Case) -> None:
    findings = examine_agent(case.config, case.spec)
    assert not [finding for finding in findings if finding.level != "ok"]


@pytest.mark.behaviour(number=17)
@every_agent_with_networks
def test_networks_act_in_evaluation_mode_and_learn_in_training_mode_but_targets(case: Case) -> None:
    agent: Any = case.build()
    agent.env_steps = 1000
    called = modes(agent)
    for opt_steps in (0, 3):
        learn(agent, case, range(opt_steps))
        seen = {name: set(how) for name, how in called.items()}
        for training in (True, False):
            called["model"].clear()
            agent.train(training)
            agent.act(observations())
            assert called["model"] == {(False, False)}
    targets = {name for name in called if name.startswith("target")}
    assert all(seen[name] == {(False, False)} for name in targets)
    if not isinstance(agent, CrossQAgent):  # copies of its networks learn
        for name in called.keys() - targets - {"value_norm"}:
            assert (True, True) in seen[name]
            assert (False, True) not in seen[name]


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


@every_exploring_agent
def test_training_policy_explores(case: Case) -> None:
    policy = case.build_policy()
    obs = observations()
    assert len({policy.act(obs).action.tobytes() for _ in range(20)}) > 1


def test_all_take_batches_in_parts_but_those_that_normalise_them() -> None:
    whole = {name for name, case in CASES.items() if name not in IN_PARTS}
    assert whole == {"constant", "crossq"}
    with pytest.raises(ConfigError, match=r"agent\.accumulate=3 "):
        replace(_CROSSQ, accumulate=3)


@pytest.mark.behaviour(number=58)
@every_agent_with_networks
def test_every_agent_reports_the_same_core_set(case: Case) -> None:
    agent = case.subject.agent()
    metrics = [set(agent.opt(batch_for(case, number))) for number in range(3)][-1]
    parts = {name.removesuffix("loss") for name in metrics if name.endswith("loss")}
    learners = {name.removesuffix("grad_norm") for name in metrics if name.endswith("grad_norm")}
    rates = {n.removesuffix("learning_rate") for n in metrics if n.endswith("learning_rate")}
    assert learners, "the gradient norm of each optimizer, or of each network"
    assert learners <= parts, "the loss that each of these gradients is of"
    assert rates, "the learning rate of each optimizer"
    assert rates <= {*learners, ""}, "one without a name is of all of them"
    config = case.config
    if hasattr(config, "entropy_weight"):
        assert {"entropy", "entropy_weight"} <= metrics
    if hasattr(config, "alpha"):
        assert {"entropy", "alpha"} <= metrics


@pytest.mark.parametrize("case", IN_PARTS.values(), ids=IN_PARTS)
def test_batches_in_parts_teach_what_whole_ones_do(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = []

    def counting(*args: Any, **kwargs: Any) -> Any:
        passes.append(args)
        return checkpoint(*args, **kwargs)

    monkeypatch.setattr(accumulation, "checkpoint", counting)
    whole, parts = case.build(), case.changed(accumulate=3).build()
    for seed in range(3):
        batch = batch_for(case, seed)
        if isinstance(whole, ReturnsPriorities):
            weight = np.random.default_rng(seed).random(len(batch["reward"]), np.float32)
            batch = {**batch, "weight": weight}
        expected = {name: float(value) for name, value in whole.opt(batch).items()}
        numbers = {name: float(value) for name, value in parts.opt(batch).items()}
        assert numbers == pytest.approx(expected, rel=1e-3, abs=1e-5)
        if isinstance(whole, ReturnsPriorities) and isinstance(parts, ReturnsPriorities):
            assert parts.priorities() == pytest.approx(whole.priorities(), rel=1e-4, abs=1e-5)
    expected_state = whole.state()
    for name, value in parts.state().items():
        np.testing.assert_allclose(value, expected_state[name], rtol=2e-3, atol=2e-5, err_msg=name)
    assert len(passes) >= 3 * 3, "each step passes at least one network in three parts"


@every_algorithm
def test_learning_rates_that_were_set_stay_unless_the_settings_change(case: Case) -> None:
    def rates(agent: Any) -> list[float]:
        parts = agent.parts.values()
        return [part.learning_rate for part in parts if isinstance(part, FastOptimizer)]

    agent: Any = case.build()
    made_with = rates(agent)
    for part in agent.parts.values():
        if isinstance(part, FastOptimizer):
            part.learning_rate *= 0.5
    state = agent.state()
    names = [f.name for f in fields(case.config) if f.name.endswith("learning_rate")]  # type: ignore[arg-type]
    twin, other = case.build(), case.changed(**dict.fromkeys(names, 0.01)).build()
    twin.load_state(state)
    assert rates(twin) == [0.5 * rate for rate in made_with]
    other.load_state(state)
    assert rates(other) == [0.01] * len(made_with)


@every_algorithm
def test_state_takes_the_place_of_an_older_one(case: Case) -> None:
    agent: Any = case.build()
    agent.spare = old = agent.state()
    learn(agent, case, range(1))
    state = agent.state()
    assert any(state[name] is old[name] for name in old)


LEARN_ALL = """
import sys
from tests.contracts.test_agent import ALGORITHMS, learn, observations
for name in ("dqn", "sac", "ppo"):
    case = ALGORITHMS[name]
    agent = case.build()
    learn(agent, case, range(1))
    agent.load_state(agent.state())
    agent.act(observations())
    assert "torch._dynamo" not in sys.modules, case.config
"""


def test_compiler_is_loaded_only_for_compiled_agents() -> None:
    # It takes as long as loading torch does, once more, and 70 MB.
    done = warm.run("code", [LEARN_ALL], cwd=Path.cwd(), timeout_s=100)
    assert done.returncode == 0, done.stderr


def test_configs_travel_to_other_processes_and_to_files() -> None:
    for case in CASES.values():
        assert cloudpickle.loads(cloudpickle.dumps(case.config)) == case.config
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
