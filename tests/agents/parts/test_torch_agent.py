"""What torch agents share: models handed over whole or not at all, states, devices, seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from asyncrl.agents.parts.optimizers import FastOptimizer, FusedAdam, RMSprop
from asyncrl.agents.parts.torch_agent import (
    Part,
    TorchAgent,
    TorchPolicy,
    clip_gradients,
    flatten_pair,
    flatten_parameters,
    learning_mode,
    pick_device,
    seeded,
)
from asyncrl.core.agent import PolicyContext, build_agent
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.messages import ModelInfo
from asyncrl.core.types import Array, ModelVersion, Params

CPU = torch.device("cpu")


def layer(value: float) -> nn.Linear:
    module = nn.Linear(2, 1)
    for parameter in module.parameters():
        nn.init.constant_(parameter, value)
    return module


def agent_with(value: float, **parts: Part) -> TorchAgent:
    agent = TorchAgent(layer(value), CPU)
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


@pytest.mark.parametrize(("own", "given", "known"), [(10, 30, 30), (30, 10, 30)])
def test_env_steps_are_the_larger_of_given_and_own_count(own: int, given: int, known: int) -> None:
    policy = TorchPolicy(layer(1.0), CPU)
    policy.env_steps = own
    policy.sync_model(info(1.0, env_steps=given))
    assert policy.env_steps == policy.model_info().env_steps == known


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"weight": np.zeros((1, 2))}, "it lacks bias"),
        ({**info(0.0).params, "extra": np.zeros(1)}, "it has extra, which is unknown here"),
        ({**info(0.0).params, "weight": np.zeros((1, 3))}, r"\(1, 3\), expected \(1, 2\)"),
    ],
)
def test_model_that_does_not_fit_is_refused_in_words(params: Params, words: str) -> None:
    policy = TorchPolicy(layer(1.0), CPU)
    with pytest.raises(ConfigError, match=words):
        policy.sync_model(ModelInfo(version=ModelVersion(4), params=params))
    assert flat(policy.model_info().params) == flat(info(1.0).params)
    assert policy.version == 0


def test_learning_mode_ends_however_the_block_does() -> None:
    networks = [nn.Sequential(layer(1.0), nn.Dropout()).eval() for _ in range(2)]
    layers = [module for network in networks for module in network.modules()]

    def fail() -> None:
        assert all(module.training for module in layers)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), learning_mode(*networks):
        fail()
    assert not any(module.training for module in layers)


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
        assert (
            "the saved noise is the state of a generator on cuda; on cpu it is seeded"
            in caplog.text
        )
        assert "not bit for bit" in caplog.text
        draws.append(torch.rand(3, generator=noise).tolist())
    assert draws[0] == draws[1] != draws[2]
    assert draws[0] != torch.rand(3, generator=torch.Generator().manual_seed(5)).tolist()


@pytest.mark.parametrize(
    "state",
    [
        PHILOX[:15],
        PHILOX.reshape(4, 4),
        PHILOX.astype(np.float32),
        np.zeros(5056, np.uint8),
        np.zeros(5056, np.float32),
    ],
    ids=["short", "square", "float", "zeros", "float zeros"],
)
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


def test_moments_of_rows_and_columns_come_back() -> None:
    agents = [TorchAgent(nn.Linear(3, 2), CPU) for _ in range(2)]
    first, second = (torch.optim.Adafactor(one.model.parameters()) for one in agents)
    for one, optimizer in zip(agents, (first, second), strict=True):
        one.parts["optimizer"] = optimizer
    for _ in range(2):
        first.zero_grad()
        agents[0].model(torch.ones(1, 3)).sum().backward()
        first.step()
    agents[1].load_state(agents[0].state())
    before, after = agents[0].state(), agents[1].state()
    assert before["optimizer/0/row_var"].shape == (2, 1)
    assert flat(before) == flat(after)


@pytest.mark.parametrize(
    ("kind", "slot", "found"),
    [
        (torch.optim.Adam, "exp_avg", (1, 3)),
        (torch.optim.Adam, "exp_avg", (2, 1)),
        (torch.optim.Adafactor, "row_var", (1, 3)),
        (torch.optim.Adafactor, "col_var", (1, 1)),
    ],
)
def test_moment_that_is_smaller_than_the_optimizer_expects_is_refused(
    kind: Any, slot: str, found: tuple[int, int]
) -> None:
    """A fused optimizer would read and write beyond its end."""
    agent = TorchAgent(nn.Linear(3, 2), CPU)
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
            [
                {"params": [agent.model.weight], "lr": 0.1},  # type: ignore[list-item]
                {"params": [agent.model.bias], "lr": torch.tensor(0.2)},  # type: ignore[list-item]
            ],
            amsgrad=True,
            foreach=False,
        )
        for agent in agents
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


MAKERS: dict[str, Callable[[list[nn.Parameter], float], Any]] = {
    "FusedAdam": FusedAdam,
    "RMSprop": lambda params, rate: RMSprop(params, rate, decay=0.9, eps=1e-3),
    "torch's": lambda params, rate: torch.optim.Adam(params, lr=rate),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_rate_that_was_set_comes_back_unless_the_settings_say_otherwise(
    make: Callable[[list[nn.Parameter], float], Any],
) -> None:
    def rate(optimizer: FastOptimizer | torch.optim.Optimizer, *, now: float = 0.0) -> float:
        if isinstance(optimizer, FastOptimizer):
            optimizer.learning_rate = now or optimizer.learning_rate
            return optimizer.learning_rate
        (group,) = optimizer.param_groups
        group["lr"] = now or group["lr"]
        return float(group["lr"])

    def agent(made_with: float) -> tuple[TorchAgent, Any]:
        agent = agent_with(1.0)
        optimizer = make(list(agent.model.parameters()), made_with)
        agent.parts["optimizer"] = optimizer
        return agent, optimizer

    first, optimizer = agent(0.1)
    before = first.state()
    rate(optimizer, now=0.025)
    state = first.state()
    for made_with, expected in ((0.1, 0.025), (0.2, 0.2)):
        second, other = agent(made_with)
        second.load_state(state)
        assert rate(other) == expected
        assert flat(second.state()) == flat(state) or made_with != 0.1
    first.load_state(before)
    assert rate(optimizer) == 0.1


def test_part_that_cannot_be_saved_is_named() -> None:
    agent = agent_with(1.0)
    optimizer = torch.optim.Adam(agent.model.parameters())
    agent.parts["decay"] = torch.optim.lr_scheduler.StepLR(optimizer, 1)  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"part 'decay' of TorchAgent is a StepLR, .* saved"):
        agent.state()


def changed(state: Params, **changes: Array | None) -> dict[str, Array]:
    kept = {name: value for name, value in state.items() if name not in changes}
    return kept | {name: value for name, value in changes.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": None}, "no version"),
        ({"stranger/x": np.zeros(1)}, "stranger/x"),
        ({"model/bias": None}, "saved model does not fit this agent's: it lacks bias"),
        ({"model/weight": np.zeros((2, 2))}, r"weight has shape \(2, 2\), expected \(1, 2\)"),
        (
            {"optimizer/group/0/lr": None},
            "optimizer does not fit .*: it lacks group/0/lr",
        ),
        ({"optimizer/7/exp_avg": np.zeros(1)}, "saved optimizer has 7/exp_avg"),
        ({"optimizer/0/exp_avg": np.zeros((3, 3))}, r"0/exp_avg has shape \(3, 3\)"),
        ({"random/state": None}, "saved random does not fit this agent's: it lacks state"),
        (
            {"random/state": np.frombuffer(b"[1", np.uint8)},
            "saved random is not a state of a PCG64",
        ),
        (
            {"random/state": np.frombuffer(b"[1]", np.uint8)},
            "saved random is not a state of a PCG64",
        ),
    ],
)
def test_state_that_does_not_fit_is_refused_in_words(
    changes: dict[str, Array | None], words: str
) -> None:
    agent = agent_with(1.0, random=np.random.default_rng(1))
    optimizer = torch.optim.Adam(agent.model.parameters())
    agent.parts["optimizer"] = optimizer
    step(agent, optimizer)
    other = agent_with(2.0, random=np.random.default_rng(2), optimizer=optimizer)
    before = flat(agent.state())
    with pytest.raises(CheckpointError, match=words):
        agent.load_state(changed(other.state(), **changes))
    assert flat(agent.state()) == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"adam/7/step": np.zeros(1)}, "saved adam has 7/step"),
        ({"adam/0/exp_avg": np.zeros((3, 3))}, r"0/exp_avg has shape \(3, 3\)"),
        ({"adam/0/step": None}, "saved adam does not fit: of parameter 0, it lacks step"),
        ({"adam/0/square_avg": np.zeros((1, 2))}, "of parameter 0, it has square_avg, which is un"),
        ({"adam/0/step": np.zeros((1, 2))}, r"step has shape .*\(1, 2\).*, expected \(\)"),
        ({"adam/0/exp_avg": np.zeros(())}, r"exp_avg has shape .*, expected \(1, 2\)"),
    ],
)
def test_state_that_does_not_fit_a_lean_optimizer_is_refused_in_words(
    changes: dict[str, Array | None], words: str
) -> None:
    agent = agent_with(1.0)
    agent.parts["adam"] = adam = FusedAdam(agent.model.parameters(), 0.1)
    agent.model(torch.ones(1, 2)).sum().backward()
    adam.step()
    before = flat(agent.state())
    with pytest.raises(CheckpointError, match=words):
        agent.load_state(changed(agent.state(), **changes))
    assert flat(agent.state()) == before


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x"])
def test_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"agent\.device must be"):
        pick_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_missing_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="sees no GPU"):
        pick_device("cuda")


def test_flat_parameters_are_the_network_and_learn_as_it_does() -> None:
    inputs = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))

    def network() -> nn.Module:
        with seeded(1):
            return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

    plain, flattened = network(), network()
    flat = flatten_parameters(flattened)
    gradient = flat.grad
    assert gradient is not None
    assert len(flat) == sum(p.numel() for p in plain.parameters())
    optimizers = torch.optim.Adam(plain.parameters(), lr=0.1), torch.optim.Adam([flat], lr=0.1)
    for _ in range(5):
        optimizers[0].zero_grad()
        gradient.zero_()
        for module in (plain, flattened):
            module(inputs).square().sum().backward()
        norm = nn.utils.get_total_norm([p.grad for p in plain.parameters() if p.grad is not None])
        assert float(gradient.norm()) == pytest.approx(float(norm), rel=1e-5)
        for optimizer in optimizers:
            optimizer.step()
    for one, other in zip(plain.parameters(), flattened.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("own", [True, False])
def test_what_two_networks_share_is_a_vector_of_both(own: bool) -> None:
    shared = nn.Linear(3, 4)
    one, other = nn.Sequential(shared, *[nn.Linear(4, 1)] * own), nn.Sequential(nn.ReLU(), shared)
    vectors, others = flatten_pair(one, other)
    assert [len(vector) for vector in vectors] == [5] * own + [16]
    assert [id(vector) for vector in others] == [id(vectors[-1])]
    one(torch.ones(2, 3)).sum().backward()
    assert all(vector.grad is not None and vector.grad.any() for vector in vectors)
    with torch.no_grad():
        for vector in vectors:
            vector.zero_()
    assert not any(param.any() for param in one.parameters())


@pytest.mark.parametrize("shapes", [[(7,)], [(3, 4), (4,), (1,)]], ids=["one", "several"])
@pytest.mark.parametrize("limit", [0.0, 0.5, 100.0])
def test_gradients_are_scaled_down_to_their_limit(
    shapes: list[tuple[int, ...]], limit: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(shape, generator=generator) for shape in shapes]
    before = [gradient.clone() for gradient in gradients]
    size = sum(float(number) ** 2 for gradient in before for number in gradient.flatten()) ** 0.5
    assert float(clip_gradients(gradients, limit)) == pytest.approx(size)
    factor = limit / size if 0 < limit < size else 1.0
    for mine, theirs in zip(gradients, before, strict=True):
        torch.testing.assert_close(mine, factor * theirs, rtol=1e-5, atol=1e-7)


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
    ids=[
        "neither",
        "environment",
        "build",
        "setting",
        "setting of 0",
        "setting before build",
        "auto",
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
