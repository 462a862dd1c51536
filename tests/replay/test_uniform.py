"""Uniform replay gives back what went in, with right n-step returns, and all of it alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.core.errors import ConfigError
from asyncrl.core.replay_buffer import in_batches
from asyncrl.replay.uniform import UniformReplay, UniformReplayConfig
from tests.support.scale import examples
from tests.support.streams import make_outbox, n_step_return, play, schema

KINDS = st.sampled_from(["", "", "", "T", "C", "TC"])


def build(
    *, capacity: int = 1000, n_step: int = 1, gamma: float = 0.9, length: int = 4, seed: int = 0
) -> UniformReplay:
    config = UniformReplayConfig(capacity=capacity, n_step=n_step, gamma=gamma)
    return config.build(schema(length, n_step), seed)


@st.composite
def streams(draw: st.DrawFn) -> list[list[str]]:
    n_envs = draw(st.integers(1, 3))
    n_steps = draw(st.integers(1, 25))
    return [draw(st.lists(KINDS, min_size=n_steps, max_size=n_steps)) for _ in range(n_envs)]


@given(streams(), st.integers(1, 5), st.integers(1, 6))
@settings(max_examples=examples(100), deadline=None)
def test_samples_equal_naive_n_step_returns(
    ends: list[list[str]], n_step: int, length: int
) -> None:
    buffer = build(n_step=n_step, length=length)
    told, messages = play(ends, make_outbox(len(ends), length, n_step))
    for message in messages:
        assert buffer.push(message.columns, message.rows) == message.transitions
    count = sum(len(env) for env in told)
    assert len(buffer) == count
    where = {t.obs: (env, i) for env in told for i, t in enumerate(env)}
    batch = buffer.sample(40 * count)
    for k in range(40 * count):
        env, i = where[float(batch["obs"][k, 0])]
        reward, next_obs, discount = n_step_return(env, i, n_step, 0.9)
        assert batch["reward"][k] == pytest.approx(reward, rel=1e-5)
        assert batch["next_obs"][k, 0] == next_obs
        assert batch["discount"][k] == pytest.approx(discount, rel=1e-5)
        assert batch["action"][k] == env[i].action
    assert set(batch["obs"][:, 0].tolist()) == set(where), "each must be reachable"


@given(st.integers(4, 30), st.integers(1, 60), st.integers(1, 5), streams())
@settings(max_examples=60, deadline=None)
def test_ring_keeps_the_newest(
    capacity: int, repeats: int, length: int, ends: list[list[str]]
) -> None:
    buffer = build(capacity=max(capacity, length), length=length)
    outbox = make_outbox(len(ends), length, 1)
    arrived: list[float] = []
    for message in play([env * (1 + repeats // 10) for env in ends], outbox)[1]:
        buffer.push(message.columns, message.rows)
        flags, obs = message.columns["flags"][:, :length], message.columns["obs"][:, :length, 0]
        real = (flags < 4) & (np.arange(length) < message.rows[:, None])
        arrived += obs[real].tolist()
        assert len(buffer) <= buffer.capacity
    kept = set(buffer.sample(200 * buffer.capacity)["obs"][:, 0].tolist())
    assert kept == set(arrived[-len(buffer) :])


def test_every_transition_is_equally_likely() -> None:
    buffer = build(seed=3)
    for message in play([["", "T", "", "C"] * 5] * 2, make_outbox(2, 4, 1))[1]:
        buffer.push(message.columns, message.rows)
    drawn = buffer.sample(40_000)["obs"][:, 0]
    _, counts = np.unique(drawn, return_counts=True)
    expected = 40_000 / len(buffer)
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert len(counts) == len(buffer) == 40
    assert chi2 < 72.1, "beyond the 0.999 quantile for 39 degrees of freedom"


def test_same_seed_draws_the_same() -> None:
    batches = []
    for seed in (1, 1, 2):
        buffer = build(seed=seed)
        for message in play([[""] * 30], make_outbox(1, 4, 1))[1]:
            buffer.push(message.columns, message.rows)
        batches.append(buffer.sample(16)["obs"].tobytes())
    assert batches[0] == batches[1] != batches[2]


def test_batches_drawn_together_are_those_drawn_one_by_one() -> None:
    at_once, in_turns = build(seed=5), build(seed=5)
    for message in play([["", "T", "", "C"] * 5] * 2, make_outbox(2, 4, 1))[1]:
        for buffer in (at_once, in_turns):
            buffer.push(message.columns, message.rows)
    for part in in_batches(at_once.sample(3 * 7), 7):
        one = in_turns.sample(7)
        assert set(one) == set(part)
        for name, column in one.items():
            np.testing.assert_array_equal(part[name], column)


def test_batch_is_the_callers_to_keep() -> None:
    buffer = build()
    for message in play([[""] * 12], make_outbox(1, 4, 1))[1]:
        buffer.push(message.columns, message.rows)
    batch = buffer.sample(8)
    before = {name: column.copy() for name, column in batch.items()}
    for column in batch.values():
        assert column.flags.writeable
    buffer.sample(8)
    for name, column in before.items():
        np.testing.assert_array_equal(batch[name], column)


def test_empty_buffer_refuses_to_sample() -> None:
    with pytest.raises(ValueError, match="empty"):
        build().sample(1)


def test_lookahead_must_reach_as_far_as_the_returns() -> None:
    with pytest.raises(ConfigError, match=r"n_step=3.*1 ahead"):
        UniformReplayConfig(n_step=3).build(schema(4, 1), 0)
