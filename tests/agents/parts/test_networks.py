"""Default networks: shapes that fit, the dueling sum, images scaled, errors that say what fits."""

from __future__ import annotations

from copy import deepcopy
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete, MultiDiscrete
from gymnasium.spaces.utils import flatten
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from asyncrl.agents.parts.networks import (
    MLP,
    DuelingHead,
    Embedding,
    OneHot,
    encoder_layers,
    n_features,
    nature_cnn,
    no_observations,
    observation_reader,
    q_network,
    small_image_network,
)
from asyncrl.agents.parts.updater import ChunkedForward
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec, PackedSpec
from asyncrl.core.errors import ConfigError
from asyncrl.envs.spaces import spec_from_spaces


def box(shape: tuple[int, ...], dtype: str = "float32") -> BoxSpec:
    high = np.full(shape, 255 if dtype == "uint8" else 1, dtype)
    return BoxSpec(shape, dtype, np.zeros(shape, dtype), high)


def linear_sizes(network: nn.Module) -> list[tuple[int, int]]:
    return [(m.in_features, m.out_features) for m in network.modules() if isinstance(m, nn.Linear)]


@pytest.mark.parametrize("rows", [1, 12, 128, 129])
def test_wide_mlp_multiplies_few_rows_from_the_left_with_the_same_result(rows: int) -> None:
    network = MLP(3, (512, 600), 2)
    x = torch.randn(rows, 3)
    learned = network(x)
    linear = patch.object(functional, "linear", wraps=functional.linear)
    with torch.inference_mode(), linear as calls:
        acted = network(x)
    assert calls.call_count == (1 if rows in {12, 128} else 3), "1 is the head"
    assert torch.allclose(acted, learned, rtol=1e-5, atol=1e-6)
    assert acted.is_contiguous()


def test_dueling_head_of_several_values_is_one_for_each_of_them() -> None:
    head = DuelingHead(3, (), 4, n_values=2)
    features = torch.randn(6, 5, 3)
    q = head(features).reshape(6, 5, 4, 2)
    advantage = head.advantage(features).reshape(6, 5, 4, 2)
    assert torch.allclose(q.mean(dim=2), head.value(features), atol=1e-6)
    assert torch.allclose(q - q[:, :, :1], advantage - advantage[:, :, :1], atol=1e-6)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64", "int16"])
@pytest.mark.parametrize("shape", [(4, 84, 84), (84, 84, 4)])
def test_images_go_through_the_convolutions_of_2015(shape: tuple[int, ...], dtype: str) -> None:
    network = q_network(box(shape, dtype), (512,), 6)
    assert [m.out_channels for m in network if isinstance(m, nn.Conv2d)] == [32, 64, 64]
    assert linear_sizes(network) == [(7 * 7 * 64, 512), (512, 6)]


def plain(network: nn.Sequential) -> nn.Sequential:
    """Return the same layers, the convolutions among them as torch has them."""
    copied = deepcopy(network)
    for layer in copied:
        if isinstance(layer, nn.Conv2d):
            layer.__class__ = nn.Conv2d
    return copied


def learned(network: nn.Module, images: torch.Tensor, parts: int, dtype: torch.dtype) -> list[Any]:
    """Return what a network answers, and its gradients."""
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        features: torch.Tensor = ChunkedForward(parts)(network, images)
    features.float().square().mean().backward()
    return [features, *(p.grad for p in network.parameters())]


