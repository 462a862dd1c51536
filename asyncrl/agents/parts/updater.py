"""One update: all that lies between a batch and its numbers, the same for every agent.

An agent states its equations in `update`. Its `Updater` moves the batch to the device, lets the
networks see it in the learner's precision and in parts, steps down the slopes of losses, lets slow
copies follow, and keeps what priorities are computed of:

    Agent.opt(batch)
      Updater.step                  learning rates, checks, BatchMover, out of memory
        Accelerated                 eager, compiled, or a recorded CUDA graph
          Agent.update(data)        the equations
            Updater.inputs          observations and rewards, normalised
            Updater(network, ...)   a pass: autocast, accumulation in parts
            Updater.down(loss)      Descent: backward, norm, clip, step; what is told is detached by
                                    then, since a compiled update breaks in two here
            Updater.follow()        slow copies
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from asyncrl.agents.parts.accelerated import Accelerated, pick_matmul
from asyncrl.agents.parts.networks import NetworkInput, each_field
from asyncrl.agents.parts.normalize import Normalized
from asyncrl.agents.parts.optimizers import LeanOptimizer
from asyncrl.agents.parts.torch_agent import (
    TorchAgent,
    buffer_copier,
    clip_gradients,
    flatten_parameters,
)
from asyncrl.agents.parts.torch_config import TorchConfig
from asyncrl.core.env_checks import shown
from asyncrl.core.errors import ConfigError, OutOfMemory
from asyncrl.core.segment import DISCOUNTED_RETURN
from asyncrl.core.types import Array, Columns, ModelVersion

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


TRANSITION_COLUMNS = ("obs", "action", "reward", "next_obs", "discount", "weight")
"""What updates of single transitions read of a batch, where it is there."""

TRAJECTORY_COLUMNS = ("obs", "action", "reward", "discount", "mask")
"""What updates of trajectories read of a batch, besides the agent's own columns."""


def _out_of_memory(batch: Columns, device: torch.device) -> OutOfMemory:
    """Say how much was asked for, free what is only cached, and say what would help."""
    rows = len(next(iter(batch.values())))
    size = sum(column.nbytes for column in batch.values())
    left = ""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(device)
        left = f", {free / 2**30:.2f} of {total / 2**30:.2f} GiB are free there now"
    return OutOfMemory(
        f"{device} ran out of memory in an optimisation step on a batch of {rows} rows, "
        f"{size / 2**20:.1f} MiB{left}; lower trainer.batch_size, have the batch taken in parts "
        "(agent.accumulate), or compute in agent.precision=bfloat16"
    )


Answer = TypeVar("Answer", Tensor, tuple[Tensor, Tensor])
"""One tensor, or two."""


class InParts:
    """Passes a batch through networks in parts of about the same size.

    What a network computes inside is kept of no part. `backward` computes it again, part by part,
    and the parts' gradients add up to the whole batch's. That takes one more pass through the
    network, and is for networks that treat each row by itself: not for batch normalisation.
    """

    def __init__(self, parts: int) -> None:
        self._parts = parts

    def __call__(
        self, network: Callable[..., Answer], *inputs: NetworkInput, dim: int = 0
    ) -> Answer:
        """Return what the network answers to inputs (B, ...), the rows along `dim` of it."""
        if self._parts == 1:
            return network(*inputs)
        cut = zip(*(self._cut(one) for one in inputs), strict=True)
        if not torch.is_grad_enabled():
            return _joined([network(*part) for part in cut], dim)
        return _joined([_answer(network, part) for part in cut], dim)

    def _cut(self, one: NetworkInput) -> list[NetworkInput]:
        if isinstance(one, Tensor):
            return list(one.tensor_split(min(self._parts, len(one))))
        rows = len(next(iter(one.values())))
        fields = {name: field.tensor_split(min(self._parts, rows)) for name, field in one.items()}
        return [dict(zip(fields, part, strict=True)) for part in zip(*fields.values(), strict=True)]


def _answer(network: Callable[..., Answer], part: tuple[NetworkInput, ...]) -> Answer:
    answer: Answer = checkpoint(network, *part, use_reentrant=False)
    return answer


