"""What agents made of torch modules share: settings, models, state, devices.

A `TorchPolicy` is made of a network and a chooser. An algorithm derives from `TorchAgent`, which
has a policy. None of it is required: whatever implements the contract in `agent.py` is an agent.
"""

from __future__ import annotations

import hashlib
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from asyncrl.agents.parts.choosing import ChooserSpec
from asyncrl.agents.parts.inference import Compute, LocalInference, outputs_of
from asyncrl.agents.parts.networks import as_floats, observation_reader
from asyncrl.agents.parts.normalize import Normalized
from asyncrl.agents.parts.optimizers import FastOptimizer
from asyncrl.core.agent import Act, BatchKind, PolicyContext
from asyncrl.core.declared import COMMON, Count, Natural, check_declared
from asyncrl.core.env import BoxSpec, EnvSpec, PackedSpec
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.inference import Inference, observation_input
from asyncrl.core.messages import ModelInfo
from asyncrl.core.recorder import Record
from asyncrl.core.seeding import generator_state, prepare_generator
from asyncrl.core.segment import DISCOUNTED_RETURN, ColumnSpec
from asyncrl.core.types import Array, BoolArray, ModelVersion, Params
from asyncrl.metrics.machine import processor

CPU = torch.device("cpu")

_logger = logging.getLogger(__name__)

_SETTINGS = "settings"
"""Key of a saved torch optimizer: what it was created with, and the settings of its groups."""

_GENERATOR_BYTES = {"cpu": 5056, "cuda": 16}
"""State sizes of torch's generators: Mersenne Twister, or Philox's seed and offset."""

Part = (
    nn.Module
    | FastOptimizer
    | torch.optim.Optimizer
    | torch.Tensor
    | torch.Generator
    | np.random.Generator
)
"""What an agent's state consists of."""


Acceleration = Literal["auto", "off", "compile", "graphs"]

