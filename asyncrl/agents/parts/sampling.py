"""Random actions from the numbers that describe their distributions. Loads no torch.

The other half of `distributions.py`: its heads complete a network's outputs, and a sampler draws
from them, perhaps in another process. Probabilities refer to the sample, which may differ from the
environment's action: a Gaussian has no bounds, so its samples are scaled and clipped. The unclipped
sample is then stored in an additional column, `sampler.columns`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np

from asyncrl.agents.parts.choosing import Chooser
from asyncrl.core.agent import Act, PolicyContext
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.inference import OBS, OUTPUTS
from asyncrl.core.segment import ColumnSpec
from asyncrl.core.types import Array, Columns

LOG_PROB = "log_prob"
"""Column of the log probabilities, or log densities, of the sampled actions."""

IMPOSSIBLE = -1e9
"""Logit of padding that is not an action: finite, so that 0 times its logarithm is 0."""

_HALF_LOG_2_PI = np.float32(0.5 * math.log(2.0 * math.pi))


@dataclass(frozen=True, slots=True)
class SampledAction:
    """Sampled actions, and what an agent may store beside them."""

    action: Array
    """(..., *action shape) for the environment, of its dtype and within its bounds."""

    log_prob: Array
    """(...) float32 log probabilities, or log densities, of the samples."""

    extras: Columns = field(default_factory=dict)
    """The sampler's additional columns."""


class Sampler(ABC):
    """Chooses actions from completed outputs (..., n), of any leading dimensions."""

    column: str = "action"
    """Column of a batch that holds the samples."""

    columns: tuple[ColumnSpec, ...] = ()
    """Columns to store beside the action, in addition to its log probability."""

    @abstractmethod
    def sample(self, complete: Array, random: np.random.Generator) -> SampledAction:
        """Sample an action for each row."""

    @abstractmethod
    def mode(self, complete: Array) -> Array:
        """Return the most likely actions."""


class CategoricalSampler(Sampler):
    """One discrete action, or several independent ones: an action has one entry for each."""

    def __init__(self, sizes: Array, low: Array, shape: tuple[int, ...], dtype: str) -> None:
        """Set up for actions with these numbers of choices per entry, counted from `low`."""
        self.low = low.astype(np.int64)
        self._shape, self._dtype = shape, np.dtype(dtype)
        # Outputs of all entries are concatenated; in the table, shorter rows are padded.
        place = np.arange(sizes.max())
        self.padding = place >= sizes[:, None]
        """Which cells of the table (entries, choices) are no choices."""
        self.index = np.where(self.padding, 0, (sizes.cumsum() - sizes)[:, None] + place)
        """The output of each cell of the table."""
        self.is_table = not self.padding.any()
        """Whether the outputs are a table as they are."""

    def sample(self, complete: Array, random: np.random.Generator) -> SampledAction:
        """Sample a choice for each entry."""
        logits = self._table(complete)
        # Gumbel-max trick: argmax(logits + G) is a sample from softmax(logits).
        choice = (logits + random.gumbel(size=logits.shape)).argmax(axis=-1)
        # log p(a) = sum over the entries of logit(a) - log sum_k exp(logit(k))
        logits = logits - logits.max(axis=-1, keepdims=True)
        flat = logits.reshape(-1, logits.shape[-1])
        taken = flat[np.arange(len(flat)), choice.reshape(-1)].reshape(choice.shape)
        log_prob = taken - np.log(np.exp(logits).sum(axis=-1))
        return SampledAction(self._action(choice), log_prob.sum(axis=-1))

    def mode(self, complete: Array) -> Array:
        """Return the most likely choice of each entry."""
        return self._action(self._table(complete).argmax(axis=-1))

    def _table(self, complete: Array) -> Array:
        """Return float32 logits (..., entries, choices)."""
        complete = complete.astype(np.float32, copy=False)
        if self.is_table:
            return complete.reshape(*complete.shape[:-1], *self.index.shape)
        return np.where(self.padding, np.float32(IMPOSSIBLE), complete[..., self.index])

    def _action(self, choice: Array) -> Array:
        action = (choice + self.low).astype(self._dtype)
        return action.reshape((*choice.shape[:-1], *self._shape))


