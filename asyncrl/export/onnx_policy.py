"""Policies as ONNX models, made of the operations that tracing has found.

    session = onnxruntime.InferenceSession("policy.onnx")
    (action,) = session.run(None, {"obs": obs})            # (n, ...); fields are "obs/NAME"

A model has no memory of its own: that goes in, zeros where an episode begins, and comes out.

    action, memory = session.run(None, {"obs": obs, "memory": memory})

Needs the package onnx (extra: `asyncrl[onnx]`), whose reference evaluator tells what a model does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto, ValueInfoProto, helper, load_from_string, numpy_helper
from onnx.reference import ReferenceEvaluator

from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array, BoolArray
from asyncrl.export.policy_numpy import OPERATIONS, argument_value, middle_and_half


class Value(NamedTuple):
    """What a name in a graph stands for."""

    name: str
    like: Array
    """Of the same dtype, and of the same shape but for the number of rows."""


class Graph:
    """Nodes and constants so far."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[TensorProto] = []

    def add(self, kind: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        """Add a node; return what its output is called."""
        name = out or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def split(self, x: str, sizes: Sequence[int], axis: int) -> list[str]:
        """Split; return what the parts are called."""
        names = [f"v{len(self.nodes)}.{i}" for i in range(len(sizes))]
        inputs = [x, self.constant(sizes, "int64")]
        self.nodes.append(helper.make_node("Split", inputs, names, axis=axis))
        return names

    def constant(self, value: Any, dtype: Any) -> str:
        """Add an array; return what it is called."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def of(self, x: Any, dtype: Any) -> str:
        """Return what a value, or a number, is called once it has that dtype."""
        if not isinstance(x, Value):
            return self.constant(x, dtype)
        if x.like.dtype == dtype:
            return x.name
        return self.add("Cast", x.name, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def like_of(arg: Any) -> Any:
    """Return the arrays that values in an argument are like."""
    if isinstance(arg, list):
        return [like_of(one) for one in arg]
    return arg.like if isinstance(arg, Value) else arg


def _plain(kind: str) -> Callable[..., str]:
    return lambda graph, _, x: graph.add(kind, x.name)


def _combined(kind: str) -> Callable[..., str]:
    def add(graph: Graph, _: Array, a: Any, b: Any, *, alpha: float = 1) -> str:
        dtype = np.result_type(like_of(a), like_of(b))
        left, right = graph.of(a, dtype), graph.of(b, dtype)
        right = right if alpha == 1 else graph.add("Mul", right, graph.constant(alpha, dtype))
        return graph.add(kind, left, right)

    return add


def _reduced(kind: str) -> Callable[..., str]:
    def add(
        graph: Graph, _: Array, x: Value, dim: Any = None, keepdim: bool = False, **__: Any
    ) -> str:
        axes = ([dim] if isinstance(dim, int) else dim) or list(range(x.like.ndim))
        return graph.add(kind, x.name, graph.constant(axes, "int64"), keepdims=int(keepdim))

    return add


def _reshaped(graph: Graph, out: Array, x: Value, *_: Any) -> str:
    shape = list(out.shape)
    if shape:  # 0 is as many as x has, -1 as many as are left
        shape[0] = 0 if x.like.shape[:1] == out.shape[:1] else -1
    return graph.add("Reshape", x.name, graph.constant(shape, "int64"))


def _linear(graph: Graph, _: Any, x: Value, weight: Value, bias: Value | None = None) -> str:
    if x.like.ndim == 2:
        biases = [] if bias is None else [bias.name]
        return graph.add("Gemm", x.name, weight.name, *biases, transB=1)
    product = graph.add("MatMul", x.name, graph.add("Transpose", weight.name, perm=[1, 0]))
    return product if bias is None else graph.add("Add", product, bias.name)


def _conv2d(
    graph: Graph, _: Array, x: Value, weight: Value, bias: Value | None = None, *how: Any
) -> str:
    given = [*how, *(1, 0)[len(how) :]][:2]
    strides, pads = ([one, one] if isinstance(one, int) else [one[0], one[-1]] for one in given)
    names = [one.name for one in (x, weight, bias) if one is not None]
    return graph.add("Conv", *names, strides=strides, pads=pads * 2)


def _layer_norm(graph: Graph, _: Array, x: Value, shape: list[int], *parameters: Any) -> str:
    weight, bias, eps = (*parameters, None, None, None)[:3]
    scale = graph.of(np.ones(shape) if weight is None else weight, x.like.dtype)
    biases = [] if bias is None else [bias.name]
    epsilon = 1e-5 if eps is None else eps
    return graph.add(
        "LayerNormalization", x.name, scale, *biases, axis=-len(shape), epsilon=epsilon
    )


def _batch_norm(graph: Graph, _: Any, x: Value, *statistics: Any) -> list[str]:
    weight, bias, mean, var, _momentum, eps = statistics
    ones, zeros = np.ones_like(mean.like), np.zeros_like(mean.like)
    given = [weight or ones, bias or zeros]
    names = [graph.of(one, x.like.dtype) for one in (*given, mean, var)]
    return [graph.add("BatchNormalization", x.name, *names, epsilon=eps)]


def _gru_cell(graph: Graph, _: Array, x: Value, memory: Value, *weights: Any) -> str:
    w_x, w_memory, b_x, b_memory = (*weights, None, None)[:4]
    thirds = [memory.like.shape[1]] * 3
    of_x = graph.split(_linear(graph, _, x, w_x, b_x), thirds, 1)
    of_memory = graph.split(_linear(graph, _, memory, w_memory, b_memory), thirds, 1)
    reset, update = (
        graph.add("Sigmoid", graph.add("Add", *parts))
        for parts in zip(of_x[:2], of_memory[:2], strict=True)
    )
    fresh = graph.add("Tanh", graph.add("Add", of_x[2], graph.add("Mul", reset, of_memory[2])))
    change = graph.add("Mul", update, graph.add("Sub", memory.name, fresh))
    return graph.add("Add", fresh, change)


def _lstm_cell(graph: Graph, _: Any, x: Value, memory: list[Value], *weights: Any) -> list[str]:
    out, cell = memory
    w_x, w_out, b_x, b_out = (*weights, None, None)[:4]
    of_x, of_out = _linear(graph, _, x, w_x, b_x), _linear(graph, _, out, w_out, b_out)
    gates = graph.split(graph.add("Add", of_x, of_out), [cell.like.shape[1]] * 4, 1)
    enter, keep, leave = (graph.add("Sigmoid", gates[i]) for i in (0, 1, 3))
    entered = graph.add("Mul", enter, graph.add("Tanh", gates[2]))
    after = graph.add("Add", graph.add("Mul", keep, cell.name), entered)
    return [graph.add("Mul", leave, graph.add("Tanh", after)), after]


def _clamp(graph: Graph, out: Array, x: Value, *bounds: Any, **named: Any) -> str:
    low, high = (*bounds, None, None)[:2]
    name = graph.of(x, out.dtype)
    for kind, bound in (("Max", named.get("min", low)), ("Min", named.get("max", high))):
        if bound is not None:
            name = graph.add(kind, name, graph.of(bound, out.dtype))
    return name


def _cat(graph: Graph, out: Array, xs: list[Value], dim: int = 0) -> str:
    return graph.add("Concat", *(graph.of(x, out.dtype) for x in xs), axis=dim)


def _stack(graph: Graph, out: Array, xs: list[Value], dim: int = 0) -> str:
    axes = graph.constant([dim], "int64")
    rows = [graph.add("Unsqueeze", graph.of(x, out.dtype), axes) for x in xs]
    return graph.add("Concat", *rows, axis=dim)


def _split(graph: Graph, outs: list[Array], x: Value, _: Any, dim: int = 0) -> list[str]:
    return graph.split(x.name, [out.shape[dim] for out in outs], dim)


def _transposed(graph: Graph, _: Array, x: Value, *dims: Any) -> str:
    order = np.arange(x.like.ndim)
    if not dims:  # t
        order = order[::-1]
    elif isinstance(dims[0], list):  # permute
        order = order[dims[0]]
    else:  # transpose
        order[list(dims)] = order[list(dims[::-1])]
    return graph.add("Transpose", x.name, perm=order.tolist())


def _expand(graph: Graph, out: Array, x: Value, *_: Any, **__: Any) -> str:
    old = (1,) * (out.ndim - x.like.ndim) + x.like.shape
    sizes = [1 if size == was else size for size, was in zip(out.shape, old, strict=True)]
    return graph.add("Expand", x.name, graph.constant(sizes, "int64"))


def _index(graph: Graph, _: Array, x: Value, indices: list[Any]) -> str:
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(given) != 1:
        raise ConfigError(
            f"the network looks up by {len(given)} indices at once, which exported ONNX models "
            "cannot; let it look up by one"
        )
    axis, index = given[0]
    return graph.add("Gather", x.name, index.name, axis=axis)


def _select(graph: Graph, _: Array, x: Value, dim: int, index: int) -> str:
    return graph.add("Gather", x.name, graph.constant(index, "int64"), axis=dim)


def _slice(
    graph: Graph, _: Array, x: Value, dim: int = 0, begin: Any = None, *end_step: Any
) -> str:
    end, step = (*end_step, None, None)[:2]
    last = np.iinfo(np.int64).max if end is None else end
    numbers = [graph.constant([number], "int64") for number in (begin or 0, last, dim, step or 1)]
    return graph.add("Slice", x.name, *numbers)


def _inverse_root(graph: Graph, _: Array, x: Value) -> str:
    return graph.add("Reciprocal", graph.add("Sqrt", x.name))


_UNARY = "Relu Tanh Sigmoid Softplus Exp Log Cos Sin Sqrt Abs Neg".split()
_BINARY = {"eq": "Equal", "maximum": "Max", "minimum": "Min"}
_BINARY |= {kind.lower(): kind for kind in ("Add", "Sub", "Mul", "Div", "Pow")}
_REDUCED = {"mean": "ReduceMean", "sum": "ReduceSum", "amax": "ReduceMax", "amin": "ReduceMin"}

NODES: dict[str, Callable[..., Any]] = {
    **{kind.lower(): _plain(kind) for kind in _UNARY},
    **{name: _combined(kind) for name, kind in _BINARY.items()},
    **{name: _reduced(kind) for name, kind in _REDUCED.items()},
    "linear": _linear,
    "conv2d": _conv2d,
    "layer_norm": _layer_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "gru_cell": _gru_cell,
    "lstm_cell": _lstm_cell,
    **dict.fromkeys(("matmul", "mm", "bmm"), _combined("MatMul")),
    "addmm": lambda graph, _, bias, a, b: graph.add("Gemm", a.name, b.name, bias.name),
    "elu": lambda graph, _, x, alpha=1.0: graph.add("Elu", x.name, alpha=alpha),
    "leaky_relu": lambda graph, _, x, a=0.01: graph.add("LeakyRelu", x.name, alpha=a),
    "silu": lambda graph, _, x: graph.add("Mul", x.name, graph.add("Sigmoid", x.name)),
    "softmax": lambda graph, _, x, dim, *__, **___: graph.add("Softmax", x.name, axis=dim),
    "log_softmax": lambda graph, _, x, dim, *__, **___: graph.add("LogSoftmax", x.name, axis=dim),
    "rsqrt": _inverse_root,
    "square": lambda graph, _, x: graph.add("Mul", x.name, x.name),
    "clamp": _clamp,
    "cat": _cat,
    "stack": _stack,
    **dict.fromkeys("view reshape flatten unflatten unsqueeze squeeze".split(), _reshaped),
    **dict.fromkeys(("permute", "transpose", "t"), _transposed),
    "expand": _expand,
    "index": _index,
    "select": _select,
    "slice": _slice,
    **dict.fromkeys(("split", "split_with_sizes", "chunk"), _split),
    **dict.fromkeys(("to", "_to_copy"), lambda graph, out, x, *_, **__: graph.of(x, out.dtype)),
    **dict.fromkeys(
        ("clone", "contiguous", "alias", "detach", "dropout"),
        lambda _, __, x, *___, **____: x.name,
    ),
}
"""What adds an operation: gets the graph, an example of what comes out, and the arguments."""

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
