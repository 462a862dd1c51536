"""What holds for every replay buffer: what went in comes out, newest is kept, nothing shared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.core.messages import Experience
from asyncrl.core.replay_buffer import AcceptsPriorities, ReplayBuffer, ReplayBufferConfig
from asyncrl.core.segment import END, ColumnSpec, SegmentSchema, make_schema
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.replay.uniform import UniformReplayConfig
from tests.replay import test_hindsight as hindsight
from tests.replay.segments import streams
from tests.support.streams import Transition, make_outbox, n_step_return, play, schema

GAMMA = 0.5
LENGTH = 4


@dataclass(frozen=True)
class Case:
    """An implementation that discounts with `GAMMA`, and the number of steps in its returns."""

    configure: Callable[[int], ReplayBufferConfig]
    """Given a capacity."""

    n_step: int

    def build(self, *, capacity: int = 1000, seed: int = 0) -> ReplayBuffer:
        return self.build_of(schema(LENGTH, self.configure(capacity).lookahead), capacity, seed)

    def build_of(self, segments: SegmentSchema, capacity: int, seed: int = 0) -> ReplayBuffer:
        """Return a buffer of such segments; what it has as tensors is looked at as arrays."""
        buffer = self.configure(capacity).build(segments, seed)
        sample = buffer.sample
        buffer.sample = lambda size: {  # type: ignore[method-assign]
            name: torch.as_tensor(column).numpy(force=True) for name, column in sample(size).items()
        }
        return buffer

    def play(
        self, ends: list[list[str]], *, finish: bool = True
    ) -> tuple[list[list[Transition]], list[Experience]]:
        outbox = make_outbox(len(ends), LENGTH, self.configure(1000).lookahead)
        return play(ends, outbox, finish=finish)

    def filled(self, *, capacity: int = 1000, seed: int = 0, n_steps: int = 40) -> ReplayBuffer:
        buffer = self.build(capacity=capacity, seed=seed)
        for message in self.play([["", "", "T"] * (n_steps // 3), ["", "C"] * (n_steps // 2)])[1]:
            buffer.push(message.columns, message.rows)
        return buffer


def _case(kind: Any, n_step: int, device: str = "host") -> Case:
    return Case(lambda n: kind(capacity=n, n_step=n_step, gamma=GAMMA, device=device), n_step)


def _hindsight(n_step: int) -> Case:
    """Return hindsight replay that relabels nothing: observations here have no goals."""

    def configure(size: int) -> ReplayBufferConfig:
        config = hindsight.config(capacity=size, n_step=n_step, gamma=GAMMA, relabelled=0.0)
        return config.for_goals(hindsight.GOALS, None)

    return Case(configure, n_step)


CASES = {
    "uniform": _case(UniformReplayConfig, 1),
    "uniform, 3 steps, on a device": _case(UniformReplayConfig, 3, "cpu"),
    "hindsight, 3 steps": _hindsight(3),
    "prioritized, 3 steps": _case(PrioritizedReplayConfig, 3),
    "prioritized, on a device": _case(PrioritizedReplayConfig, 1, "cpu"),
}
ON_A_GPU = pytest.param(
    _case(UniformReplayConfig, 3, "cuda"), id="uniform, on a GPU", marks=pytest.mark.gpu
)

every_case = pytest.mark.parametrize(
    "case", [*(pytest.param(case, id=name) for name, case in CASES.items()), ON_A_GPU]
)


@every_case
@given(streams())
@settings(max_examples=40, deadline=None)
def test_samples_are_transitions_that_took_place(case: Case, ends: list[list[str]]) -> None:
    histories, messages = case.play(ends)
    buffer = case.build()
    pushed = sum(buffer.push(message.columns, message.rows) for message in messages)
    assert pushed == len(buffer) == sum(message.transitions for message in messages)
    where = {t.obs: (env, i) for env in histories for i, t in enumerate(env)}
    assert pushed == len(where)
    batch = buffer.sample(64)
    for k in range(64):
        env, i = where[float(batch["obs"][k, 0])]
        reward, next_obs, discount = n_step_return(env, i, case.n_step, GAMMA)
        assert batch["action"][k] == env[i].action
        assert batch["reward"][k] == pytest.approx(reward, rel=1e-5)
        assert batch["next_obs"][k, 0] == next_obs
        assert batch["discount"][k] == pytest.approx(discount, rel=1e-5)
        assert batch["model_version"][k] == i, "the version that acted"


@every_case
@given(st.integers(LENGTH, 30), streams())
@settings(max_examples=30, deadline=None)
def test_oldest_makes_room(case: Case, capacity: int, ends: list[list[str]]) -> None:
    buffer = case.build(capacity=capacity)
    arrived: list[float] = []
    for message in case.play([env * 4 for env in ends])[1]:
        buffer.push(message.columns, message.rows)
        flags, obs = message.columns["flags"][:, :LENGTH], message.columns["obs"][:, :LENGTH, 0]
        real = (flags < END) & (np.arange(LENGTH) < message.rows[:, None])
        arrived += obs[real].tolist()
        assert 0 < len(buffer) <= buffer.capacity <= capacity
        newest = arrived[-buffer.capacity :]
        assert set(buffer.sample(50)["obs"][:, 0].tolist()) <= set(newest)
    kept = buffer.sample(200 * buffer.capacity)["obs"][:, 0].tolist()
    assert set(kept) == set(arrived[-len(buffer) :])


@every_case
def test_message_larger_than_the_buffer_leaves_its_newest(case: Case) -> None:
    buffer = case.build(capacity=2 * LENGTH)
    histories, messages = case.play([[""] * 40], finish=False)
    columns = {
        name: np.concatenate([message.columns[name] for message in messages])
        for name in messages[0].columns
    }
    rows = np.concatenate([message.rows for message in messages])
    assert buffer.push(columns, rows) == sum(message.transitions for message in messages)
    assert len(buffer) == buffer.capacity == 2 * LENGTH
    stored = LENGTH * len(rows)
    newest = {t.obs for t in histories[0][stored - 2 * LENGTH : stored]}
    assert set(buffer.sample(200)["obs"][:, 0].tolist()) == newest


@every_case
def test_columns_keep_shape_and_dtype_and_the_agents_own_come_along(case: Case) -> None:
    specs = [
        ColumnSpec("obs", "uint8", (3, 2, 2)),
        ColumnSpec("action", "float32", (2,)),
        ColumnSpec("reward", "float32"),
        ColumnSpec("flags", "uint8"),
        ColumnSpec("model_version", "int32"),
        ColumnSpec("log_prob", "float16", (2,)),
    ]
    image_schema = make_schema(specs, length=LENGTH, lookahead=case.configure(100).lookahead)
    columns = {
        c.name: np.zeros((1, image_schema.rows, *c.shape), c.dtype) for c in image_schema.columns
    }
    columns["obs"][:] = np.arange(image_schema.rows)[:, None, None, None]
    columns["log_prob"][:] = np.arange(image_schema.rows)[:, None]
    buffer = case.build_of(image_schema, 100)
    buffer.push(columns, np.array([image_schema.rows]))
    batch = buffer.sample(5)
    expected = {
        "obs": ("uint8", (3, 2, 2)),
        "next_obs": ("uint8", (3, 2, 2)),
        "action": ("float32", (2,)),
        "log_prob": ("float16", (2,)),
        "reward": ("float32", ()),
        "discount": ("float32", ()),
        "model_version": ("int32", ()),
    }
    if isinstance(buffer, AcceptsPriorities):
        expected |= dict.fromkeys(("weight", "largest_weight"), ("float32", ()))
        expected["index"] = ("int64", ())
    found = {name: (str(column.dtype), column.shape[1:]) for name, column in batch.items()}
    assert found == expected
    assert {len(column) for column in batch.values()} == {5}
    np.testing.assert_array_equal(batch["log_prob"][:, 0], batch["obs"][:, 0, 0, 0])
    np.testing.assert_array_equal(batch["next_obs"], batch["obs"] + case.n_step)


@every_case
def test_pushed_arrays_stay_the_callers(case: Case) -> None:
    buffer, untouched = case.build(seed=1), case.build(seed=1)
    for message in case.play([[""] * 20])[1]:
        untouched.push({n: c.copy() for n, c in message.columns.items()}, message.rows.copy())
        buffer.push(message.columns, message.rows)
        for column in message.columns.values():
            column[:] = 99
        message.rows[:] = 0
    expected, found = untouched.sample(30), buffer.sample(30)
    for name, column in expected.items():
        np.testing.assert_array_equal(column, found[name])


@every_case
def test_batches_are_the_callers(case: Case) -> None:
    buffer, untouched = case.filled(), case.filled()
    first = buffer.sample(8)
    copies = {name: column.copy() for name, column in first.items()}
    buffer.sample(8)
    for name, column in copies.items():
        np.testing.assert_array_equal(first[name], column)
        first[name][...] = 99
    for _ in range(2):
        untouched.sample(8)
    expected, found = untouched.sample(8), buffer.sample(8)
    for name, column in expected.items():
        np.testing.assert_array_equal(column, found[name])


@pytest.mark.behaviour(number=48)
@every_case
def test_same_seed_draws_the_same(case: Case) -> None:
    drawn = [case.filled(seed=seed).sample(32)["obs"].tobytes() for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    few = case.filled(n_steps=6)
    assert len(few.sample(10 * len(few))["obs"]) == 10 * len(few), "more than is stored"


@every_case
def test_empty_buffer_refuses_to_sample(case: Case) -> None:
    buffer = case.build()
    assert len(buffer) == 0
    assert 1000 - LENGTH < buffer.capacity <= case.configure(1000).capacity == 1000
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(1)
