"""Prioritized replay draws in proportion, weighs what it draws, and forgets with its rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.core.errors import NonFiniteModel
from asyncrl.core.segment import END, LARGEST_REWARD, TERMINATED, TRUNCATED
from asyncrl.core.types import Array
from asyncrl.replay.priorities import SumTree
from asyncrl.replay.prioritized import PrioritizedReplay, PrioritizedReplayConfig
from tests.replay.segments import segment, with_columns
from tests.support.scale import examples
from tests.support.streams import make_outbox, play, schema

LENGTH = 4


def build(capacity: int = 1000, seed: int = 0, **settings_: object) -> PrioritizedReplay:
    config = PrioritizedReplayConfig(capacity=capacity, gamma=0.5, **settings_)  # type: ignore[arg-type]
    return config.build(schema(LENGTH, config.lookahead), seed)


def fill(buffer: PrioritizedReplay, steps: int) -> None:
    for message in play([[""] * steps], make_outbox(1, LENGTH, 1))[1]:
        buffer.push(message.columns, message.rows)


def shares(buffer: PrioritizedReplay, draws: int = 400, batch_size: int = 100) -> dict[int, float]:
    """Draw often; return how large a part of the draws each index was."""
    drawn = np.concatenate([buffer.sample(batch_size)["index"] for _ in range(draws)])
    index, counts = np.unique(drawn, return_counts=True)
    return dict(zip(index.tolist(), (counts / len(drawn)).tolist(), strict=True))


# --- the tree -------------------------------------------------------------------------------------


@st.composite
def changes(draw: st.DrawFn) -> tuple[int, list[list[tuple[int, float]]]]:
    n_leaves = draw(st.one_of(st.integers(1, 9), st.integers(1000, 3000)))
    change = st.tuples(st.integers(0, n_leaves - 1), st.sampled_from([0.0, 0.5, 1.0, 3.0]))
    return n_leaves, draw(st.lists(st.lists(change, max_size=30), min_size=1, max_size=4))


@pytest.mark.behaviour(number=49)
@given(changes(), st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20))
@settings(max_examples=examples(100), deadline=None)
def test_tree_finds_what_a_running_sum_finds(
    made: tuple[int, list[list[tuple[int, float]]]], fractions: list[float]
) -> None:
    n_leaves, batches = made
    tree, naive = SumTree(n_leaves), np.zeros(n_leaves)
    for batch in batches:
        tree.set(np.array([i for i, _ in batch], np.int64), np.array([v for _, v in batch]))
        for i, value in batch:
            naive[i] = value
    np.testing.assert_array_equal(tree.take(np.arange(n_leaves)), naive)
    assert tree.top.sum() == pytest.approx(naive.sum())
    if naive.sum():
        found = tree.find(np.array(fractions))
        expected = np.searchsorted(naive.cumsum(), np.array(fractions) * naive.sum(), "right")
        np.testing.assert_array_equal(found, expected)


# --- who is drawn ---------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.7, 0.0])
def test_draws_are_in_proportion(alpha: float) -> None:
    buffer = build(alpha=alpha, epsilon=0.01)
    fill(buffer, 12)
    errors = np.linspace(-3, 8, len(buffer))
    buffer.update_priorities(np.arange(len(buffer)), errors)
    wanted = (np.abs(errors) + 0.01) ** alpha
    wanted /= wanted.sum()
    found = shares(buffer)
    assert [found.get(i, 0.0) for i in range(len(buffer))] == pytest.approx(wanted, abs=0.003)


@pytest.mark.behaviour(number=49)
def test_new_transitions_are_drawn_like_the_most_wrong_one() -> None:
    buffer = build(alpha=1.0)
    fill(buffer, 4)
    buffer.update_priorities(np.arange(4), np.array([1.0, 9.0, 2.0, 1.0]))
    buffer.update_priorities(np.array([1]), np.array([1.0]))
    fill(buffer, 4)
    assert [shares(buffer)[i] for i in range(8)] == pytest.approx(
        np.array([1, 1, 2, 1, 9, 9, 9, 9]) / 41, abs=0.003
    )


# --- what is overwritten --------------------------------------------------------------------------


def test_late_errors_of_overwritten_transitions_change_nothing() -> None:
    buffer = build(capacity=8)
    fill(buffer, 8)
    early = buffer.sample(64)["index"]
    assert set(early.tolist()) == set(range(8))
    fill(buffer, 4)
    before = shares(buffer)
    assert set(before) == set(range(4, 12)), "the first four have made room"
    buffer.update_priorities(np.arange(4), np.full(4, 1e6))
    assert shares(buffer) == pytest.approx(before, abs=0.003)
    buffer.update_priorities(np.array([0, 4]), np.array([1e6, 0.0]))
    assert shares(buffer).get(4, 0.0) < 0.01, "that one is still there"


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_whatever_is_drawn_is_what_its_index_says(steps: list[int], seed: int) -> None:
    buffer, random = build(capacity=16, seed=seed), np.random.default_rng(seed)
    arrived: list[float] = []
    for n in steps:
        for message in play([[""] * n], make_outbox(1, LENGTH, 1))[1]:
            shifted = {**message.columns, "obs": message.columns["obs"] + 1000 * len(arrived)}
            buffer.push(shifted, message.rows)
            real = np.arange(LENGTH) < message.rows[:, None] - 1 * (message.rows[:, None] <= LENGTH)
            arrived += shifted["obs"][:, :LENGTH, 0][real].tolist()
        batch = buffer.sample(32)
        assert batch["obs"][:, 0].tolist() == [arrived[i] for i in batch["index"]]
        assert batch["index"].min() >= len(arrived) - len(buffer)
        buffer.update_priorities(batch["index"], random.random(32))


# --- weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize("normaliser", ["batch", "buffer"])
def test_weights_take_the_bias_back(normaliser: str) -> None:
    buffer = build(alpha=1.0, beta=0.3, beta_end=0.3, epsilon=1e-9, normaliser=normaliser)
    fill(buffer, 12)
    errors = np.arange(12) % 5 + 1.0
    errors[3] = 0.01  # hardly ever drawn
    buffer.update_priorities(np.arange(12), errors)
    batch = buffer.sample(6)
    chance = errors / errors.sum()
    weight = (12 * chance) ** -0.3
    largest = weight.max() if normaliser == "buffer" else weight[batch["index"]].max()
    assert 3 not in batch["index"]
    assert batch["weight"] == pytest.approx(weight[batch["index"]] / largest, rel=1e-5)
    assert batch["largest_weight"] == pytest.approx(largest * 12**0.3, rel=1e-5)
    assert (batch["weight"].dtype, batch["index"].dtype) == (np.float32, np.int64)


def test_overwritten_transitions_do_not_count_for_the_largest_weight() -> None:
    buffer = build(capacity=8, alpha=1.0, normaliser="buffer")
    fill(buffer, 8)
    buffer.update_priorities(np.array([0]), np.array([1e-3]))
    assert buffer.sample(64)["weight"].max() < 0.1
    fill(buffer, 4)
    assert buffer.sample(64)["weight"] == pytest.approx(1.0)


def test_beta_grows_with_the_batches() -> None:
    buffer = build(beta=0.2, beta_end=0.6, beta_samples=16)
    fill(buffer, 12)
    betas = []
    for _ in range(6):
        betas.append(buffer._priorities.beta)
        buffer.sample(4)
    assert betas == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.6, 0.6])
    buffer.resume_at(4)
    assert buffer._priorities.beta == pytest.approx(0.3)


# --- what the actor knows -------------------------------------------------------------------------


def first_priorities(buffer: PrioritizedReplay) -> Array:
    numbers = np.arange(buffer._ring.oldest, buffer._ring.newest)
    return buffer._priorities._sums.take(numbers % buffer.capacity)


def test_actor_may_provide_td_errors() -> None:
    columns = with_columns("priority", length=3, lookahead=1)
    buffer = PrioritizedReplayConfig(alpha=1.0, epsilon=0.5).build(columns, 0)
    buffer.push(*segment(columns, priority=[4.0, -2.0, np.nan]))
    assert first_priorities(buffer) == pytest.approx([4.5, 2.5, 4.5])


def test_first_errors_follow_from_what_the_acting_model_saw() -> None:
    columns = with_columns("q_taken", "q_best", length=6, lookahead=2)
    config = PrioritizedReplayConfig(alpha=1.0, epsilon=1e-9, n_step=2, gamma=0.5)
    buffer = config.build(columns, 0)
    reward = [1.0, 2, 4, 0, 8, 16, 32]
    q_taken = [0.5, 3, 1, 99, 2, 0.25]
    q_best = [9.0, 8, 7, 99, 6, 5, 4, 3]
    flags = [0, 0, int(TERMINATED), int(END), 0, 0, 0, 0]
    buffer.push(*segment(columns, reward=reward, q_taken=q_taken, q_best=q_best, flags=flags))
    expected = [
        1 + 0.5 * 2 + 0.25 * 7 - 0.5,
        2 + 0.5 * 4 + 0 - 3,
        4 + 0 - 1,
        8 + 0.5 * 16 + 0.25 * 4 - 2,
        16 + 0.5 * 32 + 0.25 * 3 - 0.25,
    ]
    assert first_priorities(buffer) == pytest.approx(np.abs(expected))


def test_value_after_a_truncated_episode_is_not_bootstrapped() -> None:
    columns = with_columns("q_taken", "q_best", length=4, lookahead=1)
    config = PrioritizedReplayConfig(alpha=1.0, epsilon=1e-9, gamma=0.5)
    buffer = config.build(columns, 0)
    flags = [0, int(TRUNCATED), int(END), 0]
    q_best = [0.0, 4, 77, 0, 2]
    buffer.push(*segment(columns, q_best=q_best, flags=flags, q_taken=[-3.0, 1, 77, 0.5]))
    assert first_priorities(buffer) == pytest.approx([5.0, 5.0, 0.5])


# --- what trainers do -----------------------------------------------------------------------------


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [np.nan, np.inf])
def test_error_that_is_no_number_is_refused_and_changes_nothing(error: float) -> None:
    buffer = build()
    fill(buffer, 4)
    before = first_priorities(buffer)
    with pytest.raises(NonFiniteModel, match="TD error"):
        buffer.update_priorities(np.array([0, 1]), np.array([1.0, error]))
    np.testing.assert_array_equal(first_priorities(buffer), before)


def test_first_errors_are_in_the_unit_of_values() -> None:
    columns = with_columns("q_taken", "q_best", "reward_scale", length=3, lookahead=2)
    config = PrioritizedReplayConfig(alpha=1.0, epsilon=1e-9, n_step=2, gamma=0.5)
    buffer = config.build(columns, 0)
    values = {"q_taken": [0.5, 3, 1], "q_best": [9.0, 8, 7, 6, 5]}
    scale = [0.1, 0.1, 0.2, 0.2, 0.2]
    buffer.push(*segment(columns, reward=[10.0, 20, 40, 80, 0], reward_scale=scale, **values))
    expected = [2 + 0.25 * 7 - 0.5, 4 + 0.25 * 6 - 3, LARGEST_REWARD + 0.25 * 5 - 1]
    assert first_priorities(buffer) == pytest.approx(expected)
