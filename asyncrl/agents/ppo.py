"""PPO: several small steps on each batch of trajectories, none of them far from what was played.

Papers:
    Schulman et al. (2017), Proximal policy optimization algorithms,
    https://arxiv.org/abs/1707.06347: the clipped objective.
    Schulman et al. (2016), High-dimensional continuous control using generalized advantage
    estimation, https://arxiv.org/abs/1506.02438.
    Ye et al. (2020), Mastering complex control in MOBA games with deep reinforcement learning,
    https://arxiv.org/abs/1912.09729: the second clip.
    Espeholt et al. (2018), IMPALA, https://arxiv.org/abs/1802.01561: V-trace, for asynchronous
    runs.

With policy pi, the policy mu that has played (whose probabilities lie beside each action), values V
and H the entropy of a policy:

    A_t = delta_t + discount * lambda * A_t+1     delta_t = reward_t + discount * V(s_t+1) - V(s_t)
    y   = A + V                                   both with V-trace's corrections, if asked for
    r   = pi(a|s) / mu(a|s)
    J   = mean of min(r * A, clip(r, 1 - eps, 1 + eps) * A), no less than c * A where A < 0
    L   = - J + value_weight * mean of (V(s) - y)^2 - entropy_weight * mean of H(pi(.|s))

eps is `clip`, c is `dual_clip`. A and y are computed in `_returns.py`, the rest in
`_ppo_losses.py`.

What differs on purpose:
    Values are computed by the learner, when a batch arrives, and not by the actors. With V-trace,
    the weight r of an action itself is in the objective only, and not in A as well. `lambda_` takes
    its part in V-trace such that A and y of what pi itself has played are those of generalized
    advantage estimation. Values are learned in units of the targets' standard deviation so far
    unless told otherwise; the network is not adjusted as the units change. The value's clip, in
    these units, is off unless asked for. Whether to stop early is decided after whole epochs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.agents._matmul import pick_matmul
from asyncrl.agents._minibatches import Minibatches, Trajectories
from asyncrl.agents._ppo_losses import (
    Estimates,
    corrected_estimates,
    divergence,
    explained_variance,
    plain_estimates,
    surrogate,
    value_errors,
)
from asyncrl.agents._ppo_settings import PPOSettings
from asyncrl.agents._stochastic_policy import StochasticPolicy, check_batch, read_columns
from asyncrl.agents.accumulation import InParts
from asyncrl.agents.normalize import RunningNorm
from asyncrl.agents.optimizers import FusedAdam
from asyncrl.agents.schedules import value_at
from asyncrl.agents.torch_agent import (
    TorchAgent,
    clip_gradients,
    flatten_parameters,
    learning_mode,
    pick_device,
    seeded,
    use_threads,
)
from asyncrl.agents.updates import Updates
from asyncrl.core.agent import PolicyContext
from asyncrl.core.env import EnvSpec
from asyncrl.core.types import Columns, ModelVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOConfig(PPOSettings):
    """Settings of PPO, for synchronous runs; `correction="vtrace"` is for asynchronous ones."""

    def build(self, spec: EnvSpec, context: PolicyContext) -> PPOAgent:
        """Make the learner's agent."""
        use_threads(self.threads)
        return PPOAgent(self, spec, context, pick_device(self.device))

    def build_policy(self, spec: EnvSpec, context: PolicyContext) -> PPOPolicy:
        """Make an actor's policy, which computes on a CPU."""
        return PPOPolicy(self, spec, context, torch.device("cpu"))


