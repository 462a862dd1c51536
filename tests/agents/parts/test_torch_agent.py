"""What torch agents share: models handed over whole or not at all, states, devices, seeds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from asyncrl.agents.parts.optimizers import FastOptimizer, FusedAdam, RMSprop
from asyncrl.agents.parts.schedules import Schedule
from asyncrl.agents.parts.torch_agent import (
    Part,
    TorchAgent,
    TorchPolicy,
    buffer_copier,
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


def test_model_info_names_all_parameters_and_buffers() -> None:
    policy = TorchPolicy(nn.Sequential(layer(1.0), nn.BatchNorm1d(1)), CPU)
    assert set(policy.model_info().params) == set(policy.model.state_dict())
    assert policy.model_info().params["0.weight"].tolist() == [[1.0, 1.0]]


def test_sync_takes_parameters_and_version() -> None:
    policy = TorchPolicy(layer(1.0), CPU)
    policy.sync_model(info(5.0, version=8))
    assert flat(policy.model_info().params) == {"weight": [5.0, 5.0], "bias": [5.0]}
    assert policy.model_info().version == 8


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


def test_read_only_snapshot_is_taken() -> None:
    received = info(5.0)
    for value in received.params.values():
        value.setflags(write=False)
    policy = TorchPolicy(layer(1.0), CPU)
    policy.sync_model(received)
    assert flat(policy.model_info().params) == flat(info(5.0).params)


def test_layers_that_act_differently_in_training_do_not_whether_it_explores_or_not() -> None:
    policy = TorchPolicy(nn.Sequential(layer(1.0), nn.Dropout()), CPU)
    assert policy.training
    assert not any(module.training for module in policy.model.modules())
    assert policy.train(False) is policy
    assert not policy.training
    policy.train()
    assert policy.training
    assert not any(module.training for module in policy.model.modules())


def test_learning_mode_ends_however_the_block_does() -> None:
    networks = [nn.Sequential(layer(1.0), nn.Dropout()).eval() for _ in range(2)]
    layers = [module for network in networks for module in network.modules()]

    def fail() -> None:
        assert all(module.training for module in layers)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), learning_mode(*networks):
        fail()
    assert not any(module.training for module in layers)


def test_layer_with_a_custom_train_method_is_called() -> None:
    class Frozen(nn.BatchNorm1d):
        def train(self, mode: bool = True) -> Frozen:
            return super().train(False)

    frozen, dropout = Frozen(2), nn.Dropout()
    with learning_mode(nn.Sequential(frozen, dropout).eval()):
        assert (frozen.training, dropout.training) == (False, True)
    assert (frozen.training, dropout.training) == (False, False)


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


def test_generator_comes_back_whatever_its_numbers() -> None:
    for draws in range(50):
        saved, loaded = np.random.default_rng(draws), np.random.default_rng(0)
        saved.integers(5, size=draws)
        agent_with(0.0, random=loaded).load_state(agent_with(0.0, random=saved).state())
        assert loaded.random() == saved.random()


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


def test_generator_of_the_same_device_continues_silently(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = agent_with(1.0, noise=torch.Generator().manual_seed(5))
    agent.load_state(agent.state())
    assert not caplog.records


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


def test_on_load_is_called_after_a_complete_load_only() -> None:
    agent, seen = agent_with(1.0), []
    agent.on_load.append(lambda: seen.append(flat(agent.model_info().params)["bias"]))
    with pytest.raises(CheckpointError):
        agent.load_state({})
    assert not seen
    agent.load_state(agent_with(2.0).state())
    assert seen == [[2.0]]


def test_optimizer_that_has_done_nothing_comes_back_as_such() -> None:
    agent, fresh = agent_with(1.0), agent_with(2.0)
    optimizer = torch.optim.Adam(agent.model.parameters())
    agent.parts["optimizer"] = optimizer
    fresh.parts["optimizer"] = torch.optim.Adam(fresh.model.parameters())
    step(agent, optimizer)
    agent.load_state(fresh.state())
    assert not optimizer.state


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


def test_a_schedule_counts_before_a_rate_that_was_set() -> None:
    agents = [agent_with(1.0), agent_with(1.0)]
    made = FusedAdam(agents[0].model.parameters(), 0.1)
    made.learning_rate = 0.5
    scheduled = FusedAdam(agents[1].model.parameters(), Schedule.linear(0.1, 0.0, 100))
    for agent, adam in zip(agents, (made, scheduled), strict=True):
        agent.parts["adam"] = adam
    agents[1].load_state(agents[0].state())
    assert scheduled.set_rate_at(50) == pytest.approx(0.05)


def test_part_that_cannot_be_saved_is_named() -> None:
    agent = agent_with(1.0)
    optimizer = torch.optim.Adam(agent.model.parameters())
    agent.parts["decay"] = torch.optim.lr_scheduler.StepLR(optimizer, 1)  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"part 'decay' of TorchAgent is a StepLR, .* saved"):
        agent.state()


def test_state_is_put_where_an_older_one_was_as_far_as_that_fits() -> None:
    agent = agent_with(1.0, tensor=torch.ones(3), count=torch.ones(2, dtype=torch.int64))
    old = agent.state()
    agent.spare = {**old, "tensor/value": np.zeros(4, np.float32), "count/value": np.zeros(2)}
    with torch.no_grad():
        agent.model.load_state_dict(layer(7.0).state_dict())
    state = agent.state()
    assert flat(state) == flat(agent_with(7.0, tensor=torch.ones(3), count=torch.ones(2)).state())
    kept = {name for name, value in old.items() if state[name] is value}
    assert kept == {name for name in old if name.startswith("model/")}
    assert state["count/value"].dtype == np.int64


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


def test_device_is_picked_by_name() -> None:
    assert pick_device("cpu") == CPU
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x"])
def test_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"agent\.device must be"):
        pick_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_missing_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="sees no GPU"):
        pick_device("cuda")


def test_seeded_layers_repeat_and_leave_the_global_generator_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(2)
    torch.manual_seed(7)
    weights = []
    for seed in (1, 1, 2):
        with seeded(seed):
            weights.append(nn.Linear(3, 3).weight)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(torch.rand(2), expected)


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


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU])
def test_recurrent_layer_begins_the_vector_in_the_order_of_cudnn(make: type[nn.RNNBase]) -> None:
    recurrent = make(3, 5)
    network = nn.Sequential(nn.Linear(3, 3), recurrent, nn.Linear(5, 2))
    values = {name: param.detach().clone() for name, param in network.named_parameters()}
    flat = flatten_parameters(network)
    end = 0
    for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
        param = getattr(recurrent, name)
        assert param.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
        assert param.storage_offset() == end
        end += param.numel()
    assert len(flat) == sum(param.numel() for param in network.parameters())
    for name, param in network.named_parameters():
        assert torch.equal(param, values[name])


def test_frozen_parameters_stay_out_of_the_flat_ones() -> None:
    network = nn.Sequential(layer(1.0), nn.Linear(1, 5))
    network[0].requires_grad_(False)
    flat = flatten_parameters(network)
    assert len(flat) == 10
    flat.detach().zero_()
    assert network[0].weight.tolist() == [[1.0, 1.0]]
    assert not network[1].weight.any()


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


def test_networks_that_share_nothing_are_a_vector_each() -> None:
    vectors = flatten_pair(nn.Linear(3, 4), nn.Linear(2, 1))
    assert [[len(vector) for vector in of] for of in vectors] == [[16], [3]]


def test_flattened_network_takes_models_and_states() -> None:
    agent = agent_with(1.0)
    flat = flatten_parameters(agent.model)
    agent.sync_model(info(5.0))
    assert flat.tolist() == [5.0] * 3
    agent.load_state(agent_with(7.0).state())
    assert flat.tolist() == [7.0] * 3


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


class Counting(nn.Module):
    """Counts rows, the newest count being another tensor than the one before."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("nothing", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count = self.count + len(x)
        normed: torch.Tensor = self.norm(x)
        return normed


def test_copy_of_a_network_is_given_its_buffers_also_those_that_were_replaced() -> None:
    source = nn.Sequential(Counting(), nn.Linear(2, 1))
    target = copy.deepcopy(source)
    copy_buffers = buffer_copier(source, target)
    before = [parameter.clone() for parameter in target.parameters()]
    for calls in (1, 2):
        for module in (source, target, source):
            module(torch.randn(4, 2))
        copy_buffers()
        buffers = dict(target.named_buffers())
        assert buffers["0.count"] == 8 * calls
        assert len(buffers) == 4
        for name, buffer in source.named_buffers():
            assert torch.equal(buffers[name], buffer)
            assert buffers[name] is not buffer
    assert all(map(torch.equal, before, target.parameters()))


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
