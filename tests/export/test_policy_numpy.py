"""Operations in numpy are torch's; files of another format are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from asyncrl.core.types import Array
from asyncrl.export.policy_numpy import FORMAT, OPERATIONS, Policy

X = torch.linspace(-2, 2, 24).reshape(4, 6)
W = torch.linspace(-1, 1, 18).reshape(3, 6)
IMAGE = torch.linspace(-1, 1, 2 * 3 * 9 * 8).reshape(2, 3, 9, 8)
KERNEL = torch.linspace(1, -1, 4 * 3 * 3 * 2).reshape(4, 3, 3, 2)
ROW = torch.arange(3.0)

# Name, what torch does, and the arguments of both.
CASES: list[tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    ("linear", functional.linear, (X, W, ROW), {}),
    ("conv2d", functional.conv2d, (IMAGE, KERNEL, torch.arange(4.0), [2, 3], [1, 2]), {}),
    ("layer_norm", functional.layer_norm, (X, [6], X[0], X[1], 1e-3), {}),
    ("layer_norm", functional.layer_norm, (X, [4, 6]), {}),
    ("addmm", torch.addmm, (ROW, X, W.T), {}),
    ("elu", functional.elu, (X,), {}),
    ("leaky_relu", functional.leaky_relu, (X, 0.2), {}),
    ("softplus", functional.softplus, (X,), {}),
    ("softmax", torch.softmax, (X, -1), {}),
    ("log_softmax", torch.log_softmax, (X, 0), {}),
    ("pow", torch.pow, (X, 2), {}),
    ("add", torch.add, (X, X), {"alpha": 3}),
    ("sub", torch.sub, (X, 1.5), {}),
    ("div", torch.div, (X, 3), {}),
    ("clamp", torch.clamp, (X, -1.0, 0.5), {}),
    ("clamp", torch.clamp, (X, None, 0.5), {}),
    ("clamp", torch.clamp, (X,), {"min": -0.5}),
    ("mean", torch.mean, (X, [-1], True), {}),
    ("sum", torch.sum, (X, [0]), {}),
    ("amax", torch.amax, (X, [1]), {}),
    ("cat", torch.cat, ([X, X], 1), {}),
    ("stack", torch.stack, ([X, X], 1), {}),
    ("view", torch.reshape, (X, [2, -1]), {}),
    ("flatten", torch.flatten, (IMAGE, 1, 2), {}),
    ("unflatten", torch.unflatten, (X, -1, [-1, 2]), {}),
    ("unsqueeze", torch.unsqueeze, (X, 1), {}),
    ("squeeze", torch.squeeze, (X[:, :1], 1), {}),
    ("permute", torch.permute, (IMAGE, [0, 2, 3, 1]), {}),
    ("transpose", torch.transpose, (IMAGE, 1, 2), {}),
    ("expand", lambda x, sizes: x.expand(sizes), (X[:, :1], [5, -1, 6]), {}),
    ("select", torch.select, (X, 1, 2), {}),
    ("slice", torch.ops.aten.slice.Tensor, (X, 1, 1, 5, 2), {}),
    ("slice", torch.ops.aten.slice.Tensor, (X, 0, 1, 2**63 - 1), {}),
    ("split", torch.split, (X, 4, 1), {}),
    ("split_with_sizes", torch.split, (X, [1, 3], 0), {}),
    ("chunk", torch.chunk, (X, 4, 1), {}),
    ("to", lambda x, dtype: x.to(dtype), (X, torch.float64), {}),
    ("clone", torch.clone, (X,), {}),
    ("eq", torch.eq, (X, X[0]), {}),
    *((name, getattr(torch, name), (X,), {}) for name in "tanh exp cos sin abs neg square".split()),
    *((name, getattr(torch, name), (X + 3,), {}) for name in ("log", "sqrt", "rsqrt")),
    *((name, getattr(functional, name), (X,), {}) for name in ("relu", "sigmoid", "silu")),
    *((name, getattr(torch, name), (X, X.flip(0)), {}) for name in ("maximum", "minimum", "mul")),
]


def plain(value: Any) -> Any:
    """Return an argument of torch's as numpy's."""
    match value:
        case Tensor():
            return value.numpy()
        case torch.dtype():
            return np.dtype(str(value).removeprefix("torch."))
        case list():
            return [plain(one) for one in value]
    return value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_operation_is_torchs(case: Any) -> None:
    name, function, args, kwargs = case
    expected = function(*args, **kwargs)
    found = OPERATIONS[name](*map(plain, args), **kwargs)
    if isinstance(expected, Tensor):
        expected, found = [expected], [found]
    assert len(expected) == len(found)
    for theirs, ours in zip(expected, found, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-6)


def test_batch_norm_is_torchs() -> None:
    mean, var, weight, bias = (torch.rand(3) + 0.1 for _ in range(4))
    expected = functional.batch_norm(IMAGE, mean, var, weight, bias, eps=1e-3)
    arrays = [one.numpy() for one in (IMAGE, weight, bias, mean, var)]
    (found,) = OPERATIONS["_native_batch_norm_legit_no_training"](*arrays, 0.1, 1e-3)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-5)


def remembering(path: Path, *, any_batch: bool = True) -> Policy:
    """Return a policy that remembers the sum of all observations, and acts by it."""
    box = {"dtype": "float32", "shape": [1], "scale": 1.0, "input": "input 0"}
    description = {
        "format": FORMAT,
        "any_batch": any_batch,
        "observation": {"": box},
        "action": {
            "dtype": "float32",
            "shape": [1],
            "kind": "quantities",
            "low": [-100.0],
            "high": [float("inf")],
            "squashed": False,
        },
        "operations": [["sum", "add", [{"name": "input 0"}, {"name": "input 1"}], {}]],
        "answer": "sum",
        "memory": {"size": 1, "input": "input 1", "after": "sum"},
    }
    np.savez(path, description=np.frombuffer(json.dumps(description).encode(), np.uint8))
    return Policy(path)


def test_onnx_model_is_refused_with_what_opens_it(tmp_path: Path) -> None:
    path = tmp_path / "policy.onnx"
    path.write_bytes(b"\x08\x08\x12\x07asyncrl")
    with pytest.raises(ValueError, match=r"policy\.onnx is .*onnxruntime"):
        Policy(path)


@pytest.mark.parametrize("any_batch", [True, False])
def test_memory_continues_until_an_episode_begins(tmp_path: Path, any_batch: bool) -> None:
    policy = remembering(tmp_path / "p.npz", any_batch=any_batch)
    obs = np.array([[1.0], [10.0]], np.float32)
    assert policy.act(obs).ravel().tolist() == [1, 10]
    kept = policy.memory
    assert policy.act(obs).ravel().tolist() == [2, 20]
    policy.memory = kept
    assert policy.act(obs).ravel().tolist() == [2, 20]
    policy.reset([False, True])
    assert policy.act(obs).ravel().tolist() == [3, 10]
    policy.reset()
    assert policy.memory is None
    assert policy.act(obs[0]).tolist() == [1]
    assert policy.act(obs[0]).tolist() == [2]


def test_another_number_of_environments_is_refused_within_episodes(tmp_path: Path) -> None:
    policy = remembering(tmp_path / "p.npz")
    policy.act(np.ones((2, 1)))
    with pytest.raises(ValueError, match="got 3 observations after 2"):
        policy.act(np.ones((3, 1)))
    for begins in ([True], [False, True, True]):
        with pytest.raises(ValueError, match="begins must be"):
            policy.reset(begins)
    policy.reset(False)
    assert policy.act(np.ones((2, 1))).ravel().tolist() == [2, 2]
    policy.reset(np.ones(2))
    assert policy.act(np.ones((3, 1))).shape == (3, 1)


def seeing(path: Path, **fields: tuple[str, list[int]]) -> Policy:
    """Return a policy that does what is first in the last of its fields, whatever these hold."""
    policy = remembering(path)
    policy.description["memory"] = None
    seen = {
        name: {"dtype": dtype, "shape": shape, "scale": 1.0, "input": f"input {i}"}
        for i, (name, (dtype, shape)) in enumerate(fields.items())
    }
    last = {"name": f"input {len(seen) - 1}"}
    policy.description["operations"] = [
        ["flat", "flatten", [last, 1], {}],
        ["sum", "slice", [{"name": "flat"}, 1, 0, 1], {}],
    ]
    policy._fields = policy.description["observation"] = seen
    return policy


@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        ("float32", np.zeros(3)),
        ("float32", np.zeros((3, 2, 2))),
        ("uint8", np.full((2, 3), 0.5)),
        ("uint8", np.full((2, 3), 256)),
        ("int64", np.full((5, 2, 3), -0.1)),
    ],
)
def test_observations_of_other_shapes_or_numbers_are_refused(
    tmp_path: Path, dtype: str, given: Array
) -> None:
    policy = seeing(tmp_path / "p.npz", **{"": (dtype, [2, 3])})
    with pytest.raises(ValueError, match=rf"^obs must be {dtype} of shape \(2, 3\)"):
        policy.act(given)


@pytest.mark.parametrize("dtype", ["int8", "int64", "float32"])
def test_observations_may_be_of_other_dtypes_that_hold_the_same(tmp_path: Path, dtype: str) -> None:
    policy = seeing(tmp_path / "p.npz", **{"": (dtype, [2, 3])})
    for kind in ("uint8", "int32", "float64"):
        assert policy.act(np.full((2, 3), 7, kind)).tolist() == [7]
        assert policy.act(np.full((4, 2, 3), 7, kind)).tolist() == [[7]] * 4
    assert policy.act([[7] * 3] * 2).tolist() == [7]
    assert policy.act(np.zeros((0, 2, 3))).shape == (0, 1)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"place": np.zeros(2)}, r"the field 'gear', got \['place'\]"),
        ({"gear": 1, "place": np.zeros((4, 2))}, r"all fields .* same number .* \[\(\), \(4,\)\]"),
        ({"gear": 1, "place": np.zeros(3)}, r"^place must be float32 of shape \(2,\)"),
    ],
)
def test_fields_that_are_missing_or_do_not_go_together_are_refused(
    tmp_path: Path, given: Any, words: str
) -> None:
    policy = seeing(tmp_path / "p.npz", gear=("int64", []), place=("float32", [2]))
    assert policy.act({"gear": 1, "place": [5, 6], "more": 0}).tolist() == [5]
    with pytest.raises(ValueError, match=words):
        policy.act(given)


def test_convolutions_that_it_cannot_do_are_refused() -> None:
    with pytest.raises(ValueError, match="groups or dilation are not supported"):
        OPERATIONS["conv2d"](IMAGE.numpy(), KERNEL.numpy(), None, 1, 0, 2)


def test_files_of_another_format_are_refused(tmp_path: Path) -> None:
    description = json.dumps({"format": FORMAT + 1}).encode()
    np.savez(tmp_path / "p.npz", description=np.frombuffer(description, np.uint8))
    with pytest.raises(ValueError, match=rf"has format {FORMAT + 1}, and this file reads format"):
        Policy(tmp_path / "p.npz")
