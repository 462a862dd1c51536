"""Soft actor-critic: actions from bounded intervals, as rewarding and as random as can be at once.

    Haarnoja et al. 2018a, Soft Actor-Critic, https://arxiv.org/abs/1801.01290
    Haarnoja et al. 2018b, Soft Actor-Critic Algorithms and Applications,
    https://arxiv.org/abs/1812.05905 (no value network, automatic temperature: what is here)

In the comments: policy pi, action values Q_1 to Q_n, their slow copies Q', temperature alpha. The
discount comes with the batch, since gamma and n-step returns belong to the replay.

Deviations from the papers, on purpose:

* Networks see actions scaled to [-1, 1], and log pi is the density of the scaled action. So
  neither the target entropy nor alpha depends on the units of an environment.
* Gradient descent moves log alpha, not alpha, which therefore stays positive.
* Critic losses are averaged over the critics, not added up: Adam does not see the factor.
* log of the standard deviation is clamped to [-5, 2].
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from asyncrl.agent import Act, PolicyContext
from asyncrl.agents._checks import check_not_negative, check_positive
from asyncrl.agents._matmul import pick_matmul
from asyncrl.agents._sac_networks import (
    LOG_STD_MAX,
    LOG_STD_MIN,
    MakeNetwork,
    bounded_actions,
    make_actor,
    make_critics,
    sample_action,
)
from asyncrl.agents.fused_adam import FusedAdam
from asyncrl.agents.networks import NetworkInput, observation_reader
from asyncrl.agents.normalize import Normalized
from asyncrl.agents.torch_agent import (
    TorchAgent,
    TorchPolicy,
    pick_device,
    seeded,
    use_threads,
)
from asyncrl.agents.torch_config import TorchConfig
from asyncrl.agents.updates import Updates
from asyncrl.env import EnvSpec
from asyncrl.errors import ConfigError
from asyncrl.segment import ColumnSpec
from asyncrl.types import Array, Columns, ModelVersion, Params

__all__ = ["MakeNetwork", "SACAgent", "SACConfig", "SACPolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SACConfig(TorchConfig):
    """Settings of soft actor-critic."""

    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers, of the actor and of each critic."""

    n_critics: int = 2
    """Critics; the least of their values is the one believed."""

    actor_network: MakeNetwork | None = None
    """Makes your own actor: float observations (B, ...), images within [0, 1], or a dict of such by
    field name -> (B, 2 * action dimensions), first the means, then the logarithms of the standard
    deviations, before squashing. Must be importable, or cloudpickle-able."""

    critic_network: MakeNetwork | None = None
    """Makes your own critic, and is called `n_critics` times: observations as above, and actions
    (B, action dimensions) scaled to [-1, 1] -> (B, 1) or (B,)."""

    alpha: float | None = None
    """Fixed temperature, the worth of entropy in units of reward; None adapts it."""

    initial_alpha: float = 1.0
    """Temperature at which adapting starts."""

    target_entropy: float | None = None
    """Entropy of actions scaled to [-1, 1] that adapting aims at; None: minus their dimensions."""

    actor_learning_rate: float = 3e-4
    """Of the actor's Adam."""

    critic_learning_rate: float = 1e-3
    """Of the critics' Adam."""

    alpha_learning_rate: float = 1e-3
    """Of the temperature's Adam."""

    tau: float = 0.005
    """How far the slow critics follow the critics, at each optimisation step."""

    random_env_steps: int = 1000
    """Environment steps of the whole run whose actions are uniformly random."""

    max_grad_norm: float = 0.0
    """Gradients of the actor, and of the critics, of a larger norm are scaled down to it; 0 leaves
    them all as they are."""

    def __post_init__(self) -> None:
        TorchConfig.__post_init__(self)
        if any(units < 1 for units in self.hidden):
            raise ConfigError(f"agent.hidden needs at least 1 unit a layer, got {self.hidden}")
        if self.n_critics < 1:
            raise ConfigError(f"agent.n_critics must be at least 1, got {self.n_critics}")
        if self.target_entropy is not None and not math.isfinite(self.target_entropy):
            raise ConfigError(f"agent.target_entropy must be finite, got {self.target_entropy}")
        if not 0.0 < self.tau <= 1.0:
            raise ConfigError(f"agent.tau must lie in (0, 1], got {self.tau}")
        check_not_negative("alpha", self.alpha or 0.0)
        check_not_negative("max_grad_norm", self.max_grad_norm)
        check_not_negative("random_env_steps", self.random_env_steps)
        check_positive("initial_alpha", self.initial_alpha)
        check_positive("actor_learning_rate", self.actor_learning_rate)
        check_positive("critic_learning_rate", self.critic_learning_rate)
        check_positive("alpha_learning_rate", self.alpha_learning_rate)

    def build(self, spec: EnvSpec, context: PolicyContext) -> SACAgent:
        """Make the learner's agent."""
        use_threads(self.threads)
        return SACAgent(self, spec, context, pick_device(self.device))

    def build_policy(self, spec: EnvSpec, context: PolicyContext) -> SACPolicy:
        """Make an actor's policy: the actor network and nothing else, on the CPU."""
        return SACPolicy(self, spec, context, torch.device("cpu"))

    def extra_columns(self, spec: EnvSpec) -> tuple[ColumnSpec, ...]:
        """Return what normalisation needs, where it is asked for."""
        return self.norm_columns


