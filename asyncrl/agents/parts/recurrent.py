"""Memory: a recurrent core for networks, and a policy's memory of its environments.

A memory is one vector (B, memory_size) for every kind of core, so that it can be a column of rows
and a start column of trajectories:

    memory = memories.recall(len(obs), training=self.training)       # a policy, step by step
    answer = inference({"obs": obs, "memory": memory})               # by core.step
    memories.keep(answer["memory"], training=self.training)

    features = each_row(encoder, obs)                                # an agent, (B, T, ...) at once
    out, last = core.unroll(features, batch["memory"], begins)
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from asyncrl.agents.parts.networks import NetworkInput
from asyncrl.core.types import Array, BoolArray

CoreKind = Literal["gru", "lstm"]
"""Cho et al. (2014), or Hochreiter and Schmidhuber (1997), whose memory is twice as large."""

MemoryKind = Literal["none", "gru", "lstm"]
"""Kinds of memory of a policy."""


def memory_size(kind: MemoryKind, n_units: int) -> int:
    """Return the size of the memory of this number of units."""
    return n_units * {"none": 0, "gru": 1, "lstm": 2}[kind]


class RecurrentCore(nn.Module):
    """One layer of GRU or LSTM units after features, always in single precision."""

    def __init__(self, kind: CoreKind, n_inputs: int, n_units: int) -> None:
        super().__init__()
        make = nn.LSTM if kind == "lstm" else nn.GRU
        self._rnn = make(n_inputs, n_units, batch_first=True)

    @property
    def n_outputs(self) -> int:
        """Outputs per row."""
        return self._rnn.hidden_size

    @property
    def memory_size(self) -> int:
        """Size of the memory per environment; an empty memory is all 0."""
        return memory_size("lstm" if isinstance(self._rnn, nn.LSTM) else "gru", self.n_outputs)

    def step(self, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Process one row (B, n_inputs); return the output and the memory after it."""
        rnn = self._rnn
        weights = rnn.all_weights[0]
        with torch.autocast(features.device.type, enabled=False):
            if isinstance(rnn, nn.GRU):
                memory = torch.gru_cell(features.float(), memory, *weights)
                return memory, memory
            out, cell = torch.lstm_cell(features.float(), memory.chunk(2, dim=1), *weights)
        return out, torch.cat([out, cell], dim=1)

    def unroll(
        self, features: Tensor, memory: Tensor, begins: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Process rows (B, T, n_inputs) in sequence; like `step`, but much faster.

        Args:
            features: Inputs of the core.
            memory: The memory before the first row, (B, memory_size).
            begins: Where an episode begins (B, T), so that the memory is reset before that row;
                None if none does. It is read on the CPU, which waits for a GPU.

        Returns:
            The outputs, (B, T, n_outputs), and the memory after the last row.
        """
        if begins is None:
            return self._stretch(features, memory)
        # Between rows in which an episode begins anywhere, all sequences advance together.
        cuts = {0, *begins.any(dim=0).nonzero().flatten().tolist(), features.shape[1]}
        outs = []
        for first, end in pairwise(sorted(cuts)):
            memory = torch.where(begins[:, first, None], 0.0, memory)
            out, memory = self._stretch(features[:, first:end], memory)
            outs.append(out)
        return torch.cat(outs, dim=1), memory

    def _stretch(self, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(features.device.type, enabled=False):
            if isinstance(self._rnn, nn.GRU):
                out, last = self._rnn(features.float(), memory[None])
                return out, last[0]
            start = tuple(part[None].contiguous() for part in memory.chunk(2, dim=1))
            out, (hidden, cell) = self._rnn(features.float(), start)
        return out, torch.cat([hidden[0], cell[0]], dim=1)


class Memories:
    """A policy's memory of each environment, separate for training and evaluation.

    A synchronous run evaluates the acting policy in the middle of its episodes. There is memory for
    the number of rows of the last step; for any other number it is empty.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: dict[bool, Array] = {}  # by `training`; never changed in place

    def recall(self, n_envs: int, *, training: bool) -> Array:
        """Return the memory (n_envs, size) that the next step starts from."""
        kept = self._kept.get(training)
        if kept is None or len(kept) != n_envs:
            return np.zeros((n_envs, self._size), np.float32)
        return kept

    def keep(self, memory: Array, *, training: bool) -> None:
        """Store this memory (B, size)."""
        self._kept[training] = memory

    def forget(self, where: BoolArray, *, training: bool) -> None:
        """Reset the memory of these environments (B,)."""
        kept = self._kept.get(training)
        if kept is None or not where.any():
            return
        if where.all() or len(where) != len(kept):
            del self._kept[training]
            return
        self._kept[training] = np.where(where[:, None], np.float32(0.0), kept)


def each_row(encode: Callable[[NetworkInput], Tensor], inputs: NetworkInput) -> Tensor:
    """Apply a function of inputs (N, ...) to rows (B, T, ...); return (B, T, ...) again."""
    some = inputs if isinstance(inputs, Tensor) else next(iter(inputs.values()))
    flat: NetworkInput
    if isinstance(inputs, Tensor):
        flat = inputs.flatten(0, 1)
    else:
        flat = {name: field.flatten(0, 1) for name, field in inputs.items()}
    encoded = encode(flat)
    return encoded.reshape(*some.shape[:2], *encoded.shape[1:])
