"""Running statistics: exact whatever comes first, and where they are applied."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from asyncrl.agents.parts.normalize import Normalized, RunningNorm
from asyncrl.core.env import BoxSpec, PackedSpec


def box(shape: tuple[int, ...], dtype: str = "float32", *, categorical: bool = False) -> BoxSpec:
    low, high = np.zeros(shape, dtype), np.full(shape, 255 if dtype == "uint8" else 1, dtype)
    return BoxSpec(shape, dtype, low, high, categorical=categorical)


IMAGE = box((36, 40), "uint8")


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    mean=st.sampled_from([0.0, -3.0, 1e6]),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
)
@settings(max_examples=40, deadline=None)
def test_parts_add_up_to_the_whole(sizes: list[int], mean: float, scale: float) -> None:
    random = np.random.default_rng(len(sizes))
    rows = random.normal(mean, scale, (sum(sizes), 2))
    norm = RunningNorm((2,))
    for part in np.split(rows, np.cumsum(sizes)[:-1]):
        norm.learn(torch.from_numpy(part))
    assert norm.mean.numpy() == pytest.approx(rows.mean(axis=0), rel=1e-9, abs=1e-9)
    assert norm.var.numpy() == pytest.approx(rows.var(axis=0), rel=1e-6, abs=1e-9)
    assert norm.count.item() == len(rows)


def test_outliers_are_cut() -> None:
    norm = RunningNorm((1,))
    norm.learn(torch.randn(100, 1, generator=torch.Generator().manual_seed(0)))
    assert norm(torch.tensor([[1e6], [-1e6]])).tolist() == [[10.0], [-10.0]]


def test_choices_are_left_unchanged() -> None:
    left = box((1, 2), "int64", categorical=True)
    model = Normalized(nn.Identity(), left, rewards=False)
    obs = torch.rand(2, *left.shape)
    model.learn(obs, {})
    assert torch.equal(model(obs), obs)
    assert not list(model.buffers())


def test_images_are_normalized_pixel_by_pixel() -> None:
    model = Normalized(nn.Identity(), IMAGE, rewards=False)
    obs = torch.rand(50, *IMAGE.shape, generator=torch.Generator().manual_seed(0))
    obs[:, 1] *= 0.1
    obs[:, 2] = 0.3
    model.learn(obs, {})
    seen = model(obs)
    still = torch.arange(IMAGE.shape[0]) == 2
    distance, deviation = obs - obs.mean(dim=0), obs.std(dim=0, correction=0)
    assert torch.allclose(seen[:, ~still], (distance / deviation)[:, ~still], atol=1e-3)
    assert seen[:, still].abs().max() < 1e-3
    obs[0, 2, 0] = 0.31
    assert model(obs)[0, 2, 0] == 5.0


def test_of_many_images_some_from_all_parts_of_a_batch_are_learned_from() -> None:
    rows = torch.arange(1000)
    some = Normalized(nn.Identity(), IMAGE, rewards=False).sample(rows)
    assert 30 <= len(some) <= 40
    assert some[0] == 0
    assert some[-1] > 960
    assert torch.equal(Normalized(nn.Identity(), box((3,)), rewards=False).sample(rows), rows)


def test_fields_are_normalized_each_by_itself() -> None:
    board = BoxSpec((1, 2), "uint8", np.zeros((1, 2)), np.full((1, 2), 3))
    fields = {"image": IMAGE, "board": board, "ram": box((1,), "uint8")}
    fields["small picture"] = box((1, 2), "uint8")
    spec = PackedSpec((*fields.items(), ("speed", box((1,))), ("arm/angle", box(()))))
    model = Normalized(nn.Identity(), spec, rewards=False)
    obs = {
        "image": torch.rand(2, 36, 40),
        **dict.fromkeys(("board", "small picture"), torch.tensor([[[0.0, 1.0]], [[0.5, 0.5]]])),
        "ram": torch.tensor([[0.0], [0.1]]),
        "speed": torch.tensor([[10.0], [30.0]]),
        "arm/angle": torch.tensor([0.1, 0.3]),
    }
    model.learn(obs, {})
    seen = model(obs)
    assert seen["image"].mean(dim=0) == pytest.approx(np.zeros((36, 40)), abs=1e-3)
    for name in ("board", "small picture"):
        assert seen[name].ravel().tolist() == pytest.approx([-1.0, 1.0, 1.0, -1.0], abs=1e-4)
    assert seen["ram"].ravel().tolist() == pytest.approx([-1.0, 1.0], abs=1e-4)
    assert seen["speed"].ravel().tolist() == pytest.approx([-1.0, 1.0])
    assert seen["arm/angle"].tolist() == pytest.approx([-1.0, 1.0], abs=1e-5)


def test_rewards_are_divided_by_the_deviation_of_returns() -> None:
    model = Normalized(nn.Identity(), None, rewards=True)
    data = {"discounted_return": torch.tensor([0.0, 8.0]), "reward": torch.tensor([2.0, -1.0])}
    model.learn(torch.zeros(2, 1), data)
    assert model.rewards(data).tolist() == pytest.approx([0.5, -0.25])


def test_first_rewards_after_many_steps_without_any_are_cut() -> None:
    model = Normalized(nn.Identity(), None, rewards=True)
    nothing = {"discounted_return": torch.zeros(1000), "reward": torch.zeros(1000)}
    for _ in range(10):
        model.learn(torch.zeros(1000, 1), nothing)
    # A return of 3 steps has the reward at their end; none of the returns so far has it.
    data = {"discounted_return": torch.zeros(3), "reward": torch.tensor([1.0, -1.0, 0.0])}
    model.learn(torch.zeros(3, 1), data)
    assert model.rewards(data).tolist() == [10.0, -10.0, 0.0]
