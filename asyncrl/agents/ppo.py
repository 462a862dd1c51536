"""PPO: several small steps on each batch of trajectories, all near the newest policy.

Papers:

* Schulman et al. (2017), Proximal policy optimization algorithms,
  https://arxiv.org/abs/1707.06347: the clipped objective.
* Schulman et al. (2016), High-dimensional continuous control using generalized advantage
  estimation, https://arxiv.org/abs/1506.02438.
* Ye et al. (2020), Mastering complex control in MOBA games with deep reinforcement learning,
  https://arxiv.org/abs/1912.09729: the second clip.
* Espeholt et al. (2018), IMPALA, https://arxiv.org/abs/1802.01561: V-trace, for asynchronous runs.
* Hilton et al. (2021), Batch size-invariance for policy optimization,
  https://arxiv.org/abs/2110.00641: the decoupled objective, whose clip is not at the acting policy.
* Fu et al. (2025), AReaL, https://arxiv.org/abs/2505.24298: the same for asynchronous runs.

With policy pi, newest policy pi_0 before the first step on a batch, acting policy mu (whose
probabilities are stored with each action), values V and H the entropy of a policy:

    A_t = delta_t + discount * lambda * A_t+1     delta_t = reward_t + discount * V(s_t+1) - V(s_t)
    y   = A + V                                   both with V-trace's corrections, if on
    w   = min(pi_0(a|s) / mu(a|s), 2)
    r   = pi(a|s) / pi_0(a|s)
    J   = mean of w * min(r * A, clip(r, 1 - eps, 1 + eps) * A), no less than w * c * A where A < 0
    L   = - J + value_weight * mean of (V(s) - y)^2 - entropy_weight * mean of H(pi(.|s))

eps is `clip`, c is `dual_clip`. A and y are computed below, from `gae` and `vtrace` in
`parts/policy_gradient.py`.

In an asynchronous run, mu is older than pi_0. With a clip at mu, as in the first paper, that lag
alone would move ratios out of the clip, and steps would have no effect on their actions. A clip at
pi_0 leaves the whole trust region to the update; w corrects for the lag. Where pi_0 itself acted, w
is 1 and both objectives are the same. The outputs that V is computed with also give pi_0.

Deviations, on purpose:

* The learner computes values when a batch arrives, not the actors.
* With V-trace, the weight w of an action itself is in the objective only, not in A as well.
* `lambda_` enters V-trace such that A and y of experience of pi itself equal generalized advantage
  estimation.
* By default, values are learned in units of the running standard deviation of targets; the network
  is not rescaled when it changes. The value clip, in these units, is off by default.
* w is capped. Neither paper limits it.
* Early stopping is decided after whole epochs.
* Advantages are normalised over the whole batch, not by minibatch as in Stable-Baselines3 and
  CleanRL.
* With `normalize_obs` the statistics change between acting and learning. pi_0 has the new ones, so
  r starts at 1, and w differs from 1 even without lag.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from asyncrl.agents.parts.distributions import ActionHead, action_head
from asyncrl.agents.parts.networks import pick_device
from asyncrl.agents.parts.normalize import RunningNorm
from asyncrl.agents.parts.optimizers import FusedAdam
from asyncrl.agents.parts.policy_gradient import (
    Minibatches,
    TrajectoryAgent,
    TrajectoryBatch,
    TrajectoryConfig,
    gae,
    outputs_of,
    read_columns,
    vtrace,
)
from asyncrl.agents.parts.schedules import Schedule, value_at
from asyncrl.agents.parts.torch_agent import flatten_parameters
from asyncrl.agents.parts.updater import Updater
from asyncrl.core.agent import PolicyContext
from asyncrl.core.declared import (
    COMMON,
    Count,
    Positive,
    PositiveOrOff,
    Share,
    Within,
)
from asyncrl.core.env import EnvSpec

_LARGEST_LOG_RATIO = 20.0
"""exp(20) is half a billion. The exponential of much larger ratios is infinite, and 0 times
infinity, where the clip removes the gradient, is NaN instead of 0."""

_LARGEST_LAG_WEIGHT = 2.0
"""Cap of w: it limits the variance from actions that have become much more likely."""


class Estimates(NamedTuple):
    """Estimates for a batch of trajectories, both (B, T)."""

    advantages: Tensor
    targets: Tensor


def plain_estimates(
    reward: Tensor, discount: Tensor, mask: Tensor, values: Tensor, lambda_: float
) -> Estimates:
    """Return generalized advantage estimates, which assume that pi itself acted."""
    advantages = gae(reward, discount, mask, values, lambda_)
    return Estimates(advantages, advantages + values[:, :-1])


@torch.no_grad()
def corrected_estimates(
    log_ratio: Tensor,
    reward: Tensor,
    discount: Tensor,
    mask: Tensor,
    values: Tensor,
    *,
    lambda_: float,
    **clips: float,
) -> Estimates:
    """Return targets of V-trace, and advantages without the action's own weight r.

    `clips` are those of `vtrace`.
    """
    targets = vtrace(log_ratio, reward, discount, mask, values, lambda_=lambda_, **clips).targets
    correction = torch.zeros_like(values)  # after the last row there is no correction
    correction[:, :-1] = targets - values[:, :-1]
    # A_t = r_t + gamma V(s_t+1) - V(s_t) + gamma lambda (y_t+1 - V(s_t+1)): for lambda = 1 the
    # paper's r_t + gamma y_t+1 - V(s_t); generalized advantages where all importance weights are 1.
    later = values[:, 1:] + lambda_ * correction[:, 1:]
    advantages = torch.where(mask, reward + discount * later - values[:, :-1], 0.0)
    return Estimates(advantages, targets)


def most_gain(advantage: Tensor, clip: float) -> Tensor:
    """Return the most that each action can contribute to the objective."""
    return torch.add(advantage, advantage.abs(), alpha=clip)


def surrogate(log_ratio: Tensor, advantage: Tensor, most: Tensor, dual_clip: float = 0.0) -> Tensor:
    """Return each action's contribution to the objective, which is maximised."""
    ratio = log_ratio.clamp(max=_LARGEST_LOG_RATIO).exp()
    # min(r A, clip(r, 1 - eps, 1 + eps) A) = min(r A, A + eps |A|); Schulman et al. (2017), eq. 7
    limited = torch.min(ratio * advantage, most)
    if not dual_clip:
        return limited
    # max(that, c A) where A < 0; Ye et al. (2020), equation 5
    return torch.where(advantage < 0.0, torch.max(limited, dual_clip * advantage), limited)


