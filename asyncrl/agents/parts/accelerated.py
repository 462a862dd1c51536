"""How an update runs: eagerly, compiled, or as a CUDA graph; and how a CPU computes it.

The choice is a setting of every agent, `agent.accelerate`; see `torch_agent.py`.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields

import torch
from torch import Tensor, nn

from asyncrl.agents.parts.torch_agent import Acceleration, TorchConfig
from asyncrl.core.errors import ConfigError
from asyncrl.core.measured import measured

Update = Callable[[dict[str, Tensor]], dict[str, Tensor]]
"""Learns from a batch on the device and returns tensors by name. Its control flow must not depend
on their values."""

_Form = tuple[tuple[str, torch.dtype, torch.Size], ...]
"""Names, dtypes and shapes of a batch."""

_EAGER_CALLS = 3
"""Eager calls with batches of a form before capture: what libraries allocate once must exist by
then."""


def why_eager(agent: object, config: TorchConfig) -> str:
    """Return why `auto` leaves an agent's updates as they are; nothing if it does not.

    Compiling and capturing take what Python does in networks of a user for constant, such as random
    choices.
    """
    own = [one.name for one in fields(config) if callable(getattr(config, one.name))]
    if not all(type(one).__module__.startswith("asyncrl.") for one in (agent, config)):
        return "the agent is not asyncrl's"
    if own:
        return f"the agent has {own} of its user"
    if config.learns_from != "transitions":
        return f"the agent learns from {config.learns_from}"
    if config.accumulate > 1:
        return "agent.accumulate computes parts of a batch twice"
    return ""


class Accelerated:
    """Runs an update as `how` says, with networks in training mode meanwhile, as for dropout.

    It is compiled after `compile`. Every call is one update, including those before a graph is
    captured. The next call of a graph overwrites the tensors that it has returned, except scalars.
    """

    def __init__(
        self,
        update: Update,
        how: Acceleration,
        device: torch.device,
        learning: Sequence[nn.Module] = (),
    ) -> None:
        if how == "graphs" and device.type != "cuda":
            raise ConfigError(
                "agent.accelerate='graphs' captures CUDA graphs, but the learner computes on "
                f"{device}; set agent.device to cuda, or agent.accelerate to off"
            )
        self._update, self._device = update, device
        self._graphs = _Graphs(update, device) if how == "graphs" else None
        layers = [layer for network in learning for layer in network.modules()]
        # `nn.Module.train` looks up and checks each layer's attributes each time, which takes a
        # tenth of an optimisation step of small networks. So flags are set directly.
        plain = all(
            type(layer).train is nn.Module.train
            and type(layer).__setattr__ is nn.Module.__setattr__
            and "training" in vars(layer)
            for layer in layers
        )
        self._flags = [vars(layer) for layer in layers] if plain else []
        self._networks = () if plain else learning

    def __call__(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Update once."""
        # A compiled update cannot switch modes inside.
        for flags in self._flags:
            flags["training"] = True
        for network in self._networks:
            network.train()
        try:
            return self._graphs.run(data) if self._graphs else self._update(data)
        finally:
            for flags in self._flags:
                flags["training"] = False
            for network in self._networks:
                network.eval()

    def capture_nothing(self) -> None:
        """Run the update as it is, also on a GPU."""
        self._graphs = None

    def compile(self) -> None:
        """Run the update compiled from the next call on, as the setting `compile` has it."""
        from asyncrl.agents.parts.one_graph import OneGraph  # noqa: PLC0415  # slow

        self._update, self._graphs = OneGraph(self._update, self._device), None