Precision = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchConfig(ABC):
    """Settings that do not depend on the algorithm; its config derives from this class."""

    device: Annotated[str, COMMON] = "auto"
    """Device of the learner: cpu, cuda, cuda:N, or auto, which takes a GPU if there is one. Actors
    compute on a CPU."""

    threads: Annotated[Natural | Literal["auto"], COMMON] = "auto"
    """CPU threads of torch in the learner's process. `auto` changes the number in the course of a
    run: it takes cores that are idle as long as optimisation steps take less time with them, and
    gives them back when others need them. 0 keeps torch's default, which takes all cores; beside
    busy actors an optimisation step then takes five to twelve times as long."""

    precision: Precision = "float32"
    """Precision of the learner's matrix products. Parameters, losses, actors, and the last layers
    of built-in networks stay in float32. On a CPU without instructions for bfloat16 (`avx512_bf16`
    or `amx_bf16` in /proc/cpuinfo), steps with bfloat16 can take three times as long. `auto` is
    float32 there, and bfloat16 elsewhere."""

    accelerate: Acceleration = "auto"
    """`graphs` captures an optimisation step on a GPU once and replays it. `compile` translates the
    whole step, with gradients and Adam, into one function of machine code: on a CPU a step of SAC,
    TD3, DQN or PPO then takes a quarter to a half less time. Compiling takes half a minute at first
    and five seconds in later runs, which find the code in the directory that a log line names,
    `TORCHINDUCTOR_CACHE_DIR`. Where something in a step cannot be compiled, such as a recurrent
    layer in torch 2.13, a log line says what, and the step runs as with `off`. `auto` is for agents
    and networks of asyncrl that learn from transitions; for others it is `off`. On a GPU it is
    `graphs`. On a CPU it begins as `off`. If more than four minutes of optimisation are ahead, a
    process of low priority compiles the step; the learner then waits five seconds, and continues as
    with `compile`. That takes actors, a C++ compiler, and no recorded order: runs that repeat bit
    for bit stay as with `off`."""

    normalize_obs: bool = False
    """Normalise observations by their running mean and standard deviation, images pixel by pixel.
    Discrete observations stay as they are."""

    normalize_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return, which the step
    processor stores with each row. Results are clipped to [-10, 10]."""

    accumulate: Count = 1
    """Gradient accumulation: the number of parts in which a batch passes the networks. More parts
    take less memory, but one more pass. Use it for large networks; with small ones each part takes
    as long as the whole batch. Trajectories and sequences stay whole, so there are at most as many
    parts as trajectories or sequences."""

    learns_from: ClassVar[BatchKind] = "transitions"

    can_accumulate: ClassVar[bool] = False
    """Whether the algorithm supports gradient accumulation."""

    def __post_init__(self) -> None:
        check_declared(self, "agent")
        if self.accumulate > 1 and not self.can_accumulate:
            raise ConfigError(
                f"agent.accumulate={self.accumulate} has no effect on {type(self).__name__}, which "
                "does not support gradient accumulation; set it to 1, and use smaller batches"
            )
        if self.accumulate > 1 and self.accelerate in {"compile", "graphs"}:
            raise ConfigError(
                f"agent.accumulate={self.accumulate} computes parts of a batch twice to save "
                f"memory, which agent.accelerate={self.accelerate!r} would undo; set only one of "
                "the two"
            )
        if self.accelerate == "graphs" and self.learns_from != "transitions":
            raise ConfigError(
                "agent.accelerate='graphs' needs batches of one shape, and the number of "
                f"{self.learns_from} in a batch varies; set it to off"
            )

    @abstractmethod
    def policy(self, spec: EnvSpec, context: PolicyContext, device: torch.device) -> TorchPolicy:
        """Return a policy that computes on a device."""

    def build_policy(self, spec: EnvSpec, context: PolicyContext) -> TorchPolicy:
        """Return an actor's policy, which computes on a CPU."""
        return self.policy(spec, context, CPU)

    @property
    def norm_columns(self) -> tuple[ColumnSpec, ...]:
        """Columns that normalisation needs; a step processor fills them."""
        return (ColumnSpec(DISCOUNTED_RETURN, "float32"),) if self.normalize_reward else ()

    def extra_columns(self, spec: EnvSpec) -> tuple[ColumnSpec, ...]:
        """Return the columns that normalisation needs; an agent that stores more adds its own."""
        return self.norm_columns

    def with_norms(self, network: nn.Module, observation: BoxSpec | PackedSpec) -> nn.Module:
        """Return the network, wrapped in the normalisation that is on, if any."""
        if not self.normalize_obs and not self.normalize_reward:
            return network
        seen = observation if self.normalize_obs else None
        return Normalized(network, seen, rewards=self.normalize_reward)

    def precision_on(self, device: torch.device) -> Callable[[], AbstractContextManager[object]]:
        """Return the context in which to multiply matrices: one for each pass of a network.

        Within one context torch converts each parameter once, so parameters must not change there.
        """
        on_cpu, auto = device.type == "cpu", self.precision == "auto"
        if self.precision == "float32" or (auto and on_cpu and "BF16" not in processor()):
            return nullcontext
        return partial(torch.autocast, device.type, torch.bfloat16)


