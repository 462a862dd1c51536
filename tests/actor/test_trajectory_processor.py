"""Trajectories: what is held back, cut, clipped, discarded and counted, and columns made of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.actor.step_processor import OneStep, Rows, Step, schema_of
from asyncrl.actor.trajectory_processor import (
    ReturnToGo,
    Trajectories,
    Trajectory,
    TrajectoryConfig,
)
from asyncrl.core.agent import Act
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec, EnvStep
from asyncrl.core.errors import ConfigError
from asyncrl.core.segment import END, ColumnSpec, SegmentConfig
from asyncrl.core.types import Columns, ModelVersion
from asyncrl.metrics.metrics import describe
from tests.support.scale import examples


def feed(processor: Trajectories, ends: list[str], stepped: list[str] | None = None) -> list[Rows]:
    """Play one environment for each of `ends`, whose letters are its steps: T, C or "-".

    Environment i observes 1000 * i, 1000 * i + 1, ... and is rewarded with the number of the step.
    Where `stepped` has a "0", nothing was stepped there.
    """
    emitted: list[Rows] = []
    n_envs = len(ends)
    obs = np.arange(n_envs, dtype=np.float32)[:, None] * 1000
    for t in range(len(ends[0])):
        terminated = np.array([end[t] == "T" for end in ends])
        truncated = np.array([end[t] == "C" for end in ends])
        final = obs + np.float32(0.5)
        moved = None if stepped is None else np.array([word[t] == "1" for word in stepped])
        outcome = EnvStep(
            obs + 1, np.full(n_envs, t, np.float32), terminated, truncated, final, moved
        )
        emitted += processor.process(
            Step(obs, Act(np.zeros(n_envs, int)), outcome, ModelVersion(t))
        )
        obs = obs + 1
    return [*emitted, *processor.finish(obs)]


def described(emitted: list[Rows], env_id: int = 0) -> str:
    """Write what was stored of an environment: its observations, and E before that of an end."""
    words = []
    for rows in emitted:
        for k in np.flatnonzero(rows.env_ids == env_id):
            is_end = bool(rows.columns["flags"][k] == END)
            words.append(f"{'E' * is_end}{rows.columns['obs'][k][0] - 1000 * env_id:g}")
    return " ".join(words)


# --- lengths, clips and strides ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "config", "expected", "counts"),
    [
        # Whole: the true last observation of an episode lies half a step behind.
        ("--C-", {}, "0 1 2 E2.5 3 E4", (2, 0, 0)),
        ("-T--T---T", {"min_length": 3}, "2 3 4 E4.5 5 6 7 8 E8.5", (2, 1, 2)),
        # What is left after a cut may be too short.
        ("--T--T", {"max_length": 2, "min_length": 2}, "0 1 E2 3 4 E5", (2, 2, 2)),
        ("--T", {"clip_length": 2, "min_length": 2}, "0 1 E2", (1, 1, 1)),
        ("------T", {"clip_length": 2, "clip_stride": 3}, "0 1 E2 3 4 E5 6 E6.5", (3, 0, 2)),
    ],
)
def test_what_is_stored_and_what_is_discarded_is_counted(
    ends: str, config: dict[str, int], expected: str, counts: tuple[int, int, int]
) -> None:
    processor = Trajectories(TrajectoryConfig(**config))
    assert described(feed(processor, [ends])) == expected
    record = processor.record()
    names = ("trajectories_stored", "trajectories_discarded", "transitions_discarded")
    assert record == dict(zip(names, counts, strict=True))
    assert all(describe(f"actor/0/{name}").unit for name in names)  # type: ignore[union-attr]


def test_rows_without_a_step_do_not_count() -> None:
    emitted = feed(Trajectories(), ["-T--", "----"], stepped=["1101", "1011"])
    assert described(emitted, 0) == "0 1 E1.5 3 E4"
    assert described(emitted, 1) == "0 2 3 E4"


@dataclass(frozen=True)
class Naive:
    """The same, written down once more: a list of pieces for each trajectory of an environment."""

    config: TrajectoryConfig

    def describe(self, ends: str) -> str:
        words: list[str] = []
        for steps, last in self.trajectories(ends):
            starts = range(
                0, len(steps), self.config.clip_stride or self.config.clip_length or 10**9
            )
            size = self.config.clip_length or len(steps)
            for k, start in enumerate(starts):
                if k and starts[k - 1] + size >= len(steps):
                    continue
                piece = steps[start : start + size]
                if len(piece) < self.config.min_length:
                    continue
                follows = [*steps, last][start + len(piece)]
                words += [*map("{:g}".format, piece), f"E{follows:g}"]
        return " ".join(words)

    def trajectories(self, ends: str) -> list[tuple[list[float], float]]:
        found: list[tuple[list[float], float]] = []
        steps: list[float] = []
        for t, end in enumerate(ends):
            if len(steps) == self.config.max_length:
                found.append((steps, float(t)))
                steps = []
            steps = [*steps, float(t)]
            if end != "-":
                found.append((steps, t + 0.5))
                steps = []
        return [*found, (steps, float(len(ends)))] if steps else found


@pytest.mark.behaviour(number=52)
@given(
    ends=st.lists(st.sampled_from("----TC"), min_size=1, max_size=40).map("".join),
    min_length=st.integers(1, 4),
    more=st.integers(0, 9),
    clip=st.integers(0, 6),
    stride=st.integers(0, 7),
)
@settings(deadline=None, max_examples=examples(200))
def test_any_lengths(ends: str, min_length: int, more: int, clip: int, stride: int) -> None:
    clip = max(clip, min_length) if clip else 0
    config = TrajectoryConfig(
        min_length=min_length,
        max_length=min_length + more,
        clip_length=clip,
        clip_stride=stride if clip else 0,
    )
    assert described(feed(Trajectories(config), [ends])) == Naive(config).describe(ends)


# --- columns made of whole trajectories ----------------------------------------------------------


@given(st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=30), st.floats(0, 1))
def test_return_to_go_is_the_sum_that_it_says(rewards: list[float], gamma: float) -> None:
    made = ReturnToGo(gamma=gamma)(Trajectory({"reward": np.array(rewards)}, np.zeros(1)))
    for t in range(len(rewards)):
        naive = sum(gamma**k * reward for k, reward in enumerate(rewards[t:]))
        assert made["return_to_go"][t] == pytest.approx(naive, rel=1e-5, abs=1e-5)


@pytest.mark.behaviour(number=52)
def test_columns_are_made_of_the_whole_trajectory_before_it_is_clipped() -> None:
    config = TrajectoryConfig(clip_length=2)
    own = Trajectories(
        config, one_step=OneStep(return_gamma=0.5), post_process=ReturnToGo(gamma=1.0)
    )
    rows = [r.columns for r in feed(own, ["---T"]) if "return_to_go" in r.columns]
    assert [float(columns["return_to_go"][0]) for columns in rows] == [6, 6, 5, 3]
    assert [columns["discounted_return"].item() for columns in rows] == [0, 1, 2.5, 4.25]


@dataclass(frozen=True)
class Own:
    """A custom function: the distance from the end of the trajectory, and where it ended."""

    made: tuple[str, ...] = ("steps_left", "goal")
    rows: int = 0

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        return (ColumnSpec("steps_left", "int32"), ColumnSpec("goal", "float32", (1,)))

    def __call__(self, trajectory: Trajectory) -> Columns:
        n = len(trajectory.columns["reward"]) + self.rows
        columns = {
            "steps_left": np.arange(n)[::-1],
            "goal": np.repeat(trajectory.last_obs[None], n, axis=0),
        }
        return {name: columns.get(name, np.zeros(n)) for name in self.made}


def test_own_function_sees_all_and_the_last_observation() -> None:
    emitted = feed(Trajectories(post_process=Own()), ["-T"])
    first, second = (rows.columns for rows in emitted if "goal" in rows.columns)
    assert (first["steps_left"].item(), second["steps_left"].item()) == (1, 0)
    assert first["steps_left"].dtype == np.int32
    assert first["goal"].tolist() == second["goal"].tolist() == [[1.5]]


def test_columns_other_than_declared_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'steps_left', 'goal'.* but returned \['goal'\]"):
        feed(Trajectories(post_process=Own(made=("goal",))), ["-T"])
    with pytest.raises(ConfigError, match=r"'steps_left' with shape \(3,\), expected \(2,\)"):
        feed(Trajectories(post_process=Own(rows=1)), ["-T"])


STACKS = EnvSpec(BoxSpec((4, 2, 2), "uint8", *np.zeros((2, 4, 2, 2))), DiscreteSpec(2))


def test_stacks_of_frames_are_refused_before_anything_runs() -> None:
    segment = SegmentConfig(frame_stack=4)
    with pytest.raises(ConfigError, match=r"those of Trajectories hold whole .* \(4, 2, 2\); set"):
        schema_of(Trajectories(), STACKS, (), segment, lookahead=1)
    with pytest.raises(ConfigError, match="pass one without frame_stack"):
        schema_of(Trajectories(one_step=OneStep(frame_stack=4)), STACKS, (), segment, lookahead=1)
    assert schema_of(Trajectories(), STACKS, (), SegmentConfig(), lookahead=1).frame_stack == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"min_length": 5, "max_length": 4}, "max_length=4 is less than min_length=5"),
        ({"min_length": 5, "clip_length": 4}, "clip_length=4 is less than min_length=5"),
        ({"clip_stride": 2}, "clip_stride=2 has no effect without a clip_length"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TrajectoryConfig(**settings)


# --- in a run ------------------------------------------------------------------------------------
