"""The equations of PPO: functions of tensors, which know of no network.

r = pi(a|s) / mu(a|s) compares the policy that learns with the one that has played; A are
advantages, V values, y their targets. Trajectories (B, T) are as in `_returns.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.agents._returns import gae, vtrace

_LARGEST_LOG_RATIO = 20.0
"""An action half a billion times as likely as it was. The exponential of much more is infinite, and
0 times that, as where the clip lets nothing of it through, is no gradient of 0 but NaN."""


class Estimates(NamedTuple):
    """What a batch of trajectories says of actions and observations, both (B, T)."""

    advantages: Tensor
    targets: Tensor


def plain_estimates(
    reward: Tensor, discount: Tensor, mask: Tensor, values: Tensor, lambda_: float
) -> Estimates:
    """Return generalized advantage estimates, as if pi itself had played."""
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
    clip_rho: float,
    clip_c: float,
) -> Estimates:
    """Return V-trace targets, and advantages that do not yet contain the action's own weight r."""
    targets = vtrace(
        log_ratio,
        reward,
        discount,
        mask,
        values,
        lambda_=lambda_,
        clip_rho=clip_rho,
        clip_c=clip_c,
    ).targets
    correction = torch.zeros_like(values)  # nothing is known to correct behind the last row
    correction[:, :-1] = targets - values[:, :-1]
    # A_t = r_t + gamma V(s_t+1) - V(s_t) + gamma lambda (y_t+1 - V(s_t+1)): for lambda = 1 the
    # paper's r_t + gamma y_t+1 - V(s_t); generalized advantages where all importances are 1.
    later = values[:, 1:] + lambda_ * correction[:, 1:]
    advantages = torch.where(mask, reward + discount * later - values[:, :-1], 0.0)
    return Estimates(advantages, targets)


def surrogate(log_ratio: Tensor, advantage: Tensor, clip: float, dual_clip: float = 0.0) -> Tensor:
    """Return what each action adds to the objective, which is to become large."""
    ratio = log_ratio.clamp(max=_LARGEST_LOG_RATIO).exp()
    # min(r A, clip(r, 1 - eps, 1 + eps) A); Schulman et al. (2017), equation 7
    limited = torch.min(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)
    if not dual_clip:
        return limited
    # max(that, c A) where A < 0; Ye et al. (2020), equation 5
    return torch.where(advantage < 0.0, torch.max(limited, dual_clip * advantage), limited)


def value_errors(value: Tensor, before: Tensor, target: Tensor, clip: float = 0.0) -> Tensor:
    """Return squared errors, where `before` are the values that an update began with."""
    error = (value - target).square()
    if not clip:
        return error
    # The larger of (V - y)^2 and (V_before + clip(V - V_before, -eps, eps) - y)^2
    limited = before + (value - before).clamp(-clip, clip)
    return torch.max(error, (limited - target).square())


def divergence(log_ratio: Tensor) -> Tensor:
    """Return for each action an estimate of KL(mu, pi), never negative: r - 1 - log r."""
    return torch.expm1(log_ratio) - log_ratio


def explained_variance(value: Tensor, target: Tensor) -> Tensor:
    """Return 1 - Var(y - V) / Var(y): 1 if values are right, 0 or less if they tell nothing."""
    errors, all_of_it = (target - value).var(correction=0), target.var(correction=0)
    return 1.0 - errors / all_of_it.clamp(min=torch.finfo(all_of_it.dtype).tiny)