def value_errors(value: Tensor, before: Tensor, target: Tensor, clip: float = 0.0) -> Tensor:
    """Return squared errors; `before` are the values at the start of the update."""
    error = (value - target).square()
    if not clip:
        return error
    # The larger of (V - y)^2 and (V_before + clip(V - V_before, -eps, eps) - y)^2
    limited = before + (value - before).clamp(-clip, clip)
    return torch.max(error, (limited - target).square())


def divergence(log_ratio: Tensor) -> Tensor:
    """Return a nonnegative estimate of KL(p, q) per action of p, for log r = log q - log p."""
    # r - 1 - log r
    return torch.expm1(log_ratio) - log_ratio


def explained_variance(value: Tensor, target: Tensor) -> Tensor:
    """Return 1 - Var(y - V) / Var(y): 1 if values are right, 0 or less if they predict nothing."""
    errors, all_of_it = (target - value).var(correction=0), target.var(correction=0)
    return 1.0 - errors / all_of_it.clamp(min=torch.finfo(all_of_it.dtype).tiny)


Correction = Literal["gae", "vtrace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOConfig(TrajectoryConfig):
    """Settings of PPO; `correction="vtrace"` is for batches that are several updates old."""

    shared_torso: bool = False
    """Share the torso between policy and value. Suits images. With a memory it is always shared."""

    state_std: bool = False
    """Continuous actions: standard deviations depend on the observation."""

    correction: Correction = "gae"
    """Advantage estimator. `vtrace` corrects for actions that older policies chose; `gae` treats
    all actions as the newest policy's."""

    lambda_: Share = 0.95
    """Lambda of the advantage estimator: 0 relies on values after one step, 1 on rewards alone, as
    far as they go."""

    epochs: Annotated[Count, COMMON] = 10
    """Epochs per batch: how often each transition is learned from."""

    minibatches: Count = 4
    """Minibatches per batch. Each epoch takes one gradient step on each of them."""

    adam_eps: Positive = 1e-5
    """Adam's epsilon, added to its denominator."""

    clip: Annotated[float | Schedule, Within("(0, inf)"), COMMON] = 0.2
    """Clip of the probability ratio: the objective does not reward a ratio outside [1 - clip, 1 +
    clip]."""

    dual_clip: Annotated[float, Within("(1, inf)", zero="off")] = 0.0
    """Dual-clip PPO: for a negative advantage, the objective is at least `dual_clip` times the
    advantage. It limits the effect of actions of much older policies. Larger than 1; 0 disables."""

    value_clip: PositiveOrOff = 0.0
    """Clip of the change of a value per batch, in standard deviations of targets if values are
    normalised. 0 disables."""

    target_kl: PositiveOrOff = 0.0
    """Stop the epochs of a batch when the KL divergence from the policy before them reaches this
    value, in nats. 0 disables."""

    normalize_advantages: bool = True
    """Normalise the advantages of each batch to mean 0 and standard deviation 1."""

    normalize_values: bool = True
    """Normalise value targets by their running mean and standard deviation; the network predicts
    normalised values."""

    def build(self, spec: EnvSpec, context: PolicyContext) -> PPOAgent:
        """Return the learner's agent."""
        return PPOAgent(self, spec, context, pick_device(self.device))

    @property
    def n_torsos(self) -> int:
        """Number of torsos: one that policy and value share, or two."""
        return 1 if self.shared_torso or self.memory != "none" else 2

    def head(self, spec: EnvSpec) -> ActionHead:
        """Return the action head."""
        return action_head(
            spec.action, state_std=self.state_std, initial_log_std=self.initial_log_std
        )


class PPOAgent(TrajectoryAgent):
    """The part that learns, and acts as well."""

    algorithm = "PPO"
    config: PPOConfig

    def __init__(
        self, config: PPOConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        super().__init__(config.policy(spec, context, device))
        self.config = config
        self.value_norm = RunningNorm(()).to(device)
        vectors = [flatten_parameters(self.net)]
        self.adam = FusedAdam(vectors, config.learning_rate, config.adam_eps)
        self.order = torch.Generator(device).manual_seed(context.seed)
        self.updater = Updater(
            self,
            config,
            {"": self.adam},
            max_grad_norm=config.max_grad_norm,
            networks=[self.model],
            inner=self.improve,
            columns=read_columns(self.net),
            hidden=config.hidden if config.network is None else (),
        )
        self.parts |= {"value_norm": self.value_norm, "adam": self.adam, "order": self.order}

    def update(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Learn from a batch of trajectories, several times."""
        obs, reward = self.updater.trajectories(data)
        nothing = torch.zeros(len(reward), 0, device=self.device)
        played = TrajectoryBatch(obs, data["mask"], data.get("memory", nothing))
        # Still in the mode in which actors act, so that both compute the same probabilities.
        columns, metrics = self.estimate_all(played, reward, data)
        weight = {"entropy_weight": data["entropy_weight"]}
        return weight | metrics | self.run_epochs(Minibatches(played, columns, **weight))

    @torch.no_grad()
    def estimate_all(
        self, played: TrajectoryBatch, reward: Tensor, data: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Estimate advantages and targets with the current network; return columns and numbers."""
        outputs, values = self.updater(self.net.unroll, played.obs, played.memory, played.begins)
        mask, drawn, log_mu = played.mask, data[self.net.head.sampler.column], data["log_prob"]
        log_newest = self.net.head.log_prob(outputs[:, :-1], drawn)
        lag = torch.where(mask, log_newest - log_mu, 0.0)
        expected = self.in_rewards(values)
        advantages, targets = self.estimate(lag, reward, data, expected)
        metrics = {
            "lag_kl": divergence(lag)[mask].mean(),
            "explained_variance": explained_variance(expected[:, :-1][mask], targets[mask]),
        }
        if self.config.normalize_values:
            self.value_norm.learn(targets[mask])
            # Rare targets are not clipped: values should be the mean of all.
            targets = self.value_norm.units(targets)
        if self.config.normalize_advantages:
            std, mean = self.updater.std_mean(advantages[mask])
            advantages = (advantages - mean) / (std + 1e-8)
        # w A, w = min(pi_0 / mu, 2); Hilton et al. (2021), the decoupled objective
        advantages = advantages * lag.exp().clamp(max=_LARGEST_LAG_WEIGHT)
        return {
            "drawn": drawn,
            "log_newest": log_newest,
            "advantage": advantages,
            "most_gain": most_gain(advantages, value_at(self.config.clip, self.env_steps)),
            "value": values[:, :-1],
            "target": targets,
        }, metrics

    def estimate(
        self, log_ratio: Tensor, reward: Tensor, data: Mapping[str, Tensor], values: Tensor
    ) -> Estimates:
        """Return A and y."""
        config, rows = self.config, (reward, data["discount"], data["mask"], values)
        if config.correction == "gae":
            return plain_estimates(*rows, config.lambda_)
        return corrected_estimates(
            log_ratio, *rows, lambda_=config.lambda_, clip_rho=config.clip_rho, clip_c=config.clip_c
        )

    def in_rewards(self, values: Tensor) -> Tensor:
        """Convert the network's values to units of rewards."""
        if not self.config.normalize_values:
            return values
        return values / self.value_norm.scale() + self.value_norm.mean.float()

    def run_epochs(self, minibatches: Minibatches) -> dict[str, Tensor]:
        """Take the gradient steps of all epochs; return the means of their numbers."""
        config, updater = self.config, self.updater
        epochs: list[dict[str, Tensor]] = []
        # The same number on all ranks, even if one has fewer transitions than that.
        count = min(config.minibatches, updater.over.most(len(minibatches)))
        for _ in range(config.epochs):
            parts = minibatches.shuffle(count, self.order)
            steps = [self.improve_on(minibatches, part) for part in parts]
            log_ratio = torch.cat([step.pop("log_ratio") for step in steps])
            epochs.append(_means(steps) | self.change(log_ratio))
            if config.target_kl and updater.mean(epochs[-1]["approx_kl"]) > config.target_kl:
                break
        return _means(epochs) | {
            "grad_steps": torch.tensor(float(count * len(epochs))),
        }

    def change(self, log_ratio: Tensor) -> dict[str, Tensor]:
        """Return how far pi is from pi_0, given log r of actions."""
        clip = value_at(self.config.clip, self.env_steps)
        return {
            "approx_kl": divergence(log_ratio).mean(),
            "clip_fraction": (torch.expm1(log_ratio).abs() > clip).float().mean(),
        }

    def improve_on(self, minibatches: Minibatches, part: slice) -> dict[str, Tensor]:
        """Take one step on these transitions; if there are none, they are those of other ranks."""
        if part.start < part.stop:
            return self.updater.inner(minibatches.take(part))
        with self.updater.over.without_rows():
            return self.updater.inner(minibatches.take(slice(1)))

    def improve(self, rows: dict[str, Any]) -> dict[str, Tensor]:
        """Take one step on a minibatch; return numbers, and log r of each action."""
        config = self.config
        outputs, values = outputs_of(self.net, rows, self.updater)
        log_ratio = self.net.head.log_prob(outputs, rows["drawn"]) - rows["log_newest"]
        gain = surrogate(log_ratio, rows["advantage"], rows["most_gain"], config.dual_clip).mean()
        errors = value_errors(values, rows["value"], rows["target"], config.value_clip).mean()
        with torch.set_grad_enabled(config.entropy_weight != 0.0):
            entropy = self.net.head.entropy(outputs).mean()
        loss = config.value_weight * errors - gain - rows["entropy_weight"] * entropy
        norms = self.updater.minimize(loss, rows=len(values))
        return {
            "loss": loss.detach(),
            "policy_loss": -gain.detach(),
            "value_loss": errors.detach(),
            "entropy": entropy.detach(),
            "log_ratio": log_ratio.detach(),
            **norms,
        }


def _means(metrics: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    names = dict.fromkeys(name for numbers in metrics for name in numbers)
    return {n: torch.stack([one[n] for one in metrics if n in one]).mean() for n in names}