class TorchPolicy:
    """A chooser, and the network that it asks.

    Attributes:
        model: The acting model. The learner sends its parameters and buffers to actors.
        net: The model without normalisation.
        device: Device of the model: a CPU for an actor's policy.
        read_obs: Converts stored observations to inputs of the model.
        chooser: Chooses actions from what its `inference` computes. It counts `env_steps`.
        chooser_spec: Builds the chooser for an actor whose network is computed elsewhere; None if
            a subclass has changed how it acts.
        compute: Maps inputs on the device, by name, to outputs there.
        inference_inputs: What it takes. Noise may be left out.
        version: Number of the newest model, set by the run.

    Outside of updates the model is in evaluation mode, whether `act` explores or not. Layers such
    as batch normalisation or dropout then depend on the observation alone, change no state, and
    compute the same everywhere.
    """

    def __init__(
        self,
        model: nn.Module,
        chooser_spec: ChooserSpec,
        spec: EnvSpec,
        context: PolicyContext,
        device: torch.device = CPU,
        *,
        compute: Compute | None = None,
        inputs: Sequence[ColumnSpec] = (),
    ) -> None:
        """Set up.

        Args:
            model: Maps observations to outputs, unless `compute` says how to use it.
            chooser_spec: What chooses from the outputs.
            spec: Kind of the environments.
            context: Where it acts.
            device: Where the model computes.
            compute: Returns `outputs` for `obs` and further inputs, and the `memory` after them if
                there is one before; by default, `outputs` are the model's.
            inputs: What `compute` takes besides observations.
        """
        self.model = model.to(device).eval()
        self.net = model.network if isinstance(model, Normalized) else model
        self.device = device
        self.read_obs = observation_reader(spec.observation)
        self.compute = compute or outputs_of(self.model, self.read_obs)
        is_plain = compute is None and self.read_obs is as_floats
        self.inference_inputs = (*observation_input(spec), *inputs)
        self.chooser_spec = chooser_spec if type(self).act is TorchPolicy.act else None
        self.chooser = chooser_spec(spec, context)
        self.chooser.inference = LocalInference(self.model, self.compute, device, plain=is_plain)
        self.version = ModelVersion(0)

    def act(self, obs: Array) -> Act:
        """Choose an action for each observation; explore if `training`."""
        return self.chooser.act(obs)

    @property
    def training(self) -> bool:
        """Whether `act` explores."""
        return self.chooser.training

    def train(self, mode: bool = True) -> Self:
        """Switch exploration on or off; the model stays in evaluation mode."""
        self.chooser.train(mode)
        return self

    def forget(self, where: BoolArray) -> None:
        """Forget what was seen in environments in which an episode begins."""
        self.chooser.forget(where)

    def spread(self, n_actors: int) -> None:
        """Take the place on a ladder of exploration in a run with this number of actors."""
        self.chooser.spread(n_actors)

    def record(self) -> Record:
        """Return numbers about acting."""
        return self.chooser.record()

    @property
    def env_steps(self) -> int:
        """Environment steps of the whole run, as far as known here."""
        return self.chooser.env_steps

    @env_steps.setter
    def env_steps(self, env_steps: int) -> None:
        self.chooser.env_steps = env_steps

    @property
    def inference(self) -> Inference:
        """What computes the network for the chooser."""
        return self.chooser.inference

    @inference.setter
    def inference(self, inference: Inference) -> None:
        self.chooser.inference = inference

    def model_info(self) -> ModelInfo:
        """Return a snapshot of the model's parameters and buffers."""
        params = {
            name: value.detach().cpu().numpy().copy()
            for name, value in self.model.state_dict().items()
        }
        return ModelInfo(version=self.version, params=params, env_steps=self.env_steps)

    def sync_model(self, info: ModelInfo) -> None:
        """Load a whole snapshot, or raise and change nothing."""
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


