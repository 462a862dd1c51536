"""Random actions from a network's outputs: discrete, or Gaussian.

    head = action_head(spec.action)          # a module: it may have parameters
    outputs = network(obs)                                 # (..., head.n_outputs)
    drawn = head.sample(head.complete(outputs), random)    # drawn.action is for the environment
    log_prob = head.log_prob(outputs, batch[head.column])

Probabilities refer to the sample, which may differ from the environment's action: a Gaussian has no
bounds, so its samples are scaled and clipped. The unclipped sample is then stored in an additional
column, `head.columns`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from asyncrl.core.env import BoxSpec, DiscreteSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.segment import ColumnSpec
from asyncrl.core.types import Array, Columns

_LOG_STD_MIN, _LOG_STD_MAX = -5.0, 2.0

_IMPOSSIBLE = -1e9
"""Logit of padding that is not an action: finite, so that 0 times its logarithm is 0."""


@dataclass(frozen=True, slots=True)
class SampledAction:
    """Sampled actions, and what an agent may store beside them."""

    action: Array
    """(..., *action shape) for the environment, of its dtype and within its bounds."""

    log_prob: Array
    """(...) float32 log probabilities, or log densities, of the samples."""

    extras: Columns = field(default_factory=dict)
    """The head's additional columns."""


class ActionHead(nn.Module, ABC):
    """Turns a network's outputs (..., n_outputs), of any leading dimensions, into actions."""

    n_outputs: int
    """Outputs that the network must have per observation."""

    column: str = "action"
    """Column of a batch in which `log_prob` finds the samples."""

    columns: tuple[ColumnSpec, ...] = ()
    """Columns to store beside the action, in addition to its log probability."""

    def complete(self, outputs: Tensor) -> Tensor:
        """Return all numbers (..., n) of the distributions, with the head's own parameters.

        `sample` and `mode` take these, so that they need no parameters: actions may be chosen in
        another process.
        """
        return outputs

    @abstractmethod
    def sample(self, complete: Tensor, random: np.random.Generator) -> SampledAction:
        """Sample an action for each row of completed outputs, which are on the CPU."""

    @abstractmethod
    def mode(self, complete: Tensor) -> Array:
        """Return the most likely actions of completed outputs, for the environment."""

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

    def __init__(self, sizes: Array, low: Array, shape: tuple[int, ...], dtype: str) -> None:
        """Set up for actions with these numbers of choices per entry, counted from `low`."""
        super().__init__()
        self.n_outputs = int(sizes.sum())
        self._shape, self._dtype, self._low = shape, np.dtype(dtype), low.astype(np.int64)
        # Outputs of all entries are concatenated; in the table, shorter rows are padded.
        place = np.arange(sizes.max())
        padding = place >= sizes[:, None]
        index = np.where(padding, 0, (sizes.cumsum() - sizes)[:, None] + place)
        self._is_table = not padding.any()
        self._table_shape = index.shape
        self.register_buffer("index", torch.from_numpy(index), persistent=False)
        self.register_buffer("padding", torch.from_numpy(padding), persistent=False)
        self.register_buffer("low", torch.from_numpy(self._low), persistent=False)

    def sample(self, complete: Tensor, random: np.random.Generator) -> SampledAction:
        """Sample a choice for each entry."""
        with torch.no_grad():
            log_p = self._log_p(complete)
        # Gumbel-max trick: argmax(log p + G) is a sample from p.
        choice = (log_p.numpy() + random.gumbel(size=log_p.shape)).argmax(axis=-1)
        log_prob = log_p.gather(-1, torch.from_numpy(choice)[..., None]).squeeze(-1).sum(-1)
        return SampledAction(self._action(choice), log_prob.numpy())

    def mode(self, complete: Tensor) -> Array:
        """Return the most likely choice of each entry."""
        with torch.no_grad():
            return self._action(self._log_p(complete).argmax(dim=-1).numpy())

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
            logits = outputs.reshape(*outputs.shape[:-1], *self._table_shape)
        else:
            logits = outputs[..., self.index].masked_fill(self.padding, _IMPOSSIBLE)
        return logits.log_softmax(dim=-1)

    def _action(self, choice: Array) -> Array:
        action = (choice + self._low).astype(self._dtype)
        return action.reshape((*choice.shape[:-1], *self._shape))


