"""Columns of a ring that are stored on the learner's device and gathered there.

Writes are staged in pinned memory and copied on their own CUDA stream. Reads run on the stream on
which the reader computes. The host waits for neither: events order them on the device as the ring's
owner ordered them on the host.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array, Columns, IntArray
from asyncrl.replay.ring_config import Shapes, shown_bytes


class DeviceColumns:
    """Columns of (slots, rows, ...), written by slot and read by row, from any thread."""

    def __init__(self, shapes: Shapes, device: str, *, what: str) -> None:
        """Allocate all of them at once; `what` is the setting to name in an error."""
        self._device = _device(device)
        sizes = [int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in shapes.values()]
        _check_room(self._device, sum(sizes), what)
        self._segments = {
            name: torch.zeros(shape, dtype=_torch_dtype(dtype), device=self._device)
            for name, (shape, dtype) in shapes.items()
        }
        self._rows = {name: column.flatten(0, 1) for name, column in self._segments.items()}
        self._order = _Order(self._device) if self._device.type == "cuda" else None
        self._lock = threading.Lock()  # held only while work is submitted to the device

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self._segments)

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum(column.nbytes for column in self._segments.values())

    def write(self, slot: int, columns: Columns) -> None:
        """Copy segments into the slots from this one on; the caller may then change the arrays."""
        with self._writing():
            for name, there in self._segments.items():
                here = self._staged(columns[name])
                there[slot : slot + len(here)].copy_(here, non_blocking=True)

    def take(self, name: str, rows: IntArray) -> Array:
        """Return a new tensor on the device with a column's values in these rows."""
        column = self._rows[name]
        with self._reading():
            index = self._staged(rows.ravel()).to(self._device, non_blocking=True)
            taken = column.index_select(0, index)
        # The contract says arrays; an agent whose replay is on a device takes tensors, too.
        return cast(Array, taken.view(*rows.shape, *column.shape[1:]))

    def copies(self, slots: slice | IntArray) -> dict[str, Array]:
        """Return copies of slots in host memory, without waiting for other computations."""
        with self._order.aside() if self._order else nullcontext():
            index = slots if isinstance(slots, slice) else self._staged(slots).to(self._device)
            with self._reading():
                copies = {name: column[index].clone() for name, column in self._segments.items()}
            return {name: copy.cpu().numpy() for name, copy in copies.items()}

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock, self._order.writing() if self._order else nullcontext():
            yield

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock, self._order.reading() if self._order else nullcontext():
            yield

    def _staged(self, array: Array) -> Tensor:
        """Return a copy that the device can read while the host continues.

        torch reuses pinned memory only after the device has read it.
        """
        dtype, pinned = _torch_dtype(array.dtype), self._device.type == "cuda"
        staged = torch.empty(array.shape, dtype=dtype, pin_memory=pinned)
        np.copyto(staged.numpy(), array)
        return staged


class _Order:
    """Orders reads and writes on a GPU, so that nothing is overwritten while it is read."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._writes = torch.cuda.Stream(device)
        self._aside = torch.cuda.Stream(device)
        self._written = torch.cuda.Event()
        self._read = torch.cuda.Event()
        # The allocation's zeros are written on this stream.
        self._read.record(torch.cuda.current_stream(device))

    def aside(self) -> AbstractContextManager[None]:
        """Run the following on its own stream, concurrently with other computations."""
        return torch.cuda.stream(self._aside)

    @contextmanager
    def writing(self) -> Iterator[None]:
        with torch.cuda.stream(self._writes):
            self._writes.wait_event(self._read)
            yield
            self._written.record(self._writes)

    @contextmanager
    def reading(self) -> Iterator[None]:
        computing = torch.cuda.current_stream(self._device)
        computing.wait_event(self._written)
        # Another reader's stream may lag behind; the event recorded below covers both.
        computing.wait_event(self._read)
        yield
        self._read.record(computing)


def _device(name: str) -> torch.device:
    """Return the device of that name; raise if it does not exist."""
    device = torch.device(name)
    if device.type != "cuda":
        return device
    if (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"replay.device is {name!r}, but torch {torch.__version__} sees "
            f"{torch.cuda.device_count()} GPUs; set it to host"
        )
    # Other threads will use it, and each thread has its own current device.
    return torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else device


def _check_room(device: torch.device, needed: int, what: str) -> None:
    """Raise if a GPU has too little free memory. Host memory has been checked before."""
    if device.type != "cuda":
        return
    free, _ = torch.cuda.mem_get_info(device)
    if needed > free:
        raise ConfigError(
            f"{what} needs {shown_bytes(needed)} on {device} for its wide columns, and "
            f"{shown_bytes(free)} are free there; reduce replay.capacity, or keep the replay in "
            "host memory (replay.device=host)"
        )


def _torch_dtype(dtype: str | np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
