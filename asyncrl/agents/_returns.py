"""What rewards are summed up to: advantages, V-trace targets, and values on another scale.

Papers:
    Schulman et al. (2016), High-dimensional continuous control using generalized advantage
    estimation. Espeholt et al. (2018), IMPALA: V-trace. Pohlen et al. (2018), Observe and look
    further: the rescaling of values.

Trajectories are those of `replay_buffers/trajectories.py`: rows (B, T), values (B, T + 1), discount
0 where an episode terminated and where a row is no transition. So all sums run backwards over rows
without knowing episodes: what is no transition adds nothing and lets nothing through.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class VTrace(NamedTuple):
    """What V-trace makes of trajectories, both (B, T)."""

    targets: Tensor
    """Of the values; a row that is no transition keeps its value."""

    advantages: Tensor
    """Of the actions, their importance included; 0 where a row is no transition."""


@torch.no_grad()
def gae(reward: Tensor, discount: Tensor, mask: Tensor, values: Tensor, lambda_: float) -> Tensor:
    """Return generalized advantage estimates (B, T); the values' targets are these plus values."""
    # delta_t = r_t + gamma V(s_t+1) - V(s_t);  A_t = delta_t + gamma lambda A_t+1
    delta = torch.where(mask, reward + discount * values[:, 1:] - values[:, :-1], 0.0)
    return _sums(delta, discount * lambda_)


@torch.no_grad()
def vtrace(
    log_rhos: Tensor,
    reward: Tensor,
    discount: Tensor,
    mask: Tensor,
    values: Tensor,
    *,
    lambda_: float = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_pg_rho: float = 1.0,
) -> VTrace:
    """Correct for what was played by other policies than the one that learns.

    Args:
        log_rhos: Logarithm of how much likelier the action is now than it was then, (B, T).
        reward: Rewards (B, T).
        discount: Discounts (B, T).
        mask: Which rows are transitions, (B, T).
        values: Values of the rows and of what follows the last one, (B, T + 1).
        lambda_: Weight of later corrections; 1 is the paper's definition, its remark 2 has others.
        clip_rho: Largest importance of a correction; decides which policy's values are learned.
        clip_c: Largest importance passed on to what was before; decides how fast.
        clip_pg_rho: Largest importance of an advantage.
    """
    rhos = log_rhos.exp()
    # delta_t V = rho_t (r_t + gamma V(x_t+1) - V(x_t)), rho_t = min(clip_rho, pi / mu)
    delta = reward + discount * values[:, 1:] - values[:, :-1]
    delta = torch.where(mask, rhos.clamp(max=clip_rho) * delta, 0.0)
    # v_s - V(x_s) = delta_s V + gamma c_s (v_s+1 - V(x_s+1)), c_s = lambda min(clip_c, pi / mu)
    corrections = _sums(delta, discount * lambda_ * rhos.clamp(max=clip_c))
    targets = values[:, :-1] + corrections
    # A_s = rho_s (r_s + gamma v_s+1 - V(x_s)); nothing is known to correct behind the last row
    next_targets = torch.cat([targets[:, 1:], values[:, -1:]], dim=1)
    advantages = rhos.clamp(max=clip_pg_rho) * (reward + discount * next_targets - values[:, :-1])
    return VTrace(targets, torch.where(mask, advantages, 0.0))


def rescale(value: Tensor, eps: float = 1e-3) -> Tensor:
    """Return h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x: large values shrink to their root."""
    return value.sign() * ((value.abs() + 1.0).sqrt() - 1.0) + eps * value


def undo_rescale(value: Tensor, eps: float = 1e-3) -> Tensor:
    """Return the x of which `rescale` makes `value`."""
    # The paper's (sqrt(1 + 4 eps y) - 1) / (2 eps), y = |x| + 1 + eps, loses half of the digits of
    # a float32 where eps is small; this is the same number.
    y = value.abs() + 1.0 + eps
    root = 2.0 * y / ((1.0 + 4.0 * eps * y).sqrt() + 1.0)
    return value.sign() * (root.square() - 1.0)


def _sums(terms: Tensor, factors: Tensor) -> Tensor:
    """Return s with s[t] = terms[t] + factors[t] * s[t + 1], along the rows of (B, T)."""
    sums = [torch.zeros_like(terms[:, 0])]
    for term, factor in zip(reversed(terms.unbind(1)), reversed(factors.unbind(1)), strict=True):
        sums.append(torch.addcmul(term, factor, sums[-1]))
    return torch.stack(sums[:0:-1], dim=1)
