"""ONNX models act as the policies that they are made of, in the runtime that people have."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.impala import IMPALAConfig
from asyncrl.core.agent import PolicyContext
from asyncrl.core.env import DiscreteSpec, EnvSpec, PackedSpec
from asyncrl.core.errors import ConfigError
from asyncrl.export.export import export_policy
from asyncrl.export.onnx_policy import onnx_model
from asyncrl.export.policy_numpy import Policy
from tests.export.test_export import (
    BOUNDED,
    CASES,
    FIELDS,
    FOUR,
    GRU,
    REMEMBERING,
    ROWS,
    VECTOR,
    observations,
    trained_and_exported,
)


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


# Each kind of network, observation and action is among these, or in the next two tests.
FAMILIES = ["dqn, dueling, noisy", "ppo, many choices", "crossq"]


@pytest.mark.parametrize("case", FAMILIES)
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


def test_discrete_actions_are_those_of_the_environment_for_any_number_of_rows(
    tmp_path: Path,
) -> None:
    """A wide network computes few rows in another way, which an export must not keep."""
    spec = EnvSpec(VECTOR, DiscreteSpec(4, start=-1))
    policy = trained_and_exported(DQNConfig(hidden=(512,)), spec, tmp_path / "p.onnx")
    export_policy(policy, spec, tmp_path / "p.npz")
    session = session_of(tmp_path / "p.onnx")
    for obs in (observations(VECTOR), observations(VECTOR)[:20]):
        right = policy.act(obs).action - 1
        (action,) = session.run(None, {"obs": obs})
        assert np.array_equal(action, right)
        assert np.array_equal(Policy(tmp_path / "p.npz").act(obs), right)
    assert b".py" not in (tmp_path / "p.onnx").read_bytes(), "no path of this machine"


def test_memory_goes_in_and_comes_out(tmp_path: Path) -> None:
    config, spec = REMEMBERING["ppo lstm, quantities"]
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


def test_fields_have_names_and_shapes_and_are_acted_on_as_torch_does(tmp_path: Path) -> None:
    spec = EnvSpec(FIELDS, BOUNDED)
    policy = trained_and_exported(IMPALAConfig(**GRU), spec, tmp_path / "p.onnx")
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
    obs = observations(FIELDS)
    memory = np.zeros((ROWS, 16), np.float32)
    action, _ = session.run(None, {**inputs_of(spec, obs), "memory": memory})
    np.testing.assert_allclose(action, policy.act(obs).action, rtol=1e-5, atol=1e-5)


class Spectrum(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.linalg.eigvalsh(x[:, :, None] * x[:, None, :]))


def spectral_network(_: EnvSpec) -> nn.Module:
    return Spectrum(5, 4)


def test_what_onnx_cannot_do_is_refused(tmp_path: Path) -> None:
    spec = EnvSpec(VECTOR, FOUR)
    policy = DQNConfig(network=spectral_network).build_policy(spec, PolicyContext(seed=0))
    with pytest.raises(ConfigError, match=r"cannot be exported to ONNX: No .*eigh"):
        export_policy(policy, spec, tmp_path / "p.onnx")
    assert not (tmp_path / "p.onnx").exists()


def test_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    monkeypatch.delattr("asyncrl.export.onnx_policy")
    monkeypatch.delitem(sys.modules, onnx_model.__module__)
    spec = EnvSpec(VECTOR, FOUR)
    policy = DQNConfig().build_policy(spec, PolicyContext(seed=0))
    with pytest.raises(ConfigError, match=r"not installed: pip install 'asyncrl\[onnx\]'"):
        export_policy(policy, spec, tmp_path / "p.onnx")
