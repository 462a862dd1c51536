"""Episodes in arrays are stored as if actors had played them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec, PackedSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.segment import ColumnSpec, SegmentConfig
from asyncrl.core.types import Array
from asyncrl.replay.sequences import SequenceReplayConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.tools.datasets.episodes import Episode, fill_buffer

GAMMA = 0.9


def box(*shape: int, dtype: str = "float32", categorical: bool = False) -> BoxSpec:
    low, high = np.full(shape, 0, dtype), np.full(shape, 9, dtype)
    return BoxSpec(shape, dtype, low, high, categorical=categorical)


SPEC = EnvSpec(box(1), DiscreteSpec(3))


def episode(start: int, steps: int, *, terminated: bool = True) -> Episode:
    """Return an episode whose observations are numbers that occur once."""
    numbers = np.arange(start, start + steps + 1, dtype=np.float32)
    return Episode(
        observations=numbers[:, None],
        actions=np.arange(steps) % 3,
        rewards=numbers[:-1] + 0.5,
        terminated=terminated,
    )


def many(lengths: list[int], ends: list[bool]) -> list[Episode]:
    starts = np.cumsum([0, *(length + 1 for length in lengths)])
    return [
        episode(int(start), length, terminated=end)
        for start, length, end in zip(starts, lengths, ends, strict=False)
    ]


@given(
    st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=90),
    st.integers(1, 4),
    st.integers(1, 9),
)
@settings(max_examples=15, deadline=None)
def test_buffer_holds_each_transition_with_its_naive_return(
    shapes: list[tuple[int, bool]], n_step: int, length: int
) -> None:
    episodes = many([steps for steps, _ in shapes], [end for _, end in shapes])
    replay = UniformReplayConfig(capacity=4000, n_step=n_step, gamma=GAMMA)
    buffer = fill_buffer(iter(episodes), SPEC, replay, segment=SegmentConfig(length=length), seed=0)
    expected = dict(naive(episodes, n_step))
    assert len(buffer) == len(expected)
    batch = buffer.sample(20 * len(expected))
    assert set(batch["obs"][:, 0].tolist()) == set(expected)
    for k, obs in enumerate(batch["obs"][:, 0].tolist()):
        action, reward, next_obs, discount = expected[obs]
        assert batch["action"][k] == action
        assert batch["reward"][k] == pytest.approx(reward, rel=1e-5)
        assert batch["next_obs"][k, 0] == next_obs
        assert batch["discount"][k] == pytest.approx(discount, rel=1e-5)


def naive(
    episodes: list[Episode], n_step: int
) -> Iterator[tuple[float, tuple[int, float, float, float]]]:
    for each in episodes:
        steps = len(each.rewards)
        obs: Any = each.observations
        for t in range(steps):
            last = min(t + n_step, steps)
            reward = sum(GAMMA ** (k - t) * float(each.rewards[k]) for k in range(t, last))
            over = last == steps and each.terminated
            discount = 0.0 if over else GAMMA ** (last - t)
            yield float(obs[t, 0]), (int(each.actions[t]), reward, float(obs[last, 0]), discount)


def test_fields_are_packed_by_name_whatever_their_nesting() -> None:
    spec = EnvSpec(
        PackedSpec((("camera/left", box(2, dtype="uint8")), ("goal/1", box(1)))), DiscreteSpec(3)
    )
    observations: Any = {
        "goal": (np.zeros((4, 7)), np.arange(4, dtype=np.float64)[:, None]),
        "camera": {"left": np.arange(8, dtype=np.uint8).reshape(4, 2)},
    }
    steps: dict[str, Any] = {
        "actions": np.array([0, 1, 2]),
        "rewards": np.ones(3),
        "terminated": False,
    }
    with pytest.raises(ConfigError, match=r"\['camera/left', 'goal/1'\], got .*'goal/0'"):
        fill(Episode(observations=observations, **steps), spec)
    observations["goal"] = {"1": observations["goal"][1]}
    buffer = fill(Episode(observations=observations, **steps), spec)
    assert isinstance(spec.observation, PackedSpec)
    batch = buffer.sample(50)
    fields = spec.observation.unpack(batch["next_obs"])
    np.testing.assert_array_equal(fields["camera/left"][:, 0], 2 * fields["goal/1"][:, 0])
    assert set(fields["goal/1"][:, 0].tolist()) == {1.0, 2.0, 3.0}


def fill(each: Episode, spec: EnvSpec = SPEC, **more: Any) -> Any:
    return fill_buffer([each], spec, UniformReplayConfig(capacity=100), seed=0, **more)


def test_stacks_of_frames_are_stored_once_and_built_again() -> None:
    spec = EnvSpec(box(3, 1), DiscreteSpec(3))
    frames = np.array([5, 5, 5, 6, 7, 8, 9], np.float32)[:, None]
    stacks = np.stack([frames[t : t + 3] for t in range(5)])
    each = Episode(
        observations=stacks, actions=np.zeros(4, int), rewards=np.zeros(4), terminated=True
    )
    buffer = fill(each, spec, segment=SegmentConfig(length=2, frame_stack=3))
    batch = buffer.sample(60)
    before = {stack.tobytes() for stack in stacks[:-1]}
    assert {stack.tobytes() for stack in batch["obs"]} == before


def test_discounted_returns_are_filled_in_for_agents_that_ask() -> None:
    buffer = fill(episode(0, 3), extras=[ColumnSpec("discounted_return", "float32")])
    batch = buffer.sample(50)
    obs, returns = batch["obs"][:, 0].tolist(), batch["discounted_return"].tolist()
    first, second = 0.5, 1.5 + 0.99 * 0.5
    assert dict(zip(obs, returns, strict=True)) == {
        0.0: pytest.approx(first),
        1.0: pytest.approx(second),
        2.0: pytest.approx(2.5 + 0.99 * second),
    }


@pytest.mark.parametrize("burn_in", [3])
def test_every_row_is_learned_from_in_sequences_also_where_the_data_begins(burn_in: int) -> None:
    replay = SequenceReplayConfig(capacity=1000, sequence_length=6, stride=2, burn_in=burn_in)
    episodes = many([2, 9, 1, 5], [True, False, True, False])
    buffer = fill_buffer(episodes, SPEC, replay, segment=SegmentConfig(length=8), seed=0)
    batch = buffer.sample(400)
    learned = slice(burn_in, burn_in + 6)
    seen = set(batch["obs"][:, learned, 0][batch["mask"][:, learned]].tolist())
    assert seen == {
        number for each in episodes for number in np.asarray(each.observations)[:-1, 0].tolist()
    }


def test_no_episode_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no episodes"):
        fill_buffer([], SPEC, UniformReplayConfig(), seed=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observations": np.zeros((3, 1))}, r"observations must be float32 of shape \(4, 1\)"),
        ({"observations": np.full((4, 1), 1e39)}, "observations contain NaN or numbers outside"),
        ({"actions": np.array([0, 1, 3])}, "actions must lie between 0 and 2, got 0 to 3"),
        ({"rewards": np.array([0.0, np.inf, 0.0])}, "rewards contain NaN"),
        ({"rewards": np.zeros(0)}, "no step"),
    ],
)
def test_episode_that_does_not_fit_is_named(change: dict[str, Array], message: str) -> None:
    good = episode(0, 3)
    fields = {
        "observations": good.observations,
        "actions": good.actions,
        "rewards": good.rewards,
        "terminated": True,
    }
    bad = Episode(**{**fields, **change})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"episode 1.*{message}"):
        fill_buffer([good, bad], SPEC, UniformReplayConfig(), seed=0)


@pytest.mark.parametrize("pixel", [256, -1])
def test_numbers_beyond_their_dtype_are_refused_instead_of_wrapped(pixel: int) -> None:
    spec = EnvSpec(box(1, dtype="uint8"), DiscreteSpec(3))
    good = Episode(
        observations=np.array([[0], [255]]),
        actions=np.zeros(1, int),
        rewards=np.zeros(1),
        terminated=True,
    )
    assert fill(good, spec).sample(1)["next_obs"].tolist() == [[255]]
    bad = replace(good, observations=np.array([[0], [pixel]]))
    with pytest.raises(ConfigError, match=f"observations do not fit into uint8: .*{pixel}"):
        fill(bad, spec)


def test_data_that_has_no_room_is_refused_instead_of_lost() -> None:
    with pytest.raises(ConfigError, match=r"replay\.capacity=64 is too small"):
        fill_buffer([episode(0, 200)], SPEC, UniformReplayConfig(capacity=64), seed=0)


def test_columns_that_only_an_actor_can_store_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"\['log_prob'\]"):
        fill(episode(0, 3), extras=[ColumnSpec("log_prob", "float32")])
