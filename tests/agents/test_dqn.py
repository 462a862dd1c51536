"""DQN: targets and losses by hand, target networks, exploration, settings, and a solved chain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from asyncrl.agents.dqn import DQNAgent, DQNConfig
from asyncrl.agents.parts.accelerated import pick_matmul
from asyncrl.agents.parts.critics import BatchedCritics
from asyncrl.agents.parts.exploration import EpsilonGreedy, Exploration, Softmax
from asyncrl.agents.parts.networks import MakeNetwork
from asyncrl.agents.parts.normalize import Normalized
from asyncrl.core.agent import PolicyContext
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec, PackedSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.segment import DISCOUNTED_RETURN
from asyncrl.core.types import Array, Columns
from tests.agents.chain import (
    IMAGES,
    TWO_STATES,
    random_batch,
    spec,
)

CPU = torch.device("cpu")


def table(of: EnvSpec) -> nn.Module:
    """Make a network whose weight is the table of Q values, for one-hot states."""
    assert isinstance(of.action, DiscreteSpec)
    return nn.Linear(of.observation.shape[0], of.action.n, bias=False)


def table_agent(online: Any, target: Any, **settings: Any) -> DQNAgent:
    """Return an agent with Q tables of shape (states, actions)."""
    config = DQNConfig(**{"network": table, "device": "cpu", **settings})
    agent = config.build(TWO_STATES, PolicyContext(seed=0))
    with torch.no_grad():
        agent.model.weight.copy_(torch.tensor(online).T)  # type: ignore[operator, union-attr]
        agent.target.weight.copy_(torch.tensor(target).T)  # type: ignore[operator, union-attr]
    return agent


def counting(of: EnvSpec) -> nn.Module:
    """Make a network that counts, in buffers, what it was shown in training."""
    return nn.Sequential(nn.BatchNorm1d(of.observation.shape[0]), table(of))


class Replacing(nn.Module):
    """Counts, in a buffer that it replaces by another, what it was shown."""

    count: torch.Tensor

    def __init__(self, of: EnvSpec) -> None:
        super().__init__()
        self.table = table(of)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        self.count = self.count + len(obs)
        values: torch.Tensor = self.table(obs)
        return values


@pytest.mark.parametrize(("make", "n_buffers", "tau"), [(counting, 3, 0.05), (Replacing, 1, 0.0)])
def test_target_has_the_statistics_of_the_network_however_it_follows(
    make: MakeNetwork, n_buffers: int, tau: float
) -> None:
    config = DQNConfig(network=make, device="cpu", tau=tau, target_interval_opt_steps=1)
    agent = config.build(TWO_STATES, PolicyContext(seed=0))
    before = [buffer.clone() for buffer in agent.target.buffers()]
    with torch.no_grad():
        for buffer in agent.net.buffers():
            buffer.add_(3)
    one = transition(0, 1.0, 0.9)
    agent.opt({name: np.repeat(column, 2, axis=0) for name, column in one.items()})
    assert len(before) == n_buffers
    for old, slow, fast in zip(before, agent.target.buffers(), agent.net.buffers(), strict=True):
        assert not torch.equal(slow, old)
        assert torch.equal(slow, fast)


def transition(action: int, reward: float, discount: float) -> Columns:
    """Return a batch of one, from state 0 to state 1."""
    return {
        "obs": np.array([[1.0, 0.0]], np.float32),
        "next_obs": np.array([[0.0, 1.0]], np.float32),
        "action": np.array([action]),
        "reward": np.array([reward], np.float32),
        "discount": np.array([discount], np.float32),
    }


# Q'(1, .) = (3, 5); online, action 0 is best in state 1.
ONLINE = [[0.5, 1.0], [9.0, 2.0]]
TARGET = [[7.0, 7.0], [3.0, 5.0]]


@pytest.mark.parametrize(
    ("double", "discount", "target"),
    [
        (True, 0.9, 2.0 + 0.9 * 3.0),  # the online network chooses, the target network evaluates
        (False, 0.9, 2.0 + 0.9 * 5.0),
        (True, 0.0, 2.0),  # terminated
        (False, 0.0, 2.0),
        (True, 0.9**3, 2.0 + 0.9**3 * 3.0),  # three steps ahead
        (True, -0.25, 2.0 - 0.25 * 3.0),  # so that the error is 0.25
    ],
)
@pytest.mark.parametrize("action", [0, 1])
@pytest.mark.parametrize("loss", ["huber", "mse"])
def test_loss_is_that_of_the_papers(
    double: bool, discount: float, target: float, action: int, loss: str
) -> None:
    agent = table_agent(ONLINE, TARGET, double=double, loss=loss)
    record = agent.opt(transition(action, 2.0, discount))
    error = abs(ONLINE[0][action] - target)
    huber = 0.5 * error**2 if error < 1.0 else error - 0.5
    assert float(record["loss"]) == pytest.approx(huber if loss == "huber" else error**2, rel=1e-5)
    assert float(record["q_mean"]) == pytest.approx(ONLINE[0][action])


def test_only_the_action_taken_is_learned() -> None:
    agent = table_agent(ONLINE, TARGET, learning_rate=0.1)
    agent.opt(transition(1, 2.0, 0.9))
    table_now = agent.model_info().params["weight"].T
    assert table_now[0, 1] > 1.0
    assert (table_now[0, 0], *table_now[1]) == (0.5, 9.0, 2.0)


def test_loss_is_the_mean_over_the_batch() -> None:
    batches = [transition(0, 2.0, 0.9), transition(1, -1.0, 0.0)]
    both = {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
    losses = [float(table_agent(ONLINE, TARGET).opt(batch)["loss"]) for batch in [*batches, both]]
    assert losses[2] == pytest.approx((losses[0] + losses[1]) / 2)


def target_weights(agent: DQNAgent) -> Array:
    return np.concatenate([p.detach().numpy().ravel() for p in agent.target.parameters()])


def weights(agent: DQNAgent) -> Array:
    return np.concatenate([p.detach().numpy().ravel() for p in agent.model.parameters()])


@pytest.mark.behaviour(number=7)
def test_hard_target_is_copied_at_intervals_and_still_between_them() -> None:
    agent = DQNConfig(tau=0.0, target_interval_opt_steps=3, device="cpu").build(
        TWO_STATES, PolicyContext(seed=0)
    )
    held = target_weights(agent)
    assert np.array_equal(weights(agent), held)
    for done in range(1, 10):
        agent.opt(random_batch(seed=done))
        if done % 3 == 0:
            held = weights(agent).copy()
        assert np.array_equal(target_weights(agent), held)
        assert np.array_equal(weights(agent), held) == (done % 3 == 0)


def test_own_steps_count_between_models_but_those_of_evaluation_do_not() -> None:
    config = DQNConfig(exploration=EpsilonGreedy())
    policy = config.build_policy(TWO_STATES, PolicyContext(seed=0, n_envs=4))
    obs = np.ones((4, 2), np.float32)
    policy.act(obs)
    policy.act(obs)
    policy.train(False).act(obs)
    assert policy.env_steps == 8


@pytest.mark.parametrize("exploration", [EpsilonGreedy(epsilon=0.5), Softmax()])
def test_actors_store_what_first_priorities_are_computed_of(exploration: Exploration) -> None:
    config = DQNConfig(actor_priorities=True, exploration=exploration, device="cpu")
    policy = config.build_policy(TWO_STATES, PolicyContext(seed=0, n_envs=50))
    obs = np.random.default_rng(0).random((50, 2)).astype(np.float32)
    act = policy.act(obs)
    with torch.no_grad():
        q = policy.model(torch.from_numpy(obs)).numpy()
    assert np.array_equal(act.extras["q_taken"], q[np.arange(50), act.action])
    assert np.array_equal(act.extras["q_best"], q.max(axis=1))
    assert (act.extras["q_taken"] < act.extras["q_best"]).any()


def test_actors_store_the_unit_of_values_where_rewards_are_normalized() -> None:
    config = DQNConfig(actor_priorities=True, normalize_reward=True, device="cpu")
    columns = [column.name for column in config.extra_columns(TWO_STATES)]
    assert columns == ["q_taken", "q_best", "reward_scale", DISCOUNTED_RETURN]
    policy = config.build_policy(TWO_STATES, PolicyContext(seed=0, n_envs=3))
    assert isinstance(policy.model, Normalized)
    assert policy.model.returns is not None
    policy.model.returns.learn(torch.tensor([-50.0, 50.0]))
    act = policy.act(np.ones((3, 2), np.float32))
    np.testing.assert_allclose(act.extras["reward_scale"], np.full(3, 0.02, np.float32))


@pytest.mark.usefixtures("amd")
def test_large_matrices_of_any_layer_are_multiplied_by_onednn() -> None:
    wide, none = pick_matmul(CPU, hidden=(8, 128)), pick_matmul(CPU, hidden=(127,))
    assert wide is not none
    assert pick_matmul(CPU) is none
    assert pick_matmul(CPU, nn.Linear(3136, 64)) is wide
    assert pick_matmul(CPU, nn.Linear(4, 4), BatchedCritics(2, 3136, (64,))) is wide
    assert pick_matmul(CPU, nn.Linear(256, 256), nn.Conv2d(64, 64, 8)) is none
    assert pick_matmul(torch.device("cuda"), nn.Linear(3136, 64)) is none


@pytest.mark.usefixtures("amd")
@pytest.mark.parametrize(("width", "precision"), [(8, "none"), (32_768, "bf16")])
def test_only_updates_of_large_networks_change_who_multiplies(width: int, precision: str) -> None:
    settings = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # made on import
    seen: list[str] = []

    class Own(nn.Module):
        def __init__(self, of: EnvSpec) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(2, width), nn.Linear(width, 4))

        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            seen.append(settings.fp32_precision)
            return self.layers(obs)

    agent = DQNConfig(network=Own, device="cpu").build(spec((2,), 4), PolicyContext(seed=0))
    batch = random_batch(spec((2,), 4))
    before = settings.fp32_precision
    seen.clear()
    agent.opt(batch)
    assert set(seen) == {before if precision == "none" else precision}
    assert settings.fp32_precision == before
    seen.clear()
    agent.act(batch["obs"])
    assert seen == [before]


def test_custom_network_gets_images_within_0_and_1() -> None:
    seen: list[torch.Tensor] = []

    class Own(nn.Module):
        def __init__(self, of: EnvSpec) -> None:
            super().__init__()
            self.linear = nn.Linear(int(np.prod(of.observation.shape)), 4)

        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            seen.append(obs)
            return self.linear(obs.flatten(1))

    agent = DQNConfig(network=Own, device="cpu").build(IMAGES, PolicyContext(seed=0))
    batch = random_batch(IMAGES)
    agent.opt(batch)
    agent.act(batch["obs"])
    assert {obs.dtype for obs in seen} == {torch.float32}
    assert {obs.shape[1:] for obs in seen} == {IMAGES.observation.shape}
    assert 0.5 < max(float(obs.max()) for obs in seen) <= 1.0


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (None, r"agent\.network must return a torch\.nn\.Module, got None"),
        (nn.GRU(2, 2), r"agent\.network must return a network that returns a tensor, got tuple"),
    ],
)
def test_network_that_is_none_or_answers_with_no_tensor_is_refused(made: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        DQNConfig(network=lambda _: made).build(TWO_STATES, PolicyContext(seed=0))


def scale_field(fields: dict[str, torch.Tensor]) -> torch.Tensor:
    """Put another field in the place of the one that was given."""
    fields["state"] = fields["state"] * 2
    return fields["state"]


def scale_field_twice(fields: dict[str, torch.Tensor]) -> torch.Tensor:
    """Let go of the field that was given before the last one is made, maybe in its place."""
    fields["state"] = fields["state"] * 2
    return scale_field(fields)


def rename_field(fields: dict[str, torch.Tensor]) -> torch.Tensor:
    """Leave the field as it is, but not what it is called."""
    fields["position"] = fields.pop("state")
    return fields["position"]


@pytest.mark.parametrize(
    ("fields", "careless"),
    [
        (False, nn.ReLU(inplace=True)),
        (False, lambda obs: obs.flatten(1).mul_(1.0)),
        (True, lambda obs: obs["state"].mul_(2.0)),
        (True, scale_field),
        (True, scale_field_twice),
        (True, rename_field),
        (True, lambda obs: obs.pop("state")),
    ],
)
def test_network_that_writes_to_what_it_is_given_is_refused(fields: bool, careless: Any) -> None:
    """The target network is given the same, and what an actor acted on is stored after that."""

    class Own(nn.Module):
        def __init__(self, _: EnvSpec) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, obs: Any) -> torch.Tensor:
            answer: torch.Tensor = self.layer(careless(obs))
            return answer

    box = TWO_STATES.observation
    assert isinstance(box, BoxSpec)
    of = EnvSpec(PackedSpec((("state", box),)) if fields else box, TWO_STATES.action)
    config = DQNConfig(network=Own, device="cpu")
    with pytest.raises(ConfigError, match=r"agent\.network must not modify its input"):
        config.build(of, PolicyContext(seed=0))


def test_error_of_a_network_names_it_and_its_input() -> None:
    with pytest.raises(RuntimeError, match="shapes") as raised:
        DQNConfig(network=lambda _: nn.Linear(5, 2)).build(TWO_STATES, PolicyContext(seed=0))
    (note,) = raised.value.__notes__
    assert note == "asyncrl: in the network of agent.network, given 2 observations, of shape (2, 2)"


def test_duel_with_a_custom_network_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"agent\.dueling=True .* no effect on agent\.network"):
        DQNConfig(network=table, dueling=True)
