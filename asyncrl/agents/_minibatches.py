"""Parts of a batch of trajectories: transitions for networks without memory, else trajectories."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.agents._policy_value import PolicyValueNet
from asyncrl.agents.networks import NetworkInput

__all__ = ["Minibatches", "Trajectories"]


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
        self, net: PolicyValueNet, played: Trajectories, columns: Mapping[str, Tensor]
    ) -> None:
        """Let parts be taken of what was played, and of columns (B, T, ...) beside it."""
        self._net = net
        self._mask = played.mask
        self._memory, self._begins = played.memory, played.begins
        self._obs, self._columns = played.obs, dict(columns)
        self._whole = net.memory_size > 0
        if not self._whole:
            self._obs = _each(played.obs, lambda field: field[:, :-1][played.mask])
            self._columns = {name: column[played.mask] for name, column in columns.items()}

    def shuffled(self, parts: int, order: torch.Generator) -> list[Tensor]:
        """Return the indices of so many parts, or fewer, of about the same size, in random order.

        Each trajectory, or each transition, is in exactly one of them.
        """
        count = len(next(iter(self._columns.values())))
        index = torch.randperm(count, generator=order, device=order.device)
        return list(index.tensor_split(min(parts, count)))

    def take(self, index: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the network's outputs and values, and the columns, of the transitions there."""
        obs = _each(self._obs, lambda field: field[index])
        columns = {name: column[index] for name, column in self._columns.items()}
        if not self._whole:
            return *self._net(obs), columns
        outputs, values = self._net.unroll(obs, self._memory[index], self._begins[index])
        mask = self._mask[index]
        columns = {name: column[mask] for name, column in columns.items()}
        return outputs[:, :-1][mask], values[:, :-1][mask], columns


def _each(obs: NetworkInput, change: Callable[[Tensor], Tensor]) -> NetworkInput:
    if isinstance(obs, Tensor):
        return change(obs)
    return {name: change(field) for name, field in obs.items()}