class GaussianSampler(Sampler):
    """Independent Gaussians, in units in which the bounds of an action are -1 and 1.

    If an entry's bounds are not both finite, or are equal, its unit is the environment's.
    """

    column = "drawn_action"

    def __init__(self, box: BoxSpec) -> None:
        self.columns = (ColumnSpec(self.column, "float32", (math.prod(box.shape),)),)
        self._shape, self._dtype = box.shape, np.dtype(box.dtype)
        self.low, self.high = box.low.ravel(), box.high.ravel()
        """Bounds in the environment's units, flat."""
        self.center, self.half = _units(self.low, self.high)
        """The environment's action is center + half * sample, clipped."""

    def sample(self, complete: Array, random: np.random.Generator) -> SampledAction:
        """Sample from the Gaussians; the environment's actions are clipped to its bounds."""
        n = len(self.center)
        mean, log_std = complete[..., :n], complete[..., n:]
        noise = random.standard_normal(mean.shape, np.float32)
        drawn = mean + np.exp(log_std) * noise
        # sum_j log N(x_j; m_j, s_j) = sum_j -e_j^2 / 2 - log s_j - log(2 pi) / 2
        log_prob = (np.float32(-0.5) * np.square(noise) - log_std - _HALF_LOG_2_PI).sum(axis=-1)
        return SampledAction(self._action(drawn), log_prob, {self.column: drawn})

    def mode(self, complete: Array) -> Array:
        """Return the means, clipped."""
        return self._action(complete[..., : len(self.center)])

    def _action(self, unit: Array) -> Array:
        action: Array = (self.center + self.half * unit).astype(self._dtype)
        action = action.clip(self.low, self.high)
        return action.reshape((*unit.shape[:-1], *self._shape))


def make_sampler(action: BoxSpec | DiscreteSpec) -> CategoricalSampler | GaussianSampler:
    """Return the sampler for an action space."""
    if isinstance(action, DiscreteSpec):
        return CategoricalSampler(np.array([action.n]), np.array([0]), action.shape, action.dtype)
    if action.categorical:
        low, high = action.low.ravel().astype(np.int64), action.high.ravel().astype(np.int64)
        return CategoricalSampler(high - low + 1, low, action.shape, action.dtype)
    if np.dtype(action.dtype).kind != "f":
        raise ConfigError(
            f"continuous actions of dtype {action.dtype} cannot be sampled from Gaussians; let the "
            "environment take floats and round them, or make its action space a MultiDiscrete"
        )
    return GaussianSampler(action)


class SamplingChooser(Chooser):
    """Samples actions in training; takes the most likely ones otherwise."""

    def __init__(
        self,
        spec: EnvSpec,
        context: PolicyContext,
        *,
        memory_size: int = 0,
        stores_samples: bool = False,
    ) -> None:
        """Set up.

        Args:
            spec: Kind of the environments.
            context: Where it acts.
            memory_size: Size of the network's memory.
            stores_samples: Whether log probabilities and memories are stored with actions.
        """
        super().__init__(spec, context, memory_size=memory_size)
        self.sampler = make_sampler(spec.action)
        self._stores_samples = stores_samples

    def act(self, obs: Array) -> Act:
        """Choose an action for each observation."""
        answer, memory = self.ask({OBS: obs})
        if not self.training:
            return Act(self.sampler.mode(answer[OUTPUTS]))
        self.env_steps += len(obs)
        drawn = self.sampler.sample(answer[OUTPUTS], self.random)
        if not self._stores_samples:
            return Act(drawn.action)
        return Act(drawn.action, {LOG_PROB: drawn.log_prob, **drawn.extras, **memory})


def _units(low: Array, high: Array) -> tuple[Array, Array]:
    """Return centers and half widths of bounds: 0 and 1 if there are none, 1 if the width is 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        width = high.astype(np.float32) - low.astype(np.float32)
    bounded = np.isfinite(width)
    first, last = (np.where(bounded, side, 0.0).astype(np.float64) for side in (low, high))
    center = (first + last) / 2
    half = np.where(last > first, (last - first) / 2, 1.0)
    return center.astype(np.float32), half.astype(np.float32)
