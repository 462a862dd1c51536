"""One update: everything between a batch and the recorded numbers, the same for every agent.

An agent implements its equations in `update`. Its `Updater` moves the batch to the device, runs
networks in the learner's precision and in parts, steps the optimizers, and keeps what priorities
are computed from:

    Agent.opt(batch)
      Updater.step                  learning rates, checks, BatchMover, out of memory
        Accelerated                 eager, compiled, or a captured CUDA graph
          Agent.update(data)        the equations
            Updater.inputs          observations and rewards, normalised
            Updater(network, ...)   a pass: autocast, gradient accumulation
            Updater.minimize(loss)  gradients, their norm, clipping, optimizer step; detach what
                                    the update returns of the loss
            TargetNetwork.soft_update()
"""

from __future__ import annotations

import copy
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.checkpoint import checkpoint

from asyncrl.agents.parts.accelerated import (
    Accelerated,
    Update,
    flushed_denormals,
    keep_freed_memory,
    pick_matmul,
    why_eager,
)
from asyncrl.agents.parts.networks import NetworkInput, ScaledBytes, each_field
from asyncrl.agents.parts.normalize import Normalized, RunningNorm
from asyncrl.agents.parts.optimizers import FastOptimizer, clip_gradients, leaves_of
from asyncrl.agents.parts.reduction import Reduction, Rows
from asyncrl.agents.parts.torch_agent import (
    Part,
    TorchAgent,
    TorchConfig,
    flatten_parameters,
    tensors_of,
)
from asyncrl.core.env_checks import shown
from asyncrl.core.errors import ConfigError, OutOfMemory
from asyncrl.core.ranks import Ranks
from asyncrl.core.replay_buffer import LARGEST_WEIGHT
from asyncrl.core.seeding import Role, derive_seed
from asyncrl.core.segment import DISCOUNTED_RETURN
from asyncrl.core.types import Array, Columns, ModelVersion

_ALIGNMENT_BYTES = 64
_CACHED_BYTES = 1 << 18
"""Bytes of observations that are read at once. As floats, and twice, they fit into a cache."""

