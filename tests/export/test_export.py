"""Exported policies: the same actions without torch, for all kinds of spaces and networks."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asyncrl.agents.c51 import C51Config
from asyncrl.agents.crossq import CrossQConfig
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.impala import IMPALAConfig
from asyncrl.agents.ppo import PPOConfig
from asyncrl.agents.r2d2 import R2D2Config
from asyncrl.agents.sac import SACConfig
from asyncrl.agents.td3 import TD3Config
from asyncrl.core.agent import PolicyContext
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec, PackedSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array
from asyncrl.export import policy_numpy
from asyncrl.export.export import export_policy
from asyncrl.export.policy_numpy import Policy

ROWS = 50
STEPS = 30


def box(low: Any, high: Any, dtype: str = "float32", *, categorical: bool = False) -> BoxSpec:
    low, high = np.asarray(low, dtype), np.asarray(high, dtype)
    return BoxSpec(low.shape, dtype, low, high, categorical=categorical)


VECTOR = box([-np.inf] * 5, [np.inf] * 5)
IMAGE = box(np.zeros((2, 40, 36)), np.full((2, 40, 36), 255), "uint8")
CHOICES = box([0, 1], [3, 2], "int64", categorical=True)
BYTE_CHOICES = box([0, 1], [3, 2], "uint8", categorical=True)
MANY = box([5, 0], [3000, 3], "int64", categorical=True)
CHANNELS_LAST = box(np.zeros((36, 40, 2)), np.ones((36, 40, 2)))
BOARD = box(np.zeros(3), [3, 3, 200], "uint8")
FIELDS = PackedSpec((("camera/left", IMAGE), ("place", VECTOR), ("gear", CHOICES)))
BOUNDED = box([-1, -2, 0], [1, 5, 3])
UNBOUNDED = box([-np.inf, -1], [np.inf, 1])
FOUR = DiscreteSpec(4)

CASES: dict[str, tuple[Any, EnvSpec]] = {
    "dqn": (DQNConfig(normalize_obs=True), EnvSpec(VECTOR, FOUR)),
    "dqn, dueling, noisy": (DQNConfig(dueling=True, noisy=True), EnvSpec(VECTOR, FOUR)),
    "dqn, board, normalised": (DQNConfig(normalize_obs=True), EnvSpec(BOARD, FOUR)),
    "dqn, channels last": (DQNConfig(), EnvSpec(CHANNELS_LAST, FOUR)),
    "dqn, fields": (DQNConfig(normalize_obs=True), EnvSpec(FIELDS, FOUR)),
    "dqn, choices in bytes": (DQNConfig(), EnvSpec(BYTE_CHOICES, FOUR)),
    "c51": (C51Config(dueling=True), EnvSpec(VECTOR, FOUR)),
    "sac": (SACConfig(hidden=(32, 32), normalize_obs=True), EnvSpec(VECTOR, BOUNDED)),
    "crossq": (CrossQConfig(hidden=(32,), critic_hidden=(8,)), EnvSpec(VECTOR, BOUNDED)),
    "ppo, many choices": (PPOConfig(), EnvSpec(MANY, FOUR)),
    "ppo, quantities": (PPOConfig(normalize_obs=True), EnvSpec(VECTOR, UNBOUNDED)),
    "ppo, several choices": (PPOConfig(), EnvSpec(VECTOR, CHOICES)),
}

PLAIN = BoxSpec((3,), "float32", VECTOR.low[:3], VECTOR.high[:3])
PARTS = PackedSpec((("place", PLAIN), ("gear", CHOICES)))
GRU: Any = {"memory": "gru", "hidden": (16,)}
LSTM: Any = {"memory": "lstm", "hidden": (16,)}
SHARED: Any = {"shared_torso": True}

REMEMBERING: dict[str, tuple[Any, EnvSpec]] = {
    "ppo lstm, quantities": (
        PPOConfig(normalize_obs=True, **SHARED, **LSTM),
        EnvSpec(VECTOR, BOUNDED),
    ),
    "ppo gru, several choices": (PPOConfig(**SHARED, **GRU), EnvSpec(VECTOR, CHOICES)),
    "impala lstm, fields": (IMPALAConfig(normalize_obs=True, **LSTM), EnvSpec(PARTS, FOUR)),
    "r2d2 gru, noisy": (
        R2D2Config(hidden=(16,), encoder_hidden=(16,), memory_units=12, memory="gru", noisy=True),
        EnvSpec(VECTOR, FOUR),
    ),
}


def observations(space: BoxSpec | PackedSpec, seed: int = 77) -> Array:
    """Return other observations than those that an export is checked with."""
    random = np.random.default_rng(seed)
    if isinstance(space, PackedSpec):
        return space.pack({name: observations(field, seed) for name, field in space.fields})
    if space.dtype == "float32":
        return 3 * random.standard_normal((ROWS, *space.shape), np.float32)
    low, high = space.low.astype(int), space.high.astype(int)
    return random.integers(low, high, (ROWS, *space.shape), endpoint=True).astype(space.dtype)


def trained_a_little(policy: Any) -> Any:
    """Move all parameters, and what was learned of observations, away from where they start."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for param in policy.model.parameters():
            param.add_(0.1 * torch.randn(param.shape, generator=generator))
        for name, buffer in policy.model.named_buffers():
            if name.endswith((".mean", ".var", "running_mean", "running_var")):
                buffer.add_(torch.rand(buffer.shape, generator=generator))
    return policy.train(False)


