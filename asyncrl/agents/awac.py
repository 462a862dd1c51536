"""Advantage-weighted actor-critic: values what the policy does, and clones the data's good actions.

    Nair et al. (2020), AWAC: Accelerating Online Reinforcement Learning with Offline Datasets,
    https://arxiv.org/abs/2006.09359

In the comments: policy pi, action values Q_1 to Q_n, their slow copies Q'. The critics learn the
values of what the policy does, and the policy clones the data's actions, the better ones more:

    J_Q  = mean of (r + discount * min over i of Q'_i(s', a') - Q_i(s, a))^2    a' ~ pi(.|s')
    A    = min over i of Q_i(s, a) - V(s)           V(s) = E of min over i of Q_i(s, a'), a' ~ pi
    J_pi = - mean of min(exp(A / temperature), max_weight) * log pi(a|s)

The policy never climbs the critics' slopes, so it stays near the data where they are wrong; going
on online needs no change. IQL does not even ask the critics about actions of the policy.

Deviations from the paper, on purpose:

* Weights have an upper limit and are not normalised over the batch.
* For choices, expectations over the policy are sums over all of them; nothing is drawn. For
  quantities, V(s) is the value of one action drawn.
* All losses of a batch are computed before any network changes.
* Quantities come from a Gaussian whose mean is clipped to the bounds, not squashed between them.
* One learning rate for all networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from asyncrl.agent import PolicyContext
from asyncrl.agents._action_values import ChoiceValues, make_action_values
from asyncrl.agents._actor_critic import SlowCopy
from asyncrl.agents._checks import check_positive
from asyncrl.agents._cloning import (
    CloningConfig,
    CloningPolicy,
    Descent,
    UnitGaussianHead,
    exp_weights,
    weighted_mean,
)
from asyncrl.agents._critics import MakeNetwork
from asyncrl.agents._matmul import pick_matmul
from asyncrl.agents.networks import NetworkInput
from asyncrl.agents.torch_agent import TorchAgent, pick_device, seeded, use_threads
from asyncrl.agents.updates import Updates
from asyncrl.env import EnvSpec
from asyncrl.errors import ConfigError
from asyncrl.types import Array, Columns, ModelVersion, Params

__all__ = ["AWACAgent", "AWACConfig", "AWACPolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AWACConfig(CloningConfig):
    """Settings of advantage-weighted actor-critic; see `CloningConfig` for those of its policy."""

    n_critics: int = 2
    """Critics; the least of their values is the one believed."""

    critic_network: MakeNetwork | None = None
    """Makes your own critic, and is called `n_critics` times: for choices, observations ->
    (B, choices); for quantities, observations and actions (B, dimensions), in units in which the
    bounds are -1 and 1 -> (B, 1) or (B,)."""

    temperature: float = 1.0
    """Advantage, in units of rewards, that makes an action e times as likely to be cloned; the
    paper's lambda. With `normalize_reward`, 0.1 is a start; much less clones only the few actions
    that critics overrate most."""

    max_weight: float = 100.0
    """No action is cloned more than that many times as strongly as an average one."""

    tau: float = 0.005
    """How far the slow critics follow the critics, at each optimisation step."""

    def __post_init__(self) -> None:
        CloningConfig.__post_init__(self)
        if self.n_critics < 1:
            raise ConfigError(f"agent.n_critics must be at least 1, got {self.n_critics}")
        if not 0.0 < self.tau <= 1.0:
            raise ConfigError(f"agent.tau must lie in (0, 1], got {self.tau}")
        check_positive("temperature", self.temperature)
        check_positive("max_weight", self.max_weight)

    def build(self, spec: EnvSpec, context: PolicyContext) -> AWACAgent:
        """Make the learner's agent."""
        use_threads(self.threads)
        return AWACAgent(self, spec, context, pick_device(self.device))

    def build_policy(self, spec: EnvSpec, context: PolicyContext) -> AWACPolicy:
        """Make an actor's policy, which computes on a CPU."""
        return AWACPolicy(self, spec, context, torch.device("cpu"))


class AWACPolicy(CloningPolicy):
    """The part that acts."""


