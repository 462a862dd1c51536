"""What agents made of torch modules share: parameters in and out, state in and out, devices.

An algorithm derives from `TorchPolicy` what acts and from `TorchAgent` what also learns, and is
left to say how. None of it is required: whatever fulfils `agent.py` is an agent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from asyncrl.agents._parts import Part, mismatch, prepare_part, tensors_of
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.messages import ModelInfo
from asyncrl.core.recorder import Record
from asyncrl.core.types import Array, ModelVersion, Params


class TorchPolicy:
    """Keeps the model that acts; a subclass adds `act`.

    The model is always in evaluation mode, whether `act` explores or not: what layers such as
    batch normalisation or dropout make of an observation depends on nothing else then, changes
    nothing, and is the same wherever it is computed.

    `env_steps` are those of the whole run, as far as this policy knows: what the newest model
    came with, or its own steps if those are more. Schedules count in them.
    """

    squashed: ClassVar[bool] = False
    """Whether `act` squashes what the model answers, by tanh, to between the actions' bounds."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.model = model.to(device).eval()
        self.device = device
        self.version = ModelVersion(0)
        self.env_steps = 0
        self._training = True

    @property
    def training(self) -> bool:
        """Whether `act` explores."""
        return self._training

    def train(self, mode: bool = True) -> Self:
        """Switch exploration on or off, and nothing else."""
        self._training = mode
        return self

    def record(self) -> Record:
        """Tell nothing about acting, unless a subclass does."""
        return {}

    def model_info(self) -> ModelInfo:
        """Return a snapshot of the model's parameters and buffers."""
        params = {
            name: value.detach().cpu().numpy().copy()
            for name, value in self.model.state_dict().items()
        }
        return ModelInfo(version=self.version, params=params, env_steps=self.env_steps)

    def sync_model(self, info: ModelInfo) -> None:
        """Take all of a snapshot, or raise and change nothing."""
        mine = self.model.state_dict()
        if wrong := mismatch({name: tuple(v.shape) for name, v in mine.items()}, info.params):
            raise ConfigError(
                f"the model of version {info.version} does not fit this policy's: {wrong}; all "
                "actors and the learner need the same networks"
            )
        with torch.no_grad():
            for name, value in info.params.items():
                mine[name].copy_(torch.from_numpy(np.array(value)))
        self.version = info.version
        self.env_steps = max(self.env_steps, info.env_steps)


class TorchAgent(TorchPolicy):
    """A policy that learns; a subclass adds `act` and `opt`, and registers its parts.

    Derive the acting half from `TorchPolicy` and the learning half from both, in this order:

        class MyPolicy(TorchPolicy): ...             # model, act; counts env_steps when training
        class MyAgent(MyPolicy, TorchAgent): ...     # self.parts |= {"optimizer": ...}; opt

    What `opt` learns through, it puts into `learning_mode`.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        super().__init__(model, device)
        self.parts: dict[str, Part] = {"model": self.model}
        """What `state` saves, by name; a subclass adds targets, optimizers, generators."""
        self.spare: Params = {}
        """Arrays that the next `state` may return again."""
        self.on_load: list[Callable[[], object]] = []
        """Called after `load_state`, which puts tensors of its own in the place of optimizers'."""

    def state(self) -> Params:
        """Return a copy of all parts and counters, as named arrays."""
        spare, self.spare = self.spare, {}
        state: dict[str, Array] = {
            "version": np.array(self.version),
            "env_steps": np.array(self.env_steps),
        }
        for part_name, part in self.parts.items():
            for key, value in tensors_of(part).items():
                name = f"{part_name}/{key}"
                state[name] = _copied(value, spare.get(name))
        return state

    def load_state(self, state: Params) -> None:
        """Go on from `state`, or raise and change nothing."""
        by_part = {name: _under(f"{name}/", state) for name in self.parts}
        left = set(state) - {"version", "env_steps"}
        left -= {f"{name}/{key}" for name, keys in by_part.items() for key in keys}
        if left or not {"version", "env_steps"} <= set(state):
            raise CheckpointError(
                f"this state is not this agent's: {sorted(left)[:3] or 'no version, no env_steps'}"
            )
        changes = [prepare_part(name, part, by_part[name]) for name, part in self.parts.items()]
        for change in changes:
            change()
        self.version = ModelVersion(int(state["version"]))
        self.env_steps = int(state["env_steps"])
        for hear in self.on_load:
            hear()


