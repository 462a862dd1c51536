"""What TD3 adds to the contract of agents: its equations, its delays, its exploration."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asyncrl.agents.parts.choosing import LastingNoise
from asyncrl.agents.parts.schedules import Schedule
from asyncrl.agents.td3 import TD3Agent, TD3Config
from asyncrl.core.agent import PolicyContext, evaluation_mode, forget
from asyncrl.core.env import EnvSpec
from asyncrl.core.types import Columns
from tests.agents.test_sac import CONTEXT, HIGH, LOW, SPEC, batch_of, box, observations, spec_with


def small(**settings: Any) -> TD3Config:
    return TD3Config(**{"hidden": (16, 16), "device": "cpu", "random_env_steps": 0} | settings)


class ConstantActor(nn.Module):
    """The same action, before squashing, whatever it sees."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.output = nn.Parameter(torch.zeros(math.prod(spec.action.shape)))

    def forward(self, obs: Tensor) -> Tensor:
        return self.output.expand(len(obs), -1)


def part(agent: TD3Agent, name: str) -> nn.Module:
    module = agent.parts[name]
    assert isinstance(module, nn.Module)
    return module


# --- acting --------------------------------------------------------------------------------------


def test_noise_follows_its_schedule_within_the_bounds() -> None:
    noise = Schedule.linear(5.0, 0.0, 2000)
    policy = small(noise=noise, actor_network=ConstantActor).build_policy(SPEC, CONTEXT)
    action = policy.act(observations(1000)).action
    assert ((action >= LOW) & (action <= HIGH)).all()
    assert (action == LOW).any()
    assert policy.record()["exploration_noise"] == 2.5
    policy.act(observations(1000))
    assert policy.record()["exploration_noise"] == 0.0
    assert (policy.act(observations(50)).action == [2.0, 2.25]).all()


def test_ladder_goes_down_across_all_environments_of_all_actors() -> None:
    chooser_spec = small(noise=0.2, noise_ladder=4.0).chooser_spec()
    choosers: list[Any] = [
        chooser_spec(SPEC, PolicyContext(seed=0, actor_id=i, n_actors=2, n_envs=3)) for i in (0, 1)
    ]
    # 0.8 to 0.05 in five steps
    expected = [0.8 * (0.05 / 0.8) ** (k / 5) for k in range(6)]
    assert [scale for one in choosers for scale in one.scales()] == pytest.approx(expected)


def test_each_environment_has_its_own_noise() -> None:
    context = PolicyContext(seed=0, n_envs=2)
    config = small(noise=0.1, noise_ladder=5.0, actor_network=ConstantActor)
    policy = config.build_policy(SPEC, context)
    steps = np.stack([policy.act(observations(2)).action for _ in range(4000)]).astype(np.float64)
    spread = ((steps - [2.0, 2.25]) / [3.0, 0.25]).std(axis=(0, 2))
    # the first is cut off at the bounds, two deviations away
    assert 0.4 < spread[0] < 0.5
    assert spread[1] == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("correlation", [0.0, 4.0])
def test_noise_lasts_as_long_as_it_is_asked_to(correlation: float) -> None:
    noise = LastingNoise(correlation, np.random.default_rng(0))
    x = np.stack([noise.normal((400, 2)) for _ in range(300)]).astype(np.float64)
    assert x.mean() == pytest.approx(0.0, abs=0.05)
    assert x.std() == pytest.approx(1.0, rel=0.02)
    for lag in (1, 5):
        expected = math.exp(-lag / correlation) if correlation else 0.0
        assert (x[lag:] * x[:-lag]).mean() == pytest.approx(expected, abs=0.03)
    # From row to row nothing is shared.
    assert (x[:, 1:] * x[:, :-1]).mean() == pytest.approx(0.0, abs=0.03)


@pytest.mark.parametrize("first_steps", ["noisy", "random"])
def test_lasting_noise_starts_over_with_an_episode(first_steps: str) -> None:
    # Else the first actions after a checkpoint, which ends all episodes, would be others in a run
    # that is resumed from it.
    steps = 0 if first_steps == "noisy" else 10**6
    config = small(noise=0.3, noise_correlation_env_steps=50.0, random_env_steps=steps)
    agent, resumed = (config.build(SPEC, CONTEXT) for _ in range(2))
    for _ in range(5):
        agent.act(observations(2))
    resumed.load_state(agent.state())
    with evaluation_mode(agent):
        forget(agent, np.ones(3, np.bool_))
    for one in (agent, resumed):
        forget(one, np.ones(2, np.bool_))
    for _ in range(3):
        expected = agent.act(observations(2)).action
        np.testing.assert_array_equal(resumed.act(observations(2)).action, expected)
    forget(agent, np.array([True, False]))
    then = np.abs(agent.act(observations(2)).action - expected).max(axis=1)
    assert then[0] > then[1], "where no episode begins it lasts"


# --- learning ------------------------------------------------------------------------------------


