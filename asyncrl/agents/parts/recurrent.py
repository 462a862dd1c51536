"""Memory: a recurrent core for networks; `memories.py` is a policy's memory of its environments.

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

import torch
from torch import Tensor, nn

from asyncrl.agents.parts.choosing import CoreKind, memory_size
from asyncrl.agents.parts.networks import NetworkInput, each_field


class RecurrentCore(nn.Module):
    """One layer of GRU or LSTM units after features, always in single precision."""

    def __init__(self, kind: CoreKind, n_inputs: int, n_units: int) -> None:
        super().__init__()
        make = nn.LSTM if kind == "lstm" else nn.GRU
        self._rnn = make(n_inputs, n_units, batch_first=True)
        self._weights = self._rnn.all_weights[0]
        self._is_lstm = kind == "lstm"
        self.n_outputs = n_units
        """Outputs per row."""
        self.memory_size = memory_size(kind, n_units)
        """Size of the memory per environment; an empty memory is all 0."""

    def step(self, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Process one row (B, n_inputs); return the output and the memory after it."""
        with torch.autocast(features.device.type, enabled=False):
            if not self._is_lstm:
                memory = torch.gru_cell(features.float(), memory, *self._weights)
                return memory, memory
            out, cell = torch.lstm_cell(features.float(), memory.chunk(2, dim=1), *self._weights)
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
            if not self._is_lstm:
                out, last = self._rnn(features.float(), memory[None])
                return out, last[0]
            start = tuple(part[None].contiguous() for part in memory.chunk(2, dim=1))
            out, (hidden, cell) = self._rnn(features.float(), start)
        return out, torch.cat([hidden[0], cell[0]], dim=1)


def each_row(encode: Callable[[NetworkInput], Tensor], inputs: NetworkInput) -> Tensor:
    """Apply a function of inputs (N, ...) to rows (B, T, ...); return (B, T, ...) again."""
    some = inputs if isinstance(inputs, Tensor) else next(iter(inputs.values()))
    encoded = encode(each_field(inputs, lambda field: field.flatten(0, 1)))
    return encoded.reshape(*some.shape[:2], *encoded.shape[1:])
