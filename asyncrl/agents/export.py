"""Policies in files of plain arrays, which `policy_numpy.py` acts by, with numpy alone.

The network is traced: what it does to a batch of observations becomes a list of operations. So
networks of the user's own can be exported, too, as far as they consist of operations that
`policy_numpy.OPERATIONS` lists, and remember nothing.
"""

from __future__ import annotations

import copy
import io
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from asyncrl.agent import evaluation_mode
from asyncrl.agents.networks import NetworkInput
from asyncrl.agents.recurrent import RecurrentCore
from asyncrl.agents.torch_agent import TorchPolicy
from asyncrl.env import BoxSpec, DiscreteSpec, EnvSpec, PackedSpec
from asyncrl.errors import ConfigError
from asyncrl.policy_numpy import FORMAT, OPERATIONS, Policy
from asyncrl.types import Array

__all__ = ["export_policy"]

_ATOL = 1e-5
_CHECKED_ROWS = 64
_TRACED_ROWS = 3

Fields = dict[str, Array]


def export_policy(policy: TorchPolicy, spec: EnvSpec, path: Path) -> None:
    """Write what a policy does without exploring, once it is seen that the file does the same.

    Raises `ConfigError` for policies that remember, and for networks that do what numpy is not
    told how to. Actions of a `DiscreteSpec` count from 0.
    """
    if any(isinstance(module, RecurrentCore) for module in policy.model.modules()):
        raise ConfigError("a policy that remembers cannot be exported; train one without a memory")
    obs = _some_observations(spec.observation)
    acting: Any = policy
    with evaluation_mode(acting):
        expected = acting.act(obs).action
    fields = spec.observation.unpack(obs) if isinstance(spec.observation, PackedSpec) else {"": obs}
    network = copy.deepcopy(policy.model).cpu().eval()
    inputs = acting.read_obs(torch.from_numpy(obs))
    for rows in (_TRACED_ROWS, 1):  # a network that looks at how many rows there are gets only one
        description, arrays = _trace(network, _rows(inputs, rows))
        description |= {
            "format": FORMAT,
            "any_batch": rows > 1,
            "observation": _observation(spec.observation),
            "action": _action(spec.action, squashed=policy.squashed),
        }
        arrays["description"] = np.frombuffer(json.dumps(description).encode(), np.uint8)
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # none is an option
        if _acts_so(file, fields, expected):
            path.write_bytes(file.getvalue())
            return
    raise ConfigError(
        f"{type(policy).__name__} does not act on what its network answers as exported policies "
        "do, by the best choice or by a mean scaled to the bounds of actions; it cannot be exported"
    )


def _acts_so(file: io.BytesIO, fields: Fields, expected: Array) -> bool:
    """Say whether an exported policy does what the policy does."""
    file.seek(0)
    try:
        action = Policy(file).act(fields.get("", fields))
    except ValueError:  # shapes that do not fit: the network has looked at how many rows there are
        return False
    return action.shape == expected.shape and np.allclose(action, expected, _ATOL, _ATOL)


def _some_observations(observation: BoxSpec | PackedSpec) -> Array:
    """Draw observations of a space."""
    random = np.random.default_rng(0)
    if isinstance(observation, PackedSpec):
        return observation.pack({name: _draw(box, random) for name, box in observation.fields})
    return _draw(observation, random)


def _draw(box: BoxSpec, random: np.random.Generator) -> Array:
    shape = (_CHECKED_ROWS, *box.shape)
    if np.dtype(box.dtype).kind in "iub":
        low, high = box.low.astype(np.int64), box.high.astype(np.int64)
        return random.integers(low, high, shape, endpoint=True).astype(box.dtype)
    return random.standard_normal(shape).clip(box.low, box.high).astype(box.dtype)


def _observation(observation: BoxSpec | PackedSpec) -> dict[str, Any]:
    """Describe fields, and to which inputs of the network each goes."""
    fields = observation.fields if isinstance(observation, PackedSpec) else (("", observation),)
    return {
        name: {"dtype": box.dtype, "shape": box.shape, "input": f"input {i}"}
        for i, (name, box) in enumerate(fields)
    }


def _action(action: BoxSpec | DiscreteSpec, *, squashed: bool) -> dict[str, Any]:
    said = {"dtype": action.dtype, "shape": action.shape}
    if isinstance(action, DiscreteSpec):
        return {**said, "kind": "choices", "low": [0], "high": [action.n - 1]}
    low, high = action.low.ravel().tolist(), action.high.ravel().tolist()
    kind = "choices" if action.categorical else "quantities"
    return {**said, "kind": kind, "low": low, "high": high, "squashed": squashed}


# --- what a network does -------------------------------------------------------------------------


def _rows(inputs: NetworkInput, count: int) -> NetworkInput:
    if isinstance(inputs, Tensor):
        return inputs[:count]
    return {name: field[:count] for name, field in inputs.items()}


class _Traced(nn.Module):
    """A network whose inputs are tensors without names."""

    def __init__(self, network: nn.Module, names: list[str] | None) -> None:
        super().__init__()
        self.network = network
        self._names = names

    def forward(self, *fields: Tensor) -> object:
        return self.network(
            fields[0] if self._names is None else dict(zip(self._names, fields, strict=True))
        )


def _trace(network: nn.Module, inputs: NetworkInput) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the operations that lead from inputs to the answer, and the arrays in them."""
    names = None if isinstance(inputs, Tensor) else list(inputs)
    tensors = [inputs] if isinstance(inputs, Tensor) else inputs.values()
    fields = tuple(tensor.contiguous() for tensor in tensors)
    any_rows = {0: torch.export.Dim.AUTO} if len(fields[0]) > 1 else None
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own
        program = torch.export.export(
            _Traced(network, names), fields, dynamic_shapes=((any_rows,) * len(fields),)
        )
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
    answer = places.get(signature.user_outputs[0], signature.user_outputs[0])
    return {"operations": operations, "answer": answer}, arrays


def _operation(node: fx.Node) -> str:
    """Return the name of an operation; torch calls its kinds `aten.NAME.KIND`."""
    target = str(getattr(node.target, "__name__", node.target))
    parts = str(node.target).split(".")
    name = parts[1] if parts[0] == "aten" else target
    if name not in OPERATIONS:
        raise ConfigError(
            f"the network does {node.target}, which exported policies cannot; they can "
            f"{', '.join(OPERATIONS)}"
        )
    return name


def _plain(argument: object, names: dict[str, str]) -> Any:  # noqa: ANN401  # JSON is
    """Write an argument of an operation as JSON can have it."""
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
