"""What an update computes over the rows of all ranks: gradients, means, moments.

A rank whose rows do not count has zero rows; at least one rank has some. With one rank nothing here
is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from asyncrl.core.ranks import ALONE, Ranks

Rows = int | Tensor
"""A number of rows; of a tensor on the device, so that the update need not wait for it."""


class Reduction:
    """Sums over ranks, weighted by their rows."""

    def __init__(self, device: torch.device | None = None) -> None:
        """Compute on a device, at first alone."""
        self.ranks: Ranks = ALONE
        self.alone = True
        """Whether there is one rank."""
        self._device = device
        self.counts = True
        """Whether this rank's rows count in this step."""

    def join(self, ranks: Ranks) -> None:
        """Compute with these from now on."""
        self.ranks, self.alone = ranks, ranks.world == 1

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
        (mean,) = self._means([values.detach().double()], rows)
        return mean.to(values.dtype)

    def mean_of_each(self, numbers: Mapping[str, Tensor], rows: Rows) -> dict[str, Tensor]:
        """Return the means of numbers that all ranks have by the same names."""
        if not numbers:
            return {}
        together = torch.stack([one.detach().to(self._device) for one in numbers.values()]).double()
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
    def gradients(self, own: list[Tensor], rows: Rows) -> None:
        """Replace gradients of means over this many rows by those of the mean over all ranks' rows.

        They are changed in place: of a flat vector, layers have views.
        """
        torch._foreach_copy_(own, self._means(own, rows))

    def _means(self, own: Sequence[Tensor], rows: Rows) -> list[Tensor]:
        """Return the means of ranks' means over this many rows each, by one sum."""
        flat = torch.cat([*(one.reshape(-1) for one in own), own[0].new_ones(1)])
        if isinstance(rows, Tensor):
            weight = rows.to(flat.dtype) * self.counts
            flat = torch.where(weight > 0.0, flat * weight, 0.0)
        elif rows and self.counts:
            flat.mul_(rows)
        else:
            flat.zero_()  # what is computed from no rows may be NaN
        *sums, weights = self.ranks.sum(flat).split([*(one.numel() for one in own), 1])
        return [one.div_(weights).view_as(like) for one, like in zip(sums, own, strict=True)]