@pytest.mark.parametrize(
    ("n_channels", "rows", "parts", "dtype"),
    [(4, 8, 1, torch.float32), (3, 1, 1, torch.float32), (1, 5, 3, torch.bfloat16)],
)
def test_images_are_learned_from_as_by_plain_convolutions(
    n_channels: int, rows: int, parts: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    network, images = nature_cnn(n_channels), torch.rand(rows, n_channels, 44, 40)
    right = learned(plain(network), images, parts, dtype)
    torch.testing.assert_close(learned(network, images, parts, dtype), right)


def test_images_with_channels_last_are_transposed() -> None:
    torch.manual_seed(0)
    first = q_network(box((3, 40, 36), "uint8"), (8,), 2)
    torch.manual_seed(0)
    last = q_network(box((40, 36, 3), "uint8"), (8,), 2)
    images = torch.rand(2, 40, 36, 3)
    torch.testing.assert_close(last(images), first(images.permute(0, 3, 1, 2)))


def test_smaller_network_is_for_images_and_takes_everything_else() -> None:
    for observation, convolutions in (
        (box((4, 84, 84), "uint8"), [16, 32]),
        (box((36, 40, 3), "uint8"), [16, 32]),
        (box((5,)), []),
        (FIELDS, [32, 64, 64]),
    ):
        network = small_image_network(EnvSpec(observation, DiscreteSpec(2)))
        assert network(no_observations(observation, 2)).shape == (2, 256)
        layers = [m.out_channels for m in network.modules() if isinstance(m, nn.Conv2d)]
        assert layers == convolutions


@pytest.mark.parametrize("shape", [(84, 3, 84), (36, 1, 36)])
def test_images_that_do_not_fit_are_refused_with_their_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="channels, height, width") as caught:
        q_network(box(shape, "uint8"), (16,), 2)
    assert str(shape) in str(caught.value)
    assert q_network(box((3, 36, 36), "uint8"), (16,), 2)


def choices(low: list[int], high: list[int]) -> BoxSpec:
    bounds = np.array(low), np.array(high)
    return BoxSpec(bounds[0].shape, "int64", *bounds, categorical=True)


@given(
    st.lists(st.tuples(st.integers(-9, 9), st.integers(1, 6)), min_size=1, max_size=4), st.data()
)
@settings(max_examples=50, deadline=None)
def test_one_hot_is_that_of_gymnasium_with_a_mean_square_of_one(
    sizes: list[tuple[int, int]], data: st.DataObject
) -> None:
    start, n = (list(numbers) for numbers in zip(*sizes, strict=True))
    space = MultiDiscrete(n, start=start)
    space.seed(data.draw(st.integers(0, 1000)))
    spec = spec_from_spaces(space, Discrete(2)).observation
    obs = space.sample()
    encode, features = encoder_layers(spec), n_features(encoder_layers(spec), spec)
    encoded = nn.Sequential(*encode)(torch.from_numpy(obs[None]).float())
    assert features == sum(n)
    np.testing.assert_allclose(encoded[0], flatten(space, obs) * np.sqrt(np.repeat(n, n)))


@pytest.mark.parametrize(
    ("spec", "n_inputs"),
    [
        (choices([0, 0], [511, 511]), 1024),
        (choices([0, 0], [511, 512]), 64),
        (choices([2**24], [2**24]), 1),
        (BoxSpec((2,), "int64", np.zeros(2), np.ones(2)), 2),
    ],
)
def test_choices_are_encoded_and_numbers_stay(spec: BoxSpec, n_inputs: int) -> None:
    assert linear_sizes(q_network(spec, (), 2)) == [(n_inputs, 2)]


