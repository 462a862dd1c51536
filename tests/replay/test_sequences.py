"""Sequence replay gives back windows of single episodes, as a loop over episodes would cut them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array
from asyncrl.replay.sequences import (
    PrioritizedSequenceReplayConfig,
    SequenceReplay,
    SequenceReplayConfig,
)
from tests.replay.segments import segment, streams, with_columns
from tests.support.scale import examples
from tests.support.streams import Transition, make_outbox, n_step_return, play, schema

GAMMA = 0.5


@dataclass(frozen=True)
class Episodes:
    """What happened, by the observation of each step."""

    of: Mapping[float, tuple[list[Transition], int]]
    """Observation -> its episode, and its place in there."""

    first: frozenset[float]
    """Observations of streams' first episodes."""


def split(histories: list[list[Transition]]) -> Episodes:
    of: dict[float, tuple[list[Transition], int]] = {}
    first: set[float] = set()
    for env in histories:
        episode: list[Transition] = []
        is_first = True
        for t in env:
            episode.append(t)
            of[t.obs] = (episode, len(episode) - 1)
            if is_first:
                first.add(t.obs)
            if t.terminated or t.truncated:
                episode, is_first = [], False
    return Episodes(of, frozenset(first))


@st.composite
def configs(draw: st.DrawFn) -> SequenceReplayConfig:
    return SequenceReplayConfig(
        sequence_length=draw(st.integers(1, 6)),
        burn_in=draw(st.integers(0, 4)),
        stride=draw(st.integers(1, 5)),
        n_step=draw(st.integers(1, 4)),
        gamma=GAMMA,
    )


def filled(
    config: SequenceReplayConfig, ends: list[list[str]], length: int, frame_stack: int = 1
) -> tuple[SequenceReplay, Episodes]:
    buffer = config.build(schema(length, config.lookahead, frame_stack), 0)
    histories, messages = play(ends, make_outbox(len(ends), length, config.lookahead, frame_stack))
    for message in messages:
        assert buffer.push(message.columns, message.rows) == message.transitions
    return buffer, split(histories)


def check(sample: Mapping[str, Array], episodes: Episodes, config: SequenceReplayConfig) -> None:
    """Compare one sequence, its observations numbers, with its episode."""
    begin = int(sample["mask"].argmax())
    assert sample["mask"][config.burn_in :].any(), "nothing would be learned from it"
    episode, at = episodes.of[float(sample["obs"][begin])]
    assert begin == (config.burn_in if at == 0 else 0)
    last = episode[-1].next_obs
    for t, obs in enumerate(sample["obs"]):
        j = at + t - begin
        expected = episode[max(j, at)].obs if j < len(episode) else last
        assert obs == expected, "across the end of an episode"
    for t, is_real in enumerate(sample["mask"]):
        j = at + t - begin
        assert is_real == (at <= j < len(episode))
        nearest = episode[min(max(j, at), len(episode) - 1)]
        assert sample["action"][t] == nearest.action
        assert sample["model_version"][t] == (nearest.reward - 1) % 100, "lags are computed from it"
        found = sample["reward"][t], sample["obs"][sample["bootstrap"][t]], sample["discount"][t]
        if is_real:
            assert found == pytest.approx(n_step_return(episode, j, config.n_step, GAMMA))
            assert sample["bootstrap"][t] == t + min(config.n_step, len(episode) - j)
        else:
            assert found == (0.0, sample["obs"][t], 0.0)


@given(configs(), streams(max_steps=40), st.integers(2, 9))
@settings(max_examples=examples(150), deadline=None)
def test_sequences_are_windows_of_episodes(
    config: SequenceReplayConfig, ends: list[list[str]], length: int
) -> None:
    buffer, episodes = filled(config, ends, length)
    if not len(buffer):
        assert set(episodes.of) == episodes.first, "all others have a first row"
        return
    batch = buffer.sample(3 * len(buffer))
    rows = config.burn_in + config.sequence_length
    assert batch["obs"].shape == (3 * len(buffer), rows + config.n_step, 1)
    assert {batch[name].shape[1] for name in ("action", "reward", "mask", "bootstrap")} == {rows}
    for k in range(3 * len(buffer)):
        sample = {name: column[k] for name, column in batch.items()}
        check({**sample, "obs": sample["obs"][:, 0]}, episodes, config)


@given(configs(), streams(max_steps=40), st.integers(2, 9))
@settings(max_examples=25, deadline=None)
def test_every_row_is_learned_from(
    config: SequenceReplayConfig, ends: list[list[str]], length: int
) -> None:
    if config.stride + config.burn_in > config.sequence_length:
        return
    for frame_stack in (1, 2):
        buffer, episodes = filled(config, ends, length, frame_stack)
        wanted = set(episodes.of) - (episodes.first if frame_stack == 1 else set())
        if not len(buffer):
            assert not wanted
            continue
        starts = buffer._ring.rows(np.arange(buffer._ring.oldest, buffer._ring.newest))
        batch = buffer._gather(starts)
        newest = batch["obs"].reshape(*batch["obs"].shape[:2], -1)[..., -1]
        learned = newest[:, config.burn_in : config.rows][batch["mask"][:, config.burn_in :]]
        assert set(learned.tolist()) >= wanted


