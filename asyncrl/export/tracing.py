"""Traces a network: its forward pass becomes a list of operations that `policy_numpy.py` runs.

`plan_acting` does so for a policy that also explores, see `acting.py`.
"""

from __future__ import annotations

import importlib
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx, nn

from asyncrl.agents.parts.torch_agent import TorchPolicy
from asyncrl.core.agent import AgentConfig, PolicyContext
from asyncrl.core.env import BoxSpec, EnvSpec, PackedSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.inference import NOISE, OBS
from asyncrl.core.types import Array, Columns
from asyncrl.export.acting import Acting, Network, plain_array
from asyncrl.export.policy_numpy import OPERATIONS

_TOLERANCE = 1e-4
_TRIES = 16
_MOST_CONSTANTS = 4096
"""Numbers in a network that are no parameters; more would make a plan too long."""


class Operations(NamedTuple):
    """What a traced module computes."""

    operations: list[list[Any]]
    """In order: the name of a result, of an operation, and its arguments. Inputs are called
    `input 0` and so on."""

    arrays: dict[str, Array]
    """Parameters, buffers and constants, by their names in operations."""

    answers: list[str]
    """Names of the module's outputs, in order."""


@contextmanager
def _without_directory() -> Iterator[None]:
    """Remove the directory that torch makes for compiled code, if it is new and empty."""
    there = [*Path(tempfile.gettempdir()).glob("torchinductor_*")]
    try:
        yield
    finally:
        # It may have been used, and torch may call its function otherwise one day.
        with suppress(OSError, ImportError, AttributeError):
            caches = importlib.import_module("torch._inductor.runtime.cache_dir_utils")
            made = Path(caches.default_cache_dir())
            if made not in there:
                made.rmdir()


@_without_directory()
def traced(
    module: nn.Module, inputs: list[Tensor], *, any_rows: bool
) -> torch.export.ExportedProgram:
    """Return a module's outputs for these inputs, perhaps for any number of rows."""
    rows = {0: torch.export.Dim.AUTO} if any_rows else None
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own warnings
        return torch.export.export(
            module,
            tuple(one.contiguous() for one in inputs),
            dynamic_shapes=((rows,) * len(inputs),),
        )


