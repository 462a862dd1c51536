"""Normalised observations and rewards, independent of the environment's units.

The statistics are buffers of the network: every model sent to the actors and every checkpoint
contains them automatically. The replay stores unnormalised values; normalisation is applied when a
batch is used.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from asyncrl.agents.parts.networks import NetworkInput, is_image
from asyncrl.agents.parts.reduction import Reduction, Rows
from asyncrl.core.env import ACTION_MASK, BoxSpec, PackedSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.segment import DISCOUNTED_RETURN, LARGEST_REWARD
from asyncrl.core.types import Columns

_EPSILON = 1e-8
_IMAGES = 32
"""Images per batch that statistics are learned from: those one after the other are alike."""


class RunningNorm(nn.Module):
    """Subtracts the mean and divides by the standard deviation of all values learned from."""

    mean: Tensor
    var: Tensor
    count: Tensor

    over = Reduction()
    """Whose rows it learns from: those of all ranks, once its agent has joined them."""

    largest = 10.0
    """Bound of normalised values."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        # Double precision, since millions of rows are summed. No tensor is zero-dimensional: torch
        # 2.13 miscompiles in-place changes of such tensors.
        self.shape = shape or (1,)
        self.register_buffer("mean", torch.zeros(self.shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(self.shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(1, dtype=torch.float64))

    @torch.no_grad()
    def learn(self, values: Tensor) -> None:
        """Update the statistics with rows (B, *shape), as if all rows so far had come at once.

        Chan et al. (1979), Updating formulae and a pairwise algorithm for computing sample
        variances.
        """
        rows = values.reshape(-1, *self.shape).double()
        var, mean = torch.var_mean(rows, dim=0, correction=0)
        count: Rows = len(rows)
        if not self.over.alone:
            count, var, mean = self.over.merge(len(rows), var, mean)
        self.count.add_(count)
        share = count / self.count
        delta = mean - self.mean
        self.mean.addcmul_(delta, share)
        # var <- (1 - share) var + share (var_B + (1 - share) delta^2)
        self.var.lerp_(torch.addcmul(var, delta.square(), 1.0 - share), share)

    def scale(self) -> Tensor:
        """Return 1 / standard deviation."""
        return (self.var + _EPSILON).rsqrt().float()

    def units(self, values: Tensor) -> Tensor:
        """Return the distance of values (B, *shape) from the mean in standard deviations."""
        # Subtract first, in double precision: means may be large, differences small.
        return (values - self.mean).float() * self.scale()

    def forward(self, values: Tensor) -> Tensor:
        """Return normalised values (B, *shape), clipped to `largest` and its opposite."""
        return self.units(values).clamp_(-self.largest, self.largest)


class ImageNorm(RunningNorm):
    """The same for images within [0, 1], pixel by pixel, in single precision.

    What never moves becomes 0, and the little that moves in many games stands out.
    """

    largest = 5.0

    def units(self, values: Tensor) -> Tensor:
        """Return the distance of values (B, *shape) from the mean in standard deviations."""
        return (values - self.mean.float()).mul_(self.scale())


class Normalized(nn.Module):
    """A network with normalisation of its observations and its rewards."""

    def __init__(
        self, network: nn.Module, observation: BoxSpec | PackedSpec | None, *, rewards: bool
    ) -> None:
        """Wrap a network; `observation` is None if observations are not normalised."""
        super().__init__()
        self.network = network
        fields = _fields(observation)
        self._names = list(fields)
        norms = ((ImageNorm if is_image(box) else RunningNorm, box) for box in fields.values())
        self.fields = nn.ModuleList(norm(box.shape) for norm, box in norms)
        self.returns = RunningNorm(()) if rewards else None

    def forward(self, obs: NetworkInput) -> Tensor:
        """Return the network's output for normalised observations."""
        answer: Tensor = self.network(self.see(obs))
        return answer

    def step(self, obs: NetworkInput, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return what a network with a memory returns for normalised observations."""
        answer: tuple[Tensor, Tensor | None] = self.network.step(self.see(obs), memory)  # type: ignore[operator]
        return answer

    def see(self, obs: NetworkInput) -> NetworkInput:
        """Return normalised observations."""
        if isinstance(obs, Tensor):
            return self.fields[0](obs) if self.fields else obs
        norms = zip(self._names, self.fields, strict=True)
        return {**obs, **{name: norm(obs[name]) for name, norm in norms}}

    def sample(self, rows: Tensor) -> Tensor:
        """Return the rows to learn from: a part of images, since those in a row are alike."""
        images = any(isinstance(norm, ImageNorm) for norm in self.fields)
        return rows[:: max(1, len(rows) // _IMAGES)] if images else rows

    def check(self, batch: Columns) -> None:
        """Raise if a batch lacks the returns that normalise rewards."""
        if self.returns is not None and DISCOUNTED_RETURN not in batch:
            raise ConfigError(
                f"agent.normalize_reward=True needs batches with a column {DISCOUNTED_RETURN}, the "
                "discounted return of the episode so far, but this one has only "
                f"{', '.join(sorted(batch))}; let the step processor fill it: "
                "OneStep(return_gamma=...)"
            )

    def learn(self, obs: NetworkInput, data: Mapping[str, Tensor]) -> None:
        """Update the statistics with a batch: its observations, and its returns so far."""
        for name, norm in zip(self._names, self.fields, strict=True):
            norm.learn(obs if isinstance(obs, Tensor) else obs[name])  # type: ignore[operator]
        if self.returns is not None:
            self.returns.learn(data[DISCOUNTED_RETURN])

    def rewards(self, data: Mapping[str, Tensor]) -> Tensor:
        """Return the rewards of a batch in units of the standard deviation of returns, clipped."""
        reward = data["reward"]
        if self.returns is None:
            return reward
        return (reward * self.returns.scale()).clamp_(-LARGEST_REWARD, LARGEST_REWARD)


def _fields(observation: BoxSpec | PackedSpec | None) -> dict[str, BoxSpec]:
    """Return the fields to normalise: choices have no scale, and neither has the action mask."""
    if observation is None:
        return {}
    fields = observation.fields if isinstance(observation, PackedSpec) else [("", observation)]
    return {name: box for name, box in fields if not box.categorical and name != ACTION_MASK}
