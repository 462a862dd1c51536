"""Parts of a batch of trajectories: transitions, or stretches of them if a network remembers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.agents._policy_value import PolicyValueNet
from asyncrl.agents.accumulation import InParts
from asyncrl.agents.networks import NetworkInput


@dataclass(frozen=True, slots=True)
class Trajectories:
    """What a network is to look at: observations (B, T + 1, ...), and where from."""

    obs: NetworkInput
    mask: Tensor
    """(B, T) which rows are transitions."""

    memory: Tensor
    """(B, memory size) before the first rows."""

    @property
    def begins(self) -> Tensor:
        """Return (B, T + 1) where an episode begins: behind what is no transition."""
        return torch.cat([torch.zeros_like(self.mask[:, :1]), ~self.mask], dim=1)


class Minibatches:
    """A batch, of which parts can be taken by their indices."""

    def __init__(
        self,
        net: PolicyValueNet,
        played: Trajectories,
        columns: Mapping[str, Tensor],
        in_parts: InParts,
    ) -> None:
        """Let parts be taken of what was played, and of columns (B, T, ...) beside it."""
        self._net = net
        self._in_parts = in_parts
        self._stretches = _Stretches(played.mask, played.memory) if net.memory_size else None
        mask = torch.ones_like(played.mask) if self._stretches else played.mask
        self._obs = _each(played.obs, lambda field: field[:, :-1][mask])
        self._columns = {name: column[mask] for name, column in columns.items()}

    def __len__(self) -> int:
        if self._stretches:
            return len(self._stretches.rows)
        return len(next(iter(self._columns.values())))

    def shuffled(self, parts: int, order: torch.Generator) -> list[Tensor]:
        """Return the indices of so many parts, or fewer, of about the same size, in random order.

        Each transition, or each stretch, is in exactly one of them.
        """
        index = torch.randperm(len(self), generator=order, device=order.device)
        return list(index.tensor_split(min(parts, len(self))))

    def take(self, index: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the network's outputs and values, and the columns, of the transitions there."""
        if self._stretches is None:
            obs = _each(self._obs, lambda field: field[index])
            outputs, values = self._in_parts(self._net, obs)
            return outputs, values, {name: c[index] for name, c in self._columns.items()}
        rows, inside, memory = self._stretches.take(index)
        obs = _each(self._obs, lambda field: field[rows])
        outputs, values = self._in_parts(self._net.unroll, obs, memory)
        columns = {name: column[rows[inside]] for name, column in self._columns.items()}
        return outputs[inside], values[inside], columns


class _Stretches:
    """Transitions of one episode, one after the other; all stretches are unrolled side by side.

    Whole trajectories, with an episode beginning here in one and there in another, would have to be
    unrolled from one beginning to the next, which takes an LSTM five times as long.
    """

    def __init__(self, mask: Tensor, memory: Tensor) -> None:
        gap = torch.zeros_like(mask[:, :1])
        which, first = (mask & ~torch.cat([gap, mask[:, :-1]], dim=1)).nonzero().unbind(dim=1)
        last = (mask & ~torch.cat([mask[:, 1:], gap], dim=1)).nonzero()[:, 1]
        length = (last - first + 1)[:, None]
        step = torch.arange(mask.shape[1], device=mask.device)
        self.inside = step < length
        self.rows = (which * mask.shape[1] + first)[:, None] + torch.minimum(step, length - 1)
        # Only what a trajectory begins with goes on from a memory.
        self.memory = torch.where((first == 0)[:, None], memory[which], 0.0)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows (S, L) of all trajectories, which of them count, and memories before them."""
        inside = self.inside[index]
        longest = int(inside.sum(dim=1).max())
        return self.rows[index, :longest], inside[:, :longest], self.memory[index]


def _each(obs: NetworkInput, change: Callable[[Tensor], Tensor]) -> NetworkInput:
    if isinstance(obs, Tensor):
        return change(obs)
    return {name: change(field) for name, field in obs.items()}
