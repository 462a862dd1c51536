"""ONNX models act as the policies that they are made of, in the runtime that people have."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper
from torch import Tensor, nn
from torch.nn import functional

from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.impala import IMPALAConfig
from asyncrl.core.agent import PolicyContext
from asyncrl.core.env import EnvSpec, PackedSpec
from asyncrl.core.errors import ConfigError
from asyncrl.export.export import export_policy
from asyncrl.export.onnx_policy import NODES, Graph, Value, onnx_model
from asyncrl.export.policy_numpy import OPERATIONS
from tests.export import test_policy_numpy
from tests.export.test_export import (
    BOUNDED,
    CASES,
    FIELDS,
    FOUR,
    GRU,
    REMEMBERING,
    ROWS,
    VECTOR,
    counting_network,
    observations,
    own_network,
    trained_and_exported,
)
from tests.export.test_policy_numpy import IMAGE, KERNEL, ROW, X, plain


def session_of(path: Path | bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    given = path if isinstance(path, bytes) else str(path)
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


def inputs_of(spec: EnvSpec, obs: Any) -> dict[str, Any]:
    """Return observations as a model takes them."""
    if not isinstance(spec.observation, PackedSpec):
        return {"obs": obs}
    return {f"obs/{name}": field for name, field in spec.observation.unpack(obs).items()}


@pytest.mark.parametrize("case", CASES)
def test_actions_are_those_of_torch(case: str, tmp_path: Path) -> None:
    config, spec = CASES[case]
    policy = trained_and_exported(config, spec, tmp_path / "p.onnx")
    session = session_of(tmp_path / "p.onnx")
    obs = observations(spec.observation)
    for rows in (obs, obs[:1]):
        (action,) = session.run(None, inputs_of(spec, rows))
        expected = policy.act(rows).action
        assert (action.dtype, action.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(action, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", REMEMBERING)
def test_memory_goes_in_and_comes_out(case: str, tmp_path: Path) -> None:
    config, spec = REMEMBERING[case]
    policy = trained_and_exported(config, spec, tmp_path / "p.onnx")
    session = session_of(tmp_path / "p.onnx")
    memory = np.zeros((ROWS, session.get_inputs()[-1].shape[1]), np.float32)
    random = np.random.default_rng(5)
    begins = np.ones(ROWS, np.bool_)
    for step in range(20):
        obs = observations(spec.observation, seed=step)
        policy.forget(begins)
        memory = np.where(begins[:, None], np.float32(0), memory)
        action, memory = session.run(None, {**inputs_of(spec, obs), "memory": memory})
        np.testing.assert_allclose(action, policy.act(obs).action, rtol=1e-5, atol=1e-5)
        begins = random.random(ROWS) < 0.1


def test_names_and_shapes_are_told(tmp_path: Path) -> None:
    spec = EnvSpec(FIELDS, BOUNDED)
    policy = IMPALAConfig(**GRU).build_policy(spec, PolicyContext(seed=0))
    export_policy(policy, spec, tmp_path / "p.onnx")
    session = session_of(tmp_path / "p.onnx")
    assert [(one.name, one.type, one.shape) for one in session.get_inputs()] == [
        ("obs/camera/left", "tensor(uint8)", ["n", 2, 40, 36]),
        ("obs/place", "tensor(float)", ["n", 5]),
        ("obs/gear", "tensor(int64)", ["n", 2]),
        ("memory", "tensor(float)", ["n", 16]),
    ]
    assert [(one.name, one.type, one.shape) for one in session.get_outputs()] == [
        ("action", "tensor(float)", ["n", 3]),
        ("memory_after", "tensor(float)", ["n", 16]),
    ]


@pytest.mark.parametrize("memory", [GRU, {}])
def test_network_that_counts_rows_takes_one(memory: Any, tmp_path: Path) -> None:
    spec = EnvSpec(VECTOR, BOUNDED)
    config = IMPALAConfig(network=counting_network, **memory)
    policy = trained_and_exported(config, spec, tmp_path / "p.onnx", seed=0)
    session = session_of(tmp_path / "p.onnx")
    assert all(one.shape[0] == 1 for one in session.get_inputs())
    inputs = {"obs": observations(VECTOR)[:1]}
    if memory:
        inputs["memory"] = np.zeros((1, session.get_inputs()[1].shape[1]), np.float32)
    action = session.run(["action"], inputs)[0]
    np.testing.assert_allclose(action, policy.act(inputs["obs"]).action, 1e-5, 1e-5)


def test_network_of_the_users_own_is_exported(tmp_path: Path) -> None:
    spec = EnvSpec(VECTOR, FOUR)
    policy = DQNConfig(network=own_network).build_policy(spec, PolicyContext(seed=0)).train(False)
    export_policy(policy, spec, tmp_path / "p.onnx")
    obs = observations(VECTOR)
    (action,) = session_of(tmp_path / "p.onnx").run(None, {"obs": obs})
    assert np.array_equal(action, policy.act(obs).action)


class Grid(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 4)
        self.register_buffer("place", torch.tensor([0, 4, 2]))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(-1, 5, 1).expand(-1, 5, 5)[:, self.place, self.place])


def grid_network(_: EnvSpec) -> nn.Module:
    return Grid()


class Grouped(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, :, None, None]).flatten(1)[:, :4]


def grouped_network(_: EnvSpec) -> nn.Module:
    return Grouped(5, 5, 1, groups=5)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (grid_network, "the network looks up by 2 indices at once, which exported ONNX models can"),
        (grouped_network, "the network does conv2d as exported policies cannot: convolutions with"),
    ],
)
def test_what_it_cannot_do_is_refused(network: Any, words: str, tmp_path: Path) -> None:
    spec = EnvSpec(VECTOR, FOUR)
    policy = DQNConfig(network=network).build_policy(spec, PolicyContext(seed=0))
    with pytest.raises(ConfigError, match=words):
        export_policy(policy, spec, tmp_path / "p.onnx")
    assert not (tmp_path / "p.onnx").exists()


def test_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delattr("asyncrl.export.onnx_policy")
    monkeypatch.delitem(sys.modules, onnx_model.__module__)
    spec = EnvSpec(VECTOR, FOUR)
    policy = DQNConfig().build_policy(spec, PolicyContext(seed=0))
    with pytest.raises(ConfigError, match=r"not installed: pip install asyncrl\[onnx\]"):
        export_policy(policy, spec, tmp_path / "p.onnx")


# --- one operation -------------------------------------------------------------------------------

PLACES = torch.tensor([2, 0, 5, 1])

MORE: list[tuple[str, Any, tuple[Any, ...], dict[str, Any]]] = [
    ("matmul", torch.matmul, (X, X.T), {}),
    ("linear", functional.linear, (IMAGE, torch.ones(3, 8), ROW), {}),
    ("t", torch.t, (X,), {}),
    ("transpose", torch.transpose, (IMAGE, -1, 0), {}),
    ("index", lambda x, by: x[:, by[1]], (X, [None, PLACES]), {}),
    ("sub", torch.sub, (X, X.double()), {}),
    ("amin", torch.amin, (X, [0], True), {}),
    ("select", torch.select, (X, 1, -1), {}),
    ("conv2d", functional.conv2d, (IMAGE, KERNEL, None, 2), {}),
]


def evaluated(name: str, args: Any, kwargs: Any) -> list[Any]:
    """Return what a model of one operation answers."""
    graph, inputs, fed = Graph(), [], {}

    def given(arg: Any) -> Any:
        if isinstance(arg, list):
            return [given(one) for one in arg]
        if not isinstance(arg, Tensor):
            return plain(arg)
        label, array = f"in {len(fed)}", arg.numpy()
        fed[label] = array
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        inputs.append(helper.make_tensor_value_info(label, kind, array.shape))
        return Value(label, array)

    args = [given(arg) for arg in args]
    like = OPERATIONS[name](*map(plain_like, args), **kwargs)
    made = NODES[name](graph, like, *args, **kwargs)
    pairs = [(made, like)] if isinstance(made, str) else list(zip(made, like, strict=True))
    outputs = []
    for i, (label, array) in enumerate(pairs):
        graph.add("Identity", label, out=f"out {i}")
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        outputs.append(helper.make_tensor_value_info(f"out {i}", kind, array.shape))
    made_graph = helper.make_graph(graph.nodes, "one", inputs, outputs, graph.constants)
    opset = helper.make_opsetid("", 18)
    model = helper.make_model(made_graph, opset_imports=[opset], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return session_of(model.SerializeToString()).run(None, fed)


def plain_like(arg: Any) -> Any:
    if isinstance(arg, list):
        return [plain_like(one) for one in arg]
    return arg.like if isinstance(arg, Value) else arg


@pytest.mark.parametrize("case", [*test_policy_numpy.CASES, *MORE], ids=lambda case: case[0])
def test_operation_is_torchs(case: Any) -> None:
    name, function, args, kwargs = case
    expected = function(*args, **kwargs)
    expected = [expected] if isinstance(expected, Tensor) else expected
    found = evaluated(name, args, kwargs)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.numpy().dtype)
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-5)


def test_batch_norm_is_torchs() -> None:
    mean, var, weight, bias = (torch.rand(3) + 0.1 for _ in range(4))
    for given in ((weight, bias), (None, None)):
        expected = functional.batch_norm(IMAGE, mean, var, *given, eps=1e-3)
        args = (IMAGE, *given, mean, var, 0.1, 1e-3)
        (found,) = evaluated("_native_batch_norm_legit_no_training", args, {})
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-5)


def test_it_knows_what_numpy_is_told() -> None:
    found_by_itself = {"getitem", "sym_size", "floordiv"}  # numbers and places, no arrays
    assert set(NODES) == set(OPERATIONS) - found_by_itself
