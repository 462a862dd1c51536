"""A custom torch algorithm: QR-DQN, which learns quantiles of returns, on CartPole.

Dabney et al. (2018), Distributional reinforcement learning with quantile regression,
https://arxiv.org/abs/1710.10044. The network outputs N quantiles of each action's return; their
mean is the action's value. With targets y = r + discount * z'(s', a*), the loss of quantile i with
level tau_i = (i + 1/2) / N is

    L_i = mean over j of |tau_i - [y_j < z_i]| * huber(y_j - z_i)
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss

from asyncrl import (
    Act,
    ColumnSpec,
    EnvSpec,
    EpsilonLadder,
    MaxOptSteps,
    PolicyContext,
    ReachesUpperBound,
    TorchAgent,
    TorchPolicy,
    TrainResult,
    preset,
    train_async,
)
from asyncrl.agents.parts.exploration import Explorer
from asyncrl.agents.parts.networks import NetworkInput, n_actions, observation_reader, q_network
from asyncrl.agents.parts.torch_agent import learning_mode, pick_device, seeded
from asyncrl.core.types import Array, Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class QRDQNConfig:
    """Settings; each is also a flag of `asyncrl train` and a key in the YAML file."""

    n_quantiles: int = 25
    """Number of quantiles that represent the distribution of returns."""

    learning_rate: float = 2e-3
    """Step size of Adam."""

    tau: float = 0.05
    """Polyak factor of the target network, applied in each optimisation step."""

    exploration: EpsilonLadder = field(default_factory=EpsilonLadder)
    """Epsilon-greedy exploration."""

    def build(self, spec: EnvSpec, context: PolicyContext) -> QRAgent:
        """Build the learner's agent, on a GPU if there is one."""
        return QRAgent(self, spec, context, pick_device("auto"))

    def build_policy(self, spec: EnvSpec, context: PolicyContext) -> QRPolicy:
        """Build an actor's policy."""
        return QRPolicy(self, spec, context, torch.device("cpu"))

    def extra_columns(self, spec: EnvSpec) -> tuple[ColumnSpec, ...]:
        """Store no columns besides the transition."""
        return ()


class Quantiles(nn.Module):
    """Maps observations to action values (B, actions), the output that `asyncrl export` needs."""

    def __init__(self, config: QRDQNConfig, spec: EnvSpec) -> None:
        super().__init__()
        self.n = config.n_quantiles
        self.net = q_network(spec.observation, (64, 64), n_actions(spec, "QR-DQN"), n_values=self.n)

    def forward(self, obs: NetworkInput) -> Tensor:
        """Return the mean of each action's quantiles."""
        values: Tensor = self.quantiles(obs).mean(dim=2)
        return values

    def quantiles(self, obs: NetworkInput) -> Tensor:
        """Return the quantiles (B, actions, N)."""
        quantiles: Tensor = self.net(obs).unflatten(1, (-1, self.n))
        return quantiles


class QRPolicy(TorchPolicy):
    """The policy that actors run."""

    def __init__(
        self, config: QRDQNConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        with seeded(context.seed):
            self.net = Quantiles(config, spec)
        super().__init__(self.net, device)
        self.read_obs = observation_reader(spec.observation)
        self.random = np.random.default_rng(context.seed)
        self.explorer = Explorer(config.exploration, context, self.random)

    def act(self, obs: Array) -> Act:
        """Return the best action for each environment; in training, some are random instead."""
        with torch.inference_mode():
            seen = self.read_obs(torch.from_numpy(obs).to(self.device))
            values: Array = self.model(seen).cpu().numpy()
        if not self.training:
            return Act(values.argmax(axis=1))
        self.env_steps += len(obs)
        return Act(self.explorer.choose(values, self.env_steps))

    def record(self) -> Mapping[str, float]:
        """Return the exploration rate."""
        return self.explorer.record(self.env_steps)


class QRAgent(QRPolicy, TorchAgent):
    """The learner's agent, which also acts."""

    def __init__(
        self, config: QRDQNConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        super().__init__(config, spec, context, device)
        self.config = config
        self.target = copy.deepcopy(self.net)
        self.optimizer = torch.optim.Adam(self.net.parameters(), config.learning_rate)
        self.levels = (torch.arange(config.n_quantiles, device=device) + 0.5) / config.n_quantiles
        # Checkpoints contain all `parts`. The model is already among them.
        self.parts |= {"target": self.target, "optimizer": self.optimizer, "random": self.random}
        self.errors = np.zeros(0, np.float32)

    def opt(self, batch: Columns) -> Mapping[str, Tensor]:
        """Do one optimisation step; the replay computes n-step returns."""
        data = {name: torch.as_tensor(value, device=self.device) for name, value in batch.items()}
        rows = torch.arange(len(data["action"]), device=self.device)
        obs, next_obs = self.read_obs(data["obs"]), self.read_obs(data["next_obs"])
        with torch.no_grad():
            best = self.net(next_obs).argmax(dim=1)
            z_next = self.target.quantiles(next_obs)[rows, best]
            y = data["reward"][:, None] + data["discount"][:, None] * z_next
        with learning_mode(self.net):
            z = self.net.quantiles(obs)[rows, data["action"]]
            y_j, z_i = torch.broadcast_tensors(y[:, None, :], z[:, :, None])
            side = (self.levels[:, None] - (y_j < z_i).float()).abs()
            loss = (side * huber_loss(z_i, y_j, reduction="none")).mean(dim=2).sum(dim=1)
            loss = (loss * data.get("weight", 1.0)).mean()
            self.optimizer.zero_grad()
            loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for slow, new in zip(self.target.parameters(), self.net.parameters(), strict=True):
                slow.lerp_(new, self.config.tau)
            self.errors = (y.mean(dim=1) - z.mean(dim=1)).abs().cpu().numpy()
        return {"loss": loss.detach(), "q_mean": z.detach().mean()}

    def priorities(self) -> Array:
        """Return the TD errors of the newest batch, for prioritized replay."""
        return self.errors


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
