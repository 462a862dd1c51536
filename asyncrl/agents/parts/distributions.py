"""Distributions of actions from a network's outputs: discrete, or Gaussian.

    head = action_head(spec.action)          # a module: it may have parameters
    outputs = network(obs)                                 # (..., head.n_outputs)
    drawn = head.sampler.sample(head.complete(outputs).numpy(), random)
    log_prob = head.log_prob(outputs, batch[head.sampler.column])

Actors sample without torch, see `choosing.py`. The learner computes with the samples here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor, nn

from asyncrl.agents.parts.choosing import (
    IMPOSSIBLE,
    CategoricalSampler,
    GaussianSampler,
    Sampler,
    make_sampler,
)
from asyncrl.core.env import BoxSpec, DiscreteSpec

_LOG_STD_MIN, _LOG_STD_MAX = -5.0, 2.0


class ActionHead(nn.Module, ABC):
    """The distributions of a network's outputs (..., n_outputs), of any leading dimensions."""

    n_outputs: int
    """Outputs that the network must have per observation."""

    sampler: Sampler
    """Chooses actions from completed outputs."""

    def complete(self, outputs: Tensor) -> Tensor:
        """Return all numbers (..., n) of the distributions, with the head's own parameters.

        The sampler takes these, so that it needs no parameters: actions may be chosen in another
        process.
        """
        return outputs

    @abstractmethod
    def log_prob(self, outputs: Tensor, drawn: Tensor) -> Tensor:
        """Return (...) log probabilities, or log densities, of samples."""

    @abstractmethod
    def entropy(self, outputs: Tensor) -> Tensor:
        """Return (...) entropies of the distributions, in nats."""


class CategoricalHead(ActionHead):
    """One discrete action, or several independent ones: an action has one entry for each."""

    index: Tensor
    padding: Tensor
    low: Tensor

    def __init__(self, sampler: CategoricalSampler) -> None:
        super().__init__()
        self.sampler = sampler
        self.n_outputs = int(np.count_nonzero(~sampler.padding))
        self.register_buffer("index", torch.from_numpy(sampler.index), persistent=False)
        self.register_buffer("padding", torch.from_numpy(sampler.padding), persistent=False)
        self.register_buffer("low", torch.from_numpy(sampler.low), persistent=False)
        self._is_table = sampler.is_table

    def log_prob(self, outputs: Tensor, drawn: Tensor) -> Tensor:
        """Return log p(a) = sum over the entries of log p_i(a_i)."""
        log_p = self._log_p(outputs)
        choice = drawn.reshape(log_p.shape[:-1]).long() - self.low
        return log_p.gather(-1, choice[..., None]).squeeze(-1).sum(-1)

    def entropy(self, outputs: Tensor) -> Tensor:
        """Return H = - sum over entries i and choices k of p_i(k) log p_i(k)."""
        log_p = self._log_p(outputs)
        return -(log_p.exp() * log_p).sum(dim=(-2, -1))

    def _log_p(self, outputs: Tensor) -> Tensor:
        """Return log p_i(k) of entries i and choices k, (..., entries, choices)."""
        outputs = outputs.float()
        if self._is_table:
            logits = outputs.reshape(*outputs.shape[:-1], *self.index.shape)
        else:
            logits = outputs[..., self.index].masked_fill(self.padding, IMPOSSIBLE)
        return logits.log_softmax(dim=-1)


class GaussianHead(ActionHead):
    """Independent Gaussians, in units in which the bounds of an action are -1 and 1.

    If an entry's bounds are not both finite, or are equal, its unit is the environment's.
    `log_prob` and `entropy` refer to these units, so they do not depend on the environment's.
    """

    log_std: nn.Parameter | None

    def __init__(
        self, sampler: GaussianSampler, *, state_std: bool, initial_log_std: float
    ) -> None:
        """Set up; with `state_std`, the network also outputs standard deviations."""
        super().__init__()
        self.sampler = sampler
        n = len(sampler.center)
        self.n_outputs = 2 * n if state_std else n
        self._initial_log_std = initial_log_std
        own = None if state_std else nn.Parameter(torch.full((n,), initial_log_std))
        self.register_parameter("log_std", own)

    def complete(self, outputs: Tensor) -> Tensor:
        """Return the means and the log standard deviations of each row."""
        mean, log_std = self._split(outputs)
        return torch.cat([mean, log_std.expand_as(mean)], dim=-1)

    def log_prob(self, outputs: Tensor, drawn: Tensor) -> Tensor:
        """Return the log density of the unclipped samples."""
        return _log_density(*self._split(outputs), drawn)

    def entropy(self, outputs: Tensor) -> Tensor:
        """Return H = sum over the entries of log std + log(2 pi e) / 2."""
        mean, log_std = self._split(outputs)
        return (log_std + 0.5 * math.log(2.0 * math.pi * math.e)).expand_as(mean).sum(-1)

    def _split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and log standard deviations."""
        if self.log_std is not None:
            return outputs.float(), self.log_std
        mean, log_std = outputs.float().chunk(2, dim=-1)
        return mean, (log_std + self._initial_log_std).clamp(_LOG_STD_MIN, _LOG_STD_MAX)


def action_head(
    action: BoxSpec | DiscreteSpec, *, state_std: bool = False, initial_log_std: float = 0.0
) -> ActionHead:
    """Return the head for an action space.

    Continuous actions: the standard deviations are parameters of the head, the same in all states.
    With `state_std` they are outputs of the network, clamped to e^-5 to e^2. They start at
    exp(`initial_log_std`), in units in which an action's bounds are -1 and 1.
    """
    sampler = make_sampler(action)
    if isinstance(sampler, CategoricalSampler):
        return CategoricalHead(sampler)
    return GaussianHead(sampler, state_std=state_std, initial_log_std=initial_log_std)


def _log_density(mean: Tensor, log_std: Tensor, value: Tensor) -> Tensor:
    """Return sum_j log N(x_j; m_j, s_j) = sum_j -((x - m) / s)^2 / 2 - log s - log(2 pi) / 2."""
    z = (value - mean) * (-log_std).exp()
    return (-0.5 * z.square() - log_std - 0.5 * math.log(2.0 * math.pi)).sum(-1)