_N_BUFFERS = 2
"""The device reads one while the other is filled."""


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Position of each column of a batch in one buffer."""

    columns: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]
    """Names, dtypes and shapes."""

    offsets: tuple[int, ...]
    nbytes: int

    @classmethod
    def of(cls, batch: Columns) -> Self:
        """Return a layout with the columns of a batch in sequence."""
        offsets, end = [], 0
        for column in batch.values():
            offsets.append(end)
            end += -(-column.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        # Converting dtypes to names would take longer than all else here.
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
        """Return the columns as arrays over a buffer in host memory."""
        return {name: tensor.numpy() for name, tensor in self.tensors(buffer).items()}


class BatchMover:
    """Moves the wanted columns of batches to a device.

    On a CPU the tensors share the batch's memory. On a GPU they are views of one of two buffers.
    Everything that reads them must have been submitted, on the stream that was current at this
    call, before the next call.
    """

    def __init__(self, device: torch.device, wanted: Sequence[str]) -> None:
        self._device = device
        self._wanted = tuple(wanted)
        self._staging = _StagingBuffers(device) if device.type == "cuda" else None

    def __call__(self, batch: Mapping[str, Array | Tensor]) -> dict[str, Tensor]:
        """Return the wanted columns that the batch has, on the device.

        Columns that are tensors must be there already.
        """
        there: dict[str, Tensor] = {}
        columns: dict[str, Array] = {}
        for name in self._wanted:
            column = batch.get(name)
            if isinstance(column, Tensor):
                there[name] = self._check_place(name, column)
            elif column is None:
                continue
            elif self._staging is not None:
                columns[name] = column
            else:
                there[name] = torch.from_numpy(column).to(self._device)
        return there | self._staging.move(columns) if self._staging is not None else there

    def _check_place(self, name: str, column: Tensor) -> Tensor:
        found, here = column.device, self._device
        if str(here) not in {str(found), found.type}:
            raise ConfigError(
                f"the replay stores {name} on {found} (replay.device), and the agent computes on "
                f"{here}; set replay.device to {here}, or to host, which works with every device"
            )
        return column


class _StagingBuffers:
    """Buffers used in turn, and the stream on which all of them are copied."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies = torch.cuda.Stream(device)
        self._staging: list[_StagingBuffer] = []
        self._nbytes = 0
        """Capacity of a buffer in bytes."""
        self._turn = 0

    def move(self, columns: Columns) -> dict[str, Tensor]:
        computing = torch.cuda.current_stream(self._device)
        layout = BatchLayout.of(columns)
        if layout.nbytes > self._nbytes or not self._staging:
            self._allocate(layout.nbytes)
        # All reads of the previous batch have been submitted by now.
        self._staging[self._turn].read.record(computing)
        self._turn = (self._turn + 1) % _N_BUFFERS
        buffer = self._staging[self._turn]
        buffer.copied.synchronize()  # copied two batches ago: its pinned bytes are free again
        buffer.lay_out(layout)
        for name, array in buffer.arrays.items():
            np.copyto(array, columns[name])
        with torch.cuda.stream(self._copies):
            self._copies.wait_event(buffer.read)
            used = slice(layout.nbytes)
            buffer.there[used].copy_(buffer.here[used], non_blocking=True)
            buffer.copied.record(self._copies)
        computing.wait_event(buffer.copied)
        return dict(buffer.tensors)

    def _allocate(self, nbytes: int) -> None:
        """Allocate larger buffers; rare enough to wait for the device.

        The number of trajectories in a batch varies, so some spare room is added once batches have
        been larger than the first one.
        """
        torch.cuda.synchronize(self._device)
        self._nbytes = max(nbytes, self._nbytes * 3 // 2)
        self._staging = [_StagingBuffer(self._nbytes, self._device) for _ in range(_N_BUFFERS)]


class _StagingBuffer:
    """A pinned buffer, its counterpart on the device, and events that say when both are free."""

    arrays: dict[str, Array]
    tensors: dict[str, Tensor]

    def __init__(self, nbytes: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.here = torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned)
        self.there = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self._layout: BatchLayout | None = None
        self.copied = torch.cuda.Event()
        """The bytes have been copied from the pinned buffer to the device."""
        self.read = torch.cuda.Event()
        """The device has finished reading them."""

    def lay_out(self, layout: BatchLayout) -> None:
        """View both buffers as columns of this layout."""
        if layout == self._layout:
            return
        self._layout = layout
        self.arrays, self.tensors = layout.arrays(self.here), layout.tensors(self.there)


TRANSITION_COLUMNS = ("obs", "action", "reward", "next_obs", "discount", "weight")
"""Columns that updates of single transitions read from a batch, if present."""

TRAJECTORY_COLUMNS = ("obs", "action", "reward", "discount", "mask")
"""Columns that updates of trajectories read from a batch, besides the agent's own."""


def _out_of_memory(batch: Columns, device: torch.device) -> OutOfMemory:
    """Return an error with the amount requested and advice; free cached memory first."""
    rows = len(next(iter(batch.values())))
    size = sum(column.nbytes for column in batch.values())
    left = ""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(device)
        left = f", {free / 2**30:.2f} of {total / 2**30:.2f} GiB are free there now"
    return OutOfMemory(
        f"{device} ran out of memory in an optimisation step on a batch of {rows} rows, "
        f"{size / 2**20:.1f} MiB{left}; reduce trainer.batch_size, use gradient accumulation "
        "(agent.accumulate), or compute in agent.precision=bfloat16"
    )


Answer = TypeVar("Answer", Tensor, tuple[Tensor, Tensor])
"""One tensor, or two."""


class ChunkedForward:
    """Passes a batch through networks in parts of similar size.

    Activations of a part are not kept. `backward` recomputes them part by part, and the parts'
    gradients sum to those of the whole batch. This takes one more forward pass, and needs networks
    that treat each row independently: not batch normalisation.
    """

    def __init__(self, parts: int) -> None:
        self._parts = parts

    def __call__(
        self, network: Callable[..., Answer], *inputs: NetworkInput, dim: int = 0
    ) -> Answer:
        """Return the network's output for inputs (B, ...), with rows along `dim`."""
        if self._parts == 1:
            return network(*inputs)
        cut = zip(*(self._cut(one) for one in inputs), strict=True)
        if not torch.is_grad_enabled():
            return _joined([network(*part) for part in cut], dim)
        parts: list[Answer] = [checkpoint(network, *part, use_reentrant=False) for part in cut]
        return _joined(parts, dim)

    def _cut(self, one: NetworkInput) -> list[NetworkInput]:
        if isinstance(one, Tensor):
            return list(one.tensor_split(min(self._parts, len(one))))
        rows = len(next(iter(one.values())))
        fields = {name: field.tensor_split(min(self._parts, rows)) for name, field in one.items()}
        return [dict(zip(fields, part, strict=True)) for part in zip(*fields.values(), strict=True)]


def _joined(answers: list[Answer], dim: int) -> Answer:
    if isinstance(answers[0], Tensor):
        return torch.cat(answers, dim)
    ones, others = zip(*answers, strict=True)
    return torch.cat(ones, dim), torch.cat(others, dim)


Network = TypeVar("Network", bound=nn.Module)


class TargetNetwork(Generic[Network]):
    """A target network: `network` is a copy that moves by a share `tau` of the way at each call.

    It is always in evaluation mode.
    """

    def __init__(self, fast: Network, tau: float, *, flat: Sequence[Tensor] = ()) -> None:
        """Copy a network; `flat` are the vectors that its parameters are views of, if they are."""
        self.network: Network = copy.deepcopy(fast).eval()
        if not flat:
            self.network.requires_grad_(False)
        self._leaves: Any = [*self.network.parameters()], [*fast.parameters()]
        self._whole: Any = ([flatten_parameters(self.network)], [*flat]) if flat else self._leaves
        self._tau = tau
        # Looked up each time, since a network may replace a tensor.
        self._buffers = [
            (mine, its, name)
            for mine, its in zip(self.network.modules(), fast.modules(), strict=True)
            for name, _ in its.named_buffers(recurse=False)
        ]

    @torch.no_grad()
    def soft_update(self) -> None:
        """Move towards the network, and copy its buffers."""
        # theta' <- theta' + tau * (theta - theta')
        mine, its = self._leaves if torch.compiler.is_compiling() else self._whole
        torch._foreach_lerp_(mine, its, self._tau)
        if self._buffers:  # a target network uses the network's normalisation statistics
            self._copy_buffers()

    @torch.no_grad()
    def hard_update(self) -> None:
        """Copy the network."""
        # theta' <- theta
        torch._foreach_copy_(*self._whole)
        self._copy_buffers()

    def _copy_buffers(self) -> None:
        for mine, its, name in self._buffers:
            mine.get_buffer(name).copy_(its.get_buffer(name))


def _drops_out(layer: nn.Module) -> bool:
    """Whether a layer uses torch's global generator in training; it accepts no other."""
    if isinstance(layer, nn.RNNBase | nn.MultiheadAttention):
        return layer.dropout > 0
    return isinstance(layer, _DropoutNd)


def _metric_name(name: str, what: str) -> str:
    return f"{name}_{what}" if name else what


def _places(norms: Mapping[str, Sequence[Tensor]]) -> dict[str, tuple[slice, slice]]:
    """Return where the gradients of each norm are: among those of parameters, and of leaves."""
    places, params, leaves = {}, 0, 0
    for name, group in norms.items():
        n_params, n_leaves = len(group), sum(len(leaves_of(param)) for param in group)
        whole, single = slice(params, params + n_params), slice(leaves, leaves + n_leaves)
        places[_metric_name(name, "grad_norm")] = whole, single
        params, leaves = params + n_params, leaves + n_leaves
    return places


class Updater:
    """Runs an agent's updates; see the module.

    Numbers that an update does not return each time, such as the loss of a policy that is updated
    in every second step, are repeated.

    Args:
        agent: The agent with `update`; its networks must exist already.
        config: The agent's settings.
        optimizers: Optimizers by the names that `minimize` takes: "" if there is only one.
        max_grad_norm: Maximum gradient norm of one optimizer; 0 disables clipping.
        networks: Networks that learn.
        norms: An optimizer's parameters, in order, in groups whose gradients are clipped
            separately, by the names of their norms; by default all together.
        inner: A step that `update` repeats by `updater.inner(data)`. It is compiled, and `update`
            itself is not.
        switch_modes: Whether networks are in training mode throughout an update, or an inner step.
        columns: Columns that updates read from a batch, if present.
        hidden: Widths of hidden layers, if these alone decide how to multiply matrices.
    """

    rows: Rows = 0
    """What an update's losses and numbers are means over, if there are several ranks: the rows of
    its batch, of trajectories those that are transitions. An update whose means are over others
    sets it."""

    newest_batch: Columns | None = None
    """The one that was last learned from, or is now; None before the first."""

    def __init__(
        self,
        agent: UpdatingAgent,
        config: TorchConfig,
        optimizers: Mapping[str, FastOptimizer],
        *,
        max_grad_norm: float,
        networks: Sequence[nn.Module],
        norms: Mapping[str, Sequence[Tensor]] | None = None,
        inner: Update | None = None,
        switch_modes: bool = True,
        columns: Sequence[str] = TRANSITION_COLUMNS,
        hidden: Sequence[int] = (),
    ) -> None:
        device = self._device = agent.device
        self.over = Reduction(device)
        """What is computed over all ranks."""
        self._optimizers = dict(optimizers)
        self._scheduled = [optimizer for optimizer in optimizers.values() if optimizer.schedule]
        self._max_grad_norm = max_grad_norm
        self._norms = {n: _places(norms or {n: o.params}) for n, o in optimizers.items()}
        self._rates = {_metric_name(n, "learning_rate"): o for n, o in optimizers.items()}
        self._singly = "next_obs" in columns
        drawing = any(_drops_out(layer) for network in networks for layer in network.modules())
        self._random = agent.policy.chooser.random if drawing else None
        """Seeds dropout, if there is any."""
        self._norm = agent.model if isinstance(agent.model, Normalized) else None
        self._read_obs = agent.read_obs
        self._move = BatchMover(device, (*columns, *(DISCOUNTED_RETURN,) * config.normalize_reward))
        self._matmul = pick_matmul(device, *networks, hidden=hidden)
        if device.type == "cpu":
            keep_freed_memory()
        self._precision = config.precision_on(device)
        self._chunked = ChunkedForward(config.accumulate)
        self._at_once = config.accumulate == 1 and self._precision is nullcontext
        learning = networks if switch_modes else []
        how, self.why_eager = config.accelerate, why_eager(agent, config)
        """Why `auto` leaves updates as they are; empty if it does not."""
        if how == "auto" and device.type == "cuda" and not self.why_eager:
            how = "graphs"
        self.inner = Accelerated(inner or agent.update, how, device, learning)
        self._run = agent.update if inner else self.inner
        if how == "compile":
            self.inner.compile()
        self._name, self._accelerate = type(agent).__name__, config.accelerate
        self._newest: tuple[Tensor, ...] | None = None
        """The priority of each row of the last batch, or values and their targets, or nothing; None
        before the first batch."""
        self._metrics: dict[str, Tensor] = {}
        agent.on_load.append(self._metrics.clear)

    def step(
        self, batch: Columns, draws: Mapping[str, Tensor], env_steps: int
    ) -> dict[str, Tensor]:
        """Update once, from a batch and the update's random numbers; return its numbers.

        Raises `ConfigError` if the agent learns from transitions and the batch has none, and
        `OutOfMemory` if memory is short. Cached memory is then freed, so that the run can still
        save a checkpoint.
        """
        for optimizer in self._scheduled:
            optimizer.set_rate_at(env_steps)
        if self._norm is not None or (self._singly and "next_obs" not in batch):
            self._check(batch)
        if self._random is not None:
            torch.manual_seed(int(self._random.integers(2**63)))
        try:
            with self._matmul(), flushed_denormals():
                data = {**self._move(batch), **draws}
                self.newest_batch = batch
                if not self.over.alone:
                    self._begin_with_all(batch, data)
                metrics = self._run(data)
        except torch.OutOfMemoryError as error:
            raise _out_of_memory(batch, self._device) from error
        self._newest = self._taken_out(metrics)
        if not self.over.alone:
            metrics = self.over.mean_of_each(metrics, self.rows)
        for name, optimizer in self._rates.items():
            metrics[name] = optimizer.shown_rate
        self._metrics |= metrics
        return dict(self._metrics)

    def join(self, ranks: Ranks, modules: Iterable[nn.Module]) -> None:
        """Compute with all ranks from now on, and so let the normalisation among modules."""
        if self._accelerate in {"compile", "graphs"}:
            raise ConfigError(
                f"agent.accelerate={self._accelerate!r} cannot be combined with several learners, "
                f"{ranks.world} here, which add up their gradients in the middle of an update; set "
                "it to off"
            )
        self.inner.capture_nothing()
        for module in modules:
            if isinstance(module, _BatchNorm):
                raise ConfigError(
                    f"a network of {self._name} has {type(module).__name__}, and the statistics of "
                    f"{ranks.world} learners' rows would differ; use one learner, or another "
                    "normalisation such as LayerNorm"
                )
            if isinstance(module, RunningNorm):
                module.over = self.over
        self.over.join(ranks)

    def _begin_with_all(self, batch: Columns, data: dict[str, Tensor]) -> None:
        """Count rows, and divide importance weights by the largest of all ranks."""
        self.rows = int(batch["mask"].sum()) if "mask" in batch else len(batch["reward"])
        if "weight" not in data:
            return
        if LARGEST_WEIGHT not in batch:
            raise ConfigError(
                f"this batch has importance weights but no column {LARGEST_WEIGHT}, without which "
                "those of several learners cannot be compared; add what they were divided by, or "
                "use one learner"
            )
        own = torch.as_tensor(batch[LARGEST_WEIGHT][0], device=self._device)
        data["weight"] = data["weight"] * (own / self.over.each(own * self.over.counts).max())

    def _taken_out(self, metrics: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Remove from an update's numbers what priorities are computed from."""
        if not isinstance(metrics, dict):
            raise ConfigError(
                f"`update` of {self._name} must return tensors by name, got {shown(metrics)}; "
                f'return for instance {{"loss": loss.detach()}}, or {{}} to record nothing'
            )
        if "priority" in metrics:
            return (metrics.pop("priority"),)
        if "q" not in metrics:
            return ()
        if "target" not in metrics:
            raise ConfigError(
                f"`update` of {self._name} returned `q` without `target`; return both, one for "
                "each row, since priorities are their distance, or rename `q` if it means "
                "something else"
            )
        return metrics.pop("q"), metrics.pop("target")

    def _check(self, batch: Columns) -> None:
        if self._singly and "next_obs" not in batch:
            raise ConfigError(
                f"this agent learns from single transitions, but this batch, of {sorted(batch)}, "
                "has no next_obs; use UniformReplayConfig or PrioritizedReplayConfig as replay"
            )
        if self._norm is not None:
            self._norm.check(batch)

    def inputs(self, data: Mapping[str, Tensor]) -> tuple[NetworkInput, NetworkInput, Tensor]:
        """Return observations, next observations and rewards for networks and losses.

        The update calls this: normalisation, if it is on, learns from the batch here.
        """
        obs, next_obs = self._read(data["obs"]), self._read(data["next_obs"])
        if (norm := self._norm) is None:
            return obs, next_obs, data["reward"]
        norm.learn(each_field(obs, norm.sample), data)
        return norm.see(obs), norm.see(next_obs), norm.rewards(data)

    def _read(self, stored: Tensor) -> NetworkInput:
        # Normalisation learns from float32.
        with self._precision() if self._norm is None else nullcontext():
            return self._read_obs(stored)

    def trajectories(self, data: Mapping[str, Tensor]) -> tuple[NetworkInput, Tensor]:
        """Return observations (B, T + 1, ...) and rewards (B, T), as `inputs` does.

        Normalisation learns from the rows that are transitions.
        """
        stored, mask, norm = data["obs"], data["mask"], self._norm
        if norm is None:
            return self._seen(stored), data["reward"]
        acted_on = self._read(norm.sample(stored[:, : mask.shape[1]][mask]))
        norm.learn(acted_on, {n: c[mask] for n, c in data.items() if n == DISCOUNTED_RETURN})
        return self._seen(stored), norm.rewards(data)

    def _seen(self, stored: Tensor) -> NetworkInput:
        """Return observations (B, T + 1, ...) as networks see them."""
        read, on_cpu = self._read_obs, stored.device.type == "cpu"
        if not isinstance(read, ScaledBytes) or not on_cpu or torch.compiler.is_compiling():
            return self._seen_at_once(stored)
        # A few at a time: what lies between bytes and results stays in the processor's cache.
        flat, count = stored.flatten(0, 1), max(1, _CACHED_BYTES // stored[0, 0].nbytes)
        with self._precision():
            seen = torch.empty(flat.shape, dtype=read(flat[:0]).dtype)
        for some, place in zip(flat.split(count), seen.split(count), strict=True):
            place.copy_(self._seen_at_once(some))
        return seen.view(stored.shape)

    def _seen_at_once(self, stored: Tensor) -> NetworkInput:
        obs = self._read(stored)
        return obs if self._norm is None else self._norm.see(obs)

    def __call__(
        self, network: Callable[..., Answer], *inputs: NetworkInput, dim: int = 0
    ) -> Answer:
        """Return a network's output in float32: rows along `dim`, in parts if accumulating."""
        if self._at_once:
            answer = network(*inputs)
        else:
            answer = self.forward_in_chunks(network, *inputs, dim=dim)
        if isinstance(answer, Tensor):
            return answer.float()
        one, other = answer
        return one.float(), other.float()

    def forward_in_chunks(
        self, network: Callable[..., Answer], *inputs: NetworkInput, dim: int = 0
    ) -> Answer:
        """Return a network's output in the precision in which it was computed."""
        with self._precision():
            return self._chunked(network, *inputs, dim=dim)

    def mean(self, value: Tensor) -> Tensor:
        """Return the mean over the rows of all ranks, given that of this rank's rows."""
        return value if self.over.alone else self.over.mean(value, self.rows)

    def std_mean(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return standard deviation and mean of all ranks' values (rows,)."""
        if self.over.alone:
            return torch.std_mean(values, correction=0)
        var, mean = torch.var_mean(values.double(), correction=0)
        _, var, mean = self.over.merge(len(values), var, mean)
        return var.sqrt().to(values.dtype), mean.to(values.dtype)

    def minimize(
        self, loss: Tensor, name: str = "", *, rows: Rows | None = None
    ) -> dict[str, Tensor]:
        """Step on the loss by the optimizer of that name; return gradient norms.

        `rows` is the number of rows that the loss is a mean over, if it is not the update's.
        """
        optimizer, in_graph = self._optimizers[name], int(torch.compiler.is_compiling())
        gradients = optimizer.gradients(loss)
        if not self.over.alone:
            self.over.gradients(gradients, self.rows if rows is None else rows)
        norms = {}
        for norm, places in self._norms[name].items():
            norms[norm] = clip_gradients(gradients[places[in_graph]], self._max_grad_norm)
        optimizer.step(gradients)
        return norms

    def priorities(self) -> Array:
        """Return the priority of each row of the last batch."""
        match self._newest:
            case (errors,):
                pass
            case (q, target):
                errors = (q - target).abs_()
            case ():
                raise ConfigError(
                    f"`update` of {self._name} returned neither `priority` nor `q` and `target`, "
                    "so there are no priorities; return them, or use a replay without priorities, "
                    "such as UniformReplayConfig"
                )
            case _:
                raise ValueError("priorities are those of the last batch, and there was none yet")
        priorities: Array = (errors if errors.ndim == 1 else errors.mean(dim=0)).cpu().numpy()
        return priorities


def diverge(parts: Iterable[Part], rank: int) -> None:
    """Let generators of equal state draw other numbers on each rank; those of rank 0 stay."""
    for part in parts if rank else ():
        if isinstance(part, torch.Generator):
            low = torch.randint(2**31, (), generator=part, device=part.device)
            part.manual_seed(derive_seed(int(low), Role.LEARNER, rank))
        elif isinstance(part, np.random.Generator):
            seed = derive_seed(int(part.integers(2**31)), Role.LEARNER, rank)
            part.bit_generator.state = type(part.bit_generator)(seed).state


def fingerprint(parts: Mapping[str, Part]) -> int:
    """Return 32 bits of all that an agent has learned: of everything but its generators."""
    bits = 0
    for part in parts.values():
        if not isinstance(part, torch.Generator | np.random.Generator):
            for tensor in tensors_of(part).values():
                bits = zlib.crc32(tensor.detach().cpu().contiguous().numpy().tobytes(), bits)
    return bits


class UpdatingAgent(TorchAgent, ABC):
    """An agent that learns by updates: it implements equations, and its `updater` does the rest.

    Hooks of a subclass, which creates `updater` in its constructor:

        update(data)    the equations: learns from a batch on the device and returns numbers
        draw(rows)      the random numbers of an update of this many rows, such as noise

    `updater` steps the optimizers that it was created with. A subclass that replaces
    `self.optimizer` also needs a new `Updater`, and the optimizer in `parts`. Compiled updates go
    on with the networks that they began with: another one that is assigned in mid-run, such as to
    `targets`, is not seen. `load_state` copies into those there are.

    Dropout repeats the same masks after `load_state`: it is seeded by the chooser's generator.
    """

    updater: Updater

    @abstractmethod
    def update(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Learn from a batch on the device; this function is captured or compiled.

        Besides its numbers it returns the `priority` of each row; or the values `q` that it learned
        from, (rows,) or (critics, rows), and their `target`; or neither.
        """

    def draw(self, rows: int) -> dict[str, Tensor]:
        """Return the random numbers of an update, as further columns of its batch.

        They are generated before the update, since a captured update would repeat the same ones.
        """
        return {}

    def opt(self, batch: Columns) -> Mapping[str, Tensor]:
        """Update once; return numbers."""
        env_steps = self.policy.chooser.env_steps
        metrics = self.updater.step(batch, self.draw(len(batch["reward"])), env_steps)
        self.version = ModelVersion(self.version + 1)
        return metrics

    def compile(self) -> None:
        """Update from the next step on as `agent.accelerate=compile` does from the first."""
        self.updater.inner.compile()

    def join(self, ranks: Ranks) -> None:
        """Compute with all ranks from now on, see `core/ranks.py`."""
        networks = [part for part in self.parts.values() if isinstance(part, nn.Module)]
        self.updater.join(ranks, [layer for one in networks for layer in one.modules()])

        draw_other_numbers = partial(diverge, self.parts.values(), ranks.rank)
        draw_other_numbers()
        self.on_load.append(draw_other_numbers)

    def opt_without_batch(self) -> Mapping[str, Tensor]:
        """Do a step with the other ranks, with no rows here; return its numbers."""
        batch = self.updater.newest_batch
        if batch is None:
            raise ValueError(
                "a rank without a batch repeats its newest one, and there was none yet"
            )
        with self.updater.over.without_rows():
            return self.opt(batch)

    def differing_ranks(self) -> tuple[int, ...]:
        """Compare what all ranks have learned; return those that differ from rank 0."""
        own = torch.tensor(fingerprint(self.parts), device=self.device)
        all_of_them = self.updater.over.each(own).tolist()
        return tuple(rank for rank, one in enumerate(all_of_them) if one != all_of_them[0])
