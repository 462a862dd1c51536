"""One step becomes one row for each environment that stepped, and an end becomes one more."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from asyncrl.actor.step_processor import OneStep, Rows, Step
from asyncrl.core.agent import Act
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec, EnvStep
from asyncrl.core.errors import ConfigError, EnvironmentFault
from asyncrl.core.segment import END, TERMINATED, TRUNCATED, ColumnSpec
from asyncrl.core.types import ModelVersion

BOX = BoxSpec((2,), "float32", np.full(2, -np.inf), np.full(2, np.inf))
SPEC = EnvSpec(BOX, DiscreteSpec(3))


def make_step(
    terminated: Sequence[int] = (0, 0, 0),
    truncated: Sequence[int] = (0, 0, 0),
    stepped: Sequence[int] | None = None,
) -> Step:
    """Return a step of three environments: observed 0, 1, 2; next 10, 11, 12; reset 20, 21, 22."""
    obs, final, first = (
        np.arange(start, start + 3, dtype=np.float32)[:, None].repeat(2, 1) for start in (0, 10, 20)
    )
    ended = np.array(terminated, bool) | np.array(truncated, bool)
    outcome = EnvStep(
        np.where(ended[:, None], first, final),
        np.array([0.5, 1.5, 2.5], np.float32),
        np.array(terminated, bool),
        np.array(truncated, bool),
        final,
        None if stepped is None else np.array(stepped, bool),
    )
    extras = {"log_prob": np.array([-1, -2, -3], np.float32)}
    return Step(obs, Act(np.array([2, 1, 0]), extras), outcome, ModelVersion(7))


def process(step: Step) -> list[Rows]:
    return list(OneStep().process(step))


def test_step_becomes_one_row_for_each_environment() -> None:
    (rows,) = process(make_step())
    assert rows.env_ids.tolist() == [0, 1, 2]
    assert rows.columns["obs"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert rows.columns["action"].tolist() == [2, 1, 0]
    assert rows.columns["reward"].tolist() == [0.5, 1.5, 2.5]
    assert rows.columns["flags"].tolist() == [0, 0, 0]
    assert rows.columns["model_version"].tolist() == [7, 7, 7]
    assert rows.columns["log_prob"].tolist() == [-1, -2, -3]
    announced = {c.name: c.dtype for c in OneStep().columns(SPEC, (ColumnSpec("log_prob", "f4"),))}
    assert {name: column.dtype for name, column in rows.columns.items()} == announced


@pytest.mark.parametrize("how", ["terminated", "truncated"])
def test_end_adds_the_true_last_observation(how: str) -> None:
    rows, end = process(make_step(**{how: (1, 0, 1)}))
    flag = TERMINATED if how == "terminated" else TRUNCATED
    assert rows.columns["flags"].tolist() == [flag, 0, flag]
    assert end.env_ids.tolist() == [0, 2]
    assert set(end.columns) == {"obs", "flags"}
    assert end.columns["obs"].tolist() == [[10, 10], [12, 12]]
    assert end.columns["flags"].tolist() == [END, END]


def test_row_of_an_environment_that_only_reset_does_not_count() -> None:
    rows, end = process(make_step(truncated=(0, 0, 1), stepped=(1, 0, 1)))
    assert rows.env_ids.tolist() == [0, 1, 2]
    assert rows.only is not None
    assert rows.only.tolist() == [True, False, True]
    assert (end.env_ids.tolist(), end.only) == ([2], None)


# --- frame stacks ---------------------------------------------------------------------------------


def stacked(*frames: int) -> np.ndarray:
    """Return the observation of one environment: a stack of one-pixel frames."""
    return np.array(frames, np.uint8).reshape(1, len(frames), 1, 1)


def stack_step(
    obs: np.ndarray, final: np.ndarray, *, ended: bool = False, stepped: bool = True
) -> Step:
    flags = np.array([ended]), np.zeros(1, bool)
    outcome = EnvStep(final, np.ones(1, np.float32), *flags, final, np.array([stepped]))
    return Step(obs, Act(np.zeros(1, np.int64)), outcome, ModelVersion(0))


STACKS = EnvSpec(
    BoxSpec((3, 1, 1), "uint8", np.zeros((3, 1, 1)), np.full((3, 1, 1), 255)), DiscreteSpec(2)
)


def test_rows_hold_the_newest_frame_of_a_stack() -> None:
    processor = OneStep(frame_stack=3)
    (obs, *_) = processor.columns(STACKS, ())
    assert (obs.name, obs.shape) == ("obs", (1, 1))
    (row,) = processor.process(stack_step(stacked(5, 5, 5), stacked(5, 5, 6)))
    row_2, end = processor.process(stack_step(stacked(5, 5, 6), stacked(5, 6, 7), ended=True))
    (last,) = processor.finish(stacked(8, 8, 9))
    frames = [r.columns["obs"].ravel().tolist() for r in (row, row_2, end, last)]
    assert frames == [[5], [6], [7], [9]]


@pytest.mark.parametrize(
    ("obs", "final", "words"),
    [
        (stacked(0, 0, 5), stacked(0, 5, 6), "repeat its first frame"),
        (stacked(5, 5, 5), stacked(6, 5, 5), "newest last"),
    ],
)
def test_what_cannot_be_stacked_again_is_refused(
    obs: np.ndarray, final: np.ndarray, words: str
) -> None:
    with pytest.raises(EnvironmentFault, match=words):
        list(OneStep(frame_stack=3).process(stack_step(obs, final)))


def test_observations_that_are_no_stacks_are_refused() -> None:
    for spec in (SPEC, EnvSpec(BoxSpec((4, 1), "uint8", *np.zeros((2, 4, 1))), DiscreteSpec(2))):
        with pytest.raises(ConfigError, match=r"segment\.frame_stack=3 needs"):
            OneStep(frame_stack=3).columns(spec, ())


# --- returns so far -------------------------------------------------------------------------------


def test_returns_so_far_are_discounted_and_start_over_with_each_episode() -> None:
    processor = OneStep(return_gamma=0.5)
    returns = []
    for terminated in ((0, 0, 0), (1, 0, 0), (0, 0, 0)):
        row, *_ = processor.process(make_step(terminated=terminated))
        returns.append(row.columns["discounted_return"].tolist())
    assert returns == [[0.5, 1.5, 2.5], [0.75, 2.25, 3.75], [0.5, 2.625, 4.375]]
    assert row.columns["discounted_return"].dtype == np.float32


def test_returns_so_far_are_filled_for_an_agent_that_asks() -> None:
    asked = ColumnSpec("discounted_return", "float32")
    processor = OneStep()
    assert asked in processor.columns(SPEC, (asked,))
    for _ in range(2):
        row, *_ = processor.process(make_step())
    assert row.columns["discounted_return"].tolist() == pytest.approx([0.995, 2.985, 4.975])