class _Graphs:
    """One graph per batch layout, captured after some eager calls."""

    def __init__(self, update: Update, device: torch.device) -> None:
        self._update = update
        self._device = device
        # One stream for all: what autograd or cuBLAS keep per stream then belongs to this one, and
        # no captured operation waits for another stream.
        self._beside = torch.cuda.Stream(device)
        self._recorded: dict[_Form, _Graph] = {}
        self._calls: Counter[_Form] = Counter()

    def run(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        form = tuple((name, value.dtype, value.shape) for name, value in data.items())
        if (graph := self._recorded.get(form)) is not None:
            return graph.replay(data)
        self._calls[form] += 1
        if self._calls[form] <= _EAGER_CALLS:
            return self._run_beside(data)
        try:
            graph = self._recorded[form] = _Graph(self._update, data, self._beside)
        except torch.AcceleratorError as error:
            raise ConfigError(
                f"{self._update.__qualname__} cannot be captured as a graph: something in it waits "
                "for the GPU, or copies from memory that is not pinned; set agent.accelerate to off"
            ) from error
        return graph.replay(data)

    def _run_beside(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Update on another stream than the default one, which cannot be captured."""
        now, beside = torch.cuda.current_stream(self._device), self._beside
        beside.wait_stream(now)
        with torch.cuda.stream(beside):
            metrics = self._update(data)
        now.wait_stream(beside)
        for value in metrics.values():
            value.record_stream(now)
        return metrics


class _Graph:
    """The captured operations of one update; capturing does not execute them."""

    def __init__(
        self, update: Update, data: Mapping[str, Tensor], stream: torch.cuda.Stream
    ) -> None:
        self._inputs = {name: value.clone() for name, value in data.items()}
        self._graph = torch.cuda.CUDAGraph()
        # Other threads of the process may use the device meanwhile.
        with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            metrics = update(dict(self._inputs))
            self._names = [name for name, value in metrics.items() if not value.ndim]
            self._numbers = torch.stack([metrics[name].float() for name in self._names])
        self._arrays = {name: value for name, value in metrics.items() if value.ndim}

    def replay(self, data: Mapping[str, Tensor]) -> dict[str, Tensor]:
        for name, value in data.items():
            self._inputs[name].copy_(value)
        self._graph.replay()
        numbers = self._numbers.clone().unbind()
        return dict(zip(self._names, numbers, strict=True)) | self._arrays


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Make numbers closer to 0 than 1.2e-38 become 0 inside a `with` block.

    Adam's moments of weights that get no gradient any more decay to such numbers, and CPUs compute
    slowly with them: after 2,500 updates of SAC an update takes 19 % longer on an Intel Xeon. This
    applies to the current thread, and to threads that it starts inside the block.
    """
    before = _SMALLEST_NORMAL * 0.5 == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


_SMALLEST_NORMAL = sys.float_info.min

_LARGEST_KEPT_BYTES = 2**25 - 2**16  # glibc never keeps blocks of more than 32 MiB


def keep_freed_memory() -> None:
    """Let malloc keep freed blocks for the next activations of the same size.

    glibc returns large blocks to the system, which clears the pages of each new block. This takes
    5 % of a SAC update. glibc keeps blocks as large as the largest that was ever freed, so free a
    large one; its memory is never touched. Other allocators ignore it.
    """
    torch.empty(_LARGEST_KEPT_BYTES, dtype=torch.uint8)


_WIDE = 128  # narrower matrices are done before oneDNN has started
_LARGE = 2**17  # at this size a batch of 32 is enough, and other layers may be narrow


def pick_matmul(
    device: torch.device, *networks: nn.Module, hidden: Sequence[int] = ()
) -> Callable[[], AbstractContextManager[None]]:
    """Return the context in which to multiply float32 matrices on that device.

    The matrices are those of the networks, in batches of any size, or of hidden layers of these
    widths, in batches of some hundred rows.
    """
    pays = max(hidden, default=0) >= _WIDE or any(map(_is_large, networks))
    return _onednn if device.type == "cpu" and pays and _onednn_is_better() else nullcontext


def _onednn_is_better() -> bool:
    """Whether oneDNN multiplies faster here; measured once per process."""
    return measured("onednn", lambda: multiplies_better(_onednn, time.perf_counter))


_TIMED_WIDTH = 256
_TIMED_PRODUCTS = 10
_FASTER = 1.3  # smaller differences could turn out differently in the next run
_LARGEST_ERROR = 1e-3  # of float32 it is 4e-5, of bfloat16 0.1


def multiplies_better(
    how: Callable[[], AbstractContextManager[object]], clock: Callable[[], float]
) -> bool:
    """Whether float32 products in this context are as exact as torch's own, and much faster."""
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn((2, _TIMED_WIDTH, _TIMED_WIDTH), generator=generator)
    with how():
        product = x @ w
    if (product.double() - x.double() @ w.double()).abs().max() > _LARGEST_ERROR:
        return False
    contexts: tuple[Callable[[], AbstractContextManager[object]], ...] = (nullcontext, how)
    fastest_s = [math.inf, math.inf]
    for _ in range(_TIMED_PRODUCTS):
        for i, context in enumerate(contexts):
            with context():
                began = clock()
                torch.mm(x, w)
                fastest_s[i] = min(fastest_s[i], clock() - began)
    return fastest_s[0] > _FASTER * fastest_s[1]


def _is_large(network: nn.Module) -> bool:
    """Whether a matrix is large enough, such as the one after convolutions."""
    matrices = (p for p in network.parameters() if p.ndim in {2, 3})  # one, or one per critic
    return any(p.shape[-2] * p.shape[-1] >= _LARGE for p in matrices)


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Let oneDNN have products of matrices as torch's `fp32_precision` says."""
    settings, before = torch.backends.mkldnn.matmul, precision_now()  # type: ignore[attr-defined]
    settings.fp32_precision = precision
    try:
        yield
    finally:
        settings.fp32_precision = before


def precision_now() -> str:
    """Return the setting that `matmul_precision` changes."""
    return torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined,no-any-return]


def _onednn() -> AbstractContextManager[None]:
    """Multiply with oneDNN instead of MKL, which leaves AVX-512 unused on some AMD processors.

    torch selects oneDNN for float32 only where bfloat16 would be acceptable, too. On a CPU with AMX
    oneDNN then computes in bfloat16; elsewhere in float32, which `multiplies_better` checks.
    """
    return matmul_precision("bf16")