class TorchAgent:
    """A policy, and parts that learn; a subclass adds `opt` and registers its parts.

    `opt` puts the networks that it trains into training mode, and back into evaluation mode.
    `UpdatingAgent` has an `opt` for those who would rather write equations only.

    Attributes:
        policy: What acts.
        model: The policy's.
        net: The model without normalisation.
        device: The model's.
        read_obs: Converts stored observations to inputs of networks.
        version: Number of the newest model, set by the run. A subclass may count its `opt` calls
            here, for what it does in every n-th one; it is saved.
        parts: What `state` saves, by name, beside `version` and `env_steps`: modules, optimizers,
            tensors and generators. It contains the model and the chooser's generator; add target
            networks, optimizers and other generators. `resume` keeps a learning rate that was set
            during the run, unless the agent is then built with another one: the settings take
            precedence. Settings of torch's optimizers, such as betas, are kept unless one of those
            that it is created with has changed.
        on_load: Functions called after `load_state`. It writes in place, but replaces the tensors
            of a torch optimizer: update references to them here.
        spare: An older state whose memory the next `state` may reuse; the trainer fills it.
    """

    def __init__(self, policy: TorchPolicy) -> None:
        self.policy = policy
        self.model, self.net, self.device = policy.model, policy.net, policy.device
        self.read_obs = policy.read_obs
        self.version = ModelVersion(0)
        self.parts: dict[str, Part] = {"model": self.model, "random": policy.chooser.random}
        self.spare: Params = {}
        self.on_load: list[Callable[[], object]] = []

    def act(self, obs: Array) -> Act:
        """Act as the policy."""
        return self.policy.act(obs)

    @property
    def training(self) -> bool:
        """Whether `act` explores."""
        return self.policy.training

    def train(self, mode: bool = True) -> Self:
        """Switch exploration on or off; the model stays in evaluation mode."""
        self.policy.train(mode)
        return self

    def forget(self, where: BoolArray) -> None:
        """Forget what the policy saw in environments in which an episode begins."""
        self.policy.forget(where)

    def record(self) -> Record:
        """Return numbers about acting."""
        return self.policy.record()

    def model_info(self) -> ModelInfo:
        """Return a snapshot of the model's parameters and buffers."""
        return replace(self.policy.model_info(), version=self.version)

    def sync_model(self, info: ModelInfo) -> None:
        """Load a whole snapshot, or raise and change nothing."""
        self.policy.sync_model(info)
        self.version = info.version

    @property
    def env_steps(self) -> int:
        """Environment steps of the whole run, as far as known here."""
        return self.policy.env_steps

    @env_steps.setter
    def env_steps(self, env_steps: int) -> None:
        self.policy.env_steps = env_steps

    def state(self) -> Params:
        """Return a copy of all parts and counters, as named arrays."""
        spare, self.spare = self.spare, {}
        state: dict[str, Array] = {
            "version": np.array(self.version),
            "env_steps": np.array(self.env_steps),
        }
        for part_name, part in self.parts.items():
            if not isinstance(part, Part):
                raise ConfigError(
                    f"part {part_name!r} of {type(self).__name__} is a {type(part).__name__}, "
                    "which cannot be saved; `parts` takes modules, optimizers, tensors and "
                    "generators. An optimizer is saved with its learning rate; keep counts in a "
                    "tensor"
                )
            for key, value in tensors_of(part).items():
                name = f"{part_name}/{key}"
                state[name] = _copied(value, spare.get(name))
        return state

    def load_state(self, state: Params) -> None:
        """Load `state`, or raise and change nothing."""
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


def mismatch(expected: Mapping[str, tuple[int, ...]], given: Mapping[str, Array | Tensor]) -> str:
    """Describe how names or shapes differ; empty if they do not."""
    if missing := sorted(set(expected) - set(given)):
        return f"it lacks {missing[0]}"
    if unknown := sorted(set(given) - set(expected)):
        return f"it has {unknown[0]}, which is unknown here"
    for name, shape in expected.items():
        if (its := tuple(given[name].shape)) != shape:
            return f"{name} has shape {its}, expected {shape}"
    return ""


def tensors_of(part: Part) -> dict[str, Tensor]:
    """Return the tensors to save of a part; some are the part's own, not copies."""
    match part:
        case nn.Module():
            return dict(part.state_dict())
        case FastOptimizer():
            return part.state()
        case torch.optim.Optimizer():
            return _optimizer_tensors(part)
        case torch.Tensor():
            return {"value": part}
        case torch.Generator():
            return {"state": part.get_state()}
        case np.random.Generator():
            return {"state": torch.from_numpy(generator_state(part))}


