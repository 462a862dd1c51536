"""Runs an exported policy with numpy alone. Copy this file to where it should run.

    from policy_numpy import Policy

    policy = Policy("policy.npz")
    policy.reset()                 # where an episode begins, if the policy has a memory
    action = policy.act(obs)       # one observation, or a batch of them; a dict if it has fields

`asyncrl export` writes the file. It contains arrays, and JSON under `description`: what
observations and actions are, and the list of operations from one to the other, in order.
"""
# ruff: noqa: ANN401 # operations take what tracing found: arrays, numbers, lists

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

FORMAT = 3

Array = np.ndarray[Any, np.dtype[Any]]


class Policy:
    """A greedy policy: the same observations always give the same action.

    A recurrent policy keeps its memory between calls of `act`; call `reset` where episodes begin.
    Other policies need no `reset`.
    """

    memory: Array | None
    """The memory, one row per environment; None before the first step."""

    def __init__(self, path: str | Path | BinaryIO) -> None:
        if str(path).endswith(".onnx"):
            raise ValueError(f"{path} is an ONNX model; open it with onnxruntime.InferenceSession")
        with np.load(path) as file:
            self._arrays = {name: file[name] for name in file.files}
        self.description: dict[str, Any] = json.loads(self._arrays.pop("description").tobytes())
        if self.description.get("format") != FORMAT:
            raise ValueError(
                f"{path} has format {self.description.get('format')}, and this file reads format "
                f"{FORMAT}; use the policy_numpy.py of the asyncrl that wrote it"
            )
        self.memory = None
        self._fields: dict[str, dict[str, Any]] = self.description["observation"]

    def reset(self, begins: Any = True) -> None:
        """Reset the memory of all environments, or of those (B,) where an episode begins.

        After a reset of all environments, their number may change.
        """
        if self.memory is not None:
            where = np.asarray(begins, np.bool_)
            count = len(self.memory)
            if where.shape not in {(), (count,)}:
                raise ValueError(
                    f"begins must be one boolean or {count} of them, got shape {where.shape}"
                )
            empty = np.zeros_like(self.memory)
            self.memory = None if where.all() else np.where(where[..., None], empty, self.memory)

    def act(self, obs: Any) -> Array:
        """Return the action for one observation, or the actions for a batch.

        A batch has the same environments in the same rows each time.
        """
        fields = obs if isinstance(obs, Mapping) else {"": obs}
        arrays = {name: _read(fields, name, said) for name, said in self._fields.items()}
        rows = {a.shape[: a.ndim - len(self._fields[name]["shape"])] for name, a in arrays.items()}
        if len(rows) > 1:
            raise ValueError(
                f"all fields must have the same number of observations, got {sorted(rows)}"
            )
        action = self._action(self.answer(arrays))
        return np.asarray(action[0]) if rows == {()} else action

    def answer(self, fields: Mapping[str, Array]) -> Array:
        """Return the network's output for a batch of observations, given by field.

        It also updates the memory.
        """
        inputs: dict[str, Array] = {}
        for name, field in self._fields.items():
            array = np.asarray(fields[name], field["dtype"]).reshape(-1, *field["shape"])
            scale = np.asarray(field["scale"], np.float32)
            inputs[field["input"]] = array.astype(np.float32) / scale
        count = len(next(iter(inputs.values())))
        remembered = self.description["memory"]
        if remembered:
            inputs[remembered["input"]] = self._recall(count, remembered["size"])
        one_by_one = [slice(i, i + 1) for i in range(count)]
        runs = [
            self._run({name: array[rows] for name, array in inputs.items()})
            for rows in ([slice(None)] if self.description["any_batch"] else one_by_one)
        ]
        if remembered:
            self.memory = np.concatenate([values[remembered["after"]] for values in runs])
        return np.concatenate([values[self.description["answer"]] for values in runs])

    def _recall(self, count: int, size: int) -> Array:
        """Return the memory before these rows."""
        if self.memory is None:
            return np.zeros((count, size), np.float32)
        if len(self.memory) != count:
            raise ValueError(
                f"got {count} observations after {len(self.memory)}; pass one per environment each "
                "time, or call reset() where episodes of another number of environments begin"
            )
        return self.memory

    def _run(self, inputs: Mapping[str, Array]) -> dict[str, Any]:
        values: dict[str, Any] = {**self._arrays, **inputs}
        compute(self.description["operations"], values)
        return values

    def _action(self, answer: Array) -> Array:
        said = self.description["action"]
        dtype, shape = np.dtype(said["dtype"]), tuple(said["shape"])
        low, high = (np.array(said[side]) for side in ("low", "high"))
        if said["kind"] == "choices":
            edges = np.cumsum(high - low + 1)[:-1]
            best = [part.argmax(axis=1) for part in np.split(answer, edges, axis=1)]
            chosen: Array = (np.stack(best, axis=1) + low).astype(dtype)
            return chosen.reshape(-1, *shape)
        unit = answer[:, : low.size]
        unit = np.tanh(unit) if said["squashed"] else unit
        middle, half = middle_and_half(low, high)
        action: Array = (middle + half * unit).astype(dtype)
        return action.clip(low.astype(dtype), high.astype(dtype)).reshape(-1, *shape)


