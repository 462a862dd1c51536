"""Policies as files of plain arrays for `policy_numpy.py`, or as ONNX models.

The network is traced: its forward pass on a batch of observations becomes a list of operations.
Custom networks can therefore be exported, too: to arrays if all their operations are in
`policy_numpy.OPERATIONS`, to ONNX if torch can export them. A recurrent state is an additional
input and output of the model.
"""

from __future__ import annotations

import copy
import io
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from asyncrl.agents.parts.networks import input_scale
from asyncrl.agents.parts.normalize import Normalized
from asyncrl.agents.parts.recurrent import RecurrentCore
from asyncrl.agents.parts.torch_agent import TorchPolicy
from asyncrl.core.agent import Policy as ActingPolicy
from asyncrl.core.agent import PolicyWrapper, evaluation_mode, forget
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec, PackedSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array, BoolArray
from asyncrl.export import policy_numpy
from asyncrl.export.policy_numpy import FORMAT, Policy, middle_and_half
from asyncrl.export.tracing import operations_of, some_observations, traced

_ATOL = 1e-5
_CHECKED = (1, 64)  # steps and rows
_CHECKED_REMEMBERING = (16, 16)
_BEGIN_SHARE = 0.2
_TRACED_ROWS = 3


class _Play(NamedTuple):
    """Observations of several steps, and the policy's actions."""

    obs: list[Array]
    begins: list[BoolArray]
    """Where an episode begins; everywhere in the first step."""
    actions: list[Array]


class _Exported(Protocol):
    """A policy loaded from a file."""

    def reset(self, begins: BoolArray) -> object:
        """Reset the memory of these environments."""
        ...

    def act(self, obs: Array | dict[str, Array]) -> Array:
        """Return the actions for a batch."""
        ...


def export_policy(policy: object, spec: EnvSpec, path: Path) -> None:
    """Write the greedy policy to a file, after checking that the file acts like the policy.

    A file that ends in .onnx is a model as described in `onnx_policy.py`; any other is for
    `policy_numpy.py`, which is copied beside it. The policy's evaluation memory is lost. Raises
    `ConfigError` for a network with operations that numpy has no equivalent for.
    """
    while isinstance(policy, PolicyWrapper):
        policy = policy.wrapped
    if not isinstance(policy, TorchPolicy):
        raise ConfigError(
            f"{type(policy).__name__} does not consist of torch modules, so it cannot be exported"
        )
    make = _onnx_file if path.suffix == ".onnx" else _numpy_file
    memory_size = _memory_size(policy.model)
    size = _CHECKED_REMEMBERING if memory_size else _CHECKED
    play = _played(policy, spec, *size)
    said: dict[str, Any] = {
        "format": FORMAT,
        "observation": _observation(spec.observation),
        "action": _action(spec.action, squashed=policy.chooser.squashed),
    }
    named = isinstance(spec.observation, PackedSpec)
    network = _Traced(
        copy.deepcopy(policy.model).cpu(), [*said["observation"]] if named else None, memory_size
    ).eval()
    for rows in (_TRACED_ROWS, 1):  # a network that depends on the number of rows gets only one
        fields = [*_by_field(spec.observation, play.obs[0][:rows]).values()]
        content, exported = make(network, fields, said | {"any_batch": rows > 1})
        if _acts_alike(exported, spec, play):
            _write(path, content)
            if make is _numpy_file:
                shutil.copyfile(policy_numpy.__file__, path.with_name("policy_numpy.py"))
            return
    raise ConfigError(
        f"{type(policy).__name__} does not derive actions from its network's output as exported "
        "policies do. Let `model(obs)` return either a value for each choice, of which `act` "
        "takes the highest, or continuous actions from -1 to 1, which it scales to the bounds "
        "(a chooser with `squashed = True`: their tanh). Nothing may be random. Other outputs "
        "belong in other methods of the network, as in examples/own_torch_agent.py"
    )


def _write(path: Path, content: bytes) -> None:
    """Write a whole file or none: a file of before may be in use."""
    path = path.resolve()  # a link stays, and leads to the new content
    draft = path.with_name(f".{path.name}")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _numpy_file(
    network: _Traced, fields: list[Array], said: dict[str, Any]
) -> tuple[bytes, _Exported]:
    """Return a file for `policy_numpy.py`, and a policy loaded from it."""
    scales = [field["scale"] for field in said["observation"].values()]
    read = [
        torch.from_numpy(x).float() / torch.tensor(s) for x, s in zip(fields, scales, strict=True)
    ]
    description, arrays = _operations(network, read)
    packed = np.frombuffer(json.dumps(said | description).encode(), np.uint8)
    file = io.BytesIO()
    np.savez_compressed(file, description=packed, **arrays)  # type: ignore[arg-type]  # no options
    file.seek(0)
    return file.getvalue(), Policy(file)


def _onnx_file(
    network: _Traced, fields: list[Array], said: dict[str, Any]
) -> tuple[bytes, _Exported]:
    """Return an ONNX model, and a policy loaded from it."""
    try:
        from asyncrl.export import onnx_policy  # noqa: PLC0415  # needs optional packages
    except ImportError as error:
        raise ConfigError(
            "a file that ends in .onnx needs a package that is not installed: pip install "
            "'asyncrl[onnx]'"
        ) from error
    acting = onnx_policy.Acting(network, said).eval()
    program = _trace(acting, [torch.from_numpy(x) for x in fields], network.memory_size)
    content = onnx_policy.onnx_model(program, said, remembers=network.memory_size > 0)
    return content, onnx_policy.RunningModel(content)


