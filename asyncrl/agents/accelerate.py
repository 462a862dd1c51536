"""Ways to run an update, a function of tensors, other than one operation after another.

A GPU computes the operations of a small network faster than a CPU can order them. `graphs` records
all of them once and orders them with one call from then on; `compile` makes fewer of them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from asyncrl.agents.torch_agent import learning_mode
from asyncrl.core.errors import ConfigError

Acceleration = Literal["off", "compile", "graphs"]

Update = Callable[[dict[str, Tensor]], dict[str, Tensor]]
"""Learns from a batch on the device and tells tensors by name; decides nothing by their values."""

_Form = tuple[tuple[str, torch.dtype, torch.Size], ...]
"""Names, dtypes and shapes of a batch."""

_EAGER_CALLS = 3
"""Before recording: what is allocated once, such as Adam's moments, must exist by then."""

_CPU_COMPILERS = ("g++", "clang++", "c++", "cl")


class Accelerated:
    """An update that is run as `how` says, with networks in learning mode meanwhile.

    Every call is one update, also those before a graph is recorded. Tensors with dimensions that a
    graph answers with are overwritten by the next call; numbers are not.
    """

    def __init__(
        self,
        update: Update,
        how: Acceleration,
        device: torch.device,
        learning: Sequence[nn.Module] = (),
    ) -> None:
        _check_possible(how, device)
        if how == "compile":
            update = torch.compile(update, dynamic=False)
        # A compiled update cannot switch modes inside; a recorded one need not when it is repeated.
        self._update = _with_modes(update, learning)
        self._graphs = _Graphs(self._update, device) if how == "graphs" else None

    def __call__(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Update once."""
        return self._graphs.run(data) if self._graphs else self._update(data)

    def forget(self) -> None:
        """Record anew: tensors that the update works on have been replaced by others."""
        if self._graphs:
            self._graphs.forget()


class _Graphs:
    """One graph for each form of batches, recorded after some calls without one."""

    def __init__(self, update: Update, device: torch.device) -> None:
        self._update = update
        self._device = device
        # One for all: what autograd or cuBLAS keep for a stream then belongs to this one, and
        # nothing that is recorded waits for another.
        self._beside = torch.cuda.Stream(device)
        self._recorded: dict[_Form, _Graph] = {}
        self._eager_calls = 0

    def run(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        form = tuple((name, value.dtype, value.shape) for name, value in data.items())
        if (graph := self._recorded.get(form)) is not None:
            return graph.replay(data)
        if self._eager_calls < _EAGER_CALLS:
            self._eager_calls += 1
            return self._run_beside(data)
        graph = self._recorded[form] = _Graph(self._update, data, self._beside)
        return graph.replay(data)

    def forget(self) -> None:
        self._recorded.clear()
        self._eager_calls = 0

    def _run_beside(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Update on another stream than the default one, which nothing can be recorded on."""
        now, beside = torch.cuda.current_stream(self._device), self._beside
        beside.wait_stream(now)
        with torch.cuda.stream(beside):
            told = self._update(data)
        now.wait_stream(beside)
        for value in told.values():
            value.record_stream(now)
        return told


class _Graph:
    """The operations of one update, recorded; recording does none of them."""

    def __init__(
        self, update: Update, data: Mapping[str, Tensor], stream: torch.cuda.Stream
    ) -> None:
        self._inputs = {name: value.clone() for name, value in data.items()}
        self._graph = torch.cuda.CUDAGraph()
        # Other threads of the process may go on using the device meanwhile.
        with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            told = update(dict(self._inputs))
            self._names = [name for name, value in told.items() if not value.ndim]
            self._numbers = torch.stack([told[name].float() for name in self._names])
        self._arrays = {name: value for name, value in told.items() if value.ndim}

    def replay(self, data: Mapping[str, Tensor]) -> dict[str, Tensor]:
        for name, value in data.items():
            self._inputs[name].copy_(value)
        self._graph.replay()
        numbers = self._numbers.clone().unbind()
        return dict(zip(self._names, numbers, strict=True)) | self._arrays


def _with_modes(update: Update, learning: Sequence[nn.Module]) -> Update:
    def updated(data: dict[str, Tensor]) -> dict[str, Tensor]:
        with learning_mode(*learning):
            return update(data)

    return updated


def _check_possible(how: Acceleration, device: torch.device) -> None:
    if how == "graphs" and device.type != "cuda":
        raise ConfigError(
            f"agent.accelerate='graphs' records CUDA graphs, but the learner computes on {device}; "
            "set agent.device to cuda, or agent.accelerate to off"
        )
    if how == "compile" and not _can_compile():
        raise ConfigError(
            "agent.accelerate='compile' needs a C++ compiler, and there is no "
            f"{', '.join(_CPU_COMPILERS)} here; install one, set CXX, or set agent.accelerate to "
            "off"
        )


def _can_compile() -> bool:
    own = os.environ.get("CXX")
    return any(shutil.which(name) for name in ([own] if own else _CPU_COMPILERS))