def trained_and_exported(config: Any, spec: EnvSpec, path: Path, *, seed: int = 1) -> Any:
    """Return a policy that has learned, once it is in a file."""
    policy = trained_a_little(config.build_policy(spec, PolicyContext(seed=seed)))
    export_policy(policy, spec, path)
    return policy


def by_field(spec: EnvSpec, obs: Array) -> Any:
    """Return observations as exported policies take them."""
    return spec.observation.unpack(obs) if isinstance(spec.observation, PackedSpec) else obs


@pytest.mark.parametrize("case", CASES)
def test_actions_and_answers_are_those_of_torch(case: str, tmp_path: Path) -> None:
    config, spec = CASES[case]
    policy = trained_and_exported(config, spec, tmp_path / "p.npz")
    obs = observations(spec.observation)
    exported = Policy(tmp_path / "p.npz")
    given = by_field(spec, obs)
    action, expected = exported.act(given), policy.act(obs).action
    assert (action.dtype, action.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(action, expected, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        output = policy.model(policy.read_obs(torch.from_numpy(obs)))
    answer = (output[0] if isinstance(output, tuple) else output).numpy()
    fields = given if isinstance(given, dict) else {"": given}
    np.testing.assert_allclose(exported.answer(fields), answer, rtol=1e-4, atol=1e-5)
    one = {name: field[7] for name, field in fields.items()} if isinstance(given, dict) else obs[7]
    np.testing.assert_allclose(exported.act(one), action[7], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", REMEMBERING)
def test_what_remembers_acts_as_torch_does_through_episodes(case: str, tmp_path: Path) -> None:
    config, spec = REMEMBERING[case]
    policy = trained_and_exported(config, spec, tmp_path / "p.npz")
    exported = Policy(tmp_path / "p.npz")
    memories = policy.chooser.memories
    random = np.random.default_rng(5)
    begins = np.ones(ROWS, np.bool_)
    for step in range(STEPS):
        obs = observations(spec.observation, seed=step)
        given = by_field(spec, obs)
        policy.forget(begins)
        exported.reset(begins)
        action, expected = exported.act(given), policy.act(obs).action
        assert (action.dtype, action.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(action, expected, rtol=1e-5, atol=1e-5)
        memory = memories.recall(ROWS, training=False)
        np.testing.assert_allclose(exported.memory, memory, rtol=1e-4, atol=1e-5)
        begins = random.random(ROWS) < 0.1


def test_network_that_counts_rows_remembers_row_by_row(tmp_path: Path) -> None:
    config, spec = IMPALAConfig(network=counting_network, **GRU), EnvSpec(VECTOR, BOUNDED)
    policy = trained_and_exported(config, spec, tmp_path / "p.npz", seed=0)
    exported = Policy(tmp_path / "p.npz")
    assert not exported.description["any_batch"]
    for step in range(5):
        obs = observations(VECTOR, seed=step)
        np.testing.assert_allclose(exported.act(obs), policy.act(obs).action, 1e-5, 1e-5)


WITHOUT = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"asyncrl", "torch", "gymnasium"}:
            raise ImportError(f"{name} is not here")

sys.meta_path.insert(0, Refuse())
import numpy as np
from policy_numpy import Policy

np.save("action.npy", Policy("p.npz").act(np.load("obs.npy")))
try:
    import torch
except ImportError:
    print("without torch")
"""


def test_a_copy_of_one_file_acts_without_torch_and_without_this_package(tmp_path: Path) -> None:
    spec = EnvSpec(VECTOR, BOUNDED)
    policy = trained_a_little(SACConfig(hidden=(32,)).build_policy(spec, PolicyContext(seed=2)))
    export_policy(policy, spec, tmp_path / "p.npz")
    shutil.copy(policy_numpy.__file__, tmp_path)
    np.save(tmp_path / "obs.npy", observations(VECTOR))
    command = [sys.executable, "-c", WITHOUT]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "without torch\n")
    expected = policy.act(observations(VECTOR)).action
    np.testing.assert_allclose(np.load(tmp_path / "action.npy"), expected, rtol=1e-5, atol=1e-5)


def own_network(_: EnvSpec) -> nn.Module:
    return nn.Sequential(
        nn.Linear(5, 16), nn.LayerNorm(16), nn.SiLU(), nn.Dropout(0.5), nn.Linear(16, 4)
    )


class Fourier(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.fft.fft(x).real)


class Counting(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([super(Counting, self).forward(x[i]) for i in range(x.shape[0])])


def counting_network(_: EnvSpec) -> nn.Module:
    return Counting(5, 8)


def unknown_network(_: EnvSpec) -> nn.Module:
    return Fourier(5, 4)


def test_network_of_the_users_own_is_exported_and_stays_unchanged(tmp_path: Path) -> None:
    spec = EnvSpec(VECTOR, FOUR)
    policy = DQNConfig(network=own_network).build_policy(spec, PolicyContext(seed=0))
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    export_policy(policy, spec, tmp_path / "p.npz")
    assert (policy.training, policy.env_steps) == (True, 0)
    after = policy.model.state_dict()
    assert all(torch.equal(before[name], value) for name, value in after.items())
    obs = observations(VECTOR)
    assert np.array_equal(Policy(tmp_path / "p.npz").act(obs), policy.train(False).act(obs).action)


def test_network_that_does_something_else_is_refused(tmp_path: Path) -> None:
    spec = EnvSpec(VECTOR, FOUR)
    policy = DQNConfig(network=unknown_network).build_policy(spec, PolicyContext(seed=0))
    with pytest.raises(ConfigError, match=r"the network uses aten\.\S*fft.*, which exported"):
        export_policy(policy, spec, tmp_path / "p.npz")
    assert not (tmp_path / "p.npz").exists()


def acts_otherwise(policy: Any, change: Callable[[Array], Array]) -> None:
    act = policy.act
    policy.act = lambda obs: type(act(obs))(change(act(obs).action))


@pytest.mark.parametrize(
    ("case", "spoil"),
    [
        (CASES["dqn"], lambda policy: acts_otherwise(policy, lambda action: 3 - action)),
        (
            (TD3Config(hidden=(8,)), EnvSpec(VECTOR, box([-1e-6] * 3, [1e-6] * 3))),
            lambda policy: acts_otherwise(policy, lambda action: -action),
        ),
        (
            REMEMBERING["ppo gru, several choices"],
            lambda policy: setattr(policy, "forget", lambda _: None),
        ),
    ],
    ids=["choices", "narrow bounds", "memory of more than an episode"],
)
def test_policy_that_acts_in_another_way_is_refused(
    case: tuple[Any, EnvSpec], spoil: Callable[[Any], None], tmp_path: Path
) -> None:
    config, spec = case
    policy = trained_a_little(config.build_policy(spec, PolicyContext(seed=2)))
    spoil(policy)
    words = f"{type(policy).__name__} does not derive actions from its network"
    with pytest.raises(ConfigError, match=words):
        export_policy(policy, spec, tmp_path / "p.npz")