class GaussianHead(ActionHead):
    """Independent Gaussians, in units in which the bounds of an action are -1 and 1.

    If an entry's bounds are not both finite, or are equal, its unit is the environment's.
    `log_prob` and `entropy` refer to these units, so they do not depend on the environment's.
    """

    column = "drawn_action"
    log_std: nn.Parameter | None

    def __init__(self, box: BoxSpec, *, state_std: bool, initial_log_std: float) -> None:
        """Set up for a box; with `state_std`, the network also outputs standard deviations."""
        super().__init__()
        n = math.prod(box.shape)
        self.n_outputs = 2 * n if state_std else n
        self.columns = (ColumnSpec(self.column, "float32", (n,)),)
        self._shape, self._dtype = box.shape, np.dtype(box.dtype)
        self._low, self._high = box.low.ravel(), box.high.ravel()
        self._center, self._half = _units(self._low, self._high)
        self._initial_log_std = initial_log_std
        own = None if state_std else nn.Parameter(torch.full((n,), initial_log_std))
        self.register_parameter("log_std", own)

    def complete(self, outputs: Tensor) -> Tensor:
        """Return the means and the log standard deviations of each row."""
        mean, log_std = self._split(outputs)
        return torch.cat([mean, log_std.expand_as(mean)], dim=-1)

    def sample(self, complete: Tensor, random: np.random.Generator) -> SampledAction:
        """Sample from the Gaussians; the environment's actions are clipped to its bounds."""
        with torch.no_grad():
            mean, log_std = complete.chunk(2, dim=-1)
            noise = torch.from_numpy(random.standard_normal(mean.shape, np.float32))
            drawn = torch.addcmul(mean, log_std.exp(), noise)
            log_prob = _log_density(mean, log_std, drawn)
        action = self._action(drawn.numpy())
        return SampledAction(action, log_prob.numpy(), {self.column: drawn.numpy()})

    def mode(self, complete: Tensor) -> Array:
        """Return the means, clipped."""
        return self._action(complete.detach().chunk(2, dim=-1)[0].numpy())

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

    def _action(self, unit: Array) -> Array:
        action: Array = (self._center + self._half * unit).astype(self._dtype)
        action = action.clip(self._low, self._high)
        return action.reshape((*unit.shape[:-1], *self._shape))


def action_head(
    action: BoxSpec | DiscreteSpec, *, state_std: bool = False, initial_log_std: float = 0.0
) -> ActionHead:
    """Return the head for an action space.

    Continuous actions: the standard deviations are parameters of the head, the same in all states.
    With `state_std` they are outputs of the network, clamped to e^-5 to e^2. They start at
    exp(`initial_log_std`), in units in which an action's bounds are -1 and 1.
    """
    if isinstance(action, DiscreteSpec):
        return CategoricalHead(np.array([action.n]), np.array([0]), action.shape, action.dtype)
    if action.categorical:
        low, high = action.low.ravel().astype(np.int64), action.high.ravel().astype(np.int64)
        return CategoricalHead(high - low + 1, low, action.shape, action.dtype)
    if np.dtype(action.dtype).kind != "f":
        raise ConfigError(
            f"continuous actions of dtype {action.dtype} cannot be sampled from Gaussians; let the "
            "environment take floats and round them, or make its action space a MultiDiscrete"
        )
    return GaussianHead(action, state_std=state_std, initial_log_std=initial_log_std)


def _units(low: Array, high: Array) -> tuple[Array, Array]:
    """Return centers and half widths of bounds: 0 and 1 if there are none, 1 if the width is 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        width = high.astype(np.float32) - low.astype(np.float32)
    bounded = np.isfinite(width)
    first, last = (np.where(bounded, side, 0.0).astype(np.float64) for side in (low, high))
    center = (first + last) / 2
    half = np.where(last > first, (last - first) / 2, 1.0)
    return center.astype(np.float32), half.astype(np.float32)


def _log_density(mean: Tensor, log_std: Tensor, value: Tensor) -> Tensor:
    """Return sum_j log N(x_j; m_j, s_j) = sum_j -((x - m) / s)^2 / 2 - log s - log(2 pi) / 2."""
    z = (value - mean) * (-log_std).exp()
    return (-0.5 * z.square() - log_std - 0.5 * math.log(2.0 * math.pi)).sum(-1)