def _acts_alike(exported: _Exported, spec: EnvSpec, play: _Play) -> bool:
    """Whether an exported policy acts like the policy did, within float precision."""
    observation, atol = spec.observation, np.array(_ATOL)
    if isinstance(spec.action, BoxSpec):  # 0 in a wide range is a sum of large numbers
        atol = _ATOL * middle_and_half(spec.action.low, spec.action.high)[1]
    for obs, begins, expected in zip(*play, strict=True):
        exported.reset(begins)
        try:
            fields = _by_field(observation, obs)
            action = exported.act(fields if isinstance(observation, PackedSpec) else obs)
        except ValueError:  # shapes do not fit: the network depends on the number of rows
            return False
        if action.shape != expected.shape or not np.allclose(action, expected, _ATOL, atol):
            return False
    return True


def _played(policy: TorchPolicy, spec: EnvSpec, n_steps: int, n_rows: int) -> _Play:
    """Let a policy act on random observations of a space, over several episodes."""
    random = np.random.default_rng(0)
    begins = [random.random(n_rows) < _BEGIN_SHARE for _ in range(n_steps)]
    begins[0][:] = True
    obs = [some_observations(spec.observation, n_rows, random) for _ in begins]
    first = spec.action.start if isinstance(spec.action, DiscreteSpec) else 0
    actions = []
    acting = cast(ActingPolicy, policy)
    with evaluation_mode(acting):
        for seen, where in zip(obs, begins, strict=True):
            forget(acting, where)
            actions.append(acting.act(seen).action + first)
        forget(acting, np.ones_like(begins[0]))
    return _Play(obs, begins, actions)


def _by_field(observation: BoxSpec | PackedSpec, obs: Array) -> dict[str, Array]:
    return observation.unpack(obs) if isinstance(observation, PackedSpec) else {"": obs}


def _observation(observation: BoxSpec | PackedSpec) -> dict[str, Any]:
    """Describe the fields, and which input of the network each one is."""
    fields = observation.fields if isinstance(observation, PackedSpec) else (("", observation),)
    return {
        name: {
            "dtype": box.dtype,
            "shape": box.shape,
            "scale": input_scale(box),
            "input": f"input {i}",
        }
        for i, (name, box) in enumerate(fields)
    }


def _action(action: BoxSpec | DiscreteSpec, *, squashed: bool) -> dict[str, Any]:
    said = {"dtype": action.dtype, "shape": action.shape}
    if isinstance(action, DiscreteSpec):
        return {
            **said,
            "kind": "choices",
            "low": [action.start],
            "high": [action.start + action.n - 1],
        }
    low, high = action.low.ravel().tolist(), action.high.ravel().tolist()
    kind = "choices" if action.categorical else "quantities"
    return {**said, "kind": kind, "low": low, "high": high, "squashed": squashed}


def _memory_size(model: nn.Module) -> int:
    """Return the size of a network's memory per environment."""
    cores = [module for module in model.modules() if isinstance(module, RecurrentCore)]
    if len(cores) > 1 or (cores and not hasattr(_within(model), "step")):
        raise ConfigError(
            f"{type(model).__name__} has a memory, but not a single RecurrentCore that its method "
            "step(obs, memory) advances; it cannot be exported"
        )
    return sum(core.memory_size for core in cores)


def _within(model: nn.Module) -> nn.Module:
    """Return the network inside the normalisation of observations."""
    return model.network if isinstance(model, Normalized) else model


class _Traced(nn.Module):
    """A network whose inputs are unnamed tensors; the memory comes last."""

    def __init__(self, network: nn.Module, names: list[str] | None, memory_size: int) -> None:
        super().__init__()
        self.network = network
        self.memory_size = memory_size
        self._names = names

    def forward(self, *inputs: Tensor) -> object:
        fields = inputs[:-1] if self.memory_size else inputs
        obs = fields[0] if self._names is None else dict(zip(self._names, fields, strict=True))
        if not self.memory_size:
            return self.network(obs)
        step: Any = self.network.step
        return step(obs, inputs[-1])


def _trace(
    module: nn.Module, fields: list[Tensor], memory_size: int
) -> torch.export.ExportedProgram:
    """Return a module's output for fields, and for a memory if there is one."""
    rows = len(fields[0])
    memory = [torch.zeros(rows, memory_size)] if memory_size else []
    return traced(module, [*fields, *memory], any_rows=rows > 1)


def _operations(network: _Traced, fields: list[Tensor]) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the operations from inputs to output, and the arrays in them."""
    found = operations_of(_trace(network, fields, network.memory_size))
    answer, *others = found.answers
    description: dict[str, Any] = {
        "operations": found.operations,
        "answer": answer,
        "memory": None,
    }
    if network.memory_size:
        at = {"input": f"input {len(fields)}", "after": others[0]}
        description["memory"] = {"size": network.memory_size, **at}
    return description, found.arrays