def _read(fields: Mapping[str, Any], name: str, said: Mapping[str, Any]) -> Array:
    """Return a field of one observation or of a batch; raise `ValueError` if it does not fit."""
    dtype, shape = np.dtype(said["dtype"]), tuple(said["shape"])
    if name not in fields:
        raise ValueError(
            f"obs must have the field {name!r}, got {[*fields]}; '' stands for an "
            "observation that is not a dict"
        )
    given = np.asarray(fields[name])
    array = given.astype(dtype)
    fits = shape in {given.shape, given.shape[1:]}
    if not fits or (dtype.kind != "f" and not np.array_equal(array, given)):
        raise ValueError(
            f"{name or 'obs'} must be {dtype} of shape {shape}, or a batch of these, got "
            f"{given.dtype} of shape {given.shape}"
        )
    return array


def middle_and_half(low: Array, high: Array) -> tuple[Array, Array]:
    """Return the action at network output 0, and the distance from there to output 1."""
    with np.errstate(over="ignore", invalid="ignore"):
        bounded = np.isfinite(high.astype(np.float32) - low.astype(np.float32))
    first, last = (np.where(bounded, side, 0.0) for side in (low, high))
    half = np.where(bounded, (last - first) / 2, 1.0)
    return ((first + last) / 2).astype(np.float32), half.astype(np.float32)


def compute(operations: Iterable[Sequence[Any]], values: dict[str, Any]) -> None:
    """Compute operations in order; add each result to the values, by its name."""
    for out, name, args, kwargs in operations:
        known = {key: _argument_value(arg, values) for key, arg in kwargs.items()}
        values[out] = OPERATIONS[name](*(_argument_value(arg, values) for arg in args), **known)


def _argument_value(arg: Any, values: Mapping[str, Any]) -> Any:
    """Return the value of an operation's argument: a name refers to an earlier value."""
    if isinstance(arg, list):
        return [_argument_value(one, values) for one in arg]
    if isinstance(arg, dict):
        return values[arg["name"]] if "name" in arg else np.dtype(arg["dtype"])
    return arg


# --- operations, under torch's names -------------------------------------------------------------


def _linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    return x @ weight.T if bias is None else x @ weight.T + bias


