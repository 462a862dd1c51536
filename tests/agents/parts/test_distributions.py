"""Actions are drawn with the reported probabilities, and torch's distributions agree."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.distributions import Categorical, Normal

from asyncrl.agents.parts.distributions import ActionHead, action_head
from asyncrl.core.env import BoxSpec, DiscreteSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array

INF = np.inf


def choices(low: list[int], high: list[int], dtype: str = "int64") -> BoxSpec:
    return BoxSpec((len(low),), dtype, np.array(low, dtype), np.array(high, dtype), True)


def box(low: list[float], high: list[float], dtype: str = "float32") -> BoxSpec:
    return BoxSpec((len(low),), dtype, np.array(low, dtype), np.array(high, dtype))


TABLE = BoxSpec((2, 2), "int8", np.array([[0, 3], [1, 0]]), np.array([[1, 4], [2, 1]]), True)
SPACES: dict[str, BoxSpec | DiscreteSpec] = {
    "discrete": DiscreteSpec(5),
    "multi-discrete": choices([0, 2, -1], [1, 5, -1], "int32"),
    "table": TABLE,
    "binary": choices([0] * 4, [1] * 4, "int8"),
    "box": box([-2.0, 0.0], [2.0, 5.0]),
    "unbounded": box([-INF, 0.0, -INF], [INF, INF, 3.0], "float64"),
    "huge": box([-3e38], [3e38]),
    "point": box([1.5, -1.0], [1.5, 1.0]),
}
every_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
leads = st.lists(st.integers(1, 3), max_size=3).map(tuple)


def outputs_for(head: ActionHead, lead: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*lead, head.n_outputs, generator=generator)


def completed(head: ActionHead, outputs: torch.Tensor) -> Array:
    return head.complete(outputs).detach().numpy()


def head_for(space: BoxSpec | DiscreteSpec, *, state_std: bool = False) -> ActionHead:
    return action_head(space, state_std=state_std, initial_log_std=-0.3)


@every_space
@pytest.mark.parametrize("state_std", [False, True])
@given(lead=leads, seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_actions_belong_to_the_space_and_report_their_own_probability(
    space: BoxSpec | DiscreteSpec, state_std: bool, lead: tuple[int, ...], seed: int
) -> None:
    head = head_for(space, state_std=state_std)
    outputs = outputs_for(head, lead, seed)
    drawn = head.sampler.sample(completed(head, outputs), np.random.default_rng(seed))
    for action in (drawn.action, head.sampler.mode(completed(head, outputs))):
        assert action.shape == (*lead, *space.shape)
        assert action.dtype == space.dtype
        low, high = (0, space.n - 1) if isinstance(space, DiscreteSpec) else (space.low, space.high)
        assert ((action >= low) & (action <= high)).all()
    stored = {"action": drawn.action, **drawn.extras}
    again = head.log_prob(outputs, torch.from_numpy(stored[head.sampler.column]))
    assert again.shape == lead == head.entropy(outputs).shape
    assert drawn.log_prob.dtype == np.float32
    assert np.allclose(again.detach().numpy(), drawn.log_prob, rtol=1e-5, atol=1e-5)
    columns = {c.name: (c.dtype, (*lead, *c.shape)) for c in head.sampler.columns}
    assert {name: (str(v.dtype), v.shape) for name, v in drawn.extras.items()} == columns


@given(
    bounds=st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 4)), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_choices_are_torchs_categoricals(bounds: list[tuple[int, int]], seed: int) -> None:
    low = [first for first, _ in bounds]
    space = choices(low, [first + more for first, more in bounds])
    head = action_head(space)
    outputs = outputs_for(head, (3, 2), seed)
    parts = outputs.split([more + 1 for _, more in bounds], dim=-1)
    oracles = [Categorical(logits=part) for part in parts]
    action = torch.from_numpy(
        head.sampler.sample(completed(head, outputs), np.random.default_rng(seed)).action
    )
    terms = [d.log_prob(action[..., i] - low[i]) for i, d in enumerate(oracles)]
    assert torch.allclose(head.log_prob(outputs, action), sum(terms), atol=1e-5)
    entropy = sum(d.entropy() for d in oracles)
    assert torch.allclose(head.entropy(outputs), entropy, atol=1e-5)
    best = torch.stack([d.logits.argmax(-1) for d in oracles], dim=-1).numpy() + low
    assert np.array_equal(head.sampler.mode(completed(head, outputs)), best)


@pytest.mark.parametrize("state_std", [False, True])
@given(n=st.integers(1, 4), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_gaussians_are_torchs_normals(state_std: bool, n: int, seed: int) -> None:
    head = head_for(box([-1.0] * n, [3.0] * n), state_std=state_std)
    outputs = outputs_for(head, (3, 2), seed).clamp(-2.0, 2.0)
    mean = outputs[..., :n]
    log_std = outputs[..., n:] - 0.3 if state_std else torch.full((n,), -0.3)
    oracle = Normal(mean, log_std.exp().expand_as(mean))
    drawn = mean + 3.0 * outputs_for(head, (3, 2), seed + 1)[..., :n]
    expected = oracle.log_prob(drawn).sum(-1)
    assert torch.allclose(head.log_prob(outputs, drawn), expected, rtol=1e-4, atol=1e-4)
    assert torch.allclose(head.entropy(outputs), oracle.entropy().sum(-1), atol=1e-5)


@pytest.mark.parametrize("name", ["discrete", "table"])
def test_choices_are_drawn_as_often_as_reported(name: str) -> None:
    head, n = action_head(SPACES[name]), 20_000
    outputs = completed(head, outputs_for(head, ()).expand(n, -1))
    drawn = head.sampler.sample(outputs, np.random.default_rng(1))
    _, first, counts = np.unique(
        drawn.action.reshape(n, -1), axis=0, return_index=True, return_counts=True
    )
    p = np.exp(drawn.log_prob[first])
    assert p.sum() == pytest.approx(1.0, abs=0.01)
    np.testing.assert_allclose(counts / n, p, atol=5 * math.sqrt(0.25 / n))


def test_gaussians_are_scaled_to_bounds_and_clipped() -> None:
    head = action_head(box([-2.0, 0.0, -INF, 0.0], [2.0, 5.0, INF, INF]))
    mean = torch.tensor([[0.5, -0.2, 7.0, 7.0], [-3.0, 3.0, -7.0, -7.0]])
    assert np.allclose(
        head.sampler.mode(completed(head, mean)), [[1.0, 2.0, 7.0, 7.0], [-2.0, 5.0, -7.0, 0.0]]
    )


def test_deviations_of_the_network_stay_within_limits() -> None:
    head = action_head(box([-1.0], [1.0]), state_std=True)
    entropy = head.entropy(torch.tensor([[0.0, -99.0], [0.0, 99.0]]))
    unit = 0.5 * math.log(2 * math.pi * math.e)
    assert entropy.tolist() == pytest.approx([unit - 5.0, unit + 2.0])


def test_quantities_that_are_no_floats_are_refused() -> None:
    space = BoxSpec((2,), "int32", np.zeros(2, np.int32), np.full(2, 9, np.int32))
    with pytest.raises(ConfigError, match="int32"):
        action_head(space)
