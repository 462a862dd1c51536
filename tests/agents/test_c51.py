"""C51: the projection against a loop, losses by hand, what it acts on, what is learned."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from asyncrl.agents.c51 import C51Agent, C51Config, project
from asyncrl.core.agent import PolicyContext, evaluation_mode
from asyncrl.core.env import EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array, Columns
from tests.agents.chain import TWO_STATES, random_batch, spec
from tests.support.scale import examples

CONTEXT = PolicyContext(seed=0)


def projected_by_the_loop(
    probs: Array, v_min: float, v_max: float, reward: float, discount: float
) -> Array:
    """Follow Algorithm 1 of the paper, atom by atom."""
    n = len(probs)
    step = (v_max - v_min) / (n - 1)
    m = np.zeros(n)
    for j in range(n):
        moved = min(max(reward + discount * (v_min + j * step), v_min), v_max)
        b = min((moved - v_min) / step, n - 1.0)  # but for rounding, it is no more than that
        low, up = math.floor(b), math.ceil(b)
        if low == up:
            m[low] += probs[j]
        else:
            m[low] += probs[j] * (up - b)
            m[up] += probs[j] * (b - low)
    return m


def project_one(probs: Array, v_min: float, v_max: float, reward: float, discount: float) -> Array:
    row = torch.tensor([reward, discount], dtype=torch.float64)
    atoms = torch.linspace(v_min, v_max, len(probs), dtype=torch.float64)
    return project(torch.from_numpy(probs)[None], atoms, row[:1], row[1:])[0].numpy()


@st.composite
def distributions(draw: st.DrawFn) -> Array:
    shares = draw(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=30))
    probs = np.array(shares)
    result: Array = probs / probs.sum()
    return result


@given(
    distributions(),
    st.floats(-20.0, 20.0),
    st.floats(0.1, 50.0),
    st.floats(-100.0, 100.0),
    st.one_of(st.just(0.0), st.just(1.0), st.floats(0.0, 1.0)),
)
@settings(max_examples=examples(200), deadline=None)
def test_projection_is_that_of_the_paper(
    probs: Array, v_min: float, width: float, reward: float, discount: float
) -> None:
    v_max = v_min + width
    m = project_one(probs, v_min, v_max, reward, discount)
    expected = projected_by_the_loop(probs, v_min, v_max, reward, discount)
    assert m == pytest.approx(expected, abs=1e-6)
    assert m.sum() == pytest.approx(1.0)
    assert (m >= -1e-9).all()
    z = np.linspace(v_min, v_max, len(probs))
    moved = reward + discount * z
    # The mean stays, but for what is cut off at the ends of the support.
    assert m @ z == pytest.approx(probs @ moved.clip(v_min, v_max), abs=1e-6)


def logits_table(_: EnvSpec) -> nn.Module:
    """Make a network whose weight is a table of logits, for one-hot states: 2 actions, 3 atoms."""
    return nn.Linear(2, 6, bias=False)


# Logits of states, actions and atoms. In state 1: online, action 0 is best, slowly, action 1.
ONLINE = np.array([[[0, 1, 0], [2, 0, 1]], [[0, 0, 3], [0, 1, 0]]], np.float32)
SLOW = np.array([[[0, 0, 0], [0, 0, 0]], [[1, 0, 0], [0, 0, 2]]], np.float32)
ATOMS = np.array([-1.0, 0.0, 1.0])
BY_HAND = C51Config(network=logits_table, n_atoms=3, v_min=-1.0, v_max=1.0, device="cpu")


def table_agent(**changes: Any) -> C51Agent:
    agent = dataclasses.replace(BY_HAND, **changes).build(TWO_STATES, CONTEXT)
    for network, table in ((agent.net, ONLINE), (agent.target, SLOW)):
        with torch.no_grad():
            network.body.weight.copy_(torch.from_numpy(table.reshape(2, 6).T))  # type: ignore[operator, union-attr]
    return agent


def softmax(logits: Array) -> Array:
    exp = np.exp(logits - logits.max())
    result: Array = exp / exp.sum()
    return result


def cross_entropy(double: bool, action: int, reward: float, discount: float) -> float:
    """Return the loss of going from state 0 to state 1, from the equations."""
    choosing = ONLINE if double else SLOW
    best = int(np.argmax([softmax(choosing[1, a]) @ ATOMS for a in range(2)]))
    m = projected_by_the_loop(softmax(SLOW[1, best]), -1.0, 1.0, reward, discount)
    return -sum(m[i] * math.log(softmax(ONLINE[0, action])[i]) for i in range(3))


def transitions(action: list[int], reward: list[float], discount: list[float]) -> Columns:
    """Return a batch of transitions from state 0 to state 1."""
    n = len(action)
    return {
        "obs": np.tile(np.array([1, 0], np.float32), (n, 1)),
        "next_obs": np.tile(np.array([0, 1], np.float32), (n, 1)),
        "action": np.array(action),
        "reward": np.array(reward, np.float32),
        "discount": np.array(discount, np.float32),
    }


@pytest.mark.parametrize("double", [False, True])
def test_loss_and_priorities_are_cross_entropies(double: bool) -> None:
    cases = [(0, 0.3, 0.9), (1, -0.5, 0.9**3), (1, 0.4, 0.0)]
    expected = [cross_entropy(double, *case) for case in cases]
    assert expected[0] != pytest.approx(cross_entropy(not double, *cases[0]))
    agent = table_agent(double=double)
    metrics = agent.opt(transitions(*map(list, zip(*cases, strict=True))))  # type: ignore[arg-type]
    assert float(metrics["loss"]) == pytest.approx(np.mean(expected), rel=1e-5)
    assert agent.priorities() == pytest.approx(expected, rel=1e-5)
    q = [softmax(ONLINE[0, action]) @ ATOMS for action, *_ in cases]
    assert float(metrics["q_mean"]) == pytest.approx(np.mean(q), rel=1e-5)


def test_it_acts_on_the_mean() -> None:
    agent = table_agent()
    # In state 0: action 0 is certain of 0 rather, action 1 of -1; Q = 0 and about -0.4.
    with evaluation_mode(agent):
        assert agent.act(np.eye(2, dtype=np.float32)).action.tolist() == [0, 0]
    with torch.no_grad():
        q = agent.model(torch.eye(2)).numpy()
    expected = [[softmax(ONLINE[s, a]) @ ATOMS for a in range(2)] for s in range(2)]
    assert q == pytest.approx(np.array(expected), abs=1e-6)


def test_custom_network_may_return_an_output_for_each_action_and_atom() -> None:
    def make(_: EnvSpec) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 6), nn.Unflatten(1, (2, 3)))

    agent = dataclasses.replace(BY_HAND, network=make).build(TWO_STATES, CONTEXT)
    assert np.isfinite(float(agent.opt(random_batch())["loss"]))


def test_bounds_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"agent\.v_max, got 10\.0 and 10\.0"):
        C51Config(v_min=10.0)


@pytest.mark.parametrize(("reward", "clips"), [(2.0, False), (7.0, True)])
def test_returns_that_the_atoms_do_not_reach_are_reported(
    reward: float, clips: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = C51Config(hidden=(), n_atoms=5, v_min=0.0, v_max=4.0, device="cpu")
    agent = config.build(spec((1,), 2), CONTEXT)
    ones, zeros = np.ones((4, 1), np.float32), np.zeros(4, np.float32)
    batch = {"obs": ones, "next_obs": ones, "action": zeros.astype(np.int64), "discount": zeros}
    for _ in range(1000):
        metrics = agent.opt(batch | {"reward": zeros + np.float32(reward)})
    assert float(metrics["clipped_share"]) == pytest.approx(float(clips))
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == clips, "once"
    assert all("agent.v_min=0 " in line and "agent.v_max=4 " in line for line in warnings)