def _conv2d(x: Array, weight: Array, bias: Array | None = None, *how: Any) -> Array:
    given: list[Any] = [*how, *(1, 0, 1, 1)[len(how) :]]
    stride, padding, dilation, groups = given
    (down, right), (top, left) = _pair(stride), _pair(padding)
    if groups != 1 or _pair(dilation) != (1, 1):
        raise ValueError("convolutions with groups or dilation are not supported")
    x = np.pad(x, ((0, 0), (0, 0), (top, top), (left, left)))
    views = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], axis=(2, 3))
    out = np.tensordot(views[:, :, ::down, ::right], weight, axes=([1, 4, 5], [1, 2, 3]))
    out = out.transpose(0, 3, 1, 2)
    return out if bias is None else out + bias[:, None, None]


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _layer_norm(
    x: Array, shape: list[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Array:
    axes = tuple(range(-len(shape), 0))
    centered = x - x.mean(axis=axes, keepdims=True)
    out = centered / np.sqrt((centered**2).mean(axis=axes, keepdims=True) + eps)
    out = out if weight is None else out * weight
    normed: Array = (out if bias is None else out + bias).astype(x.dtype)
    return normed


def _batch_norm(
    x: Array, weight: Any, bias: Any, mean: Array, var: Array, *momentum_eps: float
) -> tuple[Array]:
    shape = (1, -1, *(1 for _ in x.shape[2:]))
    out = (x - mean.reshape(shape)) / np.sqrt(var.reshape(shape) + momentum_eps[-1])
    out = out if weight is None else out * weight.reshape(shape)
    return ((out if bias is None else out + bias.reshape(shape)).astype(x.dtype),)


def _sigmoid(x: Array) -> Array:
    answer: Array = 0.5 * np.tanh(0.5 * x) + 0.5  # exp(-x) would overflow for some x
    return answer


def _gru_cell(
    x: Array, memory: Array, w_x: Array, w_memory: Array, b_x: Any = None, b_memory: Any = None
) -> Array:
    reset_x, update_x, new_x = np.split(_linear(x, w_x, b_x), 3, axis=1)
    reset, update, new = np.split(_linear(memory, w_memory, b_memory), 3, axis=1)
    fresh = np.tanh(new_x + _sigmoid(reset_x + reset) * new)
    after: Array = fresh + _sigmoid(update_x + update) * (memory - fresh)
    return after


def _lstm_cell(
    x: Array, memory: list[Array], w_x: Array, w_out: Array, b_x: Any = None, b_out: Any = None
) -> tuple[Array, Array]:
    out, cell = memory
    gates = _linear(x, w_x, b_x) + _linear(out, w_out, b_out)
    enter, keep, new, leave = np.split(gates, 4, axis=1)
    cell = _sigmoid(keep) * cell + _sigmoid(enter) * np.tanh(new)
    return _sigmoid(leave) * np.tanh(cell), cell


def _softmax(x: Array, dim: int, *_: Any, **__: Any) -> Any:
    exp = np.exp(x - x.max(axis=dim, keepdims=True))
    return exp / exp.sum(axis=dim, keepdims=True)


def _log_softmax(x: Array, dim: int, *_: Any, **__: Any) -> Array:
    low = x - x.max(axis=dim, keepdims=True)
    logs: Array = low - np.log(np.exp(low).sum(axis=dim, keepdims=True))
    return logs


def _scaled(combine: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda a, b, *, alpha=1: combine(a, b if alpha == 1 else b * alpha)


def _reduced(reduce: Callable[..., Any]) -> Callable[..., Any]:
    def reduced(x: Array, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
        axes = tuple(dim) if isinstance(dim, list) else dim
        return reduce(x, axis=None if axes == () else axes, keepdims=keepdim)

    return reduced


def _clamp(x: Array, *bounds: Any, **named: Any) -> Array:
    low, high = (*bounds, None, None)[:2]
    return np.clip(x, named.get("min", low), named.get("max", high))


def _view(x: Array, by: Any) -> Array:
    """Return another shape, or the bytes of each row as numbers of another dtype."""
    return np.ascontiguousarray(x).view(by) if isinstance(by, np.dtype) else x.reshape(by)


def _flatten(x: Array, start: int = 0, end: int = -1) -> Array:
    start, end = start % x.ndim, end % x.ndim
    return x.reshape(*x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :])


def _unflatten(x: Array, dim: int, sizes: list[int]) -> Array:
    dim %= x.ndim
    return x.reshape(*x.shape[:dim], *sizes, *x.shape[dim + 1 :])


def _expand(x: Array, sizes: list[int], **_: Any) -> Array:
    old = (1,) * (len(sizes) - x.ndim) + x.shape
    wanted = [was if size == -1 else size for size, was in zip(sizes, old, strict=True)]
    return np.broadcast_to(x, wanted)


def _slice(x: Array, dim: int = 0, begin: Any = None, end: Any = None, step: int = 1) -> Array:
    return x[(slice(None),) * (dim % x.ndim) + (slice(begin, end, step),)]


def _split(x: Array, sizes: Any, dim: int = 0) -> list[Array]:
    edges = range(sizes, x.shape[dim], sizes) if isinstance(sizes, int) else np.cumsum(sizes)[:-1]
    return np.split(x, list(edges), axis=dim)


def _cast(x: Any, dtype: Any = None, *_: Any, **__: Any) -> Any:
    return x.astype(dtype) if isinstance(dtype, np.dtype) else x


OPERATIONS: dict[str, Callable[..., Any]] = {
    "linear": _linear,
    "conv2d": _conv2d,
    "layer_norm": _layer_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "gru_cell": _gru_cell,
    "lstm_cell": _lstm_cell,
    **dict.fromkeys(("matmul", "mm", "bmm"), operator.matmul),
    "addmm": lambda bias, a, b: bias + a @ b,
    "relu": lambda x: np.maximum(x, 0),
    "elu": lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
    "leaky_relu": lambda x, slope=0.01: np.where(x > 0, x, slope * x),
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "softplus": lambda x: np.logaddexp(x, 0),
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    **{n: getattr(np, n) for n in "tanh exp log cos sin sqrt square abs maximum minimum".split()},
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "pow": np.power,
    "neg": np.negative,
    "add": _scaled(operator.add),
    "sub": _scaled(operator.sub),
    "mul": operator.mul,
    "div": operator.truediv,
    "floordiv": operator.floordiv,
    "eq": operator.eq,
    "clamp": _clamp,
    "mean": _reduced(np.mean),
    "sum": _reduced(np.sum),
    "amax": _reduced(np.max),
    "amin": _reduced(np.min),
    "cat": lambda xs, dim=0: np.concatenate(xs, axis=dim),
    "stack": lambda xs, dim=0: np.stack(xs, axis=dim),
    "reshape": np.reshape,
    "view": _view,
    "flatten": _flatten,
    "unflatten": _unflatten,
    "unsqueeze": np.expand_dims,
    "squeeze": lambda x, dim: x.squeeze(dim),
    **dict.fromkeys(("permute", "t"), np.transpose),
    "transpose": np.swapaxes,
    "expand": _expand,
    "embedding": lambda rows, at, *_: rows[at],
    "index": lambda x, by: x[tuple(slice(None) if one is None else one for one in by)],
    "select": lambda x, dim, index: np.take(x, index, axis=dim),
    "slice": _slice,
    **dict.fromkeys(("split", "split_with_sizes"), _split),
    "chunk": lambda x, count, dim=0: _split(x, -(-x.shape[dim] // count), dim),
    "getitem": operator.getitem,
    "sym_size": lambda x, dim: x.shape[dim],
    **dict.fromkeys(("to", "_to_copy"), _cast),
    **dict.fromkeys(("clone", "contiguous", "alias", "detach", "dropout"), lambda x, *_, **__: x),
}
"""Operations on arrays; where torch has several overloads of an operation, one serves them all."""
