"""What torch agents share: models handed over whole or not at all, states, devices, seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn, tensor

from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.parts import torch_agent
from asyncrl.agents.parts.choosing import ChooserSpec, LogitChooser
from asyncrl.agents.parts.networks import pick_device
from asyncrl.agents.parts.optimizers import FusedAdam
from asyncrl.agents.parts.torch_agent import Part, Precision, TorchAgent, TorchPolicy
from asyncrl.core.agent import PolicyContext, build_agent
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.messages import ModelInfo
from asyncrl.core.types import Array, ModelVersion, Params

SPEC = EnvSpec(BoxSpec((2,), "float32", np.zeros(2), np.ones(2)), DiscreteSpec(2))


def layer(value: float) -> nn.Linear:
    module = nn.Linear(2, 1)
    for parameter in module.parameters():
        nn.init.constant_(parameter, value)
    return module


def policy_with(model: nn.Module) -> TorchPolicy:
    return TorchPolicy(model, ChooserSpec(LogitChooser), SPEC, PolicyContext(seed=1))


def agent_with(value: float, **parts: Part) -> TorchAgent:
    agent = TorchAgent(policy_with(layer(value)))
    agent.parts |= parts
    return agent


def info(value: float, version: int = 3, env_steps: int = 0) -> ModelInfo:
    params = {"weight": np.full((1, 2), value, np.float32), "bias": np.full(1, value, np.float32)}
    return ModelInfo(version=ModelVersion(version), params=params, env_steps=env_steps)


def flat(params: Params) -> dict[str, list[float]]:
    return {name: np.ravel(value).tolist() for name, value in params.items()}


def step(agent: TorchAgent, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    agent.model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("precision", "has_it", "dtype"),
    [
        ("auto", True, torch.bfloat16),
        ("auto", False, torch.float32),
        ("bfloat16", False, torch.bfloat16),
        ("float32", True, torch.float32),
    ],
)
def test_auto_multiplies_in_bfloat16_where_the_processor_has_it(
    precision: Precision, has_it: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"AMD EPYC (family 26, AVX-512{', BF16' * has_it})"
    monkeypatch.setattr(torch_agent, "processor", lambda: name)
    with DQNConfig(precision=precision).precision_on(torch.device("cpu"))():
        assert layer(1.0)(torch.ones(1, 2)).dtype == dtype


@pytest.mark.parametrize(("own", "given", "known"), [(10, 30, 30), (30, 10, 30)])
def test_env_steps_are_the_larger_of_given_and_own_count(own: int, given: int, known: int) -> None:
    policy = policy_with(layer(1.0))
    policy.env_steps = own
    policy.sync_model(info(1.0, env_steps=given))
    assert policy.env_steps == policy.model_info().env_steps == known


def test_each_kind_of_part_comes_back() -> None:
    def build(value: float, seed: int) -> tuple[TorchAgent, Mapping[str, Part]]:
        agent = agent_with(value)
        agent.parts |= {
            "target": layer(value),
            "optimizer": torch.optim.Adam(agent.model.parameters(), lr=0.1),
            "log_alpha": torch.tensor(value, requires_grad=True),
            "noise": torch.Generator().manual_seed(seed),
            "random": np.random.default_rng(seed),
        }
        return agent, agent.parts

    first, parts = build(1.0, seed=1)
    second, other_parts = build(2.0, seed=2)
    step(first, parts["optimizer"])  # type: ignore[arg-type]
    parts["random"].random(7)  # type: ignore[union-attr, call-arg]
    first.version, first.env_steps = ModelVersion(4), 9
    second.load_state(first.state())
    assert flat(second.state()) == flat(first.state())
    assert (second.version, second.env_steps) == (4, 9)
    for agent, of in ((first, parts), (second, other_parts)):
        step(agent, of["optimizer"])  # type: ignore[arg-type]
    assert flat(second.state()) == flat(first.state())
    draws = [torch.rand(3, generator=p["noise"]).tolist() for p in (parts, other_parts)]  # type: ignore[call-overload]
    draws += [p["random"].random(3).tolist() for p in (parts, other_parts)]  # type: ignore[union-attr, call-arg]
    assert (draws[0], draws[2]) == (draws[1], draws[3])


PHILOX = np.arange(16, dtype=np.uint8)  # what a generator on a GPU saves


def test_generator_of_another_device_is_reseeded_with_a_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    draws = []
    for state in (PHILOX, PHILOX, PHILOX + np.uint8(1)):
        caplog.clear()
        agent = agent_with(1.0, noise=(noise := torch.Generator().manual_seed(5)))
        agent.load_state(changed(agent.state(), **{"noise/state": state}))
        assert "the saved noise is the state of a generator on cuda" in caplog.text
        draws.append(torch.rand(3, generator=noise).tolist())
    assert draws[0] == draws[1] != draws[2]
    assert draws[0] != torch.rand(3, generator=torch.Generator().manual_seed(5)).tolist()


@pytest.mark.parametrize("state", [PHILOX[:15], PHILOX.astype(np.float32)])
def test_generator_state_of_a_wrong_form_is_refused(
    state: Array, caplog: pytest.LogCaptureFixture
) -> None:
    agent = agent_with(1.0, noise=torch.Generator().manual_seed(5))
    before = agent.state()
    wrong = changed(agent_with(2.0).state(), **{"noise/state": state})
    with pytest.raises(CheckpointError, match="the saved noise"):
        agent.load_state(wrong)
    assert flat(agent.state()) == flat(before)
    assert not caplog.records


@pytest.mark.parametrize(
    ("kind", "slot", "found"),
    [(torch.optim.Adam, "exp_avg", (2, 1)), (torch.optim.Adafactor, "col_var", (1, 1))],
)
def test_moment_that_is_smaller_than_the_optimizer_expects_is_refused(
    kind: Any, slot: str, found: tuple[int, int]
) -> None:
    """A fused optimizer would read and write beyond its end."""
    agent = TorchAgent(policy_with(nn.Linear(3, 2)))
    agent.parts["optimizer"] = optimizer = kind(agent.model.parameters())
    agent.model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    wrong = changed(agent.state(), **{f"optimizer/0/{slot}": np.zeros(found, np.float32)})
    with pytest.raises(CheckpointError, match=rf"{slot} has shape \({found[0]}, {found[1]}\)"):
        agent.load_state(wrong)


def test_settings_of_an_optimizer_that_were_changed_in_mid_run_come_back() -> None:
    agents = [agent_with(1.0), agent_with(2.0)]
    first, second = (
        torch.optim.AdamW(
            [{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": tensor(0.2)}],
            amsgrad=True,
            foreach=False,
        )
        for model in (agent.model for agent in agents)
    )
    for agent, optimizer in zip(agents, (first, second), strict=True):
        agent.parts["optimizer"] = optimizer
    first.param_groups[0] |= {"lr": 1e-5, "betas": (0.5, 0.6)}
    first.param_groups[1]["lr"].fill_(0.25)
    step(agents[0], first)
    agents[1].load_state(agents[0].state())
    settings = [
        [{k: v for k, v in group.items() if k != "params"} for group in one.param_groups]
        for one in (first, second)
    ]
    assert settings[0] == settings[1]
    assert isinstance(second.param_groups[1]["lr"], torch.Tensor)


def test_part_that_cannot_be_saved_is_named() -> None:
    agent = agent_with(1.0)
    optimizer = torch.optim.Adam(agent.model.parameters())
    agent.parts["decay"] = torch.optim.lr_scheduler.StepLR(optimizer, 1)  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"part 'decay' of TorchAgent is a StepLR, .* saved"):
        agent.state()


def changed(state: Params, **changes: Array | None) -> dict[str, Array]:
    return {name: value for name, value in {**state, **changes}.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": None}, "no version"),
        ({"stranger/x": np.zeros(1)}, "stranger/x"),
        ({"model/bias": None}, "saved model .* lacks bias"),
        ({"model/weight": np.zeros((2, 2))}, r"weight has shape \(2, 2\), expected \(1, 2\)"),
        ({"optimizer/settings": None}, "optimizer lacks settings"),
        ({"optimizer/7/exp_avg": np.zeros(1)}, "saved optimizer has 7/exp_avg"),
        ({"optimizer/0/exp_avg": np.zeros((3, 3))}, r"0/exp_avg has shape \(3, 3\)"),
        ({"adam/steps": None}, "saved adam .* lacks steps"),
        ({"adam/0/square_avg": np.zeros((1, 2))}, "saved adam .* has 0/square_avg"),
        ({"adam/0/exp_avg": np.zeros(())}, r"exp_avg has shape .*, expected \(1, 2\)"),
        ({"random/state": None}, "saved random .* lacks state"),
        ({"random/state": np.frombuffer(b"[1", np.uint8)}, "saved random"),
        ({"random/state": np.frombuffer(b"[1]", np.uint8)}, "saved random"),
    ],
)
def test_state_that_does_not_fit_is_refused_and_changes_nothing(
    changes: dict[str, Array | None], words: str
) -> None:
    agent = agent_with(1.0, random=np.random.default_rng(1))
    optimizer = torch.optim.Adam(agent.model.parameters())
    agent.parts |= {"optimizer": optimizer, "adam": FusedAdam(agent.model.parameters(), 0.1)}
    step(agent, optimizer)
    other = agent_with(2.0, **{**agent.parts, "random": np.random.default_rng(2)})
    other.parts["model"] = other.model
    before = flat(agent.state())
    with pytest.raises(CheckpointError, match=words):
        agent.load_state(changed(other.state(), **changes))
    assert flat(agent.state()) == before


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x"])
def test_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"agent\.device must be"):
        pick_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_missing_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="sees no GPU"):
        pick_device("cuda")


class Sets:
    """Settings of an agent whose `build` sets torch's number of threads; None leaves it."""

    def __init__(self, threads: int | None) -> None:
        self.n_threads = threads

    def build(self, spec: object, context: object) -> object:
        if self.n_threads is not None:
            torch.set_num_threads(self.n_threads)
        return object()


class Declares(Sets):
    """Settings that have a field for it."""

    def __init__(self, threads: int | str, in_build: int | None = None) -> None:
        super().__init__(in_build)
        self.threads = threads


@pytest.mark.parametrize(
    ("config", "omp", "expected"),
    [
        (Sets(None), None, 1),
        (Sets(None), "4", 3),
        (Sets(2), None, 2),
        (Declares(2), "4", 2),
        (Declares(0), None, 3),
        (Declares(1, in_build=2), None, 1),
        (Declares("auto", in_build=2), "4", 1),
    ],
)
def test_torch_has_one_thread_by_default(
    config: Any, omp: str | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if omp:
        monkeypatch.setenv("OMP_NUM_THREADS", omp)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        build_agent(config, cast(Any, None), PolicyContext(seed=0))
        assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)


def test_parts_of_a_batch_are_refused_where_a_compiler_would_undo_them() -> None:
    assert DQNConfig(accumulate=4).accumulate == 4
    with pytest.raises(ConfigError, match=r"agent\.accelerate='compile'"):
        DQNConfig(accumulate=4, accelerate="compile")