def _joined(answers: list[Answer], dim: int) -> Answer:
    if isinstance(answers[0], Tensor):
        return torch.cat(answers, dim)
    ones, others = zip(*answers, strict=True)
    return torch.cat(ones, dim), torch.cat(others, dim)


class SlowCopy:
    """A copy of a network, `network`, that follows it by a share `tau` of the way at each call.

    It is always in evaluation mode.
    """

    def __init__(self, fast: nn.Module, tau: float, *, flat: Sequence[Tensor] = ()) -> None:
        """Copy a network; `flat` are the vectors that its parameters are views of, if they are."""
        self.network = copy.deepcopy(fast).eval()
        if not flat:
            self.network.requires_grad_(False)
        self._fast: list[Tensor] = [*(flat or fast.parameters())]
        self._slow: list[Tensor] = (
            [flatten_parameters(self.network)] if flat else [*self.network.parameters()]
        )
        self._tau = tau
        self._copy_buffers = buffer_copier(fast, self.network)

    @torch.no_grad()
    def follow(self) -> None:
        """Move, and take the network's buffers as they are."""
        # theta' <- theta' + tau * (theta - theta')
        torch._foreach_lerp_(self._slow, self._fast, self._tau)
        self._copy_buffers()

    @torch.no_grad()
    def catch_up(self) -> None:
        """Become what the network is."""
        # theta' <- theta
        torch._foreach_copy_(self._slow, self._fast)
        self._copy_buffers()


class Descent:
    """Steps one optimizer down the slope of a loss, and tells how steep it was.

    The gradients of each of `norms`, by the name of what they are told by, are scaled down to
    `max_grad_norm` together; 0 leaves them as they are.
    """

    def __init__(
        self,
        optimizer: LeanOptimizer,
        max_grad_norm: float,
        *,
        name: str = "",
        norms: Mapping[str, Sequence[Tensor]] | None = None,
    ) -> None:
        """Descend with an optimizer; numbers are told by `<name>_grad_norm`, or without a name."""
        self.optimizer = optimizer
        self.rate_name = _told_of(name, "learning_rate")
        self._max_norm = max_grad_norm
        self._norm_name = _told_of(name, "grad_norm")
        self._norms = norms and {
            _told_of(what, "grad_norm"): params for what, params in norms.items()
        }

    def __call__(self, loss: Tensor) -> dict[str, Tensor]:
        """Step down, with gradients of nothing else that the loss depends on."""
        optimizer = self.optimizer
        optimizer.clear()
        torch.autograd.backward(loss, inputs=optimizer.inputs)
        norms = self._limit()
        optimizer.step()
        return norms

    def _limit(self) -> dict[str, Tensor]:
        if self._norms is None:
            return {self._norm_name: clip_gradients(self.optimizer.gradients(), self._max_norm)}
        return {
            name: clip_gradients([p.grad for p in params if p.grad is not None], self._max_norm)
            for name, params in self._norms.items()
        }


_DROPOUT = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


def _drops_out(layer: nn.Module) -> bool:
    """Whether a layer draws while it learns, of torch's global generator: it takes no other."""
    if isinstance(layer, nn.RNNBase | nn.MultiheadAttention):
        return layer.dropout > 0
    return isinstance(layer, _DROPOUT)


def _told_of(name: str, what: str) -> str:
    return f"{name}_{what}" if name else what


