"""Beside bfloat16, last layers answer in float32, and none of the layers in front of them do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from asyncrl.agents.c51 import C51Config
from asyncrl.agents.crossq import renormed_actor, renormed_critics
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.iqn import IQNConfig
from asyncrl.agents.parts.actor_critic import make_actor
from asyncrl.agents.parts.batch_renorm import RenormedCritics
from asyncrl.agents.parts.networks import MLP, NoisyLinear, NoisyMLP, Perturbation
from asyncrl.agents.r2d2 import R2D2Config
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec

HIDDEN = 64
"""Outputs of each hidden layer, and of the convolutions; no head has as many."""

VALUE = 200.0
"""Between 128 and 256, bfloat16 represents whole numbers exactly."""

VECTOR = BoxSpec((5,), "float32", np.zeros(5, np.float32), np.ones(5, np.float32))
IMAGE = BoxSpec((1, 36, 36), "uint8", np.zeros((1, 36, 36)), np.full((1, 36, 36), 255))
CONTINUOUS = BoxSpec((2,), "float32", -np.ones(2, np.float32), np.ones(2, np.float32))

Network = tuple[nn.Module, Callable[[Tensor], Tensor]]
"""A network, and how it is asked about observations."""


def dqn(observation: BoxSpec, **changes: Any) -> Network:
    network = DQNConfig(hidden=(HIDDEN, HIDDEN), **changes).make_network(choices(observation))
    return network, network


def c51(observation: BoxSpec, **changes: Any) -> Network:
    network = C51Config(hidden=(HIDDEN, HIDDEN), **changes).make_network(choices(observation))
    return network, network.logits


def iqn(observation: BoxSpec, **changes: Any) -> Network:
    network = IQNConfig(hidden=(HIDDEN, HIDDEN), **changes).make_network(choices(observation))
    return network, network


def r2d2(observation: BoxSpec, **changes: Any) -> Network:
    config = R2D2Config(
        hidden=(HIDDEN,), encoder_hidden=(HIDDEN, HIDDEN), memory_units=HIDDEN, **changes
    )
    network = config.make_network(choices(observation))
    memory = torch.zeros(2, network.core.memory_size)
    return network, lambda obs: network.unroll(obs[:, None], memory)


def actor(observation: BoxSpec) -> Network:
    network = make_actor(EnvSpec(observation, CONTINUOUS), (HIDDEN, HIDDEN), 4, None)
    return network, network


def crossq_actor(observation: BoxSpec) -> Network:
    network = renormed_actor(observation, (HIDDEN, HIDDEN), 4, 0)
    return network.eval(), network


def crossq_critics(observation: BoxSpec) -> Network:
    network = renormed_critics(observation, 2, 3, (HIDDEN, HIDDEN), 0).eval()
    return network, lambda obs: network(obs, torch.zeros(2, 2)).T


def choices(observation: BoxSpec) -> EnvSpec:
    return EnvSpec(observation, DiscreteSpec(3))


NOISY: Mapping[str, Any] = {"noisy": True, "exploration": None}
NETWORKS: Mapping[str, Callable[[BoxSpec], Network]] = {
    f"{make.__name__}{''.join(f', {name}' for name, on in changes.items() if on)}": (
        lambda observation, make=make, changes=changes: make(observation, **changes)
    )
    for make in (dqn, c51, iqn, r2d2)
    for changes in ({"dueling": False}, {"dueling": True}, NOISY | {"dueling": False})
} | {"actor": actor, "CrossQ's actor": crossq_actor, "CrossQ's critics": crossq_critics}


class LinearLayers(TorchFunctionMode):
    """Writes down how many outputs linear layers have, and what they come in."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, torch.dtype]] = []

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        answer = func(*args, **(kwargs or {}))
        if func in (functional.linear, torch.baddbmm):
            self.seen.append((answer.shape[-1], answer.dtype))
        return answer


def raise_answers(network: nn.Module) -> None:
    """Let a network answer with values that differ by little from the same large one."""
    with torch.no_grad():
        for layer in network.modules():
            if isinstance(layer, nn.Linear) and layer.out_features != HIDDEN:
                layer.weight.mul_(0.05)
                layer.bias.fill_(VALUE)
                if isinstance(layer, NoisyLinear):
                    layer.weight_sigma.mul_(0.05)
                    layer.bias_sigma.zero_()
            if isinstance(layer, RenormedCritics):
                layer.weights[-1].mul_(0.05)
                layer.biases[-1].fill_(VALUE)


@pytest.mark.parametrize(
    ("make", "observation"), [*((make, VECTOR) for make in NETWORKS.values()), (dqn, IMAGE)]
)
def test_heads_distinguish_what_bfloat16_cannot(
    make: Callable[[BoxSpec], Network], observation: BoxSpec
) -> None:
    torch.manual_seed(0)
    network, ask = make(observation)
    raise_answers(network)
    perturbation = Perturbation(network)
    if perturbation.size:
        perturbation.set(perturbation.draw(np.random.default_rng(0), 1))
    layers = LinearLayers()
    precision = DQNConfig(precision="bfloat16").precision_on(torch.device("cpu"))
    with torch.no_grad(), precision(), layers:
        answers = ask(torch.stack([torch.full(observation.shape, x) for x in (0.0, 10.0)]))
    assert (answers.bfloat16() == VALUE).all()
    assert not answers[0].equal(answers[1]), "two observations, but the same answers"
    assert HIDDEN in dict(layers.seen)
    for n_outputs, dtype in layers.seen:
        assert dtype == (torch.bfloat16 if n_outputs == HIDDEN else torch.float32)


@pytest.mark.parametrize("make", [MLP, NoisyMLP])
def test_layers_of_double_precision_keep_it_beside_bfloat16(make: Callable[..., nn.Module]) -> None:
    network, features = make(3, (4,), 2).double(), torch.rand(5, 3, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        answer = network(features)
    assert torch.equal(answer, network(features))
