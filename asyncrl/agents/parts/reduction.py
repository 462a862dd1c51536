"""What an update computes over the rows of all ranks: gradients, means, moments.

A rank whose rows do not count has zero rows; at least one rank has some. With one rank nothing here
is computed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from asyncrl.agents.parts.torch_agent import Part, tensors_of
from asyncrl.core.ranks import ALONE, Ranks
from asyncrl.core.seeding import Role, derive_seed

Rows = int | Tensor
"""A number of rows; of a tensor on the device, so that the update need not wait for it."""


class Reduction:
    """Sums over ranks, weighted by their rows."""

    def __init__(self, device: torch.device | None = None) -> None:
        """Compute on a device, at first alone."""
        self.ranks: Ranks = ALONE
        self._device = device
        self.counts = True
        """Whether this rank's rows count in this step."""

    @property
    def alone(self) -> bool:
        """Whether there is one rank."""
        return self.ranks.world == 1

    @contextmanager
    def without_rows(self) -> Iterator[None]:
        """Count zero rows of this rank in a `with` block."""
        before, self.counts = self.counts, False
        try:
            yield
        finally:
            self.counts = before

    def each(self, values: Tensor) -> Tensor:
        """Return the values of all ranks, (ranks, ...)."""
        table = values.new_zeros(self.ranks.world, *values.shape)
        table[self.ranks.rank] = values
        return self.ranks.sum(table)

    def any(self, rows: bool) -> bool:
        """Return whether a rank has rows that count."""
        return rows if self.alone else self.most(int(rows)) > 0

    def most(self, count: int) -> int:
        """Return the largest count of all ranks, of those whose rows count."""
        if self.alone:
            return count
        return int(self.each(torch.tensor(count * self.counts, device=self._device)).max())

    def mean(self, values: Tensor, rows: Rows) -> Tensor:
        """Return the mean of ranks' means over this many rows each."""
        weight = self._weight(rows, values.new_empty((), dtype=torch.float64))
        weighted = torch.where(weight > 0.0, values * weight, 0.0)
        sums = self.ranks.sum(torch.cat([weighted.flatten(), weight[None]]))
        return (sums[:-1] / sums[-1]).view_as(values).to(values.dtype)

    def mean_of_each(self, numbers: Mapping[str, Tensor], rows: Rows) -> dict[str, Tensor]:
        """Return the means of numbers that all ranks have by the same names."""
        if not numbers:
            return {}
        together = torch.stack([one.detach().to(self._device).double() for one in numbers.values()])
        # A number that overflows is recorded, and ends no run.
        together = together.nan_to_num(nan=0.0, posinf=1e30, neginf=-1e30)
        return dict(zip(numbers, self.mean(together, rows).unbind(), strict=True))

    def merge(self, rows: int, var: Tensor, mean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows, variance and mean of the values of all ranks, in double precision.

        The variance is of squares around the common mean, so large means cost no digits.
        """
        own = torch.stack([torch.full_like(mean, rows), var, mean])
        counted = own if self.counts and rows else own.zero_()
        counts, variances, means = self.each(counted).unbind(1)
        shares = counts / counts.sum(0)
        joint = (shares * means).sum(0)
        var = (shares * (variances + (means - joint).square())).sum(0)
        return counts.sum(0).flatten()[0], var, joint

    @torch.no_grad()
    def gradients(self, params: Sequence[Tensor], rows: Rows) -> None:
        """Replace gradients of means over this many rows by those of the mean over all ranks' rows.

        A parameter without gradient gets one, so that all ranks add the same numbers.
        """
        own = torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in params]
        )
        weight = self._weight(rows, own)
        own = torch.where(weight > 0.0, own * weight, 0.0)
        whole = self.ranks.sum(torch.cat([own, weight[None]]))
        means = (whole[:-1] / whole[-1]).split([p.numel() for p in params])
        for param, mean in zip(params, means, strict=True):
            if param.grad is None:
                param.grad = mean.view_as(param)
            else:
                param.grad.copy_(mean.view_as(param))  # of a flat vector, layers have views

    def _weight(self, rows: Rows, like: Tensor) -> Tensor:
        return torch.as_tensor(rows, dtype=like.dtype, device=like.device) * self.counts


def diverge(parts: Iterable[Part], rank: int) -> None:
    """Let generators of equal state draw other numbers on each rank; those of rank 0 stay."""
    for part in parts if rank else ():
        if isinstance(part, torch.Generator):
            low = torch.randint(2**31, (), generator=part, device=part.device)
            part.manual_seed(derive_seed(int(low), Role.LEARNER, rank))
        elif isinstance(part, np.random.Generator):
            seed = derive_seed(int(part.integers(2**31)), Role.LEARNER, rank)
            part.bit_generator.state = type(part.bit_generator)(seed).state


def fingerprint(parts: Mapping[str, Part]) -> int:
    """Return 32 bits of all that an agent has learned: of everything but its generators."""
    bits = 0
    for part in parts.values():
        if not isinstance(part, torch.Generator | np.random.Generator):
            for tensor in tensors_of(part).values():
                bits = zlib.crc32(tensor.detach().cpu().contiguous().numpy().tobytes(), bits)
    return bits