@_without_directory()
def operations_of(program: torch.export.ExportedProgram) -> Operations:
    """Return the operations of a traced module; raise `ConfigError` if numpy lacks one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own warnings
        program = program.run_decompositions({})
    signature = program.graph_signature
    own = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    own |= signature.inputs_to_lifted_tensor_constants
    known = {**program.state_dict, **program.constants}
    places = {name: f"input {i}" for i, name in enumerate(signature.user_inputs)}
    operations = [
        [node.name, _operation(node), *_plain([list(node.args), dict(node.kwargs)], places)]
        for node in program.graph.nodes
        if node.op == "call_function" and node.users
    ]
    used = {argument.name for node in program.graph.nodes for argument in node.all_input_nodes}
    arrays = {name: known[path].detach().numpy() for name, path in own.items() if name in used}
    answers = [places.get(name, name) for name in signature.user_outputs]
    return Operations(operations, arrays, answers)


class _Computed(nn.Module):
    """The network of a policy, from its inputs in order to its outputs, sorted by name."""

    def __init__(self, policy: TorchPolicy) -> None:
        super().__init__()
        self.model = policy.model
        self.inputs = tuple(column.name for column in policy.inference_inputs)
        self._compute = policy.compute

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs = self._compute(dict(zip(self.inputs, inputs, strict=True)))
        return tuple(outputs[name] for name in sorted(outputs))


def plan_acting(agent: AgentConfig, spec: EnvSpec) -> Acting:
    """Return how to act in one environment without torch; raise `ConfigError` if that cannot be.

    The plan's network is compared with the policy's on random observations.
    """
    policy = agent.build_policy(spec, PolicyContext(seed=0))
    if not isinstance(policy, TorchPolicy) or policy.chooser_spec is None:
        raise ConfigError(f"{type(policy).__name__} has no chooser that acts without its network")
    columns = {column.name: column for column in policy.inference_inputs}
    if NOISE in columns:
        raise ConfigError("networks with noise are not traced")
    computed = _Computed(policy).eval()
    zeros = {name: np.zeros((1, *c.shape), c.dtype) for name, c in columns.items()}
    outputs = sorted(policy.inference(zeros))
    given = [torch.from_numpy(rows) for rows in zeros.values()]
    try:
        found = operations_of(traced(computed, given, any_rows=False))
    except ConfigError:
        raise
    except Exception as error:  # torch has many kinds
        raise ConfigError(f"the network cannot be traced: {error!r:.200}") from error
    params = _params(found, policy.model)
    constants = {name: array for name, array in found.arrays.items() if name not in params}
    if sum(array.size for array in constants.values()) > _MOST_CONSTANTS:
        raise ConfigError("the network has large arrays that are no parameters")
    acting = Acting(
        chooser=policy.chooser_spec.kind,
        settings=policy.chooser_spec.settings,
        inputs=computed.inputs,
        outputs=dict(zip(outputs, found.answers, strict=True)),
        operations=tuple(found.operations),
        params=params,
        constants={name: plain_array(array) for name, array in constants.items()},
    )
    _check(acting, policy, spec)
    return acting


def _params(found: Operations, model: nn.Module) -> dict[str, str]:
    """Return which arrays of a trace are the model's, by their names in its state.

    Networks may keep parameters where tracing takes them for constants, so their memory counts.
    """
    held = {
        (value.data_ptr(), value.shape, value.stride()): name
        for name, value in model.state_dict().items()
        if value.numel()
    }
    known = {name: torch.from_numpy(array) for name, array in found.arrays.items()}
    places = {n: held.get((t.data_ptr(), t.shape, t.stride())) for n, t in known.items()}
    return {name: place for name, place in places.items() if place is not None}


def _check(acting: Acting, policy: TorchPolicy, spec: EnvSpec) -> None:
    """Raise if a plan's network computes something else than the policy's.

    With other parameters than those of the trace: a network may have used a copy of some.
    """
    network = Network(acting)
    random = np.random.default_rng(0)
    info = policy.model_info()
    changed = {name: _changed(array, random) for name, array in info.params.items()}
    policy.sync_model(replace(info, params=changed))
    network.load(policy.model_info().params)
    for _ in range(_TRIES):
        inputs: dict[str, Array] = {
            column.name: random.standard_normal((1, *column.shape)).astype(column.dtype)
            for column in policy.inference_inputs
            if column.name != OBS
        }
        inputs[OBS] = some_observations(spec.observation, 1, random)
        expected, got = policy.inference(inputs), _tried(network, inputs)
        for name, rows in expected.items():
            fits = name in got and got[name].shape == rows.shape
            if not (fits and np.allclose(got[name], rows, _TOLERANCE, _TOLERANCE)):
                raise ConfigError(f"its operations compute another {name} than the network")


def _changed(array: Array, random: np.random.Generator) -> Array:
    """Return other numbers near these; those of a variance stay positive."""
    if array.dtype.kind != "f":
        return array
    return (array * random.uniform(0.5, 1.5, array.shape) + 0.01).astype(array.dtype)


def _tried(network: Network, inputs: Columns) -> Columns:
    try:
        return network(inputs)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ConfigError(f"its operations fail in numpy: {error!r:.200}") from error


def some_observations(
    observation: BoxSpec | PackedSpec, count: int, random: np.random.Generator
) -> Array:
    """Sample observations of a space."""
    if isinstance(observation, PackedSpec):
        fields = {name: _draw(box, count, random) for name, box in observation.fields}
        return observation.pack(fields)
    return _draw(observation, count, random)


def _draw(box: BoxSpec, count: int, random: np.random.Generator) -> Array:
    shape = (count, *box.shape)
    if np.dtype(box.dtype).kind in "iub":
        kind = np.uint64 if box.dtype == "uint64" else np.int64
        low, high = box.low.astype(kind), box.high.astype(kind)
        return random.integers(low, high, shape, kind, endpoint=True).astype(box.dtype)
    return random.standard_normal(shape).clip(box.low, box.high).astype(box.dtype)


def _operation(node: fx.Node) -> str:
    """Return the name of an operation; torch calls its overloads `aten.NAME.KIND`."""
    target = str(getattr(node.target, "__name__", node.target))
    parts = str(node.target).split(".")
    name = parts[1] if parts[0] == "aten" else target
    if name not in OPERATIONS:
        raise ConfigError(
            f"the network uses {node.target}, which exported policies do not support; they support "
            f"{', '.join(OPERATIONS)}"
        )
    return name


def _plain(argument: object, names: dict[str, str]) -> Any:  # noqa: ANN401  # JSON is
    """Return an argument of an operation as plain JSON."""
    match argument:
        case fx.Node(name=name):
            return {"name": names.get(name, name)}
        case torch.dtype():
            return {"dtype": str(argument).removeprefix("torch.")}
        case list() | tuple():
            return [_plain(one, names) for one in argument]
        case dict():
            return {key: _plain(one, names) for key, one in argument.items()}
        case bool() | int() | float() | str():
            return argument
    return None