class LinearCritic(nn.Module):
    """Q(s, a) = the sum of the action's numbers."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.ones(1))

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.slope * action.sum(dim=1)


def test_actions_in_targets_are_smoothed_by_clipped_noise() -> None:
    n, sigma, clip = 50_000, 0.4, 0.5
    config = small(
        actor_network=ConstantActor,
        critic_network=LinearCritic,
        target_noise=sigma,
        target_noise_clip=clip,
    )
    agent = config.build(spec_with(box([-1.0], [1.0])), CONTEXT)
    mean = 0.8
    nn.init.constant_(next(part(agent, "target_actor").parameters()), math.atanh(mean))
    zeros, ones = np.zeros(n, np.float32), np.ones(n, np.float32)
    agent.opt(batch_of(n, action=zeros[:, None], reward=zeros, discount=ones))
    # With Q(s, 0) = 0 the errors are the targets: Q'(s', a') = a' = min(1, 0.8 + clipped noise).
    x = np.linspace(-6, 6, 100_001)
    density = np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
    action = np.minimum(1.0, mean + np.clip(sigma * x, -clip, clip))
    errors = agent.priorities()
    assert errors.mean() == pytest.approx(np.trapezoid(density * action, x), abs=0.005)
    assert errors.min() == pytest.approx(mean - clip, abs=1e-5)
    assert errors.max() == pytest.approx(1.0, abs=1e-5)


def naive_targets(agent: TD3Agent, batch: Columns) -> list[float]:
    """Equation by equation and row by row, without noise."""
    targets = []
    actor, critics = part(agent, "target_actor"), part(agent, "target_critics")
    for row in range(len(batch["reward"])):
        next_obs = torch.from_numpy(batch["next_obs"][row : row + 1])
        action = torch.tanh(actor(next_obs))
        values = critics(next_obs, action).flatten().tolist()
        targets.append(float(batch["reward"][row]) + float(batch["discount"][row]) * min(values))
    return targets


def test_loss_is_what_the_equations_say_row_by_row() -> None:
    agent = small(target_noise=0.0, n_critics=3).build(SPEC, CONTEXT)
    for seed in range(4):  # target networks differ from the others by now
        agent.opt(batch_of(16 + seed))
    batch = batch_of(12)
    targets = naive_targets(agent, batch)
    unit = (batch["action"] - np.array([2.0, 2.25])) / np.array([3.0, 0.25])
    obs, action = torch.from_numpy(batch["obs"]), torch.from_numpy(unit.astype(np.float32))
    values = agent.critics(obs, action).tolist()
    squares = [(v - y) ** 2 for critic in values for v, y in zip(critic, targets, strict=True)]
    loss = float(agent.opt(batch)["critic_loss"])
    assert loss == pytest.approx(sum(squares) / len(squares), rel=1e-4)


def test_policy_climbs_the_first_critic() -> None:
    still = Schedule(points=((0, 0.0),))
    agent = small(critic_learning_rate=still).build(SPEC, CONTEXT)
    obs = torch.from_numpy(observations(32))
    expected = copy.deepcopy(agent.model)
    first = agent.critics(obs, expected(obs).tanh())[0]
    grads = torch.autograd.grad(-first.mean(), list(expected.parameters()))
    agent.opt({**batch_of(32), "obs": obs.numpy()})
    for parameter, gradient in zip(agent.model.parameters(), grads, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-7)


def test_policy_and_target_networks_wait_for_their_turn() -> None:
    agent = small(policy_interval_opt_steps=3).build(SPEC, CONTEXT)
    delayed = (agent.model, part(agent, "target_actor"), part(agent, "target_critics"))
    moved = []
    for _ in range(6):
        before = [p.clone() for module in (*delayed, agent.critics) for p in module.parameters()]
        agent.opt(batch_of())
        after = [p for module in (*delayed, agent.critics) for p in module.parameters()]
        changed = [not torch.equal(p, q) for p, q in zip(before, after, strict=True)]
        n_critics = len([*agent.critics.parameters()])
        assert all(changed[-n_critics:])
        assert len(set(changed[:-n_critics])) == 1, "all of them or none"
        moved.append(changed[0])
    assert moved == [True, False, False, True, False, False]


# --- networks ------------------------------------------------------------------------------------


class WithStillParts(nn.Module):
    """A layer behind an encoder without gradients, and beside an unused layer."""

    def __init__(self, n_inputs: int, n_outputs: int) -> None:
        super().__init__()
        self.moves = nn.Linear(n_inputs, n_outputs)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.unused = nn.Linear(3, 3)

    def forward(self, obs: Tensor, *action: Tensor) -> Tensor:
        out: Tensor = self.moves(torch.cat([self.frozen(obs), *action], dim=1))
        return out


def test_own_networks_may_have_parts_that_do_not_learn() -> None:
    agent = small(
        actor_network=lambda _: WithStillParts(3, 2), critic_network=lambda _: WithStillParts(5, 1)
    ).build(SPEC, CONTEXT)
    networks = agent.model, agent.critics
    before = [copy.deepcopy(network.state_dict()) for network in networks]
    for _ in range(3):
        agent.opt(batch_of())
    for old, network in zip(before, networks, strict=True):
        for name, value in network.state_dict().items():
            assert torch.equal(old[name], value) != ("moves" in name), name