def _as_bytes(value: object) -> Tensor:
    words = json.dumps(value, default=float).encode()
    return torch.frombuffer(bytearray(words), dtype=torch.uint8)


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    saved = optimizer.state_dict()
    moments = {
        f"{place}/{slot}": torch.as_tensor(value)
        for place, slots in saved["state"].items()
        for slot, value in slots.items()
    }
    settings = [_settings_of(group) for group in (optimizer.defaults, *saved["param_groups"])]
    return {**moments, _SETTINGS: _as_bytes(settings)}


def _settings_of(group: Mapping[str, Any]) -> dict[str, Any]:
    kinds = bool, int, float, str, tuple, list, Tensor, type(None)
    return {key: value for key, value in group.items() if isinstance(value, kinds)}


def prepare_part(name: str, part: Part, saved: Params) -> Callable[[], object]:
    """Check the saved state of a part; return a function that loads it."""
    if isinstance(part, torch.optim.Optimizer):
        return _prepare_optimizer(name, part, saved)
    if isinstance(part, torch.Generator):
        return _prepare_generator(name, part, saved)
    now = {key: tuple(value.shape) for key, value in tensors_of(part).items()}
    if isinstance(part, np.random.Generator) and set(saved) == {"state"}:
        now = {"state": saved["state"].shape}  # its integers may have any number of digits
    if wrong := mismatch(now, saved):
        raise CheckpointError(f"the saved {name} does not fit this agent's: {wrong}")
    tensors = {key: torch.from_numpy(np.array(value)) for key, value in saved.items()}
    match part:
        case nn.Module():
            return lambda: part.load_state_dict(tensors)
        case FastOptimizer():
            return lambda: part.load(tensors)
        case torch.Tensor():
            return lambda: part.data.copy_(tensors["value"])
    return prepare_generator(name, part, saved["state"])


def _prepare_generator(name: str, part: torch.Generator, saved: Params) -> Callable[[], object]:
    here = part.device.type
    given = {key: (value.dtype.name, value.shape) for key, value in saved.items()}
    for there, size in _GENERATOR_BYTES.items():
        if there != here and given == {"state": ("uint8", (size,))}:
            return partial(_reseed, name, part, saved["state"], there)
    if wrong := mismatch({"state": tuple(part.get_state().shape)}, saved):
        raise CheckpointError(f"the saved {name} does not fit this agent's: {wrong}")
    state = torch.from_numpy(np.array(saved["state"]))
    return lambda: part.set_state(state)


def _reseed(name: str, part: torch.Generator, saved: Array, there: str) -> None:
    """Seed a generator from the saved state of a generator on another device."""
    _logger.warning(
        "the saved %s is the state of a generator on %s; on %s it is seeded from that state: the "
        "run continues, but not bit for bit",
        name,
        there,
        part.device.type,
    )
    part.manual_seed(int.from_bytes(hashlib.sha256(saved.tobytes()).digest()[:7]))


def _prepare_optimizer(
    name: str, part: torch.optim.Optimizer, saved: Params
) -> Callable[[], object]:
    params = [param for group in part.param_groups for param in group["params"]]
    moments = {key: value for key, value in saved.items() if key != _SETTINGS}
    state = _by_place(name, params, moments)
    if _SETTINGS not in saved:
        raise CheckpointError(f"the saved {name} lacks {_SETTINGS}")
    made_with, *groups = json.loads(saved[_SETTINGS].tobytes())
    own = part.state_dict()
    # Settings that the optimizer is now created with have precedence.
    if json.dumps(made_with) == json.dumps(_settings_of(part.defaults), default=float):
        for group, its in zip(own["param_groups"], groups, strict=False):
            group |= {key: _like(group[key], its[key]) for key in its.keys() - {"params"}}
    return lambda: part.load_state_dict({**own, "state": state})