class Updater:
    """Does an agent's updates; see the module.

    What an update does not tell each time, such as the loss of a policy that is improved in every
    other one, is told again as it was.

    Args:
        agent: Whose `update` it is; its networks and `read_obs` are there already.
        config: The agent's settings.
        optimizers: What steps, by the names that `down` takes: "" where there is one alone.
        max_grad_norm: What gradients of one optimizer are scaled down to; 0 leaves them.
        networks: What learns.
        norms: Parameters whose gradients are scaled down apart from the others, by the names
            that their norms are told by; by default all of an optimizer's together.
        slow: What follows it in `follow`.
        switch_modes: Whether networks are in learning mode throughout an update.
        columns: What updates read of a batch, where it is there.
        hidden: Widths of hidden layers, where these alone decide how to multiply matrices.
    """

    def __init__(
        self,
        agent: UpdatingAgent,
        config: TorchConfig,
        optimizers: Mapping[str, LeanOptimizer],
        *,
        max_grad_norm: float,
        networks: Sequence[nn.Module],
        norms: Mapping[str, Sequence[Tensor]] | None = None,
        slow: Sequence[SlowCopy] = (),
        switch_modes: bool = True,
        columns: Sequence[str] = TRANSITION_COLUMNS,
        hidden: Sequence[int] = (),
    ) -> None:
        device = agent.device
        self.down = config.uncompiled(self._down)
        """Step down the slope of a loss by the descent of that name; return norms of gradients."""
        self.follow = config.uncompiled(self._follow)
        """Let all slow copies follow."""
        self._device = device
        self._descents = {
            name: Descent(optimizer, max_grad_norm, name=name, norms=norms)
            for name, optimizer in optimizers.items()
        }
        self._slow = slow
        self._singly = "next_obs" in columns
        drawing = any(_drops_out(layer) for network in networks for layer in network.modules())
        self._random = getattr(agent, "random", None) if drawing else None
        """What dropout draws from, if there is any."""
        self._norm = agent.model if isinstance(agent.model, Normalized) else None
        self._read_obs = agent.read_obs
        self._move = BatchMover(device, (*columns, *(DISCOUNTED_RETURN,) * config.normalize_reward))
        self._matmul = pick_matmul(device, *networks, hidden=hidden)
        self._precision = config.precision_on(device)
        self._in_parts = InParts(config.accumulate)
        learning = networks if switch_modes else []
        self._run = Accelerated(agent.update, config.accelerate, device, learning)
        self._name = type(agent).__name__
        self._newest: tuple[Tensor, ...] | None = None
        """The priority of each row of the newest batch, or values and their targets, or nothing;
        None before the first batch."""
        self._told: dict[str, Tensor] = {}
        agent.on_load.append(self._forget)

    def step(
        self, batch: Columns, draws: Mapping[str, Tensor], env_steps: int
    ) -> dict[str, Tensor]:
        """Update once, from a batch and what the update draws; return its numbers.

        Raises `ConfigError` if the batch is not of transitions where the agent learns from these,
        and `OutOfMemory` where there is too little; what was cached is then free, so that the
        run can still save a checkpoint.
        """
        for descent in self._descents.values():
            descent.optimizer.set_rate_at(env_steps)
        self._check(batch)
        if self._random is not None:
            torch.manual_seed(int(self._random.integers(2**63)))
        try:
            with self._matmul():
                told = self._run({**self._move(batch), **draws})
        except torch.OutOfMemoryError as error:
            raise _out_of_memory(batch, self._device) from error
        self._newest = self._taken_out(told)
        for descent in self._descents.values():
            told |= descent.optimizer.tell(descent.rate_name)
        self._told |= told
        return dict(self._told)

    def _taken_out(self, told: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Take what priorities are computed of out of what an update told."""
        if not isinstance(told, dict):
            raise ConfigError(
                f"`update` of {self._name} must return tensors by name, got {shown(told)}; return "
                'for instance {"loss": loss.detach()}, or {} to tell nothing'
            )
        if "priority" in told:
            return (told.pop("priority"),)
        if "q" not in told:
            return ()
        if "target" not in told:
            raise ConfigError(
                f"`update` of {self._name} told `q` without `target`; tell both, one for each row, "
                "as priorities are their distance, or give a number of another meaning another name"
            )
        return told.pop("q"), told.pop("target")

    def _check(self, batch: Columns) -> None:
        if self._singly and "next_obs" not in batch:
            raise ConfigError(
                f"this agent learns from single transitions, but this batch, of {sorted(batch)}, "
                "has no next_obs; use UniformReplayConfig or PrioritizedReplayConfig as replay"
            )
        if self._norm is not None:
            self._norm.check(batch)

    def inputs(self, data: Mapping[str, Tensor]) -> tuple[NetworkInput, NetworkInput, Tensor]:
        """Return observations, next observations and rewards as networks and losses take them.

        This is for the update to call: normalisation, where it is on, learns from the batch here.
        """
        obs, next_obs = self._read_obs(data["obs"]), self._read_obs(data["next_obs"])
        if self._norm is None:
            return obs, next_obs, data["reward"]
        self._norm.learn(obs, data)
        return self._norm.see(obs), self._norm.see(next_obs), self._norm.rewards(data)

    def trajectories(self, data: Mapping[str, Tensor]) -> tuple[NetworkInput, Tensor]:
        """Return observations (B, T + 1, ...) and rewards (B, T), as `inputs` does.

        Normalisation learns from the rows that are transitions.
        """
        obs = self._read_obs(data["obs"])
        if self._norm is None:
            return obs, data["reward"]
        mask = data["mask"]
        acted_on = each_field(obs, lambda field: field[:, : mask.shape[1]][mask])
        self._norm.learn(acted_on, {n: c[mask] for n, c in data.items() if n == DISCOUNTED_RETURN})
        return self._norm.see(obs), self._norm.rewards(data)

    def __call__(
        self, network: Callable[..., Answer], *inputs: NetworkInput, dim: int = 0
    ) -> Answer:
        """Return what a network answers, in float32: rows along `dim`, in parts if asked for."""
        answer = self.lean(network, *inputs, dim=dim)
        if isinstance(answer, Tensor):
            return answer.float()
        one, other = answer
        return one.float(), other.float()

    def lean(self, network: Callable[..., Answer], *inputs: NetworkInput, dim: int = 0) -> Answer:
        """Return what a network answers in the precision that it was computed in."""
        with self._precision():
            return self._in_parts(network, *inputs, dim=dim)

    def _down(self, loss: Tensor, name: str = "") -> dict[str, Tensor]:
        return self._descents[name](loss)

    def _follow(self) -> None:
        for slow in self._slow:
            slow.follow()

    def priorities(self) -> Array:
        """Return how wrong the agent was about each row of the newest batch."""
        match self._newest:
            case (errors,):
                pass
            case (q, target):
                errors = (q - target).abs_()
            case ():
                raise ConfigError(
                    f"`update` of {self._name} told neither `priority` nor `q` and `target`, so "
                    "there are no priorities; tell them, or use a replay without priorities, such "
                    "as UniformReplayConfig"
                )
            case _:
                raise ValueError("priorities are those of the newest batch, and there was none yet")
        priorities: Array = (errors if errors.ndim == 1 else errors.mean(dim=0)).cpu().numpy()
        return priorities

    def _forget(self) -> None:
        """Prepare for tensors of the agent having been replaced by others."""
        self._run.forget()
        self._told = {}


class UpdatingAgent(TorchAgent, ABC):
    """An agent that learns by updates: it states equations, and its `updater` does the rest.

    Hooks of a subclass, which makes `updater` when it is built:

        update(data)    the equations: learns from a batch on the device and returns numbers
        draw(rows)      what an update of so many rows draws, such as noise

    `updater` steps the optimizers and moves the slow copies that it was made with. A subclass that
    sets another `self.optimizer` makes another `Updater` too, and puts the optimizer into `parts`.

    Layers of dropout draw the same again after `load_state` if the agent has `random`, a numpy
    generator that is one of its `parts`, when `updater` is made.
    """

    updater: Updater
    read_obs: Callable[[Tensor], NetworkInput]

    @abstractmethod
    def update(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Learn from a batch on the device. Recorded or compiled, it is what runs each time.

        Beside its numbers it tells the `priority` of each row, or the values `q` that it learned
        from, (rows,) or (critics, rows), and the `target` they were moved to; or neither.
        """

    def draw(self, rows: int) -> dict[str, Tensor]:
        """Return what an update of so many rows draws, as further columns of its batch.

        It is drawn before, since an update that has been recorded would repeat itself.
        """
        return {}

    def opt(self, batch: Columns) -> Mapping[str, Tensor]:
        """Update once; tell numbers."""
        told = self.updater.step(batch, self.draw(len(batch["reward"])), self.env_steps)
        self.version = ModelVersion(self.version + 1)
        return told
