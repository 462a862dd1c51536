"""The way of a batch from numpy to the device that learns, without waiting and without allocating.

On a GPU, all columns are packed into one pinned buffer and copied at once, on a stream of its own:
while the device computes, the next batch is sampled, packed and copied beside it. Columns that a
replay keeps on the device are tensors there already, and are passed on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array, Columns

_ALIGNMENT_BYTES = 64
_LANES = 2
"""One is read by the device while the other one is filled."""


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Where each column of a batch lies in one buffer."""

    columns: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]
    """Names, dtypes and shapes."""

    offsets: tuple[int, ...]
    nbytes: int

    @classmethod
    def of(cls, batch: Columns) -> Self:
        """Lay the columns of a batch side by side."""
        offsets, end = [], 0
        for column in batch.values():
            offsets.append(end)
            end += -(-column.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        # To name a dtype would take longer than all else here.
        columns = tuple((name, c.dtype, c.shape) for name, c in batch.items())
        return cls(columns, tuple(offsets), end)

    def tensors(self, buffer: Tensor) -> dict[str, Tensor]:
        """Return the columns as views of a buffer of bytes."""
        views = {}
        for (name, dtype, shape), offset in zip(self.columns, self.offsets, strict=True):
            kind = torch.from_numpy(np.empty(0, dtype)).dtype
            n_bytes = int(np.prod(shape)) * kind.itemsize
            views[name] = buffer[offset : offset + n_bytes].view(kind).view(shape)
        return views

    def arrays(self, buffer: Tensor) -> dict[str, Array]:
        """Return the columns as arrays over a buffer in the host's memory."""
        return {name: tensor.numpy() for name, tensor in self.tensors(buffer).items()}


class BatchMover:
    """Brings the wanted columns of batches to a device.

    On a CPU the tensors share the batch's memory. On a GPU they are views of one of two buffers:
    whatever reads them must have been ordered, on the stream that was current at this call, before
    the next call.
    """

    def __init__(self, device: torch.device, wanted: Sequence[str]) -> None:
        self._device = device
        self._wanted = tuple(wanted)
        self._lanes = _Lanes(device) if device.type == "cuda" else None

    def __call__(self, batch: Mapping[str, Array | Tensor]) -> dict[str, Tensor]:
        """Return the wanted columns, as far as the batch has them, on the device.

        Those that are tensors must be there already.
        """
        there: dict[str, Tensor] = {}
        columns: dict[str, Array] = {}
        for name in self._wanted:
            column = batch.get(name)
            if isinstance(column, Tensor):
                there[name] = self._check_place(name, column)
            elif column is not None:
                columns[name] = column
        return there | self._move(columns)

    def _move(self, columns: Columns) -> dict[str, Tensor]:
        if self._lanes is not None:
            return self._lanes.move(columns)
        tensors = {name: torch.from_numpy(column) for name, column in columns.items()}
        if self._device.type == "cpu":
            return tensors
        return {name: tensor.to(self._device) for name, tensor in tensors.items()}

    def _check_place(self, name: str, column: Tensor) -> Tensor:
        found, here = column.device, self._device
        if str(here) not in {str(found), found.type}:
            raise ConfigError(
                f"the replay keeps {name} on {found} (replay.device), and the agent computes on "
                f"{here}; set replay.device to {here}, or to host, which goes with any"
            )
        return column


class _Lanes:
    """Buffers that take turns, and the stream on which all of them are copied."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies = torch.cuda.Stream(device)
        self._lanes: list[_Lane] = []
        self._nbytes = 0
        """What a lane has room for."""
        self._turn = 0

    def move(self, columns: Columns) -> dict[str, Tensor]:
        computing = torch.cuda.current_stream(self._device)
        layout = BatchLayout.of(columns)
        if layout.nbytes > self._nbytes or not self._lanes:
            self._allocate(layout.nbytes)
        # All that reads the batch before this one has been ordered by now.
        self._lanes[self._turn].read.record(computing)
        self._turn = (self._turn + 1) % _LANES
        lane = self._lanes[self._turn]
        lane.copied.synchronize()  # the copy two batches ago: its pinned bytes are free again
        lane.lay_out(layout)
        for name, array in lane.arrays.items():
            np.copyto(array, columns[name])
        with torch.cuda.stream(self._copies):
            self._copies.wait_event(lane.read)
            used = slice(layout.nbytes)
            lane.there[used].copy_(lane.here[used], non_blocking=True)
            lane.copied.record(self._copies)
        computing.wait_event(lane.copied)
        return dict(lane.tensors)

    def _allocate(self, nbytes: int) -> None:
        """Make larger buffers; rare enough to wait for the device.

        Batches of trajectories have now more and now fewer of them, so there is some room to spare
        once they have been larger than the first one.
        """
        torch.cuda.synchronize(self._device)
        self._nbytes = max(nbytes, self._nbytes * 3 // 2)
        self._lanes = [_Lane(self._nbytes, self._device) for _ in range(_LANES)]


class _Lane:
    """A pinned buffer, its twin on the device, and the events that say who is done with them."""

    arrays: dict[str, Array]
    tensors: dict[str, Tensor]

    def __init__(self, nbytes: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.here = torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned)
        self.there = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self._layout: BatchLayout | None = None
        self.copied = torch.cuda.Event()
        """The bytes have left the pinned buffer and arrived."""
        self.read = torch.cuda.Event()
        """The device has read them for the last time."""

    def lay_out(self, layout: BatchLayout) -> None:
        """View both buffers as columns of this form."""
        if layout == self._layout:
            return
        self._layout = layout
        self.arrays, self.tensors = layout.arrays(self.here), layout.tensors(self.there)