class AWACAgent(AWACPolicy, TorchAgent):
    """The part that learns, and acts as well."""

    def __init__(
        self, config: AWACConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        super().__init__(config, spec, context, device)
        self.config = config
        with seeded(context.seed + 1):
            self.critics = make_action_values(
                spec, config.hidden, config.n_critics, config.critic_network, "AWAC"
            ).to(device)
        self._slow = SlowCopy(self.critics, config.tau)
        self._descent = Descent([self.actor, self.critics], config)
        self._noise = torch.Generator(device).manual_seed(context.seed)
        self._matmul = pick_matmul(device, max(config.hidden, default=0))
        self._descend = config.uncompiled(self._step_down)
        self._updates = Updates(self._update, config, self.model, self.read_obs, device)
        self.parts |= {
            "critics": self.critics,
            "targets": self._slow.network,
            "optimizer": self._descent.adam,
            "noise": self._noise,
            "random": self.random,
        }

    def opt(self, batch: Columns) -> Mapping[str, Tensor]:
        """Improve critics and actor by one step each."""
        self._descent.adam.follow(self.env_steps)
        with self._matmul():
            told = self._updates.step(batch, self._noise_for(batch))
        self.version = ModelVersion(self.version + 1)
        return told

    def priorities(self) -> Array:
        """Return the absolute error of each row of the newest batch, its mean over the critics."""
        return self._updates.priorities()

    def load_state(self, state: Params) -> None:
        """Go on from `state`, or raise and change nothing."""
        super().load_state(state)
        self._updates.forget()

    def _noise_for(self, batch: Columns) -> dict[str, Tensor]:
        """Draw what actions are made of; here, since a recorded update would repeat itself."""
        if not isinstance(self.head, UnitGaussianHead):
            return {}
        shape = 2, len(batch["action"]), len(self.head.center)
        return {"noise": torch.randn(shape, generator=self._noise, device=self.device)}

    def _update(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Learn from a batch on the device. Recorded or compiled, it is what runs each time."""
        config, weight = self.config, data.get("weight")
        obs, next_obs, reward = self._updates.inputs(data)
        action, noise = self.drawn(data["action"]), data.get("noise")
        outputs = self.outputs(obs)
        q = self._values(self.critics, obs, action)
        with torch.no_grad():
            # y = r + discount * E of min over i of Q'_i(s', a'), where s' may lie n steps ahead
            next_value = self._value(
                self._slow.network, next_obs, self.outputs(next_obs), _row(noise, 0)
            )
            target = reward + data["discount"] * next_value
            # A = min over i of Q_i(s, a) - V(s)
            value = self._value(self.critics, obs, outputs, _row(noise, 1))
            advantage = q.amin(dim=0) - value
        # J_Q = mean of (Q_i(s, a) - y)^2
        critic_loss = weighted_mean((q - target).square(), weight)
        # J_pi = - mean of min(exp(A / temperature), max_weight) * log pi(a|s)
        strength = exp_weights(advantage, config.temperature, config.max_weight)
        actor_loss = -(strength * self.head.log_prob(outputs, action)).mean()
        told = {
            "actor_loss": actor_loss.detach(),
            "critic_loss": critic_loss.detach(),
            "advantage_mean": advantage.mean(),
            "weight_mean": strength.mean(),
            "q_mean": q.detach().mean(),
            "q": q.detach(),
            "target": target,
        }
        self._descend(critic_loss + actor_loss)
        return told

    def _step_down(self, loss: Tensor) -> None:
        """Step down the slope of the losses, and let the slow critics follow."""
        self._descent(loss)
        self._slow.follow()

    def _value(
        self, critics: nn.Module, obs: NetworkInput, outputs: Tensor, noise: Tensor | None
    ) -> Tensor:
        """Return what critics expect of the policy: E of min over i of Q_i(s, a), a ~ pi(.|s)."""
        if isinstance(self.head, UnitGaussianHead):
            assert noise is not None  # noqa: S101  # `opt` draws it
            return self._values(critics, obs, self.head.draw(outputs, noise)).amin(dim=0)
        assert isinstance(critics, ChoiceValues)  # noqa: S101  # as made above
        with self._precision():
            least = critics.of_all(obs).float().amin(dim=0)
        return (outputs.softmax(dim=1) * least).sum(dim=1)

    def _values(self, critics: nn.Module, obs: NetworkInput, action: Tensor) -> Tensor:
        with self._precision():
            values: Tensor = critics(obs, action)
        return values.float()


def _row(noise: Tensor | None, index: int) -> Tensor | None:
    return None if noise is None else noise[index]