def _like(now: object, saved: Any) -> object:  # noqa: ANN401  # what JSON has
    if isinstance(now, Tensor):
        return now.new_tensor(saved)
    return tuple(saved) if isinstance(saved, list) else saved


def _by_place(name: str, params: Sequence[Tensor], saved: Params) -> dict[int, dict[str, Tensor]]:
    """Return an optimizer's state by parameter; raise if it does not fit these."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in saved.items():
        place, _, slot = key.partition("/")
        if not place.isdigit() or int(place) >= len(params):
            raise CheckpointError(f"the saved {name} has {key}, which is unknown here")
        shape = _moment_shape(slot, tuple(params[int(place)].shape))
        if value.shape not in {(), shape}:
            raise CheckpointError(
                f"the saved {name} does not fit: {key} has shape {value.shape}, expected {shape}"
            )
        state.setdefault(int(place), {})[slot] = torch.from_numpy(np.array(value))
    return state


_AVERAGED = {"row_var": -1, "col_var": -2}
"""Moments of torch.optim.Adafactor -> the dimension of a parameter over which they are averaged."""


def _moment_shape(slot: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a moment of a parameter of this shape.

    Fused optimizers of torch read and write beyond the end of one that is smaller.
    """
    if slot not in _AVERAGED or len(shape) < 2:
        return shape
    averaged = list(shape)
    averaged[_AVERAGED[slot]] = 1
    return tuple(averaged)


def gpu_names() -> tuple[str, ...]:
    """Return the names of the GPUs that torch sees."""
    return tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generator inside the block, and restore it afterwards.

    Layers initialise their parameters from that generator and accept no other.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def learning_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are not frozen."""
    return [param for param in module.parameters() if param.requires_grad]


def flatten_parameters(module: nn.Module) -> Tensor:
    """Move a module's parameters into one vector, whose gradient holds theirs; return it.

    The module's parameters become views. Adam, the gradient norm and Polyak averaging then take one
    operation each instead of one per layer: for small networks, this saves a fifth of the time of
    an optimisation step. Set the gradient to zero in place, never to None.

    Recurrent layers come first. On a GPU, cuDNN uses the weights of a layer in place only if they
    begin their memory block and are contiguous. It copies those of other layers at each call, and
    warns once. The layer's `flatten_parameters`, which that warning recommends, would take them out
    of the vector, so that they would no longer be updated.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, nn.RNNBase)]
    recurrent = {param for layer in layers for param in layer.parameters()}
    return _flatten(sorted(learning_parameters(module), key=lambda param: param not in recurrent))


def flatten_pair(one: nn.Module, other: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Flatten two modules; return the vectors of each: its own, and one of shared parameters."""
    first, second = learning_parameters(one), learning_parameters(other)
    own = [param for param in first if param not in set(second)]
    others = [param for param in second if param not in set(first)]
    shared = [param for param in first if param in set(second)]
    mine, its, both = ([_flatten(part)] if part else [] for part in (own, others, shared))
    return mine + both, its + both


def _flatten(params: list[nn.Parameter]) -> Tensor:
    flat = torch.cat([p.detach().flatten() for p in params]).requires_grad_()
    flat.grad = torch.zeros_like(flat)
    flat.leaves = params  # type: ignore[attr-defined]  # see `leaves_of`
    sizes = [p.numel() for p in params]
    parts = flat.detach().split(sizes), flat.grad.split(sizes)
    for param, value, grad in zip(params, *parts, strict=True):
        param.data, param.grad = value.view_as(param), grad.view_as(param)
    return flat


def _under(prefix: str, state: Params) -> dict[str, Array]:
    return {
        key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)
    }


def _copied(value: Tensor, spare: Array | None) -> Array:
    """Return a copy, written into an older array if there is one."""
    if spare is not None and spare.shape == tuple(value.shape):
        room = torch.from_numpy(spare)
        if room.dtype == value.dtype:
            room.copy_(value.detach())
            return spare
    array: Array = value.detach().cpu().numpy().copy()
    return array