class SACPolicy(TorchPolicy):
    """The part that acts."""

    def __init__(
        self, config: SACConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        box = bounded_actions(spec)
        with seeded(context.seed):
            actor = make_actor(spec, config.hidden, config.actor_network)
        super().__init__(config.with_norms(actor, spec.observation), device)
        self.config = config
        self.read_obs = observation_reader(spec.observation)
        self.random = np.random.default_rng(context.seed)
        self._shape, self._dtype = box.shape, box.dtype
        self._low, self._high = box.low.ravel(), box.high.ravel()
        low, high = self._low.astype(np.float64), self._high.astype(np.float64)
        self._center = ((high + low) / 2).astype(np.float32)
        self._half = ((high - low) / 2).astype(np.float32)

    def act(self, obs: Array) -> Act:
        """Act uniformly at random for the first steps of a run, then as the actor network says."""
        if self.training and self.env_steps < self.config.random_env_steps:
            unit = self.random.uniform(-1.0, 1.0, (len(obs), len(self._low)))
        else:
            unit = self._choose(obs)
        if self.training:
            self.env_steps += len(obs)
        # [-1, 1] -> [low, high], clipped because rounding may lead out of it
        action = (self._center + self._half * unit).astype(self._dtype)
        action = action.clip(self._low, self._high)
        return Act(action.reshape(len(obs), *self._shape))

    def _choose(self, obs: Array) -> Array:
        """Return a sample when training and the mean when not, in [-1, 1]."""
        with torch.inference_mode():
            out = self.model(self.read_obs(torch.from_numpy(obs).to(self.device))).cpu().numpy()
        mean, log_std = out[:, : len(self._low)], out[:, len(self._low) :]
        if self.training:
            noise = self.random.standard_normal(mean.shape, np.float32)
            mean = mean + np.exp(log_std.clip(LOG_STD_MIN, LOG_STD_MAX)) * noise
        unit: Array = np.tanh(mean)
        return unit


class SACAgent(SACPolicy, TorchAgent):
    """The part that learns, and acts as well."""

    def __init__(
        self, config: SACConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        super().__init__(config, spec, context, device)
        with seeded(context.seed + 1):
            self.critics = make_critics(
                spec, config.hidden, config.n_critics, config.critic_network
            ).to(device)
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self._actor = self.model.network if isinstance(self.model, Normalized) else self.model
        self._actor_adam = FusedAdam(self._actor.parameters(), config.actor_learning_rate)
        self._critic_adam = FusedAdam(self.critics.parameters(), config.critic_learning_rate)
        self._params: list[Tensor] = [*self.critics.parameters()]
        self._slow_params: list[Tensor] = [*self.targets.parameters()]
        self._noise = torch.Generator(device).manual_seed(context.seed)
        self._center_tensor = torch.from_numpy(self._center).to(device)
        self._half_tensor = torch.from_numpy(self._half).to(device)
        self._target_entropy = (
            -float(len(self._low)) if config.target_entropy is None else config.target_entropy
        )
        self._fixed_alpha = None if config.alpha is None else torch.tensor(config.alpha).to(device)
        self._log_alpha = torch.tensor(math.log(config.initial_alpha), device=device)
        self._alpha_adam = FusedAdam([self._log_alpha], config.alpha_learning_rate)
        standard = config.actor_network is None and config.critic_network is None
        self._matmul = pick_matmul(device, max(config.hidden, default=0) if standard else 0)
        self._precision = config.precision_on(device)
        self._descend = config.uncompiled(self._step_down)
        self._finish = config.uncompiled(self._follow_up)
        self._updates = Updates(self._update, config, self.model, self.read_obs, device)
        self.parts |= {
            "critics": self.critics,
            "targets": self.targets,
            "actor_adam": self._actor_adam,
            "critic_adam": self._critic_adam,
            "log_alpha": self._log_alpha,
            "alpha_adam": self._alpha_adam,
            "noise": self._noise,
            "random": self.random,
        }

    def opt(self, batch: Columns) -> Mapping[str, Tensor]:
        """Improve critics, actor and temperature by one step each."""
        # Drawn here, since an update that has been recorded would repeat itself.
        noise = torch.randn(
            (2, len(batch["action"]), len(self._low)), generator=self._noise, device=self.device
        )
        with self._matmul():
            told = self._updates.step(batch, {"noise": noise})
        self.version = ModelVersion(self.version + 1)
        return told

    def priorities(self) -> Array:
        """Return the absolute error of each row of the newest batch, its mean over the critics."""
        return self._updates.priorities()

    def load_state(self, state: Params) -> None:
        """Go on from `state`, or raise and change nothing."""
        super().load_state(state)
        self._updates.forget()

    def _update(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Learn from a batch on the device. Recorded or compiled, it is what runs each time."""
        obs, next_obs, reward = self._updates.inputs(data)
        action = data["action"].float().reshape(len(data["action"]), -1)
        action = (action - self._center_tensor) / self._half_tensor
        noise = data["noise"]
        alpha = self._log_alpha.exp() if self._fixed_alpha is None else self._fixed_alpha
        # y = r + discount * V(s'), where s' may lie n steps ahead
        target = reward + data["discount"] * self._value(next_obs, noise[0], alpha)
        critic_loss, q = self._improve_critics(obs, action, target, data.get("weight"))
        actor_loss, log_prob = self._improve_actor(obs, noise[1], alpha)
        entropy = -log_prob.mean()
        self._finish(entropy)
        return {
            "critic_loss": critic_loss,
            "actor_loss": actor_loss,
            "alpha": alpha,
            "entropy": entropy,
            "q_mean": q.mean(),
            "q": q,
            "target": target,
        }

    @torch.no_grad()
    def _value(self, obs: NetworkInput, noise: Tensor, alpha: Tensor) -> Tensor:
        # V(s) = min over i of Q'_i(s, a) - alpha * log pi(a|s), a ~ pi(.|s)
        action, log_prob = self._sample(obs, noise)
        least = self._values(self.targets, obs, action).amin(dim=0)
        return least - alpha * log_prob

    def _improve_critics(
        self, obs: NetworkInput, action: Tensor, target: Tensor, weight: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        q = self._values(self.critics, obs, action)
        # J_Q = mean of (Q_i(s, a) - y)^2, weighted where rows were not drawn uniformly
        if weight is None:
            loss = mse_loss(q, target.expand_as(q))
        else:
            loss = (weight * (q - target).square()).mean()
        told = loss.detach(), q.detach()
        self._descend(self._critic_adam, loss)
        return told

    def _improve_actor(
        self, obs: NetworkInput, noise: Tensor, alpha: Tensor
    ) -> tuple[Tensor, Tensor]:
        action, log_prob = self._sample(obs, noise)
        # J_pi = mean of alpha * log pi(a|s) - min over i of Q_i(s, a), a ~ pi(.|s)
        least = self._values(self.critics, obs, action).amin(dim=0)
        loss = (alpha * log_prob - least).mean()
        told = loss.detach(), log_prob.detach()
        self._descend(self._actor_adam, loss)
        return told

    def _follow_up(self, entropy: Tensor) -> None:
        """Improve the temperature, and let the slow critics follow."""
        if self._fixed_alpha is None:
            # J_alpha = mean of -log alpha * (log pi(a|s) + H), whose slope is, in log alpha,
            # mean of -log pi(a|s), minus H
            self._log_alpha.grad = entropy - self._target_entropy
            self._alpha_adam.descend()
        with torch.no_grad():
            # theta' <- theta' + tau * (theta - theta')
            torch._foreach_lerp_(self._slow_params, self._params, self.config.tau)
            for slow, buffer in zip(self.targets.buffers(), self.critics.buffers(), strict=True):
                slow.copy_(buffer)

    def _sample(self, obs: NetworkInput, noise: Tensor) -> tuple[Tensor, Tensor]:
        with self._precision():
            out: Tensor = self._actor(obs)
        return sample_action(out.float(), noise)

    def _values(self, critics: nn.Module, obs: NetworkInput, action: Tensor) -> Tensor:
        with self._precision():
            values: Tensor = critics(obs, action)
        return values.float()

    def _step_down(self, adam: FusedAdam, loss: Tensor) -> None:
        """Step down, with gradients of nothing else that the loss depends on."""
        params = adam.param_groups[0]["params"]
        for param in params:
            param.grad = None
        torch.autograd.backward(loss, inputs=params)
        if self.config.max_grad_norm:
            nn.utils.clip_grad_norm_(params, self.config.max_grad_norm)
        adam.descend()
