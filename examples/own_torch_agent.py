"""A custom torch algorithm: QR-DQN, which learns quantiles of returns, on CartPole.

Dabney et al. (2018), Distributional reinforcement learning with quantile regression,
https://arxiv.org/abs/1710.10044. The network outputs N quantiles of each action's return; their
mean is the action's value. With targets y = r + discount * z'(s', a*), the loss of quantile i with
level tau_i = (i + 1/2) / N is

    L_i = mean over j of |tau_i - [y_j < z_i]| * huber(y_j - z_i)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss

from asyncrl import EnvSpec, PolicyContext, TrainResult, preset, train_async
from asyncrl.agents.parts.networks import NetworkInput, n_actions, pick_device, q_network
from asyncrl.agents.parts.q_learning import QAgent, QConfig
from asyncrl.learner.stop_conditions import MaxOptSteps, ReachesUpperBound


@dataclass(frozen=True, slots=True, kw_only=True)
class QRDQNConfig(QConfig):
    """Settings; each is also a flag of `asyncrl train` and a key in the YAML file."""

    n_quantiles: int = 25
    """Number of quantiles that represent the distribution of returns."""

    def build(self, spec: EnvSpec, context: PolicyContext) -> QRAgent:
        """Build the learner's agent, on a GPU if there is one."""
        return QRAgent(self, spec, context, pick_device(self.device))

    def make_network(self, spec: EnvSpec) -> Quantiles:
        """Build the network."""
        return Quantiles(self, spec)


class Quantiles(nn.Module):
    """Maps observations to action values (B, actions), the output that `asyncrl export` needs."""

    def __init__(self, config: QRDQNConfig, spec: EnvSpec) -> None:
        super().__init__()
        n, self.n = n_actions(spec, "QR-DQN"), config.n_quantiles
        self.net = q_network(spec.observation, config.hidden, n, n_values=self.n)

    def forward(self, obs: NetworkInput) -> Tensor:
        """Return the mean of each action's quantiles."""
        values: Tensor = self.quantiles(obs).mean(dim=2)
        return values

    def quantiles(self, obs: NetworkInput) -> Tensor:
        """Return the quantiles (B, actions, N)."""
        quantiles: Tensor = self.net(obs).unflatten(1, (-1, self.n))
        return quantiles


class QRAgent(QAgent):
    """The learner's agent: `QAgent` does everything but the loss."""

    net: Quantiles
    target: Quantiles

    def loss(
        self, obs: NetworkInput, next_obs: NetworkInput, reward: Tensor, data: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a batch; the replay computes n-step returns."""
        rows = torch.arange(len(reward), device=self.device)
        with torch.no_grad():
            best = self.net(next_obs).argmax(dim=1)
            z_next = self.target.quantiles(next_obs)[rows, best]
            y = reward[:, None] + data["discount"][:, None] * z_next
        z = self.net.quantiles(obs)[rows, data["action"]]
        levels = (torch.arange(self.net.n, device=self.device) + 0.5) / self.net.n
        y_j, z_i = torch.broadcast_tensors(y[:, None, :], z[:, :, None])
        side = (levels[:, None] - (y_j < z_i).float()).abs()
        loss = (side * huber_loss(z_i, y_j, reduction="none")).mean(dim=2).sum(dim=1)
        q = z.detach().mean(dim=1)
        # Priorities are the distances of `q` and `target`.
        numbers = {"q_mean": q.mean(), "q": q, "target": y.mean(dim=1)}
        return (loss * data.get("weight", 1.0)).mean(), numbers


def main(max_opt_steps: int = 20_000) -> TrainResult:
    """Train on CartPole with the environments, replay, limiter and batch size of DQN's preset."""
    run = preset("dqn")
    result = train_async(
        QRDQNConfig(),
        run.env_config().build,
        run,
        stop=ReachesUpperBound("eval_reward", 475.0) | MaxOptSteps(max_opt_steps),
    )
    print(result.stop_reason, result.best_score)
    return result


if __name__ == "__main__":
    main()
