"""Policies as ONNX models, made of the operations that tracing has found.

    session = onnxruntime.InferenceSession("policy.onnx")
    (action,) = session.run(None, {"obs": obs})            # (n, ...); fields are "obs/NAME"

A model has no memory of its own: that goes in, zeros where an episode begins, and comes out.

    action, memory = session.run(None, {"obs": obs, "memory": memory})

Needs the package onnx (extra: `asyncrl[onnx]`), whose reference evaluator tells what a model does.
"""
# ruff: noqa: ANN401  # operations take what their tracing has found: values, numbers, lists

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ValueInfoProto, helper, load_from_string
from onnx.reference import ReferenceEvaluator

from asyncrl.agents._onnx_nodes import NODES, Graph, Value, like_of
from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array, BoolArray
from asyncrl.policy_numpy import OPERATIONS, argument_value, middle_and_half

_OPSET, _IR_VERSION = 18, 8
"""Of onnx 1.13, so that runtimes since the end of 2022 can read the models."""

_DOC = "A greedy policy. memory, if there is one: memory_after of the step before, or zeros."


class EvaluatedModel:
    """Acts as a model says, in onnx's own evaluator."""

    def __init__(self, content: bytes) -> None:
        model = load_from_string(content)
        self._evaluator = ReferenceEvaluator(model)
        shapes = {one.name: one.type.tensor_type.shape.dim for one in model.graph.input}
        self._any_batch = all(shape[0].dim_param for shape in shapes.values())
        self._memory_size = shapes["memory"][1].dim_value if "memory" in shapes else 0
        self._memory = np.zeros((0, self._memory_size), np.float32)

    def reset(self, begins: BoolArray) -> None:
        """Forget what went before where (B,) an episode begins; everywhere at first."""
        if not len(self._memory):
            self._memory = np.zeros((len(begins), self._memory_size), np.float32)
        self._memory = np.where(begins[:, None], np.float32(0.0), self._memory)

    def act(self, obs: Any) -> Array:
        """Return the actions for a batch of observations."""
        fields = obs if isinstance(obs, Mapping) else {"": obs}
        inputs = {_input(name): array for name, array in fields.items()}
        if self._memory_size:
            inputs["memory"] = self._memory
        one_by_one = [slice(i, i + 1) for i in range(len(self._memory))]
        runs = [
            self._run({name: array[rows] for name, array in inputs.items()})
            for rows in ([slice(None)] if self._any_batch else one_by_one)
        ]
        action, *memory = (np.concatenate(parts) for parts in zip(*runs, strict=True))
        if memory:
            self._memory = memory[0]
        return action

    def _run(self, inputs: dict[str, Array]) -> list[Array]:
        try:
            answers: Any = self._evaluator.run(None, inputs)
        except (RuntimeError, TypeError) as error:  # so it says that shapes do not fit
            raise ValueError(f"the model cannot be run: {error}") from error
        return [*answers]


def onnx_model(description: Mapping[str, Any], arrays: Mapping[str, Array], rows: int) -> bytes:
    """Return a model of what was traced with so many rows."""
    graph = Graph()
    n = "n" if description["any_batch"] else 1
    values: dict[str, Any] = {
        name: Value(graph.constant(array, array.dtype), array) for name, array in arrays.items()
    }
    inputs = []
    for name, field in description["observation"].items():
        inputs.append(_info(_input(name), field["dtype"], (n, *field["shape"])))
        like = np.zeros((rows, *field["shape"]), field["dtype"])
        x = graph.of(Value(_input(name), like), np.dtype("float32"))
        if field["scale"] != 1:
            x = graph.add("Div", x, graph.constant(field["scale"], "float32"))
        values[field["input"]] = Value(x, like.astype(np.float32))
    remembered = description["memory"]
    if remembered:
        inputs.append(_info("memory", "float32", (n, remembered["size"])))
        like = np.zeros((rows, remembered["size"]), np.float32)
        values[remembered["input"]] = Value("memory", like)
    for operation in description["operations"]:
        _follow(graph, values, *operation)
    said = description["action"]
    outputs = [_info("action", said["dtype"], (n, *said["shape"]))]
    graph.add("Identity", _act(graph, values[description["answer"]], said), out="action")
    if remembered:
        outputs.append(_info("memory_after", "float32", (n, remembered["size"])))
        graph.add("Identity", values[remembered["after"]].name, out="memory_after")
    made = helper.make_graph(
        graph.nodes, "policy", inputs, outputs, graph.constants, doc_string=_DOC
    )
    opset = helper.make_opsetid("", _OPSET)
    model = helper.make_model(
        made, producer_name="asyncrl", opset_imports=[opset], ir_version=_IR_VERSION
    )
    content: bytes = model.SerializeToString()
    return content


def _input(field: str) -> str:
    return f"obs/{field}" if field else "obs"


def _info(name: str, dtype: str, shape: Sequence[int | str]) -> ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, kind, shape)


def _follow(
    graph: Graph, values: dict[str, Any], out: str, name: str, args: Any, kwargs: Any
) -> None:
    """Add what does one operation; sizes become numbers, as they were when it was traced."""
    args = argument_value(args, values)
    kwargs = {key: argument_value(arg, values) for key, arg in kwargs.items()}
    if name == "getitem":
        values[out] = args[0][args[1]]
        return
    known = {key: like_of(arg) for key, arg in kwargs.items()}
    try:
        with np.errstate(all="ignore"):
            like = OPERATIONS[name](*map(like_of, args), **known)
    except ValueError as error:
        raise ConfigError(
            f"the network does {name} as exported policies cannot: {error}"
        ) from error
    if isinstance(like, int):
        values[out] = like
        return
    made = NODES[name](graph, like, *args, **kwargs)
    is_one = isinstance(made, str)
    values[out] = Value(made, like) if is_one else list(map(Value, made, like))


def _act(graph: Graph, answer: Value, said: Mapping[str, Any]) -> str:
    """Add what leads from the network's answer to actions, as `policy_numpy.Policy` does."""
    low, high = (np.array(said[side]) for side in ("low", "high"))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(said["dtype"]))
    x = answer.name
    if said["kind"] == "choices":
        parts = graph.split(x, high - low + 1, 1)
        best = [graph.add("ArgMax", part, axis=1) for part in parts]
        x = graph.add("Add", graph.add("Concat", *best, axis=1), graph.constant(low, "int64"))
        x = graph.add("Cast", x, to=kind)
    else:
        from_to = [graph.constant([number], "int64") for number in (0, low.size, 1)]
        x = graph.add("Slice", x, *from_to)
        x = graph.add("Tanh", x) if said["squashed"] else x
        center, half = (graph.constant(side, "float32") for side in middle_and_half(low, high))
        x = graph.add("Add", graph.add("Mul", x, half), center)
        x = graph.add("Cast", x, to=kind)
        x = graph.add("Max", x, graph.constant(low, said["dtype"]))
        x = graph.add("Min", x, graph.constant(high, said["dtype"]))
    return graph.add("Reshape", x, graph.constant([-1, *said["shape"]], "int64"))
