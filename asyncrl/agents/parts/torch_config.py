"""Settings that all agents made of torch modules share: where and how they compute."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from asyncrl.agents.parts.normalize import Normalized
from asyncrl.agents.parts.torch_agent import learning_mode
from asyncrl.core.agent import BatchKind
from asyncrl.core.declared import COMMON, Count, Natural, check_declared
from asyncrl.core.env import BoxSpec, PackedSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.segment import DISCOUNTED_RETURN, ColumnSpec

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
    modes = learning_mode(*learning)

    def updated(data: dict[str, Tensor]) -> dict[str, Tensor]:
        with modes:
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


Precision = Literal["float32", "bfloat16"]

Function = TypeVar("Function", bound=Callable[..., object])


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchConfig:
    """What does not depend on the algorithm; its config derives from this one."""

    device: Annotated[str, COMMON] = "auto"
    """Where the learner computes: cpu, cuda, cuda:N, or auto, a GPU where there is one. Actors
    compute on a CPU."""

    threads: Annotated[Natural, COMMON] = 1
    """CPU threads that torch uses in the learner's whole process; 0 leaves its own choice. More
    than one pays for large networks only, and takes cores from the actors."""

    precision: Precision = "float32"
    """Of the learner's products of matrices. Parameters, losses, actors, and the last layers of
    networks that are not your own stay in float32."""

    accelerate: Acceleration = "off"
    """`graphs` records an optimisation step on a GPU once and repeats it from then on, which pays
    for all but large networks. `compile` lets torch write its operations anew, which takes a
    minute at first and pays on a GPU; on a CPU it is slower than `off` for small networks."""

    normalize_obs: bool = False
    """Learn the mean and the standard deviation of observations and let networks see them
    normalised. Bytes (images) and choices are left as they are."""

    normalize_reward: bool = False
    """Divide rewards by the standard deviation of the discounted return of episodes so far, which
    the step processor stores beside each row; what is then larger than 10 counts as 10."""

    accumulate: Count = 1
    """Parts in which a batch passes the networks of an optimisation step; the gradients of the
    parts add up to those of the whole. More than one take less memory, and one more pass; it is
    for large networks, since with small ones each part takes as long as the whole. Trajectories and
    sequences stay whole, so that there are no more parts than there are of them."""

    learns_from: ClassVar[BatchKind] = "transitions"

    can_accumulate: ClassVar[bool] = False
    """Whether the algorithm's networks take a batch in parts."""

    def __post_init__(self) -> None:
        check_declared(self, "agent")
        self.check_accumulation()

    def check_accumulation(self) -> None:
        """Refuse parts of a batch where they cannot be taken."""
        if self.accumulate == 1:
            return
        if not self.can_accumulate:
            raise ConfigError(
                f"agent.accumulate={self.accumulate} has no meaning for {type(self).__name__}, "
                "which does not take a batch in parts; leave it at 1, and take smaller batches"
            )
        if self.accelerate != "off":
            raise ConfigError(
                f"agent.accumulate={self.accumulate} computes parts of a batch twice to save "
                f"memory, which agent.accelerate={self.accelerate!r} would undo; set one of the two"
            )

    @property
    def norm_columns(self) -> tuple[ColumnSpec, ...]:
        """Columns that normalisation needs and a step processor fills."""
        return (ColumnSpec(DISCOUNTED_RETURN, "float32"),) if self.normalize_reward else ()

    def with_norms(self, network: nn.Module, observation: BoxSpec | PackedSpec) -> nn.Module:
        """Return the network, wrapped in the normalisation that was asked for, if any was."""
        if not self.normalize_obs and not self.normalize_reward:
            return network
        seen = observation if self.normalize_obs else None
        return Normalized(network, seen, rewards=self.normalize_reward)

    def precision_on(self, device: torch.device) -> Callable[[], AbstractContextManager[object]]:
        """Return the context in which to multiply matrices: one for each pass of a network.

        Within one context torch converts each parameter once, so parameters must not change there.
        """
        if self.precision == "float32":
            return nullcontext
        return partial(torch.autocast, device.type, torch.bfloat16)

    def uncompiled(self, function: Function) -> Function:
        """Return the function, left as it is where the update around it is compiled.

        What steps optimizers is: `backward` cannot be compiled, and little else is left there.
        """
        if self.accelerate != "compile":
            return function
        return cast(Function, torch.compiler.disable(function))


_WIDE = 128  # narrower matrices are done before oneDNN has begun
_LARGE = 2**17  # as large as this, a batch of 32 suffices, and other layers may be narrow


def pick_matmul(
    device: torch.device, *networks: nn.Module, hidden: Sequence[int] = ()
) -> Callable[[], AbstractContextManager[None]]:
    """Return the context in which to multiply float32 matrices on that device.

    They are those of the networks, in batches of any size, or of hidden layers of these widths, in
    batches of some hundred rows.
    """
    # Older torch cannot tell what the CPU is capable of.
    cpu: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    amd = cpu.get("avx512_f") and not cpu.get("amx_bf16") and "AMD" in str(cpu.get("cpu_name"))
    pays = max(hidden, default=0) >= _WIDE or any(map(_is_large, networks))
    return _onednn if device.type == "cpu" and pays and amd else nullcontext


def _is_large(network: nn.Module) -> bool:
    """Tell whether a matrix is worth it, such as the one behind convolutions."""
    matrices = (p for p in network.parameters() if p.ndim in {2, 3})  # one, or one a critic
    return any(p.shape[-2] * p.shape[-1] >= _LARGE for p in matrices)


@contextmanager
def _onednn() -> Iterator[None]:
    """Let oneDNN multiply, not MKL, which on some AMD processors leaves AVX-512 unused.

    It takes twice as long there; where MKL does use it, the two are equally fast. Torch turns to
    oneDNN for float32 only where bfloat16 would do as well. On a CPU without AMX, oneDNN computes
    that in float32 all the same: measured errors are 3.9e-5 beside MKL's 2.4e-5.
    """
    settings = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # made on import
    before = settings.fp32_precision
    settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before