def pick_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            f"agent.device must be auto, cpu, cuda or cuda:N, got {name!r}"
        ) from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"agent.device is {name!r}, but torch {torch.__version__} sees no GPU")
    return device


def gpu_names() -> tuple[str, ...]:
    """Return what the GPUs are called that torch sees."""
    return tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Start torch's global generator from `seed`, only inside the block.

    Layers draw their first parameters from that generator and take no other.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@contextmanager
def learning_mode(*modules: nn.Module) -> Iterator[None]:
    """Let layers such as dropout do what they do while they learn, only inside the block."""
    for module in modules:
        module.train()
    try:
        yield
    finally:
        for module in modules:
            module.eval()


def learning_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are not frozen."""
    return [param for param in module.parameters() if param.requires_grad]


def flatten_parameters(module: nn.Module) -> tuple[Tensor, Tensor]:
    """Move what a module learns into one vector, and its gradient into another; return both.

    The module's parameters become views. Adam, the norm of the gradient and a soft update then
    take one operation each instead of one for each layer: for small networks, a fifth of the time
    of an optimisation step. The gradient must be set to zero in place, never to None.

    A recurrent layer's weights then lie amidst others. On a GPU, cuDNN warns of that once and
    copies them at each call; the layer's `flatten_parameters`, which the warning advises, would
    take them out of the vector, so that nothing learns them any more.
    """
    return _flatten(learning_parameters(module))


def flatten_pair(one: nn.Module, other: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Flatten two modules; return the vectors of each: its own, and one of what both share."""
    first, second = learning_parameters(one), learning_parameters(other)
    own = [param for param in first if param not in set(second)]
    others = [param for param in second if param not in set(first)]
    shared = [param for param in first if param in set(second)]
    mine, its, both = ([_flatten(part)[0]] if part else [] for part in (own, others, shared))
    return mine + both, its + both


def _flatten(params: list[nn.Parameter]) -> tuple[Tensor, Tensor]:
    flat = torch.cat([p.detach().flatten() for p in params]).requires_grad_()
    flat.grad = torch.zeros_like(flat)
    sizes = [p.numel() for p in params]
    parts = flat.detach().split(sizes), flat.grad.split(sizes)
    for param, value, grad in zip(params, *parts, strict=True):
        param.data, param.grad = value.view_as(param), grad.view_as(param)
    return flat, flat.grad


def buffer_copier(source: nn.Module, target: nn.Module) -> Callable[[], None]:
    """Return what gives a copy of a network the buffers that the network has by then.

    They are looked up each time, since a network may put another tensor in the place of one. What
    it normalises batches by, say, a slow copy takes as it is. To be called under `torch.no_grad`.
    """
    places = [
        (mine, its, name)
        for mine, its in zip(target.modules(), source.modules(), strict=True)
        for name, _ in its.named_buffers(recurse=False)
    ]

    def copy() -> None:
        for mine, its, name in places:
            mine.get_buffer(name).copy_(its.get_buffer(name))

    return copy


def clip_gradients(gradients: list[Tensor], max_norm: float) -> Tensor:
    """Scale gradients down, in place, to a norm of `max_norm` together; return the norm they had.

    Smaller ones stay as they are; all do where `max_norm` is 0.
    """
    one = len(gradients) == 1
    norm: Tensor = (
        torch.linalg.vector_norm(gradients[0]) if one else nn.utils.get_total_norm(gradients)
    )
    if max_norm:
        # g <- g * min(1, max_norm / |g|)
        torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp_(max=1.0))
    return norm


def use_threads(threads: int) -> None:
    """Let torch compute with so many CPU threads in this process; 0 leaves it as it is."""
    if threads:
        torch.set_num_threads(threads)


def _under(prefix: str, state: Params) -> dict[str, Array]:
    return {
        key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)
    }


def _copied(value: Tensor, spare: Array | None) -> Array:
    """Return a copy, in the place of an older one if there is one."""
    if spare is not None and spare.shape == tuple(value.shape):
        room = torch.from_numpy(spare)
        if room.dtype == value.dtype:
            room.copy_(value.detach())
            return spare
    array: Array = value.detach().cpu().numpy().copy()
    return array
