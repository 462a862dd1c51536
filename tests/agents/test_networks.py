"""Default networks: shapes that fit, the dueling sum, images scaled, errors that say what fits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from asyncrl.agents.networks import DuelingHead, as_float, mlp, q_network
from asyncrl.env import BoxSpec
from asyncrl.errors import ConfigError


def box(shape: tuple[int, ...], dtype: str = "float32") -> BoxSpec:
    return BoxSpec(shape, dtype, np.zeros(shape, dtype), np.ones(shape, dtype))


def linear_sizes(network: nn.Module) -> list[tuple[int, int]]:
    return [(m.in_features, m.out_features) for m in network.modules() if isinstance(m, nn.Linear)]


@pytest.mark.parametrize(
    ("hidden", "sizes"),
    [((), [(3, 2)]), ((8,), [(3, 8), (8, 2)]), ([8, 5], [(3, 8), (8, 5), (5, 2)])],
)
def test_mlp_has_the_layers_it_was_asked_for(
    hidden: tuple[int, ...], sizes: list[tuple[int, int]]
) -> None:
    network = mlp(3, hidden, 2)
    assert linear_sizes(network) == sizes
    assert not isinstance(network[-1], nn.ReLU), "outputs may be negative"
    assert sum(isinstance(m, nn.ReLU) for m in network) == len(hidden)


def test_dueling_head_adds_value_and_advantage_less_its_mean() -> None:
    head = DuelingHead(3, (), 4)
    features = torch.randn(5, 3)
    q = head(features)
    assert torch.allclose(q.mean(dim=1), head.value(features).squeeze(1), atol=1e-6)
    advantage = head.advantage(features)
    assert torch.allclose(q - q[:, :1], advantage - advantage[:, :1], atol=1e-6)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("hidden", [(), (16,), (16, 8)])
@pytest.mark.parametrize(
    "observation",
    [box((5,)), box(()), box((2, 3, 4)), box((4, 84, 84), "uint8"), box((3,), "uint8")],
)
def test_q_network_gives_a_value_for_each_action(
    observation: BoxSpec, hidden: tuple[int, ...], dueling: bool
) -> None:
    network = q_network(observation, hidden, 6, dueling=dueling)
    assert network(torch.rand(2, *observation.shape)).shape == (2, 6)


def test_streams_of_a_dueling_network_share_all_hidden_layers_but_the_last() -> None:
    sizes = linear_sizes(q_network(box((5,)), (16, 8), 6, dueling=True))
    assert sorted(sizes) == sorted([(5, 16), (16, 8), (8, 1), (16, 8), (8, 6)])


def test_images_go_through_the_convolutions_of_2015() -> None:
    network = q_network(box((4, 84, 84), "uint8"), (512,), 6)
    assert [m.out_channels for m in network if isinstance(m, nn.Conv2d)] == [32, 64, 64]
    assert linear_sizes(network) == [(7 * 7 * 64, 512), (512, 6)]


@pytest.mark.parametrize("shape", [(84, 84, 3), (36, 36, 1)])
def test_images_that_do_not_fit_are_refused_with_the_shape_that_would(
    shape: tuple[int, ...],
) -> None:
    with pytest.raises(ConfigError, match="channels, height, width") as caught:
        q_network(box(shape, "uint8"), (16,), 2)
    assert str(shape) in str(caught.value)
    assert q_network(box((3, 36, 36), "uint8"), (16,), 2)


def test_bytes_are_scaled_and_nothing_else_is() -> None:
    scaled = as_float(torch.tensor([0, 51, 255], dtype=torch.uint8))
    assert scaled.tolist() == pytest.approx([0.0, 0.2, 1.0])
    for dtype in (torch.float32, torch.float64, torch.int64):
        kept = as_float(torch.tensor([0, 51, 255], dtype=dtype))
        assert kept.dtype == torch.float32
        assert kept.tolist() == [0.0, 51.0, 255.0]