def test_frames_are_stacked_within_the_episode() -> None:
    config = SequenceReplayConfig(sequence_length=3, stride=1, n_step=1, gamma=GAMMA)
    buffer, episodes = filled(config, [["", "", "T"] * 5], 4, frame_stack=3)
    batch = buffer.sample(40)
    assert batch["obs"].shape == (40, 4, 3, 1)
    for obs, mask in zip(batch["obs"][..., 0], batch["mask"], strict=True):
        for stack in obs[:3][mask]:
            episode, at = episodes.of[float(stack[-1])]
            assert stack.tolist() == [episode[max(at - back, 0)].obs for back in (2, 1, 0)]


def test_memory_is_given_at_the_first_row_alone() -> None:
    config = SequenceReplayConfig(
        sequence_length=2, burn_in=2, stride=3, start_columns=("memory",), gamma=GAMMA
    )
    columns = with_columns("memory", "noise", length=6, lookahead=config.lookahead)
    buffer = config.build(columns, 0)
    rows = [float(i) for i in range(columns.rows)]
    flags = [0.0, 0, 0, 0, 1, 4, 0, 0, 0, 0, 0]
    buffer.push(*segment(columns, obs=rows, memory=rows, noise=rows, flags=flags))
    batch = buffer.sample(60)
    assert (batch["memory"].shape, batch["noise"].shape) == ((60,), (60, 4))
    found = {
        (float(m), tuple(noise), tuple(mask))
        for m, noise, mask in zip(
            batch["memory"], batch["noise"].tolist(), batch["mask"].tolist(), strict=True
        )
    }
    assert found == {
        (1.0, (1.0, 2.0, 3.0, 4.0), (True,) * 4),
        (6.0, (6.0, 6.0, 6.0, 7.0), (False, False, True, True)),
    }


def test_every_sequence_is_equally_likely_and_seeded() -> None:
    config = SequenceReplayConfig(sequence_length=3, stride=2)
    drawn = []
    for seed in (1, 1, 2):
        buffer = config.build(schema(4, config.lookahead), seed)
        for message in play([["", "", "C"] * 8] * 2, make_outbox(2, 4, config.lookahead))[1]:
            buffer.push(message.columns, message.rows)
        drawn.append(buffer.sample(20_000)["obs"][:, 0, 0])
    assert drawn[0].tobytes() == drawn[1].tobytes() != drawn[2].tobytes()
    _, counts = np.unique(drawn[0], return_counts=True)
    assert len(counts) == len(buffer)
    assert counts / 20_000 == pytest.approx(1 / len(buffer), rel=0.25)


def test_prioritized_sequences_are_the_same_windows_drawn_in_proportion() -> None:
    config = PrioritizedSequenceReplayConfig(
        capacity=16, sequence_length=3, burn_in=1, stride=2, n_step=2, gamma=GAMMA, alpha=1.0
    )
    buffer = config.build(schema(4, config.lookahead), 0)
    histories, messages = play([["", "", "", "", "T"] * 8], make_outbox(1, 4, config.lookahead))
    for message in messages:
        assert buffer.push(message.columns, message.rows) == message.transitions
    index = np.arange(buffer._ring.oldest, buffer._ring.newest)
    assert len(buffer) == len(index) > 4
    errors = np.where(index == index[2], 8.0, 1.0)
    buffer.update_priorities(index, errors)
    batch = buffer.sample(2000)
    episodes = split(histories)
    for k in range(100):
        sample = {name: column[k] for name, column in batch.items()}
        check({**sample, "obs": sample["obs"][:, 0]}, episodes, config)
    share = (batch["index"] == index[2]).mean()
    assert share == pytest.approx(8 / errors.sum(), abs=0.01)
    lowest = batch["weight"][batch["index"] == index[2]]
    assert lowest == pytest.approx(8**-0.4)
    assert (batch["index"].shape, batch["weight"].shape) == ((2000,), (2000,))
    buffer.update_priorities(np.array([0]), np.array([1e9]))
    assert set(buffer.sample(500)["index"].tolist()) <= set(index.tolist()), "it is long gone"
    buffer.resume_at(config.beta_samples // 2)
    assert buffer._priorities.beta == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("more", "length", "lookahead", "match"),
    [
        ({"sequence_length": 5, "burn_in": 3, "n_step": 2}, 4, 9, "10 rows beyond.*9 ahead"),
        ({"stride": 16}, 1, None, r"replay\.stride=16"),
        ({"start_columns": ("memory",)}, 4, None, r"\['memory'\].*'action'"),
    ],
)
def test_segments_that_do_not_fit_are_refused(
    more: dict[str, Any], length: int, lookahead: int | None, match: str
) -> None:
    config = SequenceReplayConfig(**more)
    with pytest.raises(ConfigError, match=match):
        config.build(schema(length, lookahead or config.lookahead), 0)
