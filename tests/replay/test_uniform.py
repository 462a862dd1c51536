"""Uniform replay gives back what went in, with right n-step returns, and all of it alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.core.errors import ConfigError
from asyncrl.core.replay_buffer import in_batches
from asyncrl.replay.uniform import UniformReplay, UniformReplayConfig
from tests.replay.segments import streams
from tests.support.scale import examples
from tests.support.streams import make_outbox, n_step_return, play, schema


def build(
    *, capacity: int = 1000, n_step: int = 1, gamma: float = 0.9, length: int = 4, seed: int = 0
) -> UniformReplay:
    config = UniformReplayConfig(capacity=capacity, n_step=n_step, gamma=gamma)
    return config.build(schema(length, n_step), seed)


@pytest.mark.behaviour(number=48)
@pytest.mark.behaviour(number=50)
@given(streams(), st.integers(1, 5), st.integers(1, 6))
@settings(max_examples=examples(100), deadline=None)
def test_samples_equal_naive_n_step_returns(
    ends: list[list[str]], n_step: int, length: int
) -> None:
    buffer = build(n_step=n_step, length=length)
    histories, messages = play(ends, make_outbox(len(ends), length, n_step))
    for message in messages:
        assert buffer.push(message.columns, message.rows) == message.transitions
    count = sum(len(env) for env in histories)
    assert len(buffer) == count
    where = {t.obs: (env, i) for env in histories for i, t in enumerate(env)}
    batch = buffer.sample(40 * count)
    names = ("obs", "action", "reward", "next_obs", "discount")
    distinct = np.unique(np.column_stack([batch[name] for name in names]), axis=0)
    for obs, action, *sampled in distinct.tolist():
        env, i = where[obs]
        naive = n_step_return(env, i, n_step, 0.9)
        assert sampled == pytest.approx(naive, rel=1e-5)
        assert (action, sampled[1]) == (env[i].action, naive[1])
    assert set(batch["obs"][:, 0].tolist()) == set(where), "each must be reachable"


def test_every_transition_is_equally_likely() -> None:
    buffer = build(seed=3)
    for message in play([["", "T", "", "C"] * 5] * 2, make_outbox(2, 4, 1))[1]:
        buffer.push(message.columns, message.rows)
    drawn = buffer.sample(40_000)["obs"][:, 0]
    _, counts = np.unique(drawn, return_counts=True)
    expected = 40_000 / len(buffer)
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert len(counts) == len(buffer) == 40
    assert chi2 < 72.1, "beyond the 0.999 quantile for 39 degrees of search_space"


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


def test_lookahead_must_reach_as_far_as_the_returns() -> None:
    with pytest.raises(ConfigError, match=r"n_step=3.*1 ahead"):
        UniformReplayConfig(n_step=3).build(schema(4, 1), 0)