@pytest.mark.parametrize("bounds", [([0], [2**20]), ([2**24 + 1], [2**24 + 3])])
def test_choices_that_are_too_many_or_too_large_are_refused(bounds: tuple[Any, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"from {bounds[0][0]} to {bounds[1][0]} do not fit"):
        encoder_layers(choices(*bounds))


def test_many_choices_are_embedded_as_a_layer_on_one_hot_inputs_does() -> None:
    spec = choices([5, -3, 0], [1004, 496, 3])
    (embed,) = encoder_layers(spec)
    assert isinstance(embed, Embedding)
    random = np.random.default_rng(0)
    drawn = random.integers(spec.low, spec.high, (500, 3), endpoint=True)
    obs = torch.from_numpy(np.array([spec.low, spec.high, *drawn])).float()
    torch.testing.assert_close(embed(obs), OneHot(spec)(obs) @ embed.weight)
    assert embed(obs).std().item() == pytest.approx(1.0, abs=0.1)
    assert torch.equal(embed(obs[:2] + torch.tensor([[-9.0], [9.0]])), embed(obs[:2]))


FIELDS = PackedSpec(
    (
        ("camera/left", box((3, 36, 36), "uint8")),
        ("camera/small", box((3, 4, 4), "uint8")),
        ("joints", box((5,), "float64")),
        ("mode", BoxSpec((), "int64", np.array(1), np.array(4), categorical=True)),
        ("grid", box((2, 2), "int8")),
        ("flag", box((), "bool")),
    )
)


def drawn_columns(count: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        name: random.integers(0, 256 if spec.dtype == "uint8" else 2, (count, *spec.shape)).astype(
            spec.dtype
        )
        for name, spec in FIELDS.fields
    }


def byte_choices(low: list[int], high: list[int]) -> BoxSpec:
    bounds = (np.array(side, np.uint8) for side in (low, high))
    return BoxSpec((len(low),), "uint8", *bounds, categorical=True)


def test_bytes_that_name_choices_are_distinguished() -> None:
    spec = byte_choices([0, 1], [2, 2])
    rows = torch.tensor([[0, 2], [1, 1], [2, 2]], dtype=torch.uint8)
    a, b = 3**0.5, 2**0.5
    right = torch.tensor([[a, 0, 0, 0, b], [0, a, 0, b, 0], [0, 0, a, 0, b]])
    (one_hot,) = encoder_layers(spec)
    torch.testing.assert_close(one_hot(observation_reader(spec)(rows)), right)
    fields = PackedSpec((("gear", spec), ("camera", box((1,), "uint8"))))
    columns = {"gear": rows.numpy(), "camera": np.full((3, 1), 255, np.uint8)}
    (encoder,) = encoder_layers(fields)
    packed = torch.from_numpy(fields.pack(columns))
    encoded = encoder(observation_reader(fields)(packed))
    torch.testing.assert_close(encoded[:, :-1], right)
    assert encoded[:, -1].tolist() == [1, 1, 1], "an image is still within [0, 1]"


def test_fields_are_encoded_each_by_itself() -> None:
    layers = encoder_layers(FIELDS)
    read = observation_reader(FIELDS)
    columns = drawn_columns(2)
    encode = nn.Sequential(*layers)
    features = encode(read(torch.from_numpy(FIELDS.pack(columns))))
    sizes = {"camera/left": 64, "camera/small": 48, "joints": 5, "mode": 4, "grid": 4, "flag": 1}
    assert features.shape == (2, n_features(layers, FIELDS)) == (2, sum(sizes.values()))
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()]), strict=False))
    for name in ("camera/small", "joints", "grid"):
        changed = columns | {name: columns[name] + np.ones((), columns[name].dtype)}
        other = encode(read(torch.from_numpy(FIELDS.pack(changed))))
        differs = (other != features).any(dim=0).nonzero().flatten().tolist()
        assert differs == [*range(starts[name], starts[name] + sizes[name])]


@pytest.mark.parametrize("high", [255, 3, 1, 0, [3, 200]])
def test_bytes_are_divided_by_their_bounds(high: int | list[int]) -> None:
    bounds = np.broadcast_to(np.array(high, np.uint8), (2,))
    spec = BoxSpec((2,), "uint8", np.zeros(2, np.uint8), bounds)
    stored = torch.from_numpy(np.array([bounds, 0 * bounds]))
    for read in (observation_reader(spec)(stored), each_read(spec, stored)):
        assert read.tolist() == [(bounds > 0).tolist(), [0, 0]]
        assert stored[0].tolist() == bounds.tolist(), "what is stored stays as it is"


def test_bytes_are_read_in_the_precision_of_autocast() -> None:
    read, stored = observation_reader(box((256,), "uint8")), torch.arange(256, dtype=torch.uint8)
    right = (stored.float() / 255.0).to(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(read(stored), right, rtol=0, atol=0)


def each_read(spec: BoxSpec, stored: torch.Tensor) -> torch.Tensor:
    """Read observations as a field among others."""
    fields = PackedSpec((("mode", box((), "int8")), ("board", spec)))
    columns = {"mode": np.zeros(2, np.int8), "board": stored.numpy()}
    read = observation_reader(fields)(torch.from_numpy(fields.pack(columns)))
    assert isinstance(read, dict)
    return read["board"]
