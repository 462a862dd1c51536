"""DQN: targets and losses by hand, target networks, exploration, settings, and a solved chain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from asyncrl.agents.dqn import DQNAgent, DQNConfig
from asyncrl.agents.parts.exploration import Softmax
from asyncrl.core.agent import PolicyContext
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec, PackedSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array, Columns
from tests.agents.chain import TWO_STATES, random_batch


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


def test_loss_is_the_mean_over_the_batch() -> None:
    batches = [transition(0, 2.0, 0.9), transition(1, -1.0, 0.0)]
    both = {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
    losses = [float(table_agent(ONLINE, TARGET).opt(batch)["loss"]) for batch in [*batches, both]]
    assert losses[2] == pytest.approx((losses[0] + losses[1]) / 2)


def weights(network: nn.Module) -> Array:
    """Return parameters and statistics."""
    return np.concatenate([v.detach().numpy().ravel() for v in network.state_dict().values()])


@pytest.mark.behaviour(number=7)
def test_hard_target_is_copied_at_intervals_and_still_between_them() -> None:
    config = DQNConfig(
        network=lambda of: nn.Sequential(nn.BatchNorm1d(2), table(of)),
        tau=0.0,
        target_interval_opt_steps=3,
        device="cpu",
    )
    agent = config.build(TWO_STATES, PolicyContext(seed=0))
    held = weights(agent.target)
    assert np.array_equal(weights(agent.model), held)
    for done in range(1, 10):
        agent.opt(random_batch(seed=done))
        if done % 3 == 0:
            held = weights(agent.model)
        assert np.array_equal(weights(agent.target), held)
        assert np.array_equal(weights(agent.model), held) == (done % 3 == 0)


def test_actors_store_what_first_priorities_are_computed_of() -> None:
    config = DQNConfig(actor_priorities=True, exploration=Softmax(), device="cpu")
    policy = config.build_policy(TWO_STATES, PolicyContext(seed=0, n_envs=50))
    obs = np.random.default_rng(0).random((50, 2)).astype(np.float32)
    act = policy.act(obs)
    with torch.no_grad():
        q = policy.model(torch.from_numpy(obs)).numpy()
    assert np.array_equal(act.extras["q_taken"], q[np.arange(50), act.action])
    assert np.array_equal(act.extras["q_best"], q.max(axis=1))
    assert (act.extras["q_taken"] < act.extras["q_best"]).any()


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


def rename_field(fields: dict[str, torch.Tensor]) -> torch.Tensor:
    """Leave the field as it is, but not what it is called."""
    fields["position"] = fields.pop("state")
    return fields["position"]


@pytest.mark.parametrize(
    ("fields", "careless"),
    [
        (False, nn.ReLU(inplace=True)),
        (True, lambda obs: obs["state"].mul_(2.0)),
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
