"""Columns of a ring that are kept on the device which learns, and gathered there.

What is written is staged in pinned memory and copied on a stream of its own; what is read is read
on the stream on which the reader computes. Neither waits for the other on the host: events keep
them in order on the device, as they were ordered on the host by whoever owns the ring.
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
    """Columns of (slots, rows, ...), written slot by slot and read row by row, by any thread."""

    def __init__(self, shapes: Shapes, device: str, *, what: str) -> None:
        """Allocate them, all of it at once; `what` is the setting that asks for so much."""
        self._device = _device(device)
        sizes = [int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in shapes.values()]
        _check_room(self._device, sum(sizes), what)
        self._segments = {
            name: torch.zeros(shape, dtype=_torch_dtype(dtype), device=self._device)
            for name, (shape, dtype) in shapes.items()
        }
        self._rows = {name: column.flatten(0, 1) for name, column in self._segments.items()}
        self._order = _Order(self._device) if self._device.type == "cuda" else None
        self._lock = threading.Lock()  # only while work is handed to the device

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self._segments)

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum(column.nbytes for column in self._segments.values())

    def write(self, slot: int, columns: Columns) -> None:
        """Copy segments into the slots from this one on; the arrays may be changed afterwards."""
        with self._writing():
            for name, there in self._segments.items():
                here = self._staged(columns[name])
                there[slot : slot + len(here)].copy_(here, non_blocking=True)

    def take(self, name: str, rows: IntArray) -> Array:
        """Return a new tensor on the device, of what a column has in these rows."""
        column = self._rows[name]
        with self._reading():
            index = self._staged(rows.ravel()).to(self._device, non_blocking=True)
            taken = column.index_select(0, index)
        # Contracts speak of arrays; who set a device has an agent that takes tensors, too.
        return cast(Array, taken.view(*rows.shape, *column.shape[1:]))

    def copies(self, slots: slice | IntArray) -> dict[str, Array]:
        """Return copies of slots in the host's memory; what others compute is not waited for."""
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
        """Return a copy from which the device may read while the host goes on.

        Pinned memory is torch's own to reuse: not before it has been read.
        """
        dtype, pinned = _torch_dtype(array.dtype), self._device.type == "cuda"
        staged = torch.empty(array.shape, dtype=dtype, pin_memory=pinned)
        np.copyto(staged.numpy(), array)
        return staged


class _Order:
    """Has a GPU read what was written before, and not write over what it still reads."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._writes = torch.cuda.Stream(device)
        self._aside = torch.cuda.Stream(device)
        self._written = torch.cuda.Event()
        self._read = torch.cuda.Event()
        # Zeros are filled in on this stream.
        self._read.record(torch.cuda.current_stream(device))

    def aside(self) -> AbstractContextManager[None]:
        """Have what follows done beside what others compute."""
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
        # Another reader's stream may be behind; what is recorded below shall stand for both.
        computing.wait_event(self._read)
        yield
        self._read.record(computing)


def _device(name: str) -> torch.device:
    """Return the device of that name, or refuse one that is not here."""
    device = torch.device(name)
    if device.type != "cuda":
        return device
    if (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"replay.device is {name!r}, but torch {torch.__version__} sees "
            f"{torch.cuda.device_count()} GPUs; set it to host"
        )
    # Other threads will use it, each of which has a current device of its own.
    return torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else device


def _check_room(device: torch.device, needed: int, what: str) -> None:
    """Refuse more than a GPU has free; the host's memory has been looked at before."""
    if device.type != "cuda":
        return
    free, _ = torch.cuda.mem_get_info(device)
    if needed > free:
        raise ConfigError(
            f"{what} needs {shown_bytes(needed)} on {device} for its wide columns, and "
            f"{shown_bytes(free)} are free there; make replay.capacity smaller, or keep it in the "
            "host's memory (replay.device=host)"
        )


def _torch_dtype(dtype: str | np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
