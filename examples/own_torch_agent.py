"""A custom torch algorithm: QR-DQN, which learns quantiles of returns, on CartPole.

Dabney et al. (2018), Distributional reinforcement learning with quantile regression,
https://arxiv.org/abs/1710.10044. The network outputs N quantiles of each action's return; their
mean is the action's value. With targets y = r + discount * z'(s', a*), the loss of quantile i with
level tau_i = (i + 1/2) / N is

    L_i = mean over j of |tau_i - [y_j < z_i]| * huber(y_j - z_i)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss

from asyncrl import (
    EnvSpec,
    EpsilonLadder,
    MaxOptSteps,
    PolicyContext,
    ReachesUpperBound,
    TorchPolicy,
    TrainResult,
    preset,
    train_async,
)
from asyncrl.agents.parts.choosing import ChooserSpec, ValueChooser
from asyncrl.agents.parts.networks import NetworkInput, n_actions, pick_device, q_network
from asyncrl.agents.parts.optimizers import FusedAdam
from asyncrl.agents.parts.torch_agent import seeded
from asyncrl.agents.parts.torch_config import TorchConfig
from asyncrl.agents.parts.updater import TargetNetwork, Updater, UpdatingAgent
from asyncrl.core.types import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class QRDQNConfig(TorchConfig):
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
        return QRAgent(self, self.policy(spec, context, pick_device(self.device)))

    def policy(self, spec: EnvSpec, context: PolicyContext, device: torch.device) -> TorchPolicy:
        """Build what acts: a network, and what chooses by its values."""
        with seeded(context.seed):
            network = self.with_norms(Quantiles(self.n_quantiles, spec), spec.observation)
        chooser = ChooserSpec(ValueChooser, {"exploration": self.exploration})
        return TorchPolicy(network, chooser, spec, context, device)


class Quantiles(nn.Module):
    """Maps observations to action values (B, actions), the output that `asyncrl export` needs."""

    def __init__(self, n_quantiles: int, spec: EnvSpec) -> None:
        super().__init__()
        self.n = n_quantiles
        self.net = q_network(spec.observation, (64, 64), n_actions(spec, "QR-DQN"), n_values=self.n)

    def forward(self, obs: NetworkInput) -> Tensor:
        """Return the mean of each action's quantiles."""
        values: Tensor = self.quantiles(obs).mean(dim=2)
        return values

    def quantiles(self, obs: NetworkInput) -> Tensor:
        """Return the quantiles (B, actions, N)."""
        quantiles: Tensor = self.net(obs).unflatten(1, (-1, self.n))
        return quantiles


class QRAgent(UpdatingAgent):
    """The learner's agent: a policy that acts, and an updater that learns."""

    net: Quantiles

    def __init__(self, config: QRDQNConfig, policy: TorchPolicy) -> None:
        super().__init__(policy)
        optimizer = FusedAdam(self.net.parameters(), config.learning_rate)
        target = TargetNetwork(self.net, config.tau)
        self.target, n = target.network, config.n_quantiles
        self.levels = (torch.arange(n, device=self.device) + 0.5) / n
        # Checkpoints contain all `parts`. The model is already among them.
        self.parts |= {"target": self.target, "optimizer": optimizer}
        self.updater = Updater(
            self, config, {"": optimizer}, max_grad_norm=10, networks=[self.net], targets=[target]
        )

    def update(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Do one optimisation step; the replay computes n-step returns."""
        rows = torch.arange(len(data["action"]), device=self.device)
        obs, next_obs, reward = self.updater.inputs(data)
        with torch.no_grad():
            best = self.net(next_obs).argmax(dim=1)
            z_next = self.target.quantiles(next_obs)[rows, best]
            y = reward[:, None] + data["discount"][:, None] * z_next
        z = self.net.quantiles(obs)[rows, data["action"]]
        y_j, z_i = torch.broadcast_tensors(y[:, None, :], z[:, :, None])
        side = (self.levels[:, None] - (y_j < z_i).float()).abs()
        loss = (side * huber_loss(z_i, y_j, reduction="none")).mean(dim=2).sum(dim=1)
        loss = (loss * data.get("weight", 1.0)).mean()
        z = z.detach().mean(dim=1)
        metrics = {"loss": loss.detach(), "q_mean": z.mean(), "q": z, "target": y.mean(dim=1)}
        metrics |= self.updater.minimize(loss)
        self.updater.update_targets()
        return metrics

    def priorities(self) -> Array:
        """Return the TD errors of the newest batch, for prioritized replay."""
        return self.updater.priorities()


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