class PPOPolicy(StochasticPolicy):
    """The part that acts."""

    def __init__(
        self, config: PPOConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        with seeded(context.seed):
            net = config.make_network(spec)
        super().__init__(net, config, spec, context, device)
        self.config = config


class PPOAgent(PPOPolicy, TorchAgent):
    """The part that learns, and acts as well."""

    def __init__(
        self, config: PPOConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        super().__init__(config, spec, context, device)
        self._value_norm = RunningNorm(()).to(device)
        self._flat, self._gradient = flatten_parameters(self.net)
        self._adam = FusedAdam([self._flat], config.learning_rate, config.adam_eps)
        self._order = torch.Generator(device).manual_seed(context.seed)
        hidden = config.hidden if config.network is None else ()
        self._matmul = pick_matmul(device, self.net, hidden=hidden)
        self._precision = config.precision_on(device)
        self._in_parts = InParts(config.accumulate)
        self._updates = Updates(
            self._update,
            config,
            self.model,
            self.read_obs,
            device,
            read_columns(self.net),
            learning=[],
        )
        self.parts |= {
            "value_norm": self._value_norm,
            "adam": self._adam,
            "order": self._order,
            "random": self.random,
        }

    def opt(self, batch: Columns) -> Mapping[str, Tensor]:
        """Learn from a batch of trajectories, several times."""
        check_batch(batch, self.net, "PPO")
        self.version = ModelVersion(self.version + 1)
        if not batch["mask"].any():  # a stream that was cut right behind an episode's end
            return {}
        with self._matmul():
            return self._updates.step(batch)

    def _update(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Learn from a batch on the device."""
        obs, reward = self._updates.trajectories(data)
        nothing = torch.zeros(len(reward), 0, device=self.device)
        played = Trajectories(obs, data["mask"], data.get("memory", nothing))
        # Still in the mode in which actors act, so that both tell the same probabilities.
        columns, told = self._look_back(played, reward, data)
        with learning_mode(self.model):
            return told | self._learn(Minibatches(self.net, played, columns, self._in_parts))

    @torch.no_grad()
    def _look_back(
        self, played: Trajectories, reward: Tensor, data: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Estimate, with the network as it is now, what was good; return columns and numbers."""
        with self._precision():
            unroll = self.net.unroll
            outputs, values = self._in_parts(unroll, played.obs, played.memory, played.begins)
        mask, drawn, log_mu = played.mask, data[self.net.head.column], data["log_prob"]
        log_ratio = torch.where(mask, self.net.head.log_prob(outputs[:, :-1], drawn) - log_mu, 0.0)
        expected = self._in_rewards(values)
        advantages, targets = self._estimate(log_ratio, reward, data, expected)
        told = {
            "lag_kl": divergence(log_ratio)[mask].mean(),
            "explained_variance": explained_variance(expected[:, :-1][mask], targets[mask]),
        }
        if self.config.normalize_values:
            self._value_norm.learn(targets[mask])
            # Rare targets are not cut: what values are to be is the mean of all.
            targets = self._value_norm.units(targets)
        if self.config.normalize_advantages:
            std, mean = torch.std_mean(advantages[mask], correction=0)
            advantages = (advantages - mean) / (std + 1e-8)
        return {
            "drawn": drawn,
            "log_mu": log_mu,
            "advantage": advantages,
            "value": values[:, :-1],
            "target": targets,
        }, told

    def _estimate(
        self, log_ratio: Tensor, reward: Tensor, data: Mapping[str, Tensor], values: Tensor
    ) -> Estimates:
        config, discount, mask = self.config, data["discount"], data["mask"]
        if config.correction == "gae":
            return plain_estimates(reward, discount, mask, values, config.lambda_)
        return corrected_estimates(
            log_ratio,
            reward,
            discount,
            mask,
            values,
            lambda_=config.lambda_,
            clip_rho=config.clip_rho,
            clip_c=config.clip_c,
        )

    def _in_rewards(self, values: Tensor) -> Tensor:
        """Return what the network tells as values in units of rewards."""
        if not self.config.normalize_values:
            return values
        return values / self._value_norm.scale() + self._value_norm.mean.float()

    def _learn(self, minibatches: Minibatches) -> dict[str, Tensor]:
        """Take the gradient steps of all epochs; return the means of what they tell."""
        self._adam.follow(self.env_steps)
        told: list[dict[str, Tensor]] = []
        for _ in range(self.config.epochs):
            parts = minibatches.shuffled(self.config.minibatches, self._order)
            newest = [self._improve(*self._take(minibatches, index)) for index in parts]
            told += newest
            if self.config.target_kl and _mean(newest, "approx_kl") > self.config.target_kl:
                break
        means = {name: _mean(told, name) for name in told[0]}
        means["grad_steps"] = torch.tensor(float(len(told)))
        return means | self._adam.tell("learning_rate")

    def _take(
        self, minibatches: Minibatches, index: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        with self._precision():
            return minibatches.take(index)

    def _improve(
        self, outputs: Tensor, values: Tensor, rows: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Take one step on a minibatch."""
        config = self.config
        clip = value_at(config.clip, self.env_steps)
        log_ratio = self.net.head.log_prob(outputs, rows["drawn"]) - rows["log_mu"]
        gain = surrogate(log_ratio, rows["advantage"], clip, config.dual_clip).mean()
        errors = value_errors(values, rows["value"], rows["target"], config.value_clip).mean()
        entropy = self.net.head.entropy(outputs).mean()
        loss = config.value_weight * errors - gain
        loss = loss - value_at(config.entropy_weight, self.env_steps) * entropy
        norm = self._descend(loss)
        log_ratio = log_ratio.detach()
        return {
            "policy_loss": -gain.detach(),
            "value_loss": errors.detach(),
            "entropy": entropy.detach(),
            "approx_kl": divergence(log_ratio).mean(),
            "clip_fraction": (torch.expm1(log_ratio).abs() > clip).float().mean(),
            "grad_norm": norm,
        }

    def _descend(self, loss: Tensor) -> Tensor:
        """Step down the slope of the loss; return how steep it is."""
        self._gradient.zero_()
        loss.backward()
        norm = clip_gradients([self._gradient], self.config.max_grad_norm)
        self._adam.descend()
        return norm


def _mean(told: Sequence[Mapping[str, Tensor]], name: str) -> Tensor:
    mean: Tensor = torch.stack([numbers[name] for numbers in told]).mean()
    return mean
